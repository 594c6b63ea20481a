"""Defines and drops tables, streams and views; pauses and resumes views; resets watermarks."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime

from pyspark.sql import DataFrame

from eddyline.answers.describing import LISTED, listed
from eddyline.api import drafts
from eddyline.api.dataframe_views import Query, connect_frame, frame_of
from eddyline.api.epochs import Epochs
from eddyline.api.filling import Filling
from eddyline.api.replacing import (
    Reader,
    check_circle,
    check_readers,
    compiled_readers,
    with_marks,
)
from eddyline.api.watermarks import reset_clock
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_choice
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import (
    COMPANION,
    EXPECTATIONS,
    SINK,
    STREAM,
    TABLE,
    VIEW,
    Entry,
)
from eddyline.changes import ViewId
from eddyline.errors import CatalogError, QueryError, StateGrowthWarning, ViewFailingWarning
from eddyline.plan.logical import Plan
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.progress import Timer
from eddyline.spark.session import OF_SQL, own_functions
from eddyline.sql.dialect import extract_versions, possible_functions, remove_emit_final
from eddyline.sql.names import check_name
from eddyline.state.fillings import forget, remove_damaged

KINDS = (TABLE, STREAM, VIEW, SINK)


class Definitions:
    """Changes the catalog of a workspace. Each change is durable when the call returns."""

    def __init__(self, workspace: Workspace, epochs: Epochs) -> None:
        self._workspace = workspace
        self._epochs = epochs

    def view(
        self,
        name: str,
        query: Query,
        *,
        replace: bool,
        warn: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Entry:
        """Define a view and fill it; see `Engine.view`.

        Args:
            warn: whether to warn if its state grows without end.
            options: of its entry.

        The lock is free while the view is filled, unless the caller holds it too: epochs go on then.
        """
        check_name(name, VIEW)
        workspace = self._workspace
        given = query if isinstance(query, str) else frame_of(workspace, name, query)
        if workspace.writes and name.lower() not in workspace.filling:
            remove_damaged(workspace.files, name.lower())  # reads much: not under the lock
        with ExitStack() as until_done:
            with workspace.lock:
                new = self._draft(name, given, replace=replace, warn=warn, options=options or {})
                if isinstance(new, Entry):
                    forget(workspace.files, name.lower())  # a crash may have kept it
                    return new
                filling = self._begin_filling(new)
                if filling is None:
                    return self._add(new)
                until_done.enter_context(filling.running())
            filling.run()
            with workspace.lock:
                workspace.check_writable()
                if filling.matches(workspace.catalog, workspace.manifest):
                    entry = self._add(new, filling.commit())
                    until_done.close()  # the status has it as live as soon as the lock is free
                    return entry
        # definitions have changed: it is compiled again
        if filling.is_stored:
            return self.view(name, query, replace=replace, warn=False, options=options)
        with workspace.lock:
            new = self._draft(name, given, replace=replace, warn=False, options=options or {})
            return new if isinstance(new, Entry) else self._add(new)

    def _draft(
        self,
        name: str,
        given: str | DataFrame,
        *,
        replace: bool,
        warn: bool,
        options: Mapping[str, str],
    ) -> Entry | _NewView:
        """Check and compile a view; return its entry if it is defined already."""
        workspace = self._workspace
        workspace.check_writable()
        if name.lower() in workspace.filling:
            raise CatalogError(
                f"view {name} is being filled",
                condition="NAME_TAKEN",
                hint="wait until that is done, or take another name",
            )
        present = workspace.catalog.find(name)
        plan = None
        if isinstance(given, str):
            draft = self._sql_draft(name, given, options)
        else:
            plan, draft = workspace.compiler.frames.draft(name, given, workspace.catalog)
        if present is not None and self._is_same(present, draft, plan, replace=replace):
            return workspace.catalog.get(name)
        catalog = workspace.catalog
        if present is not None:
            self._check_replaceable(present, replace=replace)
            catalog = catalog.drop(name, replaced=True)
        draft = dataclasses.replace(draft, id=f"v{catalog.next_id}")
        return self._compile(draft, plan, catalog, present, warn=warn)

    def _sql_draft(self, name: str, query: str, options: Mapping[str, str]) -> Entry:
        """Return the entry of a view of SQL."""
        query, final = _live_query(name, query)
        query = self._workspace.plain_sql(query)
        return Entry("", VIEW, name, "", query=query, final=final, options=dict(options))

    def _is_same(self, present: Entry, draft: Entry, plan: Plan | None, *, replace: bool) -> bool:
        """Return whether a view's definition is unchanged; if so, connect it with the given DataFrame."""
        if replace and self._must_be_recreated(present):
            return False
        if plan is None or not present.of_frame:
            keys = ("kind", "format", "query", "final")
            same = all(getattr(present, key) == getattr(draft, key) for key in keys)
            for key in (EXPECTATIONS, COMPANION):
                same = same and present.options.get(key) == draft.options.get(key)
            return same and not (replace and self._may_differ(present))
        if not connect_frame(self._workspace, present, draft, plan):
            return False
        if present.id in self._workspace.manifest.failing:
            self._epochs.retry()
        self._epochs.sinks.wake()  # some sinks may have waited for its DataFrame
        return True

    def _may_differ(self, view: Entry) -> bool:
        """Whether a view may be another one if the same text is compiled now."""
        workspace = self._workspace
        if view.options:  # it sees old columns of altered tables
            return True
        sources = own_functions(workspace.spark, possible_functions(view.query))
        if not sources or workspace.short_of_rows(view):
            return False
        if sources != {OF_SQL}:  # nobody can tell whether the code of others has changed
            return True
        now = workspace.compiler.view(view, workspace.catalog, workspace.plan, view.upstream)
        return now.plan.fingerprint != workspace.plan(view).plan.fingerprint

    def _must_be_recreated(self, view: Entry) -> bool:
        """Return whether a view can only be replaced, because it is paused or set aside, and rows of its input have expired."""
        aside = view.paused or ViewId(view.id) in self._workspace.manifest.failing
        return bool(aside and self._workspace.short_of_rows(view))

    def _compile(
        self,
        draft: Entry,
        plan: Plan | None,
        catalog: Catalog,
        present: Entry | None,
        *,
        warn: bool,
    ) -> _NewView:
        """Compile a new view, and the readers of the one that it replaces.

        Args:
            plan: of its DataFrame; None for a view of SQL.
            catalog: the catalog without the view that it replaces.
            present: that view; None if there is none.
            warn: whether to warn if the view's state grows without end.
        """
        workspace = self._workspace
        name, frames = draft.name, workspace.compiler.frames
        if plan is None:
            upstream = workspace.compiler.mentioned(draft.query, catalog)
            draft = dataclasses.replace(draft, upstream=tuple(upstream))
        else:
            frames.read(name, plan, catalog)  # not the view that it replaces
            frames.keep(draft.id, plan)
        readers = {reader.name for reader in catalog.below(name)}
        possible = [known for known in draft.upstream if known not in readers]
        try:
            compiled = workspace.compiler.view(draft, catalog, workspace.plan, possible)
        except QueryError as error:
            if present is not None:
                check_circle(name, draft.upstream, catalog, error)
            raise
        _check_running(name, catalog, compiled.upstream)
        if present is not None:
            self._epochs.sinks.check_replaced(draft, compiled)
        growth = compiled.compiled.build.growth_warning
        if growth and warn:
            # reported at the caller of Engine.view
            warnings.warn(f"view {name}: {growth}", StateGrowthWarning, stacklevel=6)
        entry = dataclasses.replace(
            draft,
            schema=compiled.compiled.schema.json(),
            upstream=compiled.upstream,
            result=compiled.stored_result,
        )
        catalog, again = catalog.add(entry).in_order(), []
        if present is not None:
            again = compiled_readers(workspace, catalog, present, catalog.get(name), compiled)
            workspace.check_rows(reader for reader, _ in again)
            for reader, made in again:
                self._epochs.sinks.check_replaced(reader, made)
            catalog = catalog.with_entries(reader for reader, _ in again)
        return _NewView(catalog, catalog.get(name), compiled, present, again)

    def _begin_filling(self, new: _NewView) -> Filling | None:
        """Begin to fill a view while epochs go on; return None if it must be computed between two epochs."""
        if new.replaced is not None:
            return None
        filling = Filling.begin(self._workspace, self._epochs, new.catalog, new.entry, new.compiled)
        if filling is not None:
            self._reserve(new)
        return filling

    def _reserve(self, new: _NewView) -> None:
        """Reserve the id of a new view in the stored catalog, and mark the readers that will be computed again."""
        workspace = self._workspace
        next_id = max(new.catalog.next_id, workspace.catalog.next_id)
        spent = dataclasses.replace(workspace.catalog, next_id=next_id)
        workspace.save(with_marks(spent, new.readers, workspace.manifest.epoch), final=False)

    def drop(self, kind: str, name: str, *, if_exists: bool) -> None:
        """Remove a table, stream or view that no view reads; see `Engine.drop`."""
        check_choice("kind", kind, KINDS)
        workspace = self._workspace
        if kind == SINK:
            self._epochs.sinks.drop(name, if_exists=if_exists)
            return
        with workspace.lock:
            workspace.check_writable()
            entry = workspace.catalog.find(name)
            if entry is None and if_exists:
                return
            entry = workspace.catalog.get(name, kind)
            letters = workspace.catalog.letters_of(entry)
            family = workspace.catalog.companions(entry.name)
            table = kind == TABLE
            with workspace.sources.log(entry).writing if table else contextlib.nullcontext():
                workspace.save(workspace.catalog.drop(name))
                gone = [one for one in (*family, entry, letters) if one is not None]
                # a source stops before the files go that it writes
                for one in sorted(gone, key=lambda one: workspace.sources.connected(one) is None):
                    workspace.forget(one)

    def pause(self, name: str) -> list[str]:
        """Pause a view and its readers; see `Engine.pause`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            catalog = workspace.catalog.pause(name, workspace.manifest.epoch)
            pairs = list(zip(workspace.catalog.entries, catalog.entries, strict=True))
            workspace.save(catalog)
            return [now.name for old, now in pairs if now.paused_with and not old.paused]

    def resume(self, name: str) -> list[str]:
        """Resume a paused view and those paused with it; see `Engine.resume`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            after = workspace.catalog.resume(name)
            pairs = zip(workspace.catalog.entries, after.entries, strict=True)
            resumed = [entry for entry, then in pairs if entry.paused and not then.paused]
            if resumed:
                workspace.check_rows(resumed)
                self._epochs.rebuild(resumed)
                catalog = workspace.catalog
                if any(catalog.get(entry.name).paused for entry in resumed):
                    catalog = catalog.resume(name)  # the epoch has ended only pauses of good views
                workspace.save(catalog)
                for entry in resumed:
                    self._warn_if_failing(entry, stacklevel=5)
            return [entry.name for entry in resumed]

    def reset_watermark(self, name: str, to: datetime | str | None) -> list[str]:
        """Reset the watermark of a stream; see `Engine.reset_watermark`.

        One epoch stores the new watermark and computes the views again, because their state lacks
        the rows that the old watermark allowed to drop.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            stream = workspace.catalog.get(name, STREAM)
            clock = reset_clock(workspace, stream, to)
            readers = self._epochs.live_readers(stream)
            workspace.check_rows(readers)
            self._epochs.rebuild(readers, clocks={**workspace.manifest.clocks, stream.id: clock})
            for entry in readers:
                self._warn_if_failing(entry, stacklevel=5)
            return [entry.name for entry in readers]

    def show(self, kind: str) -> DataFrame:
        """List the entries of a kind; see `Engine.show`."""
        check_choice("kind", kind, KINDS)
        if kind == SINK:
            return self._epochs.sinks.show()
        schema = ", ".join(f"{name} string" for name in LISTED)
        rows = listed(self._workspace.catalog, kind)
        return self._workspace.spark.createDataFrame(rows, schema)

    def _warn_if_failing(self, entry: Entry, stacklevel: int) -> None:
        """Warn the caller of a public method if a view is set aside."""
        failure = self._workspace.manifest.failing.get(ViewId(entry.id))
        if failure is not None:
            text = f"{failure.message}; the view is set aside until that changes"
            warnings.warn(text, ViewFailingWarning, stacklevel=stacklevel)

    def _check_replaceable(self, present: Entry, *, replace: bool) -> None:
        """Raise CatalogError if a new view can't replace an entry."""
        if not replace or present.kind != VIEW:
            raise drafts.name_taken(present)
        if EXPECTATIONS in present.options or COMPANION in present.options:
            raise CatalogError(
                f"view {present.name} has expectations, or belongs to a relation that has some",
                condition="NAME_TAKEN",
                hint="take another name; or drop it, and create it anew",
            )
        check_readers(present, self._workspace.catalog)

    def _add(self, new: _NewView, timer: Timer | None = None) -> Entry:
        """Compute a new view, and the readers of the one that it replaces, then add it to the catalog.

        The catalog reserves its id before the epoch, and lists it after the commit. A crash in between
        leaves state without an entry, which the next epoch drops. A view that it replaces stays
        complete until then.

        Args:
            timer: what has measured the stages, if the view has its rows already.
        """
        workspace, entry = self._workspace, new.entry
        if timer is None:
            self._reserve(new)
            plans = [new.compiled, *(plan for _, plan in new.readers)]
            ids = [ViewId(reader.id) for reader, _ in new.readers]
            timer = self._epochs.fill(new.catalog, plans, ids, new.replaced)
        try:
            catalog = new.catalog.committed(entry, workspace.manifest.epoch)
            next_id = max(catalog.next_id, workspace.catalog.next_id)
            workspace.save(dataclasses.replace(catalog, next_id=next_id))
        except BaseException:
            # the view doesn't exist: the next epochs must not say that it has replaced another one
            workspace.manifest = workspace.manifest.owned(workspace.catalog.ids)
            raise
        forget(workspace.files, entry.name.lower())
        workspace.keep_plan(entry, new.compiled)
        for reader, plan in new.readers:
            workspace.keep_plan(reader, plan)
        if new.replaced is not None:
            workspace.forget(new.replaced)
        self._epochs.after_commit(timer)
        entry = workspace.catalog.get(entry.name)
        self._warn_if_failing(entry, stacklevel=6)
        return entry


@dataclasses.dataclass(frozen=True, slots=True)
class _NewView:
    """A compiled view that isn't in the catalog yet.

    Attributes:
        catalog: the catalog with the view.
        replaced: the view that it replaces; None if there is none.
        readers: the views that read that one.
    """

    catalog: Catalog
    entry: Entry
    compiled: CompiledPlan
    replaced: Entry | None
    readers: Sequence[Reader]


def _live_query(name: str, query: str) -> tuple[str, bool]:
    """Return the query of a live view without EMIT FINAL, and whether EMIT FINAL was there."""
    query, final = remove_emit_final(query.strip().rstrip(";"))
    if extract_versions(query)[1]:
        raise QueryError(
            "a live view follows all epochs: VERSION AS OF can't be kept live",
            condition="NOT_LIVE",
            hint="leave it out, or ask ad hoc with engine.sql",
            view=name,
            fragment=query[:200],
        )
    return query, final


def _check_running(name: str, catalog: Catalog, upstream: Sequence[str]) -> None:
    """Raise CatalogError if a view would read a paused one."""
    for known in map(catalog.get, upstream):
        if known.paused:
            raise CatalogError(
                f"view {name} would read {known.name}, which is paused",
                condition="UPSTREAM_PAUSED",
                hint=f"resume {known.name} first",
            )
