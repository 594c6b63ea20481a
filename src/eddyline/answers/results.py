"""Committed results as DataFrames: contents as of an epoch, changes between epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from eddyline.answers.changed import changed_runs, check_feed, epoch_changes
from eddyline.answers.changelog import FORMS, RETRACT
from eddyline.answers.failing import check_holder, check_live, holder_as_of
from eddyline.answers.history import segments_frame
from eddyline.answers.reader import changes_frame, snapshot_frame
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, VIEW, Entry
from eddyline.catalog.expectations import filter_of
from eddyline.catalog.logged import logged
from eddyline.changes import Epoch
from eddyline.errors import QueryError
from eddyline.intake.sources import Sources
from eddyline.plan.limits import Order
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.empty_frames import UNDEFINED
from eddyline.runtime.plans import PlanInput
from eddyline.runtime.scan import bucket_segment
from eddyline.source.segments import Segment, distribute
from eddyline.sql.names import quoted
from eddyline.state.manifest import ROWS, Manifest
from eddyline.state.runs import Run
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Results:
    """Reads the tables, streams and views of one storage.

    Attributes:
        plan_of: returns the compiled form of an entry.
        scan_tasks: number of tasks that read a stream's history.
    """

    files: Files
    sources: Sources
    plan_of: Callable[[Entry], CompiledPlan]
    scan_tasks: int

    def earlier(
        self, entry: Entry, then: Manifest, now: Manifest, session: SparkSession
    ) -> DataFrame:
        """Return the rows of a table, stream or view as of an earlier epoch.

        Args:
            then: that epoch.
            now: the last committed epoch.

        Raises:
            StateError: the view was made later, or had other columns.
            EngineError: VIEW_FAILING: the view, or its predecessor, is set aside in that epoch.
        """
        holder = holder_as_of(entry, then, now)
        if holder == entry.id:
            return self.content(entry, then, session)
        check_holder(holder, then)
        return self._rows(entry, then, session, holder, entry.columns)

    def content(self, entry: Entry, manifest: Manifest, session: SparkSession) -> DataFrame:
        """Return the rows of a table, stream or view as of an epoch; a view's rows by its ORDER BY.

        Raises:
            EngineError: VIEW_FAILING: the view is set aside in that epoch.
        """
        check_live(entry, manifest)
        return self.stored(entry, manifest, session)

    def stored(self, entry: Entry, manifest: Manifest, session: SparkSession) -> DataFrame:
        """Return the stored rows as of an epoch; of a failing view those from before its failure.

        Only ORDER BY needs a compiled view. If a failing view can't be compiled, or waits for its DataFrame,
        its rows come unordered.

        Raises:
            QueryError: a view with ORDER BY can't be compiled, and isn't set aside.
        """
        columns = entry.columns
        if _unarranged(entry):
            logged = self.logged(entry, self.history(entry, manifest), session)
            accepted = filter_of(entry)
            return logged.where(accepted) if accepted else logged
        stored, sorts = self._stored_order(entry, manifest)
        frame = self._rows(entry, manifest, session, entry.id, stored)
        if sorts:
            frame = frame.orderBy(*sorts)
        return frame.select(
            *(col(quoted(f.name)).alias(f.name, metadata=f.metadata or {}) for f in columns)
        )

    def logged(self, entry: Entry, segments: Sequence[Segment], session: SparkSession) -> DataFrame:
        """Return the rows in segments of a stream's log, including those that expectations drop.

        For a stream of operations: the rows that operations append.
        """
        return segments_frame(
            session,
            self.files,
            distribute(segments, self.scan_tasks),
            entry.columns,
            logged(entry),
            entry.time_place,
            late=bool(entry.late_of),
            operations=entry.arranged,
            reasons=entry.gives_reasons,
            readers=self.sources.readers,
        )

    def _rows(
        self,
        entry: Entry,
        manifest: Manifest,
        session: SparkSession,
        holder: str,
        schema: StructType,
    ) -> DataFrame:
        """Return the rows that `holder`, an entry or its predecessor, has stored as of an epoch."""
        buckets = manifest.arrangements.get(manifest.result(holder, ROWS), {})
        held = list(buckets.values())
        return snapshot_frame(session, self.files, entry.name, held, schema, manifest.epoch)

    def _stored_order(self, entry: Entry, manifest: Manifest) -> tuple[StructType, list[Column]]:
        """Return the stored columns of an entry, and by which of them its rows are sorted."""
        columns = entry.columns
        if entry.kind != VIEW or entry.sorts == []:
            return columns, []
        try:
            compiled = self.plan_of(entry)
        except QueryError as error:
            if entry.id not in manifest.failing and error.condition != UNDEFINED:
                raise
            return columns, []
        stored = compiled.stored_schema
        keys = zip(stored.names[len(columns) :], compiled.order, strict=True)
        return stored, [_sort_column(name, order) for name, order in keys]

    def history(self, entry: Entry, manifest: Manifest) -> list[Segment]:
        """Return all input of a relation up to an epoch, as segments for a new view."""
        if _unarranged(entry):
            return self.sources.history(entry, manifest)
        buckets = manifest.arrangements.get(manifest.result(entry.id, ROWS), {})
        return [bucket_segment(runs) for runs in buckets.values() if runs]

    def initial_input(
        self,
        compiled: CompiledPlan,
        catalog: Catalog,
        manifest: Manifest,
        filled: Collection[str],
        constants: Mapping[str, Sequence[Segment]],
    ) -> PlanInput:
        """Return the input of a view in the epoch that computes its first rows.

        Args:
            manifest: the last committed epoch.
            filled: names of the views computed in the same epoch, whose changes it reads.
            constants: for each leaf of constant rows its segments.
        """
        segments, deltas = dict(constants), set()
        for leaf in compiled.plan.leaves:
            if not leaf.relation:
                continue
            entry = catalog.get(leaf.relation)
            if entry.name in filled:
                deltas.add(leaf.name)
            else:
                segments[leaf.name] = self.history(entry, manifest)
        return PlanInput(compiled.plan, segments, frozenset(deltas))

    def changes(
        self,
        entry: Entry,
        runs: Sequence[tuple[Epoch, tuple[Run, ...]]],
        session: SparkSession,
        form: str,
    ) -> DataFrame:
        """Return the changes of a view that `changed_runs` has found."""
        if form not in FORMS:
            raise QueryError(
                f"there is no changelog form {form!r}",
                condition="UNKNOWN_FORM",
                hint="use retract, update or cdf",
            )
        check_feed(entry, form)
        key = None if form == RETRACT else self.plan_of(entry).key
        epochs = epoch_changes(self.files, runs, len(entry.columns), form, key)
        return changes_frame(session, epochs, entry.columns, form)

    def changed_runs(
        self, entry: Entry, manifest: Manifest, after: int | None
    ) -> list[tuple[Epoch, tuple[Run, ...]]]:
        """Return the runs with a view's changes, by epoch; see `changed_runs`."""
        return changed_runs(self.files, entry, manifest, after)


def _sort_column(name: str, order: Order) -> Column:
    """Return a column to sort by, in the direction of the view's ORDER BY."""
    key = col(quoted(name))
    if order.descending:
        return key.desc_nulls_last() if order.nulls_last else key.desc_nulls_first()
    return key.asc_nulls_last() if order.nulls_last else key.asc_nulls_first()


def _unarranged(entry: Entry) -> bool:
    """Return whether an entry's rows are kept only in its redo log."""
    return entry.kind == STREAM and not entry.arranged
