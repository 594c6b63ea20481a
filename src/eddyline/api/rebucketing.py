"""Changes the number of buckets of a storage."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from eddyline.api.epochs import Epochs
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import TABLE, VIEW, Entry
from eddyline.catalog.expectations import is_ended
from eddyline.changes import Epoch
from eddyline.errors import EddylineError
from eddyline.options import check_buckets
from eddyline.runtime.plans import other_plan
from eddyline.runtime.progress import Timer
from eddyline.runtime.rebucket import divided
from eddyline.runtime.reports import row_count
from eddyline.runtime.view_failures import failed_view
from eddyline.state.manifest import Manifest, last_committed, next_commit_time, write_manifest
from eddyline.state.recover import attempt_folder
from eddyline.state.run_lists import Buckets

_LOG = logging.getLogger("eddyline.epochs")


def rebucket(workspace: Workspace, epochs: Epochs, buckets: int) -> None:
    """Divide all state into another number of buckets; see `Engine.rebucket`.

    One epoch moves the rows of tables into their new buckets, without a change. The next one computes the views
    again, because their plans differ now. A crash between the two is handled like one after an upgrade.
    """
    check_buckets(buckets)
    with workspace.lock:
        workspace.check_writable()
        if buckets == workspace.buckets:
            return
        epochs.finish_replacement()
        workspace.check_rows(entry for entry in workspace.catalog.entries if entry.kind == VIEW)
        timer = Timer()
        _check_plans(workspace)
        folder = attempt_folder(Epoch(workspace.manifest.epoch + 1))
        workspace.files.make_folder(folder)
        try:
            with timer.stage("run"):
                arrangements = _divided(workspace, folder, buckets)
            workspace.use_buckets(buckets)
            with timer.stage("commit"):
                manifest = _next_manifest(workspace, arrangements, buckets)
                workspace.manifest = write_manifest(workspace.files, manifest)
        except BaseException:
            with suppress(OSError, EddylineError):  # the commit may have succeeded all the same
                workspace.manifest = last_committed(workspace.files).owned(workspace.catalog.ids)
                if workspace.manifest.buckets != buckets:
                    workspace.files.remove(folder)
            workspace.use_buckets(workspace.buckets)
            raise
        finally:
            epochs.use_session()
        epochs.after_commit(timer, retire=False)  # rows that views need to be computed again stay
        _LOG.info("the storage has %d buckets; its views are computed again", buckets)
        epochs.rebuild_changed()


def _check_plans(workspace: Workspace) -> None:
    """Raise StateError OTHER_PLAN if another plan has written the rows of a table."""
    written = workspace.manifest.plans
    for entry, fingerprint in _fingerprints(workspace):
        if written.get(entry.id, fingerprint) != fingerprint:
            raise other_plan(entry)


def _fingerprints(workspace: Workspace) -> list[tuple[Entry, str]]:
    """Return the tables and streams of operations that aren't ended, each with the fingerprint of its plan."""
    catalog = workspace.catalog
    running = [e for e in catalog.entries if e.arranged and not is_ended(e, catalog)]
    return [(entry, workspace.plan(entry).plan.fingerprint) for entry in running]


def _divided(workspace: Workspace, folder: str, buckets: int) -> dict[str, Buckets]:
    """Return all arrangements, with those of tables and of streams of operations in their new buckets."""
    arrangements = dict(workspace.manifest.arrangements)
    arranged = {entry.id: entry for entry in workspace.catalog.entries if entry.arranged}
    for name, held in workspace.manifest.arrangements.items():
        if (entry := arranged.get(name.split("/")[0])) is not None:
            started = time.perf_counter()
            try:
                arrangements[name] = divided(
                    workspace.epochs_session,
                    workspace.files,
                    f"{folder}/{name.replace('/', '.')}.divided",
                    held,
                    workspace.buckets,
                    buckets,
                    by_hash=entry.kind == TABLE,
                )
            except Exception as error:  # whatever Spark raises: it is named and passed on
                raise failed_view(entry.name, error) from error
            rows = row_count(held)
            seconds = time.perf_counter() - started
            _LOG.info("%s %s: %d rows divided, %.1f s", entry.kind, entry.name, rows, seconds)
    return arrangements


def _next_manifest(
    workspace: Workspace, arrangements: dict[str, Buckets], buckets: int
) -> Manifest:
    """Return the manifest of an epoch that only moves rows into other buckets."""
    base = workspace.manifest
    arranged = {entry.id for entry in workspace.catalog.entries if entry.arranged}
    plans = {name: plan for name, plan in base.plans.items() if name not in arranged}
    plans |= {e.id: plan for e, plan in _fingerprints(workspace) if e.id in base.plans}
    return replace(
        base,
        epoch=Epoch(base.epoch + 1),
        arrangements=arrangements,
        deltas={},
        counters={},
        plans=plans,
        writer=workspace.files.writer,
        committed_at=next_commit_time(base),
        buckets=buckets,
    )
