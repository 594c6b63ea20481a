"""Schemas: Spark's columns as Arrow's, and as kernels know them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType


def arrow_schema(schema: StructType, zone: str) -> pa.Schema:
    """The Arrow schema in which Spark exchanges rows of a schema."""
    return to_arrow_schema(schema, timezone=zone, prefers_large_types=False)


def plain_schema(schema: StructType) -> StructType:
    """The schema with columns named `c0`, `c1`, ... as kernels know them."""
    return StructType(
        [StructField(f"c{i}", field.dataType, True) for i, field in enumerate(schema)]
    )
