"""Top-N over rows that can be retracted, of all rows or of each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import BucketResult, State, checked_weights, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.front import PLACE, Ties, front
from eddyline.state.grouping import SortKey
from eddyline.state.kernels import distinct, with_weights

SLOT = "rows"


@dataclass(frozen=True, slots=True)
class Top:
    """Keep the rows in order; emit those at places `offset` to `offset + limit` of each group.

    Input: `h, k0.., s0.., c0.., w`: the group's key and its hash, the sort keys, the row. Output:
    `h, s0.., c0.., w`, the change of the rows at these places. Rows with equal sort keys are ordered by their
    values, so that the result is deterministic.

    Attributes:
        keys, columns: number of `k` and of `c` columns.
        descending, nulls_last: for each sort key.
        ties: how places are numbered; with RANK and DENSE_RANK all rows of a place are emitted, and
            `offset` must be 0.
        append_only: no row is ever retracted, so rows after these places needn't be stored.
    """

    family: ClassVar[str] = "top"
    limit: int
    offset: int
    columns: int
    descending: tuple[bool, ...] = ()
    nulls_last: tuple[bool, ...] = ()
    keys: int = 0
    ties: Ties = Ties.ROW_NUMBER
    append_only: bool = False

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: all rows by group, in order."""
        sorts = numbered("s", len(self.descending))
        order = tuple(map(SortKey, sorts, self.descending, self.nulls_last))
        row = (*numbered("k", self.keys), *sorts, *numbered("c", self.columns))
        # without sort keys the rows of a hash are in the order of their values
        return {SLOT: Layout(row, order=order or (SortKey(HASH, False, False),))}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout = self.layouts[SLOT]
        delta = layout.consolidate(delta.select(layout.columns))
        if delta.num_rows == 0:
            return BucketResult([])
        groups = distinct(delta, [HASH, *numbered("k", self.keys)])
        wanted = self.offset + self.limit
        old = front(state[SLOT], delta.slice(0, 0), groups, wanted, self.ties)
        new = checked_weights("top", front(state[SLOT], delta, groups, wanted, self.ties))
        change = self._difference(new, old, self._shown(new), self._shown(old))
        kept = delta
        if self.append_only:
            kept = self._difference(new, old, new[WEIGHT].to_numpy(), old[WEIGHT].to_numpy())
        return BucketResult([change.drop_columns(list(numbered("k", self.keys)))], {SLOT: kept})

    def _shown(self, rows: pa.Table) -> np.ndarray:
        """Return the number of copies of each row at the wanted places."""
        weights: np.ndarray = rows[WEIGHT].to_numpy()
        if self.ties is not Ties.ROW_NUMBER:
            return weights
        places, low, high = rows[PLACE].to_numpy(), self.offset, self.offset + self.limit
        shown: np.ndarray = np.clip(places + weights, low, high) - np.clip(places, low, high)
        return shown

    def _difference(
        self, new: pa.Table, old: pa.Table, plus: np.ndarray, minus: np.ndarray
    ) -> pa.Table:
        """Return the new rows with weights `plus`, less the old ones with weights `minus`."""
        layout = self.layouts[SLOT]
        rows = pa.concat_tables([new, old]).select(layout.columns)
        rows = with_weights(rows, np.concatenate([plus, -minus]))
        return layout.consolidate(rows.filter(pc.not_equal(rows[WEIGHT], 0)))
