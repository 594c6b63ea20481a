"""Parse DELETE, TRUNCATE, UPDATE and MERGE; `statements.py` parses INSERT."""

from __future__ import annotations

from eddyline.sql.forms import Delete, Merge, Update, When
from eddyline.sql.lexer import TokenCursor

PAIRS, OF_SOURCE, OF_TABLE = "MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"
UPDATE, INSERT, DELETE = "update", "insert", "delete"

_ACTIONS = {PAIRS: (UPDATE, DELETE), OF_SOURCE: (INSERT,), OF_TABLE: (UPDATE, DELETE)}


def parse_delete(cursor: TokenCursor) -> Delete:
    """Parse what follows the word DELETE."""
    cursor.expect("FROM")
    table = cursor.name("the name of the table")
    alias = _alias(cursor, "WHERE")
    if "USING" in (cursor.word(-1), cursor.word()) and cursor.word() not in ("", "WHERE"):
        way_out = "use WHERE EXISTS (SELECT ...), or MERGE ... WHEN MATCHED THEN DELETE"
        cursor.refuse("DELETE ... USING", way_out)
    where = cursor.rest("the condition") if cursor.accept("WHERE") else None
    return Delete(table, where, alias, line=cursor.line)


def parse_truncate(cursor: TokenCursor) -> Delete:
    """Parse what follows the word TRUNCATE."""
    cursor.expect("TABLE")
    return Delete(cursor.name("the name of the table"), line=cursor.line)


def parse_update(cursor: TokenCursor) -> Update:
    """Parse what follows the word UPDATE."""
    table = cursor.name("the name of the table")
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    assignments = _assignments(cursor, alias or table, "WHERE")
    where = cursor.rest("the condition") if cursor.word(-1) == "WHERE" else None
    return Update(table, assignments, where, alias, line=cursor.line)


def parse_merge(cursor: TokenCursor) -> Merge:
    """Parse what follows the word MERGE.

    Raises:
        ScriptError: it isn't of the form that `Merge` shows, or a clause can never apply.
    """
    if cursor.accept("WITH", "SCHEMA", "EVOLUTION"):
        cursor.refuse("WITH SCHEMA EVOLUTION", "ALTER TABLE ... ADD COLUMN first")
    cursor.expect("INTO")
    table = cursor.name("the name of the table")
    alias = _alias(cursor, "USING")
    cursor.expect("USING")
    start = cursor.at
    name = ""
    if cursor.accept("("):
        for _ in cursor.items(")"):
            pass
    else:
        name = cursor.name("the name of the source, or a query in brackets,")
    name = _alias(cursor, "ON") or name
    if name and cursor.word() == "(":
        cursor.names()
    source = cursor.slice(start, cursor.at)
    cursor.expect("ON")
    condition = cursor.before("WHEN", "the condition")
    clauses = [_when(cursor, alias or table)]
    while cursor.word(-1) == "WHEN":
        clauses.append(_when(cursor, alias or table))
    for number, clause in enumerate(clauses):
        if clause.condition is None and clause.of in [one.of for one in clauses[number + 1 :]]:
            cursor.fail(
                f"the clause after WHEN {clause.of} without a condition never applies",
                "only the last clause of each kind is without one",
            )
    return Merge(table, alias, source, name, condition, tuple(clauses), line=cursor.line)


def tables_before(cursor: TokenCursor) -> tuple[int, list[str]]:
    """Return how many tokens ahead the statement after WITH and its common table expressions begins, and their names in lower case."""
    names: list[str] = []
    depth, ahead, first = 0, 1, True
    if cursor.word(1) == "RECURSIVE" and cursor.word(2) not in ("(", "AS"):
        ahead = 2
    while cursor.at + ahead < len(cursor.tokens):
        word = cursor.word(ahead)
        if first:
            names.append(word.strip("`").lower())
        depth += {"(": 1, ")": -1}.get(word, 0)
        first = not depth and word == ","
        ahead += 1
        if word == ")" and not depth and cursor.word(ahead) not in (",", "(", "AS", "MAX"):
            break
    return ahead, names


def _alias(cursor: TokenCursor, before: str) -> str | None:
    """Consume `[AS] alias` where the word `before`, or the end, doesn't follow at once."""
    if not cursor.accept("AS") and (cursor.done or cursor.word() == before):
        return None
    return cursor.name("another name for the table")


def _when(cursor: TokenCursor, table: str) -> When:
    """Parse a clause whose WHEN is consumed, and the WHEN of the next one."""
    of = OF_SOURCE if cursor.accept("NOT") else PAIRS
    cursor.expect("MATCHED")
    if of == OF_SOURCE and cursor.accept("BY") and cursor.one_of("SOURCE", "TARGET") == "SOURCE":
        of = OF_TABLE
    condition = None
    if cursor.accept("AND"):
        condition = cursor.before("THEN", "the condition")
    else:
        cursor.expect("THEN")
    action = cursor.one_of("UPDATE", "INSERT", "DELETE").lower()
    if action not in _ACTIONS[of]:
        allowed = " or ".join(_ACTIONS[of]).upper()
        cursor.fail(f"WHEN {of} can't {action.upper()}", f"it can {allowed}")
    values: tuple[tuple[str, str], ...] | None = ()
    if action == UPDATE:
        cursor.expect("SET")
        values = None if cursor.accept("*") else _assignments(cursor, table, "WHEN")
    elif action == INSERT:
        values = None if cursor.accept("*") else _inserted(cursor)
    if values is None and of == OF_TABLE:
        cursor.fail("UPDATE SET * has no source here", "set each column: SET column = expression")
    if not cursor.done and cursor.word(-1) != "WHEN":
        cursor.expect("WHEN")
    return When(of, action, values, condition)


def _assignments(cursor: TokenCursor, table: str, stop: str) -> tuple[tuple[str, str], ...]:
    """Parse `column = expression, ...` and the word `stop`, or the end; a column may be called `table.column`."""
    found: dict[str, tuple[str, str]] = {}
    for item in cursor.items(stop):
        if item.word(1) == "." and item.word().strip("`") == table.upper():
            item.at += 2
        column = item.name("a column name")
        item.expect("=")
        _refuse_from(item)
        if column.lower() in found:
            cursor.fail(f"column {column} is set twice")
        found[column.lower()] = column, item.rest(f"the value of {column}")
    if not found:
        cursor.fail("no column is set")
    return tuple(found.values())


def _refuse_from(item: TokenCursor) -> None:
    """Refuse `value FROM other`: the rows of another table can't be named after the values."""
    start = item.at
    for word in item.outside_brackets(cases=True):
        if word == "FROM" and item.word(-1) != "DISTINCT":
            way_out = "use MERGE, or subqueries: SET c = (SELECT ...) WHERE EXISTS (SELECT ...)"
            item.refuse("UPDATE ... FROM", way_out)
    item.at = start


def _inserted(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    """Parse `(columns) VALUES (expressions)`."""
    columns = cursor.names()
    cursor.expect("VALUES", "(")
    values = [item.rest("a value") for item in cursor.items(")")]
    if len(values) != len(columns):
        cursor.fail(f"INSERT names {len(columns)} columns, and gives {len(values)} values")
    if len({column.lower() for column in columns}) < len(columns):
        cursor.fail("INSERT names a column twice")
    return tuple(zip(columns, values, strict=True))
