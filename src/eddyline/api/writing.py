"""Writes to tables: rows from Python, and INSERT, DELETE and UPDATE in SQL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from eddyline.api.dml import Dml
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_choice
from eddyline.catalog.entries import DEAD, STREAM, TABLE, Entry
from eddyline.changes import APPEND, DELETE
from eddyline.source.log_files import as_operations
from eddyline.source.rows import Rows, as_arrow
from eddyline.source.segments import Segment
from eddyline.spark.schema import arrow_schema
from eddyline.sql.names import quoted


class Writing:
    """Writes operations to the redo logs of tables, durably before each call returns."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def write(self, table: str, operations: Sequence[tuple[str, Rows]]) -> None:
        """Write operations (`append` or `delete`, rows), all or none."""
        workspace = self._workspace
        entry = workspace.catalog.get(table, TABLE)
        schema = arrow_schema(entry.columns, workspace.zone)
        parts = []
        for operation, rows in operations:
            check_choice("operation", operation, (APPEND, DELETE))
            given = as_arrow(rows, schema, relation=table, zone=workspace.zone, required=entry.key)
            parts.append(as_operations(given, operation))
        if not parts:
            return
        logged = pa.concat_tables(parts)
        with workspace.lock:
            workspace.check_writable()
            workspace.sources.take_written(entry)  # which was written before
            if logged.num_rows:
                workspace.sources.log(entry).append_tables([logged])

    def insert_query(self, table: str, columns: Sequence[str] | None, query: str) -> None:
        """INSERT INTO table (columns) query."""
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(table, TABLE)
            query = workspace.plain_sql(query)
            self.write(entry.name, self._dml(query).insert(entry, columns, query))

    def delete_where(self, table: str, condition: str | None) -> None:
        """DELETE FROM table WHERE condition."""
        with self._workspace.lock:
            entry = self._workspace.catalog.get(table, TABLE)
            dml = self._dml(f"{quoted(entry.name)} {condition or ''}")
            self.write(entry.name, dml.delete(entry, condition))

    def update_where(
        self, table: str, assignments: Sequence[tuple[str, str]], condition: str | None
    ) -> None:
        """UPDATE table SET column = expression, ... WHERE condition."""
        with self._workspace.lock:
            entry = self._workspace.catalog.get(table, TABLE)
            texts = " ".join(text for _, text in assignments)
            dml = self._dml(f"{quoted(entry.name)} {texts} {condition or ''}")
            self.write(entry.name, dml.update(entry, assignments, condition))

    def dead_letters(self, name: str, where: str | None = None) -> DataFrame:
        """Return the current dead letters of a pipeline or stream that meet a condition.

        Letters whose replay or removal is decided are not among them.
        """
        workspace = self._workspace
        with workspace.lock:
            entry = workspace.catalog.get(name + DEAD, STREAM)
            return self._dml(f"{quoted(entry.name)} {where or ''}").rows(entry, where)

    def _dml(self, text: str) -> Dml:
        """Return a Dml over the relations that a text mentions."""
        workspace = self._workspace
        session, manifest = workspace.session(), workspace.current()

        def waiting(entry: Entry) -> list[Segment]:
            if not workspace.writes:  # another engine may remove the entries at any time
                return []
            if entry.kind == TABLE:
                workspace.sources.take_written(entry)
            end = workspace.sources.log(entry).end()
            return workspace.sources.between(entry, manifest, end)

        dml = Dml(session, workspace.files, waiting)
        for name in workspace.compiler.mentioned(text, workspace.catalog):
            entry = workspace.catalog.get(name)
            dml.register(entry, workspace.results.content(entry, manifest, session))
        return dml
