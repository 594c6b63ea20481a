"""Parse DESCRIBE and SHOW."""

from __future__ import annotations

import re
from collections.abc import Callable

from eddyline.sql.forms import (
    KINDS,
    QUERY_HEADS,
    Describe,
    DescribeQuery,
    Show,
    ShowColumns,
    ShowCreate,
)
from eddyline.sql.lexer import TokenCursor

_KINDS = {**KINDS, "TABLE": ""}  # TABLE stands for any kind, as in Spark
_LISTS = {f"{word}S": kind for word, kind in KINDS.items()}
_QUERIES = QUERY_HEADS - {"TABLE"}
ONE_CATALOG = "leave it out: all names of an engine live side by side"

_OTHERS = {
    "CATALOG": ONE_CATALOG,
    "DATABASE": ONE_CATALOG,
    "DETAIL": "use DESCRIBE EXTENDED",
    "FUNCTION": "the functions are those of Spark, and of its session",
    "HISTORY": "read the changes of a view, or a SELECT with VERSION AS OF",
    "NAMESPACE": ONE_CATALOG,
    "SCHEMA": ONE_CATALOG,
}
"""What other systems describe, each with a way out."""


def parse_describe(
    cursor: TokenCursor, query: Callable[[TokenCursor], str]
) -> Describe | DescribeQuery:
    """Parse the rest of `DESCRIBE [TABLE | STREAM | VIEW | SINK] [EXTENDED] name` or `DESCRIBE [QUERY] query`.

    Args:
        query: parses a query.

    Raises:
        ScriptError: it isn't of this form.
    """
    more = cursor.word(1) not in ("", ".")
    if more and (cursor.accept("QUERY") or cursor.word() in _QUERIES):
        return DescribeQuery(query(cursor), line=cursor.line)
    if more and cursor.word() in _OTHERS:
        cursor.refuse(f"DESCRIBE {cursor.word()}", _OTHERS[cursor.word()])
    kind = _kind(cursor) if more else ""
    extended = cursor.word(1) != "" and (cursor.accept("EXTENDED") or cursor.accept("FORMATTED"))
    name = cursor.name("the name of a table, stream or view, or a query,")
    if not cursor.done:
        cursor.refuse(
            "DESCRIBE of a part, or in another form",
            "give the name alone, after EXTENDED for all that is known",
        )
    return Describe(name, kind, extended, line=cursor.line)


def parse_show(cursor: TokenCursor) -> Show | ShowColumns | ShowCreate:
    """Parse the rest of `SHOW TABLES [LIKE 'pattern']`, `SHOW COLUMNS IN name` or `SHOW CREATE TABLE name`.

    Raises:
        ScriptError: it isn't of this form.
    """
    word = cursor.word()
    if word.endswith("S") and word[:-1] in _OTHERS:
        cursor.refuse(f"SHOW {word}", _OTHERS[word[:-1]])
    what = cursor.one_of(*_LISTS, "COLUMNS", "CREATE")
    if what == "COLUMNS":
        cursor.one_of("IN", "FROM")
        name = cursor.name("the name of a table, stream or view")
        _refuse_catalog(cursor)
        return ShowColumns(name, line=cursor.line)
    if what == "CREATE":
        if cursor.word() not in ("MATERIALIZED", "LIVE", *_KINDS):
            cursor.fail(f"TABLE, STREAM, VIEW or SINK is expected {cursor.place()}")
        kind = _kind(cursor)
        return ShowCreate(cursor.name("the name"), kind, line=cursor.line)
    _refuse_catalog(cursor)
    if cursor.done:
        return Show(_LISTS[what], line=cursor.line)
    if not cursor.accept("LIKE") and not cursor.at_string:
        cursor.fail(f"LIKE 'pattern' or the end is expected {cursor.place()}")
    pattern = cursor.string()
    try:
        name_pattern(pattern)
    except re.error as error:
        cursor.fail(
            f"{pattern!r} is no pattern: {error}", "write * for any characters, and | for or"
        )
    return Show(_LISTS[what], pattern, line=cursor.line)


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern of SHOW ... LIKE, which must match the whole name.

    As in Spark, `*` stands for any characters, `|` separates patterns, letter case doesn't matter, and all other
    characters are those of a regular expression.

    Raises:
        re.error: the pattern is wrong.

    Example:
        >>> [name for name in ("orders", "Users", "log") if name_pattern("us* | log").fullmatch(name)]
        ['Users', 'log']
    """
    parts = [part.strip().replace("*", ".*") for part in pattern.split("|")]
    return re.compile("|".join(f"(?:{part})" for part in parts), re.IGNORECASE)


def _kind(cursor: TokenCursor) -> str:
    """Consume TABLE, STREAM, `[MATERIALIZED | LIVE] VIEW` or SINK, if one follows; empty for TABLE and none."""
    if cursor.word() in ("MATERIALIZED", "LIVE") and cursor.word(1) == "VIEW":
        cursor.at += 1
    kind = _KINDS.get(cursor.word())
    cursor.at += kind is not None
    return kind or ""


def _refuse_catalog(cursor: TokenCursor) -> None:
    if cursor.word() in ("IN", "FROM"):
        cursor.refuse(f"SHOW ... {cursor.word()} a database", ONE_CATALOG)
