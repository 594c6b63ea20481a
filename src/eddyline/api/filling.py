"""Fills a new view while epochs go on: computing its first rows doesn't hold the lock of the workspace."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from eddyline.answers.changed import changed_runs
from eddyline.api.checkpointing import StoredFilling, begin_checkpoint, find_checkpoint
from eddyline.api.epochs import Epochs
from eddyline.api.reporting import named
from eddyline.api.workspace import Workspace
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, Entry
from eddyline.changes import ViewId
from eddyline.errors import EddylineError, StateError
from eddyline.intake.watermarks import Watermarks
from eddyline.operators.base import Timed
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.pieces import Piece, grows_with_pieces, in_pieces
from eddyline.runtime.plans import PlanInput
from eddyline.runtime.progress import Timer
from eddyline.runtime.reports import EpochState
from eddyline.runtime.scan import bucket_segment
from eddyline.runtime.sizes import UNKNOWN, rows_of
from eddyline.source.segments import Segment
from eddyline.spark.job_progress import job_tag, share_done
from eddyline.state.manifest import Manifest, runs_of
from eddyline.state.recover import UNCOMMITTED, attempt_folder
from eddyline.state.run_lists import renamed

_LOG = logging.getLogger("eddyline.epochs")


@dataclass(slots=True)
class Filling:
    """The first rows of a new view, computed from all rows of its inputs as of one epoch.

    `begin` and `commit` are called under the lock of the workspace; `run` needs no lock. The changes that are
    committed meanwhile are read from the changelogs of those epochs, which a lease retains. Many rows are computed
    in pieces, each on top of the state after those before it. That state is a checkpoint: after a crash, a
    filling of the same view continues from it.

    Attributes:
        base: the epoch.
        pieces: the rows of the inputs.
        rows: number of rows of each piece; `UNKNOWN` or more where that isn't known.
        before: the catalog when it began.
        folder: for the files to commit.
        stored: the checkpoint; None if there is only one piece.
        state: what `run` has computed; None before it, or if it has failed.
        timer: measures the stages of `run`.
    """

    workspace: Workspace
    epochs: Epochs
    compiled: CompiledPlan
    before: Catalog
    base: Manifest
    pieces: Sequence[Piece]
    rows: Sequence[int]
    folder: str
    level: int
    stored: StoredFilling | None = None
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
        compiled: CompiledPlan,
    ) -> Filling | None:
        """Begin to fill a view; return None if it must be computed between two epochs.

        Those are views with watermarks or now(): which rows are late or expired depends on the epoch that
        computes them.

        Args:
            catalog: the catalog with the view.
        """
        plan = compiled.plan
        if any(leaf.late or leaf.time is not None for leaf in plan.leaves) or any(
            part.expiry or isinstance(part.operator, Timed) for part in plan.parts
        ):
            return None
        base, level, folder = workspace.manifest, catalog.level(entry), attempt_folder(UNCOMMITTED)
        stored = find_checkpoint(workspace, entry, compiled)
        if stored is not None:
            filling = cls(
                workspace, epochs, compiled, workspace.catalog, stored.base, stored.pieces,
                list(map(_rows, stored.pieces)), folder, level, stored,
            )  # fmt: skip
            if not filling._must_begin_anew(base):
                return filling
            stored.discard("what it reads has changed otherwise than by changes")
        constants = workspace.compiler.write_constants(compiled)
        given = workspace.results.initial_input(compiled, catalog, base, {plan.name}, constants)
        most = 0 if grows_with_pieces(plan) else workspace.options.fill_rows
        pieces = in_pieces(workspace.files, given.segments, most, plan.earlier)
        rows = list(map(_rows, pieces))
        stored = (
            begin_checkpoint(workspace, entry, compiled, base, pieces, sum(rows))
            if pieces[1:]
            else None
        )
        return cls(
            workspace,
            epochs,
            compiled,
            workspace.catalog,
            base,
            pieces,
            rows,
            folder,
            level,
            stored,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Retain the base epoch and show the view in the status, during the context."""
        with ExitStack() as held:
            held.callback(self.workspace.reads.sweep)  # releases the epoch at once
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
                if self.stored is not None:
                    self.stored.leave()

    def run(self) -> None:
        """Compute the rows.

        Raises:
            EddylineError: a piece can't be computed, or the engine was stopped (STORAGE_IN_USE). A later filling
                continues after the stored pieces.
        """
        watermarks = Watermarks.of_next_epoch(self.base, self.before, self.workspace.clock())
        state = None if self.stored is None else self.stored.state
        while (number := self._pieces_done) < len(self.pieces):
            if number:
                self.workspace.check_writable()
            try:
                state = self._compute_next(number, state, watermarks)
            except EddylineError as error:
                if self._pieces_done:
                    raise
                # the epoch that tries it again reports the error
                _LOG.info("view %s couldn't be filled: %s", self.compiled.plan.name, named(error))
                return
            if state is None or self.stored is None:
                break
        self.state = state if state is None or self.stored is None else self._link_files(state)

    @property
    def is_stored(self) -> bool:
        """Whether a later filling of the view can continue from this one's checkpoint."""
        return self.state is not None and self.stored is not None

    @property
    def _pieces_done(self) -> int:
        return 0 if self.stored is None else self.stored.done.pieces

    @property
    def _next_pieces(self) -> range:
        """The numbers of the pieces that are computed together next."""
        first = self._pieces_done
        at_once = 1 if self.stored is None else self.stored.done.at_once
        return range(first, min(first + at_once, len(self.pieces)))

    def _compute_next(
        self, number: int, state: EpochState | None, watermarks: Watermarks
    ) -> EpochState | None:
        """Return the state after the next pieces; None if the view fails on their rows."""
        folder = self.folder if self.stored is None else self.stored.piece_folder(number)
        now, segments = self._next_pieces, dict[str, list[Segment]]()
        for piece in now:
            for leaf, own in self.pieces[piece].items():
                segments.setdefault(leaf, []).extend(own)
        before = None if state is None else state.arrangements
        started = time.monotonic()
        with job_tag(self.workspace.spark, self._tag(number)):
            given = PlanInput(self.compiled.plan, segments)
            after = self.epochs.runner.compute(
                self.base, given, watermarks, folder, self.timer, before
            )
        if self.stored is None:
            return after
        if (
            after is None
        ):  # perhaps it fails on this part only: the epoch that tries it again has all rows
            self.stored.discard("the view fails on its rows")
            return None
        rows = sum(self.rows[piece] for piece in now)
        return self.stored.after(after, len(now), rows, time.monotonic() - started)

    def _link_files(self, state: EpochState) -> EpochState:
        """Link the files of the state into the folder to commit; the checkpoint keeps its own names of them."""
        files = self.workspace.files
        files.make_folder(self.folder)
        for own in state.arrangements.values():
            for run in runs_of(own):
                files.link(run.name, self._link_name(run.name))
        files.sync(self.folder)
        return replace(state, arrangements=renamed(state.arrangements, self._link_name))

    def _link_name(self, name: str) -> str:
        """Return a name for a piece's run in the folder to commit, different from those of all other pieces."""
        folder, file = os.path.split(name)
        return f"{self.folder}/{os.path.basename(folder)}.{file}"

    def matches(self, catalog: Catalog, now: Manifest) -> bool:
        """Return whether the definitions and the number of buckets are still those at its begin."""
        same = catalog.entries == self.before.entries and catalog.sinks == self.before.sinks
        return same and now.buckets == self.base.buckets

    def commit(self) -> Timer | None:
        """Commit the view, with the changes of the epochs since.

        Returns:
            The timer of all stages. None if the view fails on its rows, or if a view that it reads fails or was
            computed again meanwhile: then it must be computed anew.

        Raises:
            EddylineError: a commit has failed; the view isn't made.
        """
        state, workspace = self.state, self.workspace
        if state is None or self._must_begin_anew(workspace.manifest):
            return None
        plan = self.compiled.plan
        if workspace.manifest.epoch == self.base.epoch:
            if self.stored is not None:
                self.epochs.runner.make_delta(plan, self.folder, state)
            return self.epochs.adopt(plan, state).after(self.timer)
        try:
            segments = {leaf.name: self._changes_since(leaf.relation) for leaf in plan.leaves}
        except StateError:  # an epoch was removed in spite of the lease: `held_bytes` was exceeded
            return None
        return self.epochs.catch_up(PlanInput(plan, segments), state).after(self.timer)

    def _must_begin_anew(self, now: Manifest) -> bool:
        """Return whether the view can't catch up from the changelogs of its inputs, and must be computed anew.

        That is also the case if rows of a stream have expired meanwhile: the view has counted them.
        """
        entries = [self.before.get(name) for name in self.compiled.upstream]
        streams = [one for one in entries if one.kind == STREAM and not one.arranged]
        logs = map(self.workspace.sources.log, streams)
        return any(log.expired().epoch >= self.base.epoch > 0 for log in logs) or any(
            entry.id in now.failing or now.rebuilt.get(ViewId(entry.id), 0) > self.base.epoch
            for entry in entries
        )

    def _changes_since(self, relation: str) -> Sequence[Segment]:
        """Return the rows of a stream, or the changes of another relation, since the epoch."""
        if not relation:
            return ()
        workspace, now = self.workspace, self.workspace.manifest
        entry = workspace.catalog.get(relation)
        if entry.kind == STREAM and not entry.arranged:
            return workspace.sources.between(entry, self.base, now.positions.get(entry.source))
        changes = changed_runs(workspace.files, entry, now, self.base.epoch)
        runs = [run for _, own in changes for run in own]
        return [bucket_segment(runs)] if runs else ()

    def _tag(self, piece: int) -> str:
        """Return the tag of a piece's Spark jobs."""
        return f"eddyline-fill-{self.compiled.plan.id}-{piece}"

    def status(self) -> Mapping[str, Any]:
        """Return the entry of `Engine.status`: rows to read and read, per second, seconds so far and left."""
        at, total = self._pieces_done, sum(self.rows)
        seconds = time.monotonic() - self.started
        share = share_done(self.workspace.spark, self._tag(at))
        read = sum(self.rows[:at]) + share * sum(self.rows[piece] for piece in self._next_pieces)
        first = 0 if self.stored is None else self.stored.rows_before
        done = read / total if total else share
        now = done - (first / total if total else 0)  # by this process
        known = total < UNKNOWN
        return {
            "name": self.compiled.plan.name,
            "state": "filling",
            "level": self.level,
            "rows": total if known else None,
            "rows_read": int(read) if known else None,
            "rows_per_second": (read - first) / seconds if known and seconds else None,
            "pieces": len(self.pieces),
            "pieces_done": at,
            "done": done,
            "seconds": seconds,
            "seconds_left": seconds * (1 - done) / now if now > 0 else None,
        }


def _rows(piece: Piece) -> int:
    """Return the number of rows of a piece; at least `UNKNOWN` if that isn't known."""
    return rows_of(one for own in piece.values() for one in own)
