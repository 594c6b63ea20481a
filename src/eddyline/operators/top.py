"""ORDER BY with LIMIT and OFFSET: a retractable top-N."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import State, Step, empty_like, negative_weight, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import identities

ROWS, HEAD, TOTAL = "rows", "head", "total"
HEAD_SLACK = 1024


@dataclass(frozen=True, slots=True)
class Top:
    """Keep all rows, and of these a head: the best ones in order, complete up to its last row.

    Input: `h, s0.., c0.., w`: the sort keys and the row. Output: `s0.., c0.., w`, the change of
    the rows at places `offset` to `offset + limit`. The head holds up to four times as many rows
    as are asked for; only when deletions have used that up are all rows read again.
    Ties are decided by the row's hash, then by its values: the same rows give the same result.

    Attributes:
        descending, nulls_last: for each sort key.
    """

    limit: int
    offset: int
    columns: int
    descending: tuple[bool, ...] = ()
    nulls_last: tuple[bool, ...] = ()

    @property
    def layouts(self) -> dict[str, Layout]:
        """All rows; the head; the number of rows."""
        row = (*numbered("s", len(self.descending)), *numbered("c", self.columns))
        return {ROWS: Layout(row), HEAD: Layout(row), TOTAL: Layout(())}

    def step(self, delta: pa.Table, state: State) -> Step:
        """See the class."""
        layout = self.layouts[ROWS]
        delta = layout.consolidate(delta.select(layout.columns))
        if delta.num_rows == 0:
            return Step([])
        wanted = self.limit + self.offset
        old_head = state[HEAD].scan()
        old_head = self._sorted(empty_like(delta, layout.columns) if old_head is None else old_head)
        total_rows = state[TOTAL].scan()
        total = int(total_rows[WEIGHT][0].as_py()) if total_rows and total_rows.num_rows else 0
        old_count = int(old_head[WEIGHT].to_numpy().sum())
        new_total = total + int(delta[WEIGHT].to_numpy().sum())

        whole = old_count == total  # nothing lies behind the head
        merged = pa.concat_tables([old_head, delta.cast(old_head.schema)])
        if not whole:
            merged = self._up_to_last(merged, old_head)
        new_head = self._sorted(layout.consolidate(merged))
        short = int(new_head[WEIGHT].to_numpy().sum()) < min(wanted, new_total)
        if short and not whole:
            stored = state[ROWS].scan()
            parts = [delta] if stored is None else [stored, delta.cast(stored.schema)]
            new_head = self._sorted(layout.consolidate(pa.concat_tables(parts)))
        weights = new_head[WEIGHT].to_numpy()
        if len(weights) and weights.min() < 0:
            at = int(weights.argmin())
            raise negative_weight("top", new_head.slice(at, 1).to_pylist()[0])
        if int(weights.sum()) > 4 * wanted + HEAD_SLACK:
            new_head = _places(new_head, 0, 2 * wanted + HEAD_SLACK // 2, whole_rows=True)

        shown = _difference(
            layout,
            _places(new_head, self.offset, self.limit),
            _places(old_head, self.offset, self.limit),
        )
        count = pa.table({HASH: np.zeros(1, np.int64), WEIGHT: np.array([new_total - total])})
        return Step(
            [shown.drop_columns([HASH])],
            {ROWS: delta, HEAD: _difference(layout, new_head, old_head), TOTAL: count},
        )

    def _sort_frame(self, table: pa.Table) -> pl.DataFrame:
        keys = numbered("s", len(self.descending))
        frame = pl.DataFrame({name: pl.Series(table[name].combine_chunks()) for name in keys})
        rest = identities(table, [HASH, *numbered("c", self.columns)])
        return pl.concat([frame, rest], how="horizontal") if keys else rest

    def _sorted(self, table: pa.Table) -> pa.Table:
        if table.num_rows < 2:
            return table
        frame = self._sort_frame(table)
        by = frame.columns
        plain = len(by) - len(self.descending)
        order = frame.select(
            pl.arg_sort_by(
                by,
                descending=[*self.descending, *[False] * plain],
                nulls_last=[*self.nulls_last, *[False] * plain],
            )
        ).to_series()
        return table.take(pa.array(order.to_numpy()))

    def _up_to_last(self, merged: pa.Table, head: pa.Table) -> pa.Table:
        """The rows that sort at or before the head's last row, of which the head knows all."""
        if head.num_rows == 0:
            return merged.slice(0, 0)
        last = head.slice(head.num_rows - 1, 1)
        ordered = self._sorted(merged)
        columns = self._sort_frame(last).columns
        same = identities(ordered, columns).with_row_index("row")
        same = same.join(identities(last, columns), on=columns, nulls_equal=True)
        return ordered.slice(0, int(same["row"].to_numpy().max()) + 1)


def _places(table: pa.Table, offset: int, limit: int, *, whole_rows: bool = False) -> pa.Table:
    """The rows at places offset to offset + limit of a sorted table; weights are cut to fit."""
    weights = table[WEIGHT].to_numpy()
    ends = np.cumsum(weights)
    low = np.clip(ends - weights, offset, offset + limit)
    high = np.clip(ends, offset, offset + limit)
    kept = high > low
    cut = weights if whole_rows else high - low
    rows = table.filter(pa.array(kept))
    return rows.set_column(rows.column_names.index(WEIGHT), WEIGHT, pa.array(cut[kept]))


def _difference(layout: Layout, new: pa.Table, old: pa.Table) -> pa.Table:
    at = old.column_names.index(WEIGHT)
    minus = old.set_column(at, WEIGHT, pa.array(-old[WEIGHT].to_numpy()))
    return layout.consolidate(pa.concat_tables([new, minus]))
