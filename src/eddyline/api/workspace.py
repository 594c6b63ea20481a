"""The state that the parts of an engine share: the open storage, its catalog, the last committed epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampNTZType, TimestampType

from eddyline.answers.named_readers import retire_readers
from eddyline.answers.open_reads import OpenReads
from eddyline.answers.results import Results
from eddyline.answers.run_health import StoredHealth
from eddyline.answers.status import bucket_count
from eddyline.api import drafts
from eddyline.api.column_defaults import checked_defaults, warn_without_rules
from eddyline.api.formats import FORMATS
from eddyline.arguments import check_text
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import KEPT_OUT, MAX_AHEAD, TABLE, VIEW, Entry
from eddyline.catalog.expectations import new_kept_out
from eddyline.catalog.requests import Inbox
from eddyline.catalog.store import open_store
from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EngineError, StorageError
from eddyline.intake.event_time import with_default_limit
from eddyline.intake.lags import Lags
from eddyline.intake.retention import rows_expired, short_of_rows
from eddyline.intake.sources import Sources
from eddyline.options import Options
from eddyline.pipelines.outcomes import FOLDER as PIPELINES
from eddyline.pipelines.outcomes import recover_pipelines
from eddyline.relay.embedded import is_queue
from eddyline.runtime.compiler import CompiledPlan, Compiler
from eddyline.runtime.lane_choice import Lanes
from eddyline.spark.query_errors import quiet_query_errors
from eddyline.spark.session import (
    ZONE,
    check_workers,
    cloned,
    cores,
    epoch_session,
    local_session,
    storage_zone,
)
from eddyline.spark.settings import storage_settings
from eddyline.sql.dialect import expand_windowing, possible_relations
from eddyline.state.manifest import (
    Manifest,
    committed_epochs,
    last_committed,
    manifest_name,
    read_manifest,
)
from eddyline.state.recover import flush, open_storage
from eddyline.storage.fence import Fence
from eddyline.storage.files import Files, damaged, no_storage
from eddyline.storage.lock import StorageLock

UNFLUSHED = {
    "exactly_once": (),
    "at_least_once": ("epochs/", "manifests/"),
    "at_most_once": ("epochs/", "manifests/", "logs/"),
}
"""For each delivery semantics the folders whose files are not flushed one by one."""


class Committed(NamedTuple):
    """The definitions and the last committed epoch at one moment.

    Calls that don't hold the lock read names and rows by this, not by the attributes of the workspace, which other
    threads change in between: an epoch doesn't hold the rows of a view that was defined after it.
    """

    catalog: Catalog
    manifest: Manifest


class Workspace:
    """One storage, opened by one engine.

    Only the engine that holds the lock of the storage may write. Others can read the epochs that it
    commits.

    Args:
        storage: the folder; created if missing.
        spark: the user's session; None uses the active one, or starts a local one.
        options: settings; None reads the environment variables.
        read_only: never lock or change the storage.

    Attributes:
        lock: held while definitions or epochs change.
        catalog: the definitions.
        manifest: the last committed epoch.
        stopping: set when the background run is to end.
        closing: functions to call when the engine stops.
        saved: functions to call after each change of the catalog.
        clock: returns the time, in microseconds since 1970: of the receipt of input, and of epochs.
        stored_health: the health of the background run, for other processes.
        filling: by name, in lower case, of a view that is being filled: returns its entry for the status.
    """

    def __init__(
        self,
        storage: str | PathLike[str] | Files,
        spark: SparkSession | None,
        options: Options | None,
        *,
        read_only: bool = False,
    ) -> None:
        quiet_query_errors()
        self.options = options = options or Options.from_environment()
        self.files = storage if isinstance(storage, Files) else Files(storage)
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.closing: list[Callable[[], None]] = []
        self.saved: list[Callable[[], None]] = []
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1000
        self.filling: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self.stored_health = StoredHealth(self.files)
        self._plans: dict[str, CompiledPlan] = {}
        self._flushed = Epoch(0)
        if not read_only and is_queue(self.files):
            raise _holds_queue(self.files.root)
        self._storage_lock = None if read_only else StorageLock(self.files)
        try:
            self.files.unflushed = UNFLUSHED[options.delivery]
            # raised before the storage is read, so that all commits of older writers are seen
            if self.writes:
                self.files.fence = Fence.raised(self.files.root)
                self.stored_health.forget()
            self.store = open_store(self.files, options.catalog)
            self.inbox = Inbox(self.store)
            self.catalog, self.manifest = self._open(spark)
            self.spark = spark or local_session(self.manifest.zone, self.manifest.settings)
            tasks = options.scan_tasks or cores(self.spark)
            self.options = options = replace(options, scan_tasks=tasks)
            self.zone = storage_zone(self.spark, self.manifest.zone)
            self.settings = storage_settings(self.spark, self.manifest.settings)
            self.sources = Sources(self.files, self.spark, self.zone, FORMATS, lambda: self.clock())
            self.lags = Lags(self.sources)
            if self.writes:
                check_workers(self.spark)
                skip = options.delivery == "at_most_once"
                recover_pipelines(self.files, self.catalog, self.sources.log, skip=skip)
                self.sources.recover(self.catalog, self.manifest, skip=skip)
        except BaseException:
            self._unlock()
            raise
        self.epochs_session = epoch_session(self.spark, self.buckets, self.zone, self.settings)
        self.compiler = Compiler(
            self.spark,
            self.epochs_session,
            self.files,
            options,
            self.buckets,
            self.zone,
            self.settings,
            self.sources.readers,
        )
        self.results = Results(self.files, self.sources, self.plan, options.scan_tasks)
        self.lanes = Lanes(options.short_lane_rows, options.scan_tasks)
        self.reads = OpenReads(self.files, options.lease_seconds)

    @property
    def buckets(self) -> int:
        """The number of buckets of the storage."""
        return bucket_count(self.catalog, self.manifest)

    def use_buckets(self, buckets: int) -> None:
        """Compile all plans anew, for another number of buckets."""
        self._plans.clear()
        self.epochs_session = epoch_session(self.spark, buckets, self.zone, self.settings)
        self.compiler.use_buckets(buckets, self.epochs_session)

    @property
    def writes(self) -> bool:
        """Whether this engine holds the lock of the storage."""
        return self._storage_lock is not None and self._storage_lock.held

    def check_writable(self) -> None:
        """Raise EngineError if another engine writes to this storage, or this one was stopped or only reads."""
        if self.writes:
            return
        root = self.files.root
        if self._storage_lock is None:
            why, hint = f"this engine only reads the storage {root}", "open it without read_only"
        elif self._storage_lock.released:
            why, hint = f"this engine on the storage {root} was stopped", "make a new Engine on it"
        else:
            why = f"the storage {root} is in use by another engine"
            hint = "stop the other engine; reading works meanwhile"
        raise EngineError(why, condition="STORAGE_IN_USE", hint=hint)

    def current(self) -> Committed:
        """Return what is committed; while another engine writes, read it again each time."""
        if self.writes:
            while True:  # until no other thread has changed the catalog in between
                catalog, manifest = self.catalog, self.manifest
                if self.catalog is catalog:
                    return Committed(catalog, manifest)
        with self.lock:
            while True:  # until catalog and manifest belong together
                known = self.store.read()
                self.manifest = last_committed(self.files)
                self._read_catalog()
                if self.store.read() == known:
                    return Committed(self.catalog, self.manifest)

    @contextmanager
    def reading(
        self, epoch: int | None = None
    ) -> Iterator[tuple[Committed, Callable[[DataFrame], DataFrame]]]:
        """Retain an epoch during the context, and as long as DataFrames that were made in it exist.

        Args:
            epoch: the epoch to retain, with all after it; None for the last committed one.

        Yields:
            What is committed, and a function to call on each DataFrame that reads it or the retained epoch.

        Raises:
            StateError: that epoch is not retained.
            StorageError: NO_STORAGE: the folder of the storage is gone.
        """
        while True:
            now = self.current()
            kept = now.manifest.epoch if epoch is None else Epoch(epoch)
            if self.reads.begin(kept):
                break
            if epoch is not None:
                read_manifest(self.files, kept)  # raises the error for an epoch that isn't retained
            elif max(committed_epochs(self.files), default=0) < kept:
                raise damaged(manifest_name(kept), "it is missing")
        try:
            yield now, partial(self.reads.keep, kept)
        finally:
            self.reads.end(kept)

    def check_rows(self, views: Iterable[Entry]) -> None:
        """Raise StateError ROWS_EXPIRED if views can't be computed again, because rows of streams are gone."""
        for view in views:
            if stream := self.short_of_rows(view):
                raise rows_expired(view.name, stream)

    def short_of_rows(self, view: Entry) -> str:
        """Return the name of a stream that no longer has all rows of a view; empty if there is none."""
        return short_of_rows(view, self.catalog, self.manifest, self.sources)

    def session(self) -> SparkSession:
        """Return a clone of the user's session, with time zone and settings of the storage."""
        return cloned(self.spark, **self.settings, **{ZONE: self.zone})

    def plain_sql(self, query: str, catalog: Catalog | None = None) -> str:
        """Return the query in plain Spark SQL: WINDOWING is expanded to Spark's functions.

        Args:
            catalog: has the columns of the relations; None for the current one.

        Raises:
            EngineError: BAD_OPTION: it is no text that Spark can get. QueryError: WINDOWING is wrong.
        """
        check_text("the query", query)
        if "windowing" not in query.lower():
            return query
        read = possible_relations(query)
        times = {
            field.name
            for entry in (catalog or self.catalog).entries
            if entry.name.lower() in read
            for field in entry.columns
            if isinstance(field.dataType, TimestampType | TimestampNTZType)
        }
        return expand_windowing(query, times)

    def plan(self, entry: Entry) -> CompiledPlan:
        """Return the compiled plan of a view or table; it is cached until that is dropped."""
        compiled = self._plans.get(entry.id)
        if compiled is None:
            if entry.kind == VIEW:
                compiled = self.compiler.view(entry, self.catalog, self.plan, entry.upstream)
            elif entry.role == KEPT_OUT:
                stream = next(one for one in self.catalog.entries if one.id == entry.source)
                compiled = self.compiler.kept_out(entry, stream)
            elif entry.arranged:
                compiled = self.compiler.table(entry)
            else:
                raise CatalogError(
                    f"stream {entry.name} is read as it comes: it has no plan of its own",
                    condition="NO_PLAN",
                    hint="explain a view that reads it",
                )
            self._plans[entry.id] = compiled
        return compiled

    def known_plan(self, entry: Entry) -> CompiledPlan | None:
        """Return the compiled plan of a view or table if it is cached; needs no JVM."""
        return self._plans.get(entry.id)

    def forget_plan(self, entry: Entry) -> None:
        """Remove a plan from the cache, so that it is compiled again with the functions registered by then."""
        self._plans.pop(entry.id, None)

    def keep_plan(self, entry: Entry, compiled: CompiledPlan) -> None:
        """Cache a plan that was compiled before its entry was in the catalog."""
        self._plans[entry.id] = compiled

    def define(self, entry: Entry) -> Entry:
        """Add a table or stream to the catalog; return the existing entry if it is the same.

        Raises:
            CatalogError: the name has another definition.
            DataError: BAD_DEFAULT: a column of a table can't have its DEFAULT.
        """
        with self.lock:
            present = self.catalog.find(entry.name)
            if present is not None:
                if MAX_AHEAD in present.options:  # streams of older versions have no limit
                    entry = with_default_limit(entry)
                if not drafts.same(entry, present):
                    raise drafts.name_taken(present, given=entry)
                warn_without_rules(entry, present)
                return present
            self.check_writable()
            entry = checked_defaults(entry, self.session)
            catalog = self.catalog.add(with_default_limit(entry))
            made, role = catalog.get(entry.name), self.sources.letters_role(entry)
            letters = drafts.stream_letters(made, role) if role else None
            for one in filter(None, (letters, new_kept_out(made))):
                if (present := catalog.find(one.name)) is not None:
                    raise drafts.name_taken(present)
                catalog = catalog.add(one)
            self.save(catalog)
            defined = catalog.get(entry.name)
            if defined.kind == TABLE:
                self.sources.open_inbox(defined)
            return defined

    def save(self, catalog: Catalog, *, final: bool = True) -> None:
        """Make a catalog durable and use it from now on.

        Args:
            final: also mark the request that is being answered, if there is one, as done.
        """
        self.flush()  # the catalog may name epochs
        try:
            self.store.write(catalog, self.inbox.number if final else None)
        except BaseException:
            if not self.store.certain:  # the write may have succeeded although the call failed
                try:
                    self._read_catalog()
                except BaseException:
                    # the catalog is unknown: the storage must be reopened before anything continues
                    self.stopping.set()
                    self.release()
                    raise
            raise
        self.catalog = catalog
        for told in self.saved:
            told()

    def flush(self) -> None:
        """Make the committed epochs durable, if they are not flushed one by one."""
        if self.files.unflushed and self._flushed < self.manifest.epoch:
            flush(self.files, self._flushed)
        self._flushed = self.manifest.epoch

    def forget(self, entry: Entry) -> None:
        """Delete the data of an entry that is no longer in the catalog."""
        self.forget_plan(entry)
        self.compiler.frames.drop(entry.id)
        self.compiler.remove_constants(entry.id)
        self.lanes.forget(entry.id)
        self.manifest = self.manifest.owned(self.catalog.ids)
        self.sources.remove(entry)
        self.files.remove(f"{PIPELINES}/{entry.id}")  # after the pipeline has stopped
        if self.catalog.find(entry.name) is None:  # a view that replaces it takes over its readers
            retire_readers(self.files, entry.name)

    def release(self) -> None:
        """Stop the sources, and release the lock of the storage."""
        try:
            self.sources.stop()
            self.store.close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._storage_lock is not None:
            if self.writes:
                self.stored_health.forget()
            self._storage_lock.release()

    def _read_catalog(self) -> None:
        self.catalog = (self.store.read() or self.catalog).without_ended_pauses(
            self.manifest.rebuilt
        )

    def _open(self, spark: SparkSession | None) -> tuple[Catalog, Manifest]:
        # the catalog first: a view is in it only once its state is committed
        found = self.store.read()
        catalog = found or Catalog(self.options.buckets or cores(spark))
        last = max(committed_epochs(self.files), default=0)
        for entry in catalog.entries:
            needed = max(entry.since, entry.paused)
            if needed > last:
                raise damaged(
                    manifest_name(Epoch(needed)), f"it is missing, but {entry.name} is made of it"
                )
        if found is None and self._storage_lock is None:
            raise no_storage(self.files.root)
        if found is None and (last or self.files.names("logs")):
            raise damaged(self.store.name, "it is missing")
        manifest = open_storage(
            self.files, writable=self.writes, lenient=bool(self.files.unflushed)
        )
        self._flushed = manifest.epoch
        catalog = catalog.without_ended_pauses(manifest.rebuilt)
        if self.writes and (found is None or self.store.outdated):
            self.store.write(catalog)
        return catalog, manifest.owned(catalog.ids)


def _holds_queue(root: str) -> StorageError:
    return StorageError(
        f"the folder {root} holds a data queue",
        condition="STORAGE_NOT_EMPTY",
        hint="give the engine a folder of its own",
    )
