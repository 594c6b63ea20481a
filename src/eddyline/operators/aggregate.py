"""Aggregates and DISTINCT: accumulators that add up by key, and sorted values for extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.errors import DataError
from eddyline.operators import exact_sums
from eddyline.operators.base import State, Step, checked_weights, negative_weight, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.front import front
from eddyline.state.integers import from_words, may_overflow, overflows
from eddyline.state.kernels import (
    Measure,
    SortKey,
    any_nonzero,
    cast_to,
    combined,
    comparable,
    comparable_frame,
    distinct_hashes,
    matched,
    measure_series,
    with_measures,
)

SLOT = "groups"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Keep one row of accumulators for each key; emit the old and the new row of changed keys.

    Input: `h, k0.., m0.., x0.., w`, where `w` is the number of rows and `m` are contributions of
    the delta, possibly several rows for a key. An EXACT contribution is a struct {hi: value, lo:
    weight}, an INTEGER contribution the struct {high, low} for high * 2^32 + low. `x` are the values
    of which the smallest or largest of a key is emitted.
    Output: `k0.., m0.., x0.., w` with w = -1 for the old row and +1 for the new one. A key
    exists while the sum of its `w` is positive. Without measures and values this is DISTINCT.

    Attributes:
        keys: number of key columns.
        measures: how each `m` column combines.
        largest: for each `x` column whether to emit the largest value rather than the smallest.
        checked: whether an INTEGER sum beyond 64 bits is an error; otherwise it wraps around. Sums
            that are stored never are, so that 64 bits of them suffice.
    """

    keys: int
    measures: tuple[Measure, ...] = ()
    largest: tuple[bool, ...] = ()
    checked: bool = False

    @property
    def layouts(self) -> dict[str, Layout]:
        """Key and accumulators; digits of doubles; for each `x` the values, the one to emit first."""
        keys = numbered("k", self.keys)
        layouts = {SLOT: Layout(keys, (*self._stored, (WEIGHT, Measure.SUM)))}
        for name, largest in zip(numbered("x", len(self.largest)), self.largest, strict=True):
            layouts[name] = Layout((*keys, name), order=(SortKey(name, largest, True),))
        if self._sums:
            layouts[exact_sums.SLOT] = exact_sums.layout(self.keys)
        return layouts

    @property
    def integers(self) -> tuple[str, ...]:
        """The columns of INTEGER sums."""
        return self._columns(Measure.INTEGER)

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

    def step(self, delta: pa.Table, state: State) -> Step:
        """Process the changes of one epoch."""
        layout, given = self.layouts[SLOT], delta
        delta, beside = self._expanded(delta)
        hashes = distinct_hashes(delta)
        old = state[SLOT].lookup(hashes)
        held = 0 if old is None else old.num_rows
        both = delta if old is None else pa.concat_tables([old, cast_to(delta, old.schema)])

        frame = comparable_frame(both, [HASH, *layout.identity]).with_row_index("row")
        frame = frame.hstack(measure_series(both, layout.measures))
        is_old = pl.col("row") < held
        summed = [pair for pair in layout.measures if pair[0] not in self._digits]
        groups = frame.group_by([HASH, *layout.identity], maintain_order=True).agg(
            pl.col("row").last(),
            *combined(layout.measures, is_old, "old_"),
            *combined(layout.measures, ~is_old, "add_"),
            *combined(summed, None, "new_"),
        )
        groups = groups.filter(pl.col("row") >= held)  # a colliding key that the delta lacks
        if (groups["new_" + WEIGHT] < 0).any():
            at = int(groups.filter(pl.col("new_" + WEIGHT) < 0)["row"][0])
            raise negative_weight("aggregate", both.slice(at, 1).to_pylist()[0])
        if self.checked:
            for name in self.integers:
                self._check_range(name, given, both, groups)

        rows, kept = _rows(both, groups, [HASH, *layout.identity]), {}
        changed = any_nonzero(layout.measures, "add_") | self._extreme_moved()
        if self._sums:
            stored = state[exact_sums.SLOT].lookup(hashes)
            sums = exact_sums.added(groups, rows, self._sums, stored, beside)
            groups = groups.with_columns(sums.columns)
            changed |= pl.lit(pl.Series(sums.changed))
            if sums.beside is not None:
                kept[exact_sums.SLOT] = sums.beside
        moved = groups.select(changed=changed)["changed"]
        groups, every = groups.filter(moved), groups
        kept[SLOT] = with_measures(
            rows.filter(moved.to_arrow()), groups, layout.measures, both.schema, "add_"
        )
        if not self.largest:
            return Step([self._output(both, groups, [])], kept)
        # an extreme can move in a group whose accumulators didn't
        values, more = self._values(given, rows, state)
        return Step([self._output(both, every, values)], {**kept, **more})

    def _values(
        self, delta: pa.Table, groups: pa.Table, state: State
    ) -> tuple[list[dict[str, pa.Array]], dict[str, pa.Table]]:
        """Return for each `x` its old and new extreme by group, and the rows to add to its arrangement."""
        found, appends = [], {}
        wanted = comparable_frame(groups, groups.column_names)
        for name in numbered("x", len(self.largest)):
            layout = self.layouts[name]
            pairs = delta.select(layout.columns).filter(pc.is_valid(delta[name]))
            appends[name] = layout.consolidate(pairs)
            extremes = {}
            for prefix, rows in (("old_", 0), ("new_", None)):
                best = front(state[name], appends[name].slice(0, rows), groups, 1)
                best = checked_weights("aggregate", best)
                places = matched(wanted, comparable_frame(best, wanted.columns))
                extremes[prefix] = best[name].take(pa.array(places, mask=places < 0))
            found.append(extremes)
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
        self, name: str, given: pa.Table, both: pa.Table, groups: pl.DataFrame
    ) -> None:
        """Raise DataError ARITHMETIC_OVERFLOW if a group's new sum doesn't fit into 64 bits."""
        high, low = _parts(given[name])
        old = groups["old_" + name].to_numpy()
        if not may_overflow(old, high, low):
            return
        keys = [HASH, *numbered("k", self.keys)]
        words = comparable_frame(given, keys).with_columns(
            pl.Series("high", high), pl.Series("low", low)
        )
        words = words.group_by(keys).agg(pl.col("high").sum(), pl.col("low").sum())
        words = groups.select(keys).join(words, on=keys, nulls_equal=True, maintain_order="left")
        wrong = overflows(old, words["high"].to_numpy(), words["low"].to_numpy())
        wrong &= (groups["new_" + WEIGHT] > 0).to_numpy()
        if wrong.any():
            at = int(groups["row"].to_numpy()[wrong.argmax()])
            raise _overflow(both.select(keys).slice(at, 1).to_pylist()[0])

    def _extreme_moved(self) -> pl.Expr:
        moved = [pl.lit(False)]
        for name, measure in zip(numbered("m", len(self.measures)), self.measures, strict=True):
            if measure in (Measure.MIN, Measure.MAX):
                moved.append(pl.col("old_" + name).ne_missing(pl.col("new_" + name)))
        return pl.any_horizontal(moved)

    def _output(
        self, both: pa.Table, groups: pl.DataFrame, values: list[dict[str, pa.Array]]
    ) -> pa.Table:
        names = numbered("m", len(self.measures))
        equal = [pl.col("old_" + name).eq_missing(pl.col("new_" + name)) for name in names]
        same = np.ones(len(groups), bool)
        if equal:
            same &= groups.select(same=pl.all_horizontal(equal))["same"].to_numpy()
        for extremes in values:
            old, new = (pl.Series(comparable(extremes[prefix])) for prefix in ("old_", "new_"))
            same &= old.eq_missing(new).to_numpy()
        was_there = (groups["old_" + WEIGHT] > 0).to_numpy()
        is_there = (groups["new_" + WEIGHT] > 0).to_numpy()
        unchanged = was_there & is_there & same
        parts = []
        for prefix, present, weight in (("old_", was_there, -1), ("new_", is_there, 1)):
            wanted = present & ~unchanged
            chosen = groups.filter(pl.Series(wanted))
            rows = _rows(both, chosen, numbered("k", self.keys))
            for name in names:
                column = chosen[prefix + name]
                sums = name in self._sums
                kind = exact_sums.PAIR if sums else both.schema.field(name).type
                rows = rows.append_column(name, column.to_arrow().cast(kind))
            for number, extremes in enumerate(values):
                rows = rows.append_column(f"x{number}", extremes[prefix].filter(pa.array(wanted)))
            weights = pa.array(np.full(len(chosen), weight, np.int64))
            parts.append(rows.append_column(WEIGHT, weights))
        return pa.concat_tables(parts)


def _rows(both: pa.Table, groups: pl.DataFrame, columns: list[str] | tuple[str, ...]) -> pa.Table:
    places = pa.array(groups["row"].to_numpy())
    if not columns:
        # a table without columns forgets its length: keep one and drop it at the end
        return both.select([HASH]).take(places).select([])
    return both.select(list(columns)).take(places)


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
