"""Temporal filters: a comparison with now() changes its value once for each row, when the row's moment has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import BucketResult, State, Timed, checked_weights, numbered
from eddyline.operators.hold import PENDING, below, due_rows
from eddyline.state.arrangement import Layout
from eddyline.state.expiry import times
from eddyline.state.kernels import with_weights
from eddyline.state.retyping import cast_to


@dataclass(frozen=True, slots=True)
class Flip(Timed):
    """Add a column that is `first` until the clock reaches a row's moment, and `not first` from then on.

    Input: `h, c0.., w`, the moment in the last of the columns; `h` is not used. Output: the same
    columns with the value instead of the moment, `w`. Rows whose moment is in the future are stored by
    moment, so that an epoch reads only those that flip. A null moment gives a null value.

    Attributes:
        columns: number of columns, with the moment.
        first: the value before the moment.
        bound: moments below it have come; None if none has.
    """

    family: ClassVar[str] = "now"
    columns: int
    first: bool
    bound: int | None = None

    @property
    def layouts(self) -> dict[str, Layout]:
        """The rows that have not flipped yet, by moment instead of by hash."""
        return {PENDING: Layout(numbered("c", self.columns))}

    def limited(self, bound: int | None) -> Flip:
        """Return the operator for an epoch with this bound."""
        return replace(self, bound=bound)

    def step(self, delta: pa.Table | None, state: State) -> BucketResult:
        """Process one epoch; the delta is None if only the clock has advanced."""
        layout, output, changes = self.layouts[PENDING], [], []
        flipped = [rows for rows in due_rows(state[PENDING], self.bound) if rows.num_rows]
        if flipped:
            merged = [cast_to(rows, flipped[0].schema) for rows in flipped]
            rows = checked_weights("clock", layout.consolidate(pa.concat_tables(merged)))
            gone = with_weights(rows, -rows[WEIGHT].to_numpy())
            output += [self._shown(gone, self.first), self._shown(rows, not self.first)]
            changes.append(gone)
        if delta is not None:
            given = delta.select(layout.columns)
            moments = times(given, self._moment)
            known = pc.is_valid(moments)
            output.append(self._shown(given.filter(pc.invert(known)), None))
            given = given.set_column(0, HASH, moments).filter(known)
            given = layout.sorted(layout.consolidate(given))
            past = below(given, self.bound)
            waiting = given.slice(past.num_rows)
            output += [self._shown(past, not self.first), self._shown(waiting, self.first)]
            changes.append(waiting)
        if not changes:
            return BucketResult([])
        merged = [cast_to(rows, changes[0].schema) for rows in changes]
        change = layout.consolidate(pa.concat_tables(merged))
        return BucketResult([rows for rows in output if rows.num_rows], {PENDING: change})

    @property
    def _moment(self) -> str:
        return f"c{self.columns - 1}"

    def _shown(self, rows: pa.Table, value: bool | None) -> pa.Table:
        """Return rows as the output has them, with this value."""
        place = rows.column_names.index(self._moment)
        values = pa.repeat(pa.scalar(value, pa.bool_()), rows.num_rows)
        return rows.set_column(place, self._moment, values).drop_columns([HASH])
