"""Opening a storage after anything: what is committed is kept, what is not is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eddyline.state.manifest import (
    FOLDER,
    Manifest,
    committed_epochs,
    manifest_name,
    read_manifest,
)
from eddyline.state.runs import verify_run
from eddyline.storage.files import Files

EPOCHS = "epochs"
CONSTANTS = "constants"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is to be done with a storage.

    Attributes:
        epoch: the last committed epoch; 0 to start empty.
        stale: attempt folders that were never committed.
    """

    epoch: int
    stale: tuple[str, ...] = ()


def decide(epochs: Sequence[int], attempts: Sequence[str]) -> Recovery:
    """The last committed epoch, and the attempts behind it. Pure.

    Args:
        epochs: committed epochs, oldest first.
        attempts: names of attempt folders, `<epoch>-<random>`.

    Example:
        >>> decide([1, 2], ["000000000002-ab", "000000000003-cd"])
        Recovery(epoch=2, stale=('000000000003-cd',))
    """
    last = epochs[-1] if epochs else 0
    return Recovery(last, tuple(name for name in attempts if _epoch_of(name) > last))


def open_storage(files: Files, *, writable: bool) -> Manifest:
    """The last committed manifest, its runs checked byte by byte; what crashes left is removed.

    Raises:
        StateError: a manifest or a run is damaged or missing.
    """
    if writable:
        for folder in (FOLDER, EPOCHS):
            files.make_folder(folder)
    epochs = committed_epochs(files)
    recovery = decide(epochs, files.names(EPOCHS))
    manifest = read_manifest(files, recovery.epoch)
    for run in {run.name: run for run in manifest.all_runs()}.values():
        verify_run(files, run)
    if writable:
        for folder in ("", FOLDER):
            files.remove_unfinished(folder)
        if files.exists(CONSTANTS):
            files.remove(CONSTANTS)
        for name in recovery.stale:
            files.remove(f"{EPOCHS}/{name}")
        if epochs:
            sweep(files, read_manifest(files, epochs[0]))
    return manifest


def retire(files: Files, retained: int) -> None:
    """Remove manifests beyond the newest `retained`, and the runs that only they need."""
    epochs = committed_epochs(files)
    for epoch in epochs[:-retained]:
        files.remove(manifest_name(epoch))
    sweep(files, read_manifest(files, epochs[-retained:][0]))


def sweep(files: Files, oldest: Manifest) -> None:
    """Remove what was written for earlier epochs than `oldest` and is not in its state.

    What a later manifest needs of that time is in this one too.
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


def _epoch_of(attempt: str) -> int:
    return int(attempt.split("-")[0])
