"""Readers for each kind of segment: functions that return the rows that a segment names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from eddyline.changes import APPEND, OPERATION, SEQUENCE, WEIGHT
from eddyline.errors import EngineError
from eddyline.source.files import read_json_part, read_parquet_file
from eddyline.source.generator import read_events
from eddyline.source.received import is_received
from eddyline.source.segments import (
    BUCKET_RUNS,
    LOG,
    NDJSON,
    NEXMARK,
    PARQUET,
    ROWS_MAX,
    RUN,
    Segment,
    Wanted,
    read_arrow,
)
from eddyline.storage.files import Files

Reader: TypeAlias = Callable[[Files, Segment, Wanted], Iterator[tuple[pa.Table, int]]]
"""Gives tables and their numbers of rows (which a table without columns can't tell).

The wanted columns come first, in order. `op` and `w` may follow: without `op` rows are appends,
without `w` each row counts once. A reader runs in Spark's Python workers, so it must be picklable.
"""


def read_stored(files: Files, segment: Segment, wanted: Wanted) -> Iterator[tuple[pa.Table, int]]:
    """Read a segment of state or redo log, whose columns are `c0..` by position."""
    table = read_arrow(files, segment)
    if segment.kind == LOG:
        table = _as_wanted(table, wanted)
    extra = [name for name in (OPERATION, WEIGHT) if name in table.column_names]
    names = [*(f"c{place}" for place in wanted.places), *extra]
    for start in range(0, table.num_rows, ROWS_MAX):
        part = table.slice(start, ROWS_MAX)
        # Only now: pyarrow gives a slice of a table without columns any number of rows.
        yield part.select(names), part.num_rows


def _as_wanted(table: pa.Table, wanted: Wanted) -> pa.Table:
    """Return rows of a log with the columns and types that the stream has now."""
    held = {name: place for place, name in enumerate(table.column_names)}
    for place, field in zip(wanted.places, wanted.schema, strict=True):
        name, kind = f"c{place}", field.type
        at = held.get(name)
        if at is None:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
        elif table.schema.types[at] != kind and _is_number(kind):
            table = table.set_column(at, name, table.column(at).cast(kind))
    return table


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    return any(is_one(kind) for is_one in numbers)


READERS: Mapping[str, Reader] = {
    RUN: read_stored,
    LOG: read_stored,
    NDJSON: read_json_part,
    PARQUET: read_parquet_file,
    NEXMARK: read_events,
}
"""The readers of the kinds that every storage may hold; a format can bring others."""


def read_segment(
    files: Files,
    segment: Segment,
    names: Sequence[str],
    columns: Sequence[int],
    schema: pa.Schema,
    readers: Mapping[str, Reader] | None = None,
) -> Iterator[pa.Table]:
    """Read the rows of a segment as `c0.., w` (or `seq, op, c0.., w` where the schema says so).

    A stream's column `_received_at` is filled here with the time of the segment.

    Args:
        names: names of all columns of the relation; empty if its segments number their columns.
        columns: positions of the columns to read.
        schema: schema of the result: the columns to read, then the weight.
        readers: readers for the kinds that only the relation's own format uses.
    """
    reader = (readers or {}).get(segment.kind) or READERS.get(segment.kind)
    if reader is None:
        raise EngineError(
            f"there is no reader for data of kind {segment.kind}",
            condition="UNKNOWN_SOURCE",
            file=segment.file,
            hint="register the stream's format before opening the storage",
        )
    fields = [
        pa.field(names[place] if names else f"c{place}", schema.field(f"c{i}").type)
        for i, place in enumerate(columns)
    ]
    stored = segment.kind in (RUN, BUCKET_RUNS)  # which hold all columns
    at = None if stored else next((i for i, f in enumerate(fields) if is_received(f.name)), None)
    asked = [i for i in range(len(columns)) if i != at]
    wanted = Wanted(tuple(columns[i] for i in asked), pa.schema([fields[i] for i in asked]))
    first = segment.sequence
    for table, count in reader(files, segment, wanted):
        if at is not None:
            table = _with_received(table, at, count, fields[at], segment.received_at)
        yield _wire(table, count, len(columns), first if SEQUENCE in schema.names else None)
        first += count


def _with_received(
    rows: pa.Table, at: int, count: int, field: pa.Field, time: int | None
) -> pa.Table:
    """Insert the column of a time at place `at` of `count` rows.

    Args:
        field: name and type of the column.
        time: microseconds since 1970; None for null.
    """
    column = pa.repeat(pa.scalar(time, field.type), count)
    columns, names = list(rows.columns), list(rows.column_names)
    columns.insert(at, pa.chunked_array([column]))
    names.insert(at, field.name)
    return pa.table(columns, names=names)


def _wire(table: pa.Table, count: int, width: int, first: int | None) -> pa.Table:
    """Add a weight to rows, and number their operations from `first` on unless it is None."""
    extra = dict(zip(table.column_names[width:], table.columns[width:], strict=True))
    weights = extra[WEIGHT] if WEIGHT in extra else pa.array(np.ones(count, np.int64))
    if width:
        rows = table.select(range(width)).rename_columns([f"c{i}" for i in range(width)])
        rows = rows.append_column(WEIGHT, weights)
    else:
        rows = pa.table({WEIGHT: weights})
    if first is None:
        return rows
    appends = OPERATION not in extra
    operations = pa.array([APPEND] * count, pa.string()) if appends else extra[OPERATION]
    rows = rows.add_column(0, OPERATION, operations)
    return rows.add_column(0, SEQUENCE, pa.array(np.arange(first, first + count)))
