"""Row keys: columns of a plan's result of which no two rows have the same values.

They pair the old and the new row of a change in the update form of changelogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from eddyline.plan.build import Build
from eddyline.plan.logical import (
    Expression,
    JoinNode,
    Plan,
    child_of,
    children_of,
    id_of,
    items,
    kind,
    output_of,
)

_KEEP = frozenset(
    {
        "Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Window", "WindowGroupLimit",
        "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint",
        "SubqueryAlias", "View", "ArrowEvalPython", "BatchEvalPython",
    }
)  # fmt: skip
"""Nodes that drop rows or add columns, so that a key of the input is one of the output."""

_FIRST = "RowNumber"  # with a filter above, which is why there is a WindowGroupLimit: one row for each partition

_LEFT_ROWS = frozenset({"LeftSemi", "LeftAnti", "ExistenceJoin"})

Ids = frozenset[int]


def row_key(build: Build, plan: Plan) -> tuple[int, ...] | None:
    """Return the places of a key's columns in the output; None if no key is known.

    An aggregate without groups has one row, and the key of no columns.
    """
    key = _key(build, plan)
    output = [id_of(attribute) for attribute in output_of(plan)]
    if key is None or not key <= set(output):
        return None
    return tuple(sorted(output.index(one) for one in key))


def _key(build: Build, plan: Plan) -> Ids | None:
    """Return the ids of a key's attributes; they may be missing in the output."""
    name = kind(plan)
    if name == "WindowGroupLimit" and plan.limit() == 1 and kind(plan.rankLikeFunction()) == _FIRST:
        partition = items(plan.partitionSpec())
        if all(kind(one) == "AttributeReference" for one in partition):
            return frozenset(map(id_of, partition))
    if name in _KEEP:
        return _key(build, child_of(plan))
    if name == "Project":
        return _renamed(_key(build, child_of(plan)), items(plan.projectList()))
    if name == "Aggregate":
        groups = items(plan.groupingExpressions())
        columns = (group for group in groups if kind(group) == "AttributeReference")
        return _renamed(frozenset(map(id_of, columns)), items(plan.aggregateExpressions()))
    if name == "Join":
        return _of_join(build, cast(JoinNode, plan))
    if name == "LogicalRDD":
        relation = build.relations.get(build.catalyst.rdd_id(plan))
        if relation is not None and relation.key is not None:
            output = output_of(plan)
            return frozenset(id_of(output[place]) for place in relation.key)
    return None


def _renamed(key: Ids | None, columns: Sequence[Expression]) -> Ids | None:
    """Return a key after a projection, which may rename its attributes or drop them."""
    if key is None:
        return None
    kept = {id_of(column) for column in columns}
    renamed = {
        id_of(column.child()): id_of(column)
        for column in columns
        if kind(column) == "Alias" and kind(column.child()) == "AttributeReference"
    }
    return frozenset(one if one in kept else renamed.get(one, one) for one in key)


def _of_join(build: Build, join: JoinNode) -> Ids | None:
    how = kind(join.joinType())
    left = _key(build, children_of(join)[0])
    if how in _LEFT_ROWS or left is None:
        return left
    right = _key(build, children_of(join)[1])
    if right is None:
        return None
    left_keys, right_keys, _ = build.catalyst.equi_join_keys(join)
    if how in ("Inner", "LeftOuter") and right <= _attributes(right_keys):
        return left  # at most one row of the right side for each row of the left
    if how in ("Inner", "RightOuter") and left <= _attributes(left_keys):
        return right
    return left | right


def _attributes(expressions: Iterable[Expression]) -> Ids:
    return frozenset(id_of(one) for one in expressions if kind(one) == "AttributeReference")
