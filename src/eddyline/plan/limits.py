"""Lowering of ORDER BY, LIMIT and OFFSET."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import StructField

from eddyline.operators.base import numbered
from eddyline.operators.top import SLOT, Top
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, canonical_texts, until
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Expiry, attribute_bounds, key_bounds, projected
from eddyline.plan.lanes import Placed
from eddyline.plan.logical import (
    SUBQUERIES,
    Expression,
    Plan,
    child_of,
    children_of,
    items,
    kind,
    output_of,
    scalar_subqueries,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.refusals import SORT_KEY
from eddyline.plan.render import node_text, texts
from eddyline.plan.rewriting import with_expressions
from eddyline.plan.types import contains_type
from eddyline.state.front import Ties

NO_LIMIT = 2**61
NESTED = ("struct", "array", "map", "variant")
UNSORTABLE = ("struct", "array", "variant")
LIMITS = ("GlobalLimit", "LocalLimit", "Offset")


@dataclass(frozen=True, slots=True)
class Order:
    """How a sort key sorts."""

    descending: bool
    nulls_last: bool

    def __str__(self) -> str:
        """Return it as the catalog stores it; see `Entry.sorts`."""
        return f"{'desc' if self.descending else 'asc'} {'last' if self.nulls_last else 'first'}"


def direction(order: Expression) -> Order:
    """Return how a SortOrder expression sorts."""
    last = kind(order.nullOrdering()) == "NullsLast"
    return Order(kind(order.direction()) == "Descending", last)


@dataclass(frozen=True, slots=True)
class Chain:
    """ORDER BY, LIMIT and OFFSET on top of a plan.

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
        """Whether there is a limit or an offset."""
        return self.limit < NO_LIMIT or self.offset > 0

    def order(self) -> tuple[Order, ...]:
        """How the sort keys sort."""
        return tuple(direction(one) for one in self.orders)


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
            inner = child_of(below)
            if kind(inner) in ("LocalLimit", "GlobalLimit"):
                limit = min(limit, int(inner.limitExpr().value()) - offset)
                below = inner
        elif name == "Project" and _leads_to_sort(below):
            projects.append(below)
        else:
            break
        below = child_of(below)
    orders: list[Expression] = []
    if kind(below) == "Sort":
        orders = items(below.order())
        below = child_of(below)
    return Chain(below, orders, limit, offset, projects[::-1])


def _leads_to_sort(node: Plan) -> bool:
    """Return whether only limits and projections without subqueries are above a sort."""
    while kind(node) in ("Project", *LIMITS):
        if _has_subquery(node):
            return False
        node = child_of(node)
    return kind(node) == "Sort"


def _has_subquery(node: Plan) -> bool:
    """Return whether a node is a projection with scalar subqueries."""
    return kind(node) == "Project" and any(map(scalar_subqueries, items(node.projectList())))


def _subqueries_above(catalyst: Catalyst, node: Plan) -> Plan:
    """Move projections with scalar subqueries from below limits to above them.

    They don't affect which rows remain, and they would hide the sort below them.
    """
    if kind(node) not in LIMITS:
        return node
    below = child_of(node)
    child = _subqueries_above(catalyst, below)
    computing = child
    while kind(computing) == "Project" and not _has_subquery(computing):
        computing = child_of(computing)
    if _has_subquery(computing):
        lower = catalyst.with_child(node, child_of(child))
        return catalyst.with_child(child, _subqueries_above(catalyst, lower))
    return catalyst.with_child(node, child) if child is not below else node


def limits_over_sorts(catalyst: Catalyst, plan: Plan) -> Plan:
    """Return a resolved plan in which each LIMIT of a correlated subquery stands right over its ORDER BY.

    Spark turns such a LIMIT into numbers of the rows for each outer value, and takes their order only from there. Where
    a projection stands between (it drops a column that only sorts), the numbers would have no order. Rows that no
    ORDER BY sorts are sorted by all their columns, as far as these have an order: then the answer doesn't depend on
    how the rows are stored.
    """

    def affected(tree: Plan | Expression) -> bool:
        return catalyst.contain([tree], "OUTER_REFERENCE")

    def moved(expression: Expression) -> Expression | None:
        if kind(expression) not in SUBQUERIES:
            return None
        inner = limits_over_sorts(catalyst, expression.plan())
        return expression.withNewPlan(_over_sorts(catalyst, inner))

    return with_expressions(catalyst, plan, affected, moved)


def _over_sorts(catalyst: Catalyst, node: Plan) -> Plan:
    """Put each limit of a plan right over a sort."""
    children = children_of(node)
    if not children:
        return node
    over = node.withNewChildren(catalyst.seq([_over_sorts(catalyst, one) for one in children]))
    return _over_sort(catalyst, over) if kind(node) in LIMITS else over


def _over_sort(catalyst: Catalyst, limit: Plan) -> Plan:
    """Move projections from between a limit and the sort below it to above the limit; without a sort add one."""
    below = child_of(limit)
    if kind(below) == "Project" and _leads_to_sort(below):
        lower = catalyst.with_child(limit, child_of(below))
        return catalyst.with_child(below, _over_sort(catalyst, lower))
    if kind(below) in (*LIMITS, "Sort"):
        return limit
    return catalyst.with_child(limit, catalyst.sorted_by_all(below))


def ordered(
    build: Build, node: Plan, lower: Callable[[Plan], Delta]
) -> tuple[Delta, list[Expression], tuple[Order, ...]]:
    """Lower a plan with ORDER BY on top: its rows, with their sort keys as further columns.

    Returns:
        the delta, the attributes of the sort keys in it, and how they sort.
    """
    found = chain(node)
    if not found.orders:
        return lower(node), [], ()
    return *_applied(build, found, lower), found.order()


def limited(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """Lower a LIMIT within a query."""
    above = _subqueries_above(build.catalyst, node)
    if above is not node:
        return lower(above)
    return _applied(build, chain(node), lower)[0]


def _applied(
    build: Build, found: Chain, lower: Callable[[Plan], Delta]
) -> tuple[Delta, list[Expression]]:
    """Lower a chain over the rows below it, with their sort keys as further columns."""
    delta, keys = _with_keys(build, found, lower)
    if found.limited:
        delta, keys = _top(build, delta, found, keys)
    for project in found.projects:
        columns = [*items(project.projectList()), *keys, delta.weight]
        bounds = projected(build.catalyst, items(project.projectList()), delta.bounds)
        plan = build.catalyst.project(columns, delta.plan)
        delta = delta.through(plan, "Project", node_text(project), bounds)
    return delta, keys


def _with_keys(
    build: Build, found: Chain, lower: Callable[[Plan], Delta]
) -> tuple[Delta, list[Expression]]:
    catalyst = build.catalyst
    aliases = [catalyst.alias(order.child(), "order") for order in found.orders]
    keys = [alias.toAttribute() for alias in aliases]
    columns = [*output_of(found.below), *aliases]
    if any(map(scalar_subqueries, aliases)):
        return lower(catalyst.project(columns, found.below)), keys
    delta = lower(found.below)
    plan = catalyst.project([*columns, delta.weight], delta.plan)
    return replace(delta, plan=plan), keys


def _top(
    build: Build, child: Delta, found: Chain, keys: Sequence[Expression]
) -> tuple[Delta, list[Expression]]:
    """Keep the first rows of each bucket, and of these the first of all."""
    for key in keys:
        if contains_type(type_of(key), UNSORTABLE):
            raise build.refused(SORT_KEY.about(type=type_of(key).simpleString()))
    columns = output_of(found.below)
    names, sorts = numbered("c", len(columns)), numbered("s", len(keys))
    frame = build.named(child, [*zip(keys, sorts, strict=True), *zip(columns, names, strict=True)])
    out = [frame.schema[name] for name in (*sorts, *names)]
    descending, nulls_last = _directions(found.order())
    wanted = found.limit + found.offset
    order = ", ".join(texts(found.orders)) or "any order"
    shown = child.node
    rows = build.hashed(frame, names, [*sorts, *names])
    if wanted < NO_LIMIT and not child.single:
        only = child.append_only
        local = Top(wanted, 0, len(columns), descending, nulls_last, append_only=only)
        spread = build.shuffled(rows, single=False)
        rows = build.run(replace(spread, one_group=True), local, out, single=False)
        shown = _top_node("top of each bucket", f"{wanted} rows by {order}", shown)
    final = Top(found.limit, found.offset, len(columns), descending, nulls_last)
    together = build.shuffled(rows.selectExpr("0L as h", *sorts, *names, "w"), single=True)
    result = build.run(together, final, out, single=True)
    shown = _top_node("top of all", f"{_places(found)} by {order}", shown)
    plan, others = build.rebound(result, [*keys, *columns])
    return Delta(plan, others[0], shown, in_place=True, single=True), list(keys)


def _top_node(rule: str, detail: str, child: Node) -> Node:
    return Node("Top", rule, detail, (), "rows in order", shuffle=True, children=(child,))


def _places(found: Chain) -> str:
    """Return a text, for `explain`, of the rows that a limit and an offset keep."""
    rows = f"{found.limit} rows" if found.limit < NO_LIMIT else "all rows"
    return f"{rows} from place {found.offset}" if found.offset else rows


def _directions(orders: Sequence[Order]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    return tuple(one.descending for one in orders), tuple(one.nulls_last for one in orders)


_RANKS = {"RowNumber": Ties.ROW_NUMBER, "Rank": Ties.RANK, "DenseRank": Ties.DENSE_RANK}


def keeps_group_top(build: Build, node: Plan) -> bool:
    """Return whether `group_top` can drop the rows beyond the limit itself; if not, the filter above must stay."""
    sort_keys = [order.child() for order in items(node.orderSpec())]
    return build.native and is_sortable(sort_keys, items(node.partitionSpec()))


def group_top(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """Keep the rows that a filter on row_number, rank or dense_rank can let through."""
    child = lower(child_of(node))
    partition, orders = items(node.partitionSpec()), items(node.orderSpec())
    if not keeps_group_top(build, node):
        return child  # the filter drops the same rows
    columns = output_of(child_of(node))
    rows = partitioned(build, child, partition, orders, columns)
    ties = _RANKS[kind(node.rankLikeFunction())]
    only, single = child.append_only, not partition
    descending, nulls_last = rows.descending, rows.nulls_last
    keys = len(partition)
    operator = Top(node.limit(), 0, len(columns), descending, nulls_last, keys, ties, only)
    kept = key_bounds(build.catalyst, partition, child.bounds)
    expiry = rows.expiry(SLOT, kept)
    if child.endless and not expiry and not only:
        build.grows("the top rows of each group", PARTITION_BY_TIME)
    out = [*rows.sorts, *rows.columns]
    result = build.run(rows.frame, operator, out, single=single, expiry=expiry)
    names = [field.name for field in rows.columns]
    plan, others = build.rebound(result.selectExpr(*names, "w"), columns)
    return Delta(
        plan,
        others[0],
        _group_top_node(node, child, ties, expiry),
        in_place=True,
        single=single,
        keys=canonical_texts(partition),
        endless=child.endless,
        bounds=attribute_bounds(partition, kept),
    )


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Rows in the buckets of their partitions, for an operator that keeps each partition in order.

    Attributes:
        frame: `h, k0.., s0.., c0.., w`: the partition's key and its hash, the sort keys, the row.
        keys: the names of the `k` columns.
        sorts, columns: the fields of the others.
        descending, nulls_last: for each sort key.
    """

    frame: Placed
    keys: tuple[str, ...]
    sorts: list[StructField]
    columns: list[StructField]
    descending: tuple[bool, ...]
    nulls_last: tuple[bool, ...]

    def expiry(self, slot: str, bounds: Mapping[int, Bound]) -> list[Expiry]:
        """Return which rows a watermark allows to drop.

        Args:
            bounds: those of keys, by place.
        """
        return [Expiry(slot, self.keys[place], bound) for place, bound in bounds.items()]


def partitioned(
    build: Build,
    child: Delta,
    partition: Sequence[Expression],
    orders: Sequence[Expression],
    columns: Sequence[Expression],
) -> Partitioned:
    """Shuffle rows of a child by their partition, with the sort keys as further columns."""
    keys, sorts = numbered("k", len(partition)), numbered("s", len(orders))
    names = numbered("c", len(columns))
    sort_keys = [order.child() for order in orders]
    inputs = zip([*partition, *sort_keys, *columns], [*keys, *sorts, *names], strict=True)
    frame = build.named(child, list(inputs))
    rows = build.hashed(build.normalised(frame, keys), keys, [*keys, *sorts, *names])
    return Partitioned(
        build.shuffled(rows, single=not partition),
        keys,
        [frame.schema[name] for name in sorts],
        [frame.schema[name] for name in names],
        *_directions([direction(order) for order in orders]),
    )


def is_sortable(sort_keys: Sequence[Expression], partition: Sequence[Expression]) -> bool:
    """Return whether the operator can sort by the keys and compare the partitions."""
    unknown = any(contains_type(type_of(key), UNSORTABLE) for key in sort_keys)
    return not unknown and not any(contains_type(type_of(key), NESTED) for key in partition)


def _group_top_node(node: Plan, child: Delta, ties: Ties, expiry: Sequence[Expiry]) -> Node:
    only = child.append_only
    return Node(
        "Top",
        "top of each group, append-only" if only else "top of each group",
        f"{ties.value} <= {node.limit()} by {', '.join(texts(items(node.orderSpec())))}",
        texts(items(node.partitionSpec())),
        until("rows at these places" if only else "rows in order", expiry),
        shuffle=True,
        children=(child.node,),
    )
