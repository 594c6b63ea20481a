"""Aggregates and DISTINCT: accumulators that add up by key, and sorted values for extremes and percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.errors import DataError
from eddyline.operators import exact_sums
from eddyline.operators.base import BucketResult, State, checked_weights, negative_weight, numbered
from eddyline.operators.percentiles import Fractions, percentiles
from eddyline.state.arrangement import Layout
from eddyline.state.front import front
from eddyline.state.grouping import Groups, SortKey, group_rows
from eddyline.state.integers import from_words, may_overflow, overflows
from eddyline.state.kernels import (
    Measure,
    combined,
    distinct_hashes,
    equal_values,
    matched,
    nonzero,
)
from eddyline.state.retyping import cast_to

SLOT = "groups"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Keep one row of accumulators for each key; emit the old and the new row of each changed key.

    Input: `h, k0.., m0.., x0.., q0.., w`, where `w` is the number of rows and `m` are contributions of
    the delta, possibly several rows for a key. An EXACT contribution is a struct {hi: value, lo:
    weight}, an INTEGER contribution the struct {high, low} for high * 2^32 + low. A PRESENT one is a number of
    rows, and emitted as 1 while the sum is positive, else 0. `x` are the values
    of which the smallest or largest of a key is emitted, `q` doubles of which percentiles are.
    Output: `h, k0.., m0.., x0.., p0.., w`, where `p` are the percentiles, with w = -1 for the old row and +1 for the new one. A key
    exists while the sum of its `w` is positive. Without measures and values this is DISTINCT.

    Attributes:
        keys: number of key columns.
        measures: how each `m` column combines.
        largest: for each `x` column whether to emit the largest value rather than the smallest.
        fractions: for each `q` column which percentiles are emitted.
        checked: whether an INTEGER sum beyond 64 bits is an error; otherwise it wraps around. Sums
            that are stored never are, so that 64 bits of them suffice.
    """

    family: ClassVar[str] = "aggregate"
    keys: int
    measures: tuple[Measure, ...] = ()
    largest: tuple[bool, ...] = ()
    fractions: tuple[Fractions, ...] = ()
    checked: bool = False

    @property
    def layouts(self) -> dict[str, Layout]:
        """Key and accumulators; digits of doubles; for each `x` the values, the one to emit first."""
        keys = numbered("k", self.keys)
        layouts = {SLOT: Layout(keys, (*self._stored, (WEIGHT, Measure.SUM)))}
        for name, largest in zip(numbered("x", len(self.largest)), self.largest, strict=True):
            layouts[name] = Layout((*keys, name), order=(SortKey(name, largest, True),))
        for name in numbered("q", len(self.fractions)):
            layouts[name] = Layout((*keys, name), order=(SortKey(name),))
        if self._sums:
            layouts[exact_sums.SLOT] = exact_sums.layout(self.keys)
        return layouts

    @property
    def integers(self) -> tuple[str, ...]:
        """The columns of INTEGER sums."""
        return self._columns(Measure.INTEGER)

    @property
    def percentiles(self) -> tuple[str, ...]:
        """The columns of percentiles."""
        return numbered("p", sum(len(one.at) for one in self.fractions))

    @property
    def _sums(self) -> tuple[str, ...]:
        """The columns of sums of doubles."""
        return self._columns(Measure.EXACT)

    @property
    def _named(self) -> tuple[tuple[str, Measure], ...]:
        return tuple(zip(numbered("m", len(self.measures)), self.measures, strict=True))

    @property
    def _stored(self) -> tuple[tuple[str, Measure], ...]:
        """The measures in the form in which they are stored: a sum of doubles as its digits."""
        plain = (pair for pair in self._named if pair[1] is not Measure.EXACT)
        return (*plain, *((digit, Measure.SUM) for digit in self._digits))

    @property
    def _digits(self) -> list[str]:
        """The columns that hold the digits of sums of doubles."""
        return [column for name in self._sums for column in exact_sums.columns(name)]

    def _columns(self, wanted: Measure) -> tuple[str, ...]:
        return tuple(name for name, measure in self._named if measure is wanted)

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout, given = self.layouts[SLOT], delta
        keys = [HASH, *layout.identity]
        delta, beside = self._expanded(delta)
        hashes = distinct_hashes(delta)
        stored = state[SLOT].lookup(hashes)
        old = delta.slice(0, 0) if stored is None else stored
        delta = cast_to(delta, old.schema)
        groups, old = _touched(delta, old, keys)
        alone = len(groups) == len(hashes) and (stored is None or len(old) == len(stored))
        both = pa.concat_tables([delta, old])
        rows = both.select(keys).take(pa.array(groups.first))
        added, held = np.split(groups.of, [delta.num_rows])
        before = combined(old, layout.measures, groups.over(held))
        change = combined(delta, layout.measures, groups.over(added))
        after = combined(both, layout.measures, groups)

        weights = after[WEIGHT].to_numpy()
        if weights.min(initial=0) < 0:
            at = int(groups.first[weights.argmin()])
            raise negative_weight("aggregate", both.slice(at, 1).to_pylist()[0])
        if self.checked:
            self._check_range(given, groups.over(added), before, after, rows)
        kept = {}
        changed = nonzero(change, layout.measures) | self._extreme_moved(before, after)
        if self._sums:
            outside = state[exact_sums.SLOT].lookup(hashes)
            sums = exact_sums.added(before, change, rows, self._sums, outside, beside)
            before, after = (
                _with(table, pairs) for table, pairs in ((before, sums.before), (after, sums.after))
            )
            change = _with(change, sums.change)
            changed |= sums.changed
            if sums.beside is not None:
                kept[exact_sums.SLOT] = sums.beside
        kept[SLOT] = _with_columns_of(rows, change, [name for name, _ in layout.measures])
        if not changed.all():
            kept[SLOT] = kept[SLOT].filter(pa.array(changed))
        if not (self.largest or self.fractions):
            return BucketResult([self._output(rows, before, after, changed)], kept)
        # an extreme or percentile can move in a group whose accumulators didn't
        values, more = self._values(given, rows, state, alone=alone)
        before, after = (_with(table, values[when]) for when, table in enumerate((before, after)))
        every = np.ones(len(groups), bool)
        return BucketResult([self._output(rows, before, after, every)], {**kept, **more})

    def _values(
        self, delta: pa.Table, groups: pa.Table, state: State, *, alone: bool
    ) -> tuple[list[dict[str, pa.Array]], dict[str, pa.Table]]:
        """Return each `x` and `p` by group, before and after, and the rows to add to their arrangements.

        Args:
            alone: whether each group is the only one with its hash.
        """
        found: list[dict[str, pa.Array]] = [{}, {}]
        appends = {}
        for name in numbered("x", len(self.largest)):
            layout = self.layouts[name]
            pairs = delta.select(layout.columns).filter(pc.is_valid(delta[name]))
            appends[name] = layout.consolidate(pairs)
            for columns, rows in zip(found, (0, None), strict=True):
                best = front(state[name], appends[name].slice(0, rows), groups, 1)
                best = checked_weights("aggregate", best)
                places = matched(groups, best.select(groups.column_names))
                columns[name] = best[name].take(pa.array(places, mask=places < 0))
        names = iter(self.percentiles)
        for name, fractions in zip(numbered("q", len(self.fractions)), self.fractions, strict=True):
            layout = self.layouts[name]
            pairs = delta.select(layout.columns).filter(pc.is_valid(delta[name]))
            appends[name] = layout.consolidate(pairs)
            own = [next(names) for _ in fractions.at]
            versions = percentiles(state[name], appends[name], groups, name, fractions, alone=alone)
            for columns, arrays in zip(found, versions, strict=True):
                columns.update(zip(own, arrays, strict=True))
        return found, appends

    def _expanded(self, delta: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Return a delta whose contributions have the form in which they are stored.

        The second table has the digits of doubles that don't lie in their sum's window.
        """
        delta, beside = exact_sums.expanded(delta, self.keys, self._sums)
        for name in self.integers:
            total = pa.array(from_words(*_parts(delta[name])))
            delta = delta.set_column(delta.column_names.index(name), name, total)
        return delta.select(self.layouts[SLOT].columns), beside

    def _check_range(
        self, delta: pa.Table, groups: Groups, before: pa.Table, after: pa.Table, rows: pa.Table
    ) -> None:
        """Raise DataError ARITHMETIC_OVERFLOW if a group's new sum doesn't fit into 64 bits."""
        for name in self.integers:
            high, low = _parts(delta[name])
            old = before[name].to_numpy()
            if not may_overflow(old, high, low):
                continue
            wrong = overflows(old, groups.sums(high), groups.sums(low))
            wrong &= after[WEIGHT].to_numpy() > 0
            if wrong.any():
                raise _overflow(rows.slice(int(wrong.argmax()), 1).to_pylist()[0])

    def _extreme_moved(self, before: pa.Table, after: pa.Table) -> np.ndarray:
        moved = np.zeros(before.num_rows, bool)
        for name, measure in self._named:
            if measure in (Measure.MIN, Measure.MAX):
                moved |= ~equal_values(before[name], after[name])
        return moved

    def _output(
        self, rows: pa.Table, before: pa.Table, after: pa.Table, changed: np.ndarray
    ) -> pa.Table:
        """Return the old and the new row of each changed group."""
        extremes = numbered("x", len(self.largest))
        values = [*numbered("m", len(self.measures)), *extremes, *self.percentiles]
        before, after = self._marked(before), self._marked(after)
        was_there, is_there = before[WEIGHT].to_numpy() > 0, after[WEIGHT].to_numpy() > 0
        same = was_there & is_there
        for name in values:
            equal = exact_sums.equal_pairs if name in self._sums else equal_values
            same &= equal(before[name], after[name])
        parts = []
        for table, present, weight in ((before, was_there, -1), (after, is_there, 1)):
            wanted = np.flatnonzero(present & changed & ~same)
            part = _with_columns_of(rows, table, values).take(pa.array(wanted))
            weights = pa.array(np.full(len(wanted), weight, np.int64))
            parts.append(part.append_column(WEIGHT, weights))
        return pa.concat_tables(parts)

    def _marked(self, groups: pa.Table) -> pa.Table:
        """Replace row counts of groups by 1 if they are positive, else 0."""
        counts = self._columns(Measure.PRESENT)
        marks = {name: pa.array((groups[name].to_numpy() > 0).astype(np.int64)) for name in counts}
        return _with(groups, marks)


def _touched(delta: pa.Table, old: pa.Table, keys: Sequence[str]) -> tuple[Groups, pa.Table]:
    """Group the rows of a delta together with the stored rows of the same groups.

    Other stored rows are dropped: they have another key with the same hash.
    """
    groups = group_rows(pa.concat_tables([delta, old]), keys)
    count = int(np.searchsorted(groups.first, delta.num_rows))  # they are numbered by first rows
    if count == len(groups):
        return groups, old
    mine = groups.of < count
    old = old.filter(pa.array(mine[delta.num_rows :]))
    return Groups(groups.of[mine], groups.first[:count]), old


def _with(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a table with columns added or replaced."""
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table


def _with_columns_of(rows: pa.Table, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return rows with some columns added from another table of the same length."""
    return _with(rows, {name: table[name] for name in columns})


def _parts(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two fields of a column of structs."""
    one, two = column.combine_chunks().flatten()
    return one.to_numpy(zero_copy_only=False), two.to_numpy(zero_copy_only=False)


def _overflow(keyed: dict[str, object]) -> DataError:
    group = [value for name, value in keyed.items() if name != HASH]
    return DataError(
        "the sum of a group is beyond the range of BIGINT",
        condition="ARITHMETIC_OVERFLOW",
        operator="aggregate",
        group=group or None,
        hint="delete or correct its rows; or sum a wider type: sum(CAST(value AS DECIMAL(20, 0)))",
    )
