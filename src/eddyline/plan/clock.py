"""now() in live views: comparisons of a row's time with the clock of the epoch.

`ts > now() - INTERVAL 24 HOURS` changes its value once for each row, at a moment that depends on
the row. An operator maintains such a comparison (`operators.flip`); its state are the rows whose moment
is in the future (McSherry et al. describe the same for Differential Dataflow, as temporal filters).
The side of the comparison with the clock must never fall as time passes.

A comparison passes Spark's optimiser as a mark: a call of a function that the optimiser can't evaluate or move.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from eddyline.operators.base import numbered
from eddyline.operators.flip import Flip
from eddyline.operators.hold import PENDING
from eddyline.plan.build import Build, Delta
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Expiry, bound_of, stream_bound
from eddyline.plan.logical import (
    Expression,
    Filter,
    Plan,
    children_of,
    expressions_of,
    find,
    id_of,
    items,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Comparison, Node
from eddyline.plan.refusals import MISPLACED_CLOCK
from eddyline.plan.render import node_text
from eddyline.plan.rewriting import with_expressions
from eddyline.spark.scala import scala_of
from eddyline.spark.session import frame as spark_frame
from eddyline.state.manifest import CLOCK

_MARK = "clock_"
_CLOCKS = {
    "CurrentTimestamp": "timestamp",
    "Now": "timestamp",
    "CurrentDate": "date",
    "LocalTimestamp": "timestamp_ntz",
}
_TYPES = ("timestamp", "timestamp_ntz", "date", "bigint", "int")
_SWAPPED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}


def marked(build: Build, plan: Plan) -> Plan:
    """Replace the comparisons with the clock that can be maintained by marks, in a resolved plan."""
    catalyst = build.catalyst
    if not _reads(catalyst, plan):
        return plan
    return with_expressions(catalyst, plan, partial(_reads, catalyst), _Finder(build).mark)


def at_moment(catalyst: Catalyst, plan: Plan, moment: int) -> Plan:
    """Replace the current time in a resolved plan by a constant (microseconds since 1970)."""
    if not _reads(catalyst, plan):
        return plan
    values = _values(catalyst, catalyst.session.range(0), f"timestamp_micros({moment}L)")[1]
    return with_expressions(
        catalyst, plan, partial(_reads, catalyst), lambda e: values.get(_CLOCKS.get(kind(e), ""))
    )


def reads_clock(build: Build, node: Plan) -> bool:
    """Return whether a node of the optimised plan has marks."""
    return bool(build.comparisons) and bool(_marks(node))


def is_mark(expression: Expression) -> bool:
    """Return whether an expression is the mark of a comparison with the clock."""
    return kind(expression) == "StaticInvoke" and expression.functionName().startswith(_MARK)


def with_values(build: Build, node: Plan) -> Plan | None:
    """Return the node over an input that has the values of its marks as columns.

    None if the node is itself a projection that adds such values, see `flips`.

    Raises:
        QueryError: a comparison is in a place where it can't be maintained.
    """
    catalyst = build.catalyst
    if kind(node) == "Project" and all(_is_plain(e) for e in items(node.projectList())):
        return None
    children, aliases = children_of(node), {}
    for mark in _marks(node):
        name = mark.functionName()
        if name not in aliases:
            place = _side(children, mark)
            if place is None:
                raise build.refused(MISPLACED_CLOCK, node_text(node))
            aliases[name] = catalyst.alias(mark, name)
            kept = [a for a in items(children[place].output()) if _needed(build, a)]
            children[place] = catalyst.project([*kept, aliases[name]], children[place])
            build.needed.add(id_of(aliases[name]))

    def value(expression: Expression) -> Expression | None:
        return aliases[expression.functionName()].toAttribute() if is_mark(expression) else None

    over = catalyst.map_expressions(node.withNewChildren(catalyst.seq(children)), value)
    if over is None:
        raise build.refused(MISPLACED_CLOCK, node_text(node))
    if kind(node) in ("Filter", "Join"):  # its output has grown by the values
        over = catalyst.project([a for a in output_of(node) if _needed(build, a)], over)
    return over


def removes_old_rows(build: Build, node: Plan) -> bool:
    """Return whether a node is a filter that drops each row at some time."""

    def must_hold(condition: Expression) -> bool:
        if kind(condition) == "And":
            return any(map(must_hold, children_of(condition)))
        return is_mark(condition) and _comparison(build, condition).first

    return kind(node) == "Filter" and must_hold(cast("Filter", node).condition())


def flips(build: Build, node: Plan, child: Delta) -> Delta:
    """Lower a projection that copies columns, and adds the values of comparisons with the clock."""
    delta = child
    added = [e for e in items(node.projectList()) if kind(e) != "AttributeReference"]
    columns = [e for e in items(node.projectList()) if kind(e) == "AttributeReference"]
    for alias in added:
        mark = alias.child()
        comparison, (moment,) = _comparison(build, mark), children_of(mark)
        names = numbered("c", len(columns) + 1)
        frame = build.named(delta, list(zip([*columns, moment], names, strict=True)))
        rows = build.shuffled(build.hashed(frame, names, names), single=False)
        out = [*(frame.schema[name] for name in names[:-1]), StructField(names[-1], BooleanType())]
        expiry = Expiry(PENDING, names[-1], comparison.bound)
        operator = Flip(len(names), comparison.first)
        ran = build.run(rows, operator, out, single=False, expiry=[expiry])
        columns = [*columns, alias.toAttribute()]
        plan, others = build.rebound(ran, columns)
        shown = Node(
            "Clock", "changes once", comparison.text, state="rows that are still to change",
            shuffle=True, children=(delta.node,),
        )  # fmt: skip
        delta = Delta(plan, others[0], shown, in_place=True, endless=child.endless)
    return delta


class _Finder:
    """Finds the comparisons with the clock in a view's query, and replaces them by marks."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._catalyst = build.catalyst
        session = build.catalyst.session
        columns = StructType([StructField("now", TimestampType())])
        frame = spark_frame(session, session.sparkContext.emptyRDD(), columns)
        self._leaf = build.catalyst.plan(frame)
        self._now, self._values = _values(build.catalyst, frame, "now")

    def mark(self, expression: Expression) -> Expression | None:
        """Return the mark for a comparison; None for another expression, or if it can't be maintained."""
        catalyst, name = self._catalyst, kind(expression)
        if name == "Between":
            return self._both(*items(_written_out(catalyst, expression).children()))
        if name == "EqualTo":
            left, right = expression.left(), expression.right()
            return self._both(
                *(
                    catalyst.expression(f"{side}ThanOrEqual", left, right)
                    for side in ("Greater", "Less")
                )
            )
        if name not in _SWAPPED:
            return None
        left, right = expression.left(), expression.right()
        if _reads(catalyst, left):
            name, left, right = _SWAPPED[name], right, left
        if _reads(catalyst, left):
            return None
        if not items(left.references().toSeq()):
            name, left, right = self._isolated(name, left, right)
        bound = self._bound(left, right)
        if bound is None or not items(left.references().toSeq()):
            return None
        if name in ("GreaterThan", "LessThanOrEqual"):  # it changes when the clock is at the moment
            bound = Bound(tuple(term.then(1) for term in bound.terms))
        build = self._build
        build.comparisons.append(Comparison(name.startswith("Greater"), bound, expression.sql()))
        return _opaque(catalyst, f"{_MARK}{len(build.comparisons) - 1}", left, expression)

    def _both(self, *sides: Expression) -> Expression | None:
        """Return the conjunction of two comparisons, of which one may be without the clock."""
        found = []
        for side in sides:
            reads = _reads(self._catalyst, side)
            one = self.mark(side) if reads else side
            if one is None:
                return None
            found.append(one)
        return self._catalyst.expression("And", *found)

    def _isolated(
        self, name: str, constant: Expression, mixed: Expression
    ) -> tuple[str, Expression, Expression]:
        """Solve `constant <name> a - b` for the one of a and b that isn't the clock, where that is exact."""
        catalyst = self._catalyst
        if kind(mixed) == "DateDiff":
            end, start = mixed.endDate(), mixed.startDate()
        elif kind(mixed) == "SubtractTimestamps" and catalyst.zone_rules.isFixedOffset():
            end, start = mixed.left(), mixed.right()
        else:
            return name, constant, mixed
        if _reads(catalyst, end) == _reads(catalyst, start):
            return name, constant, mixed
        if _reads(catalyst, end):
            return name, start, self._shifted(end, constant, "DateSub")
        return _SWAPPED[name], end, self._shifted(start, constant, "DateAdd")

    def _shifted(self, clock: Expression, by: Expression, days: str) -> Expression:
        """Return the clock plus or minus some days or an interval; `days` is Spark's name for it."""
        catalyst = self._catalyst
        if clock.dataType().simpleString() == "date":
            return catalyst.expression(days, clock, by)
        scala = scala_of(catalyst.session)
        if days == "DateSub":
            by = catalyst.expression("UnaryMinus", by, False)
        zone = scala.some(catalyst.session.conf.get("spark.sql.session.timeZone"))
        return catalyst.expression("TimestampAddInterval", clock, by, zone)

    def _bound(self, moment: Expression, clock: Expression) -> Bound | None:
        """Return an expression over the clock as a bound; None if it may fall, or reads other columns."""
        catalyst = self._catalyst
        if items(clock.references().toSeq()) or find(clock, self._is_subquery):
            return None
        if not catalyst.zone_rules.isFixedOffset() and find(
            clock, lambda name: name == "LocalTimestamp"
        ):
            return None  # local time falls when clocks are set back
        over = catalyst.rewrite(clock, lambda e: self._values.get(_CLOCKS.get(kind(e), "")))
        plan = catalyst.optimized(catalyst.project([catalyst.alias(over, "at")], self._leaf))
        kept, wanted = type_of(over).simpleString(), type_of(moment).simpleString()
        if kind(plan) != "Project" or kept != wanted or kept not in _TYPES:
            return None
        found = items(plan.projectList())[0].child()
        return bound_of(catalyst, found, {id_of(self._now): stream_bound(CLOCK)})

    @staticmethod
    def _is_subquery(name: str) -> bool:
        return name.endswith("Subquery")


def _values(
    catalyst: Catalyst, frame: DataFrame, now: str
) -> tuple[Expression, dict[str, Expression]]:
    """Return the current time as an expression, and for each type of it the expression to use."""
    texts = {name: f"cast({now} as {name})" for name in ("date", "timestamp_ntz")}
    plan = catalyst.plan(frame.selectExpr(now, *texts.values()))
    first, *others = items(plan.projectList())
    shown = [one.child() if kind(one) == "Alias" else one for one in (first, *others)]
    return shown[0], dict(zip(("timestamp", *texts), shown, strict=True))


def _written_out(catalyst: Catalyst, between: Expression) -> Expression:
    """Return `a BETWEEN b AND c` as two comparisons; Spark defines its first operand as a common expression."""
    (named,) = children_of(between)
    given = {one.id().toString(): one.child() for one in items(named.defs())}
    return catalyst.rewrite(
        named.child(),
        lambda e: given[e.id().toString()] if kind(e) == "CommonExpressionRef" else None,
    )


def _reads(catalyst: Catalyst, tree: Plan | Expression) -> bool:
    """Return whether a plan or expression uses the current time."""
    return catalyst.contain([tree], "CURRENT_LIKE")


def _opaque(
    catalyst: Catalyst, name: str, argument: Expression, instead_of: Expression
) -> Expression:
    """Return a call of a function that is opaque to the optimiser; it is never evaluated."""
    scala = scala_of(catalyst.session)
    some_class = scala.static("java.lang.Class").forName("org.apache.spark.unsafe.types.UTF8String")
    return catalyst.expression(
        "objects.StaticInvoke", some_class, instead_of.dataType(), name, catalyst.seq([argument]),
        scala.empty, False, True, True, scala.nothing,
    )  # fmt: skip


def _marks(node: Plan) -> list[Expression]:
    return [
        call
        for root in expressions_of(node)
        for call in find(root, lambda name: name == "StaticInvoke")
        if is_mark(call)
    ]


def _comparison(build: Build, mark: Expression) -> Comparison:
    return build.comparisons[int(mark.functionName().removeprefix(_MARK))]


def _is_plain(expression: Expression) -> bool:
    if kind(expression) == "Alias":
        return is_mark(expression.child())
    return kind(expression) == "AttributeReference"


def _needed(build: Build, attribute: Expression) -> bool:
    return id_of(attribute) in build.needed


def _side(children: Sequence[Plan], mark: Expression) -> int | None:
    """Return the place of the input that has all columns of a mark; None if there is none."""
    wanted = {id_of(attribute) for attribute in items(mark.references().toSeq())}
    for place, child in enumerate(children):
        if wanted <= {id_of(attribute) for attribute in output_of(child)}:
            return place
    return None
