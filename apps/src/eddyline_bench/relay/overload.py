"""Overload: twice the records that the lanes can process, and a lane that is slow for a while.

Bolts sleep for each record, so four lanes can be busy in parallel on any machine. The producer puts
records at a constant rate, however fast they are processed; unread records stay on the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eddyline.pipelines.batches import PipelineSettings
from eddyline.spark.processes import tree_rss
from eddyline_bench.measure import bench_session
from eddyline_bench.relay.load import (
    BenchPipeline,
    FixedSetting,
    SleepPerRecord,
    each_once,
    producing,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANES = 4
LOAD = 2.0
"""Arrival rate relative to the capacity of the lanes."""

SLOWDOWN = 10.0
"""The factor by which a lane is slower in the second phase."""

RECORD_BYTES = 16
RECORD_S = 100e-6
RECOVERED_SHARE = 0.9
"""The share of the first phase's throughput that counts as recovered."""

AVERAGED_S = 3.0
"""The span of the moving average of throughput."""

SAMPLE_S = 0.05
WINDOWS = (4, 8, 16, 32)

PHASES = ("normal", "slow", "recovered")
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhasedRun:
    """The measurements of one pipeline over the three phases, times in seconds.

    Attributes:
        name: the setting of its windows.
        starts: start of each phase, and end of the last one.
        times: times of the samples.
        committed: number of records committed by each sample.
        slow_window: window of the slowed lane at each sample.
        rss: resident bytes of the process tree (`tree`) and of the driver's Python (`driver`).
        buffered: maximum number of records in tuples that wait in the driver or are in flight.
        backlog: number of records not yet processed at the end.
        resent: number of replayed tuples relative to all tuples.
        equal: whether each committed record is in the output once.
    """

    name: str
    starts: Sequence[float]
    times: Times
    committed: Times
    slow_window: Times
    rss: Mapping[str, Times]
    buffered: int
    backlog: int
    resent: float
    equal: bool

    def committed_at(self, seconds: float) -> float:
        """Return the records committed by a time, interpolated linearly between commits."""
        commits = np.r_[0, np.flatnonzero(np.diff(self.committed)) + 1]
        return float(np.interp(seconds, self.times[commits], self.committed[commits]))

    def rate(self, phase: int | None = None) -> float:
        """Return the records per second in a phase, or in all phases."""
        start, end = (
            (self.starts[0], self.starts[-1]) if phase is None else self.starts[phase : phase + 2]
        )
        return (self.committed_at(end) - self.committed_at(start)) / max(end - start, 1e-3)

    @property
    def recovery_s(self) -> float:
        """Seconds from the end of the slow phase until throughput is back at 90 %; NaN if never.

        Throughput is averaged over the preceding three seconds, which may reach into the slow phase.
        """
        wanted = RECOVERED_SHARE * self.rate(0) * AVERAGED_S
        for now in self.times[self.times >= self.starts[2]].tolist():
            if self.committed_at(now) - self.committed_at(now - AVERAGED_S) >= wanted:
                return float(now - self.starts[2])
        return float("nan")

    @property
    def window_back_s(self) -> float:
        """Seconds from the end of the slow phase until the lane's window is back at 90 %; NaN if never."""
        back = (self.times >= self.starts[2]) & (
            self.slow_window >= RECOVERED_SHARE * self.window(0)
        )
        return float(self.times[back][0] - self.starts[2]) if back.any() else float("nan")

    def window(self, phase: int) -> float:
        """Return the median window of the slowed lane in a phase."""
        inside = self.slow_window[self._inside(phase)]
        return float(np.median(inside)) if len(inside) else float("nan")

    def peak(self, of: str, phase: int) -> float:
        """Return the maximum of resident bytes in a phase, of `tree` or `driver`."""
        return float(self.rss[of][self._inside(phase)].max(initial=0))

    def _inside(self, phase: int) -> npt.NDArray[np.bool_]:
        return (self.times >= self.starts[phase]) & (self.times <= self.starts[phase + 1])


@dataclass(frozen=True, slots=True)
class Overload:
    """Adaptive windows compared with the best fixed windows that a search found.

    Attributes:
        record_s: processing time of a record in seconds.
        adaptive: the run with adaptive windows.
        best: the run with the best fixed windows.
        searched: records per second in a shorter run, by fixed setting.
    """

    record_s: float
    adaptive: PhasedRun
    best: PhasedRun
    searched: Mapping[FixedSetting, float]

    @property
    def capacity(self) -> float:
        """Records per second that the lanes can process if nothing else takes time."""
        return LANES / self.record_s

    @property
    def ratio(self) -> float:
        """Throughput over all phases divided by that with the best fixed windows."""
        return self.adaptive.rate() / self.best.rate()

    @property
    def equal(self) -> bool:
        """Whether each committed record is in the output once, in both runs."""
        return self.adaptive.equal and self.best.equal


def run_overload(
    seconds: float,
    search_seconds: float,
    warm_up_seconds: float,
    record_s: float = RECORD_S,
    windows: Sequence[int] = WINDOWS,
    tuple_rows: int = 1000,
) -> Overload:
    """Run the search and both measured runs. Call it in a process without a session.

    Its session has a core for each lane.

    Args:
        seconds: duration of a phase.
        search_seconds: duration of a phase in the search for the best fixed windows.
        warm_up_seconds: duration of the warm-up before each measured run.
        record_s: processing time of a record in seconds.
        windows: fixed windows to try.
        tuple_rows: number of records of a tuple.
    """
    with bench_session(LANES) as spark:

        def run(fixed: FixedSetting | None, warm_up_s: float, phase_s: float) -> PhasedRun:
            return run_phases(spark, fixed, warm_up_s, phase_s, record_s, tuple_rows)

        run(None, warm_up_seconds, 0.0)  # warms up the JVM and the workers
        settings = [FixedSetting(window, late) for late in (False, True) for window in windows]
        searched = {fixed: run(fixed, 2.0, search_seconds).rate() for fixed in settings}
        best = max(searched, key=lambda fixed: searched[fixed])
        adaptive, against = (run(fixed, warm_up_seconds, seconds) for fixed in (None, best))
        return Overload(record_s, adaptive, against, searched)


def run_phases(
    spark: SparkSession,
    fixed: FixedSetting | None,
    warm_up_s: float,
    phase_s: float,
    record_s: float,
    tuple_rows: int,
) -> PhasedRun:
    """Run one pipeline through the three phases; `fixed` is None for adaptive windows."""
    with TemporaryDirectory(prefix="eddyline-bench-") as name:
        folder = Path(name)
        slowed = folder / "slowed"
        load = BenchPipeline(
            spark,
            folder,
            [SleepPerRecord(record_s, str(slowed))],
            PipelineSettings(lanes=LANES, tuple_rows=tuple_rows),
            fixed=fixed,
        )
        rate = LOAD * LANES / record_s
        with producing(load, rate, RECORD_BYTES) as put, _Sampler(load) as sampler:
            load.stream.follow(0.01)
            time.sleep(warm_up_s)
            starts = [sampler.now()]
            for phase in PHASES:
                if phase == "slow":
                    slowed.write_text(str(SLOWDOWN))
                time.sleep(phase_s)
                slowed.unlink(missing_ok=True)
                starts.append(sampler.now())
            load.stream.follow(0.01)  # raises the error of a failed pipeline
            load.stream.stop()  # after the current batch
        return PhasedRun(
            "adaptive" if fixed is None else str(fixed),
            starts,
            np.array(sampler.times),
            np.array(sampler.committed, np.float64),
            np.array(sampler.windows, np.float64),
            {of: np.array(values, np.float64) for of, values in sampler.rss.items()},
            sampler.buffered * tuple_rows,
            put[-1] - load.settled,
            load.resent,
            each_once(load.numbers(), load.settled),
        )


@dataclass(slots=True)
class _Sampler:
    """Samples a pipeline from a thread, every `SAMPLE_S`."""

    load: BenchPipeline
    times: list[float] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    rss: dict[str, list[int]] = field(default_factory=lambda: {"tree": [], "driver": []})
    buffered: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def now(self) -> float:
        """Return the seconds since the sampler was created."""
        return time.perf_counter() - self._started

    def __enter__(self) -> _Sampler:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        tree = driver = 0
        while True:
            last = self._stopping.is_set()
            flow = self.load.stream.waves.flow
            self.times.append(self.now())
            self.committed.append(self.load.settled)
            self.windows.append(flow.lanes[0].window)
            self.buffered = max(self.buffered, flow.buffered + flow.in_flight)
            if len(self.times) % 10 == 1 or last:
                tree, driver = tree_rss()
            self.rss["tree"].append(tree)
            self.rss["driver"].append(driver)
            if last:
                return
            self._stopping.wait(SAMPLE_S)
