"""Lowering of GROUP BY and DISTINCT to accumulators; `plan/recompute.py` lowers other aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import DoubleType, LongType, StructField

from eddyline.operators.aggregate import SLOT, Reduce
from eddyline.operators.base import numbered
from eddyline.operators.percentiles import Fractions
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, until
from eddyline.plan.eventtime import Bound, Expiry, attribute_bounds, key_bounds, projected
from eddyline.plan.lanes import Placed
from eddyline.plan.linear import LinearCall, linear_calls
from eddyline.plan.logical import Expression, Plan, children_of, items, kind, type_of
from eddyline.plan.nodes import Node
from eddyline.plan.recompute import first_row, recomputed
from eddyline.plan.render import texts
from eddyline.plan.types import column_type, contains_type, sql_type
from eddyline.state.kernels import Measure

_TIMES = ("timestamp", "timestamp_ntz", "date")
_FLOATS = ("float", "double")


@dataclass(frozen=True, slots=True)
class _Aggregation:
    """A linear aggregate while it is lowered.

    Attributes:
        bounds: lower bounds of the event times of the keys, by their places.
    """

    child: Delta
    keys: list[Expression]
    results: list[Expression]
    calls: list[LinearCall]
    bounds: Mapping[int, Bound]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the keys."""
        return numbered("k", len(self.keys))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """How each accumulator combines."""
        return tuple(measure for call in self.calls for measure in call.kept.measures)

    @property
    def largest(self) -> tuple[bool, ...]:
        """For each extreme of sorted values whether it is the maximum."""
        return tuple(call.kept.largest for call in self.calls if call.kept.largest is not None)

    @property
    def fractions(self) -> tuple[tuple[float, ...], ...]:
        """The fractions of each call of percentiles."""
        return tuple(call.kept.fractions for call in self.calls if call.kept.fractions)

    @property
    def rule(self) -> str:
        """The incremental rule, for `explain`."""
        parts = ["linear" if self.calls else "distinct"]
        if any(measure in (Measure.MIN, Measure.MAX) for measure in self.measures):
            parts.append("append-only extremes")
        if self.largest:
            parts.append("extremes of sorted values")
        if self.fractions:
            parts.append("percentiles of sorted values")
        return ", ".join(parts)

    @property
    def state(self) -> str:
        """The state, for `explain`."""
        if not self.calls:
            return "row counts"
        return "accumulators by group" + ", values" * bool(self.largest or self.fractions)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch of the input, whose rows contribute to some of the calls.

    Attributes:
        weight: SQL of the number of the group's rows that a row represents.
    """

    frame: DataFrame
    calls: list[LinearCall]
    weight: str


def aggregate(build: Build, node: Plan, child: Delta) -> Delta:
    """Lower GROUP BY with its aggregates; without aggregates this is DISTINCT."""
    keys = items(node.groupingExpressions())
    if any(build.catalyst.is_session(key) for key in keys):
        return recomputed(build, node, child)
    calls = linear_calls(build, node, child.append_only)
    if calls is None or not _normalisable(keys, calls):
        return recomputed(build, node, child)
    bounds = key_bounds(build.catalyst, keys, child.bounds)
    results = items(node.aggregateExpressions())
    return _reduced(build, _Aggregation(child, keys, results, calls, bounds))


def _normalisable(keys: list[Expression], calls: list[LinearCall]) -> bool:
    """Return whether equal keys form one group.

    Only Spark's own aggregate normalises -0.0 and NaN within a value, and some calls don't use it.
    """
    types = [type_of(key) for key in keys]
    nested = any(contains_type(t, _FLOATS) and t.simpleString() not in _FLOATS for t in types)
    unsummed = any(Measure.EXACT in call.kept.measures or call.is_sorted for call in calls)
    maps = any(contains_type(t, ("map",)) for t in types)
    return not (nested and (unsummed or maps))


def _reduced(build: Build, aggregation: _Aggregation) -> Delta:
    """Sum contributions in Spark, merge them into the groups in the operator, compute the results in Spark."""
    child, keys, names = aggregation.child, aggregation.keys, aggregation.names
    measures, largest = aggregation.measures, aggregation.largest
    by_difference = build.catalyst.percentiles_by_difference
    fractions = tuple(Fractions(at, by_difference) for at in aggregation.fractions)
    branches, shown_child = _branches(build, aggregation)
    united = _united(build, branches, names, aggregation.calls)
    sorted_ = (*numbered("x", len(largest)), *numbered("q", len(fractions)))
    rows = _preaggregated(build, united, names, measures, sorted_, child.single)
    kept = (*names, *numbered("m", len(measures)), *numbered("x", len(largest)))
    reducer = Reduce(len(keys), measures, largest, fractions, build.catalyst.ansi)
    out = _stored_columns([rows.schema[name] for name in kept], reducer)
    out += [StructField(name, DoubleType()) for name in reducer.percentiles]
    expiry = _expiry([*reducer.layouts], aggregation.bounds)
    _warn_of_growth(build, child, keys, bool(sorted_), expiry)
    single = not keys
    reduced = build.run(rows, reducer, out, single=single, expiry=expiry)
    key_ids = [
        key if kind(key) == "AttributeReference" else build.catalyst.alias(key, "k") for key in keys
    ]
    plan, weight, results = _finished(build, aggregation, reduced, key_ids)
    shown = Node(
        "Aggregate" if aggregation.calls else "Distinct",
        aggregation.rule,
        ", ".join(texts([build.catalyst.shown_distinct(one) for one in aggregation.results])),
        texts(keys),
        until(aggregation.state, expiry),
        shuffle=True,
        children=(shown_child,),
    )
    return Delta(
        plan,
        weight,
        shown,
        append_only=not aggregation.calls and child.append_only,
        in_place=True,
        single=single,
        endless=child.endless and bool(keys),
        bounds=projected(build.catalyst, results, attribute_bounds(key_ids, aggregation.bounds)),
    )


def _stored_columns(fields: list[StructField], reducer: Reduce) -> list[StructField]:
    """Return the columns that the operator emits: sums of integers are no longer in two words."""
    integers = reducer.integers
    return [StructField(f.name, LongType()) if f.name in integers else f for f in fields]


def _branches(build: Build, aggregation: _Aggregation) -> tuple[list[_Branch], Node]:
    """Return the inputs of the calls: all rows, a first row, the distinct rows; and their node."""
    names, calls = aggregation.names, aggregation.calls
    inputs = list(zip(aggregation.keys, names, strict=True))
    for call in calls:
        arguments = call.arguments
        if call.condition:
            condition = call.expression.filter().get()
            inputs.append((condition, call.condition))
            # as Spark, which doesn't compute the argument of a row that FILTER leaves out; it may fail there
            if not call.distinct:
                arguments = [_guarded(build, condition, one) for one in arguments]
        inputs += zip(arguments, call.values, strict=True)
    base = build.named(aggregation.child, inputs)
    branches = [_Branch(base, [call for call in calls if not call.distinct], "w")]
    if not names:
        branches.append(_Branch(first_row(build, base), [], "w"))
    shown = aggregation.child.node
    for members in _distinct_sets(calls):
        frame = _distinct_input(build, aggregation, base, members)
        branches.append(_Branch(frame, members, "0L as w"))
        shown = Node(
            "Distinct", "distinct", ", ".join(texts(members[0].arguments)),
            texts(aggregation.keys), until("row counts", _expiry([SLOT], aggregation.bounds)),
            shuffle=True, children=(shown,),
        )  # fmt: skip
    return branches, shown


def _guarded(build: Build, condition: Expression, argument: Expression) -> Expression:
    computed = bool(children_of(argument))
    return build.catalyst.guarded(condition, argument) if computed else argument


def _distinct_sets(calls: list[LinearCall]) -> list[list[LinearCall]]:
    """Return the DISTINCT calls, those over the same arguments together."""
    sets: dict[str, list[LinearCall]] = {}
    for call in calls:
        if call.distinct:
            arguments = [argument.canonicalized().toString() for argument in call.arguments]
            sets.setdefault("\n".join(arguments), []).append(call)
    return list(sets.values())


def _distinct_input(
    build: Build, aggregation: _Aggregation, base: DataFrame, members: list[LinearCall]
) -> DataFrame:
    """Return the delta of the distinct rows of a set of DISTINCT calls.

    Calls with different conditions share the rows. Each condition has a count of its rows; a call sees nulls in
    rows whose count is zero.
    """
    given = members[0].values
    marks: dict[str, str] = {}  # by the text of a condition, its column
    for member in members:
        marks.setdefault(_condition_text(member), member.condition)
    tests = [f"coalesce({column}, false)" if column else "true" for column in marks.values()]
    source = base if "true" in tests else base.where(" or ".join(tests))
    counts = [f"if({test}, w, 0L)" for test in tests] if len(tests) > 1 else []
    frame = _distinct_rows(build, aggregation, source, [*aggregation.names, *given], counts)
    places = {text: place for place, text in enumerate(marks)}
    columns = [
        (f"if(m{places[_condition_text(member)]} > 0, g{i}, null)" if counts else f"g{i}")
        + f" as {own}"
        for member in members
        for i, own in enumerate(member.values)
    ]
    return frame.selectExpr(*aggregation.names, *columns, "w")


def _condition_text(call: LinearCall) -> str:
    return call.expression.filter().get().canonicalized().toString() if call.condition else ""


def _distinct_rows(
    build: Build,
    aggregation: _Aggregation,
    frame: DataFrame,
    columns: Sequence[str],
    counts: Sequence[str],
) -> DataFrame:
    """Return the changes of the distinct rows: the keys, values `g0..`, and marks `m0..`.

    Args:
        counts: SQL of how many rows of each kind a row stands for; a mark is 1 where there are any.
    """
    names, keys = numbered("k", len(columns)), aggregation.names
    counted = [f"{count} as m{i}" for i, count in enumerate(counts)]
    renamed = frame.selectExpr(*(f"{c} as k{i}" for i, c in enumerate(columns)), *counted, "w")
    measures = (Measure.PRESENT,) * len(counts)
    rows = _preaggregated(build, renamed, names, measures, (), aggregation.child.single)
    marks = numbered("m", len(counts))
    out = [rows.schema[name] for name in (*names, *marks)]
    expiry = _expiry([SLOT], aggregation.bounds)
    operator = Reduce(len(columns), measures)
    reduced = build.run(rows, operator, out, single=not names, expiry=expiry)
    given = (*keys, *numbered("g", len(columns) - len(keys)))
    return reduced.selectExpr(*(f"k{i} as {c}" for i, c in enumerate(given)), *marks, "w")


def _united(
    build: Build, branches: list[_Branch], names: Sequence[str], calls: list[LinearCall]
) -> DataFrame:
    """Return all branches with all accumulators: zero where a branch has no rows for a call."""
    frames = []
    for branch in branches:
        columns = [
            f"{part} as {name}"
            for call in branch.calls
            for name, part in call.contributions().items()
        ]
        frames.append(branch.frame.selectExpr(*names, *columns, branch.weight))
    types = {
        name: column_type(frame, name)
        for frame in frames
        for name in frame.columns
        if name[0] == "a"
    }
    complete = [
        frame.selectExpr(*names, *_accumulator_columns(frame.columns, calls, types), "w")
        for frame in frames
    ]
    return build.steps.union(complete)


def _accumulator_columns(
    present: Sequence[str], calls: list[LinearCall], types: Mapping[str, str]
) -> list[str]:
    """Return SQL for the accumulators `m0..`, and the values of extremes `x0..` and of percentiles `q0..`."""
    measured: list[str] = []
    extremes: list[str] = []
    numbers: list[str] = []
    for call in calls:
        if call.is_sorted:
            name = f"a{call.number}_0"
            value = name if name in present else f"cast(null as {types[name]})"
            if call.is_extreme:
                extremes.append(f"{value} as x{len(extremes)}")
            else:
                numbers.append(f"{value} as q{len(numbers)}")
        for i, measure in enumerate(call.kept.measures):
            name = f"a{call.number}_{i}"
            value = name if name in present else _zero(measure, types[name])
            measured.append(f"{value} as m{len(measured)}")
    return [*measured, *extremes, *numbers]


def _zero(measure: Measure, kept: str) -> str:
    if measure is Measure.EXACT:
        return "named_struct('hi', 0D, 'lo', 0D)"
    if measure is Measure.INTEGER:
        return "named_struct('high', 0L, 'low', 0L)"
    return f"cast({'null' if measure in (Measure.MIN, Measure.MAX) else 0} as {kept})"


_TOTALS = {
    Measure.SUM: "coalesce(sum({0}), cast(0 as {1}))",
    Measure.PRESENT: "coalesce(sum({0}), cast(0 as {1}))",
    Measure.INTEGER: "named_struct('high', coalesce(sum({0}.high), 0L), 'low', coalesce(sum({0}.low), 0L))",
    Measure.XOR: "coalesce(bit_xor({0}), cast(0 as {1}))",
    Measure.MIN: "min({0})",
    Measure.MAX: "max({0})",
}


def _preaggregated(
    build: Build,
    frame: DataFrame,
    keys: Sequence[str],
    measures: Sequence[Measure],
    values: Sequence[str],
    single: bool,
) -> Placed:
    """Return contributions in their buckets; they are summed before the shuffle if that is exact.

    The shuffle is that of Spark's own aggregate, by the grouping columns: a group always goes to the
    same task, whose number is the bucket.
    """
    columns = [*keys, *numbered("m", len(measures)), *values]
    maps = any(contains_type(frame.schema[name].dataType, ("map",)) for name in keys)
    # each double must reach the exact sum by itself, each value its place in the order;
    # Spark groups maps by a column of another name
    if Measure.EXACT in measures or values or maps:
        frame = build.hashed(build.normalised(frame, keys), keys, columns)
        return build.shuffled(frame, single=not keys)
    if single and keys:  # one task already: Spark would leave the shuffle out
        frame = build.steps.spread(frame, build.buckets)
    sums = []
    for i, measure in enumerate(measures):
        name, kept = f"m{i}", column_type(frame, f"m{i}")
        total = _TOTALS[measure].format(name, kept)
        sums.append(expr(f"cast({total} as {kept}) as {name}"))
    sums.append(expr("coalesce(sum(w), 0L) as w"))
    groups = build.hashed(frame.groupBy(*keys).agg(*sums), keys, columns)
    return Placed(groups, build.buckets if keys else 1, tuple(keys), grouped=True)


def _finished(
    build: Build, aggregation: _Aggregation, reduced: DataFrame, key_ids: list[Expression]
) -> tuple[Plan, Expression, list[Expression]]:
    """Let Spark compute results from accumulators as from its own aggregation buffers.

    Args:
        key_ids: attributes or aliases of the keys.

    Returns:
        the plan of the results, the attribute of its weight, and the results' expressions.
    """
    catalyst, keys = build.catalyst, aggregation.keys
    buffers = _buffers(aggregation.calls)
    typed = (f"{sql} as b{i}" for i, (sql, _) in enumerate(buffers))
    finished = reduced.selectExpr(*aggregation.names, *typed, "w")
    plan, others = build.rebound(finished, [*key_ids, *(attribute for _, attribute in buffers)])
    by_id = {call.expression.resultId().id(): call for call in aggregation.calls}

    def finish(expression: Expression) -> Expression | None:
        if kind(expression) == "AggregateExpression":
            return by_id[expression.resultId().id()].result
        for key, key_id in zip(keys, key_ids, strict=True):
            if key is not key_id and expression.semanticEquals(key):
                return key_id.toAttribute()
        return None

    results = [catalyst.rewrite(result, finish) for result in aggregation.results]
    weight = others[0]
    return catalyst.project([*results, weight], plan), weight, results


def _buffers(calls: list[LinearCall]) -> list[tuple[str, Expression]]:
    """Return SQL of each aggregation buffer over the accumulators, and the buffer's attribute."""
    buffers = []
    measures = extremes = percentiles = 0
    for call in calls:
        places = {f"m{i}": f"m{measures + i}" for i in range(len(call.kept.measures))}
        places["x"] = f"x{extremes}"
        own = [f"p{percentiles + i}" for i in range(len(call.kept.fractions))]
        if own:
            several = contains_type(type_of(call.result), ("array",))
            places["q"] = (
                f"if({own[0]} is null, null, array({', '.join(own)}))" if several else own[0]
            )
        for finish, attribute in zip(call.kept.buffers, call.buffers, strict=True):
            typed = f"cast({finish.format(**places)} as {sql_type(type_of(attribute))})"
            buffers.append((typed, attribute))
        measures += len(call.kept.measures)
        extremes += call.is_extreme
        percentiles += len(own)
    return buffers


def _expiry(slots: Sequence[str], bounds: Mapping[int, Bound]) -> list[Expiry]:
    """Return the expiry of groups whose keys `k0..` a watermark has passed."""
    return [Expiry(slot, f"k{place}", bound) for slot in slots for place, bound in bounds.items()]


def _warn_of_growth(
    build: Build, child: Delta, keys: list[Expression], values: bool, expiry: list[Expiry]
) -> None:
    """Warn of endless groups by time, and of stored values; the number of other groups may be limited."""
    if not child.endless or expiry:
        return
    by_time = [key for key in keys if contains_type(type_of(key), _TIMES)]
    if by_time or values:
        shown = ", ".join(texts(keys)) or "all rows"
        what = "the kept values of" if values and not by_time else "the groups by"
        build.grows(f"{what} {shown}", PARTITION_BY_TIME)
