"""EMIT FINAL: emits each row once, when it can't change any more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import BucketResult, State, Timed, checked_weights, numbered
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.expiry import times
from eddyline.state.kernels import with_weights
from eddyline.state.retyping import cast_to

PENDING = "pending"
"""The arrangement of the rows whose time is to come."""

NEVER = np.iinfo(np.int64).max  # in place of a missing time


@dataclass(frozen=True, slots=True)
class Hold(Timed):
    """Hold a result's rows back until their time is below the bound, then emit them as appends.

    Input: `h, c0.., w`; `h` is not used. Output: `c0.., w`. The pending rows are stored by time, so
    that an epoch reads only those that have become final.

    Attributes:
        column, field: the column, or its field, with a row's time; see `state.expiry.ExpiryColumn`.
        bound: rows whose time is below it are final; None while there is no watermark.
    """

    family: ClassVar[str] = "hold"
    columns: int
    column: str
    field: str
    bound: int | None = None

    @property
    def layouts(self) -> dict[str, Layout]:
        """The pending rows, by time instead of by hash."""
        return {PENDING: Layout(numbered("c", self.columns))}

    def limited(self, bound: int | None) -> Hold:
        """Return the operator for an epoch with this bound."""
        return replace(self, bound=bound)

    def step(self, delta: pa.Table | None, state: State) -> BucketResult:
        """Process one epoch; the delta is None if only the bound has changed."""
        layout = self.layouts[PENDING]
        given = [] if delta is None else [layout.consolidate(self._by_time(delta))]
        due = [*due_rows(state[PENDING], self.bound), *(below(rows, self.bound) for rows in given)]
        if not given and not any(table.num_rows for table in due):
            return BucketResult([])
        schema = (given or due)[0].schema
        final = layout.consolidate(
            pa.concat_tables([cast_to(t, schema) for t in due] or [given[0][:0]])
        )
        final = checked_weights("emit final", final)
        change = layout.consolidate(
            pa.concat_tables([*given, with_weights(final, -final[WEIGHT].to_numpy())])
        )
        return BucketResult([final.drop_columns([HASH])], {PENDING: change})

    def _by_time(self, delta: pa.Table) -> pa.Table:
        rows = delta.select(self.layouts[PENDING].columns)
        moments = times(rows, self.column, self.field).fill_null(NEVER)
        return rows.set_column(0, HASH, moments)


def due_rows(pending: Arrangement, bound: int | None) -> list[pa.Table]:
    """Return of each run the rows whose time is below a bound, and count them as read."""
    found = [below(table, bound) for table in pending.mapped()]
    pending.touched += sum(rows.num_rows for rows in found)
    return found


def below(rows: pa.Table, bound: int | None) -> pa.Table:
    """Return the rows whose time, stored as their hash, is below a bound; none if it is None."""
    if bound is None:
        return rows[:0]
    moments = rows[HASH].to_numpy()
    if len(moments) and (moments[:-1] > moments[1:]).any():
        return rows.filter(pa.array(moments < bound))
    return rows.slice(0, int(np.searchsorted(moments, bound, "left")))
