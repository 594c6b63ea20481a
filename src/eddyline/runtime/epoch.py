"""One epoch: assign input to the leaves, run the plans, collect the reports, commit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from eddyline.changes import WEIGHT, BucketId, Epoch, ViewId
from eddyline.errors import EddylineError
from eddyline.intake.watermarks import Watermarks
from eddyline.operators.base import numbered
from eddyline.runtime.context import EpochContext, part_name
from eddyline.runtime.execution import Attempted, Execution
from eddyline.runtime.merges import Merges
from eddyline.runtime.plans import EpochPlan, PlanInput
from eddyline.runtime.progress import Span, Timer
from eddyline.runtime.reports import MERGES, EpochState, collect_reports, row_count
from eddyline.runtime.rows_at_fault import Piece, Searches
from eddyline.runtime.schedule import run_in_order
from eddyline.runtime.view_failures import reads_failing, still_failing
from eddyline.source.segments import RUN, Segment
from eddyline.spark.session import cores
from eddyline.state.arrangement import difference_runs
from eddyline.state.manifest import (
    ROWS,
    Failure,
    Manifest,
    Predecessors,
    manifest_name,
    next_commit_time,
    runs_of,
    write_manifest,
)
from eddyline.state.recover import EPOCHS, attempt_folder
from eddyline.state.run_lists import Buckets, renamed, write_arrangements
from eddyline.state.runs import read_run
from eddyline.state.weights import deletes_in
from eddyline.storage.files import Files, flushing_threads

JOBS_MIN, JOBS_MAX = 2, 16
"""Limits of how many plans run at once. Two on one core: while one waits for the disk, the other computes."""

ADOPTED = "adopted.json"


def _pool() -> Executor:
    """Return threads for the plans of epochs, one for each core of the active session."""
    return ThreadPoolExecutor(min(max(cores(None), JOBS_MIN), JOBS_MAX), "eddyline-epoch")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A view that takes the place of others in this epoch.

    Attributes:
        view: its id.
        replaced: the id of the one before it.
        columns: number of its columns.
        predecessors: the views before it. If the last one has the same columns, the changelog goes on
            with the difference of the rows.
    """

    view: ViewId
    replaced: ViewId
    columns: int
    predecessors: Predecessors


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at an epoch; see the arguments of `EpochRunner.run`.

    Attributes:
        epoch: the epoch to commit.
        folder: holds its files.
    """

    epoch: Epoch
    folder: str
    base: Manifest
    plans: Sequence[EpochPlan]
    rebuilt: tuple[ViewId, ...]
    replacement: Replacement | None
    adopted: EpochState | None

    def initial_state(self, aside: Mapping[ViewId, Failure]) -> EpochState:
        """Return the state to begin with: that of the base without rebuilt views, and what is adopted."""
        held = _without(self.base.arrangements, self.rebuilt)
        if self.adopted is not None:
            held |= self.adopted.arrangements
        failing = {v: why for v, why in self.base.failing.items() if v not in self.rebuilt}
        replaced = None if self.replacement is None else self.replacement.replaced
        return EpochState(held, failing={**failing, **aside}, replaced=replaced)

    def check_rebuilt(self, state: EpochState) -> None:
        """Raise EngineError VIEW_FAILING if all views to rebuild failed before, and still do on the same rows."""
        before, now = self.base.failing, state.failing
        still = {v for v in before.keys() & now.keys() if before[v].rows == now[v].rows}
        if self.rebuilt and self.replacement is None and still >= set(self.rebuilt):
            raise still_failing(state.failing[self.rebuilt[0]])

    def finish_manifest(self, manifest: Manifest, state: EpochState) -> Manifest:
        """Return the manifest to commit, with the chain of replaced views and the clocks that hold."""
        if self.adopted is not None:  # the views that hold rows by these clocks haven't run
            manifest = replace(manifest, clocks=self.base.clocks)
        if self.replacement is None:
            return manifest
        chain = self.replacement.predecessors
        if self.replacement.view in state.failing:
            chain = (("", manifest.epoch),)  # its changelog begins with its first rows
        return replace(manifest, replaced={**self.base.replaced, self.replacement.view: chain})


@dataclass(slots=True)
class EpochRunner:
    """Runs epochs against one storage, in one time zone and with fixed settings of Spark.

    Attributes:
        execution: executes each plan.
        merges: merges large runs of the state beside epochs.
        abandoned: folders of attempts that failed, to be removed.
        searches: remembers whose rows at fault are known.
        pool: runs plans that don't read each other.
        syncs: flush the files of an epoch; to start them in each would take longer than to flush.
    """

    files: Files
    execution: Execution
    zone: str
    settings: dict[str, str]
    merges: Merges
    abandoned: list[str] = field(default_factory=list)
    searches: Searches = field(default_factory=Searches)
    pool: Executor = field(default_factory=_pool)
    syncs: Executor = field(default_factory=flushing_threads)

    def run(
        self,
        base: Manifest,
        inputs: Sequence[PlanInput],
        positions: Mapping[str, int],
        watermarks: Watermarks,
        rebuilt: Sequence[ViewId] = (),
        replacement: Replacement | None = None,
        aside: Mapping[ViewId, Failure] | None = None,
        adopted: EpochState | None = None,
        *,
        timer: Timer,
        received: Mapping[str, int | None] | None = None,
    ) -> Manifest:
        """Run one epoch and commit it.

        Args:
            base: the last committed epoch.
            inputs: all plans to run, of any level, and their input.
            positions: by source, the end of the consumed part of its redo log after this epoch.
            watermarks: the watermarks in force in this epoch.
            rebuilt: ids of views whose state is computed again: they start empty, their output in
                this epoch is all their rows, and their changelog gets the difference to the old
                rows.
            replacement: the view that replaces another one in this epoch, if there is one.
            aside: views to set aside because they can't be run at all.
            adopted: the state of a new view, whose plan is the only one; its changelog begins with this epoch.
            timer: measures the stages, also of an epoch that fails.
            received: by name of a source how many rows the epoch reads of it; None if only its readers tell.

        A view that fails on its rows is set aside with all that read it: it keeps the state of the
        last committed epoch, and the epoch goes on without it.

        Returns:
            The new manifest.

        Raises:
            EngineError: nothing is committed. VIEW_FAILING: the epoch was to rebuild failing views,
                and all of them still fail, and to replace none. EPOCH_FAILED: a job failed for another reason.
        """
        epoch = Epoch(base.epoch + 1)
        folder, plans = attempt_folder(epoch), [one.plan for one in inputs]
        attempt = _Attempt(epoch, folder, base, plans, tuple(rebuilt), replacement, adopted)
        self._remove_abandoned()
        self.files.make_folder(folder)
        limits = self._limits(plans, watermarks)
        context = EpochContext(folder, base.epoch, limits, attempt.rebuilt)
        if adopted is not None:
            self._adopt_files(adopted, epoch)
            context = self._with_computed_state(adopted.arrangements, plans[0].id, context)
        state = attempt.initial_state(aside or {})
        try:
            self._run_plans(context, inputs, state, watermarks, timer, base.failing)
            attempt.check_rebuilt(state)
            with timer.stage("commit"):
                self._replace_deltas(attempt, state)
                if merged := self.merges.add_results_to(state.arrangements, folder):
                    state.count(MERGES, "bytes", merged)
                state.count_received(received or {})
                manifest = self._next_manifest(
                    base, plans, state, positions, watermarks, attempt.rebuilt
                )
                manifest = attempt.finish_manifest(manifest, state)
                self.files.sync_all(state.unflushed, self.syncs)
                manifest = write_manifest(self.files, manifest)
        except BaseException:
            self._abandon(folder, epoch)
            raise
        self.searches.forget(base, manifest)
        self.merges.look(manifest, plans, limits, state.left)
        return manifest

    def compute(
        self,
        base: Manifest,
        given: PlanInput,
        watermarks: Watermarks,
        folder: str,
        timer: Timer,
        before: Mapping[str, Buckets] | None = None,
    ) -> EpochState | None:
        """Compute the first rows of a new view as of a committed epoch, without a commit; other epochs may run meanwhile.

        Args:
            folder: for the files of its state; the caller removes it.
            before: the arrangements after earlier pieces of its input; None for the first piece.

        Returns:
            Its state, None if it fails on its rows.
        """
        self.files.make_folder(folder)
        limits = self._limits([given.plan], watermarks)
        context = EpochContext(folder, base.epoch, limits)
        if before is not None:
            context = self._with_computed_state(before, given.plan.id, context)
        state = EpochState(dict(before or {}), failing=dict(base.failing))
        self._run_plans(context, [given], state, watermarks, timer, base.failing)
        self.files.sync_all(state.unflushed, self.syncs)
        return None if given.plan.id in state.failing else state

    def _with_computed_state(
        self, computed: Mapping[str, Buckets], view: str, context: EpochContext
    ) -> EpochContext:
        """Store the state that was computed before for the tasks of a new view; return a context that names it."""
        file = f"{context.folder}/{ADOPTED}"
        write_arrangements(self.files, file, dict(computed))
        return replace(context, adopted=(view, file))

    def make_delta(self, plan: EpochPlan, folder: str, computed: EpochState) -> None:
        """Make the changelog of a view that `compute` has computed in pieces: all rows as appends."""
        self._replace_delta(folder, plan, {}, "", computed)

    def adopt(
        self, base: Manifest, plan: EpochPlan, computed: EpochState, watermarks: Watermarks
    ) -> Manifest:
        """Commit the view that `compute` has computed as of the last epoch, as the next epoch; its changes are all rows."""
        self._adopt_files(computed, Epoch(base.epoch + 1))
        state = EpochState(
            {**base.arrangements, **computed.arrangements},
            computed.deltas,
            computed.counters,
            dict(base.failing),
        )
        manifest = self._next_manifest(base, [plan], state, {}, watermarks, ())
        return write_manifest(self.files, replace(manifest, clocks=base.clocks))

    def _adopt_files(self, computed: EpochState, epoch: Epoch) -> None:
        """Rename the folder that `compute` has written to one of an epoch, so that it is retired with that epoch."""
        parts = (computed.arrangements, computed.deltas)
        names = [run.name for part in parts for own in part.values() for run in runs_of(own)]
        if names:
            folder = attempt_folder(epoch)
            self.files.rename(os.path.dirname(names[0]), folder)
            self.files.sync(EPOCHS)
            computed.arrangements, computed.deltas = (
                renamed(part, lambda name: f"{folder}/{os.path.basename(name)}") for part in parts
            )

    def _limits(
        self, plans: Sequence[EpochPlan], watermarks: Watermarks
    ) -> dict[str, list[int | None]]:
        """Return, by operator, the values below which rows of its state may be dropped."""
        values = watermarks.values
        return {
            part_name(plan.id, part.name): [
                expiry.bound.least(self.execution.catalyst, values) for expiry in part.expiry
            ]
            for plan in plans
            for part in plan.parts
            if part.expiry
        }

    def _run_plans(
        self,
        context: EpochContext,
        inputs: Sequence[PlanInput],
        state: EpochState,
        watermarks: Watermarks,
        timer: Timer,
        known: Collection[ViewId],
    ) -> None:
        """Run all plans that have input, upstream before downstream; add their results to `state`.

        Args:
            known: the views that failed before.
        """
        changed: dict[str, list[Segment]] = {}
        named = {one.plan.name.lower(): one for one in inputs}
        read: dict[str, list[Piece]] = {}

        def start(name: str) -> Callable[[], Attempted] | None:
            one = named[name]
            if upstream := state.failing_upstream(one.plan):
                error = reads_failing(one.plan.name, upstream)
                _set_aside(one.plan, error, context.base, state)
                return None
            segments = one.resolved(changed)
            if not (any(segments.values()) or watermarks.have_advanced(one.plan.parts)):
                return None
            with timer.within("plan", "run"):
                self.execution.assign(context.folder, one.plan, segments)
            read[name] = [(leaf, s) for leaf, own in segments.items() for s in own]
            return partial(attempt, one.plan, read[name])

        def attempt(plan: EpochPlan, pieces: Sequence[Piece]) -> Attempted:
            started, failed = timer.now(), True
            try:
                done = self.execution.attempt(plan, pieces, context)
                failed = isinstance(done.reports, EddylineError)
                return done
            finally:
                kind = "view" if plan.level else "table"
                timer.views.append(Span(plan.name, kind, started, timer.now(), failed))

        def finish(name: str, done: Attempted) -> None:
            plan, reported = named[name].plan, done.reports
            if isinstance(reported, EddylineError):
                search = partial(self.execution.rows_at_fault, plan, read[name], context)
                again = plan.id in known
                rows = self.searches.rows(plan, reported.message, search, again=again)
                _set_aside(plan, reported, context.base, state, rows)
                return
            collect_reports(
                self.files,
                context.folder,
                plan,
                state,
                watermarks,
                reported,
                done.seconds,
                done.cpu_s,
            )
            changed[name] = _segments(state.deltas.get(plan.result, {}))

        after = {
            name: {leaf.relation.lower() for leaf in one.plan.leaves} - {name}
            for name, one in named.items()
        }
        with timer.stage("run"), self.execution.scans.epoch():
            run_in_order(after, start, finish, self.pool)

    def _replace_deltas(self, attempt: _Attempt, state: EpochState) -> None:
        """Replace the deltas of views whose changelog isn't what their operators emitted in this epoch."""
        for plan in attempt.plans:
            if plan.id in state.failing:
                continue
            if plan.id in attempt.rebuilt:
                # another plan may have stored it under another operator's name
                before = attempt.base.result(plan.id, ROWS)
                self._replace_delta(attempt.folder, plan, attempt.base.arrangements, before, state)
            elif attempt.adopted is not None:
                self._replace_delta(attempt.folder, plan, {}, "", state)
            elif attempt.replacement is not None and plan.id == attempt.replacement.view:
                self._continue_changelog(attempt, plan, attempt.replacement, state)
        if attempt.adopted is not None and attempt.plans[0].id in state.failing:
            state.arrangements = _without(state.arrangements, [attempt.plans[0].id])

    def _continue_changelog(
        self, attempt: _Attempt, plan: EpochPlan, replacement: Replacement, state: EpochState
    ) -> None:
        """Continue the changelog of a replaced view with the difference of the rows, if the columns are the same."""
        before = replacement.predecessors[-1][0]
        if before:
            base, columns = attempt.base, numbered("c", replacement.columns)
            old = base.result(before, ROWS)
            self._replace_delta(attempt.folder, plan, base.arrangements, old, state, columns)

    def _replace_delta(
        self,
        folder: str,
        plan: EpochPlan,
        arrangements: Mapping[str, Buckets],
        before: str,
        state: EpochState,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Make a view's delta the difference between its old rows and its new ones.

        Args:
            arrangements: those before the epoch.
            before: name of the one with the old rows.
            columns: the columns to compare; None for all.
        """
        # the manifest names the arrangement even if it got no input: its delta is found by that name
        old, new = arrangements.get(before, {}), state.arrangements.setdefault(plan.result, {})
        prefix = f"{folder}/{plan.result.replace('/', '.')}.difference"
        runs = difference_runs(self.files, prefix, runs_of(old), runs_of(new), columns)
        delta: Buckets = {BucketId(0): runs} if runs else {}
        state.deltas[plan.result] = delta
        if plan.name in state.counters:
            found = (
                [deletes_in(read_run(self.files, run)[WEIGHT]) for run in runs] if before else []
            )
            state.counters[plan.name] |= {"out": row_count(delta), "deleted": sum(found)}

    def _next_manifest(
        self,
        base: Manifest,
        plans: Sequence[EpochPlan],
        state: EpochState,
        positions: Mapping[str, int],
        watermarks: Watermarks,
        rebuilt: Collection[ViewId],
    ) -> Manifest:
        """Return the manifest to commit; the deltas of the plans' results become the changelog."""
        epoch = Epoch(base.epoch + 1)
        done = [plan for plan in plans if plan.id not in state.failing]
        again = [plan for plan in done if plan.id in rebuilt]
        old = {
            name: buckets
            for name, buckets in base.arrangements.items()
            if (owner := name.split("/")[0]) in rebuilt and owner in state.failing
        }
        failing = {
            view: replace(why, since=known.since)
            if (known := base.failing.get(view)) is not None
            else why
            for view, why in state.failing.items()
        }
        results = {plan.result for plan in done}
        keys = {**base.keys, **{plan.id: plan.key for plan in done}}
        makers = {**base.makers, **{plan.id: plan.maker for plan in done}}
        return Manifest(
            epoch,
            {**base.positions, **positions},
            {**state.arrangements, **old},
            {name: buckets for name, buckets in state.deltas.items() if name in results},
            state.counters,
            watermarks.next_clocks(positions),
            {**base.rebuilt, **{ViewId(plan.id): epoch for plan in again}},
            self.zone,
            failing,
            {**base.plans, **{plan.id: plan.fingerprint for plan in done}},
            self.settings,
            base.replaced,
            self.files.writer,
            {name: key for name, key in keys.items() if key is not None},
            next_commit_time(base),
            watermarks.moment,
            base.buckets,
            {name: maker for name, maker in makers.items() if maker},
            base.format,
        )

    def _abandon(self, folder: str, epoch: Epoch) -> None:
        """Remove an attempt that failed, unless its epoch is committed."""
        if self.files.exists(manifest_name(epoch)):
            return  # the error came after the commit
        self.abandoned.append(folder)
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Remove the folders of failed attempts; after a failure of the disk the next epoch tries again."""
        with contextlib.suppress(OSError, EddylineError):
            while self.abandoned:
                self.files.remove(self.abandoned[-1])
                self.abandoned.pop()


def _without(arrangements: Mapping[str, Buckets], nodes: Collection[str]) -> dict[str, Buckets]:
    """Return the arrangements of all but some tables and views."""
    return {name: own for name, own in arrangements.items() if name.split("/")[0] not in nodes}


def _segments(buckets: Buckets) -> list[Segment]:
    """Return some buckets' runs as input for the leaves of other plans."""
    return [Segment(RUN, run.name, run.rows) for run in runs_of(buckets)]


def _set_aside(
    plan: EpochPlan,
    error: EddylineError,
    base: Epoch,
    state: EpochState,
    rows: tuple[str, ...] = (),
) -> None:
    """Record that a view fails in the epoch after `base`, on some rows."""
    upstream = str(error.context.get("upstream", ""))
    failure = Failure(plan.name, Epoch(base + 1), error.message, upstream, rows)
    state.failing[ViewId(plan.id)] = failure
