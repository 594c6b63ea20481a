"""The two lanes of a plan: one Spark job, or small pieces that run in the driver.

Both run the same operators over the same buckets and write the same state, so that each epoch can choose
one. The wide lane is a Spark plan with shuffles and Python workers, for many rows. For the short lane the plan
is cut at its operators. The stateless pieces between them are Spark plans that the driver evaluates
without a job (`spark/driver.py`), for few rows.

A view is lowered once, in pieces. Each piece is a small plan over a placeholder for the output of the step below,
so that Spark analyses each piece only once. The wide plan is composed of the pieces when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructType

from eddyline.changes import BUCKET
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Plan
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.spark.plan_trees import forget

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


@dataclass(frozen=True)
class _Cut:
    """A cut of a plan: the step whose output a placeholder stands for, and what composes the wide plan of that output."""

    step: int
    placeholder: Plan
    compose: Callable[[], Plan]

    @cached_property
    def wide(self) -> Plan:
        return self.compose()


@dataclass
class Steps:
    """Records the steps of a plan, and the wide plan of each.

    Attributes:
        scan, task: make the functions that Spark runs for a leaf and for a stateful operator.
        share: makes the two that write shared rows into files, and read them.
        recorded: the steps, in an order in which they can run.
    """

    catalyst: Catalyst
    scan_tasks: int
    scan: Callable[[Leaf, StructType], ArrowFunction]
    task: Callable[[StatefulPart, StructType], ArrowFunction]
    share: Callable[[str, StructType], tuple[ArrowFunction, ArrowFunction]]
    recorded: list[Step] = field(default_factory=list)
    _jobs: list[Callable[[], Plan]] = field(default_factory=list)
    _cuts: dict[int, _Cut] = field(default_factory=dict)

    def leaf(self, leaf: Leaf, schema: StructType) -> DataFrame:
        """Return the rows that a leaf reads."""
        scan, placeholder = self.scan(leaf, schema), self.catalyst.placeholder_for(schema)
        step = Step((), schema, leaf, scan)
        return self._add(step, placeholder, lambda: self._read(scan, schema, placeholder))

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        """Distribute rows over several tasks, in no particular order."""
        return rows.repartition(tasks)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all frames, whose columns are the same."""
        if len(frames) == 1:
            return frames[0]
        pieces, catalyst = tuple(map(self._piece, frames)), self.catalyst
        columns = catalyst.union([piece.plan for piece in pieces]).output()
        united = self._output(
            len(self.recorded),
            catalyst.placeholder(columns),
            lambda: catalyst.union([self._wide(one) for one in pieces]),
        )
        self.recorded.append(Step(pieces, united.schema))
        return united

    def operator(self, placed: Placed, part: StatefulPart, schema: StructType) -> DataFrame:
        """Return the output of a stateful operator."""
        task, placeholder = self.task(part, schema), self.catalyst.placeholder_for(schema)
        piece = self._piece(placed.rows)
        step = Step((self._in_buckets(placed, piece),), schema, part, task)
        return self._add(
            step, placeholder, lambda: self._operated(placed, piece, task, schema, placeholder)
        )

    def _operated(
        self,
        placed: Placed,
        piece: Piece,
        task: ArrowFunction,
        schema: StructType,
        placeholder: Plan,
    ) -> Plan:
        catalyst, rows = self.catalyst, self._wide(piece)
        if placed.buckets and not placed.grouped:
            rows = catalyst.repartitioned(rows, placed.buckets)
        if placed.one_group:
            rows = catalyst.with_one_hash(rows)
        # a union numbers its tasks differently, so the task's number isn't the bucket
        rows = catalyst.with_column(rows, catalyst.expression("SparkPartitionID"), BUCKET)
        return catalyst.map_in_arrow(rows, task, schema, placeholder)

    def shared(self, rows: DataFrame) -> Callable[[], DataFrame]:
        """Return a function that makes frames over the same rows, unordered; an epoch computes the rows once."""
        schema, number, catalyst = rows.schema, len(self.recorded), self.catalyst
        write, read = self.share(str(len(self._jobs)), schema)
        piece = self._piece(rows)
        self.recorded.append(Step((piece,), schema))
        self._jobs.append(
            lambda: catalyst.map_in_arrow(
                self._wide(piece), write, schema, catalyst.placeholder_for(schema)
            )
        )

        def output() -> DataFrame:
            placeholder = catalyst.placeholder_for(schema)
            return self._output(number, placeholder, lambda: self._read(read, schema, placeholder))

        return output

    def wide(self, result: DataFrame) -> Callable[[], list[Plan]]:
        """Return a function that composes the plans of the wide lane for the rows of a frame.

        They run one after the other. Those before the last one write rows that are read more than once.
        """
        jobs: list[Callable[[], Plan]] = [*self._jobs, partial(self._wide, self._piece(result))]
        return lambda: [job() for job in jobs]

    @property
    def plans(self) -> list[Plan]:
        """The plans of all pieces, in the order of the steps."""
        return [piece.plan for step in self.recorded for piece in step.inputs]

    @property
    def text(self) -> str:
        """The steps, and the plans of their pieces; the same for the same view, but for the numbers that Spark gives."""
        steps = [
            (step.run.name if step.run else "", *(piece.source for piece in step.inputs))
            for step in self.recorded
        ]
        plans = self.catalyst.seq(self.plans).mkString("\n")
        return f"{steps}\n{plans}"

    def release(self) -> None:
        """Drop what only the compilation of a view needs: the compiled view lives on, and would hold it."""
        for known in (*self.plans, *(cut.placeholder for cut in self._cuts.values())):
            forget(known)
        self.recorded.clear()

    def _wide(self, piece: Piece) -> Plan:
        return self.catalyst.over_leaf(piece.plan, self._cut(piece.plan).wide)

    def _cut(self, plan: Plan) -> _Cut:
        return self._cuts[self.catalyst.placeholder_of(plan)]

    def _piece(self, frame: DataFrame) -> Piece:
        plan = self.catalyst.plan(frame)
        cut = self._cut(plan)
        return Piece(cut.step, cut.placeholder, plan, frame.schema)

    def _in_buckets(self, placed: Placed, piece: Piece) -> Piece:
        """Return rows for the short lane, with a column for the number of the bucket unless they are in it already."""
        if not placed.buckets:
            return piece
        catalyst = self.catalyst
        number = catalyst.bucket(piece.plan, placed.by, placed.buckets)
        plan = catalyst.with_column(piece.plan, number, BUCKET)
        if placed.one_group:
            plan = catalyst.with_one_hash(plan)
        schema = StructType([*piece.schema]).add(BUCKET, IntegerType(), False)
        return replace(piece, plan=plan, schema=schema)

    def _read(self, function: ArrowFunction, schema: StructType, placeholder: Plan) -> Plan:
        """Return the output of a function over tasks, which gets the number of its task."""
        numbers = self._numbers.newInstance()
        return self.catalyst.map_in_arrow(numbers, function, schema, placeholder)

    @cached_property
    def _numbers(self) -> Plan:
        session = self.catalyst.session
        return self.catalyst.plan(session.range(0, self.scan_tasks, 1, self.scan_tasks))

    def _add(self, step: Step, placeholder: Plan, compose: Callable[[], Plan]) -> DataFrame:
        self.recorded.append(step)
        return self._output(len(self.recorded) - 1, placeholder, compose)

    def _output(self, number: int, placeholder: Plan, compose: Callable[[], Plan]) -> DataFrame:
        """Return a frame over a placeholder for the rows of a step."""
        self._cuts[self.catalyst.placeholder_of(placeholder)] = _Cut(number, placeholder, compose)
        return self.catalyst.frame(placeholder)
