"""Schemas as Spark, Arrow and the kernels have them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType


def arrow_schema(schema: StructType, zone: str) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows with Python."""
    return to_arrow_schema(schema, timezone=zone, prefers_large_types=False)


def plain_schema(schema: StructType) -> StructType:
    """Return the schema with its columns renamed to `c0`, `c1`, ..., as kernels expect them."""
    return StructType(
        [StructField(f"c{i}", field.dataType, True) for i, field in enumerate(schema)]
    )
