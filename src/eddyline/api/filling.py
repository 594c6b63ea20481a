"""Fills a new view while epochs go on: the lock of the workspace is free meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from eddyline.answers.changed import changed_runs
from eddyline.api.epochs import Epochs
from eddyline.api.reporting import named
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import STREAM, Catalog, Entry
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError, StateError
from eddyline.intake.watermarks import Watermarks
from eddyline.operators.base import Timed
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.plans import PlanInput
from eddyline.runtime.progress import Timer
from eddyline.runtime.reports import EpochState
from eddyline.runtime.scan import bucket_segment
from eddyline.runtime.sizes import UNKNOWN, rows_of
from eddyline.source.segments import Segment
from eddyline.spark.progress import job_tag, share_done
from eddyline.state.manifest import Manifest
from eddyline.state.recover import attempt_folder

AFTER_ALL = Epoch(10**12 - 1)
"""What stands for the epoch in the name of a filling's folder: no cleaning of older epochs looks there."""

_LOG = logging.getLogger("eddyline.epochs")


@dataclass(slots=True)
class Filling:
    """The first rows of a new view, computed from all rows of its inputs as of one epoch.

    It begins and is committed under the lock of the workspace; `run` needs no lock. What has changed
    meanwhile is read from the changelogs of the epochs since, which a lease holds.

    Attributes:
        base: the epoch.
        given: the rows of the inputs.
        before: the catalog when it began.
        state: what `run` has computed; None before it, or if it has failed.
        timer: measures the stages of `run`.
    """

    workspace: Workspace
    epochs: Epochs
    compiled: CompiledPlan
    before: Catalog
    base: Manifest
    given: PlanInput
    folder: str
    level: int
    started: float = field(default_factory=time.monotonic)
    state: EpochState | None = None
    timer: Timer = field(default_factory=Timer)

    @classmethod
    def begin(
        cls,
        workspace: Workspace,
        epochs: Epochs,
        catalog: Catalog,
        entry: Entry,
        made: CompiledPlan,
    ) -> Filling | None:
        """Return the filling of a new view; None for one that must be computed between two epochs.

        These are views with event times or the clock: which rows are late, or have their moment behind
        them, depends on the epoch that computes them.

        Args:
            catalog: the catalog with the view.
        """
        plan = made.plan
        if any(leaf.late or leaf.time is not None for leaf in plan.leaves) or any(
            part.expiry or isinstance(part.operator, Timed) for part in plan.parts
        ):
            return None
        base = workspace.manifest
        constants = workspace.compiler.write_constants(made)
        given = workspace.results.initial_input(made, catalog, base, {plan.name}, constants)
        folder = attempt_folder(AFTER_ALL)
        return cls(
            workspace, epochs, made, workspace.catalog, base, given, folder, catalog.level(entry)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the epoch, and show the view in the status, until it is committed or given up."""
        with ExitStack() as held:
            held.callback(self.workspace.reads.sweep)  # lets the epoch go at once
            if self.base.epoch:
                held.enter_context(self.workspace.reading(self.base.epoch))
            name = self.compiled.plan.name.lower()
            self.workspace.filling[name] = self.status
            held.callback(self.workspace.filling.pop, name, None)
            try:
                yield
            finally:
                with suppress(OSError, EddylineError):  # an epoch has moved the files that it needs
                    self.workspace.files.remove(self.folder)

    def run(self) -> None:
        """Compute the rows."""
        watermarks = Watermarks.of_next_epoch(self.base, self.before, self.workspace.clock())
        with job_tag(self.workspace.spark, self.tag):
            try:
                runner = self.epochs.runner
                self.state = runner.compute(
                    self.base, self.given, watermarks, self.folder, self.timer
                )
            except EddylineError as error:  # the epoch that tries it again tells the user
                _LOG.info("view %s couldn't be filled: %s", self.compiled.plan.name, named(error))

    def is_of(self, catalog: Catalog, now: Manifest) -> bool:
        """Return whether the definitions and the number of buckets are those that it began with."""
        same = catalog.entries == self.before.entries and catalog.sinks == self.before.sinks
        return same and now.buckets == self.base.buckets

    def committed(self) -> Timer | None:
        """Commit the view, with the changes of the epochs since.

        Returns:
            What has measured all stages; None if the view fails on its rows, or one that it reads was computed again
            or fails, so that it has to be computed anew.

        Raises:
            EddylineError: a commit has failed; the view isn't made.
        """
        state, workspace = self.state, self.workspace
        if state is None or self._moved(workspace.manifest):
            return None
        plan = self.compiled.plan
        if workspace.manifest.epoch == self.base.epoch:
            return self.epochs.adopt(plan, state).after(self.timer)
        try:
            segments = {leaf.name: self._since(leaf.relation) for leaf in plan.leaves}
        except StateError:  # an epoch that was held is gone: too many bytes
            return None
        return self.epochs.catch_up(PlanInput(plan, segments), state).after(self.timer)

    def _moved(self, now: Manifest) -> bool:
        """Return whether the changelog of a relation that the view reads isn't enough to catch up.

        Nor may a stream have let rows go since: the view would be taken for one without them.
        """
        entries = [self.before.get(name) for name in self.compiled.upstream]
        streams = [one for one in entries if one.kind == STREAM and not one.arranged]
        logs = map(self.workspace.sources.log, streams)
        return any(log.expired().epoch >= self.base.epoch > 0 for log in logs) or any(
            entry.id in now.failing or now.rebuilt.get(ViewId(entry.id), 0) > self.base.epoch
            for entry in entries
        )

    def _since(self, relation: str) -> Sequence[Segment]:
        """Return the rows of a stream, or the changes of another relation, since the epoch."""
        if not relation:
            return ()
        workspace, now = self.workspace, self.workspace.manifest
        entry = workspace.catalog.get(relation)
        if entry.kind == STREAM and not entry.arranged:
            return workspace.sources.between(entry, self.base, now.positions.get(entry.source))
        changes = changed_runs(workspace.files, entry, now, self.base.epoch)
        found = [run for _, runs in changes for run in runs]
        return [bucket_segment(found)] if found else ()

    @property
    def tag(self) -> str:
        """What Spark knows its jobs by."""
        return f"eddyline-fill-{self.compiled.plan.id}"

    def status(self) -> Mapping[str, Any]:
        """Return the entry of `Engine.status`: rows to read, which share is done, seconds so far and left."""
        rows = rows_of(one for own in self.given.segments.values() for one in own)
        seconds, done = time.monotonic() - self.started, share_done(self.workspace.spark, self.tag)
        return {
            "name": self.compiled.plan.name,
            "state": "filling",
            "level": self.level,
            "rows": rows if rows < UNKNOWN else None,
            "done": done,
            "seconds": seconds,
            "seconds_left": seconds * (1 - done) / done if done else None,
        }
