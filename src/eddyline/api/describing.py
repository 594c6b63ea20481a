"""DESCRIBE and SHOW: what is defined, as DataFrames."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.answers.describing import DESCRIBED, Asked, answered
from eddyline.api.workspace import Workspace
from eddyline.sql.describing import name_pattern


class Describing:
    """Describes the definitions of a workspace, and changes nothing."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def answer(self, statement: Asked) -> DataFrame:
        """Answer DESCRIBE name, SHOW COLUMNS, SHOW CREATE TABLE.

        Raises:
            CatalogError: NOT_FOUND, or NO_STATEMENT: no statement of SQL makes it.
        """
        columns, rows = answered(self._workspace.current().catalog, statement)
        return self._frame(rows, columns)

    def columns(self, schema: StructType) -> DataFrame:
        """Answer DESCRIBE of a query with these columns."""
        rows = [(field.name, field.dataType.simpleString(), None) for field in schema]
        return self._frame(rows, DESCRIBED)

    def matching(self, frame: DataFrame, pattern: str) -> DataFrame:
        """Return the rows of SHOW TABLES and its like whose names match a pattern of LIKE."""
        fits = name_pattern(pattern)
        rows = [row for row in frame.collect() if fits.fullmatch(row["name"])]
        return self._workspace.spark.createDataFrame(rows, frame.schema)

    def _frame(self, rows: Iterable[tuple[str | None, ...]], columns: Iterable[str]) -> DataFrame:
        schema = ", ".join(f"{name} string" for name in columns)
        return self._workspace.spark.createDataFrame(list(rows), schema)
