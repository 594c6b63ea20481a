"""Runs epochs on a workspace: over new input, and to compute new or resumed views from all their input."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from eddyline.api.live_plans import at_rest, is_live, live_plans
from eddyline.api.replacing import REPLACING, without_marks
from eddyline.api.reporting import Reporting, named
from eddyline.api.retiring import retire_old
from eddyline.api.sinks import Sinks
from eddyline.api.stopping import Stops
from eddyline.api.telemetry import connect_telemetry
from eddyline.api.workspace import Workspace
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EngineError, QueryError, StorageError
from eddyline.intake.backoff import back_off
from eddyline.intake.retention import rows_expired, views_with_expired_rows
from eddyline.intake.watermarks import Watermarks, asks_for_clock
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.epoch import EpochRunner, Replacement
from eddyline.runtime.execution import Execution
from eddyline.runtime.merges import Merges
from eddyline.runtime.plans import EpochPlan, PlanInput, new_input, other_plan
from eddyline.runtime.progress import Timer
from eddyline.runtime.reports import EpochState
from eddyline.runtime.rows_at_fault import Piece, as_texts
from eddyline.runtime.view_failures import VIEW_FAILING, set_aside
from eddyline.source.segments import Segment
from eddyline.spark.schema import plain_schema
from eddyline.state.manifest import (
    Clock,
    Failure,
    Manifest,
    Predecessors,
    committed_epochs,
    last_committed,
)

RETIRE_EVERY = 16
"""Epochs after which the data of epochs that are no longer retained is removed."""

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
"""Between two tries of failing views in the background: at first, doubled each time, up to the maximum."""

RETRY_SHARE = 9
"""A pause between two tries is at least so many times as long as the last try."""

_LOG = logging.getLogger("eddyline.epochs")


class Epochs:
    """Runs epochs, one at a time. Callers hold the lock of the workspace.

    Attributes:
        reporting: reports epochs and errors to the user.
        sinks: the sinks, which each commit wakes.
        stops: the streams that ON VIOLATION STOP has stopped.
        merges: merges large runs of the state beside epochs.
        runner: runs and commits epochs.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.reporting = Reporting()
        connect_telemetry(workspace, self.reporting)
        self.sinks = Sinks(workspace, self.reporting.error, self.reporting.delivered)
        self.sinks.recover()
        self.stops = Stops(workspace, self.reporting.error)
        self._tries = 0
        self._next_retry = 0.0
        execution = Execution(
            workspace.files,
            workspace.compiler.catalyst,
            workspace.options.scan_tasks,
            workspace.lanes,
            self._show_rows,
        )
        options = workspace.options
        self.merges = Merges(
            workspace.files, workspace.spark, options.compaction_fan_in, options.slice_bytes
        )
        self.runner = EpochRunner(
            workspace.files, execution, workspace.zone, workspace.settings, self.merges
        )
        if workspace.writes:
            self.finish_replacement()

    def run_next(self, timer: Timer, now: int | None = None) -> bool:
        """Run one epoch over the unprocessed entries of the redo logs; False if there are none.

        Args:
            timer: has measured how long the input took to be logged.
            now: the time of the epoch, microseconds since 1970; None for that of the clock.
        """
        try:
            return self._run_next(timer, now)
        except BaseException as error:
            self.reporting.failed(self._workspace.manifest.epoch + 1, timer, error)
            raise

    def _run_next(self, timer: Timer, now: int | None) -> bool:
        workspace = self._workspace
        with timer.stage("plan"):
            self.finish_replacement()
            positions = self._waiting()
            plans, aside = live_plans(workspace, positions)
        if self._rebuild_changed(plans, aside):
            positions = self._waiting()
            plans, aside = live_plans(workspace, positions)
        base, catalog = workspace.manifest, workspace.catalog
        now = workspace.clock() if now is None else now
        watermarks = Watermarks.of_next_epoch(base, catalog, now)
        parts = [plan.parts for plan in plans.values()]
        watermarks.advance(parts, rows=bool(positions))
        if not (positions or aside or any(map(watermarks.have_advanced, parts))):
            return False
        for stream in watermarks.streams:
            if stream.id in positions:
                first = base.positions.get(stream.id, 0)
                workspace.sources.log(stream).mark(first, watermarks.of(stream))
        with timer.stage("plan"):
            inputs = [
                new_input(plan, catalog, workspace.sources, base, positions)
                for plan in plans.values()
            ]
        try:
            self._run(inputs, positions, watermarks, timer, aside=aside)
        except EngineError as error:
            # only a stream of operations can fail it on its rows: whose expectations can't be evaluated
            if error.condition != VIEW_FAILING or not self.stops.found_fault(positions):
                raise
            return self._run_next(Timer(), now)  # try again without the stream that has stopped
        self.after_commit(timer)
        return True

    def _waiting(self) -> dict[str, int]:
        """Return the positions up to which the next epoch reads, for the sources with new input."""
        workspace = self._workspace
        waiting = workspace.sources.waiting(workspace.catalog, workspace.manifest)
        return self.stops.allowed_positions(waiting)

    def fill(
        self,
        catalog: Catalog,
        plans: Sequence[CompiledPlan],
        rebuilt: Sequence[ViewId] = (),
        replaced: Entry | None = None,
        aside: Mapping[ViewId, Failure] | None = None,
        clocks: Mapping[str, Clock] | None = None,
    ) -> Timer:
        """Compute views from all rows of their inputs, in a separate epoch.

        Args:
            catalog: the catalog with these views.
            rebuilt: ids of views that have rows already; the new rows replace their old ones.
            replaced: the view that the one of the first plan replaces.
            aside: other views, to set aside in the same epoch.
            clocks: event times of streams to begin with; None for those of the last epoch.

        Returns:
            What has measured it.
        """
        workspace, timer = self._workspace, Timer()
        base = workspace.manifest
        if clocks is not None:
            base = replace(base, clocks=dict(clocks))
        filled = {compiled.plan.name for compiled in plans}
        inputs = [
            workspace.results.initial_input(
                compiled, catalog, base, filled, workspace.compiler.write_constants(compiled)
            )
            for compiled in plans
        ]
        watermarks, asked = self._watermarks(base, filled)
        if not asked:  # now() can't advance without the other views that use it
            watermarks.advance([compiled.plan.parts for compiled in plans], rows=True)
        replacement = None
        if replaced is not None:
            replacement = self._replacement(catalog.get(plans[0].plan.name), replaced)
        return self._run(inputs, {}, watermarks, timer, rebuilt, replacement, aside)

    def adopt(self, plan: EpochPlan, computed: EpochState) -> Timer:
        """Commit the state of a new view that the runner has computed as of the last epoch; return what has measured it."""
        workspace, timer = self._workspace, Timer()
        now = workspace.manifest
        watermarks = Watermarks.of_next_epoch(now, workspace.catalog, workspace.clock())
        try:
            with timer.stage("commit"):
                workspace.manifest = self.runner.adopt(now, plan, computed, watermarks)
        except BaseException:  # the commit may have succeeded although the call failed after it
            workspace.manifest = last_committed(workspace.files).owned(workspace.catalog.ids)
            raise
        return timer

    def catch_up(self, given: PlanInput, computed: EpochState) -> Timer:
        """Commit the state of a new view that the runner has computed as of an earlier epoch; return what has measured it.

        Args:
            given: the changes that it hasn't seen.
        """
        workspace = self._workspace
        now = workspace.manifest
        watermarks = Watermarks.of_next_epoch(now, workspace.catalog, workspace.clock())
        return self._run([given], {}, watermarks, Timer(), adopted=computed)

    def load(self, table: Entry) -> Timer:
        """Compute the rows of a table or stream that isn't in the catalog yet, in an epoch that no view reads.

        Returns:
            What has measured it.
        """
        workspace = self._workspace
        base, plan = workspace.manifest, workspace.compiler.table(table).plan
        log = workspace.sources.log(table)
        start, end = log.start(), log.end()
        segments = workspace.sources.segments(table, base, start, end)
        watermarks, _ = self._watermarks(base)
        inputs = [PlanInput(plan, {plan.leaves[0].name: segments})]
        return self._run(inputs, {table.id: end}, watermarks, Timer())

    def rebuild(
        self,
        entries: Sequence[Entry],
        aside: Mapping[ViewId, Failure] | None = None,
        clocks: Mapping[str, Clock] | None = None,
    ) -> None:
        """Compute views again in a separate epoch; their changelogs get the difference.

        Those that fail, or have rows that streams no longer keep, are set aside. If all were failing already
        and still do, nothing is committed.

        Args:
            aside: other views, to set aside in the same epoch.
            clocks: event times of streams to begin with, which the same commit stores; None for those
                of the last epoch.
        """
        if not entries and clocks is None:
            return
        cut = self._with_expired_rows(entries)
        for failure in cut.values():
            _LOG.error("view %s is set aside: %s", failure.view, failure.message)
        entries, aside = [e for e in entries if e.id not in cut], {**(aside or {}), **cut}
        plans = [self._workspace.plan(entry) for entry in entries]
        ids = [ViewId(entry.id) for entry in entries]
        try:
            timer = self.fill(self._workspace.catalog, plans, ids, aside=aside, clocks=clocks)
        except EngineError as error:
            if error.condition != VIEW_FAILING:
                raise
            _LOG.info("views still fail: %s", ", ".join(entry.name for entry in entries))
        else:
            self.after_commit(timer)

    def _with_expired_rows(self, entries: Sequence[Entry]) -> dict[ViewId, Failure]:
        """Return the views that can't be computed again because rows of a stream have expired, each with the reason.

        Args:
            entries: upstream first.
        """
        workspace = self._workspace
        cut = views_with_expired_rows(
            entries, workspace.catalog, workspace.manifest, workspace.sources
        )
        since = Epoch(workspace.manifest.epoch + 1)
        found = {}
        for entry in entries:
            if entry.name in cut:
                stream, through = cut[entry.name]
                error = rows_expired(entry.name, stream)
                why = f"{error.message}; {error.hint}"
                found[ViewId(entry.id)] = set_aside(entry.name, since, why, through)
        return found

    def live_readers(self, stream: Entry) -> list[Entry]:
        """Return the live views that read a stream, also through other views."""
        workspace = self._workspace
        return [e for e in workspace.catalog.below(stream.name) if is_live(workspace, e)]

    def retry(self) -> None:
        """Compute the failing views again, each from all rows of its inputs, in a separate epoch.

        Views that fail again stay as they are; if all do, no epoch is committed. Queries are compiled
        again, with the functions that the session has now. A view whose input has expired gets that as its
        reason, and isn't tried again.
        """
        workspace = self._workspace
        failing = workspace.manifest.failing
        entries = [e for e in workspace.catalog.entries if e.id in failing and not e.paused]
        cut = self._with_expired_rows(entries)
        told = {view for view, why in cut.items() if failing[view].message == why.message}
        entries = [entry for entry in entries if entry.id not in told]
        if not entries:
            return
        started = time.monotonic()
        try:
            self.rebuild([entry for entry in entries if self._compiles(entry)])
        finally:
            ended = time.monotonic()
            self._tries += 1
            pause_s = back_off(self._tries, RETRY_FIRST_S, RETRY_MAX_S)
            self._next_retry = ended + max(pause_s, RETRY_SHARE * (ended - started))

    def retry_due(self) -> bool:
        """Return whether failing views should be tried again by the background run.

        The pauses double, and each is several times as long as the last try took.
        """
        if not self._workspace.manifest.failing:
            self._tries = 0
            return False
        return time.monotonic() >= self._next_retry

    def after_commit(self, timer: Timer, *, retire: bool = True) -> None:
        """Report a committed epoch; first remove what is no longer retained, if `retire` is set."""
        self.reporting.epoch(self._workspace.manifest, self._workspace.catalog, timer)
        try:
            if retire and self._workspace.manifest.epoch % RETIRE_EVERY == 0:
                retire_old(self._workspace)
        finally:  # callbacks come last: they may define views, or stop the engine
            self.sinks.wake()
            self.reporting.call_back()

    def _show_rows(self, pieces: Sequence[Piece]) -> list[str]:
        """Return pieces of input as texts for an error."""
        workspace = self._workspace

        def first_rows(relation: str, segment: Segment, most: int) -> list[dict[str, Any]]:
            entry = workspace.catalog.find(relation)
            scan = None if entry is None else workspace.compiler.whole_scan(entry)
            return [] if scan is None else scan.first_rows(segment, most)

        return as_texts(pieces, first_rows)

    def use_session(self) -> None:
        """Use the workspace's session for later epochs: it is made for the current number of buckets."""
        self.runner.execution.catalyst = self._workspace.compiler.catalyst

    def rebuild_changed(self) -> None:
        """Compute the views again whose stored state was written by another plan than their current one."""
        self._rebuild_changed(*live_plans(self._workspace))

    def _rebuild_changed(
        self, plans: Mapping[str, EpochPlan], aside: Mapping[ViewId, Failure]
    ) -> bool:
        """Rebuild the views whose state another plan has written, and all views that read them.

        Returns:
            Whether there were any.
        """
        workspace = self._workspace
        written = workspace.manifest.plans
        changed: dict[str, Entry] = {}
        for name, plan in plans.items():
            entry = workspace.catalog.get(name)
            same = written.get(entry.id) == plan.fingerprint
            if entry.kind != VIEW:
                if not same and entry.id in written:
                    raise other_plan(entry)
            elif not same or any(name in changed for name in entry.upstream):
                changed[entry.name] = entry
        if changed:
            _LOG.warning(
                "views are computed again, because another plan has written their state: %s",
                ", ".join(changed),
            )
            self.rebuild(list(changed.values()), aside)
        return bool(changed)

    def finish_replacement(self) -> None:
        """Complete a replacement of a view that a crash has interrupted: make its readers consistent again.

        After a crash between the epoch of the replacement and the write of the catalog, the readers hold rows of
        a view that doesn't exist. They are computed again from the old view, which still does.
        """
        workspace = self._workspace
        readers = [entry for entry in workspace.catalog.entries if REPLACING in entry.options]
        if readers:
            rebuilt = workspace.manifest.rebuilt
            torn = [e for e in readers if rebuilt.get(ViewId(e.id), 0) > int(e.options[REPLACING])]
            with suppress(QueryError):  # a function is missing: the next epoch tries again
                self.rebuild(torn)
                workspace.save(without_marks(workspace.catalog), final=False)

    def _compiles(self, entry: Entry) -> bool:
        """Compile a failing view again; return whether that succeeds."""
        self._workspace.forget_plan(entry)
        try:
            self._workspace.plan(entry)
        except QueryError as error:
            _LOG.warning("view %s can't be compiled again: %s", entry.name, error.condition)
            return False
        return True

    def _replacement(self, entry: Entry, replaced: Entry) -> Replacement:
        """Return how a view replaces another one in the next epoch."""
        base = self._workspace.manifest
        epoch, columns = Epoch(base.epoch + 1), entry.columns
        before: Predecessors = (("", epoch),)
        same = columns.names == replaced.columns.names
        if same and plain_schema(columns) == plain_schema(replaced.columns):
            retained = committed_epochs(self._workspace.files)
            chain = base.replaced.get(ViewId(replaced.id), ())
            kept = (one for one in chain if retained and one[1] >= retained[0])
            before = (*kept, (replaced.id, epoch))
        return Replacement(ViewId(entry.id), ViewId(replaced.id), len(columns), before)

    def _watermarks(self, base: Manifest, filled: Collection[str] = ()) -> tuple[Watermarks, bool]:
        """Return the watermarks of an epoch that runs only some views, and whether other live views use now().

        Args:
            filled: the names of the views that it runs.
        """
        workspace = self._workspace
        watermarks = Watermarks.of_next_epoch(base, workspace.catalog, workspace.clock())
        others = [e for e in workspace.catalog.entries if e.name not in filled]
        moving = [e for e in others if is_live(workspace, e) and not at_rest(workspace, e)]
        try:
            parts = [workspace.plan(entry).plan.parts for entry in moving]
        except QueryError:  # the next epoch sets that view aside; until then nothing passes it by
            watermarks.deferred = True
            return watermarks, True
        watermarks.deferred = any(map(watermarks.have_advanced, parts))
        return watermarks, any(map(asks_for_clock, parts))

    def _run(
        self,
        inputs: Sequence[PlanInput],
        positions: Mapping[str, int],
        watermarks: Watermarks,
        timer: Timer,
        rebuilt: Sequence[ViewId] = (),
        replacement: Replacement | None = None,
        aside: Mapping[ViewId, Failure] | None = None,
        adopted: EpochState | None = None,
    ) -> Timer:
        """Run an epoch on top of the last committed one; return `timer`, which measures its stages."""
        workspace = self._workspace
        before = workspace.manifest
        epoch = before.epoch + 1
        try:
            workspace.manifest = self.runner.run(
                workspace.manifest,
                inputs,
                positions,
                watermarks,
                rebuilt,
                replacement,
                aside,
                adopted,
                timer=timer,
                received=workspace.sources.received(workspace.catalog, before, positions),
            )
        except BaseException as error:
            if not isinstance(error, EngineError) or error.condition != VIEW_FAILING:
                _LOG.error("epoch %d failed: %s", epoch, named(error))
            self.reporting.failed(epoch, timer, error)
            # raises FENCED if a newer writer has removed the attempt
            with suppress(StorageError), workspace.files.committing():
                pass
            # the commit may have succeeded although the call failed after it
            workspace.manifest = last_committed(workspace.files).owned(workspace.catalog.ids)
            raise
        finally:
            # an epoch that rebuilt views has ended their pauses, even if writing the catalog fails
            workspace.catalog = workspace.catalog.without_ended_pauses(workspace.manifest.rebuilt)
        self.reporting.difference(before, workspace.manifest, workspace.catalog)
        return timer
