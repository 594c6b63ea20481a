"""Questions about PySpark's data types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from eddyline.sql.names import quoted


def sql_type(data_type: DataType) -> str:
    """Return a type as SQL writes it, with the names of fields quoted."""
    if isinstance(data_type, StructType):
        parts = [f"{quoted(f.name)}: {sql_type(f.dataType)}" for f in data_type]
        return f"struct<{', '.join(parts)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{sql_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    return data_type.simpleString()


def column_type(frame: DataFrame, column: str) -> str:
    """Return the type of a frame's column as SQL writes it."""
    return sql_type(frame.schema[column].dataType)


def contains_type(data_type: DataType, names: Sequence[str]) -> bool:
    """Return whether a type is or contains one of the named types.

    Args:
        names: as in the type's JSON form, without parameters: `decimal` finds `decimal(10,2)`. A
            name that ends in a space finds all types that begin with it.
    """
    starts = tuple(name if name.endswith(" ") else f"{name}(" for name in names)

    def search(document: Any) -> bool:
        if isinstance(document, str):
            return document in names or document.startswith(starts)
        if isinstance(document, dict):
            parts = [
                v
                for k, v in document.items()
                if k in ("type", "elementType", "keyType", "valueType", "fields")
            ]
            return any(search(part) for part in parts)
        return any(search(part) for part in document)

    return search(json.loads(data_type.json()))
