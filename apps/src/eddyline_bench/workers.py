"""Epoch time on Spark clusters of one, two and four worker processes, and a model of it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from eddyline import Options
from eddyline.api.engine import Engine
from eddyline_apps.processes import SHORT_LIVED
from eddyline_bench.cluster import SESSION, Cluster
from eddyline_bench.measure import aligned, appearing, in_own_process, median, verdict
from eddyline_bench.tuples import SCHEMA, tuples

WORKERS = (1, 2, 4)
VIEWS = {
    "one view": ["SELECT sip, type, count(*) AS n FROM s GROUP BY sip, type"],
    "four views": [
        f"SELECT sip, {column}, count(*) AS n FROM s GROUP BY sip, {column}"
        for column in ("type", "dip", "op", "vl")
    ],
    "two levels": [
        "SELECT n, count(*) AS groups FROM "
        "(SELECT sip, type, count(*) AS n FROM s GROUP BY sip, type) GROUP BY n"
    ],
}
FILES = 8  # of an epoch
WARM = 2


@dataclass(frozen=True, slots=True)
class Point:
    """The epochs of some views on some workers.

    Attributes:
        name: of the views.
        workers: processes with one core each.
        rows: of an epoch.
        levels: aggregations of all views together.
        scans: how often the rows of an epoch are read.
        seconds: of an epoch, the median.
    """

    name: str
    workers: int
    rows: int
    levels: int
    scans: int
    seconds: float

    def terms(self, cores: int) -> list[float]:
        """Return what the model's three costs are multiplied with on a machine of some cores."""
        return [1.0, float(self.levels), self.scans * self.rows / min(self.workers, cores)]


@dataclass(frozen=True, slots=True)
class WorkersResult:
    """Epoch times, and a model fitted to those on fewer workers than the most.

    Attributes:
        cores: of this machine, which the workers share.
        costs: seconds of an epoch, of an aggregation, and of a row on one core.
    """

    points: list[Point]
    cores: int
    costs: tuple[float, float, float]
    equal: bool

    def modelled(self, point: Point) -> float:
        """Return the seconds of an epoch by the model."""
        return float(np.dot(self.costs, point.terms(self.cores)))

    @property
    def error(self) -> float:
        """By how much the model is off on the most workers, to which it wasn't fitted: a median, as a part of 1."""
        most = max(point.workers for point in self.points)
        others = [point for point in self.points if point.workers == most]
        return median(abs(self.modelled(p) / p.seconds - 1) for p in others)

    def text(self) -> str:
        """Format the result as a table."""
        epoch, level, row = self.costs
        rows = [
            [
                f"{p.name}, {p.rows:,} rows",
                str(p.workers),
                f"{p.seconds * 1000:,.0f}",
                f"{self.modelled(p) * 1000:,.0f}",
                f"{(epoch + level * p.levels) / self.modelled(p):.0%}",
            ]
            for p in self.points
        ]
        return "\n".join(
            [
                f"epochs as Spark jobs on workers of one core each; {self.cores} cores in all",
                aligned(["", "workers", "epoch ms", "by the model", "of it fixed"], rows),
                f"  model: {epoch * 1000:.0f} ms + {level * 1000:.0f} ms an aggregation + "
                f"{row * 1e6:.2f} s a million rows of each view on one core",
                f"  fitted to fewer workers than {max(p.workers for p in self.points)}, where it is off by "
                f"{self.error:.0%}",
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 100_000, repeat: int = 5) -> WorkersResult:
    """Time epochs of 1,000 and of `rows` rows on clusters of one, two and four workers.

    Args:
        rows: of the large epochs.
        repeat: timed epochs of each kind.
    """
    points: list[Point] = []
    equal = True
    for workers in WORKERS:
        with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder:
            found, right = in_own_process(measured, folder, workers, (1000, rows), repeat)
        points += found
        equal = equal and right
    cores = len(os.sched_getaffinity(0))
    fitted = [point for point in points if point.workers < max(WORKERS)]
    # relative errors count, so that small epochs do as much as large ones
    terms = np.array([np.array(p.terms(cores)) / p.seconds for p in fitted])
    costs = np.linalg.lstsq(terms, np.ones(len(fitted)))[0]
    points.sort(key=lambda p: (list(VIEWS).index(p.name), p.rows, p.workers))
    return WorkersResult(points, cores, tuple(costs.tolist()), equal)


def measured(
    folder: str, workers: int, sizes: tuple[int, ...], repeat: int
) -> tuple[list[Point], bool]:
    """Return the points of one cluster, and whether all views equal offline SQL."""
    points, equal = [], True
    with _session(Path(folder), workers) as spark:
        for name, queries in VIEWS.items():
            seconds, right = _epochs(
                Path(folder) / name.replace(" ", "-"), spark, queries, sizes, repeat
            )
            equal = equal and right
            levels = sum(query.count("GROUP BY") for query in queries)
            points += [
                Point(name, workers, rows, levels, len(queries), found)
                for rows, found in seconds.items()
            ]
    return points, equal


@contextmanager
def _session(folder: Path, workers: int) -> Iterator[SparkSession]:
    """Provide a session on a cluster of so many workers."""
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with Cluster(folder, {"JAVA_TOOL_OPTIONS": SHORT_LIVED}) as cluster:
        for _ in range(workers):
            cluster.add_worker()
        own = {"spark.cores.max": workers, "spark.sql.shuffle.partitions": workers}
        builder = SparkSession.builder.appName("eddyline bench").master(cluster.address)
        for setting, value in {**SESSION, **own}.items():
            builder = builder.config(setting, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def _epochs(
    folder: Path, spark: SparkSession, queries: list[str], sizes: tuple[int, ...], repeat: int
) -> tuple[Mapping[int, float], bool]:
    """Return the median seconds of an epoch by its rows, and whether all views equal offline SQL."""
    source = folder / "input"
    source.mkdir(parents=True)
    total = (repeat + WARM) * sum(sizes)
    seconds, first, files = {}, 0, 0
    with Engine(str(folder / "storage"), spark, Options(short_lane_rows=0)) as engine:
        engine.execute(f"CREATE STREAM s ({SCHEMA}) USING json OPTIONS (path '{source}')")
        for number, query in enumerate(queries):
            engine.view(f"v{number}", query)
        for rows in sizes:
            times = []
            for _ in range(repeat + WARM):
                for part in np.array_split(np.arange(rows), FILES):
                    with appearing(source / f"{files}.json") as hidden:
                        tuples(first, len(part), total).write_ndjson(hidden)
                    first, files = first + len(part), files + 1
                started = time.perf_counter()
                engine.advance()
                times.append(time.perf_counter() - started)
            seconds[rows] = median(times[WARM:])
        return seconds, bool(engine.verify())
