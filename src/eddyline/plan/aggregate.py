"""Lowering of GROUP BY and DISTINCT: linear where that is exact, recomputed by Spark elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from eddyline.operators.aggregate import SLOT, Reduce
from eddyline.operators.base import numbered
from eddyline.operators.recompute import SLOT as ROWS
from eddyline.operators.recompute import Regroup
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, column_type, text, texts, until
from eddyline.plan.catalyst import Expression, Plan, contains_type, items, kind, sql_type, type_of
from eddyline.plan.eventtime import (
    NO_BOUNDS,
    Bound,
    Bounds,
    Expiry,
    attribute_bounds,
    bound_of,
    key_bounds,
    projected,
)
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, calls_python, keep_outputs, skipping
from eddyline.plan.rules import Accumulators, Call, linear
from eddyline.state.kernels import Measure

_TIMES = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True, slots=True)
class _Linear:
    """One aggregate call of a linear aggregate: its columns in the input, and how it is kept."""

    expression: Expression
    rule: Accumulators
    arguments: list[Expression]
    distinct: bool
    values: tuple[str, ...]
    condition: str

    @property
    def counted(self) -> str:
        """SQL: whether a row counts for the call."""
        tests = [f"{value} is not null" for value in self.values]
        if self.condition and not self.distinct:
            tests.append(f"coalesce({self.condition}, false)")
        return " and ".join(tests) or "true"

    @property
    def is_extreme(self) -> bool:
        """Whether all its values are kept, to find the smallest or largest."""
        return self.rule.largest is not None

    def contributions(self) -> list[str]:
        """SQL of what a row contributes to each accumulator; of an extreme the value itself."""
        value = self.values[0] if self.values else "null"
        parts = ("if({on}, {v}, null)",) if self.is_extreme else self.rule.contributions
        return [part.format(on=self.counted, v=value) for part in parts]


def aggregate(build: Build, node: Plan, child: Delta) -> Delta:
    """GROUP BY with its aggregates; without aggregates this is DISTINCT."""
    catalyst = build.catalyst
    results = items(node.aggregateExpressions())
    keys = items(node.groupingExpressions())
    if any(catalyst.is_session(key) for key in keys):
        return _recomputed(build, node, child, keys, results)
    expressions = [
        call
        for result in results
        for call in catalyst.find(result, lambda name: name == "AggregateExpression")
    ]
    calls: list[_Linear] = []
    for number, expression in enumerate(expressions):
        call = _linear_call(build, expression, number, child.append_only)
        if call is None or not build.native:
            return _recomputed(build, node, child, keys, results)
        calls.append(call)
    unsummed = any(Measure.EXACT in call.rule.measures or call.is_extreme for call in calls)
    nested_floats = any(
        contains_type(type_of(key), ("float", "double"))
        and type_of(key).simpleString() not in ("float", "double")
        for key in keys
    )
    maps = any(contains_type(type_of(key), ("map",)) for key in keys)
    # -0.0 and NaN within them are normalised by Spark's own aggregate only
    if (unsummed or maps) and nested_floats:
        return _recomputed(build, node, child, keys, results)
    return _reduced(build, child, keys, results, calls)


def _linear_call(
    build: Build, expression: Expression, number: int, append_only: bool
) -> _Linear | None:
    function = expression.aggregateFunction()
    distinct = build.catalyst.distinct_arguments(expression)
    arguments = items(function.children()) if distinct is None else distinct
    described = Call(
        kind(function),
        tuple(type_of(argument).simpleString() for argument in arguments),
        distinct is not None,
    )
    rule = linear(described, append_only)
    # another number of buffers: a variant of the function that keeps something else
    if rule is None or len(items(function.aggBufferAttributes())) != len(rule.buffers):
        return None
    values = tuple(f"v{number}_{i}" for i in range(len(arguments)))
    condition = f"f{number}" if expression.filter().isDefined() else ""
    return _Linear(expression, rule, arguments, distinct is not None, values, condition)


def _reduced(
    build: Build,
    child: Delta,
    keys: list[Expression],
    results: list[Expression],
    calls: list[_Linear],
) -> Delta:
    """Contributions summed by Spark, merged into the groups by the kernel, finished by Spark."""
    catalyst = build.catalyst
    names = numbered("k", len(keys))
    inputs = list(zip(keys, names, strict=True))
    for call in calls:
        inputs += zip(call.arguments, call.values, strict=True)
        if call.condition:
            inputs.append((call.expression.filter().get(), call.condition))
    base = build.named(child, inputs)
    kept_keys = key_bounds(catalyst, keys, child.bounds)
    branches = [(base, [call for call in calls if not call.distinct], "w")]
    if not keys:
        branches.append((_first_row(build, base), [], "w"))
    shown_child = child.node
    for frame, members in _distinct_inputs(build, base, names, calls, child.single, kept_keys):
        branches.append((frame, members, "0L as w"))
        shown_child = Node(
            "Distinct", "distinct", ", ".join(texts(members[0].arguments)), texts(keys),
            until("row counts", _expiry([SLOT], kept_keys)),
            shuffle=True, children=(shown_child,),
        )  # fmt: skip

    measures = tuple(measure for call in calls for measure in call.rule.measures)
    united = _united(branches, names, calls)
    single = not keys
    largest = tuple(call.rule.largest for call in calls if call.rule.largest is not None)
    rows = _preaggregated(build, united, names, measures, len(largest), child.single)
    kept = (*names, *numbered("m", len(measures)), *numbered("x", len(largest)))
    out = [rows.schema[name] for name in kept]
    slots = (SLOT, *numbered("x", len(largest)))
    expiry = _expiry(slots, kept_keys)
    _warn_of_growth(build, child, keys, bool(largest), expiry)
    reducer = Reduce(len(keys), measures, largest)
    reduced = build.run(rows, reducer, out, single=single, expiry=expiry)

    buffers, start, extremes = [], 0, 0
    for call in calls:
        places = {f"m{i}": f"m{start + i}" for i in range(len(call.rule.measures))}
        places["x"] = f"x{extremes}"
        extremes += call.is_extreme
        attributes = items(call.expression.aggregateFunction().aggBufferAttributes())
        for finish, attribute in zip(call.rule.buffers, attributes, strict=True):
            typed = f"cast({finish.format(**places)} as {sql_type(type_of(attribute))})"
            buffers.append((typed, attribute))
        start += len(call.rule.measures)
    finished = reduced.selectExpr(
        *names, *(f"{typed} as b{i}" for i, (typed, _) in enumerate(buffers)), "w"
    )
    key_ids = [
        key if kind(key) == "AttributeReference" else catalyst.alias(key, "k") for key in keys
    ]
    plan, others = build.rebound(finished, [*key_ids, *(attribute for _, attribute in buffers)])
    weight = others[0]
    by_id = {call.expression.resultId().id(): call.expression for call in calls}

    def finish_call(expression: Expression) -> Expression | None:
        if kind(expression) == "AggregateExpression":
            function = by_id[expression.resultId().id()].aggregateFunction()
            return function.evaluateExpression()
        for key, key_id in zip(keys, key_ids, strict=True):
            if key is not key_id and expression.semanticEquals(key):
                return key_id.toAttribute()
        return None

    finished_results = [catalyst.rewrite(result, finish_call) for result in results]
    plan = catalyst.project([*finished_results, weight], plan)
    rule = "linear" if calls else "distinct"
    if any(measure in (Measure.MIN, Measure.MAX) for measure in measures):
        rule += ", append-only extremes"
    if largest:
        rule += ", extremes of sorted values"
    shown = Node(
        "Aggregate" if calls else "Distinct",
        rule,
        ", ".join(texts(results)),
        texts(keys),
        until(
            "accumulators by group" + ", values" * bool(largest) if calls else "row counts", expiry
        ),
        shuffle=True,
        children=(shown_child,),
    )
    return Delta(
        plan,
        weight,
        shown,
        append_only=not calls and child.append_only,
        in_place=True,
        single=single,
        endless=child.endless and bool(keys),
        bounds=projected(catalyst, finished_results, attribute_bounds(key_ids, kept_keys)),
    )


def _expiry(slots: Sequence[str], kept: Mapping[int, Bound]) -> list[Expiry]:
    """Whose groups leave with their keys `k0..` when a watermark has passed them."""
    return [Expiry(slot, f"k{place}", bound) for slot in slots for place, bound in kept.items()]


def _warn_of_growth(
    build: Build, child: Delta, keys: list[Expression], values: bool, expiry: list[Expiry]
) -> None:
    """Groups by time are endless where the rows are; other groups may be as many as there are users."""
    if not child.endless or expiry:
        return
    by_time = [key for key in keys if contains_type(type_of(key), _TIMES)]
    if by_time or values:
        shown = ", ".join(texts(keys)) or "all rows"
        what = "the kept values of" if values and not by_time else "the groups by"
        build.grows(f"{what} {shown}", PARTITION_BY_TIME)


def _first_row(build: Build, like: DataFrame) -> DataFrame:
    """One row of nulls in the first epoch: a global aggregate has a row even over no input."""
    once = build.constant(build.catalyst.session.range(1).selectExpr())
    nulls = [
        f"cast(null as {column_type(like, name)}) as {name}" for name in like.columns if name != "w"
    ]
    return once.selectExpr(*nulls, "w")


def _distinct_inputs(
    build: Build,
    base: DataFrame,
    names: Sequence[str],
    calls: list[_Linear],
    single: bool,
    kept: Mapping[int, Bound],
) -> list[tuple[DataFrame, list[_Linear]]]:
    """For each set of DISTINCT arguments the delta of its distinct rows, and the calls it feeds."""
    sets: dict[str, list[_Linear]] = {}
    for call in calls:
        if call.distinct:
            parts = [argument.canonicalized().toString() for argument in call.arguments]
            if call.condition:
                parts.append("where " + call.expression.filter().get().canonicalized().toString())
            sets.setdefault("\n".join(parts), []).append(call)
    found = []
    for members in sets.values():
        first = members[0]
        source = base.where(first.condition) if first.condition else base
        frame = distinct_rows(build, source, [*names, *first.values], single=single, kept=kept)
        renames = [
            f"{given} as {own}"
            for member in members[1:]
            for own, given in zip(member.values, first.values, strict=True)
        ]
        found.append((frame.selectExpr("*", *renames), members))
    return found


def distinct_rows(
    build: Build,
    frame: DataFrame,
    columns: Sequence[str],
    *,
    single: bool,
    kept: Mapping[int, Bound],
) -> DataFrame:
    """The distinct rows of some columns of a frame with weights, as a delta of its own.

    Args:
        kept: bounds of columns, by their places.
    """
    names = numbered("k", len(columns))
    renamed = frame.selectExpr(*(f"{c} as k{i}" for i, c in enumerate(columns)), "w")
    rows = _preaggregated(build, renamed, names, (), 0, single)
    out = [rows.schema[name] for name in names]
    expiry = _expiry([SLOT], kept)
    reduced = build.run(rows, Reduce(len(columns)), out, single=not names, expiry=expiry)
    return reduced.selectExpr(*(f"k{i} as {c}" for i, c in enumerate(columns)), "w")


def _united(
    branches: list[tuple[DataFrame, list[_Linear], str]], names: Sequence[str], calls: list[_Linear]
) -> DataFrame:
    """All branches with all accumulators: a branch contributes zero to the calls it doesn't feed."""
    owned = []
    for frame, members, weight in branches:
        columns = [
            f"{part} as a{calls.index(call)}_{i}"
            for call in members
            for i, part in enumerate(call.contributions())
        ]
        owned.append(frame.selectExpr(*names, *columns, weight))
    types = {
        name: column_type(frame, name)
        for frame in owned
        for name in frame.columns
        if name[0] == "a"
    }
    united = None
    for frame in owned:
        columns, values, number = list(names), list[str](), 0
        for place, call in enumerate(calls):
            if call.is_extreme:
                name = f"a{place}_0"
                value = name if name in frame.columns else f"cast(null as {types[name]})"
                values.append(f"{value} as x{len(values)}")
            for i, measure in enumerate(call.rule.measures):
                name = f"a{place}_{i}"
                value = name if name in frame.columns else _zero(measure, types[name])
                columns.append(f"{value} as m{number}")
                number += 1
        columns += values
        complete = frame.selectExpr(*columns, "w")
        united = complete if united is None else united.unionAll(complete)
    assert united is not None
    return united


def _zero(measure: Measure, kept: str) -> str:
    if measure is Measure.EXACT:
        return "named_struct('hi', 0D, 'lo', 0D)"
    return f"cast({'null' if measure in (Measure.MIN, Measure.MAX) else 0} as {kept})"


def _preaggregated(
    build: Build,
    frame: DataFrame,
    keys: Sequence[str],
    measures: Sequence[Measure],
    values: int,
    single: bool,
) -> DataFrame:
    """Contributions by group, in their buckets; summed before the shuffle where that loses nothing.

    The shuffle is that of Spark's own aggregate, by the grouping columns: the same group always
    comes to the same task, whose number so is the bucket.
    """
    columns = [*keys, *numbered("m", len(measures)), *numbered("x", values)]
    maps = any(contains_type(frame.schema[name].dataType, ("map",)) for name in keys)
    # each double must reach the exact sum by itself, each value its place in the order;
    # maps Spark groups by another name
    if Measure.EXACT in measures or values or maps:
        frame = build.hashed(build.normalised(frame, keys), keys, columns)
        return build.shuffled(frame, single=not keys)
    if single and keys:  # one task already: Spark would leave the shuffle out
        frame = frame.repartition(build.buckets)
    sums = []
    for i, measure in enumerate(measures):
        name, kept = f"m{i}", column_type(frame, f"m{i}")
        total = _TOTALS[measure].format(name)
        if measure in (Measure.SUM, Measure.XOR):
            total = f"coalesce({total}, cast(0 as {kept}))"
        sums.append(expr(f"cast({total} as {kept}) as {name}"))
    sums.append(expr("coalesce(sum(w), 0L) as w"))
    return build.hashed(frame.groupBy(*keys).agg(*sums), keys, columns)


_TOTALS = {
    Measure.SUM: "sum({})",
    Measure.XOR: "bit_xor({})",
    Measure.MIN: "min({})",
    Measure.MAX: "max({})",
}


def _recomputed(
    build: Build, node: Plan, child: Delta, keys: list[Expression], results: list[Expression]
) -> Delta:
    """Spark aggregates the old and the new rows of the touched groups; the difference is the delta.

    Sessions grow, merge and split: all those of the other grouping keys are touched together.
    """
    catalyst = build.catalyst
    touched = [key for key in keys if not catalyst.is_session(key)]
    results = [catalyst.shown_distinct(result) for result in results]
    used = {
        reference.exprId().id()
        for expression in [*keys, *results]
        for reference in items(expression.references().toSeq())
    }
    columns = [a for a in items(node.child().output()) if a.exprId().id() in used]
    sessions = {
        key.exprId().id(): bound
        for key in keys
        if catalyst.is_session(key) and (bound := bound_of(catalyst, key, child.bounds)) is not None
    }
    grouped_rows = versions(build, child, touched, columns, first_row=not keys, sessions=sessions)
    plan, version, real = grouped_rows.plan, grouped_rows.version, grouped_rows.real
    if child.endless and not grouped_rows.expiry:
        build.grows(f"the rows by {', '.join(texts(touched)) or 'nothing'}", PARTITION_BY_TIME)
    if real is not None:

        def only_real(expression: Expression) -> Expression | None:
            if kind(expression) != "AggregateExpression":
                return None
            return catalyst.filtered_aggregate(expression, real)

        results = [catalyst.rewrite(result, only_real) for result in results]
    weight = catalyst.alias(version, "w")
    kept_keys = key_bounds(catalyst, touched, child.bounds)
    shown = Node(
        "Aggregate",
        "recompute touched groups",
        ", ".join(texts(results)),
        texts(touched),
        until("input rows by group", grouped_rows.expiry),
        shuffle=True,
        children=(child.node,),
    )
    change = weight.toAttribute()
    if calls_python(catalyst, results):
        skip = catalyst.negative(version)
        named = [catalyst.alias(key, f"k{i}") for i, key in enumerate(touched)]
        called = [skipping(build, result, skip) for result in results]
        grouped = catalyst.aggregate([*keys, version], [*called, *named, weight], plan)
        groups = [name.toAttribute() for name in named]
        grouped, change = keep_outputs(build, grouped, change, groups, kept_keys)
        shown = replace(shown, rule=f"{shown.rule}, {OUTPUTS_KEPT}")
    else:
        grouped = catalyst.aggregate([*keys, version], [*results, weight], plan)
    return Delta(
        grouped,
        change,
        shown,
        single=not touched,
        endless=child.endless and bool(keys),
        bounds=projected(catalyst, results, {**attribute_bounds(touched, kept_keys), **sessions}),
    )


@dataclass(frozen=True, slots=True)
class Versions:
    """All rows of the touched groups, before and after the epoch.

    Attributes:
        plan: the columns under their own ids.
        version: the attribute that is -1 before and +1 after.
        real: with a first row the attribute that tells real rows from the one that a global
            aggregate begins with.
        expiry: which rows of the state a watermark makes useless.
    """

    plan: Plan
    version: Expression
    real: Expression | None
    expiry: list[Expiry]


def versions(
    build: Build,
    child: Delta,
    keys: list[Expression],
    columns: list[Expression],
    *,
    first_row: bool = False,
    sessions: Bounds = NO_BOUNDS,
) -> Versions:
    """Keep the rows of a child by keys, and give those of the touched groups twice.

    Args:
        sessions: bounds of columns that are sessions.
    """
    names, key_names = numbered("c", len(columns)), numbered("k", len(keys))
    inputs = [*zip(keys, key_names, strict=True), *zip(columns, names, strict=True)]
    frame = build.named(child, inputs)
    if first_row:
        names = numbered("c", len(columns) + 1)
        real = f"c{len(columns)}"
        once = _first_row(build, frame).selectExpr("*", f"false as {real}")
        frame = frame.selectExpr("*", f"true as {real}").unionByName(once)
    rows = build.hashed(build.normalised(frame, key_names), key_names, names)
    if child.keys != texts(keys):
        rows = build.shuffled(rows, single=not keys)
    out = [rows.schema[name] for name in names]
    places = {column.exprId().id(): name for column, name in zip(columns, names, strict=False)}
    kept = attribute_bounds(keys, key_bounds(build.catalyst, keys, child.bounds))
    expiry = [Expiry(ROWS, places[key], bound) for key, bound in kept.items() if key in places]
    expiry += [Expiry(ROWS, places[key], bound, sessions=True) for key, bound in sessions.items()]
    versioned = build.run(rows, Regroup(len(names)), out, single=not keys, expiry=expiry)
    plan, others = build.rebound(versioned, columns)
    return Versions(plan, others[-1], others[0] if first_row else None, expiry)


def window(build: Build, node: Plan, lower: Callable[[Plan], Delta]) -> Delta:
    """Window functions over the touched partitions; stacked ones of one partitioning at once."""
    partition = items(node.partitionSpec())
    wanted = texts(partition)
    stack, below = [node], node.child()
    while kind(below) == "Window" and texts(items(below.partitionSpec())) == wanted:
        stack.append(below)
        below = below.child()
    child = lower(below)
    rows = versions(build, child, partition, items(below.output()))
    plan, version = rows.plan, rows.version
    python = calls_python(
        build.catalyst, [e for one in stack for e in items(one.windowExpressions())]
    )
    skip = build.catalyst.negative(version) if python else None
    if child.endless and not rows.expiry:
        build.grows(f"the rows by {', '.join(wanted) or 'nothing'}", PARTITION_BY_TIME)
    for one in reversed(stack):
        functions = items(one.windowExpressions())
        if skip is not None:
            functions = [skipping(build, function, skip) for function in functions]
        plan = build.catalyst.window(one, functions, [*partition, version], plan)
    shown = Node(
        "Window",
        "recompute touched partitions",
        "; ".join(text(one) for one in stack),
        wanted,
        until("input rows by partition", rows.expiry),
        shuffle=child.keys != wanted,
        children=(child.node,),
    )
    kept = key_bounds(build.catalyst, partition, child.bounds)
    if skip is not None:
        plan, version = keep_outputs(build, plan, version, partition, kept)
        shown = replace(shown, rule=f"{shown.rule}, {OUTPUTS_KEPT}")
    return Delta(
        plan,
        version,
        shown,
        single=not partition,
        endless=child.endless,
        bounds=attribute_bounds(partition, kept),
    )
