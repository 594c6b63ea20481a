"""The reports that the tasks of an epoch leave in the attempt's folder, read by the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eddyline.changes import BucketId, ViewId
from eddyline.errors import EngineError, StateError
from eddyline.intake.watermarks import Observed, Watermarks
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.runtime.context import REPORT, arrangement_name
from eddyline.runtime.plans import EpochPlan, Reports
from eddyline.runtime.worker import CPU
from eddyline.state.manifest import Failure, runs_of
from eddyline.state.run_lists import Buckets, Place
from eddyline.state.runs import Run
from eddyline.storage.files import Files

READ, OPERATORS, MERGES = "/read/", "/operators/", "/merges"
"""The names of counters that belong to no view: of a source, of all operators of a kind, and of merges of runs."""


@dataclass(frozen=True, slots=True)
class EpochWork:
    """What an epoch has done, besides the counters of its views and operators.

    Attributes:
        read: by name of a table or stream the rows that the epoch has read of it, once for all its readers.
        operators: by kind of operator the microseconds of all their tasks, which may have run side by side.
        merged: bytes of the runs that were merged into others.
    """

    read: Mapping[str, int]
    operators: Mapping[str, int]
    merged: int


def epoch_work(counters: Mapping[str, Mapping[str, int]]) -> EpochWork:
    """Return the work of an epoch, from the counters of its manifest.

    Example:
        >>> epoch_work({"/read/t": {"rows": 5}, "v": {"in": 5}, "/merges": {"bytes": 700}})
        EpochWork(read={'t': 5}, operators={}, merged=700)
    """

    def of(prefix: str, what: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): counts[what]
            for name, counts in counters.items()
            if name.startswith(prefix)
        }

    merged = counters.get(MERGES, {}).get("bytes", 0)
    return EpochWork(of(READ, "rows"), of(OPERATORS, "us"), merged)


@dataclass(slots=True)
class EpochState:
    """The state that the next manifest describes, while the epoch's plans run.

    Attributes:
        arrangements: the runs of each arrangement: at first those of the last committed epoch.
        deltas: the runs that this epoch adds to each arrangement.
        counters: by name of a view its rows in and out, whether it ran in the driver (`short`), and
            microseconds (`us`), the microseconds of CPU time (`cpu`), and how many of the rows out are deletes
            (`deleted`); by `view/operator` rows in and out, stored rows that were read (`touched`), and
            the microseconds of all its tasks; and those that `epoch_work` reads.
        failing: the views that are set aside: at first those of the last committed epoch.
        unflushed: files that the driver has written, to be flushed before the commit.
        replaced: the view that is replaced in this epoch; its failure doesn't affect its readers any more.
        left: the arrangements and buckets whose merges are postponed, to run beside later epochs.
        read: rows that a leaf has read of a relation, by its name in lower case.
    """

    arrangements: dict[str, Buckets]
    deltas: dict[str, Buckets] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    failing: dict[ViewId, Failure] = field(default_factory=dict)
    unflushed: set[str] = field(default_factory=set)
    replaced: ViewId | None = None
    left: set[Place] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, what: str, amount: int) -> None:
        """Add an amount to a counter."""
        counts = self.counters.setdefault(name, {})
        counts[what] = counts.get(what, 0) + amount

    def count_received(self, received: Mapping[str, int | None]) -> None:
        """Count the rows that were read of sources.

        Args:
            received: by name of a source its rows; None if only the leaves that read it know them.
        """
        for name, rows in received.items():
            self.count(
                READ + name, "rows", self.read.get(name.lower(), 0) if rows is None else rows
            )

    def failing_upstream(self, plan: EpochPlan) -> str:
        """Return the name of a failing view that a plan reads; empty if there is none."""
        read = {leaf.relation.lower() for leaf in plan.leaves}
        failing = (why.view for view, why in self.failing.items() if view != self.replaced)
        return next((name for name in failing if name.lower() in read), "")


def collect_reports(
    files: Files,
    folder: str,
    plan: EpochPlan,
    state: EpochState,
    watermarks: Watermarks,
    reported: Reports | None,
    seconds: float,
    cpu_s: float,
) -> None:
    """Add the reports of all tasks of a plan to `state` and `watermarks`.

    Args:
        seconds: that the plan has taken.
        cpu_s: CPU seconds that it has taken in the driver's thread.
        reported: the reports, if the plan ran in the driver; None to read those of Spark's tasks.

    Raises:
        EngineError: a task of a stateful operator hasn't reported.
        StateError: WRONG_REPORT, a task has read another state than that of the last epoch.
    """
    reports = _Reports(files, folder, plan, reported)
    rows_in, deleted = sum(_leaf(reports, leaf, watermarks, state) for leaf in plan.leaves), 0
    for part in plan.parts:
        total = _part(reports, part, state)
        deleted = total.pop("deleted", 0)  # the last one has the result
        state.counters[f"{plan.name}/{part.name}"] = total
        state.count(OPERATORS + part.operator.family, "us", total.get("us", 0))
        if plan.upkeep is not None:  # it has no leaf
            rows_in = total["in"]
    # readers find the arrangement by its name even if it has no row
    state.arrangements.setdefault(plan.result, {})
    rows_out = row_count(state.deltas.get(plan.result, {}))
    lane = int(reported is not None)
    state.counters[plan.name] = {
        "in": rows_in,
        "out": rows_out,
        "deleted": deleted,
        "short": lane,
        "us": round(seconds * 1e6),
        "cpu": round(cpu_s * 1e6) + reports.cpu,
    }


def row_count(buckets: Buckets) -> int:
    """Return the number of rows in the runs of some buckets."""
    return sum(run.rows for run in runs_of(buckets))


class _Reports:
    """The reports of one plan.

    Attributes:
        cpu: microseconds of CPU time of the tasks whose reports were read.
    """

    def __init__(
        self, files: Files, folder: str, plan: EpochPlan, reported: Reports | None
    ) -> None:
        self.files = files
        self.folder = folder
        self.plan = plan
        self.reported = reported
        self.cpu = 0
        names = files.names(folder) if reported is None else []
        self._names = [name for name in names if name.endswith(REPORT)]

    def of(self, piece: Leaf | StatefulPart) -> Sequence[dict[str, Any]]:
        if self.reported is not None:
            return self.reported.get(piece.name, ())
        prefix = f"{self.plan.id}.{piece.name}."
        names = [name for name in self._names if name.startswith(prefix)]
        found = [self.files.read_json(f"{self.folder}/{name}") for name in names]
        self.cpu += sum(report.get(CPU, 0) for report in found)
        return found


def _leaf(reports: _Reports, leaf: Leaf, watermarks: Watermarks, state: EpochState) -> int:
    """Return the number of rows that a leaf has read; report its event times to `watermarks`."""
    found = reports.of(leaf)
    if not leaf.late:
        every = sum(one["read"] + one.get("late", 0) + one.get("ahead", 0) for one in found)
        relation = leaf.relation.lower()
        state.read[relation] = max(every, state.read.get(relation, 0))
    if leaf.time is not None and not leaf.late:
        times = [report["latest"] for report in found if "latest" in report]
        late, ahead = (sum(report[name] for report in found) for name in ("late", "ahead"))
        read = sum(report["read"] for report in found)
        watermarks.observe(leaf.relation, Observed(max(times, default=None), late, ahead, read))
    return sum(report["read"] for report in found)


def _part(reports: _Reports, part: StatefulPart, state: EpochState) -> dict[str, int]:
    """Return the counts of a stateful operator; add its runs to `state`."""
    found = reports.of(part)
    if reports.reported is None and len(found) < part.buckets:
        raise EngineError(
            f"{len(found)} of {part.buckets} tasks of operator {part.name} reported",
            condition="MISSING_REPORT",
            view=reports.plan.name,
            hint="call advance() again; if it stays, this is a bug",
        )
    total = {"in": 0, "out": 0}
    # a branch of the plan that ran twice reported each bucket twice, and the same
    by_bucket = {report["bucket"]: report for report in found if report["bucket"] is not None}
    for bucket, report in by_bucket.items():
        for key, value in report["counts"].items():
            total[key] = total.get(key, 0) + value
        for slot, written in report["slots"].items():
            name = arrangement_name(reports.plan.id, part.name, slot)
            runs = _slot(name, bucket, written, state)
            if reports.reported is not None:  # the others are flushed by their tasks
                state.unflushed.update(run.name for run in runs)
    return total


def _slot(name: str, bucket: BucketId, written: Mapping[str, Any], state: EpochState) -> list[Run]:
    """Add the runs of a bucket to `state`; return those that this epoch has written."""
    held = state.arrangements.get(name, {})
    kept = held.get(bucket, ())[: written["kept"]]
    if len(kept) != written["kept"]:
        raise StateError(
            f"a task has read {written['kept']} runs of bucket {bucket}, of which the last epoch has {len(kept)}",
            condition="WRONG_REPORT",
            arrangement=name,
            hint="nothing was committed; report it, as this is a bug, or the storage was changed by hand",
        )
    if merged := held.get(bucket, ())[len(kept) :]:
        state.count(MERGES, "bytes", sum(run.bytes for run in merged))
    added = [Run(*run) for run in written["runs"]]
    state.arrangements[name] = {**held, bucket: (*kept, *added)}
    if written["merge"]:
        state.left.add((name, bucket))
    delta = tuple(Run(*run) for run in written["delta"])
    if delta:
        state.deltas.setdefault(name, {})[bucket] = delta
    return [*added, *delta]
