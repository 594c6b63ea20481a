"""Splits a stateless piece of a plan into computed columns, for Spark, and columns that are only copied.

In the short lane rows are in Arrow, and Spark would have to convert them. So a column that no expression
uses stays in Arrow. Spark gets only the others, and returns which rows pass the filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import BooleanType, IntegerType, LongType

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.lanes import Piece
from eddyline.plan.logical import (
    Expression,
    Plan,
    child_of,
    children_of,
    expressions_of,
    id_of,
    kind,
    output_of,
    subqueries_of,
    type_of,
    value_of,
)

Places = dict[int, "int | Constant | None"]
"""What the columns of a plan are, by their ids: see `Split.passed`."""

ROW = "eddyline_row"
"""The column that numbers the rows of a piece with a filter."""

_PASSES = ("Project", "Filter")


@dataclass(frozen=True, slots=True)
class Constant:
    """The value of a column that is the same in all rows."""

    value: bool | int | None


@dataclass(frozen=True, slots=True)
class Split:
    """A piece that only projects and filters.

    Attributes:
        plan: what Spark computes: the other columns of the output, then `ROW` if rows can be missing; None for
            nothing.
        leaf: what `plan` reads, if there is one: the columns of `needed`, then `ROW` if `numbered`.
        needed: the places of these columns in the input.
        passed: for each column of the output its place in the input, or its value; None if Spark computes it.
        filtered: whether rows can be missing.
    """

    plan: Plan | None
    leaf: Plan
    needed: tuple[int, ...]
    passed: tuple[int | Constant | None, ...]
    filtered: bool

    @property
    def numbered(self) -> bool:
        """Whether the leaf has `ROW`: to tell which rows are left, or how many there are."""
        return self.filtered or not self.needed


def split(catalyst: Catalyst, piece: Piece) -> Split | None:
    """Return how a piece is split; None if it does more than to project and filter."""
    nodes = list(_down(piece.plan))
    leaf = nodes.pop()
    if any(kind(node) not in _PASSES or subqueries_of(node) for node in nodes):
        return None
    place: Places = {id_of(one): at for at, one in enumerate(output_of(leaf))}
    for node in reversed(nodes):
        if kind(node) == "Project":
            place = {id_of(one): _passed(one, place) for one in expressions_of(node)}
    outputs = [id_of(one) for one in output_of(piece.plan)]
    wanted = [{one for one in outputs if place[one] is None}]  # of each node, from the top on
    for node in nodes:
        wanted.append(_needed(node, wanted[-1]))
    needed = tuple(at for at, one in enumerate(output_of(leaf)) if id_of(one) in wanted[-1])
    filtered = any(kind(node) == "Filter" for node in nodes)
    found = Split(None, leaf, needed, tuple(place[one] for one in outputs), filtered)
    if not (wanted[0] or filtered):
        return found
    row = [catalyst.alias(catalyst.constant("0"), ROW).toAttribute()] if found.numbered else []
    given = [output_of(leaf)[at] for at in needed]
    reduced = catalyst.placeholder(catalyst.seq([*given, *row]))
    plan = _rebuilt(catalyst, nodes, reduced, wanted, row if filtered else [])
    return replace(found, plan=plan, leaf=reduced)


def _down(plan: Plan) -> Iterator[Plan]:
    """Yield the nodes of a plan with one leaf, from the top on."""
    while children_of(plan):
        yield plan
        plan = child_of(plan)
    yield plan


def _passed(column: Expression, place: Places) -> int | Constant | None:
    """Return the column or constant that a column of a projection copies; None if it is computed."""
    value = child_of(column) if kind(column) == "Alias" else column
    if kind(value) == "AttributeReference":
        return place[id_of(value)]
    cast = kind(value) == "Cast"
    literal = child_of(value) if cast else value
    if kind(literal) != "Literal":
        return None
    given = value_of(literal)
    if given is None:
        return Constant(None)
    simple = isinstance(type_of(literal), BooleanType | IntegerType | LongType)
    return Constant(given) if simple and not cast else None


def _needed(node: Plan, above: set[int]) -> set[int]:
    """Return the attributes that a node needs to compute others."""
    if kind(node) == "Filter":
        return above | set(_attributes(expressions_of(node)))
    return set(_attributes(one for one in expressions_of(node) if id_of(one) in above))


def _attributes(expressions: Iterable[Expression]) -> Iterator[int]:
    for one in expressions:
        if kind(one) == "AttributeReference":
            yield id_of(one)
        yield from _attributes(children_of(one))


def _rebuilt(
    catalyst: Catalyst,
    nodes: list[Plan],
    leaf: Plan,
    wanted: Sequence[set[int]],
    row: list[Expression],
) -> Plan:
    """Return the nodes over another leaf, with the columns that are wanted of each and the numbers of the rows."""
    plan = leaf
    for node, above in reversed(list(zip(nodes, wanted, strict=False))):
        if kind(node) == "Project":
            kept = [one for one in expressions_of(node) if id_of(one) in above]
            plan = catalyst.project([*kept, *row], plan)
        else:
            plan = catalyst.with_child(node, plan)
    if kind(nodes[0]) == "Filter":  # it gives more columns than are wanted
        kept = [one for one in output_of(nodes[0]) if id_of(one) in wanted[0]]
        plan = catalyst.project([*kept, *row], plan)
    return plan
