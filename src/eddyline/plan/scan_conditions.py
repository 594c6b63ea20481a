"""Conditions of a filter that the scan below it can check: fewer rows then go from Python to the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.sql.types import DataType, DecimalType, StringType

from eddyline.plan.logical import Expression, children_of, id_of, items, kind, type_of
from eddyline.source.conditions import ColumnTest, Combined, Condition
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
    if not (column and arrow_compares(data_type) and type_of(right) == data_type):
        return None
    if kind(right) == "Literal":
        values = _constants(data_type, [right.value()])
        return ColumnTest(function, column, values) if values else None
    other = _column(right, columns)
    return ColumnTest(function, column, other=other) if other else None


def _listed(term: Expression, columns: Mapping[int, str]) -> Condition | None:
    value, *listed = children_of(term)
    column, data_type = _column(value, columns), type_of(value)
    if not (column and arrow_compares(data_type)):
        return None
    if kind(term) == "InSet":
        values = _constants(data_type, items(term.hset().toSeq()))
    elif all(kind(one) == "Literal" and type_of(one) == data_type for one in listed):
        values = _constants(data_type, [one.value() for one in listed])
    else:
        return None
    return ColumnTest("is_in", column, values) if values else None


def _column(expression: Expression, columns: Mapping[int, str]) -> str:
    """Return the name of a column of the scan; empty for any other expression."""
    return columns.get(id_of(expression), "") if kind(expression) == "AttributeReference" else ""


def _constants(data_type: DataType, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return what Arrow takes for literals that aren't null; none if one of them is a string that isn't UTF-8."""
    known = [value for value in values if value is not None]
    if isinstance(data_type, StringType):
        texts = tuple(value.toString() for value in known)
        return () if any("\ufffd" in text for text in texts) else texts
    if isinstance(data_type, DecimalType):
        return tuple(Decimal(value.toString()) for value in known)
    return tuple(value if isinstance(value, int) else int(value.toString()) for value in known)
