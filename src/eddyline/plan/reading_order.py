"""The order in which a new view reads its inputs, if it reads them one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eddyline.operators.conditional_join import ConditionalJoin
from eddyline.operators.join import Join
from eddyline.operators.pairing import JoinKind
from eddyline.plan.lanes import Step
from eddyline.plan.nodes import Leaf, StatefulPart


def earlier_leaves(steps: Sequence[Step]) -> Mapping[str, frozenset[str]]:
    """Return for leaves the ones whose rows are better read before theirs.

    A row of the left side of a semi, anti or left join, or of the right side of a right join, is emitted once, if all that it
    can match is there already. Read the other way round it is emitted as a row without a match, and is retracted
    later. The rows of an aggregate or window are replaced until all its input has come: an inner join of such rows with
    others that aren't is emitted once, if these others come last.

    Args:
        steps: of the view's plan, each after its inputs.
    """
    below: list[frozenset[str]] = []  # the leaves of each step
    retracts: list[bool] = []  # whether a step may replace rows while its input still comes
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        sources = [piece.source for piece in step.inputs]
        own = {step.run.name} if isinstance(step.run, Leaf) else ()
        below.append(frozenset(own).union(*(below[one] for one in sources)))
        retracts.append(any(retracts[one] for one in sources))
        if not isinstance(step.run, StatefulPart):
            continue
        operator = step.run.operator
        if not isinstance(operator, Join | ConditionalJoin):
            retracts[-1] = True
            continue
        left, right = (piece.source for piece in steps[sources[0]].inputs)
        ordered = _in_order(operator.kind, left, right, retracts)
        if ordered is None:
            retracts[-1] = retracts[-1] or operator.kind is JoinKind.FULL
            continue
        first, last = (below[one] for one in ordered)
        for leaf in last:  # one that is on both sides waits for the others
            found[leaf] = found.get(leaf, frozenset()) | (first - last)
    return found


def _in_order(
    kind: JoinKind, left: int, right: int, retracts: Sequence[bool]
) -> tuple[int, int] | None:
    """Return the steps of both sides of a join, first the one that is better read first; None if it doesn't matter."""
    inner = kind is JoinKind.INNER
    if kind is JoinKind.FULL or (inner and retracts[left] == retracts[right]):
        return None
    right_first = retracts[right] if inner else kind.watches_left
    return (right, left) if right_first else (left, right)
