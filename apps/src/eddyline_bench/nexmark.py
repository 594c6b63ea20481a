"""Throughput of Nexmark's queries from the first event on, in large epochs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict
from eddyline_bench.nexmark_queries import QUERIES, RELATIONS, SIDE, SIDE_COLUMNS, SIDE_KEYS
from eddyline_bench.small import new_engine

TIMED = ("q1", "q3", "q4", "q5", "q7", "q8", "q9", "q15", "q18", "q19", "q20")
EVENTS_PER_SECOND = 10_000


@dataclass(frozen=True, slots=True)
class Timed:
    """The measurements of one query.

    Attributes:
        made: seconds to create the view.
        epochs: seconds of each epoch.
        cpu: CPU seconds of all epochs, of the process tree.
        lanes: the lanes of the epochs.
        equal: whether `verify` found the view equal to offline SQL.
    """

    name: str
    made: float
    epochs: list[float]
    cpu: float
    lanes: list[str]
    equal: bool


@dataclass(frozen=True, slots=True)
class NexmarkResult:
    """The measurements of all queries; `step` is the number of events in an epoch."""

    step: int
    queries: list[Timed]

    @property
    def equal(self) -> bool:
        """Whether all views are equal to offline SQL."""
        return all(one.equal for one in self.queries)

    def text(self) -> str:
        """Format the result as a table."""
        header = ["", "made s", "k events/s", "later", "first s", "epoch s", "CPU s/M", "lanes"]
        rows = []
        for one in self.queries:
            total = self.step * len(one.epochs)
            later = median(one.epochs[1:] or one.epochs)
            lanes = ", ".join(f"{one.lanes.count(lane)} {lane}" for lane in sorted(set(one.lanes)))
            rows.append(
                [
                    one.name,
                    f"{one.made:.1f}",
                    f"{total / sum(one.epochs) / 1e3:,.0f}",
                    f"{self.step / later / 1e3:,.0f}",
                    f"{one.epochs[0]:.2f}",
                    f"{later:.2f}",
                    f"{1e6 * one.cpu / total:.1f}",
                    lanes,
                ]
            )
        return "\n".join(
            [
                f"nexmark: epochs of {self.step:,} events, of which 92 % are bids, "
                "from the first event on; later: the median of the other epochs",
                aligned(header, rows),
                verdict(self.equal),
            ]
        )


def run(
    *, rows: int = 100_000, repeat: int = 10, cores: int = 2, queries: Sequence[str] = TIMED
) -> NexmarkResult:
    """Time each query over streams of its own.

    Args:
        rows: events of all kinds in an epoch.
        repeat: number of epochs.
        cores: number of cores of the local session.
        queries: their names.
    """
    with bench_session(cores) as spark:
        return NexmarkResult(rows, [_timed(spark, name, rows, repeat) for name in queries])


def _timed(spark: SparkSession, name: str, step: int, repeat: int) -> Timed:
    query = QUERIES[name]
    epochs: list[float] = []
    lanes: list[str] = []
    with new_engine(spark) as engine:
        for relation, kind in RELATIONS.items():
            if re.search(rf"\b{relation}\b", query):
                options = {
                    "kind": kind, "total": str(step * repeat), "eventsPerEpoch": str(step),
                    "eventsPerSecond": str(EVENTS_PER_SECOND),
                }  # fmt: skip
                engine.create_stream(relation, None, "generator", options)
        if SIDE in query:
            side = engine.table(SIDE, SIDE_COLUMNS, ["key"])
            side.insert([(key, f"side {key}") for key in range(SIDE_KEYS)])
        started = time.perf_counter()
        engine.view(name, query)
        made = time.perf_counter() - started
        last = 0.0

        def done(progress: object) -> None:
            nonlocal last
            now = time.perf_counter()
            epochs.append(now - last)
            last = now
            lanes.append(getattr(progress, "lanes", {}).get(name, "none"))

        engine.on_progress(done)
        with Meter() as meter:
            last = time.perf_counter()
            engine.advance()
        equal = bool(engine.verify(name))
    return Timed(name, made, epochs, meter.cost.cpu_seconds, lanes, equal)
