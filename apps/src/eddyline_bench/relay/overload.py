"""Twice the records that the lanes can work on, and a lane that is slow for a while.

Bolts sleep for each record, so four lanes are busy side by side on any machine. Producers put
records at the same times whatever becomes of them; what isn't read waits on the disk.
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

from eddyline.pipelines.batches import Settings
from eddyline_bench.measure import bench_session, tree_rss
from eddyline_bench.relay.load import BenchPipeline, Fixed, Waited, each_once, producing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANES = 4
LOADED = 2.0
SLOWED = 10.0
RECORD_BYTES = 16
RECORD_S = 100e-6
RECOVERED = 0.9
LOOK_S = 3.0
SAMPLE_S = 0.05
WINDOWS = (4, 8, 16, 32)

PHASES = ("normal", "slow", "recovered")
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """What one pipeline did in the three phases.

    Attributes:
        name: which one.
        starts: when each phase begins, and the last one ends, in seconds.
        times: of samples.
        ended: records that were committed by then.
        slow_window: the window of the lane that is slowed.
        rss: bytes in memory of the whole process tree, and of the driver's Python.
        buffered: records in tuples that wait in the driver or are with lanes.
        backlog: records on the disk that aren't read, at the end.
        resent: share of the tuples that were sent to a second lane.
        equal: whether each record that was committed came out once.
    """

    name: str
    starts: Sequence[float]
    times: Times
    ended: Times
    slow_window: Times
    rss: Mapping[str, Times]
    buffered: int
    backlog: int
    resent: float
    equal: bool

    def at(self, seconds: float) -> float:
        """Records that were committed by a moment; in between two commits by their share of time."""
        commits = np.r_[0, np.flatnonzero(np.diff(self.ended)) + 1]
        return float(np.interp(seconds, self.times[commits], self.ended[commits]))

    def rate(self, phase: int | None = None) -> float:
        """Records a second in a phase; None: in all."""
        start, end = (
            (self.starts[0], self.starts[-1]) if phase is None else self.starts[phase : phase + 2]
        )
        return (self.at(end) - self.at(start)) / max(end - start, 1e-3)

    @property
    def recovery_s(self) -> float:
        """Seconds from the end of the slowness until throughput is back at 90 %; NaN if never.

        Throughput is that of the three seconds before, so some of it is still that of the slow phase.
        """
        wanted = RECOVERED * self.rate(0) * LOOK_S
        for now in self.times[self.times >= self.starts[2]].tolist():
            if self.at(now) - self.at(now - LOOK_S) >= wanted:
                return float(now - self.starts[2])
        return float("nan")

    @property
    def window_back_s(self) -> float:
        """Seconds from the end of the slowness until the lane's window is at 90 %; NaN if never."""
        back = (self.times >= self.starts[2]) & (self.slow_window >= RECOVERED * self.window(0))
        return float(self.times[back][0] - self.starts[2]) if back.any() else float("nan")

    def window(self, phase: int) -> float:
        """Median window of the lane that is slowed, in a phase."""
        inside = self.slow_window[self._inside(phase)]
        return float(np.median(inside)) if len(inside) else float("nan")

    def peak(self, of: str, phase: int) -> float:
        """Most bytes in memory in a phase."""
        return float(self.rss[of][self._inside(phase)].max(initial=0))

    def _inside(self, phase: int) -> npt.NDArray[np.bool_]:
        return (self.times >= self.starts[phase]) & (self.times <= self.starts[phase + 1])


@dataclass(frozen=True, slots=True)
class Overload:
    """The adaptive windows, the search for the best fixed ones, and these over the same course.

    Attributes:
        record_s: seconds that a record takes.
        adaptive, best: the courses.
        searched: by setting, records a second in a short course.
    """

    record_s: float
    adaptive: Course
    best: Course
    searched: Mapping[Fixed, float]

    @property
    def capacity(self) -> float:
        """Records a second that the lanes could do, if nothing else took time."""
        return LANES / self.record_s

    @property
    def ratio(self) -> float:
        """Throughput over all phases against that with the best fixed windows."""
        return self.adaptive.rate() / self.best.rate()

    @property
    def equal(self) -> bool:
        """Whether each record that was committed came out once."""
        return self.adaptive.equal and self.best.equal


def own_overload(
    seconds: float,
    search_seconds: float,
    warm_up_seconds: float,
    record_s: float = RECORD_S,
    windows: Sequence[int] = WINDOWS,
    tuple_rows: int = 1000,
) -> Overload:
    """Run all courses; to be run in a process of its own, whose session has a core for each lane.

    Args:
        seconds: of a phase.
        search_seconds: of a phase in the search for the best fixed windows.
        warm_up_seconds: before each course.
        record_s: seconds that a record takes.
        windows: fixed ones to try.
        tuple_rows: records of a tuple.
    """
    with bench_session(LANES) as spark:

        def run(fixed: Fixed | None, warm_up_s: float, phase_s: float) -> Course:
            return course(spark, fixed, warm_up_s, phase_s, record_s, tuple_rows)

        run(None, warm_up_seconds, 0.0)  # of the JVM and the workers
        settings = [Fixed(window, taken) for taken in (False, True) for window in windows]
        searched = {fixed: run(fixed, 2.0, search_seconds).rate() for fixed in settings}
        best = max(searched, key=lambda fixed: searched[fixed])
        adaptive, against = (run(fixed, warm_up_seconds, seconds) for fixed in (None, best))
        return Overload(record_s, adaptive, against, searched)


def course(
    spark: SparkSession,
    fixed: Fixed | None,
    warm_up_s: float,
    phase_s: float,
    record_s: float,
    tuple_rows: int,
) -> Course:
    """One pipeline, through the three phases; `fixed` is None where windows adapt."""
    with TemporaryDirectory(prefix="eddyline-bench-") as name:
        folder = Path(name)
        slowed = folder / "slowed"
        load = BenchPipeline(
            spark,
            folder,
            [Waited(record_s, str(slowed))],
            Settings(lanes=LANES, tuple_rows=tuple_rows),
            fixed=fixed,
        )
        rate = LOADED * LANES / record_s
        with producing(load, rate, RECORD_BYTES) as put, _Sampler(load) as sampler:
            load.stream.follow(0.01)
            time.sleep(warm_up_s)
            starts = [sampler.now()]
            for phase in PHASES:
                if phase == "slow":
                    slowed.write_text(str(SLOWED))
                time.sleep(phase_s)
                slowed.unlink(missing_ok=True)
                starts.append(sampler.now())
            load.stream.follow(0.01)  # raises what has ended it
            load.stream.stop()  # with the batch that it works on
        return Course(
            "adaptive" if fixed is None else str(fixed),
            starts,
            np.array(sampler.times),
            np.array(sampler.ended, np.float64),
            np.array(sampler.windows, np.float64),
            {of: np.array(values, np.float64) for of, values in sampler.rss.items()},
            sampler.buffered * tuple_rows,
            put[-1] - load.ended,
            load.resent,
            each_once(load.numbers(), load.ended),
        )


@dataclass(slots=True)
class _Sampler:
    """Looks at a pipeline every few milliseconds."""

    load: BenchPipeline
    times: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    rss: dict[str, list[int]] = field(default_factory=lambda: {"tree": [], "driver": []})
    buffered: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def now(self) -> float:
        """Seconds since it was made."""
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
            self.ended.append(self.load.ended)
            self.windows.append(flow.lanes[0].window)
            self.buffered = max(self.buffered, flow.buffered + flow.in_flight)
            if len(self.times) % 10 == 1 or last:
                tree, driver = tree_rss()
            self.rss["tree"].append(tree)
            self.rss["driver"].append(driver)
            if last:
                return
            self._stopping.wait(SAMPLE_S)
