"""Conditions of a filter that the scan below it can check: fewer rows then go from Python to the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import reduce

from pyspark.sql.types import DataType, DecimalType, StringType

from eddyline.plan.logical import Expression, children_of, id_of, items, kind, type_of
from eddyline.source.conditions import ColumnTest, Combined, Condition, Constant
from eddyline.spark.schema import arrow_compares

_COMPARISONS = {
    "EqualTo": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_SWAPPED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_NULLS = {"IsNull": "is_null", "IsNotNull": "is_valid"}
_COMBINED = {"And": "and_kleene", "Or": "or_kleene", "Not": "invert"}


def scan_condition(condition: Expression, columns: Mapping[int, str]) -> Condition | None:
    """Return the part of a filter's condition that Arrow decides as Spark does; None if there is none.

    It ends before the first term that Arrow can't decide: that may fail on a row, which then must reach Spark.

    Args:
        columns: names of the scan's columns by the ids of their attributes.
    """
    found: list[Condition] = []
    for term in _terms(condition):
        test = _condition(term, columns)
        if test is None:
            break
        found.append(test)
    return reduce(lambda one, other: Combined("and_kleene", (one, other)), found) if found else None


def _terms(condition: Expression) -> Iterator[Expression]:
    """Yield the terms of a conjunction in the order in which Spark evaluates them."""
    if kind(condition) == "And":
        for part in children_of(condition):
            yield from _terms(part)
    else:
        yield condition


def _condition(term: Expression, columns: Mapping[int, str]) -> Condition | None:
    name, children = kind(term), children_of(term)
    if name in _COMBINED:
        parts = [_condition(child, columns) for child in children]
        known = tuple(part for part in parts if part is not None)
        return Combined(_COMBINED[name], known) if len(known) == len(parts) else None
    if name in _NULLS:
        column = _column(children[0], columns)
        return ColumnTest(_NULLS[name], column) if column else None
    if name in _COMPARISONS:
        left, right = children
        return _compared(_COMPARISONS[name], left, right, columns)
    if name in ("In", "InSet"):
        return _listed(term, columns)
    column = _column(term, columns)  # a condition that is a column
    return ColumnTest("equal", column, (True,)) if column else None


def _compared(
    function: str, left: Expression, right: Expression, columns: Mapping[int, str]
) -> Condition | None:
    if kind(left) == "Literal":
        left, right, function = right, left, _SWAPPED.get(function, function)
    column, data_type = _column(left, columns), type_of(left)
    constant = _reader(data_type)
    if not column or constant is None or type_of(right) != data_type:
        return None
    if kind(right) == "Literal":
        value = right.value()
        return None if value is None else ColumnTest(function, column, (constant(value),))
    other = _column(right, columns)
    return ColumnTest(function, column, other=other) if other else None


def _listed(term: Expression, columns: Mapping[int, str]) -> Condition | None:
    value, *listed = children_of(term)
    column, data_type = _column(value, columns), type_of(value)
    constant = _reader(data_type)
    if not column or constant is None:
        return None
    if kind(term) == "In":
        if any(kind(one) != "Literal" or type_of(one) != data_type for one in listed):
            return None
        values = [one.value() for one in listed]
    else:
        values = items(term.hset().toSeq())
    return ColumnTest("is_in", column, tuple(constant(one) for one in values if one is not None))


def _column(expression: Expression, columns: Mapping[int, str]) -> str:
    """Return the name of a column of the scan; empty for any other expression."""
    return columns.get(id_of(expression), "") if kind(expression) == "AttributeReference" else ""


def _reader(data_type: DataType) -> Callable[..., Constant] | None:
    """Return what makes a constant of a literal's value; None for types that Arrow compares in another way."""
    if not arrow_compares(data_type):
        return None
    if isinstance(data_type, DecimalType):
        return lambda value: Decimal(value.toString())
    if isinstance(data_type, StringType):
        return lambda value: value.toString()
    return lambda value: value if isinstance(value, int) else int(value.toString())
