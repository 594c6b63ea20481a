"""Sums of large doubles, beside the plain sums of a group: exact, so that nothing of them is left behind.

A plain sum is an unevaluated pair of doubles: its error is 2^-104 of the largest value that was ever
added, and it can't pass the range of a double and come back. So a value of at least 2^64 goes into
a sum of its own range, 16 powers of two wide and scaled to begin at 1. The sum of 2^36 such values is
exact and far from any overflow. A group has a row for each range that its values are in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH
from eddyline.operators.base import numbered
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import (
    Measure,
    add_pairs,
    cast_to,
    comparable_frame,
    two_product,
)

LARGE_FROM = 2.0**64
RANGE_BITS = 16
INFINITE = 64  # the range of contributions that are infinite, such as squares; they are counted
SLOT, MEASURE, RANGE, TOTAL = "large", "measure", "range", "total"
_DOWN = 128  # totals are added up in units of 2^128


def layout(keys: int) -> Layout:
    """Return the layout of the sums by group, measure and range."""
    return Layout((*numbered("k", keys), MEASURE, RANGE), ((TOTAL, Measure.EXACT),))


def is_large(values: np.ndarray) -> np.ndarray:
    """Return which contributions go into the sum of a range."""
    large: np.ndarray = np.abs(values) >= LARGE_FROM
    return large


def contributions(
    delta: pa.Table, keys: int, measure: str, values: np.ndarray, weights: np.ndarray
) -> pa.Table:
    """Return large contributions as rows of the layout, not consolidated.

    Args:
        delta: the rows that contribute, with the key columns of the group.
        measure: the column of the sum.
        values, weights: what each row contributes.
    """
    infinite = np.isinf(values)
    ranges = np.where(infinite, INFINITE, (np.frexp(values)[1] - 65) // RANGE_BITS)
    scaled = np.ldexp(values, -_exponents(ranges))
    hi, lo = two_product(np.where(infinite, np.sign(values), scaled), weights)
    pair = pa.StructArray.from_arrays([pa.array(hi), pa.array(lo)], names=["hi", "lo"])
    rows = delta.select([HASH, *numbered("k", keys)])
    rows = rows.append_column(MEASURE, pa.array([measure] * delta.num_rows, pa.string()))
    rows = rows.append_column(RANGE, pa.array(ranges.astype(np.int8)))
    return rows.append_column(TOTAL, pair)


def with_large(
    groups: pl.DataFrame,
    stored: pa.Table | None,
    added: pa.Table | None,
    measures: Sequence[str],
) -> tuple[pl.DataFrame, pl.Expr]:
    """Add the large values to the sums of some groups.

    Args:
        groups: the groups, with their key columns and for each measure `old_<measure>` and
            `new_<measure>`: the plain sums before and after the changes.
        stored: the stored sums of ranges, not consolidated; None if there are none.
        added: changes on top of them; None if there are none.
        measures: the columns of sums.

    Returns:
        The groups, and whether a group's large values have changed.
    """
    if stored is None and added is None:
        return groups, pl.lit(False)
    keys = [name for name in groups.columns if name == HASH or name[0] == "k"]
    wanted = groups.select(keys)
    kept = layout(len(keys) - 1)
    old = [] if stored is None else [stored]
    new = old if added is None else [*old, added]
    sums = {}
    for prefix, tables in (("old_", old), ("new_", new)):
        if not tables:
            continue
        rows = pa.concat_tables([cast_to(table, tables[0].schema) for table in tables])
        rows = kept.consolidate(rows)
        for name in measures:
            own = rows.filter(pc.equal(rows[MEASURE], name))
            sums[prefix + name] = _total(own, keys, wanted, groups[prefix + name])
    touched = np.zeros(len(groups), bool)
    if added is not None:
        touched[_places(added, keys, wanted)[1]] = True
    return groups.with_columns(**sums), pl.lit(pl.Series(touched))


def _total(
    rows: pa.Table, keys: Sequence[str], wanted: pl.DataFrame, plain: pl.Series
) -> pl.Series:
    """Add the sums of ranges to the plain sums of one measure."""
    given_hi, given_lo = (plain.struct.field(part).to_numpy() for part in ("hi", "lo"))
    hi, lo = np.ldexp(given_hi, -_DOWN), np.ldexp(given_lo, -_DOWN)
    infinite = np.zeros(len(plain))
    has_large = np.zeros(len(plain), bool)
    ranges = rows[RANGE].to_numpy()
    for number in np.unique(ranges):
        own = rows.filter(pa.array(ranges == number))
        of, at = _places(own, keys, wanted)
        parts = (part.to_numpy()[of] for part in own[TOTAL].combine_chunks().flatten())
        has_large[at] = True
        if number == INFINITE:
            infinite[at] = np.sign(next(parts)) * np.inf
            continue
        add_hi, add_lo = (np.ldexp(part, _exponents(number) - _DOWN) for part in parts)
        hi[at], lo[at] = add_pairs(hi[at], lo[at], add_hi, add_lo)
    with np.errstate(over="ignore"):
        hi, lo = np.ldexp(hi, _DOWN), np.ldexp(lo, _DOWN)
    hi = np.where(infinite != 0, infinite, hi)
    lo = np.where(np.isinf(hi), 0.0, lo)
    total = {
        "hi": np.where(has_large, hi, given_hi),
        "lo": np.where(has_large, lo, given_lo),
    }
    return pl.DataFrame(total).to_struct(plain.name)


def _exponents(ranges: np.ndarray) -> np.ndarray:
    """Return the powers of two at which ranges begin."""
    exponents: np.ndarray = np.int32(64) + RANGE_BITS * np.asarray(ranges, np.int32)
    return exponents


def _places(
    rows: pa.Table, keys: Sequence[str], wanted: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the rows that belong to wanted groups, and the indices of their groups."""
    own = comparable_frame(rows, keys).with_row_index("of")
    found = own.join(wanted.with_row_index("at"), on=list(keys), nulls_equal=True)
    return found["of"].to_numpy(), found["at"].to_numpy()
