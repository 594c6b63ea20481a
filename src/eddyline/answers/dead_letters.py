"""Lists the dead letters of a storage, and sends requests about them to its engine. Needs no Spark."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.catalog.entries import DEAD, REJECTS, Entry
from eddyline.catalog.store import CatalogStore
from eddyline.errors import CatalogError
from eddyline.operators.base import numbered
from eddyline.source.dead_letters import no_replay
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.leases import pinned
from eddyline.state.manifest import ROWS, Manifest
from eddyline.storage.files import Files

MEND = "mend"
REQUESTS = {"replay": "replay", "drop": "discard"}
"""The engine's action for each of the user's; an engine's `drop` would drop a view."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that has failed permanently, as of the last committed epoch.

    Attributes:
        source: the pipeline, or the stream, whose record it is.
        position: identifies the letter; for a pipeline's record it is the position in the queue.
        payload, key: the producer's bytes.
        bolt, error: the bolt that failed last, and its error.
        attempts: number of attempts.
        received, died: when the record arrived, and when it became a dead letter.
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


def list_letters(
    store: CatalogStore, source: str | None = None, positions: Sequence[int] | None = None
) -> list[DeadLetter]:
    """Return the dead letters of one pipeline or stream, or of all, the newest first.

    Args:
        positions: only those at these positions.
    """
    letters: list[DeadLetter] = []
    chosen = None
    if positions is not None:
        chosen = pa.array([one for one in positions if abs(one) < 2**63], pa.int64())
    with pinned(store.files) as manifest:
        for entry in _entries(store, source):
            shown = entry.name.removesuffix(DEAD)
            for stored in _stored_rows(store.files, manifest, entry):
                rows = stored if chosen is None else stored.filter(pc.is_in(stored["c0"], chosen))
                letters += [DeadLetter(shown, *row.values()) for row in rows.to_pylist()]
    return sorted(letters, key=lambda letter: (letter.died, letter.position), reverse=True)


def request_action(store: CatalogStore, action: str, source: str, positions: Sequence[int]) -> int:
    """Ask the engine to `replay` or `drop` letters; return the number of the request.

    Args:
        positions: positions of the letters; empty for all letters of the source.

    Raises:
        CatalogError: NOT_FOUND: there is no such letter. NO_REPLAY: the source of its stream can't read a
            record again.
    """
    (entry,) = _entries(store, source)
    if action == "replay" and entry.role == REJECTS:
        raise no_replay(source)
    if positions:
        known = {letter.position for letter in list_letters(store, source, positions)}
        for position in positions:
            if position not in known:
                raise no_letters(source, at_positions([position]))
    where = at_positions(positions) if positions else ""
    return store.add_request(REQUESTS[action], source, where)


def request_mended(store: CatalogStore, source: str, position: int, payload: bytes) -> int:
    """Ask the engine to replay a dead letter with a corrected payload; return the number of the request.

    The letter is removed, as by any replay. The record keeps its key and its time of arrival.

    Raises:
        CatalogError: NOT_FOUND: there is no such letter. NO_REPLAY: the source of its stream can't read a
            record again.
    """
    (entry,) = _entries(store, source)
    if entry.role == REJECTS:
        raise no_replay(source)
    find_letter(store, source, position)
    return store.add_request(MEND, source, mended_text(position, payload))


def mended_text(position: int, payload: bytes) -> str:
    """Encode the position and the corrected payload of a letter as the text of a request."""
    return json.dumps({"position": position, "payload": b64encode(payload).decode()})


def parse_mended(text: str) -> tuple[int, bytes]:
    """Decode the position and the corrected payload of a letter.

    Example:
        >>> parse_mended(mended_text(7, b"tea"))
        (7, b'tea')
    """
    found = json.loads(text)
    return int(found["position"]), b64decode(found["payload"])


def find_letter(store: CatalogStore, source: str, position: int) -> DeadLetter:
    """Return the dead letter at a position; raise CatalogError NOT_FOUND if there is none."""
    found = list_letters(store, source, (position,))
    if not found:
        raise no_letters(source, at_positions([position]))
    return found[0]


def at_positions(positions: Sequence[int]) -> str:
    """Return the condition of SQL for the dead letters at some positions.

    Example:
        >>> at_positions([3, 7])
        'position IN (3, 7)'
    """
    return f"position IN ({', '.join(map(str, positions))})"


def no_letters(source: str, where: str) -> CatalogError:
    """Return the error for a condition that no dead letter meets."""
    return CatalogError(
        f"there is no dead letter of {source} where {where}",
        condition="NOT_FOUND",
        hint="the list shows the positions of those that there are",
    )


def can_replay(store: CatalogStore, source: str) -> bool:
    """Return whether a source can replay the records of its dead letters."""
    (entry,) = _entries(store, source)
    return entry.role != REJECTS


def _entries(store: CatalogStore, source: str | None) -> list[Entry]:
    """Return the streams of dead letters, of one pipeline or stream or of all."""
    catalog = store.read()
    entries = catalog.entries if catalog else ()
    known = {e.name.lower(): e for e in entries if e.holds_letters}
    if source is None:
        return list(known.values())
    found = known.get((source + DEAD).lower())
    if found is None:
        names = ", ".join(entry.name.removesuffix(DEAD) for entry in known.values())
        raise CatalogError(
            f"there are no dead letters of {source}",
            condition="NOT_FOUND",
            hint=f"known: {names or 'none yet'}",
        )
    return [found]


def _stored_rows(files: Files, manifest: Manifest, entry: Entry) -> Iterator[pa.Table]:
    """Yield the rows of a table or view as of an epoch, as `c0..`, without Spark."""
    columns = numbered("c", len(entry.columns))
    for runs in manifest.arrangements.get(manifest.result(entry.id, ROWS), {}).values():
        rows = Arrangement(files, Layout(columns), runs).scan()
        if rows is not None:
            yield rows.select(columns)
