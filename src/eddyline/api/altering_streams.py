"""ALTER STREAM: add, drop, rename and widen columns of a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from eddyline.api.altered_columns import (
    ADD,
    DROP,
    RENAME,
    TYPE,
    Fields,
    check_unused,
    new_names,
    replace_relation,
    stored_columns,
    with_kept_columns,
    wrong,
)
from eddyline.api.altered_rules import changed
from eddyline.api.epochs import Epochs
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import KEPT_OUT, OF, REJECTS, STREAM, Entry
from eddyline.catalog.expectations import kept_out_of, strict
from eddyline.catalog.logged import as_source, logged, with_fields
from eddyline.changes import APPEND, OPERATION
from eddyline.errors import CatalogError
from eddyline.runtime.progress import Timer
from eddyline.source.log_files import SET_ASIDE, new_file, write_rows
from eddyline.source.received import RECEIVED_AT, is_received
from eddyline.source.segments import RUN
from eddyline.spark.schema import arrow_schema
from eddyline.sql.forms import ColumnChange


class AlteringStreams:
    """Changes the columns of streams.

    A log stays as it is: the catalog keeps where each column is in it, and its name in the source
    (`catalog/logged.py`). The rows of a stream of operations are stored apart from its log, so the stream is
    put in its own place under a new id, as a table is; its new log goes on with the number of the old one,
    and its positions in the source are linked.

    The source is stopped meanwhile, so that a record is logged either before or after the change.
    """

    def __init__(self, workspace: Workspace, epochs: Epochs) -> None:
        self._workspace = workspace
        self._epochs = epochs

    def alter(self, stream: Entry, changes: Sequence[ColumnChange]) -> None:
        """Change columns of a stream, all or none.

        Raises:
            CatalogError: NOT_ALTERABLE, or views or constraints use a column.
            DataError: there is no such column, or the source can't give it in this way.
        """
        workspace, actions = self._workspace, {change.action for change in changes}
        for why in filter(None, (self._obstacle(stream, change) for change in changes)):
            raise CatalogError(
                f"stream {stream.name} can't be changed: {why}",
                condition="NOT_ALTERABLE",
                hint="create a second stream with the new columns, and a view that unites both",
            )
        if actions != {ADD} and (rules := ", ".join(one.name for one in strict(stream))):
            raise CatalogError(
                f"stream {stream.name} can only get more columns: its constraints ({rules}) keep records out",
                condition="STILL_READ",
                hint=f"ALTER STREAM {stream.name} DROP CONSTRAINT first",
            )
        fields, key, _ = changed(stream, changes)
        altered = with_fields(stream, fields)
        altered = replace(
            altered, key=key, event_time=new_names(stream, fields).get(stream.event_time) or ""
        )
        for change in changes:
            for relation in (stream, *self._late_stream(stream)):
                check_unused(workspace, relation, change)
            _check_fields(stream, altered, change)
        workspace.sources.check(altered)
        with self._stopped(stream):
            workspace.files.remove(f"{workspace.sources.log(stream).folder}/{SET_ASIDE}")
            if stream.arranged and actions != {RENAME}:
                # process all waiting rows, so that the stream's state is complete
                while self._epochs.run_next(Timer()):
                    pass
                for error in self._epochs.stops.errors:
                    if error.context.get("stream") == stream.name:
                        raise error  # rows wait in the log, which the new one doesn't have
                self._rewrite(stream, altered, fields)
            else:
                self._store(stream, altered, fields)
        workspace.compiler.frames.forget(stream.id)

    def _store(self, stream: Entry, altered: Entry, fields: Fields) -> None:
        """Store the new definition of a stream whose log stays as it is."""
        catalog = self._workspace.catalog
        altered_catalog = catalog.with_columns(altered)
        altered_catalog = with_kept_columns(altered_catalog, stream, new_names(stream, fields))
        for late in self._late_stream(stream):
            now = new_names(late, fields)
            if late.gives_reasons:
                now[late.columns.names[-1]] = altered_catalog.get(late.name).columns.names[-1]
            altered_catalog = with_kept_columns(altered_catalog, late, now)
        self._workspace.save(altered_catalog)
        self._workspace.forget_plan(stream)

    def _rewrite(self, stream: Entry, altered: Entry, fields: Fields) -> None:
        """Replace a stream of operations by one with other columns, and rewrite its rows."""
        workspace, catalog = self._workspace, self._workspace.catalog
        altered = replace(altered, id=f"{STREAM[0]}{catalog.next_id}", since=0)
        workspace.save(replace(catalog, next_id=catalog.next_id + 1), final=False)
        timer = None
        if end := workspace.sources.log(stream).end():
            self._begin_log(stream, altered, fields, end)
            timer = self._epochs.load(altered)
        self._link(f"checkpoints/{stream.id}", f"checkpoints/{altered.id}")
        altered = replace(
            altered, since=workspace.manifest.epoch
        )  # earlier epochs have the old columns

        def with_letters(entry: Entry) -> Entry:
            own = entry.role in (REJECTS, KEPT_OUT) and entry.options[OF] == stream.id
            return replace(entry, options={**entry.options, OF: altered.id}) if own else entry

        replace_relation(workspace, stream, altered, fields, with_letters)
        if (kept := kept_out_of(altered, workspace.catalog)) is not None:
            workspace.forget_plan(kept)  # its columns may have other places in the new log
        if timer is not None:
            self._epochs.after_commit(timer)

    def _begin_log(self, stream: Entry, altered: Entry, fields: Fields, end: int) -> None:
        """Write the rows of a stream as the last entry before `end` of a new log."""
        workspace = self._workspace
        log = workspace.sources.log(altered)
        kinds = arrow_schema(altered.columns, workspace.zone)
        names = [f"c{place}" for place in logged(altered).places]
        log.skip(end - 1)
        log.clear(end - 1)
        segments = []
        for own in stored_columns(workspace, stream, [old for _, old in fields], kinds):
            rows = pa.table(own, names=names)
            rows = rows.append_column(OPERATION, pa.repeat(pa.scalar(APPEND), rows.num_rows))
            written = write_rows(workspace.files, new_file(log.folder, end - 1), rows)
            segments.append(replace(written, kind=RUN))  # `_received_at` is in the rows
        log.append(end - 1, segments, new=True)

    def _link(self, folder: str, second: str) -> None:
        """Link all files of a folder into another folder."""
        files = self._workspace.files
        for path, _, names in os.walk(files.path(folder)):
            inner = os.path.normpath(
                os.path.join(second, os.path.relpath(path, files.path(folder)))
            )
            files.make_folder(inner)
            for name in names:
                files.link(os.path.relpath(os.path.join(path, name), files.root), f"{inner}/{name}")
            files.sync(inner)

    @contextmanager
    def _stopped(self, stream: Entry) -> Iterator[None]:
        """Stop the source of a stream during the context, and open that of the stream as it is then."""
        sources, catalog = self._workspace.sources, self._workspace.catalog
        sources.disconnect(catalog.pipeline_into(stream) or stream)  # of the format queue
        try:
            yield
        finally:
            if self._workspace.writes:
                now = self._workspace.catalog
                present = now.get(stream.name)
                sources.attach(present, now.letters_of(present) or now.pipeline_into(present))

    def _late_stream(self, stream: Entry) -> list[Entry]:
        """Return the stream of late rows, if there is one."""
        return [e for e in self._workspace.catalog.entries if e.late_of == stream.id]

    def _obstacle(self, stream: Entry, change: ColumnChange) -> str:
        """Return the reason why a stream can't be altered in this way; empty if it can."""
        if stream.role:
            return "it belongs to another stream, pipeline or sink"
        if not stream.reopens:
            return "a DataFrame or a pipeline gives its columns"
        if self._workspace.sources.has_remote_resources(stream) and change.action == TYPE:
            return "its types are those that a table of another system had at the beginning"
        if is_received(change.column) and change.action == ADD:
            return f"{change.column} is the time of receipt, which a stream has from the beginning"
        if change.action == RENAME and any(map(is_received, (change.column, change.to))):
            return f"{RECEIVED_AT} is the time of receipt by its name"
        timed = stream.event_time.lower() == change.column.lower()
        if timed and change.action in (DROP, TYPE):
            return f"{change.column} is the event time of its watermark"
        return ""


def _check_fields(stream: Entry, altered: Entry, change: ColumnChange) -> None:
    """Raise DataError if the source can't have these columns."""
    source = as_source(altered)
    if not source.given_columns.names:
        raise wrong(stream, f"the source would give no column but {RECEIVED_AT}", "DROP STREAM")
    if change.action != ADD:
        return
    names = logged(stream).names
    own = {
        names[place].lower(): name
        for name, place in zip(stream.columns.names, logged(stream).places, strict=True)
    }
    if (known := own.get(change.column.lower())) is not None:
        raise wrong(
            stream,
            f"what the source calls {change.column} is column {known} since it was renamed",
            f"RENAME COLUMN {known} TO {change.column}, or take another name",
        )
    if change.column.lower() == stream.operation.lower():
        raise wrong(
            stream, f"{change.column} holds the operations of the stream", "take another name"
        )
