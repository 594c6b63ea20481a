"""Removes old epochs and input that are no longer retained."""

from __future__ import annotations

import logging

from eddyline.api.workspace import Workspace
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.sink.cursors import first_needed
from eddyline.state.fillings import prune
from eddyline.state.leases import retiring
from eddyline.state.manifest import committed_epochs, read_manifest
from eddyline.state.recover import retire

_LOG = logging.getLogger("eddyline.epochs")


def retire_old(workspace: Workspace) -> None:
    """Remove epochs that nobody needs with their entries of redo logs; then merge small entries of the other logs."""
    workspace.flush()
    before = read_manifest(workspace.files, Epoch(workspace.manifest.epoch - 1))
    for entry in workspace.catalog.entries:
        if entry.arranged and entry.source == entry.id:
            # enough stays to run the last epoch again, should its manifest be lost
            workspace.sources.forget(entry, before.positions.get(entry.id, 0))
    options = workspace.options
    held = first_needed(workspace.files, workspace.manifest.epoch, options.held_epochs)
    workspace.reads.sweep()
    with (
        workspace.files.committing(),
        retiring(workspace.files, options.lease_seconds) as (possible, leased),
    ):
        if possible:
            first = min((one for one in (held, leased) if one is not None), default=None)
            retire(workspace.files, options.retain_epochs, first, options.held_bytes)
            prune(workspace.files, set(workspace.filling))
    try:
        oldest = read_manifest(workspace.files, committed_epochs(workspace.files)[0])
    except StateError as error:  # a reader of that epoch gets the error
        _LOG.error("redo logs are neither merged nor shortened: %s", error)
        return
    workspace.sources.expire(workspace.catalog, oldest, workspace.manifest.epoch)
    workspace.sources.merge(workspace.catalog, oldest, workspace.manifest.epoch)
