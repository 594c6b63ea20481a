"""Reads tables and views of a storage without an engine; one may be running at the same time."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from pyspark.sql.types import StructType

from eddyline.answers.changed import (
    changed_runs,
    changes_expired,
    check_feed,
    epoch_changes,
)
from eddyline.answers.changelog import CDF
from eddyline.answers.failing import check_holder, holder_as_of
from eddyline.answers.reader import EpochChanges, Inserts, SnapshotBucket, expiry, feed_schema
from eddyline.answers.tasks import stored_catalog
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, TABLE, Entry
from eddyline.catalog.store import open_store
from eddyline.changes import Epoch, ViewId
from eddyline.errors import CatalogError, StateError
from eddyline.options import Options
from eddyline.state.leases import hold_for
from eddyline.state.manifest import (
    ROWS,
    Manifest,
    committed_at,
    committed_epochs,
    last_committed,
    read_manifest,
)
from eddyline.storage.files import Files, no_storage


@dataclass(frozen=True, slots=True)
class StoredRelation:
    """A table or view, and the last committed epoch."""

    files: Files
    entry: Entry
    manifest: Manifest

    def snapshot(self, version: int | None = None, lease: str = "") -> StoredSnapshot:
        """Return the rows as of an epoch.

        Args:
            version: a retained epoch; None for the last committed one.
            lease: the lease that holds it.

        Raises:
            StateError: NO_SUCH_EPOCH: it isn't retained, or the view was made later.
            EngineError: VIEW_FAILING: the view is set aside in that epoch.
        """
        now, holder = self.manifest, ViewId(self.entry.id)
        then = now
        if version not in (None, now.epoch):
            then = read_manifest(self.files, Epoch(version))
            holder = holder_as_of(self.entry, then, now)
        check_holder(holder, then)
        return StoredSnapshot(self.files, self.entry, holder, then.epoch, lease)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The rows of a table or view as of an epoch.

    Attributes:
        holder: id under which the rows are stored: the entry's, or that of its predecessor.
        lease: name of the lease that retains the epoch; empty if it is retained otherwise.
    """

    files: Files
    entry: Entry
    holder: ViewId
    epoch: Epoch
    lease: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.entry.columns

    def parts(self) -> list[SnapshotBucket]:
        """Return the buckets that hold rows.

        Raises:
            StateError: SNAPSHOT_EXPIRED: the epoch is no longer retained.
        """
        with expiry(self.files, self.epoch):
            manifest = read_manifest(self.files, self.epoch)
        buckets = manifest.arrangements.get(manifest.result(self.holder, ROWS), {})
        name, columns = self.entry.name, len(self.schema)
        return [
            SnapshotBucket(self.files, name, runs, columns, self.epoch)
            for runs in buckets.values()
            if runs
        ]

    def inserts(self) -> list[Inserts]:
        """Return the rows as the first changes of a feed."""
        if not self.epoch:
            return []
        time = committed_at(self.files, self.epoch)
        return [Inserts(bucket, time) for bucket in self.parts()]


@dataclass(frozen=True, slots=True)
class Feed:
    """The change feed of a table or view between two epochs.

    Attributes:
        after: the epoch before the first one; 0 for all changes.
        last: the last epoch.
        committed: the last committed epoch.
        lease: name of the lease that retains the epochs; empty if they are retained otherwise.
    """

    files: Files
    entry: Entry
    after: Epoch
    last: Epoch
    committed: Epoch
    lease: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return feed_schema(self.entry.columns)

    def parts(self) -> list[EpochChanges]:
        """Return the changes of each epoch.

        Raises:
            StateError: CHANGES_EXPIRED: not all epochs are retained.
        """
        manifest = read_manifest(self.files, self.committed)
        retained = committed_epochs(self.files)
        if not self.after and self.last and (not retained or retained[0] > self.last):
            raise changes_expired(self.entry.name, self.after, self.committed)
        runs = changed_runs(self.files, self.entry, manifest, self.after)
        runs = [(epoch, own) for epoch, own in runs if epoch <= self.last]
        key = manifest.keys.get(self.entry.id)
        return epoch_changes(self.files, runs, len(self.entry.columns), CDF, key)


def stored_relation(storage: str, name: str) -> StoredRelation:
    """Find a table or view as of the last committed epoch; the storage isn't locked.

    Raises:
        StorageError: there is no storage, or it can't be read.
        CatalogError: NOT_FOUND: nothing has this name; or it is a stream that is kept as a log.
    """
    files, catalog, manifest = _stored(storage)
    entry = catalog.get(name)
    check_stored(entry)
    return StoredRelation(files, entry, manifest)


def stored_table(storage: str, name: str) -> StoredRelation:
    """Find a table as of the last committed epoch; the storage isn't locked.

    Raises:
        StorageError: there is no storage, or it can't be read.
        CatalogError: NOT_FOUND: no table has this name.
    """
    files, catalog, manifest = _stored(storage)
    return StoredRelation(files, catalog.get(name, TABLE), manifest)


def _stored(storage: str) -> tuple[Files, Catalog, Manifest]:
    """Return the catalog of a storage and its last committed epoch."""
    files = Files(storage)
    if not os.path.isdir(files.root):
        raise no_storage(storage)
    with closing(open_store(files, Options.from_environment().catalog)) as store:
        while True:  # until catalog and manifest belong together
            known = store.read()
            manifest = last_committed(files)
            catalog = stored_catalog(store)
            if store.read() == known:
                return files, catalog, manifest


def check_stored(entry: Entry) -> None:
    """Raise CatalogError NOT_STORED if only an engine can read the rows of an entry."""
    if entry.kind == STREAM and not entry.arranged:
        raise CatalogError(
            f"stream {entry.name} is kept as a log, which only an engine reads",
            condition="NOT_STORED",
            hint=f"use engine.sql('SELECT * FROM {entry.name}'), or create a view over it and read that",
        )


def held_snapshot(storage: str, name: str, version: int | None, seconds: int) -> StoredSnapshot:
    """Return the rows of a table or view as of an epoch, which a lease retains for some seconds.

    Raises:
        EddylineError: see `stored_relation` and `StoredRelation.snapshot`.
    """
    while True:
        relation = stored_relation(storage, name)
        epoch = Epoch(relation.manifest.epoch if version is None else version)
        lease = hold_for(relation.files, epoch, seconds)
        if lease is not None or version is not None:
            return relation.snapshot(version, lease or "")


def held_feed(storage: str, name: str, after: int | None, last: int | None, seconds: int) -> Feed:
    """Return the changes of a table or view in epochs that a lease retains for some seconds.

    Args:
        after: the epoch before the first one; 0 for all changes, None for those after the last epoch.
        last: the last epoch; None for the last committed one.

    Raises:
        StateError: NO_SUCH_EPOCH: an epoch isn't committed yet.
        EddylineError: see `stored_relation`.
    """
    while True:
        relation = stored_relation(storage, name)
        files, entry, committed = relation.files, relation.entry, relation.manifest.epoch
        check_feed(entry)
        start = committed if after is None else Epoch(after)
        for epoch in (start, last or 0):
            if epoch > committed:
                raise no_such_epoch(entry, epoch, committed)
        retained = committed_epochs(files)
        first = next((epoch for epoch in retained if epoch > start), committed)
        lease = hold_for(files, first, seconds)
        if lease is not None:
            until = committed if last is None else Epoch(last)
            return Feed(files, entry, start, until, committed, lease)


def no_such_epoch(entry: Entry, epoch: int, committed: Epoch) -> StateError:
    """Return the error for an epoch that isn't committed yet."""
    return StateError(
        f"epoch {epoch} is not committed; the last epoch is {committed}",
        condition="NO_SUCH_EPOCH",
        view=entry.name,
        hint=f"name an epoch up to {committed}",
    )
