"""Statistics tasks (a storage's views): list them, and ask the engine to change them.

Works from any process, also while an engine runs, and without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from eddyline.answers.status import LIVE, row_count, state_text, view_state
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.catalog.requests import WAITING, Inbox, Request
from eddyline.catalog.store import CatalogStore
from eddyline.errors import StateError, StorageError
from eddyline.state.leases import pinned
from eddyline.state.manifest import Manifest, last_committed
from eddyline.storage.files import Files, no_storage
from eddyline.storage.lock import StorageLock, in_use

ADD, PAUSE, RESUME, DROP = "add", "pause", "resume", "drop"
RESET = "reset"
"""The request to reset a watermark; `name` is the stream."""
REBUCKET = "rebucket"
"""The request to change the number of buckets."""
VERIFY = "verify"
"""The request to compare a view with the same SQL run offline, which an engine answers beside its epochs."""
_CATALOG_ONLY = (PAUSE, DROP)  # actions that need no Spark
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Task:
    """One line of `task list`: a definition, or a view that the engine was asked to add.

    Attributes:
        state: `running`, `failing since epoch N`, `paused since epoch N`, `waiting` for the engine to add it; empty for
            tables and streams. The condition of the error is added if its rows can't be read.
        level: distance from the sources.
        since: the epoch that computed its first rows.
        rows: number of rows of its result; None if they can't be read. All three are None for a view that
            isn't added yet.
    """

    name: str
    kind: str
    state: str
    level: int | None = None
    since: int | None = None
    rows: int | None = None


def stored_catalog(store: CatalogStore) -> Catalog:
    """Return the catalog of a storage; StorageError NO_STORAGE if there is none."""
    catalog = store.read()
    if catalog is None:
        raise no_storage(store.files.root)
    return catalog.without_ended_pauses(last_committed(store.files).rebuilt)


def list_tasks(store: CatalogStore) -> list[Task]:
    """Return all definitions, upstream before downstream, then the views still to be added."""
    catalog = stored_catalog(store)
    with pinned(store.files) as manifest:
        tasks = [_task(store.files, catalog, manifest, entry) for entry in catalog.entries]
    added = [request for request in store.waiting() if request.action == ADD]
    return [*tasks, *(Task(request.name, VIEW, "waiting") for request in added)]


def _task(files: Files, catalog: Catalog, manifest: Manifest, entry: Entry) -> Task:
    if entry.kind != VIEW:
        return Task(entry.name, entry.kind, "", 0)
    found = view_state(entry, manifest)
    state = "running" if found["state"] == LIVE else state_text(found)
    if entry.paused_with:
        state += f", with {entry.paused_with}"
    rows = None
    try:
        rows = row_count(files, manifest, entry.id)
    except StateError as error:  # other views must still be listed
        state += f", {error.condition}"
    return Task(entry.name, VIEW, state, catalog.level(entry), entry.since, rows)


def submit_request(store: CatalogStore, action: str, name: str, query: str = "") -> int:
    """Store a request for the engine, which answers it before its next epoch; return its number."""
    stored_catalog(store)
    if store.outdated:
        raise StorageError(
            "the catalog of this storage is of an older version of Eddyline",
            condition="OLD_FORMAT",
            hint="open it once with an engine that writes, for instance `eddyline run`",
            storage=store.files.root,
        )
    return store.add_request(action, name, query)


def answer_if_unused(store: CatalogStore, open_engine: Callable[[], None]) -> bool:
    """Answer the waiting requests if no engine runs; return whether none runs.

    Pauses and drops only change the catalog, so they need no engine. Other requests need one.

    Args:
        open_engine: opens an engine on the storage and lets it answer.
    """
    if in_use(store.files):
        return False
    lock = StorageLock(store.files)
    if not lock.held:
        return False
    try:
        waiting = store.waiting()
        spark = any(request.action not in _CATALOG_ONLY for request in waiting)
        if not spark:
            inbox = Inbox(store)
            for request in waiting:
                with inbox.answering(request):
                    store.write(_changed(store, request), request.number)
    finally:
        lock.release()
    if spark:
        open_engine()
    return True


def await_answer(store: CatalogStore, number: int, patience_s: float) -> Request:
    """Wait for the answer of a request, at most `patience_s` seconds; return the request as it is then."""
    end = time.monotonic() + patience_s
    while (request := store.request(number)).state == WAITING and time.monotonic() < end:
        time.sleep(_POLL_S)
    return request


def _changed(store: CatalogStore, request: Request) -> Catalog:
    catalog = stored_catalog(store)
    if request.action == PAUSE:
        return catalog.pause(request.name, last_committed(store.files).epoch)
    return catalog.drop(catalog.get(request.name, VIEW).name)
