"""Lowering of joins of every type and condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField

from eddyline.operators.base import numbered
from eddyline.operators.join import LEFT, RIGHT, Join, JoinKind
from eddyline.plan.build import Build, Delta, until
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Bounds, Expiry, bound_of, lowest
from eddyline.plan.logical import (
    Expression,
    JoinNode,
    children_of,
    id_of,
    items,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.refusals import JOIN_TYPE
from eddyline.plan.render import condition_text, join_text, texts
from eddyline.plan.types import sql_type

_KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.RIGHT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.EXISTS,
    "LeftAnti": JoinKind.EXISTS,
    "ExistenceJoin": JoinKind.EXISTS,
    "LeftSingle": JoinKind.LEFT,
}


@dataclass(frozen=True, slots=True)
class _Side:
    """One input of a join: its delta, the columns that are needed, its keys."""

    delta: Delta
    columns: list[Expression]
    keys: list[Expression]

    def place(self, expression: Expression) -> int | None:
        """Return the place of an expression among the columns; None if it is no column."""
        if kind(expression) != "AttributeReference":
            return None
        ids = [id_of(column) for column in self.columns]
        wanted = id_of(expression)
        return ids.index(wanted) if wanted in ids else None

    def bound(self, catalyst: Catalyst, expression: Expression) -> Bound | None:
        """Return the bound of an expression over this side."""
        return bound_of(catalyst, expression, self.delta.bounds)


_TIME_OF_BOTH = (
    "declare a WATERMARK on both sides and let them meet in time: "
    "a.ts BETWEEN b.ts - INTERVAL 1 HOUR AND b.ts + INTERVAL 1 HOUR, or a.window = b.window"
)


def join(build: Build, node: JoinNode, left: Delta, right: Delta) -> Delta:
    """Lower a join of any type and condition."""
    name = kind(node.joinType())
    how = _KINDS.get(name)
    if how is None:
        raise build.refused(JOIN_TYPE.about(name=name), join_text(node))
    left_keys, right_keys, rest = build.catalyst.equi_join_keys(node)
    most = children_of(node)[1].maxRows()
    one_row = most.isDefined() and int(most.get()) <= 1
    if not (left_keys or one_row or (_is_scalar(node) and rest is None)):
        build.warnings.append(
            "a join without an equality compares every row of one side with every row of the "
            f"other, in one task: {join_text(node)}"
        )
    one = _Side(left, output_of(children_of(node)[0]), left_keys)
    two = _Side(right, output_of(children_of(node)[1]), right_keys)
    if how is JoinKind.INNER:
        return _pairs(build, node, one, two)
    if rest is None:
        if how is JoinKind.EXISTS:
            flagged, flag = _flagged(build, node, one, two, condition_text(node.condition()))
            return _by_flag(build, node, flagged, flag)
        return _matched(build, node, how, one, two)
    return _with_rest(build, node, how, one, two)


def _is_scalar(node: JoinNode) -> bool:
    """Return whether the right side is a scalar subquery: no left row may have two matches."""
    return kind(node.joinType()) == "LeftSingle"


def _name(node: JoinNode) -> str:
    """Return the type of a join as SQL calls it, for `explain`."""
    return "LeftOuter" if _is_scalar(node) else kind(node.joinType())


def _pairs(build: Build, node: JoinNode, left: _Side, right: _Side) -> Delta:
    """Lower the inner join: the operator pairs rows by hash, the condition filters the pairs."""
    pairs = _matched(build, node, JoinKind.INNER, left, right)
    if not node.condition().isDefined():
        return pairs
    plan = build.catalyst.filter(node.condition().get(), pairs.plan)
    return replace(pairs, plan=plan)


def _matched(build: Build, node: JoinNode, how: JoinKind, left: _Side, right: _Side) -> Delta:
    """Return the pairs, and with an outer join the rows without a match, padded with nulls."""
    condition = node.condition().get() if node.condition().isDefined() else None
    time = _time_of_pairs(build.catalyst, how, left, right, condition)
    _warn_of_growth(build, node, left, right, time.expiry)
    scalar = how is JoinKind.LEFT and _is_scalar(node)
    frame = _operator(build, how, left, right, time.expiry, scalar=scalar)
    rule = "bilinear" if how is JoinKind.INNER else "bilinear, match counts"
    shown = Node(
        f"Join {_name(node)}",
        f"{rule}, at most one match" if scalar else rule,
        condition_text(node.condition()),
        texts(left.keys),
        until("rows of both sides by key", time.expiry),
        shuffle=True,
        children=(left.delta.node, right.delta.node),
    )
    plan, others = build.rebound(frame, [*left.columns, *right.columns])
    append_only = how is JoinKind.INNER and left.delta.append_only and right.delta.append_only
    return Delta(
        plan,
        others[0],
        shown,
        append_only,
        in_place=True,
        single=not left.keys,
        endless=left.delta.endless or right.delta.endless,
        bounds=time.bounds,
    )


@dataclass(slots=True)
class _TimeOfPairs:
    """What a join's condition implies about event time.

    Attributes:
        expiry: the rows that can't pair with any later row, nor be retracted, and may be dropped.
        bounds: of the output's columns.
    """

    expiry: list[Expiry] = field(default_factory=list)
    bounds: dict[int, Bound] = field(default_factory=dict)


def _time_of_pairs(
    catalyst: Catalyst, how: JoinKind, left: _Side, right: _Side, condition: Expression | None
) -> _TimeOfPairs:
    found = _TimeOfPairs()
    if how is not JoinKind.INNER:
        _by_common_keys(catalyst, found, left, right)
        return found
    for one, two in zip(left.keys, right.keys, strict=True):
        _by_partner(catalyst, found, LEFT, left, one, right.bound(catalyst, two))
        _by_partner(catalyst, found, RIGHT, right, two, left.bound(catalyst, one))
    if condition is not None:
        _by_comparisons(catalyst, found, left, right, condition)
    return found


def _by_common_keys(catalyst: Catalyst, found: _TimeOfPairs, left: _Side, right: _Side) -> None:
    """Add the rows of both sides whose key is at or above a bound on both."""
    for number, (one, two) in enumerate(zip(left.keys, right.keys, strict=True)):
        both = lowest(left.bound(catalyst, one), right.bound(catalyst, two))
        if both is None:
            continue
        found.expiry.extend(Expiry(slot, f"k{number}", both) for slot in (LEFT, RIGHT))
        for side, key in ((left, one), (right, two)):
            if side.place(key) is not None:
                found.bounds[id_of(key)] = both


def _by_partner(
    catalyst: Catalyst,
    found: _TimeOfPairs,
    slot: str,
    side: _Side,
    column: Expression,
    partner: Bound | None,
) -> None:
    """Add the rows of a side whose `column` must be at or above a bound of the partner's rows."""
    place = side.place(column)
    if place is None:
        return
    either = lowest(side.bound(catalyst, column), partner)
    kept = partner if side.delta.append_only else either
    if kept is not None:
        found.expiry.append(Expiry(slot, f"{slot[0]}{place}", kept))
    if either is not None:
        found.bounds[id_of(column)] = either


def _by_comparisons(
    catalyst: Catalyst, found: _TimeOfPairs, left: _Side, right: _Side, condition: Expression
) -> None:
    """Add the rows whose time the condition compares with the time of the other side."""
    for larger, smaller in _orders(condition):
        column, shift = _shifted(larger)
        for slot, mine, other in ((LEFT, left, right), (RIGHT, right, left)):
            if mine.place(column) is None or not _is_over(smaller, other):
                continue
            least = other.bound(catalyst, smaller)
            if least is not None and not least.field:
                partner = least.then(-shift) if shift else least
                _by_partner(catalyst, found, slot, mine, column, partner)


def _orders(condition: Expression) -> Iterator[tuple[Expression, Expression]]:
    """Yield the comparisons that must all hold, as (larger or equal, smaller)."""
    name = kind(condition)
    if name == "And":
        yield from _orders(condition.left())
        yield from _orders(condition.right())
    elif name in ("GreaterThan", "GreaterThanOrEqual"):
        yield condition.left(), condition.right()
    elif name in ("LessThan", "LessThanOrEqual"):
        yield condition.right(), condition.left()


def _shifted(expression: Expression) -> tuple[Expression, int]:
    """Return `column + interval` as the column and microseconds; any other expression and 0."""
    if kind(expression) == "TimestampAddInterval":
        column, interval = children_of(expression)
        shift = interval.eval(None) if interval.foldable() else None
        if isinstance(shift, int):
            return column, shift
    return expression, 0


def _is_over(expression: Expression, side: _Side) -> bool:
    ids = {id_of(column) for column in side.columns}
    return all(id_of(e) in ids for e in items(expression.references().toSeq()))


def _warn_of_growth(
    build: Build, node: JoinNode, left: _Side, right: _Side, expiry: list[Expiry]
) -> None:
    kept = {one.slot for one in expiry}
    for slot, side in ((LEFT, left), (RIGHT, right)):
        if side.delta.endless and slot not in kept:
            build.grows(f"the {slot} side of the {join_text(node)}", _TIME_OF_BOTH)


def _flagged(
    build: Build, node: JoinNode, left: _Side, right: _Side, detail: str, *, null_safe: bool = False
) -> tuple[Delta, Expression]:
    """Return the left rows, and an attribute that tells whether the right side has their key."""
    right = _Side(right.delta, [], right.keys)
    time = _time_of_pairs(build.catalyst, JoinKind.EXISTS, left, right, None)
    _warn_of_growth(build, node, left, right, time.expiry)
    scalar = _is_scalar(node)
    frame = _operator(
        build, JoinKind.EXISTS, left, right, time.expiry, null_safe=null_safe, scalar=scalar
    )
    shown = Node(
        f"Join {_name(node)}",
        "match counts, at most one match" if scalar else "match counts",
        detail,
        texts(left.keys),
        until("left rows, right counts by key", time.expiry),
        shuffle=True,
        children=(left.delta.node, right.delta.node),
    )
    plan, (flag, weight) = build.rebound(frame, left.columns)
    flagged = Delta(
        plan,
        weight,
        shown,
        in_place=True,
        single=not left.keys,
        endless=left.delta.endless,
        bounds=time.bounds,
    )
    return flagged, flag


def _by_flag(build: Build, node: JoinNode, flagged: Delta, flag: Expression) -> Delta:
    """Return the result of a semi, anti or existence join over flagged left rows."""
    catalyst = build.catalyst
    name = kind(node.joinType())
    columns = output_of(children_of(node)[0])
    if name == "ExistenceJoin":
        exists = catalyst.alias(flag, "exists", node.joinType().exists())
        plan = catalyst.project([*columns, exists, flagged.weight], flagged.plan)
    else:
        wanted = flag if name == "LeftSemi" else catalyst.expression("Not", flag)
        plan = catalyst.filter(wanted, flagged.plan)
        plan = catalyst.project([*columns, flagged.weight], plan)
    return replace(flagged, plan=plan)


def _with_rest(build: Build, node: JoinNode, how: JoinKind, left: _Side, right: _Side) -> Delta:
    """Lower outer, semi and anti joins with more than equalities in the condition.

    The inner join gives the pairs. A second join, of a side with the pairs by the whole row, tells
    which rows of the side have a match.
    """
    pairs = _pairs(build, node, left, right)
    if how is JoinKind.EXISTS:
        return _by_flag(build, node, *_flagged_by_row(build, node, left, pairs))
    branches = [pairs]
    for wanted, side in ((how.keeps_left, left), (how.keeps_right, right)):
        if wanted:
            flagged, flag = _flagged_by_row(build, node, side, pairs)
            plan = build.catalyst.filter(build.catalyst.expression("Not", flag), flagged.plan)
            branches.append(replace(flagged, plan=plan))
    columns = [*left.columns, *right.columns]
    padded = [_padded(build, branch, columns) for branch in branches]
    plan, others = build.rebound(build.steps.union(padded), columns)
    shown = Node(
        "Union", "stateless", "pairs, rows without a pair", children=tuple(b.node for b in branches)
    )
    return Delta(
        plan,
        others[0],
        shown,
        endless=any(branch.endless for branch in branches),
        bounds=_common_bounds(branches),
    )


def _flagged_by_row(
    build: Build, node: JoinNode, side: _Side, pairs: Delta
) -> tuple[Delta, Expression]:
    """Return the rows of a side and an attribute that tells whether they are in a pair."""
    whole = _Side(side.delta, side.columns, side.columns)
    matches = _Side(pairs, [], side.columns)
    return _flagged(build, node, whole, matches, "rows with a pair", null_safe=True)


def _common_bounds(branches: list[Delta]) -> Bounds:
    """Return the bounds of the union of pairs and rows without one; these lack some columns."""
    pairs = branches[0]
    if not pairs.bounds:
        return {}
    known = [(branch.bounds, _ids(branch)) for branch in branches]
    bounds = {
        column: lowest(*(bounds.get(column) for bounds, ids in known if column in ids))
        for column in pairs.bounds
    }
    return {column: bound for column, bound in bounds.items() if bound is not None}


def _ids(delta: Delta) -> set[int]:
    return {id_of(attribute) for attribute in output_of(delta.plan)}


def _padded(build: Build, delta: Delta, columns: list[Expression]) -> DataFrame:
    """Return the columns that a delta has, and nulls for the others."""
    have = _ids(delta)
    names = numbered("c", len(columns))
    present = [
        (column, name) for column, name in zip(columns, names, strict=True) if id_of(column) in have
    ]
    frame = build.named(delta, present)
    return frame.selectExpr(
        *(
            name
            if name in frame.columns
            else f"cast(null as {sql_type(type_of(column))}) as {name}"
            for column, name in zip(columns, names, strict=True)
        ),
        "w",
    )


def _operator(
    build: Build,
    how: JoinKind,
    left: _Side,
    right: _Side,
    expiry: list[Expiry],
    *,
    null_safe: bool = False,
    scalar: bool = False,
) -> DataFrame:
    """Bring both sides into one frame, shuffled by key, and run the join operator over it."""
    keys = numbered("k", len(left.keys))
    names = (numbered("l", len(left.columns)), numbered("r", len(right.columns)))
    kept_keys = [] if how is JoinKind.INNER else list(keys)
    present = " and ".join(f"{key} is not null" for key in keys) or "true"
    inner = how is JoinKind.INNER
    matchable = "true" if null_safe or inner else present
    sides = []
    for number, side in enumerate((left, right)):
        inputs = [
            *zip(side.keys, keys, strict=True),
            *zip(side.columns, names[number], strict=True),
        ]
        columns = [*(_nulls(left, names[0]) if number else names[0])]
        columns += names[1] if number else _nulls(right, names[1])
        rest = [f"{number} as side", f"{matchable} as matchable", *kept_keys, *columns]
        where = present if inner else ""
        sides.append(build.named_and_hashed(side.delta, inputs, keys, rest, where))
    united = build.steps.union(sides)
    rows = build.shuffled(united, single=not keys)
    out = [rows.schema[name] for name in names[0]]
    if how is JoinKind.EXISTS:
        out.append(StructField("x", BooleanType()))
    else:
        out += [rows.schema[name] for name in names[1]]
    operator = Join(how, len(kept_keys), len(left.columns), len(right.columns), scalar)
    return build.run(rows, operator, out, single=not keys, expiry=expiry)


def _nulls(side: _Side, names: Sequence[str]) -> list[str]:
    """Return SQL of the columns of a side in the rows of the other one."""
    pairs = zip(side.columns, names, strict=True)
    return [f"cast(null as {sql_type(type_of(column))}) as {name}" for column, name in pairs]
