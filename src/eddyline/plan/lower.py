"""From Spark's optimised plan to the incremental plan of one view.

Each logical node is lowered to Catalyst nodes that work on deltas: the node's own columns, under
their own ids, and one more column, the weight. A stateful node becomes a shuffle by key hash and
one kernel. What comes out is again an ordinary Spark plan, which is planned once and run each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from eddyline.changes import OPERATION, SEQUENCE
from eddyline.operators.base import numbered
from eddyline.operators.hold import SLOT as PENDING
from eddyline.operators.hold import Hold
from eddyline.operators.result import Apply, Materialize
from eddyline.plan.aggregates import aggregate, versions, window
from eddyline.plan.build import Build, Delta, text, texts, until
from eddyline.plan.catalyst import Expression, Plan, items, kind, type_of
from eddyline.plan.eventtime import Bound, Expiry, expanded, key_bounds, projected, same_places
from eddyline.plan.joins import join
from eddyline.plan.limits import Order, group_top, limited, ordered
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, keep_outputs, skipping
from eddyline.plan.rules import MOVING_MOMENTS, REFUSED_EXPRESSIONS, REFUSED_NODES


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled view or table.

    Attributes:
        frame: runs an epoch when it is executed.
        node: the DAG, for `explain`.
        schema: the columns that users see.
        order: how the rows are sorted for users; the sort keys lie behind the columns.
        append_only: no row is ever retracted.
        build: leaves, stateful parts, constants and warnings.
        order_types: types of the sort keys.
        key: places of the columns that identify a row; None if that isn't known.
        logical: Spark's optimised plan, as text.
        endless: its rows grow without end.
        bounds: the least event times that changes can still have, by places of columns.
        final: of EMIT FINAL the column that tells when a row is final, and below which bound.
    """

    frame: DataFrame
    node: Node
    schema: StructType
    order: tuple[Order, ...]
    append_only: bool
    build: Build
    order_types: tuple[DataType, ...] = ()
    key: tuple[int, ...] | None = None
    logical: str = ""
    endless: bool = False
    bounds: Mapping[int, Bound] = field(default_factory=dict)
    final: tuple[int, Bound] | None = None


def compile_view(build: Build, query: str, *, final: bool = False) -> Compiled:
    """Compile a query; QueryError if it is wrong or no live view can keep it.

    Args:
        final: give each row once, when a watermark has passed it.
    """
    catalyst = build.catalyst
    analyzed = catalyst.analyzed(query)
    _refuse(build, analyzed)
    names = [attribute.name() for attribute in items(analyzed.output())]
    folded = [name.lower() for name in names]
    doubled = sorted({name for name in names if folded.count(name.lower()) > 1})
    if doubled:
        raise build.refused(
            f"the result has several columns named {', '.join(doubled)}",
            "give them different names with AS",
            condition="DUPLICATE_COLUMN",
        )
    optimized = catalyst.optimized(catalyst.hide_distinct(analyzed))
    build.need(optimized)
    output = items(optimized.output())
    delta, keys, order = ordered(build, optimized, lambda node: lower(build, node))
    columns = numbered("c", len(output) + len(keys))
    frame = build.named(delta, list(zip([*output, *keys], columns, strict=True)))
    ids = [attribute.exprId().id() for attribute in output]
    bounds = {place: delta.bounds[one] for place, one in enumerate(ids) if one in delta.bounds}
    closes: tuple[int, Bound] | None = None
    if final:
        closes = _closing(build, bounds)
        frame, delta = _held(build, frame, delta, columns, names, closes)
    rows = build.hashed(frame, columns, columns)
    in_place = delta.in_place
    if not in_place:
        rows = build.shuffled(rows, single=False)
    if catalyst.holds_subquery(catalyst.plan(rows)):  # it would see the changes, not the rows
        raise build.refused(
            "a subquery stands where no live view can keep it",
            "join it, or put it into the SELECT or WHERE of a subquery",
        )
    done = build.run(rows, Materialize(len(columns)), [], single=in_place and delta.single)
    schema = StructType(
        [
            StructField(name, type_of(a), True, catalyst.window_marks(a))
            for name, a in zip(names, output, strict=True)
        ]
    )
    node = Node(
        "View", "collect", build.view, tuple(names), "result rows",
        shuffle=not in_place, children=(delta.node,),
    )  # fmt: skip
    return Compiled(
        done,
        node,
        schema,
        order,
        delta.append_only,
        build,
        tuple(type_of(key) for key in keys),
        _row_key(optimized),
        str(optimized.toString()),
        delta.endless,
        {} if final else bounds,
        closes,
    )


def _closing(build: Build, bounds: Mapping[int, Bound]) -> tuple[int, Bound]:
    """The column that tells when a row is final: a window, if there is one."""
    if not bounds:
        raise build.refused(
            "EMIT FINAL can't tell when a row is final: no column follows a stream's watermark",
            "declare WATERMARK FOR the stream's time column, group by a window or a day of it, and "
            "select that",
            condition="NO_WATERMARK",
        )
    return min(bounds.items(), key=lambda item: (not item[1].field, item[0]))


def _held(
    build: Build,
    frame: DataFrame,
    delta: Delta,
    columns: Sequence[str],
    names: Sequence[str],
    closes: tuple[int, Bound],
) -> tuple[DataFrame, Delta]:
    """The rows of a result once they are final, and what is known of them."""
    place, bound = closes
    rows = build.shuffled(build.hashed(frame, columns, columns), single=False)
    out = [frame.schema[column] for column in columns]
    expiry = Expiry(PENDING, columns[place], bound)
    operator = Hold(len(columns), columns[place], bound.field)
    held = build.run(rows, operator, out, single=False, expiry=[expiry])
    shown = Node(
        "Final", "hold until final", f"by {names[place]}", (), until("pending rows", [expiry]),
        shuffle=True, children=(delta.node,),
    )  # fmt: skip
    return held, replace(delta, node=shown, append_only=True, in_place=True, single=False)


def _row_key(plan: Plan) -> tuple[int, ...] | None:
    """Places of the grouping columns in the output of an aggregate query; None for any other."""
    output = [attribute.exprId().id() for attribute in items(plan.output())]
    below = plan
    while kind(below) in ("Project", "Filter", "Sort"):
        below = below.child()
    if kind(below) != "Aggregate":
        return None
    keys = [
        key.exprId().id()
        for key in items(below.groupingExpressions())
        if kind(key) == "AttributeReference"
    ]
    return tuple(output.index(key) for key in keys) if set(keys) <= set(output) else None


def compile_table(build: Build, schema: StructType, key: tuple[int, ...]) -> Compiled:
    """The plan that applies a table's operations to its rows."""
    columns = numbered("c", len(schema))
    frame = build.leaf(build.view, range(len(schema)), operations_schema(schema))
    keys = [columns[place] for place in key] or list(columns)
    rows = build.shuffled(build.hashed(frame, keys, [SEQUENCE, OPERATION, *columns]), single=False)
    done = build.run(rows, Apply(len(schema), key), [], single=False)
    leaf = Node("Scan", "stateless", "operations of the redo log")
    node = Node(
        "Table", "apply in order", build.view, tuple(schema[i].name for i in key), "rows",
        shuffle=True, children=(leaf,),
    )  # fmt: skip
    return Compiled(done, node, schema, (), append_only=False, build=build, key=key or None)


def operations_schema(schema: StructType) -> StructType:
    """Operations on rows of a schema, as they travel: `seq, op, c0.., w`."""
    wire = StructType([StructField(SEQUENCE, LongType()), StructField(OPERATION, StringType())])
    for i, item in enumerate(schema):
        wire.add(f"c{i}", item.dataType)
    return wire.add("w", LongType())


def lower(build: Build, node: Plan) -> Delta:
    """Lower one logical node and all below it."""
    name = kind(node)
    method = LOWERINGS.get(name)
    if method is None:
        why, way_out = REFUSED_NODES.get(
            name, (f"operator {name} has no incremental rule", "write the query without it")
        )
        raise build.refused(why, way_out, fragment=node)
    plain = _without_scalar_subqueries(build, node)
    return method(build, node) if plain is node else lower(build, plain)


def _relation(build: Build, node: Plan) -> Delta:
    relation = build.relations.get(build.catalyst.rdd_id(node))
    if relation is None:
        raise build.refused(
            "the query reads a DataFrame that this engine doesn't know",
            "register it with engine.table or engine.stream",
            fragment=node,
        )
    output = items(node.output())
    places = [i for i, a in enumerate(output) if a.exprId().id() in build.needed]
    wanted = [output[place] for place in places]
    schema = _wire([type_of(attribute) for attribute in wanted])
    frame = build.leaf(relation.name, places, schema, relation.time, relation.late)
    plan, others = build.rebound(frame, wanted)
    shown = Node("Scan", "stateless", relation.name)
    bounds = {
        wanted[i].exprId().id(): relation.bounds[place]
        for i, place in enumerate(places)
        if place in relation.bounds
    }
    return Delta(
        plan, others[0], shown, relation.append_only, endless=relation.endless, bounds=bounds
    )


def _constant(build: Build, node: Plan) -> Delta:
    output = items(node.output())
    named = [build.catalyst.alias(a, f"c{i}") for i, a in enumerate(output)]
    frame = build.constant(build.catalyst.frame(build.catalyst.project(named, node)))
    plan, others = build.rebound(frame, output)
    return Delta(plan, others[0], Node("Constant", "stateless", text(node)), append_only=True)


def _wire(types: list[DataType]) -> StructType:
    schema = StructType()
    for i, data_type in enumerate(types):
        schema.add(f"c{i}", data_type)
    return schema.add("w", LongType())


def _project(build: Build, node: Plan) -> Delta:
    child = lower(build, node.child())
    columns = items(node.projectList())
    plan = build.catalyst.project([*columns, child.weight], child.plan)
    bounds = projected(build.catalyst, columns, child.bounds)
    return child.through(plan, "Project", text(node), bounds)


def _filter(build: Build, node: Plan) -> Delta:
    child = lower(build, node.child())
    return child.through(build.catalyst.with_child(node, child.plan), "Filter", text(node))


def _python_function(build: Build, node: Plan) -> Delta:
    child = lower(build, node.child())
    catalyst = build.catalyst
    if child.append_only:  # nothing is ever taken back
        return child.through(catalyst.with_child(node, child.plan), "Python function", text(node))
    columns = items(node.child().output())
    rows = versions(build, child, columns, columns)
    skip = catalyst.negative(rows.version)
    calls = [
        catalyst.alias(skipping(build, call, skip), given.name(), given)
        for call, given in zip(items(node.udfs()), items(node.resultAttrs()), strict=True)
    ]
    plan = catalyst.project([*columns, *calls, rows.version], rows.plan)
    bounds = key_bounds(catalyst, columns, child.bounds)
    plan, weight = keep_outputs(build, plan, rows.version, columns, bounds)
    shown = Node(
        "Python function",
        OUTPUTS_KEPT,
        text(node),
        texts(columns),
        until("rows, outputs", rows.expiry),
        shuffle=True,
        children=(child.node,),
    )
    return Delta(plan, weight, shown, endless=child.endless, bounds=child.bounds)


def _generate(build: Build, node: Plan) -> Delta:
    child = lower(build, node.child())
    # the node names unneeded columns by their place: the weight goes behind them all
    columns = [*items(node.child().output()), child.weight]
    plan = build.catalyst.with_child(node, build.catalyst.project(columns, child.plan))
    return child.through(plan, "Generate", text(node))


def _expand(build: Build, node: Plan) -> Delta:
    child = lower(build, node.child())
    plan = build.catalyst.expand(node, child.weight, child.plan)
    projections = [items(projection) for projection in items(node.projections())]
    bounds = expanded(build.catalyst, projections, items(node.output()), child.bounds)
    return child.through(plan, "Expand", text(node), bounds)


def _union(build: Build, node: Plan) -> Delta:
    deltas, united = [], None
    for child in items(node.children()):
        delta = lower(build, child)
        columns = [(a, f"c{i}") for i, a in enumerate(items(child.output()))]
        frame = build.named(delta, columns)
        united = frame if united is None else united.unionAll(frame)
        deltas.append(delta)
    assert united is not None
    output = items(node.output())
    plan, others = build.rebound(united, output)
    shown = Node("Union", "stateless", children=tuple(delta.node for delta in deltas))
    inputs = [items(child.output()) for child in items(node.children())]
    return Delta(
        plan,
        others[0],
        shown,
        all(delta.append_only for delta in deltas),
        endless=any(delta.endless for delta in deltas),
        bounds=same_places(output, inputs, [delta.bounds for delta in deltas]),
    )


def _aggregate(build: Build, node: Plan) -> Delta:
    return aggregate(build, node, lower(build, node.child()))


def _window(build: Build, node: Plan) -> Delta:
    return window(build, node, lambda below: lower(build, below))


def _join(build: Build, node: Plan) -> Delta:
    return join(build, node, lower(build, node.left()), lower(build, node.right()))


def _limit(build: Build, node: Plan) -> Delta:
    return limited(build, node, lambda below: lower(build, below))


def _group_top(build: Build, node: Plan) -> Delta:
    return group_top(build, node, lambda below: lower(build, below))


def _passed(build: Build, node: Plan) -> Delta:
    """Hints and layouts that don't change the rows."""
    return lower(build, node.child())


LOWERINGS: dict[str, Callable[[Build, Plan], Delta]] = {
    "LogicalRDD": _relation,
    "LocalRelation": _constant,
    "OneRowRelation": _constant,
    "Range": _constant,
    "Project": _project,
    "Filter": _filter,
    "ArrowEvalPython": _python_function,
    "BatchEvalPython": _python_function,
    "Generate": _generate,
    "Expand": _expand,
    "Union": _union,
    "Aggregate": _aggregate,
    "Window": _window,
    "WindowGroupLimit": _group_top,
    "Join": _join,
    "GlobalLimit": _limit,
    "LocalLimit": _limit,
    "Offset": _limit,
    "Sort": _limit,
    "Repartition": _passed,
    "RepartitionByExpression": _passed,
    "RebalancePartitions": _passed,
    "ResolvedHint": _passed,
    "SubqueryAlias": _passed,
    "View": _passed,
}


def _without_scalar_subqueries(build: Build, node: Plan) -> Plan:
    """Join the one row of each uncorrelated scalar subquery to the node's input."""
    catalyst = build.catalyst
    found = [
        hit for expression in items(node.expressions()) for hit in catalyst.subqueries(expression)
    ]
    if not found:
        return node
    if kind(node) == "Aggregate" and (above := _finished_above(build, node)) is not None:
        return above
    replaced: dict[int, Expression] = {}
    child = items(node.children())[0]
    for subquery in found:
        plan = subquery.plan()
        most = plan.maxRows()
        if not most.isDefined() or int(most.get()) > 1:
            raise build.refused(
                "a scalar subquery can give more than one row",
                "make it one row with an aggregate or LIMIT 1",
                fragment=plan,
            )
        identity = subquery.exprId().id()
        if identity not in replaced:
            replaced[identity] = items(plan.output())[0]
            child = catalyst.left_outer_cross(child, plan)
    output = items(node.output())
    over = node.withNewChildren(catalyst.seq([child, *items(node.children())[1:]]))
    rewritten = catalyst.map_expressions(
        over, lambda e: replaced.get(e.exprId().id()) if kind(e) == "ScalarSubquery" else None
    )
    if rewritten is None:
        raise build.refused(
            f"a scalar subquery within {kind(node)} is not known",
            "put it into the SELECT or WHERE of a subquery",
            fragment=node,
        )
    build.need(child)
    if kind(node) in ("Filter", "Join"):  # its output has grown by the subquery's column
        rewritten = catalyst.project(output, rewritten)
    return rewritten


def _finished_above(build: Build, node: Plan) -> Plan | None:
    """An aggregate whose results hold scalar subqueries, as a projection over one without.

    None where all subqueries are in what it groups by or calls.
    """
    catalyst = build.catalyst
    keys = items(node.groupingExpressions())
    below: list[Expression] = []

    def pull(expression: Expression) -> Expression | None:
        grouped = any(expression.semanticEquals(key) for key in keys)
        if not grouped and kind(expression) != "AggregateExpression":
            return None
        known = next((one for one in below if one.child().semanticEquals(expression)), None)
        if known is None:
            below.append(known := catalyst.alias(expression, f"p{len(below)}"))
        return known.toAttribute()

    results = [catalyst.rewrite(result, pull) for result in items(node.aggregateExpressions())]
    if not any(map(catalyst.subqueries, results)):
        return None
    named = [
        result if kind(result) == "Alias" else catalyst.alias(result, old.name(), old)
        for result, old in zip(results, items(node.aggregateExpressions()), strict=True)
    ]
    return catalyst.project(named, catalyst.aggregate(keys, below, items(node.children())[0]))


def _refuse(build: Build, analyzed: Plan) -> None:
    """Refuse what is not deterministic or depends on the clock."""
    for node in build.catalyst.nodes(analyzed):
        if kind(node) in REFUSED_NODES:
            why, way_out = REFUSED_NODES[kind(node)]
            raise build.refused(why, way_out, fragment=node)
        for root in items(node.expressions()):
            for expression in build.catalyst.expressions(root):
                name = kind(expression)
                if name in REFUSED_EXPRESSIONS:
                    why, way_out = REFUSED_EXPRESSIONS[name]
                    raise build.refused(f"{expression.sql()}: {why}", way_out, fragment=root)
                moment = build.catalyst.moment(expression)
                if MOVING_MOMENTS.fullmatch(moment):
                    why, way_out = REFUSED_EXPRESSIONS["Now"]
                    raise build.refused(
                        f"{moment.strip()!r} as a moment: {why}", way_out, fragment=root
                    )
                functions = ("PythonUDF", "ScalaUDF", "PythonUDAF")
                if name in functions and not expression.udfDeterministic():
                    raise build.refused(
                        f"{expression.sql()} is not marked deterministic",
                        "mark it so if it is, or compute it before the row enters the stream",
                        fragment=root,
                    )
