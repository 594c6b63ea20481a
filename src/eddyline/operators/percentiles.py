"""Percentiles of the numbers of groups, computed from all numbers in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.operators.base import checked_weights
from eddyline.state.arrangement import Arrangement
from eddyline.state.grouping import ranked
from eddyline.state.kernels import distinct_hashes, matched, with_weights
from eddyline.state.retyping import cast_to


@dataclass(frozen=True, slots=True)
class Fractions:
    """Which percentiles of a column are computed, and how those that lie between two numbers.

    Attributes:
        at: fractions of the sorted numbers, from 0 to 1.
        by_difference: whether a part of the difference is added to the lower number, as in Spark from 4.3 on;
            before, it added up parts of both. The results are rounded differently.
    """

    at: tuple[float, ...]
    by_difference: bool


def percentiles(
    held: Arrangement,
    change: pa.Table,
    groups: pa.Table,
    name: str,
    fractions: Fractions,
) -> tuple[list[pa.Array], list[pa.Array]]:
    """Return the percentiles of groups before and after a change of their numbers.

    All stored numbers of the groups are read and sorted, which takes numpy some 0.2 microseconds for each.

    Args:
        held: the stored numbers.
        change: what changes in them, of the same layout.
        groups: the hash and the key columns of the groups, each once.
        name: the column of the numbers, which are doubles.
        fractions: which percentiles.

    Returns:
        For each fraction a double by group, null where there is no number: before, and after.
    """
    stored = held.lookup(distinct_hashes(groups))
    rows = change if stored is None else pa.concat_tables([cast_to(change, stored.schema), stored])
    group, rank = matched(rows.select(groups.column_names), groups), ranked(rows[name])
    numbers = rows[name].to_numpy()
    # order -0.0 before 0.0, so that the result doesn't depend on the order of arrival
    order = np.lexsort((~np.signbit(numbers), rank, group))
    order = order[np.searchsorted(group[order], 0) :]  # drop rows of other keys with the same hash
    sorted_ = [values[order] for values in (group, rank, np.signbit(numbers))]
    begins = np.ones(len(order), bool)
    begins[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in sorted_])
    at = np.flatnonzero(begins)
    distinct = order[at]
    weights = rows[WEIGHT].to_numpy()[order]
    found = []
    for counted in (np.where(order < change.num_rows, 0, weights), weights):
        counts = np.add.reduceat(counted, at) if len(at) else counted
        if counts.min(initial=0) < 0:
            checked_weights("aggregate", with_weights(rows.take(pa.array(distinct)), counts))
        found.append(_at(fractions, numbers[distinct], counts, group[distinct], groups.num_rows))
    before, after = found
    return before, after


def _at(
    fractions: Fractions,
    numbers: np.ndarray,
    counts: np.ndarray,
    group: np.ndarray,
    groups: int,
) -> list[pa.Array]:
    """Return percentiles by group, as Spark interpolates them.

    Args:
        numbers, counts, group: the distinct numbers in order, by group: how many copies there are of each, and
            the place of its group.
        groups: how many groups there are.
    """
    ends = np.cumsum(counts)
    bounds = np.searchsorted(group, np.arange(groups + 1))
    before = np.concatenate(([0], ends))[bounds]
    total = np.diff(before)
    empty = total == 0
    found = []
    for fraction in fractions.at:
        position = (total - 1) * fraction
        low, high = np.floor(position), np.ceil(position)
        # of each group the number that has this many before it
        lower, higher = (
            np.searchsorted(ends, before[:-1] + one.astype(np.int64), "right")
            for one in (low, high)
        )
        lower, higher = np.where(empty, 0, lower), np.where(empty, 0, higher)
        if not len(numbers):
            found.append(pa.nulls(groups, pa.float64()))
            continue
        least, most = numbers[lower], numbers[higher]
        with np.errstate(invalid="ignore", over="ignore"):
            if fractions.by_difference:
                between = least + (position - low) * (most - least)
            else:
                between = (high - position) * least + (position - low) * most
        result = np.where(least == most, least, between)
        found.append(pa.array(result, mask=empty))
    return found
