"""The short lane: an epoch of one view in the driver, without a Spark job, for few rows.

Leaves and operators run here as they do in Spark's tasks, all buckets one after the other. The stateless
pieces between them are Spark plans, which `DriverPlan` evaluates over the few rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from eddyline.changes import BUCKET, BucketId
from eddyline.operators.base import Timed
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.lanes import ShortLane
from eddyline.plan.logical import Plan, all_nodes, children_of, items, kind, tree
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.runtime.context import EpochContext
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.plans import Reports
from eddyline.runtime.scan import LeafScan
from eddyline.source.segments import BUCKET_RUNS, Segment
from eddyline.spark.driver import Driver, DriverPlan, TaskContext
from eddyline.state.kernels import cast_to

OUTPUT_ROWS_MAX = 1_000_000
"""Rows that an operator may put out before the wide lane takes over."""

UNKNOWN = 1 << 62  # rows of a segment that can't be estimated

_BYTES_A_ROW = 100  # of a file whose rows aren't counted

# the nodes that work row by row, or on the rows of one partition
_NARROW = frozenset(
    (
        *("ProjectExec", "FilterExec", "GenerateExec", "ExpandExec", "RDDScanExec", "SortExec"),
        *("WholeStageCodegenExec", "InputAdapter", "WindowExec", "WindowGroupLimitExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
    )
)
# of these, the ones that give one row for each row, in the same order
_ONE_TO_ONE = frozenset(("ProjectExec", "RDDScanExec", "WholeStageCodegenExec", "InputAdapter"))
_AGGREGATES = frozenset(("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"))

Report = Callable[[dict[str, Any]], object]
Rows = list[tuple[BucketId | None, pa.Table]]  # by bucket; None: not by bucket


class NotShortError(Exception):
    """A plan has a piece that can't run in the driver."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stateless piece of a plan.

    Attributes:
        source: number of the step over whose output it works.
        of_none: whether it has an output over no rows, as a global aggregate does.
        shuffled: whether its output names the bucket of each row.
        one_to_one: whether it has one row for each row of its input, in the same order.
    """

    source: int
    plan: DriverPlan
    of_none: bool
    shuffled: bool
    one_to_one: bool

    def over(self, table: pa.Table, context: TaskContext) -> pa.Table:
        if not table.num_rows and not self.of_none:
            return self.plan.schema.empty_table()
        return self.plan(table, context)

    def by_bucket(self, rows: Rows, context: TaskContext) -> dict[BucketId, pa.Table]:
        """Return its output over the rows of each bucket."""
        inputs = {bucket: table for bucket, table in rows if bucket is not None}
        if not self.one_to_one or len(inputs) < 2:
            return {bucket: self.over(table, context) for bucket, table in inputs.items()}
        output, found, start = self.over(pa.concat_tables(inputs.values()), context), {}, 0
        for bucket, table in inputs.items():
            found[bucket] = output.slice(start, table.num_rows)
            start += table.num_rows
        return found


@dataclass(frozen=True, slots=True)
class _Step:
    """A step with its pieces; see `plan.lanes.Step`."""

    pieces: tuple[_Piece, ...]
    run: Leaf | StatefulPart | None
    function: Any
    schema: pa.Schema


class ShortPlan:
    """A view's plan for the short lane.

    Args:
        lane: has recorded the steps of the plan.

    Raises:
        NotShortError: a piece needs a job of Spark, or a Python worker.
    """

    def __init__(self, driver: Driver, catalyst: Catalyst, lane: ShortLane) -> None:
        # otherwise each call from Python may run in another thread, where Spark has no context
        if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
            raise NotShortError("PYSPARK_PIN_THREAD is off")
        self.driver = driver
        self.steps = [
            _Step(
                tuple(_piece(driver, catalyst, lane.ids, frame) for frame in step.inputs),
                step.run,
                step.function.in_driver() if isinstance(step.run, StatefulPart) else step.function,
                driver.schema(step.schema),
            )
            for step in lane.steps
        ]

    def run(
        self, context: EpochContext, segments: Mapping[str, Sequence[Segment]]
    ) -> Reports | None:
        """Run one epoch over the segments of each leaf; None if there are too many rows.

        Raises:
            Exception: whatever Spark or an operator raises.
        """
        reports: dict[str, list[dict[str, Any]]] = {}
        outputs: list[Rows] = []
        with self.driver.context() as task:
            for step in self.steps:
                if isinstance(step.run, Leaf):
                    own = reports.setdefault(step.run.name, [])
                    rows = self._scanned(step, segments.get(step.run.name, ()), own.append)
                elif step.run is None:
                    tables = [self._all(piece, outputs, task) for piece in step.pieces]
                    rows = [(None, pa.concat_tables([cast_to(t, step.schema) for t in tables]))]
                else:
                    own = reports.setdefault(step.run.name, [])
                    rows = self._operated(step, step.run, outputs, context, task, own.append)
                if sum(table.num_rows for _, table in rows) > OUTPUT_ROWS_MAX:
                    return None
                outputs.append(rows)
        return reports

    def _scanned(self, step: _Step, segments: Sequence[Segment], report: Report) -> Rows:
        scan: LeafScan = step.function
        batches = list(scan.run(segments, report))
        return [(None, pa.Table.from_batches(batches, step.schema))]

    def _all(self, piece: _Piece, outputs: Sequence[Rows], task: TaskContext) -> pa.Table:
        tables = [table for _, table in outputs[piece.source]]
        if not tables:
            tables = [self.steps[piece.source].schema.empty_table()]
        return piece.over(pa.concat_tables(tables), task)

    def _operated(
        self,
        step: _Step,
        part: StatefulPart,
        outputs: Sequence[Rows],
        context: EpochContext,
        task: TaskContext,
        report: Report,
    ) -> Rows:
        """Run an operator over the buckets that have rows; return its output by bucket."""
        kernel: Kernel = step.function
        (piece,) = step.pieces
        if piece.shuffled:
            deltas = _by_bucket(self._all(piece, outputs, task))
        else:
            deltas = piece.by_bucket(outputs[piece.source], task)
        buckets = range(part.buckets) if isinstance(part.operator, Timed) else sorted(deltas)
        rows: Rows = []
        for bucket in map(BucketId, buckets):
            ran = kernel.run(context, f"driver-{bucket}-0", bucket, deltas.get(bucket), report)
            tables = [cast_to(table, step.schema) for table in ran if table.num_rows]
            if tables:
                rows.append((bucket, pa.concat_tables(tables)))
        return rows


def _piece(driver: Driver, catalyst: Catalyst, ids: Mapping[int, int], frame: DataFrame) -> _Piece:
    """Return the piece of a frame; NotShortError if it can't run in the driver.

    Args:
        ids: for the RDD id of each placeholder the number of its step.
    """
    leaves = [node for node in all_nodes(catalyst.plan(frame)) if not children_of(node)]
    sources = [
        ids.get(catalyst.rdd_id(leaf)) if kind(leaf) == "LogicalRDD" else None for leaf in leaves
    ]
    if len(sources) != 1 or sources[0] is None:
        raise NotShortError(f"a piece has {len(sources)} inputs")
    physical = _narrow(driver, catalyst, catalyst.executable(frame))
    nodes = list(tree(physical))
    wide = [name for name in map(kind, nodes) if name not in _NARROW]
    if wide or any(items(node.subqueries()) for node in nodes):
        raise NotShortError(f"it has {wide[0] if wide else 'a subquery'}")
    return _Piece(
        sources[0],
        DriverPlan(driver, physical, frame.schema),
        any(kind(node) in _AGGREGATES for node in nodes),
        BUCKET in frame.columns,
        _ONE_TO_ONE.issuperset(map(kind, nodes)),
    )


def _narrow(driver: Driver, catalyst: Catalyst, plan: Plan) -> Plan:
    """Return a physical plan without shuffles, as all rows are in one partition already.

    Its input is turned into Spark's own rows first: the code that Spark generates for functions like
    `transform` fails on an array from Arrow with a null in it.
    """
    if kind(plan) == "ShuffleExchangeExec":
        return _narrow(driver, catalyst, plan.child())
    if kind(plan) == "RDDScanExec":
        adapted: Plan = driver.in_rows(plan)
        return adapted
    children = children_of(plan)
    narrow = [_narrow(driver, catalyst, child) for child in children]
    if all(new is old for new, old in zip(narrow, children, strict=True)):
        return plan
    return plan.withNewChildren(catalyst.seq(narrow))


def rows_of(segments: Iterable[Segment]) -> int:
    """Return how many rows some segments have; an estimate for files."""
    return sum(map(_rows, segments))


def _rows(segment: Segment) -> int:
    if segment.kind == BUCKET_RUNS:
        return sum(rows for _, rows in json.loads(segment.file))
    if segment.rows or not segment.bytes:
        return segment.rows or UNKNOWN
    return segment.bytes // _BYTES_A_ROW


def _by_bucket(rows: pa.Table) -> dict[BucketId, pa.Table]:
    """Return the rows of each bucket that has some."""
    numbers = rows[BUCKET]
    plain = rows.drop_columns([BUCKET])
    found = pc.unique(numbers).to_pylist()
    if len(found) == 1:
        return {BucketId(found[0]): plain}
    return {BucketId(bucket): plain.filter(pc.equal(numbers, bucket)) for bucket in found}
