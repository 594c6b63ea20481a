"""What runs in Spark's Python workers: leaves that read segments, kernels that keep state."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from eddyline.changes import BUCKET, HASH, SEQUENCE
from eddyline.errors import EngineError
from eddyline.operators.base import Operator
from eddyline.operators.hold import Hold
from eddyline.source.segments import Segment, event_times, in_time, read_segment
from eddyline.state.arrangement import Arrangement
from eddyline.state.expiry import Place
from eddyline.state.kernels import condensed, in_types_of, key_hashes
from eddyline.state.manifest import Manifest, manifest_name, read_manifest
from eddyline.storage.files import Files

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a task has one core

PROPERTY = "eddyline.epoch"
REPORT = ".report.json"


@dataclass(frozen=True, slots=True)
class EpochContext:
    """Which epoch a task works for; it travels as a local property of the Spark job.

    Attributes:
        folder: where the attempt writes, below the storage folder.
        base: the last committed epoch, whose state is read.
        expired: for a stateful operator (node/part) what its expiries are compared with.
        rebuilt: ids of views whose state is made anew: what is stored of it doesn't count.
    """

    folder: str
    base: int
    expired: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    rebuilt: tuple[str, ...] = ()

    def as_property(self) -> str:
        """The text of the local property."""
        return json.dumps([self.folder, self.base, self.expired, self.rebuilt])

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


class _Traceback:
    """What PySpark's daemon prints errors with, but for one."""

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


@functools.cache
def _settle() -> None:
    """Make this worker one that lasts, at its first task.

    PySpark's worker collects garbage after each task; the modules alone take it 60 ms each time.
    And one that Spark ends while it is idle prints a traceback about its closed connection.
    """
    gc.collect()
    gc.freeze()
    daemon = sys.modules["__main__"]
    if getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _Traceback  # type: ignore[attr-defined]


def _manifest(root: str, epoch: int) -> Manifest:
    if epoch == 0:
        return read_manifest(Files(root), epoch)
    # another storage may have come to the same path
    status = os.stat(Files(root).path(manifest_name(epoch)))
    return _cached_manifest(root, epoch, (status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _cached_manifest(root: str, epoch: int, _version: tuple[int, int]) -> Manifest:
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
        time: of a stream with a watermark the place and type of its event time.
        late: give the late rows, not those in time.
    """

    files: Files
    node: str
    leaf: str
    names: tuple[str, ...]
    columns: tuple[int, ...]
    schema: pa.Schema
    time: tuple[int, pa.DataType] | None = None
    late: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The segments' rows, and behind them a report of how many were read.

        The input says which of the parts that the epoch deals: one number a task.
        """
        _settle()
        context = EpochContext.current()
        dealt = _inputs(self.files.root, inputs_name(context.folder, self.node)).get(self.leaf, [])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                segments = dealt[number] if number < len(dealt) else []
                report = {"read": 0, "late": 0}
                for segment in segments:
                    for table in self._read(segment, report):
                        report["read"] += table.num_rows
                        rows = table if SEQUENCE in table.column_names else condensed(table)
                        yield from fitted(rows, self.schema)
                if segments:
                    name = f"{context.folder}/{self.node}.{self.leaf}.{number}{REPORT}"
                    self.files.write_json(name, report, durable=False)

    def _read(self, segment: Segment, report: dict[str, int]) -> Iterator[pa.Table]:
        """The rows of a segment; of a stream with a watermark those in time, or the late ones."""
        if self.time is None:
            yield from read_segment(self.files, segment, self.names, self.columns, self.schema)
            return
        place, kind = self.time
        columns, schema = self.columns, self.schema
        if place not in columns:
            columns = (*columns, place)
            schema = schema.insert(len(schema) - 1, pa.field(f"c{len(columns) - 1}", kind))
        time = f"c{columns.index(place)}"
        for table in read_segment(self.files, segment, self.names, columns, schema):
            latest = pc.max(event_times(table[time])).as_py()
            if latest is not None:
                report["latest"] = max(latest, report.get("latest", latest))
            rows = in_time(table, time, segment.watermark, late=self.late)
            report["late"] += rows.num_rows if self.late else table.num_rows - rows.num_rows
            yield rows.select(self.schema.names)


@dataclass(frozen=True, slots=True)
class KernelTask:
    """Runs a stateful operator over one bucket and writes what it adds to its arrangements.

    It writes into the attempt's folder: runs, and a report that names them. A task that Spark runs
    twice writes runs of other names and puts its report, which says the same, over the first one.

    Attributes:
        expiry: what to compare with the context's values, to tell rows that may leave the state.
    """

    files: Files
    node: str
    part: str
    operator: Operator
    schema: pa.Schema
    fan_in: int
    expiry: tuple[Place, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The operator's output delta."""
        _settle()
        context = EpochContext.current()
        received = [batch for batch in batches if batch.num_rows]
        bucket, delta = None, None
        if received:
            delta = pa.Table.from_batches(received)
            bucket = delta[BUCKET][0].as_py()
            delta = delta.drop_columns([BUCKET])
        task = TaskContext.get()
        assert task is not None
        if bucket is None and isinstance(self.operator, Hold):
            bucket = task.partitionId()  # nothing comes between its shuffle and it
        name = f"{task.stageId()}-{task.partitionId()}-{task.taskAttemptId()}"
        for table in run_kernel(self, context, name, bucket, delta):
            yield from fitted(table, self.schema)


def run_kernel(
    task: KernelTask, context: EpochContext, name: str, bucket: int | None, delta: pa.Table | None
) -> Iterator[pa.Table]:
    """One bucket's step: the output, and behind it the runs and the report on disk.

    Args:
        name: of the task, ending in `-` and the number of its attempt.
        bucket: which one; None for a task that got no rows and so can't know.
        delta: what came in; None if nothing did.
    """
    counts = {"in": 0, "out": 0}
    prefix = f"{context.folder}/{task.node}.{task.part}."
    slots: dict[str, dict[str, object]] = {}
    operator = task.operator
    values = context.expired.get(part_name(task.node, task.part), ())
    limits = [(place, v) for place, v in zip(task.expiry, values, strict=False) if v is not None]
    if isinstance(operator, Hold):
        operator, limits = replace(operator, bound=limits[0][1] if limits else None), []
    delta = delta if delta is not None and delta.num_rows else None
    if bucket is not None and (delta is not None or isinstance(operator, Hold)):
        counts["in"] = 0 if delta is None else delta.num_rows
        known = 0 if task.node in context.rebuilt else context.base
        manifest = _manifest(task.files.root, known)
        state = {
            slot: Arrangement(
                task.files,
                layout,
                manifest.runs(arrangement_name(task.node, task.part, slot), bucket),
            )
            for slot, layout in operator.layouts.items()
        }
        step = operator.step(delta, state)
        for table in step.output:
            counts["out"] += table.num_rows
            yield table
        for slot, rows in step.appends.items():
            old = [(place, limit) for place, limit in limits if place.slot == slot]
            runs, added = state[slot].extend(f"{prefix}{slot}.{name}", rows, task.fan_in, old)
            slots[slot] = {
                "runs": [run.as_list() for run in runs],
                "delta": added.as_list() if added else None,
            }
    report = {"bucket": bucket, "counts": counts, "slots": slots}
    task.files.write_json(f"{prefix}{name.rpartition('-')[0]}{REPORT}", report, durable=False)


@dataclass(frozen=True, slots=True)
class TableTask:
    """Applies a table's operations to its rows, in the driver: they came through it anyway.

    Attributes:
        kernel: the kernel of the table's one stateful operator.
        buckets: of the storage; a row's bucket is its key's hash modulo their number.
        key: columns that are hashed.
        wire: Arrow schema `seq, op, c0.., w`.
    """

    kernel: KernelTask
    buckets: int
    key: tuple[str, ...]
    wire: pa.Schema

    def __call__(self, context: EpochContext, segments: Iterable[Segment]) -> None:
        """Take in the operations of some segments of the redo log."""
        files, columns = self.kernel.files, range(len(self.wire) - 3)
        tables = [
            table
            for segment in segments
            for table in read_segment(files, segment, (), columns, self.wire)
        ]
        operations = pa.concat_tables(tables).cast(self.wire)
        hashes = key_hashes(operations, self.key)
        operations = operations.add_column(0, HASH, pa.array(hashes))
        for bucket in range(self.buckets):
            mine = operations.filter(pa.array(hashes % self.buckets == bucket))
            for _ in run_kernel(self.kernel, context, f"driver-{bucket}-0", bucket, mine):
                pass  # a table's operator has no output but its rows


def part_name(node: str, part: str) -> str:
    """The name of a stateful operator among all of a storage."""
    return f"{node}/{part}"


def arrangement_name(node: str, part: str, slot: str) -> str:
    """The name of an arrangement in the manifest."""
    return f"{part_name(node, part)}/{slot}"


def fitted(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A table's rows in the names and types that Spark was promised."""
    if table.num_rows:
        yield from in_types_of(table, schema).to_batches()
