"""The expectations of streams and views, and the names of the views that serve them.

A stream or view with expectations has companions, which are ordinary views: one counts the rows that
violate each expectation, one holds the rows that ON VIOLATION DEAD LETTER has rejected. A stream's log keeps
all records; all readers but the companions read it through a filter. A view that drops rows reads
another companion, which has all rows of its query.

The log of a stream of operations isn't retained. So its records are checked before they are applied, and a second
stream over the same log keeps the rejected ones: those with DEAD LETTER whole, of the others only the
names of the violated constraints and a count. The companions read that stream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import (
    COMPANION,
    EXPECTATIONS,
    KEPT,
    KEPT_OUT,
    OF,
    STREAM,
    Entry,
)
from eddyline.changes import OPERATION
from eddyline.sql.expectations import DEAD_LETTER, STOP, Expectation
from eddyline.sql.names import literal, quoted

UNCHECKED, VIOLATIONS, REJECTED = "__unchecked", "__violations", "__rejected"
"""Suffixes of companions: all rows of a view's query, numbers of violations, rows kept out."""

REASON, BROKEN = "violates", "constraints"


def option_of(expectations: Sequence[Expectation], query: str = "") -> str:
    """Return expectations as text for the catalog, with the query of the view as the user wrote it."""
    rules = [[one.name, one.condition, one.action] for one in expectations]
    return json.dumps({"rules": rules, "query": query})


def expectations_of(entry: Entry) -> tuple[Expectation, ...]:
    """Return the expectations of a stream or view."""
    stored = entry.options.get(EXPECTATIONS)
    return tuple(Expectation(*rule) for rule in json.loads(stored)["rules"]) if stored else ()


def filter_of(stream: Entry, reader: Entry | None = None) -> str:
    """Return the SQL condition of the rows that a stream has for a reader; empty for all that are logged."""
    if stream.kind != STREAM or EXPECTATIONS not in stream.options or stream.arranged:
        return ""
    if reader is not None and reader.options.get(COMPANION) == stream.name.lower():
        return ""
    return _all(stream)


def checked_query(name: str, expectations: Sequence[Expectation]) -> str:
    """Return the query of a view with expectations: it filters the rows of its companion, or fails on a violation."""
    cases = [
        f"WHEN {one.violated} THEN raise_error({literal(_stopped(name, one))})"
        for one in expectations
        if one.action == STOP
    ]
    kept = " AND ".join(f"({one.condition}\n)" for one in expectations if one.removes)
    condition = f"CASE {' '.join(cases)} ELSE {kept or 'true'} END" if cases else kept
    return f"SELECT * FROM {quoted(name + UNCHECKED)} WHERE {condition}"


def strict(stream: Entry) -> list[Expectation]:
    """Return the expectations that change records must meet before they are applied; none for other streams."""
    return [one for one in expectations_of(stream) if one.removes and stream.arranged]


def new_kept_out(stream: Entry) -> Entry | None:
    """Return the stream to create for the records that a stream of operations rejects; None if it rejects none."""
    from pyspark.sql.types import ArrayType, StringType, StructType

    if stream.kind != STREAM or not strict(stream):
        return None
    columns = stream.columns
    made = StructType([*columns])
    made.add(reason_column(columns.names), StringType())
    made.add(reason_column(columns.names, BROKEN), ArrayType(StringType()))
    return Entry(
        "", STREAM, stream.name + KEPT, made.json(),
        format=KEPT_OUT, options={OF: stream.id}, operation=OPERATION,
    )  # fmt: skip


def is_ended(entry: Entry, catalog: Catalog) -> bool:
    """Return whether a stream of rejected records gets no more: its stream has lost the expectations that reject."""
    streams = (one for one in catalog.entries if one.id == entry.source)
    return entry.role == KEPT_OUT and not any(strict(stream) for stream in streams)


def kept_out_of(stream: Entry, catalog: Catalog) -> Entry | None:
    """Return the stream of the records that a stream of operations rejects; None if it rejects none."""
    kept = (entry for entry in catalog.entries if entry.role == KEPT_OUT)
    return next((entry for entry in kept if entry.source == stream.id), None)


def counting_query(
    source: str, expectations: Sequence[Expectation], kept: Entry | None = None
) -> str:
    """Return the query that counts the rows of a relation which violate each expectation.

    Args:
        kept: the stream of rejected records; the violations of rules that reject are counted there.
    """
    if kept is None:
        return _counting(source, [(one.name, one.violated) for one in expectations])
    broken = quoted(kept.columns.names[-1])
    here = [(one.name, one.violated) for one in expectations if not one.removes]
    out = [
        (one.name, f"array_contains({broken}, {literal(one.name)})")
        for one in expectations
        if one.removes
    ]
    parts = [_counting(name, pairs) for name, pairs in ((source, here), (kept.name, out)) if pairs]
    return " UNION ALL ".join(parts)


def letters_query(kept: Entry) -> str:
    """Return the query of the records that ON VIOLATION DEAD LETTER has rejected from a stream of operations."""
    *columns, _ = kept.columns.names
    shown = ", ".join(map(quoted, columns))
    return f"SELECT {shown} FROM {quoted(kept.name)} WHERE {quoted(columns[-1])} IS NOT NULL"


def _counting(source: str, expectations: Sequence[tuple[str, str]]) -> str:
    """Return the query that counts rows.

    Args:
        expectations: pairs of name and the SQL condition of the rows that violate it.
    """
    counts = [f"count_if({violated}) AS n{at}" for at, (_, violated) in enumerate(expectations)]
    pairs = ", ".join(f"{literal(name)}, n{at}" for at, (name, _) in enumerate(expectations))
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


def reason_column(columns: Sequence[str], name: str = REASON) -> str:
    """Return the name of the column that names the violated expectations."""
    used = {column.lower() for column in columns}
    while name in used:
        name += "_"
    return name


def _all(stream: Entry) -> str:
    rules = [one for one in expectations_of(stream) if one.removes]
    return " AND ".join(f"({one.condition}\n)" for one in rules)


def _stopped(view: str, rule: Expectation) -> str:
    return f"a row of view {view} violates constraint {rule.name}: EXPECT ({' '.join(rule.condition.split())})"
