"""The delivery of a view's committed changes to a sink. It reads runs directly, without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from eddyline.answers.changelog import net_changes
from eddyline.answers.failing import view_failing
from eddyline.catalog.entries import Entry
from eddyline.changes import APPEND, DELETE, OPERATION, WEIGHT, Epoch, ViewId
from eddyline.operators.base import numbered
from eddyline.sink.base import FindsRows, Sink
from eddyline.sink.cursors import Cursor
from eddyline.sink.outbox import NO_VIEW, Deliver, Outbox, Refuse, Snapshot, UpToDate, next_delivery
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.state.kernels import ordered
from eddyline.state.leases import Leases
from eddyline.state.manifest import (
    ROWS,
    Manifest,
    committed_epochs,
    last_committed,
    read_manifest,
    runs_of,
    without_gaps,
)
from eddyline.state.recover import flush
from eddyline.state.retyping import cast_to
from eddyline.state.runs import Run, read_run
from eddyline.state.weights import check_held, deletes_in
from eddyline.storage.files import Files

ROWS_MAX = 1_000_000
"""Changes that are delivered as one: epochs are put together up to about so many rows."""

_NOT = "null"
"""How a target finds rows that only takes appended ones."""


class ViewChanges(Protocol):
    """The committed changes of one view."""

    @property
    def view(self) -> ViewId:
        """The view's id."""

    def holder(self, epoch: Epoch) -> ViewId:
        """Return the id that the view had in an epoch: another one if it has been replaced since."""

    def committed(self) -> Epoch:
        """Return the last committed epoch, which no crash can undo."""

    def retained(self) -> list[Epoch]:
        """Return the retained epochs, oldest first, without a gap."""

    def holding(self, epoch: Epoch) -> AbstractContextManager[bool]:
        """Retain an epoch, and those after it, during the context; yield False if it is gone already."""

    def count(self, epoch: Epoch) -> int:
        """Return an estimate of the number of changes in an epoch."""

    def changes(self, first: Epoch, last: Epoch) -> pa.Table:
        """Return the net changes of the epochs from `first` to `last` in the form that `Sink` describes."""

    def rows(self, epoch: Epoch) -> pa.Table:
        """Return all rows as of an epoch, in the same form."""


class CommittedChangelog:
    """The changelog of a view in a storage.

    Args:
        files: the engine's object, which knows whether epochs are flushed one by one.
        view: the view's entry in the catalog.
    """

    def __init__(self, files: Files, view: Entry) -> None:
        self.files = files
        self.entry = view
        self._flushed = Epoch(0)
        self._leases = Leases(files)
        self._now = Manifest(Epoch(0))

    @property
    def view(self) -> ViewId:
        return ViewId(self.entry.id)

    def holder(self, epoch: Epoch) -> ViewId:
        return ViewId(self._now.holder(self.view, epoch))

    def committed(self) -> Epoch:
        self._now = last_committed(self.files)
        chains = self._now.replaced.values()
        ends = [until for chain in chains for name, until in chain if name == self.view]
        # the changelog of a replaced view ends with its replacement
        epoch = Epoch(min([self._now.epoch, *(until - 1 for until in ends)]))
        if self.files.unflushed and epoch > self._flushed:
            # a power cut could undo the epoch, but not its delivery
            flush(self.files, self._flushed)
            self._flushed = epoch
        return epoch

    def retained(self) -> list[Epoch]:
        # the first epoch of a view has all its rows: they aren't changes of what a target already holds
        chain = self._now.replaced.get(self.view, ())
        ended = next((end for name, end in chain if not name), Epoch(0))
        if not chain and self.view not in self._now.rebuilt:
            ended = Epoch(self.entry.since)
        epochs = without_gaps(committed_epochs(self.files))
        return [epoch for epoch in epochs if ended < epoch]

    @contextmanager
    def holding(self, epoch: Epoch) -> Iterator[bool]:
        held = self._leases.hold(epoch)
        try:
            yield held
        finally:
            if held:
                self._leases.release(epoch)

    def count(self, epoch: Epoch) -> int:
        return sum(run.rows for run in self._changed(epoch))

    def changes(self, first: Epoch, last: Epoch) -> pa.Table:
        epochs = (Epoch(number) for number in range(first, last + 1))
        return self._table([run for epoch in epochs for run in self._changed(epoch)])

    def rows(self, epoch: Epoch) -> pa.Table:
        manifest = read_manifest(self.files, epoch)
        result = manifest.result(self.entry.id, ROWS)
        if not result and self.view in manifest.failing:  # it has never had rows
            raise view_failing(manifest.failing[self.view])
        buckets = manifest.arrangements.get(result, {})
        return self._table(runs_of(buckets), held=True)

    def _changed(self, epoch: Epoch) -> list[Run]:
        manifest = read_manifest(self.files, epoch)
        result = manifest.result(self.holder(epoch), ROWS)
        return runs_of(manifest.deltas.get(result, {}))

    def _table(self, runs: Sequence[Run], *, held: bool = False) -> pa.Table:
        columns = self.entry.columns
        names = numbered("c", len(columns))
        schema = arrow_schema(plain_schema(columns), self._now.zone)
        schema = schema.append(pa.field(WEIGHT, pa.int64()))
        tables = [read_run(self.files, run).select([*names, WEIGHT]) for run in runs]
        rows = net_changes(pa.concat_tables(tables), names) if tables else schema.empty_table()
        rows = ordered(cast_to(rows, schema), WEIGHT)  # deletes first
        if held:
            check_held("a result", rows, view=self.entry.name)
        appended = rows[WEIGHT].to_numpy() > 0
        operations = pa.array(np.where(appended, APPEND, DELETE), pa.string())
        rows = rows.add_column(len(columns), OPERATION, operations)
        return rows.rename_columns([*columns.names, OPERATION, WEIGHT])


class Delivery:
    """Delivers a view's changes to one sink, each exactly once.

    Only one delivery may run for a sink at a time.

    Args:
        each: deliver each epoch separately; otherwise waiting epochs are combined.

    Attributes:
        rows, deletes: number of rows that were delivered, and of deletes among them.
        stopping: set to end `run`: a delivery that is under way finishes, and no other one begins.
        abandoned: whether nobody waits for that delivery any more, so that it doesn't write the cursor; see `abandon`.
    """

    def __init__(
        self, changelog: ViewChanges, outbox: Outbox, sink: Sink, *, each: bool = False
    ) -> None:
        self.changelog = changelog
        self.outbox = outbox
        self.sink = sink
        self.each = each
        self.rows = self.deletes = 0
        self.stopping = False
        self.abandoned = False
        self._writing = threading.Lock()
        self._found_by = ""
        if isinstance(sink, FindsRows):
            by = sink.found_by
            self._found_by = json.dumps(None if by is None else sorted(by))

    def abandon(self) -> None:
        """End `run` without waiting for it: once this has returned, the cursor isn't written any more."""
        with self._writing:
            self.stopping = self.abandoned = True

    def run(self) -> Epoch:
        """Deliver all committed epochs; return the epoch that the target then holds.

        Epochs in which the view didn't change are skipped, except the last one, which sets the
        target's position. A call that raised can be repeated.

        Raises:
            StateError: storage and target contradict each other (see `next_delivery`), or the
                state is damaged.
        """
        changelog = self.changelog
        while True:
            committed = changelog.committed()
            cursor, target = self._cursor(), self.sink.committed()
            retained = changelog.retained()
            decision = next_delivery(
                changelog.view, cursor, target, committed, retained, self._found_by
            )
            if isinstance(decision, Refuse):
                raise decision.error
            if isinstance(decision, UpToDate):
                if target and (cursor is None or cursor.epoch < target):
                    # a crash has prevented the write of the cursor, or the view was replaced
                    self._advance(Cursor(changelog.view, target, found_by=self._found_by))
                return committed
            if self.stopping:
                return target or Epoch(0)
            first = decision.first if isinstance(decision, Deliver) else decision.epoch
            with changelog.holding(first) as held:
                if not held:
                    continue  # it has been retired in the meantime
                if isinstance(decision, Snapshot):
                    return self._replace(cursor, target, decision.epoch)
                reached = self._deliver(decision, committed)
                if reached >= committed or self.stopping:
                    return reached

    def _cursor(self) -> Cursor | None:
        """Return the cursor; that of a replaced predecessor becomes one of this view."""
        cursor, view = self.outbox.cursor(), self.changelog.view
        if cursor is None or cursor.view == NO_VIEW:  # so is the holder, if it had other columns
            return cursor
        if cursor.view == self.changelog.holder(cursor.epoch):
            return replace(cursor, view=view)
        return cursor

    def _replace(self, cursor: Cursor | None, target: Epoch | None, epoch: Epoch) -> Epoch:
        """Make all rows as of an epoch the target's; return the epoch that it then holds."""
        rows = self.changelog.rows(epoch)
        if not self._begin(cursor, epoch):
            return target or Epoch(0)
        self.sink.replace(target, epoch, rows)
        self._delivered(epoch, rows)
        return epoch

    def _begin(self, cursor: Cursor | None, until: Epoch) -> bool:
        """Store durably that a delivery up to `until` begins, before the target can hold that epoch.

        Returns:
            Whether it begins; it doesn't if `stopping` is set.
        """
        cursor = cursor or Cursor(NO_VIEW, Epoch(0))
        return not self.stopping and self._advance(replace(cursor, until=until))

    def _advance(self, cursor: Cursor) -> bool:
        """Store the cursor; return False if the delivery is abandoned, as another one may have begun."""
        with self._writing:
            if not self.abandoned:
                self.outbox.advance(cursor)
            return not self.abandoned

    def _deliver(self, decision: Deliver, committed: Epoch) -> Epoch:
        """Deliver epochs until all are delivered, or `stopping` is set; return the last one.

        A view without a key may have been replaced by one with fewer rows: where the target can't find those to
        delete, all rows as of the last epoch, `committed`, are written anew.
        """
        base, first = Epoch(decision.first - 1), decision.first
        count = 0
        for number in range(decision.first, decision.last + 1):
            epoch = Epoch(number)
            count += self.changelog.count(epoch)
            if epoch < decision.last and (not count if self.each else count < ROWS_MAX):
                continue
            if self.stopping:
                break
            changes = self.changelog.changes(first, epoch)
            cursor = Cursor(self.changelog.view, base, found_by=self._found_by)
            if self._found_by == _NOT and deletes_in(changes.column(-1)):
                return self._replace(cursor, base, committed)
            if not self._begin(cursor, epoch):
                break
            self.sink.deliver(base, epoch, changes)
            self._delivered(epoch, changes)
            base, first, count = epoch, Epoch(epoch + 1), 0
        return base

    def _delivered(self, epoch: Epoch, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        self.deletes += deletes_in(rows.column(-1))
        self._advance(Cursor(self.changelog.view, epoch, found_by=self._found_by))
