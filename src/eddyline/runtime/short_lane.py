"""The short lane: an epoch of one view in the driver, without a Spark job, for few rows.

Leaves and operators run here as they do in Spark's tasks, all buckets one after the other. The stateless
pieces between them are Spark plans, which `DriverPlan` evaluates over the few rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from eddyline.changes import BUCKET
from eddyline.operators.base import Timed
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.lanes import Piece, Step
from eddyline.plan.logical import Plan, columns_of, kind, subqueries_of, tree
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.plan.passing import ROW, Constant, Split, split
from eddyline.runtime.context import EpochContext
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.plans import Reports
from eddyline.runtime.scan import LeafScan
from eddyline.runtime.shared_scans import SharedScans
from eddyline.source.segments import Segment
from eddyline.spark.driver import Driver, DriverPlan, TaskContext
from eddyline.spark.plan_trees import forget
from eddyline.spark.session import active
from eddyline.spark.threads import parts_at_once, side_by_side
from eddyline.state.retyping import cast_to

OUTPUT_ROWS_MAX = 1_000_000
"""Rows that an operator may put out before the wide lane takes over."""

PART_ROWS = 10_000
"""Rows from which on a part of an input is worth a thread of its own."""

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
# the ones that give the same rows for some rows, whatever others come with them
_ROW_WISE = _ONE_TO_ONE | {"FilterExec", "GenerateExec", "ExpandExec"}
_AGGREGATES = frozenset(("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"))

Report = Callable[[dict[str, Any]], object]


class NotShortError(Exception):
    """A plan has a piece that can't run in the driver."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The output of a step.

    Attributes:
        of: for each row the number of its bucket; None if the rows don't come from an operator.
    """

    table: pa.Table
    of: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _Passing:
    """A plan that copies some columns, and lets Spark compute the others; see `plan/passing.py`.

    Attributes:
        plan: computes them; None for none.
        schema: the columns of the output.
    """

    split: Split
    plan: DriverPlan | None
    schema: pa.Schema

    def prepare(self, rows: int, threads: int) -> None:
        """See `DriverPlan.prepare`."""
        if self.plan is not None:
            self.plan.prepare(rows, threads)

    def __call__(self, table: pa.Table, context: TaskContext) -> pa.Table:
        """Return the plan's output over the rows of a table."""
        split, computed = self.split, []
        if self.plan is not None:
            given = table.select(split.needed)
            if split.numbered:
                given = given.append_column(
                    ROW, pa.array(np.arange(table.num_rows, dtype=np.int32))
                )
            found = self.plan(given, context)
            computed = found.columns
            if split.filtered:
                rows = computed.pop()
                if len(rows) < table.num_rows:
                    table = table.take(rows)
        others = iter(computed)
        columns = []
        for one, field in zip(split.passed, self.schema, strict=True):
            if one is None:
                columns.append(next(others))
            elif isinstance(one, Constant):
                value = pa.scalar(one.value, field.type)
                columns.append(pa.chunked_array([pa.repeat(value, table.num_rows)]))
            else:
                columns.append(table.column(one))
        return cast_to(pa.table(columns, names=self.schema.names), self.schema)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stateless piece of a plan.

    Attributes:
        source: number of the step over whose output it works.
        of_none: whether it returns rows for an empty input, as a global aggregate does.
        shuffled: whether its output names the bucket of each row.
        one_to_one: whether it has one row for each row of its input, in the same order.
        row_wise: whether Spark computes its output for some rows without regard to the others.
    """

    source: int
    plan: DriverPlan | _Passing
    of_none: bool
    shuffled: bool
    one_to_one: bool
    row_wise: bool

    def over(self, table: pa.Table, context: TaskContext) -> pa.Table:
        rows = table.num_rows
        if not rows and not self.of_none:
            return self.plan.schema.empty_table()
        parts = rows // PART_ROWS if self.row_wise else 1
        if parts > 1:  # else Spark isn't asked for its cores, which each time takes two calls
            parts = min(parts, parts_at_once())
        self.plan.prepare(rows, max(parts, 1))
        if parts < 2:
            return self.plan(table, context)
        size = -(-rows // parts)
        slices = [table.slice(start, size) for start in range(0, rows, size)]
        return pa.concat_tables(context.beside(self.plan, slices))

    def in_buckets(self, rows: _Rows, context: TaskContext) -> tuple[pa.Table, np.ndarray]:
        """Return the output over the rows of each bucket, and the bucket of each output row."""
        if self.shuffled:
            output = self.over(rows.table, context)
            of: np.ndarray = output[BUCKET].to_numpy()
            return output.drop_columns([BUCKET]), of
        assert rows.of is not None
        if self.one_to_one:
            return self.over(rows.table, context), rows.of
        buckets = np.unique(rows.of)
        if len(buckets) == 1:
            output = self.over(rows.table, context)
            return output, np.full(output.num_rows, buckets[0])
        outputs = [
            self.over(rows.table.filter(pa.array(rows.of == bucket)), context) for bucket in buckets
        ]
        sizes = [output.num_rows for output in outputs]
        tables = outputs or [self.plan.schema.empty_table()]
        return pa.concat_tables(tables), np.repeat(buckets, sizes)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as it runs; see `plan.lanes.Step`."""

    pieces: tuple[_Piece, ...]
    run: Leaf | StatefulPart | None
    function: Any
    schema: pa.Schema


class DriverRun:
    """A view's plan for the short lane.

    Args:
        steps: of the plan, in an order in which they can run.

    Raises:
        NotShortError: a piece needs a job of Spark, or a Python worker.
    """

    def __init__(self, driver: Driver, catalyst: Catalyst, steps: Sequence[Step]) -> None:
        # otherwise each call from Python may run in another thread, where Spark has no context
        if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
            raise NotShortError("PYSPARK_PIN_THREAD is off")
        self.driver = driver
        pieces = iter(_pieces(driver, catalyst, [one for step in steps for one in step.inputs]))
        self.steps = [
            _Step(
                tuple(islice(pieces, len(step.inputs))),
                step.run,
                step.function.in_driver() if isinstance(step.run, StatefulPart) else step.function,
                driver.schema(step.schema),
            )
            for step in steps
        ]

    def run(
        self,
        context: EpochContext,
        segments: Mapping[str, Sequence[Segment]],
        shared: SharedScans | None = None,
    ) -> Reports | None:
        """Run one epoch over the segments of each leaf; None if there are too many rows.

        Args:
            shared: reads what other plans of the epoch read, too.

        Raises:
            Exception: whatever Spark or an operator raises.
        """
        reports: dict[str, list[dict[str, Any]]] = {}
        outputs: list[_Rows] = []
        with self.driver.context() as task:
            for step in self.steps:
                if isinstance(step.run, Leaf):
                    own = reports.setdefault(step.run.name, [])
                    rows = self._scanned(step, segments.get(step.run.name, ()), own.append, shared)
                elif step.run is None:
                    tables = [
                        piece.over(outputs[piece.source].table, task) for piece in step.pieces
                    ]
                    rows = _Rows(pa.concat_tables([cast_to(t, step.schema) for t in tables]))
                else:
                    own = reports.setdefault(step.run.name, [])
                    rows = self._operated(step, step.run, outputs, context, task, own.append)
                if rows.table.num_rows > OUTPUT_ROWS_MAX:
                    return None
                outputs.append(rows)
        return reports

    def _scanned(
        self,
        step: _Step,
        segments: Sequence[Segment],
        report: Report,
        shared: SharedScans | None,
    ) -> _Rows:
        scan: LeafScan = step.function
        return _Rows(pa.Table.from_batches(list(scan.run(segments, report, shared)), step.schema))

    def _operated(
        self,
        step: _Step,
        part: StatefulPart,
        outputs: Sequence[_Rows],
        context: EpochContext,
        task: TaskContext,
        report: Report,
    ) -> _Rows:
        """Run an operator over the buckets that have rows."""
        kernel: Kernel = step.function
        (piece,) = step.pieces
        delta, of = piece.in_buckets(outputs[piece.source], task)
        if not delta.num_rows and not isinstance(part.operator, Timed):
            return _Rows(step.schema.empty_table(), np.empty(0, np.int64))
        tables, of = kernel.run_all(context, delta, of, part.buckets, report)
        cast = [cast_to(table, step.schema) for table in tables if table.num_rows]
        return _Rows(pa.concat_tables([step.schema.empty_table(), *cast]), of)


def _pieces(driver: Driver, catalyst: Catalyst, pieces: Sequence[Piece]) -> list[_Piece]:
    """Prepare pieces for the driver, on several cores; raise NotShortError if one can't run there."""
    threads = max(min(parts_at_once(), len(pieces)), 1)

    def each_of(some: Sequence[Piece]) -> list[_Piece]:
        with active(driver.session):
            return [_piece(driver, catalyst, piece) for piece in some]

    shares = side_by_side([partial(each_of, pieces[n::threads]) for n in range(threads)])
    return [shares[n % threads][n // threads] for n in range(len(pieces))]


def _piece(driver: Driver, catalyst: Catalyst, piece: Piece) -> _Piece:
    """Prepare a piece for the driver; raise NotShortError if it can't run there."""
    plan: DriverPlan | _Passing
    known = split(catalyst, piece)
    if known is not None:
        computed, kinds = None, list[str]()
        if known.plan is not None:
            schema = columns_of(known.plan)
            computed, kinds = _driver_plan(driver, catalyst, known.plan, known.leaf, schema)
        plan = _Passing(known, computed, driver.schema(piece.schema))
        one_to_one = not known.filtered
    else:
        plan, kinds = _driver_plan(driver, catalyst, piece.plan, piece.placeholder, piece.schema)
        one_to_one = _ONE_TO_ONE.issuperset(kinds)
    of_none = not _AGGREGATES.isdisjoint(kinds)
    row_wise = bool(kinds) and _ROW_WISE.issuperset(kinds)
    return _Piece(piece.source, plan, of_none, BUCKET in piece.schema.names, one_to_one, row_wise)


def _driver_plan(
    driver: Driver, catalyst: Catalyst, plan: Plan, leaf: Plan, schema: StructType
) -> tuple[DriverPlan, list[str]]:
    """Return the physical form of a plan over one leaf, and the kinds of its nodes.

    Raises:
        NotShortError: it can't run in the driver.
    """
    physical: Plan = driver.planned(catalyst.over_leaf(plan, driver.leaf(leaf)))
    nodes = list(tree(physical))
    kinds = [kind(node) for node in nodes]
    wide = [name for name in kinds if name not in _NARROW]
    if wide or any(map(subqueries_of, nodes)):
        raise NotShortError(f"it has {wide[0] if wide else 'a subquery'}")
    forget(physical)  # it lives as long as the view
    return DriverPlan(driver, physical, schema), kinds
