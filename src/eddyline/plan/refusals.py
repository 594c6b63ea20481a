"""All reasons to refuse a query as a live view, each with its way out.

`refused_part` checks a whole query before it is compiled; the compiler raises the other refusals
when it meets the case.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from eddyline.errors import QueryError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.determinism import USER_FUNCTIONS, is_unknown, varies
from eddyline.plan.logical import Expression, Plan, all_expressions, all_nodes, expressions_of, kind
from eddyline.plan.render import node_text, text
from eddyline.spark.failures import TIME_IS_OFF


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a query is refused, and how to write it instead.

    Attributes:
        why, way_out: the message and the hint of the error; `why` may hold fields for `about`.
        condition: the error's condition.
    """

    why: str
    way_out: str
    condition: str = "NOT_LIVE"

    def about(self, **fields: object) -> Refusal:
        """Return the refusal with the fields of its message filled in."""
        return replace(self, why=self.why.format(**fields))

    def error(self, view: str, fragment: str | None = None) -> QueryError:
        """Return the error for a view, with the part of its query that is refused."""
        return QueryError(
            self.why, condition=self.condition, hint=self.way_out, view=view, fragment=fragment
        )


_CLOCK = Refusal(
    "{what}: a live view can only compare it with a column, so that each row changes once",
    "write WHERE ts > now() - INTERVAL 24 HOURS, or the like, with the column alone on one side; "
    "else write the moment as a literal, or give it as a column of a table that you update",
)
_MOMENT = Refusal(
    "{what}: a live view would have to change without any new row",
    "compare a column with now() or current_date(), or write the moment as a literal",
)
_RANDOM_WAY_OUT = "compute it before the row enters the stream, or hash a key of the row instead"
_RANDOM = Refusal("{what}: it isn't deterministic", _RANDOM_WAY_OUT)
_WHERE_READ = Refusal("{what}: it depends on where the row is read", _RANDOM_WAY_OUT)
_WHO_RUNS = Refusal(
    "{what}: it depends on who runs the engine, and where", "write the value as a literal"
)
_SKETCH = Refusal(
    "{what}: the sketch draws random numbers when it is merged",
    "use approx_percentile or percentile",
)

# By class name in Catalyst: expressions whose value depends on the time or the machine.
EXPRESSIONS: dict[str, Refusal] = {
    "CurrentTimestamp": _CLOCK,
    "CurrentTimestampLike": _CLOCK,
    "Now": _CLOCK,
    "LocalTimestamp": _CLOCK,
    "CurrentDate": _CLOCK,
    "CurDateExpressionBuilder": _CLOCK,
    "CurrentTime": _MOMENT,
    "Rand": _RANDOM,
    "Randn": _RANDOM,
    "RandStr": _RANDOM,
    "Uniform": _RANDOM,
    "Uuid": _RANDOM,
    "Shuffle": _RANDOM,
    "MonotonicallyIncreasingID": _RANDOM,
    "SparkPartitionID": Refusal(
        "{what}: it depends on where the row is processed", _RANDOM_WAY_OUT
    ),
    "InputFileName": _WHERE_READ,
    "InputFileBlockStart": _WHERE_READ,
    "InputFileBlockLength": _WHERE_READ,
    "Measure": Refusal("{what}: it is known in metric views only", "write the aggregate out"),
    "CurrentUser": _WHO_RUNS,
    "CurrentDatabase": _WHO_RUNS,
    "CurrentCatalog": _WHO_RUNS,
    "CurrentPath": _WHO_RUNS,
    "SparkVersion": _WHO_RUNS,
    **{
        f"Kll{step}{number}": _SKETCH
        for step in ("SketchAgg", "MergeAgg", "SketchMerge")
        for number in ("Bigint", "Double", "Float")
    },
}

NOT_DETERMINISTIC = Refusal(
    "{what} is not marked deterministic",
    "mark it so if it is, or compute it before the row enters the stream",
)
UNKNOWN_EXPRESSION = Refusal(
    "{what}: it isn't known to be deterministic",
    "use a function that the list of functions has as live, or register one of your own in Python, "
    "Scala or Java",
)

# Texts that Spark converts to a date or timestamp relative to the current time.
_MOVING_MOMENTS = re.compile(r"\s*(now|today|tomorrow|yesterday)\s*", re.IGNORECASE)

_BY_BATCH = Refusal(
    "a function of batches sees rows that have nothing in common",
    "write it as a Python function of columns, or of the rows of a group: groupBy(...).applyInPandas",
)
_COGROUPS = Refusal(
    "a function of two groups can't be kept live yet",
    "unite both sides with a column that tells them apart, then groupBy(...).applyInPandas",
)
_NO_WATERMARK_CALLS = "watermarks are not known here yet"

# By class name in Catalyst: plan nodes.
NODES: dict[str, Refusal] = {
    "Sample": Refusal(
        "TABLESAMPLE isn't deterministic",
        "filter by a hash of a key: WHERE xxhash64(k) % 10 = 0",
    ),
    "Tail": Refusal(
        "the last rows of a table without order aren't defined", "use ORDER BY ... DESC LIMIT"
    ),
    "UnionLoop": Refusal(
        "recursive queries can't be kept live yet",
        "unroll the recursion to a fixed depth with joins",
    ),
    "EventTimeWatermark": Refusal(_NO_WATERMARK_CALLS, "leave withWatermark away"),
    "InMemoryRelation": Refusal(
        "the DataFrame is cached: what is in the cache doesn't change",
        "leave cache() and persist() away; a view keeps its rows",
    ),
    "MapInPandas": _BY_BATCH,
    "MapInArrow": _BY_BATCH,
    "FlatMapCoGroupsInPandas": _COGROUPS,
    "FlatMapCoGroupsInArrow": _COGROUPS,
    "DeduplicateWithinWatermark": Refusal(_NO_WATERMARK_CALLS, "use SELECT DISTINCT"),
}
UNKNOWN_NODE = Refusal("operator {name} has no incremental rule", "write the query without it")

_A_TYPE = "a column of type {type} can't be kept"

SHAPES = ("geometry", "geography")
TIME = "time"
# Types that can't be exchanged between Spark and the operators, as named by `contains_type`.
TYPES: dict[str, Refusal] = {
    name: Refusal(_A_TYPE, way_out, "UNSUPPORTED_TYPE")
    for name, way_out in {
        "interval": "cast it, for example to days or to a string",
        "interval year": "cast it to a number of months",
        "interval month": "cast it to a number of months",
        "interval year to month": "cast it to a number of months",
        # operators compare bytes, a collation doesn't
        "string collate ": "use lower(x) instead, or x COLLATE UTF8_BINARY",
        **dict.fromkeys(SHAPES, "keep it as bytes: st_asbinary(x)"),
        TIME: TIME_IS_OFF,
    }.items()
}
# Arrow has no type for elements of VOID that can't be null.
EMPTY = Refusal(
    _A_TYPE, "give its elements a type: CAST(array() AS ARRAY<INT>)", "UNSUPPORTED_TYPE"
)
# Spark's readers of Arrow find fields by name.
REPEATED_FIELD = Refusal(_A_TYPE, "give the fields of a struct different names", "UNSUPPORTED_TYPE")

DUPLICATE_COLUMN = Refusal(
    "the result has several columns named {names}",
    "give them different names with AS",
    "DUPLICATE_COLUMN",
)
UNKNOWN_RELATION = Refusal(
    "the query reads a DataFrame that this engine doesn't know",
    "register it with engine.table or engine.stream",
)
FOREIGN = Refusal(
    "the view reads {what}",
    "make it of engine.relation(name) for tables, streams and views; put other rows into a table "
    "(engine.table, table.insert(dataframe)), or follow a source as a stream (CREATE STREAM)",
)
STREAMING_FRAME = Refusal(
    "the view is made of a streaming DataFrame",
    "connect that with engine.stream(name, dataframe), and make the view of engine.relation(name)",
)
MISPLACED_SUBQUERY = Refusal(
    "a subquery stands where no live view can keep it",
    "join it, or put it into the SELECT or WHERE of a subquery",
)
MISPLACED_SCALAR_SUBQUERY = Refusal(
    "a scalar subquery within {name} is not known",
    "put it into the SELECT or WHERE of a subquery",
)
MISPLACED_CLOCK = Refusal(
    "now() is compared where no live view can keep it",
    "put the comparison into the WHERE or SELECT of a subquery; one that needs columns of both sides of a join, "
    "into a view on a view of that join",
)
WRONG_CONSTANT = Refusal(
    "{what}", "correct the constant, with which no row can be evaluated", "INVALID_QUERY"
)
NO_FINAL_ROWS = Refusal(
    "EMIT FINAL can't tell when a row is final: no column follows a stream's watermark",
    "declare WATERMARK FOR the stream's time column, group by a window or a day of it, and "
    "select that",
    "NO_WATERMARK",
)
JOIN_TYPE = Refusal("join type {name} is not known", "use another join")
SORT_KEY = Refusal("LIMIT after ORDER BY a {type} is not known", "order by the parts of the value")
PYTHON_FORM = Refusal(
    "{name} is a Python function of a form that isn't known here",
    "write it over rows, Series or Arrow arrays",
)

GROUPED_ITERATOR = Refusal(
    "a function of groups that takes an iterator is not known here",
    "let it take the rows of a group at once: a DataFrame of pandas, or a pyarrow.Table",
)


def refused_part(
    catalyst: Catalyst, analyzed: Plan, *, clock: bool = False
) -> tuple[Refusal, str] | None:
    """Return why a resolved query can't be live, with the part refused; None if nothing is found.

    Args:
        clock: whether it may read the time.
    """
    for node in all_nodes(analyzed):
        if kind(node) in NODES:
            return NODES[kind(node)], node_text(node)
        for root in expressions_of(node):
            for expression in all_expressions(root):
                if clock and is_clock(expression):
                    continue
                refusal = _expression_refusal(catalyst, expression)
                if refusal is not None:
                    return refusal, text(root)
    return None


def foreign_view(analyzed: Plan, relations: Collection[str]) -> str:
    """Return the name of a view in Spark's catalog that a resolved query reads besides relations; empty for none.

    Its rows may be constants, which would be those of the moment for ever, and it doesn't outlive the session.

    Args:
        relations: names of tables, streams and views, which the session has as views.
    """
    known = {name.lower() for name in relations}
    names = (
        str(node.desc().identifier().table())
        for node in all_nodes(analyzed)
        if kind(node) == "View"
    )
    return next((name for name in names if name.lower() not in known), "")


def is_clock(expression: Expression) -> bool:
    """Return whether an expression is the time of the query, such as `now()` or `current_date()`."""
    return EXPRESSIONS.get(kind(expression)) is _CLOCK


def _expression_refusal(catalyst: Catalyst, expression: Expression) -> Refusal | None:
    name = kind(expression)
    if name in EXPRESSIONS:
        return EXPRESSIONS[name].about(what=expression.sql())
    moment = catalyst.moment(expression)
    if _MOVING_MOMENTS.fullmatch(moment):
        return _MOMENT.about(what=f"{moment.strip()!r} as a moment")
    if is_unknown(expression):
        return UNKNOWN_EXPRESSION.about(what=expression.sql())
    if varies(expression):
        refusal = NOT_DETERMINISTIC if name in USER_FUNCTIONS else _RANDOM
        return refusal.about(what=expression.sql())
    return None
