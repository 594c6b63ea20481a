"""Filters that Spark pushes into the data source, as tests of Arrow that say the same of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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

from eddyline.spark.schema import arrow_compares, arrow_schema

_COMPARISONS = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


@dataclass(frozen=True, slots=True)
class RowTest:
    """A condition on one column. Rows of which it is null don't meet it.

    Attributes:
        place: position of the column.
        name: a function of Arrow: a comparison, `is_in`, `is_null` or `is_valid`.
        value: what to compare with; None for the last two.
        negated: rows must meet the opposite.
    """

    place: int
    name: str
    value: pa.Scalar | pa.Array | None = None
    negated: bool = False

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return for each row whether it meets the condition."""
        column = rows.column(self.place)
        if self.value is None:
            return getattr(pc, self.name)(column)
        if self.name == "is_in":
            found = pc.is_in(column, value_set=self.value)
            found = pc.if_else(pc.is_valid(column), found, None)
        else:
            found = getattr(pc, self.name)(column, self.value)
        return pc.invert(found) if self.negated else found


def row_test(one: Filter, schema: StructType) -> RowTest | None:
    """Return the test for a filter; None if Spark has to evaluate it itself."""
    negated = isinstance(one, Not)
    asked: Any = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(asked, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    place = schema.names.index(path[0])
    if isinstance(asked, IsNull | IsNotNull):
        return RowTest(place, "is_null" if isinstance(asked, IsNull) != negated else "is_valid")
    if not arrow_compares(schema[place].dataType):
        return None
    kind = arrow_schema(schema, "UTC").field(place).type
    try:
        if isinstance(asked, In):
            if any(value is None for value in asked.value):
                return None
            return RowTest(place, "is_in", pa.array(list(asked.value), kind), negated)
        if isinstance(asked, EqualNullSafe):
            return None if negated or asked.value is None else _equal(place, asked.value, kind)
        if type(asked) in _COMPARISONS and asked.value is not None:
            value = pa.scalar(asked.value, kind)
            return RowTest(place, _COMPARISONS[type(asked)], value, negated)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return None  # a value of another type
    return None


def _equal(place: int, value: Any, kind: pa.DataType) -> RowTest:
    return RowTest(place, "equal", pa.scalar(value, kind))
