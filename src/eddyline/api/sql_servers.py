"""JDBC, ODBC and Spark Connect clients read tables and views, through servers in the engine's JVM.

Both servers are Spark's own, from the package of PySpark. Each table and view of the storage is a view of Spark in its
database `default`, which all sessions of the JVM see. It reads the data source `eddyline`, so that each query
has the last epoch.
"""

from __future__ import annotations

import logging
import secrets
import socket
import tempfile
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, Entry
from eddyline.errors import EngineError
from eddyline.spark.failures import FAILURES
from eddyline.sql.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eddyline.api.workspace import Workspace

_LOG = logging.getLogger("eddyline.engine")

_DATABASES = (f"eddyline_{number}" for number in count(1))
"""Databases of the tables that the views in `default` read: a view alone can't have a data source's options."""

LOOPBACK = "127.0.0.1"


class Published:
    """The names of a storage in the catalog of Spark, which all sessions of a JVM share."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._session: SparkSession = workspace.spark.newSession()
        self._folder = tempfile.TemporaryDirectory(prefix="eddyline-names-")
        self._session_catalog: Any = self._session._jsparkSession.sessionState().catalog()  # noqa: SLF001
        self._catalog: Catalog | None = None  # that of the last update
        self._names: dict[str, str] = {}  # by name that is there the columns
        self._database = next(_DATABASES)
        self._create_database()
        workspace.closing.append(self.remove)

    def update(self) -> None:
        """Add, change and remove names so that they are those of the storage's tables and views.

        Names that a client has dropped come back.
        """
        dropped = self._dropped()
        for name in dropped:
            self._drop(name)
        catalog = self._workspace.catalog
        if catalog is self._catalog and not dropped:
            return
        self._catalog = catalog
        wanted = {e.name: _columns(e) for e in catalog.entries if e.kind != STREAM}
        for name in [name for name in self._names if self._names[name] != wanted.get(name)]:
            self._drop(name)
        storage = literal(self._workspace.files.root)
        for name in [name for name in wanted if name not in self._names]:
            table = f"{self._database}.{quoted(name)}"
            try:
                self._run(f"CREATE TABLE {table} ({wanted[name]}) USING eddyline")
                self._run(
                    f"CREATE VIEW default.{quoted(name)} AS SELECT * FROM {table} "
                    f"WITH ('path' = {storage}, 'view' = {literal(name)})"
                )
            except PySparkException as error:
                _LOG.warning("%s can't be read by SQL clients: %s", name, error.getCondition())
                self._run(f"DROP TABLE IF EXISTS {table}")
            else:
                self._names[name] = wanted[name]

    def remove(self) -> None:
        """Remove all names."""
        with suppress(*FAILURES, OSError):  # the JVM may be gone
            for name in list(self._names):
                self._drop(name)
            self._run(f"DROP DATABASE {self._database} CASCADE")
        self._folder.cleanup()

    def _dropped(self) -> list[str]:
        """Return the names that were added, and aren't there any more."""
        if not self._session_catalog.databaseExists(self._database):
            self._create_database()
        there = self._listed("default") & self._listed(self._database)
        return [name for name in self._names if name.lower() not in there]

    def _listed(self, database: str) -> set[str]:
        listed: str = self._session_catalog.listTables(database).mkString("\n")
        return {line.rpartition(".")[2].strip("`").lower() for line in listed.split("\n")}

    def _create_database(self) -> None:
        self._run(f"CREATE DATABASE {self._database} LOCATION {literal(self._folder.name)}")

    def _drop(self, name: str) -> None:
        del self._names[name]
        self._run(f"DROP VIEW IF EXISTS default.{quoted(name)}")
        self._run(f"DROP TABLE IF EXISTS {self._database}.{quoted(name)}")

    def _run(self, statement: str) -> None:
        self._session.sql(statement)


def start_thrift(workspace: Workspace, port: int) -> str:
    """Start Spark's Thrift server on loopback; return the JDBC address."""
    port = _free(port)
    jvm: Any = workspace.spark._jvm  # noqa: SLF001
    jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    configurator = jvm.org.apache.logging.log4j.core.config.Configurator
    off = jvm.org.apache.logging.log4j.Level.OFF  # clients get the errors of their queries
    configurator.setLevel("org.apache.spark.sql.hive.thriftserver", off)
    settings = workspace.spark._jsc.hadoopConfiguration()  # noqa: SLF001
    settings.set("hive.server2.thrift.bind.host", LOOPBACK)
    settings.set("hive.server2.thrift.port", str(port))
    server = jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    session = workspace.spark.newSession()._jsparkSession  # noqa: SLF001
    workspace.closing.append(server.startWithSparkSession(session, False).stop)
    return f"jdbc:hive2://{LOOPBACK}:{port}"


def start_connect(workspace: Workspace, port: int) -> str:
    """Start Spark Connect on loopback; return its address, with the token that clients need."""
    port, token = _free(port), secrets.token_urlsafe(16)
    context = workspace.spark._jsc.sc()  # noqa: SLF001
    settings = context.conf()
    settings.set("spark.connect.grpc.binding.address", LOOPBACK)
    settings.set("spark.connect.grpc.binding.port", str(port))
    settings.set("spark.connect.authenticate.token", token)
    jvm: Any = workspace.spark._jvm  # noqa: SLF001
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(context)
    none = jvm.scala.Option.empty()
    workspace.closing.append(lambda: service.stop(none, none))
    return f"sc://localhost:{port}/;token={token}"


def _columns(entry: Entry) -> str:
    """Return the columns of a table or view in Spark's DDL."""
    return ", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in entry.columns)


def _free(port: int) -> int:
    """Return a port of loopback that can be bound: the given one, or any if that is 0."""
    try:
        with socket.create_server((LOOPBACK, port)) as probe:
            found: int = probe.getsockname()[1]
            return found
    except OSError as error:
        raise EngineError(
            f"{LOOPBACK} port {port} can't be used: {error}",
            condition="NO_ADDRESS",
            hint="give another port, or 0 for any that is free",
        ) from error
