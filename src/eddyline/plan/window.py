"""Lowering of window functions: Spark evaluates what changed of the partitions, before and after.

Functions over nearby rows (`lag`, `lead`, frames with two bounds) are evaluated for the rows that can change, all
others over whole partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from eddyline.operators.base import numbered
from eddyline.operators.neighbours import PLACE, SHOWN, SLOT, STRETCH, Neighbours
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, canonical_texts, until
from eddyline.plan.eventtime import Expiry, attribute_bounds, key_bounds
from eddyline.plan.limits import direction, is_sortable
from eddyline.plan.logical import Expression, Plan, child_of, items, kind, output_of, type_of
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, calls_python, keep_outputs, skipping
from eddyline.plan.recompute import Versions, versions
from eddyline.plan.render import node_text, texts

ROWS_MAX = 10_000
"""The most rows around a changed one that are read. Larger frames reach about as far as most partitions."""

VALUES_MAX = 2**62
"""The largest difference of sort keys that can be added to one."""

DAY = 86_400_000_000
CLOCK_CHANGES = DAY
"""Microseconds by which an interval of days can be longer or shorter, where clocks change."""

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_DISTANCES: dict[type[DataType], tuple[type[DataType], ...]] = {
    **dict.fromkeys(_INTEGERS, _INTEGERS),
    DateType: (IntegerType,),
    TimestampType: (DayTimeIntervalType,),
    TimestampNTZType: (DayTimeIntervalType,),
}
"""For the types of sort keys the types of distances in frames of RANGE that are numbers of the keys' own units."""


def window(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """Lower window functions; stacked nodes with the same partitioning at once."""
    partition = items(node.partitionSpec())
    stack = _stack(node)
    below = child_of(stack[-1])
    child = lower(below)
    reach = _reach(build, stack)
    if reach is not None:
        return _near(build, stack, child, reach)
    rows = versions(build, child, partition, output_of(below))
    skip = _skipped(build, stack, rows)
    if child.endless and not rows.expiry:
        by = ", ".join(texts(partition)) or "nothing"
        build.grows(f"the rows by {by}", PARTITION_BY_TIME)
    plan, weight = _evaluated(build, stack, rows, skip), rows.version
    shown = Node(
        "Window",
        "recompute touched partitions",
        "; ".join(map(node_text, stack)),
        texts(partition),
        until("input rows by partition", rows.expiry),
        shuffle=child.keys != canonical_texts(partition),
        children=(child.node,),
    )
    bounds = key_bounds(build.catalyst, partition, child.bounds)
    if skip is not None:
        plan, weight = keep_outputs(build, plan, rows.version, partition, bounds)
        shown = replace(shown, rule=f"{shown.rule}, {OUTPUTS_KEPT}")
    return Delta(
        plan,
        weight,
        shown,
        single=not partition,
        endless=child.endless,
        bounds=attribute_bounds(partition, bounds),
    )


@dataclass(frozen=True, slots=True)
class _Reach:
    """How far the frame of a window function reaches.

    Attributes:
        by_value: whether it reaches over differences of the sort key, not over numbers of rows.
        before, after: so many rows; or so much less and more, in the order of the sort key, than a row's own.
    """

    by_value: bool
    before: int
    after: int


def _near(build: Build, stack: list[Plan], child: Delta, reach: _Reach) -> Delta:
    """Lower window functions that depend on rows near each row."""
    catalyst, node = build.catalyst, stack[0]
    partition, orders = items(node.partitionSpec()), items(node.orderSpec())
    columns = output_of(child_of(stack[-1]))
    keys, sorts = numbered("k", len(partition)), numbered("s", len(orders))
    names = numbered("c", len(columns))
    sort_keys = [order.child() for order in orders]
    inputs = zip([*partition, *sort_keys, *columns], [*keys, *sorts, *names], strict=True)
    frame = build.named(child, list(inputs))
    rows = build.hashed(build.normalised(frame, keys), keys, [*keys, *sorts, *names])
    rows = build.shuffled(rows, single=not partition)
    bounds = key_bounds(catalyst, partition, child.bounds)
    expiry = [Expiry(SLOT, keys[place], bound) for place, bound in bounds.items()]
    if child.endless and not expiry:
        by = ", ".join(texts(partition)) or "nothing"
        build.grows(f"the rows by {by}", PARTITION_BY_TIME)
    directions = [direction(order) for order in orders]
    operator = Neighbours(
        reach.before,
        reach.after,
        reach.by_value,
        len(keys),
        len(columns),
        tuple(one.descending for one in directions),
        tuple(one.nulls_last for one in directions),
    )
    out = [
        *(frame.schema[name] for name in names),
        StructField(PLACE, LongType(), False),
        StructField(STRETCH, LongType(), False),
        StructField(SHOWN, BooleanType(), False),
    ]
    result = build.run(rows, operator, out, single=not partition, expiry=expiry)
    plan, (place, stretch, shown, weight) = build.rebound(result, columns)
    for one in reversed(stack):
        functions = items(one.windowExpressions())
        order = None if reach.by_value else place
        plan = catalyst.window(one, functions, [*partition, stretch], plan, order)
    plan = catalyst.project([*output_of(node), weight], catalyst.filter(shown, plan))
    return Delta(
        plan,
        weight,
        Node(
            "Window",
            "recompute rows near changes",
            "; ".join(map(node_text, stack)),
            texts(partition),
            until("input rows by partition, in order", expiry),
            shuffle=True,
            children=(child.node,),
        ),
        single=not partition,
        endless=child.endless,
        bounds=attribute_bounds(partition, bounds),
    )


def _reach(build: Build, stack: list[Plan]) -> _Reach | None:
    """Return how far the functions reach, together; None if that isn't bounded, or not known."""
    partition, orders = items(stack[0].partitionSpec()), items(stack[0].orderSpec())
    by = canonical_texts(orders)
    if not (build.native and orders and is_sortable([one.child() for one in orders], partition)):
        return None
    if any(canonical_texts(items(node.orderSpec())) != by for node in stack):
        return None
    before = after = 0
    kinds = set()
    for node in stack:  # a function over the results of others reaches as much further
        reaches = [_reach_of(named, orders) for named in items(node.windowExpressions())]
        known = [one for one in reaches if one is not None]
        if len(known) < len(reaches):
            return None
        before += max(one.before for one in known)
        after += max(one.after for one in known)
        kinds |= {one.by_value for one in known}
    if len(kinds) > 1 or before + after > (VALUES_MAX if kinds == {True} else ROWS_MAX):
        return None
    return _Reach(kinds.pop(), before, after)


def _reach_of(named: Expression, orders: Sequence[Expression]) -> _Reach | None:
    """Return how far one function reaches; None if that isn't bounded, or not known."""
    over = child_of(named)
    if kind(over) != "WindowExpression" or calls_python([named]):
        return None
    function, frame = over.windowFunction(), over.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame":
        return None
    if kind(function) in ("Lag", "Lead"):
        if function.ignoreNulls():
            return None
    elif kind(function) not in ("AggregateExpression", "NthValue"):
        return None  # ranks: they count all rows before
    by_value = kind(frame.frameType()) == "RangeFrame"
    wanted = _DISTANCES.get(type(type_of(orders[0].child())), ()) if by_value else ()
    if by_value and (len(orders) > 1 or not wanted):
        return None
    lower, upper = _distance(frame.lower(), wanted), _distance(frame.upper(), wanted)
    if lower is None or upper is None:
        return None
    more = CLOCK_CHANGES if wanted == (DayTimeIntervalType,) and max(-lower, upper) >= DAY else 0
    return _Reach(by_value, max(-lower, 0) + more, max(upper, 0) + more)


def _distance(bound: Expression, wanted: tuple[type[DataType], ...]) -> int | None:
    """Return how far a frame's bound is from the current row; None if that has no limit, or isn't known.

    Args:
        wanted: the types that it may have in a frame of RANGE; empty in one of ROWS.
    """
    if kind(bound) == "CurrentRow":
        return 0
    if kind(bound) in ("UnboundedPreceding", "UnboundedFollowing") or not bound.foldable():
        return None
    if wanted and not isinstance(type_of(bound), wanted):
        return None
    return int(bound.eval(None))


def _stack(node: Plan) -> list[Plan]:
    """Return a Window node and those right below it with the same partitioning, topmost first."""
    wanted = canonical_texts(items(node.partitionSpec()))
    stack = [node]
    below = child_of(node)
    while kind(below) == "Window" and canonical_texts(items(below.partitionSpec())) == wanted:
        stack.append(below)
        below = child_of(below)
    return stack


def _skipped(build: Build, stack: list[Plan], rows: Versions) -> Expression | None:
    """Return for which rows no Python function is called; None if there is no such function."""
    functions = [function for node in stack for function in items(node.windowExpressions())]
    if not calls_python(functions):
        return None
    return build.catalyst.negative(rows.version)


def _evaluated(build: Build, stack: list[Plan], rows: Versions, skip: Expression | None) -> Plan:
    """Return the window functions over both versions of the touched partitions."""
    plan = rows.plan
    for node in reversed(stack):
        functions = items(node.windowExpressions())
        if skip is not None:
            functions = [skipping(build, function, skip) for function in functions]
        partition = [*items(node.partitionSpec()), rows.version]
        plan = build.catalyst.window(node, functions, partition, plan)
    return plan
