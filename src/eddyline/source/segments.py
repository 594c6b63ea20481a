"""Segments: the pieces of stored input that the leaves of a plan read in an epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import APPEND, OPERATION, SEQUENCE, WEIGHT
from eddyline.source.ndjson import read_ndjson
from eddyline.source.nexmark import Nexmark
from eddyline.source.parquet import read_parquet
from eddyline.storage.files import Files, checksum, damaged

ROWS_MAX = 1 << 17

RUN, LOG, NDJSON, PARQUET, NEXMARK = "run", "log", "ndjson", "parquet", "nexmark"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one file, or rows that are made anew from their numbers.

    Attributes:
        kind: `run` (state, with weights), `log` (redo log, with operations), `ndjson`, `parquet`,
            or `nexmark` (made anew).
        file: name below the storage folder; a full path for files outside of it; for rows that are
            made anew, what makes them.
        rows: how many; 0 where that isn't known before reading.
        start: the first row (of runs, logs and rows that are made anew).
        sequence: number of the first row among the operations of a table.
        bytes: the part of an NDJSON file, from byte `start` on; 0 for all of it.
        crc: CRC-32 of the whole file, of the redo log only.
        watermark: rows with an event time below it (microseconds since 1970) are late; None where
            there is no watermark, or none yet.
    """

    kind: str
    file: str
    rows: int
    start: int = 0
    sequence: int = 0
    bytes: int = 0
    crc: int = 0
    watermark: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        return asdict(self)


def read_segment(
    files: Files, segment: Segment, names: Sequence[str], columns: Sequence[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of a segment as `c0.., w` (or `seq, op, c0.., w` where the schema says so).

    Args:
        names: names of all columns of the relation, for formats that know columns by name.
        columns: places of the wanted columns.
        schema: what to give: the types of the wanted columns, then the weight.
    """
    wanted = [f"c{place}" for place in columns]
    if segment.kind in (NDJSON, PARQUET, NEXMARK):
        fields = [
            pa.field(names[place], schema.field(f"c{i}").type) for i, place in enumerate(columns)
        ]
        for table, rows in _read_by_name(segment, pa.schema(fields)):
            renamed = table.rename_columns([f"c{i}" for i in range(len(columns))])
            yield _with_ones(renamed, rows)
        return
    table = read_arrow(files, segment)
    for start in range(0, table.num_rows, ROWS_MAX):
        part = table.slice(start, ROWS_MAX)
        rows = part.select(wanted).rename_columns([f"c{i}" for i in range(len(wanted))])
        if WEIGHT in part.column_names:
            weights = part[WEIGHT]
            rows = rows.append_column(WEIGHT, weights) if wanted else pa.table({WEIGHT: weights})
        else:
            rows = _with_ones(rows, part.num_rows)
        if SEQUENCE in schema.names:
            first = segment.sequence + start
            numbers = np.arange(first, first + part.num_rows)
            operations = (
                part[OPERATION]
                if OPERATION in part.column_names
                else pa.array([APPEND] * part.num_rows, pa.string())
            )
            rows = rows.add_column(0, OPERATION, operations)
            rows = rows.add_column(0, SEQUENCE, pa.array(numbers))
        yield rows


def in_time(table: pa.Table, column: str, watermark: int | None, *, late: bool = False) -> pa.Table:
    """The rows whose event time isn't below a watermark; with `late` the others.

    A row without an event time is never late.
    """
    if watermark is None:
        return table.slice(0, 0) if late else table
    behind = pc.fill_null(pc.less(event_times(table[column]), watermark), False)
    return table.filter(behind if late else pc.invert(behind))


def event_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as microseconds since 1970."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _read_by_name(segment: Segment, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
    """The columns of `schema`, and how many rows they have: a table without columns can't tell."""
    if segment.kind == NEXMARK:
        events = Nexmark.parse(segment.file)
        for start in range(0, segment.rows, ROWS_MAX):
            rows = min(ROWS_MAX, segment.rows - start)
            yield events.rows(segment.start + start, rows, schema), rows
        return
    _check_size(segment)
    if segment.kind == NDJSON:
        tables = read_ndjson(segment.file, schema, segment.start, segment.bytes)
    else:
        tables = read_parquet(segment.file, schema, ROWS_MAX)
    for table in tables:
        yield table, table.num_rows


def _with_ones(rows: pa.Table, count: int | None = None) -> pa.Table:
    ones = pa.array(np.ones(rows.num_rows if count is None else count, np.int64))
    if not rows.column_names:
        return pa.table({WEIGHT: ones})
    return rows.append_column(WEIGHT, ones)


def read_arrow(files: Files, segment: Segment) -> pa.Table:
    """The rows of a segment of state or redo log, as they were written."""
    verify_segment(files, segment)
    try:
        source = pa.memory_map(files.path(segment.file))
        table = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(segment.file, str(error)) from error
    return table.slice(segment.start, segment.rows)


def _check_size(segment: Segment) -> None:
    size = os.path.getsize(segment.file) if os.path.exists(segment.file) else -1
    if size < segment.start + segment.bytes:
        raise damaged(
            segment.file,
            "it was changed or removed after the stream had seen it",
            "restore it from a copy: a stream's files are its redo log",
        )


def verify_segment(files: Files, segment: Segment) -> None:
    """Compare a file of the redo log with its checksum; StateError if they differ."""
    if segment.kind != LOG:
        return
    try:
        found = checksum(files.path(segment.file))
    except OSError as error:
        raise damaged(segment.file, str(error)) from error
    if found != segment.crc:
        raise damaged(segment.file, f"its CRC is {found:08x}, expected is {segment.crc:08x}")


def spread(segments: Sequence[Segment], tasks: int) -> list[list[Segment]]:
    """Deal segments to tasks so that each has about as many rows; large runs are cut."""
    total = sum(segment.rows for segment in segments)
    most = max(ROWS_MAX, -(-total // tasks))
    pieces: list[Segment] = []
    for segment in segments:
        if segment.kind in (NDJSON, PARQUET) or segment.rows <= most:
            pieces.append(segment)
            continue
        for start in range(0, segment.rows, most):
            rows = min(most, segment.rows - start)
            pieces.append(
                replace(
                    segment,
                    rows=rows,
                    start=segment.start + start,
                    sequence=segment.sequence + start,
                )
            )
    dealt: list[list[Segment]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for piece in sorted(pieces, key=lambda p: -(p.bytes or p.rows)):
        least = loads.index(min(loads))
        dealt[least].append(piece)
        loads[least] += piece.bytes or piece.rows or 1
    return dealt
