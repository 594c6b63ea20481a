"""What is committed, as DataFrames: contents as of an epoch, changes between epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from eddyline.answers.reader import changes_frame, segments_frame, snapshot_frame
from eddyline.catalog.entries import STREAM, Entry
from eddyline.changes import quoted
from eddyline.errors import QueryError
from eddyline.intake.sources import Sources
from eddyline.runtime.compiler import CompiledPlan
from eddyline.source.segments import RUN, Segment, spread
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest, unbroken
from eddyline.state.runs import Run
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Results:
    """Reads tables, streams and views of one storage.

    Attributes:
        plan_of: the compiled form of an entry.
        scan_tasks: tasks that read a stream's history.
    """

    files: Files
    sources: Sources
    plan_of: Callable[[Entry], CompiledPlan]
    scan_tasks: int

    def content(self, entry: Entry, manifest: Manifest, session: SparkSession) -> DataFrame:
        """The rows of a table, stream or view as of an epoch; a view's in its order."""
        columns = entry.columns
        if _unarranged(entry):
            dealt = spread(self.history(entry, manifest), self.scan_tasks)
            time, late = entry.time_place, bool(entry.late_of)
            return segments_frame(session, self.files, dealt, columns, time, late=late)
        compiled = self.plan_of(entry)
        buckets = manifest.arrangements.get(compiled.plan.result, {})
        stored = compiled.stored_schema
        frame = snapshot_frame(session, self.files, list(buckets.values()), stored)
        sorts = []
        for name, order in zip(stored.names[len(columns) :], compiled.order, strict=True):
            key = col(quoted(name))
            if order.descending:
                sorts.append(key.desc_nulls_last() if order.nulls_last else key.desc_nulls_first())
            else:
                sorts.append(key.asc_nulls_last() if order.nulls_last else key.asc_nulls_first())
        if sorts:
            frame = frame.orderBy(*sorts)
        return frame.select(
            *(col(quoted(f.name)).alias(f.name, metadata=f.metadata or {}) for f in columns)
        )

    def history(self, entry: Entry, manifest: Manifest) -> list[Segment]:
        """All that a relation holds as of an epoch, as input for a new view."""
        if _unarranged(entry):
            return self.sources.log(entry).segments(0, manifest.positions.get(entry.source, 0))
        buckets = manifest.arrangements.get(self.plan_of(entry).plan.result, {})
        return [Segment(RUN, run.name, run.rows) for runs in buckets.values() for run in runs]

    def changes(
        self,
        entry: Entry,
        manifest: Manifest,
        session: SparkSession,
        after: int | None,
        form: str,
    ) -> DataFrame:
        """The changes of the epochs after `after` up to the manifest's."""
        if form not in ("retract", "update"):
            raise QueryError(
                f"there is no changelog form {form!r}",
                condition="UNKNOWN_FORM",
                hint="use retract or update",
            )
        compiled = self.plan_of(entry)
        name = compiled.plan.result
        known_epochs = unbroken(committed_epochs(self.files))
        retained = [epoch for epoch in known_epochs if epoch <= manifest.epoch]
        epochs: list[tuple[int, tuple[Run, ...]]] = []
        for epoch in retained:
            if after is not None and epoch <= after:
                continue
            known = read_manifest(self.files, epoch)
            earlier = epoch == retained[0] and epoch > 1 and (after is None or after < epoch - 1)
            # what lies before the oldest retained epoch comes as one append of all its rows
            parts = (known.arrangements if earlier else known.deltas).get(name, {})
            runs = tuple(run for bucket in parts.values() for run in bucket)
            if runs:
                epochs.append((epoch, runs))
        return changes_frame(
            session, self.files, epochs, entry.columns, update=form == "update", key=compiled.key
        )


def _unarranged(entry: Entry) -> bool:
    """Whether an entry's rows are only in its redo log."""
    return entry.kind == STREAM and not entry.arranged
