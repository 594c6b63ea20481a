"""Spark's plans and expressions in Python, with what is known of each: a call to the JVM tells of many.

Py4J alone needs a call for each child of a node and for each name of a class, and one more for each object
on the way that Python drops: they were most of the time that a view took to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from eddyline.spark.scala import scala_in

T = TypeVar("T")


def known(one: Any, what: str, ask: Callable[[], T]) -> T:
    """Return what an object tells of itself, and keep it with the Python object: it must never change."""
    found: dict[str, T] = _known(one)
    if what not in found:
        found[what] = ask()
    return found[what]


def elements(seq: Any) -> list[Any]:
    """Return the objects in a Scala Seq, expressions with all below them."""
    lines = (line.split(" ") for line in _trees().elements(seq).splitlines())
    found = []
    for line in lines:
        found.append(_told(seq, line))
        if line[4] != "-1":  # an expression
            _tell_below(found[-1], line, lines)
    return found


def children(node: Any) -> list[Any]:
    """Return what is right below a plan or expression."""
    found = _known(node)
    if "children" not in found:
        lines = (line.split(" ") for line in _trees().tree(node).splitlines())
        _tell_below(node, next(lines), lines)
    below: list[Any] = found["children"]
    return below


def subqueries(plan: Any) -> list[Any]:
    """Return the plans of the subqueries in a plan node."""
    found = _known(plan)
    if "subqueries" not in found:
        found["subqueries"] = elements(plan.subqueries())
    below: list[Any] = found["subqueries"]
    return below


def class_of(one: Any) -> str:
    """Return the full name of an object's class; of a Scala object that of its type."""
    name: str = known(one, "class", lambda: _trees().className(one))
    return name.removesuffix("$")


def seq(values: Sequence[Any]) -> Any:
    """Return a Scala Seq of objects of the JVM."""
    return _trees().seq(" ".join(one._target_id for one in values))  # noqa: SLF001  # not public in Py4J


def over_leaf(plan: Any, leaf: Any) -> Any:
    """Return a plan with another leaf in the place of its only one."""
    return _trees().overLeaf(plan, leaf)


def resolved(plan: Any) -> Any:
    """Return a plan that is resolved, such that Spark doesn't resolve it once more."""
    return _trees().resolved(plan)


def leaf_id(plan: Any) -> int:
    """Return the id of the first column of a plan's leaf."""
    found: int = _trees().leafId(plan)
    return found


def _known(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = vars(one).setdefault("eddyline", {})
    return found


def _told(like: Any, line: Sequence[str]) -> Any:
    """Return an object that `Trees.java` tells of; see its method `tell`."""
    made = JavaObject(line[0], like._gateway_client)  # noqa: SLF001  # not public in Py4J
    found = _known(made)
    found["class"] = line[1]
    if line[2] == "0":
        found["children"] = []
    if line[3] != "-1":
        found["id"] = int(line[3])
    if line[4] != "-1":
        found["deterministic"] = line[4] == "1"
    return made


def _tell_below(node: Any, line: Sequence[str], lines: Iterator[list[str]]) -> None:
    """Let a node know all nodes below it, from the lines that follow its own.

    Without recursion, so that queries may nest as deeply as whoever walks through them can follow.
    """
    waiting: list[tuple[list[Any], int]] = []  # what is below a node, and how many it will be

    def expect(what: str, of: Any, size: str) -> None:
        below: list[Any] = []
        _known(of)[what] = below
        waiting.append((below, int(size)))

    told = node
    while True:
        if len(line) > 5:
            expect("subqueries", told, line[5])
        expect("children", told, line[2])  # they come first
        while waiting and len(waiting[-1][0]) == waiting[-1][1]:
            waiting.pop()
        if not waiting:
            return
        line = next(lines)
        told = _told(node, line)
        waiting[-1][0].append(told)


def _trees() -> Any:
    context = SparkContext._active_spark_context  # noqa: SLF001  # not public in PySpark
    assert context is not None
    return scala_in(context).trees
