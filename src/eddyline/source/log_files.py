"""The files of a redo log: Arrow files of rows, which its entries name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import OPERATION
from eddyline.source.segments import LOG, Segment, read_arrow
from eddyline.storage.files import Files, Summing

SET_ASIDE = "set-aside.json"
"""By path, the size, modification time and fault of files that a source can't read."""

NUMBER_DIGITS = 12  # the number of an entry begins the names of its files
BAD = ["payload", "error"]  # columns of records that become dead letters
LOGGED = "file string, rows long, crc long, dead boolean"
_SMALL_BYTES = 4 << 20  # rows of larger files stay in them


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column of a source that is copied into a log.

    Attributes:
        place: its name in the log.
        name: its name in the source, or that of a column which the stream adds.
        type: its type.
    """

    place: str
    name: str
    type: pa.DataType


def new_file(folder: str, number: int) -> str:
    """Return a name for a file of an entry in a log's folder."""
    return f"{folder}/{number:012d}-{uuid.uuid4().hex[:8]}.arrow"


def as_operations(rows: pa.Table, operation: str) -> pa.Table:
    """Return rows as operations of the redo log: `c0.., op`."""
    kinds = pa.array([operation] * rows.num_rows, pa.string())
    plain = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
    return plain.append_column(OPERATION, kinds)


def write_rows(files: Files, name: str, table: pa.Table) -> Segment:
    """Write rows as a file of the log, and return its segment."""
    crc = 0

    def fill(stream: BinaryIO) -> None:
        nonlocal crc
        summing = Summing(stream)
        with pa.ipc.new_file(pa.PythonFile(summing, mode="w"), table.schema) as writer:
            writer.write_table(table)
        crc = summing.crc

    files.write(name, fill)
    return Segment(LOG, name, table.num_rows, crc=crc)


@dataclass(frozen=True, slots=True)
class LogTask:
    """Write the rows of a micro-batch into files of the redo log, one or two a task.

    Input: `c0..`, for a stream of operations `op`, and for one with dead letters `payload` and
    `error`, which are null for good records. Output: a row for each file, `LOGGED`.
    """

    files: Files
    folder: str
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files; yield for each its name, row count and checksum, and whether it holds dead letters."""
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        rows, dead = pa.Table.from_batches(received), None
        if "error" in rows.column_names:
            bad = pc.is_valid(rows["error"])
            rows, dead = rows.filter(pc.invert(bad)), rows.filter(bad).select(BAD)
            rows = rows.drop_columns(BAD)
        for table in (rows, dead):
            if table is not None and table.num_rows:
                segment = write_rows(self.files, new_file(self.folder, self.number), table)
                written = [segment.file, segment.rows, segment.crc, table is dead]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([value]) for value in written], names=["file", "rows", "crc", "dead"]
                )


def in_fewer_files(
    files: Files, new_file: Callable[[], str], segments: Sequence[Segment]
) -> list[Segment]:
    """Merge the rows of small files into large ones; return the same segments, which name the new files."""
    merged = list(segments)
    parts: dict[pa.Schema, list[tuple[int, pa.Table]]] = {}
    for place, segment in enumerate(segments):
        if segment.kind == LOG:
            rows = read_arrow(files, segment)
            if 0 < rows.nbytes < _SMALL_BYTES:
                parts.setdefault(rows.schema, []).append((place, rows))
    for found in parts.values():
        rows = pa.concat_tables([rows for _, rows in found]).combine_chunks()
        written, start = write_rows(files, new_file(), rows), 0
        for place, rows in found:
            merged[place] = replace(
                segments[place], file=written.file, crc=written.crc, start=start
            )
            start += rows.num_rows
    return merged
