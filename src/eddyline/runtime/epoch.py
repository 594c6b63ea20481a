"""One epoch: assign input to the leaves, run the plans, collect the reports, commit."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError
from eddyline.intake.watermarks import Watermarks
from eddyline.plan.catalyst import Catalyst
from eddyline.runtime.context import PROPERTY, EpochContext, inputs_name, part_name
from eddyline.runtime.failures import failed_epoch
from eddyline.runtime.plans import EpochPlan, PlanInput
from eddyline.runtime.reports import EpochState, collect_reports, row_count
from eddyline.runtime.table import TableUpkeep
from eddyline.source.segments import RUN, Segment, distribute
from eddyline.state.arrangement import difference_run
from eddyline.state.manifest import Buckets, Manifest, manifest_name, write_manifest
from eddyline.storage.files import Files

JOBS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """The work and duration of an epoch.

    Attributes:
        epoch: its number.
        rows_in: rows read, by name of table or view; a self-join counts its input twice.
        rows_out: changes written, by name of table or view.
        seconds: by stage: `ingest` (sources), `plan` (inputs assigned), `run` (Spark), `commit`.
        state: for each stateful operator (name of view / operator) its rows and bytes on disk.
    """

    epoch: Epoch
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    seconds: dict[str, float]
    state: dict[str, dict[str, int]] = field(default_factory=dict)


class _Timer:
    """Adds up the seconds of each stage."""

    def __init__(self, *stages: str) -> None:
        self.seconds = dict.fromkeys(stages, 0.0)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(slots=True)
class EpochRunner:
    """Runs epochs against one storage, in one time zone."""

    files: Files
    session: SparkSession
    catalyst: Catalyst
    scan_tasks: int
    zone: str

    def run(
        self,
        base: Manifest,
        inputs: Sequence[PlanInput],
        positions: Mapping[str, int],
        watermarks: Watermarks,
        rebuilt: Collection[ViewId] = (),
    ) -> tuple[Manifest, dict[str, float]]:
        """Run one epoch and commit it.

        Args:
            base: the last committed epoch.
            inputs: all plans to run, of any level, and their input.
            positions: by source, the end of the consumed part of its redo log after this epoch.
            watermarks: the watermarks in force in this epoch.
            rebuilt: ids of views whose state is computed again: they start empty, their output in
                this epoch is all their rows, and their changelog gets the difference to the old
                rows.

        Returns:
            The new manifest, and the seconds of each stage.

        Raises:
            EngineError: the job failed; nothing is committed.
        """
        epoch = Epoch(base.epoch + 1)
        folder = f"epochs/{epoch:012d}-{uuid.uuid4().hex[:8]}"
        self.files.make_folder(folder)
        plans = [one.plan for one in inputs]
        context = EpochContext(folder, base.epoch, self._limits(plans, watermarks), tuple(rebuilt))
        state = EpochState(_without(base.arrangements, rebuilt))
        timer = _Timer("plan", "run")
        try:
            self._run_plans(context, inputs, state, watermarks, timer)
            with timer.stage("commit"):
                for plan in plans:
                    if plan.id in rebuilt:
                        self._replace_delta(folder, plan, base, state)
                results = {plan.result for plan in plans}
                manifest = self._next_manifest(base, state, results, positions, watermarks, rebuilt)
                write_manifest(self.files, manifest)
        except BaseException:
            self._abandon(folder, epoch)
            raise
        return manifest, timer.seconds

    def _limits(
        self, plans: Sequence[EpochPlan], watermarks: Watermarks
    ) -> dict[str, list[int | None]]:
        """Return, by operator, the values below which rows of its state may be dropped."""
        values = watermarks.values
        return {
            part_name(plan.id, part.name): [
                expiry.bound.least(self.catalyst, values) for expiry in part.expiry
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
        timer: _Timer,
    ) -> None:
        """Run all plans that have input, level by level; add their results to `state`."""
        changed: dict[str, list[Segment]] = {}
        for level in sorted({one.plan.level for one in inputs}):
            ready: list[tuple[EpochPlan, list[Segment]]] = []
            with timer.stage("plan"):
                for one in (one for one in inputs if one.plan.level == level):
                    segments = one.resolved(changed)
                    if any(segments.values()) or watermarks.have_advanced(one.plan.parts):
                        self._assign(context.folder, one.plan, segments)
                        ready.append((one.plan, [s for own in segments.values() for s in own]))
            with timer.stage("run"):
                self._execute_all(ready, context)
                for plan, _ in ready:
                    collect_reports(self.files, context.folder, plan, state, watermarks)
                    changed[plan.name.lower()] = _segments(state.deltas.get(plan.result, {}))

    def _assign(self, folder: str, plan: EpochPlan, segments: Mapping[str, list[Segment]]) -> None:
        """Write the segments of each task of each leaf; a table's plan has no tasks."""
        if isinstance(plan.physical, TableUpkeep):
            return
        document = {
            leaf: [[s.as_dict() for s in task] for task in distribute(own, self.scan_tasks)]
            for leaf, own in segments.items()
        }
        self.files.write_json(inputs_name(folder, plan.id), document, durable=False)

    def _execute_all(
        self, plans: Sequence[tuple[EpochPlan, list[Segment]]], context: EpochContext
    ) -> None:
        """Execute the plans of one level, some at a time."""
        if len(plans) < 2:
            for plan, segments in plans:
                self._execute(plan, segments, context)
            return
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            for job in [pool.submit(self._execute, *one, context) for one in plans]:
                job.result()

    def _execute(self, plan: EpochPlan, segments: list[Segment], context: EpochContext) -> None:
        if isinstance(plan.physical, TableUpkeep):
            plan.physical(context, segments)
            return
        spark = self.session.sparkContext
        spark.setLocalProperty(PROPERTY, context.as_property())
        spark.setJobDescription(f"eddyline {plan.name}")
        try:
            self.catalyst.run(plan.physical)
        except Exception as error:  # whatever Spark raises: it is named and passed on
            raise failed_epoch(plan.name, error) from error
        finally:
            spark.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
            spark.setJobDescription(None)  # type: ignore[arg-type]

    def _replace_delta(
        self, folder: str, plan: EpochPlan, base: Manifest, state: EpochState
    ) -> None:
        """Make a rebuilt view's delta the difference between its old rows and its new ones."""
        old, new = (held.get(plan.result, {}) for held in (base.arrangements, state.arrangements))
        prefix = f"{folder}/{plan.result.replace('/', '.')}.difference"
        runs = {
            bucket: difference_run(
                self.files, f"{prefix}-{bucket}.arrow", old.get(bucket, ()), new.get(bucket, ())
            )
            for bucket in sorted({*old, *new})
        }
        delta: Buckets = {bucket: (run,) for bucket, run in runs.items() if run is not None}
        state.deltas[plan.result] = delta
        if plan.name in state.counters:
            state.counters[plan.name]["out"] = row_count(delta)

    def _next_manifest(
        self,
        base: Manifest,
        state: EpochState,
        results: Collection[str],
        positions: Mapping[str, int],
        watermarks: Watermarks,
        rebuilt: Collection[ViewId],
    ) -> Manifest:
        """Return the manifest to commit; the deltas of `results` become the changelog."""
        epoch = Epoch(base.epoch + 1)
        return Manifest(
            epoch,
            {**base.positions, **positions},
            state.arrangements,
            {name: buckets for name, buckets in state.deltas.items() if name in results},
            state.counters,
            watermarks.next_clocks(positions),
            {**base.rebuilt, **dict.fromkeys(rebuilt, epoch)},
            self.zone,
        )

    def _abandon(self, folder: str, epoch: Epoch) -> None:
        """Remove an attempt that failed, unless its epoch is committed."""
        if self.files.exists(manifest_name(epoch)):
            return  # the error came after the commit
        # files that can't be removed now are removed when the storage is opened again
        with contextlib.suppress(OSError, EddylineError):
            self.files.remove(folder)


def _without(arrangements: Mapping[str, Buckets], nodes: Collection[str]) -> dict[str, Buckets]:
    """Return the arrangements of all but some tables and views."""
    return {name: own for name, own in arrangements.items() if name.split("/")[0] not in nodes}


def _segments(buckets: Buckets) -> list[Segment]:
    """Return some buckets' runs as input for the leaves of other plans."""
    return [Segment(RUN, run.name, run.rows) for runs in buckets.values() for run in runs]
