"""Limits queries of strangers to the relations of a storage: no files, no other tables, no way out of SQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eddyline.errors import QueryError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import children_of, items, kind
from eddyline.spark import plan_trees as trees

# what Spark's parser makes of queries; neither commands nor scripts (TRANSFORM) are among it
_ALLOWED = frozenset(
    {
        "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect",
        "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator",
        "Pivot", "Project", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Tail", "Union",
        "Unpivot", "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedQualify",
        "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
        "UnresolvedTableValuedFunction", "UnresolvedWith", "WithWindowDefinition",
    }
)  # fmt: skip
_CALLS_OF_JAVA = frozenset({"java_method", "reflect", "try_reflect"})


def check_confined(catalyst: Catalyst, query: str, names: Collection[str]) -> None:
    """Raise QueryError if a query can read or do anything besides reading some relations.

    Functions that the program has registered in its session are allowed.

    Args:
        names: the relations that it may read.

    Raises:
        QueryError: NOT_ALLOWED. INVALID_QUERY: it reads a plain name that isn't among `names`.
    """
    if "${" in query:  # Spark would fill in variables of the environment, before it parses the text
        raise _not_allowed("a variable, ${...}")
    _check(catalyst.parsed(query), frozenset(name.lower() for name in names))


def _check(plan: Any, known: frozenset[str]) -> None:
    """Check a parsed plan with its subqueries; `known` are the relations that are named where it stands."""
    what = kind(plan)
    if what not in _ALLOWED:
        raise _not_allowed(f"what Spark calls {what}")
    if what == "UnresolvedRelation":
        parts = [str(part) for part in items(plan.multipartIdentifier())]
        if len(parts) > 1:
            raise _not_allowed(f"the table {'.'.join(parts)}")
        if parts[0].lower() not in known:
            raise QueryError(
                f"this storage has no table, stream or view named {parts[0]}",
                condition="INVALID_QUERY",
                hint=f"known: {', '.join(sorted(known)) or 'none yet'}",
            )
    for expression in trees.elements(plan.expressions()):
        _check_calls(expression)
    for subquery in trees.subqueries(plan):
        _check(subquery, known)
    for inner in items(plan.innerChildren()):
        if what == "UnresolvedWith":  # a common table expression: those after it know its name
            name = str(inner.alias()).lower()
            _check(inner, known | {name} if plan.allowRecursion() else known)
            known |= {name}
        else:
            _check(inner, known)
    for child in children_of(plan):
        _check(child, known)


def _check_calls(expression: Any) -> None:
    what = kind(expression)
    if what == "ExpressionWithUnresolvedIdentifier":  # the name of the function may be computed
        raise _not_allowed("IDENTIFIER(...)")
    if what == "UnresolvedFunction":
        name = str(items(expression.nameParts())[-1])
        if name.lower() in _CALLS_OF_JAVA:
            raise _not_allowed(f"the function {name}")
    for part in trees.children(expression):
        _check_calls(part)


def _not_allowed(what: str) -> QueryError:
    return QueryError(
        f"the query reads or calls what only its own program may: {what}",
        condition="NOT_ALLOWED",
        hint="read tables, streams and views of this storage; ask for others with `eddyline sql` or engine.sql",
    )
