"""Filters that Spark pushes into the data source, as conditions that Arrow decides as Spark does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType

from eddyline.source.conditions import ColumnTest, Combined, Condition
from eddyline.spark.schema import arrow_compares, arrow_schema

_COMPARISONS = {
    EqualTo: "equal",
    EqualNullSafe: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


def condition_of(one: Filter, schema: StructType) -> Condition | None:
    """Return the condition that a filter puts on each row; None if Spark has to evaluate it itself."""
    if not isinstance(one, Not):
        return _test(one, schema)
    if isinstance(one.child, EqualNullSafe):  # whose opposite holds for null
        return None
    found = _test(one.child, schema)
    return None if found is None else Combined("invert", (found,))


def _test(asked: Any, schema: StructType) -> ColumnTest | None:
    path: tuple[str, ...] = getattr(asked, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    name = path[0]
    if isinstance(asked, IsNull | IsNotNull):
        return ColumnTest("is_null" if isinstance(asked, IsNull) else "is_valid", name)
    if isinstance(asked, In):
        function, values = "is_in", tuple(asked.value)
    elif type(asked) in _COMPARISONS:
        function, values = _COMPARISONS[type(asked)], (asked.value,)
    else:
        return None
    place = schema.names.index(name)
    if None in values or not arrow_compares(schema[place].dataType):
        return None
    try:
        pa.array(values, arrow_schema(schema, "UTC").field(place).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return None  # a value of another type
    return ColumnTest(function, name, values)
