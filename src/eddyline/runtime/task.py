"""What runs in Spark's Python workers: leaves that read segments, kernels that keep state."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from eddyline.errors import EngineError
from eddyline.operators.base import Operator
from eddyline.source.segments import Segment, read_segment
from eddyline.state.arrangement import Arrangement
from eddyline.state.manifest import Manifest, read_manifest
from eddyline.storage.files import Files

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a task has one core

PROPERTY = "eddyline.epoch"


@dataclass(frozen=True, slots=True)
class EpochContext:
    """Which epoch a task works for; it travels as a local property of the Spark job.

    Attributes:
        folder: where the attempt writes, below the storage folder.
        base: the last committed epoch, whose state is read.
    """

    folder: str
    base: int

    def as_property(self) -> str:
        """The text of the local property."""
        return json.dumps([self.folder, self.base])

    @classmethod
    def current(cls) -> EpochContext:
        """The context of the task that is running."""
        context = TaskContext.get()
        text = context.getLocalProperty(PROPERTY) if context else None
        if text is None:
            raise EngineError(
                "a kernel ran outside of an epoch",
                condition="NO_EPOCH",
                hint="read results with view.snapshot(), not through the compiled plan",
            )
        return cls(*json.loads(text))


@functools.lru_cache(maxsize=8)
def _manifest(root: str, epoch: int) -> Manifest:
    return read_manifest(Files(root), epoch)


@functools.lru_cache(maxsize=64)
def _inputs(root: str, name: str) -> dict[str, list[list[Segment]]]:
    document = Files(root).read_json(name)
    return {
        leaf: [[Segment(**segment) for segment in task] for task in tasks]
        for leaf, tasks in document.items()
    }


def inputs_name(folder: str, node: str) -> str:
    """Name of the file that says which segments the leaves of a node read."""
    return f"{folder}/{node}.inputs.json"


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Gives a leaf the rows of the segments that the epoch deals to this task.

    Attributes:
        node, leaf: which leaf of which view.
        names: names of all columns of the relation that it reads.
        columns: places of the wanted ones.
        schema: Arrow schema of the output.
    """

    files: Files
    node: str
    leaf: str
    names: tuple[str, ...]
    columns: tuple[int, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The segments' rows, whatever the input (one number a task)."""
        context = EpochContext.current()
        dealt = _inputs(self.files.root, inputs_name(context.folder, self.node)).get(self.leaf, [])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for segment in dealt[number] if number < len(dealt) else ():
                    for table in read_segment(
                        self.files, segment, self.names, self.columns, self.schema
                    ):
                        yield from fitted(table, self.schema)


@dataclass(frozen=True, slots=True)
class KernelTask:
    """Runs a stateful operator over one bucket and writes what it adds to its arrangements.

    It writes into the attempt's folder: runs, and a report that names them. The same input gives
    the same bytes, so that a task which Spark runs twice does no harm.
    """

    files: Files
    node: str
    part: str
    operator: Operator
    schema: pa.Schema
    fan_in: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The operator's output delta."""
        context = EpochContext.current()
        bucket = TaskContext.get().partitionId()  # type: ignore[union-attr]
        received = list(batches)
        counts = {"in": 0, "out": 0}
        slots: dict[str, dict[str, object]] = {}
        if received:
            delta = pa.Table.from_batches(received)
            counts["in"] = delta.num_rows
        if counts["in"]:
            manifest = _manifest(self.files.root, context.base)
            state = {
                slot: Arrangement(
                    self.files,
                    layout,
                    manifest.runs(arrangement_name(self.node, self.part, slot), bucket),
                )
                for slot, layout in self.operator.layouts.items()
            }
            step = self.operator.step(delta, state)
            for table in step.output:
                counts["out"] += table.num_rows
                yield from fitted(table, self.schema)
            for slot, rows in step.appends.items():
                name = f"{context.folder}/{self.node}.{self.part}.{slot}.{bucket}"
                runs, added = state[slot].extend(name, rows, self.fan_in)
                slots[slot] = {
                    "runs": [run.as_list() for run in runs],
                    "delta": added.as_list() if added else None,
                }
        report = {"counts": counts, "slots": slots}
        name = f"{context.folder}/{self.node}.{self.part}.{bucket}.report.json"
        self.files.write_json(name, report, durable=False)


def arrangement_name(node: str, part: str, slot: str) -> str:
    """The name of an arrangement in the manifest."""
    return f"{node}/{part}/{slot}"


def fitted(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A table's rows in the names and types that Spark was promised."""
    if table.num_rows == 0:
        return
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        if column.type != field.type:
            column = (
                pa.chunked_array([pa.nulls(table.num_rows, field.type)])
                if pa.types.is_null(column.type)
                else column.cast(field.type)
            )
        columns.append(column)
    yield from pa.table(columns, schema=schema).to_batches()
