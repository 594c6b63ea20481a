"""What ALTER TABLE and ALTER STREAM have in common: the columns after a change, and the views that prevent it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField

from eddyline.answers.stored import StoredRelation
from eddyline.api import drafts
from eddyline.api.workspace import Workspace
from eddyline.catalog.altered import keep_seen, seen_by
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.column_rules import NO_RULE, ColumnRule, rules_of
from eddyline.catalog.entries import COMPANION, LATE, STREAM, TABLE, VIEW, Entry
from eddyline.catalog.expectations import expectations_of
from eddyline.errors import CatalogError, DataError, QueryError
from eddyline.source.row_rules import filled
from eddyline.spark.schema import widens
from eddyline.sql.forms import ColumnChange
from eddyline.sql.names import quoted

ADD, DROP, RENAME, TYPE = "add", "drop", "rename", "type"
"""Actions of `ColumnChange`."""

Fields = Sequence[tuple[StructField, str | None]]
"""The columns after a change, each with its name so far; None for a new one."""


def changed_columns(relation: Entry, change: ColumnChange) -> tuple[Fields, tuple[str, ...]]:
    """Return the columns of a table or stream after a change, and the key.

    Raises:
        DataError: there is no such column, or it can't be changed in this way.
    """
    fields: list[tuple[StructField, str | None]] = [(f, f.name) for f in relation.columns]
    known = {name.lower(): place for place, name in enumerate(relation.columns.names)}
    place = known.get(change.column.lower())
    key = relation.key
    if change.action == ADD:
        if place is not None:
            raise wrong(relation, f"there is a column {change.column} already", "take another name")
        return [*fields, (declared_column(relation, change.column, change.to)[0], None)], key
    if place is None:
        raise DataError(
            f"there is no column {change.column}",
            condition="UNKNOWN_COLUMN",
            table=relation.name,
            hint=f"the columns are {', '.join(relation.columns.names)}",
        )
    field = relation.columns[place]
    if change.action == RENAME:
        if known.get(change.to.lower(), place) != place:
            raise wrong(relation, f"there is a column {change.to} already", "take another name")
        renamed, _ = declared_column(relation, change.to, "INT")
        fields[place] = StructField(renamed.name, field.dataType), field.name
        return fields, tuple(change.to if name == field.name else name for name in key)
    if field.name in key:
        raise wrong(
            relation,
            f"column {field.name} is part of the primary key",
            "create a table with the new key, and INSERT INTO it SELECT from this one"
            if relation.kind == TABLE
            else "create a second stream with the new key",
        )
    if change.action == DROP:
        if len(fields) == 1:
            raise wrong(relation, "no column would be left", f"DROP {relation.kind.upper()}")
        return [*fields[:place], *fields[place + 1 :]], key
    wider, _ = declared_column(relation, field.name, change.to)
    if not widens(field.dataType, wider.dataType):
        raise wrong(
            relation,
            f"{wider.dataType.simpleString()} doesn't hold all values of {field.name}, which is "
            f"{field.dataType.simpleString()}",
            "ADD a COLUMN of that type, and fill it with UPDATE"
            if relation.kind == TABLE
            else "cast it in a view",
        )
    fields[place] = wider, field.name
    return fields, key


def check_unused(workspace: Workspace, relation: Entry, change: ColumnChange) -> None:
    """Raise CatalogError if views use a column that changes, or sinks follow the relation."""
    catalog, name = workspace.catalog, relation.name
    sinks = [s.name for s in catalog.sinks if name.lower() in map(str.lower, s.upstream)]
    if sinks:
        raise _used(relation, f"sinks follow it: {', '.join(sinks)}", "drop these sinks first")
    for view in catalog.below(name):
        # the epoch of its pause has no rows of the new relation
        if view.paused and relation.arranged:
            raise _used(relation, f"view {view.name} reads it, and is paused", "resume it first")
    readers = [view for view in map(catalog.get, catalog.readers(name)) if view.kind == VIEW]
    frames = [view.name for view in readers if view.of_frame]
    if frames:  # their programs have built the plans with the old columns
        raise _used(
            relation,
            f"views of DataFrames read it: {', '.join(frames)}",
            "drop these views first, and define them again afterwards",
        )
    if change.action == ADD:
        return
    using = [view for view in readers if _uses(workspace, view, relation, change.column)]
    users, companions = (
        [view.name for view in using if (COMPANION in view.options) is own] for own in (False, True)
    )
    if companions:
        rules = ", ".join(one.name for one in expectations_of(relation))
        raise _used(
            relation,
            f"its constraints ({rules}) or the rows that they reject use column {change.column}, in "
            f"{', '.join(companions)}",
            f"ALTER STREAM {name} DROP CONSTRAINT first",
        )
    if users:
        raise _used(
            relation,
            f"views use column {change.column}: {', '.join(users)}",
            "drop these views first, or replace them (CREATE OR REPLACE VIEW) by ones that don't use "
            "the column",
        )


def new_names(relation: Entry, fields: Fields) -> dict[str, str | None]:
    """Return the new name of each column of a relation; None for a dropped one."""
    names = {old: field.name for field, old in fields if old is not None}
    return {name: names.get(name) for name in relation.columns.names}


def with_kept_columns(catalog: Catalog, relation: Entry, now: Mapping[str, str | None]) -> Catalog:
    """Return a catalog in which the readers of an altered relation still see their old columns.

    Args:
        now: the new name of each column; None for a dropped one.
    """
    readers = map(catalog.get, catalog.readers(relation.name))
    return catalog.with_entries([keep_seen(reader, relation, now) for reader in readers])


def stored_columns(
    workspace: Workspace,
    relation: Entry,
    names: Sequence[str | None],
    kinds: pa.Schema,
    new: Mapping[str, pa.Scalar] | None = None,
) -> Iterator[list[pa.ChunkedArray]]:
    """Yield the stored rows of a table, or a stream of operations, as columns of other types.

    Args:
        names: of each column its name so far; None for a new one.
        new: the values in new columns; null in all others.
    """
    known = relation.columns.names
    for part in StoredRelation(workspace.files, relation, workspace.manifest).snapshot().parts():
        rows = part.read()
        if rows is not None:
            yield [
                pa.chunked_array([filled((new or {}).get(field.name), field.type, rows.num_rows)])
                if name is None
                else rows[f"c{known.index(name)}"].cast(field.type)
                for field, name in zip(kinds, names, strict=True)
            ]


def replace_relation(
    workspace: Workspace, old: Entry, altered: Entry, fields: Fields, also: Callable[[Entry], Entry]
) -> None:
    """Replace a relation by one with other columns and a new id, in one write of the catalog.

    Args:
        also: updates each of the other entries for the same write.
    """
    catalog = with_kept_columns(workspace.catalog, old, new_names(old, fields))
    readers = catalog.readers(old.name)
    entries = [altered if entry.id == old.id else also(entry) for entry in catalog.entries]
    try:
        workspace.save(replace(catalog, entries=tuple(entries)))
    except BaseException:
        workspace.manifest = workspace.manifest.owned(workspace.catalog.ids)
        raise
    for reader in map(workspace.catalog.get, readers):
        workspace.forget_plan(reader)  # its columns have other places now
    workspace.forget(old)


def _uses(workspace: Workspace, view: Entry, relation: Entry, column: str) -> bool:
    """Return whether a view reads a column; True if it can't be compiled now."""
    seen = seen_by(view, relation)
    try:
        leaves = workspace.plan(view).plan.leaves
    except QueryError:
        return True
    read = {
        seen.names[place]
        for leaf in leaves
        if leaf.relation.lower() == relation.name.lower()
        for place in leaf.columns
    }
    return column.lower() in {name.lower() for name in read if name is not None}


def declared_column(relation: Entry, name: str, text: str) -> tuple[StructField, ColumnRule]:
    """Return a column as the catalog stores it, and its rules.

    Args:
        text: what follows the name: the type, for a table with rules.

    Raises:
        DataError: the text isn't that of one column.
    """
    columns = f"{quoted(name)} {text}"
    if relation.kind == STREAM:
        fields, rules = drafts.columns_of(columns), {}
    else:
        entry = drafts.table(relation.name, columns, ())
        fields, rules = entry.columns, rules_of(entry)
    if len(fields) > 1:
        raise wrong(relation, f"{text} is more than one column", "change one in each statement")
    return fields[0], rules.get(fields[0].name, NO_RULE)


def wrong(relation: Entry, message: str, hint: str) -> DataError:
    """Return the error for a change that doesn't fit the columns."""
    return DataError(message, condition="BAD_SCHEMA", table=relation.name, hint=hint)


def _used(relation: Entry, message: str, hint: str) -> CatalogError:
    name = relation.name.removesuffix(LATE) if relation.late_of else relation.name
    return CatalogError(message, condition="STILL_READ", table=name, hint=hint)
