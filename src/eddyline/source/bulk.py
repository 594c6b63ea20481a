"""Writes rows for tables: those of a large DataFrame in Spark's tasks, so that the driver never holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.changes import APPEND
from eddyline.errors import DataError, StorageError
from eddyline.source.inbox import concatenated, write_file
from eddyline.source.row_rules import RowRules
from eddyline.source.user_rows import Rows, as_arrow, collected
from eddyline.spark.failures import query_errors
from eddyline.spark.schema import arrow_schema, loosened
from eddyline.storage.files import Files

WRITTEN = "file string, rows long, crc long, place int, error string"

SMALL_ROWS = 100_000
SMALL_BYTES = 16 << 20
"""Up to so much the driver collects: that is faster than a job which writes files."""

_PYTHON = "MapInArrow"
_CLASSES = {"DataError": DataError, "StorageError": StorageError}


@dataclass(frozen=True, slots=True)
class TableRows:
    """Converts rows for a table, in the driver, or in Spark's tasks, which write them into the table's inbox.

    The rows have the table's columns by name. For several operations they have the columns of each operation in turn,
    in the order of the table; then, if only some rows have a part in each, one column for each operation that says whether
    the row has. A NULL there says that rows contradict each other (CONFLICTING_CHANGES).

    Attributes:
        table, name: id and name of the table.
        schema: its columns.
        required: columns of its key, which must not be null.
        attempt: begins the names of files; has no hyphen.
        query: the statement that they come from, for errors.
        operations: `append` or `delete`, for each set of columns.
        rules: the rules of its columns, for rows to append; None for none.
    """

    files: Files
    table: str
    name: str
    schema: pa.Schema
    zone: str
    required: tuple[str, ...]
    attempt: str
    query: str = ""
    operations: tuple[str, ...] = ()
    rules: RowRules | None = None

    def converted(self, rows: Rows) -> Iterator[tuple[int, str, pa.Table]]:
        """Yield for each operation its place, and its rows with the columns of the table.

        Raises:
            DataError: a column or a row doesn't fit the table.
            QueryError: Spark fails on a DataFrame.
        """
        if isinstance(rows, DataFrame):
            rows = collected(rows, self.name, self.query)
        width = len(self.schema)
        for place, operation in enumerate(self.operations):
            own = rows
            if len(self.operations) > 1:
                columns = cast("pa.Table", rows).columns
                own = pa.table(columns[place * width : (place + 1) * width], self.schema.names)
                if chosen := columns[len(self.operations) * width :]:
                    own = own.filter(self._checked(chosen[place]))
            fitting = as_arrow(
                own,
                self.schema,
                relation=self.name,
                zone=self.zone,
                required=self.required,
                rules=self.rules if operation == APPEND else None,
            )
            yield place, operation, fitting

    def _checked(self, chosen: pa.ChunkedArray) -> pa.ChunkedArray:
        if chosen.null_count:
            raise DataError(
                f"rows of the table would be changed more than once ({chosen.null_count} changes too many)",
                condition="CONFLICTING_CHANGES",
                table=self.name,
                hint="let at most one row of the source match each row of the table: GROUP BY its key, or take the latest",
            )
        return chosen

    def written(self, rows: Rows) -> list[tuple[str, int, int]]:
        """Write rows into files; return those of the first operation, then those of the next.

        Raises:
            DataError: a column or a row doesn't fit the table.
            StorageError: a file can't be written.
            QueryError: Spark fails on a DataFrame.
        """
        if not isinstance(rows, DataFrame):
            return [file for _, file in self._written(rows)]
        with query_errors(self.query, table=self.name):
            none = arrow_schema(rows.schema, self.zone).empty_table()
        for _ in self.converted(none):  # wrong columns are refused before a job that may take long
            pass
        with query_errors(self.query, table=self.name):
            found = loosened(rows).mapInArrow(self, WRITTEN).collect()
        for row in found:
            if row.error is not None:
                kind, condition, message, hint, context = json.loads(row.error)
                raise _CLASSES[kind](message, condition=condition, hint=hint, **context)
        in_order = sorted(found, key=lambda row: row.place)  # stable: those of a task stay in order
        return [(row.file, row.rows, row.crc) for row in in_order]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task; yield `WRITTEN` of each file, or of the error of a row that doesn't fit."""
        given = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        try:
            for part in concatenated(given):
                for place, file in self._written(part):
                    yield _row(*file, place, None)
        except (DataError, StorageError) as error:
            known = [type(error).__name__, error.condition, error.message, error.hint]
            yield _row(None, None, None, None, json.dumps([*known, error.context], default=str))

    def _written(self, rows: Rows) -> Iterator[tuple[int, tuple[str, int, int]]]:
        """Write a file for each operation; yield its place, and the file."""
        for place, operation, own in self.converted(rows):
            yield place, write_file(self.files, self.table, self.attempt, own, operation)


def is_small(frame: DataFrame, rows: int | None = None) -> bool:
    """Return whether the driver may collect a DataFrame.

    Args:
        rows: how many rows it reads of the storage; None if that isn't known.
    """
    if rows is not None and rows > SMALL_ROWS:
        return False
    with query_errors(""):
        plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001  # not public in PySpark
        # Spark can't estimate the output of a Python function
        if rows is None and _PYTHON in plan.toString():
            return False
        return int(plan.stats().sizeInBytes()) <= SMALL_BYTES


def _row(*values: object) -> pa.RecordBatch:
    kinds = [pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.string()]
    arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["file", "rows", "crc", "place", "error"])
