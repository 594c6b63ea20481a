"""The parts of Spark's logical plans and expressions that the compiler uses, as types.

The objects are in the JVM; `plan/catalyst.py` creates and returns them. One protocol covers
all classes of expressions, another all classes of plan nodes: look at `kind` before you call a
method that only some classes have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_string

from eddyline.spark import plan_trees as trees

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N = TypeVar("N", bound="Plan | Expression")

SUBQUERIES = frozenset(("Exists", "ListQuery", "ScalarSubquery", "LateralSubquery"))
"""The expressions that hold the plan of a subquery."""


class JavaClass(Protocol):
    """A class in the JVM."""

    def getName(self) -> str: ...


class JavaObject(Protocol):
    """Any object in the JVM."""

    def toString(self) -> str: ...


class Seq(Protocol[T_co]):
    """A Scala Seq."""

    def appended(self, value: Any, /) -> Seq[T_co]: ...
    def apply(self, index: int, /) -> T_co: ...
    def mkString(self, between: str, /) -> str: ...
    def size(self) -> int: ...
    def updated(self, index: int, value: Any, /) -> Seq[T_co]: ...


class Option(Protocol[T_co]):
    """A Scala Option."""

    def isDefined(self) -> bool: ...
    def get(self) -> T_co: ...


class AttributeSet(Protocol):
    """The attributes that an expression or a node refers to."""

    def toSeq(self) -> Seq[Expression]: ...


class ExprId(Protocol):
    """The identity of an attribute, alias, subquery or aggregate call."""

    def id(self) -> int: ...


class Metadata(Protocol):
    """The metadata of a column."""

    def contains(self, key: str, /) -> bool: ...


class SparkType(Protocol):
    """A Spark SQL type; `type_of` gives it as PySpark's."""

    def simpleString(self) -> str: ...


class Origin(Protocol):
    """The position of an expression in the query's text."""

    def sqlText(self) -> Option[str]: ...
    def startIndex(self) -> Option[int]: ...
    def stopIndex(self) -> Option[int]: ...


class Expression(JavaObject, Protocol):
    """A Catalyst expression."""

    def canonicalized(self) -> Expression: ...
    def children(self) -> Seq[Expression]: ...
    def dataType(self) -> SparkType: ...
    def deterministic(self) -> bool: ...
    def eval(self, row: Any, /) -> Any: ...
    def foldable(self) -> bool: ...
    def nullable(self) -> bool: ...
    def origin(self) -> Origin: ...
    def references(self) -> AttributeSet: ...
    def semanticEquals(self, other: Expression, /) -> bool: ...
    def sql(self) -> str: ...
    def withNewChildren(self, children: Seq[Expression], /) -> Expression: ...

    # of named expressions
    def exprId(self) -> ExprId: ...
    def metadata(self) -> Metadata: ...
    def name(self) -> str: ...
    def toAttribute(self) -> Expression: ...

    # of expressions with one child, two, or cases
    def child(self) -> Expression: ...
    def left(self) -> Expression: ...
    def right(self) -> Expression: ...
    def elseValue(self) -> Option[Expression]: ...
    def timeZoneId(self) -> Option[str]: ...

    # of the operands that BETWEEN names, and of DateDiff
    def defs(self) -> Seq[Expression]: ...
    def id(self) -> JavaObject: ...
    def startDate(self) -> Expression: ...
    def endDate(self) -> Expression: ...

    # of AggregateExpression and of aggregate functions
    def aggregateFunction(self) -> Expression: ...
    def aggBufferAttributes(self) -> Seq[Expression]: ...
    def evaluateExpression(self) -> Expression: ...
    def filter(self) -> Option[Expression]: ...
    def isDistinct(self) -> bool: ...
    def mode(self) -> JavaObject: ...
    def resultAttribute(self) -> Expression: ...
    def resultId(self) -> ExprId: ...
    def reverse(self) -> bool: ...

    # of Python functions and ScalaUDF
    def evalType(self) -> int: ...
    def func(self) -> Any: ...

    # of WindowExpression, WindowSpecDefinition and SpecifiedWindowFrame, and of Lag and Lead
    def windowFunction(self) -> Expression: ...
    def windowSpec(self) -> Expression: ...
    def frameSpecification(self) -> Expression: ...
    def frameType(self) -> JavaObject: ...
    def lower(self) -> Expression: ...
    def upper(self) -> Expression: ...
    def ignoreNulls(self) -> bool: ...

    # of StaticInvoke and Invoke
    def functionName(self) -> str: ...
    def staticObject(self) -> JavaClass: ...
    def targetObject(self) -> Any: ...

    # of SortOrder, GetStructField, TimestampAdd, Literal, InSet and ScalarSubquery
    def direction(self) -> JavaObject: ...
    def nullOrdering(self) -> JavaObject: ...
    def ordinal(self) -> int: ...
    def unit(self) -> object: ...
    def value(self) -> Any: ...
    def hset(self) -> Any: ...
    def plan(self) -> Plan: ...

    # of subqueries
    def withNewPlan(self, plan: Plan, /) -> Expression: ...


class Partitioning(JavaObject, Protocol):
    """How the rows of a physical plan are spread over its tasks."""

    def numPartitions(self) -> int: ...


class JoinType(JavaObject, Protocol):
    """The type of a join; of an ExistenceJoin also the attribute that it adds."""

    def exists(self) -> Expression: ...


class Plan(JavaObject, Protocol):
    """A Catalyst plan node with all below it."""

    def children(self) -> Seq[Plan]: ...
    def clone(self) -> Plan: ...
    def execute(self) -> Any: ...
    def expressions(self) -> Seq[Expression]: ...
    def maxRows(self) -> Option[int]: ...
    def output(self) -> Seq[Expression]: ...
    def references(self) -> AttributeSet: ...
    def sameResult(self, other: Plan, /) -> bool: ...
    def semanticHash(self) -> int: ...
    def simpleString(self, fields_max: int, /) -> str: ...
    def subqueries(self) -> Seq[Plan]: ...
    def withNewChildren(self, children: Seq[Plan], /) -> Plan: ...

    # of nodes with one input, or two
    def child(self) -> Plan: ...
    def left(self) -> Plan: ...
    def right(self) -> Plan: ...

    # of View
    def desc(self) -> Any: ...

    # of Project, Aggregate, Expand, Generate and the Python nodes
    def aggregateExpressions(self) -> Seq[Expression]: ...
    def generator(self) -> Expression: ...
    def groupingExpressions(self) -> Seq[Expression]: ...
    def projectList(self) -> Seq[Expression]: ...
    def projections(self) -> Seq[Seq[Expression]]: ...
    def resultAttrs(self) -> Seq[Expression]: ...
    def udfs(self) -> Seq[Expression]: ...

    # of Window, WindowGroupLimit, Sort and limits
    def limit(self) -> int: ...
    def limitExpr(self) -> Expression: ...
    def offsetExpr(self) -> Expression: ...
    def order(self) -> Seq[Expression]: ...
    def orderSpec(self) -> Seq[Expression]: ...
    def partitionSpec(self) -> Seq[Expression]: ...
    def rankLikeFunction(self) -> Expression: ...
    def windowExpressions(self) -> Seq[Expression]: ...

    # of CTERelationDef and CTERelationRef
    def id(self) -> int: ...
    def cteId(self) -> int: ...

    # of LogicalRDD, and of leaves in general
    def rdd(self) -> Any: ...
    def newInstance(self) -> Plan: ...

    # of physical plans, and of MapInArrow among them
    def outputPartitioning(self) -> Partitioning: ...
    def func(self) -> Expression: ...


class Filter(Plan, Protocol):
    """A Filter node."""

    def condition(self) -> Expression: ...


class GroupedMap(Plan, Protocol):
    """A node that calls a Python function of whole groups."""

    def groupingAttributes(self) -> Seq[Expression]: ...
    def functionExpr(self) -> Expression: ...


class JoinNode(Plan, Protocol):
    """A Join node."""

    def condition(self) -> Option[Expression]: ...
    def hint(self) -> JavaObject: ...
    def joinType(self) -> JoinType: ...


def items(sequence: Seq[T]) -> list[T]:
    """Return a Scala Seq of objects as a list."""
    return trees.elements(sequence)


def children_of(node: N) -> list[N]:
    """Return the plan nodes or expressions right below one."""
    return [*trees.children(node)]


def child_of(node: N) -> N:
    """Return what is right below a plan node or expression with one child."""
    (child,) = children_of(node)
    return child


def output_of(plan: Plan) -> list[Expression]:
    """Return the columns of a plan's rows."""
    return [*trees.output(plan)]


def columns_of(plan: Plan) -> StructType:
    """Return the columns of a plan's output."""
    return StructType([StructField(name_of(one), type_of(one)) for one in output_of(plan)])


def expressions_of(plan: Plan) -> list[Expression]:
    """Return the expressions of a plan node, those of its children left aside."""
    return [*trees.expressions(plan)]


def needed_ids(plan: Plan, listing: Iterable[str]) -> set[int]:
    """Return the ids of the attributes that a plan gives, and that its nodes and those of its subqueries refer to.

    Args:
        listing: kinds of nodes that need each attribute of their children.
    """
    return trees.needed_ids(plan, listing)


def subqueries_of(plan: Plan) -> list[Plan]:
    """Return the plans of the subqueries in the expressions of a plan node."""
    return [*trees.subqueries(plan)]


def tree(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and all below it, without the plans of subqueries."""
    yield plan
    for child in children_of(plan):
        yield from tree(child)


def all_nodes(plan: Plan) -> Iterator[Plan]:
    """Yield all nodes of a plan, those of subqueries in expressions included."""
    yield plan
    for below in (*children_of(plan), *subqueries_of(plan)):
        yield from all_nodes(below)


def all_expressions(root: Expression) -> Iterator[Expression]:
    """Yield an expression and all below it."""
    yield root
    for child in children_of(root):
        yield from all_expressions(child)


def find(root: Expression, accept: Callable[[str], bool]) -> list[Expression]:
    """Return the topmost expressions whose class name is accepted."""
    if accept(kind(root)):
        return [root]
    return [hit for child in children_of(root) for hit in find(child, accept)]


def aggregate_calls(results: Sequence[Expression]) -> list[Expression]:
    """Return the calls of aggregates in the result expressions of an Aggregate."""
    return [
        call for one in results for call in find(one, lambda name: name == "AggregateExpression")
    ]


def scalar_subqueries(root: Expression) -> list[Expression]:
    """Return the scalar subqueries in an expression."""
    return find(root, lambda name: name == "ScalarSubquery")


def kind(node: JavaObject) -> str:
    """Return the simple class name of a plan node, an expression or another Scala object."""
    return class_name(node).rpartition(".")[2].rpartition("$")[2]


def class_name(node: JavaObject) -> str:
    """Return the full class name of a Scala object."""
    return trees.class_of(node)


def id_of(named: Expression) -> int:
    """Return Spark's id of an attribute, alias or subquery."""
    return trees.cached(named, "id", lambda: named.exprId().id())


def name_of(named: Expression) -> str:
    """Return the name of an attribute or alias."""
    return trees.name_of(named)


def value_of(literal: Expression) -> Any:
    """Return the value of a literal as Spark has it; only those of whole numbers, booleans and nulls mean something."""
    return trees.value_of(literal)


def sql_of(expressions: Sequence[Expression]) -> list[str]:
    """Return Spark's SQL of some expressions."""
    return trees.sql(expressions)


def is_deterministic(expression: Expression) -> bool:
    """Return whether Catalyst marks an expression, and all below it, as deterministic."""
    return trees.cached(expression, "deterministic", expression.deterministic)


def type_of(expression: Expression) -> DataType:
    """Return an expression's type as PySpark's."""
    return trees.cached(expression, "type", lambda: _parsed(trees.type_json(expression)))


def _parsed(type_json: str) -> DataType:
    """Return a type that is given as JSON; a new object if it is nested, as such a one can be changed."""
    nested = type_json.startswith("{")
    return _parse_datatype_json_string(type_json) if nested else _parsed_once(type_json)


_parsed_once = cache(_parse_datatype_json_string)
