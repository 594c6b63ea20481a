"""One epoch: give the leaves their input, run the plans, gather the reports, commit."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from eddyline.errors import EddylineError, EngineError, StateError
from eddyline.intake.watermarks import Watermarks
from eddyline.operators.result import ROWS
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.runtime.failures import told_by
from eddyline.runtime.task import (
    PROPERTY,
    REPORT,
    EpochContext,
    TableTask,
    arrangement_name,
    inputs_name,
    part_name,
)
from eddyline.source.segments import RUN, Segment, spread
from eddyline.state.arrangement import difference_run
from eddyline.state.manifest import Buckets, Manifest, manifest_name, write_manifest
from eddyline.state.runs import Run
from eddyline.storage.files import Files

JOBS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled table or view as an epoch runs it.

    Attributes:
        id, name: of the catalog's entry.
        physical: what Spark executes, opaque here; or what the driver does for a table.
        leaves, parts: inputs and stateful operators; the last part holds the result.
        level: distance from the sources; plans of one level run side by side.
    """

    id: str
    name: str
    physical: Any
    leaves: tuple[Leaf, ...]
    parts: tuple[StatefulPart, ...]
    level: int

    @property
    def result(self) -> str:
        """The arrangement that holds the result."""
        return arrangement_name(self.id, self.parts[-1].name, ROWS)


@dataclass(frozen=True, slots=True)
class Progress:
    """What an epoch did.

    Attributes:
        epoch: its number.
        rows_in: rows read, by name of table or view; twice what is read twice, as in a self-join.
        rows_out: changes written, by name of table or view.
        seconds: by stage: `ingest` (sources), `plan` (inputs dealt), `run` (Spark), `commit`.
        state: for each stateful operator (name of view / operator) its rows and bytes on disk.
    """

    epoch: int
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    seconds: dict[str, float]
    state: dict[str, dict[str, int]] = field(default_factory=dict)


Inputs = Callable[[Plan, Leaf, Mapping[str, list[Segment]]], list[Segment]]


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
        plans: Sequence[Plan],
        positions: Mapping[str, int],
        inputs: Inputs,
        watermarks: Watermarks,
        rebuilt: Collection[str] = (),
    ) -> tuple[Manifest, dict[str, float]]:
        """Run one epoch and commit it.

        Args:
            base: what is committed so far.
            plans: all plans that take part, of any level.
            positions: how far the sources are consumed after this epoch.
            inputs: says what a leaf reads, given the deltas of this epoch by relation.
            watermarks: those that hold in this epoch.
            rebuilt: ids of views whose state is made anew: they start empty, what they give in
                this epoch is all their rows, and their changelog gets the difference to the rows
                before.

        Returns:
            the new manifest, and the seconds of each stage.

        Raises:
            EngineError: the job failed; nothing is committed.
        """
        epoch = base.epoch + 1
        folder = f"epochs/{epoch:012d}-{uuid.uuid4().hex[:8]}"
        self.files.make_folder(folder)
        values = watermarks.values
        expired = {
            part_name(plan.id, part.name): [
                one.bound.least(self.catalyst, values) for one in part.expiry
            ]
            for plan in plans
            for part in plan.parts
            if part.expiry
        }
        context = EpochContext(folder, base.epoch, expired, tuple(rebuilt))
        seconds = {"plan": 0.0, "run": 0.0}
        arrangements = {
            name: part
            for name, part in base.arrangements.items()
            if name.split("/")[0] not in rebuilt
        }
        deltas: dict[str, Buckets] = {}
        counters: dict[str, dict[str, int]] = {}
        changed: dict[str, list[Segment]] = {}
        try:
            for level in sorted({plan.level for plan in plans}):
                started = time.perf_counter()
                ready, dealt = [], {}
                for plan in (plan for plan in plans if plan.level == level):
                    given = {leaf.name: inputs(plan, leaf, changed) for leaf in plan.leaves}
                    if any(given.values()) or watermarks.moved(plan.parts):
                        if not isinstance(plan.physical, TableTask):
                            self._deal(folder, plan, given)
                        dealt[plan.id] = [s for segments in given.values() for s in segments]
                        ready.append(plan)
                seconds["plan"] += time.perf_counter() - started
                started = time.perf_counter()
                self._execute(ready, context, dealt)
                for plan in ready:
                    self._gather(folder, plan, arrangements, deltas, counters, watermarks)
                    runs = [run for part in deltas.get(plan.result, {}).values() for run in part]
                    changed[plan.name.lower()] = [Segment(RUN, r.name, r.rows) for r in runs]
                seconds["run"] += time.perf_counter() - started
            started = time.perf_counter()
            for plan in (plan for plan in plans if plan.id in rebuilt):
                old, new = (part.get(plan.result, {}) for part in (base.arrangements, arrangements))
                deltas[plan.result] = self._difference(folder, plan.result, old, new)
                if plan.name in counters:
                    counters[plan.name]["out"] = _rows(deltas[plan.result])
            kept = {plan.result for plan in plans}
            manifest = Manifest(
                epoch,
                {**base.positions, **positions},
                arrangements,
                {name: buckets for name, buckets in deltas.items() if name in kept},
                counters,
                watermarks.after(positions),
                {**base.rebuilt, **dict.fromkeys(rebuilt, epoch)},
                self.zone,
            )
            write_manifest(self.files, manifest)
            seconds["commit"] = time.perf_counter() - started
        except BaseException:
            self._abandon(folder, epoch)
            raise
        return manifest, seconds

    def _difference(self, folder: str, result: str, old: Buckets, new: Buckets) -> Buckets:
        """What leads from the old rows of a result to the new ones."""
        prefix = f"{folder}/{result.replace('/', '.')}.difference"
        found = {
            bucket: difference_run(
                self.files, f"{prefix}-{bucket}.arrow", old.get(bucket, ()), new.get(bucket, ())
            )
            for bucket in sorted({*old, *new})
        }
        return {bucket: (run,) for bucket, run in found.items() if run is not None}

    def _abandon(self, folder: str, epoch: int) -> None:
        if self.files.exists(manifest_name(epoch)):
            return  # the commit is there, whatever was raised behind it
        # what can't be removed now is removed when the storage is opened the next time
        with contextlib.suppress(OSError, EddylineError):
            self.files.remove(folder)

    def _deal(self, folder: str, plan: Plan, given: Mapping[str, list[Segment]]) -> None:
        document = {
            leaf: [[s.as_dict() for s in task] for task in spread(segments, self.scan_tasks)]
            for leaf, segments in given.items()
        }
        self.files.write_json(inputs_name(folder, plan.id), document, durable=False)

    def _execute(
        self,
        plans: Sequence[Plan],
        context: EpochContext,
        dealt: Mapping[str, list[Segment]],
    ) -> None:
        def execute(plan: Plan) -> None:
            if isinstance(plan.physical, TableTask):
                plan.physical(context, dealt[plan.id])
                return
            spark = self.session.sparkContext
            spark.setLocalProperty(PROPERTY, context.as_property())
            spark.setJobDescription(f"eddyline {plan.name}")
            try:
                self.catalyst.run(plan.physical)
            except Exception as error:  # whatever Spark raises: it is named and passed on
                raise _failed(plan, error) from error
            finally:
                spark.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
                spark.setJobDescription(None)  # type: ignore[arg-type]

        if len(plans) < 2:
            for plan in plans:
                execute(plan)
            return
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            for outcome in [pool.submit(execute, plan) for plan in plans]:
                outcome.result()

    def _gather(
        self,
        folder: str,
        plan: Plan,
        arrangements: dict[str, Buckets],
        deltas: dict[str, Buckets],
        counters: dict[str, dict[str, int]],
        watermarks: Watermarks,
    ) -> None:
        """Every task of every stateful operator must have reported."""
        names = [name for name in self.files.names(folder) if name.endswith(REPORT)]

        def reports(piece: Leaf | StatefulPart) -> list[dict[str, Any]]:
            own = [name for name in names if name.startswith(f"{plan.id}.{piece.name}.")]
            return [self.files.read_json(f"{folder}/{name}") for name in own]

        read = 0
        for leaf in plan.leaves:
            told = reports(leaf)
            read += sum(report["read"] for report in told)
            if leaf.time is not None and not leaf.late:
                times = [report["latest"] for report in told if "latest" in report]
                late = sum(report["late"] for report in told)
                watermarks.hear(leaf.relation, max(times, default=None), late)
        for part in plan.parts:
            total = {"in": 0, "out": 0}
            written = reports(part)
            if len(written) < part.buckets:
                raise EngineError(
                    f"{len(written)} of {part.buckets} tasks of operator {part.name} reported",
                    condition="MISSING_REPORT",
                    view=plan.name,
                    hint="call advance() again; if it stays, this is a bug",
                )
            # a branch of the plan that ran twice reported each bucket twice, and the same
            for bucket, report in {
                r["bucket"]: r for r in written if r["bucket"] is not None
            }.items():
                for key, value in report["counts"].items():
                    total[key] += value
                for slot, kept in report["slots"].items():
                    own = arrangement_name(plan.id, part.name, slot)
                    runs = tuple(Run(*run) for run in kept["runs"])
                    arrangements[own] = {**arrangements.get(own, {}), bucket: runs}
                    if kept["delta"]:
                        deltas.setdefault(own, {})[bucket] = (Run(*kept["delta"]),)
            counters[f"{plan.name}/{part.name}"] = total
            if isinstance(plan.physical, TableTask):  # no leaf of its own
                read = total["in"]
        # known by its name even where it has no row
        arrangements.setdefault(plan.result, {})
        counters[plan.name] = {"in": read, "out": _rows(deltas.get(plan.result, {}))}


def _rows(buckets: Buckets) -> int:
    return sum(run.rows for runs in buckets.values() for run in runs)


_STATE_ERROR = re.compile(r"eddyline\.errors\.StateError: \[(\w+)\] (.*)")


def _failed(plan: Plan, error: Exception) -> EddylineError:
    told = _STATE_ERROR.search(str(error))
    if told is not None:  # raised by a kernel, and come through Spark as text
        return StateError(told[2], condition=told[1], view=plan.name)
    return EngineError(
        f"the epoch failed: {told_by(error)}",
        condition="EPOCH_FAILED",
        view=plan.name,
        hint="nothing was committed; mend the cause and call advance() again",
    )
