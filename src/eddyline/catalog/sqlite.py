"""The catalog in SQLite: a file in the storage. The default."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from eddyline.catalog.database import TRY_AGAIN, Execute
from eddyline.errors import StorageError
from eddyline.storage.files import Files, damaged

NAME = "catalog.db"
BUSY_S = 30.0


class SqliteDatabase:
    """A SQLite file in the storage; each transaction opens and closes it."""

    name = NAME
    shared = False

    def __init__(self, files: Files) -> None:
        self._files = files
        self._path = quote(files.path(NAME))

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Execute]:
        with _translated_errors(), closing(self._connect(write)) as connection:
            # EXTRA is FULL that also flushes the folder: a commit survives a power cut
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
        # a reader, too, has to roll back what a crashed writer left behind
        mode = "rwc" if write else "rw"
        return sqlite3.connect(
            f"file:{self._path}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None
        )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate errors of SQLite into StorageError, or StateError for a damaged file."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if re.match("SQLITE_(BUSY|CANTOPEN|FULL|IOERR|LOCKED|PERM|READONLY)", name):
            raise StorageError(
                f"the catalog can't be reached: {error}",
                condition="CATALOG_UNAVAILABLE",
                file=NAME,
                hint=TRY_AGAIN,
            ) from error
        raise damaged(NAME, str(error)) from error
