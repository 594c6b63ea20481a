"""The operators that store results: the rows of a view, the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import APPEND, HASH, OPERATION, REJECTED, REPLACED, SEQUENCE, WEIGHT
from eddyline.operators.base import BucketResult, State, checked_weights, empty_like, numbered
from eddyline.source.log_entries import SEQUENCE_SHIFT
from eddyline.state.arrangement import Layout
from eddyline.state.grouping import Groups, group_rows
from eddyline.state.kernels import distinct_hashes, ordered, with_weights
from eddyline.state.manifest import ROWS
from eddyline.state.retyping import cast_to


@dataclass(frozen=True, slots=True)
class Materialize:
    """Store a view's rows. Input: `h, c0.., w`. No output; the arrangement is the result."""

    family: ClassVar[str] = "result"
    columns: int

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: the result."""
        return {ROWS: Layout(numbered("c", self.columns))}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout = self.layouts[ROWS]
        return BucketResult([], {ROWS: layout.consolidate(delta.select(layout.columns))})


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply appends and deletes to a table's rows, in their order.

    Input: `h, seq, op, c0.., w`, where `h` hashes the primary key, or the whole row if there is
    none. With a key an append replaces the row of that key, and a delete needs only the key.
    Without a key the table is a multiset: an append adds `w` copies, a delete removes up to `w`.
    Deleting a row that does not exist does nothing, and so do rejected operations. With a key a row before
    an update (`REPLACED`) is deleted only if the next operation of its key in the same entry of the log isn't
    an append, accepted or rejected, which is then the row after the update.

    Attributes:
        columns: number of columns.
        key: places of the primary key's columns; empty for a multiset.
    """

    family: ClassVar[str] = "table"
    columns: int
    key: tuple[int, ...] = ()

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: the rows."""
        return {ROWS: Layout(numbered("c", self.columns))}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        stored = state[ROWS].lookup(distinct_hashes(delta))
        return BucketResult([], {ROWS: self.resolve(delta, stored)})

    def resolve(self, operations: pa.Table, stored: pa.Table | None) -> pa.Table:
        """Return the change that operations make to the stored rows.

        Args:
            stored: the rows of at least the touched keys.
        """
        layout = self.layouts[ROWS]
        operations = self._effective(ordered(operations, SEQUENCE))
        if stored is None:
            stored = empty_like(operations, layout.columns)
        old = checked_weights("table", layout.consolidate(stored))
        change = self._by_key(operations, old) if self.key else self._by_row(operations, old)
        return layout.consolidate(change)

    def _effective(self, operations: pa.Table) -> pa.Table:
        """Return the operations in order, without those that do nothing."""
        kinds = operations[OPERATION]
        rejected = pc.equal(kinds, REJECTED)
        if not pc.any(rejected).as_py():
            return operations  # a row before an update is deleted or replaced in any case
        kept = pc.invert(rejected)
        if self.key:
            # an entry of a log is never split: whether an after-image follows doesn't depend on epochs
            entries = operations[SEQUENCE].to_numpy() >> SEQUENCE_SHIFT
            of = group_rows(operations, [HASH, *(f"c{place}" for place in self.key)]).of
            places = np.lexsort((entries, of))  # stable: in their order within a key and an entry
            after = pc.is_in(kinds, value_set=pa.array([APPEND, REJECTED], kinds.type)).to_numpy()
            follows = np.zeros(len(of), bool)
            here, following = places[:-1], places[1:]
            same = (of[here] == of[following]) & (entries[here] == entries[following])
            follows[here] = same & after[following]
            kept = pc.and_not(kept, pa.array(pc.equal(kinds, REPLACED).to_numpy() & follows))
        return operations.filter(kept)

    def _by_key(self, operations: pa.Table, old: pa.Table) -> pa.Table:
        layout = self.layouts[ROWS]
        keys = [HASH, *(f"c{place}" for place in self.key)]
        both = pa.concat_tables(
            [operations.select(keys), cast_to(old.select(keys), operations.select(keys).schema)]
        )
        groups = group_rows(both, keys)
        given, held = np.split(groups.of, [operations.num_rows])
        latest = np.full(len(groups), -1)
        latest[given] = np.arange(len(given))  # the last one stays
        last = operations.take(pa.array(latest[latest >= 0]))
        appended = last.filter(pc.equal(last[OPERATION], APPEND)).select(layout.columns)
        appended = with_weights(appended, np.ones(appended.num_rows, np.int64))
        gone = old.filter(pa.array(latest[held] >= 0))
        gone = with_weights(gone, -gone[WEIGHT].to_numpy())
        return pa.concat_tables([appended, cast_to(gone, appended.schema)])

    def _by_row(self, operations: pa.Table, old: pa.Table) -> pa.Table:
        """Count copies of each row; a count that stops at zero ends at total - min(0, lowest prefix)."""
        layout = self.layouts[ROWS]
        rows = [HASH, *layout.identity]
        sign = np.where(pc.equal(operations[OPERATION], APPEND).to_numpy(), 1, -1)
        both = pa.concat_tables([old, cast_to(operations.select(layout.columns), old.schema)])
        signed = np.concatenate(
            [old[WEIGHT].to_numpy(), sign * operations[WEIGHT].to_numpy()]
        ).astype(np.int64)
        groups = group_rows(both, rows)
        before = groups.over(groups.of[: old.num_rows]).sums(signed[: old.num_rows])
        total = groups.sums(signed)
        after = total - np.minimum(_lowest_sums(groups, signed), 0)
        change = after - before
        touched = np.flatnonzero(change)
        return with_weights(both.take(pa.array(groups.first[touched])), change[touched])


def _lowest_sums(groups: Groups, values: np.ndarray) -> np.ndarray:
    """Return for each group the lowest sum of its first rows, of at least one."""
    places = np.argsort(groups.of, kind="stable")
    starts = np.searchsorted(groups.of[places], np.arange(len(groups)))
    ordered = values[places]
    running = np.cumsum(ordered)
    lowest = np.minimum.reduceat(running, starts) if len(groups) else running
    before = running[starts] - ordered[starts]
    found: np.ndarray = lowest - before
    return found
