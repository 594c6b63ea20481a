"""Parse `CONSTRAINT name EXPECT (condition) ON VIOLATION ...` of streams and views."""

from __future__ import annotations

from eddyline.sql.expectations import DEAD_LETTER, DROP_ROW, KEEP, STOP, Expectation
from eddyline.sql.lexer import TokenCursor

_ACTIONS = {
    ("KEEP",): KEEP,
    ("DROP", "ROW"): DROP_ROW,
    ("DEAD", "LETTER"): DEAD_LETTER,
    ("STOP",): STOP,
    ("FAIL", "UPDATE"): STOP,  # as Databricks says it
}


def is_expectation(item: TokenCursor) -> bool:
    """Return whether `CONSTRAINT name EXPECT` follows, and not a column of this name."""
    return item.word() == "CONSTRAINT" and item.word(2) == "EXPECT"


def parse_expectation(item: TokenCursor) -> Expectation:
    """Parse `CONSTRAINT name EXPECT (condition) [ON VIOLATION KEEP | DROP ROW | DEAD LETTER | STOP]`.

    Raises:
        ScriptError: it isn't of this form.
    """
    item.expect("CONSTRAINT")
    name = item.name("the name of the constraint")
    item.expect("EXPECT", "(")
    parts = list(item.items(")"))
    if len(parts) > 1:
        item.fail(f"the condition of constraint {name} is several", "join them with AND")
    condition = parts[0].slice(0, len(parts[0].tokens))
    if item.done:
        return Expectation(name, condition)
    item.expect("ON", "VIOLATION")
    for words, action in _ACTIONS.items():
        if item.accept(*words):
            item.end()
            return Expectation(name, condition, action)
    item.fail(f"KEEP, DROP ROW, DEAD LETTER or STOP is expected {item.place()}")


def checked_names(cursor: TokenCursor, found: list[Expectation]) -> tuple[Expectation, ...]:
    """Return expectations; raise ScriptError if two have the same name."""
    names = [one.name.lower() for one in found]
    for name in names:
        if names.count(name) > 1:
            cursor.fail(f"two constraints are named {name}", "give each a name of its own")
    return tuple(found)
