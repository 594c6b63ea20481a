"""Builds nodes and expressions of Spark's plans. With `plan/catalyst.py` it is the bridge to the JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from eddyline.changes import HASH
from eddyline.plan.logical import Expression, Plan, Seq, items, name_of, output_of
from eddyline.spark import plan_trees as trees
from eddyline.spark.scala import scala_of
from eddyline.spark.session import frame_over

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
PHYSICAL = "org.apache.spark.sql.catalyst.plans.physical"
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


class Builder:
    """Builds logical plans in one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._scala = scala_of(session)
        self._jsession: Any = session._jsparkSession

    # -- nodes and expressions -------------------------------------------------------------

    def alias(
        self, expression: Expression, name: str, attribute: Expression | None = None
    ) -> Expression:
        """Return `expression AS name`, with the id of `attribute` or a new one."""
        made: Expression = trees.alias(expression, name, attribute)
        return made

    def project(self, expressions: Sequence[Expression], child: Plan) -> Plan:
        """Return a Project node."""
        return self.project_as([(one, None) for one in expressions], child)

    def project_as(
        self, columns: Sequence[tuple[Expression, str | Expression | None]], child: Plan
    ) -> Plan:
        """Return a Project node of expressions, each with what it becomes.

        Args:
            columns: a new name, of visible ASCII characters; or an attribute whose name and id the expression gets; or
                None if it is named already.
        """
        made: Plan = trees.project(columns, child)
        return made

    def filter(self, condition: Expression, child: Plan) -> Plan:
        """Return a Filter node."""
        return self._node("Filter", condition, child)

    def union(self, children: Sequence[Plan]) -> Plan:
        """Return a Union node, by position."""
        return self._node("Union", self.seq(children), False, False)

    def with_one_row(self, left: Plan, right: Plan) -> Plan:
        """Join each left row with the only right row, or with nulls if there is none."""
        most = right.maxRows()
        known = most.isDefined() and int(most.get()) <= 1
        name = "LeftOuter" if known else "LeftSingle"
        how = self._scala.object(f"org.apache.spark.sql.catalyst.plans.{name}")
        hint = self._scala.object(f"{LOGICAL}.JoinHint").NONE()
        return self._node("Join", left, right, how, self._scala.nothing, hint)

    def aggregate(
        self, keys: Sequence[Expression], results: Sequence[Expression], child: Plan
    ) -> Plan:
        """Return an Aggregate node."""
        nothing = self._scala.nothing
        return self._node("Aggregate", self.seq(keys), self.seq(results), child, nothing)

    def window(
        self,
        node: Plan,
        functions: Sequence[Expression],
        partition: Sequence[Expression],
        child: Plan,
        by: Expression | None = None,
    ) -> Plan:
        """Return a Window node with other functions and partitions over another child.

        Args:
            by: the column to order by; None for the order of `node`.
        """
        order = node.orderSpec() if by is None else self.seq([self._ascending(by)])
        return self._node(
            "Window", self.seq(functions), self.seq(partition), order, child, self._scala.nothing
        )

    def _ascending(self, column: Expression) -> Expression:
        up = self._scala.object(f"{EXPRESSIONS}.Ascending")
        return self.expression("SortOrder", column, up, up.defaultNullOrdering(), self._scala.empty)

    def sorted_by_all(self, plan: Plan) -> Plan:
        """Return the plan's rows sorted by all its columns that have an order."""
        sortable = self._scala.object(f"{EXPRESSIONS}.RowOrdering")
        keys = [
            self._ascending(column)
            for column in output_of(plan)
            if sortable.isOrderable(column.dataType())
        ]
        return self._node("Sort", self.seq(keys), True, plan, self._scala.nothing) if keys else plan

    def expand(self, node: Plan, extra: Expression, child: Plan) -> Plan:
        """Return an Expand node with `extra` passed through each projection."""
        projections = [
            self.seq([*items(projection), extra]) for projection in items(node.projections())
        ]
        output = self.seq([*output_of(node), extra])
        return self._node("Expand", self.seq(projections), output, child)

    def with_child(self, node: Plan, child: Plan) -> Plan:
        """Return the node over another child."""
        over: Plan = trees.with_child(node, child)
        return over

    def negative(self, number: Expression) -> Expression:
        """Return `number < 0`, for a BIGINT."""
        return self.expression("LessThan", number, self.constant("0L"))

    def constant(self, sql: str) -> Expression:
        """Return an expression without columns and functions, or such a one with a name."""
        found: Expression = self._parser.parseExpression(sql)
        return found

    def sample(self, expression: Expression) -> Expression:
        """Return some constant of an expression's type; a text that is a time zone, too, so that it can stand for one."""
        if expression.dataType().simpleString() == "string":
            return self.constant("'UTC'")
        found: Expression = self._scala.static(f"{EXPRESSIONS}.Literal.default")(
            expression.dataType()
        )
        return found

    def seq(self, values: Sequence[Any]) -> Seq[Any]:
        """Return a Scala Seq."""
        made: Seq[Any] = trees.seq(values) if values else self._scala.empty
        return made

    def _node(self, name: str, *arguments: Any) -> Plan:
        made: Plan = self._scala.new(f"{LOGICAL}.{name}", *arguments)
        return made

    def expression(self, name: str, *arguments: Any) -> Expression:
        """Return an expression of the class `name`."""
        made: Expression = self._scala.new(f"{EXPRESSIONS}.{name}", *arguments)
        return made

    # -- pieces of a view's plan; see `plan/lanes.py` ---------------------------------------

    def with_column(self, plan: Plan, value: Expression, name: str) -> Plan:
        """Return the plan with a further column."""
        return self._node("Project", plan.output().appended(self.alias(value, name)), plan)

    def with_one_hash(self, plan: Plan) -> Plan:
        """Return the plan with 0 in place of its first column, the hash of each row."""
        columns = plan.output().updated(0, self.constant(f"0L AS {HASH}"))
        return self._node("Project", columns, plan)

    def repartitioned(self, plan: Plan, tasks: int) -> Plan:
        """Return the plan with its rows shuffled into some tasks by their first column, their hash."""
        by, scala = self.seq([plan.output().apply(0)]), self._scala
        return self._node("RepartitionByExpression", by, plan, scala.some(tasks), scala.nothing)

    def bucket(self, plan: Plan, names: Sequence[str], buckets: int) -> Expression:
        """Return an expression for the number of the task into which a shuffle by some columns puts each row."""
        if not names or buckets == 1:
            return self.constant("0")
        columns = {name_of(column): column for column in output_of(plan)}
        by = [columns[name] for name in names]
        hashed = self._scala.new(f"{PHYSICAL}.HashPartitioning", self.seq(by), buckets)
        number: Expression = hashed.partitionIdExpression()
        return number

    def map_in_arrow(
        self, plan: Plan, function: Callable[..., Any], schema: StructType, output: Plan
    ) -> Plan:
        """Return the output of a function of Arrow batches, as `DataFrame.mapInArrow` makes it.

        Args:
            output: a placeholder for it, whose columns it gets.
        """
        known = UserDefinedFunction(
            function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )
        call: Expression = known._judf.builder(plan.output())
        return self._node("MapInArrow", call, output.output(), plan, False, self._scala.nothing)

    def placeholder(self, columns: Seq[Expression]) -> Plan:
        """Return a leaf without rows, with some columns."""
        made: Plan = trees.placeholder(columns)
        return made

    def placeholder_for(self, schema: StructType) -> Plan:
        """Return a leaf without rows, with new columns."""
        made: Plan = trees.placeholder_for(schema.json())
        return made

    def select(self, columns: Sequence[str], plan: Plan, where: str = "") -> Plan:
        """Return SQL expressions over a plan, or over those of its rows that meet a condition; names stay unresolved."""
        condition = f" WHERE {where}" if where else ""
        parsed = self.parsed(f"SELECT {', '.join(columns)} FROM rows{condition}")
        return self.over_leaf(parsed, plan)

    def relation(self, schema: StructType) -> DataFrame:
        """Return a frame without rows, over an RDD of its own."""
        rows = self.session.sparkContext._jsc.emptyRDD().rdd()
        java = self._jsession.parseDataType(schema.json())
        return DataFrame(self._jsession.internalCreateDataFrame(rows, java, False), self.session)

    def placeholder_of(self, plan: Plan) -> int:
        """Return the id of the placeholder at the bottom of a plan: that of its leaf's first column."""
        return trees.leaf_id(plan)

    def over_leaf(self, plan: Plan, leaf: Plan) -> Plan:
        """Return a plan with its only leaf replaced by one with the same columns."""
        over: Plan = trees.over_leaf(plan, leaf)
        return over

    # -- frames, and parsed text -----------------------------------------------------------

    def frame(self, plan: Plan) -> DataFrame:
        """Return a DataFrame over a plan."""
        return frame_over(self.session, plan)

    def plan(self, frame: DataFrame) -> Plan:
        """Return the resolved plan of a DataFrame."""
        analyzed: Plan = frame._jdf.queryExecution().analyzed()
        return analyzed

    def parsed(self, statement: str) -> Plan:
        """Parse a statement; names stay unresolved."""
        found: Plan = self._parser.parsePlan(statement)
        return found

    @cached_property
    def _parser(self) -> Any:
        return self._jsession.sessionState().sqlParser()
