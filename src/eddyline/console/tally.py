"""Counters over the epochs that are committed while a console runs, and the last epochs one by one."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.changes import Epoch
from eddyline.console.observer import Observer
from eddyline.errors import EddylineError
from eddyline.runtime.lane_choice import SHORT, WIDE
from eddyline.runtime.reports import epoch_work
from eddyline.spark.processes import tree_usage
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest

KEPT = 120
"""The epochs that are shown one by one."""
RATE_S = 60.0
USAGE_S = 5.0
"""The least time over which the use of the processor is measured."""
SINK = "sink"
"""The stage of deliveries, which run beside the epochs."""
INSERT, DELETE = "insert", "delete"
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bounds of the histograms of durations, in seconds."""


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """The numbers of one epoch.

    Attributes:
        committed_at: seconds since 1970; 0 if unknown.
        rows_in: rows read, by name of table or view.
        rows_out: changes written, by name of table or view.
        read: rows read of each table and stream, by its name.
        seconds: by stage; only known to a console inside of the engine's process.
    """

    epoch: Epoch
    committed_at: float
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]
    positions: Mapping[str, int]
    read: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)


class Tally:
    """Follows the epochs of a storage.

    Attributes:
        rows_in, rows_out: rows read and changes written since the console was started.
        deletes: how many of these changes were deletes.
        seconds: the time that the parts of epochs of each table and view took, since the console was started.
        cpu: CPU seconds of these parts, as far as they are measured; see `runtime.reports`.
        read: rows that epochs have read of each table and stream since then.
        operators: seconds of the tasks of all operators of a kind since then.
        merged: bytes of the runs of the state that were merged since then.
        delivered_rows, failed_deliveries: of each sink; rows by sink and `insert` or `delete`. Only for a console
            inside of the engine's process.
        lanes: epochs of each view in each lane, by name and lane, since the console was started.
        histograms: for each stage the durations of epochs: how many were in each of `BUCKETS_S` and
            beyond, and their sum; those of the stage `sink` are of deliveries. Only for a console inside of the
            engine's process.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lock = threading.Lock()
        self._kept: deque[EpochFacts] = deque(maxlen=KEPT)
        self._last = Epoch(0)
        self._seconds: dict[int, Mapping[str, float]] = {}
        self.rows_in: Counter[str] = Counter()
        self.rows_out: Counter[str] = Counter()
        self.deletes: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.read: Counter[str] = Counter()
        self.operators: defaultdict[str, float] = defaultdict(float)
        self.merged = 0
        self.delivered_rows: Counter[tuple[str, str]] = Counter()
        self.failed_deliveries: Counter[str] = Counter()
        self.lanes: Counter[tuple[str, str]] = Counter()
        self.histograms: dict[str, tuple[list[int], float]] = {}
        # moments, and the CPU seconds by then
        self._usage: deque[tuple[float, float]] = deque(maxlen=2)
        self._started = observer.now()[1].epoch
        self.follow()

    def usage(self) -> tuple[float, int] | None:
        """Return how many cores this process uses with its JVM and workers, and their resident bytes.

        The cores are those of the last seconds, at least `USAGE_S`; None before these have passed since the first call.
        """
        now, (cpu, resident, _) = time.monotonic(), tree_usage()
        with self._lock:
            if not self._usage or now - self._usage[-1][0] >= USAGE_S:
                self._usage.append((now, cpu))
            then, used = self._usage[0]
        return ((cpu - used) / (now - then), resident) if now - then >= USAGE_S else None

    def observe(self, epoch: int, seconds: Mapping[str, float]) -> None:
        """Record the durations of an epoch of the engine in this process."""
        with self._lock:
            self._seconds[epoch] = dict(seconds)
            for stage, spent in seconds.items():
                self._measure(stage, spent)
            for old in [known for known in self._seconds if known < epoch - KEPT]:
                del self._seconds[old]

    def _measure(self, stage: str, spent: float) -> None:
        counts, total = self.histograms.get(stage, ([0] * (len(BUCKETS_S) + 1), 0.0))
        place = next((i for i, most in enumerate(BUCKETS_S) if spent <= most), -1)
        counts[place] += 1
        self.histograms[stage] = (counts, total + spent)

    def delivered(
        self, sink: str, inserts: int, deletes: int, seconds: float, *, failed: bool
    ) -> None:
        """Record a delivery to a sink, or a try that failed.

        Args:
            inserts, deletes: the rows that it has brought.
            seconds: that it took.
        """
        with self._lock:
            self.delivered_rows[sink, INSERT] += inserts
            self.delivered_rows[sink, DELETE] += deletes
            self.failed_deliveries[sink] += failed
            if not failed:
                self._measure(SINK, seconds)

    def follow(self) -> None:
        """Read the manifests of the epochs that were committed since the last call."""
        catalog, now = self._observer.now()
        if now.epoch == self._last:
            return
        with self._lock:
            for epoch in committed_epochs(self._observer.files)[-KEPT:]:
                if self._last < epoch <= now.epoch:
                    try:
                        same = epoch == now.epoch
                        manifest = now if same else read_manifest(self._observer.files, epoch)
                    except EddylineError:
                        continue  # it has just been retired
                    self._add(catalog, manifest)
            self._last = now.epoch

    def _add(self, catalog: Catalog, manifest: Manifest) -> None:
        counters = {name: counts for name, counts in manifest.counters.items() if "/" not in name}
        rows_in = {name: counts.get("in", 0) for name, counts in counters.items()}
        rows_out = {name: counts.get("out", 0) for name, counts in counters.items()}
        names = {entry.id: entry.name for entry in catalog.entries}
        views = {entry.name for entry in catalog.entries if entry.kind == VIEW}
        positions = {names[i]: end for i, end in manifest.positions.items() if i in names}
        work = epoch_work(manifest.counters)
        if manifest.epoch > self._started:
            self.rows_in.update(rows_in)
            self.rows_out.update(rows_out)
            for name, counts in counters.items():
                self.deletes[name] += counts.get("deleted", 0)
                self.seconds[name] += counts.get("us", 0) / 1e6
                self.cpu[name] += counts.get("cpu", 0) / 1e6
            self.read.update(work.read)
            for kind, micros in work.operators.items():
                self.operators[kind] += micros / 1e6
            self.merged += work.merged
            self.lanes.update(
                (name, SHORT if counts["short"] else WIDE)
                for name, counts in counters.items()
                if name in views and "short" in counts
            )
        time = manifest.committed_at / 1e6
        self._kept.append(EpochFacts(manifest.epoch, time, rows_in, rows_out, positions, work.read))

    def epochs(self) -> list[EpochFacts]:
        """Return the last epochs, oldest first."""
        self.follow()
        with self._lock:
            return [replace(one, seconds=self._seconds.get(one.epoch, {})) for one in self._kept]

    def rates(self) -> dict[str, float]:
        """Return the changes a second of each table and view, over the last `RATE_S` seconds."""
        since = time.time() - RATE_S
        total: Counter[str] = Counter()
        for one in self.epochs():
            if one.committed_at > since:
                total.update(one.rows_out)
        return {name: count / RATE_S for name, count in total.items()}


def streaming_progress(observer: Observer, tally: Tally, last: int = 100) -> list[dict[str, Any]]:
    """Return the last epochs in the shape of Spark's StreamingQueryProgress, oldest first.

    PySpark's class of that name reads them. Unknown values are null or omitted, such as durations if the engine
    runs in another process. The state is that of the last epoch.
    """
    catalog, manifest = observer.now()
    status = observer.status()
    root = observer.files.root.rstrip("/")
    times = [item["watermark"] for item in status["sources"] if item.get("watermark")]
    sources = [entry for entry in catalog.entries if entry.kind != VIEW and not entry.role]
    of_storage = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"file://{root}")),
        "runId": _uuid(manifest.writer),
        "name": root.rpartition("/")[2],
    }
    found: list[dict[str, Any]] = []
    before: EpochFacts | None = None
    for one in tally.epochs()[-last - 1 :]:
        newest = one.epoch == manifest.epoch
        found.append(
            {
                **of_storage,
                "timestamp": _time(one.committed_at),
                "batchId": one.epoch,
                **_rates(one, before),
                "eventTime": {"watermark": min(times)} if times and newest else {},
                "stateOperators": _operators(status["views"], manifest) if newest else [],
                "sources": [_source(source, one, before) for source in sources],
                "sink": {"description": "eddyline", "numOutputRows": sum(one.rows_out.values())},
            }
        )
        before = one
    return found[-last:]


def _rates(one: EpochFacts, before: EpochFacts | None) -> dict[str, Any]:
    """Return the rows of an epoch, its durations and its rates."""
    rows, spent = sum(one.rows_in.values()), sum(one.seconds.values())
    durations = {stage: round(1000 * used) for stage, used in one.seconds.items()}
    gap = one.committed_at - before.committed_at if before and one.committed_at else 0.0
    whole = round(1000 * spent)
    return {
        "batchDuration": whole if durations else None,
        "numInputRows": rows,
        **({"inputRowsPerSecond": rows / gap} if gap > 0 else {}),
        **({"processedRowsPerSecond": rows / spent} if spent > 0 else {}),
        "durationMs": {**durations, "triggerExecution": whole} if durations else {},
    }


def _operators(views: Sequence[Mapping[str, Any]], manifest: Manifest) -> list[dict[str, Any]]:
    """Return the state of each view as that of one operator."""
    found = []
    for view in views:
        counts = manifest.counters.get(view["name"], {})
        found.append(
            {
                "operatorName": view["name"],
                "numRowsTotal": view["state_rows"],
                "numRowsUpdated": counts.get("out", 0),
                "numRowsRemoved": 0,
                "allUpdatesTimeMs": counts.get("us", 0) // 1000,
                "allRemovalsTimeMs": 0,
                "commitTimeMs": 0,
                "memoryUsedBytes": view["state_bytes"],
                "numRowsDroppedByWatermark": 0,
                "numShufflePartitions": manifest.buckets,
                "numStateStoreInstances": manifest.buckets,
            }
        )
    return found


def _source(source: Entry, one: EpochFacts, before: EpochFacts | None) -> dict[str, Any]:
    """Return what an epoch has read of a source, by entries of its redo log."""
    return {
        "description": source.name,
        "startOffset": before.positions.get(source.name) if before else None,
        "endOffset": one.positions.get(source.name),
        "latestOffset": None,
        "numInputRows": one.read.get(source.name, 0),
        "inputRowsPerSecond": None,
        "processedRowsPerSecond": None,
    }


def _uuid(name: str) -> str:
    """Return a name as a UUID if it is one, else a UUID derived from it."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _time(seconds: float) -> str:
    """Return a time since 1970 as Spark writes it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
