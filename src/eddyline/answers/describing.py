"""What DESCRIBE and SHOW answer, from the catalog alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from eddyline.answers.create_statements import (
    constraint,
    create_statement,
    sql_name,
    user_options,
    watermark,
    written_query,
)
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.column_rules import NO_RULE, declared_type, rules_of
from eddyline.catalog.entries import COMPANION, SINK, STREAM, VIEW, Entry
from eddyline.catalog.expectations import expectations_of
from eddyline.errors import CatalogError
from eddyline.sink.secrets import without_secrets_in
from eddyline.sql.describing import name_pattern
from eddyline.sql.forms import Describe, Show, ShowColumns, ShowCreate, Statement

DESCRIBED = ("col_name", "data_type", "comment")
LISTED = ("name", "columns", "definition")
DETAILS = "# Detailed Table Information"

Rows = list[tuple[str | None, ...]]
Asked = Describe | ShowColumns | ShowCreate | Show


def is_stored(statement: Statement) -> TypeGuard[Asked]:
    """Return whether the catalog alone answers a statement."""
    if isinstance(statement, Show):
        return statement.kind != SINK
    return isinstance(statement, Describe | ShowColumns | ShowCreate)


def answered(catalog: Catalog, statement: Asked) -> tuple[Sequence[str], Rows]:
    """Return the names of the columns, all of text, and the rows that answer a statement.

    Args:
        statement: one for which `is_stored` is true.

    Raises:
        CatalogError: NOT_FOUND, nothing of this kind has the name; NO_STATEMENT of `create_statement`.
    """
    if isinstance(statement, Show):
        return LISTED, listed(catalog, statement.kind, statement.pattern)
    if isinstance(statement, ShowColumns):
        names = _columns(catalog, found(catalog, statement.name, ""))
        return ("col_name",), [(name,) for name, _, _ in names]
    entry = found(catalog, statement.name, statement.kind)
    if isinstance(statement, ShowCreate):
        return ("createtab_stmt",), [(create_statement(entry, catalog),)]
    rows: Rows = list(_columns(catalog, entry))
    if statement.extended:
        rows += [("", "", ""), (DETAILS, "", "")]
        rows += [(name, value, "") for name, value in _details(catalog, entry) if value]
    return DESCRIBED, rows


def listed(catalog: Catalog, kind: str, pattern: str | None = None) -> Rows:
    """Return name, columns and definition of the tables, streams or views whose names match a pattern."""
    fits = name_pattern("*" if pattern is None else pattern)
    return [
        (
            entry.name,
            ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in entry.columns),
            entry.query or entry.format or ", ".join(entry.key),
        )
        for entry in catalog.entries
        if entry.kind == kind and fits.fullmatch(entry.name)
    ]


def found(catalog: Catalog, name: str, kind: str) -> Entry:
    """Return the definition of a name.

    Args:
        kind: `stream`, `view` or `sink`; empty for any, where a sink comes after a relation of its name.

    Raises:
        CatalogError: NOT_FOUND.
    """
    if kind == SINK:
        return catalog.get_sink(name)
    if kind:
        return catalog.get(name, kind)
    entry = catalog.find(name) or catalog.find_sink(name)
    if entry is None:
        known = ", ".join(one.name for one in (*catalog.entries, *catalog.sinks))
        raise CatalogError(
            f"there is no table, stream, view or sink named {name}",
            condition="NOT_FOUND",
            hint=f"known: {known or 'none yet'}",
        )
    return entry


def _columns(catalog: Catalog, entry: Entry) -> Iterator[tuple[str, str, str | None]]:
    """Yield name, type and comment of each column; a sink has those of its view."""
    shown = catalog.get(entry.upstream[0], VIEW) if entry.kind == SINK else entry
    rules = rules_of(shown)
    for field in shown.columns:
        comment = (field.metadata or {}).get("comment")
        yield (
            field.name,
            declared_type(field, rules.get(field.name, NO_RULE)).simpleString(),
            comment,
        )


def _details(catalog: Catalog, entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield what is known of an entry besides its columns, as pairs of a name and a text, which may be empty."""
    yield "Name", entry.name
    yield "Type", entry.kind.upper()
    yield "Primary Key", ", ".join(map(sql_name, entry.key))
    yield "Format", "" if entry.role else entry.format
    yield "Operation Column", "" if entry.role else entry.operation
    if entry.kind in (STREAM, SINK) and not entry.role:
        shown = without_secrets_in(user_options(entry))
        yield "Options", ", ".join(f"{name}={value}" for name, value in shown.items())
    yield "Watermark", watermark(entry)
    for rule in expectations_of(entry):
        yield f"Constraint {rule.name}", constraint(rule).partition(" EXPECT ")[2]
    if entry.kind == VIEW and not entry.of_frame:
        yield "View Text", written_query(entry)[0]
    yield "Reads", ", ".join(map(sql_name, entry.upstream))
    yield "Belongs To", entry.options.get(COMPANION, "")
    if entry.kind != SINK:
        yield "Read By", ", ".join(map(sql_name, catalog.readers(entry.name)))
        yield "Sinks", ", ".join(map(sql_name, catalog.followers(entry.name)))
    if entry.paused:
        yield "Paused", "yes" if entry.kind == SINK else f"since epoch {entry.paused}"
