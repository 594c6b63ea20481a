"""Parse the columns of tables and streams: NOT NULL, DEFAULT, and the constraints that are refused.

Types stay verbatim text, which only Spark interprets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from eddyline.errors import ScriptError
from eddyline.sql.lexer import TokenCursor, split

OF_STREAMS = "give the stream an expectation: CONSTRAINT name EXPECT (condition)"
"""The way out for rules of streams."""

_NUMBERS = "give each row its number, or uuid(), where it is written"
_PARTNERS = "join the tables in a view that shows the rows without a partner"
_WAYS_OUT = {
    "CHECK": "check it before rows are written, or with CONSTRAINT ... EXPECT of a view of the table",
    "UNIQUE": "use PRIMARY KEY: a later row of a key replaces the earlier",
    "REFERENCES": _PARTNERS,
    "FOREIGN KEY": _PARTNERS,
    "GENERATED": "compute the column in a view; number rows where they are written",
    "IDENTITY": _NUMBERS,
    "AUTO_INCREMENT": _NUMBERS,
    "AUTOINCREMENT": _NUMBERS,
    "CONSTRAINT": "a table has NOT NULL, DEFAULT, lengths of texts and PRIMARY KEY (columns)",
    "NULL": "leave it out: a column without NOT NULL may be null",
}
_CHECKS = ("CHECK", "UNIQUE", "CONSTRAINT")
_HEADS = ("CHECK", "UNIQUE", "FOREIGN", "PRIMARY")  # of constraints of a table
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A column of a list of columns.

    Attributes:
        text: all but DEFAULT, in the order in which Spark's parser reads it.
        without_key: the text as written, without PRIMARY KEY.
        is_key: whether it has PRIMARY KEY.
        default: the expression after DEFAULT; empty for none.
    """

    text: str
    without_key: str
    is_key: bool = False
    default: str = ""


def parse_column(item: TokenCursor, *, stream: bool = False) -> ParsedColumn:
    """Parse `name type [NOT NULL] [DEFAULT expression] [COMMENT text] [PRIMARY KEY]`, in any order after the type.

    Args:
        stream: whether it is a column of a stream, which can't have a DEFAULT.

    Raises:
        ScriptError: it has a constraint that isn't supported.
    """
    clauses = [("", 0)]
    depth, at = 0, 1
    while at < len(item.tokens):
        item.at = at
        found = "" if depth else _clause(item, clauses[-1][0])
        if found in _WAYS_OUT:
            _refuse(item, found, "column", stream=stream)
        if found == "DEFAULT" and stream:
            item.refuse(
                "DEFAULT of a stream's column",
                "write coalesce(column, value) in a view; a table can have a DEFAULT",
            )
        if found:
            if any(found == clause for clause, _ in clauses):
                item.fail(f"{found} is given twice")
            clauses.append((found, at))
        depth += _step(item, in_type=clauses[-1][0] == "")
        at += len(found.split()) or 1
    ends = [start for _, start in clauses[1:]] + [len(item.tokens)]
    texts = {
        clause: item.slice(start, end) for (clause, start), end in zip(clauses, ends, strict=True)
    }
    default = texts.get("DEFAULT", "")
    if default.upper() == "DEFAULT":
        item.fail("an expression is missing after DEFAULT")
    known = (texts.get(clause, "") for clause in ("", "NOT NULL", "COMMENT", "PRIMARY KEY"))
    whole, key = item.slice(0, len(item.tokens)), dict(clauses).get("PRIMARY KEY")
    if key is not None:
        whole = f"{item.slice(0, key)} {item.slice(key + 2, len(item.tokens))}".strip()
    return ParsedColumn(
        " ".join(filter(None, known)), whole, key is not None, default[len("DEFAULT") :].strip()
    )


def _step(item: TokenCursor, *, in_type: bool) -> int:
    """Return by how many brackets the next token opens or closes."""
    word = item.word()
    if in_type and word == "<":
        return 1
    if in_type and set(word) == {">"}:
        return -len(word)
    return (word in _OPENING) - (word in _CLOSING)


def _clause(item: TokenCursor, current: str) -> str:
    """Return the clause that begins at the next token; empty for none."""
    word, before = item.word(), item.word(-1)
    if word in ("DEFAULT", "UNIQUE", "REFERENCES", "GENERATED", "CONSTRAINT", "IDENTITY"):
        return word
    if word in ("AUTO_INCREMENT", "AUTOINCREMENT") or (word == "CHECK" and item.word(1) == "("):
        return word
    if word == "NOT" and item.word(1) == "NULL" and before != "IS":
        return "NOT NULL"
    if word == "PRIMARY" and item.word(1) == "KEY":
        return "PRIMARY KEY"
    if word == "COMMENT" and item.string_follows(1):
        return word
    return word if word == "NULL" and current != "DEFAULT" else ""  # there it is a value


def refuse_table_constraint(item: TokenCursor, *, stream: bool = False) -> None:
    """Raise ScriptError for an item such as `CHECK (...)` or `FOREIGN KEY (...)` of a list of columns."""
    word = item.word()
    if word in ("CHECK", "UNIQUE") and item.word(1) == "(":
        _refuse(item, word, "table", stream=stream)
    if word == "FOREIGN" and item.word(1) == "KEY":
        _refuse(item, "FOREIGN KEY", "table", stream=stream)
    if word == "CONSTRAINT" and item.word(2) in _HEADS:
        _refuse(item, word, "table", stream=stream)


def _refuse(item: TokenCursor, what: str, of: str, *, stream: bool) -> NoReturn:
    way_out = OF_STREAMS if stream and what in _CHECKS else _WAYS_OUT[what]
    item.refuse(f"{what} of a {'stream' if stream and of == 'table' else of}", way_out)


def split_defaults(text: str) -> tuple[str, dict[str, str]]:
    """Return a list of columns as Spark's parser reads it, and the DEFAULT of each column that has one.

    A text that isn't a list of columns is returned as it is: Spark says what is wrong with it.

    Raises:
        ScriptError: SCRIPT_UNSUPPORTED: a constraint isn't supported.

    Example:
        >>> split_defaults("a INT DEFAULT 1 + 1 NOT NULL, b STRING")
        ('a INT NOT NULL, b STRING', {'a': '1 + 1'})
    """
    columns, defaults = [], {}
    try:
        (cursor,) = split(text)
        for item in cursor.items(""):
            refuse_table_constraint(item)
            name = item.name("a column name")
            column = parse_column(item)
            columns.append(column.text)
            if column.default:
                defaults[name] = column.default
    except ValueError:  # none, or several statements
        return text, {}
    except ScriptError as error:
        if error.condition == "SCRIPT_UNSUPPORTED":
            raise
        return text, {}
    return ", ".join(columns), defaults
