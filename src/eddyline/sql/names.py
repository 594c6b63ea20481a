"""Names as SQL writes them."""

from __future__ import annotations

import re
from collections.abc import Collection

from eddyline.errors import CatalogError

NAME_CHARACTERS_MAX = 255


def check_name(name: object, kind: str) -> str:
    """Return the name of a new definition; `kind` says of what, for the message.

    Every name that Spark allows in backquotes is allowed, except those that break a line.

    Raises:
        CatalogError: INVALID_NAME.
    """
    if not isinstance(name, str):
        problem = "it is not text"
    elif not name.strip():
        problem = "it is empty"
    elif len(name) > NAME_CHARACTERS_MAX:
        problem = f"it has more than {NAME_CHARACTERS_MAX} characters"
    elif unfit := next((c for c in name if not (c.isprintable() or c == " ")), ""):
        problem = f"it contains {unfit!r}"
    else:
        return name
    raise CatalogError(
        f"{ascii(name)[:100]} can't be the name of a {kind}: {problem}",
        condition="INVALID_NAME",
        hint="use letters, digits and underscores; other printable characters need backquotes in SQL",
    )


def mentions(words: Collection[str], query: str, name: str) -> bool:
    """Return whether a query may name a relation.

    Args:
        words: the words of the query.
        query: the query in lower case.
        name: of the relation. Names other than words occur in the quotes of identifiers.
    """
    name = name.lower()
    if re.fullmatch(r"\w+", name):
        return name in words
    doubled = name.replace('"', '""')
    return quoted(name) in query or f'"{doubled}"' in query


def quoted(name: str) -> str:
    """Return a name in backticks, so that SQL takes it literally, dots and backticks included."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    r"""Return a string literal of Spark SQL.

    Example:
        >>> print(literal("it's"))
        'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
