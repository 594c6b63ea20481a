"""An engine for one test: tables from rows, views, and the comparison of results."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

import eddyline as el
from eddyline.answers.difference import Difference, difference
from eddyline.source.user_rows import Rows, as_arrow
from eddyline.spark.schema import arrow_schema, to_arrow
from eddyline.testing import FaultyFiles

Expected: TypeAlias = Sequence[Sequence[Any]] | Sequence[dict[str, Any]] | pa.Table | DataFrame


class Live:
    """An engine on a storage of its own.

    Attributes:
        engine: the engine; another one after `restart`.
        files: its files. `files.arm(3, "crash")` lets the third write from now on fail, and all after
            it, as if the process had died; see `FaultyFiles`.

    Example:
        >>> with Live(tempfile.mkdtemp(), spark) as live:
        ...     clicks = live.table("clicks", [("/",), ("/",)], "url STRING")
        ...     live.view("counts", "SELECT url, count(*) AS n FROM clicks GROUP BY url")
        ...     clicks.delete([("/",)])
        ...     live.assert_live("counts", [("/", 1)])
    """

    def __init__(self, storage: str | PathLike[str], spark: SparkSession) -> None:
        self._spark = spark
        self.files = FaultyFiles(str(storage))
        self.engine = el.Engine(self.files, spark)

    def __enter__(self) -> Live:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the engine."""
        self.files.arm(0)
        self.engine.stop()

    def table(
        self, name: str, rows: Rows, schema: str | None = None, primary_key: Sequence[str] = ()
    ) -> el.Table:
        """Create a table with rows in it.

        Args:
            rows: see `Table.insert`.
            schema: columns in the words of SQL; without it Spark infers them from the rows.
            primary_key: names of columns.
        """
        if schema is None:
            frame = rows if isinstance(rows, DataFrame) else self._spark.createDataFrame(rows)
            # that these rows have no nulls is no rule for later ones
            columns = StructType([StructField(f.name, f.dataType) for f in frame.schema])
            found = self.engine.table(name, columns, list(primary_key))
        else:
            found = self.engine.table(name, schema, list(primary_key))
        found.insert(rows)
        return found

    def view(self, name: str, query: str) -> el.View:
        """Create a live view; see `Engine.view`."""
        return self.engine.view(name, query)

    def advance(self) -> int:
        """Process what has been written, and return the epoch."""
        return self.engine.advance()

    def restart(self) -> None:
        """Stop the engine, or what a fault has left of it, and open the storage again."""
        self.files.arm(0)
        self.engine.stop()
        self.files = FaultyFiles(self.files.root)
        self.engine = el.Engine(self.files, self._spark)

    def assert_live(self, view: str, expected: Expected | None = None) -> None:
        """Process what has been written; assert that a view has these rows, and those of offline SQL.

        Rows are compared in any order, doubles within a relative 1e-9.

        Args:
            view: name of a view or table.
            expected: tuples in the order of the columns, dicts, an Arrow table or a DataFrame; None
                compares with offline SQL only.

        Raises:
            AssertionError: with the rows that only one side has, five at most.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        self.advance()
        if expected is not None:
            entry = self.engine.catalog.get(view)
            schema = arrow_schema(entry.columns, self._zone)
            wanted = as_arrow(expected, schema, relation=view, zone=self._zone)
            found = difference(to_arrow(self.engine.snapshot(view)), wanted)
            if not found.equal:
                raise AssertionError(_message(view, found, "expected"))
        if self.engine.catalog.get(view).kind != "view":
            return
        report = self.engine.verify(view)
        if view in report.failing:
            raise AssertionError(f"view {view} is set aside: {report.failing[view]}")
        if not report.views[view].equal:
            raise AssertionError(_message(view, report.views[view], "offline"))

    @property
    def _zone(self) -> str:
        return self._spark.conf.get("spark.sql.session.timeZone") or "UTC"


def _message(view: str, found: Difference, other: str) -> str:
    lines = [f"view {view} has {found.left_rows} rows, {other} are {found.right_rows}"]
    for side, rows in ((f"only in {view}", found.left_only), (f"only {other}", found.right_only)):
        lines += [f"  {side}: {row}" for row in rows]
    return "\n".join(lines)
