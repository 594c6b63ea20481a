"""Segments: the pieces of input that the leaves of a plan read in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.storage.files import Files, checksum, damaged

ROWS_MAX = 1 << 17

RUN, LOG, NDJSON, PARQUET, NEXMARK = "run", "log", "ndjson", "parquet", "nexmark"
BUCKET_RUNS = "bucket"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one file, or rows that are generated again from their numbers.

    Attributes:
        kind: selects the reader: `run` (state, with weights), `bucket` (several runs of state, without
            the rows that they append and delete again), `log` (redo log, with operations), `ndjson`,
            `parquet`, `nexmark` (generated), or a kind of a registered format.
        file: name in the storage; for several runs a JSON list of names and numbers of rows; a full
            path for other files; for generated rows the generator and its settings.
        rows: number of rows; 0 if unknown before reading. A large segment with a known number can
            be split into pieces with different `start` and `rows`.
        start: the first row of a run, log or generator; the first byte of an NDJSON file's part.
        sequence: number of the first row among the operations of a table.
        bytes: length of an NDJSON file's part (0: to its end), or of a Parquet file.
        crc: CRC-32 of the whole file; only for files of the redo log.
        watermark: rows with an event time below it (microseconds since 1970) are late; None if
            there is no watermark, or none yet.
        received_at: when the redo log received it (microseconds since 1970); None if that isn't
            known, as in entries of older versions.
    """

    kind: str
    file: str
    rows: int
    start: int = 0
    sequence: int = 0
    bytes: int = 0
    crc: int = 0
    watermark: int | None = None
    received_at: int | None = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the segment as a JSON document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns that a reader has to return.

    Attributes:
        places: their positions among all columns of the relation.
        schema: their names and types.
    """

    places: tuple[int, ...]
    schema: pa.Schema


def in_time(table: pa.Table, column: str, watermark: int | None, *, late: bool = False) -> pa.Table:
    """Return the rows whose event time isn't below a watermark, or with `late` the other rows.

    A row without an event time is never late.
    """
    if watermark is None:
        return table.slice(0, 0) if late else table
    below = pc.fill_null(pc.less(event_times(table[column]), watermark), False)
    return table.filter(below if late else pc.invert(below))


def event_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps as microseconds since 1970."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def read_arrow(files: Files, segment: Segment) -> pa.Table:
    """Return all columns and rows of a segment of state or redo log."""
    verify_segment(files, segment)
    try:
        source = pa.memory_map(files.path(segment.file))
        table = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(segment.file, str(error)) from error
    return table.slice(segment.start, segment.rows)


def verify_segment(files: Files, segment: Segment) -> None:
    """Compare a file of the redo log with its checksum; raise StateError if they differ."""
    if segment.kind != LOG:
        return
    try:
        found = checksum(files.path(segment.file))
    except OSError as error:
        raise damaged(segment.file, str(error)) from error
    if found != segment.crc:
        raise damaged(segment.file, f"its CRC is {found:08x}, expected is {segment.crc:08x}")


def distribute(segments: Sequence[Segment], tasks: int) -> list[list[Segment]]:
    """Distribute segments over tasks, with about equal numbers of rows; split large segments."""
    total = sum(segment.rows for segment in segments)
    most = max(ROWS_MAX, -(-total // tasks))
    pieces = [piece for segment in segments for piece in _cut(segment, most)]
    dealt: list[list[Segment]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for piece in sorted(pieces, key=lambda p: -(p.bytes or p.rows)):
        least = loads.index(min(loads))
        dealt[least].append(piece)
        loads[least] += piece.bytes or piece.rows or 1
    return dealt


def _cut(segment: Segment, most: int) -> Iterator[Segment]:
    """Split a segment into pieces of at most `most` rows; not if its row count is unknown."""
    for start in range(0, max(segment.rows, 1), most):
        yield replace(
            segment,
            rows=min(most, segment.rows - start),
            start=segment.start + start,
            sequence=segment.sequence + start,
        )
