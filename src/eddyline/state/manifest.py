"""Manifests: one file for each epoch, which commits the epoch when it appears."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eddyline.changes import BucketId, Epoch, ViewId
from eddyline.errors import StateError
from eddyline.state.runs import Run
from eddyline.storage.files import Files

FORMAT_VERSION = 1
REBUCKETED_VERSION = 2
"""What manifests have whose number of buckets isn't that of the catalog: older versions must not read them."""
FOLDER = "manifests"
ROWS = "rows"
"""The arrangement in which the last operator of a table or view keeps its rows."""

CLOCK = ""
"""What stands for now() among the names of the streams with a watermark."""

Buckets = dict[BucketId, tuple[Run, ...]]
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
        idle: whether it has had no rows for that long, so that its watermark follows those of others.
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
        buckets: number of buckets since `rebucket` has changed it; 0 while it is that of the catalog.
    """

    epoch: Epoch
    positions: dict[str, int] = field(default_factory=dict)
    arrangements: dict[str, Buckets] = field(default_factory=dict)
    deltas: dict[str, Buckets] = field(default_factory=dict)
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

    def holder(self, view: ViewId, epoch: Epoch) -> str:
        """Return the id under which a view's rows were stored in an earlier epoch.

        It is that of a view which this one has replaced; empty if that had other columns.
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
        """Return the manifest with the state of these tables, streams and views only.

        Others remain when something was dropped, or after a crash between a view's first epoch and
        the catalog entry of the view.
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
        )

    def all_runs(self) -> list[Run]:
        """Return every run that the manifest refers to."""
        parts = [*self.arrangements.values(), *self.deltas.values()]
        return [run for buckets in parts for run in runs_of(buckets)]

    def as_document(self) -> dict[str, Any]:
        """Return the manifest as a JSON document."""
        return {
            "format": REBUCKETED_VERSION if self.buckets else FORMAT_VERSION,
            "epoch": self.epoch,
            "positions": self.positions,
            "arrangements": _to_json(self.arrangements),
            "deltas": _to_json(self.deltas),
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
        }


def runs_of(buckets: Buckets) -> list[Run]:
    """Return the runs of some buckets, each bucket's old to new."""
    return [run for runs in buckets.values() for run in runs]


def commit_time(base: Manifest) -> int:
    """Return `committed_at` of the epoch after `base`: clocks may be set back, it never is."""
    return max(time.time_ns() // 1000, base.committed_at)


def _to_json(parts: dict[str, Buckets]) -> dict[str, dict[str, list[list[Any]]]]:
    return {
        name: {str(bucket): [run.as_list() for run in runs] for bucket, runs in buckets.items()}
        for name, buckets in parts.items()
    }


def _from_json(parts: dict[str, dict[str, list[list[Any]]]]) -> dict[str, Buckets]:
    return {
        name: {
            BucketId(int(bucket)): tuple(Run(*run) for run in runs)
            for bucket, runs in buckets.items()
        }
        for name, buckets in parts.items()
    }


def _failure(item: dict[str, Any]) -> Failure:
    return Failure(**{**item, "rows": tuple(item["rows"])})


def manifest_name(epoch: Epoch) -> str:
    """Return the name of the manifest file of an epoch."""
    return f"{FOLDER}/{epoch:012d}.json"


def write_manifest(files: Files, manifest: Manifest) -> None:
    """Commit an epoch; it is durable on return.

    Raises:
        StateError: the epoch is committed already, and never overwritten; or another engine has opened
            the storage for writing since.
    """
    name = manifest_name(manifest.epoch)
    try:
        with files.committing():
            files.write_json(name, manifest.as_document(), new=True)
    except FileExistsError as error:
        raise StateError(
            f"epoch {manifest.epoch} is committed already",
            condition="EPOCH_COMMITTED",
            file=name,
            hint="open the storage again; only one engine may write to it",
        ) from error


def read_manifest(files: Files, epoch: Epoch) -> Manifest:
    """Return the manifest of a committed epoch.

    Raises:
        StateError: it is damaged, not retained, or of a newer format.
    """
    if epoch == 0:
        return Manifest(Epoch(0))
    name = manifest_name(epoch)
    if not files.exists(name):
        raise StateError(
            f"epoch {epoch} is not among the committed and retained epochs",
            condition="NO_SUCH_EPOCH",
            hint="ask for a later one, or raise the option retain_epochs",
        )
    document = files.read_json(name)
    if document["format"] > REBUCKETED_VERSION:
        raise StateError(
            f"the storage has format {document['format']}, this version reads up to "
            f"{REBUCKETED_VERSION}",
            condition="NEWER_FORMAT",
            file=name,
            hint="use the newer version of Eddyline",
        )
    return Manifest(
        document["epoch"],
        document["positions"],
        _from_json(document["arrangements"]),
        _from_json(document["deltas"]),
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
    )


def write_arrangements(files: Files, name: str, arrangements: dict[str, Buckets]) -> None:
    """Write the runs of arrangements that no epoch has committed yet, for the tasks of an epoch."""
    files.write_json(name, _to_json(arrangements), durable=False)


def read_arrangements(files: Files, name: str) -> dict[str, Buckets]:
    """Read what `write_arrangements` has written."""
    return _from_json(files.read_json(name))


def committed_epochs(files: Files) -> list[Epoch]:
    """Return the retained committed epochs, oldest first."""
    return [Epoch(int(name.removesuffix(".json"))) for name in files.names(FOLDER)]


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
    epochs = committed_epochs(files)
    return read_manifest(files, epochs[-1] if epochs else Epoch(0))
