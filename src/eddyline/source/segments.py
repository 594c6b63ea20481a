"""Segments: the pieces of input that the leaves of a plan read in an epoch."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.storage.files import Files, checksum, damaged

ROWS_MAX = 1 << 17
SMALL_BYTES = 1 << 16

RUN, LOG, NDJSON, PARQUET, NEXMARK = "run", "log", "ndjson", "parquet", "nexmark"
BUCKET_RUNS = "bucket"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one file, or rows that are generated again from their numbers.

    Attributes:
        kind: selects the reader: `run` (state, with weights), `bucket` (several runs of state, without
            the rows that they append and delete again), `log` (redo log, with operations), `ndjson`,
            `parquet`, `nexmark` (generated), or a kind of a registered format.
        file: name in the storage; for several runs a JSON list of names, numbers of rows and, if that isn't
            0, first rows; a full path for other files; for generated rows the generator and its settings.
        rows: number of rows; 0 if unknown before reading. A large segment with a known number can
            be split into pieces with different `start` and `rows`.
        start: the first row of a run, log, generator or part of a Parquet file; the first byte of an NDJSON
            file's part.
        sequence: number of the first row among the operations of a table.
        bytes: length of an NDJSON file's part (0: to its end), or of a Parquet file; about that of a part of
            runs, of the redo log or of a Parquet file, 0 if it isn't a part.
        crc: CRC-32 of the whole file; only for files of the redo log.
        watermark: rows with an event time below it (microseconds since 1970) are late; None if
            there is no watermark, or none yet.
        newest: rows with an event time above it (microseconds since 1970) are too far ahead; None
            for no limit.
        counted: whether event times of its rows can move the watermark; not those of entries before
            a reset.
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
    newest: int | None = None
    counted: bool = True

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


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted rows of a stream with a watermark, and the numbers of rejected ones.

    Attributes:
        rows: the accepted rows; those without an event time are among them.
        late: number of rows below the watermark.
        ahead: number of rows that are too far ahead of their receipt.
    """

    rows: pa.Table
    late: int = 0
    ahead: int = 0


def accepted_by_time(table: pa.Table, column: str, segment: Segment) -> Accepted:
    """Return the rows of a segment whose event time, in `column`, the stream accepts."""
    late, ahead = _rejections(table, column, segment)
    masks = [mask for mask in (late, ahead) if mask is not None]
    if masks:
        table = table.filter(pc.invert(functools.reduce(pc.or_, masks)))
    return Accepted(table, _count(late), _count(ahead))


def rejected_by_time(
    table: pa.Table, column: str, segment: Segment, reason: str | None
) -> pa.Table:
    """Return the rows of a segment that are late or too far ahead.

    Args:
        reason: name of a column to add, which says why; None for none.
    """
    none = table.slice(0, 0)
    late, ahead = (
        none if mask is None else table.filter(mask) for mask in _rejections(table, column, segment)
    )
    if reason is None:
        return pa.concat_tables([late, ahead])
    zone = "UTC" if table[column].type.tz else None
    below = f" is below the watermark {_moment(segment.watermark, zone)}"
    above = (
        f" is after {_moment(segment.newest, zone)}, the receipt of the row plus max_ahead: "
        "send the row again with its right time, or create the stream with a larger max_ahead"
    )
    parts = []
    for rows, why in ((late, below), (ahead, above)):
        shown = event_times(rows[column]).cast(pa.timestamp("us", zone)).cast(pa.string())
        reasons = pc.binary_join_element_wise("event time ", shown, why, "")
        parts.append(rows.append_column(reason, reasons))
    return pa.concat_tables(parts)


def _rejections(
    table: pa.Table, column: str, segment: Segment
) -> tuple[pa.ChunkedArray | None, pa.ChunkedArray | None]:
    """Return masks of the rows that are late, and of those too far ahead; None for no such row.

    A row that is both, after the clock was set back, counts as too far ahead.
    """
    times = event_times(table[column])
    bounds = pc.min_max(times).as_py()
    late = ahead = None
    if bounds["min"] is None:
        return None, None
    if segment.newest is not None and bounds["max"] > segment.newest:
        ahead = pc.fill_null(pc.greater(times, segment.newest), False)
    if segment.watermark is not None and bounds["min"] < segment.watermark:
        late = pc.fill_null(pc.less(times, segment.watermark), False)
        late = late if ahead is None else pc.and_not(late, ahead)
    return late, ahead


def _count(mask: pa.ChunkedArray | None) -> int:
    return 0 if mask is None else int(pc.sum(mask).as_py())


def _moment(micros: int | None, zone: str | None) -> str:
    return (
        "" if micros is None else pa.scalar(micros, pa.timestamp("us", zone)).cast("string").as_py()
    )


def event_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps as microseconds since 1970."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def read_arrow(files: Files, segment: Segment) -> pa.Table:
    """Return all columns and rows of a segment of state or redo log."""
    try:
        table = pa.ipc.open_file(_content(files.path(segment.file), segment)).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(segment.file, str(error)) from error
    return table.slice(segment.start, segment.rows)


def _content(path: str, segment: Segment) -> pa.Buffer | pa.MemoryMappedFile:
    """Return the bytes of a segment's file, compared with its checksum; those of a small one are read, which costs a sixth of mapping them."""
    with open(path, "rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size <= SMALL_BYTES:
            content = stream.read()
            if segment.kind == LOG:
                _check_sum(segment, zlib.crc32(content))
            return pa.py_buffer(content)
    _verify(path, segment)
    return pa.memory_map(path)


def verify_segment(files: Files, segment: Segment) -> None:
    """Compare a file of the redo log with its checksum; raise StateError if they differ."""
    try:
        _verify(files.path(segment.file), segment)
    except OSError as error:
        raise damaged(segment.file, str(error)) from error


def _verify(path: str, segment: Segment) -> None:
    if segment.kind == LOG:
        stat = os.stat(path)
        _check_sum(segment, _checksum(path, stat.st_ino, stat.st_mtime_ns, stat.st_size))


def _check_sum(segment: Segment, found: int) -> None:
    if found != segment.crc:
        raise damaged(segment.file, f"its CRC is {found:08x}, expected is {segment.crc:08x}")


@functools.lru_cache(maxsize=256)
def _checksum(path: str, *_: int) -> int:
    """Return the checksum of a file; cached, as many segments may name the same merged file."""
    return checksum(path)


def distribute(segments: Sequence[Segment], tasks: int) -> list[list[Segment]]:
    """Distribute segments over tasks, with about equal numbers of rows; split large segments."""
    total = sum(segment.rows for segment in segments)
    most = max(ROWS_MAX, -(-total // tasks))
    pieces = [piece for segment in segments for piece in _at_most(segment, most)]
    dealt: list[list[Segment]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for piece in sorted(pieces, key=lambda p: -(p.bytes or p.rows)):
        least = loads.index(min(loads))
        dealt[least].append(piece)
        loads[least] += piece.bytes or piece.rows or 1
    return dealt


def _at_most(segment: Segment, most: int) -> Iterator[Segment]:
    """Split a segment into pieces of at most `most` rows; not if its row count is unknown."""
    if segment.rows <= most:
        yield segment
    else:
        yield from cut_at(segment, [*range(0, segment.rows, most), segment.rows])


def cut_at(segment: Segment, bounds: Iterable[int]) -> Iterator[Segment]:
    """Yield the parts of a segment between bounds, in rows from its first one on; not those without a row.

    Args:
        segment: one with a known number of rows, but not several runs.

    Example:
        >>> [(part.start, part.rows, part.bytes) for part in cut_at(Segment(RUN, "a", 8, 2, bytes=80), (0, 3, 8))]
        [(2, 3, 30), (5, 5, 50)]
    """
    for start, end in pairwise(bounds):
        if end > start:
            yield replace(
                segment,
                rows=end - start,
                start=segment.start + start,
                sequence=segment.sequence + start,
                bytes=segment.bytes * (end - start) // segment.rows,
            )
