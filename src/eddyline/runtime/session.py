"""Spark sessions: a tuned local one by default, and an engine's own beside the user's."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

_LOCAL = {
    "spark.app.name": "eddyline",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.sort.bypassMergeThreshold": "400",
    "spark.log.level": "ERROR",
}

# Of the session in which an engine runs its epochs.
_EPOCHS = {
    "spark.sql.adaptive.enabled": "false",  # would coalesce buckets and prune stateful branches
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # a copy of a plan (see Catalyst.run) would reuse the exchanges of the plan it was copied from
    "spark.sql.exchange.reuse": "false",
    # equal global aggregates would become one subquery, whose first result a copy of the plan keeps
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.execution.planmerging.MergeSubplans,"
    "org.apache.spark.sql.catalyst.optimizer.MergeScalarSubqueries",
}


def local_session() -> SparkSession:
    """The running session, or a new local one on all cores that listens on loopback only."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    builder = SparkSession.builder.master("local[*]")
    for name, value in _LOCAL.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cloned(session: SparkSession, **settings: str) -> SparkSession:
    """A session with the same functions, views and settings, and some settings of its own."""
    # pyspark has no public way to a session with the same functions and settings
    jvm_session = session._jsparkSession.cloneSession()  # noqa: SLF001
    twin = SparkSession(session.sparkContext, jvm_session)
    for name, value in settings.items():
        twin.conf.set(name, value)
    return twin


def epoch_session(session: SparkSession, buckets: int) -> SparkSession:
    """The session in which an engine compiles and runs its plans."""
    twin = cloned(session)
    for name, value in {**_EPOCHS, "spark.sql.shuffle.partitions": str(buckets)}.items():
        twin.conf.set(name, value)
    return twin
