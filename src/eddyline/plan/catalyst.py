"""The bridge to Spark's plans in the JVM, with `plan/building.py`; no other module works on them through py4j.

This is private API of Spark. Known to work with 4.1 to 4.3; `Catalyst` refuses other versions.
`plan/logical.py` declares which methods of plans and expressions the other modules use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import pyspark
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from eddyline.errors import EngineError
from eddyline.plan.building import EXPRESSIONS, LOGICAL, Builder
from eddyline.plan.logical import (
    Expression,
    Filter,
    JoinNode,
    Plan,
    children_of,
    items,
    kind,
)
from eddyline.spark import plan_trees as trees
from eddyline.spark.session import EXCLUDED_RULES, active, given_to_tasks, task_settings

KNOWN_VERSIONS = ("4.1", "4.2", "4.3")

_STATEMENTS = ("Command", "ParsedStatement")
_ASKING = (
    "DescribeColumn",
    "DescribeFunction",
    "DescribeQueryCommand",
    "DescribeRelation",
    "ExplainCommand",
)
_SESSION, _WINDOW = "spark.sessionWindow", "spark.timeWindow"  # in the metadata of an attribute
_PARSED = ("ParseToDate", "ParseToTimestamp")  # to_date and to_timestamp, casts without a format
MICROSECONDS = 1_000_000
DAY = 24 * 3600 * MICROSECONDS
_MOMENTS = ("timestamp", "timestamp_ntz")
_COUNTS_AND_SUMS = ("Count", "Sum", "Average")
_OVERLAP_MAX = DAY  # clocks are never set back by a day
_PRUNING = "org.apache.spark.sql.catalyst.optimizer.PruneFilters"


class Catalyst(Builder):
    """Reads and builds logical plans in one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        self._version = ".".join(pyspark.__version__.split(".")[:2])
        if self._version not in KNOWN_VERSIONS:
            raise EngineError(
                f"PySpark {pyspark.__version__} is not among the known versions",
                condition="UNKNOWN_SPARK_VERSION",
                hint=f"install PySpark {' or '.join(KNOWN_VERSIONS)}",
            )
        super().__init__(session)
        self._hidden: set[int] = set()

    @property
    def ansi(self) -> bool:
        """Whether the session is in ANSI mode, in which an overflow is an error."""
        return self.session.conf.get("spark.sql.ansi.enabled") == "true"

    @property
    def percentiles_by_difference(self) -> bool:
        """How this version of Spark computes a percentile between two numbers; see `Fractions`."""
        return self._version not in ("4.1", "4.2")

    @property
    def keeps_times(self) -> bool:
        """Whether the type TIME is switched on, without which Spark refuses most queries of such columns."""
        return self.session.conf.get("spark.sql.timeType.enabled", "false") == "true"

    # -- reading ---------------------------------------------------------------------------

    def analyzed(self, query: str) -> Plan:
        """Parse and resolve a query."""
        return self.plan(self.session.sql(query))

    def is_query(self, text: str) -> bool:
        """Return whether a text is a query that only reads; DESCRIBE and EXPLAIN are queries, too."""
        plan = self.parsed(text)
        gateway = self.session.sparkContext._gateway
        changes = any(is_instance_of(gateway, plan, f"{LOGICAL}.{name}") for name in _STATEMENTS)
        return not changes or kind(plan) in _ASKING

    def optimized(self, plan: Plan) -> Plan:
        """Run Spark's optimiser on a resolved plan; the same query becomes the same plan each time."""
        execution = self.frame(trees.with_equal_references(plan))._jdf.queryExecution()
        optimized: Plan = execution.optimizedPlan()
        return optimized

    def contain(self, nodes: Sequence[Plan | Expression], pattern: str) -> bool:
        """Return whether anything in some plans or expressions has one of Catalyst's tree patterns."""
        return trees.contain(self.seq(nodes), pattern)

    def rdd_id(self, leaf: Plan) -> int:
        """Return the id of the RDD behind a LogicalRDD leaf."""
        return int(leaf.rdd().id())

    def equi_join_keys(
        self, join: JoinNode
    ) -> tuple[list[Expression], list[Expression], Expression | None]:
        """Return left keys, right keys, and the rest of the condition if there is any."""
        extractor = self._scala.object("org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys")
        found = extractor.unapply(join)
        if found.isEmpty():
            condition = join.condition()
            return [], [], condition.get() if condition.isDefined() else None
        parts = found.get()
        rest = parts._4()
        return items(parts._2()), items(parts._3()), rest.get() if rest.isDefined() else None

    def moment(self, expression: Expression) -> str:
        """Return the text of a constant date or timestamp, such as `TIMESTAMP 'now'`; empty for others.

        Spark replaces it by a value when it compiles the query. For a literal only the value and
        its position in the query are left; a cast of a constant text remains until the optimiser
        evaluates it.
        """
        name = kind(expression)
        if name not in ("Literal", "Cast", *_PARSED):
            return ""
        if expression.dataType().simpleString() not in ("date", "timestamp", "timestamp_ntz"):
            return ""
        if name == "Literal":
            return self._literal_text(expression)
        child = expression.left() if name in _PARSED else expression.child()
        if not child.foldable() or child.dataType().simpleString() != "string":
            return ""
        try:
            return str(child.eval(None) or "")
        except Py4JJavaError:  # a function that can't be evaluated before the optimiser replaces it
            return ""

    def _literal_text(self, literal: Expression) -> str:
        """Return the text within a literal like `TIMESTAMP 'now'`, as the query has it."""
        origin = literal.origin()
        query, start, stop = origin.sqlText(), origin.startIndex(), origin.stopIndex()
        if not (query.isDefined() and start.isDefined() and stop.isDefined()):
            return ""
        written = query.get()[start.get() : stop.get() + 1]
        text = written.strip("\"'").replace('"', "'").rpartition("'")[2]
        parser = self._scala.object("org.apache.spark.sql.catalyst.util.SparkParserUtils")
        return str(parser.unescapeSQLString(f"'{text}'", False))

    def is_session(self, key: Expression) -> bool:
        """Return whether a grouping key is a `session_window`, whose overlapping values merge."""
        return kind(key) == "AttributeReference" and bool(key.metadata().contains(_SESSION))

    def is_window(self, named: Expression) -> bool:
        """Return whether an alias or attribute is the result of `window`."""
        return bool(named.metadata().contains(_WINDOW))

    def window_marks(self, named: Expression) -> dict[str, bool]:
        """Return the metadata by which `window_time` and GROUP BY recognise a column of windows."""
        return {mark: True for mark in (_WINDOW, _SESSION) if named.metadata().contains(mark)}

    def window_length(self, struct: Expression) -> int:
        """Return the microseconds between start and end of a window as `window` computes it."""
        reference = items(struct.references().toSeq())[0]
        over = self.rewrite(struct, lambda e: self._input(e) if e == reference else None)
        window = over.eval(self._row(reference, 0))
        return int(window.getLong(1)) - int(window.getLong(0))

    def function_of(
        self, expression: Expression, argument: Expression
    ) -> tuple[Expression, Expression]:
        """Return an expression as a function of one that occurs in it, for `least_from`.

        Returns:
            the expression over an input, and the input.
        """
        given = self._input(argument)
        return self.rewrite(expression, lambda e: given if e == argument else None), given

    def least_from(self, function: Expression, argument: Expression, value: int) -> int:
        """Return the least value of a rising function for arguments of at least `value`.

        A function of local time falls when clocks are set back. One that turns local time into a moment, such as the
        addition of a day, falls behind the hour that is skipped when clocks go forward: a local time in that hour
        stands for a moment as long after the change, the next one for the change itself.
        """
        arguments, given = [value], argument.dataType().simpleString()
        if given in _MOMENTS and not self.zone_rules.isFixedOffset():
            change = self.zone_rules.nextTransition(self._instant(value))
            if given == "timestamp" and change is not None:
                at = int(change.getInstant().getEpochSecond()) * MICROSECONDS
                if at - value < _OVERLAP_MAX:
                    arguments.append(at)
            if function.dataType().simpleString() == "timestamp":
                after = _after_days(function)
                for at in list(arguments):
                    moment = int(function.eval(self._row(argument, at))) - after
                    arguments.append(at + self._rest_of_gap(moment))
        return min(int(function.eval(self._row(argument, at))) for at in arguments)

    def _rest_of_gap(self, moment: int) -> int:
        """Return how much of a skipped hour is left, if a moment may stand for a local time in it; else 0."""
        change = self.zone_rules.previousTransition(self._instant(moment + MICROSECONDS))
        if change is None or not change.isGap():
            return 0
        end = change.getInstant().plus(change.getDuration()).getEpochSecond()
        return max(int(end) * MICROSECONDS - moment, 0)

    def _instant(self, moment: int) -> Any:
        return self._scala.static("java.time.Instant").ofEpochSecond(moment // MICROSECONDS)

    @cached_property
    def zone_rules(self) -> Any:
        """Return the rules of the session's time zone, which know its clock changes."""
        zone = self.session.conf.get("spark.sql.session.timeZone")
        return self._scala.static("java.time.ZoneId").of(zone).getRules()

    def _input(self, like: Expression) -> Expression:
        return self.expression("BoundReference", 0, like.dataType(), True)

    def _row(self, like: Expression, value: int) -> Any:
        row = self._scala.new(f"{EXPRESSIONS}.SpecificInternalRow", self.seq([like.dataType()]))
        name = like.dataType().simpleString()
        if name == "double":
            row.setDouble(0, float(value))
        elif name in ("date", "int"):
            row.setInt(0, value)
        else:
            row.setLong(0, value)
        return row

    # -- rewriting -------------------------------------------------------------------------

    def map_expressions(
        self, node: Plan, change: Callable[[Expression], Expression | None]
    ) -> Plan | None:
        """Return the node with its expressions rewritten; None for an unknown node."""
        name = kind(node)
        if name == "Project":
            return self.project(
                [self.rewrite(e, change) for e in items(node.projectList())], node.child()
            )
        if name == "Filter":
            return self.filter(self.rewrite(cast("Filter", node).condition(), change), node.child())
        if name == "Aggregate":
            results = [self.rewrite(e, change) for e in items(node.aggregateExpressions())]
            keys = [self.rewrite(e, change) for e in items(node.groupingExpressions())]
            return self.aggregate(keys, results, node.child())
        if name == "Join":
            return self._map_condition(cast("JoinNode", node), change)
        if name == "LateralJoin":
            join = cast("JoinNode", node)
            right = self.rewrite(cast("Expression", join.right()), change)
            return self._node(name, join.left(), right, join.joinType(), join.condition())
        return None

    def _map_condition(
        self, join: JoinNode, change: Callable[[Expression], Expression | None]
    ) -> Plan | None:
        if not join.condition().isDefined():
            return None
        condition = self._scala.some(self.rewrite(join.condition().get(), change))
        left, right = join.left(), join.right()
        return self._node("Join", left, right, join.joinType(), condition, join.hint())

    def filtered_aggregate(self, call: Expression, condition: Expression) -> Expression:
        """Return the aggregate call over the rows where `condition` holds as well."""
        present, function = call.filter(), call.aggregateFunction()
        if call.isDistinct() and kind(function) in ("ListAgg", *_COUNTS_AND_SUMS):
            # Spark's rule for DISTINCT with FILTER fails where any aggregate has WITHIN GROUP
            return self._call(call, self._of_nulls(function, condition), True, present)
        if present.isDefined():
            condition = self.expression("And", present.get(), condition)
        return self._call(call, function, call.isDistinct(), self._scala.some(condition))

    def guarded(self, condition: Expression, value: Expression) -> Expression:
        """Return an expression that is null where a condition isn't true, and there doesn't compute the value."""
        nothing = self.expression("Literal", None, value.dataType())
        return self.expression("If", condition, value, nothing)

    def _of_nulls(self, function: Expression, condition: Expression) -> Expression:
        """Return an aggregate function over nulls, which it leaves out, where the condition doesn't hold."""
        if kind(function) != "ListAgg":
            values = [self.guarded(condition, value) for value in children_of(function)]
            return function.withNewChildren(self.seq(values))
        value, delimiter, *orders = children_of(function)
        sorted_by = [order.child() for order in orders] or [value]

        def only(part: Expression) -> Expression | None:
            if not any(part.semanticEquals(one) for one in sorted_by):
                return None
            return self.guarded(condition, part)

        # the sort expression must stay a part of the listed expression
        changed = [self.rewrite(one, only) for one in (value, *orders)]
        return function.withNewChildren(self.seq([changed[0], delimiter, *changed[1:]]))

    def hide_distinct(self, plan: Plan) -> Plan:
        """Make the DISTINCT aggregates look like plain ones to the optimiser, and remember them.

        The optimiser rewrites several DISTINCT aggregates into a form whose second level is not
        linear. `distinct_arguments` recognises the hidden ones by their result's id.
        """
        hidden = plan
        if kind(plan) == "Aggregate":
            hidden = self.map_expressions(plan, self._hide_distinct) or plan
        children = [self.hide_distinct(child) for child in children_of(hidden)]
        return hidden.withNewChildren(self.seq(children)) if children else hidden

    def distinct_arguments(self, call: Expression) -> list[Expression] | None:
        """Return the arguments of a DISTINCT aggregate, hidden or not; None for any other."""
        if call.isDistinct() or call.resultId().id() in self._hidden:
            return children_of(call.aggregateFunction())
        return None

    def shown_distinct(self, root: Expression) -> Expression:
        """Return the expression with hidden DISTINCT aggregates turned back into real ones."""

        def change(node: Expression) -> Expression | None:
            if kind(node) != "AggregateExpression" or self.distinct_arguments(node) is None:
                return None
            return self._call(node, node.aggregateFunction(), True, node.filter())

        return self.rewrite(root, change)

    def rewrite(
        self, root: Expression, change: Callable[[Expression], Expression | None]
    ) -> Expression:
        """Replace the topmost expressions for which `change` doesn't return None."""
        replaced = change(root)
        if replaced is not None:
            return replaced
        children = children_of(root)
        rewritten = [self.rewrite(child, change) for child in children]
        if all(new is old for new, old in zip(rewritten, children, strict=True)):
            return root
        return root.withNewChildren(self.seq(rewritten))

    def python_function(self, call: Expression) -> Callable[..., Any]:
        """Return the function behind a Python UDF, as the user's program registered it."""
        command = bytes(call.func().command().unsafeArray())
        function, _ = CPickleSerializer().loads(command)
        return cast("Callable[..., Any]", function)

    def python_call(
        self, function: UserDefinedFunction, arguments: Sequence[Expression], like: Expression
    ) -> Expression:
        """Return a call of a Python function; an aggregate gets the result's id of `like`."""
        made: Expression = function._judf.builder(self.seq(arguments))
        if kind(like) != "AggregateExpression":
            return made
        return self._call(like, made, False, like.filter())

    # -- running ---------------------------------------------------------------------------

    def keep_operators(self) -> None:
        """Prevent the optimiser, from now on, from pruning below a condition that is never true: operators have state."""
        conf = self._jsession.conf()
        conf.set(EXCLUDED_RULES, f"{conf.get(EXCLUDED_RULES)},{_PRUNING}")

    def executable(self, plan: Plan) -> Plan:
        """Return the physical plan of a logical one, after `keep_operators`; run it with `run`."""
        physical: Plan = self.frame(plan)._jdf.queryExecution().executedPlan()
        return physical

    def run(self, physical: Plan, properties: Mapping[str, str]) -> None:
        """Execute a fresh copy of a physical plan for its side effects.

        A plan keeps its shuffles, so a second run would reuse the map outputs of the first. Copying is
        much faster than planning again.

        Args:
            properties: settings for the tasks, which add to those of the session or override them.
        """
        with active(self.session), given_to_tasks(self.session, self._settings, properties):
            physical.clone().execute().count()

    @cached_property
    def _settings(self) -> Any:
        return task_settings(self.session)

    # -- helpers ---------------------------------------------------------------------------

    def _call(self, call: Expression, function: Any, distinct: bool, condition: Any) -> Expression:
        return self.expression(
            "aggregate.AggregateExpression",
            function,
            call.mode(),
            distinct,
            condition,
            call.resultId(),
        )

    def _hide_distinct(self, node: Expression) -> Expression | None:
        if kind(node) != "AggregateExpression" or not node.isDistinct():
            return None
        function = node.aggregateFunction()
        if kind(function) not in _COUNTS_AND_SUMS:  # the others aren't linear anyway
            return None
        self._hidden.add(node.resultId().id())
        # as if they could be null: for others the optimiser turns count(x) into count(1)
        arguments = [
            self.expression("KnownNullable", argument) for argument in children_of(function)
        ]
        return self._call(node, function.withNewChildren(self.seq(arguments)), False, node.filter())


def _after_days(function: Expression) -> int:
    """Return the microseconds that an addition of an interval adds after its days, which it adds to local time."""
    if kind(function) != "TimestampAddInterval":
        return 0
    interval = int(children_of(function)[1].eval(None))
    return interval - int(interval / DAY) * DAY
