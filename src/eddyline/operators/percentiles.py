"""Percentiles of the numbers of groups, found by bisection in their sorted runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import negative_weight
from eddyline.state.arrangement import Arrangement
from eddyline.state.kernels import distinct_values, matched, ranges

_SORTED_ROWS = 65_536
"""Short runs with so many rows in all are sorted into one: fewer are bisected."""
_NAN = 0.5
_BEFORE, _AFTER = -0.1 + 0j, 0.9 + 0j
"""Added to the place of a group, these are keys before and after all of its numbers."""
_Side = Literal["left", "right"]


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
    *,
    alone: bool,
) -> tuple[list[pa.Array], list[pa.Array]]:
    """Return the percentiles of groups before and after a change of their numbers.

    All stored numbers of the groups and their weights are passed over, which takes numpy some 20 nanoseconds for each.

    Args:
        held: the stored numbers.
        change: what changes in them, of the same layout.
        groups: the hash and the key columns of the groups, each once.
        name: the column of the numbers, which are doubles.
        fractions: which percentiles.
        alone: whether each of the groups is the only one with its hash, in the change and in what is stored.

    Returns:
        For each fraction a double by group, null where there is no number: before, and after.
    """
    order = np.argsort(groups[HASH].to_numpy())
    by_hash = groups.take(pa.array(order))
    change = held.layout.sorted(change)
    runs = [_Run.of(run, by_hash, name, alone=alone) for run in held.mapped()]
    held.touched += sum(len(run.keys) for run in runs)
    changed = _Run.of(change, by_hash, name, alone=alone)
    found = []
    for every in (runs, [*runs, changed]):
        numbers = _Numbers.of(every, len(order))
        numbers.check(changed, by_hash, name)
        found.append([array.take(pa.array(np.argsort(order))) for array in numbers.at(fractions)])
    before, after = found
    return before, after


@dataclass(frozen=True, slots=True)
class _Run:
    """The numbers of some groups in one run, in order.

    Attributes:
        keys: pairs of the group and the number, as complex numbers, which numpy sorts and searches as pairs. To the place
            of the group are added 0 for -0.0 and less, 0.25 for 0.0 and more, and 0.5 for NaN, with 0 as its number.
        weights: how many copies there are of each, negative for those that a change takes away.
        ends: how many numbers there are before each, and in all.
        begins: where each group begins.
    """

    keys: np.ndarray
    weights: np.ndarray
    ends: np.ndarray
    begins: np.ndarray

    @classmethod
    def of(cls, rows: pa.Table, groups: pa.Table, name: str, *, alone: bool) -> _Run:
        """Read the rows of some groups from rows sorted by hash and number; the groups are sorted by hash."""
        stored, hashes = rows[HASH].to_numpy(), groups[HASH].to_numpy()
        if not alone:
            hashes = distinct_values(hashes)
        first, end = (np.searchsorted(stored, hashes, side) for side in ("left", "right"))
        places = ranges(first, end - first)
        numbers, weights = rows[name].to_numpy(), rows[WEIGHT].to_numpy()
        if len(places) < len(stored):
            numbers, weights = numbers[places], weights[places]
        keys = np.empty(len(places), np.complex128)
        if alone:
            keys.real = np.repeat(np.arange(len(hashes)), end - first)
        else:
            names = groups.column_names
            keys.real = matched(rows.select(names).take(pa.array(places)), groups)
        sign = np.where(np.signbit(numbers), 0.0, 0.25)
        sign[np.isnan(numbers)] = _NAN
        keys.imag = np.where(sign == _NAN, 0.0, numbers)
        keys.real += sign
        if alone:
            return cls._in_order(keys, weights, groups.num_rows)
        mine = keys.real >= 0
        return cls.sorted(keys[mine], weights[mine], groups.num_rows)

    @classmethod
    def sorted(cls, keys: np.ndarray, weights: np.ndarray, groups: int) -> _Run:
        """Sort numbers."""
        order = np.argsort(keys, kind="stable")
        return cls._in_order(keys[order], weights[order], groups)

    @classmethod
    def _in_order(cls, keys: np.ndarray, weights: np.ndarray, groups: int) -> _Run:
        begins = np.searchsorted(keys, np.arange(groups) + _BEFORE)
        return cls(keys, weights, np.concatenate(([0], np.cumsum(weights))), begins)

    def below(self, group: np.ndarray, key: np.ndarray, side: _Side) -> np.ndarray:
        """Return how many numbers of the groups are less than some keys; with the side `right`, not more."""
        found: np.ndarray = self.ends[np.searchsorted(self.keys, key, side)]
        found -= self.ends[self.begins[group]]
        return found


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of some groups in one or more runs, of which the longest comes first."""

    runs: list[_Run]
    groups: int

    @classmethod
    def of(cls, runs: Sequence[_Run], groups: int) -> _Numbers:
        """Sort short runs into one."""
        by_length = sorted(runs, key=lambda run: len(run.keys))
        rows = np.cumsum([len(run.keys) for run in by_length])
        count = int(np.searchsorted(rows, _SORTED_ROWS, "right"))
        short, long = by_length[:count], by_length[count:]
        if count > 1:
            keys = np.concatenate([run.keys for run in short])
            short = [_Run.sorted(keys, np.concatenate([run.weights for run in short]), groups)]
        return cls([*reversed(long), *short], groups)

    def check(self, changed: _Run, groups: pa.Table, name: str) -> None:
        """Raise StateError NEGATIVE_WEIGHT if there are less than no copies of a number of a change."""
        group = np.floor(changed.keys.real).astype(np.int64)
        copies = self._below(group, changed.keys, "right") - self._below(
            group, changed.keys, "left"
        )
        if copies.min(initial=0) < 0:
            at = copies.argmin()
            row = groups.slice(int(group[at]), 1).to_pylist()[0]
            raise negative_weight(
                "aggregate",
                {**row, name: float(_numbers(changed.keys)[at]), WEIGHT: int(copies[at])},
            )

    def at(self, fractions: Fractions) -> list[pa.Array]:
        """Return percentiles by group, as Spark interpolates them."""
        group = np.arange(self.groups)
        total = self._below(group, group + _AFTER, "left")
        empty = total == 0
        position = np.where(empty, 0.0, np.outer(fractions.at, total - 1))
        low, high = np.floor(position), np.ceil(position)
        found = self._found(np.concatenate((low, high)).astype(np.int64))
        least, most = np.split(found, 2)
        with np.errstate(invalid="ignore", over="ignore"):
            if fractions.by_difference:
                between = least + (position - low) * (most - least)
            else:
                between = (high - position) * least + (position - low) * most
        return [pa.array(one, mask=empty) for one in np.where(least == most, least, between)]

    def _found(self, places: np.ndarray) -> np.ndarray:
        """Find of each group the least numbers up to which there are more than some places.

        They are in one of the runs. These are bisected one after the other, each only between the largest key known to be
        too low and the least known to be high enough.

        Args:
            places: a matrix with a column for each group.
        """
        group = np.broadcast_to(np.arange(self.groups), places.shape).ravel()
        wanted = places.ravel()
        low_key, high_key = group + _BEFORE, group + _AFTER
        for run in self.runs:
            low = np.searchsorted(run.keys, low_key, "right")
            high = np.searchsorted(run.keys, high_key)
            while (open_ := np.flatnonzero(low < high)).size:
                middle = (low[open_] + high[open_]) // 2
                key = run.keys[middle]
                enough = self._below(group[open_], key, "right") > wanted[open_]
                high[open_[enough]], high_key[open_[enough]] = middle[enough], key[enough]
                low[open_[~enough]], low_key[open_[~enough]] = middle[~enough] + 1, key[~enough]
        return _numbers(high_key).reshape(places.shape)

    def _below(self, group: np.ndarray, key: np.ndarray, side: _Side) -> np.ndarray:
        """Return how many numbers of the groups are less than some keys; with the side `right`, not more."""
        total = np.zeros(len(group), np.int64)
        for run in self.runs:
            total += run.below(group, key, side)
        return total


def _numbers(keys: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.where(keys.real % 1 == _NAN, np.nan, keys.imag)
    return found
