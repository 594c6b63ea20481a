"""Lowering of joins: bilinear pairs, rows without a match, existence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField

from eddyline.operators.base import numbered
from eddyline.operators.join import LEFT, RIGHT, Join, JoinKind
from eddyline.plan.build import Build, Delta, column_type, condition_text, text, texts, until
from eddyline.plan.catalyst import Catalyst, Expression, Plan, items, kind, sql_type, type_of
from eddyline.plan.eventtime import Bound, Bounds, Expiry, bound_of, lowest
from eddyline.plan.nodes import Node

_KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.RIGHT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.EXISTS,
    "LeftAnti": JoinKind.EXISTS,
    "ExistenceJoin": JoinKind.EXISTS,
}


@dataclass(frozen=True, slots=True)
class _Side:
    """One input of a join: its delta, the columns wanted of it, its keys."""

    delta: Delta
    columns: list[Expression]
    keys: list[Expression]

    def place(self, expression: Expression) -> int | None:
        """Which of the columns an expression is; None if it is none."""
        if kind(expression) != "AttributeReference":
            return None
        ids = [column.exprId().id() for column in self.columns]
        wanted = expression.exprId().id()
        return ids.index(wanted) if wanted in ids else None

    def bound(self, catalyst: Catalyst, expression: Expression) -> Bound | None:
        """The bound of an expression over this side."""
        return bound_of(catalyst, expression, self.delta.bounds)


_TIME_OF_BOTH = (
    "declare a WATERMARK on both sides and let them meet in time: "
    "a.ts BETWEEN b.ts - INTERVAL 1 HOUR AND b.ts + INTERVAL 1 HOUR, or a.window = b.window"
)


def join(build: Build, node: Plan, left: Delta, right: Delta) -> Delta:
    """A join of any type and condition."""
    name = kind(node.joinType())
    how = _KINDS.get(name)
    if how is None:
        raise build.refused(f"join type {name} is not known", "use another join", fragment=node)
    left_keys, right_keys, rest = build.catalyst.equi_join_keys(node)
    most = node.right().maxRows()
    if not left_keys and not (most.isDefined() and int(most.get()) <= 1):
        build.warnings.append(
            "a join without an equality compares every row of one side with every row of the "
            f"other, in one task: {text(node)}"
        )
    one = _Side(left, items(node.left().output()), left_keys)
    two = _Side(right, items(node.right().output()), right_keys)
    if how is JoinKind.INNER:
        return _pairs(build, node, one, two)
    if rest is None:
        if how is JoinKind.EXISTS:
            flagged, flag = _flagged(build, node, one, two, condition_text(node.condition()))
            return _by_flag(build, node, flagged, flag)
        return _matched(build, node, how, one, two)
    return _with_rest(build, node, how, one, two)


def _pairs(build: Build, node: Plan, left: _Side, right: _Side) -> Delta:
    """The inner join: the kernel pairs by hash, the condition decides."""
    pairs = _matched(build, node, JoinKind.INNER, left, right)
    if not node.condition().isDefined():
        return pairs
    plan = build.catalyst.filter(node.condition().get(), pairs.plan)
    return replace(pairs, plan=plan)


def _matched(build: Build, node: Plan, how: JoinKind, left: _Side, right: _Side) -> Delta:
    """Pairs, and with an outer join the rows without a match, padded with nulls."""
    condition = node.condition().get() if node.condition().isDefined() else None
    met = _meetings(build, how, left, right, condition)
    _warn_of_growth(build, node, left, right, met.expiry)
    frame = _kernel(build, how, left, right, met.expiry)
    shown = Node(
        f"Join {kind(node.joinType())}",
        "bilinear" if how is JoinKind.INNER else "bilinear, match counts",
        condition_text(node.condition()),
        texts(left.keys),
        until("rows of both sides by key", met.expiry),
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
        bounds=met.bounds,
    )


@dataclass(frozen=True, slots=True)
class _Meetings:
    """What a join's condition says of time: whose rows can meet no later one, and the output's bounds."""

    expiry: list[Expiry]
    bounds: Bounds


def _meetings(
    build: Build, how: JoinKind, left: _Side, right: _Side, condition: Expression | None
) -> _Meetings:
    """Rows whose partners are all behind the watermark can leave; a retraction must still find its row."""
    catalyst = build.catalyst
    expiry: list[Expiry] = []
    bounds: dict[int, Bound] = {}

    def met(slot: str, side: _Side, column: Expression, partner: Bound | None) -> None:
        """Rows of a side meet only partners that keep `column` at or above a bound."""
        place, own = side.place(column), side.bound(catalyst, column)
        either = lowest(own, partner)
        kept = partner if side.delta.append_only else either
        if place is not None and kept is not None:
            expiry.append(Expiry(slot, f"{slot[0]}{place}", kept))
        if place is not None and either is not None:
            bounds[column.exprId().id()] = either

    for number, (one, two) in enumerate(zip(left.keys, right.keys, strict=True)):
        of_left, of_right = left.bound(catalyst, one), right.bound(catalyst, two)
        if how is JoinKind.INNER:
            met(LEFT, left, one, of_right)
            met(RIGHT, right, two, of_left)
            continue
        both = lowest(of_left, of_right)
        if both is not None:
            expiry += [Expiry(slot, f"k{number}", both) for slot in (LEFT, RIGHT)]
            for side, key in ((left, one), (right, two)):
                if side.place(key) is not None:
                    bounds[key.exprId().id()] = both
    if how is JoinKind.INNER and condition is not None:
        for larger, smaller in _orders(condition):
            column, shift = _shifted(larger)
            for slot, mine, other in ((LEFT, left, right), (RIGHT, right, left)):
                if mine.place(column) is None or not _is_over(smaller, other):
                    continue
                least = other.bound(catalyst, smaller)
                if least is not None and not least.field:
                    met(slot, mine, column, least.then(-shift) if shift else least)
    return _Meetings(expiry, bounds)


def _orders(condition: Expression) -> Iterator[tuple[Expression, Expression]]:
    """The comparisons that must all hold, as (larger or equal, smaller)."""
    name = kind(condition)
    if name == "And":
        yield from _orders(condition.left())
        yield from _orders(condition.right())
    elif name in ("GreaterThan", "GreaterThanOrEqual"):
        yield condition.left(), condition.right()
    elif name in ("LessThan", "LessThanOrEqual"):
        yield condition.right(), condition.left()


def _shifted(expression: Expression) -> tuple[Expression, int]:
    """`column + interval` as the column and microseconds; any other expression by itself."""
    if kind(expression) == "TimestampAddInterval":
        column, interval = items(expression.children())
        shift = interval.eval(None) if interval.foldable() else None
        if isinstance(shift, int):
            return column, shift
    return expression, 0


def _is_over(expression: Expression, side: _Side) -> bool:
    ids = {column.exprId().id() for column in side.columns}
    return all(e.exprId().id() in ids for e in items(expression.references().toSeq()))


def _warn_of_growth(
    build: Build, node: Plan, left: _Side, right: _Side, expiry: list[Expiry]
) -> None:
    kept = {one.slot for one in expiry}
    for slot, side in ((LEFT, left), (RIGHT, right)):
        if side.delta.endless and slot not in kept:
            build.grows(f"the {slot} side of {text(node)}", _TIME_OF_BOTH)


def _flagged(
    build: Build, node: Plan, left: _Side, right: _Side, detail: str, *, null_safe: bool = False
) -> tuple[Delta, Expression]:
    """The left rows and an attribute that says whether the right side has their key."""
    right = _Side(right.delta, [], right.keys)
    met = _meetings(build, JoinKind.EXISTS, left, right, None)
    _warn_of_growth(build, node, left, right, met.expiry)
    frame = _kernel(build, JoinKind.EXISTS, left, right, met.expiry, null_safe=null_safe)
    shown = Node(
        f"Join {kind(node.joinType())}",
        "match counts",
        detail,
        texts(left.keys),
        until("left rows, right counts by key", met.expiry),
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
        bounds=met.bounds,
    )
    return flagged, flag


def _by_flag(build: Build, node: Plan, flagged: Delta, flag: Expression) -> Delta:
    """What a semi, anti or existence join makes of flagged left rows."""
    catalyst = build.catalyst
    name = kind(node.joinType())
    columns = items(node.left().output())
    if name == "ExistenceJoin":
        exists = catalyst.alias(flag, "exists", node.joinType().exists())
        plan = catalyst.project([*columns, exists, flagged.weight], flagged.plan)
    else:
        wanted = flag if name == "LeftSemi" else catalyst.negated(flag)
        plan = catalyst.filter(wanted, flagged.plan)
        plan = catalyst.project([*columns, flagged.weight], plan)
    return replace(flagged, plan=plan)


def _with_rest(build: Build, node: Plan, how: JoinKind, left: _Side, right: _Side) -> Delta:
    """Outer, semi and anti joins with more than equalities in the condition.

    The inner join is kept as usual; which rows of a side have a match is then an equality join
    again: of the side with the pairs, by the whole row.
    """
    pairs = _pairs(build, node, left, right)

    def by_row(side: _Side) -> tuple[Delta, Expression]:
        whole = _Side(side.delta, side.columns, side.columns)
        matches = _Side(pairs, [], side.columns)
        return _flagged(build, node, whole, matches, "rows with a pair", null_safe=True)

    if how is JoinKind.EXISTS:
        return _by_flag(build, node, *by_row(left))
    branches = [pairs]
    for wanted, side in ((how.keeps_left, left), (how.keeps_right, right)):
        if wanted:
            flagged, flag = by_row(side)
            plan = build.catalyst.filter(build.catalyst.negated(flag), flagged.plan)
            branches.append(replace(flagged, plan=plan))
    columns = [*left.columns, *right.columns]
    united = None
    for branch in branches:
        frame = _padded(build, branch, columns)
        united = frame if united is None else united.unionAll(frame)
    assert united is not None
    shown = Node(
        "Union", "stateless", "pairs, rows without a pair", children=tuple(b.node for b in branches)
    )
    plan, others = build.rebound(united, columns)
    having = [(branch.bounds, _ids(branch)) for branch in branches] if pairs.bounds else []
    bounds = {
        column: lowest(*(known.get(column) for known, ids in having if column in ids))
        for column in pairs.bounds
    }
    return Delta(
        plan,
        others[0],
        shown,
        endless=any(branch.endless for branch in branches),
        bounds={column: bound for column, bound in bounds.items() if bound is not None},
    )


def _ids(delta: Delta) -> set[int]:
    return {attribute.exprId().id() for attribute in items(delta.plan.output())}


def _padded(build: Build, delta: Delta, columns: list[Expression]) -> DataFrame:
    """The columns that a delta has, and nulls for the others."""
    have = _ids(delta)
    names = numbered("c", len(columns))
    present = [
        (column, name)
        for column, name in zip(columns, names, strict=True)
        if column.exprId().id() in have
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


def _kernel(
    build: Build,
    how: JoinKind,
    left: _Side,
    right: _Side,
    expiry: list[Expiry],
    *,
    null_safe: bool = False,
) -> DataFrame:
    """Both sides in one frame, shuffled by key, through the join kernel."""
    keys = numbered("k", len(left.keys))
    names = (numbered("l", len(left.columns)), numbered("r", len(right.columns)))
    kept_keys = [] if how is JoinKind.INNER else list(keys)
    sides = []
    for number, side in enumerate((left, right)):
        inputs = [*zip(side.keys, keys, strict=True)]
        inputs += zip(side.columns, names[number], strict=True)
        frame = build.named(side.delta, inputs)
        present = " and ".join(f"{key} is not null" for key in keys) or "true"
        matchable = "true" if null_safe else present
        frame = frame.selectExpr("*", f"{matchable} as matchable")
        if how is JoinKind.INNER:
            frame = frame.where("matchable")
        rest = ["matchable", *kept_keys, *names[number]]
        sides.append(build.hashed(frame, keys, rest).selectExpr("*", f"{number} as side"))
    wires = []
    for mine, other in ((sides[0], sides[1]), (sides[1], sides[0])):
        columns = [
            name if name in mine.columns else f"cast(null as {column_type(other, name)}) as {name}"
            for name in ("h", "side", "matchable", *kept_keys, *names[0], *names[1], "w")
        ]
        wires.append(mine.selectExpr(*columns))
    rows = build.shuffled(wires[0].unionAll(wires[1]), single=not keys)
    out = [rows.schema[name] for name in names[0]]
    if how is JoinKind.EXISTS:
        out.append(StructField("x", BooleanType()))
    else:
        out += [rows.schema[name] for name in names[1]]
    operator = Join(how, len(kept_keys), len(left.columns), len(right.columns))
    return build.run(rows, operator, out, single=not keys, expiry=expiry)
