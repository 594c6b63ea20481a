"""Window functions over nearby rows: emits the rows that changes can affect, with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import BucketResult, State, checked_weights, numbered
from eddyline.state.around import Stretches, rows_around, values_around
from eddyline.state.arrangement import Layout
from eddyline.state.grouping import SortKey, block_starts
from eddyline.state.kernels import ranges, with_weights
from eddyline.state.search import key_ranges

SLOT = "rows"
COPY, PLACE, STRETCH, SHOWN = "copy", "place", "stretch", "shown"
VERSION = WEIGHT


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Keep rows by partition, in order; emit those near changed ones, before the epoch and after it.

    What a window function gives for a row depends on the rows of its frame: up to `before` rows before it in
    the order of its partition, and up to `after` rows after it. So a change affects the `after` rows before it
    and the `before` rows after it. These are emitted in both versions, with the rows of their frames.
    Spark evaluates the function over each stretch of consecutive rows, and keeps the rows that
    are marked as shown; the frames of the others are incomplete.

    Input: `h, k0.., s0.., c0.., w`: the partition's key and its hash, the sort keys, the row. Output:
    `h, c0.., copy, place, stretch, shown, w` with w = -1 for the rows of the version before the epoch, +1
    for those after; a row of weight n comes n times, numbered by `copy` from 0. `place` tells their order; where the
    sort keys leave rows equal, the values of the rows decide.

    Attributes:
        before, after: how far frames reach at most.
        by_value: they reach over differences of the one sort key (a frame of RANGE), not numbers of rows.
        keys, columns: number of `k` and of `c` columns.
        descending, nulls_last: for each sort key.
    """

    family: ClassVar[str] = "window"
    before: int
    after: int
    by_value: bool
    keys: int
    columns: int
    descending: tuple[bool, ...]
    nulls_last: tuple[bool, ...]

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: all rows by partition, in order."""
        sorts = numbered("s", len(self.descending))
        order = tuple(map(SortKey, sorts, self.descending, self.nulls_last))
        row = (*numbered("k", self.keys), *sorts, *numbered("c", self.columns))
        return {SLOT: Layout(row, order=order)}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout = self.layouts[SLOT]
        delta = layout.consolidate(delta.select(layout.columns))
        if delta.num_rows == 0:
            return BucketResult([], {SLOT: delta})
        read = values_around if self.by_value else rows_around
        near = read(state[SLOT], delta, numbered("k", self.keys), self.before + self.after)
        for weights in (near.old, near.new):
            checked_weights("window", with_weights(near.rows, weights))
        old, new = _Copies.of(near, near.old), _Copies.of(near, near.new)
        first, second = (self._by_value if self.by_value else self._by_rows)(near, old, new)
        versions = [
            self._version(near, old, *first, version=-1, number=0),
            self._version(near, new, *second, version=1, number=old.total),
        ]
        return BucketResult(versions, {SLOT: delta})

    def _by_rows(self, near: Stretches, old: _Copies, new: _Copies) -> list[_Masks]:
        """Return which copies of rows are shown in each version, and which are needed to compute them."""
        changed = np.flatnonzero(near.old != near.new)
        shown = []
        for one in (old, new):
            start, end = one.start[changed], one.start[changed] + one.count[changed]
            shown.append(one.covered(near.stretch[changed], start - self.after, end + self.before))
        same = np.flatnonzero((near.old == near.new) & (near.old > 0))
        places = [ranges(one.start[same], near.old[same]) for one in (old, new)]
        # a row that stays is shown in both versions, or in none
        shown[0][places[0]] = shown[1][places[1]] = shown[0][places[0]] | shown[1][places[1]]
        found = []
        for one, mask in zip((old, new), shown, strict=True):
            at = np.flatnonzero(mask)
            stretch = near.stretch[one.row[at]]
            needed = one.covered(stretch, at - self.before, at + self.after + 1)
            found.append((mask, needed))
        return found

    def _by_value(self, near: Stretches, old: _Copies, new: _Copies) -> list[_Masks]:
        """Return the same as `_by_rows`, for frames of RANGE."""
        # by the number of their stretches the rows are in order
        rows = near.rows.set_column(0, HASH, pa.array(near.stretch))
        key = self.layouts[SLOT].order[0]

        def within(places: np.ndarray, below: int, above: int) -> np.ndarray:
            _, _, first, end = key_ranges(rows, rows.take(pa.array(places)), key, below, above)
            return _covered(first, end, rows.num_rows)

        shown = within(np.flatnonzero(near.old != near.new), self.after, self.before)
        needed = within(np.flatnonzero(shown), self.before, self.after)
        return [(shown[one.row], needed[one.row]) for one in (old, new)]

    def _version(
        self,
        near: Stretches,
        copies: _Copies,
        shown: np.ndarray,
        needed: np.ndarray,
        *,
        version: int,
        number: int,
    ) -> pa.Table:
        """Return the needed rows of a version.

        Args:
            number: the numbers of stretches begin after this one.
        """
        place = np.flatnonzero(needed)
        row = copies.row[place]
        begins = (np.diff(place, prepend=-2) > 1) | (np.diff(near.stretch[row], prepend=-1) != 0)
        columns = near.rows.select([HASH, *numbered("c", self.columns)]).take(pa.array(row))
        return (
            columns.append_column(COPY, pa.array(place - copies.start[row]))
            .append_column(PLACE, pa.array(place))
            .append_column(STRETCH, pa.array(number + np.cumsum(begins)))
            .append_column(SHOWN, pa.array(shown[place]))
            .append_column(VERSION, pa.array(np.full(len(place), version, np.int64)))
        )


_Masks = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies of rows in one version, one after the other.

    Attributes:
        row: of each copy the place of its row.
        start, count: of each row the place of its first copy, and how many there are.
        bounds: where the copies of each stretch begin, and where the last one's end.
    """

    row: np.ndarray
    start: np.ndarray
    count: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, near: Stretches, count: np.ndarray) -> _Copies:
        start = np.cumsum(count) - count
        begins = np.flatnonzero(block_starts(near.stretch))
        row = np.repeat(np.arange(len(count)), count)
        return cls(row, start, count, np.append(start[begins], len(row)))

    @property
    def total(self) -> int:
        """How many copies there are."""
        return len(self.row)

    def covered(self, stretch: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return which copies lie in any of some ranges, each within a stretch."""
        low, high = self.bounds[stretch], self.bounds[stretch + 1]
        return _covered(np.maximum(start, low), np.minimum(end, high), self.total)


def _covered(start: np.ndarray, end: np.ndarray, total: int) -> np.ndarray:
    """Return which of `total` places lie in any of some ranges."""
    steps = np.zeros(total + 1, np.int64)
    np.add.at(steps, start, 1)
    np.add.at(steps, end, -1)
    covered: np.ndarray = np.cumsum(steps)[:total] > 0
    return covered
