"""Epochs of one view over keys of equal size, and over keys of which one has half of all rows; Spark's batch beside them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eddyline.api.engine import Engine
from eddyline.changes import Epoch
from eddyline.options import Options
from eddyline.state.manifest import read_manifest
from eddyline.storage.files import Files
from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

SHAPES = {
    "count, sum": "SELECT k, count(*) AS n, sum(v) AS total FROM facts GROUP BY k",
    "sum of doubles": "SELECT k, sum(d) AS total, avg(d) AS mean FROM facts GROUP BY k",
    "min, max": "SELECT k, min(v) AS low, max(v) AS high FROM facts GROUP BY k",
    "count distinct": "SELECT k, count(DISTINCT v) AS n FROM facts GROUP BY k",
    "distinct": "SELECT DISTINCT k, v % 1000 AS v FROM facts",
    "median": "SELECT k, median(v) AS middle FROM facts GROUP BY k",
    "top 3 of key": """
        SELECT k, id, v FROM facts QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC, id) <= 3
    """,
    "running sum": """
        SELECT id, row_number() OVER (PARTITION BY k ORDER BY id) AS place,
            sum(v) OVER (PARTITION BY k ORDER BY id) AS total FROM facts
    """,
    "lag": "SELECT id, v - lag(v) OVER (PARTITION BY k ORDER BY id) AS step FROM facts",
    "join": "SELECT f.id, f.v, n.name FROM facts f JOIN names n ON f.k = n.k",
    "left join": "SELECT f.id, f.v, n.name FROM facts f LEFT JOIN names n ON f.k = n.k AND n.even",
    "semi join": "SELECT id, v FROM facts WHERE k IN (SELECT k FROM names WHERE even)",
    "pairs": "SELECT f.id, m.at FROM facts f JOIN marks m ON f.k = m.k AND f.v BETWEEN m.at AND m.at + 999",
}
APPENDED = frozenset(("running sum", "lag"))
"""Queries whose epochs only have new rows: another one changes the results of all that follow it."""
DELETED = 10
"""Of so many rows of an epoch, one goes in the next."""
MARKS = 10
"""Rows of each key on the other side of "pairs"."""
VALUES = 100_000


@dataclass(slots=True)
class Side:
    """What epochs of a query have taken over one of the two inputs.

    Attributes:
        seconds: that the view took, for each timed epoch.
        shares: of each timed epoch the part that its longest task has of the work of its stage.
        batch: the seconds of the query in batch Spark over the rows at the end.
        batch_share: as `shares`, of the batch.
    """

    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    batch: float = float("nan")
    batch_share: float = float("nan")


@dataclass(frozen=True, slots=True)
class SkewResult:
    """By query, its epochs over keys of equal size, and with one key that has half of the rows."""

    rows: int
    tasks: int
    sides: dict[str, tuple[Side, Side]]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        rows = []
        for name, (even, skewed) in self.sides.items():
            ours, mine = median(even.seconds), median(skewed.seconds)
            rows.append(
                [
                    name,
                    f"{ours:.2f}",
                    f"{mine:.2f}",
                    f"{mine / ours:.2f}",
                    f"{median(even.shares):.0%}",
                    f"{median(skewed.shares):.0%}",
                    f"{even.batch:.2f}",
                    f"{skewed.batch:.2f}",
                    f"{skewed.batch / even.batch:.2f}",
                    f"{skewed.batch_share:.0%}",
                ]
            )
        heads = ["", "even, s", "skewed, s", "ratio", "longest, even", "longest, skewed"]
        heads += ["Spark, even", "Spark, skewed", "ratio", "longest"]
        return "\n".join(
            [
                f"skew: epochs of {self.rows:,} rows, {self.tasks} buckets; skewed: half of all rows have one key",
                aligned(heads, rows),
                "longest: the part that the longest task has of the work of its stage",
                verdict(self.equal),
            ]
        )


def run(
    *,
    rows: int = 500_000,
    repeat: int = 3,
    cores: int = 2,
    keys: int = 50_000,
    shapes: Iterable[str] = SHAPES,
) -> SkewResult:
    """Time epochs of each query over both inputs in turn, and then batch Spark over all their rows.

    All epochs are jobs of Spark. The first two of each view warm up and are not counted.

    Args:
        rows: number of rows that an epoch adds; a tenth of those of the epoch before go.
        repeat: number of timed epochs.
        cores: number of cores of the local session, and of buckets.
        keys: number of keys.
        shapes: names of the queries to time.
    """
    sides: dict[str, tuple[Side, Side]] = {}
    equal = True
    with bench_session(cores) as spark:
        tasks = Tasks(spark)
        for name in shapes:
            with (
                tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
                ExitStack() as stack,
            ):
                live = [
                    stack.enter_context(Live(spark, Path(folder, part), name, keys, hot, cores))
                    for part, hot in (("even", 0.0), ("skewed", 0.5))
                ]
                sides[name] = found = Side(), Side()
                for number in range(repeat + 2):
                    for one, side in zip(live, found, strict=True):
                        seconds, share = one.epoch(rows, number, tasks)
                        if number > 1:
                            side.seconds.append(seconds)
                            side.shares.append(share)
                for one, side in zip(live, found, strict=True):
                    equal = equal and bool(one.engine.verify("live"))
                    side.batch, side.batch_share = one.batch(tasks, repeat)
    return SkewResult(rows, cores, sides, equal)


class Tasks:
    """What Spark knows of the tasks that have run."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._seen = -1

    def longest(self) -> float:
        """Return the part that the longest task since the last call has of the work of its stage."""
        scala = self._context._jsc.sc()  # noqa: SLF001
        scala.listenerBus().waitUntilEmpty()
        known, store = self._context.statusTracker(), scala.statusStore()
        jobs = [job for job in known.getJobIdsForGroup(None) if job > self._seen]
        self._seen = max([self._seen, *jobs])
        infos = [info for job in jobs if (info := known.getJobInfo(job)) is not None]
        stages = sorted({stage for info in infos for stage in info.stageIds})
        longest, total = 0, 0
        for stage in stages:
            tasks = store.taskList(stage, 0, 10_000)
            times = [_milliseconds(tasks.apply(place)) for place in range(tasks.size())]
            if len(times) > 1 and max(times) > longest:
                longest, total = max(times), sum(times)
        return longest / total if total else float("nan")


def _milliseconds(task: Any) -> int:
    metrics = task.taskMetrics()
    return int(metrics.get().executorRunTime()) if metrics.isDefined() else 0


class Live:
    """An engine with one view over rows whose keys are of equal size, but for one."""

    def __init__(
        self, spark: SparkSession, folder: Path, name: str, keys: int, hot: float, buckets: int
    ) -> None:
        self.spark, self.folder, self.keys, self.hot = spark, folder, keys, hot
        self.query, self.deletes = SHAPES[name], name not in APPENDED
        self.chance = np.random.default_rng(1)
        self.held: list[pa.Table] = []
        self.engine = Engine(
            str(folder / "storage"), spark, Options(buckets=buckets, short_lane_rows=0)
        )
        self.facts = self.engine.table(
            "facts", "id BIGINT, k BIGINT, v BIGINT, d DOUBLE", primary_key=("id",)
        )
        numbers = np.arange(keys)
        self.others = {
            "names": pa.table(
                {"k": numbers, "name": [f"key {k}" for k in numbers], "even": numbers % 2 == 0}
            ),
            "marks": pa.table(
                {
                    "k": np.repeat(numbers, MARKS),
                    "at": self.chance.integers(0, VALUES, keys * MARKS),
                }
            ),
        }
        for other, columns in (("names", "k BIGINT, name STRING, even BOOLEAN"), ("marks", "k BIGINT, at BIGINT")):  # fmt: skip
            self.engine.table(other, columns).insert(self.others[other])
        self.engine.view("live", self.query)
        self.engine.advance()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def epoch(self, rows: int, number: int, tasks: Tasks) -> tuple[float, float]:
        """Add rows, and delete some; return the seconds of the view, and `Tasks.longest`."""
        ids = np.arange(number * rows, (number + 1) * rows)
        keys = self.chance.integers(0, self.keys, rows)
        keys[self.chance.random(rows) < self.hot] = 0
        added = pa.table(
            {
                "id": ids,
                "k": keys,
                "v": self.chance.integers(0, VALUES, rows),
                "d": self.chance.random(rows),
            }
        )
        if self.held and self.deletes:
            last = self.held[-1]
            self.facts.delete(last.slice(0, rows // DELETED))
            self.held[-1] = last.slice(rows // DELETED)
        self.facts.insert(added)
        self.held.append(added)
        tasks.longest()
        epoch = Epoch(self.engine.advance())
        manifest = read_manifest(Files(str(self.folder / "storage")), epoch)
        return manifest.counters["live"]["us"] / 1e6, tasks.longest()

    def batch(self, tasks: Tasks, repeat: int) -> tuple[float, float]:
        """Run the query in batch Spark over Parquet files; return the seconds, and `Tasks.longest`."""
        tables = {"facts": pa.concat_tables(self.held), **self.others}
        for name, rows in tables.items():
            (self.folder / name).mkdir()
            for part in range(4):  # tasks read whole files
                size = -(-rows.num_rows // 4)
                file = self.folder / name / f"{part}.parquet"
                pq.write_table(rows.slice(part * size, size), file)
            self.spark.read.parquet(str(self.folder / name)).createOrReplaceTempView(name)
        seconds, shares = [], []
        for number in range(repeat + 1):
            tasks.longest()
            with Meter() as meter:
                self.spark.sql(self.query).write.format("noop").mode("overwrite").save()
            if number:
                seconds.append(meter.cost.seconds)
                shares.append(tasks.longest())
        for name in tables:
            self.spark.catalog.dropTempView(name)
        return median(seconds), median(shares)
