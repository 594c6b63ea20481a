"""ALTER TABLE and ALTER STREAM: add, drop, rename and widen columns; set the retention. Replaces and detaches views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from eddyline.api.altered_columns import (
    Fields,
    check_unused,
    replace_relation,
    stored_columns,
)
from eddyline.api.altered_rules import (
    changed,
    changed_rules,
    check_stored,
    is_of_rules,
    is_stricter,
    needed,
    new_values,
    with_changed,
)
from eddyline.api.altering_streams import AlteringStreams
from eddyline.api.column_defaults import checked_defaults
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.workspace import Workspace
from eddyline.catalog.column_rules import ColumnRule
from eddyline.catalog.entries import STREAM, TABLE, VIEW, Entry
from eddyline.changes import APPEND
from eddyline.intake.retention import retaining
from eddyline.runtime.progress import Timer
from eddyline.source.log_files import as_operations
from eddyline.spark.schema import arrow_schema
from eddyline.sql.forms import AlterColumns, AlterView, Retain


class Altering:
    """Changes the columns of tables, which get a new id, log and state; views keep theirs.

    The rows are written as the first entry of a new redo log, and a separate epoch that no view reads
    computes the state from it. Then one write of the catalog puts the new table in the place of the old one.
    Until then the old table is complete; after a crash the files of the new id are removed as unknown.
    """

    def __init__(self, workspace: Workspace, epochs: Epochs, definitions: Definitions) -> None:
        self._workspace = workspace
        self._epochs = epochs
        self._definitions = definitions
        self._streams = AlteringStreams(workspace, epochs)

    def alter(self, statement: AlterColumns) -> None:
        """Change columns of a table or stream, all or none; durable when this returns.

        Raises:
            CatalogError: there is no such table or stream, or views or sinks use a column.
            DataError: there is no such column, or it can't be changed in this way.
        """
        workspace, catalog = self._workspace, self._workspace.catalog
        with workspace.lock:
            workspace.check_writable()
            table, changes = catalog.get(statement.name, statement.kind), statement.changes
            if statement.if_needed and not (changes := tuple(needed(table, changes))):
                return
            if table.kind == STREAM:
                self._streams.alter(table, changes)
                return
            if is_of_rules(table, changes[0]):
                self._change_rules(table, changed_rules(table, changes[0]))
                return
            fields, key, rules = changed(table, changes)
            for change in changes:
                check_unused(workspace, table, change)
            with workspace.sources.log(table).writing, workspace.sources.inbox(table).closed():
                # process all waiting rows, so that the table's state is complete
                while self._epochs.run_next(Timer()):
                    pass
                self._replace(workspace.catalog.get(table.name, TABLE), fields, key, rules)

    def detach(self, name: str) -> None:
        """Pause a view of a DataFrame, and let it read nothing, so that its inputs can be dropped.

        Rows and sinks stay. `Engine.view` with `replace` defines it anew, and its sinks get the difference.

        Raises:
            CatalogError: there is no such view.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            view = workspace.catalog.get(name, VIEW)
            paused = view.paused or workspace.manifest.epoch
            # without the text of its plan no DataFrame is taken for the same
            detached = replace(view, upstream=(), query="", paused=paused, paused_with="")
            workspace.save(workspace.catalog.with_entries([detached]))
            workspace.compiler.frames.forget(view.id)
            workspace.forget_plan(view)

    def view(self, statement: AlterView) -> None:
        """ALTER VIEW name AS query: replace the query of a view, as `Engine.view` does with `replace`.

        Raises:
            CatalogError: there is no such view, or views that read it don't allow that.
            QueryError: the query is wrong, or can't be kept live.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            view = workspace.catalog.get(statement.name, VIEW)
            self._definitions.view(view.name, statement.query, replace=True)

    def retain(self, change: Retain) -> None:
        """Change how long a stream keeps its rows; durable when this returns.

        Raises:
            CatalogError: there is no such stream.
            DataError: BAD_RETENTION, the stream can't have that.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            stream = workspace.catalog.get(change.name, STREAM)
            altered = retaining(stream, change.interval, workspace.spark)
            workspace.save(workspace.catalog.with_entries([altered]))

    def _change_rules(self, table: Entry, rules: Mapping[str, ColumnRule]) -> None:
        """Give the columns of a table other rules; its rows stay as they are, and must meet them."""
        workspace = self._workspace
        altered = checked_defaults(with_changed(table, rules), workspace.session)
        with workspace.sources.log(table).writing, workspace.sources.inbox(table).closed():
            if is_stricter(altered, table):
                # process all waiting rows, so that the table's state is complete
                while self._epochs.run_next(Timer()):
                    pass
                check_stored(workspace, table, altered)
            workspace.save(workspace.catalog.with_entries([altered]))

    def _replace(
        self,
        table: Entry,
        fields: Fields,
        key: tuple[str, ...],
        rules: Mapping[str, ColumnRule],
    ) -> None:
        """Replace a table by one with other columns."""
        workspace, catalog = self._workspace, self._workspace.catalog
        columns = StructType([field for field, _ in fields])
        altered = replace(
            table, id=f"{TABLE[0]}{catalog.next_id}", schema=columns.json(), key=key, since=0
        )
        altered = checked_defaults(with_changed(altered, rules), workspace.session)
        values = new_values(altered, fields, workspace.session)
        workspace.save(replace(catalog, next_id=catalog.next_id + 1), final=False)
        kinds, names = arrow_schema(columns, workspace.zone), [old for _, old in fields]
        rows = [
            as_operations(pa.table(own, schema=kinds), APPEND)
            for own in stored_columns(workspace, table, names, kinds, values)
        ]
        timer = None
        log = workspace.sources.log(altered)
        log.inherit(workspace.sources.log(table))
        if rows:
            log.append_tables(rows)
            timer = self._epochs.load(altered)
        altered = replace(
            altered, since=workspace.manifest.epoch
        )  # earlier epochs have the old columns
        replace_relation(workspace, table, altered, fields, lambda entry: entry)
        workspace.sources.open_inbox(altered)
        if timer is not None:
            self._epochs.after_commit(timer)
