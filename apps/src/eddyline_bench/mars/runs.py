"""Runs of the windowed count: throughput against records per batch, and latency of records.

A batch of records is an epoch. Its records lie in one NDJSON file for each core, where Mars has one
message of a broker; so a batch keeps all cores at work.
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
    from eddyline.runtime.epoch import Progress

QUERY = """
    SELECT sip, type, timestamp, count(*) FROM S GROUP BY sip, type, timestamp WINDOWING 60 s
"""
VIEW = "counts"
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
EVENTS_PER_SECOND = 10_000
"""Records in a second of event time: a window of 60 s holds 600,000."""

WARM_UP = 2
"""Untimed batches at the beginning of each run."""

FILES_PER_SECOND = 20
"""How often records that arrive one by one become a file."""

WARM_UP_SECONDS = 4
WARM_UP_BATCHES = 20
"""Of a JVM that compiles what it runs."""


@dataclass(frozen=True, slots=True)
class Point:
    """A batch of `size` records took `seconds`, as the median of rounds of several batches each."""

    size: int
    seconds: float

    @property
    def throughput(self) -> float:
        """Records a second."""
        return self.size / self.seconds


@dataclass(frozen=True, slots=True)
class Amdahl:
    """An epoch takes `serial + parallel * records / cores` seconds."""

    serial: float
    parallel: float

    @classmethod
    def of(cls, curve: Sequence[Point], cores: int) -> Amdahl:
        """Fitted to a curve measured on `cores` cores, each point by its relative error.

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
        """Records a second of batches of `size` records on `cores` cores."""
        return size / (self.serial + self.parallel * size / cores)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the arrival of each record to the commit of its epoch.

    Attributes:
        rate: records that arrived in a second.
        seconds: one value a record; those of the warm-up are left out.
        epochs: committed meanwhile.
        counted: whether the counts add up to the records.
    """

    rate: int
    seconds: NDArray[np.float64]
    epochs: int
    counted: bool

    @property
    def mean(self) -> float:
        """Of all records."""
        return float(self.seconds.mean())

    def quantile(self, share: float) -> float:
        """At most so long took this share of the records."""
        return float(np.quantile(self.seconds, share))


def write_batches(folder: Path, rows: int, files: int) -> int:
    """Write records in the order of their event time; the bytes written."""
    return write_tuples(folder, rows, files, total=EVENTS_PER_SECOND * SPAN_SECONDS)


# --- throughput ---


def own_curve(
    inputs: Mapping[int, str], files: int, cores: int, repeat: int
) -> tuple[list[Point], bool]:
    """`curve` in a process that has only so many cores: Python, JVM and workers share them."""
    limit_cores(cores)
    with bench_session(cores) as spark:
        return curve(spark, inputs, files, cores, repeat)


def curve(
    spark: SparkSession, inputs: Mapping[int, str], files: int, cores: int, repeat: int
) -> tuple[list[Point], bool]:
    """Throughput against records per batch.

    The sizes take turns, so that a slow minute of the machine falls on all of them.

    Args:
        inputs: folder of NDJSON files, by the size of a batch.
        files: how many of them are a batch.
        repeat: rounds; one more comes before, since the JVM compiles for seconds.

    Returns:
        a point a size, and whether the counts add up to the records of the last round.
    """
    found: dict[int, list[float]] = {size: [] for size in inputs}
    counted = True
    for number in range(repeat + 1):
        for size, folder in inputs.items():
            with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as storage:
                engine, view = opened(spark, storage, folder, cores, files)
                with engine:
                    commits = Commits(engine)
                    engine.advance()
                    if number:
                        found[size].append(mean_epoch(commits.times))
                    if number == repeat:
                        counted = counted and total(view) == commits.records[-1]
    return [Point(size, median(seconds)) for size, seconds in found.items()], counted


def mean_epoch(times: Sequence[float]) -> float:
    """Mean seconds of an epoch behind the warm-up: with compaction and all else that comes seldom."""
    return (times[-1] - times[WARM_UP - 1]) / (len(times) - WARM_UP)


# --- latency ---


def own_latency(rate: int, seconds: float, cores: int) -> Latency:
    """`latency` in a process of its own, whose JVM has counted the records of four seconds before."""
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
    """Let records arrive one by one at a constant rate while an engine runs in the background.

    Record i arrives i / rate seconds after the start. A file appears when its last record has
    arrived, so the wait for that is part of a record's latency.
    """
    ticks = round((seconds + warm_up_seconds) * FILES_PER_SECOND)
    rows = rate * ticks // FILES_PER_SECOND
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        made, folder = Path(name) / "made", Path(name) / "arrived"
        folder.mkdir()
        write_tuples(made, rows, ticks, total=rate * SPAN_SECONDS)
        engine, view = opened(spark, f"{name}/storage", folder, cores)
        with engine:
            commits = Commits(engine)
            engine.start(interval=0.01)
            start = time.perf_counter()
            for number, path in enumerate(sorted(made.iterdir()), 1):
                _sleep_until(start + number / FILES_PER_SECOND)
                path.rename(folder / path.name)
            while not commits.records or commits.records[-1] < rows:
                if engine.await_termination(0.05):  # raises what went wrong
                    break
            engine.stop()
            counted = total(view) == rows
    first = round(rate * warm_up_seconds)
    numbers = np.arange(first, rows)
    # the first epoch behind which more than `number` records were committed
    epoch = np.searchsorted(np.array(commits.records), numbers, side="right")
    committed = np.array(commits.times)[epoch] - start
    return Latency(rate, committed - numbers / rate, len(commits.times), counted)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0))


# --- what all parts share ---


def opened(
    spark: SparkSession, storage: str, folder: str | Path, cores: int, files: int | None = None
) -> tuple[Engine, View]:
    """A new engine with the query as its view; nothing is read yet.

    Args:
        files: how many make an epoch; None takes what is there.
    """
    options = Options(buckets=cores, scan_tasks=cores, catalog="")
    engine = Engine(storage, spark=spark, options=options)
    limit = f", maxFilesPerTrigger '{files}'" if files else ""
    engine.execute(
        f"CREATE STREAM S ({SCHEMA}, WATERMARK FOR timestamp AS timestamp - INTERVAL 10 SECONDS) "
        f"USING json OPTIONS (path '{folder}'{limit})"
    )
    return engine, engine.view(VIEW, QUERY)


def total(view: View) -> int:
    """The sum of all counts."""
    rows = view.snapshot().toDF("sip", "type", "start", "n")
    return int(rows.agg(sf.coalesce(sf.sum("n"), sf.lit(0))).head()[0])  # type: ignore[index]


@dataclass(slots=True)
class Commits:
    """When an engine has committed how many records; others can wait for it.

    Attributes:
        times: of the clock, by epoch.
        records: how many were committed in all by then.
    """

    engine: Engine
    times: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    over: bool = False
    _more: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.engine.on_progress(self._take)

    def _take(self, progress: Progress) -> None:
        with self._more:
            self.times.append(time.perf_counter())
            before = self.records[-1] if self.records else 0
            self.records.append(before + progress.rows_in.get(VIEW, 0))
            self._more.notify_all()

    def wait_for(self, epochs: int) -> bool:
        """Wait until so many epochs are committed; False if no more come before."""
        with self._more:
            self._more.wait_for(lambda: len(self.times) >= epochs or self.over)
            return not self.over

    def end(self) -> None:
        """None comes any more."""
        with self._more:
            self.over = True
            self._more.notify_all()


def limit_cores(count: int) -> None:
    """Let this process, and all that it starts, run on `count` cores only, where that is possible."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, usable_cores()[:count])
