"""Recomputation, the rule that is exact for every aggregate: Spark evaluates changed groups before and after.

The rows of each group are stored. Spark evaluates the groups that an epoch touches twice, over the
rows before and after the epoch. The first result is retracted, the second is appended. Results that depend on
the order of rows are stored as well, and retracted as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from eddyline.operators.base import numbered
from eddyline.operators.recompute import SLOT, Regroup
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, canonical_texts, until
from eddyline.plan.eventtime import (
    NO_BOUNDS,
    Bounds,
    Expiry,
    attribute_bounds,
    bound_of,
    key_bounds,
    projected,
)
from eddyline.plan.lanes import Placed
from eddyline.plan.logical import (
    Expression,
    Plan,
    aggregate_calls,
    child_of,
    id_of,
    items,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.python import calls_python, keep_outputs, kept_rule, skipping
from eddyline.plan.render import texts
from eddyline.plan.types import column_type, contains_type

_OF_ANY_ORDER = frozenset(
    {
        "BitAndAgg", "BitOrAgg", "BitXorAgg", "BoolAnd", "BoolOr", "Count", "CountIf", "HyperLogLogPlusPlus", "Percentile",
    }
)  # fmt: skip
"""Aggregates whose result doesn't depend on the order of rows, nor on how they are cut into parts."""


@dataclass(frozen=True, slots=True)
class Versions:
    """All rows of the touched groups, before and after the epoch.

    Attributes:
        plan: the columns under their own ids.
        version: the attribute that is -1 before and +1 after.
        real: false for the first row, from which a global aggregate starts; None if there is none.
        expiry: the rows of the state that a watermark allows to drop.
    """

    plan: Plan
    version: Expression
    real: Expression | None
    expiry: list[Expiry]


def versions(
    build: Build,
    child: Delta,
    keys: list[Expression],
    columns: list[Expression],
    *,
    with_first_row: bool = False,
    sessions: Bounds = NO_BOUNDS,
) -> Versions:
    """Store the rows of a child by keys, and return those of the touched groups before and after.

    Args:
        sessions: the bounds of columns that are sessions.
    """
    names, key_names = numbered("c", len(columns)), numbered("k", len(keys))
    inputs = [*zip(keys, key_names, strict=True), *zip(columns, names, strict=True)]
    frame = build.named(child, inputs)
    if with_first_row:
        names = numbered("c", len(columns) + 1)
        real = f"c{len(columns)}"
        once = first_row(build, frame).selectExpr("*", f"false as {real}")
        frame = frame.selectExpr("*", f"true as {real}")
        frame = build.steps.union([frame, once.select(*frame.columns)])
    hashed = build.hashed(build.normalised(frame, key_names), key_names, names)
    moved = child.keys != canonical_texts(keys)
    rows = build.shuffled(hashed, single=not keys) if moved else Placed(hashed)
    out = [rows.schema[name] for name in names]
    places = {id_of(column): name for column, name in zip(columns, names, strict=False)}
    kept = attribute_bounds(keys, key_bounds(build.catalyst, keys, child.bounds))
    expiry = [Expiry(SLOT, places[key], bound) for key, bound in kept.items() if key in places]
    expiry += [Expiry(SLOT, places[key], bound, sessions=True) for key, bound in sessions.items()]
    versioned = build.run(rows, Regroup(len(names)), out, single=not keys, expiry=expiry)
    plan, others = build.rebound(versioned, columns)
    return Versions(plan, others[-1], others[0] if with_first_row else None, expiry)


def first_row(build: Build, like: DataFrame) -> DataFrame:
    """Return one row of nulls in the first epoch: a global aggregate has a row even over no input."""
    once = build.constant(build.catalyst.session.range(1).selectExpr())
    nulls = [
        f"cast(null as {column_type(like, name)}) as {name}" for name in like.columns if name != "w"
    ]
    return once.selectExpr(*nulls, "w")


@dataclass(frozen=True, slots=True)
class _Recomputed:
    """A recomputed aggregate while it is lowered.

    Attributes:
        keys: the grouping keys.
        results: the result expressions, with DISTINCT aggregates as the user wrote them.
        touched: the keys without sessions. Sessions grow, merge and split, so all sessions of the
            other keys are recomputed together.
        sessions: bounds of the keys that are sessions, by attribute.
    """

    keys: list[Expression]
    results: list[Expression]
    touched: list[Expression]
    sessions: Bounds


def recomputed(build: Build, node: Plan, child: Delta) -> Delta:
    """Aggregate the old and the new rows of the touched groups; the difference is the delta."""
    aggregation = _read(build, node, child)
    keys, touched, results = aggregation.keys, aggregation.touched, texts(aggregation.results)
    rows = versions(
        build,
        child,
        touched,
        _used_columns(node, aggregation),
        with_first_row=not keys,
        sessions=aggregation.sessions,
    )
    if child.endless and not rows.expiry:
        build.grows(f"the rows by {', '.join(texts(touched)) or 'nothing'}", PARTITION_BY_TIME)
    if rows.real is not None:
        real_only = _over_real_rows(build, aggregation.results, rows.real)
        aggregation = replace(aggregation, results=real_only)
    kept_keys = key_bounds(build.catalyst, touched, child.bounds)
    shown = Node(
        "Aggregate",
        "recompute touched groups",
        ", ".join(results),
        texts(touched),
        until("input rows by group", rows.expiry),
        shuffle=True,
        children=(child.node,),
    )
    weight = build.catalyst.alias(rows.version, "w")
    python = calls_python(aggregation.results)
    by_order = any(map(is_by_order, aggregate_calls(aggregation.results)))
    if python or (by_order and all(map(build.exchangeable, aggregation.results))):
        plan, change = _kept(build, aggregation, rows, weight, child.bounds)
        shown = replace(shown, rule=kept_rule(shown.rule, python=python))
    else:
        plan = build.catalyst.aggregate(
            [*keys, rows.version], [*aggregation.results, weight], rows.plan
        )
        change = weight.toAttribute()
    bounds = {**attribute_bounds(touched, kept_keys), **aggregation.sessions}
    return Delta(
        plan,
        change,
        shown,
        single=not touched,
        endless=child.endless and bool(keys),
        bounds=projected(build.catalyst, aggregation.results, bounds),
    )


def _read(build: Build, node: Plan, child: Delta) -> _Recomputed:
    catalyst = build.catalyst
    keys = items(node.groupingExpressions())
    touched = [key for key in keys if not catalyst.is_session(key)]
    results = [catalyst.shown_distinct(result) for result in items(node.aggregateExpressions())]
    sessions = {}
    for key in keys:
        if catalyst.is_session(key):
            bound = bound_of(catalyst, key, child.bounds)
            if bound is not None:
                sessions[id_of(key)] = bound
    return _Recomputed(keys, results, touched, sessions)


def _used_columns(node: Plan, aggregation: _Recomputed) -> list[Expression]:
    used = {
        id_of(reference)
        for expression in [*aggregation.keys, *aggregation.results]
        for reference in items(expression.references().toSeq())
    }
    return [column for column in output_of(child_of(node)) if id_of(column) in used]


def _over_real_rows(build: Build, results: list[Expression], real: Expression) -> list[Expression]:
    """Return the results with their aggregates over real rows only, not over the first row."""

    def filtered(expression: Expression) -> Expression | None:
        if kind(expression) != "AggregateExpression":
            return None
        return build.catalyst.filtered_aggregate(expression, real)

    return [build.catalyst.rewrite(result, filtered) for result in results]


def is_by_order(call: Expression) -> bool:
    """Return whether an aggregate may give another result for the same rows in another order, or cut into other parts.

    Spark doesn't keep the order of a group's rows: above 128 groups its hash aggregation goes on by sorting, and merges
    what it has so far. Where it cuts a group depends on the other groups of the epoch.
    """
    function = call.aggregateFunction()
    name = kind(function)
    if name in (
        "Sum",
        "Average",
    ):  # of integers, Average adds up doubles; try_sum is null if a sum on the way overflows
        exact = type_of(function).simpleString().startswith(("bigint", "decimal"))
        return not exact or function.sql().startswith("try_")
    if name in ("Max", "Min"):  # of 0.0 and -0.0 it is the first
        return contains_type(type_of(function), ("float", "double"))
    return name not in _OF_ANY_ORDER


def _kept(
    build: Build,
    aggregation: _Recomputed,
    rows: Versions,
    weight: Expression,
    bounds: Bounds,
) -> tuple[Plan, Expression]:
    """Aggregate, and store the results by all keys: they are retracted as they were emitted.

    Python functions are called for the rows after the epoch only. A session is a group of its own here: those that have
    ended are no longer among the rows.

    Returns:
        The plan of the results' change, and its weight.
    """
    catalyst = build.catalyst
    skip = catalyst.negative(rows.version)
    named = [catalyst.alias(key, f"k{i}") for i, key in enumerate(aggregation.keys)]
    called = [skipping(build, result, skip) for result in aggregation.results]
    grouping = [*aggregation.keys, rows.version]
    grouped = catalyst.aggregate(grouping, [*called, *named, weight], rows.plan)
    groups = [name.toAttribute() for name in named]
    # the rows of an ended session stay until a merge: until then it is among those that any change of its key touches
    kept = {
        place: bound
        for place, bound in key_bounds(catalyst, aggregation.keys, bounds).items()
        if not catalyst.is_session(aggregation.keys[place])
    }
    return keep_outputs(build, grouped, weight.toAttribute(), groups, kept)
