"""The expectations of streams and views, and the names of the views that serve them.

A stream or view with expectations has companions, which are views like any other: one counts the rows that
violate each expectation, one holds the rows that ON VIOLATION DEAD LETTER has kept out. A stream's log keeps
all records; every reader but the companions sees it through a filter. A view that keeps rows out reads
another companion, which has the rows of its query.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eddyline.catalog.entries import COMPANION, EXPECTATIONS, STREAM, Entry
from eddyline.sql.expectations import DEAD_LETTER, STOP, Expectation
from eddyline.sql.names import literal, quoted

UNCHECKED, VIOLATIONS, REJECTED = "__unchecked", "__violations", "__rejected"
"""Suffixes of companions: all rows of a view's query, numbers of violations, rows kept out."""

REASON = "violates"


def option_of(expectations: Sequence[Expectation], query: str = "") -> str:
    """Return expectations as the catalog keeps them; `query` is that of the view, as the user gave it."""
    rules = [[one.name, one.condition, one.action] for one in expectations]
    return json.dumps({"rules": rules, "query": query})


def expectations_of(entry: Entry) -> tuple[Expectation, ...]:
    """Return the expectations of a stream or view."""
    stored = entry.options.get(EXPECTATIONS)
    return tuple(Expectation(*rule) for rule in json.loads(stored)["rules"]) if stored else ()


def filter_of(stream: Entry, reader: Entry | None = None) -> str:
    """Return the SQL condition of the rows that a stream has for a reader; empty for all that are logged."""
    if stream.kind != STREAM or EXPECTATIONS not in stream.options:
        return ""
    if reader is not None and reader.options.get(COMPANION) == stream.name.lower():
        return ""
    return _all(stream)


def checked_query(name: str, expectations: Sequence[Expectation]) -> str:
    """Return the query of a view that keeps out rows of its companion, or fails because of them."""
    cases = [
        f"WHEN {one.violated} THEN raise_error({literal(_stopped(name, one))})"
        for one in expectations
        if one.action == STOP
    ]
    kept = " AND ".join(f"({one.condition}\n)" for one in expectations if one.removes)
    condition = f"CASE {' '.join(cases)} ELSE {kept or 'true'} END" if cases else kept
    return f"SELECT * FROM {quoted(name + UNCHECKED)} WHERE {condition}"


def counting_query(source: str, expectations: Sequence[Expectation]) -> str:
    """Return the query that counts the rows of a relation which violate each expectation."""
    counts = [f"count_if({one.violated}) AS n{at}" for at, one in enumerate(expectations)]
    pairs = ", ".join(f"{literal(one.name)}, n{at}" for at, one in enumerate(expectations))
    return (
        f"SELECT stack({len(counts)}, {pairs}) AS (`constraint`, violations) "
        f"FROM (SELECT {', '.join(counts)} FROM {quoted(source)})"
    )


def rejecting_query(source: str, columns: Sequence[str], rules: Sequence[Expectation]) -> str:
    """Return the query of the rows that violate an expectation with DEAD LETTER, with their names."""
    letters = [one for one in rules if one.action == DEAD_LETTER]
    names = ", ".join(f"CASE WHEN {one.violated} THEN {literal(one.name)} END" for one in letters)
    violated = " OR ".join(f"({one.violated})" for one in letters)
    return (
        f"SELECT *, concat_ws(', ', {names}) AS {quoted(reason_column(columns))} "
        f"FROM {quoted(source)} WHERE {violated}"
    )


def reason_column(columns: Sequence[str]) -> str:
    """Return the name of the column that names the violated expectations."""
    name, used = REASON, {column.lower() for column in columns}
    while name in used:
        name += "_"
    return name


def _all(stream: Entry) -> str:
    rules = [one for one in expectations_of(stream) if one.removes]
    return " AND ".join(f"({one.condition}\n)" for one in rules)


def _stopped(view: str, rule: Expectation) -> str:
    return f"a row of view {view} violates constraint {rule.name}: EXPECT ({' '.join(rule.condition.split())})"
