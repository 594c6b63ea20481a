"""Resolved plans with other leaves or other expressions."""

from __future__ import annotations

from collections.abc import Callable

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import (
    SUBQUERIES,
    Expression,
    Plan,
    children_of,
    expressions_of,
    kind,
    subqueries_of,
)


def over_leaves(catalyst: Catalyst, plan: Plan, leaf: Callable[[Plan], Plan | None]) -> Plan:
    """Return the plan with the leaves for which `leaf` returns others; also those of subqueries."""

    def below(expression: Expression) -> Expression | None:
        return _with_subquery(expression, lambda inner: over_leaves(catalyst, inner, leaf))

    children = children_of(plan)
    if not children:
        return leaf(plan) or plan
    over = plan.withNewChildren(
        catalyst.seq([over_leaves(catalyst, child, leaf) for child in children])
    )
    return catalyst.map_expressions(over, below) or over if subqueries_of(plan) else over


def with_expressions(
    catalyst: Catalyst,
    plan: Plan,
    affected: Callable[[Plan | Expression], bool],
    change: Callable[[Expression], Expression | None],
) -> Plan:
    """Return the plan with other expressions, also in subqueries; unknown nodes keep theirs.

    Args:
        affected: whether a node or expression, or anything below it, is to be looked at.
        change: returns another expression, or None for the same; the topmost one counts.
    """
    if not affected(plan):
        return plan

    def inside(expression: Expression) -> Expression | None:
        if not affected(expression):
            return expression
        changed = change(expression)
        if changed is not None:
            return changed
        return _with_subquery(
            expression, lambda inner: with_expressions(catalyst, inner, affected, change)
        )

    children = children_of(plan)
    if children:
        plan = plan.withNewChildren(
            catalyst.seq(
                [with_expressions(catalyst, child, affected, change) for child in children]
            )
        )
    if not any(affected(expression) for expression in expressions_of(plan)):
        return plan
    return catalyst.map_expressions(plan, inside) or plan


def _with_subquery(expression: Expression, change: Callable[[Plan], Plan]) -> Expression | None:
    """Return a subquery in an expression with another plan; None for any other expression."""
    if kind(expression) not in SUBQUERIES:
        return None
    return expression.withNewPlan(change(expression.plan()))
