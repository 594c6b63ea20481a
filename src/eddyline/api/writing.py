"""Writes to tables: rows from Python, and INSERT, DELETE, UPDATE and MERGE in SQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.answers.state_sizes import state_size
from eddyline.api import drafts
from eddyline.api.column_defaults import rules_for
from eddyline.api.dml import Dml
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_choice
from eddyline.catalog.entries import DEAD, STREAM, TABLE, VIEW, Entry
from eddyline.changes import APPEND, DELETE
from eddyline.errors import EddylineError
from eddyline.source.bulk import SMALL_ROWS, TableRows, is_small
from eddyline.source.group_commit import GroupCommit
from eddyline.source.inbox import FOLDER, being_altered, log_files, withdraw_batch
from eddyline.source.log_files import as_operations
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment
from eddyline.source.user_rows import Rows
from eddyline.spark.schema import arrow_schema
from eddyline.sql.forms import CreateTableAs, Delete, Insert, Merge, Update
from eddyline.sql.names import quoted


class Writing:
    """Writes operations to the redo logs of tables, durably before each call returns.

    Rows wait for other writes to their table, not for epochs. Those of several threads are written together. A
    statement that reads the storage to find what to write holds up epochs, and other writes to its table: it
    would undo what comes between.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        # a dropped table takes its log, and so its group, with it
        self._groups: WeakKeyDictionary[RedoLog, tuple[Entry, GroupCommit[pa.Table]]]
        self._groups = WeakKeyDictionary()
        self._new = ""  # id of the table that `create_table_as` is making

    def write(self, table: str, operations: Sequence[tuple[str, Rows]]) -> None:
        """Write operations (`append` or `delete`, rows), all or none; epochs go on meanwhile.

        The rows of a large DataFrame are written by Spark's tasks.
        """
        for operation, _ in operations:
            check_choice("operation", operation, (APPEND, DELETE))
        entry = self._workspace.catalog.get(table, TABLE)
        parts = [((operation,), rows) for operation, rows in operations]
        self._write(entry, parts, self._group(entry).write)

    def reads_views(self, statement: CreateTableAs | Insert | Delete | Update | Merge) -> bool:
        """Return whether a statement reads views: it finds their rows of the last epoch, but those of tables of now."""
        workspace = self._workspace
        names = workspace.compiler.mentioned(statement.reads, workspace.catalog)
        return any(workspace.catalog.get(name).kind == VIEW for name in names)

    def insert_query(self, statement: Insert) -> None:
        """INSERT INTO | OVERWRITE table (columns) query."""
        workspace, table = self._workspace, statement.table
        query = workspace.plain_sql(statement.query_text)
        statement = replace(statement, query_text=query)
        reads = workspace.compiler.mentioned(query, workspace.catalog)
        if not (reads or statement.overwrite):  # as VALUES
            entry = workspace.catalog.get(table, TABLE)
            rows = Dml(workspace.session(), workspace.files).insert(entry, statement)
            self._write(entry, [((APPEND,), rows)], self._group(entry).write, 0)
            return
        with self._alone(table) as (entry, append):
            replaced = quoted(entry.name) if statement.overwrite else ""
            dml, read = self._dml(f"{replaced} {query}")
            parts = [((DELETE,), dml.rows(entry, None))] if statement.overwrite else []
            parts.append(((APPEND,), dml.insert(entry, statement)))
            self._write(entry, parts, append, read)

    def create_table_as(self, statement: CreateTableAs, *, rows: bool = True) -> None:
        """CREATE TABLE name AS query: make a table with the columns and the rows of a query, or neither.

        The rows are in the redo log before the catalog has the table. After a crash in between they
        are removed when the storage is opened, as those of an unknown id.

        Args:
            rows: whether to insert the rows; if not, the table is empty.

        Raises:
            CatalogError: the name is another's. DataError: a table can't have such a column.
            QueryError: the query is wrong, or fails.
        """
        workspace, name = self._workspace, statement.name
        query = workspace.plain_sql(statement.query)
        with workspace.lock:
            workspace.check_writable()
            if (present := workspace.catalog.find(name)) is not None:
                unchanged = statement.if_not_exists or drafts.is_made_as(present, statement.query)
                if present.kind == TABLE and unchanged:
                    return
                raise drafts.name_taken(present, way_out="CREATE TABLE IF NOT EXISTS leaves it")
            dml, read = self._dml(query)
            result = dml.result(query)
            draft = drafts.table_of_query(name, statement.query, result.schema)
            catalog = workspace.catalog.add(draft)
            entry = catalog.get(name)
            found = dml.typed(entry, list(entry.columns), result, query)
            workspace.save(replace(workspace.catalog, next_id=catalog.next_id), final=False)
            self._new = entry.id
            try:
                parts = [((APPEND,), found)] if rows else []
                self._write(entry, parts, partial(self._append_part, entry), read)
                workspace.save(catalog)
            except BaseException:
                if workspace.writes and entry.id not in workspace.catalog.ids:
                    # remaining files are removed when the storage is opened
                    with suppress(OSError, EddylineError):
                        workspace.sources.remove(entry)
                raise
            finally:
                self._new = ""
            workspace.sources.open_inbox(entry)

    def delete(self, statement: Delete) -> None:
        """DELETE FROM table alias WHERE condition."""
        with self._alone(statement.table) as (entry, append):
            dml, read = self._dml(f"{quoted(entry.name)} {statement.reads}")
            rows = dml.rows(entry, statement.where_text, statement.alias)
            self._write(entry, [((DELETE,), rows)], append, read)

    def update(self, statement: Update) -> None:
        """UPDATE table alias SET column = expression, ... WHERE condition."""
        with self._alone(statement.table) as (entry, append):
            dml, read = self._dml(f"{quoted(entry.name)} {statement.reads}")
            given = ", ".join(f"{name} = {text}" for name, text in statement.assignments)
            query = f"UPDATE {entry.name} SET {given}"
            both = dml.update(entry, statement)
            self._write(entry, [((DELETE, APPEND), both)], append, read, query)

    def merge(self, statement: Merge) -> None:
        """MERGE INTO table USING source ON condition WHEN ..."""
        workspace = self._workspace
        statement = replace(statement, source_text=workspace.plain_sql(statement.source_text))
        with self._alone(statement.table) as (entry, append):
            dml, read = self._dml(f"{quoted(entry.name)} {statement.reads}")
            query = f"MERGE INTO {entry.name} USING {statement.source_text}"
            both = dml.merge(entry, statement, query)
            self._write(entry, [((DELETE, APPEND), both)], append, read, query)

    def _group(self, entry: Entry) -> GroupCommit[pa.Table]:
        """Return what writes the rows of several threads to a table together."""
        log = self._workspace.sources.log(entry)
        known = self._groups.get(log)
        if known is None or known[0] != entry:  # its rules have been altered
            group = GroupCommit[pa.Table](log.writing, partial(self._append, entry))
            known = self._groups[log] = entry, group
        return known[1]

    @contextmanager
    def _alone(self, table: str) -> Iterator[tuple[Entry, Callable[[pa.Table], None]]]:
        """Let no epoch run and nobody write to a table; yield its entry, and what appends operations to it."""
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(table, TABLE)
            with workspace.sources.log(entry).writing:
                yield entry, partial(self._append_part, entry)

    def _write(
        self,
        entry: Entry,
        parts: Sequence[tuple[tuple[str, ...], Rows]],
        append: Callable[[pa.Table], None],
        read: int | None = None,
        query: str = "",
    ) -> None:
        """Write operations: through the driver, or for a large DataFrame into files that an entry then names.

        Args:
            parts: what the rows do, and the rows: see `TableRows`.
            append: writes operations that the driver holds.
            read: how many rows their DataFrames read of the storage; None if that isn't known.
            query: the statement that they come from, for errors.
        """
        if not parts:
            return
        workspace, attempt = self._workspace, uuid.uuid4().hex
        schema = arrow_schema(entry.columns, workspace.zone)
        own = TableRows(
            workspace.files, entry.id, entry.name, schema, workspace.zone, entry.key, attempt, query,
            rules=rules_for(entry, parts, workspace.session),
        )  # fmt: skip
        tasks = [(replace(own, operations=operations), rows) for operations, rows in parts]
        frames = [rows for _, rows in parts if isinstance(rows, DataFrame)]
        if all(is_small(frame, read) for frame in frames):
            found = [one for task, rows in tasks for one in task.converted(rows)]
            append(pa.concat_tables([as_operations(part, kind) for _, kind, part in found]))
        else:
            self._write_files(entry, tasks, attempt)

    def _append_part(self, entry: Entry, operations: pa.Table) -> None:
        """Append operations of one statement to the log of a table."""
        self._append(entry, [operations])

    def _append(self, entry: Entry, operations: Sequence[pa.Table]) -> None:
        """Append operations to the log of a table, as one entry."""
        with self._appending(entry) as log:
            rows = pa.concat_tables(operations)
            if rows.num_rows:
                log.append_tables([rows])

    def _write_files(
        self, entry: Entry, tasks: Sequence[tuple[TableRows, Rows]], attempt: str
    ) -> None:
        """Write rows into files of the table's inbox, and then one entry of its log that names them."""
        workspace, files = self._workspace, self._workspace.files
        workspace.check_writable()
        files.make_folder(f"{FOLDER}/{entry.id}")
        try:
            written = [file for task, rows in tasks for file in task.written(rows)]
            with self._appending(entry) as log:
                if written:
                    log_files(files, log, written)
        except EddylineError:
            with workspace.lock:  # the table may have been dropped, with its inbox
                self._check_same(entry)
            raise
        finally:
            # remaining files are removed later, with those of interrupted writes
            with suppress(OSError, EddylineError):
                withdraw_batch(files, entry.id, attempt, ())

    @contextmanager
    def _appending(self, entry: Entry) -> Iterator[RedoLog]:
        """Yield the log of a table for a write, after taking in what other processes have written."""
        workspace = self._workspace
        log = workspace.sources.log(entry)
        with log.writing:
            workspace.check_writable()
            self._check_same(entry)
            workspace.sources.log_inbox(entry)
            yield log

    def _check_same(self, entry: Entry) -> None:
        """Raise an error if a table has been altered or dropped."""
        if entry.id == self._new:
            return
        present = self._workspace.catalog.get(entry.name, TABLE)
        if (present.id, present.options) != (entry.id, entry.options):
            raise being_altered()

    def dead_letters(self, name: str, where: str | None = None) -> DataFrame:
        """Return the current dead letters of a pipeline, stream or sink that meet a condition.

        Letters that are already being replayed or removed are not among them.
        """
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(name + DEAD, STREAM)
            return self._dml(f"{quoted(entry.name)} {where or ''}")[0].rows(entry, where)

    def _dml(self, text: str) -> tuple[Dml, int]:
        """Return a Dml over the relations that a text mentions, and about how many rows these hold."""
        workspace = self._workspace
        session, (catalog, manifest) = workspace.session(), workspace.current()

        def waiting(entry: Entry) -> list[Segment]:
            """Return the operations on a table, or on dead letters, that no epoch has processed yet."""
            if not (entry.kind == TABLE or entry.holds_letters):
                return []
            if not workspace.writes:  # another engine may remove the entries at any time
                return []
            if entry.kind == TABLE:
                workspace.sources.log_inbox(entry)
            end = workspace.sources.log(entry).end()
            return workspace.sources.between(entry, manifest, end)

        dml, read = Dml(session, workspace.files), 0
        for name in workspace.compiler.mentioned(text, catalog):
            entry = catalog.get(name)
            operations, held = waiting(entry), SMALL_ROWS + 1
            if entry.kind != STREAM or entry.arranged:  # a log may only name data
                held = state_size(manifest, entry)[0]
            content = workspace.results.content(entry, manifest, session)
            dml.register(entry, content, operations, small=held <= SMALL_ROWS)
            read += sum(segment.rows for segment in operations) + held
        return dml, read
