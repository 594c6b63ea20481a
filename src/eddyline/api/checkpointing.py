"""Checkpoints of views that are filled in pieces: a filling continues from them after a crash."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import Entry
from eddyline.errors import StateError
from eddyline.runtime.compiler import CompiledPlan
from eddyline.runtime.pieces import Piece
from eddyline.runtime.reports import EpochState
from eddyline.source.segments import Segment
from eddyline.state import fillings
from eddyline.state.fillings import Done, FillingCheckpoint, Head
from eddyline.state.manifest import Manifest, read_manifest

TOUCHED_MAX = 1 / 16
"""More stored rows than that, for each row of a piece, are read again: the pieces are too small for the view."""

_LOG = logging.getLogger("eddyline.epochs")


@dataclass(slots=True)
class StoredFilling:
    """The checkpoint of a filling, and what it holds.

    Attributes:
        owner: the id of the view.
        base: the epoch whose rows are read.
        pieces: all pieces.
        done: those that are computed.
        rows_before: the number of rows that earlier processes had computed.
    """

    checkpoint: FillingCheckpoint
    owner: str
    view: str
    base: Manifest
    pieces: Sequence[Piece]
    done: Done
    rows_before: int = 0

    @property
    def state(self) -> EpochState | None:
        """The state after the pieces that are computed; None if none is."""
        if not self.done.pieces:
            return None
        arrangements = fillings.with_owner(self.done.arrangements, self.owner)
        return EpochState(arrangements, counters=dict(self.done.counters))

    def piece_folder(self, number: int) -> str:
        """Return the name of a new folder for the files of a piece."""
        return self.checkpoint.piece_folder(number)

    def after(self, state: EpochState, pieces: int, rows: int, seconds: float) -> EpochState:
        """Store the state after more pieces; return it with the counters of all.

        Where they have read much of the state again, twice as many are computed at once from now on.
        """
        known = self.done.counters
        touched = sum(own.get("touched", 0) for own in state.counters.values())
        repeats = self.done.pieces and touched > TOUCHED_MAX * rows
        counters = known | {
            name: {
                what: count if what == "short" else count + known.get(name, {}).get(what, 0)
                for what, count in own.items()
            }
            for name, own in state.counters.items()
        }
        done = Done(
            self.done.pieces + pieces,
            self.done.rows + rows,
            self.done.seconds + seconds,
            self.done.at_once * (2 if repeats else 1),
            fillings.without_owner(state.arrangements, self.owner),
            counters,
        )
        self.checkpoint.store(done)
        self.done = done
        return replace(state, counters=counters, deltas={})

    def discard(self, why: str) -> None:
        """Remove the checkpoint, because it can't be continued; log the reason."""
        _LOG.info("view %s is filled anew: %s", self.view, why)
        self.checkpoint.remove()

    def leave(self) -> None:
        """Release the checkpoint for a later filling; remove it if no piece is computed."""
        if not self.done.pieces:
            self.checkpoint.remove()


def begin_checkpoint(
    workspace: Workspace,
    entry: Entry,
    compiled: CompiledPlan,
    base: Manifest,
    pieces: Sequence[Piece],
    rows: int,
) -> StoredFilling:
    """Begin the checkpoint of a new view."""
    crc, view = fillings.manifest_crc(workspace.files, base.epoch), entry.name.lower()
    head = Head(view, _definition(workspace, entry, compiled), base.epoch, crc, rows, len(pieces))
    documents = [
        {leaf: [one.as_dict() for one in own] for leaf, own in piece.items()} for piece in pieces
    ]
    seconds = workspace.options.lease_seconds
    checkpoint = FillingCheckpoint.new(workspace.files, head, documents, seconds)
    return StoredFilling(
        checkpoint, compiled.plan.id, entry.name, base, pieces, Done(0, 0, 0.0, 1, {}, {})
    )


def find_checkpoint(
    workspace: Workspace, entry: Entry, compiled: CompiledPlan
) -> StoredFilling | None:
    """Return the checkpoint of an earlier filling of a view with the same definition; None if none can be continued."""
    files, stored = workspace.files, None
    for checkpoint, head in fillings.of_view(files, entry.name.lower()):
        try:
            one = _opened(workspace, entry, compiled, checkpoint, head) if stored is None else "old"
        except StateError as error:
            one = error.message
        if isinstance(one, StoredFilling):
            stored = one
        else:
            _LOG.info("view %s is filled anew: %s", entry.name, one)
            checkpoint.remove()
    return stored


def _opened(
    workspace: Workspace,
    entry: Entry,
    compiled: CompiledPlan,
    checkpoint: FillingCheckpoint,
    head: Head,
) -> StoredFilling | str:
    """Return a checkpoint that can be continued, or the reason why it can't.

    Raises:
        StateError: a file is damaged or missing.
    """
    if head.definition != _definition(workspace, entry, compiled):
        return "its definition, its plan or what it reads has changed"
    if head.crc != fillings.manifest_crc(workspace.files, head.base):
        return f"epoch {head.base} is another one now"
    base = read_manifest(workspace.files, head.base)
    pieces = [
        {leaf: [Segment(**one) for one in own] for leaf, own in piece.items()}
        for piece in checkpoint.pieces()
    ]
    done = checkpoint.done()
    checkpoint.clean(done)
    checkpoint.hold(head, workspace.options.lease_seconds)
    plan = compiled.plan
    _LOG.info(
        "view %s goes on after %d of %d pieces, %d rows",
        plan.name,
        done.pieces,
        head.pieces,
        done.rows,
    )
    return StoredFilling(checkpoint, plan.id, entry.name, base, pieces, done, done.rows)


def _definition(workspace: Workspace, entry: Entry, compiled: CompiledPlan) -> str:
    """Return a digest of all that a view's state depends on: a checkpoint with another digest is of no use."""
    upstream = [workspace.catalog.get(name) for name in compiled.upstream]
    own = dataclasses.replace(entry, id="", since=0)
    form = repr((own, compiled.plan.fingerprint, workspace.buckets, upstream))
    return hashlib.sha256(form.encode()).hexdigest()
