"""Reads committed data: ad hoc SQL, snapshots, changes, plans, status and verification."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from eddyline.answers.changed import changes_expired
from eddyline.answers.failing import view_failing
from eddyline.answers.named_readers import no_reader, reader_file
from eddyline.answers.status import storage_status
from eddyline.answers.verify import Report, verify_views
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_number
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError, QueryError, StateError, StorageError
from eddyline.plan.confined import check_confined
from eddyline.plan.explain import explain_text
from eddyline.runtime.compiler import CompiledPlan, check_query
from eddyline.sink.cursors import Cursor
from eddyline.source.lag import Lags
from eddyline.spark.failures import query_errors
from eddyline.sql.dialect import extract_versions, remove_emit_final, window_notes
from eddyline.sql.names import quoted
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest

Parameters: TypeAlias = dict[str, Any] | list[Any] | None
"""Values of the parameters of a query: by name for `:name`, in order for `?`."""


class _Views(ExitStack):
    """Temporary views of a session, dropped at the end of the context."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__()
        self._session = session

    def add(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(quoted(name))
        self.callback(self._session.catalog.dropTempView, name)


class Reading:
    """Reads a workspace, and changes nothing."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._read: dict[str, Epoch] = {}  # by reader: the last epoch whose changes it was given

    def entry(self, name: str, kind: str) -> Entry:
        """Return the definition of a name; CatalogError if none of this kind exists."""
        return self._workspace.catalog.get(name, kind)

    def sql(self, query: str, args: Parameters = None, *, confined: bool) -> DataFrame:
        """Run an ad hoc query; see `Engine.sql`."""
        workspace = self._workspace
        query, earlier = extract_versions(query)
        session = workspace.session()
        # Spark may keep the session; the epochs shall not stay with it
        with workspace.reading() as ((catalog, manifest), keep), _Views(session) as views:
            query = workspace.plain_sql(query, catalog)
            for alias, (name, epoch) in earlier.items():
                views.add(alias, self._snapshot(session, name, epoch))
            # by relation that the query may not read, why; its name may also be that of a column
            unread: dict[str, EddylineError] = {}
            values = args.values() if isinstance(args, dict) else args or ()
            text = " ".join([query, *map(str, values)])  # of IDENTIFIER(:name)
            for name in workspace.compiler.mentioned(text, catalog):
                entry = catalog.get(name)
                if (failure := manifest.failing.get(ViewId(entry.id))) is not None:
                    unread[name] = view_failing(failure)
                    continue
                try:
                    views.add(name, keep(workspace.results.content(entry, manifest, session)))
                except (StateError, StorageError) as error:
                    unread[name] = error
            for name in unread:
                session.catalog.dropTempView(name)  # the user's own, which the query doesn't mean
            try:
                with query_errors(query):
                    check_query(workspace.compiler.catalyst, query)
                    if confined:
                        known = [entry.name for entry in catalog.entries]
                        check_confined(workspace.compiler.catalyst, query, [*known, *earlier])
                    return session.sql(query, args)
            except QueryError as error:
                if not unread:
                    raise
                raise [*unread.values()][-1] from error

    def explain(self, name_or_query: str, stage: str) -> str:
        """Show a plan; see `Engine.explain`."""
        workspace = self._workspace
        name = name_or_query.strip()
        entry = workspace.catalog.find(name_or_query) or workspace.catalog.find(name)
        if entry is None and re.fullmatch(r"\w+", name):
            entry = workspace.catalog.get(name)  # which raises: no query is one word
        if entry is not None:
            query = entry.query
            compiled = workspace.plan(entry)
        else:
            query, final = remove_emit_final(name_or_query)
            query = workspace.plain_sql(query)
            upstream = workspace.compiler.mentioned(query, workspace.catalog)
            draft = Entry("explained", VIEW, "explained", "", query=query, final=final)
            compiled = workspace.compiler.view(draft, workspace.catalog, workspace.plan, upstream)
        notes: list[str] = []
        if stage == "dag":
            of_frame = entry is not None and entry.of_frame
            notes = [] if of_frame else window_notes(query, workspace.zone)
            if query:
                notes = [*notes, self._lane_note(compiled)]
        return "\n".join([explain_text(compiled.compiled, stage), *notes])

    def _lane_note(self, compiled: CompiledPlan) -> str:
        """Return a line for `explain` on whether epochs run a plan in the driver or as a Spark job."""
        plan = compiled.plan
        if plan.short is None:
            return "lane: wide"
        rows = self._workspace.lanes.turning(plan.id, len(plan.parts))
        return f"lane: short for up to about {rows:,} rows of input, else wide"

    def snapshot(self, name: str, epoch: int | None, *, last_good: bool = False) -> DataFrame:
        """Return a table or view as of an epoch; see `View.snapshot`."""
        return self._snapshot(self._workspace.spark, name, epoch, last_good=last_good)

    def _snapshot(
        self, session: SparkSession, name: str, epoch: int | None, *, last_good: bool = False
    ) -> DataFrame:
        workspace = self._workspace
        with workspace.reading(epoch) as ((catalog, now), keep):
            entry, results = catalog.get(name), workspace.results
            if last_good:
                return keep(results.stored(entry, now, session))
            if epoch is None or epoch == now.epoch:
                return keep(results.content(entry, now, session))
            then = read_manifest(workspace.files, Epoch(epoch))
            return keep(results.earlier(entry, then, now, session))

    def changes(self, view: str, after: int | None, form: str, reader: str | None) -> DataFrame:
        """Return the changes of a view; see `View.changes`."""
        if after is not None:
            check_number("after", after, 0)
        workspace = self._workspace
        while True:
            catalog, manifest = workspace.current()
            entry = catalog.get(view, VIEW)
            start = self._start(entry, manifest, reader, after)
            retained = committed_epochs(workspace.files)
            first = next((epoch for epoch in retained if epoch > (start or 0)), manifest.epoch)
            if workspace.reads.begin(first):
                break
        try:
            runs = workspace.results.changed_runs(entry, manifest, start)
            frame = workspace.results.changes(entry, runs, workspace.spark, form)
            return workspace.reads.keep(first, frame)
        finally:
            workspace.reads.end(first)

    def commit(self, view: str, reader: str, epoch: int | None) -> None:
        """Move a reader; see `View.commit`."""
        workspace = self._workspace
        catalog, manifest = workspace.current()
        entry = catalog.get(view, VIEW)
        file = reader_file(workspace.files, entry.name, reader)
        if file.cursor() is None:
            raise no_reader(entry.name, reader)
        if epoch is None:
            epoch = self._read.get(file.folder)
        if epoch is None or epoch > manifest.epoch:
            raise StateError(
                f"epoch {epoch} is not committed" if epoch else f"{reader} has read nothing yet",
                condition="NO_SUCH_EPOCH",
                view=entry.name,
                hint=f"call changes(reader={reader!r}) first, or name an epoch up to {manifest.epoch}",
            )
        file.advance(Cursor(ViewId(entry.id), Epoch(epoch)))

    def drop_reader(self, view: str, reader: str) -> None:
        """Forget a reader; see `View.drop_reader`."""
        workspace = self._workspace
        entry = workspace.current().catalog.get(view, VIEW)
        reader_file(workspace.files, entry.name, reader).forget()

    def _start(
        self, entry: Entry, manifest: Manifest, reader: str | None, after: int | None
    ) -> int | None:
        """Return the epoch after which `changes` begin; None for the first."""
        if after is not None and after > manifest.epoch:
            raise StateError(
                f"epoch {after} is not committed; the last epoch is {manifest.epoch}",
                condition="NO_SUCH_EPOCH",
                view=entry.name,
                hint=f"call changes(after={manifest.epoch}) for what comes from now on",
            )
        return after if reader is None else self._position(entry, manifest, reader, after)

    def _position(self, entry: Entry, manifest: Manifest, reader: str, after: int | None) -> int:
        """Return the epoch up to which a reader has read, and retain the epochs after it for the reader."""
        workspace = self._workspace
        file = reader_file(workspace.files, entry.name, reader)
        known = file.cursor()
        if after is None and file.retired:
            why = f"reader {reader} has read a view {entry.name} that was dropped"
            raise changes_expired(entry.name, 0, manifest.epoch, why)
        if after is None and known is not None:
            after = known.epoch
            followed = manifest.holder(ViewId(entry.id), known.epoch) or known.view
            if after and (known.view not in (entry.id, followed) or after > manifest.epoch):
                why = f"reader {reader} has read another view, or another copy of this storage"
                raise changes_expired(entry.name, after, manifest.epoch, why)
        start = Epoch(max(after or 0, 0))
        # a reader that has seen all there is needs no older epochs, however quiet the view is
        quiet = not workspace.results.changed_runs(entry, manifest, start)
        reached = Cursor(ViewId(entry.id), max(start, manifest.epoch) if quiet else start)
        if reached != known:
            file.advance(reached)
        self._read[file.folder] = manifest.epoch
        return reached.epoch

    def status(self, lags: Lags) -> dict[str, Any]:
        """Return the numbers of sources and views; see `Engine.status`. `lags` are from `stored_lags`."""
        workspace = self._workspace
        with workspace.reading() as ((catalog, manifest), _):
            status = storage_status(workspace.files, catalog, manifest, lags)
        outages = workspace.sources.outages
        for source in status["sources"]:
            if (outage := outages.get(source["name"])) is not None:
                source["error"] = str(outage.error)
            elif waits := self._waits(catalog, catalog.get(source["name"])):
                source["error"] = waits
        status["views"] += [filling() for filling in list(workspace.filling.values())]
        return status

    def _waits(self, catalog: Catalog, stream: Entry) -> str:
        """Return why a stream gets no rows until the program that writes the storage attaches it; empty if it does."""
        if not self._workspace.writes or not stream.takes_input or stream.reopens:
            return ""
        pipeline = catalog.pipeline_into(stream)
        if self._workspace.sources.attached(stream, pipeline):
            return ""
        call = "stream" if pipeline is None else "pipeline"
        return f"not connected since the storage was opened; call engine.{call}(...) again"

    def verify(self, view: str | None) -> Report:
        """Compare views with offline SQL; see `Engine.verify`."""
        workspace = self._workspace
        with workspace.reading() as ((catalog, manifest), _), self._pauses(catalog):
            wanted = [e for e in catalog.entries if e.kind == VIEW]
            if view is not None:
                wanted = [catalog.get(view, VIEW)]
            session, catalyst = workspace.session(), workspace.compiler.catalyst
            return verify_views(
                workspace.results,
                catalog,
                manifest,
                session,
                wanted,
                catalyst,
                workspace.compiler.frames,
            )

    @contextmanager
    def _pauses(self, catalog: Catalog) -> Iterator[None]:
        """Retain the epochs in which views were paused during the context, as far as they exist."""
        workspace = self._workspace
        paused = {Epoch(entry.paused) for entry in catalog.entries if entry.paused}
        kept = [epoch for epoch in paused if workspace.reads.begin(epoch)]
        try:
            yield
        finally:
            for epoch in kept:
                workspace.reads.end(epoch)
