"""Opening a storage after anything: what is committed is kept, what is not is removed."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is to be done with a storage.

    Attributes:
        epoch: the last committed epoch; 0 to start empty.
        stale: attempt folders that were never committed.
    """

    epoch: int
    stale: tuple[str, ...]


def decide(epochs: list[int], attempts: list[str]) -> Recovery:
    """The last committed epoch, and the attempts behind it. Pure.

    Args:
        epochs: committed epochs, oldest first.
        attempts: names of attempt folders, `<epoch>-<random>`.

    Example:
        >>> decide([1, 2], ["000000000002-ab", "000000000003-cd"])
        Recovery(epoch=2, stale=('000000000003-cd',))
    """
    last = epochs[-1] if epochs else 0
    stale = tuple(name for name in attempts if int(name.split("-")[0]) > last)
    return Recovery(last, stale)


def open_storage(files: Files, *, writable: bool, check: bool = True) -> Manifest:
    """The last committed manifest, its runs checked byte by byte; remains of attempts removed.

    Raises:
        StateError: the manifest or a run is damaged.
    """
    if writable:
        for folder in (FOLDER, EPOCHS):
            files.make_folder(folder)
    recovery = decide(committed_epochs(files), files.names(EPOCHS))
    manifest = read_manifest(files, recovery.epoch)
    if writable:
        for name in recovery.stale:
            files.remove(f"{EPOCHS}/{name}")
    if check:
        for run in {run.name: run for run in manifest.all_runs()}.values():
            verify_run(files, run)
    return manifest


def retire(files: Files, retained: int) -> None:
    """Remove manifests beyond the newest `retained`, and the runs that only they need."""
    epochs = committed_epochs(files)
    for epoch, following in zip(epochs[:-retained], epochs[1:], strict=False):
        old, new = read_manifest(files, epoch), read_manifest(files, following)
        needed = {run.name for run in new.all_runs()}
        files.remove(manifest_name(epoch))
        for name in {run.name for run in old.all_runs()} - needed:
            files.remove(name)
        _tidy(files, old.epoch, needed)


def _tidy(files: Files, epoch: int, needed: set[str]) -> None:
    """Remove what tasks that ran twice have left of an epoch, and its folder if no run is needed."""
    for folder in files.names(EPOCHS):
        if folder.startswith(f"{epoch:012d}-"):
            paths = [f"{EPOCHS}/{folder}/{name}" for name in files.names(f"{EPOCHS}/{folder}")]
            if not needed.intersection(paths):
                files.remove(f"{EPOCHS}/{folder}")
                continue
            for path in paths:
                if path.endswith(".arrow") and path not in needed:
                    files.remove(path)
