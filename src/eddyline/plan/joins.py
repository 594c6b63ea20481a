"""Lowering of joins: bilinear pairs, rows without a match, existence."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField

from eddyline.operators.base import numbered
from eddyline.operators.join import Join, JoinKind
from eddyline.plan.build import Build, Delta, column_type, condition_text, text, texts
from eddyline.plan.catalyst import Expression, Plan, items, kind, sql_type, type_of
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
    return Delta(plan, pairs.weight, pairs.node, pairs.append_only, True, pairs.single)


def _matched(build: Build, node: Plan, how: JoinKind, left: _Side, right: _Side) -> Delta:
    """Pairs, and with an outer join the rows without a match, padded with nulls."""
    frame = _kernel(build, how, left, right)
    shown = Node(
        f"Join {kind(node.joinType())}",
        "bilinear" if how is JoinKind.INNER else "bilinear, match counts",
        condition_text(node.condition()),
        texts(left.keys),
        "rows of both sides by key",
        shuffle=True,
        children=(left.delta.node, right.delta.node),
    )
    plan, others = build.rebound(frame, [*left.columns, *right.columns])
    append_only = how is JoinKind.INNER and left.delta.append_only and right.delta.append_only
    return Delta(plan, others[0], shown, append_only, in_place=True, single=not left.keys)


def _flagged(
    build: Build, node: Plan, left: _Side, right: _Side, detail: str, *, null_safe: bool = False
) -> tuple[Delta, Expression]:
    """The left rows and an attribute that says whether the right side has their key."""
    right = _Side(right.delta, [], right.keys)
    frame = _kernel(build, JoinKind.EXISTS, left, right, null_safe=null_safe)
    shown = Node(
        f"Join {kind(node.joinType())}",
        "match counts",
        detail,
        texts(left.keys),
        "left rows, right counts by key",
        shuffle=True,
        children=(left.delta.node, right.delta.node),
    )
    plan, (flag, weight) = build.rebound(frame, left.columns)
    return Delta(plan, weight, shown, in_place=True, single=not left.keys), flag


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
    return Delta(plan, flagged.weight, flagged.node, in_place=True, single=flagged.single)


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
            branches.append(Delta(plan, flagged.weight, flagged.node))
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
    return Delta(plan, others[0], shown)


def _padded(build: Build, delta: Delta, columns: list[Expression]) -> DataFrame:
    """The columns that a delta has, and nulls for the others."""
    have = {attribute.exprId().id() for attribute in items(delta.plan.output())}
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
    build: Build, how: JoinKind, left: _Side, right: _Side, *, null_safe: bool = False
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
    return build.run(rows, operator, out, single=not keys)
