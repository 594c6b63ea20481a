"""AUTO CDC: makes the query of a table from the clauses of a flow of change records.

Works on text only. The query is ordinary Spark SQL over the source, so that it can be a live view, and
Spark can run it offline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eddyline.sql.lexer import TokenCursor
from eddyline.sql.names import quoted

START_AT, END_AT = "__START_AT", "__END_AT"
"""The columns that SCD type 2 adds: the sequence values from which and until which a row held."""

SEQUENCE, DELETED, PLACE = "__sequence", "__deleted", "__place"
RESERVED = {1: (SEQUENCE, DELETED, PLACE), 2: (START_AT, END_AT, DELETED)}
"""Names that the columns of a target can't have, by SCD type."""

NULL_KEY = "AUTO CDC: a record has NULL in the key column"
NULL_SEQUENCE = "AUTO CDC: a record has NULL as its SEQUENCE BY value"


@dataclass(frozen=True, slots=True)
class ChangeFlow:
    """The clauses of AUTO CDC; expressions are SQL text.

    Attributes:
        keys: columns that identify a row.
        sequence_by: orders the records of a key.
        deletes, truncates: conditions of the records that delete a row, or all rows.
        columns: the columns to keep; None for all.
        excepted: the columns to leave out.
        scd_type: 1: the last version of each row; 2: all versions.
    """

    source: str
    keys: tuple[str, ...]
    sequence_by: str
    deletes: str | None = None
    truncates: str | None = None
    columns: tuple[str, ...] | None = None
    excepted: tuple[str, ...] = ()
    scd_type: int = 1


@dataclass(frozen=True, slots=True)
class SortedColumn:
    """A column of a target.

    Attributes:
        sort_key: SQL that orders its values; the column itself, if its type can be sorted.
    """

    name: str
    sort_key: str


def live_query(
    flow: ChangeFlow, columns: Sequence[SortedColumn], sequence_keys: Sequence[str]
) -> str:
    """Return the query of a flow's target.

    Of several records with the same key and sequence value one counts: a delete, or else the one
    with the greatest values, compared column by column.

    Args:
        columns: of the target, in order; the keys have the spelling of `flow.keys`.
        sequence_keys: suffixes that select the parts of a sequence value: `("",)`, or for a struct
            `(".a", ".b")`.
    """
    if flow.scd_type == 1:
        return _last_versions(flow, columns, sequence_keys)
    return _all_versions(flow, columns)


def _last_versions(
    flow: ChangeFlow, columns: Sequence[SortedColumn], sequence_keys: Sequence[str]
) -> str:
    """Return the query of SCD type 1: the last record of each key, unless it's a delete or truncated."""
    names = [quoted(column.name) for column in columns]
    keys = [quoted(key) for key in flow.keys]
    order = [f"{SEQUENCE}{part} DESC" for part in sequence_keys]
    order.append(f"{DELETED} DESC")
    order += [f"{column.sort_key} DESC" for column in columns if column.name not in flow.keys]
    records = ",\n      ".join([*_values(flow, columns), f"{_sequence(flow)} AS {SEQUENCE}"])
    remaining, last_truncate = "", ""
    if flow.truncates is not None:
        source = quoted(flow.source)
        truncated = f"SELECT max({_sequence(flow)}) FROM {source} WHERE {_true(flow.truncates)}"
        remaining = f"\n    WHERE NOT {_true(flow.truncates)}"
        last_truncate = f"\n  AND NOT coalesce({SEQUENCE} <= ({truncated}), false)"
    return (
        f"SELECT {', '.join(names)}\n"
        f"FROM (\n"
        f"  SELECT *, row_number() OVER (\n"
        f"    PARTITION BY {', '.join(keys)}\n"
        f"    ORDER BY {', '.join(order)}) AS {PLACE}\n"
        f"  FROM (\n"
        f"    SELECT\n      {records},\n      {_true(flow.deletes)} AS {DELETED}\n"
        f"    FROM {quoted(flow.source)}{remaining}))\n"
        f"WHERE {PLACE} = 1 AND NOT {DELETED}{last_truncate}"
    )


def _all_versions(flow: ChangeFlow, columns: Sequence[SortedColumn]) -> str:
    """Return the query of SCD type 2: the versions of each row, from the sorted records of its key.

    A record that equals the one before begins no version.
    """
    keys = [quoted(key) for key in flow.keys]
    values = [quoted(column.name) for column in columns if column.name not in flow.keys]
    row = ", ".join([f"{_true(flow.deletes)} AS {DELETED}", *values])
    result = [
        quoted(column.name)
        if column.name in flow.keys
        else f"version.row.{quoted(column.name)} AS {quoted(column.name)}"
        for column in columns
    ]
    own_keys = [column for column in columns if column.name in flow.keys]
    by = ", ".join(keys)
    return (
        f"WITH records AS (\n"
        f"  SELECT {', '.join(_values(flow, own_keys))},\n"
        f"    struct({_sequence(flow)} AS at, struct({row}) AS row) AS record\n"
        f"  FROM {quoted(flow.source)}\n"
        f"), sorted AS (\n"
        f"  SELECT {by}, array_sort(collect_list(record)) AS records FROM records GROUP BY {by}\n"
        f"), one_for_each_value AS (\n"
        f"  SELECT {by}, filter(records, (r, i) -> NOT (r.at <=> get(records, i + 1).at)) AS records\n"
        f"  FROM sorted\n"
        f"), changing AS (\n"
        f"  SELECT {by}, filter(records, (r, i) -> if(r.row.{DELETED},\n"
        f"    NOT coalesce(get(records, i - 1).row.{DELETED}, true),\n"
        f"    NOT (r.row <=> get(records, i - 1).row))) AS records\n"
        f"  FROM one_for_each_value\n"
        f"), versions AS (\n"
        f"  SELECT {by}, explode(transform(records, (r, i) -> struct(\n"
        f"    r.row AS row, r.at AS {START_AT}, get(records, i + 1).at AS {END_AT}))) AS version\n"
        f"  FROM changing\n"
        f")\n"
        f"SELECT {', '.join(result)}, version.{START_AT}, version.{END_AT}\n"
        f"FROM versions WHERE NOT version.row.{DELETED}"
    )


def _values(flow: ChangeFlow, columns: Sequence[SortedColumn]) -> list[str]:
    """Return the target's columns of a record; the view fails on a key that is NULL."""
    return [
        f"coalesce({quoted(c.name)}, {_failing(f'{NULL_KEY} {c.name}')}) AS {quoted(c.name)}"
        if c.name in flow.keys
        else quoted(c.name)
        for c in columns
    ]


def _sequence(flow: ChangeFlow) -> str:
    return f"coalesce({_given(flow.sequence_by)}, {_failing(NULL_SEQUENCE)})"


def _true(condition: str | None) -> str:
    """Return SQL for whether a condition is true; NULL counts as false."""
    return "false" if condition is None else f"coalesce({_given(condition)}, false)"


def _given(expression: str) -> str:
    """Return the user's text for use within an expression, with a line break that ends a trailing comment."""
    return f"{expression}\n" if "--" in expression else expression


def _failing(message: str) -> str:
    escaped = message.replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{escaped}')"


# --- parsing ---


def parse_flow(cursor: TokenCursor) -> ChangeFlow:
    """Parse `FROM [STREAM] source KEYS (...) SEQUENCE BY ...` to the end of the statement.

    The clauses after the source may come in any order.
    """
    cursor.expect("FROM")
    source = _source(cursor)
    found: dict[str, object] = {}
    while not cursor.done:
        head = _clause(cursor)
        if head is None:
            cursor.fail(f"a clause of AUTO CDC is expected {cursor.place()}", _CLAUSES)
        cursor.accept(*head)
        name, read = _READ[head]
        if name in found:
            cursor.fail(f"{' '.join(head)} is given twice")
        found[name] = read(cursor)
    for name, clause in (("keys", "KEYS (...)"), ("sequence_by", "SEQUENCE BY")):
        if name not in found:
            cursor.fail(f"AUTO CDC needs {clause}")
    columns = found.pop("columns", (None, ()))
    assert isinstance(columns, tuple)
    kept, excepted = columns
    return ChangeFlow(source, columns=kept, excepted=excepted, **found)  # type: ignore[arg-type]


def _source(cursor: TokenCursor) -> str:
    what = "the name of the source"
    if cursor.word() == "STREAM" and cursor.word(1) == "(":
        cursor.at += 2
        name = cursor.name(what)
        cursor.expect(")")
        return name
    if cursor.word() == "STREAM" and _clause(cursor, 1) is None:
        cursor.at += 1
    return cursor.name(what)


def _clause(cursor: TokenCursor, ahead: int = 0) -> tuple[str, ...] | None:
    """Return the words of the clause that begins `ahead` of the next token; None if none does."""
    for head in _READ:
        if all(cursor.word(ahead + place) == word for place, word in enumerate(head)):
            after = cursor.word(ahead + len(head))
            if head not in _BEFORE_LIST or after in ("(", "*"):
                return head
    return None


def _expression(cursor: TokenCursor) -> str:
    """Return the verbatim text up to the next clause outside of brackets."""
    start, depth = cursor.at, 0
    while not cursor.done and (depth or _clause(cursor) is None):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(cursor.word(), 0)
        cursor.at += 1
    text = cursor.slice(start, cursor.at)
    return text or cursor.fail(f"an expression is expected {cursor.place()}")


def _names(cursor: TokenCursor) -> tuple[str, ...]:
    if cursor.word() != "(":
        cursor.fail(f"a list of columns in brackets is expected {cursor.place()}")
    return cursor.names()


def _columns(cursor: TokenCursor) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    if cursor.accept("*"):
        return None, _names(cursor) if cursor.accept("EXCEPT") else ()
    return _names(cursor), ()


def _scd_type(cursor: TokenCursor) -> int:
    cursor.expect("SCD", "TYPE")
    return int(cursor.one_of("1", "2"))


def _nulls(cursor: TokenCursor) -> None:
    cursor.refuse(
        "IGNORE NULL UPDATES",
        "fill the values in before, with a view between: last_value(column, true) OVER (PARTITION BY key "
        "ORDER BY sequence)",
    )


def _tracked(cursor: TokenCursor) -> None:
    cursor.refuse(
        "TRACK HISTORY ON",
        "leave the columns without history out with COLUMNS: each change of the others is a version",
    )


_CLAUSES = (
    "the clauses are KEYS (...), APPLY AS DELETE WHEN, APPLY AS TRUNCATE WHEN, SEQUENCE BY, COLUMNS (...), "
    "COLUMNS * EXCEPT (...), STORED AS SCD TYPE 1 or 2"
)
_BEFORE_LIST = frozenset({("KEYS",), ("COLUMNS",)})
_READ: dict[tuple[str, ...], tuple[str, Callable[[TokenCursor], object]]] = {
    ("KEYS",): ("keys", _names),
    ("IGNORE", "NULL", "UPDATES"): ("", _nulls),
    ("APPLY", "AS", "DELETE", "WHEN"): ("deletes", _expression),
    ("APPLY", "AS", "TRUNCATE", "WHEN"): ("truncates", _expression),
    ("SEQUENCE", "BY"): ("sequence_by", _expression),
    ("COLUMNS",): ("columns", _columns),
    ("STORED", "AS"): ("scd_type", _scd_type),
    ("TRACK", "HISTORY"): ("", _tracked),
}
