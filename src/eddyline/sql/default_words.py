"""The word DEFAULT in statements, where the default of a column stands for a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from eddyline.sql.dml import tables_before
from eddyline.sql.lexer import TokenCursor, split


def with_default(value: str, column: str, defaults: Mapping[str, str]) -> str:
    """Return the expression that a column is set to: its default for the word DEFAULT, NULL if it has none.

    Args:
        defaults: the expressions of the columns that have one, by name in lower case.

    Example:
        >>> with_default("DEFAULT", "a", {"a": "1 + 1"}), with_default("DEFAULT", "b", {}), with_default("b", "a", {})
        ('1 + 1', 'NULL', 'b')
    """
    return defaults.get(column.lower(), "NULL") if value.strip().upper() == "DEFAULT" else value


def rows_with_defaults(
    query: str, columns: Sequence[tuple[str, str]], defaults: Mapping[str, str]
) -> str:
    r"""Return a query whose rows after VALUES have the defaults of their columns where they say DEFAULT.

    All values of such a column are cast to its type, as Spark finds one type for the values of a column first.

    Args:
        columns: name and type of the column of each value of a row.
        defaults: as for `with_default`.

    Example:
        >>> rows_with_defaults("VALUES (1, DEFAULT)", [("a", "int"), ("b", "int")], {"b": "7"})
        'VALUES (1, CAST((7\n) AS int))'
    """
    given = list(_values(query))
    places = {
        place for place, value in given if len(value.tokens) == 1 and value.word() == "DEFAULT"
    }
    text, copied = "", 0
    for place, value in given:
        if place not in places:
            continue
        name, kind = columns[place] if place < len(columns) else ("", "void")
        start, end = value.tokens[0].start, value.tokens[-1].end + 1
        text += f"{query[copied:start]}CAST(({with_default(query[start:end], name, defaults)}\n) AS {kind})"
        copied = end
    return text + query[copied:]


def _values(query: str) -> Iterator[tuple[int, TokenCursor]]:
    """Yield the values of the rows in brackets that follow VALUES, each with its place in the row."""
    cursor = next(split(query))
    if cursor.word() == "WITH":
        cursor.at += tables_before(cursor)[0]
    follows = cursor.accept("VALUES")
    while follows and cursor.accept("("):
        yield from enumerate(cursor.items(")"))
        follows = cursor.accept(",")
