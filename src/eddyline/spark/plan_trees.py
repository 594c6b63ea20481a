"""Walks Spark's plans and expressions in Python with few calls to the JVM: one call describes a whole tree.

Py4J alone needs a call for each child of a node, for each name of a class, and for each object that Python
drops. These calls took most of the time in which a view is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from eddyline.spark.scala import scala_in

T = TypeVar("T")


def cached(one: Any, what: str, ask: Callable[[], T]) -> T:
    """Return a property of an object of the JVM; `ask` is called only the first time.

    The value is kept in the Python object, so the property must never change.
    """
    found: dict[str, T] = _cache_of(one)
    if what not in found:
        found[what] = ask()
    return found[what]


def elements(seq: Any) -> list[Any]:
    """Return the objects in a Scala Seq; of expressions the descendants are fetched with them."""
    lines = (line.split(" ") for line in _trees().elements(seq).splitlines())
    found = []
    for line in lines:
        found.append(_described_object(seq, line))
        if line[4] != "-1":  # an expression
            _attach_descendants(found[-1], line, lines)
    return found


def children(node: Any) -> list[Any]:
    """Return the children of a plan or expression."""
    found = _cache_of(node)
    if "children" not in found:
        lines = (line.split(" ") for line in _trees().tree(node).splitlines())
        _attach_descendants(node, next(lines), lines)
    below: list[Any] = found["children"]
    return below


def subqueries(plan: Any) -> list[Any]:
    """Return the plans of the subqueries in a plan node."""
    found = _cache_of(plan)
    if "subqueries" not in found:
        found["subqueries"] = elements(plan.subqueries())
    below: list[Any] = found["subqueries"]
    return below


def class_of(one: Any) -> str:
    """Return the full name of an object's class; for a Scala singleton that of its type, without `$`."""
    name: str = cached(one, "class", lambda: _trees().className(one))
    return name.removesuffix("$")


def type_json(expression: Any) -> str:
    """Return the type of an expression, as JSON."""
    found: str = _trees().typeOf(expression)
    return found


def alias(expression: Any, name: str, attribute: Any | None) -> Any:
    """Return `expression AS name`, with the id of `attribute` or a new one."""
    return _trees().alias(expression, name, attribute)


def seq(values: Sequence[Any]) -> Any:
    """Return a Scala Seq of objects of the JVM."""
    return _trees().seq(" ".join(one._target_id for one in values))  # noqa: SLF001  # not public in Py4J


def over_leaf(plan: Any, leaf: Any) -> Any:
    """Return a plan with its only leaf replaced."""
    return _trees().overLeaf(plan, leaf)


def resolved(plan: Any) -> Any:
    """Mark a resolved plan as such, so that Spark doesn't analyse it again; return it."""
    return _trees().resolved(plan)


def leaf_id(plan: Any) -> int:
    """Return the id of the first column of a plan's leaf."""
    found: int = _trees().leafId(plan)
    return found


def _cache_of(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = vars(one).setdefault("eddyline", {})
    return found


def _described_object(like: Any, line: Sequence[str]) -> Any:
    """Return the object that a line of `Trees.java` describes, with its properties cached; see `describe` there."""
    found = JavaObject(line[0], like._gateway_client)  # noqa: SLF001  # not public in Py4J
    cache = _cache_of(found)
    cache["class"] = line[1]
    if line[2] == "0":
        cache["children"] = []
    if line[3] != "-1":
        cache["id"] = int(line[3])
    if line[4] != "-1":
        cache["deterministic"] = line[4] == "1"
    return found


def _attach_descendants(node: Any, line: Sequence[str], lines: Iterator[list[str]]) -> None:
    """Cache the children and subqueries of a node and of all its descendants.

    This is a loop, so that the nesting of queries isn't limited by Python's recursion limit here.

    Args:
        line: describes the node.
        lines: describe its descendants, in preorder.
    """
    incomplete: list[tuple[list[Any], int]] = []  # lists of nodes, and their final lengths

    def expect(what: str, of: Any, size: str) -> None:
        below: list[Any] = []
        _cache_of(of)[what] = below
        incomplete.append((below, int(size)))

    current = node
    while True:
        if len(line) > 5:
            expect("subqueries", current, line[5])
        expect(
            "children", current, line[2]
        )  # last in, first filled: children come before subqueries
        while incomplete and len(incomplete[-1][0]) == incomplete[-1][1]:
            incomplete.pop()
        if not incomplete:
            return
        line = next(lines)
        current = _described_object(node, line)
        incomplete[-1][0].append(current)


def _trees() -> Any:
    context = SparkContext._active_spark_context  # noqa: SLF001  # not public in PySpark
    assert context is not None
    return scala_in(context).trees
