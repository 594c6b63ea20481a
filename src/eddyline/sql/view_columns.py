"""The columns and constraints in brackets after the name of a view: `CREATE VIEW v (a, b, CONSTRAINT ...)`.

Columns get their names from a SELECT around the query. It keeps the order of the query's ORDER BY.
"""

from __future__ import annotations

from collections.abc import Sequence

from eddyline.sql.constraints import checked_names, is_expectation, parse_expectation
from eddyline.sql.dialect import remove_emit_final
from eddyline.sql.expectations import Expectation
from eddyline.sql.lexer import TokenCursor
from eddyline.sql.names import quoted

_HEAD = "SELECT * FROM ("
_FINAL = " EMIT FINAL"


def parse_brackets(cursor: TokenCursor) -> tuple[tuple[str, ...], tuple[Expectation, ...]]:
    """Parse `(a, b, CONSTRAINT c EXPECT (...))` into the names of columns and the expectations.

    Raises:
        ScriptError: it isn't of this form, or a name comes twice.
    """
    cursor.expect("(")
    columns: list[str] = []
    expected: list[Expectation] = []
    for item in cursor.items(")"):
        if is_expectation(item):
            expected.append(parse_expectation(item))
            continue
        name = item.name("a column name")
        if item.word() == "COMMENT":
            item.refuse(
                "a COMMENT on a column of a view",
                "leave it out, or write it as -- a comment of SQL",
            )
        if not item.done:
            item.fail(
                f"column {name} of the view has more than a name", "its type is that of the query"
            )
        if name.lower() in map(str.lower, columns):
            item.fail(f"column {name} is named twice", "give each a name of its own")
        columns.append(name)
    return tuple(columns), checked_names(cursor, expected)


def with_columns(query: str, columns: Sequence[str]) -> str:
    """Return a query that gives the columns of another one these names, in order.

    Example:
        >>> with_columns("SELECT a, count(*) FROM t GROUP BY a EMIT FINAL", ["key", "n"])
        'SELECT * FROM (SELECT a, count(*) FROM t GROUP BY a) AS named(`key`, `n`) EMIT FINAL'
    """
    if not columns:
        return query
    query, final = remove_emit_final(query)
    return f"{_HEAD}{query}{_tail(columns)}{_FINAL if final else ''}"


def without_columns(query: str, columns: Sequence[str]) -> str | None:
    """Return the query that `with_columns` was given; None if the text isn't of that function.

    Example:
        >>> without_columns("SELECT * FROM (SELECT 1) AS named(`a`)", ["a"])
        'SELECT 1'
    """
    tail = _tail(columns)
    final = query.endswith(tail + _FINAL)
    whole = query.removesuffix(_FINAL) if final else query
    if not (whole.startswith(_HEAD) and whole.endswith(tail)):
        return None
    return whole[len(_HEAD) : -len(tail)].rstrip() + (_FINAL if final else "")


def _tail(columns: Sequence[str]) -> str:
    return f") AS named({', '.join(map(quoted, columns))})"
