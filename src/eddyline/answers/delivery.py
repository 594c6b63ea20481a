"""The delivery of a view's committed changes to a sink. It reads runs directly, without Spark."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from eddyline.answers.changelog import net_changes
from eddyline.catalog.entries import Entry
from eddyline.changes import APPEND, DELETE, OPERATION, WEIGHT, Epoch, ViewId
from eddyline.operators.base import numbered
from eddyline.operators.result import ROWS
from eddyline.sink.base import Sink
from eddyline.sink.cursors import Cursor
from eddyline.sink.outbox import Deliver, Outbox, Refuse, Snapshot, next_delivery
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.state.kernels import cast_to
from eddyline.state.manifest import (
    Buckets,
    committed_epochs,
    last_committed,
    read_manifest,
    without_gaps,
)
from eddyline.state.recover import flush
from eddyline.state.runs import read_run
from eddyline.state.weights import check_held
from eddyline.storage.files import Files


class Changelog(Protocol):
    """The committed changes of one view."""

    @property
    def view(self) -> ViewId:
        """The view's id."""

    def committed(self) -> Epoch:
        """Return the last committed epoch, which no crash can undo."""

    def retained(self) -> list[Epoch]:
        """Return the epochs whose changes are retained, without gaps, oldest first."""

    def changes(self, epoch: Epoch) -> pa.Table:
        """Return the changes of an epoch in the form that `Sink` describes."""

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

    @property
    def view(self) -> ViewId:
        return ViewId(self.entry.id)

    def committed(self) -> Epoch:
        epoch = last_committed(self.files).epoch
        if self.files.unflushed and epoch > self._flushed:
            # a power cut could undo the epoch, but not its delivery
            flush(self.files, self._flushed)
            self._flushed = epoch
        return epoch

    def retained(self) -> list[Epoch]:
        # the view's first epoch gives all its rows: no changes of what a target held before
        epochs = without_gaps(committed_epochs(self.files))
        return [epoch for epoch in epochs if epoch > self.entry.since]

    def changes(self, epoch: Epoch) -> pa.Table:
        manifest = read_manifest(self.files, epoch)
        result = manifest.result(self.entry.id, ROWS)
        return self._table(manifest.deltas.get(result, {}), manifest.zone)

    def rows(self, epoch: Epoch) -> pa.Table:
        manifest = read_manifest(self.files, epoch)
        result = manifest.result(self.entry.id, ROWS)
        return self._table(manifest.arrangements.get(result, {}), manifest.zone, held=True)

    def _table(self, buckets: Buckets, zone: str, *, held: bool = False) -> pa.Table:
        columns = self.entry.columns
        names = numbered("c", len(columns))
        schema = arrow_schema(plain_schema(columns), zone).append(pa.field(WEIGHT, pa.int64()))
        runs = [run for own in buckets.values() for run in own]
        tables = [read_run(self.files, run).select([*names, WEIGHT]) for run in runs]
        rows = net_changes(pa.concat_tables(tables), names) if tables else schema.empty_table()
        rows = cast_to(rows, schema).sort_by(WEIGHT)  # deletes first
        if held:
            check_held("a result", rows, view=self.entry.name)
        appended = rows[WEIGHT].to_numpy() > 0
        operations = pa.array(np.where(appended, APPEND, DELETE), pa.string())
        rows = rows.add_column(len(columns), OPERATION, operations)
        return rows.rename_columns([*columns.names, OPERATION, WEIGHT])


class Delivery:
    """Delivers a view's changes to one sink, each epoch exactly once.

    Only one delivery may run for a sink at a time.
    """

    def __init__(self, changelog: Changelog, outbox: Outbox, sink: Sink) -> None:
        self.changelog = changelog
        self.outbox = outbox
        self.sink = sink

    def run(self) -> Epoch:
        """Deliver all committed epochs; return the epoch that the target then holds.

        Epochs in which the view didn't change are skipped, except the last one, which tells the
        target its position. A call that raised can be repeated.

        Raises:
            StateError: storage and target contradict each other (see `next_delivery`), or the
                state is damaged.
        """
        view, committed = self.changelog.view, self.changelog.committed()
        cursor, target = self.outbox.cursor(), self.sink.committed()
        decision = next_delivery(view, cursor, target, committed, self.changelog.retained())
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Snapshot):
            self.sink.replace(decision.epoch, self.changelog.rows(decision.epoch))
            self.outbox.advance(Cursor(view, decision.epoch))
        elif isinstance(decision, Deliver):
            self._deliver(decision, view)
        elif target and cursor != Cursor(view, target):
            # a crash came before the write of the cursor
            self.outbox.advance(Cursor(view, target))
        return committed

    def _deliver(self, decision: Deliver, view: ViewId) -> None:
        for number in range(decision.first, decision.last + 1):
            epoch = Epoch(number)
            changes = self.changelog.changes(epoch)
            if changes.num_rows or epoch == decision.last:
                self.sink.deliver(epoch, changes)
                self.outbox.advance(Cursor(view, epoch))
