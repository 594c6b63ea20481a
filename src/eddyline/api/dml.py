"""INSERT, DELETE, UPDATE and MERGE in SQL: Spark evaluates them on the table's current rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import and_

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import DataType, StructField, StructType

from eddyline.arguments import wrong_argument
from eddyline.catalog.column_rules import rules_of
from eddyline.catalog.entries import Entry
from eddyline.changes import HASH, WEIGHT
from eddyline.errors import DataError, QueryError
from eddyline.operators.base import numbered
from eddyline.operators.result import Apply
from eddyline.plan.lower import operations_schema
from eddyline.plan.types import by_name, contains_type, sql_type
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import Segment
from eddyline.spark.failures import query_errors
from eddyline.spark.schema import (
    arrow_schema,
    from_arrow,
    loose_schema,
    loosened,
    plain_schema,
    to_arrow,
)
from eddyline.spark.session import frame, zone_of
from eddyline.sql.default_words import rows_with_defaults, with_default
from eddyline.sql.forms import Insert, Merge, Update
from eddyline.sql.merge_query import MergeQuery, source_query, value_query
from eddyline.sql.names import quoted
from eddyline.state.kernels import distinct, repeat
from eddyline.state.manifest import ROWS
from eddyline.state.retyping import cast_to
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Dml:
    """Turns DML statements into operations for the redo log of a table.

    Attributes:
        session: runs the queries; the relations are registered there as views.
        files: files of the storage.
    """

    session: SparkSession
    files: Files

    def register(
        self, entry: Entry, content: DataFrame, waiting: Sequence[Segment], *, small: bool
    ) -> None:
        """Register the rows of a relation for queries.

        Args:
            waiting: operations in the redo log that no epoch has processed yet.
            small: whether the driver may take all rows; otherwise it takes those that the operations may change.
        """
        if waiting:
            content = self._with_waiting(entry, content, waiting, small=small)
        content.createOrReplaceTempView(quoted(entry.name))

    def result(self, query: str) -> DataFrame:
        """Return the rows of a query, whose columns PySpark knows."""
        found = self._run(query)
        with query_errors(query):
            found.schema  # noqa: B018  # it can't read some types
        return found

    def insert(self, entry: Entry, statement: Insert) -> DataFrame:
        """Return the rows of INSERT INTO table (columns) query."""
        fields = list(entry.columns)
        if statement.columns is not None:
            fields = _fields(entry, statement.columns)
        text = statement.query_text
        if not statement.by_name:
            columns = [(field.name, sql_type(field.dataType)) for field in fields]
            text = rows_with_defaults(text, columns, _defaults(entry))
        result = self._run(text, statement.query_text)
        if statement.by_name:
            fields = _fields(entry, result.columns)
        if len(result.columns) != len(fields):
            raise DataError(
                f"INSERT gives {len(result.columns)} columns, wanted are {len(fields)}",
                condition="WRONG_WIDTH",
                table=entry.name,
                hint="name the columns: INSERT INTO t (a, b) ...",
            )
        if statement.by_name:
            texts = [
                _by_name(quoted(given.name), given.dataType, field, statement.query_text)
                for given, field in zip(result.schema, fields, strict=True)
            ]
            result = result.selectExpr(*texts)
        return self.typed(entry, fields, result, statement.query_text)

    def typed(
        self, entry: Entry, fields: Sequence[StructField], rows: DataFrame, query: str
    ) -> DataFrame:
        """Return the rows of a query with the names and types of columns of a table."""
        typed = [col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in fields]
        with query_errors(query, table=entry.name):  # a type that can't be cast
            return rows.toDF(*(field.name for field in fields)).select(*typed)

    def rows(self, entry: Entry, condition: str | None, alias: str | None = None) -> DataFrame:
        """Return the current rows that meet a condition, which may call the relation `alias`."""
        where = _where(condition)
        return self._run(f"SELECT * FROM {_named(entry, alias)}{where}")

    def update(self, entry: Entry, statement: Update) -> DataFrame:
        """Return the rows of UPDATE table alias SET column = expression, ... WHERE condition.

        Each has the columns as they are, and then as they are to be: `c0..`.
        """
        assignments, alias = statement.assignments, statement.alias
        if not assignments:
            raise wrong_argument("assignments", assignments, "set at least one column")
        defaults = _defaults(entry)
        given = {
            field.name: with_default(text, field.name, defaults)
            for field, (_, text) in zip(
                _fields(entry, [name for name, _ in assignments]), assignments, strict=True
            )
        }
        old = ", ".join(quoted(field.name) for field in entry.columns)
        new = ", ".join(
            self._assigned(entry, alias, field, given[field.name])
            if field.name in given
            else quoted(field.name)
            for field in entry.columns
        )
        where = _where(statement.where_text)
        # one evaluation for both versions of each row
        query = f"SELECT {old}, {new} FROM {_named(entry, alias)}{where}"
        return self._run(query).toDF(*numbered("c", 2 * len(entry.columns)))

    def _assigned(self, entry: Entry, alias: str | None, field: StructField, value: str) -> str:
        """Return the column that UPDATE makes of the value of a column."""
        query = f"SELECT ({value}\n) FROM {_named(entry, alias)}"
        typed = self._in_order(field, value, query, shown=value)
        return f"CAST(({typed}\n) AS {sql_type(field.dataType)}) AS {quoted(field.name)}"

    def _in_order(self, column: StructField, value: str, query: str, shown: str) -> str:
        """Return a value of a column in which structs have the fields of the column, by name.

        Args:
            query: a query of the value, for its type.
            shown: what errors show in its place.
        """
        if not contains_type(column.dataType, ("struct",)):
            return value
        (given,) = self._run(query, shown).schema
        return _by_name(f"({value}\n)", given.dataType, column, shown)

    def merge(self, entry: Entry, statement: Merge, shown: str) -> DataFrame:
        """Return the rows that MERGE changes; see `MergeQuery`.

        Args:
            shown: the statement, for errors.
        """
        for clause in statement.clauses:
            _fields(entry, [name for name, _ in clause.values or ()])
        kinds = [sql_type(field.dataType) for field in entry.columns]
        source = self._run(source_query(statement))
        columns = {field.name: field for field in entry.columns}

        def in_order(of: str, column: str, value: str) -> str:
            query = value_query(statement, of, value)
            return self._in_order(columns[column], value, query, shown)

        names, given = entry.columns.names, source.columns
        query = MergeQuery(statement, names, kinds, _defaults(entry), given, in_order).text()
        return self._run(query, shown)

    def _run(self, query: str, shown: str = "") -> DataFrame:
        """Return the result of a query; errors show it, or another text."""
        with query_errors(shown or query):
            return self.session.sql(query)

    def _with_waiting(
        self, entry: Entry, content: DataFrame, segments: Sequence[Segment], *, small: bool
    ) -> DataFrame:
        """Apply the unprocessed operations of a table's redo log to its rows."""
        columns = entry.columns
        zone = zone_of(self.session)
        wire = arrow_schema(operations_schema(columns), zone)
        plain = arrow_schema(plain_schema(columns), zone)
        places = range(len(columns))
        tables = [
            table
            for segment in segments
            for table in read_segment(self.files, segment, (), places, wire)
        ]
        operations = _hashless(cast_to(pa.concat_tables(tables), wire))
        touched, others = (content, None) if small else self._divided(entry, content, operations)
        stored = cast_to(to_arrow(touched), plain)
        ones = pa.array(np.ones(stored.num_rows, np.int64))
        rows = _hashless(stored.append_column(WEIGHT, ones))
        key = tuple(columns.names.index(name) for name in entry.key)
        operator = Apply(len(columns), key)
        layout = operator.layouts[ROWS]
        change = operator.resolve(operations, rows).select(layout.columns)
        settled = layout.consolidate(pa.concat_tables([rows.select(layout.columns), change]))
        kept = repeat(settled, settled[WEIGHT].to_numpy()).select(plain.names)
        # PySpark can't convert a null struct with fields that can't be null
        kinds = loose_schema(columns)
        found = from_arrow(self.session, cast_to(kept, arrow_schema(kinds, zone)), kinds)
        return found if others is None else loosened(others).union(found)

    def _divided(
        self, entry: Entry, content: DataFrame, operations: pa.Table
    ) -> tuple[DataFrame, DataFrame | None]:
        """Split a table's rows: those that the operations may change, for the driver, and the rest, left to Spark.

        Spark's `<=>` may treat more rows as equal than the table does (0.0 and -0.0, say). The driver then gets
        some rows too many, which the operations don't change.
        """
        by = [
            (place, field)
            for place, field in enumerate(entry.columns)
            if (field.name in entry.key if entry.key else _is_comparable(field.dataType))
        ]
        if not by:
            return content, None
        keys = distinct(operations, [f"c{place}" for place, _ in by])
        kinds = loose_schema(
            StructType([StructField(f"k{n}", f.dataType) for n, (_, f) in enumerate(by)])
        )
        wanted = frame(
            self.session, cast_to(keys, arrow_schema(kinds, zone_of(self.session))), kinds
        )
        same = [
            content[quoted(field.name)].eqNullSafe(wanted[f"k{number}"])
            for number, (_, field) in enumerate(by)
        ]
        met = functools.reduce(and_, same)
        return content.join(wanted, met, "left_semi"), content.join(wanted, met, "left_anti")


def _defaults(entry: Entry) -> dict[str, str]:
    """Return the default expressions of a table's columns, by name in lower case."""
    return {name.lower(): rule.default for name, rule in rules_of(entry).items() if rule.default}


def _by_name(value: str, given: DataType, column: StructField, query: str) -> str:
    """Return an expression for a value in which structs have the fields of a column of a table, by name."""
    try:
        return by_name(value, given, column.dataType)
    except ValueError as error:
        raise QueryError(
            f"the value of column {column.name} hasn't the fields of the column: {error}",
            condition="INVALID_QUERY",
            fragment=query,
            hint="give the fields of the column: named_struct('a', 1, 'b', 2)",
        ) from error


def _is_comparable(kind: DataType) -> bool:
    """Return whether Spark compares values of a type."""
    return not contains_type(kind, ("map", "variant"))


def _named(entry: Entry, alias: str | None) -> str:
    """Return a relation of a FROM clause."""
    return quoted(entry.name) if alias is None else f"{quoted(entry.name)} AS {quoted(alias)}"


def _where(condition: str | None) -> str:
    """Return a WHERE clause; a blank condition is an error, because without one all rows are meant."""
    if condition is None:
        return ""
    if not condition.strip():
        raise wrong_argument("the condition", condition, "give a condition, or None for all rows")
    return f" WHERE {condition}"


def _fields(entry: Entry, names: Sequence[str]) -> list[StructField]:
    known = {field.name.lower(): field for field in entry.columns}
    unknown = [name for name in names if name.strip("`").lower() not in known]
    if unknown:
        raise DataError(
            f"unknown column {', '.join(unknown)}",
            condition="UNKNOWN_COLUMN",
            table=entry.name,
            hint=f"the columns are {', '.join(entry.columns.names)}",
        )
    fields = [known[name.strip("`").lower()] for name in names]
    twice = {field.name for field in fields if fields.count(field) > 1}
    if twice:
        raise DataError(
            f"column {', '.join(twice)} is given more than once",
            condition="DUPLICATE_COLUMN",
            table=entry.name,
            hint="give each column once",
        )
    return fields


def _hashless(rows: pa.Table) -> pa.Table:
    """Add a hash column of zeros: rows in memory need no index."""
    return rows.add_column(0, HASH, pa.array(np.zeros(rows.num_rows, np.int64)))
