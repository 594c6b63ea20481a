"""DEFAULT of tables' columns: Spark checks the expressions, and evaluates them for statements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from eddyline.catalog.column_rules import RULES, row_rules, rules_of, with_values
from eddyline.catalog.entries import TABLE, Entry
from eddyline.changes import APPEND
from eddyline.errors import DataError, QueryError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.determinism import USER_FUNCTIONS
from eddyline.plan.logical import (
    Plan,
    all_expressions,
    all_nodes,
    expressions_of,
    find,
    kind,
    subqueries_of,
)
from eddyline.plan.refusals import is_clock, refused_part
from eddyline.source.row_rules import RowRules, lengths_of
from eddyline.source.user_rows import Rows
from eddyline.spark.failures import query_errors
from eddyline.spark.schema import to_arrow

_IS_USERS = USER_FUNCTIONS.__contains__
_LOG = logging.getLogger("eddyline.engine")


def checked_defaults(table: Entry, session: Callable[[], SparkSession]) -> Entry:
    """Return a table with the values of its defaults that are the same at any time.

    Args:
        session: returns the session that evaluates them.

    Raises:
        DataError: BAD_DEFAULT: an expression isn't a constant of the column's type, or breaks its rules.
    """
    rules = rules_of(table) if table.kind == TABLE else {}
    if not any(rule.default for rule in rules.values()):
        return table
    spark = session()
    values: dict[str, pa.ChunkedArray] = {}
    for field in table.columns:
        rule = rules.get(field.name)
        if rule is None or not rule.default:
            continue
        asked, reads_clock = _checked(table.name, field, rule.default, spark)
        try:
            with query_errors(rule.default):
                found: pa.Table = to_arrow(asked)
        except QueryError as error:
            raise _wrong(table.name, field, rule.default, error.message) from error
        value = found["value"]
        if rule.not_null and value.null_count:
            raise _wrong(table.name, field, rule.default, "it is null, and the column NOT NULL")
        for length in lengths_of(field.name, rule.type):
            count, longest = length.exceeded(value)
            if count:
                raise _wrong(table.name, field, rule.default, f"it has {longest} characters")
        if not reads_clock:
            values[field.name] = value
    return with_values(table, pa.table(values))


def rules_for(
    table: Entry,
    parts: Sequence[tuple[tuple[str, ...], Rows]],
    session: Callable[[], SparkSession],
) -> RowRules | None:
    """Return the rules for rows of one statement, with all defaults that these need; None if the table has none.

    Args:
        parts: operations and rows, as `TableRows` takes them.
        session: returns the session that evaluates defaults which depend on the time.
    """
    rules = row_rules(table)
    if rules is None or not rules.unknown:
        return rules
    given = [rows for operations, rows in parts if operations == (APPEND,)]
    if all(_gives(rows, rules.unknown) for rows in given):
        return replace(rules, unknown=())
    values = evaluated(table, rules.unknown, session())
    if rules.defaults is not None:
        for name in rules.default_names:
            values = values.append_column(name, rules.defaults[name])
    return replace(rules, defaults=values, unknown=())


def evaluated(table: Entry, names: Collection[str], session: SparkSession) -> pa.Table:
    """Return the present values of the defaults of some columns, in one row."""
    rules, rows = rules_of(table), session.range(1)
    fields = [field for field in table.columns if field.name in names]
    texts = [f"({rules[field.name].default}\n) AS c{at}" for at, field in enumerate(fields)]
    kinds = StructType([StructField(f"c{at}", f.dataType) for at, f in enumerate(fields)])
    with query_errors(", ".join(texts), table=table.name):
        found = to_arrow(rows.selectExpr(*texts).to(kinds))
    return found.rename_columns([field.name for field in fields])


def warn_without_rules(table: Entry, present: Entry) -> None:
    """Log a warning if a table of an older version lacks the rules that its definition has now."""
    if RULES in present.options or table.kind != TABLE:
        return
    for name, rule in rules_of(table).items():
        ways = [f"ALTER COLUMN {name} SET NOT NULL"] if rule.not_null else []
        ways += [f"ALTER COLUMN {name} SET DEFAULT {rule.default}"] if rule.default else []
        ways += [f"ALTER COLUMN {name} TYPE with its length"] if rule.type else []
        for way in ways:
            _LOG.warning(
                "table %s was made by an older version, which didn't keep the rules of columns: ALTER TABLE %s %s "
                "enforces what its CREATE TABLE says",
                present.name,
                present.name,
                way,
            )


def _checked(
    table: str, field: StructField, text: str, session: SparkSession
) -> tuple[DataFrame, bool]:
    """Return a DataFrame with the value of a DEFAULT, and whether it depends on the time."""
    rows = session.range(1).select()
    try:
        with query_errors(text):
            rows.selectExpr(text)  # neither several, nor the end of another one
            asked = rows.selectExpr(f"({text}\n) AS value")
            typed = asked.to(StructType([StructField("value", field.dataType)]))
            typed.schema  # noqa: B018  # Spark compares the types now
    except QueryError as error:
        raise _wrong(table, field, text, error.message) from error
    catalyst = Catalyst(session)
    plan = catalyst.plan(asked)
    if not _is_of_one_row(plan):
        raise _wrong(
            table, field, text, "subqueries, aggregates and window functions aren't constant"
        )
    expressions = [one for root in expressions_of(plan) for one in all_expressions(root)]
    if any(find(root, _IS_USERS) for root in expressions_of(plan)):
        raise _wrong(table, field, text, "it calls a function of yours, which other processes lack")
    if (refused := refused_part(catalyst, plan, clock=True)) is not None:
        raise _wrong(table, field, text, f"{refused[1].removesuffix(' AS value')} isn't constant")
    return typed, any(map(is_clock, expressions))


def _is_of_one_row(plan: Plan) -> bool:
    """Return whether a plan only computes expressions."""
    nodes = list(all_nodes(plan))
    return not any(subqueries_of(node) for node in nodes) and all(
        kind(node) in ("Project", "Range") for node in nodes
    )


def _gives(rows: Rows, names: Collection[str]) -> bool:
    """Return whether rows surely give these columns."""
    if isinstance(rows, DataFrame | pd.DataFrame):
        return set(names) <= set(rows.columns)
    if isinstance(rows, pa.Table):
        return set(names) <= set(rows.column_names)
    if not isinstance(rows, Sequence):
        return False
    return not any(
        isinstance(row, Mapping) and any(name not in row for name in names) for row in rows
    )


def _wrong(table: str, field: StructField, text: str, why: str) -> DataError:
    return DataError(
        f"column {field.name} can't have DEFAULT {text}: {why}",
        condition="BAD_DEFAULT",
        table=table,
        hint=f"give a constant expression of type {field.dataType.simpleString().upper()}; current_timestamp() and "
        "current_date() are allowed",
    )
