"""Vectorised operations on tables of changes: rows with measures that can be combined.

A *collection* is an Arrow table `h, identity columns..., measures...`. `h` is the 64-bit hash of the
key, the identity columns identify a row, and the measures of equal rows are combined. A Z-set has
one measure, the weight. The measures of a linear aggregate are its accumulators.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.state.grouping import (
    Groups,
    SortKey,
    block_starts,
    comparable,
    group_rows,
    places_among,
    sorted_places,
)
from eddyline.state.retyping import cast_to

SAMPLE_ROWS = 4096

# decimals in a file lie at multiples of 8 bytes: Arrow copies them, where it would also print a warning
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


class Measure(StrEnum):
    """How the measures of equal rows are combined."""

    SUM = "sum"
    INTEGER = "integer"  # sums of integers modulo 2^64; contributions come as {high, low}
    PRESENT = "present"  # numbers of rows; what is emitted is 1 where there are any, else 0
    XOR = "xor"
    MIN = "min"
    MAX = "max"
    EXACT = "exact"  # sums of doubles, stored as digits; see `operators/exact_sums.py`


def sorted_rows(table: pa.Table, identity: Sequence[str], order: Sequence[SortKey]) -> pa.Table:
    """Sort rows by hash, then by `order`, then by identity, so that the result is deterministic."""
    if table.num_rows < 2:
        return table
    return table.take(pa.array(sorted_places(table, identity, order)))


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


def ordered(table: pa.Table, column: str) -> pa.Table:
    """Sort rows by an integer column without nulls; equal ones keep their order.

    Arrow's own `sort_by` isn't stable, and prints warnings about rows that come from another process.
    """
    values = table[column].to_numpy()
    if (values[:-1] <= values[1:]).all():
        return table
    return table.take(pa.array(np.argsort(values, kind="stable")))


def consolidate(
    table: pa.Table, identity: Sequence[str], measures: Sequence[tuple[str, Measure]]
) -> pa.Table:
    """Merge equal rows, combine their measures, and drop rows whose measures are all zero."""
    if table.num_rows == 0:
        return table
    columns = [HASH, *identity]
    groups = group_rows(table, columns)
    if len(groups) == table.num_rows:
        kept = nonzero(table, measures)
        rows = table.select([*columns, *(name for name, _ in measures)])
        return where(rows, kept)
    total = combined(table, measures, groups)
    kept = np.flatnonzero(nonzero(total, measures))
    rows = table.select(columns).take(pa.array(groups.first[kept]))
    for name, _ in measures:
        rows = rows.append_column(table.schema.field(name), total[name].take(pa.array(kept)))
    return rows


def where(table: pa.Table, mask: np.ndarray) -> pa.Table:
    """Return the rows for which the mask holds."""
    return table if mask.all() else table.filter(pa.array(mask))


def distinct(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the distinct rows of some columns, in the order of their first occurrence."""
    return table.select(columns).take(pa.array(group_rows(table, columns).first))


def matched(left: pa.Table, right: pa.Table) -> np.ndarray:
    """Return the place in `right` of each row of `left`, or -1; `right` must have no duplicate rows."""
    both = pa.concat_tables([left, cast_to(right, left.schema)])
    of = group_rows(both, left.column_names).of
    places = np.full(int(of.max(initial=-1)) + 1, -1)
    places[of[left.num_rows :]] = np.arange(right.num_rows)
    found: np.ndarray = places[of[: left.num_rows]]
    return found


def merged_if_repetitive(rows: pa.Table) -> pa.Table:
    """Merge equal rows and add their weights, if a sample shows that enough rows are equal."""
    columns = [name for name in rows.column_names if name != WEIGHT]
    nested = any(pa.types.is_nested(rows.schema.field(name).type) for name in columns)
    if nested or not rows.num_rows:  # the sum of no weights is null
        return rows
    if not columns:
        return pa.table({WEIGHT: [pc.sum(rows[WEIGHT])]}, schema=rows.schema)
    sample = rows.slice(0, min(SAMPLE_ROWS, max(rows.num_rows // 8, SAMPLE_ROWS // 16)))
    if len(group_rows(sample, columns)) > sample.num_rows * 3 // 4:
        return rows
    groups = group_rows(rows, columns)
    weights = groups.sums(rows[WEIGHT].to_numpy())
    kept = np.flatnonzero(weights)
    firsts = rows.select(columns).take(pa.array(groups.first[kept]))
    return firsts.append_column(rows.schema.field(WEIGHT), pa.array(weights[kept]))


def combined(table: pa.Table, measures: Sequence[tuple[str, Measure]], groups: Groups) -> pa.Table:
    """Combine each measure by group; where a group has no rows a sum is 0, and an extreme null.

    Returns:
        A row for each group.
    """
    columns = []
    for name, measure in measures:
        values = table[name]
        if measure is Measure.XOR:
            given = values.to_numpy()
            found = np.zeros(len(groups), given.dtype)
            np.bitwise_xor.at(found, groups.of, given)
            columns.append(pa.array(found))
        elif measure in _EXTREMES or not pa.types.is_int64(values.type):
            columns.append(_aggregated(values, _EXTREMES.get(measure, "sum"), groups))
        else:
            columns.append(pa.array(groups.sums(values.to_numpy())))
    return pa.table(columns, names=[name for name, _ in measures])


_EXTREMES = {Measure.MIN: "min", Measure.MAX: "max"}


def _aggregated(values: pa.ChunkedArray, how: str, groups: Groups) -> pa.Array:
    """Aggregate values by group with Arrow, whatever their type."""
    numbered = pa.table([pa.array(groups.of), values], names=["of", "value"])
    found = numbered.group_by("of", use_threads=False).aggregate([("value", how)])
    places = np.full(len(groups), -1)
    places[found["of"].to_numpy()] = np.arange(found.num_rows)
    result = found[f"value_{how}"].combine_chunks().cast(values.type)
    result = result.take(pa.array(places, mask=places < 0))
    return result.fill_null(pa.scalar(0, values.type)) if how == "sum" else result


def nonzero(table: pa.Table, measures: Sequence[tuple[str, Measure]]) -> np.ndarray:
    """Return for each row whether any of its measures is not zero, minima and maxima ignored."""
    found = np.zeros(table.num_rows, bool)
    for name, measure in measures:
        if measure not in _EXTREMES:
            column = table[name]
            if pa.types.is_integer(column.type):
                found |= column.to_numpy() != 0
            else:
                found |= pc.not_equal(column, pa.scalar(0, column.type)).to_numpy()
    return found


def equal_values(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Return for each row whether two columns of a type that isn't nested have the same value."""
    one, other = comparable(one), comparable(other)
    equal = pc.equal(one, other).fill_null(False)
    both_null = pc.and_(one.is_null(), other.is_null())
    found: np.ndarray = pc.or_(equal, both_null).to_numpy(zero_copy_only=False)
    return found


def indices_of(sorted_hashes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the indices in `sorted_hashes` of all values in `wanted` (sorted, distinct)."""
    if len(wanted) > len(sorted_hashes):  # the fewer are looked up among the more
        return places_among(sorted_hashes, wanted)
    first = np.searchsorted(sorted_hashes, wanted, "left")
    end = np.searchsorted(sorted_hashes, wanted, "right")
    return ranges(first, end - first)


def in_several(hashes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the values that are in several of the arrays, each of which is sorted; sorted and distinct."""
    if not hashes:
        return np.empty(0, np.int64)
    own = [*map(first_of_each, hashes)]
    every = np.sort(np.concatenate(own), kind="stable")  # fast, as these are sorted
    return first_of_each(every[1:][every[1:] == every[:-1]])


def distinct_values(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of an array, sorted.

    `np.unique` makes a hash table, which takes up to ten times as long where most values differ.
    """
    return first_of_each(np.sort(values, kind="stable"))  # fast for sorted parts, too


def first_of_each(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of a sorted array."""
    found: np.ndarray = values[block_starts(values)]
    return found


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
    return distinct_values(table[HASH].to_numpy())


def with_weights(table: pa.Table, weights: np.ndarray) -> pa.Table:
    """Replace the weights of rows."""
    return table.set_column(table.column_names.index(WEIGHT), WEIGHT, pa.array(weights))


def repeat(table: pa.Table, weights: np.ndarray) -> pa.Table:
    """Repeat each row by its weight; rows with a weight of 0 or less are dropped."""
    counts = np.maximum(weights, 0)
    if (counts == 1).all():
        return table
    return table.take(pa.array(np.repeat(np.arange(table.num_rows), counts)))
