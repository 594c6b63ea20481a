"""The bridge to Spark's logical plans: the only module that touches JVM plan objects.

This is private API of Spark. Known to work with 4.1 to 4.3; `Catalyst` refuses other versions.
Plans and expressions are py4j handles here and opaque everywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, _parse_datatype_json_string
from pyspark.sql.udf import UserDefinedFunction

from eddyline.changes import quoted
from eddyline.errors import EngineError

KNOWN_VERSIONS = ("4.1", "4.2", "4.3")

Plan = Any  # a JVM LogicalPlan
Expression = Any  # a JVM Expression

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_SESSION, _WINDOW = "spark.sessionWindow", "spark.timeWindow"  # in the metadata of an attribute
_PARSED = ("ParseToDate", "ParseToTimestamp")  # to_date and to_timestamp, casts without a format
MICROSECONDS = 1_000_000
_OVERLAP_MAX = 24 * 3600 * MICROSECONDS  # clocks are never set back by a day
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_PRUNING = "org.apache.spark.sql.catalyst.optimizer.PruneFilters"


class Catalyst:
    """Reads and builds logical plans in one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        version = ".".join(pyspark.__version__.split(".")[:2])
        if version not in KNOWN_VERSIONS:
            raise EngineError(
                f"PySpark {pyspark.__version__} is not among the known versions",
                condition="UNKNOWN_SPARK_VERSION",
                hint=f"install PySpark {' or '.join(KNOWN_VERSIONS)}",
            )
        self.session = session
        self._jvm: Any = session.sparkContext._jvm
        self._jsession = session._jsparkSession
        self._classes: dict[str, Any] = {}
        self._hidden: set[int] = set()

    # -- reading ---------------------------------------------------------------------------

    def analyzed(self, query: str) -> Plan:
        """Parse and resolve a query."""
        return self.session.sql(query)._jdf.queryExecution().analyzed()

    def optimized(self, plan: Plan) -> Plan:
        """Spark's optimiser on a resolved plan."""
        return self.frame(plan)._jdf.queryExecution().optimizedPlan()

    def nodes(self, plan: Plan) -> Iterator[Plan]:
        """All nodes of a plan, subqueries in expressions included."""
        yield plan
        for child in items(plan.children()):
            yield from self.nodes(child)
        for subquery in items(plan.subqueries()):
            yield from self.nodes(subquery)

    def expressions(self, root: Expression) -> Iterator[Expression]:
        """An expression and all below it."""
        yield root
        for child in items(root.children()):
            yield from self.expressions(child)

    def find(self, root: Expression, accept: Callable[[str], bool]) -> list[Expression]:
        """The topmost expressions whose class name is accepted."""
        if accept(kind(root)):
            return [root]
        return [hit for child in items(root.children()) for hit in self.find(child, accept)]

    def subqueries(self, root: Expression) -> list[Expression]:
        """The scalar subqueries in an expression."""
        return self.find(root, lambda name: name == "ScalarSubquery")

    def holds_subquery(self, plan: Plan) -> bool:
        """Whether an expression anywhere in a plan holds a plan of its own."""
        patterns = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        return bool(plan.containsPattern(patterns.PLAN_EXPRESSION()))

    def rdd_id(self, leaf: Plan) -> int:
        """Which RDD a LogicalRDD leaf stands for."""
        return int(leaf.rdd().id())

    def equi_join_keys(self, join: Plan) -> tuple[list[Expression], list[Expression], Expression]:
        """Left keys, right keys, and the rest of the condition (None if there is none)."""
        found = self._object("org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys").unapply(
            join
        )
        if found.isEmpty():
            condition = join.condition()
            return [], [], condition.get() if condition.isDefined() else None
        parts = found.get()
        rest = parts._4()
        return items(parts._2()), items(parts._3()), rest.get() if rest.isDefined() else None

    def moment(self, expression: Expression) -> str:
        """The text that a date or timestamp is made of when the query is compiled; empty if of none.

        Of `TIMESTAMP 'now'` the parser leaves a value and the place in the query, of a cast of a
        constant the optimiser leaves a value.
        """
        name = kind(expression)
        if name not in ("Literal", "Cast", *_PARSED):
            return ""
        if expression.dataType().simpleString() not in ("date", "timestamp", "timestamp_ntz"):
            return ""
        if name != "Literal":
            child = expression.left() if name in _PARSED else expression.child()
            if not child.foldable() or child.dataType().simpleString() != "string":
                return ""
            try:
                return str(child.eval(None) or "")
            except Py4JJavaError:  # a function that only the optimiser makes one to evaluate
                return ""
        origin = expression.origin()
        places = origin.sqlText(), origin.startIndex(), origin.stopIndex()
        if not all(place.isDefined() for place in places):
            return ""
        query, start, stop = (place.get() for place in places)
        text = query[start : stop + 1].strip("\"'").replace('"', "'").rpartition("'")[2]
        parser = self._object("org.apache.spark.sql.catalyst.util.SparkParserUtils")
        return str(parser.unescapeSQLString(f"'{text}'", False))

    def is_session(self, key: Expression) -> bool:
        """Whether Spark merges the values of a grouping key that overlap, as `session_window` asks."""
        return kind(key) == "AttributeReference" and bool(key.metadata().contains(_SESSION))

    def is_window(self, named: Expression) -> bool:
        """Whether an alias or attribute is what `window` gives."""
        return bool(named.metadata().contains(_WINDOW))

    def window_marks(self, named: Expression) -> dict[str, bool]:
        """By which Spark's `window_time` and GROUP BY know a column that holds windows."""
        return {mark: True for mark in (_WINDOW, _SESSION) if named.metadata().contains(mark)}

    def window_length(self, struct: Expression) -> int:
        """Microseconds between start and end of a window as `window` computes it."""
        reference = items(struct.references().toSeq())[0]
        over = self.rewrite(struct, lambda e: self._input(e) if e == reference else None)
        window = over.eval(self._row(reference, 0))
        return int(window.getLong(1)) - int(window.getLong(0))

    def function_of(
        self, expression: Expression, argument: Expression
    ) -> tuple[Expression, Expression]:
        """An expression as a function of one that occurs in it, for `least_from`."""
        given = self._input(argument)
        return self.rewrite(expression, lambda e: given if e == argument else None), given

    def least_from(self, function: Expression, argument: Expression, value: int) -> int:
        """The least value of a rising function from `value` on.

        What rises with local time falls back with it when summer time ends, and no more than that.
        """
        found = function.eval(self._row(argument, value))
        if argument.dataType().simpleString() == "timestamp":
            instant = self._jvm.java.time.Instant.ofEpochSecond(value // MICROSECONDS)
            change = self._zone_rules.nextTransition(instant)
            if change is not None and change.isOverlap():
                at = int(change.getInstant().getEpochSecond()) * MICROSECONDS
                if at - value < _OVERLAP_MAX:
                    found = min(found, function.eval(self._row(argument, at)))
        return int(found)

    @cached_property
    def _zone_rules(self) -> Any:
        """When the clocks of the session's time zone are changed."""
        zone = self.session.conf.get("spark.sql.session.timeZone")
        return self._jvm.java.time.ZoneId.of(zone).getRules()

    def _input(self, like: Expression) -> Expression:
        return self._make(f"{_EXPRESSIONS}.BoundReference", 0, like.dataType(), True)

    def _row(self, like: Expression, value: int) -> Any:
        row = self._make(f"{_EXPRESSIONS}.SpecificInternalRow", self.seq([like.dataType()]))
        name = like.dataType().simpleString()
        if name == "double":
            row.setDouble(0, float(value))
        elif name in ("date", "int"):
            row.setInt(0, value)
        else:
            row.setLong(0, value)
        return row

    # -- building --------------------------------------------------------------------------

    def alias(self, expression: Expression, name: str, attribute: Expression = None) -> Expression:
        """`expression AS name`, with the identity of `attribute` or a new one."""
        new = self._jvm.org.apache.spark.sql.catalyst.expressions
        given = new.NamedExpression.newExprId() if attribute is None else attribute.exprId()
        nothing = self._jvm.scala.Option.apply(None)
        return self._make(
            f"{_EXPRESSIONS}.Alias", expression, name, given, self.seq([]), nothing, self.seq([])
        )

    def project(self, expressions: Sequence[Expression], child: Plan) -> Plan:
        """A Project node."""
        return self._make(f"{_LOGICAL}.Project", self.seq(expressions), child)

    def filter(self, condition: Expression, child: Plan) -> Plan:
        """A Filter node."""
        return self._make(f"{_LOGICAL}.Filter", condition, child)

    def union(self, children: Sequence[Plan]) -> Plan:
        """A Union node, by position."""
        return self._make(f"{_LOGICAL}.Union", self.seq(children), False, False)

    def left_outer_cross(self, left: Plan, right: Plan) -> Plan:
        """Each left row with each right row, or with nulls where there is none."""
        nothing = self._jvm.scala.Option.apply(None)
        outer = self._object("org.apache.spark.sql.catalyst.plans.LeftOuter")
        hint = self._object(f"{_LOGICAL}.JoinHint").NONE()
        return self._make(f"{_LOGICAL}.Join", left, right, outer, nothing, hint)

    def aggregate(
        self, keys: Sequence[Expression], results: Sequence[Expression], child: Plan
    ) -> Plan:
        """An Aggregate node."""
        nothing = self._jvm.scala.Option.apply(None)
        return self._make(
            f"{_LOGICAL}.Aggregate", self.seq(keys), self.seq(results), child, nothing
        )

    def window(
        self,
        node: Plan,
        functions: Sequence[Expression],
        partition: Sequence[Expression],
        child: Plan,
    ) -> Plan:
        """The Window node `node` with other functions and partitions over another child."""
        return self._make(
            f"{_LOGICAL}.Window",
            self.seq(functions),
            self.seq(partition),
            node.orderSpec(),
            child,
            self._jvm.scala.Option.apply(None),
        )

    def expand(self, node: Plan, extra: Expression, child: Plan) -> Plan:
        """The Expand node `node` with `extra` passed through each projection."""
        projections = [
            self.seq([*items(projection), extra]) for projection in items(node.projections())
        ]
        output = self.seq([*items(node.output()), extra])
        return self._make(f"{_LOGICAL}.Expand", self.seq(projections), output, child)

    def with_child(self, node: Plan, child: Plan) -> Plan:
        """The node over another child."""
        return node.withNewChildren(self.seq([child]))

    def negative(self, number: Expression) -> Expression:
        """number < 0, for a BIGINT."""
        zero = items(self.plan(self.session.range(0).selectExpr("0L")).projectList())[0].child()
        return self._make(f"{_EXPRESSIONS}.LessThan", number, zero)

    def negated(self, condition: Expression) -> Expression:
        """NOT condition."""
        return self._make(f"{_EXPRESSIONS}.Not", condition)

    def map_expressions(
        self, node: Plan, change: Callable[[Expression], Expression | None]
    ) -> Plan | None:
        """The node with `rewrite` applied to its expressions; None for a kind not known here."""
        name = kind(node)
        if name == "Project":
            return self.project(
                [self.rewrite(e, change) for e in items(node.projectList())], node.child()
            )
        if name == "Filter":
            return self.filter(self.rewrite(node.condition(), change), node.child())
        if name == "Aggregate":
            results = [self.rewrite(e, change) for e in items(node.aggregateExpressions())]
            keys = [self.rewrite(e, change) for e in items(node.groupingExpressions())]
            return self.aggregate(keys, results, node.child())
        if name == "Join" and node.condition().isDefined():
            condition = self.rewrite(node.condition().get(), change)
            some = self._jvm.scala.Option.apply(condition)
            return self._make(
                f"{_LOGICAL}.Join", node.left(), node.right(), node.joinType(), some, node.hint()
            )
        return None

    def filtered_aggregate(self, call: Expression, condition: Expression) -> Expression:
        """The aggregate call restricted to the rows where `condition` holds as well."""
        present = call.filter()
        if present.isDefined():
            condition = self._make(f"{_EXPRESSIONS}.And", present.get(), condition)
        some = self._jvm.scala.Option.apply(condition)
        return self._call(call, call.aggregateFunction(), call.isDistinct(), some)

    def hide_distinct(self, plan: Plan) -> Plan:
        """Make the DISTINCT aggregates look like plain ones to the optimiser, and remember them.

        The optimiser rewrites several DISTINCT aggregates into a form whose second level is not
        linear. `distinct_arguments` tells the hidden ones again by their result's id.
        """
        hidden = plan
        if kind(plan) == "Aggregate":
            hidden = self.map_expressions(plan, self._hide_distinct)
        children = [self.hide_distinct(child) for child in items(hidden.children())]
        return hidden.withNewChildren(self.seq(children)) if children else hidden

    def distinct_arguments(self, call: Expression) -> list[Expression] | None:
        """The arguments of a DISTINCT aggregate, hidden or not; None for any other."""
        if call.isDistinct() or call.resultId().id() in self._hidden:
            return items(call.aggregateFunction().children())
        return None

    def shown_distinct(self, root: Expression) -> Expression:
        """The expression with hidden DISTINCT aggregates turned back into real ones."""

        def change(node: Expression) -> Expression | None:
            if kind(node) != "AggregateExpression" or self.distinct_arguments(node) is None:
                return None
            return self._call(node, node.aggregateFunction(), True, node.filter())

        return self.rewrite(root, change)

    def rewrite(
        self, root: Expression, change: Callable[[Expression], Expression | None]
    ) -> Expression:
        """Replace the topmost expressions for which `change` gives something."""
        replaced = change(root)
        if replaced is not None:
            return replaced
        children = items(root.children())
        rewritten = [self.rewrite(child, change) for child in children]
        if all(new is old for new, old in zip(rewritten, children, strict=True)):
            return root
        return root.withNewChildren(self.seq(rewritten))

    def python_function(self, call: Expression) -> Callable[..., Any]:
        """The function behind a Python UDF, as the user's program has registered it."""
        command = bytes(call.func().command().unsafeArray())
        function, _ = CPickleSerializer().loads(command)
        return cast("Callable[..., Any]", function)

    def python_call(
        self, function: UserDefinedFunction, arguments: Sequence[Expression], like: Expression
    ) -> Expression:
        """A call of a Python function; of an aggregate with the result's id of `like`."""
        made = function._judf.builder(self.seq(arguments))
        if kind(like) != "AggregateExpression":
            return made
        return self._call(like, made, False, like.filter())

    # -- frames ----------------------------------------------------------------------------

    def frame(self, plan: Plan) -> DataFrame:
        """A DataFrame over a plan."""
        jdf = self._object("org.apache.spark.sql.classic.Dataset").ofRows(self._jsession, plan)
        return DataFrame(jdf, self.session)

    def plan(self, frame: DataFrame) -> Plan:
        """The resolved plan under a DataFrame."""
        return frame._jdf.queryExecution().analyzed()

    def executable(self, frame: DataFrame) -> Plan:
        """The physical plan of a DataFrame; run it with `run`.

        No operator may go: behind a condition that is never true it keeps its state all the same.
        """
        conf = self._jsession.conf()
        excluded = conf.get(_EXCLUDED_RULES)
        conf.set(_EXCLUDED_RULES, f"{excluded},{_PRUNING}")
        try:
            return frame._jdf.queryExecution().executedPlan()
        finally:
            conf.set(_EXCLUDED_RULES, excluded)

    def run(self, physical: Plan) -> None:
        """Execute a fresh copy of a physical plan for its side effects.

        A copy, because a plan remembers its shuffles: run again as it is, Spark would take the
        map outputs of the last time. Copying takes milliseconds where planning takes many.
        """
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(self._jsession)
        physical.clone().execute().count()

    # -- small things ----------------------------------------------------------------------

    def seq(self, values: Sequence[Any]) -> Any:
        """A Scala Seq."""
        return self._jvm.PythonUtils.toSeq(list(values))

    def _call(self, call: Expression, function: Any, distinct: bool, condition: Any) -> Expression:
        return self._make(
            f"{_EXPRESSIONS}.aggregate.AggregateExpression",
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
        if kind(function) not in ("Count", "Sum", "Average"):  # the others aren't linear anyway
            return None
        self._hidden.add(node.resultId().id())
        # as if they could be null: for others the optimiser turns count(x) into count(1)
        name = f"{_EXPRESSIONS}.KnownNullable"
        arguments = [self._make(name, argument) for argument in items(function.children())]
        return self._call(node, function.withNewChildren(self.seq(arguments)), False, node.filter())

    def _object(self, name: str) -> Any:
        """A Scala singleton object."""
        found = self._classes.get(name)
        if found is None:
            java_class = (
                self._jvm.java.lang.Thread.currentThread()
                .getContextClassLoader()
                .loadClass(name + "$")
            )
            found = self._classes[name] = java_class.getField("MODULE$").get(None)
        return found

    def _make(self, name: str, *arguments: Any) -> Any:
        found: Any = self._classes.get("new " + name)
        if found is None:
            found = self._jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._classes["new " + name] = found
        return found(*arguments)


def items(sequence: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def kind(node: Any) -> str:
    """The simple class name of a plan node or expression."""
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("$")


def type_of(expression: Expression) -> DataType:
    """An expression's type."""
    return _parse_datatype_json_string(expression.dataType().json())


def sql_type(data_type: DataType) -> str:
    """A type as SQL writes it, names of fields quoted."""
    if isinstance(data_type, StructType):
        parts = [f"{quoted(f.name)}: {sql_type(f.dataType)}" for f in data_type]
        return f"struct<{', '.join(parts)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{sql_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    return data_type.simpleString()


def schema_of(attributes: Sequence[Expression]) -> StructType:
    """The schema of a list of attributes, all nullable."""
    schema = StructType()
    for attribute in attributes:
        schema.add(attribute.name(), type_of(attribute), True)
    return schema


def contains_type(data_type: DataType, names: Sequence[str]) -> bool:
    """Whether a type is or contains one of the named types, as in its JSON form.

    A name that ends in a space stands for all types that begin so.
    """
    starts = tuple(name if name.endswith(" ") else f"{name}(" for name in names)

    def search(document: Any) -> bool:
        if isinstance(document, str):
            return document in names or document.startswith(starts)
        if isinstance(document, dict):
            parts = [
                v
                for k, v in document.items()
                if k in ("type", "elementType", "keyType", "valueType", "fields")
            ]
            return any(search(part) for part in parts)
        return any(search(part) for part in document)

    return search(json.loads(data_type.json()))
