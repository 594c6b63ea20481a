"""The two lanes of a plan: one Spark job, or small pieces that run in the driver.

Both run the same operators over the same buckets and write the same state, so that each epoch can choose
one. The wide lane is a Spark plan with shuffles and Python workers, for many rows. For the short lane the plan
is cut at its operators. The stateless pieces between them are Spark plans that the driver evaluates
without a job (`spark/driver.py`), for few rows.

A view is lowered once, in pieces. Each piece is a small plan over a placeholder for the output of the step below,
so that Spark analyses each piece only once. The wide plan is composed of the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructType

from eddyline.changes import BUCKET
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Plan
from eddyline.plan.nodes import Leaf, StatefulPart

ArrowFunction = Callable[..., Any]  # as `mapInArrow` takes it


@dataclass(frozen=True, slots=True)
class Placed:
    """The input of a stateful operator, and how it is distributed to buckets.

    Attributes:
        buckets: number of buckets for a shuffle; 0 if the rows are in their buckets already.
        by: the columns whose hash is the number of the bucket, in the short lane; none for a single bucket.
        grouped: whether they come from an aggregate of Spark, which adds the shuffle itself.
        one_group: whether all rows of a bucket get the same hash after the shuffle, so that they are one group.
    """

    rows: DataFrame
    buckets: int = 0
    by: tuple[str, ...] = ()
    grouped: bool = False
    one_group: bool = False

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.rows.schema


@dataclass(frozen=True, slots=True)
class Piece:
    """A stateless plan over a placeholder.

    Attributes:
        source: number of the step whose rows the placeholder stands for.
        schema: the columns of its output.
    """

    source: int
    placeholder: Plan
    plan: Plan
    schema: StructType


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan in the short lane; its number is its place in the list of steps.

    Attributes:
        inputs: the pieces that are its input; none for a leaf.
        schema: the columns of its output.
        run: its leaf, or its stateful operator; None for a union, or rows that are read twice.
        function: what reads the leaf, or runs the operator.
    """

    inputs: tuple[Piece, ...]
    schema: StructType
    run: Leaf | StatefulPart | None = None
    function: Any = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut of a plan: the step whose output a placeholder stands for, and the wide plan of that output."""

    step: int
    placeholder: Plan
    wide: Plan


@dataclass
class Steps:
    """Records the steps of a plan, and the wide plan of each.

    Attributes:
        scan, task: make the functions that Spark runs for a leaf and for a stateful operator.
        share: makes the two that write shared rows into files, and read them.
        recorded: the steps, in an order in which they can run.
        jobs: plans that run as Spark jobs of their own before the view's last one, in this order.
    """

    catalyst: Catalyst
    scan_tasks: int
    scan: Callable[[Leaf, StructType], ArrowFunction]
    task: Callable[[StatefulPart, StructType], ArrowFunction]
    share: Callable[[str, StructType], tuple[ArrowFunction, ArrowFunction]]
    recorded: list[Step] = field(default_factory=list)
    jobs: list[Plan] = field(default_factory=list)
    _cuts: dict[int, _Cut] = field(default_factory=dict)

    def leaf(self, leaf: Leaf, schema: StructType) -> DataFrame:
        """Return the rows that a leaf reads."""
        scan = self.scan(leaf, schema)
        return self._add(Step((), schema, leaf, scan), self._read(scan, schema))

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        """Distribute rows over several tasks, in no particular order."""
        return rows.repartition(tasks)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all frames, whose columns are the same."""
        if len(frames) == 1:
            return frames[0]
        pieces = tuple(map(self._piece, frames))
        wide = self.catalyst.union([self.wide(frame) for frame in frames])
        united = self._output(len(self.recorded), wide)
        self.recorded.append(Step(pieces, united.schema))
        return united

    def operator(self, placed: Placed, part: StatefulPart, schema: StructType) -> DataFrame:
        """Return the output of a stateful operator."""
        task, catalyst = self.task(part, schema), self.catalyst
        step = Step((self._in_buckets(placed),), schema, part, task)
        rows = self.wide(placed.rows)
        if placed.buckets and not placed.grouped:
            rows = catalyst.repartitioned(rows, placed.buckets)
        if placed.one_group:
            rows = catalyst.with_one_hash(rows)
        # a union numbers its tasks differently, so the task's number isn't the bucket
        rows = catalyst.with_column(rows, catalyst.expression("SparkPartitionID"), BUCKET)
        return self._add(step, catalyst.map_in_arrow(rows, task, schema))

    def shared(self, rows: DataFrame) -> Callable[[], DataFrame]:
        """Return a function that makes frames over the same rows, unordered; an epoch computes the rows once."""
        schema, number = rows.schema, len(self.recorded)
        write, read = self.share(str(len(self.jobs)), schema)
        self.jobs.append(self.catalyst.map_in_arrow(self.wide(rows), write, schema))
        self.recorded.append(Step((self._piece(rows),), schema))
        return lambda: self._output(number, self._read(read, schema))

    def wide(self, frame: DataFrame) -> Plan:
        """Return the wide plan of a frame."""
        plan = self.catalyst.plan(frame)
        return self.catalyst.over_leaf(plan, self._cut(plan).wide)

    def release(self) -> None:
        """Drop the references to Spark's plans once a view is compiled: the compiled view lives on, and would hold them."""
        self.recorded.clear()
        self.jobs.clear()
        self._cuts.clear()

    def _cut(self, plan: Plan) -> _Cut:
        return self._cuts[self.catalyst.placeholder_of(plan)]

    def _piece(self, frame: DataFrame) -> Piece:
        plan = self.catalyst.plan(frame)
        cut = self._cut(plan)
        return Piece(cut.step, cut.placeholder, plan, frame.schema)

    def _in_buckets(self, placed: Placed) -> Piece:
        """Return rows for the short lane, with a column for the number of the bucket unless they are in it already."""
        piece = self._piece(placed.rows)
        if not placed.buckets:
            return piece
        catalyst = self.catalyst
        number = catalyst.bucket(piece.plan, placed.by, placed.buckets)
        plan = catalyst.with_column(piece.plan, number, BUCKET)
        if placed.one_group:
            plan = catalyst.with_one_hash(plan)
        schema = StructType([*piece.schema]).add(BUCKET, IntegerType(), False)
        return replace(piece, plan=plan, schema=schema)

    def _read(self, function: ArrowFunction, schema: StructType) -> Plan:
        """Return the output of a function over tasks, which gets the number of its task."""
        return self.catalyst.map_in_arrow(self._numbers.newInstance(), function, schema)

    @cached_property
    def _numbers(self) -> Plan:
        session = self.catalyst.session
        return self.catalyst.plan(session.range(0, self.scan_tasks, 1, self.scan_tasks))

    def _add(self, step: Step, wide: Plan) -> DataFrame:
        self.recorded.append(step)
        return self._output(len(self.recorded) - 1, wide)

    def _output(self, number: int, wide: Plan) -> DataFrame:
        """Return a frame over a placeholder for the rows of a step."""
        placeholder = self.catalyst.placeholder(wide.output())
        self._cuts[self.catalyst.placeholder_of(placeholder)] = _Cut(number, placeholder, wide)
        return self.catalyst.frame(placeholder)
