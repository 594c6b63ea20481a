"""The catalog in a PostgreSQL database, which several storages may share."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from eddyline.catalog.database import TRY_AGAIN, Execute, Row
from eddyline.errors import EngineError, StorageError, missing_package, without_secrets

if TYPE_CHECKING:
    import psycopg

_LOG = logging.getLogger("eddyline.engine")

POINTER = "postgresql.json"
"""The file of a storage with its id in PostgreSQL; only there if the catalog is."""

CONNECT_S = 10
STATEMENT_MS = 30_000
SILENT_S = 40.0
"""After so long a server is given up that doesn't even end a statement at `STATEMENT_MS`, such as one that is frozen."""
LIVENESS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Limits, in seconds and milliseconds, after which a server that can't be reached any more is an error."""
CREATION_LOCK = 0x6564_6479
"""The advisory lock under which the tables are created."""


class PostgresDatabase:
    """A database on a PostgreSQL server. None of its error messages contains the password."""

    name = POINTER
    shared = True

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError as error:
            raise missing_package("a catalog in PostgreSQL", "psycopg", "postgres") from error
        self._psycopg = psycopg
        try:
            settings: dict[str, Any] = {"connect_timeout": CONNECT_S, **LIVENESS}
            settings |= conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # its message may quote the password
            raise EngineError(
                "the option catalog is not a URL that PostgreSQL's client can read",
                condition="BAD_OPTION",
                hint="write postgresql://user:password@host:port/database, special letters as %XX",
            ) from None
        self._password = str(settings.get("password") or "")
        self._settings = conninfo.make_conninfo(**settings)
        self._connection: psycopg.Connection | None = None
        self._lock = threading.RLock()
        self._watchdog: _Watchdog | None = None

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Execute]:
        with self._lock, self._translated_errors(), ExitStack() as stack:
            if self._watchdog is None:
                self._watchdog = _Watchdog(self._hang_up)
            stack.enter_context(self._watchdog.watching())
            connection = self._begin(stack)

            def execute(sql: str, values: Sequence[object]) -> list[Row]:
                if sql.startswith("CREATE TABLE"):  # two at once would fail
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATION_LOCK])
                cursor = connection.execute(sql.replace("?", "%s").encode(), values)
                return cursor.fetchall() if cursor.description else []

            yield execute

    def empty(self) -> bool:
        with self.transaction(write=False) as execute:
            return execute("SELECT to_regclass('eddyline_requests')", []) == [(None,)]

    def close(self) -> None:
        with self._lock:
            self._disconnect()
            if self._watchdog is not None:
                self._watchdog.stop()
                self._watchdog = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _begin(self, stack: ExitStack) -> psycopg.Connection:
        """Begin a transaction; open a new connection where the old one is broken."""
        if self._connection is not None:
            try:
                stack.enter_context(self._connection.transaction())
                return self._connection
            except self._psycopg.OperationalError:
                self._disconnect()
        connection = self._connection = self._psycopg.connect(self._settings, autocommit=True)
        connection.execute(f"SET statement_timeout = {STATEMENT_MS}".encode())
        stack.enter_context(connection.transaction())
        return connection

    def _hang_up(self) -> None:
        """Shut the connection down, on which the call that waits for an answer then fails."""
        if self._connection is not None and not self._connection.closed:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as connected:
                connected.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors of PostgreSQL's client into StorageError, without the password."""
        try:
            yield
        except self._psycopg.Error as error:
            self._disconnect()
            text = without_secrets(" ".join(str(error).split()), [self._password])
            raise StorageError(
                f"the catalog's PostgreSQL database can't be used: {text}",
                condition="CATALOG_UNAVAILABLE",
                hint=TRY_AGAIN,
            ) from None


class _Watchdog:
    """A thread that calls a function, once, when a context takes longer than `SILENT_S`.

    PostgreSQL's client itself waits for an answer without a limit, and the limits of TCP don't notice a frozen
    server, whose system still acknowledges packets.

    Args:
        act: a method of an object; the thread ends with it.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = weakref.WeakMethod(act)
        self._lock = threading.Lock()
        self._until: float | None = None  # when the context that runs has taken too long
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="eddyline-catalog", daemon=True).start()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the context; one after the other."""
        with self._lock:
            self._until = time.monotonic() + SILENT_S
        try:
            yield
        finally:
            with self._lock:
                self._until = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        pause_s = SILENT_S
        while not self._stopped.wait(pause_s) and (act := self._act()) is not None:
            with self._lock:
                # a context that begins later takes no less than that, so that none has to wake this thread
                pause_s = SILENT_S
                if self._until is not None and (pause_s := self._until - time.monotonic()) <= 0:
                    try:
                        act()
                    except Exception:  # noqa: BLE001  # the connection may just have been closed
                        _LOG.exception("a call of the catalog's database could not be ended")
                    self._until, pause_s = None, SILENT_S
            del act
