"""Lowering of window functions: Spark evaluates the changed part of partitions, before and after the epoch.

Functions over nearby rows (`lag`, `lead`, frames with two bounds) are evaluated for the rows that can change, and `plan/running.py`
lowers those that run from the first row on (ranks, running sums); all others are evaluated over whole partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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

from eddyline.operators.neighbours import COPY, PLACE, SHOWN, SLOT, STRETCH, Neighbours
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, canonical_texts, until
from eddyline.plan.eventtime import Bound, Expiry, attribute_bounds, key_bounds
from eddyline.plan.limits import is_sortable, keeps_group_top, partitioned
from eddyline.plan.logical import (
    Expression,
    Plan,
    Seq,
    child_of,
    find,
    items,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.python import calls_python, keep_outputs, kept_rule, skipping
from eddyline.plan.recompute import Versions, is_by_order, versions
from eddyline.plan.render import node_text, texts
from eddyline.plan.running import is_running, running

ROWS_MAX = 10_000
"""The most rows around a changed one that are read. Larger frames reach about as far as most partitions."""

VALUES_MAX = 2**62
"""The largest difference of sort keys that can be added to one."""

DAY = 86_400_000_000
CLOCK_CHANGES = DAY
"""Microseconds by which an interval of days can be longer or shorter, where clocks change."""

_BY_PEERS = frozenset(("Rank", "DenseRank", "CumeDist", "PercentRank"))
"""Window functions whose results are the same for rows that tie."""

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
    if _is_first(build, node):
        return _numbered_one(build, node, lower(child_of(node)))
    return _lowered(build, node, lower, counted=False)[0]


def _lowered(
    build: Build, node: Plan, lower: Callable[[Plan], Delta], *, counted: bool
) -> tuple[Delta, list[Expression]]:
    """Lower window functions; also return the columns of the result.

    Args:
        counted: whether functions over nearby rows number equal rows: functions that are computed over the result must
            take these in the same order.
    """
    partition = items(node.partitionSpec())
    stack, split = _stack(node), None
    reach = _reach(build, stack)
    if reach is None and (reach := _reach(build, [node])) is not None:
        stack = [node]
    if reach is None and (split := _split(build, node)) is not None:
        stack = [split]
    below = child_of(stack[-1])
    columns = output_of(below)
    if split is not None and split is not node:
        child, columns = _lowered(build, below, lower, counted=True)
    else:
        child = lower(below)
    out = output_of(node)
    bounds = key_bounds(build.catalyst, partition, child.bounds)
    shuffle = True
    if reach is not None:
        plan, weight, copy, expiry = _near(build, stack, child, reach, bounds)
        if counted:
            out = [*columns, copy, *out[len(columns) :]]
        plan = build.catalyst.project([*out, weight], plan)
        rule, kept = "recompute rows near changes", "input rows by partition, in order"
    elif split is not None:
        plan, weight, expiry = running(build, split, child, columns, bounds)
        plan = build.catalyst.project([*output_of(node), weight], plan)
        rule, kept = "compute on from the first change", "rows and results by partition, in order"
    else:
        rows = versions(build, child, partition, output_of(below))
        skip = _skipped(build, stack, rows)
        plan, weight, expiry = _evaluated(build, stack, rows, skip), rows.version, rows.expiry
        rule, kept = "recompute touched partitions", "input rows by partition"
        shuffle = child.keys != canonical_texts(partition)
        by_order = any(map(_is_by_order, _functions(stack)))
        if skip is not None or (by_order and all(map(build.exchangeable, output_of(node)))):
            plan, weight = keep_outputs(build, plan, rows.version, partition, bounds)
            rule = kept_rule(rule, python=skip is not None)
    if child.endless and not expiry:
        by = ", ".join(texts(partition)) or "nothing"
        build.grows(f"the rows by {by}", PARTITION_BY_TIME)
    shown = Node(
        "Window",
        rule,
        "; ".join(map(node_text, stack)),
        texts(partition),
        until(kept, expiry),
        shuffle=shuffle,
        children=(child.node,),
    )
    delta = Delta(
        plan,
        weight,
        shown,
        single=not partition,
        endless=child.endless,
        bounds=attribute_bounds(partition, bounds),
    )
    return delta, out


def _is_first(build: Build, node: Plan) -> bool:
    """Return whether functions number rows of which only the first of each partition remain.

    Then the numbers are all 1: `row_number() ... = 1` keeps one row, and ties have the same rank.
    """
    below = child_of(node)
    if kind(below) != "WindowGroupLimit" or below.limit() != 1 or not keeps_group_top(build, below):
        return False
    if not (
        _same(node.partitionSpec(), below.partitionSpec())
        and _same(node.orderSpec(), below.orderSpec())
    ):
        return False
    ranks = {"Rank", "DenseRank"}
    if kind(below.rankLikeFunction()) == "RowNumber":
        ranks.add("RowNumber")  # of rows that tie only one has the number 1
    values = [named.child() for named in items(node.windowExpressions())]
    return all(
        kind(over) == "WindowExpression" and kind(over.windowFunction()) in ranks for over in values
    )


def _same(some: Seq[Expression], others: Seq[Expression]) -> bool:
    return canonical_texts(items(some)) == canonical_texts(items(others))


def _numbered_one(build: Build, node: Plan, child: Delta) -> Delta:
    """Return the rows with the number 1 for each function."""
    catalyst = build.catalyst
    ones = [
        catalyst.alias(catalyst.constant("1"), named.name(), named)
        for named in items(node.windowExpressions())
    ]
    plan = catalyst.project([*output_of(child_of(node)), *ones, child.weight], child.plan)
    return child.through(plan, "Window", node_text(node))


def _split(build: Build, node: Plan) -> Plan | None:
    """Return the node with its running functions, over one with those over nearby rows, if there are such.

    None if some of its functions are neither.
    """
    ahead: list[Expression] = []
    near: list[Expression] = []
    for named in items(node.windowExpressions()):
        (ahead if is_running(build, node, named) else near).append(named)
    if not (ahead and near):
        return node if ahead else None
    catalyst, partition = build.catalyst, items(node.partitionSpec())
    below = catalyst.window(node, near, partition, child_of(node))
    return catalyst.window(node, ahead, partition, below) if _reach(build, [below]) else None


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


def _near(
    build: Build, stack: list[Plan], child: Delta, reach: _Reach, bounds: Mapping[int, Bound]
) -> tuple[Plan, Expression, Expression, list[Expiry]]:
    """Evaluate window functions that depend on rows near each row, where these can change.

    Args:
        bounds: those of the partition's keys.

    Returns:
        The plan, its weight, the number of each row among equal ones, and the rows of the state that a watermark
        allows to drop.
    """
    catalyst, node = build.catalyst, stack[0]
    partition, orders = items(node.partitionSpec()), items(node.orderSpec())
    columns = output_of(child_of(stack[-1]))
    rows = partitioned(build, child, partition, orders, columns)
    operator = Neighbours(
        reach.before,
        reach.after,
        reach.by_value,
        len(partition),
        len(columns),
        rows.descending,
        rows.nulls_last,
    )
    expiry = rows.expiry(SLOT, bounds)
    out = [
        *rows.columns,
        StructField(COPY, LongType(), False),
        StructField(PLACE, LongType(), False),
        StructField(STRETCH, LongType(), False),
        StructField(SHOWN, BooleanType(), False),
    ]
    result = build.run(rows.frame, operator, out, single=not partition, expiry=expiry)
    plan, (copy, place, stretch, shown, weight) = build.rebound(result, columns)
    for one in reversed(stack):
        functions = items(one.windowExpressions())
        order = None if reach.by_value else place
        plan = catalyst.window(one, functions, [*partition, stretch], plan, order)
    return catalyst.filter(shown, plan), weight, copy, expiry


def _reach(build: Build, stack: list[Plan]) -> _Reach | None:
    """Return the combined reach of the functions; None if it isn't bounded, or unknown."""
    partition, orders = items(stack[0].partitionSpec()), items(stack[0].orderSpec())
    by = canonical_texts(orders)
    if not (build.native and orders and is_sortable([one.child() for one in orders], partition)):
        return None
    if any(canonical_texts(items(node.orderSpec())) != by for node in stack):
        return None
    before = after = 0
    kinds = set()
    for node in stack:  # the reaches of stacked functions add up
        reaches = [
            _reach_of(over, orders)
            for named in items(node.windowExpressions())
            for over in find(named, lambda name: name == "WindowExpression")
        ]
        known = [one for one in reaches if one is not None]
        if len(known) < len(reaches):
            return None
        before += max(one.before for one in known)
        after += max(one.after for one in known)
        kinds |= {one.by_value for one in known}
    if len(kinds) > 1 or before + after > (VALUES_MAX if kinds == {True} else ROWS_MAX):
        return None
    return _Reach(kinds.pop(), before, after)


def _reach_of(over: Expression, orders: Sequence[Expression]) -> _Reach | None:
    """Return the reach of one function; None if it isn't bounded, or unknown."""
    if calls_python([over]):
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
    if not calls_python(_functions(stack)):
        return None
    return build.catalyst.negative(rows.version)


def _functions(stack: list[Plan]) -> list[Expression]:
    return [function for node in stack for function in items(node.windowExpressions())]


def _is_by_order(function: Expression) -> bool:
    """Return whether a window function may give another result if rows that tie come in another order.

    Spark's sort keeps their order only as long as it doesn't spill, which depends on memory and on the other partitions.
    """
    over = next(iter(find(function, lambda name: name == "WindowExpression")), None)
    if over is None:
        return True  # nothing is known of it
    call, frame = over.windowFunction(), over.windowSpec().frameSpecification()
    if kind(call) != "AggregateExpression":
        return kind(call) not in _BY_PEERS
    if is_by_order(call):
        return True
    ends = kind(frame.lower()), kind(frame.upper())
    whole = ends == ("UnboundedPreceding", "UnboundedFollowing")
    return not whole and kind(frame.frameType()) != "RangeFrame"


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
