"""Executes one plan of an epoch, in the driver or as a Spark job."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eddyline.errors import EddylineError, EngineError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.partitions import WRONG_PARTITIONS
from eddyline.runtime.context import PROPERTY, EpochContext, inputs_name
from eddyline.runtime.lane_choice import SHORT, WIDE, Lanes
from eddyline.runtime.plans import EpochPlan, Reports, ShortPlan
from eddyline.runtime.rows_at_fault import Piece, pieces_at_fault
from eddyline.runtime.shared import SharedRows
from eddyline.runtime.shared_scans import SharedScans
from eddyline.runtime.sizes import has_short_rows, has_short_state, rows_of
from eddyline.runtime.view_failures import (
    VIEW_FAILING,
    failed_in_driver,
    failed_view,
    fails_on_rows,
)
from eddyline.runtime.wide_lane import Jobs
from eddyline.source.segments import Segment, distribute
from eddyline.spark.failures import worker_died
from eddyline.spark.jvm import check_jvm
from eddyline.spark.session import BATCH_BYTES, DESCRIPTION, UNLIMITED
from eddyline.spark.threads import cpu_time_ns
from eddyline.state.manifest import read_manifest
from eddyline.storage.files import Files

DEATHS = 3
"""So many deaths of a worker, one behind the other, are the fault of the view whose rows it works on."""
KILLS_WORKERS = "a Python worker died on them, and again when they were tried alone"

_OF_THE_VIEW = (VIEW_FAILING, WRONG_PARTITIONS)
"""The conditions of errors that other views don't share."""

logger = logging.getLogger("eddyline.epochs")


@dataclass(frozen=True, slots=True)
class Attempted:
    """What an attempt of a plan gives.

    Attributes:
        reports: None if they are on the disk; or the error of a view.
        seconds: that it took.
        cpu_s: CPU seconds of the thread that ran it; see `cpu_time_ns`.
    """

    reports: Reports | EddylineError | None
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(slots=True)
class Execution:
    """Executes the plans of epochs, each in the lane that is expected to be faster.

    Attributes:
        lanes: chooses between a run in the driver and a Spark job.
        show_rows: returns pieces of input as texts: their rows, or how many there are; a piece names its relation.
        scans: what the views of an epoch read, decoded once.
    """

    files: Files
    catalyst: Catalyst
    scan_tasks: int
    lanes: Lanes
    show_rows: Callable[[Sequence[Piece]], Sequence[str]]
    scans: SharedScans = field(default_factory=SharedScans)

    def assign(self, folder: str, plan: EpochPlan, segments: Mapping[str, list[Segment]]) -> None:
        """Write the segments of each task of each leaf; a table's plan has no tasks."""
        if plan.upkeep is not None:
            return
        document = {
            leaf: [[s.as_dict() for s in task] for task in distribute(own, self.scan_tasks)]
            for leaf, own in segments.items()
        }
        self.files.write_json(inputs_name(folder, plan.id), document, durable=False)

    def attempt(self, plan: EpochPlan, pieces: Sequence[Piece], context: EpochContext) -> Attempted:
        """Execute a plan; return its reports (see `_execute`) or the error of a failing view, and what it took.

        After the death of a Python worker the plan is tried twice more. If it fails each time, the view is the cause.

        Raises:
            EngineError: JVM_LOST, or what fails isn't the view.
        """
        started, cpu = time.perf_counter(), cpu_time_ns()
        try:
            reports = self._execute(plan, pieces, context)
            spent = (cpu_time_ns() - cpu) / 1e9
            return Attempted(reports, time.perf_counter() - started, spent)
        except EngineError as error:
            check_jvm(error)
            if not plan.level:
                raise  # only views can be left out of an epoch
            if error.condition in _OF_THE_VIEW:
                return Attempted(error)
            if worker_died(error.__cause__) and all(
                self._fails(plan, pieces, context) for _ in range(DEATHS - 1)
            ):
                return Attempted(fails_on_rows(plan.name, KILLS_WORKERS))
            raise

    def rows_at_fault(
        self, plan: EpochPlan, pieces: Sequence[Piece], context: EpochContext
    ) -> tuple[str, ...]:
        """Return some of the rows on which a view fails, as texts."""
        names = {leaf.name: leaf.relation for leaf in plan.leaves}
        found = pieces_at_fault(self.files, pieces, lambda part: self._fails(plan, part, context))
        return tuple(self.show_rows([(names[leaf], segment) for leaf, segment in found]))

    def _fails(self, plan: EpochPlan, part: Sequence[Piece], context: EpochContext) -> bool:
        """Execute a plan on a part of its input, for no result; return whether the view fails, or a Python worker dies."""
        folder = f"{context.folder}-{uuid.uuid4().hex[:8]}"
        self.files.make_folder(folder)
        try:
            self.assign(folder, plan, _by_leaf(plan, part))
            self._execute(plan, part, replace(context, folder=folder))
        except EddylineError as error:
            return error.condition == VIEW_FAILING or worker_died(error.__cause__)
        finally:
            self.files.remove(folder)
        return False

    def _execute(
        self, plan: EpochPlan, pieces: Sequence[Piece], context: EpochContext
    ) -> Reports | None:
        """Execute a plan; return the reports, or None if Spark's tasks have written them."""
        if plan.upkeep is not None:
            return plan.upkeep(context, [segment for _, segment in pieces])
        if plan.short is None:
            self._as_job(plan, _jobs(plan), pieces, context)
            return None
        rows, operators = rows_of(s for _, s in pieces), len(plan.parts)
        lane = self.lanes.choose(plan.id, rows, operators)
        started = time.perf_counter()
        reported = None
        if lane == SHORT:
            reported = self._in_driver(plan, plan.short, pieces, context)
        if reported is None:
            jobs = _jobs(plan)  # planned only once, so it isn't measured
            begun = time.perf_counter()
            self._as_job(plan, jobs, pieces, context)
            self.lanes.measured(plan.id, WIDE, rows, time.perf_counter() - begun, operators)
        if lane == SHORT:  # with the job, if it took one after all
            self.lanes.measured(plan.id, SHORT, rows, time.perf_counter() - started, operators)
        return reported

    def _as_job(
        self, plan: EpochPlan, jobs: Jobs, pieces: Sequence[Piece], context: EpochContext
    ) -> None:
        """Run a plan in the wide lane."""
        properties = {PROPERTY: context.as_property(), DESCRIPTION: f"eddyline {plan.name}"}
        if (
            jobs.short_rows
            and has_short_rows(self.files, [segment for _, segment in pieces])
            and has_short_state(read_manifest(self.files, context.base), plan.id)
        ):
            properties[BATCH_BYTES] = UNLIMITED
        try:
            for physical in jobs.plans:
                self.catalyst.run(physical, properties)
        except Exception as error:  # whatever Spark raises: it is named and passed on
            raise failed_view(plan.name, error) from error
        if len(jobs.plans) > 1:
            with contextlib.suppress(OSError, EddylineError):  # else they go with the old epochs
                SharedRows(self.files, plan.id).remove(context.folder)

    def _in_driver(
        self, plan: EpochPlan, short: ShortPlan, pieces: Sequence[Piece], context: EpochContext
    ) -> Reports | None:
        """Run a plan in the short lane; return None if it must run as a Spark job: too many rows, or Spark's private API fails."""
        try:
            return short.run(context, _by_leaf(plan, pieces), self.scans)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever Spark or an operator raises, also a panic of a library in Rust: it is named
            named = failed_in_driver(plan.name, error)
            if named.condition != "EPOCH_FAILED":
                raise named from error
            logger.warning("view %s runs as a Spark job now: %s", plan.name, named.message)
            return None


def _jobs(plan: EpochPlan) -> Jobs:
    """Return the jobs of a plan; EngineError if Spark can't plan them, or plans them wrongly."""
    assert plan.wide is not None
    try:
        return plan.wide.jobs
    except EddylineError:
        raise
    except Exception as error:  # whatever Spark raises: it is named and passed on
        raise failed_view(plan.name, error) from error


def _by_leaf(plan: EpochPlan, pieces: Sequence[Piece]) -> dict[str, list[Segment]]:
    """Return the segments of each leaf of a plan."""
    return {leaf.name: [s for name, s in pieces if name == leaf.name] for leaf in plan.leaves}
