"""Lowering of window functions: Spark evaluates the partitions that changed, before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, canonical_texts, until
from eddyline.plan.eventtime import attribute_bounds, key_bounds
from eddyline.plan.logical import Expression, Plan, child_of, items, kind, output_of
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, calls_python, keep_outputs, skipping
from eddyline.plan.recompute import Versions, versions
from eddyline.plan.render import node_text, texts


def window(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """Lower window functions; stacked nodes with the same partitioning at once."""
    partition = items(node.partitionSpec())
    stack = _stack(node)
    below = child_of(stack[-1])
    child = lower(below)
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
