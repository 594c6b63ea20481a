"""Lowering of joins of every type and condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField

from eddyline.operators.base import Operator, numbered
from eddyline.operators.conditional_join import ConditionalJoin, PairTest
from eddyline.operators.join import Join
from eddyline.operators.pairing import LEFT, RIGHT, JoinKind
from eddyline.plan.build import Build, Delta, until
from eddyline.plan.eventtime import Bounds, Expiry, lowest
from eddyline.plan.join_conditions import Compared, conjunction, pair_condition
from eddyline.plan.join_sides import JoinSide, time_of_pairs
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
    one = JoinSide(left, output_of(children_of(node)[0]), left_keys)
    two = JoinSide(right, output_of(children_of(node)[1]), right_keys)
    condition = pair_condition(rest, one.columns, two.columns)
    if name == "LeftAnti" and condition.is_not_in and not left_keys:
        return _not_in(build, node, one, two, condition.compared[0])
    most = children_of(node)[1].maxRows()
    one_row = most.isDefined() and int(most.get()) <= 1
    if not (left_keys or one_row or (_is_scalar(node) and rest is None)):
        build.warnings.append(
            "a join without an equality compares every row of one side with every row of the "
            f"other, in one task: {join_text(node)}"
        )
    if how is JoinKind.INNER:
        return _pairs(build, node, *_tested(one, two, condition.compared))
    if condition.others or (_is_scalar(node) and rest is not None):
        return _with_rest(build, node, how, one, two, condition.compared)
    one = replace(one, matchable=conjunction(build.catalyst, condition.left))
    two = replace(two, matchable=conjunction(build.catalyst, condition.right))
    if how is not JoinKind.EXISTS:
        return _matched(build, node, how, *_tested(one, two, condition.compared))
    two = replace(two, columns=_columns_of([two for _, _, two in condition.compared]))
    sides = _tested(one, two, condition.compared)
    return _by_flag(build, node, *_flagged(build, node, *sides, condition_text(node.condition())))


def _is_scalar(node: JoinNode) -> bool:
    """Return whether the right side is a scalar subquery: no left row may have two matches."""
    return kind(node.joinType()) == "LeftSingle"


def _name(node: JoinNode) -> str:
    """Return the type of a join as SQL calls it, for `explain`."""
    return "LeftOuter" if _is_scalar(node) else kind(node.joinType())


def _pairs(
    build: Build, node: JoinNode, left: JoinSide, right: JoinSide, tests: Sequence[PairTest]
) -> Delta:
    """Lower the inner join: the operator pairs rows by hash and tests them, the condition filters the pairs."""
    pairs = _matched(build, node, JoinKind.INNER, left, right, tests)
    if not node.condition().isDefined():
        return pairs
    plan = build.catalyst.filter(node.condition().get(), pairs.plan)
    return replace(pairs, plan=plan)


def _matched(
    build: Build,
    node: JoinNode,
    how: JoinKind,
    left: JoinSide,
    right: JoinSide,
    tests: Sequence[PairTest],
) -> Delta:
    """Return the pairs, and with an outer join the rows without a match, padded with nulls."""
    condition = node.condition().get() if node.condition().isDefined() else None
    inner = how is JoinKind.INNER
    by_pairs = inner or bool(tests)
    time = time_of_pairs(build.catalyst, left, right, condition, by_pairs=by_pairs, keyed=not inner)
    _warn_of_growth(build, node, left, right, time.expiry)
    scalar = how is JoinKind.LEFT and _is_scalar(node)
    frame = _operator(build, how, left, right, time.expiry, scalar=scalar, tests=tests)
    rule, state = "bilinear", "rows of both sides by key"
    if not inner:
        rule = "bilinear, pair counts" if tests else "bilinear, match counts"
        state += ", and how many pairs each is in" if tests else ""
    shown = Node(
        f"Join {_name(node)}",
        f"{rule}, at most one match" if scalar else rule,
        condition_text(node.condition()),
        texts(left.keys),
        until(state, time.expiry),
        shuffle=True,
        children=(left.delta.node, right.delta.node),
    )
    plan, others = build.rebound(frame, [*left.columns, *right.columns])
    append_only = inner and left.delta.append_only and right.delta.append_only
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


def _warn_of_growth(
    build: Build, node: JoinNode, left: JoinSide, right: JoinSide, expiry: list[Expiry]
) -> None:
    kept = {one.slot for one in expiry}
    for slot, side in ((LEFT, left), (RIGHT, right)):
        if side.delta.endless and slot not in kept:
            build.grows(f"the {slot} side of the {join_text(node)}", _TIME_OF_BOTH)


def _flagged(
    build: Build,
    node: JoinNode,
    left: JoinSide,
    right: JoinSide,
    tests: Sequence[PairTest],
    detail: str,
    *,
    null_safe: bool = False,
) -> tuple[Delta, Expression]:
    """Return the left rows, and an attribute that tells whether they have a match on the right side.

    Args:
        right: with the columns that are compared only.
    """
    condition = node.condition().get() if tests else None
    time = time_of_pairs(build.catalyst, left, right, condition, by_pairs=bool(tests), keyed=True)
    _warn_of_growth(build, node, left, right, time.expiry)
    scalar = _is_scalar(node)
    how = JoinKind.EXISTS
    frame = _operator(
        build, how, left, right, time.expiry, null_safe=null_safe, scalar=scalar, tests=tests
    )
    rule, state = "match counts", "left rows, right counts by key"
    if tests:
        rule, state = "pair counts", "rows of both sides by key, and how many pairs each is in"
    shown = Node(
        f"Join {_name(node)}",
        f"{rule}, at most one match" if scalar else rule,
        detail,
        texts(left.keys),
        until(state, time.expiry),
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


def _tested(
    left: JoinSide, right: JoinSide, compared: Sequence[Compared]
) -> tuple[JoinSide, JoinSide, list[PairTest]]:
    """Return the sides with what is compared, and the tests for the operator."""
    tests = []
    for one, sign, two in compared:
        left, left_name = _operand(left, one, "la")
        right, right_name = _operand(right, two, "rb")
        tests.append(PairTest(left_name, sign, right_name))
    return left, right, tests


def _columns_of(expressions: Sequence[Expression]) -> list[Expression]:
    """Return the columns that expressions read, each once."""
    read = [one for e in expressions for one in items(e.references().toSeq())]
    return list({id_of(one): one for one in read}.values())


def _operand(side: JoinSide, expression: Expression, prefixes: str) -> tuple[JoinSide, str]:
    """Return the side, and the name under which its rows hold an expression: that of a column, or of a further one."""
    place = side.place(expression)
    if place is not None:
        return side, f"{prefixes[0]}{place}"
    same = [one.semanticEquals(expression) for one in side.compared]
    if any(same):
        return side, f"{prefixes[1]}{same.index(True)}"
    name = f"{prefixes[1]}{len(side.compared)}"
    return replace(side, compared=[*side.compared, expression]), name


def _not_in(
    build: Build, node: JoinNode, left: JoinSide, right: JoinSide, compared: Compared
) -> Delta:
    """Lower `NOT IN (SELECT ...)` without a correlation, whose values may be null.

    A row is in the result if no row of the subquery has its value, and none has a null. A row with a null is in it only
    if the subquery has no row. These two conditions are joins without keys, each in one task: over the rows that
    have no match, and over those with a null.
    """
    value, _, other = compared
    catalyst = build.catalyst
    right = replace(right, columns=[])
    by_value = (
        replace(left, keys=[_normal(build, value)]),
        replace(right, keys=[_normal(build, other)]),
    )
    flagged = _flagged(build, node, *by_value, (), condition_text(node.condition()))
    delta = _by_flag(build, node, *flagged)
    if other.nullable():
        nulls = catalyst.filter(catalyst.expression("IsNull", other), right.delta.plan)
        with_null = replace(right, delta=replace(right.delta, plan=nulls))
        without_match = replace(left, delta=delta)
        flagged = _flagged(build, node, without_match, with_null, (), "a null on the right")
        delta = _by_flag(build, node, *flagged)
    if value.nullable():
        unknown = replace(left, delta=delta, matchable=catalyst.expression("IsNull", value))
        detail = "a null on the left, any row on the right"
        delta = _by_flag(build, node, *_flagged(build, node, unknown, right, (), detail))
    return delta


def _normal(build: Build, value: Expression) -> Expression:
    """Return a value that has the same bits for both zeros, as Spark makes the keys of its joins."""
    zero = {"double": "0D", "float": "0F"}.get(type_of(value).simpleString())
    if zero is None:
        return value
    return build.catalyst.expression("Add", value, build.catalyst.constant(zero))


def _with_rest(
    build: Build,
    node: JoinNode,
    how: JoinKind,
    left: JoinSide,
    right: JoinSide,
    compared: Sequence[Compared],
) -> Delta:
    """Lower outer, semi and anti joins whose condition Spark has to evaluate over pairs.

    The inner join gives the pairs. A second join, of a side with the pairs by the whole row, tells
    which rows of the side have a match.
    """
    pairs = _pairs(build, node, *_tested(left, right, compared))
    if how is JoinKind.EXISTS:
        return _by_flag(build, node, *_flagged_by_row(build, node, left, pairs))
    branches = [pairs]
    for wanted, side in ((how.watches_left, left), (how.watches_right, right)):
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
    build: Build, node: JoinNode, side: JoinSide, pairs: Delta
) -> tuple[Delta, Expression]:
    """Return the rows of a side and an attribute that tells whether they are in a pair."""
    whole = JoinSide(side.delta, side.columns, side.columns)
    matches = JoinSide(pairs, [], side.columns)
    return _flagged(build, node, whole, matches, (), "rows with a pair", null_safe=True)


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
    left: JoinSide,
    right: JoinSide,
    expiry: list[Expiry],
    *,
    null_safe: bool = False,
    scalar: bool = False,
    tests: Sequence[PairTest] = (),
) -> DataFrame:
    """Bring both sides into one frame, shuffled by key, and run the join operator over it."""
    keys = numbered("k", len(left.keys))
    shown = (numbered("l", len(left.columns)), numbered("r", len(right.columns)))
    compared = (numbered("a", len(left.compared)), numbered("b", len(right.compared)))
    inner = how is JoinKind.INNER
    kept_keys = [] if inner else list(keys)
    present = [f"{key} is not null" for key in keys]
    of_left, of_right = (
        dict(zip((*shown[n], *compared[n]), (*side.columns, *side.compared), strict=True))
        for n, side in enumerate((left, right))
    )
    types = {name: sql_type(type_of(column)) for name, column in (of_left | of_right).items()}
    carried = _carried(list(of_left), list(of_right), types)
    columns = [name for name in types if name not in carried]
    sides = []
    for number, (side, own) in enumerate(((left, of_left), (right, of_right))):
        inputs = [*zip(side.keys, keys, strict=True), *((own[name], name) for name in own)]
        matchable = [] if null_safe or inner else [*present]
        if side.matchable is not None:
            inputs.append((side.matchable, "p"))
            matchable.append("coalesce(p, false)")
        held = {carried.get(name, name): name for name in own}
        values = [f"{held.get(name, f'cast(null as {types[name]})')} as {name}" for name in columns]
        rest = [f"{number} as side", f"{_all(matchable)} as matchable", *kept_keys, *values]
        where = _all(present) if inner else ""
        sides.append(build.named_and_hashed(side.delta, inputs, keys, rest, where))
    united = build.steps.union(sides)
    rows = build.shuffled(united, single=not keys)
    emitted = shown[0] if how is JoinKind.EXISTS else (*shown[0], *shown[1])
    out = [
        StructField(name, rows.schema[carried.get(name, name)].dataType, True) for name in emitted
    ]
    if how is JoinKind.EXISTS:
        out.append(StructField("x", BooleanType()))
    counts = len(kept_keys), len(left.columns), len(right.columns)
    operator: Operator = Join(how, *counts, scalar, tuple(carried.items()))
    if tests:
        further = len(left.compared), len(right.compared)
        operator = ConditionalJoin(how, *counts, further, tuple(tests), tuple(carried.items()))
    return build.run(rows, operator, out, single=not keys, expiry=expiry)


def _carried(left: Sequence[str], right: Sequence[str], types: Mapping[str, str]) -> dict[str, str]:
    """Return for columns of the right side the columns of the left side that hold them in its rows.

    Each has one of the same type, as long as there are any. So rows have fewer columns, and fewer nulls for those of the
    other side.
    """
    free = list(left)
    carried = {}
    for name in right:
        alike = [one for one in free if types[one] == types[name]]
        if alike and "<" not in types[name]:  # two nested types may differ in where nulls are
            carried[name] = alike[0]
            free.remove(alike[0])
    return carried


def _all(conditions: Sequence[str]) -> str:
    """Return SQL of the conjunction of some conditions."""
    return " and ".join(conditions) or "true"
