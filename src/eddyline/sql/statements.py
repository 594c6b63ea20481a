"""Parse SQL scripts into frozen statements. Pure: needs neither a JVM nor an engine.

The parser reads the head of a statement only. Queries, conditions, expressions and column types
stay verbatim text, which only Spark interprets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eddyline.sql.cdc import parse_flow
from eddyline.sql.clauses import refuse_clauses
from eddyline.sql.columns import OF_STREAMS, parse_column, refuse_table_constraint
from eddyline.sql.constraints import (
    checked_names,
    is_expectation,
    parse_expectation,
)
from eddyline.sql.describing import ONE_CATALOG, parse_describe, parse_show
from eddyline.sql.dml import parse_delete, parse_merge, parse_truncate, parse_update, tables_before
from eddyline.sql.expectations import Expectation
from eddyline.sql.forms import (
    KINDS,
    QUERY_HEADS,
    AlterColumns,
    AlterView,
    ColumnChange,
    CreateFlow,
    CreateSink,
    CreateStream,
    CreateTable,
    CreateTableAs,
    CreateView,
    Describe,
    DescribeQuery,
    Drop,
    DropConstraint,
    Explain,
    Insert,
    Merge,
    ResetWatermark,
    Retain,
    Select,
    SessionFunction,
    Statement,
)
from eddyline.sql.lexer import TokenCursor, split
from eddyline.sql.view_columns import parse_brackets, with_columns

_FILES = "CREATE STREAM ... USING csv, json or parquet; or insert a DataFrame: table.insert(spark.read.csv(...))"

WAYS_OUT = {
    "ALTER": "a table or stream has ADD COLUMNS (c type), DROP COLUMNS (c), RENAME COLUMN c TO d, ALTER COLUMN c TYPE "
    "type; a table also ALTER COLUMN c SET NOT NULL, DROP NOT NULL, SET DEFAULT e, DROP DEFAULT; a stream also DROP "
    "CONSTRAINT c, RESET WATERMARK, RETAIN; a view AS query, as CREATE OR REPLACE VIEW; else DROP it and CREATE it anew",
    "ANALYZE": "leave it out: statistics of rows aren't used",
    "BEGIN": "write the statements one after another, without BEGIN and END",
    "CACHE": "leave it out: the result of a view is stored already",
    "COPY": _FILES,
    "DATABASE": ONE_CATALOG,
    "DECLARE": "write the value into the statements, or fill in their text with Python",
    "EXECUTE": "write the statement out, or fill in its text with Python",
    "FUNCTION": "CREATE TEMPORARY FUNCTION name(a INT) RETURNS INT RETURN expression, in each script that uses it",
    "INDEX": "leave it out: state is kept by the keys that views look up",
    "LOAD": _FILES,
    "OPTIMIZE": "leave it out: stored rows are compacted as epochs run",
    "REFRESH": "leave it out: a view is always up to date with the last committed epoch",
    "SCHEMA": ONE_CATALOG,
    "STREAMING": "use CREATE STREAM; CREATE FLOW ... AS AUTO CDC INTO creates its target",
    "SET": "give Eddyline's settings as Options or EDDYLINE_* variables, Spark's to its session",
    "WITH": "put it into the subquery: WHERE k IN (WITH w AS (...) SELECT k FROM w)",
    "TEMPORARY": "CREATE VIEW, which is kept live until it is dropped; or WITH, for one query",
    "USE": ONE_CATALOG,
    "VACUUM": "leave it out: files that no retained epoch needs are removed as epochs run",
}
"""Refused statements and objects of other SQL systems, each with what to do instead."""

_ON_KEYS = (("ON", "CONFLICT", "DO"), ("ON", "CONFLICT", "("), ("ON", "DUPLICATE", "KEY"))

_COLUMNS_FIRST = "CREATE TABLE with the columns and the key, then INSERT INTO it"

_DEFAULT_WAY_OUT = (
    "a script holds CREATE, ALTER or DROP of a TABLE, STREAM, VIEW or SINK; CREATE FLOW; INSERT, DELETE, UPDATE, MERGE, TRUNCATE; "
    "SELECT, VALUES, EXPLAIN, DESCRIBE, SHOW TABLES, STREAMS, VIEWS, SINKS, COLUMNS or CREATE TABLE"
)


def parse_script(text: str) -> tuple[Statement, ...]:
    """Parse a script into its statements, in order.

    Raises:
        ScriptError: a statement is wrong, or Eddyline doesn't support it.

    Example:
        >>> parse_script("CREATE VIEW v AS SELECT a FROM t; -- done")
        (CreateView(line=1, name='v', query='SELECT a FROM t', replace=False, if_not_exists=False, expectations=(), columns=()),)
    """
    return tuple(_statement(cursor) for cursor in split(text))


def _statement(cursor: TokenCursor) -> Statement:
    head = cursor.word()
    if head == "WITH":
        return _with(cursor)
    if head in QUERY_HEADS:
        return Select(_query(cursor), line=cursor.line)
    if head not in _HEADS:
        cursor.refuse(head, WAYS_OUT.get(head, _DEFAULT_WAY_OUT))
    cursor.at += 1
    statement = _HEADS[head](cursor)
    cursor.end()
    return statement


def _query(cursor: TokenCursor, *, inserted: bool = False) -> str:
    """Return the rest of the statement verbatim; refuse clauses that Spark would misread.

    Args:
        inserted: the rows are those of an INSERT.
    """
    if cursor.word() not in QUERY_HEADS:
        cursor.fail(f"a query is expected {cursor.place()}")
    start = cursor.at
    while not cursor.done:
        pair = cursor.word(), cursor.word(1)
        if pair == ("WATERMARK", "FOR") or pair == ("DELAY", "OF"):
            cursor.refuse(
                "WATERMARK within a query",
                "declare it in CREATE STREAM: (..., WATERMARK FOR ts AS ts - ...)",
            )
        if pair in (("INSERT", "INTO"), ("INSERT", "OVERWRITE")):
            cursor.refuse("a query before INSERT", "put the query after INSERT INTO the table")
        if pair[0] == "ON" and inserted and (*pair, cursor.word(2)) in _ON_KEYS:
            way_out = "leave it out: a row replaces that of its PRIMARY KEY; or use MERGE"
            cursor.refuse(" ".join(pair), way_out)
        cursor.at += 1
    return cursor.slice(start, cursor.at)


def _with(cursor: TokenCursor) -> Select | Insert | Merge:
    """Parse a query that begins with WITH, or the INSERT or MERGE that reads its common table expressions."""
    start = cursor.at
    ahead, names = tables_before(cursor)
    head = cursor.word(ahead)
    if head in ("DELETE", "UPDATE"):
        cursor.refuse(f"WITH before {head}", WAYS_OUT["WITH"])
    if head not in ("INSERT", "MERGE"):
        return Select(_query(cursor), line=cursor.line)
    tables = cursor.slice(start, start + ahead)
    cursor.at += ahead + 1
    if head == "MERGE":
        merge = parse_merge(cursor)
        if merge.table.lower() in names:
            cursor.fail(f"the table of MERGE and a query after WITH are both called {merge.table}")
        return replace(merge, tables_text=tables)
    insert = _insert(cursor)
    has_own = insert.query_text[:4].upper() == "WITH"
    query = f"SELECT * FROM ({insert.query_text}\n)" if has_own else insert.query_text
    return replace(insert, query_text=f"{tables} {query}")


def _kind(cursor: TokenCursor, verb: str) -> str:
    """Consume `TABLE`, `STREAM` or `[MATERIALIZED | LIVE] VIEW`; return the last word."""
    modified = cursor.accept("MATERIALIZED") or cursor.accept("LIVE")
    kind = cursor.word()
    if kind == "TEMP":
        kind = "TEMPORARY"
    if kind not in KINDS or (modified and kind != "VIEW"):
        cursor.refuse(f"{verb} {kind}".strip(), WAYS_OUT.get(kind, _DEFAULT_WAY_OUT))
    cursor.at += 1
    return kind


def _create(cursor: TokenCursor) -> Statement:
    if cursor.accept("FLOW"):
        return _create_flow(cursor)
    replace = cursor.accept("OR", "REPLACE")
    if cursor.accept("TEMPORARY", "FUNCTION") or cursor.accept("TEMP", "FUNCTION"):
        return _session_function(cursor, created=True)
    kind = _kind(cursor, "CREATE")
    if replace and kind != "VIEW":
        cursor.refuse(f"OR REPLACE {kind}", f"DROP {kind} IF EXISTS first: its data goes with it")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name(f"the name of the {kind.lower()}")
    if kind == "VIEW":
        return _create_view(cursor, name, replace, if_not_exists)
    if kind == "STREAM":
        return _create_stream(cursor, name, if_not_exists)
    if kind == "SINK":
        return _create_sink(cursor, name, if_not_exists)
    return _create_table(cursor, name, if_not_exists)


def _create_table(
    cursor: TokenCursor, name: str, if_not_exists: bool
) -> CreateTable | CreateTableAs:
    if cursor.word() == "LIKE":
        cursor.refuse(
            "LIKE", "AS SELECT * FROM the other WHERE false, or the text of SHOW CREATE TABLE"
        )
    if cursor.accept("AS"):
        return CreateTableAs(name, _query(cursor), if_not_exists, line=cursor.line)
    refuse_clauses(cursor, "TABLE")
    if cursor.word() == "PRIMARY":
        cursor.refuse("PRIMARY KEY before AS", _COLUMNS_FIRST)
    schema_ddl, primary_key, watermark, expected = _columns(cursor)
    if cursor.word() == "AS":
        cursor.refuse("a list of columns before AS", _COLUMNS_FIRST)
    if watermark is not None:
        cursor.refuse("WATERMARK of a table", "a table's rows can change at any time; use a stream")
    if expected:
        cursor.refuse("CONSTRAINT of a table", "give it to a view of the table, or to a stream")
    if schema_ddl is None:
        cursor.fail("no column is given")
    refuse_clauses(cursor, "TABLE")
    return CreateTable(name, schema_ddl, primary_key, if_not_exists, line=cursor.line)


def _create_view(cursor: TokenCursor, name: str, replace: bool, if_not_exists: bool) -> CreateView:
    columns, expected = parse_brackets(cursor) if cursor.word() == "(" else ((), ())
    refuse_clauses(cursor, "VIEW")
    cursor.expect("AS")
    query = with_columns(_query(cursor), columns)
    return CreateView(name, query, replace, if_not_exists, expected, columns, line=cursor.line)


def _create_stream(cursor: TokenCursor, name: str, if_not_exists: bool) -> CreateStream:
    has_columns = cursor.word() == "("
    parts = _columns(cursor, stream=True) if has_columns else (None, (), None, ())
    schema_ddl, primary_key, watermark, expected = parts
    cursor.expect("USING")
    source = cursor.dotted()
    op: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    while not cursor.done:
        if cursor.one_of("OP", "OPTIONS") == "OP":
            op = cursor.name("the column that tells the operation")
        else:
            options = _options(cursor)
    return CreateStream(
        name, schema_ddl, source, options, primary_key, op, watermark, if_not_exists, expected,
        line=cursor.line,
    )  # fmt: skip


def _create_sink(cursor: TokenCursor, name: str, if_not_exists: bool) -> CreateSink:
    cursor.expect("FROM")
    view = cursor.name("the name of the view that the sink follows")
    cursor.expect("USING")
    target = cursor.dotted()
    options = () if cursor.done else _options_after(cursor)
    return CreateSink(name, view, target, options, if_not_exists, line=cursor.line)


def _create_flow(cursor: TokenCursor) -> CreateFlow:
    name = cursor.name("the name of the flow")
    cursor.expect("AS")
    if cursor.word() == "INSERT":
        cursor.refuse("a flow AS INSERT INTO", "use CREATE VIEW, with UNION ALL of several flows")
    cursor.expect("AUTO", "CDC", "INTO")
    target = cursor.name("the name of the target")
    return CreateFlow(name, target, parse_flow(cursor), line=cursor.line)


def _options_after(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    cursor.expect("OPTIONS")
    return _options(cursor)


def _columns(
    cursor: TokenCursor, *, stream: bool = False
) -> tuple[str | None, tuple[str, ...], tuple[str, str] | None, tuple[Expectation, ...]]:
    """Parse `(column type, ..., PRIMARY KEY (...), WATERMARK FOR ..., CONSTRAINT ...)` into these four."""
    cursor.expect("(")
    columns: list[str] = []
    keys: list[tuple[str, ...]] = []
    watermarks: list[tuple[str, str]] = []
    expected: list[Expectation] = []
    for item in cursor.items(")"):
        if is_expectation(item):
            expected.append(parse_expectation(item))
            continue
        if item.accept("PRIMARY", "KEY"):
            keys.append(item.names())
            item.end()
            continue
        if item.accept("WATERMARK", "FOR"):
            watermarks.append(_watermark(item))
            continue
        refuse_table_constraint(item, stream=stream)
        name = item.name("a column name")
        column = parse_column(item, stream=stream)
        if column.is_key:
            keys.append((name,))
        columns.append(column.without_key)
    if not (columns or keys or watermarks or expected):
        cursor.fail("no column is given")
    if len(keys) > 1:
        cursor.fail("more than one PRIMARY KEY is given", "use PRIMARY KEY (a, b) once")
    if len(watermarks) > 1:
        cursor.fail("more than one WATERMARK is given", "a stream has one time")
    key = keys[0] if keys else ()
    watermark = watermarks[0] if watermarks else None
    return ", ".join(columns) or None, key, watermark, checked_names(cursor, expected)


def _watermark(item: TokenCursor) -> tuple[str, str]:
    """Parse `ts AS ts - INTERVAL 10 MINUTES`: the column and the delay."""
    column = item.name("the column that tells the time")
    item.expect("AS")
    again = item.name("the column that tells the time")
    if again.lower() != column.lower():
        item.fail(f"the watermark of {column} follows {again}", "name the same column twice")
    if item.done:
        return column, "INTERVAL 0 SECONDS"
    item.expect("-")
    return column, item.rest("an interval, such as INTERVAL 10 MINUTES")


def _options(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    """Parse `(path '...', header = true, maxFilesPerTrigger 10)`; every value becomes a string."""
    cursor.expect("(")
    options: dict[str, tuple[str, str]] = {}
    for item in cursor.items(")"):
        key = item.dotted()
        item.accept("=")
        value = item.string() if item.at_string else item.literal()
        item.end()
        if key.lower() in options:
            cursor.fail(f"option {key} is given twice")
        options[key.lower()] = key, value
    return tuple(options.values())


def _insert(cursor: TokenCursor) -> Insert:
    overwrite = cursor.one_of("INTO", "OVERWRITE") == "OVERWRITE"
    if cursor.word() == "TABLE" and cursor.word(1) not in QUERY_HEADS:
        cursor.accept("TABLE")
    table = cursor.name("the name of the table")
    if cursor.word() == "REPLACE":
        cursor.refuse("REPLACE WHERE", "DELETE FROM the table WHERE ..., then INSERT INTO it")
    by_name = cursor.accept("BY", "NAME")
    is_query = cursor.word(1) in QUERY_HEADS and cursor.word(2) not in (",", ")")
    has_columns = cursor.word() == "(" and not (is_query or by_name)
    columns = cursor.names() if has_columns else None
    query = _query(cursor, inserted=True)
    return Insert(table, columns, query, by_name, overwrite, line=cursor.line)


def _session_function(cursor: TokenCursor, *, created: bool) -> SessionFunction:
    """Consume the rest of a statement about a function of the session; one that is created must have a SQL body."""
    if created:
        cursor.accept("IF", "NOT", "EXISTS")
        cursor.name("the name of the function")
        words = [cursor.word(ahead) for ahead in range(len(cursor.tokens) - cursor.at)]
        if words[:1] != ["("] or "RETURN" not in words:
            cursor.refuse(
                "a function of another language",
                "spark.udf.register, or registerJavaFunction, of the session",
            )
    cursor.at = len(cursor.tokens)
    return SessionFunction(cursor.slice(0, cursor.at), line=cursor.line)


def _drop(cursor: TokenCursor) -> Drop | SessionFunction:
    if cursor.accept("TEMPORARY", "FUNCTION") or cursor.accept("TEMP", "FUNCTION"):
        return _session_function(cursor, created=False)
    kind = _kind(cursor, "DROP")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name(f"the name of the {kind.lower()}")
    return Drop(KINDS[kind], name, if_exists, line=cursor.line)


def _alter(
    cursor: TokenCursor,
) -> ResetWatermark | AlterColumns | AlterView | DropConstraint | Retain:
    change = (cursor.word(), cursor.word(2), cursor.word(3))
    if change[:2] == ("VIEW", "AS"):
        cursor.at += 1
        name = cursor.name("the name of the view")
        cursor.expect("AS")
        return AlterView(name, _query(cursor), line=cursor.line)
    if change[0] in ("TABLE", "STREAM") and change[1:] in _COLUMN_CHANGES:
        return _alter_columns(cursor)
    if change == ("STREAM", "DROP", "CONSTRAINT"):
        cursor.at += 1
        name = cursor.name("the name of the stream")
        cursor.expect("DROP", "CONSTRAINT")
        return DropConstraint(name, cursor.name("the name of the constraint"), line=cursor.line)
    if change[:2] == ("STREAM", "RETAIN"):
        cursor.at += 1
        name = cursor.name("the name of the stream")
        cursor.expect("RETAIN")
        interval = None if cursor.accept("ALL") else cursor.string()
        return Retain(name, interval, line=cursor.line)
    if change != ("STREAM", "RESET", "WATERMARK"):
        cursor.at -= 1
        cursor.refuse("ALTER", WAYS_OUT["ALTER"])
    cursor.at += 1
    name = cursor.name("the name of the stream")
    cursor.expect("RESET", "WATERMARK")
    if not cursor.accept("TO"):
        return ResetWatermark(name, line=cursor.line)
    cursor.expect("TIMESTAMP")
    return ResetWatermark(name, cursor.string(), line=cursor.line)


def _alter_columns(cursor: TokenCursor) -> AlterColumns:
    kind = KINDS[cursor.one_of("TABLE", "STREAM")]
    name = cursor.name("the name of the table")
    action = _COLUMN_CHANGES[cursor.word(), cursor.word(1)]
    cursor.at += 2
    if action not in ("add", "drop"):
        return AlterColumns(kind, name, (_column_change(cursor, action, kind),), line=cursor.line)
    if_needed = cursor.accept("IF", *(("NOT",) if action == "add" else ()), "EXISTS")
    changes = []
    for item in cursor.items(")" if cursor.accept("(") else ""):
        changes.append(_column_change(item, action, kind))
        item.end()
    names = [change.column.lower() for change in changes]
    if twice := [change.column for change in changes if names.count(change.column.lower()) > 1]:
        cursor.fail(f"column {twice[-1]} is named twice")
    return AlterColumns(kind, name, tuple(changes), if_needed, line=cursor.line)


def _column_change(cursor: TokenCursor, action: str, kind: str) -> ColumnChange:
    """Consume a column, and the rest of a change."""
    column, to = cursor.name("the name of the column"), ""
    if action == "rename":
        cursor.expect("TO")
        to = cursor.name("the new name")
    elif action == "type" and cursor.word() in ("SET", "DROP"):
        action, to = _rule_change(cursor, kind)
    elif action != "drop":
        if action == "type":
            cursor.expect("TYPE")
        # the word before the type stands for the column
        parse_column(cursor.after(cursor.at - 1), stream=kind == "stream")
        to = cursor.rest("the type")
    return ColumnChange(action, column, to)


def _describe(cursor: TokenCursor) -> Describe | DescribeQuery:
    return parse_describe(cursor, _query)


def _rule_change(cursor: TokenCursor, kind: str) -> tuple[str, str]:
    """Parse `SET NOT NULL`, `DROP NOT NULL`, `SET DEFAULT e` or `DROP DEFAULT` to the action and the expression."""
    verb = cursor.one_of("SET", "DROP")
    rule = cursor.one_of("NOT", "DEFAULT")
    if rule == "NOT":
        cursor.expect("NULL")
        rule = "NOT NULL"
    if kind == "stream":
        cursor.refuse(f"{verb} {rule} of a stream's column", OF_STREAMS)
    value = cursor.rest("the expression") if (verb, rule) == ("SET", "DEFAULT") else ""
    return f"{verb} {rule}".lower(), value


def _explain(cursor: TokenCursor) -> Explain:
    """Parse the rest of `EXPLAIN v`, `EXPLAIN SELECT ...` or, with a stage, `EXPLAIN nodes v`."""
    stage = "dag"
    if cursor.word() not in QUERY_HEADS and cursor.word(1) not in ("", "."):
        stage = cursor.name("a stage").lower()
    is_query = cursor.word() in QUERY_HEADS
    target = _query(cursor) if is_query else cursor.name("the name of a view, or a query,")
    return Explain(target, stage, line=cursor.line)


_COLUMN_CHANGES = {
    ("ADD", "COLUMN"): "add",
    ("ADD", "COLUMNS"): "add",
    ("DROP", "COLUMN"): "drop",
    ("DROP", "COLUMNS"): "drop",
    ("RENAME", "COLUMN"): "rename",
    ("ALTER", "COLUMN"): "type",
}

_HEADS: dict[str, Callable[[TokenCursor], Statement]] = {
    "ALTER": _alter,
    "CREATE": _create,
    "DELETE": parse_delete,
    "DESC": _describe,
    "DESCRIBE": _describe,
    "DROP": _drop,
    "EXPLAIN": _explain,
    "INSERT": _insert,
    "MERGE": parse_merge,
    "SHOW": parse_show,
    "TRUNCATE": parse_truncate,
    "UPDATE": parse_update,
}
