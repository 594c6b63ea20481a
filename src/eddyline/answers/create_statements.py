"""The CREATE statement that makes a table, stream, view or sink again, from its definition."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.column_rules import NO_RULE, declared_type, rules_of
from eddyline.catalog.entries import (
    COMMIT_INTERVAL,
    COMPANION,
    EXPECTATIONS,
    OF,
    PIPELINE,
    RETAIN,
    SINK,
    STREAM,
    TABLE,
    TIME_OPTIONS,
    Entry,
)
from eddyline.catalog.expectations import expectations_of
from eddyline.errors import CatalogError
from eddyline.sink.function import FUNCTION
from eddyline.sink.secrets import without_secrets_in
from eddyline.sql.expectations import KEEP, Expectation
from eddyline.sql.names import literal, quoted
from eddyline.sql.view_columns import without_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

SECRETS_NOTE = "-- '***' stands for a secret: write a reference, '${env:NAME}' or '${file:PATH}'\n"
"""The first line of a statement without its secrets."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_OPTION = re.compile(rf"{_PLAIN.pattern}(?:\.{_PLAIN.pattern})*")
_UNITS = (
    ("hours", 3_600_000_000),
    ("minutes", 60_000_000),
    ("seconds", 1_000_000),
    ("milliseconds", 1000),
    ("microseconds", 1),
)


def create_statement(entry: Entry, catalog: Catalog) -> str:
    """Return the statement that makes an entry of a catalog again in an empty storage.

    Secrets in its options are replaced, and `SECRETS_NOTE` then comes first.

    Raises:
        CatalogError: NO_STATEMENT, no statement of SQL makes it.
    """
    _check(entry, catalog)
    if entry.kind == TABLE:
        return _create("TABLE", entry, _column_list(entry))
    if entry.kind == STREAM:
        return _stream(entry)
    if entry.kind == SINK:
        view = f"FROM {sql_name(entry.upstream[0])}"
        return _with_options(_create("SINK", entry, view, f"USING {sql_format(entry)}"), entry)
    query, columns = written_query(entry)
    items = [*map(sql_name, columns), *map(constraint, expectations_of(entry))]
    return _create("VIEW", entry, _brackets(items), f"AS {query}")


def written_query(view: Entry) -> tuple[str, list[str]]:
    """Return the query of a view as it was written, with WINDOWING expanded, and its list of columns."""
    stored, names = view.options.get(EXPECTATIONS), view.columns.names
    query = str(json.loads(stored)["query"]) if stored else view.query
    query += " EMIT FINAL" if view.final and not stored else ""
    inner = without_columns(query, names)
    return (query, []) if inner is None else (inner, names)


def constraint(rule: Expectation) -> str:
    """Return the clause of an expectation.

    Example:
        >>> constraint(Expectation("positive", "n > 0", "drop row"))
        'CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DROP ROW'
    """
    action = "" if rule.action == KEEP else f" ON VIOLATION {rule.action.upper()}"
    return f"CONSTRAINT {sql_name(rule.name)} EXPECT ({rule.condition}){action}"


def watermark(stream: Entry) -> str:
    """Return the clause of a stream's watermark; empty without one."""
    if not stream.event_time:
        return ""
    time = sql_name(stream.event_time)
    delay = f" - INTERVAL {interval(stream.delay).upper()}" if stream.delay else ""
    return f"WATERMARK FOR {time} AS {time}{delay}"


def user_options(entry: Entry) -> dict[str, str]:
    """Return the options of a stream or sink as its statement gives them, secrets included."""
    options = dict(entry.source_options)
    for name in (COMMIT_INTERVAL,) if entry.kind == SINK else (RETAIN, *TIME_OPTIONS):
        if name in entry.options:
            options[name] = interval(int(entry.options[name]))
    return options


def interval(micros: int) -> str:
    """Return a number of microseconds in the largest unit that holds it as a whole number.

    Example:
        >>> interval(90_000_000)
        '90 seconds'
    """
    count, unit = next((micros // size, unit) for unit, size in _UNITS if micros % size == 0)
    return f"{count} {unit}"


def sql_name(name: str) -> str:
    """Return a name as SQL needs it: in backquotes unless it is a plain word."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def sql_type(kind: DataType) -> str:
    """Return a type of Spark as a list of columns needs it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(map(_field, kind.fields))}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString().upper()


def sql_format(entry: Entry) -> str:
    """Return the format after USING, as SQL needs it."""
    return _option_name(entry.format)


def column_texts(entry: Entry) -> list[str]:
    """Return the columns of a table or stream as its statement lists them, with their rules."""
    rules = rules_of(entry)
    texts = []
    for field in entry.columns:
        rule = rules.get(field.name, NO_RULE)
        words = [sql_name(field.name), sql_type(declared_type(field, rule))]
        words += ["NOT NULL"] if rule.not_null else []
        words += [f"DEFAULT {rule.default}"] if rule.default else []
        texts.append(" ".join(words))
    return texts


def _field(field: StructField) -> str:
    comment = (field.metadata or {}).get("comment")
    return (
        f"{sql_name(field.name)}: {sql_type(field.dataType)}"
        f"{'' if field.nullable else ' NOT NULL'}{f' COMMENT {literal(comment)}' if comment else ''}"
    )


def _create(kind: str, entry: Entry, *parts: str) -> str:
    head = " ".join(filter(None, (f"CREATE {kind} {sql_name(entry.name)}", parts[0])))
    return "\n".join((head, *filter(None, parts[1:])))


def _stream(stream: Entry) -> str:
    rules = [watermark(stream), *map(constraint, expectations_of(stream))]
    operation = f" OP {sql_name(stream.operation)}" if stream.operation else ""
    source = f"USING {sql_format(stream)}{operation}"
    text = _create("STREAM", stream, _column_list(stream, rules), source)
    return _with_options(text, stream)


def _column_list(entry: Entry, more: Iterable[str] = ()) -> str:
    """Return the brackets with the columns, the primary key and what else belongs there."""
    key = f"PRIMARY KEY ({', '.join(map(sql_name, entry.key))})" if entry.key else ""
    return _brackets([*column_texts(entry), key, *more])


def _brackets(items: Iterable[str]) -> str:
    lines = ",\n".join(f"  {item}" for item in items if item)
    return f"(\n{lines})" if lines else ""


def _with_options(text: str, entry: Entry) -> str:
    given = user_options(entry)
    shown: Mapping[str, str] = without_secrets_in(given)
    if shown:
        pairs = ",\n".join(f"  {_option_name(name)} = {literal(shown[name])}" for name in shown)
        text = f"{text}\nOPTIONS (\n{pairs})"
    return text if shown == given else SECRETS_NOTE + text


def _option_name(name: str) -> str:
    return name if _PLAIN_OPTION.fullmatch(name) else literal(name)


def _check(entry: Entry, catalog: Catalog) -> None:
    """Raise CatalogError if no statement makes an entry."""
    if entry.kind == SINK and entry.format == FUNCTION:
        why, way_out = "it calls a function", "give it to `View.foreach_epoch` in Python"
    elif entry.of_frame:
        why, way_out = "a DataFrame defines it", "give it to `Engine.view` in Python"
    elif entry.role == PIPELINE:
        why, way_out = "it comes with a pipeline", "build that with `Engine.pipeline` in Python"
    elif COMPANION in entry.options or entry.role:
        owner = _owner(entry, catalog)
        why, way_out = f"it comes with {owner}", f"ask for the statement of {owner}"
    elif entry.kind == STREAM and not entry.format:
        why = "a DataFrame or a pipeline writes it"
        way_out = "define it with `Engine.stream` or `Engine.pipeline` in Python"
    else:
        return
    raise CatalogError(
        f"no statement of SQL makes {entry.kind} {entry.name}: {why}",
        condition="NO_STATEMENT",
        hint=way_out,
    )


def _owner(entry: Entry, catalog: Catalog) -> str:
    """Return the name of the definition that an entry belongs to."""
    wanted = entry.late_of or entry.options.get(OF, "")
    known = (one.name for one in (*catalog.entries, *catalog.sinks) if one.id == wanted)
    return next(known, entry.options.get(COMPANION, "another one"))
