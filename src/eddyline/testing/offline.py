"""Offline Spark over plain tables, to compare live views with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.answers.difference import Difference, difference
from eddyline.spark.schema import to_arrow
from eddyline.spark.session import cloned, frame

Row = tuple[Any, ...]


@dataclass(slots=True)
class PlainTable:
    """A plain list of rows with the insert and delete semantics of a table, to compare with.

    Without a primary key it is a multiset: a delete removes one equal row, if one exists.

    Example:
        >>> table = PlainTable("id INT, v INT", (0,))
        >>> table.insert([(1, 5), (1, 6)])
        >>> table.rows
        [(1, 6)]
    """

    schema: str | StructType
    key: tuple[int, ...] = ()
    rows: list[Row] = field(default_factory=list)

    def insert(self, rows: Iterable[Row]) -> None:
        """Append rows; with a primary key each replaces the row of its key."""
        for row in rows:
            if self.key:
                self.delete([row])
            self.rows.append(row)

    def delete(self, rows: Iterable[Row]) -> None:
        """Delete rows by primary key; without a key, one equal row for each."""
        for row in rows:
            wanted = self._identity(row)
            for place, held in enumerate(self.rows):
                if self._identity(held) == wanted:
                    del self.rows[place]
                    break

    def _identity(self, row: Row) -> str:
        # as text, in which NaN equals NaN, 0.0 differs from -0.0, and a list can be compared
        return repr([row[place] for place in self.key] if self.key else row)


class Offline:
    """Offline Spark over plain tables: the results that live views must equal.

    Example:
        >>> offline = Offline(spark, {"t": PlainTable("k STRING", rows=[("a",), ("a",)])})
        >>> offline.result("SELECT k, count(*) AS n FROM t GROUP BY k").to_pylist()
        [{'k': 'a', 'n': 2}]
    """

    def __init__(self, spark: SparkSession, tables: dict[str, PlainTable]) -> None:
        self.session = cloned(spark)
        self.tables = tables
        self.views: dict[str, str] = {}

    def view(self, name: str, query: str) -> None:
        """Name a query, so that other queries can read it."""
        self.views[name] = query

    def load(self) -> None:
        """Load the current rows of the tables; later results use these rows."""
        for name, table in self.tables.items():
            self._frame(table).createOrReplaceTempView(name)
        for name, query in self.views.items():
            self.session.sql(query).createOrReplaceTempView(name)

    def result(self, query: str) -> pa.Table:
        """Run a query offline over the most recently loaded rows."""
        return to_arrow(self.session.sql(query))

    def compared(self, name: str, live: DataFrame | pa.Table) -> Difference:
        """Compare a live result (left) with the view's offline result (right)."""
        left = live if isinstance(live, pa.Table) else to_arrow(live)
        return difference(left, self.result(self.views[name]))

    def _frame(self, table: PlainTable) -> DataFrame:
        return frame(self.session, table.rows, table.schema)


def replayed(changes: Iterable[Sequence[Any]]) -> list[Row]:
    """Replay a changelog in retract form from an empty table, and return the rows.

    Args:
        changes: rows of `view.changes()`, each ending in `op` and `epoch`.

    Raises:
        AssertionError: a change retracts a row that the table doesn't hold.
    """
    held: dict[str, list[Row]] = {}
    # the order within an epoch is undefined: an epoch can delete what it appends
    for *values, operation, _ in sorted(changes, key=lambda row: (row[-1], row[-2])):
        rows = held.setdefault(repr(values), [])
        if operation == "append":
            rows.append(tuple(values))
        elif rows:
            rows.pop()
        else:
            raise AssertionError(f"{tuple(values)} is retracted, but not there")
    return [row for rows in held.values() for row in rows]
