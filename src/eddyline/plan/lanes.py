"""The two ways in which an epoch runs one plan: as a Spark job, or piece by piece in the driver.

Both run the same operators over the same buckets and write the same state, so that any epoch may use
either. The wide lane is one Spark plan: shuffles and Python workers, for many rows. The short lane cuts
the plan at its operators: the stateless pieces between them are Spark plans that the driver evaluates
without a job (`spark/driver.py`), for few rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.changes import BUCKET
from eddyline.plan.nodes import Leaf, StatefulPart

ArrowFunction = Callable[..., Any]  # as `mapInArrow` takes it


class Lane(Protocol):
    """Turns the pieces that a lowering produces into frames."""

    @property
    def jobs(self) -> Sequence[DataFrame]:
        """Frames that run as Spark jobs of their own before the view's last one, in this order."""
        ...

    def leaf(self, leaf: Leaf, schema: StructType) -> DataFrame:
        """Return the rows that a leaf reads."""
        ...

    def shuffled(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        """Return rows in the buckets of the hash of some columns."""
        ...

    def grouped(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        """Return the groups of an aggregate by some columns, in the buckets of their hash."""
        ...

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        """Return the rows in several tasks, in no order."""
        ...

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all frames, whose columns are the same."""
        ...

    def operator(self, rows: DataFrame, part: StatefulPart, schema: StructType) -> DataFrame:
        """Return the output of a stateful operator over rows that are in their buckets."""
        ...

    def shared(self, rows: DataFrame) -> Callable[[], DataFrame]:
        """Return what makes frames of the same rows, in no order; an epoch computes them once."""
        ...


@dataclass(frozen=True, slots=True)
class WideLane:
    """Everything is one Spark plan, but for rows that it reads twice: a job before it puts them into files.

    Attributes:
        scan, task: make the functions that Spark runs for a leaf and for a stateful operator.
        share: makes the two that write shared rows into files, and read them.
    """

    session: SparkSession
    scan_tasks: int
    scan: Callable[[Leaf, StructType], ArrowFunction]
    task: Callable[[StatefulPart, StructType], ArrowFunction]
    share: Callable[[str, StructType], tuple[ArrowFunction, ArrowFunction]]
    jobs: list[DataFrame] = field(default_factory=list)

    def leaf(self, leaf: Leaf, schema: StructType) -> DataFrame:
        return self._numbers().mapInArrow(self.scan(leaf, schema), schema)

    def shuffled(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        return rows.repartition(buckets, *by)

    def grouped(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        return rows  # Spark's aggregate shuffles by the grouping columns

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        return rows.repartition(tasks)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        return functools.reduce(DataFrame.unionAll, frames)

    def operator(self, rows: DataFrame, part: StatefulPart, schema: StructType) -> DataFrame:
        # a union numbers its tasks differently, so the task's number isn't the bucket
        rows = rows.selectExpr("*", f"spark_partition_id() as {BUCKET}")
        return rows.mapInArrow(self.task(part, schema), schema)

    def shared(self, rows: DataFrame) -> Callable[[], DataFrame]:
        name, schema = str(len(self.jobs)), rows.schema
        write, read = self.share(name, schema)
        self.jobs.append(rows.mapInArrow(write, schema))
        return lambda: self._numbers().mapInArrow(read, schema)

    def _numbers(self) -> DataFrame:
        """Return the numbers of tasks that read something, a task for each."""
        return self.session.range(0, self.scan_tasks, 1, self.scan_tasks)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan in the short lane; its number is its place in the list of steps.

    Attributes:
        inputs: the frames over whose rows it works; none for a leaf.
        schema: the columns of its output.
        run: its leaf, or its stateful operator; None for a union, or rows that are read twice.
        function: what reads the leaf, or runs the operator.
    """

    inputs: tuple[DataFrame, ...]
    schema: StructType
    run: Leaf | StatefulPart | None = None
    function: Any = None


@dataclass(slots=True)
class ShortLane:
    """Records the steps of a plan. Each frame is over the placeholder of one step's output.

    Attributes:
        placeholder: makes a frame for rows that come later, and the id of its RDD.
        steps: in an order in which they can run.
        ids: for the RDD id of each placeholder the number of its step.
    """

    placeholder: Callable[[StructType], tuple[DataFrame, int]]
    scan: Callable[[Leaf, StructType], ArrowFunction]
    task: Callable[[StatefulPart, StructType], ArrowFunction]
    steps: list[Step] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)
    jobs: list[DataFrame] = field(default_factory=list)

    def leaf(self, leaf: Leaf, schema: StructType) -> DataFrame:
        return self._add(Step((), schema, leaf, self.scan(leaf, schema)))

    def shuffled(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        # the same hash as that of Spark's shuffle
        bucket = f"pmod(hash({', '.join(by)}), {buckets})" if by and buckets > 1 else "0"
        return rows.selectExpr("*", f"{bucket} as {BUCKET}")

    def grouped(self, rows: DataFrame, buckets: int, by: Sequence[str]) -> DataFrame:
        return self.shuffled(rows, buckets, by)

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        return rows

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        if len(frames) == 1:
            return frames[0]
        schema = functools.reduce(DataFrame.unionAll, frames).schema
        return self._add(Step(tuple(frames), schema))

    def operator(self, rows: DataFrame, part: StatefulPart, schema: StructType) -> DataFrame:
        return self._add(Step((rows,), schema, part, self.task(part, schema)))

    def shared(self, rows: DataFrame) -> Callable[[], DataFrame]:
        number, schema = len(self.steps), rows.schema
        self.steps.append(Step((rows,), schema))
        return lambda: self._output(number, schema)

    def _add(self, step: Step) -> DataFrame:
        self.steps.append(step)
        return self._output(len(self.steps) - 1, step.schema)

    def _output(self, number: int, schema: StructType) -> DataFrame:
        frame, identity = self.placeholder(schema)
        self.ids[identity] = number
        return frame
