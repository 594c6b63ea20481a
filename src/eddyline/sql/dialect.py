"""Clauses that Eddyline adds to Spark's SELECT: WINDOWING, EMIT FINAL, VERSION AS OF.

WINDOWING is expanded to plain Spark SQL. `SELECT sip, ts, count(*) FROM s GROUP BY sip, ts WINDOWING 60 s` counts by window: in
SELECT, GROUP BY and HAVING the time column becomes the start of the row's window. WHERE and ON read
the rows unchanged. The clause is that of the experiments of the paper on Mars; its forms:

    WINDOWING 60 s                      tumbling; 1 day begins at midnight of the session's time zone
    WINDOWING 60 s SLIDE 10 s           sliding: a row is in six windows
    WINDOWING LANDMARK '2026-01-01'     all rows from that moment on
    WINDOWING 1000 ROWS                 the last 1,000 rows by the time column
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from eddyline.sql.lexer import TokenCursor, split
from eddyline.sql.names import quoted

UNITS = {
    "MS": "milliseconds", "MILLISECOND": "milliseconds", "MILLISECONDS": "milliseconds",
    "S": "seconds", "SEC": "seconds", "SECOND": "seconds", "SECONDS": "seconds",
    "M": "minutes", "MIN": "minutes", "MINUTE": "minutes", "MINUTES": "minutes",
    "H": "hours", "HOUR": "hours", "HOURS": "hours",
    "D": "days", "DAY": "days", "DAYS": "days",
    "W": "weeks", "WEEK": "weeks", "WEEKS": "weeks",
}  # fmt: skip
_MILLISECONDS = {
    "milliseconds": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000,
    "days": 86_400_000, "weeks": 604_800_000,
}  # fmt: skip
_CALENDAR = re.compile(r"(MONTH|QUARTER|YEAR)S?")
_SIZE_MAX_MS = 86_400_000 * 36_500
_FORMS = "write for example 60 s, 5 min, 1 day, 60 s SLIDE 10 s, 1000 ROWS, LANDMARK '2026-01-01'"
_DAY = "date_trunc('DAY', {})"
_BEFORE_VALUES = frozenset(
    [
        "SELECT",
        "DISTINCT",
        "ALL",
        "BY",
        "WHERE",
        "HAVING",
        "ON",
        "AND",
        "OR",
        "NOT",
        "WHEN",
        "THEN",
        "ELSE",
        "CASE",
        "BETWEEN",
        "IN",
        "LIKE",
    ]
)  # after these words `windowing` is a column
_LONG_WINDOW = re.compile(r"window\([^']*'(\d+) (hours|days|weeks)'")
_MOMENT = re.compile(r"[\w :.+/-]+")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_JOINS = frozenset({"JOIN", ",", "LATERAL"})


@dataclass(frozen=True, slots=True)
class _Select:
    """Positions of tokens of one SELECT that ends in WINDOWING; -1 where a clause is missing.

    Attributes:
        select, from_, where, group: first words of these clauses.
        clause, end: the word WINDOWING, and the token after the clause.
    """

    select: int
    from_: int
    where: int
    group: int
    clause: int
    end: int


def extract_versions(query: str) -> tuple[str, dict[str, tuple[str, int]]]:
    """Replace each `name VERSION AS OF epoch` of a query by an alias.

    Returns:
        the query with the aliases; alias -> name and epoch.

    Example:
        >>> extract_versions("SELECT * FROM v VERSION AS OF 12")
        ('SELECT * FROM v_version_12 AS v', {'v_version_12': ('v', 12)})
    """
    found: dict[str, tuple[str, int]] = {}
    cursor = _one_statement(query, "version")
    if cursor is None:
        return query, found
    parts: list[str] = []
    done = 0
    for at in range(len(cursor.tokens)):
        cursor.at = at
        start = at - 1 - (cursor.word(-1) == "FOR")
        if start < 0 or not cursor.accept("VERSION", "AS", "OF"):
            continue
        epoch = cursor.literal()
        if not epoch.isdecimal():
            cursor.fail(f"VERSION AS OF {epoch} is no epoch", "give the number of an epoch")
        end, has_alias = cursor.at, cursor.word() == "AS" or cursor.at_name
        cursor.at = start
        name = cursor.name("the name of a table, stream or view")
        alias = f"{name}_version_{epoch}"
        found[alias] = name, int(epoch)
        parts.append(query[done : cursor.tokens[start].start])
        shown = cursor.slice(start, start + 1)
        parts.append(quoted(alias) if shown.startswith("`") else alias)
        parts.append("" if has_alias else f" AS {shown}")
        done = cursor.tokens[end - 1].end + 1
    return "".join([*parts, query[done:]]), found


def remove_emit_final(query: str) -> tuple[str, bool]:
    """Remove EMIT FINAL from the end of a query.

    Returns:
        the query without it; whether it was there.

    Example:
        >>> remove_emit_final("SELECT day, count(*) FROM s GROUP BY day EMIT FINAL")
        ('SELECT day, count(*) FROM s GROUP BY day', True)
    """
    cursor = _one_statement(query, "final")
    if cursor is None:
        return query, False
    cursor.at = len(cursor.tokens) - 2
    if cursor.at <= 0 or not cursor.accept("EMIT", "FINAL"):
        return query, False
    return cursor.slice(0, len(cursor.tokens) - 2), True


def expand_windowing(query: str, time_columns: Collection[str]) -> str:
    """Expand the WINDOWING clauses of a query; return any other query unchanged.

    Args:
        time_columns: names of the timestamp columns of the relations that the query reads.

    Raises:
        ScriptError: a clause is wrong, or it isn't clear which column is the event time.

    Example:
        >>> expand_windowing("SELECT ts, count(*) FROM s GROUP BY ts WINDOWING 60 s", {"ts"})
        "SELECT window(ts, '60 seconds').start AS ts, count(*) FROM s GROUP BY window(ts, '60 seconds').start"
    """
    times = {name.lower() for name in time_columns}
    while (cursor := _one_statement(query, "windowing")) is not None:
        clause = _clause(cursor)
        if clause < 0:
            break
        query = _expand(cursor, clause, times)
    return query


def possible_relations(query: str) -> set[str]:
    """Return the names, in lower case, that stand where a query may name a relation.

    Example:
        >>> sorted(possible_relations("SELECT start FROM s JOIN `t` ON s.a = t.a"))
        ['s', 't']
    """
    return {name for before, name in _pairs(query) if before in ("from", "join", ",", "(")}


def possible_functions(query: str) -> set[str]:
    """Return the names, in lower case, that stand where a query may call a function.

    Example:
        >>> sorted(possible_functions("SELECT count(*), `f`(a) FROM s"))
        ['count', 'f']
    """
    return {name for name, after in _pairs(query) if after == "("}


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    """Yield each token of a query, in lower case, with the one after it."""
    return pairwise([token.text.lower() for cursor in split(query) for token in cursor.tokens])


def window_notes(query: str, zone: str) -> list[str]:
    """Return notes for `explain` on where the days and longer windows of an expanded query begin.

    Args:
        query: the query, without WINDOWING.
        zone: time zone of the storage.

    Example:
        >>> window_notes("SELECT window(ts, '1 weeks').start FROM s", "Europe/Berlin")
        ['windows of 1 weeks are counted from 1970-01-01 00:00 UTC, a Thursday']
    """
    sizes = {(int(count), unit) for count, unit in _LONG_WINDOW.findall(query)}
    notes = [
        f"windows of {count} {unit} are counted from 1970-01-01 00:00 UTC, a Thursday"
        for count, unit in sorted(sizes)
        if count * _MILLISECONDS[unit] >= _MILLISECONDS["days"]
    ]
    if "date_trunc('DAY', " in query:
        notes.append(f"days begin at midnight of {zone}")
    return notes


def _one_statement(query: str, word: str) -> TokenCursor | None:
    """Return a cursor over a text that is one statement and contains a word, given in lower case; else None.

    Searching the word first is faster than tokenizing, and most queries don't contain it.
    """
    cursors = list(split(query)) if word in query.lower() else []
    return cursors[0] if len(cursors) == 1 else None


def _clause(cursor: TokenCursor) -> int:
    """Return the position of the first WINDOWING that is a clause; -1 if there is none."""
    for at in range(len(cursor.tokens)):
        cursor.at = at
        if cursor.word() == "WINDOWING":
            following = cursor.word(1)
            if following == "LANDMARK" or following[:1].isdigit():
                return at
            before = cursor.word(-1)
            ends_item = bool(re.fullmatch(r"\w+|`.*`|\)", before)) and before not in _BEFORE_VALUES
            if ends_item and (following in ("-", "+", "INTERVAL") or following[:1] in ("'", '"')):
                cursor.at += 1
                _wrong(cursor, "takes a whole number above zero and a unit")
    return -1


def _expand(cursor: TokenCursor, clause: int, times: Collection[str]) -> str:
    cursor.at = clause + 1
    rows, since = 0, ""
    if cursor.accept("LANDMARK"):
        start = since = _moment(cursor)
    else:
        count = _count(cursor)
        rows = count if cursor.accept("ROWS") or cursor.accept("ROW") else 0
        start = "" if rows else _start(cursor, count)
    if cursor.word() == "SLIDE":
        _wrong(cursor, "has SLIDE only after a length of time")
    if cursor.word() == "LANDMARK" or cursor.word()[:1].isdigit():
        _wrong(cursor, "has one window")
    select = _select(cursor, clause)
    column, name = _time(cursor, select, times)
    if rows:
        return _last_rows(cursor, select, column, rows)
    if since:
        return _windowed(cursor, select, name, start, f"{column} >= {since}", grouped=False)
    # as Spark's window: a row without a time is in none
    timed = f"{column} IS NOT NULL" if start == _DAY else ""
    return _windowed(cursor, select, name, start, timed)


def _moment(cursor: TokenCursor) -> str:
    moment = cursor.string()
    if not _MOMENT.fullmatch(moment):
        cursor.fail(f"{moment!r} is no moment", "write it as '2026-01-01 00:00:00'")
    return f"TIMESTAMP '{moment}'"


def _count(cursor: TokenCursor) -> int:
    count = cursor.word()
    joined = re.fullmatch(r"(\d+)([A-Z]+)", count)
    if joined and (joined[2] in UNITS or joined[2] == "ROWS"):
        written = cursor.slice(cursor.at, cursor.at + 1)
        spaced = f"{written[: len(joined[1])]} {written[len(joined[1]) :]}"
        cursor.fail(f"WINDOWING {written} lacks a space before its unit", f"write {spaced}")
    if not count.isdecimal() or int(count) == 0:
        _wrong(cursor, "takes a whole number above zero")
    cursor.at += 1
    return int(count)


def _wrong(cursor: TokenCursor, problem: str) -> NoReturn:
    """Raise ScriptError for a WINDOWING clause, quoting it up to a few words after the problem."""
    end = min(cursor.at + 2 + (cursor.word() in ("-", "+")), len(cursor.tokens))
    start = min(cursor.at, end - 1)
    while start > 0 and cursor.slice(start, start + 1).upper() != "WINDOWING":
        start -= 1
    cursor.fail(f"WINDOWING {problem}: {cursor.slice(start, end)}", _FORMS)


def _start(cursor: TokenCursor, count: int) -> str:
    """Return SQL of the start of a row's window, with {} for the time column."""
    unit = _unit(cursor)
    size, length = f"{count} {unit}", count * _MILLISECONDS[unit]
    if length > _SIZE_MAX_MS:
        _wrong(cursor, "takes at most 100 years")
    if cursor.accept("SLIDE"):
        step = _count(cursor)
        step_unit = _unit(cursor)
        if step * _MILLISECONDS[step_unit] > length:
            _wrong(cursor, "slides by at most the length of the window")
        return f"window({{}}, '{size}', '{step} {step_unit}').start"
    return _DAY if size == "1 days" else f"window({{}}, '{size}').start"


def _unit(cursor: TokenCursor) -> str:
    unit = UNITS.get(cursor.word())
    if calendar := _CALENDAR.fullmatch(cursor.word()):
        cursor.fail(
            f"WINDOWING has no {calendar[1].lower()}s: they differ in length",
            f"group by date_trunc('{calendar[1]}', the time column) instead",
        )
    if unit is None:
        cursor.fail(f"a unit of time or ROWS is expected {cursor.place()}", _FORMS)
    cursor.at += 1
    return unit


def _select(cursor: TokenCursor, clause: int) -> _Select:
    """Find the SELECT that the clause ends, at the same depth of brackets."""
    end, depth = cursor.at, 0
    places = dict.fromkeys(("SELECT", "FROM", "WHERE", "GROUP"), -1)
    for at in range(clause - 1, -1, -1):
        cursor.at = at
        word = cursor.word()
        depth += (word == ")") - (word == "(")
        if depth < 0:
            break
        if depth == 0 and word in places and cursor.word(-1) != ".":
            places[word] = at
            if word == "SELECT":
                break
    cursor.at = end
    if places["SELECT"] < 0 or places["FROM"] < 0:
        cursor.fail("WINDOWING stands at the end of a SELECT ... FROM ...")
    return _Select(places["SELECT"], places["FROM"], places["WHERE"], places["GROUP"], clause, end)


def _time(cursor: TokenCursor, select: _Select, times: Collection[str]) -> tuple[str, str]:
    """Return the time column as written in GROUP BY, or else the only one; and its bare name."""
    found: dict[str, str] = {}
    if select.group >= 0:
        for column in _columns(cursor, select.group + 2, select.clause):
            if column.name in times:
                found[column.name] = column.written
    if not found and len(times) == 1:
        found = {name: name for name in times}
    if len(found) != 1:
        cursor.fail(
            "WINDOWING needs one timestamp column in GROUP BY, and finds "
            + (", ".join(sorted(found or times)) or "none"),
            "name the column that tells the time in GROUP BY, and no other of type TIMESTAMP",
        )
    ((name, written),) = found.items()
    return written, name


@dataclass(frozen=True, slots=True)
class _Column:
    """A reference to a column.

    Attributes:
        first, end: positions of its first token and of the token after it.
        written: its text, perhaps qualified: `s.ts`.
        last: its last part: `ts`.
        alone: whether it is a whole item of SELECT.
    """

    first: int
    end: int
    written: str
    last: str
    alone: bool

    @property
    def name(self) -> str:
        """The name without qualifier and quotes, in lower case."""
        return self.last.strip("`").lower()


def _columns(cursor: TokenCursor, first: int, last: int) -> Iterator[_Column]:
    """Yield possible references to columns between two positions, outside subqueries."""
    depth = 0
    for at in _outside_subqueries(cursor, first, last):
        cursor.at = at
        word, before = cursor.word(), cursor.word(-1)
        depth += (word in _OPENING) - (word in _CLOSING)
        if before in (".", "AS") or cursor.word(1) == "(":
            continue
        end = at + 1
        while cursor.slice(end, end + 1) == ".":
            end += 2
        alone = depth == 0 and before in ("SELECT", ",", "DISTINCT")
        alone = alone and cursor.word(end - at) in (",", "FROM")
        yield _Column(at, end, cursor.slice(at, end), cursor.slice(end - 1, end), alone)


def _windowed(
    cursor: TokenCursor,
    select: _Select,
    name: str,
    start: str,
    condition: str,
    *,
    grouped: bool = True,
) -> str:
    """Replace the time column by the start of its window in SELECT, GROUP BY and HAVING.

    Args:
        condition: which rows are in a window, added to WHERE; empty for all.
        grouped: whether the time column must be in GROUP BY.
    """
    changes: list[tuple[int, int, str]] = [(select.clause, select.end, "")]
    if select.group >= 0:
        changes += [
            (column.first, column.end, start.format(column.written))
            for column in _columns(cursor, select.group + 2, select.clause)
            if column.name == name
        ]
    if len(changes) == 1 and grouped:
        cursor.fail(
            f"WINDOWING needs {name} in GROUP BY: there is a group for each window",
            "add it to GROUP BY, and to SELECT if you like to see it",
        )
    for column in _columns(cursor, select.select + 1, select.from_):
        if column.name == name:
            alias = f" AS {column.last}" if column.alone else ""
            changes.append((column.first, column.end, start.format(column.written) + alias))
    if condition:
        changes += _add_condition(select, condition)
    return _replace(cursor, changes)


def _outside_subqueries(cursor: TokenCursor, first: int, last: int) -> list[int]:
    found, depth = [], 0
    for at in range(first, last):
        cursor.at = at
        word = cursor.word()
        if depth or (word == "(" and cursor.word(1) in ("SELECT", "WITH")):
            depth += (word == "(") - (word == ")")
        else:
            found.append(at)
    return found


def _add_condition(select: _Select, condition: str) -> list[tuple[int, int, str]]:
    end = select.group if select.group >= 0 else select.clause
    if select.where < 0:
        return [(end, end, f"WHERE {condition}")]
    return [(select.where + 1, select.where + 1, f"{condition} AND ("), (end, end, ")")]


def _last_rows(cursor: TokenCursor, select: _Select, column: str, count: int) -> str:
    end = select.group if select.group >= 0 else select.clause
    source = cursor.slice(select.from_ + 1, select.where if select.where >= 0 else end)
    for at in _outside_subqueries(cursor, select.from_ + 1, end):
        cursor.at = at
        if cursor.word() in _JOINS and (select.where < 0 or at < select.where):
            cursor.fail(
                "WINDOWING ... ROWS reads one relation", "put the join into a view of its own"
            )
    where = cursor.slice(select.where, end) if select.where >= 0 else ""
    last = (select.where if select.where >= 0 else end) - 1
    alias = "windowed" if source.endswith(")") else cursor.slice(last, last + 1)
    # rows of the same time need an order that is the same live and offline
    rows = (
        f"(SELECT * EXCEPT (windowing_tie) FROM (SELECT *, xxhash64(*) AS windowing_tie FROM {source}"
        f" {where}) ORDER BY {column.rpartition('.')[2]} DESC, windowing_tie LIMIT {count}) AS {alias}"
    )
    changes = [(select.clause, select.end, ""), (select.from_ + 1, end, rows)]
    return _replace(cursor, changes)


def _replace(cursor: TokenCursor, changes: list[tuple[int, int, str]]) -> str:
    """Return the statement with ranges of tokens (from, up to) replaced by other text."""
    tokens, text = cursor.tokens, cursor.text
    parts, at = [], tokens[0].start
    for first, end, new in sorted(changes):
        start = tokens[first].start if first < len(tokens) else tokens[-1].end + 1
        parts += [text[at:start], new, " " if first == end else ""]
        at = start if first == end else tokens[end - 1].end + 1
    parts.append(text[at : tokens[-1].end + 1])
    return "".join(parts).strip()
