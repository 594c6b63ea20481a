"""The interface of the databases that can hold a catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]

Execute = Callable[[str, Sequence[object]], list[Row]]
"""Runs a SQL statement with values for each `?`, and returns its rows."""

TRY_AGAIN = "mend the cause and make the same call again: nothing is half written"
"""The hint of CATALOG_UNAVAILABLE."""


class Database(Protocol):
    """A database that runs transactions for the store of the catalog.

    It raises StorageError CATALOG_UNAVAILABLE if the database can't be used, and StateError
    DAMAGED_FILE if it is damaged.
    """

    name: str
    """The file of the storage that shows where the catalog is."""
    shared: bool
    """Whether several storages can be in it."""

    def transaction(self, *, write: bool) -> AbstractContextManager[Execute]:
        """Return the context of a transaction; it commits when the context ends without an error."""

    def empty(self) -> bool:
        """Return whether nothing was ever written to it."""

    def close(self) -> None:
        """Close its connections; the next transaction opens new ones."""
