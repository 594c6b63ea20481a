"""Uncorrelated scalar subqueries: their row is joined to the input of the node that uses it.

If a subquery may return several rows, the join checks their number at the end of each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from eddyline.plan.build import Build
from eddyline.plan.logical import (
    Expression,
    Plan,
    children_of,
    expressions_of,
    id_of,
    items,
    kind,
    output_of,
    scalar_subqueries,
)
from eddyline.plan.refusals import MISPLACED_SCALAR_SUBQUERY
from eddyline.plan.render import node_text


def without_scalar_subqueries(build: Build, node: Plan) -> Plan:
    """Return the node over an input that has the subqueries' values as columns.

    The node itself if it has no scalar subqueries.
    """
    catalyst = build.catalyst
    found = [hit for expression in expressions_of(node) for hit in scalar_subqueries(expression)]
    if not found:
        return node
    if kind(node) == "Aggregate" and (above := _finished_above(build, node)) is not None:
        return above
    child, values = _joined(build, children_of(node)[0], found)
    over = node.withNewChildren(catalyst.seq([child, *children_of(node)[1:]]))
    rewritten = catalyst.map_expressions(
        over, lambda e: values.get(id_of(e)) if kind(e) == "ScalarSubquery" else None
    )
    if rewritten is None:
        raise build.refused(MISPLACED_SCALAR_SUBQUERY.about(name=kind(node)), node_text(node))
    build.need(child)
    if kind(node) in ("Filter", "Join"):  # its output has grown by the subquery's column
        rewritten = catalyst.project(output_of(node), rewritten)
    return rewritten


def _joined(
    build: Build, child: Plan, subqueries: Sequence[Expression]
) -> tuple[Plan, dict[int, Expression]]:
    """Join the row of each subquery to a plan.

    Returns:
        the plan, and for the id of each subquery the attribute of its value.
    """
    values: dict[int, Expression] = {}
    for subquery in subqueries:
        plan = subquery.plan()
        if id_of(subquery) not in values:
            values[id_of(subquery)] = output_of(plan)[0]
            child = build.catalyst.with_one_row(child, plan)
    return child, values


def _finished_above(build: Build, node: Plan) -> Plan | None:
    """Split an aggregate whose results hold scalar subqueries: a projection over one without them.

    None if all subqueries are in its keys or aggregate calls.
    """
    catalyst = build.catalyst
    keys = items(node.groupingExpressions())
    below: list[Expression] = []

    def pull(expression: Expression) -> Expression | None:
        grouped = any(expression.semanticEquals(key) for key in keys)
        if not grouped and kind(expression) != "AggregateExpression":
            return None
        known = next((one for one in below if one.child().semanticEquals(expression)), None)
        if known is None:
            below.append(known := catalyst.alias(expression, f"p{len(below)}"))
        return known.toAttribute()

    results = [catalyst.rewrite(result, pull) for result in items(node.aggregateExpressions())]
    if not any(map(scalar_subqueries, results)):
        return None
    named = [
        result if kind(result) == "Alias" else catalyst.alias(result, old.name(), old)
        for result, old in zip(results, items(node.aggregateExpressions()), strict=True)
    ]
    return catalyst.project(named, catalyst.aggregate(keys, below, children_of(node)[0]))
