"""The dead letters of a storage, from outside of the engine. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from eddyline.answers.status import stored_rows
from eddyline.catalog.entries import DEAD, PIPELINE, REJECTS, Entry
from eddyline.catalog.store import CatalogStore
from eddyline.errors import CatalogError
from eddyline.state.manifest import last_committed

REQUESTS = {"replay": "replay", "drop": "discard"}
"""What the engine is asked for, by what a user calls it: `drop` asks for a view to be dropped."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that has failed for good, as of the last committed epoch.

    Attributes:
        source: the pipeline, or the stream, whose record it is.
        position: of a pipeline's record its place in the queue; its name for ever.
        payload, key: the producer's bytes.
        bolt, error: where it has failed the last time, and how.
        attempts: how often.
        received, died: when it came in, and when it was given up.
    """

    source: str
    position: int
    payload: bytes
    key: bytes | None
    bolt: str
    error: str
    attempts: int
    received: datetime
    died: datetime


def listed(store: CatalogStore, source: str | None = None) -> list[Letter]:
    """The dead letters of one pipeline or stream, or of all, the last one to die first."""
    manifest = last_committed(store.files)
    letters = []
    for entry in _entries(store, source):
        shown = entry.name.removesuffix(DEAD)
        for rows in stored_rows(store.files, manifest, entry):
            letters += [Letter(shown, *row.values()) for row in rows.to_pylist()]
    return sorted(letters, key=lambda letter: (letter.died, letter.position), reverse=True)


def ask(store: CatalogStore, action: str, source: str, positions: Sequence[int]) -> int:
    """Ask the engine to `replay` or to `drop` letters, all if no position is given; its number."""
    (entry,) = _entries(store, source)
    if action == "replay" and entry.format == REJECTS:
        raise no_replay(source)
    chosen = ", ".join(str(position) for position in positions)
    return store.ask(REQUESTS[action], source, f"position IN ({chosen})" if chosen else "")


def no_replay(stream: str) -> CatalogError:
    """The error of replaying what a stream's source has given once."""
    return CatalogError(
        f"stream {stream} can't read a record again: its source gives each once",
        condition="NO_REPLAY",
        hint="put the mended records into the source, then drop these dead letters",
    )


def _entries(store: CatalogStore, name: str | None) -> list[Entry]:
    catalog = store.read()
    known = [e for e in catalog.entries if e.format in (PIPELINE, REJECTS)] if catalog else []
    found = [e for e in known if name is None or e.name.lower() == (name + DEAD).lower()]
    if name is not None and not found:
        shown = ", ".join(entry.name.removesuffix(DEAD) for entry in known)
        raise CatalogError(
            f"there are no dead letters of {name}",
            condition="NOT_FOUND",
            hint=f"known: {shown or 'none yet'}",
        )
    return found
