"""Removes old epochs and input that are no longer retained."""

from __future__ import annotations

import logging
from collections.abc import Collection

from eddyline.api.workspace import Workspace
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.options import Options
from eddyline.sink.cursors import first_needed
from eddyline.state.fillings import prune
from eddyline.state.leases import retiring
from eddyline.state.manifest import committed_epochs, read_manifest
from eddyline.state.recover import retire_manifests, sweep
from eddyline.storage.files import Files

_LOG = logging.getLogger("eddyline.epochs")


def retire_old(workspace: Workspace) -> None:
    """Remove epochs that nobody needs with their entries of redo logs; then merge small entries of the other logs."""
    workspace.flush()
    before = read_manifest(workspace.files, Epoch(workspace.manifest.epoch - 1))
    for entry in workspace.catalog.entries:
        if entry.arranged and entry.source == entry.id:
            # enough stays to run the last epoch again, should its manifest be lost
            workspace.sources.forget(entry, before.positions.get(entry.id, 0))
    workspace.reads.sweep()
    retire_epochs(workspace.files, workspace.manifest.epoch, workspace.options, workspace.filling)
    try:
        oldest = read_manifest(workspace.files, committed_epochs(workspace.files)[0])
    except StateError as error:  # a reader of that epoch gets the error
        _LOG.error("redo logs are neither merged nor shortened: %s", error)
        return
    workspace.sources.expire(workspace.catalog, oldest, workspace.manifest.epoch)
    workspace.sources.merge(workspace.catalog, oldest, workspace.manifest.epoch)


def retire_epochs(
    files: Files, committed: Epoch, options: Options, filling: Collection[str] = ()
) -> None:
    """Remove old epochs, unless a reader takes a lease at this moment.

    Leases wait only while manifests are removed, not for the many files that only those named: a lease is for an epoch
    whose manifest is there, and none of them names a file that `sweep` removes.

    Args:
        committed: the last epoch.
        filling: the names of views, in lower case, that are being filled.
    """
    held = first_needed(files, committed, options.held_epochs)
    with files.committing():
        with retiring(files, options.lease_seconds) as (possible, leased):
            if not possible:
                return
            first = min((one for one in (held, leased) if one is not None), default=None)
            oldest = retire_manifests(files, options.retain_epochs, first, options.held_bytes)
        sweep(files, oldest)
        prune(files, set(filling))
