"""Runs of the windowed count: throughput against records per batch, and latency of records.

A batch of records is an epoch. It consists of one NDJSON file per core, so that it keeps all cores
busy; in the paper a batch is one message of a broker.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import functions as sf

from eddyline.api.engine import Engine
from eddyline.options import Options
from eddyline_bench.measure import bench_session, median
from eddyline_bench.page import usable_cores
from eddyline_bench.tuples import SCHEMA, SPAN_SECONDS, write_tuples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eddyline.api.handles import View
    from eddyline.runtime.progress import Progress

QUERY = """
    SELECT sip, type, timestamp, count(*) FROM S GROUP BY sip, type, timestamp WINDOWING 60 s
"""
VIEW = "counts"
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
EVENTS_PER_SECOND = 10_000
"""Records per second of event time: a window of 60 s holds 600,000."""

WARM_UP = 2
"""Number of untimed batches at the start of each run."""

FILES_PER_SECOND = 20
"""Files per second into which arriving records are collected."""

WARM_UP_SECONDS = 4
"""Untimed seconds at the start of a latency run."""

WARM_UP_BATCHES = 20
"""Batches counted before a latency run, while the JVM compiles."""


@dataclass(frozen=True, slots=True)
class Point:
    """The time of a batch of `size` records: the median over rounds of the mean batch of a round."""

    size: int
    seconds: float

    @property
    def throughput(self) -> float:
        """Records per second."""
        return self.size / self.seconds


@dataclass(frozen=True, slots=True)
class Amdahl:
    """Amdahl's law: an epoch takes `serial + parallel * records / cores` seconds."""

    serial: float
    parallel: float

    @classmethod
    def of(cls, curve: Sequence[Point], cores: int) -> Amdahl:
        """Fit the law to a curve measured on `cores` cores, minimising relative errors.

        Example:
            >>> curve = [Point(size, 0.2 + size / 2 / 100_000) for size in (1000, 5000, 20_000)]
            >>> fitted = Amdahl.of(curve, cores=2)
            >>> round(fitted.serial, 6), round(1 / fitted.parallel)
            (0.2, 100000)
        """
        seconds = [point.seconds for point in curve]
        sizes = [point.size for point in curve]
        slope, serial = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
        return cls(max(float(serial), 0.0), max(float(slope) * cores, 0.0))

    def throughput(self, size: int, cores: int) -> float:
        """Predict the records per second of batches of `size` records on `cores` cores."""
        return size / (self.serial + self.parallel * size / cores)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the arrival of each record to the commit of its epoch.

    Attributes:
        rate: records that arrived per second.
        seconds: one value per record, without those of the warm-up.
        epochs: number of committed epochs, with those of the warm-up.
        counted: whether the counts add up to the number of records.
    """

    rate: int
    seconds: NDArray[np.float64]
    epochs: int
    counted: bool

    @property
    def mean(self) -> float:
        """The mean latency in seconds."""
        return float(self.seconds.mean())

    def quantile(self, share: float) -> float:
        """Return the latency in seconds that this share of the records did not exceed."""
        return float(np.quantile(self.seconds, share))


def write_batches(folder: Path, rows: int, files: int) -> int:
    """Write records in the order of their event time; return the number of bytes."""
    return write_tuples(folder, rows, files, total=EVENTS_PER_SECOND * SPAN_SECONDS)


# --- throughput ---


def run_curve(
    inputs: Mapping[int, str], files: int, cores: int, repeat: int
) -> tuple[list[Point], bool]:
    """Limit this process, its JVM and its workers to `cores` cores, and run `curve`."""
    limit_cores(cores)
    with bench_session(cores) as spark:
        return curve(spark, inputs, files, cores, repeat)


def curve(
    spark: SparkSession, inputs: Mapping[int, str], files: int, cores: int, repeat: int
) -> tuple[list[Point], bool]:
    """Measure throughput against records per batch.

    Each round measures all sizes, so that a slow minute of the machine affects all of them.

    Args:
        inputs: folder of NDJSON files, by batch size.
        files: number of files of a batch.
        repeat: number of timed rounds, after one that warms up the JVM.

    Returns:
        a point per size, and whether the counts add up to the number of records in the last round.
    """
    found: dict[int, list[float]] = {size: [] for size in inputs}
    counted = True
    for number in range(repeat + 1):
        for size, folder in inputs.items():
            with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as storage:
                engine, view = open_engine(spark, storage, folder, cores, files)
                with engine:
                    commits = Commits(engine)
                    engine.advance()
                    if number:
                        found[size].append(mean_epoch(commits.times))
                    if number == repeat:
                        counted = counted and total_count(view) == commits.records[-1]
    return [Point(size, median(seconds)) for size, seconds in found.items()], counted


def mean_epoch(times: Sequence[float]) -> float:
    """Return the mean seconds of an epoch after the warm-up, periodic work such as compaction included."""
    return (times[-1] - times[WARM_UP - 1]) / (len(times) - WARM_UP)


# --- latency ---


def run_latency(rate: int, seconds: float, cores: int) -> Latency:
    """Limit this process to `cores` cores, warm up its JVM, and run `latency`."""
    limit_cores(cores)
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        write_batches(Path(folder), rate * 4, WARM_UP_BATCHES)
        curve(spark, {rate * 4 // WARM_UP_BATCHES: folder}, 1, cores, 0)
        return latency(spark, rate, seconds, cores)


def latency(
    spark: SparkSession,
    rate: int,
    seconds: float,
    cores: int,
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> Latency:
    """Measure latency while records arrive at a constant rate and an engine runs in the background.

    Record i arrives i / rate seconds after the start. A file appears when its last record has
    arrived, so the wait for the file is part of a record's latency.
    """
    ticks = round((seconds + warm_up_seconds) * FILES_PER_SECOND)
    rows = rate * ticks // FILES_PER_SECOND
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        prepared, folder = Path(name) / "prepared", Path(name) / "arrived"
        folder.mkdir()
        write_tuples(prepared, rows, ticks, total=rate * SPAN_SECONDS)
        engine, view = open_engine(spark, f"{name}/storage", folder, cores)
        with engine:
            commits = Commits(engine)
            engine.start(interval=0.01)
            start = time.perf_counter()
            for number, path in enumerate(sorted(prepared.iterdir()), 1):
                _sleep_until(start + number / FILES_PER_SECOND)
                path.rename(folder / path.name)
            while not commits.records or commits.records[-1] < rows:
                if engine.await_termination(0.05):  # raises the error of a failed epoch
                    break
            engine.stop()
            counted = total_count(view) == rows
    first = round(rate * warm_up_seconds)
    numbers = np.arange(first, rows)
    # of each record, the first epoch whose commit includes it
    epoch = np.searchsorted(np.array(commits.records), numbers, side="right")
    committed = np.array(commits.times)[epoch] - start
    return Latency(rate, committed - numbers / rate, len(commits.times), counted)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0))


# --- shared by all parts ---


def open_engine(
    spark: SparkSession, storage: str, folder: str | Path, cores: int, files: int | None = None
) -> tuple[Engine, View]:
    """Create an engine with the query as its view, without reading anything yet.

    Args:
        files: number of files per epoch; None reads all that are there.
    """
    options = Options(buckets=cores, scan_tasks=cores, catalog="")
    engine = Engine(storage, spark=spark, options=options)
    limit = f", maxFilesPerTrigger '{files}'" if files else ""
    engine.execute(
        f"CREATE STREAM S ({SCHEMA}, WATERMARK FOR timestamp AS timestamp - INTERVAL 10 SECONDS) "
        f"USING json OPTIONS (path '{folder}'{limit})"
    )
    return engine, engine.view(VIEW, QUERY)


def total_count(view: View) -> int:
    """Return the sum of all counts of the view."""
    rows = view.snapshot().toDF("sip", "type", "start", "n")
    return int(rows.agg(sf.coalesce(sf.sum("n"), sf.lit(0))).head()[0])  # type: ignore[index]


@dataclass(slots=True)
class Commits:
    """Records the commits of an engine, for other threads to wait for.

    Attributes:
        times: clock time of the commit of each epoch.
        records: total number of records committed by each of these times.
        ended: whether no more commits will come.
    """

    engine: Engine
    times: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    ended: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.engine.on_progress(self._record)

    def _record(self, progress: Progress) -> None:
        with self._changed:
            self.times.append(time.perf_counter())
            before = self.records[-1] if self.records else 0
            self.records.append(before + progress.rows_in.get(VIEW, 0))
            self._changed.notify_all()

    def wait_for(self, epochs: int) -> bool:
        """Wait until `epochs` epochs are committed; return False if the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.times) >= epochs or self.ended)
            return not self.ended

    def end(self) -> None:
        """Declare that no more commits will come; wakes all waiters."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()


def limit_cores(count: int) -> None:
    """Restrict this process and its children to `count` cores, where the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, usable_cores()[:count])
