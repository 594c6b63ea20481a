"""Evaluates Spark plans over a few rows in the driver: without a job, a task or a shuffle.

This uses private API of Spark: it keeps the RDD of a physical plan, and gives its first partition other rows
in each evaluation. It works with 4.3; with a version where it fails, plans run as Spark jobs.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from eddyline.spark.batches import batch_rows
from eddyline.spark.scala import Scala, scala_of
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import active, task_settings, zone_of
from eddyline.spark.threads import add_cpu_time, side_by_side

R = TypeVar("R")

INTERPRETED_ROWS_MAX = 2_000
"""Rows after which a plan gets generated code."""

_LENGTH = 4  # bytes before each message, big-endian


class Driver:
    """Makes leaves and task contexts for the plans of one session.

    Args:
        session: plans are made in it.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.zone = zone_of(session)
        scala = scala_of(session)
        self._jsession = session._jsparkSession  # noqa: SLF001  # not public in PySpark
        self.evaluator = _internals(scala).evaluator(task_settings(session), self.zone)

    def leaf(self, like: Any) -> Any:
        """Return a leaf of one partition, whose rows are given later.

        Args:
            like: a plan with the same columns.
        """
        return self.evaluator.leaf(self._jsession, like)

    def planned(self, plan: Any) -> Any:
        """Return the physical form of a resolved plan over such a leaf, without shuffles."""
        return self.evaluator.planned(self._jsession, plan)

    def schema(self, columns: StructType) -> pa.Schema:
        """Return the Arrow schema of some columns."""
        return arrow_schema(columns, self.zone)

    def context(self) -> TaskContext:
        """Return a context for evaluations in this thread; use it in a `with` block."""
        return TaskContext(self.evaluator)


class _Internals:
    """Private classes of Spark in one JVM.

    Attributes:
        evaluator: makes an object of `Evaluator.java`.
    """

    def __init__(self, scala: Scala) -> None:
        # not by Py4J's reflection: it loads all classes that SparkEnv names, and PySpark lacks some
        types = scala.static("java.lang.invoke.MethodType")
        public = scala.static("java.lang.invoke.MethodHandles").publicLookup()
        owner = scala.java_class("org.apache.spark.SparkEnv")
        arguments = scala.new("java.util.ArrayList")
        get = public.findStatic(owner, "get", types.methodType(owner))
        arguments.add(get.invokeWithArguments(scala.new("java.util.ArrayList")))
        manager = scala.java_class("org.apache.spark.memory.MemoryManager")
        memory = public.findVirtual(owner, "memoryManager", types.methodType(manager))
        self._memory = memory.invokeWithArguments(arguments)
        self._scala = scala

    def evaluator(self, settings: Any, zone: str) -> Any:
        return self._scala.compiled_object("Evaluator", self._memory, settings, zone)


_making = threading.Lock()
_made: weakref.WeakKeyDictionary[Scala, _Internals] = weakref.WeakKeyDictionary()


def _internals(scala: Scala) -> _Internals:
    with _making:
        found = _made.get(scala)
        if found is None:
            found = _made[scala] = _Internals(scala)
        return found


class TaskContext:
    """A task context of Spark, for evaluations in the thread that enters it.

    Rows go to and from the JVM through two files, because Py4J encodes bytes as text, and its socket delays
    answers of more than a few kilobytes by 40 ms.

    Args:
        evaluator: of the JVM; see `Evaluator.java`.
    """

    _numbers = itertools.count(-2, -1)  # ids of real tasks are positive

    def __init__(self, evaluator: Any) -> None:
        self._evaluator = evaluator

    def __enter__(self) -> TaskContext:
        number = next(TaskContext._numbers)
        paths = [os.path.join(_folder(), f"{-number}.{end}") for end in ("in", "out")]
        handles: list[int] = []
        with ExitStack() as opened:
            with ExitStack() as named:
                for path in paths:
                    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                    opened.callback(os.close, handle)
                    named.callback(os.unlink, path)
                    handles.append(handle)
                self._task = self._evaluator.task(number, *paths)
            self._opened = opened.pop_all()
        self._input, self._output = handles
        return self

    def __exit__(self, *_: object) -> None:
        with self._opened:
            add_cpu_time(self._task.close())

    def beside(
        self, function: Callable[[pa.Table, TaskContext], R], parts: Sequence[pa.Table]
    ) -> list[R]:
        """Return the results of a function over some tables, side by side; other threads have contexts of their own."""
        here = threading.get_ident()

        def apart(part: pa.Table) -> R:
            if threading.get_ident() == here:  # no other thread was free
                return function(part, self)
            with TaskContext(self._evaluator) as context:
                return function(part, context)

        first, *others = parts
        return side_by_side(
            [partial(function, first, self), *(partial(apart, part) for part in others)]
        )

    def evaluate(self, plan: Any, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the output of a plan of the JVM over the rows of a table."""
        sent, rows = 0, batch_rows(table)
        for batch in _batches(table, rows):
            message = batch.serialize()
            sent = self._write(message.size.to_bytes(_LENGTH), sent)
            sent = self._write(message, sent)
        size = self._task.evaluate(plan, sent, rows if rows < table.num_rows else 0)
        data = b"".join(self._read(size))
        buffer, at, batches = pa.py_buffer(data), 0, []
        while at < size:
            length = int.from_bytes(data[at : at + _LENGTH])
            batches.append(pa.ipc.read_record_batch(buffer.slice(at + _LENGTH, length), schema))
            at += _LENGTH + length
        return pa.Table.from_batches(batches, schema)

    def _write(self, data: bytes | pa.Buffer, at: int) -> int:
        """Write bytes at a place of the input; return the place behind them."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self._input, left, at)
            left, at = left[written:], at + written
        return at

    def _read(self, size: int) -> Iterator[bytes]:
        at = 0
        while at < size:
            part = os.pread(self._output, size - at, at)
            if not part:
                raise OSError(f"Spark's answer has {at} bytes instead of {size}")
            yield part
            at += len(part)


class DriverPlan:
    """A physical plan over one leaf, which is evaluated with other rows each time.

    Spark interprets its expressions at first. To generate and compile code for them takes as long as to interpret them for
    thousands of rows, so that is done once a plan has got so many. Create it while the driver's session is active, as Spark
    reads the settings of the active session.

    Args:
        physical: Spark's plan. Its nodes have one input each, and need no job.
        schema: the columns of its output.
    """

    def __init__(self, driver: Driver, physical: Any, schema: StructType) -> None:
        self.schema = driver.schema(schema)
        self._session, self._evaluator = driver.session, driver.evaluator
        self._interpreted: Any | None = physical  # the plan, as long as it has no generated code
        self._idle = [self._evaluator.interpreted(physical)]
        self._made, self._rows = 1, 0

    def prepare(self, rows: int, threads: int = 1) -> None:
        """Make the plan ready for so many more rows, in so many threads at once; call it while none evaluates it."""
        self._rows += rows
        if self._interpreted is not None and self._rows > INTERPRETED_ROWS_MAX:
            with active(self._session):
                self._idle = [self._evaluator.generated(self._interpreted)]
            self._made, self._interpreted = 1, None
        while self._made < threads:
            self._idle.append(self._evaluator.copy(self._idle[0]))
            self._made += 1

    def __call__(self, table: pa.Table, context: TaskContext) -> pa.Table:
        """Return the plan's output over the rows of a table."""
        plan = self._idle.pop()
        try:
            return context.evaluate(plan, table, self.schema)
        finally:
            self._idle.append(plan)


def _batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """Return the rows of a table in batches of so many; an empty table is an empty batch."""
    whole = table.combine_chunks()
    return whole.to_batches(rows) or [pa.RecordBatch.from_pylist([], schema=table.schema)]


@functools.cache
def _folder() -> str:
    """Return a folder of this process that only its user can enter; it is removed at the end."""
    made = tempfile.mkdtemp(prefix="eddyline-driver-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
