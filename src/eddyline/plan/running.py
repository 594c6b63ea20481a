"""Lowering of running window functions, whose frames begin with the partition: ranks, running sums and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StructField

from eddyline.operators.base import numbered
from eddyline.operators.running import DIGITS_MORE, PLACE, SLOT, Call, Function, Running
from eddyline.plan import rules
from eddyline.plan.build import Build, Delta
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Expiry
from eddyline.plan.limits import is_sortable, partitioned
from eddyline.plan.logical import (
    Expression,
    Plan,
    children_of,
    find,
    id_of,
    items,
    kind,
    type_of,
)
from eddyline.plan.python import calls_python
from eddyline.plan.rules import FLOATS, INTEGERS
from eddyline.plan.types import sql_type

_RANKS = {"Rank": Function.RANK, "DenseRank": Function.DENSE_RANK}
_EXTREMES = {"Min": Function.MIN, "Max": Function.MAX}
_ENDS = {
    ("First", False): Function.FIRST,
    ("First", True): Function.FIRST_PRESENT,
    ("Last", False): Function.LAST,
    ("Last", True): Function.LAST_PRESENT,
}
"""By the name of an aggregate function, and whether it ignores nulls."""
_PRESENT = frozenset(("Count", "Sum", "Average", *_EXTREMES))
"""Aggregate functions that leave nulls out."""
_DIGITS_MAX = 38
_OVER = "WindowExpression"


@dataclass(frozen=True, slots=True)
class _Kept:
    """How the operator maintains one window function.

    Attributes:
        calls: the functions that it keeps, each with its argument, if it has one.
        buffers: the attributes from which Spark computes the result, each with SQL for its value: `{0}` and `{1}` stand
            for the results of the calls, `{place}` for the number of the row.
        result: the expression of the result over the buffers.
        peers: whether frames end with the last row of the same sort keys.
    """

    calls: tuple[tuple[Function, Expression | None], ...]
    buffers: tuple[tuple[Expression, str], ...]
    result: Expression
    peers: bool = False


def is_running(build: Build, node: Plan, named: Expression) -> bool:
    """Return whether the operator can maintain a window function of a node."""
    partition, orders = items(node.partitionSpec()), items(node.orderSpec())
    if not (build.native and orders and is_sortable([one.child() for one in orders], partition)):
        return False
    found = find(named, lambda name: name == _OVER)
    return not calls_python([named]) and all(
        _kept(build.catalyst, over) is not None for over in found
    )


def running(
    build: Build,
    node: Plan,
    child: Delta,
    columns: Sequence[Expression],
    bounds: Mapping[int, Bound],
) -> tuple[Plan, Expression, list[Expiry]]:
    """Lower the window functions of a node: their results are stored with the rows of their partitions.

    Args:
        columns: those of the child. Where the sort keys leave rows equal, the first of these in which they differ decides.
        bounds: those of the partition's keys.

    Returns:
        The plan, its weight, and the rows of the state that a watermark allows to drop.
    """
    catalyst = build.catalyst
    partition, orders = items(node.partitionSpec()), items(node.orderSpec())
    kept = _Functions(catalyst, columns)
    results = [catalyst.rewrite(one, kept.add) for one in items(node.windowExpressions())]
    rows = partitioned(build, child, partition, orders, kept.arguments)
    operator = Running(
        tuple(kept.calls),
        len(partition),
        len(kept.arguments),
        rows.descending,
        rows.nulls_last,
        kept.placed,
        catalyst.ansi,
    )
    found = [StructField(f"a{place}", kind_) for place, kind_ in enumerate(kept.types)]
    out = [*rows.columns, *[StructField(PLACE, LongType(), False)] * kept.placed, *found]
    expiry = rows.expiry(SLOT, bounds)
    result = build.run(rows.frame, operator, out, single=not partition, expiry=expiry)
    names = numbered("c", len(columns))
    typed = [
        f"cast({sql} as {sql_type(type_of(attribute))}) as b{place}"
        for place, (attribute, sql) in enumerate(kept.buffers)
    ]
    finished = result.selectExpr(*names, *typed, "w")
    plan, (weight,) = build.rebound(finished, [*columns, *(one for one, _ in kept.buffers)])
    return catalyst.project([*columns, *results, weight], plan), weight, expiry


class _Functions:
    """Collects the window functions of a node.

    Args:
        catalyst: makes expressions.
        columns: those of the rows.

    Attributes:
        arguments: the columns, then arguments that are computed.
        calls: the running functions of the operator.
        types: the types of their results.
        buffers: the attributes for the results, each with SQL for its value.
        placed: whether a function needs the numbers of rows.
    """

    def __init__(self, catalyst: Catalyst, columns: Sequence[Expression]) -> None:
        self._catalyst = catalyst
        self.arguments = [*columns]
        self.calls: list[Call] = []
        self.types: list[DataType] = []
        self.buffers: list[tuple[Expression, str]] = []
        self.placed = False
        self._places = {id_of(column): place for place, column in enumerate(columns)}

    def add(self, expression: Expression) -> Expression | None:
        """Return the result of a function; None for another expression."""
        if kind(expression) != _OVER:
            return None
        kept = _kept(self._catalyst, expression)
        assert kept is not None, "asked before"
        first = len(self.calls)
        for function, argument in kept.calls:
            place = -1 if argument is None else self._place(argument)
            self.calls.append(Call(function, place, kept.peers))
            self.types.append(_type_of(function, argument))
        for attribute, sql in kept.buffers:
            self.placed |= "{place}" in sql
            shown = sql.format(f"a{first}", f"a{first + 1}", place=PLACE)
            self.buffers.append((attribute, shown))
        return kept.result

    def _place(self, argument: Expression) -> int:
        if kind(argument) == "AttributeReference" and id_of(argument) in self._places:
            return self._places[id_of(argument)]
        self.arguments.append(argument)
        return len(self.arguments) - 1


def _kept(catalyst: Catalyst, over: Expression) -> _Kept | None:
    """Return how the operator maintains a window function; None if it can't."""
    function, frame = over.windowFunction(), over.windowSpec().frameSpecification()
    if kind(function) == "RowNumber":
        result = function.evaluateExpression()
        return _Kept((), ((result, "{place}"),), result)
    if kind(function) in _RANKS:
        result = function.evaluateExpression()
        return _Kept(((_RANKS[kind(function)], None),), ((result, "{0}"),), result)
    if kind(frame) != "SpecifiedWindowFrame" or kind(frame.lower()) != "UnboundedPreceding":
        return None
    called, end = _called(catalyst, function), kind(frame.upper())
    if called is None:
        return None
    # the first row is that of all frames
    if end != "CurrentRow" and (end, called.calls[0][0]) != ("UnboundedFollowing", Function.FIRST):
        return None
    return replace(called, peers=kind(frame.frameType()) == "RangeFrame")


def _called(catalyst: Catalyst, call: Expression) -> _Kept | None:
    """Return how the operator maintains an aggregate function, or nth_value; None if it can't."""
    if kind(call) == "NthValue":
        return _nth_value(call)
    if kind(call) != "AggregateExpression":
        return None
    function = call.aggregateFunction()
    argument, *others = children_of(function)
    if others:
        return None
    if call.filter().isDefined():
        if kind(function) not in _PRESENT:
            return None
        argument = catalyst.guarded(call.filter().get(), argument)
        function = function.withNewChildren(catalyst.seq([argument]))
    name, given = kind(function), rules.Call(kind(function), (type_of(argument).simpleString(),))
    if name == "Count":
        return _count(function, argument)
    if name in (*_EXTREMES, "First", "Last"):
        return _chosen(function, argument) if rules.is_ordered(given) else None
    is_number = given.argument in INTEGERS or given.argument in FLOATS or _is_short(given)
    if name in ("Sum", "Average") and is_number:
        return (_sum if name == "Sum" else _average)(function, argument, given)
    return None


def _nth_value(function: Expression) -> _Kept | None:
    """Keep nth_value(x, 1), which Spark also makes of first_value."""
    argument, place = children_of(function)
    given = rules.Call("NthValue", (type_of(argument).simpleString(),))
    if function.ignoreNulls() or place.eval(None) != 1 or not rules.is_ordered(given):
        return None
    result = function.evaluateExpression()
    return _Kept(((Function.FIRST, argument),), ((result, "{0}"),), result)


def _count(function: Expression, argument: Expression) -> _Kept:
    """Keep a count of all rows, or of those with a value."""
    of_all = argument.foldable() and argument.eval(None) is not None
    calls = ((Function.COUNT, None if of_all else argument),)
    return _Kept(calls, ((_buffers(function)[0], "{0}"),), function.evaluateExpression())


def _chosen(function: Expression, argument: Expression) -> _Kept:
    """Keep the value of one row: min, max, first or last."""
    name, buffers = kind(function), _buffers(function)
    if name in _EXTREMES:
        call, values = _EXTREMES[name], ["{0}"]
    else:  # the second buffer of Spark's function: whether it has met a row
        call, values = _ENDS[name, function.ignoreNulls()], ["{0}", "true"]
    parts = tuple(zip(buffers, values, strict=True))
    return _Kept(((call, argument),), parts, function.evaluateExpression())


def _sum(function: Expression, argument: Expression, given: rules.Call) -> _Kept | None:
    """Keep a sum; None for a variant of the function with other buffers, and so other results."""
    buffers = _buffers(function)
    if len(buffers) != 1 + given.is_decimal:
        return None
    sums = (
        (f"coalesce({{0}}, {_zero(buffers[0])})", "{0} is null") if given.is_decimal else ("{0}",)
    )
    parts = tuple(zip(buffers, sums, strict=True))
    return _Kept(((Function.SUM, argument),), parts, function.evaluateExpression())


def _average(function: Expression, argument: Expression, given: rules.Call) -> _Kept:
    """Keep the sum and the count that an average is computed from."""
    buffers = _buffers(function)
    how = Function.SUM if given.is_decimal else Function.DOUBLE_SUM
    sums = (f"coalesce({{0}}, {_zero(buffers[0])})", "{1}")
    parts = tuple(zip(buffers, sums, strict=True))
    calls = ((how, argument), (Function.COUNT, argument))
    return _Kept(calls, parts, function.evaluateExpression())


def _buffers(function: Expression) -> list[Expression]:
    return items(function.aggBufferAttributes())


def _zero(buffer: Expression) -> str:
    return f"cast(0 as {sql_type(type_of(buffer))})"


def _is_short(call: rules.Call) -> bool:
    """Return whether 38 digits are enough for sums of a decimal."""
    return call.is_decimal and call.precision_and_scale[0] + DIGITS_MORE <= _DIGITS_MAX


def _type_of(function: Function, argument: Expression | None) -> DataType:
    """Return the type of a running function's result."""
    if argument is None or function is Function.COUNT:
        return LongType()
    given = type_of(argument)
    if function is Function.DOUBLE_SUM:
        return DoubleType()
    if function is not Function.SUM:
        return given
    if isinstance(given, DecimalType):
        return DecimalType(given.precision + DIGITS_MORE, given.scale)
    return DoubleType() if given.simpleString() in FLOATS else LongType()
