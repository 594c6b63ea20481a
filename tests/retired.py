"""Remove old epochs of a storage, as an engine does after its commits."""

from __future__ import annotations

from eddyline.changes import Epoch
from eddyline.state.recover import retire_manifests, sweep
from eddyline.storage.files import Files


def retire(
    files: Files, retained: int, held: Epoch | None = None, held_bytes: int | None = None
) -> None:
    """Remove the manifests of old epochs, and the runs that only they need."""
    sweep(files, retire_manifests(files, retained, held, held_bytes))
