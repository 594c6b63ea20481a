"""ALTER TABLE: columns that come, leave, and get another name or a wider type; ALTER STREAM: that come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from eddyline.answers.stored import Relation
from eddyline.api import drafts
from eddyline.api.epochs import Epochs
from eddyline.api.workspace import Workspace
from eddyline.catalog.altered import keep_seen, seen_by
from eddyline.catalog.entries import LATE, STREAM, TABLE, VIEW, Entry
from eddyline.changes import APPEND
from eddyline.errors import CatalogError, DataError, QueryError
from eddyline.source.log_files import as_operations
from eddyline.source.received import is_received
from eddyline.spark.schema import arrow_schema, widens
from eddyline.sql.forms import AlterColumn

ADD, DROP, RENAME = "add", "drop", "rename"
"""Actions of `AlterColumn`; the fourth gives a column a wider type."""


class Altering:
    """Changes the columns of tables, which get a new id, log and state; views keep theirs.

    The rows are written as the first entry of a new redo log, and a separate epoch that no view reads
    computes the state from it. Then one write of the catalog puts the new table in the place of the old one.
    Until that everything is as before; what is left by a crash is dropped with other unknown ids.
    """

    def __init__(self, workspace: Workspace, epochs: Epochs) -> None:
        self._workspace = workspace
        self._epochs = epochs

    def alter(self, change: AlterColumn) -> None:
        """Change a column of a table; durable when this returns.

        Raises:
            CatalogError: there is no such table, or views or sinks use the column.
            DataError: there is no such column, or it can't be changed in this way.
        """
        workspace, catalog = self._workspace, self._workspace.catalog
        with workspace.lock:
            workspace.check_writable()
            table = catalog.get(change.name, change.kind)
            if table.kind == STREAM:
                self._alter_stream(table, change)
                return
            fields, key = _changed(table, change)
            self._check_unused(table, change)
            with workspace.sources.inbox(table).closed():
                while self._epochs.run_next(0.0):  # so that the table's state has all rows
                    pass
                self._replace(workspace.catalog.get(table.name, TABLE), fields, key)

    def _alter_stream(self, stream: Entry, change: AlterColumn) -> None:
        """Add a column to a stream.

        Its log stays as it is: rows that lack the column have null in it. The source is stopped meanwhile, so that
        a record is logged either before or with the column.
        """
        workspace, catalog = self._workspace, self._workspace.catalog
        why = self._fixed(stream, change)
        if why:
            raise CatalogError(
                f"stream {stream.name} can't be changed: {why}",
                condition="NOT_ALTERABLE",
                hint="create a second stream with the new columns, and a view that unites both",
            )
        self._check_unused(stream, change)
        fields, _ = _changed(stream, change)
        made = replace(stream, schema=StructType([field for field, _ in fields]).json())
        workspace.sources.check(made)
        now: dict[str, str | None] = {name: name for name in stream.columns.names}
        readers = set(catalog.readers(stream.name))
        altered = catalog.with_columns(stream, made.schema)
        entries = tuple(
            keep_seen(entry, stream, now) if entry.name in readers else entry
            for entry in altered.entries
        )
        pipeline = catalog.pipeline_into(stream)  # of the format queue
        letters = catalog.letters_of(stream) if pipeline is None else pipeline
        workspace.sources.disconnect(stream if pipeline is None else pipeline)
        try:
            workspace.save(replace(altered, entries=entries))
        finally:
            if workspace.writes:
                present = workspace.catalog.get(stream.name)
                workspace.sources.attach(present, letters)

    def _fixed(self, stream: Entry, change: AlterColumn) -> str:
        """Return why a stream can't be changed; empty if it can."""
        catalog, sources = self._workspace.catalog, self._workspace.sources
        if change.action != ADD:
            return "only ADD COLUMN is possible, because its log keeps the records as they came"
        if stream.role:
            return "it belongs to another stream, pipeline or sink"
        if stream.arranged:
            return "it has OP or PRIMARY KEY, and its rows are stored with their columns"
        if not stream.reopens:
            return "a DataFrame or a pipeline gives its columns"
        if sources.is_tenant(stream):
            return "its columns are those of a table of another system"
        if is_received(change.column):
            return f"{change.column} is the time of receipt, which a stream has from the beginning"
        if late := catalog.readers(stream.name + LATE):
            return f"its late rows are read by {', '.join(late)}"
        return ""

    def _replace(
        self,
        table: Entry,
        fields: Sequence[tuple[StructField, str | None]],
        key: tuple[str, ...],
    ) -> None:
        """Put a table with other columns in the place of a table.

        Args:
            fields: the new columns, each with its name so far; None for a new one.
        """
        workspace, catalog = self._workspace, self._workspace.catalog
        columns = StructType([field for field, _ in fields])
        made = replace(
            table, id=f"{TABLE[0]}{catalog.next_id}", schema=columns.json(), key=key, since=0
        )
        spent = replace(catalog, next_id=catalog.next_id + 1)
        workspace.save(spent, final=False)
        rows = self._converted(table, columns, [name for _, name in fields])
        seconds = None
        log = workspace.sources.log(made)
        log.inherit(workspace.sources.log(table))
        if rows:
            log.append_tables(rows)
            seconds = self._epochs.load(made)
        made = replace(made, since=workspace.manifest.epoch)  # earlier epochs have the old columns
        names = {old: field.name for field, old in fields if old is not None}
        now = {name: names.get(name) for name in table.columns.names}
        readers = set(catalog.readers(table.name))

        def next_entry(entry: Entry) -> Entry:
            if entry.id == table.id:
                return made
            return keep_seen(entry, table, now) if entry.name in readers else entry

        try:
            workspace.save(replace(spent, entries=tuple(map(next_entry, spent.entries))))
        except BaseException:
            workspace.manifest = workspace.manifest.owned(workspace.catalog.ids)
            raise
        for entry in workspace.catalog.entries:
            if entry.name in readers:
                workspace.forget_plan(entry)  # it reads other places
        workspace.forget(table)
        workspace.sources.open_inbox(made)
        if seconds is not None:
            self._epochs.committed({"ingest": 0.0, **seconds})

    def _converted(
        self, table: Entry, columns: StructType, names: Sequence[str | None]
    ) -> list[pa.Table]:
        """Return the rows of a table as operations of one with other columns."""
        workspace = self._workspace
        kinds = arrow_schema(columns, workspace.zone)
        known = table.columns.names
        made = []
        for part in Relation(workspace.files, table, workspace.manifest).snapshot().parts():
            rows = part.read()
            if rows is None:
                continue
            own = [
                pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
                if name is None
                else rows[f"c{known.index(name)}"].cast(field.type)
                for field, name in zip(kinds, names, strict=True)
            ]
            made.append(as_operations(pa.table(own, schema=kinds), APPEND))
        return made

    def _check_unused(self, table: Entry, change: AlterColumn) -> None:
        """Raise CatalogError if views use a column that changes, or sinks follow the table."""
        catalog = self._workspace.catalog
        sinks = [s.name for s in catalog.sinks if table.name.lower() in map(str.lower, s.upstream)]
        if sinks:
            raise _used(table, f"sinks follow it: {', '.join(sinks)}", "drop these sinks first")
        for view in catalog.below(table.name):
            if view.paused and table.kind == TABLE:  # its epoch has no rows of the new table
                raise _used(table, f"view {view.name} reads it, and is paused", "resume it first")
        readers = [
            view for view in map(catalog.get, catalog.readers(table.name)) if view.kind == VIEW
        ]
        frames = [view.name for view in readers if view.of_frame]
        if frames:  # whose columns are those of the relation that their program has read
            raise _used(
                table,
                f"views of DataFrames read it: {', '.join(frames)}",
                "drop these views first, and define them again afterwards",
            )
        if change.action == ADD:
            return
        users = [view.name for view in readers if self._uses(view, table, change.column)]
        if users:
            raise _used(
                table,
                f"views use column {change.column}: {', '.join(users)}",
                "drop these views first, or replace them (CREATE OR REPLACE VIEW) by ones that don't use "
                "the column",
            )

    def _uses(self, view: Entry, table: Entry, column: str) -> bool:
        """Return whether a view reads a column; True if it can't be compiled now."""
        seen = seen_by(view, table)
        try:
            leaves = self._workspace.plan(view).plan.leaves
        except QueryError:
            return True
        read = {
            seen.names[place]
            for leaf in leaves
            if leaf.relation.lower() == table.name.lower()
            for place in leaf.columns
        }
        return column.lower() in {name.lower() for name in read if name is not None}


def _changed(
    table: Entry, change: AlterColumn
) -> tuple[list[tuple[StructField, str | None]], tuple[str, ...]]:
    """Return the columns of a table after a change, each with its name before, and the key."""
    fields: list[tuple[StructField, str | None]] = [(f, f.name) for f in table.columns]
    known = {name.lower(): place for place, name in enumerate(table.columns.names)}
    place = known.get(change.column.lower())
    key = table.key
    if change.action == ADD:
        if place is not None:
            raise _wrong(table, f"there is a column {change.column} already", "take another name")
        return [*fields, (_field(table, change.column, change.to), None)], key
    if place is None:
        raise DataError(
            f"there is no column {change.column}",
            condition="UNKNOWN_COLUMN",
            table=table.name,
            hint=f"the columns are {', '.join(table.columns.names)}",
        )
    field = table.columns[place]
    if change.action == RENAME:
        if known.get(change.to.lower(), place) != place:
            raise _wrong(table, f"there is a column {change.to} already", "take another name")
        fields[place] = StructField(change.to, field.dataType), field.name
        return fields, tuple(change.to if name == field.name else name for name in key)
    if field.name in key:
        raise _wrong(
            table,
            f"column {field.name} is part of the primary key",
            "create a table with the new key, and INSERT INTO it SELECT from this one",
        )
    if change.action == DROP:
        if len(fields) == 1:
            raise _wrong(table, "its only column can't leave", "DROP TABLE")
        return [*fields[:place], *fields[place + 1 :]], key
    wider = _field(table, field.name, change.to)
    if not widens(field.dataType, wider.dataType):
        raise _wrong(
            table,
            f"{wider.dataType.simpleString()} doesn't hold all values of {field.name}, which is "
            f"{field.dataType.simpleString()}",
            "ADD a COLUMN of that type, and fill it with UPDATE",
        )
    fields[place] = wider, field.name
    return fields, key


def _field(table: Entry, name: str, kind: str) -> StructField:
    """Return a column as the catalog stores it."""
    text = name.replace("`", "``")
    (made,) = drafts.table(table.name, f"`{text}` {kind}", ()).columns.fields
    return made


def _wrong(table: Entry, message: str, hint: str) -> DataError:
    return DataError(message, condition="BAD_SCHEMA", table=table.name, hint=hint)


def _used(table: Entry, message: str, hint: str) -> CatalogError:
    return CatalogError(message, condition="STILL_READ", table=table.name, hint=hint)
