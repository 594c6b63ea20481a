"""Column lineage: the columns of relations from which each column of a query is derived, by the resolved plan.

The kinds of derivation (`way`) are those of OpenLineage. A value is derived directly from a column by IDENTITY,
TRANSFORMATION or AGGREGATION. A column that only selects between values (CONDITIONAL), defines the frame of a
window function (WINDOW) or decides which rows exist (FILTER, JOIN, GROUP_BY, SORT) is an indirect origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.frames import LEAF
from eddyline.plan.logical import (
    SUBQUERIES,
    Expression,
    Plan,
    child_of,
    children_of,
    expressions_of,
    id_of,
    items,
    kind,
    output_of,
)

IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"
DIRECT = (IDENTITY, TRANSFORMATION, AGGREGATION)
"""The ways of a value, the weakest first."""

CONDITIONAL, WINDOW = "CONDITIONAL", "WINDOW"
FILTER, JOIN, GROUP_BY, SORT = "FILTER", "JOIN", "GROUP_BY", "SORT"

Origin = tuple[str, str]
"""A relation and its column."""

Origins = Mapping[Origin, frozenset[str]]
"""Where something comes from, and in which ways."""

Scope = Mapping[int, Origins]
"""The origins of attributes, by Spark's ids."""

_ROWS = {"Filter": FILTER, "Join": JOIN, "Sort": SORT, "Deduplicate": GROUP_BY}


@dataclass(frozen=True, slots=True)
class Lineage:
    """The lineage of a query.

    Attributes:
        columns: by name of each column of the result the origins of its values.
        rows: the columns that decide which rows the result has, and how.
        read: the relations that are read.
    """

    columns: Mapping[str, Origins]
    rows: Origins
    read: tuple[str, ...]


def column_lineage(
    catalyst: Catalyst,
    plan: Plan,
    names: Sequence[str],
    relations: Mapping[int, tuple[str, Sequence[str]]],
) -> Lineage:
    """Return the lineage of a resolved query.

    Args:
        names: of the columns of its result.
        relations: by the id of the RDD of a leaf the relation, and the names of its columns.
    """
    walk = _Walk(catalyst, relations)
    columns = dict(zip(names, walk.columns(plan, {}), strict=True))
    return Lineage(columns, walk.rows, tuple(walk.read))


def through_views(view: str, known: Mapping[str, Lineage]) -> Lineage:
    """Return the lineage of a view with origins in tables and streams only.

    Args:
        known: the lineage of each view by its name, those that it reads included.
    """
    own = known[view]
    below = {name: through_views(name, known) for name in own.read if name in known}

    def traced(origins: Origins) -> Origins:
        return _joined(
            {(relation, column): ways}
            if relation not in below
            else _passed(below[relation].columns.get(column, {}), ways)
            for (relation, column), ways in origins.items()
        )

    columns = {name: traced(origins) for name, origins in own.columns.items()}
    rows = _joined([traced(own.rows), *(one.rows for one in below.values())])
    read = dict.fromkeys(
        source for name in own.read for source in (below[name].read if name in below else (name,))
    )
    return Lineage(columns, rows, tuple(read))


@dataclass(slots=True)
class _Walk:
    """Computes origins through a plan, from the leaves up.

    Attributes:
        rows: collects the columns that decide about rows, anywhere in the plan.
        ctes: the origins of the columns of each CTE, by Spark's number of it.
    """

    catalyst: Catalyst
    relations: Mapping[int, tuple[str, Sequence[str]]]
    rows: dict[Origin, frozenset[str]] = field(default_factory=dict)
    read: dict[str, None] = field(default_factory=dict)
    ctes: dict[int, list[Origins]] = field(default_factory=dict)

    def plan(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Return the origins of a plan's output.

        Args:
            outer: the attributes that a correlated subquery sees.
        """
        name = kind(node)
        rule = _NODES.get(name)
        if rule is not None:
            return rule(self, node, outer)
        below = [self.plan(child, outer) for child in children_of(node)]
        scope = {**outer, **_merged(below)}
        if name in _ROWS:
            self.decides(expressions_of(node), scope, _ROWS[name])
        return self._output(node, scope, lambda: _joined(o for one in below for o in one.values()))

    def _output(
        self, node: Plan, scope: Scope, unknown: Callable[[], Origins]
    ) -> dict[int, Origins]:
        """Return the origins of a node that passes columns on; others may come from all of its input."""
        made: dict[int, Origins] = {}
        for one in output_of(node):
            number = id_of(one)
            made[number] = scope[number] if number in scope else _as(unknown(), TRANSFORMATION)
        return made

    def leaf(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Relations."""
        found = self.relations.get(self.catalyst.rdd_id(node))
        if found is None:
            return {}
        relation, names = found
        self.read[relation] = None
        output = output_of(node)
        return {
            id_of(one): {(relation, column): frozenset({IDENTITY})}
            for one, column in zip(output, names, strict=True)
        }

    def project(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Projections."""
        scope = self._below(node, outer)
        return {id_of(one): self.value(one, scope) for one in items(node.projectList())}

    def aggregate(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """GROUP BY."""
        scope = self._below(node, outer)
        self.decides(items(node.groupingExpressions()), scope, GROUP_BY)
        return {id_of(one): self.value(one, scope) for one in items(node.aggregateExpressions())}

    def window(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Window functions."""
        scope = self._below(node, outer)
        made = {id_of(one): self.value(one, scope) for one in items(node.windowExpressions())}
        return self._output(node, {**scope, **made}, dict)

    def generate(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Generators, such as explode."""
        scope = self._below(node, outer)
        return self._output(node, scope, lambda: self.value(node.generator(), scope))

    def expand(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """Several rows for one: grouping sets, UNPIVOT."""
        scope = self._below(node, outer)
        lists = [items(one) for one in items(node.projections())]
        return {
            id_of(one): _joined(self.value(own[place], scope) for own in lists)
            for place, one in enumerate(output_of(node))
        }

    def union(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """UNION."""
        sides = [self.columns(child, outer) for child in children_of(node)]
        return {
            id_of(one): _joined(side[place] for side in sides)
            for place, one in enumerate(output_of(node))
        }

    def compared(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """INTERSECT and EXCEPT: the left side's values, where they are, or aren't, those of the right one."""
        left, right = (self.columns(child, outer) for child in children_of(node))
        self._decide(_joined([*left, *right]), FILTER)
        return {id_of(one): own for one, own in zip(output_of(node), left, strict=True)}

    def distinct(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """DISTINCT."""
        scope = self._below(node, outer)
        own = {id_of(one): scope[id_of(one)] for one in output_of(node)}
        self._decide(_joined(own.values()), GROUP_BY)
        return own

    def lateral(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """LATERAL joins: the right side is a subquery in an expression."""
        scope = self._below(node, outer)
        for one in expressions_of(node):
            if kind(one) == "LateralSubquery":
                scope = {**scope, **self.plan(one.plan(), scope)}
            else:
                self.decides([one], scope, JOIN)
        return self._output(node, scope, dict)

    def with_ctes(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """WITH: the definitions come before the query."""
        scope: dict[int, Origins] = {}
        for child in children_of(node):
            scope = self.plan(child, outer)
        return scope

    def cte(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """A CTE."""
        child = child_of(node)
        scope = self.plan(child, outer)
        self.ctes[node.id()] = [scope[id_of(one)] for one in output_of(child)]
        return scope

    def cte_use(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        """A use of a CTE."""
        columns = self.ctes.get(node.cteId(), [])
        return {id_of(one): own for one, own in zip(output_of(node), columns, strict=False)}

    def columns(self, node: Plan, outer: Scope) -> list[Origins]:
        """Return the origins of a plan's columns in their order."""
        scope = self.plan(node, outer)
        return [scope.get(id_of(one), {}) for one in output_of(node)]

    def value(self, expression: Expression, scope: Scope) -> Origins:
        """Return where the value of an expression comes from."""
        name = kind(expression)
        if name in ("AttributeReference", "OuterReference"):
            return scope.get(id_of(expression), {})
        if name in SUBQUERIES:
            return _as(_joined(self.columns(expression.plan(), scope)), TRANSFORMATION)
        below = children_of(expression)
        if name == "Alias":
            return self.value(below[0], scope)
        if name == "AggregateExpression":
            function, *others = below
            found = _as(self.value(function, scope), AGGREGATION)
            return _joined([found, *(_only(self.value(o, scope), CONDITIONAL) for o in others)])
        if name == "WindowExpression":
            called, frame = (self.value(one, scope) for one in below)
            return _joined([_as(called, TRANSFORMATION), _only(frame, WINDOW)])
        if name in ("If", "CaseWhen"):
            pairs = len(below) // 2 * 2  # what follows is the ELSE
            return _joined(
                _only(self.value(one, scope), CONDITIONAL)
                if place % 2 == 0 and place < pairs
                else _as(self.value(one, scope), TRANSFORMATION)
                for place, one in enumerate(below)
            )
        return _as(_joined(self.value(one, scope) for one in below), TRANSFORMATION)

    def decides(self, expressions: Iterable[Expression], scope: Scope, way: str) -> None:
        """Record that expressions decide which rows the result has."""
        for one in expressions:
            self._decide(self.value(one, scope), way)

    def _decide(self, origins: Origins, way: str) -> None:
        for origin in origins:
            self.rows[origin] = self.rows.get(origin, frozenset()) | {way}

    def _below(self, node: Plan, outer: Scope) -> dict[int, Origins]:
        return {**outer, **_merged(self.plan(child, outer) for child in children_of(node))}


_NODES: dict[str, Callable[[_Walk, Plan, Scope], dict[int, Origins]]] = {
    LEAF: _Walk.leaf,
    "Project": _Walk.project,
    "Aggregate": _Walk.aggregate,
    "Window": _Walk.window,
    "Generate": _Walk.generate,
    "Expand": _Walk.expand,
    "Union": _Walk.union,
    "Intersect": _Walk.compared,
    "Except": _Walk.compared,
    "Distinct": _Walk.distinct,
    "LateralJoin": _Walk.lateral,
    "WithCTE": _Walk.with_ctes,
    "CTERelationDef": _Walk.cte,
    "CTERelationRef": _Walk.cte_use,
}


def _merged(scopes: Iterable[Scope]) -> dict[int, Origins]:
    return {number: own for scope in scopes for number, own in scope.items()}


def _joined(parts: Iterable[Origins]) -> dict[Origin, frozenset[str]]:
    """Return the union of the origins of several parts."""
    found: dict[Origin, frozenset[str]] = {}
    for part in parts:
        for origin, ways in part.items():
            found[origin] = found.get(origin, frozenset()) | ways
    return found


def _as(origins: Origins, way: str) -> Origins:
    """Return the origins after one more derivation; each keeps the less direct of the two kinds."""
    return {
        origin: frozenset(_stronger(one, way) for one in ways) for origin, ways in origins.items()
    }


def _only(origins: Origins, way: str) -> Origins:
    return dict.fromkeys(origins, frozenset({way}))


def _passed(origins: Origins, ways: Iterable[str]) -> Origins:
    """Return the origins of a column, given those of the column that it is derived from and how it is derived."""
    return _joined(_as(origins, way) if way in DIRECT else _only(origins, way) for way in ways)


def _stronger(one: str, way: str) -> str:
    return max(one, way, key=DIRECT.index) if one in DIRECT else one
