"""Runs epochs on a workspace: for new input, and to compute new or resumed views."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eddyline.answers.status import state_size
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import VIEW, Catalog
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError
from eddyline.intake.watermarks import Watermarks
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.epoch import EpochRunner, Progress
from eddyline.runtime.plans import PlanInput, new_input
from eddyline.sink.outbox import first_needed
from eddyline.state.manifest import last_committed, read_manifest
from eddyline.state.recover import retire

RETIRE_EVERY = 16
"""Epochs after which the data of epochs that are no longer retained is removed."""

_LOG = logging.getLogger("eddyline.epochs")
_WHERE = ("view", "operator", "stream", "table", "file")


class Epochs:
    """Runs epochs, one at a time. Callers hold the lock of the workspace.

    Attributes:
        progress: the Progress of the last epoch; None before the first.
        callbacks: functions that get the Progress of each epoch after its commit.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.progress: Progress | None = None
        self.callbacks: list[Callable[[Progress], Any]] = []
        self._runner = EpochRunner(
            workspace.files,
            workspace.epochs_session,
            workspace.compiler.catalyst,
            workspace.options.scan_tasks,
            workspace.zone,
        )

    def run_next(self, ingest_s: float) -> bool:
        """Run one epoch over the unprocessed entries of the redo logs; False if there are none.

        Args:
            ingest_s: seconds that logging the input took, for the Progress.
        """
        workspace = self._workspace
        base, catalog = workspace.manifest, workspace.catalog
        positions = workspace.sources.waiting(catalog, base)
        watermarks = Watermarks.of_next_epoch(base, catalog)
        if not positions and not self._rows_are_final(watermarks):
            return False
        started = time.perf_counter()
        plans = [
            workspace.plan(entry).plan
            for entry in catalog.entries
            if (entry.kind == VIEW and not entry.paused) or entry.arranged
        ]
        plan_s = time.perf_counter() - started
        for stream in watermarks.streams:
            watermark = watermarks.of(stream)
            if stream.id in positions and watermark is not None:
                first = base.positions.get(stream.id, 0)
                workspace.sources.log(stream).mark(first, watermark)
        started = time.perf_counter()
        inputs = [new_input(plan, catalog, workspace.sources, base, positions) for plan in plans]
        plan_s += time.perf_counter() - started
        seconds = self._run(inputs, positions, watermarks)
        seconds["plan"] += plan_s
        self.committed({"ingest": ingest_s, **seconds})
        return True

    def fill(
        self, catalog: Catalog, plans: Sequence[CompiledPlan], rebuilt: Sequence[ViewId] = ()
    ) -> dict[str, float]:
        """Compute views from all rows of their inputs, in a separate epoch.

        Args:
            catalog: the catalog with these views.
            rebuilt: ids of resumed views; the new rows replace their old ones.

        Returns:
            The seconds of each stage.
        """
        workspace = self._workspace
        base = workspace.manifest
        filled = {compiled.plan.name for compiled in plans}
        inputs = [
            workspace.results.initial_input(
                compiled, catalog, base, filled, workspace.compiler.write_constants(compiled)
            )
            for compiled in plans
        ]
        return self._run(inputs, {}, Watermarks.of_next_epoch(base, workspace.catalog), rebuilt)

    def committed(self, seconds: dict[str, float]) -> None:
        """Report an epoch after its commit, and remove what is no longer retained."""
        workspace, manifest = self._workspace, self._workspace.manifest
        rows_in, rows_out, state = {}, {}, {}
        for entry in workspace.catalog.entries:
            counts = manifest.counters.get(entry.name)
            if counts:
                rows_in[entry.name], rows_out[entry.name] = counts["in"], counts["out"]
            rows, size = state_size(manifest, entry)
            if rows:
                state[entry.name] = {"rows": rows, "bytes": size}
        self.progress = Progress(manifest.epoch, rows_in, rows_out, seconds, state)
        _LOG.info(
            "epoch %d committed: %d rows in, %d changes out, %.3f s (%s)",
            manifest.epoch,
            sum(rows_in.values()),
            sum(rows_out.values()),
            sum(seconds.values()),
            ", ".join(f"{stage} {spent:.3f}" for stage, spent in seconds.items()),
        )
        if manifest.epoch % RETIRE_EVERY == 0:
            self._retire()
        for callback in self.callbacks:
            callback(self.progress)

    def _retire(self) -> None:
        workspace = self._workspace
        workspace.flush()
        before = read_manifest(workspace.files, Epoch(workspace.manifest.epoch - 1))
        for entry in workspace.catalog.entries:
            if entry.arranged:
                # enough stays to run the last epoch again, should its manifest be lost
                workspace.sources.forget(entry, before.positions.get(entry.id, 0))
        held = first_needed(workspace.files, workspace.manifest.epoch)
        retire(workspace.files, workspace.options.retain_epochs, held)

    def _rows_are_final(self, watermarks: Watermarks) -> bool:
        """Whether rows that EMIT FINAL holds back can be final now."""
        return any(
            watermarks.have_advanced(self._workspace.plan(entry).plan.parts)
            for entry in self._workspace.catalog.entries
            if entry.final and not entry.paused
        )

    def _run(
        self,
        inputs: Sequence[PlanInput],
        positions: Mapping[str, int],
        watermarks: Watermarks,
        rebuilt: Sequence[ViewId] = (),
    ) -> dict[str, float]:
        """Run an epoch on top of the last committed one; return the seconds of its stages."""
        workspace = self._workspace
        epoch = workspace.manifest.epoch + 1
        try:
            workspace.manifest, seconds = self._runner.run(
                workspace.manifest, inputs, positions, watermarks, rebuilt
            )
        except BaseException as error:
            _LOG.error("epoch %d failed: %s", epoch, _named(error))
            # the commit may have succeeded although the call failed after it
            workspace.manifest = last_committed(workspace.files).owned(workspace.catalog.ids)
            raise
        finally:
            # an epoch that rebuilt views has ended their pauses, even if writing the catalog fails
            workspace.catalog = workspace.catalog.without_ended_pauses(workspace.manifest.rebuilt)
        return seconds


def _named(error: BaseException) -> str:
    """Return condition and place of an error for the log; its message may contain user data."""
    if not isinstance(error, EddylineError):
        return type(error).__name__
    where = [f"{key} {error.context[key]}" for key in _WHERE if key in error.context]
    return " ".join([error.condition, *where])
