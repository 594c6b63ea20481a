"""Rows of a Spark job on their way into a table: tasks write the files, so that the driver never holds the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.errors import DataError, StorageError
from eddyline.source.inbox import gathered, write_file
from eddyline.source.rows import Rows, as_arrow
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
class BulkTask:
    """Write the rows of a Spark task into files of a table's inbox.

    Input: the columns of the table by their names; for several operations the columns of one after those of the
    other, in the order of the table. Output: `WRITTEN`: for each file the place of its operation; or
    one row with the error of a row that doesn't fit the table.

    Attributes:
        table, name: id and name of the table.
        attempt: begins the names of the files; has no hyphen.
        operations: what the rows do: `append` or `delete`.
        schema: the columns of the table.
        required: columns that must not be null.
    """

    files: Files
    table: str
    name: str
    attempt: str
    operations: tuple[str, ...]
    schema: pa.Schema
    zone: str
    required: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files."""
        given = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        try:
            for part in gathered(given):
                for place, operation in enumerate(self.operations):
                    rows = self.converted(self._of(part, place))
                    written = write_file(self.files, self.table, self.attempt, rows, operation)
                    yield _row(*written, place, None)
        except (DataError, StorageError) as error:
            known = [type(error).__name__, error.condition, error.message, error.hint]
            yield _row(None, None, None, None, json.dumps([*known, error.context], default=str))

    def converted(self, rows: Rows) -> pa.Table:
        """Return rows with the columns of the table; DataError if they don't fit."""
        return as_arrow(
            rows, self.schema, relation=self.name, zone=self.zone, required=self.required
        )

    def _of(self, rows: pa.Table, place: int) -> pa.Table:
        """Return the rows of one operation."""
        if len(self.operations) == 1:
            return rows
        width = len(self.schema)
        own = rows.select(list(range(place * width, (place + 1) * width)))
        return own.rename_columns(self.schema.names)

    def run(self, frame: DataFrame, query: str = "") -> list[tuple[str, int, int]]:
        """Write the rows of a DataFrame; return the files of the first operation, then those of the next.

        Args:
            query: the statement that the rows come from, for errors.

        Raises:
            DataError: a column or a row doesn't fit the table.
            StorageError: a file can't be written.
            QueryError: Spark fails on the DataFrame.
        """
        with query_errors(query, table=self.name):
            none = arrow_schema(frame.schema, self.zone).empty_table()
        for place in range(len(self.operations)):
            self.converted(self._of(none, place))  # before a job that may take long
        with query_errors(query, table=self.name):
            found = loosened(frame).mapInArrow(self, WRITTEN).collect()
        for row in found:
            if row.error is not None:
                kind, condition, message, hint, context = json.loads(row.error)
                raise _CLASSES[kind](message, condition=condition, hint=hint, **context)
        in_order = sorted(found, key=lambda row: row.place)  # stable: those of a task stay in order
        return [(row.file, row.rows, row.crc) for row in in_order]


def is_small(frame: DataFrame, rows: int | None = None) -> bool:
    """Return whether the driver may collect a DataFrame.

    Args:
        rows: how many rows it reads of the storage; None if that isn't known.
    """
    if rows is not None and rows > SMALL_ROWS:
        return False
    with query_errors(""):
        plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001  # not public in PySpark
        if (
            rows is None and _PYTHON in plan.toString()
        ):  # Spark can't tell how much a function gives
            return False
        return int(plan.stats().sizeInBytes()) <= SMALL_BYTES


def _row(*values: object) -> pa.RecordBatch:
    kinds = [pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.string()]
    arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["file", "rows", "crc", "place", "error"])
