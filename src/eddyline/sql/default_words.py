"""The word DEFAULT in statements, where the default of a column stands for a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eddyline.sql.lexer import split


def with_default(value: str, column: str, defaults: Mapping[str, str]) -> str:
    """Return the expression that a column is set to: its default for the word DEFAULT, NULL if it has none.

    Args:
        defaults: the expressions of the columns that have one, by name in lower case.

    Example:
        >>> with_default("DEFAULT", "a", {"a": "1 + 1"}), with_default("DEFAULT", "b", {}), with_default("b", "a", {})
        ('1 + 1', 'NULL', 'b')
    """
    return defaults.get(column.lower(), "NULL") if value.strip().upper() == "DEFAULT" else value


def rows_with_defaults(query: str, columns: Sequence[str], defaults: Mapping[str, str]) -> str:
    r"""Return a query whose rows after VALUES have the defaults of their columns where they say DEFAULT.

    Args:
        columns: the column of each value of a row.
        defaults: as for `with_default`.

    Example:
        >>> rows_with_defaults("VALUES (1, DEFAULT), (2, abs(-3))", ["a", "b"], {"b": "7"})
        'VALUES (1, (7\n)), (2, abs(-3))'
    """
    cursor = next(split(query))
    if not cursor.accept("VALUES"):
        return query
    found, copied, depth, place = "", 0, 0, 0
    while not cursor.done:
        word, token = cursor.word(), cursor.tokens[cursor.at]
        if word in ("(", "[", "{"):
            depth += 1
            place = 0 if depth == 1 else place
        elif word in (")", "]", "}"):
            depth -= 1
        elif depth == 1 and word == ",":
            place += 1
        elif (
            depth == 1
            and word == "DEFAULT"
            and cursor.word(-1) in ("(", ",")
            and cursor.word(1) in (",", ")")
        ):
            column = columns[place] if place < len(columns) else ""
            found += f"{query[copied : token.start]}({with_default(word, column, defaults)}\n)"
            copied = token.end + 1
        cursor.at += 1
    return found + query[copied:]
