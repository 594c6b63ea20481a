"""Lowering of ORDER BY, LIMIT and OFFSET."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eddyline.operators.base import numbered
from eddyline.operators.top import Top
from eddyline.plan.build import Build, Delta, text, texts
from eddyline.plan.catalyst import Expression, Plan, contains_type, items, kind, type_of
from eddyline.plan.nodes import Node

NO_LIMIT = 2**61


@dataclass(frozen=True, slots=True)
class Order:
    """How a sort key sorts."""

    descending: bool
    nulls_last: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """ORDER BY, LIMIT and OFFSET as they lie on top of a plan.

    Attributes:
        below: the plan that they are applied to.
        orders: SortOrder expressions.
        limit, offset: NO_LIMIT and 0 where there is none.
        projects: Project nodes on the way up, from the sort to the top.
    """

    below: Plan
    orders: list[Expression]
    limit: int
    offset: int
    projects: list[Plan]

    @property
    def limited(self) -> bool:
        """Whether rows are left out."""
        return self.limit < NO_LIMIT or self.offset > 0

    def order(self) -> tuple[Order, ...]:
        """How the sort keys sort."""
        return tuple(
            Order(kind(one.direction()) == "Descending", kind(one.nullOrdering()) == "NullsLast")
            for one in self.orders
        )


def chain(node: Plan) -> Chain:
    """Read limits, offset and sort off the top of a plan."""
    limit, offset = NO_LIMIT, 0
    projects: list[Plan] = []
    below = node
    while True:
        name = kind(below)
        if name in ("GlobalLimit", "LocalLimit"):
            # a limit below an offset counts the rows that the offset skips too
            limit = min(limit, int(below.limitExpr().value()))
        elif name == "Offset":
            offset += int(below.offsetExpr().value())
            inner = below.child()
            if kind(inner) in ("LocalLimit", "GlobalLimit"):
                limit = min(limit, int(inner.limitExpr().value()) - offset)
                below = inner
        elif name == "Project" and _leads_to_sort(below):
            projects.append(below)
        else:
            break
        below = below.child()
    orders: list[Expression] = []
    if kind(below) == "Sort" and below.getClass().getSimpleName() == "Sort":
        orders = items(below.order())
        below = below.child()
    return Chain(below, orders, limit, offset, projects[::-1])


def _leads_to_sort(node: Plan) -> bool:
    while kind(node) in ("Project", "GlobalLimit", "LocalLimit", "Offset"):
        node = node.child()
    return kind(node) == "Sort"


def ordered(
    build: Build, node: Plan, lower: Callable[[Plan], Delta]
) -> tuple[Delta, list[Expression], tuple[Order, ...]]:
    """A plan with ORDER BY on top: its rows with their sort keys as further columns.

    Returns:
        the delta, the attributes of the sort keys in it, and how they sort.
    """
    found = chain(node)
    if not found.orders:
        return lower(node), [], ()
    delta, keys = _with_keys(build, lower(found.below), found)
    if found.limited:
        delta, keys = _top(build, delta, found, keys)
    for project in found.projects:
        columns = [*items(project.projectList()), *keys, delta.weight]
        delta = delta.through(build.catalyst.project(columns, delta.plan), "Project", text(project))
    return delta, keys, found.order()


def limited(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """LIMIT somewhere within a query."""
    found = chain(node)
    delta, keys = _with_keys(build, lower(found.below), found)
    if found.limited:
        delta, keys = _top(build, delta, found, keys)
    for project in found.projects:
        columns = [*items(project.projectList()), delta.weight]
        delta = delta.through(build.catalyst.project(columns, delta.plan), "Project", text(project))
    return delta


def _with_keys(build: Build, delta: Delta, found: Chain) -> tuple[Delta, list[Expression]]:
    aliases = [build.catalyst.alias(order.child(), "order") for order in found.orders]
    columns = [*items(found.below.output()), *aliases, delta.weight]
    plan = build.catalyst.project(columns, delta.plan)
    added = Delta(plan, delta.weight, delta.node, delta.append_only, delta.in_place, delta.single)
    return added, [alias.toAttribute() for alias in aliases]


def _top(
    build: Build, child: Delta, found: Chain, keys: Sequence[Expression]
) -> tuple[Delta, list[Expression]]:
    """The best rows of each bucket, and of these the best of all."""
    for key in keys:
        if contains_type(type_of(key), ("struct", "array", "variant")):
            raise build.refused(
                f"LIMIT after ORDER BY a {type_of(key).simpleString()} is not known",
                "order by the parts of the value",
            )
    columns = items(found.below.output())
    names, sorts = numbered("c", len(columns)), numbered("s", len(keys))
    frame = build.named(child, [*zip(keys, sorts, strict=True), *zip(columns, names, strict=True)])
    out = [frame.schema[name] for name in (*sorts, *names)]
    descending = tuple(order.descending for order in found.order())
    nulls_last = tuple(order.nulls_last for order in found.order())
    wanted = found.limit + found.offset
    detail = f"{found.limit} rows" if found.limit < NO_LIMIT else "all rows"
    detail += f" from place {found.offset}" if found.offset else ""
    order = ", ".join(texts(found.orders)) or "any order"
    shown = child.node
    rows = build.hashed(frame, names, [*sorts, *names])
    if wanted < NO_LIMIT and not child.single:
        local = Top(wanted, 0, len(columns), descending, nulls_last)
        rows = build.run(build.shuffled(rows, single=False), local, out, single=False)
        rows = build.hashed(rows, names, [*sorts, *names])
        shown = Node(
            "Top", "top of each bucket", f"{wanted} rows by {order}", (), "rows, the best in order",
            shuffle=True, children=(shown,),
        )  # fmt: skip
    final = Top(found.limit, found.offset, len(columns), descending, nulls_last)
    result = build.run(build.shuffled(rows, single=True), final, out, single=True)
    shown = Node(
        "Top", "top of all", f"{detail} by {order}", (), "rows, the best in order",
        shuffle=True, children=(shown,),
    )  # fmt: skip
    key_aliases = list(keys)
    plan, others = build.rebound(result, [*key_aliases, *columns])
    return Delta(plan, others[0], shown, in_place=True, single=True), list(keys)
