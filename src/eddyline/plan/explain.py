"""A compiled view as text, for `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from eddyline.errors import QueryError
from eddyline.plan.lower import Compiled
from eddyline.plan.nodes import Node

DETAIL_MAX = 96


def explain_text(compiled: Compiled, stage: str) -> str:
    """Return the stage `dag`, `logical` or `physical` of a compiled view as text."""
    if stage == "dag":
        return dag_text(compiled)
    if stage == "logical":
        return compiled.logical
    if stage == "physical":
        physicals = map(compiled.build.catalyst.executable, compiled.jobs())
        return "\n".join(physical.toString() for physical in physicals)
    raise QueryError(
        f"there is no stage {stage!r}",
        condition="UNKNOWN_STAGE",
        hint="use dag, logical or physical",
    )


def dag_text(compiled: Compiled) -> str:
    """Return the parts and levels, and for each operator its class, rule, keys and state.

    A part is the operators between two shuffles; its level is the number of shuffles below it, plus one.
    """
    lines: list[str] = []
    parts = list(_parts(compiled.node))
    for number, (root, members) in enumerate(reversed(parts), start=1):
        head = f"part {number}, level {root.level}"
        if root.shuffle:
            last = members[-1][1]
            head += f", shuffled by {', '.join(last.keys) or 'row'}"
        lines.append(head)
        lines.extend(_line(depth, node) for depth, node in members)
    lines.extend(f"warning: {warning}" for warning in compiled.build.warnings)
    return "\n".join(lines)


def _line(depth: int, node: Node) -> str:
    kind = "class 2, stateful" if node.stateful else "class 1, stateless"
    line = f"  {'  ' * depth}{node.name} [{kind}; rule: {node.rule}"
    if node.keys and node.stateful:
        line += f"; keys: {', '.join(node.keys)}"
    if node.state:
        line += f"; state: {node.state}"
    line += "]"
    if node.detail:
        detail = (
            node.detail if len(node.detail) <= DETAIL_MAX else node.detail[: DETAIL_MAX - 3] + "..."
        )
        line += f" {detail}"
    return line


def _parts(root: Node) -> Iterator[tuple[Node, list[tuple[int, Node]]]]:
    """Yield the parts from the result downwards, each with its operators and their depth in it."""
    members: list[tuple[int, Node]] = []
    below: list[Node] = []

    def walk(node: Node, depth: int) -> None:
        members.append((depth, node))
        if node.shuffle:
            below.extend(node.children)
        else:
            for child in node.children:
                walk(child, depth + 1)

    walk(root, 0)
    yield _head(members), members
    for child in below:
        yield from _parts(child)


def _head(members: list[tuple[int, Node]]) -> Node:
    shuffled = [node for _, node in members if node.shuffle]
    return shuffled[0] if shuffled else members[0][1]
