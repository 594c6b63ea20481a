"""Aggregate calls with linear state: accumulators that add up, or all values in order."""

from __future__ import annotations

from dataclasses import dataclass

from eddyline.plan.build import Build
from eddyline.plan.logical import (
    Expression,
    Plan,
    aggregate_calls,
    children_of,
    items,
    kind,
    type_of,
)
from eddyline.plan.rules import Accumulators, Call, linear
from eddyline.plan.types import contains_type


@dataclass(frozen=True, slots=True)
class LinearCall:
    """One aggregate call of a linear aggregate: its columns in the input, and how it is kept."""

    number: int
    expression: Expression
    kept: Accumulators
    arguments: list[Expression]
    distinct: bool
    values: tuple[str, ...]
    condition: str

    @property
    def counted(self) -> str:
        """SQL: whether a row counts for the call."""
        tests = [f"{value} is not null" for value in self.values]
        if self.condition and not self.distinct:
            tests.append(f"coalesce({self.condition}, false)")
        return " and ".join(tests) or "true"

    @property
    def is_extreme(self) -> bool:
        """Whether all its values are kept, to find the smallest or largest."""
        return self.kept.largest is not None

    @property
    def is_sorted(self) -> bool:
        """Whether all its values are kept in order, and none of its accumulators has any part in it."""
        return self.is_extreme or bool(self.kept.fractions)

    @property
    def buffers(self) -> list[Expression]:
        """The attributes of the buffers from which Spark makes the result; of percentiles they are the result."""
        if self.kept.fractions:
            return [self.expression.resultAttribute()]
        return items(self.expression.aggregateFunction().aggBufferAttributes())

    @property
    def result(self) -> Expression:
        """What Spark makes of the buffers."""
        if self.kept.fractions:
            return self.expression.resultAttribute()
        return self.expression.aggregateFunction().evaluateExpression()

    def contributions(self) -> dict[str, str]:
        """SQL of what a row contributes to each accumulator, by column; the value if they are sorted."""
        value = self.values[0] if self.values else "null"
        parts = self.kept.contributions
        if self.is_extreme:
            parts = ("if({on}, {v}, null)",)
        elif self.kept.fractions:  # Arrow would round decimals otherwise than Spark
            parts = ("if({on}, cast({v} as double), null)",)
        return {
            f"a{self.number}_{i}": part.format(on=self.counted, v=value)
            for i, part in enumerate(parts)
        }


def linear_calls(build: Build, node: Plan, append_only: bool) -> list[LinearCall] | None:
    """Return the aggregate calls of a node; None if one of them can't be kept in accumulators."""
    expressions = aggregate_calls(items(node.aggregateExpressions()))
    if expressions and not build.native:
        return None
    calls = []
    for number, expression in enumerate(expressions):
        call = _linear_call(build, expression, number, append_only)
        if call is None:
            return None
        calls.append(call)
    return calls


def _linear_call(
    build: Build, expression: Expression, number: int, append_only: bool
) -> LinearCall | None:
    function = expression.aggregateFunction()
    distinct = build.catalyst.distinct_arguments(expression)
    arguments = children_of(function) if distinct is None else distinct
    fractions: tuple[float, ...] = ()
    if kind(function) == "Percentile":
        arguments, fractions = arguments[:1], _fractions(function)
    types = tuple(type_of(argument).simpleString() for argument in arguments)
    kept = linear(Call(kind(function), types, distinct is not None, append_only, fractions))
    # another number of buffers: a variant of the function with other state
    if kept is None or len(items(function.aggBufferAttributes())) != len(kept.buffers):
        return None
    values = tuple(f"v{number}_{i}" for i in range(len(arguments)))
    condition = f"f{number}" if expression.filter().isDefined() else ""
    return LinearCall(number, expression, kept, arguments, distinct is not None, values, condition)


def _fractions(function: Expression) -> tuple[float, ...]:
    """Return the fractions of a call of percentile; none if they, or the counts of the values, aren't constants."""
    _, fractions, frequency = children_of(function)
    known = fractions.foldable() and frequency.foldable() and frequency.eval(None) == 1
    if function.reverse() or not known:
        return ()
    given = fractions.eval(None)
    if contains_type(type_of(fractions), ("array",)):
        return tuple(given.toDoubleArray()) if given is not None else ()
    return () if given is None else (float(given),)
