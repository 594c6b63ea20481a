"""The files of a redo log: Arrow files of rows, which its entries name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import OPERATION
from eddyline.source.segments import LOG, Segment, read_arrow
from eddyline.storage.files import Files, Summing

SET_ASIDE = "set-aside.json"
"""By path, the size, modification time and fault of files that a source can't read."""

NUMBER_DIGITS = 12  # the number of an entry begins the names of its files
BAD = ["payload", "error"]  # columns of records that become dead letters
PLACE = ["eddyline modified", "eddyline file", "eddyline block"]
"""Columns with the place of a record that comes from a file: modification time, path, first byte of the part of the file."""

LOGGED = "file string, start long, rows long, crc long, dead boolean, modified long, path string, block long"
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

    Input: `c0..`, for a stream of operations `op`, for one with dead letters `payload` and
    `error`, which are null for good records, and `PLACE` if the rows must keep the order of their files.
    Output: a row for each file, `LOGGED`; with `PLACE` one for each part of a source's file.
    """

    files: Files
    folder: str
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files; yield the names, rows and checksums, and whether they are dead letters."""
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        rows, dead = pa.Table.from_batches(received), None
        if "error" in rows.column_names:
            bad = pc.is_valid(rows["error"])
            rows, dead = rows.filter(pc.invert(bad)), rows.filter(bad).select(BAD)
            rows = rows.drop_columns(BAD)
        if rows.num_rows:
            rows, parts = _by_place(rows)
            yield self._written(rows, dead=False, parts=parts)
        if dead is not None and dead.num_rows:
            yield self._written(dead, dead=True, parts=_one_part(dead))

    def _written(self, rows: pa.Table, *, dead: bool, parts: pa.Table) -> pa.RecordBatch:
        """Write a file; return its parts, of `PLACE` and a number of rows, as `LOGGED`."""
        segment = write_rows(self.files, new_file(self.folder, self.number), rows)
        counts = parts["rows"].to_numpy()
        written = {
            "file": [segment.file] * len(counts),
            "start": np.cumsum(counts) - counts,
            "rows": counts,
            "crc": [segment.crc] * len(counts),
            "dead": [dead] * len(counts),
            **dict(zip(("modified", "path", "block"), parts.select(PLACE).columns, strict=True)),
        }
        return pa.table(written).combine_chunks().to_batches()[0]


def _by_place(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return rows in the order of `PLACE`, which is taken off, and the places with their numbers of rows."""
    if PLACE[0] not in rows.column_names:
        return rows, _one_part(rows)
    parts = _counted(rows)
    if parts.num_rows > 1:
        # stable: rows of one part of a file stay in their order
        rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in PLACE]))
        parts = _counted(rows)
    return rows.drop_columns(PLACE), parts


def _counted(rows: pa.Table) -> pa.Table:
    """Return the places of rows, as they first occur, with their numbers of rows."""
    groups = rows.group_by(PLACE, use_threads=False).aggregate([([], "count_all")])
    return groups.rename_columns([*PLACE, "rows"])


def _one_part(rows: pa.Table) -> pa.Table:
    """Return a part with all rows, of no file."""
    kinds = (pa.int64(), pa.string(), pa.int64())
    nothing = {name: pa.nulls(1, kind) for name, kind in zip(PLACE, kinds, strict=True)}
    return pa.table({**nothing, "rows": [rows.num_rows]})


def in_order(parts: Iterable[Segment]) -> list[Segment]:
    """Return segments of a log, of which neighbours in the same file are one."""
    joined: list[Segment] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and (last.file, last.start + last.rows) == (part.file, part.start):
            joined[-1] = replace(last, rows=last.rows + part.rows)
        else:
            joined.append(part)
    return joined


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
