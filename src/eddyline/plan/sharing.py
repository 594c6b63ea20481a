"""Sub-plans that occur more than once in a view, such as those of a CTE that is read twice.

Spark's optimised plan repeats a CTE wherever it is read. A stateful sub-plan is lowered at the first of its
places; the other places read the output of that one in each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eddyline.plan.build import Build, Delta, SubPlan
from eddyline.plan.logical import (
    Expression,
    Plan,
    all_nodes,
    children_of,
    id_of,
    kind,
    output_of,
    subqueries_of,
)
from eddyline.plan.nodes import Node

_STATEFUL = frozenset(("Aggregate", "Join", "Window", "WindowGroupLimit", "GlobalLimit"))


def find_sub_plans(build: Build, plan: Plan) -> None:
    """Find the sub-plans of an optimised plan and where they occur; do nothing if no relation is read twice.

    Columns that a later place needs are also needed at the first one.
    """
    read = [build.catalyst.rdd_id(n) for n in all_nodes(plan) if kind(n) == "LogicalRDD"]
    if len(set(read)) < len(read):
        _visit(build, plan)


def _visit(build: Build, node: Plan) -> bool:
    """Record a node and those below it; return whether any of them keeps state."""
    known = _known(build, node)
    if known is not None:
        known.places += 1
        pairs = zip(output_of(known.first), output_of(node), strict=True)
        build.needed.update(id_of(first) for first, one in pairs if id_of(one) in build.needed)
        return known.stateful
    below = [_visit(build, one) for one in [*children_of(node), *subqueries_of(node)]]
    stateful = kind(node) in _STATEFUL or any(below)
    build.sub_plans.setdefault(node.semanticHash(), []).append(SubPlan(node, stateful))
    return stateful


def _known(build: Build, node: Plan) -> SubPlan | None:
    same = build.sub_plans.get(node.semanticHash(), ())
    return next((one for one in same if one.first.sameResult(node)), None)


def repeated(build: Build, node: Plan) -> SubPlan | None:
    """Return the sub-plan with a node as its root, if it keeps state and occurs more than once.

    A sub-plan with a column of a type that can't be exchanged isn't shared: each place may not need that column.
    """
    found = _known(build, node) if build.sub_plans else None
    if found is None or not found.stateful or found.places < 2:
        return None
    return found if all(map(build.exchangeable, output_of(node))) else None


def lowered_once(
    build: Build, sub_plan: SubPlan, node: Plan, lower: Callable[[Build, Plan], Delta]
) -> Delta:
    """Return the delta of a sub-plan at one of its places; the first call lowers it."""
    output = output_of(node)
    if sub_plan.lowered is None or sub_plan.read is None:
        sub_plan.lowered = lowered = lower(build, node)
        sub_plan.first = node
        present = set(map(id_of, output_of(lowered.plan)))
        sub_plan.columns = [i for i, one in enumerate(output) if id_of(one) in present]
        named = [(output[place], f"c{i}") for i, place in enumerate(sub_plan.columns)]
        sub_plan.read = build.steps.shared(build.named(lowered, named))
        shown = Node(
            "Shared", "stateless", f"read {sub_plan.places} times", children=(lowered.node,)
        )
    elif any(id_of(output[i]) in build.needed for i in _left_out(sub_plan, output)):
        return lower(build, node)  # the first place doesn't have all that is needed here
    else:
        lowered = sub_plan.lowered
        shown = Node("Shared", "stateless", "see the other place")
    firsts = output_of(sub_plan.first)
    plan, others = build.rebound(sub_plan.read(), [output[place] for place in sub_plan.columns])
    return Delta(
        plan,
        others[0],
        shown,
        lowered.append_only,
        endless=lowered.endless,
        bounds={
            id_of(one): lowered.bounds[id_of(first)]
            for first, one in zip(firsts, output, strict=True)
            if id_of(first) in lowered.bounds
        },
    )


def _left_out(sub_plan: SubPlan, output: Sequence[Expression]) -> set[int]:
    return set(range(len(output))).difference(sub_plan.columns)
