"""Checks a physical plan: each stateful operator must get its rows in the buckets of its state.

A bucket of the state belongs to one task. Spark omits a shuffle if it considers the rows as distributed
already, and its rules differ between versions. So each physical plan is checked before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eddyline.errors import EngineError
from eddyline.plan.logical import Plan, children_of, kind, tree
from eddyline.plan.nodes import StatefulPart

WRONG_PARTITIONS = "WRONG_PARTITIONS"

_OPERATOR, _SHUFFLE = "MapInArrowExec", "ShuffleExchangeExec"


def check_partitions(view: str, physicals: Sequence[Plan], parts: Sequence[StatefulPart]) -> None:
    """Raise EngineError unless the rows of each stateful operator are in its buckets.

    Args:
        physicals: the plans that epochs run.
    """
    buckets = {part.name: part.buckets for part in parts}
    found = set()
    for node in (node for physical in physicals for node in tree(physical)):
        name = _operator(node, buckets)
        if name:
            found.add(name)
            given = _tasks(node.child(), buckets)
            if given != buckets[name]:
                raise _wrong(view, name, f"{buckets[name]} buckets, its input {given or 'none'}")
    for name in buckets.keys() - found:
        raise _wrong(view, name, "state, but Spark's plan leaves it out")


def _operator(node: Plan, buckets: Mapping[str, int]) -> str:
    """Return the name of the stateful operator that a node runs; empty for any other node."""
    name = node.func().name() if kind(node) == _OPERATOR else ""
    return name if name in buckets else ""


def _tasks(plan: Plan, buckets: Mapping[str, int]) -> int:
    """Return the number of tasks over which a plan's rows are distributed by their hash; 0 if by anything else.

    Nodes with one input and no shuffle keep each row in its task.
    """
    partitioning = plan.outputPartitioning()
    if partitioning.numPartitions() == 1:
        return 1
    if kind(plan) == _SHUFFLE:
        return partitioning.numPartitions() if kind(partitioning) == "HashPartitioning" else 0
    below = _operator(plan, buckets)
    if below:
        return buckets[below]
    children = children_of(plan)
    return _tasks(children[0], buckets) if len(children) == 1 else 0


def _wrong(view: str, operator: str, what: str) -> EngineError:
    return EngineError(
        f"operator {operator} has {what}",
        condition=WRONG_PARTITIONS,
        view=view,
        hint="this is a bug; report the query and the version of Spark",
    )
