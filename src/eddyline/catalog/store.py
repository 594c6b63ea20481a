"""The store of the catalog and of requests to the engine, in a database.

Both databases, SQLite and PostgreSQL, run the same SQL; `?` stands for a value. Each row holds the
id of its storage, because several storages can share a PostgreSQL database.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.database import Database, Execute, Row
from eddyline.catalog.entries import SINK, Entry
from eddyline.catalog.postgres import POINTER, PostgresDatabase
from eddyline.catalog.requests import DONE, WAITING, Request
from eddyline.catalog.sqlite import NAME, SqliteDatabase
from eddyline.errors import CatalogError, StateError, StorageError
from eddyline.storage.files import Files, damaged
from eddyline.storage.os_errors import storage_errors

FORMAT_VERSION = 4
"""Format 2 had no sinks."""
DOCUMENT = "catalog.json"
"""The file that held the catalog in format 1."""

ANSWERS_KEPT = 1000
_NUMBERS_END = 1 << 63  # of the databases

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
_REQUEST = ", ".join(item.name for item in fields(Request))

# one statement, so that it reads one version of the catalog
_READ = f"""
    SELECT s.format, s.buckets, s.next_id, s.version, s.checksum,
           {", ".join(f"e.{name}" for name in COLUMNS)}
    FROM eddyline_storages s LEFT JOIN eddyline_entries e ON e.storage = s.storage
    WHERE s.storage = ? ORDER BY e.place
"""


class CatalogStore:
    """The catalog of one storage, and the requests to its engine.

    Attributes:
        certain: False while it is unknown whether the last write was committed.
    """

    def __init__(self, files: Files, database: Database) -> None:
        self.files = files
        self.database = database
        self.certain = True
        self._id = ""
        self._known: tuple[int, Catalog] | None = None

    @property
    def name(self) -> str:
        """The file of the storage that holds the catalog, or refers to its database."""
        return self.database.name

    def read(self) -> Catalog | None:
        """Return the catalog; None in a new storage.

        While the catalog is unchanged, every call returns the same object.

        Raises:
            StateError: it is damaged, or of a newer format.
            StorageError: the database can't be read.
        """
        if self._unwritten():
            return _read_document(self.files)
        storage = self._storage()
        with self.database.transaction(write=False) as execute:
            head = execute(
                "SELECT format, version FROM eddyline_storages WHERE storage = ?", [storage]
            )
            if head and head[0][0] > FORMAT_VERSION:
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
        """Replace the catalog, in one transaction.

        Args:
            answers: number of a request that this transaction marks as done.

        Raises:
            StateError: another engine has changed it since it was read.
        """
        storage = self._storage(make=True)
        known = self._known[0] if self._known else 0
        rows = [_as_row(entry) for entry in (*catalog.entries, *catalog.sinks)]
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
        """Whether the storage still has a catalog of format 1; the next write replaces it."""
        return self.files.exists(DOCUMENT)

    # -- requests ----------------------------------------------------------------------------

    def add_request(self, action: str, name: str, query: str = "") -> int:
        """Store a request to the engine.

        Returns:
            The number of the request.
        """
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
        """Return the unanswered requests, in their order."""
        return self._requests("state = ?", WAITING)

    def request(self, number: int) -> Request:
        """Return a request by its number; CatalogError NOT_FOUND if it isn't kept."""
        found = self._requests("number = ?", number) if number < _NUMBERS_END else None
        if not found:
            raise CatalogError(
                f"there is no request {number}",
                condition="NOT_FOUND",
                hint=f"the last {ANSWERS_KEPT:,} of a storage are kept",
            )
        return found[0]

    def requests(self, last: int) -> list[Request]:
        """Return the last requests, answered or not, the newest first.

        Args:
            last: how many at most.
        """
        if self._unwritten():
            return []
        with self.database.transaction(write=False) as execute:
            rows = execute(
                f"SELECT {_REQUEST} FROM eddyline_requests WHERE storage = ? ORDER BY number DESC LIMIT ?",
                [self._storage(), last],
            )
        return [Request(*row) for row in rows]

    def settle(self, number: int, state: str, message: str = "") -> None:
        """Answer a request, unless it is answered already."""
        storage = self._storage()
        with self._writing() as execute:
            _settle(execute, storage, number, state, message)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self.database.close()

    # -- internals ---------------------------------------------------------------------------

    def _requests(self, where: str, value: object) -> list[Request]:
        if self._unwritten():
            return []
        query = f"SELECT {_REQUEST} FROM eddyline_requests WHERE storage = ? AND {where}"
        with self.database.transaction(write=False) as execute:
            rows = execute(f"{query} ORDER BY number", [self._storage(), value])
        return [Request(*row) for row in rows]

    @contextmanager
    def _writing(self, *, catalog: bool = False) -> Iterator[Execute]:
        """Run a transaction that writes; its commit passes through `Files`, like all other effects on the disk."""
        with self.database.transaction(write=True) as execute:
            yield execute
            with storage_errors(self.name):
                self.files.step("commit", self.name)
            if catalog:  # a request may be answered in another thread meanwhile
                self.certain = False
        with storage_errors(self.name):
            self.files.step("committed", self.name)

    def _storage(self, *, make: bool = False) -> str:
        """Return the id of the storage in a shared database; empty in SQLite, or if it has none yet."""
        if self.database.shared and not self._id:
            if make and not self.files.exists(POINTER):
                self.files.write_json(POINTER, {"storage": uuid.uuid4().hex})
            if self.files.exists(POINTER):
                self._id = str(self.files.read_json(POINTER)["storage"])
        return self._id

    def _unwritten(self) -> bool:
        return self._known is None and self.database.empty()

    def _checked(self, rows: list[Row]) -> tuple[int, Catalog]:
        form, buckets, next_id, version, checksum = rows[0][:5]
        entries = [row[5:] for row in rows if row[5] is not None]
        if checksum != _checksum((form, buckets, next_id, version), entries):
            raise damaged(self.name, "the catalog doesn't match its checksum")
        found = [_as_entry(row) for row in entries]
        relations = tuple(entry for entry in found if entry.kind != SINK)
        sinks = tuple(entry for entry in found if entry.kind == SINK)
        return version, Catalog(buckets, relations, next_id, sinks)


def open_store(files: Files, url: str = "") -> CatalogStore:
    """Open the store of a storage's catalog.

    Args:
        url: URL of a PostgreSQL database; empty for SQLite in the storage.

    Raises:
        StorageError: the catalog of the storage is in the other kind of database.
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
    """Return the catalog of format 1; None if there is none."""
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
