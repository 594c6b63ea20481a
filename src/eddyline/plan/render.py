"""Expressions and plan nodes as readable SQL, without Spark's ids and internal wrappers.

`explain`, warnings and errors use it to show parts of a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from eddyline.plan.logical import (
    Expression,
    Filter,
    JoinNode,
    Option,
    Plan,
    children_of,
    items,
    kind,
    output_of,
    sql_of,
)

TEXT_MAX = 200

# Functions that the optimiser wraps around an expression and that no query can call.
_WRAPPERS = frozenset(
    ("KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "NormalizeNaNAndZero")
)
_WRAPPED = re.compile("|".join(f"{name.lower()}\\(" for name in sorted(_WRAPPERS)))
# A call of a window function within an expression: the optimiser computes it below, under this name.
_EXTRACTED = re.compile(r"\b_we\d+\b")
_GROUPING_ID = "spark_grouping_id"
# A quoted text, or what no query contains: an id, the name of a subquery without one.
_INTERNAL = re.compile(r"('(?:[^'\\]|\\.)*')|#\d+L?|__auto_generated_subquery_name\.")


def text(expression: Expression) -> str:
    """Return an expression as SQL, cut to `TEXT_MAX` characters."""
    return texts([expression])[0]


def texts(expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Return several expressions as SQL."""
    return tuple(map(_shortened, _sql(expressions)))


def condition_text(condition: Option[Expression]) -> str:
    """Return the condition of a join as SQL; empty if it has none."""
    return text(condition.get()) if condition.isDefined() else ""


def node_text(node: Plan) -> str:
    """Return what a plan node computes, cut to `TEXT_MAX` characters."""
    listed = _LISTED.get(kind(node))
    if listed is not None:
        shown = ", ".join(_sql(listed(node)))
        if _EXTRACTED.search(shown):
            calls = dict(_extracted(node))
            shown = _EXTRACTED.sub(lambda name: calls.get(name[0], name[0]), shown)
        return _shortened(shown)
    if kind(node) == "Expand":
        return f"each row {node.projections().size()} times"
    return _shortened(node.simpleString(TEXT_MAX))


def join_text(join: JoinNode) -> str:
    """Return a join with its type and condition."""
    condition = condition_text(join.condition())
    name = "Scalar subquery" if kind(join.joinType()) == "LeftSingle" else kind(join.joinType())
    return f"{name} join" + (f" on {condition}" if condition else "")


def _condition(node: Filter) -> list[Expression]:
    return [node.condition()]


def _unnamed(named: Expression) -> Expression:
    """Return a window function without the alias that the optimiser has added."""
    return named.child() if _EXTRACTED.fullmatch(named.name()) else named


# The expressions that say what a node computes; other nodes are shown as Spark shows them.
_LISTED: dict[str, Callable[..., list[Expression]]] = {
    "Project": lambda node: items(node.projectList()),
    "Filter": _condition,
    "Generate": lambda node: [node.generator()],
    "Window": lambda node: [_unnamed(one) for one in items(node.windowExpressions())],
    "ArrowEvalPython": lambda node: items(node.udfs()),
    "BatchEvalPython": lambda node: items(node.udfs()),
    "LocalRelation": lambda node: output_of(node),
}


def _sql(expressions: Sequence[Expression]) -> list[str]:
    """Return Spark's SQL of some expressions with each wrapper replaced by what it wraps."""
    found = sql_of(expressions)
    for place, expression in enumerate(expressions):
        if _WRAPPED.search(found[place]):
            for wrapper in _wrappers(expression):
                (inner,) = _sql(children_of(wrapper)[:1])
                found[place] = found[place].replace(wrapper.sql(), inner)
    return [shown.replace(_GROUPING_ID, "grouping_id()") for shown in found]


def _extracted(node: Plan) -> Iterator[tuple[str, str]]:
    """Yield the names of extracted window functions below a node, and their calls; nearest last."""
    for child in children_of(node):
        yield from _extracted(child)
        if kind(child) == "Window":
            for named in items(child.windowExpressions()):
                yield named.name(), _sql([named.child()])[0]


def _wrappers(expression: Expression) -> Iterator[Expression]:
    """Yield the topmost wrappers in an expression."""
    if kind(expression) in _WRAPPERS:
        yield expression
    else:
        for child in children_of(expression):
            yield from _wrappers(child)


def _shortened(shown: str) -> str:
    line = " ".join(_INTERNAL.sub(lambda found: found[1] or "", shown).split())
    return line if len(line) <= TEXT_MAX else f"{line[: TEXT_MAX - 3]}..."
