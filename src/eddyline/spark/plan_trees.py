"""Walks Spark's plans and expressions in Python with few calls to the JVM: one call describes a whole tree.

Py4J alone needs a call for each child of a node, for each name of a class, and for each object that Python
drops. These calls took most of the time in which a view is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from eddyline.spark.scala import scala_in

T = TypeVar("T")

_UNKNOWN = "-"


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
    return _described(seq, _trees().elements(seq))


def output(plan: Any) -> list[Any]:
    """Return the attributes of a plan's output."""
    found: list[Any] = cached(plan, "output", lambda: _described(plan, _trees().output(plan)))
    return found


def expressions(plan: Any) -> list[Any]:
    """Return the expressions of a plan node, those of its children left aside."""
    found = _cache_of(plan)
    if "expressions" not in found:
        children(plan)  # a logical plan's expressions come with them
    if "expressions" not in found:
        found["expressions"] = elements(plan.expressions())
    below: list[Any] = found["expressions"]
    return below


def children(node: Any) -> list[Any]:
    """Return the children of a plan or expression."""
    found = _cache_of(node)
    if "children" not in found:
        lines = _lines(_trees().tree(node))
        own = next(lines)
        _keep_described(found, own)
        _attach_descendants(node, own, lines)
    below: list[Any] = found["children"]
    return below


def subqueries(plan: Any) -> list[Any]:
    """Return the plans of the subqueries in a plan node."""
    found = _cache_of(plan)
    if "subqueries" not in found:
        found["subqueries"] = elements(plan.subqueries())
    below: list[Any] = found["subqueries"]
    return below


def needed_ids(plan: Any, listing: Iterable[str]) -> set[int]:
    """Return the ids of a plan's output, and of what its nodes and those of its subqueries refer to.

    Args:
        listing: simple names of classes of nodes that need each attribute of their children.
    """
    return set(map(int, _trees().neededIds(plan, " ".join(listing)).split()))


def class_of(one: Any) -> str:
    """Return the full name of an object's class; for a Scala singleton that of its type, without `$`."""
    name: str = cached(one, "class", lambda: _trees().className(one))
    return name.removesuffix("$")


def type_json(expression: Any) -> str:
    """Return the type of an expression, as JSON."""
    found: str = cached(expression, "type_json", lambda: _trees().typeOf(expression))
    return found


def name_of(named: Any) -> str:
    """Return the name of a named expression."""
    found: str = cached(named, "name", named.name)
    return found


def project(columns: Sequence[tuple[Any, str | Any | None]], child: Any) -> Any:
    """Return a projection.

    Args:
        columns: expressions, each with its new name, of visible ASCII characters; or an attribute whose name and id it
            gets; or None if it is named already.
    """
    each = (f"{_id(one)} {_becomes(how)}" for one, how in columns)
    return _trees().project(" ".join(each), child)


def _becomes(how: str | Any | None) -> str:
    if how is None:
        return _UNKNOWN
    return how if isinstance(how, str) else f"@{_id(how)}"


def value_of(literal: Any) -> Any:
    """Return the value of a literal as Spark has it; only those of whole numbers, booleans and nulls mean something."""
    return cached(literal, "value", literal.value)


def sql(nodes: Sequence[Any]) -> list[str]:
    """Return Spark's SQL of some expressions."""
    found: list[str] = json.loads(_trees().sql(seq(nodes))) if nodes else []
    return found


def with_child(node: Any, child: Any) -> Any:
    """Return a node over another child."""
    return _trees().withChild(node, child)


def alias(expression: Any, name: str, attribute: Any | None) -> Any:
    """Return `expression AS name`, with the id of `attribute` or a new one."""
    return _trees().alias(expression, name, attribute)


def seq(values: Sequence[Any]) -> Any:
    """Return a Scala Seq of objects of the JVM."""
    return _trees().seq(" ".join(map(_id, values)))


def over_leaf(plan: Any, leaf: Any) -> Any:
    """Return a plan with its only leaf replaced."""
    return _trees().overLeaf(plan, leaf)


def contain(nodes: Any, pattern: str) -> bool:
    """Return whether any plan or expression in a Scala Seq has one of Catalyst's tree patterns."""
    found: bool = _trees().contain(nodes, pattern)
    return found


def with_equal_references(plan: Any) -> Any:
    """Return a resolved plan in which all references to a computed column are equal, so that it is optimised one way."""
    return _trees().withEqualReferences(plan)


def placeholder(columns: Any) -> Any:
    """Return a resolved leaf without rows, with the columns in a Scala Seq."""
    return _trees().placeholder(columns)


def placeholder_for(schema: str) -> Any:
    """Return a resolved leaf without rows, with new columns.

    Args:
        schema: as JSON.
    """
    return _trees().placeholderFor(schema)


def leaf_id(plan: Any) -> int:
    """Return the id of the first column of a plan's leaf."""
    found: int = _trees().leafId(plan)
    return found


def forget(node: Any) -> None:
    """Drop what is cached of a plan or expression, and with it what Python holds of all below it."""
    _cache_of(node).clear()


def _cache_of(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = vars(one).setdefault("eddyline", {})
    return found


def _id(one: Any) -> str:
    """Return the id of an object in Py4J."""
    found: str = one._target_id  # noqa: SLF001  # not public in Py4J
    return found


def _lines(described: str) -> Iterator[list[str]]:
    """Yield the lines of `Trees.java`, in their parts; see `describe` there."""
    return (line.split(" ") for line in described.splitlines())


def _described(like: Any, described: str) -> list[Any]:
    """Return the objects that lines of `Trees.java` describe; those below an expression come with it."""
    lines, found = _lines(described), []
    for line in lines:
        found.append(_described_object(like, line))
        if line[3] != _UNKNOWN:  # an expression
            _attach_descendants(found[-1], line, lines)
    return found


def _described_object(like: Any, line: Sequence[str]) -> Any:
    """Return the object that a line describes."""
    found = JavaObject(line[0], like._gateway_client)  # noqa: SLF001  # not public in Py4J
    _keep_described(_cache_of(found), line)
    return found


def _keep_described(cache: dict[str, Any], line: Sequence[str]) -> None:
    """Cache the properties of an object that a line describes."""
    _, cache["class"], children, deterministic, number, name, kept, value = line[:8]
    if children == "0":
        cache["children"] = []
    if deterministic != _UNKNOWN:
        cache["deterministic"] = deterministic == "1"
    if number != _UNKNOWN:
        cache["id"] = int(number)
    if name != _UNKNOWN:
        cache["name"] = name
    if kept != _UNKNOWN:
        cache["type_json"] = kept
    if value != _UNKNOWN:
        cache["value"] = json.loads(value)


def _attach_descendants(node: Any, line: Sequence[str], lines: Iterator[list[str]]) -> None:
    """Cache the children, subqueries and expressions of a node and of all its descendants.

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
        # last in, first filled: children come first
        if len(line) > 9:
            expect("expressions", current, line[9])
        if len(line) > 8:
            expect("subqueries", current, line[8])
        expect("children", current, line[2])
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
