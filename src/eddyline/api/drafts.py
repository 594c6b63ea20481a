"""Validate users' definitions, and convert them to catalog entries. Nothing is stored here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from eddyline.api.paths import path_of
from eddyline.arguments import wrong_argument
from eddyline.catalog.column_rules import ColumnRule, same_rules, with_rules, without_rules
from eddyline.catalog.entries import (
    DEAD,
    INTO,
    LOGGED,
    MADE_AS,
    OF,
    PIPELINE,
    RETAIN,
    STREAM,
    TABLE,
    TIME_OPTIONS,
    Entry,
)
from eddyline.changes import OPERATION
from eddyline.errors import CatalogError, DataError
from eddyline.intake.event_time import declared_watermark, with_watermark
from eddyline.intake.retention import with_retention
from eddyline.plan.refusals import SHAPES
from eddyline.plan.types import contains_type, repeats_field
from eddyline.source.dead_letters import KEY, LETTERS
from eddyline.source.received import RECEIVED_AT, is_received
from eddyline.spark.failures import FAILURES
from eddyline.spark.schema import arrow_schema, loose_schema
from eddyline.sql.columns import split_defaults
from eddyline.sql.names import check_name

_CHARS = re.compile(r'"(?:char|varchar)\(\d+\)"')  # types in a schema's JSON
_SPARKS_DEFAULT = "CURRENT_DEFAULT"  # where Spark keeps the DEFAULT of a column, in its metadata

Watermark = tuple[str, str] | None
Key = str | Sequence[str]  # names of columns, or a text with commas


def table(name: str, schema: str | StructType, primary_key: Key) -> Entry:
    """Return the entry of a table; see `Engine.table`."""
    check_name(name, TABLE)
    columns, rules = declared(schema)
    if any(map(is_received, columns.names)):
        raise _reserved(f"table {name}", "only streams have it", "give the column another name")
    entry = Entry("", TABLE, name, columns.json(), key_of(columns, primary_key, name))
    return with_rules(entry, rules)


def table_of_query(name: str, query: str, columns: StructType) -> Entry:
    """Return the entry of a table with the columns of a query, which may all be null.

    Raises:
        DataError: a column has no type, or one that can't be kept, or a name that another has.
    """
    names = [column.lower() for column in columns.names]
    for column in columns.names:
        if names.count(column.lower()) > 1:
            raise DataError(
                f"the query of table {name} has several columns named {column}",
                condition="DUPLICATE_COLUMN",
                table=name,
                hint="give them different names with AS",
            )
    plain = [StructField(field.name, field.dataType) for field in loose_schema(columns)]
    made = table(name, StructType(plain), ())
    return replace(made, options={**made.options, MADE_AS: _hash(query)})


def is_made_as(entry: Entry, query: str) -> bool:
    """Return whether CREATE TABLE AS has made an entry from this query."""
    return entry.options.get(MADE_AS) == _hash(query)


def _hash(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()


def stream_of_frame(
    name: str,
    frame: DataFrame,
    op: str | None,
    primary_key: Key,
    watermark: Watermark,
    options: Mapping[str, str],
    spark: SparkSession,
) -> Entry:
    """Return the entry of a stream over a streaming DataFrame; see `Engine.stream`."""
    if not frame.isStreaming:
        raise DataError(
            f"the DataFrame of stream {name} is not a streaming one",
            condition="NOT_STREAMING",
            hint="make it with spark.readStream, or use engine.table for rows at rest",
        )
    if op is not None and op not in frame.columns:
        raise DataError(
            f"stream {name} has no column {op}",
            condition="UNKNOWN_COLUMN",
            hint=f"the columns are {', '.join(frame.columns)}",
        )
    given = watermark or declared_watermark(frame)
    columns = nullable(frame.schema)
    known = time_options(options)
    return stream(name, columns, primary_key, given, spark, op=op, options=known)


def stream(
    name: str,
    columns: StructType,
    primary_key: Key,
    watermark: Watermark,
    spark: SparkSession,
    *,
    op: str | None = None,
    format: str = "",
    options: Mapping[str, str] | None = None,
) -> Entry:
    """Return the entry of a stream.

    Args:
        columns: all columns of the source, with the column `op` if there is one.
        op: the column that holds the operation of each row; views don't see it.
    """
    check_name(name, STREAM)
    if op is not None and not op.strip():
        raise wrong_argument("op", op, "give the name of a column, or None")
    shown = StructType([field for field in columns if field.name != op])
    entry = Entry(
        "", STREAM, name, shown.json(), key_of(shown, primary_key, name),
        format=format, options=dict(options or {}), operation=op or "",
    )  # fmt: skip
    _check_received(entry)
    return with_watermark(with_retention(entry, spark), watermark, spark)


def _check_received(stream: Entry) -> None:
    """Raise DataError if a stream can't have the column `_received_at` that it declares."""
    fields = [field for field in stream.columns if is_received(field.name)]
    if not fields:
        return
    what = f"stream {stream.name}"
    if not isinstance(fields[0].dataType, TimestampType):
        shown = f"it is a TIMESTAMP, not {fields[0].dataType.simpleString().upper()}"
        raise _reserved(what, shown, f"declare it as {RECEIVED_AT} TIMESTAMP, or leave it out")
    if not stream.given_columns.names:
        raise _reserved(what, "it is the only column", "declare the columns of the source too")
    if any(map(is_received, stream.key)):
        raise _reserved(what, "the source doesn't give it", "take other columns as primary key")
    if stream.operation and not stream.key:
        why = "a row is deleted at another time than it came, and would not be found"
        raise _reserved(what, why, "declare a primary key, or leave the column out")


def _reserved(what: str, why: str, hint: str) -> DataError:
    return DataError(
        f"{what} can't have this column {RECEIVED_AT}: {why}",
        condition="RESERVED_COLUMN",
        hint=hint,
    )


def time_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a stream without a format; EngineError for those it can't have."""
    own = (*TIME_OPTIONS, RETAIN)
    for unknown in [name for name in options if name.lower() not in own]:
        raise wrong_argument("an option", unknown, f"the options are {', '.join(own)}")
    return options


def pipeline_letters(pipeline: str, into: Entry | None) -> Entry:
    """Return the entry of a pipeline's dead letters."""
    return _letters(pipeline, PIPELINE, {INTO: into.name if into else ""})


def stream_letters(stream: Entry, role: str) -> Entry:
    """Return the entry of a stream's dead letters, in one of the roles that the catalog knows."""
    if role == PIPELINE:
        return pipeline_letters(stream.name, stream)
    return _letters(stream.name, role, {OF: stream.id})


def _letters(name: str, role: str, options: dict[str, str]) -> Entry:
    return Entry(
        "", STREAM, name + DEAD, columns_of(LETTERS).json(), KEY,
        format=role, options=options, operation=OPERATION,
    )  # fmt: skip


def columns_of(schema: str | StructType) -> StructType:
    """Return the columns of a stream: those of a DDL string or a StructType, all nullable.

    Raises:
        DataError: the text is not a list of columns, a type can't be kept, or a column has a DEFAULT.
    """
    columns, rules = declared(schema)
    for name in (name for name, rule in rules.items() if rule.default):
        raise DataError(
            f"column {name} of a stream has a DEFAULT, which only tables have",
            condition="BAD_SCHEMA",
            hint="write coalesce(column, value) in a view",
        )
    return columns


def declared(schema: str | StructType) -> tuple[StructType, dict[str, ColumnRule]]:
    """Return the columns of a DDL string or a StructType, all nullable, and the rules that it gives them.

    Raises:
        DataError: the text is not a list of columns, or a type can't be kept.
        ScriptError: SCRIPT_UNSUPPORTED: a column has a constraint that isn't supported.
    """
    defaults: dict[str, str] = {}
    if isinstance(schema, str):
        text, defaults = split_defaults(schema)
        try:
            parsed = parse_ddl(text)
        except FAILURES as error:
            raise _bad_schema(schema) from error
        if not isinstance(parsed, StructType):
            raise _bad_schema(schema)
        schema = parsed
    names = [name.lower() for name in schema.names]
    if not names or len(set(names)) < len(names):
        raise _bad_schema(schema.simpleString())
    for field in schema:
        if contains_type(field.dataType, ("void",)):
            raise _not_kept(field, _A_TYPE)
    rules = {
        field.name: ColumnRule(
            not field.nullable,
            defaults.get(field.name) or field.metadata.get(_SPARKS_DEFAULT, ""),
            field.dataType.jsonValue() if _CHARS.search(field.dataType.json()) else None,
        )
        for field in schema
    }
    return nullable(schema), rules


def _bad_schema(text: str) -> DataError:
    return DataError(
        f"{text!r} is not a list of columns with different names",
        condition="BAD_SCHEMA",
        hint='write it like "id BIGINT, name STRING"',
    )


_A_TYPE = "give its values a type: INT; in a query CAST(NULL AS INT), CAST(array() AS ARRAY<INT>)"
_ANOTHER_TYPE = "give it another type, such as INT for the months of an interval or BINARY for a shape, or leave it out"


def nullable(schema: StructType) -> StructType:
    """Return the schema as Spark's plans have it: all columns nullable, CHAR and VARCHAR as STRING.

    Raises:
        DataError: a column has a type that Spark and the operators can't exchange.
    """
    document = _CHARS.sub('"string"', schema.json())
    plain = StructType.fromJson(json.loads(document))
    for field in plain:
        if contains_type(field.dataType, SHAPES):
            raise _not_kept(field)
        if repeats_field(field.dataType):
            raise _not_kept(field, "give the fields of a struct different names")
        try:
            arrow_schema(StructType([field]), "UTC")
        except PySparkException as error:
            raise _not_kept(field) from error
    return StructType([StructField(field.name, field.dataType, True) for field in plain])


def _not_kept(field: StructField, way_out: str = _ANOTHER_TYPE) -> DataError:
    return DataError(
        f"column {field.name} has the type {field.dataType.simpleString()}, which can't be kept",
        condition="UNSUPPORTED_TYPE",
        hint=way_out,
    )


def key_of(columns: StructType, names: Key, relation: str) -> tuple[str, ...]:
    """Return the columns of a primary key in the spelling of the schema.

    Raises:
        CatalogError: a name is not a column.
    """
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",")]
    proper = {name.lower(): name for name in columns.names}
    unknown = [name for name in names if name.lower() not in proper]
    if unknown:
        raise CatalogError(
            f"the primary key of {relation} names {', '.join(unknown)}, which is not a column",
            condition="UNKNOWN_COLUMN",
            hint=f"the columns are {', '.join(columns.names)}",
        )
    return tuple(proper[name.lower()] for name in names)


def same(entry: Entry, present: Entry) -> bool:
    """Return whether a definition equals the one that the catalog has under its name."""
    if TABLE == entry.kind == present.kind:
        if not same_rules(entry, present):
            return False
        entry, present = without_rules(entry), without_rules(present)
    if entry.format.lower() == present.format.lower():
        entry = replace(entry, format=present.format)
    own = replace(entry, id=present.id, name=present.name, since=present.since)
    passed = (LOGGED, MADE_AS)
    options = {name: text for name, text in present.options.items() if name not in passed}
    return own == replace(present, options=options)


def name_taken(entry: Entry, *, given: Entry | None = None, way_out: str = "") -> CatalogError:
    """Return the error for a name that has another definition.

    Args:
        given: the definition that was given.
        way_out: what else a statement for a table can do.
    """
    hint = "take another name, or drop it first"
    path = path_of(entry.options)
    if given is not None and path and path != path_of(given.options):
        hint += f"; its path is {path}, and a relative path is that of the folder in which the process runs"
    if entry.kind == TABLE:
        hint += "; ALTER TABLE changes its columns, and their NOT NULL, DEFAULT and lengths"
        hint += f"; {way_out}" if way_out else ""
    return CatalogError(
        f"{entry.kind} {entry.name} exists with another definition",
        condition="NAME_TAKEN",
        hint=hint,
    )
