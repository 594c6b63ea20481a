"""Spark sessions: a tuned local one for users without one, and the session of an engine."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.errors import EngineError
from eddyline.spark.class_archive import archive_options
from eddyline.spark.jvm import (
    compiler_options,
    given_settings,
    java_settings,
    logging_options,
    start_jvm,
)
from eddyline.spark.scala import scala_of

ZONE = "spark.sql.session.timeZone"

INTERRUPT = "spark.sql.execution.interruptOnCancel"
"""A task must not be interrupted while it starts the process that Python workers are forked from.

If that process is killed at the same time, Spark never starts it again where it listens on a Unix socket.
"""

CODE_CACHE = "spark.sql.codegen.cache.maxEntries"
"""How many generated classes Spark keeps: 100 by default, and a view may have a dozen.

With fewer than its views need, Spark compiles the same code again in each epoch. Only a new session takes it.
"""

CODE_CACHE_ENTRIES = 10_000

DESCRIPTION = "spark.job.description"
"""The property of a job's tasks that Spark's pages show."""

BATCH_BYTES, UNLIMITED = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)
"""The limit of the bytes of a batch that a Python worker gets: a property of a job, not of a session.

To heed it, Spark adds up the sizes of all columns for each row, which took half of its time.
"""

WORKER_DAEMON = "spark.python.daemon.module"
"""The module of the process that Python workers are forked from; the Python that runs it must have this package."""

OF_SQL = "sql_udf"
"""What Spark calls a function of `CREATE TEMPORARY FUNCTION`."""

_LOCAL = {
    "spark.app.name": "eddyline",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    ZONE: "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.sort.bypassMergeThreshold": "400",
    "spark.buffer.pageSize": "2m",  # else 32 MB for each sort, aggregation and join, however few rows
    "spark.log.level": "ERROR",
    INTERRUPT: "false",
    CODE_CACHE: str(CODE_CACHE_ENTRIES),
}

EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
# It moves subqueries of a SELECT below the LIMIT that it reads, where they become joins, under which Spark drops ORDER BY.
_LOSES_ORDER = f"{_OPTIMIZER}PushProjectionThroughLimitAndOffset"
# Equal global aggregates would become one subquery, whose first result a copy of the plan keeps.
_MERGES = (
    "org.apache.spark.sql.execution.planmerging.MergeSubplans",
    f"{_OPTIMIZER}MergeScalarSubqueries",
)

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_INT_MAX = 2**31 - 1

# Settings of the session in which an engine runs its epochs.
_EPOCHS = {
    INTERRUPT: "false",
    "spark.sql.adaptive.enabled": "false",  # would coalesce buckets and prune stateful branches
    # what limits a batch where its bytes don't
    BATCH_ROWS: "16384",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # a sum over a moving frame would depend on where in its partition the frame lies: see `operators/neighbours.py`
    "spark.sql.window.segmentTree.enabled": "false",
    # a union of one-task inputs would be one task itself, and a GROUP BY over it get no shuffle
    "spark.sql.unionOutputPartitioning": "false",
    # a copy of a plan (see Catalyst.run) would reuse the exchanges of the plan it was copied from
    "spark.sql.exchange.reuse": "false",
    EXCLUDED_RULES: ",".join((_LOSES_ORDER, *_MERGES)),
}

_activation = threading.RLock()
"""Held while PySpark's own note of the active session, one for all threads, may be that of an engine."""

# the Spark applications whose workers can load this package
_checked: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def local_session(zone: str = "", fixed: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session that is active, else the default one, else a new one on all local cores.

    A new session listens on loopback only, and what the user's `spark-defaults.conf` sets stays as it is. An existing
    session is used without a change.

    Args:
        zone: time zone of a new session; empty for UTC.
        fixed: more settings of a new session: those that its storage was made with.
    """
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # not public in PySpark
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    given = given_settings()
    java = java_settings(logging_options(), compiler_options(), archive_options())
    # another Python may lack this package, which is an error of its own
    same = os.environ["PYSPARK_PYTHON"] == sys.executable
    daemon = {WORKER_DAEMON: "eddyline.spark.worker_daemon"} if same else {}
    ours = {n: value for n, value in (_LOCAL | java | daemon).items() if n not in given}
    settings = ours | ({ZONE: zone} if zone else {}) | dict(fixed or {})
    start_jvm(settings)
    master = given.get("spark.master", "")
    builder = SparkSession.builder.master(master if master.startswith("local") else "local[*]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cores(session: SparkSession | None) -> int:
    """Return how many tasks run at once in a session; None for the one that `local_session` would return."""
    context = session.sparkContext if session else SparkContext._active_spark_context  # noqa: SLF001
    return context.defaultParallelism if context else len(os.sched_getaffinity(0))


def check_workers(session: SparkSession) -> None:
    """Raise EngineError if Spark's Python workers can't load this package.

    Runs a small Spark job once in each Spark application; none if the workers run the Python of
    this process.
    """
    context = session.sparkContext
    same = str(context.master).startswith("local") and context.pythonExec == sys.executable
    if same or context in _checked:
        return
    try:
        context.parallelize([0], 1).map(_loads).collect()
    except PySparkException as error:
        cause = [line for line in str(error).splitlines() if "Error: " in line]
        raise EngineError(
            f"Python workers of Spark can't load eddyline: {cause[-1] if cause else error}",
            condition="WORKERS_LACK_PACKAGE",
            hint="set PYSPARK_PYTHON, or spark.pyspark.python, to a Python in which eddyline is "
            "installed, before the session is made",
            python=context.pythonExec,
        ) from error
    _checked.add(context)


def registered_functions(session: SparkSession) -> set[str]:
    """Return the names of the functions that were registered in a session, in lower case."""
    catalog = session._jsparkSession.sessionState().catalog()  # noqa: SLF001  # not public in PySpark
    listed: str = catalog.listTemporaryFunctions().mkString("\n")
    return set(listed.lower().splitlines())


def own_functions(session: SparkSession, names: Iterable[str]) -> set[str]:
    """Return of what kinds those of these functions are that were registered in a session: `OF_SQL`, `python_udf` ..."""
    scala, identifier = scala_of(session), "org.apache.spark.sql.catalyst.FunctionIdentifier"
    catalog = session._jsparkSession.sessionState().catalog()  # noqa: SLF001  # not public in PySpark
    found = (scala.new(identifier, name) for name in registered_functions(session) & set(names))
    return {catalog.lookupFunctionInfo(one).getSource() for one in found}


def _loads(_: int) -> bool:
    """Load what epochs need, in a worker."""
    return all(map(importlib.import_module, ("pyarrow", "polars", "eddyline.operators")))


def cloned(session: SparkSession, **settings: str) -> SparkSession:
    """Return a session with the same functions, views and settings, except the given settings.

    A rule of Spark's optimiser that gives wrong results is off.
    """
    # PySpark has no public call for it
    jvm_session = session._jsparkSession.cloneSession()  # noqa: SLF001
    twin = SparkSession(session.sparkContext, jvm_session)
    for name, value in settings.items():
        twin.conf.set(name, value)
    excluded = twin.conf.get(EXCLUDED_RULES, "") or ""
    if _LOSES_ORDER not in excluded:
        twin.conf.set(EXCLUDED_RULES, f"{excluded},{_LOSES_ORDER}".lstrip(","))
    return twin


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread during the context."""
    sessions = scala_of(session).static("org.apache.spark.sql.SparkSession")
    with _activation:
        before, wrapper = sessions.getActiveSession(), SparkSession._activeSession  # noqa: SLF001
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        with _activation:
            SparkSession._activeSession = wrapper  # noqa: SLF001
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def task_settings(session: SparkSession) -> Any:
    """Return the settings of a session as the `java.util.Properties` that tasks read."""
    scala = scala_of(session)
    converters = scala.static("scala.jdk.javaapi.CollectionConverters")
    found = scala.new("java.util.Properties")
    conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001  # not public in PySpark
    found.putAll(converters.asJava(conf.getAllConfs()))
    return found


@contextmanager
def given_to_tasks(session: SparkSession, *settings: Any) -> Iterator[None]:
    """Pass settings to the tasks of this thread's jobs, as Spark does for the tasks of a query.

    Some expressions read them while they run: a RANGE frame reads the time zone.

    Args:
        settings: maps of names and values; later maps win.
    """
    context = session.sparkContext._jsc.sc()  # noqa: SLF001  # not public in PySpark
    before = context.getLocalProperties()
    given = before.clone()
    for one in settings:
        given.putAll(one)
    context.setLocalProperties(given)
    try:
        yield
    finally:
        context.setLocalProperties(before)


def frame(session: SparkSession, data: Any, schema: StructType | str) -> DataFrame:
    """Return a DataFrame of local rows; the user's active session stays the active one.

    `SparkSession.createDataFrame` makes its own session the active one, which is wrong for an
    engine's: the user's next `getActiveSession()` would return a session with its settings. Threads do it
    one after the other, or one would put back the session of another one.
    """
    if isinstance(data, pa.Table):
        data = data.combine_chunks()  # PySpark loses the rows behind an empty chunk
    with _activation, active(session), _limited_batches(session):
        return session.createDataFrame(data, schema)


@contextmanager
def _limited_batches(session: SparkSession) -> Iterator[None]:
    """Let PySpark make DataFrames of Arrow tables in a session without a limit of rows, where it fails otherwise."""
    given = str(session.conf.get(BATCH_ROWS))
    unlimited = int(given) <= 0
    if unlimited:
        session.conf.set(BATCH_ROWS, str(_INT_MAX))
    try:
        yield
    finally:
        if unlimited:
            session.conf.set(BATCH_ROWS, given)


def held_frame(session: SparkSession, rows: Any, schema: StructType) -> DataFrame:
    """Return a DataFrame that holds rows, which Spark reads when it is run.

    What `frame` returns Spark's optimiser evaluates: the SELECT over all rows, and so also errors in rows that a WHERE
    leaves out, or of columns that nothing reads.
    """
    # PySpark has no public call for it
    local = frame(session, rows, schema)._jdf  # noqa: SLF001
    # with the size of the local rows, by which Spark chooses joins, and Eddyline where rows are written
    over = scala_of(session).object("org.apache.spark.sql.execution.LogicalRDD").fromDataset
    arguments = (local.queryExecution().toRdd(), local, False)
    try:
        plan = over(*arguments, False)  # Spark 4.3 has one argument more
    except Py4JError:
        plan = over(*arguments)
    return frame_over(session, plan)


def frame_over(session: SparkSession, plan: Any) -> DataFrame:
    """Return a DataFrame over a logical plan of Spark's."""
    datasets = scala_of(session).object("org.apache.spark.sql.classic.Dataset")
    return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)  # noqa: SLF001


def zone_of(session: SparkSession) -> str:
    """Return the time zone of a session."""
    return session.conf.get(ZONE) or "UTC"


def storage_zone(session: SparkSession, stored: str) -> str:
    """Return the time zone of a storage: the stored one, or the session's for a new storage.

    Raises:
        EngineError: the session's days begin at other times than the storage's; or its zone
            isn't an IANA name, which Arrow and Python need.
    """
    own = zone_of(session)
    try:
        ZoneInfo(own)
    except (ValueError, ZoneInfoNotFoundError) as error:
        raise EngineError(
            f"the session's time zone {own} has no name that all parts know",
            condition="UNKNOWN_TIME_ZONE",
            hint="take a name of the IANA's, such as Asia/Kathmandu or Etc/GMT-5 (five hours ahead)",
        ) from error
    if stored in ("", own) or _rules(session, stored).equals(_rules(session, own)):
        return stored or own
    raise EngineError(
        f"the storage is kept in the time zone {stored}, the session is in {own}",
        condition="TIME_ZONE_DIFFERS",
        hint=f"spark.conf.set('{ZONE}', '{stored}') before you open it; or make another storage",
    )


def _rules(session: SparkSession, zone: str) -> Any:
    """Return the offsets and transitions of a time zone, as Spark interprets its name."""
    times = scala_of(session).static("org.apache.spark.sql.catalyst.util.DateTimeUtils")
    return times.getZoneId(zone).getRules()


def epoch_session(
    session: SparkSession, buckets: int, zone: str, settings: Mapping[str, str]
) -> SparkSession:
    """Return the session in which an engine compiles and runs its plans.

    Args:
        settings: the settings of the storage that results depend on.
    """
    twin = cloned(session, **settings, **{ZONE: zone})
    for name, value in {**_EPOCHS, "spark.sql.shuffle.partitions": str(buckets)}.items():
        twin.conf.set(name, value)
    return twin


def numbers(session: SparkSession, count: int) -> DataFrame:
    """Return a DataFrame of `count` tasks with one row each: the number of the task, from 0."""
    rows = session.range(0, max(count, 1), 1, max(count, 1))
    return rows if count else rows.where("false")
