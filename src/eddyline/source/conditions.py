"""Conditions on rows that are checked while these are in Arrow, as Spark would check them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Rows: TypeAlias = "pa.Table | pa.RecordBatch"
Mask: TypeAlias = "pa.ChunkedArray | pa.Array"


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A test of a column.

    Attributes:
        function: name of Arrow's function: a comparison, `is_in`, `is_null` or `is_valid`.
        column: the column's name.
        values: the constants to compare with, which aren't null: what Arrow converts to the column's type, so that
            a date may be a number of days, and a timestamp one of microseconds, since 1970.
        other: the column to compare with, which has the same type; else empty.
    """

    function: str
    column: str
    values: tuple[Any, ...] = ()
    other: str = ""

    def mask(self, rows: Rows, schema: pa.Schema) -> Mask:
        """Return for which rows the test holds; null where a value that it compares is null."""
        column = column_of(rows, schema, self.column)
        if self.function == "is_in":
            found = pc.is_in(column, value_set=pa.array(self.values, column.type))
            return pc.if_else(pc.is_valid(column), found, None) if column.null_count else found
        operands = [column_of(rows, schema, self.other)] if self.other else []
        operands += [pa.scalar(value, column.type) for value in self.values]
        return pc.call_function(self.function, [column, *operands])


@dataclass(frozen=True, slots=True)
class Combined:
    """Conditions that are combined by AND, OR or NOT, with SQL's logic of three values.

    Attributes:
        function: `and_kleene`, `or_kleene` or `invert`.
    """

    function: str
    parts: tuple[Condition, ...]

    def mask(self, rows: Rows, schema: pa.Schema) -> Mask:
        """Return for which rows the condition holds; null where that isn't known."""
        return pc.call_function(self.function, [part.mask(rows, schema) for part in self.parts])


Condition = ColumnTest | Combined


def rows_where(condition: Condition, rows: Rows, schema: pa.Schema) -> Rows:
    """Return the rows for which a condition holds.

    Args:
        schema: the types of the columns in the plan; those of stored rows may be others.
    """
    mask = condition.mask(rows, schema)
    return rows if pc.all(mask, skip_nulls=False).as_py() else rows.filter(mask)


def column_of(rows: Rows, schema: pa.Schema, name: str) -> Mask:
    """Return a column of stored rows in its type in the plan."""
    column, wanted = rows[name], schema.field(name).type
    return column if column.type == wanted else column.cast(wanted)
