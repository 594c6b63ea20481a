"""Checks that expressions give the same result for the same rows, whenever they are evaluated.

A row is retracted by evaluating its old version again. An expression with another result the second
time would leave the first one in the view for ever. So a query is accepted only if

- Catalyst marks each of its expressions as deterministic, and
- each is of a class listed in `expressions.txt`, or a function that the user has registered.

The list is needed because some classes claim to be deterministic and depend on the session or the
machine (`current_user()`, session variables), and because nothing is known of classes that come from
elsewhere. It holds Spark's classes that the trials of all functions (`tests/functions.py`) and the
query shapes of the tests use, and their variants for other types and forms. A class that a new version
of Spark adds is refused until it is listed.
"""

from __future__ import annotations

from pathlib import Path

from eddyline.plan.logical import (
    SUBQUERIES,
    Expression,
    children_of,
    class_name,
    is_deterministic,
    kind,
)

# Functions that users register; those of Python, Scala and Java count as deterministic unless flagged.
USER_FUNCTIONS = frozenset(
    ("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaUDAF", "ScalaAggregator")
)

# Aggregates that some versions mark as not deterministic because they depend on the order of rows: their
# results are stored, and retracted as they were emitted (`plan/recompute.py`, `plan/window.py`).
_BY_ORDER = frozenset(("First", "Last", "CollectList", "CollectSet", "CollectUnion", "ListAgg"))

PACKAGE = "org.apache.spark.sql.catalyst.expressions."
KNOWN = frozenset(Path(__file__).with_name("expressions.txt").read_text(encoding="ascii").split())
# Whose methods Spark's own functions call.
_METHODS_OF = ("org.apache.spark.sql.catalyst.", "org.apache.spark.unsafe.")
_CALLS = ("StaticInvoke", "Invoke")


def is_unknown(expression: Expression) -> bool:
    """Return whether an expression's class is in no list; its children are not checked."""
    full = class_name(expression)
    name = full.rpartition(".")[2]
    if name in _CALLS:
        called = _called_class(expression)
        return bool(called) and not called.startswith(_METHODS_OF)
    return name not in USER_FUNCTIONS and full.removeprefix(PACKAGE) not in KNOWN


def varies(expression: Expression) -> bool:
    """Return whether an expression itself, rather than one of its children, is marked as not deterministic.

    A subquery has the mark of its plan, whose expressions are checked by themselves.
    """
    if is_deterministic(expression) or kind(expression) in _BY_ORDER | SUBQUERIES:
        return False
    return all(is_deterministic(child) for child in children_of(expression))


def _called_class(call: Expression) -> str:
    """Return the class whose method an Invoke or StaticInvoke calls; empty for Spark's own values."""
    if kind(call) == "StaticInvoke":
        return call.staticObject().getName()
    target = call.targetObject().dataType()
    return str(target.cls().getName()) if kind(target) == "ObjectType" else ""
