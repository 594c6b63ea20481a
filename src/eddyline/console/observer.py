"""What the console knows of a storage: read from its files, beside the engine that may write them."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from eddyline.answers.changed import changed_runs, epoch_changes
from eddyline.answers.changelog import RETRACT
from eddyline.answers.dead_letters import DeadLetter, list_letters
from eddyline.answers.quick import Answer, quick_answer
from eddyline.answers.sinks import sinks_status
from eddyline.answers.status import row_count, storage_status
from eddyline.answers.stored import Relation, Snapshot, check_stored
from eddyline.answers.tasks import Task, list_tasks, stored_catalog
from eddyline.catalog.entries import DEAD, PIPELINE, Catalog, Entry
from eddyline.catalog.store import CatalogStore
from eddyline.changes import Epoch, ViewId
from eddyline.errors import QueryError
from eddyline.pipelines.outcomes import stored_status
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.state.leases import pinned
from eddyline.state.manifest import FOLDER, Manifest, committed_epochs, last_committed
from eddyline.state.runs import Run
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use

FRESH_S = 1.0
"""How old, in seconds, an answer about the whole storage may be."""
CACHED_VIEWS = 8
CACHED_BYTES = 64 << 20
"""A view of more bytes is read anew for each request."""
QUERY_ROWS = 1000
"""The rows of a query's result that are returned."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table or view as of an epoch.

    Attributes:
        ordered: whether the view has an ORDER BY, which this order is not: only an engine applies it.
    """

    name: str
    epoch: Epoch
    table: pa.Table
    ordered: bool


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

    Raises:
        StorageError: NO_STORAGE: there is none.
    """

    def __init__(self, store: CatalogStore) -> None:
        self.files: Files = store.files
        self._store = store
        self._lock = threading.Lock()
        self._now: tuple[Catalog, Manifest] | None = None
        self._seen: tuple[tuple[int, ...], float] = ((), 0.0)
        self._fresh: dict[str, tuple[float, tuple[Catalog, Manifest], Any]] = {}
        self._views: OrderedDict[tuple[str, int], Rows] = OrderedDict()
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
        """Return what `read` returns, at most `FRESH_S` old and of the last epoch and catalog."""
        now, clock = self.now(), time.monotonic()
        known = self._fresh.get(name)
        if known is None or known[1] is not now or clock - known[0] > FRESH_S:
            known = self._fresh[name] = (clock, now, read())
        found: T = known[2]
        return found

    def status(self) -> dict[str, Any]:
        """Return the status of the storage, as `Engine.status`.

        `engine` tells whether one runs, `committed_at` when the last epoch was committed (seconds since
        1970), `dead_letters` how many each pipeline, stream and sink has.
        """
        return self._cached("status", self._status)

    def _status(self) -> dict[str, Any]:
        catalog, _ = self.now()
        with pinned(self.files) as manifest:
            status = storage_status(self.files, catalog, manifest)
            sinks = sinks_status(self.files, catalog, manifest.epoch)
            letters = {
                entry.name.removesuffix(DEAD): row_count(self.files, manifest, entry.id)
                for entry in catalog.entries
                if entry.holds_letters
            }
        pipelines = [stored_status(self.files, e) for e in catalog.entries if e.role == PIPELINE]
        running = in_use(self.files)
        committed_at = manifest.committed_at / 1e6 if manifest.committed_at else None
        return {
            "engine": "running" if running else "stopped",
            "committed_at": committed_at,
            **status,
            "sinks": sinks,
            "pipelines": pipelines,
            "dead_letters": letters,
        }

    def tasks(self) -> list[Task]:
        """Return all definitions, and the views that the engine was asked to add."""
        return self._cached("tasks", lambda: list_tasks(self._store))

    def letters(self, source: str | None = None) -> list[DeadLetter]:
        """Return the dead letters of a pipeline or stream, or of all, the newest first."""
        return list_letters(self._store, source)

    def entry(self, name: str) -> Entry:
        """Return a definition; CatalogError NOT_FOUND if there is none."""
        return self.now()[0].get(name)

    def rows(self, name: str, epoch: int | None = None, *, last_good: bool = False) -> Rows:
        """Return the rows of a table or view as of an epoch; None for the last one.

        Args:
            last_good: return the rows of its last good epoch for a view that is set aside.

        Raises:
            CatalogError: NOT_FOUND, NOT_STORED.
            StateError: NO_SUCH_EPOCH: the epoch isn't retained, or the view was made later.
            EngineError: VIEW_FAILING: the view is set aside in that epoch.
        """
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
                snapshot = Snapshot(self.files, entry, ViewId(entry.id), then.epoch, "")
            else:
                snapshot = Relation(self.files, entry, newest).snapshot(then.epoch)
            kinds = arrow_schema(plain_schema(entry.columns), now.zone or "UTC")
            batches = [b for part in snapshot.parts() for b in part.batches(kinds)]
        table = pa.Table.from_batches(batches, kinds).rename_columns(entry.columns.names)
        ordered = entry.sorts != []
        found = Rows(entry.name, then.epoch, table, ordered)
        if table.nbytes <= CACHED_BYTES and not failing:
            with self._lock:
                self._views[entry.id, then.epoch] = found
                while len(self._views) > CACHED_VIEWS:
                    self._views.popitem(last=False)
        return found

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

    def query(self, text: str) -> Answer:
        """Answer a SELECT from the files.

        Raises:
            QueryError: NEEDS_SPARK: only Spark answers it.
            EddylineError: see `quick_answer`.
        """
        answer = quick_answer(self.files, self.now()[0], text, rows_max=QUERY_ROWS)
        if answer is None:
            raise QueryError(
                "the console answers only plain queries on one table or view: SELECT columns or count(*) "
                "FROM name WHERE simple conditions ORDER BY columns LIMIT n",
                condition="NEEDS_SPARK",
                hint="ask with `eddyline sql` or engine.sql, which start Spark; or keep the query as a view",
            )
        return answer

    def checked(self, name: str) -> Entry:
        """Return a definition whose rows can be read; else CatalogError NOT_FOUND or NOT_STORED."""
        entry = self.entry(name)
        check_stored(entry)
        return entry
