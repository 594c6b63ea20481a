"""Writes to tables: rows from Python, and INSERT, DELETE and UPDATE in SQL."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.answers.status import state_size
from eddyline.api.dml import Dml
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_choice
from eddyline.catalog.entries import DEAD, STREAM, TABLE, Entry
from eddyline.changes import APPEND, DELETE
from eddyline.errors import EddylineError
from eddyline.source.bulk import SMALL_ROWS, BulkTask, is_small
from eddyline.source.inbox import FOLDER, being_altered, log_files, withdraw_batch, write_file
from eddyline.source.log_files import as_operations
from eddyline.source.rows import Rows, as_arrow
from eddyline.source.segments import Segment
from eddyline.spark.failures import query_errors
from eddyline.spark.schema import arrow_schema, loosened
from eddyline.sql.names import quoted


class Writing:
    """Writes operations to the redo logs of tables, durably before each call returns."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def write(self, table: str, operations: Sequence[tuple[str, Rows]]) -> None:
        """Write operations (`append` or `delete`, rows), all or none.

        The rows of a large DataFrame are written by Spark's tasks, meanwhile epochs go on.
        """
        for operation, _ in operations:
            check_choice("operation", operation, (APPEND, DELETE))
        self._write(self._workspace.catalog.get(table, TABLE), operations)

    def insert_query(self, table: str, columns: Sequence[str] | None, query: str) -> None:
        """INSERT INTO table (columns) query."""
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(table, TABLE)
            query = workspace.plain_sql(query)
            dml, rows = self._dml(query)
            self._write(entry, dml.insert(entry, columns, query), rows)

    def delete_where(self, table: str, condition: str | None) -> None:
        """DELETE FROM table WHERE condition."""
        with self._workspace.lock:
            entry = self._workspace.catalog.get(table, TABLE)
            dml, rows = self._dml(f"{quoted(entry.name)} {condition or ''}")
            self._write(entry, dml.delete(entry, condition), rows)

    def update_where(
        self, table: str, assignments: Sequence[tuple[str, str]], condition: str | None
    ) -> None:
        """UPDATE table SET column = expression, ... WHERE condition."""
        with self._workspace.lock:
            entry = self._workspace.catalog.get(table, TABLE)
            texts = " ".join(text for _, text in assignments)
            dml, rows = self._dml(f"{quoted(entry.name)} {texts} {condition or ''}")
            changed = dml.update(entry, assignments, condition)
            given = ", ".join(f"{name} = {text}" for name, text in assignments)
            query = f"UPDATE {entry.name} SET {given}"
            if not is_small(changed, rows):
                self._write_files(entry, [((DELETE, APPEND), changed)], query)
                return
            with query_errors(query, table=entry.name):
                both = loosened(changed).toArrow()
            names = entry.columns.names
            before, after = both.columns[: len(names)], both.columns[len(names) :]
            parts = [(DELETE, pa.table(before, names)), (APPEND, pa.table(after, names))]
            self._write(entry, parts)

    def _write(
        self, entry: Entry, operations: Sequence[tuple[str, Rows]], rows: int | None = None
    ) -> None:
        """Write operations through the driver, or large ones by tasks.

        Args:
            rows: how many rows their DataFrames read of the storage; None if that isn't known.
        """
        given = [part for _, part in operations if isinstance(part, DataFrame)]
        if not all(is_small(part, rows) for part in given):
            self._write_files(entry, [((operation,), part) for operation, part in operations])
            return
        workspace = self._workspace
        schema = arrow_schema(entry.columns, workspace.zone)
        parts = []
        for operation, part in operations:
            found = as_arrow(
                part, schema, relation=entry.name, zone=workspace.zone, required=entry.key
            )
            parts.append(as_operations(found, operation))
        if not parts:
            return
        logged = pa.concat_tables(parts)
        with workspace.lock:
            workspace.check_writable()
            workspace.sources.take_written(entry)  # which was written before
            if logged.num_rows:
                workspace.sources.log(entry).append_tables([logged])

    def _write_files(
        self, entry: Entry, parts: Sequence[tuple[tuple[str, ...], Rows]], query: str = ""
    ) -> None:
        """Write operations into files of the table's inbox, and then one entry of its log that names them.

        Args:
            parts: what the rows do, and the rows; of two operations with the columns of both.
            query: the statement that they come from, for errors.
        """
        workspace = self._workspace
        workspace.check_writable()
        files, attempt = workspace.files, uuid.uuid4().hex
        schema = arrow_schema(entry.columns, workspace.zone)
        files.make_folder(f"{FOLDER}/{entry.id}")
        written: list[tuple[str, int, int]] = []
        try:
            for operations, rows in parts:
                task = BulkTask(
                    files,
                    entry.id,
                    entry.name,
                    attempt,
                    operations,
                    schema,
                    workspace.zone,
                    entry.key,
                )
                if isinstance(rows, DataFrame):
                    written += task.run(rows, query)
                else:
                    converted = task.converted(rows)
                    written.append(write_file(files, entry.id, attempt, converted, *operations))
            with workspace.lock:
                workspace.check_writable()
                self._check_same(entry)
                workspace.sources.take_written(entry)
                if written:
                    log_files(files, workspace.sources.log(entry), written)
        except EddylineError:
            with workspace.lock:  # perhaps the table's inbox is gone
                self._check_same(entry)
            raise
        finally:
            with suppress(OSError, EddylineError):  # else they go with those of broken off writes
                withdraw_batch(files, entry.id, attempt, ())

    def _check_same(self, entry: Entry) -> None:
        """Raise an error if a table has been altered or dropped."""
        if self._workspace.catalog.get(entry.name, TABLE).id != entry.id:
            raise being_altered()

    def dead_letters(self, name: str, where: str | None = None) -> DataFrame:
        """Return the current dead letters of a pipeline or stream that meet a condition.

        Letters whose replay or removal is decided are not among them.
        """
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(name + DEAD, STREAM)
            return self._dml(f"{quoted(entry.name)} {where or ''}")[0].rows(entry, where)

    def _dml(self, text: str) -> tuple[Dml, int]:
        """Return a Dml over the relations that a text mentions, and about how many rows these hold."""
        workspace = self._workspace
        session, manifest = workspace.session(), workspace.current()

        def waiting(entry: Entry) -> list[Segment]:
            if not workspace.writes:  # another engine may remove the entries at any time
                return []
            if entry.kind == TABLE:
                workspace.sources.take_written(entry)
            end = workspace.sources.log(entry).end()
            return workspace.sources.between(entry, manifest, end)

        dml, rows = Dml(session, workspace.files, waiting), 0
        for name in workspace.compiler.mentioned(text, workspace.catalog):
            entry = workspace.catalog.get(name)
            dml.register(entry, workspace.results.content(entry, manifest, session))
            if entry.kind == STREAM and not entry.arranged:
                rows += SMALL_ROWS + 1  # a log may only name data
            else:
                rows += state_size(manifest, entry)[0]
            if entry.kind == TABLE:
                rows += sum(segment.rows for segment in waiting(entry))
        return dml, rows
