"""The resolved plan of a DataFrame: which relations it reads, its text, and the same plan over their rows.

A relation stands in the plan as a leaf over an RDD without rows, which is recognised by its id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from pyspark.sql import DataFrame

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import (
    Expression,
    Plan,
    all_expressions,
    all_nodes,
    children_of,
    expressions_of,
    kind,
    output_of,
    subqueries_of,
)
from eddyline.plan.python import FUNCTIONS
from eddyline.plan.rewriting import over_leaves

LEAF = "LogicalRDD"

_FIELDS_MAX = 2**31 - 1
_NAMES_ONLY = ("SubqueryAlias", "View")
_ID = re.compile(r"#(c?\d+)L?")
_CTE = re.compile(r"(?<=CTERelation)(Def|Ref) (?=\d)")  # Spark counts the CTEs of a process
_LAMBDA = re.compile(r"lambda (\w+?)_\d+(?=#)")  # PySpark counts the variables of a process
_SPLITS = re.compile(r", splits=\S+\)")  # as many as the machine has cores
_WITH_SUBQUERIES = ("Aggregate", "Filter", "Join", "LateralJoin", "Project")
_PLAIN = (type(None), bool, int, float, str, bytes)


def leaves(catalyst: Catalyst, plan: Plan) -> dict[int, Plan]:
    """Return the leaves of a plan over RDDs, also in its subqueries, by the id of the RDD."""
    return {catalyst.rdd_id(node): node for node in all_nodes(plan) if kind(node) == LEAF}


def misplaced_subquery(plan: Plan) -> Plan | None:
    """Return a node with a subquery that `over_contents` can't replace; None if there is none."""
    nodes = (node for node in all_nodes(plan) if kind(node) not in _WITH_SUBQUERIES)
    return next((node for node in nodes if subqueries_of(node)), None)


def plan_text(catalyst: Catalyst, plan: Plan, names: Mapping[int, str]) -> str:
    """Return a text that is equal for equal plans, in any process of these versions of Spark and Python.

    Names that only qualify columns are left out. A Python function counts by its name, a lambda by its
    code.

    Args:
        names: of the relations, by the id of their RDD.
    """
    lines = list(_lines(catalyst, plan, names, 0))
    numbers: dict[str, int] = {}

    def renumbered(found: re.Match[str]) -> str:
        return f"#{numbers.setdefault(found[1], len(numbers))}"

    marked = [_CTE.sub(r"\1 #c", _LAMBDA.sub(r"lambda \1", line)) for line, _ in lines]
    tree = [_ID.sub(renumbered, line) for line in marked]
    return "\n".join(
        f"{line} -- {', '.join(details)}" if details else line
        for line, (_, details) in zip(tree, lines, strict=True)
    )


def _lines(
    catalyst: Catalyst, node: Plan, names: Mapping[int, str], depth: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the line of each node with Spark's ids, and what the line doesn't tell."""
    name = kind(node)
    if name not in _NAMES_ONLY:
        shown = _SPLITS.sub(")", " ".join(node.simpleString(_FIELDS_MAX).split()))
        if name == LEAF:
            relation = names[catalyst.rdd_id(node)]
            shown = shown.removesuffix(", false").replace(LEAF, f"Relation {relation}", 1)
        details = [
            detail
            for root in expressions_of(node)
            for expression in all_expressions(root)
            if (detail := _detail(catalyst, expression))
        ]
        if name == "LocalRelation":
            details.append(_digest(repr(catalyst.frame(node).collect())))
        yield "  " * depth + shown, details
        depth += 1
    for below in [*children_of(node), *subqueries_of(node)]:
        yield from _lines(catalyst, below, names, depth)


def _detail(catalyst: Catalyst, expression: Expression) -> str:
    """Return a literal with its type, or a lambda's code; empty for other expressions."""
    name = kind(expression)
    if name == "Literal":
        return expression.sql()
    if name in FUNCTIONS:
        function = catalyst.python_function(expression)
        if getattr(function, "__name__", "<lambda>") == "<lambda>":
            return _digest(_code_text(function))
    return ""


def _code_text(function: Callable[..., Any]) -> str:
    """Return what a function does, as text: its code, defaults and the plain values that it encloses."""
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    values = [value for value in cells if isinstance(value, _PLAIN)]
    inner = [_code_text(value) for value in cells if hasattr(value, "__code__")]
    return repr((_form(code), getattr(function, "__defaults__", None), values, inner))


def _form(code: CodeType) -> tuple[object, ...]:
    constants = [_form(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, constants


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def over_contents(catalyst: Catalyst, plan: Plan, contents: Mapping[int, DataFrame]) -> Plan:
    """Return the plan over rows instead of relations.

    Args:
        contents: the rows of each relation, by the id of its RDD.
    """

    def rows_of(leaf: Plan) -> Plan | None:
        if kind(leaf) != LEAF:
            return None
        rows = catalyst.plan(contents[catalyst.rdd_id(leaf)])
        columns = list(zip(output_of(rows), output_of(leaf), strict=True))
        return catalyst.project_as(columns, rows)

    return over_leaves(catalyst, plan, rows_of)
