"""Vectorised operations on tables of changes: rows with measures that can be combined.

A *collection* is an Arrow table `h, identity columns..., measures...`. `h` is the 64-bit hash of the
key, the identity columns identify a row, and the measures of equal rows are combined. A Z-set has
one measure, the weight. The measures of a linear aggregate are its accumulators.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT

SAMPLE_ROWS = 4096


class Measure(StrEnum):
    """How the measures of equal rows are combined."""

    SUM = "sum"
    INTEGER = "integer"  # sums of integers modulo 2^64; contributions come as {high, low}
    XOR = "xor"
    MIN = "min"
    MAX = "max"
    EXACT = "exact"  # sums of doubles, stored as digits; see `operators/exact_sums.py`


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Convert a column so that polars considers two values equal if and only if Spark stores the same.

    Floating point numbers become their bits, so -0.0 and 0.0 differ and NaN equals NaN. Maps become
    lists of entries. Nested types are rebuilt around their converted children.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # too large for one chunk
        return pa.chunked_array([comparable(chunk) for chunk in array.chunks])
    return _comparable(array)


def _comparable(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        bits = pa.int64() if kind == pa.float64() else pa.int32()
        one_nan = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), kind), array)
        return one_nan.view(bits)
    if pa.types.is_struct(kind):
        children = [_comparable(child) for child in array.flatten()]
        names = [f"f{i}" for i in range(len(children))]
        if not children:
            return pc.is_valid(array)
        return pa.StructArray.from_arrays(children, names=names, mask=pc.is_null(array))
    if pa.types.is_map(kind):
        # the offsets stay valid over the whole child arrays of a sliced map
        entries = pa.StructArray.from_arrays(
            [_comparable(array.keys), _comparable(array.items)], names=["k", "v"]
        )
        return _list_over(array, entries)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_over(array, _comparable(array.values))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def _list_over(array: pa.Array, values: pa.Array) -> pa.Array:
    large = pa.types.is_large_list(array.type)
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(array.offsets, values, mask=pc.is_null(array))


def comparable_frame(table: pa.Table, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns as a polars frame in which equal rows are identical rows."""
    return pl.DataFrame({name: pl.Series(comparable(table[name])) for name in columns})


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_last: bool = False


def sorted_rows(table: pa.Table, identity: Sequence[str], order: Sequence[SortKey]) -> pa.Table:
    """Sort rows by hash, then by `order`, then by identity, so that the result is deterministic."""
    if table.num_rows < 2:
        return table
    frame, by, descending, nulls_last = order_frame(table, identity, order)
    places = frame.select(pl.arg_sort_by(by, descending=descending, nulls_last=nulls_last))
    return table.take(pa.array(places.to_series().to_numpy()))


def order_frame(
    table: pa.Table, identity: Sequence[str], order: Sequence[SortKey]
) -> tuple[pl.DataFrame, list[str], list[bool], list[bool]]:
    """Return the columns that `sorted_rows` sorts by: `h`, the sort keys as `by0..`, the identity.

    Returns:
        The frame, the names of its columns by precedence, and for each column whether it sorts
        descending, and whether nulls come last.
    """
    names = [f"by{i}" for i in range(len(order))]
    keys = [
        pl.Series(n, table[k.column].combine_chunks()) for n, k in zip(names, order, strict=True)
    ]
    frame = comparable_frame(table, [HASH, *identity]).hstack(keys)
    rest = [False] * len(identity)
    return (
        frame,
        [HASH, *names, *identity],
        [False, *(key.descending for key in order), *rest],
        [False, *(key.nulls_last for key in order), *rest],
    )


def key_hashes(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Return a 64-bit hash of some columns for each row, stable over processes and versions.

    Hashes can collide, so use them as an index only. Nested columns are ignored.
    """
    total = np.zeros(table.num_rows, np.uint64)
    for name in columns:
        array = comparable(table[name])
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        if pa.types.is_nested(array.type):
            continue
        if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
            present = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            values = np.where(array.is_null(), np.int64(-1), present)
        elif pa.types.is_binary(array.type):
            values = array.to_numpy(zero_copy_only=False)
        else:
            values = array.cast(pa.string()).to_numpy(zero_copy_only=False)
        hashed = pd.util.hash_array(values, categorize=False)
        total = (total * np.uint64(1000003)) ^ hashed
    return total.view(np.int64)


def cast_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to the names and types of a schema: columns and the fields of structs by position.

    Arrow's own cast takes the fields of structs by name, and fills those that it doesn't find with nulls; in
    Spark a UNION goes by position. Nor does it take a null VARIANT, whose parts can't be null, or a column
    of type null where a nested type is wanted.
    """
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        if pa.types.is_null(column.type):
            column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        elif column.type != field.type:
            column = _renamed(column, field.type).cast(field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """An array under another type that differs in the names of fields only; nothing is copied."""

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]


def _renamed(column: pa.ChunkedArray, like: pa.DataType) -> pa.ChunkedArray:
    kind = _with_names(column.type, like)
    if kind == column.type:
        return column
    return pa.chunked_array([pa.array(_Renamed(chunk, kind)) for chunk in column.chunks], kind)


def _with_names(kind: pa.DataType, like: pa.DataType) -> pa.DataType:
    """Return a type with the names that the fields at the same places have in another one."""
    if pa.types.is_struct(kind) and pa.types.is_struct(like) and len(kind) == len(like):
        fields = zip(kind, like, strict=True)
        return pa.struct(
            [
                pa.field(other.name, _with_names(f.type, other.type), f.nullable)
                for f, other in fields
            ]
        )
    if pa.types.is_list(kind) and pa.types.is_list(like):
        return pa.list_(kind.value_field.with_type(_with_names(kind.value_type, like.value_type)))
    if pa.types.is_map(kind) and pa.types.is_map(like):
        item = kind.item_field.with_type(_with_names(kind.item_type, like.item_type))
        return pa.map_(_with_names(kind.key_type, like.key_type), item, kind.keys_sorted)
    return kind


def consolidate(
    table: pa.Table, identity: Sequence[str], measures: Sequence[tuple[str, Measure]]
) -> pa.Table:
    """Merge equal rows, combine their measures, and drop rows whose measures are all zero."""
    if table.num_rows == 0:
        return table
    columns = [HASH, *identity]
    if _all_differ(table, measures):
        sums = [table[name] for name, _ in measures]
        kept = functools.reduce(pc.or_, (pc.not_equal(column, 0) for column in sums))
        return table.select([*columns, *(name for name, _ in measures)]).filter(kept)
    frame = comparable_frame(table, columns).with_row_index("__row")
    frame = frame.hstack(measure_series(table, measures))
    grouped = frame.group_by(columns, maintain_order=True).agg(
        pl.col("__row").first(), *combined(measures)
    )
    kept = grouped.filter(any_nonzero(measures))
    rows = table.select(columns).take(pa.array(kept["__row"].to_numpy()))
    return with_measures(rows, kept, measures, table.schema)


def _all_differ(table: pa.Table, measures: Sequence[tuple[str, Measure]]) -> bool:
    """Whether no two rows can be equal, because their hashes differ, and each measure is its own sum."""
    if any(measure is not Measure.SUM or table[name].null_count for name, measure in measures):
        return False
    hashes = np.sort(table[HASH].to_numpy())
    return bool((hashes[1:] != hashes[:-1]).all())


def distinct(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the distinct rows of some columns, in the order of their first occurrence."""
    frame = comparable_frame(table, columns).with_row_index("__row")
    first = frame.group_by(columns, maintain_order=True).agg(pl.col("__row").first())["__row"]
    return table.select(columns).take(pa.array(first.to_numpy()))


def matched(left: pl.DataFrame, right: pl.DataFrame) -> np.ndarray:
    """Return the index in `right` of each row of `left`, or -1; neither has duplicate rows."""
    both = pl.concat(
        [
            left.with_columns(pl.lit(-1).alias("__at"), pl.Series("__row", np.arange(len(left)))),
            right.with_columns(pl.Series("__at", np.arange(len(right))), pl.lit(-1).alias("__row")),
        ],
        how="vertical_relaxed",
    )
    pairs = both.group_by(left.columns).agg(pl.col("__at").max(), pl.col("__row").max())
    found: np.ndarray = pairs.filter(pl.col("__row") >= 0).sort("__row")["__at"].to_numpy()
    return found


def merged_if_repetitive(rows: pa.Table) -> pa.Table:
    """Merge equal rows and add their weights, if a sample shows that there are enough of them."""
    columns = [name for name in rows.column_names if name != WEIGHT]
    if any(pa.types.is_nested(rows.schema.field(name).type) for name in columns):
        return rows
    if not columns:
        return pa.table({WEIGHT: [pc.sum(rows[WEIGHT])]}, schema=rows.schema)
    sample = rows.slice(0, min(SAMPLE_ROWS, max(rows.num_rows // 8, SAMPLE_ROWS // 16)))
    if comparable_frame(sample, columns).n_unique() > sample.num_rows * 3 // 4:
        return rows
    frame = comparable_frame(rows, columns).with_row_index("__row")
    frame = frame.hstack(measure_series(rows, [(WEIGHT, Measure.SUM)]))
    grouped = frame.group_by(columns).agg(pl.col("__row").first(), pl.col(WEIGHT).sum())
    kept = grouped.filter(pl.col(WEIGHT) != 0)
    firsts = rows.select(columns).take(pa.array(kept["__row"].to_numpy()))
    return firsts.append_column(rows.schema.field(WEIGHT), pa.array(kept[WEIGHT].to_numpy()))


def measure_series(table: pa.Table, measures: Sequence[tuple[str, Measure]]) -> list[pl.Series]:
    """Return the measures of a table as polars series."""
    return [pl.Series(name, table[name].combine_chunks()) for name, _ in measures]


def combined(
    measures: Sequence[tuple[str, Measure]], where: pl.Expr | None = None, prefix: str = ""
) -> list[pl.Expr]:
    """Return expressions that combine each measure over a group.

    Args:
        measures: the measures.
        where: which rows count; None for all.
        prefix: put in front of the names of the results.
    """
    found = []
    for name, measure in measures:
        # nulls instead of a filter, which polars evaluates group by group
        column = pl.col(name) if where is None else pl.when(where).then(pl.col(name))
        found.append(_COMBINE[measure](column).alias(prefix + name))
    return found


_COMBINE = {
    Measure.SUM: lambda column: column.sum(),
    Measure.INTEGER: lambda column: column.sum(),
    Measure.XOR: lambda column: column.bitwise_xor().fill_null(0),
    Measure.MIN: lambda column: column.min(),
    Measure.MAX: lambda column: column.max(),
}


def any_nonzero(measures: Sequence[tuple[str, Measure]], prefix: str = "") -> pl.Expr:
    """Return an expression: whether any measure of a row is not zero, minima and maxima ignored."""
    tests = []
    for name, measure in measures:
        column = pl.col(prefix + name)
        if measure in (Measure.SUM, Measure.INTEGER, Measure.XOR):
            tests.append(column != 0)
    return pl.any_horizontal(tests).fill_null(False)


def with_measures(
    rows: pa.Table,
    frame: pl.DataFrame,
    measures: Sequence[tuple[str, Measure]],
    schema: pa.Schema,
    prefix: str = "",
) -> pa.Table:
    """Append the measures in `frame` to rows in the same order, with the types of `schema`."""
    for name, _ in measures:
        column = frame[prefix + name].to_arrow()
        rows = rows.append_column(name, column.cast(schema.field(name).type))
    return rows


def indices_of(sorted_hashes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the indices in `sorted_hashes` of all values in `wanted` (sorted, distinct)."""
    first = np.searchsorted(sorted_hashes, wanted, "left")
    end = np.searchsorted(sorted_hashes, wanted, "right")
    return ranges(first, end - first)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenation of `arange(start, start + length)` for each pair."""
    total = int(lengths.sum())
    if total == 0:
        return np.empty(0, np.int64)
    offsets = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    indices: np.ndarray = np.arange(total) + offsets
    return indices


def distinct_hashes(table: pa.Table) -> np.ndarray:
    """Return the distinct key hashes of a table, sorted."""
    found: np.ndarray = np.unique(table[HASH].to_numpy())
    return found


def with_weights(table: pa.Table, weights: np.ndarray) -> pa.Table:
    """Replace the weights of rows."""
    return table.set_column(table.column_names.index(WEIGHT), WEIGHT, pa.array(weights))


def repeat(table: pa.Table, weights: np.ndarray) -> pa.Table:
    """Repeat each row by its weight; rows with a weight of 0 or less are dropped."""
    counts = np.maximum(weights, 0)
    if (counts == 1).all():
        return table
    return table.take(pa.array(np.repeat(np.arange(table.num_rows), counts)))
