"""The comparison of two results as multisets of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from eddyline.answers.changelog import net_changes
from eddyline.changes import WEIGHT
from eddyline.runtime.worker import prepare_worker
from eddyline.spark.schema import loosened
from eddyline.state.kernels import repeat
from eddyline.state.retyping import cast_to
from eddyline.state.runs import ipc_bytes
from eddyline.state.weights import deletes_in

SHOWN_ROWS = 5
_PENDING_ROWS = 1 << 18
"""A task holds at least so many rows before equal ones cancel each other out."""
_EXACT = (
    BinaryType, BooleanType, DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType,
)  # fmt: skip
_FOUND = "left_rows bigint, right_rows bigint, left binary, right binary"


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two multisets of rows.

    Attributes:
        left_rows, right_rows: the number of rows of each.
        left_only, right_only: rows that only one of them has, at most five of each.
    """

    left_rows: int
    right_rows: int
    left_only: tuple[dict[str, Any], ...]
    right_only: tuple[dict[str, Any], ...]

    @property
    def equal(self) -> bool:
        """Whether the two are equal."""
        return not self.left_only and not self.right_only


def difference(left: pa.Table, right: pa.Table) -> Difference:
    """Compare two tables as multisets of rows; columns by position.

    Floating point numbers are equal within a relative 1e-9, because Spark doesn't define the order
    in which it adds them up. Everything else must be identical.
    """
    columns = [f"c{i}" for i in range(left.num_columns)]
    one = pa.table(left.columns, names=columns)
    two = cast_to(pa.table(right.columns, names=columns), one.schema)
    both = pa.concat_tables(
        [
            one.append_column(WEIGHT, pa.array(np.ones(one.num_rows, np.int64))),
            two.append_column(WEIGHT, pa.array(np.full(two.num_rows, -1))),
        ]
    )
    one, two = _unmatched(net_changes(both, columns))
    names = left.column_names
    return Difference(left.num_rows, right.num_rows, _dicts(one, names), _dicts(two, names))


def frames_difference(left: DataFrame, right: DataFrame, tasks: int) -> Difference:
    """Compare two DataFrames as `difference` compares tables, in a job whose tasks hold a part of the rows each.

    Args:
        tasks: the number of parts. Rows go to them by the columns that are compared exactly; if there are none,
            to a single one.
    """
    names = left.columns
    one, two = (
        loosened(side).toDF(*(f"c{i}" for i in range(len(names)))) for side in (left, right)
    )
    two = two.select(*(col(f.name).cast(f.dataType).alias(f.name) for f in one.schema))
    exact = [col(field.name) for field in one.schema if _is_exact(field.dataType)]
    weighted = (
        side.withColumn(WEIGHT, lit(weight).cast("bigint"))
        for side, weight in ((one, 1), (two, -1))
    )
    both = DataFrame.unionAll(*weighted)
    parts = both.repartition(tasks, *exact) if exact else both.repartition(1)
    found = parts.mapInArrow(_differences, _FOUND).toArrow()
    sides = [
        tuple(row for rest in found[side].to_pylist() for row in _dicts(_read(rest), names))
        for side in ("left", "right")
    ]
    rows = [pc.sum(found[side]).as_py() or 0 for side in ("left_rows", "right_rows")]
    return Difference(rows[0], rows[1], sides[0][:SHOWN_ROWS], sides[1][:SHOWN_ROWS])


def _is_exact(kind: DataType) -> bool:
    """Return whether equal values of a type have the same hash in Spark, and only equal ones match."""
    return isinstance(kind, _EXACT) or kind == StringType()


def _differences(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare the rows of a task: those of the left side have the weight 1, those of the right one -1."""
    prepare_worker()
    all_rows = right_rows = 0
    held, held_rows, most = list[pa.Table](), 0, _PENDING_ROWS
    for batch in batches:
        all_rows += batch.num_rows
        right_rows += deletes_in(batch.column(WEIGHT))
        held.append(pa.Table.from_batches([batch]))
        held_rows += batch.num_rows
        if held_rows > most:
            held = [_cancelled(held)]
            held_rows = held[0].num_rows
            most = max(_PENDING_ROWS, 2 * held_rows)
    if not held:
        return
    left, right = map(ipc_bytes, _unmatched(_cancelled(held)))
    counts = {"left_rows": [all_rows - right_rows], "right_rows": [right_rows]}
    yield pa.RecordBatch.from_pydict({**counts, "left": [left], "right": [right]})


def _cancelled(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the net changes of all parts."""
    rows = pa.concat_tables(parts)
    return net_changes(rows, [name for name in rows.column_names if name != WEIGHT])


def _read(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _unmatched(rest: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the first rows that only one side has, of net changes; floats that are nearly equal match."""
    weights = rest[WEIGHT].to_numpy()
    rows = _with_python_values(rest.drop_columns([WEIGHT]))
    sides = [
        repeat(rows.filter(pa.array(sign * weights > 0)), sign * weights[sign * weights > 0])
        for sign in (1, -1)
    ]
    left, right = (_comparable(side) for side in sides)
    orders = [
        sorted(range(len(side)), key=[_key(row) for row in side].__getitem__)
        for side in (left, right)
    ]
    only = _only(left, right, *orders)
    shown = [
        side.take(pa.array(places[:SHOWN_ROWS], pa.int64()))
        for side, places in zip(sides, only, strict=True)
    ]
    return shown[0], shown[1]


def _only(
    left: Sequence[tuple[Any, ...]],
    right: Sequence[tuple[Any, ...]],
    in_left: Sequence[int],
    in_right: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Return the places of rows that only one side has, in order.

    Args:
        in_left, in_right: the places of all rows, sorted by `_key`.
    """
    only_left, only_right = [], []
    one = two = 0
    while one < len(in_left) and two < len(in_right):
        a, b = left[in_left[one]], right[in_right[two]]
        if _close(a, b):
            one, two = one + 1, two + 1
        elif _key(a) <= _key(b):
            only_left.append(in_left[one])
            one += 1
        else:
            only_right.append(in_right[two])
            two += 1
    return [*only_left, *in_left[one:]], [*only_right, *in_right[two:]]


def _comparable(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(_with_sorted_maps(value) for value in row.values()) for row in table.to_pylist()]


def _with_python_values(table: pa.Table) -> pa.Table:
    """Return a table with texts in the columns that have dates or times of which Python has none."""
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if pa.types.is_temporal(column.type):
            try:
                column.to_pylist()
            except OverflowError:
                table = table.set_column(place, name, column.cast(pa.string()))
    return table


def _key(row: tuple[Any, ...]) -> tuple[str, list[float]]:
    return repr(_without_floats(row)), _floats(row)


def _dicts(table: pa.Table, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    return tuple(dict(zip(names, row, strict=True)) for row in _comparable(table))


def _with_sorted_maps(value: Any) -> Any:
    """Sort the entries of a value's maps, which have no defined order."""
    if isinstance(value, dict):
        return {key: _with_sorted_maps(part) for key, part in value.items()}
    if isinstance(value, list):
        parts = [_with_sorted_maps(part) for part in value]
        is_map = all(isinstance(part, tuple) for part in parts)
        return sorted(parts, key=repr) if is_map else parts
    if isinstance(value, tuple):
        return tuple(_with_sorted_maps(part) for part in value)
    return value


def _without_floats(value: Any) -> Any:
    """Replace the finite floats in a value by a placeholder, so that nearly equal rows sort alike."""
    if isinstance(value, float):
        return "f" if math.isfinite(value) else repr(value)
    if isinstance(value, list | tuple):
        return [_without_floats(part) for part in value]
    if isinstance(value, dict):
        return [(key, _without_floats(part)) for key, part in value.items()]
    return value


def _floats(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value] if math.isfinite(value) else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _floats(part)]
    return []


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and _close(list(a.values()), [b[key] for key in a])
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)
