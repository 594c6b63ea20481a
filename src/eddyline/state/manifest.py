"""Manifests: one file for each epoch, which commits the epoch when it appears.

A small manifest names all runs. A larger one names only those that the epoch has changed, and the manifest of the
epoch before as its base; some manifests in between name all runs. `state/recover.py` keeps the bases of retained epochs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

from eddyline.changes import BucketId, Epoch, ViewId
from eddyline.errors import EddylineError, StateError
from eddyline.state.run_lists import (
    Arrangements,
    Buckets,
    apply_json_changes,
    changed_by,
    changes_to_json,
    count_runs,
    from_json,
    to_json,
)
from eddyline.state.runs import Run
from eddyline.storage.files import Files, damaged, no_storage

FORMAT_VERSION = 1
REBUCKETED_VERSION = 2
"""What manifests have whose number of buckets isn't that of the catalog: older versions must not read them."""
BASED_VERSION = 3
"""What manifests have once one of the storage wasn't small: older versions don't know that they have bases."""
SMALL_RUNS = 600
"""A manifest of so many runs, about 60 kB, names all of them."""
WHOLE_EVERY = 64
"""So many epochs after a manifest that names all runs comes the next one at the latest."""
CACHED = 24
"""So many manifests are kept in memory: the console reads those of the last epochs again and again."""
FOLDER = "manifests"
BASES = "bases"
"""The folder of the manifests of retired epochs that are bases of others."""
ROWS = "rows"
"""The arrangement in which the last operator of a table or view keeps its rows."""

CLOCK = ""
"""What stands for now() among the names of the streams with a watermark."""

Predecessors = tuple[tuple[str, Epoch], ...]
"""The views that a view has replaced, oldest first: id, and the epoch that replaced it. The id is empty
where the columns were others: the changelog begins with that epoch."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The event time of a stream, in microseconds since 1970.

    Attributes:
        latest: the largest event time of the accepted rows so far; None before the first.
        watermark: the watermark of the last epoch; rows below it were late. None before the first.
        late: number of late rows so far.
        ahead: number of rows so far that were too far ahead of their receipt.
        reset: number of the first entry whose rows count after the watermark was reset; 0 if it
            never was.
        active: when the last epoch with rows of a stream with `idle_timeout` began (microseconds
            since 1970); at first when its first epoch did. None without that option.
        idle: whether it had no rows for that long, so that it no longer holds back the watermarks of others.
    """

    latest: int | None
    watermark: int | None = None
    late: int = 0
    ahead: int = 0
    reset: int = 0
    active: int | None = None
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a view is set aside: its rows, expressions or functions raise an error.

    Attributes:
        view: the name of the view.
        since: the first epoch that it missed; its stored rows are those of the epoch before.
        message: the error.
        upstream: the failing view that it reads; empty if the view itself fails.
        rows: some of the rows that were found to be the cause, each with its relation.
    """

    view: str
    since: Epoch
    message: str
    upstream: str = ""
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a committed epoch.

    Attributes:
        epoch: number of the epoch, from 1; 0 is the empty storage.
        positions: for each source, the end of the consumed part of its redo log.
        arrangements: the runs of each arrangement, by its name, then by bucket.
        deltas: the runs that this epoch added to arrangements whose changelog is retained.
        counters: for each view and operator, its rows and microseconds in this epoch; see `answers/profile.py`.
        clocks: the event time of each stream with a watermark.
        rebuilt: for each view whose state was rebuilt, the last epoch that did.
        zone: the time zone of the views; empty if unknown.
        failing: the views that are set aside, because they fail on their rows.
        plans: for each table and view the fingerprint of the plan that wrote its state.
        settings: Spark's settings that results depend on, fixed when the storage was made.
        replaced: for each view that replaced another one, its predecessors.
        writer: the id of the engine that committed the epoch; empty if unknown.
        keys: for each view the places of the columns that identify its rows, where it has such a key.
        committed_at: when the epoch was committed, in microseconds since 1970; 0 if unknown.
        moment: what now() is in the views, in microseconds since 1970; 0 if no view has asked yet.
        makers: for each view whose plan depends on nothing else, what has made it; see `EpochPlan.maker`.
        buckets: number of buckets since `rebucket` has changed it; 0 while it is that of the catalog.
        format: the format of its file; later ones of the storage have no older format.
    """

    epoch: Epoch
    positions: dict[str, int] = field(default_factory=dict)
    arrangements: Arrangements = field(default_factory=dict)
    deltas: Arrangements = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    rebuilt: dict[ViewId, Epoch] = field(default_factory=dict)
    zone: str = ""
    failing: dict[ViewId, Failure] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    replaced: dict[ViewId, Predecessors] = field(default_factory=dict)
    writer: str = ""
    keys: dict[str, tuple[int, ...]] = field(default_factory=dict)
    committed_at: int = 0
    moment: int = 0
    buckets: int = 0
    makers: dict[str, str] = field(default_factory=dict)
    format: int = field(default=FORMAT_VERSION, compare=False)

    def holder(self, view: ViewId, epoch: Epoch) -> str:
        """Return the id under which a view's rows were stored in an earlier epoch.

        That is the id of a predecessor, which this view has replaced; empty if it had other columns.
        """
        chain = self.replaced.get(view, ())
        return next((before for before, until in chain if epoch < until), view)

    def runs(self, arrangement: str, bucket: BucketId) -> tuple[Run, ...]:
        """Return the runs of a bucket; none if it never held a row."""
        return self.arrangements.get(arrangement, {}).get(bucket, ())

    def of(self, node: str) -> dict[str, list[Run]]:
        """Return the runs of all arrangements of a table or view, by arrangement."""
        return {
            name: runs_of(buckets)
            for name, buckets in self.arrangements.items()
            if name.split("/")[0] == node
        }

    def result(self, node: str, slot: str) -> str:
        """Return the name of the arrangement `slot` of a node's last operator; empty if there is none."""
        names = [name.split("/") for name in self.arrangements]
        parts = [part for owner, part, kept in names if (owner, kept) == (node, slot)]
        last = max(parts, key=lambda part: int(part.removeprefix("op")), default="")
        return f"{node}/{last}/{slot}" if last else ""

    def owned(self, nodes: Collection[str]) -> Manifest:
        """Return the manifest without the state of other tables, streams and views than these.

        Such state remains when a relation was dropped, or after a crash between a view's first epoch and
        its catalog entry.
        """

        def keep(parts: dict[str, Buckets]) -> dict[str, Buckets]:
            return {name: part for name, part in parts.items() if name.split("/")[0] in nodes}

        return replace(
            self,
            positions={name: end for name, end in self.positions.items() if name in nodes},
            clocks={name: clock for name, clock in self.clocks.items() if name in nodes},
            arrangements=keep(self.arrangements),
            deltas=keep(self.deltas),
            rebuilt={name: epoch for name, epoch in self.rebuilt.items() if name in nodes},
            failing={name: failure for name, failure in self.failing.items() if name in nodes},
            plans={name: plan for name, plan in self.plans.items() if name in nodes},
            replaced={name: chain for name, chain in self.replaced.items() if name in nodes},
            keys={name: key for name, key in self.keys.items() if name in nodes},
            makers={name: maker for name, maker in self.makers.items() if name in nodes},
        )

    def all_runs(self) -> list[Run]:
        """Return every run that the manifest refers to."""
        parts = [*self.arrangements.values(), *self.deltas.values()]
        return [run for buckets in parts for run in runs_of(buckets)]

    def as_document(self, arrangements: dict[str, Any], **more: object) -> dict[str, Any]:
        """Return the manifest as a JSON document.

        Args:
            arrangements: the runs, or their changes, as JSON.
            more: further keys of the document.
        """
        return {
            "format": max(self.format, REBUCKETED_VERSION if self.buckets else FORMAT_VERSION),
            "epoch": self.epoch,
            **more,
            "positions": self.positions,
            "arrangements": arrangements,
            "deltas": to_json(self.deltas),
            "counters": self.counters,
            "clocks": {name: asdict(clock) for name, clock in self.clocks.items()},
            "rebuilt": self.rebuilt,
            "zone": self.zone,
            "failing": {name: asdict(failure) for name, failure in self.failing.items()},
            "plans": self.plans,
            "settings": self.settings,
            "replaced": self.replaced,
            "writer": self.writer,
            "keys": self.keys,
            "committed_at": self.committed_at,
            "moment": self.moment,
            "buckets": self.buckets,
            "makers": self.makers,
        }


def runs_of(buckets: Buckets) -> list[Run]:
    """Return the runs of some buckets, each bucket's old to new."""
    return [run for runs in buckets.values() for run in runs]


def next_commit_time(base: Manifest) -> int:
    """Return `committed_at` of the epoch after `base`: the time, but never less than that of `base`."""
    return max(time.time_ns() // 1000, base.committed_at)


def _failure(item: dict[str, Any]) -> Failure:
    return Failure(**{**item, "rows": tuple(item["rows"])})


def manifest_name(epoch: Epoch) -> str:
    """Return the name of the manifest file of an epoch."""
    return f"{FOLDER}/{epoch:012d}.json"


def base_name(epoch: Epoch) -> str:
    """Return the name of the manifest of a retired epoch that is the base of others."""
    return f"{BASES}/{epoch:012d}.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest with its file's checksum, and its distance from a manifest that names all runs.

    Attributes:
        crc: the checksum of the file.
        whole: the last epoch up to this one whose manifest names all runs.
        added: how many runs the manifests since that one name.
    """

    manifest: Manifest
    crc: int
    whole: Epoch
    added: int = 0

    @property
    def bases(self) -> list[Epoch]:
        """The epochs whose manifests are needed to read this one."""
        return [Epoch(epoch) for epoch in range(self.whole, self.manifest.epoch)]


class Recent:
    """A cache of the manifests that this process has read or written last.

    A manifest and its base share the objects that the epoch hasn't changed. The checksum of a manifest covers that of
    its base, so the cache returns it only if its file and those of its bases are unchanged.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Epoch, int], Stored] = OrderedDict()
        self._lock = threading.Lock()  # the driver reads from several threads

    def get(self, files: Files, epoch: Epoch, crc: int) -> Stored | None:
        with self._lock:
            found = self._known.get((files.root, epoch, crc))
            if found is not None:
                self._known.move_to_end((files.root, epoch, crc))
            return found

    def add(self, files: Files, stored: Stored) -> None:
        with self._lock:
            self._known[files.root, stored.manifest.epoch, stored.crc] = stored
            if len(self._known) > CACHED:
                self._known.popitem(last=False)

    def forget(self, files: Files) -> None:
        """Drop the manifests of a storage from the cache."""
        with self._lock:
            for key in [key for key in self._known if key[0] == files.root]:
                del self._known[key]


recent = Recent()


def write_manifest(files: Files, manifest: Manifest) -> Manifest:
    """Commit an epoch durably by writing its manifest; return it with the format of the file.

    Raises:
        StateError: the epoch is committed already, and never overwritten; or another engine has opened
            the storage for writing since.
    """
    name = manifest_name(manifest.epoch)
    whole, added, document = manifest.epoch, 0, None
    runs = count_runs(manifest.arrangements)
    if runs > SMALL_RUNS:
        manifest = replace(manifest, format=BASED_VERSION)
        with suppress(EddylineError):  # without a base it names all runs
            base = stored_manifest(files, Epoch(manifest.epoch - 1))
            changes, more = changes_to_json(base.manifest.arrangements, manifest.arrangements)
            if base.added + more <= runs and manifest.epoch - base.whole < WHOLE_EVERY:
                whole, added = base.whole, base.added + more
                own = [base.manifest.epoch, base.crc, whole, added]
                document = manifest.as_document(changes, base=own)
    if document is None:
        document = manifest.as_document(to_json(manifest.arrangements))
    try:
        with files.committing():
            crc = files.write_json(name, document, new=True)
    except FileExistsError as error:
        raise StateError(
            f"epoch {manifest.epoch} is committed already",
            condition="EPOCH_COMMITTED",
            file=name,
            hint="open the storage again; only one engine may write to it",
        ) from error
    recent.add(files, Stored(manifest, crc, whole, added))
    return manifest


def read_manifest(files: Files, epoch: Epoch) -> Manifest:
    """Return the manifest of a committed epoch.

    Raises:
        StateError: it or one of its bases is damaged or of a newer format, or it is not retained.
    """
    return stored_manifest(files, epoch).manifest if epoch else Manifest(Epoch(0))


def committed_at(files: Files, epoch: Epoch) -> int:
    """Return when an epoch was committed, in microseconds since 1970.

    Reads only one file, not the bases of the manifest. An older version didn't record it: then it is the file's time.

    Raises:
        StateError: it is damaged or of a newer format, or it is not retained.
    """
    name = manifest_name(epoch)
    try:
        written = os.stat(files.path(name)).st_mtime_ns // 1000
    except FileNotFoundError:
        raise _not_retained(files, epoch) from None
    return int(_parsed(files.read_checked(name)[0], name).get("committed_at") or written)


def stored_manifest(files: Files, epoch: Epoch) -> Stored:
    """Return the manifest of a committed epoch, from its file and those of its bases; raises as `read_manifest`."""
    name = manifest_name(epoch)
    if not files.exists(name):
        raise _not_retained(files, epoch)
    body, crc = files.read_checked(name)
    if (known := recent.get(files, epoch, crc)) is not None:
        return known
    chain = [(_parsed(body, name), crc)]
    while (base := chain[-1][0].get("base")) is not None:
        number, crc, *_ = base
        if (known := recent.get(files, number, crc)) is not None:
            break
        chain.append((_read_base(files, number, crc, epoch), crc))
    changes = [document["arrangements"] for document, _ in reversed(chain)]
    if known is not None:
        arrangements = reduce(changed_by, changes, known.manifest.arrangements)
    else:
        arrangements = from_json(reduce(apply_json_changes, changes))
    found = _stored(*chain[0], arrangements)
    recent.add(files, found)
    return found


def _read_base(files: Files, epoch: Epoch, crc: int, top: Epoch) -> dict[str, Any]:
    """Read the manifest of an epoch which the one of epoch `top` is based on."""
    for name in (manifest_name(epoch), base_name(epoch)):  # retiring gives it the second name first
        try:
            body, found = files.read_checked(name)
        except StateError:
            if files.exists(name):
                raise
            continue
        if found != crc:
            raise damaged(name, f"the manifest of epoch {top} is based on another one")
        return _parsed(body, name)
    if not files.exists(manifest_name(top)):
        raise _not_retained(files, top)
    retained = epoch >= committed_epochs(files)[0]
    raise damaged(manifest_name(epoch) if retained else base_name(epoch), "it is missing")


def _parsed(body: bytes, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(body)
    if document["format"] > BASED_VERSION:
        raise StateError(
            f"the storage has format {document['format']}, this version reads up to {BASED_VERSION}",
            condition="NEWER_FORMAT",
            file=name,
            hint="use the newer version of Eddyline",
        )
    return document


def _not_retained(files: Files, epoch: Epoch) -> StateError:
    last = max(committed_epochs(files), default=0)  # raises if there is no storage any more
    if epoch > last:
        why, hint = f"is not committed; the last epoch is {last}", f"ask for epoch {last}"
    else:
        why, hint = (
            "is no longer retained",
            "ask for a later one, or raise the option retain_epochs",
        )
    return StateError(f"epoch {epoch} {why}", condition="NO_SUCH_EPOCH", hint=hint)


def _stored(document: dict[str, Any], crc: int, arrangements: Arrangements) -> Stored:
    manifest = Manifest(
        document["epoch"],
        document["positions"],
        arrangements,
        from_json(document["deltas"]),
        document["counters"],
        {name: Clock(**clock) for name, clock in document.get("clocks", {}).items()},
        document.get("rebuilt", {}),
        document.get("zone", ""),
        {name: _failure(item) for name, item in document.get("failing", {}).items()},
        document.get("plans", {}),
        document.get("settings", {}),
        {
            ViewId(view): tuple((before, Epoch(epoch)) for before, epoch in chain)
            for view, chain in document.get("replaced", {}).items()
        },
        document.get("writer", ""),
        {name: tuple(key) for name, key in document.get("keys", {}).items()},
        document.get("committed_at", 0),
        document.get("moment", 0),
        document.get("buckets", 0),
        document.get("makers", {}),
        document["format"],
    )
    _, _, whole, added = document.get("base", (0, 0, manifest.epoch, 0))
    return Stored(manifest, crc, whole, added)


def committed_epochs(files: Files) -> list[Epoch]:
    """Return the retained committed epochs, oldest first; StorageError NO_STORAGE if the storage is gone."""
    names = files.names(FOLDER)
    if not names and not os.path.isdir(files.root):
        raise no_storage(files.root)
    return [Epoch(int(name.removesuffix(".json"))) for name in names]


def without_gaps(epochs: Sequence[Epoch]) -> list[Epoch]:
    """Return the longest run of consecutive epochs at the end, whose changes can be replayed.

    Example:
        >>> without_gaps([1, 2, 4, 5])
        [4, 5]
    """
    start = len(epochs)
    while start and (start == len(epochs) or epochs[start - 1] + 1 == epochs[start]):
        start -= 1
    return list(epochs[start:])


def last_committed(files: Files) -> Manifest:
    """Return the manifest of the last committed epoch; that of epoch 0 in a new storage."""
    return read_manifest(files, max(committed_epochs(files), default=Epoch(0)))
