"""The manifest: what is committed as of an epoch. One atomic file; its appearance is the commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eddyline.changes import BucketId, Epoch, ViewId
from eddyline.errors import StateError
from eddyline.state.runs import Run
from eddyline.storage.files import Files

FORMAT_VERSION = 1
FOLDER = "manifests"

Buckets = dict[BucketId, tuple[Run, ...]]


@dataclass(frozen=True, slots=True)
class Clock:
    """The event time of a stream, in microseconds since 1970.

    Attributes:
        latest: the largest event time seen.
        watermark: what held in the last epoch; rows below it were late. None: there was none yet.
        late: how many rows were late so far.
    """

    latest: int
    watermark: int | None = None
    late: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one committed epoch consists of.

    Attributes:
        epoch: number of the epoch, from 1; 0 is the empty storage.
        positions: for each source, how far its redo log is consumed.
        arrangements: the runs of each arrangement, by its name, then by bucket.
        deltas: the runs that this epoch added to the arrangements whose changelog is kept.
        counters: for each operator the rows it took in and gave out in this epoch.
        clocks: for each stream with a watermark where its event time stands.
        rebuilt: for each view whose state was made anew, in which epoch (the last time).
        zone: the time zone in which the views' days begin; empty where that isn't known.
    """

    epoch: Epoch
    positions: dict[str, int] = field(default_factory=dict)
    arrangements: dict[str, Buckets] = field(default_factory=dict)
    deltas: dict[str, Buckets] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    rebuilt: dict[ViewId, Epoch] = field(default_factory=dict)
    zone: str = ""

    def runs(self, arrangement: str, bucket: BucketId) -> tuple[Run, ...]:
        """The runs of one bucket; none if it never held a row."""
        return self.arrangements.get(arrangement, {}).get(bucket, ())

    def of(self, node: str) -> dict[str, list[Run]]:
        """The runs of all arrangements of a table or view, by the arrangement's name."""
        return {
            name: [run for runs in buckets.values() for run in runs]
            for name, buckets in self.arrangements.items()
            if name.split("/")[0] == node
        }

    def result(self, node: str, slot: str) -> str:
        """The name of a node's arrangement `slot` that its last operator keeps; empty if none does."""
        own = [name.split("/") for name in self.arrangements]
        parts = [part for owner, part, held in own if (owner, held) == (node, slot)]
        last = max(parts, key=lambda part: int(part.removeprefix("op")), default="")
        return f"{node}/{last}/{slot}" if last else ""

    def owned(self, nodes: Collection[str]) -> Manifest:
        """Without the arrangements and positions of anything but these tables, streams, views.

        Others are there when a crash came between a view's first epoch and the catalog that makes
        the view known, or when something was dropped.
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
        )

    def all_runs(self) -> list[Run]:
        """Every run that the manifest needs."""
        parts = [*self.arrangements.values(), *self.deltas.values()]
        return [run for buckets in parts for runs in buckets.values() for run in runs]

    def as_document(self) -> dict[str, Any]:
        """For `Files.write_json`."""
        return {
            "format": FORMAT_VERSION,
            "epoch": self.epoch,
            "positions": self.positions,
            "arrangements": _to_json(self.arrangements),
            "deltas": _to_json(self.deltas),
            "counters": self.counters,
            "clocks": {name: asdict(clock) for name, clock in self.clocks.items()},
            "rebuilt": self.rebuilt,
            "zone": self.zone,
        }


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


def manifest_name(epoch: Epoch) -> str:
    """Name of the file of an epoch's manifest."""
    return f"{FOLDER}/{epoch:012d}.json"


def write_manifest(files: Files, manifest: Manifest) -> None:
    """Commit: from the return of this call on the epoch is there, whatever happens.

    Raises:
        StateError: the epoch is committed already; what is committed is never written again.
    """
    name = manifest_name(manifest.epoch)
    if files.exists(name):
        raise StateError(
            f"epoch {manifest.epoch} is committed already",
            condition="EPOCH_COMMITTED",
            file=name,
            hint="open the storage again; only one engine may write to it",
        )
    files.write_json(name, manifest.as_document())


def read_manifest(files: Files, epoch: Epoch) -> Manifest:
    """The manifest of a committed epoch; StateError if it is damaged, too new or removed."""
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
    if document["format"] > FORMAT_VERSION:
        raise StateError(
            f"the storage has format {document['format']}, this version reads up to {FORMAT_VERSION}",
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
    )


def committed_epochs(files: Files) -> list[Epoch]:
    """All retained committed epochs, oldest first."""
    return [Epoch(int(name.removesuffix(".json"))) for name in files.names(FOLDER)]


def unbroken(epochs: Sequence[Epoch]) -> list[Epoch]:
    """The last epochs without a gap: whose changes, one after the other, lead to the last one.

    Example:
        >>> unbroken([1, 2, 4, 5])
        [4, 5]
    """
    start = len(epochs)
    while start and (start == len(epochs) or epochs[start - 1] + 1 == epochs[start]):
        start -= 1
    return list(epochs[start:])


def last_committed(files: Files) -> Manifest:
    """The manifest of the last committed epoch; that of epoch 0 in a new storage."""
    epochs = committed_epochs(files)
    return read_manifest(files, epochs[-1] if epochs else Epoch(0))
