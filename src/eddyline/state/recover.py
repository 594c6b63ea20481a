"""Recovery and retirement: opens a storage after a crash, flushes epochs, and removes old ones."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.state.fillings import prune
from eddyline.state.leases import pinned
from eddyline.state.manifest import (
    BASED_VERSION,
    BASES,
    FOLDER,
    Manifest,
    base_name,
    committed_epochs,
    manifest_name,
    read_manifest,
    recent,
    stored_manifest,
)
from eddyline.state.runs import verify_run
from eddyline.storage.files import Files

EPOCHS = "epochs"
CONSTANTS = "constants"
UNCOMMITTED = Epoch(10**12 - 1)
"""What stands for the epoch in the name of a folder with files that a later epoch may commit: no cleaning of
older epochs looks there, and opening the storage removes it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The decision of how to recover a storage.

    Attributes:
        epoch: the last committed epoch; 0 to start empty.
        stale: folders of attempts that were never committed; they are removed.
    """

    epoch: Epoch
    stale: tuple[str, ...] = ()


def attempt_folder(epoch: Epoch) -> str:
    """Return the name of a new folder for the files of an attempt at an epoch."""
    return f"{EPOCHS}/{epoch:012d}-{uuid.uuid4().hex[:8]}"


def decide(epochs: Sequence[Epoch], attempts: Sequence[str]) -> Recovery:
    """Return the last committed epoch, and the attempts after it. Has no side effects.

    Args:
        epochs: committed epochs, oldest first.
        attempts: names of the folders of attempts, `<epoch>-<random>`.

    Example:
        >>> decide([1, 2], ["000000000002-ab", "000000000003-cd"])
        Recovery(epoch=2, stale=('000000000003-cd',))
    """
    last = epochs[-1] if epochs else Epoch(0)
    return Recovery(last, tuple(name for name in attempts if _epoch_of(name) > last))


def open_storage(files: Files, *, writable: bool, lenient: bool = False) -> Manifest:
    """Verify the checksums of the last epoch, clean up after crashes, and return its manifest.

    The cached manifests of the storage are dropped, so that they are read from their files.

    Args:
        files: the files of the storage.
        writable: whether this process may clean up.
        lenient: accept an older epoch if the newest are damaged, and remove the damaged ones. For
            storages whose epochs aren't flushed one by one, so that a power cut can damage some of
            the newest. If `writable`, the remaining ones are flushed.

    Raises:
        StateError: a manifest or a run is damaged or missing.
    """
    recent.forget(files)
    if not writable and not lenient:
        with pinned(files) as manifest:
            _verify(files, manifest)
            return manifest
    if writable:
        for folder in (FOLDER, EPOCHS):
            files.make_folder(folder)
    epochs = committed_epochs(files)
    manifest, epochs = _last_undamaged(files, epochs, lenient=lenient)
    recovery = decide(epochs, files.names(EPOCHS))
    if writable:
        for epoch in reversed(committed_epochs(files)):
            if epoch > recovery.epoch:
                files.remove(manifest_name(epoch))
        for folder in ("", FOLDER):
            files.remove_unfinished(folder)
        if files.exists(CONSTANTS):
            files.remove(CONSTANTS)
        for name in recovery.stale:
            files.remove(f"{EPOCHS}/{name}")
        if lenient:
            whole = _undamaged(files, epochs)
            _sync(files, whole, set().union(*whole.values()))
            epochs = list(whole)
        if epochs:
            sweep(files, read_manifest(files, epochs[0]))
        prune(files)
    return manifest


def _last_undamaged(
    files: Files, epochs: list[Epoch], *, lenient: bool
) -> tuple[Manifest, list[Epoch]]:
    """Return the newest manifest that is undamaged, with all its runs, and the epochs up to it."""
    while True:
        try:
            manifest = read_manifest(files, epochs[-1] if epochs else Epoch(0))
            _verify(files, manifest)
        except StateError:
            if not lenient or len(epochs) < 2:
                raise
            epochs = epochs[:-1]
        else:
            return manifest, epochs


def _undamaged(files: Files, epochs: Sequence[Epoch]) -> dict[Epoch, set[str]]:
    """Remove manifests that are damaged or lack runs; return the runs of the remaining epochs.

    A power cut loses files in no particular order: a later epoch may be intact where an earlier one isn't.
    """
    whole, bases = {}, set[Epoch]()
    exists = cache(files.exists)  # most runs belong to many epochs
    for epoch in epochs:
        with contextlib.suppress(StateError):
            stored = stored_manifest(files, epoch)
            runs = {run.name for run in stored.manifest.all_runs()}
            if all(map(exists, runs)):
                whole[epoch] = runs
                bases.update(stored.bases)
    _remove_manifests(files, [epoch for epoch in epochs if epoch not in whole], bases)
    return whole


def _remove_manifests(files: Files, epochs: Sequence[Epoch], bases: Collection[Epoch]) -> None:
    """Remove the manifests of epochs; those that are bases of others first get their durable second name."""
    kept = [epoch for epoch in epochs if epoch in bases]
    if kept:
        files.make_folder(BASES)
        for name, second in [(manifest_name(epoch), base_name(epoch)) for epoch in kept]:
            if files.exists(second):  # retiring was interrupted
                files.remove(second)
            files.link(name, second)
        files.sync_all([base_name(epoch) for epoch in kept])
    for epoch in epochs:
        files.remove(manifest_name(epoch))
    if kept:
        files.sync(FOLDER)


def _verify(files: Files, manifest: Manifest) -> None:
    runs = {run.name: run for run in manifest.all_runs()}.values()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(partial(verify_run, files), runs):
            pass


def flush(files: Files, since: Epoch) -> None:
    """Flush all files of the epochs after `since` to the disk."""
    epochs = [epoch for epoch in committed_epochs(files) if epoch > since]
    runs = {run.name for epoch in epochs for run in read_manifest(files, epoch).all_runs()}
    _sync(files, epochs, {name for name in runs if _epoch_of(name.split("/")[-2]) > since})


def _sync(files: Files, epochs: Iterable[Epoch], runs: Collection[str]) -> None:
    """Flush runs, then the manifests of epochs, then the folders of both."""
    for name in sorted(runs):
        files.sync(name)
    for epoch in epochs:
        files.sync(manifest_name(epoch))
    for folder in sorted({FOLDER, *map(os.path.dirname, runs)}):
        files.sync(folder)


def retire_manifests(
    files: Files, retained: int, held: Epoch | None = None, held_bytes: int | None = None
) -> Manifest:
    """Remove the manifests of old epochs; return the oldest that stays, for `sweep`.

    Manifests that are bases of retained ones stay under another name, under which no reader finds them.

    Args:
        retained: how many of the newest epochs stay in any case.
        held: the first epoch that a cursor or lease needs; it stays, and all after it.
        held_bytes: how many bytes the held epochs may use; None for no limit.
    """
    epochs = committed_epochs(files)
    oldest = epochs[-retained:][0]
    if held is not None and held < oldest:
        wanted = [epoch for epoch in epochs if held <= epoch <= oldest]
        oldest = wanted[0] if held_bytes is None else _affordable(files, wanted, held_bytes)
    first = stored_manifest(files, oldest)
    gone = [epoch for epoch in epochs if epoch < oldest]
    # whichever of them are there after a crash, they can be read
    _remove_manifests(files, gone, gone if first.manifest.format >= BASED_VERSION else ())
    for name in files.names(BASES):
        if int(name.removesuffix(".json")) < first.whole:
            files.remove(f"{BASES}/{name}")
    return first.manifest


def _affordable(files: Files, epochs: Sequence[Epoch], most: int) -> Epoch:
    """Return the first of some epochs from which all can stay, if the last one stays in any case.

    Args:
        most: how many bytes the others may take: their manifests, and the files of their attempts that
            the last one doesn't need.
    """
    needed = {run.name for run in read_manifest(files, epochs[-1]).all_runs()}
    taken: dict[Epoch, int] = {}
    for attempt in files.names(EPOCHS):
        if epochs[0] <= (epoch := _epoch_of(attempt)) < epochs[-1]:
            folder = f"{EPOCHS}/{attempt}"
            sizes = files.sizes(folder).items()
            own = sum(size for name, size in sizes if f"{folder}/{name}" not in needed)
            taken[epoch] = taken.get(epoch, 0) + own
    manifests = files.sizes(FOLDER)
    first, total = epochs[-1], 0
    for epoch in reversed(epochs[:-1]):
        total += taken.get(epoch, 0) + manifests[os.path.basename(manifest_name(epoch))]
        if total > most:
            break
        first = epoch
    return first


def sweep(files: Files, oldest: Manifest) -> None:
    """Remove runs of epochs before `oldest` that its manifest doesn't refer to.

    Later manifests don't refer to them either: once a manifest has dropped a run, no later one
    refers to it again.

    Args:
        files: the files of the storage.
        oldest: the oldest retained manifest.
    """
    needed = {run.name for run in oldest.all_runs()}
    for attempt in files.names(EPOCHS):
        if _epoch_of(attempt) >= oldest.epoch:
            break
        folder = f"{EPOCHS}/{attempt}"
        found = [f"{folder}/{name}" for name in files.names(folder)]
        if needed.isdisjoint(found):
            files.remove(folder)
            continue
        files.remove_unfinished(folder)
        for name in found:
            if name not in needed:
                files.remove(name)


def _epoch_of(attempt: str) -> Epoch:
    return Epoch(int(attempt.split("-")[0]))
