"""Where the catalog is kept: a database, with what other processes ask of the engine.

SQLite in the storage by default, or PostgreSQL, which several storages may share: each row says
whose it is. Both speak the SQL below; `?` stands for a value.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from eddyline.catalog.entries import Catalog, Entry
from eddyline.errors import EngineError, StateError, StorageError
from eddyline.storage.files import Files, damaged, storage_errors

if TYPE_CHECKING:
    import psycopg

FORMAT_VERSION = 2
NAME = "catalog.db"
POINTER = "postgresql.json"
"""Says under which id a storage is known to PostgreSQL; only there if its catalog is."""
DOCUMENT = "catalog.json"
"""The catalog of format 1."""

ANSWERS_KEPT = 1000
WAITING, DONE, REFUSED = "waiting", "done", "refused"

TABLES = (
    """CREATE TABLE IF NOT EXISTS eddyline_storages (
        storage TEXT PRIMARY KEY,
        format BIGINT NOT NULL,
        buckets BIGINT NOT NULL,
        next_id BIGINT NOT NULL,
        version BIGINT NOT NULL,
        checksum BIGINT NOT NULL,
        asked BIGINT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS eddyline_entries (
        storage TEXT NOT NULL,
        place BIGINT NOT NULL,
        id TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        schema TEXT NOT NULL,
        key TEXT NOT NULL,
        query TEXT NOT NULL,
        upstream TEXT NOT NULL,
        format TEXT NOT NULL,
        options TEXT NOT NULL,
        operation TEXT NOT NULL,
        since BIGINT NOT NULL,
        event_time TEXT NOT NULL,
        delay BIGINT NOT NULL,
        late_of TEXT NOT NULL,
        final BIGINT NOT NULL,
        result TEXT NOT NULL,
        paused BIGINT NOT NULL,
        paused_with TEXT NOT NULL,
        PRIMARY KEY (storage, id)
    )""",
    """CREATE TABLE IF NOT EXISTS eddyline_requests (
        storage TEXT NOT NULL,
        number BIGINT NOT NULL,
        action TEXT NOT NULL,
        name TEXT NOT NULL,
        query TEXT NOT NULL,
        asked_at TEXT NOT NULL,
        state TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (storage, number)
    )""",
)
"""The schema. `key`, `upstream` and `options` hold JSON; `asked_at` is ISO 8601 in UTC."""

COLUMNS = tuple(item.name for item in fields(Entry))
_DOCUMENTS = ("key", "upstream", "options")
_FLAGS = ("final",)

# one statement, so that it sees one version of the catalog
_READ = f"""
    SELECT s.format, s.buckets, s.next_id, s.version, s.checksum,
           {", ".join(f"e.{name}" for name in COLUMNS)}
    FROM eddyline_storages s LEFT JOIN eddyline_entries e ON e.storage = s.storage
    WHERE s.storage = ? ORDER BY e.place
"""

Row = tuple[Any, ...]
Execute = Callable[[str, Sequence[object]], list[Row]]


@dataclass(frozen=True, slots=True)
class Request:
    """What a process asks of the engine that runs.

    Attributes:
        number: counts the requests of a storage from 1 on; they are answered in this order.
        action: add, pause, resume or drop.
        query: SQL of a view to add.
        asked_at: time, ISO 8601 in UTC.
        state: waiting, done or refused.
        message: why it was refused.
    """

    number: int
    action: str
    name: str
    query: str
    asked_at: str
    state: str = WAITING
    message: str = ""


class Database(Protocol):
    """Runs transactions."""

    name: str
    """The file that stands for it in the storage."""
    shared: bool
    """Whether other storages may be in it."""

    def transaction(self, *, write: bool) -> AbstractContextManager[Execute]:
        """A context that gives an `Execute`; what it wrote is committed when the context ends."""

    def empty(self) -> bool:
        """Whether nothing was ever written to it."""

    def close(self) -> None:
        """Give its connections back; the next transaction makes new ones."""


class CatalogStore:
    """The catalog of one storage, and the requests to the engine that runs it.

    Attributes:
        certain: false after a write of which it is not known whether it was committed.
    """

    def __init__(self, files: Files, database: Database) -> None:
        self.files = files
        self.database = database
        self.certain = True
        self._id = ""
        self._known: tuple[int, Catalog] | None = None

    @property
    def name(self) -> str:
        """The file of the storage that is missing where `read` finds nothing."""
        return self.database.name

    def read(self) -> Catalog | None:
        """The catalog; None in a new storage.

        As long as it hasn't changed this gives the same object.

        Raises:
            StateError: it is damaged, or of a newer format.
            StorageError: the database can't be read.
        """
        if self._blank():
            return _read_document(self.files)
        storage = self._storage()
        with self.database.transaction(write=False) as execute:
            head = execute(
                "SELECT format, version FROM eddyline_storages WHERE storage = ?", [storage]
            )
            if head and head[0][0] != FORMAT_VERSION:
                raise _newer(head[0][0], self.name)
            if head and self._known is not None and head[0][1] == self._known[0]:
                return self._known[1]
            rows = execute(_READ, [storage])
        if not rows:
            return _read_document(self.files)
        self._known = self._checked(rows)
        self.certain = True
        return self._known[1]

    def write(self, catalog: Catalog, answers: int | None = None) -> None:
        """Put a catalog in the place of the one before, in one transaction.

        Args:
            answers: number of a request that is done by this.

        Raises:
            StateError: another engine has changed it since it was read.
        """
        storage = self._storage(make=True)
        known = self._known[0] if self._known else 0
        rows = [_as_row(entry) for entry in catalog.entries]
        head = (FORMAT_VERSION, catalog.buckets, catalog.next_id, known + 1)
        checksum = _checksum(head, rows)
        names = ", ".join(COLUMNS)
        marks = ", ".join("?" * len(COLUMNS))
        with self._writing(catalog=True) as execute:
            if not known:
                for table in TABLES:
                    execute(table, [])
                execute(
                    "INSERT INTO eddyline_storages VALUES (?, ?, ?, ?, ?, ?, 0)",
                    [storage, *head, checksum],
                )
            elif not execute(
                "UPDATE eddyline_storages SET format = ?, buckets = ?, next_id = ?, version = ?,"
                " checksum = ? WHERE storage = ? AND version = ? RETURNING version",
                [*head, checksum, storage, known],
            ):
                raise StateError(
                    "another engine has changed the catalog of this storage",
                    condition="CATALOG_CHANGED",
                    file=self.name,
                    hint="a copy of a storage needs a catalog of its own; open the right one again",
                )
            execute("DELETE FROM eddyline_entries WHERE storage = ?", [storage])
            for place, row in enumerate(rows):
                execute(
                    f"INSERT INTO eddyline_entries (storage, place, {names}) VALUES (?, ?, {marks})",
                    [storage, place, *row],
                )
            if answers is not None:
                _settle(execute, storage, answers, DONE, "")
        self._known = (known + 1, catalog)
        self.certain = True
        if self.files.exists(DOCUMENT):
            self.files.remove(DOCUMENT)

    @property
    def outdated(self) -> bool:
        """Whether the storage still has the catalog of format 1, which the next write replaces."""
        return self.files.exists(DOCUMENT)

    # -- requests ----------------------------------------------------------------------------

    def ask(self, action: str, name: str, query: str = "") -> int:
        """Leave a request for the engine; its number."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        storage = self._storage()
        with self._writing() as execute:
            [(number,)] = execute(
                "UPDATE eddyline_storages SET asked = asked + 1 WHERE storage = ? RETURNING asked",
                [storage],
            )
            execute(
                "INSERT INTO eddyline_requests VALUES (?, ?, ?, ?, ?, ?, ?, '')",
                [storage, number, action, name, query, now, WAITING],
            )
            execute(
                "DELETE FROM eddyline_requests WHERE storage = ? AND number <= ? AND state <> ?",
                [storage, number - ANSWERS_KEPT, WAITING],
            )
        return int(number)

    def waiting(self) -> list[Request]:
        """The requests that nobody has answered yet, in their order."""
        return self._requests("state = ?", WAITING)

    def request(self, number: int) -> Request:
        """One request."""
        return self._requests("number = ?", number)[0]

    def settle(self, number: int, state: str, message: str = "") -> None:
        """Answer a request, unless it has its answer."""
        storage = self._storage()
        with self._writing() as execute:
            _settle(execute, storage, number, state, message)

    def close(self) -> None:
        """Give the connections back; the next call makes new ones."""
        self.database.close()

    # -- inside ------------------------------------------------------------------------------

    def _requests(self, where: str, value: object) -> list[Request]:
        if self._blank():
            return []
        names = ", ".join(item.name for item in fields(Request))
        query = f"SELECT {names} FROM eddyline_requests WHERE storage = ? AND {where}"
        with self.database.transaction(write=False) as execute:
            rows = execute(f"{query} ORDER BY number", [self._storage(), value])
        return [Request(*row) for row in rows]

    @contextmanager
    def _writing(self, *, catalog: bool = False) -> Iterator[Execute]:
        """A transaction whose commit is an effect that tests can count, and make fail."""
        with self.database.transaction(write=True) as execute:
            yield execute
            with storage_errors(self.name):
                self.files.step("commit", self.name)
            self.certain = self.certain and not catalog
        with storage_errors(self.name):
            self.files.step("committed", self.name)

    def _storage(self, *, make: bool = False) -> str:
        """The id of the storage in its database; empty where it has one of its own, or none yet."""
        if self.database.shared and not self._id:
            if make and not self.files.exists(POINTER):
                self.files.write_json(POINTER, {"storage": uuid.uuid4().hex})
            if self.files.exists(POINTER):
                self._id = str(self.files.read_json(POINTER)["storage"])
        return self._id

    def _blank(self) -> bool:
        return self._known is None and self.database.empty()

    def _checked(self, rows: list[Row]) -> tuple[int, Catalog]:
        form, buckets, next_id, version, checksum = rows[0][:5]
        entries = [row[5:] for row in rows if row[5] is not None]
        if checksum != _checksum((form, buckets, next_id, version), entries):
            raise damaged(self.name, "the catalog doesn't match its checksum")
        return version, Catalog(buckets, tuple(map(_as_entry, entries)), next_id)


class SqliteDatabase:
    """A file in the storage, opened anew for each transaction."""

    name = NAME
    shared = False
    _BUSY_S = 30.0

    def __init__(self, files: Files) -> None:
        self._files = files
        self._path = quote(files.path(NAME))

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Execute]:
        with self._told(), closing(self._connect(write)) as connection:
            # EXTRA is FULL that also flushes the folder: a commit stays one in a power cut
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield lambda sql, values: connection.execute(sql, values).fetchall()
            connection.execute("COMMIT")

    def empty(self) -> bool:
        if not self._files.exists(NAME):
            return True
        with self.transaction(write=False) as execute:
            return not execute("SELECT name FROM sqlite_master LIMIT 1", [])

    def close(self) -> None:
        pass

    def _connect(self, write: bool) -> sqlite3.Connection:
        # a reader, too, has to take back what a writer that died has left half done
        mode = "rwc" if write else "rw"
        return sqlite3.connect(
            f"file:{self._path}?mode={mode}", uri=True, timeout=self._BUSY_S, isolation_level=None
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if re.match("SQLITE_(BUSY|CANTOPEN|FULL|IOERR|LOCKED|PERM|READONLY)", name):
                raise StorageError(
                    f"the catalog can't be reached: {error}",
                    condition="CATALOG_UNAVAILABLE",
                    file=NAME,
                    hint="mend the cause and make the same call again: nothing is half written",
                ) from error
            raise damaged(NAME, str(error)) from error


class PostgresDatabase:
    """A database on a PostgreSQL server. No text that it gives holds the password."""

    name = POINTER
    shared = True
    _CONNECT_S = 10
    _STATEMENT_MS = 30_000
    _MAKING = 0x6564_6479  # of the advisory lock under which the tables are made

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError as error:
            raise EngineError(
                "the catalog is to be in PostgreSQL, but its client is not installed",
                condition="MISSING_PACKAGE",
                hint="pip install 'eddyline[postgres]'",
            ) from error
        self._psycopg = psycopg
        try:
            known: dict[str, Any] = {"connect_timeout": self._CONNECT_S}
            known |= conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # its text may quote the password
            raise EngineError(
                "the option catalog is not a URL that PostgreSQL's client can read",
                condition="BAD_OPTION",
                hint="write postgresql://user:password@host:port/database, special letters as %XX",
            ) from None
        self._password = str(known.get("password") or "")
        self._settings = conninfo.make_conninfo(**known)
        self._connection: psycopg.Connection | None = None
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Execute]:
        with self._lock, self._told(), ExitStack() as stack:
            connection = self._begun(stack)

            def execute(sql: str, values: Sequence[object]) -> list[Row]:
                if sql.startswith("CREATE TABLE"):  # two at once would fail
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [self._MAKING])
                cursor = connection.execute(sql.replace("?", "%s").encode(), values)
                return cursor.fetchall() if cursor.description else []

            yield execute

    def empty(self) -> bool:
        with self.transaction(write=False) as execute:
            return execute("SELECT to_regclass('eddyline_requests')", []) == [(None,)]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _begun(self, stack: ExitStack) -> psycopg.Connection:
        """A connection in a transaction; a new one where the old one has broken off meanwhile."""
        if self._connection is not None:
            try:
                stack.enter_context(self._connection.transaction())
                return self._connection
            except self._psycopg.OperationalError:
                self.close()
        connection = self._connection = self._psycopg.connect(self._settings, autocommit=True)
        connection.execute(f"SET statement_timeout = {self._STATEMENT_MS}".encode())
        stack.enter_context(connection.transaction())
        return connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            self.close()
            text = " ".join(str(error).split())
            if self._password:
                text = text.replace(self._password, "***")
            raise StorageError(
                f"the catalog's PostgreSQL database can't be used: {text}",
                condition="CATALOG_UNAVAILABLE",
                hint="mend the cause and make the same call again: nothing is half written",
            ) from None


def open_store(files: Files, url: str = "") -> CatalogStore:
    """The store of a storage's catalog.

    Args:
        url: of a PostgreSQL database; empty for SQLite in the storage.

    Raises:
        StorageError: the storage has its catalog elsewhere.
    """
    if files.exists(NAME if url else POINTER):
        where, hint = (
            (f"in its file {NAME}", "leave the option catalog (EDDYLINE_CATALOG) out")
            if url
            else ("in PostgreSQL", "set EDDYLINE_CATALOG to the URL of that database")
        )
        raise StorageError(
            f"the catalog of this storage is {where}",
            condition="CATALOG_ELSEWHERE",
            hint=hint,
            storage=files.root,
        )
    return CatalogStore(files, PostgresDatabase(url) if url else SqliteDatabase(files))


def _settle(execute: Execute, storage: str, number: int, state: str, message: str) -> None:
    execute(
        "UPDATE eddyline_requests SET state = ?, message = ?"
        f" WHERE storage = ? AND number = ? AND state = '{WAITING}'",
        [state, message, storage, number],
    )


def _as_row(entry: Entry) -> Row:
    values = asdict(entry)
    values |= {name: json.dumps(values[name]) for name in _DOCUMENTS}
    values |= {name: int(values[name]) for name in _FLAGS}
    return tuple(values.values())


def _as_entry(row: Row) -> Entry:
    values = dict(zip(COLUMNS, row, strict=True))
    values |= {name: json.loads(values[name]) for name in _DOCUMENTS}
    values |= {name: bool(values[name]) for name in _FLAGS}
    return _entry(values)


def _entry(values: dict[str, Any]) -> Entry:
    entry = Entry(**values)
    return replace(entry, key=tuple(entry.key), upstream=tuple(entry.upstream))


def _checksum(head: Row, rows: Sequence[Row]) -> int:
    return zlib.crc32(repr((tuple(head), [tuple(row) for row in rows])).encode())


def _read_document(files: Files) -> Catalog | None:
    """The catalog of format 1; None if there is none."""
    if not files.exists(DOCUMENT):
        return None
    document = files.read_json(DOCUMENT)
    if document["format"] > 1:
        raise _newer(document["format"], DOCUMENT)
    entries = tuple(_entry(item) for item in document["entries"])
    return Catalog(document["buckets"], entries, document["next_id"])


def _newer(form: int, name: str) -> StateError:
    return StateError(
        f"the catalog has format {form}, this version reads {FORMAT_VERSION}",
        condition="NEWER_FORMAT",
        file=name,
        hint="use the newer version of Eddyline",
    )
