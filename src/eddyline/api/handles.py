"""What users hold of an engine's tables, streams and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.catalog.entries import STREAM, TABLE, VIEW
from eddyline.changes import APPEND, DELETE
from eddyline.errors import DataError
from eddyline.source.rows import Rows

if TYPE_CHECKING:
    from eddyline.api.engine import Engine


@dataclass(frozen=True, slots=True)
class Table:
    """A table fed by DML. What a call wrote is durable when the call returns."""

    engine: Engine
    name: str

    def insert(self, rows: Rows) -> None:
        """Append rows; with a primary key, a row takes the place of the one with its key.

        Args:
            rows: dicts, tuples, a pandas or Spark DataFrame, or a pyarrow Table.
        """
        self.engine.write(self.name, [(APPEND, rows)])

    def delete(self, rows: Rows) -> None:
        """Delete rows: by primary key, or one equal row each; what is not there is passed over."""
        self.engine.write(self.name, [(DELETE, rows)])

    def upsert(self, rows: Rows) -> None:
        """Insert rows or replace those of the same primary key."""
        if not self.engine.catalog.get(self.name, TABLE).key:
            raise DataError(
                f"table {self.name} has no primary key",
                condition="NO_PRIMARY_KEY",
                hint="give it one when creating it, or use insert and delete",
            )
        self.insert(rows)

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """The rows as of the last (or an earlier, still retained) committed epoch."""
        return self.engine.snapshot(self.name, epoch)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.engine.catalog.get(self.name, TABLE).columns


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that views can read."""

    engine: Engine
    name: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.engine.catalog.get(self.name, STREAM).columns

    def dead_letters(self) -> DataFrame:
        """The records that could not be taken in, as of now; see the stream `<name>__dead`."""
        return self.engine.dead_letters(self.name)

    def discard(self, where: str | None = None) -> int:
        """Drop dead letters for good; how many.

        Args:
            where: a condition on their columns, as in SQL; None: all.
        """
        return self.engine.revive(self.name, where, again=False)


@dataclass(frozen=True, slots=True)
class View:
    """A live view."""

    engine: Engine
    name: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.engine.catalog.get(self.name, VIEW).columns

    @property
    def query(self) -> str:
        """The SQL."""
        return self.engine.catalog.get(self.name, VIEW).query

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """The result as of the last (or an earlier, still retained) committed epoch.

        The ORDER BY of the view is honoured.
        """
        return self.engine.snapshot(self.name, epoch)

    def changes(self, after: int | None = None, form: str = "retract") -> DataFrame:
        """The changes of the epochs after `after`, or of all.

        Args:
            after: an epoch; None for all retained ones: replayed from empty they give the snapshot.
            form: `retract`: the columns, `op` (append or delete) and `epoch`, a row as often as its
                multiplicity; `update`: structs `before` and `after` (null for a new or removed
                row) and `epoch`, paired by the grouping key of the view if it has one.
        """
        return self.engine.changes(self.name, after, form)
