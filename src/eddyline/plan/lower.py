"""From Spark's optimised plan to the incremental plan of one view.

Each logical node is lowered to Catalyst nodes that work on deltas: the node's own columns, under
their own ids, and one more column, the weight. A stateful node becomes a shuffle by key hash and
one operator. The result is an ordinary Spark plan, which is planned once and run each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from eddyline.changes import OPERATION, SEQUENCE
from eddyline.operators.base import numbered
from eddyline.operators.hold import PENDING, Hold
from eddyline.operators.result import Apply, Materialize
from eddyline.plan.aggregate import aggregate
from eddyline.plan.build import Build, Delta, until
from eddyline.plan.clock import flips, marked, reads_clock, removes_old_rows, with_values
from eddyline.plan.constants import check_constants
from eddyline.plan.eventtime import Bound, Expiry, expanded, key_bounds, projected, same_places
from eddyline.plan.grouped_maps import IN_ARROW, IN_PANDAS, grouped_map
from eddyline.plan.joins import join
from eddyline.plan.lanes import Placed
from eddyline.plan.limits import Order, group_top, limited, limits_over_sorts, ordered
from eddyline.plan.logical import (
    Expression,
    Filter,
    GroupedMap,
    JoinNode,
    Plan,
    child_of,
    children_of,
    id_of,
    items,
    kind,
    name_of,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, keep_outputs, skipping
from eddyline.plan.recompute import versions
from eddyline.plan.refusals import (
    DUPLICATE_COLUMN,
    FOREIGN,
    MISPLACED_SUBQUERY,
    NO_FINAL_ROWS,
    NODES,
    UNKNOWN_NODE,
    UNKNOWN_RELATION,
    refused_part,
)
from eddyline.plan.render import node_text, texts
from eddyline.plan.rounded_times import rounded_times
from eddyline.plan.rowkey import row_key
from eddyline.plan.scan_conditions import scan_condition
from eddyline.plan.sharing import find_sub_plans, lowered_once, repeated
from eddyline.plan.subqueries import without_scalar_subqueries
from eddyline.plan.window import window


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled view or table.

    Attributes:
        jobs: composes the plans that run an epoch as jobs of Spark, one after the other.
        node: the DAG, for `explain`.
        schema: the columns that users see.
        order: how the rows are sorted for users; the sort keys come after the columns.
        append_only: no row is ever retracted.
        build: leaves, stateful parts, constants and warnings.
        order_types: types of the sort keys.
        key: positions of the columns that identify a row; None if not known.
        logical: Spark's optimised plan, as text.
        endless: its rows grow without end.
        bounds: lower bounds of the event times of later changes, by places of columns.
        final: with EMIT FINAL, the position of the column that makes a row final, and its bound.
    """

    jobs: Callable[[], Sequence[Plan]]
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


@dataclass(frozen=True, slots=True)
class Query:
    """A query that has been checked and optimised.

    Attributes:
        names: of its columns.
        optimized: its plan.
    """

    names: Sequence[str]
    optimized: Plan


def checked_query(build: Build, analyzed: Plan) -> Query:
    """Check and optimise a resolved query; QueryError if it can't be kept live."""
    catalyst = build.catalyst
    analyzed = marked(build, analyzed)
    refused = refused_part(catalyst, analyzed)
    if refused is not None:
        raise build.refused(*refused)
    names = _column_names(build, analyzed)
    sorts_kept = limits_over_sorts(catalyst, analyzed)
    optimized = catalyst.optimized(catalyst.hide_distinct(sorts_kept))
    check_constants(build, optimized)
    build.need(optimized)
    find_sub_plans(build, optimized)
    build.rounded = rounded_times(build, optimized)
    return Query(names, optimized)


def compile_view(build: Build, query: Query, *, final: bool = False) -> Compiled:
    """Compile a checked query; QueryError if it can't be kept live.

    Args:
        final: emit each row once, when a watermark has passed it.
    """
    names, optimized = query.names, query.optimized
    output = output_of(optimized)
    delta, keys, order = ordered(build, optimized, lambda node: lower(build, node))
    columns = numbered("c", len(output) + len(keys))
    frame = build.named(delta, list(zip([*output, *keys], columns, strict=True)))
    bounds = {
        place: delta.bounds[id_of(attribute)]
        for place, attribute in enumerate(output)
        if id_of(attribute) in delta.bounds
    }
    closes: tuple[int, Bound] | None = None
    if final:
        closes = _closing(build, bounds)
        frame, delta = _held(build, frame, delta, columns, names, closes)
    build.sub_plans.clear()  # a build is kept, and they would keep Spark's plans in the JVM
    return Compiled(
        _jobs(build, _collected(build, frame, delta, columns)),
        _view_node(build, delta, names),
        _user_schema(build, names, output),
        order,
        delta.append_only,
        build,
        tuple(type_of(key) for key in keys),
        row_key(build, optimized),
        optimized.toString(),
        delta.endless,
        {} if final else bounds,
        closes,
    )


def _view_node(build: Build, delta: Delta, names: Sequence[str]) -> Node:
    return Node(
        "View", "collect", build.view, tuple(names), "result rows",
        shuffle=not delta.in_place, children=(delta.node,),
    )  # fmt: skip


def _column_names(build: Build, analyzed: Plan) -> list[str]:
    names = [name_of(attribute) for attribute in output_of(analyzed)]
    folded = [name.lower() for name in names]
    doubled = sorted({name for name in names if folded.count(name.lower()) > 1})
    if doubled:
        raise build.refused(DUPLICATE_COLUMN.about(names=", ".join(doubled)))
    return names


def _user_schema(build: Build, names: Sequence[str], output: Sequence[Expression]) -> StructType:
    return StructType(
        [
            StructField(name, type_of(a), True, build.catalyst.window_marks(a))
            for name, a in zip(names, output, strict=True)
        ]
    )


def _collected(build: Build, frame: DataFrame, delta: Delta, columns: Sequence[str]) -> DataFrame:
    """Store the rows of the result, in their present buckets, or shuffled by their hash."""
    rows = build.hashed(frame, columns, columns)
    placed = Placed(rows) if delta.in_place else build.shuffled(rows, single=False)
    single = delta.in_place and delta.single
    return build.run(placed, Materialize(len(columns)), [], single=single)


def _jobs(build: Build, result: DataFrame) -> Callable[[], Sequence[Plan]]:
    """Return what composes the plans of the wide lane."""
    # a subquery of Spark would see changes instead of rows
    if build.catalyst.contain(build.steps.plans, "PLAN_EXPRESSION"):
        raise build.refused(MISPLACED_SUBQUERY)
    return build.steps.wide(result)


def _closing(build: Build, bounds: Mapping[int, Bound]) -> tuple[int, Bound]:
    """Return the place and bound of the column that makes a row final: a window if there is one."""
    if not bounds:
        raise build.refused(NO_FINAL_ROWS)
    return min(bounds.items(), key=lambda item: (not item[1].field, item[0]))


def _held(
    build: Build,
    frame: DataFrame,
    delta: Delta,
    columns: Sequence[str],
    names: Sequence[str],
    closes: tuple[int, Bound],
) -> tuple[DataFrame, Delta]:
    """Hold the rows of a result back until they are final."""
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


def compile_table(
    build: Build,
    schema: StructType,
    key: tuple[int, ...],
    logged: StructType | None = None,
    checked: Callable[[DataFrame], DataFrame] | None = None,
) -> Compiled:
    """Return the plan that applies a table's operations to its rows.

    Args:
        logged: the columns of the operations that are read; None for those of the rows.
        checked: returns the operations to apply from those that are read; None to apply all.
    """
    columns, read = numbered("c", len(schema)), logged or schema
    frame = build.leaf(build.view, range(len(read)), operations_schema(read))
    keys = [columns[place] for place in key] or list(columns)
    leaf = Node("Scan", "stateless", "operations of the redo log")
    if checked is not None:
        frame, leaf = (
            checked(frame),
            Node("Expectations", "stateless", build.view, children=(leaf,)),
        )
    rows = build.shuffled(build.hashed(frame, keys, [SEQUENCE, OPERATION, *columns]), single=False)
    done = build.run(rows, Apply(len(schema), key), [], single=False)
    node = Node(
        "Table", "apply in order", build.view, tuple(schema[i].name for i in key), "rows",
        shuffle=True, children=(leaf,),
    )  # fmt: skip
    return Compiled(
        _jobs(build, done), node, schema, (), append_only=False, build=build, key=key or None
    )


def operations_schema(schema: StructType) -> StructType:
    """Return the schema of operations on rows of a schema: `seq, op, c0.., w`."""
    wire = StructType([StructField(SEQUENCE, LongType()), StructField(OPERATION, StringType())])
    for i, item in enumerate(schema):
        wire.add(f"c{i}", item.dataType)
    return wire.add("w", LongType())


def lower(build: Build, node: Plan) -> Delta:
    """Lower one logical node and all below it."""
    sub_plan = repeated(build, node)
    if sub_plan is not None:
        return lowered_once(build, sub_plan, node, _lowered)
    return _lowered(build, node)


def _lowered(build: Build, node: Plan) -> Delta:
    name = kind(node)
    method = LOWERINGS.get(name)
    if method is None:
        source = (
            FOREIGN.about(what=f"{name}, a source of Spark's") if not children_of(node) else None
        )
        unknown = NODES.get(name) or source or UNKNOWN_NODE.about(name=name)
        raise build.refused(unknown, node_text(node))
    plain = without_scalar_subqueries(build, node)
    if plain is not node:
        return lower(build, plain)
    if not reads_clock(build, node):
        return method(build, node)
    over = with_values(build, node)
    if over is None:
        return flips(build, node, lower(build, child_of(node)))
    delta = lower(build, over)
    return replace(delta, endless=False) if removes_old_rows(build, node) else delta


def _relation(build: Build, node: Plan, condition: Expression | None = None) -> Delta:
    """Lower what a scan reads.

    Args:
        condition: that of the filter above it.
    """
    relation = build.relations.get(build.catalyst.rdd_id(node))
    if relation is None:
        raise build.refused(UNKNOWN_RELATION, node_text(node))
    output = output_of(node)
    places = [i for i, a in enumerate(output) if id_of(a) in build.needed]
    wanted = [output[place] for place in places]
    schema = _wire([type_of(attribute) for attribute in wanted])
    columns = {id_of(attribute): f"c{i}" for i, attribute in enumerate(wanted)}
    where = None if condition is None else scan_condition(condition, columns)
    rounded = build.roundings(columns)
    frame = build.leaf(relation.name, places, schema, relation.time, relation.late, where, rounded)
    plan, others = build.rebound(frame, wanted)
    bounds = {
        id_of(wanted[i]): relation.bounds[place]
        for i, place in enumerate(places)
        if place in relation.bounds
    }
    return Delta(
        plan,
        others[0],
        Node("Scan", "stateless", relation.name),
        relation.append_only,
        single=build.scan_tasks == 1,
        endless=relation.endless,
        bounds=bounds,
    )


def _constant(build: Build, node: Plan) -> Delta:
    output = output_of(node)
    named = build.catalyst.project_as([(a, f"c{i}") for i, a in enumerate(output)], node)
    frame = build.constant(build.catalyst.frame(named))
    plan, others = build.rebound(frame, output)
    shown = Node("Constant", "stateless", node_text(node))
    return Delta(plan, others[0], shown, append_only=True, single=build.scan_tasks == 1)


def _wire(types: list[DataType]) -> StructType:
    schema = StructType()
    for i, data_type in enumerate(types):
        schema.add(f"c{i}", data_type)
    return schema.add("w", LongType())


def _project(build: Build, node: Plan) -> Delta:
    child = lower(build, child_of(node))
    columns = items(node.projectList())
    plan = build.catalyst.project([*columns, child.weight], child.plan)
    bounds = projected(build.catalyst, columns, child.bounds)
    return child.through(plan, "Project", node_text(node), bounds)


def _filter(build: Build, node: Plan) -> Delta:
    below = child_of(node)
    if kind(below) == "LogicalRDD":
        child = _relation(build, below, cast("Filter", node).condition())
    else:
        child = lower(build, below)
    return child.through(build.catalyst.with_child(node, child.plan), "Filter", node_text(node))


def _python_function(build: Build, node: Plan) -> Delta:
    child = lower(build, child_of(node))
    catalyst = build.catalyst
    if child.append_only:  # nothing is ever retracted
        return child.through(
            catalyst.with_child(node, child.plan), "Python function", node_text(node)
        )
    columns = output_of(child_of(node))
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
        node_text(node),
        texts(columns),
        until("rows, outputs", rows.expiry),
        shuffle=True,
        children=(child.node,),
    )
    return Delta(
        plan, weight, shown, single=not columns, endless=child.endless, bounds=child.bounds
    )


def _grouped_map(build: Build, node: Plan) -> Delta:
    return grouped_map(build, cast("GroupedMap", node), lower(build, child_of(node)))


def _generate(build: Build, node: Plan) -> Delta:
    child = lower(build, child_of(node))
    # the node names unneeded columns by their place: the weight comes after them all
    columns = [*output_of(child_of(node)), child.weight]
    plan = build.catalyst.with_child(node, build.catalyst.project(columns, child.plan))
    return child.through(plan, "Generate", node_text(node))


def _expand(build: Build, node: Plan) -> Delta:
    child = lower(build, child_of(node))
    plan = build.catalyst.expand(node, child.weight, child.plan)
    projections = [items(projection) for projection in items(node.projections())]
    bounds = expanded(build.catalyst, projections, output_of(node), child.bounds)
    return child.through(plan, "Expand", node_text(node), bounds)


def _union(build: Build, node: Plan) -> Delta:
    deltas, frames = [], []
    for child in children_of(node):
        delta = lower(build, child)
        columns = [(a, f"c{i}") for i, a in enumerate(output_of(child))]
        frames.append(build.named(delta, columns))
        deltas.append(delta)
    output = output_of(node)
    plan, others = build.rebound(build.steps.union(frames), output)
    shown = Node("Union", "stateless", children=tuple(delta.node for delta in deltas))
    inputs = [output_of(child) for child in children_of(node)]
    return Delta(
        plan,
        others[0],
        shown,
        all(delta.append_only for delta in deltas),
        endless=any(delta.endless for delta in deltas),
        bounds=same_places(output, inputs, [delta.bounds for delta in deltas]),
    )


def _aggregate(build: Build, node: Plan) -> Delta:
    return aggregate(build, node, lower(build, child_of(node)))


def _window(build: Build, node: Plan) -> Delta:
    return window(build, node, lambda below: lower(build, below))


def _join(build: Build, node: Plan) -> Delta:
    left, right = (lower(build, child) for child in children_of(node))
    return join(build, cast("JoinNode", node), left, right)


def _limit(build: Build, node: Plan) -> Delta:
    return limited(build, node, lambda below: lower(build, below))


def _group_top(build: Build, node: Plan) -> Delta:
    return group_top(build, node, lambda below: lower(build, below))


def _skipped(build: Build, node: Plan) -> Delta:
    """Skip hints and layouts, which don't change the rows."""
    return lower(build, child_of(node))


LOWERINGS: dict[str, Callable[[Build, Plan], Delta]] = {
    "LogicalRDD": _relation,
    "LocalRelation": _constant,
    "OneRowRelation": _constant,
    "Range": _constant,
    "Project": _project,
    "Filter": _filter,
    "ArrowEvalPython": _python_function,
    "BatchEvalPython": _python_function,
    IN_PANDAS: _grouped_map,
    IN_ARROW: _grouped_map,
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
    "Repartition": _skipped,
    "RepartitionByExpression": _skipped,
    "RebalancePartitions": _skipped,
    "ResolvedHint": _skipped,
    "SubqueryAlias": _skipped,
    "View": _skipped,
}
