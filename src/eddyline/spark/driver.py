"""Evaluates Spark plans over a few rows in the driver: without a job, a task or a shuffle.

This is private API of Spark: the RDD of a physical plan is kept, and each evaluation gives its first
partition other rows. Known to work with 4.3; with a version where it fails, plans run as Spark jobs.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.spark.scala import TO_SEQ, Scala, scala_of
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import active, zone_of

_READ = "org.apache.spark.sql.api.python.PythonSQLUtils.readArrowStreamFromFile"
_LEAF = "org.apache.spark.sql.execution.LogicalRDD"
_BYTES_SENT_MAX = 4096  # of a message; larger ones go through a file, not through Py4J
_LENGTH = 4  # bytes before each message, big-endian


class Driver:
    """Makes placeholders and contexts of tasks, for the plans of one session.

    Args:
        session: plans are made in it.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.zone = zone_of(session)
        self.scala = scala = scala_of(session)
        self._jsession = session._jsparkSession  # noqa: SLF001  # not public in PySpark
        self.arrow = scala.object("org.apache.spark.sql.execution.arrow.ArrowConverters")
        self.python = scala.object("org.apache.spark.api.python.PythonRDD")
        self.contexts = scala.object("org.apache.spark.TaskContext")
        self.partition = scala.static("org.apache.spark.rdd.ParallelCollectionPartition")
        # in a task Spark's expressions read the settings of the session from these
        self._settings = scala.new("java.util.Properties")
        settings = self._jsession.sessionState().conf().getAllConfs()
        converters = scala.static("scala.jdk.javaapi.CollectionConverters")
        self._settings.putAll(converters.asJava(settings))

    def placeholder(self, schema: StructType) -> tuple[DataFrame, int]:
        """Return a frame for rows that come later, all in one partition, and the id of its RDD."""
        java = self._jsession.parseDataType(schema.json())
        threshold = "spark.sql.execution.arrow.localRelationThreshold"
        before = self.session.conf.get(threshold)
        self.session.conf.set(threshold, "0")  # an RDD, not a relation with these rows
        try:
            frame = self.arrow.toDataFrame(
                self.rows_of(_one_batch(self.schema(schema).empty_table())).iterator(),
                java,
                self._jsession,
                self.zone,
                False,
                False,
            )
        finally:
            self.session.conf.set(threshold, str(before))
        known = frame.queryExecution().analyzed()
        scala = self.scala
        single = scala.object("org.apache.spark.sql.catalyst.plans.physical.SinglePartition")
        none, given = scala.nothing, [known.output(), known.rdd(), single, scala.empty, False]
        given += [none, self._jsession, none, none, False]
        leaf = scala.new(_LEAF, *given[: _internals(scala).leaf_parameters])
        made = scala.object("org.apache.spark.sql.classic.Dataset").ofRows(self._jsession, leaf)
        return DataFrame(made, self.session), int(known.rdd().id())

    def in_rows(self, leaf: Any) -> Any:
        """Return the physical plan of a placeholder such that plans above it get rows, not columns of Arrow."""
        return self.scala.new("org.apache.spark.sql.execution.InputAdapter", leaf)

    def schema(self, columns: StructType) -> pa.Schema:
        """Return the Arrow schema of some columns."""
        return arrow_schema(columns, self.zone)

    def rows_of(self, batch: pa.RecordBatch) -> Any:
        """Return a Scala Seq of one Arrow message."""
        message = batch.serialize().to_pybytes()
        messages = self.scala.static("java.util.Collections.singletonList")(message)
        return self.scala.static(TO_SEQ)(messages)

    def context(self) -> TaskContext:
        """Return a context for evaluations in this thread; close it afterwards."""
        return TaskContext(self)

    def memory(self, number: int) -> Any:
        """Return a memory manager for the rows of one context."""
        manager = _internals(self.scala).memory
        return self.scala.new("org.apache.spark.memory.TaskMemoryManager", manager, number)

    def prepare(self, context: Any, memory: Any) -> None:
        """Give a task's context its memory manager, and the settings of the session."""
        fields = _internals(self.scala).fields
        for field, value in zip(fields, (memory, self._settings), strict=True):
            field.set(context, value)


class _Internals:
    """What isn't public of Spark's classes in one JVM.

    Attributes:
        fields: of a task's context the memory manager and the settings.
        leaf_parameters: how many values a leaf for an RDD is made of.
        memory: the memory manager of the driver.
    """

    def __init__(self, scala: Scala) -> None:
        context = scala.java_class("org.apache.spark.TaskContextImpl")
        names = ("taskMemoryManager", "localProperties")
        self.fields = [context.getDeclaredField(name) for name in names]
        for field in self.fields:
            field.setAccessible(True)
        constructor = scala.java_class(_LEAF).getConstructors()[0]
        self.leaf_parameters = int(constructor.getParameterCount())
        # not by Py4J's reflection: it loads all classes that SparkEnv names, and PySpark lacks some
        types = scala.static("java.lang.invoke.MethodType")
        public = scala.static("java.lang.invoke.MethodHandles").publicLookup()
        owner = scala.java_class("org.apache.spark.SparkEnv")
        arguments = scala.new("java.util.ArrayList")
        get = public.findStatic(owner, "get", types.methodType(owner))
        arguments.add(get.invokeWithArguments(scala.new("java.util.ArrayList")))
        manager = scala.java_class("org.apache.spark.memory.MemoryManager")
        memory = public.findVirtual(owner, "memoryManager", types.methodType(manager))
        self.memory = memory.invokeWithArguments(arguments)


@functools.lru_cache(maxsize=1)
def _internals(scala: Scala) -> _Internals:
    return _Internals(scala)


class TaskContext:
    """Spark's context of a task, for evaluations in the thread that makes it. Use it in a `with` block."""

    _numbers = itertools.count(-2, -1)  # ids of real tasks are positive

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        number = next(TaskContext._numbers)
        self.java = driver.contexts.empty()
        self._memory = driver.memory(number)
        driver.prepare(self.java, self._memory)
        # through a file: Py4J's socket delays answers of more than a few kilobytes by 40 ms
        path = os.path.join(_folder(), f"{-number}.arrow")
        self._input = os.path.join(_folder(), f"{-number}.input")
        file = driver.scala.new("java.io.FileOutputStream", path)
        self._stream = driver.scala.new("java.io.DataOutputStream", file)
        self._output = open(path, "rb")  # noqa: SIM115  # closed with the context
        os.unlink(path)

    def __enter__(self) -> TaskContext:
        self.driver.contexts.setTaskContext(self.java)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.java.markTaskCompleted(self.driver.scala.nothing)
            self._memory.cleanUpAllAllocatedMemory()
        finally:
            self.driver.contexts.unset()
            self._stream.close()
            self._output.close()

    def sent(self, batch: pa.RecordBatch) -> Any:
        """Return a Scala Seq of one Arrow message, in the JVM."""
        if batch.nbytes <= _BYTES_SENT_MAX:
            return self.driver.rows_of(batch)
        try:
            with (
                pa.OSFile(self._input, "wb") as file,
                pa.ipc.new_stream(file, batch.schema) as writer,
            ):
                writer.write_batch(batch)
            return self.driver.scala.static(_READ)(self._input).toSeq()
        finally:
            os.unlink(self._input)

    def received(self, messages: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of an iterator of the JVM."""
        self.driver.python.writeIteratorToStream(messages, self._stream)
        data, at = self._output.read(), 0
        buffer = pa.py_buffer(data)
        while at < len(data):
            length = int.from_bytes(data[at : at + _LENGTH])
            yield pa.ipc.read_record_batch(buffer.slice(at + _LENGTH, length), schema)
            at += _LENGTH + length


class DriverPlan:
    """A physical plan over one placeholder, evaluated over other rows each time.

    Args:
        physical: Spark's plan. Its nodes have one input each, and need no job.
        schema: the columns of its output.
    """

    def __init__(self, driver: Driver, physical: Any, schema: StructType) -> None:
        self.driver = driver
        self.schema = driver.schema(schema)
        with active(
            driver.session
        ):  # Spark generates the code by the settings of the active session
            self._rows = physical.execute()
        self._java_schema = physical.schema()
        first = self._rows
        while first.dependencies().nonEmpty():
            first = first.dependencies().head().rdd()
        self._id = first.id()
        self._tag = driver.scala.static("scala.reflect.ClassTag.AnyRef")()

    def __call__(self, table: pa.Table, context: TaskContext) -> pa.Table:
        """Return the plan's output over the rows of a table."""
        driver = self.driver
        part = driver.partition(self._id, 0, context.sent(_one_batch(table)), self._tag)
        rows = self._rows.iterator(part, context.java)
        messages = driver.arrow.toBatchIterator(
            rows, self._java_schema, 0, driver.zone, False, False, context.java
        )
        return pa.Table.from_batches(context.received(messages, self.schema), self.schema)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in whole.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


@functools.cache
def _folder() -> str:
    """Return a folder of this process that only its user can enter; it is removed at the end."""
    made = tempfile.mkdtemp(prefix="eddyline-driver-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
