"""Conditions on rows that a scan checks before it hands them on.

A scan may keep rows for which a condition doesn't hold, but never drops one for which it does: the plan above it
filters, too. So a value that is null may count as false.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

Constant = int | str | bool | Decimal
"""Dates are days, and timestamps microseconds, since 1970."""


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A test of a column.

    Attributes:
        function: name of Arrow's function: a comparison, `is_in`, `is_null` or `is_valid`.
        column: the column's name.
        values: the constants to compare with, of the column's type.
        other: the column to compare with, which has the same type; else empty.
    """

    function: str
    column: str
    values: tuple[Constant, ...] = ()
    other: str = ""

    def mask(self, rows: pa.Table, schema: pa.Schema) -> pa.ChunkedArray:
        """Return for which rows the test holds; where a value is null, null, or false of `is_in`."""
        column = _column(rows, schema, self.column)
        if self.function == "is_in":
            return pc.is_in(column, value_set=pa.array(self.values, column.type))
        operands = [_column(rows, schema, self.other)] if self.other else []
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

    def mask(self, rows: pa.Table, schema: pa.Schema) -> pa.ChunkedArray:
        """Return for which rows the condition holds; null where that isn't known."""
        return pc.call_function(self.function, [part.mask(rows, schema) for part in self.parts])


Condition = ColumnTest | Combined


def rows_where(condition: Condition, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows for which a condition holds.

    Args:
        schema: the types of the columns in the plan; those of stored rows may be others.
    """
    mask = condition.mask(rows, schema)
    return rows if pc.all(mask, skip_nulls=False).as_py() else rows.filter(mask)


def _column(rows: pa.Table, schema: pa.Schema, name: str) -> pa.ChunkedArray:
    column, wanted = rows[name], schema.field(name).type
    return column if column.type == wanted else column.cast(wanted)
