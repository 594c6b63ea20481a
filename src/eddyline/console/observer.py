"""Reads a storage for the console, from its files, while an engine may be writing them."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from eddyline.answers.answer import QueryAnswer
from eddyline.answers.changed import changed_runs, epoch_changes
from eddyline.answers.changelog import RETRACT
from eddyline.answers.dead_letters import DeadLetter, can_replay, find_letter, list_letters
from eddyline.answers.profile import Spent, profile
from eddyline.answers.quick import filtered, quick_answer
from eddyline.answers.run_health import stored_health
from eddyline.answers.sinks import sinks_status
from eddyline.answers.status import row_count, storage_status
from eddyline.answers.stored import StoredRelation, StoredSnapshot, check_stored
from eddyline.answers.tasks import Task, list_tasks, stored_catalog
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import DEAD, Entry
from eddyline.catalog.store import CatalogStore
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError
from eddyline.pipelines.history import Point
from eddyline.pipelines.outcomes import pipeline_entry, pipelines_status, stored_history
from eddyline.source.lag import stored_lags
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.state.leases import pinned
from eddyline.state.manifest import (
    FOLDER,
    Manifest,
    committed_at,
    committed_epochs,
    last_committed,
)
from eddyline.state.runs import Run
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use

FRESH_S = 1.0
"""How old, in seconds, an answer about the whole storage may be."""
CACHED_VIEWS = 8
CACHED_BYTES = 64 << 20
"""A view of more bytes is read anew for each request."""
ANSWERS, ANSWER_BYTES = 64, 1 << 18
"""How many answers are kept, and of how many bytes each may be."""
PROFILED = 16
"""The last epochs whose costs are shown."""

T = TypeVar("T")
Health = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table or view as of an epoch.

    Attributes:
        ordered: whether the view has an ORDER BY; these rows don't have its order, which only an engine applies.
        committed_at: when the epoch was committed, in seconds since 1970; 0 if unknown.
    """

    name: str
    epoch: Epoch
    table: pa.Table
    ordered: bool
    committed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The changes of a table or view in one epoch: its columns, then `op` and `epoch`, by place.

    Attributes:
        columns: the names of its columns.
    """

    epoch: Epoch
    columns: tuple[str, ...]
    table: pa.Table


class Observer:
    """Reads one storage for many requests at once, without its lock and without Spark.

    Args:
        store: the catalog of the storage.
        health: in the engine's process: returns the health of its background run. Others read it from the storage.

    Raises:
        StorageError: NO_STORAGE: there is none.
    """

    def __init__(self, store: CatalogStore, health: Health | None = None) -> None:
        self.files: Files = store.files
        self._store = store
        self._health: Health = health or (lambda: stored_health(self.files))
        self._lock = threading.Lock()
        self._now: tuple[Catalog, Manifest] | None = None
        self._seen: tuple[tuple[int, ...], float] = ((), 0.0)
        self._fresh: dict[str, tuple[float, tuple[Catalog, Manifest], Any]] = {}
        self._views: OrderedDict[tuple[str, int], Rows] = OrderedDict()
        self._answers: OrderedDict[str, tuple[float, tuple[Catalog, Manifest], Any]] = OrderedDict()
        self._committed: dict[Epoch, float] = {}
        self.now()

    def now(self) -> tuple[Catalog, Manifest]:
        """Return the catalog and the last committed epoch; reads them only if their files have changed.

        A catalog in PostgreSQL is read again after `FRESH_S`.
        """
        with self._lock:
            stamp, clock = self._stamp(), time.monotonic()
            if self._now is None or stamp != self._seen[0] or clock - self._seen[1] > FRESH_S:
                while True:  # until catalog and manifest belong together
                    catalog = stored_catalog(self._store)
                    last = max(committed_epochs(self.files), default=0)
                    if self._now is None or last != self._now[1].epoch:
                        manifest = last_committed(self.files)
                    else:
                        manifest = self._now[1]
                    if stored_catalog(self._store) == catalog:
                        break
                if self._now is None or self._now != (catalog, manifest):
                    self._now = catalog, manifest
                self._seen = stamp, clock
            return self._now

    def _stamp(self) -> tuple[int, ...]:
        """Return when epochs were last committed, and when a catalog in the storage was last written."""
        times = []
        for name in (FOLDER, self._store.name):
            try:
                times.append(os.stat(self.files.path(name)).st_mtime_ns)
            except OSError:
                times.append(0)  # it isn't there yet
        return tuple(times)

    def _cached(self, name: str, read: Callable[[], T]) -> T:
        """Return the cached result of `read`, at most `FRESH_S` old and of the last epoch and catalog."""
        now, clock = self.now(), time.monotonic()
        known = self._fresh.get(name)
        if known is None or known[1] is not now or clock - known[0] > FRESH_S:
            known = self._fresh[name] = (clock, now, read())
        found: T = known[2]
        return found

    def answered(self, key: str, make: Callable[[], tuple[T, bytes]]) -> tuple[T, bytes]:
        """Return an answer, at most `FRESH_S` old and of the last epoch and catalog.

        After each epoch many browsers ask for the same. The last small answers are cached.

        Args:
            key: identifies the question, with all that the answer depends on besides the storage.
            make: makes the answer: any properties of it, and its body.
        """
        now, clock = self.now(), time.monotonic()
        known = self._answers.get(key)
        if known is not None and known[1] is now and clock - known[0] <= FRESH_S:
            found: tuple[T, bytes] = known[2]
            return found
        found = make()
        if len(found[1]) <= ANSWER_BYTES:
            with self._lock:
                self._answers[key] = (clock, now, found)
                self._answers.move_to_end(key)
                while len(self._answers) > ANSWERS:
                    self._answers.popitem(last=False)
        return found

    def remembered(self, key: str) -> Any:
        """Return an answer of `answered` from the cache, without waiting; None if it would have to be made."""
        seen, clock = self._seen, time.monotonic()  # before `_now`, which is set first
        now, known = self._now, self._answers.get(key)
        if known is None or known[1] is not now or clock - min(known[0], seen[1]) > FRESH_S:
            return None
        return known[2] if self._stamp() == seen[0] else None

    def status(self) -> dict[str, Any]:
        """Return the status of the storage, as `Engine.status`.

        Also `engine`, whether one holds the storage; `committed_at`, the time of the last commit (seconds since
        1970); and `dead_letters`, the number of each pipeline, stream and sink.
        """
        return self._cached("status", self._status)

    def _status(self) -> dict[str, Any]:
        catalog, _ = self.now()
        lags = stored_lags(self.files)
        with pinned(self.files) as manifest:
            status = storage_status(self.files, catalog, manifest, lags)
            sinks = sinks_status(self.files, catalog, manifest.epoch)
            letters = {
                entry.name.removesuffix(DEAD): row_count(self.files, manifest, entry.id)
                for entry in catalog.entries
                if entry.holds_letters
            }
        pipelines = pipelines_status(self.files, catalog, lags)
        running = in_use(self.files)
        committed_at = manifest.committed_at / 1e6 if manifest.committed_at else None
        return {
            "engine": "running" if running else "stopped",
            "run": self._health(),
            "committed_at": committed_at,
            **status,
            "sinks": sinks,
            "pipelines": pipelines,
            "dead_letters": letters,
        }

    def history(self, pipeline: str) -> list[Point]:
        """Return the last batches of a pipeline, oldest first; CatalogError NOT_FOUND if there is no such pipeline."""
        found = pipeline_entry(self.now()[0], pipeline)
        return list(stored_history(self.files, found.id).points)

    def tasks(self) -> list[Task]:
        """Return all definitions, and the views that the engine was asked to add."""
        return self._cached("tasks", lambda: list_tasks(self._store))

    def letters(self, source: str | None = None) -> list[DeadLetter]:
        """Return the dead letters of a pipeline or stream, or of all, the newest first."""
        return list_letters(self._store, source)

    def dead_letters(self) -> dict[str, int]:
        """Return how many dead letters each pipeline and stream has."""
        found: dict[str, int] = self.status()["dead_letters"]
        return found

    def letter(self, source: str, position: int) -> DeadLetter:
        """Return one dead letter; CatalogError NOT_FOUND if there is none at this position."""
        return find_letter(self._store, source, position)

    def can_replay(self, source: str) -> bool:
        """Return whether the records of a source's dead letters can be read again."""
        return can_replay(self._store, source)

    def entry(self, name: str) -> Entry:
        """Return a definition; CatalogError NOT_FOUND if there is none."""
        return self.now()[0].get(name)

    def rows(
        self, name: str, epoch: int | None = None, *, last_good: bool = False, where: str = ""
    ) -> Rows:
        """Return the rows of a table or view as of an epoch; None for the last one.

        Args:
            last_good: return the rows of its last good epoch for a view that is set aside.
            where: only the rows that meet these conditions; see `answers.quick`.

        Raises:
            QueryError: NEEDS_SPARK: only Spark understands the conditions.
            CatalogError: NOT_FOUND, NOT_STORED.
            StateError: NO_SUCH_EPOCH: the epoch isn't retained, or the view was made later.
            EngineError: VIEW_FAILING: the view is set aside in that epoch.
        """
        if where.strip():
            every = self.rows(name, epoch, last_good=last_good)
            return replace(every, table=filtered(every.table, where))
        catalog, now = self.now()
        entry = catalog.get(name)
        check_stored(entry)
        asked = now.epoch if epoch is None else Epoch(epoch)
        known = self._views.get((entry.id, asked))
        if known is not None:
            return known
        with pinned(self.files, Epoch(epoch) if epoch is not None else None) as then:
            newest = now if now.epoch >= then.epoch else then
            failing = ViewId(entry.id) in then.failing
            if last_good and failing:
                snapshot = StoredSnapshot(self.files, entry, ViewId(entry.id), then.epoch, "")
            else:
                snapshot = StoredRelation(self.files, entry, newest).snapshot(then.epoch)
            kinds = arrow_schema(plain_schema(entry.columns), now.zone or "UTC")
            batches = [b for part in snapshot.parts() for b in part.batches(kinds)]
        table = pa.Table.from_batches(batches, kinds).rename_columns(entry.columns.names)
        ordered = entry.sorts != []
        found = Rows(entry.name, then.epoch, table, ordered, then.committed_at / 1e6)
        if table.nbytes <= CACHED_BYTES and not failing:
            with self._lock:
                self._views[entry.id, then.epoch] = found
                while len(self._views) > CACHED_VIEWS:
                    self._views.popitem(last=False)
        return found

    def epochs(self, name: str) -> list[tuple[Epoch, float]]:
        """Return the retained epochs of which a table or view has rows, and when each was committed.

        Times are seconds since 1970. Each manifest is read once.

        Raises:
            CatalogError: NOT_FOUND, NOT_STORED.
        """
        entry = self.checked(name)
        known, kept = self._committed, {}
        for epoch in committed_epochs(self.files):
            try:
                kept[epoch] = known.get(epoch) or committed_at(self.files, epoch) / 1e6
            except EddylineError:
                continue  # it has just been retired
        self._committed = kept
        return [(epoch, at) for epoch, at in kept.items() if epoch >= entry.since]

    def profile(self) -> tuple[list[Epoch], list[Spent]]:
        """Return the last epochs, and what views and operators have done in them; see `answers.profile`."""
        return self._cached("profile", lambda: profile(self.files, self.now()[0], PROFILED))

    def changes(self, name: str, after: int) -> tuple[Epoch, list[EpochRows]]:
        """Return the changes of a table or view after an epoch, and the last committed epoch.

        Raises:
            CatalogError: NOT_FOUND, NOT_STORED.
            StateError: CHANGES_EXPIRED.
        """
        catalog, now = self.now()
        entry = catalog.get(name)
        check_stored(entry)
        retained = committed_epochs(self.files)
        first = next((epoch for epoch in retained if epoch > after), None)
        columns = entry.columns
        shown = plain_schema(columns).add("op", "string").add("epoch", "long")
        kinds = arrow_schema(shown, now.zone or "UTC")
        with pinned(self.files, first):
            runs: list[tuple[Epoch, tuple[Run, ...]]] = changed_runs(self.files, entry, now, after)
            parts = epoch_changes(self.files, runs, len(columns), RETRACT, None)
            found = [
                EpochRows(
                    part.epoch,
                    tuple(columns.names),
                    pa.Table.from_batches(list(part.batches(kinds)), kinds),
                )
                for part in parts
            ]
        return now.epoch, [one for one in found if one.table.num_rows]

    def quick(self, text: str, rows_max: int) -> QueryAnswer | None:
        """Answer a query from the files; None if it needs Spark. For errors see `quick_answer`."""
        return quick_answer(self.files, self.now()[0], text, rows_max)

    def checked(self, name: str) -> Entry:
        """Return a definition whose rows can be read; raise CatalogError NOT_FOUND or NOT_STORED."""
        entry = self.entry(name)
        check_stored(entry)
        return entry
