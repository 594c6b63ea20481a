"""Aggregates and DISTINCT: accumulators that add up by key, and sorted values for extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import State, Step, checked_weights, negative_weight, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.front import front
from eddyline.state.kernels import (
    Measure,
    SortKey,
    any_nonzero,
    cast_to,
    combined,
    comparable,
    comparable_frame,
    distinct_hashes,
    finish,
    matched,
    measure_series,
    two_product,
    with_measures,
)

SLOT = "groups"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Keep one row of accumulators for each key; emit the old and the new row of changed keys.

    Input: `h, k0.., m0.., x0.., w`, where `w` is the number of rows and `m` are contributions of
    the delta, possibly several rows for a key. An EXACT contribution is a struct {hi: value, lo:
    weight}. `x` are the values of which the smallest or largest of a key is emitted.
    Output: `k0.., m0.., x0.., w` with w = -1 for the old row and +1 for the new one. A key
    exists while the sum of its `w` is positive. Without measures and values this is DISTINCT.

    Attributes:
        keys: number of key columns.
        measures: how each `m` column combines.
        largest: for each `x` column whether to emit the largest value rather than the smallest.
    """

    keys: int
    measures: tuple[Measure, ...] = ()
    largest: tuple[bool, ...] = ()

    @property
    def layouts(self) -> dict[str, Layout]:
        """Key and accumulators; and for each `x` the values by key, the one to emit first."""
        keys = numbered("k", self.keys)
        named = tuple(zip(numbered("m", len(self.measures)), self.measures, strict=True))
        layouts = {SLOT: Layout(keys, (*named, (WEIGHT, Measure.SUM)))}
        for name, largest in zip(numbered("x", len(self.largest)), self.largest, strict=True):
            layouts[name] = Layout((*keys, name), order=(SortKey(name, largest, True),))
        return layouts

    def step(self, delta: pa.Table, state: State) -> Step:
        """Process the changes of one epoch."""
        layout, given = self.layouts[SLOT], delta
        delta = self._expand_exact(delta.select(layout.columns))
        old = state[SLOT].lookup(distinct_hashes(delta))
        held = 0 if old is None else old.num_rows
        both = delta if old is None else pa.concat_tables([old, cast_to(delta, old.schema)])

        frame = comparable_frame(both, [HASH, *layout.identity]).with_row_index("row")
        frame = frame.with_columns(measure_series(both, layout.measures))
        is_old = pl.col("row") < held
        groups = frame.group_by([HASH, *layout.identity], maintain_order=True).agg(
            pl.col("row").last(),
            *combined(layout.measures, is_old, "old_"),
            *combined(layout.measures, ~is_old, "add_"),
            *combined(layout.measures, None, "new_"),
        )
        for prefix in ("old_", "add_", "new_"):
            groups = finish(groups, layout.measures, prefix)
        groups = groups.filter(pl.col("row") >= held)  # a colliding key that the delta lacks
        if (groups["new_" + WEIGHT] < 0).any():
            at = int(groups.filter(pl.col("new_" + WEIGHT) < 0)["row"][0])
            raise negative_weight("aggregate", both.slice(at, 1).to_pylist()[0])

        changed = groups.filter(any_nonzero(layout.measures, "add_") | self._extreme_moved())
        appends = with_measures(
            _rows(both, changed, [HASH, *layout.identity]),
            changed,
            layout.measures,
            both.schema,
            "add_",
        )
        if not self.largest:
            return Step([self._output(both, changed, [])], {SLOT: appends})
        # an extreme can move in a group whose accumulators didn't
        values, more = self._values(given, _rows(both, groups, [HASH, *layout.identity]), state)
        return Step([self._output(both, groups, values)], {SLOT: appends, **more})

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

    def _expand_exact(self, delta: pa.Table) -> pa.Table:
        for name, measure in zip(numbered("m", len(self.measures)), self.measures, strict=True):
            if measure is Measure.EXACT:
                column = delta[name].combine_chunks()
                value, weight = (part.to_numpy(zero_copy_only=False) for part in column.flatten())
                hi, lo = two_product(value, weight)
                pair = pa.StructArray.from_arrays([pa.array(hi), pa.array(lo)], names=["hi", "lo"])
                delta = delta.set_column(delta.column_names.index(name), name, pair)
        return delta

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
        same = np.ones(len(groups), bool)
        for name in names:
            same &= groups["old_" + name].eq_missing(groups["new_" + name]).to_numpy()
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
                kind = both.schema.field(name).type
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
