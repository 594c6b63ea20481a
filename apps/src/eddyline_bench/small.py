"""Epoch time of small changes: eight small views, web statistics, and TPC-H's queries one by one and all."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from eddyline.api.engine import Engine
from eddyline.api.handles import Table
from eddyline_apps import demo
from eddyline_bench import tpch
from eddyline_bench.measure import Meter, aligned, bench_session, median, require, verdict

EIGHT = {
    "counts": "SELECT k, count(*) AS n FROM t GROUP BY k",
    "counts_of_counts": "SELECT n, count(*) AS m FROM counts GROUP BY n",
    "top": "SELECT id, v FROM t ORDER BY v DESC, id LIMIT 10",
    "pairs": "SELECT a.id, b.v FROM t a JOIN t b ON a.id = b.id + 1",
    "distinct_values": "SELECT k, count(DISTINCT v) AS d, max(v) AS m FROM t GROUP BY k",
    "previous": "SELECT id, lag(v) OVER (PARTITION BY k ORDER BY id) AS p FROM t",
    "above_average": "SELECT id FROM t WHERE v > (SELECT avg(v) FROM t)",
    "sevenths": "SELECT id, upper(s) AS u FROM t WHERE v % 7 = 0",
}
EIGHT_ROWS = 1_000
LINES = 5_000
WARM_UP = 2  # epochs, and runs of batch Spark, that aren't timed


@dataclass(slots=True)
class Work:
    """The measurements of one row of the table.

    Attributes:
        made: seconds to create the views.
        epochs: seconds of each timed epoch.
        cpu: CPU seconds of each timed epoch, of the process tree.
        batch: seconds of each run of the same query in batch Spark over Parquet files.
        lanes: in how many views the last epoch ran in each lane.
        equal: whether `verify` found the views equal.
    """

    name: str
    made: float = 0.0
    epochs: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    lanes: dict[str, int] = field(default_factory=dict)
    equal: bool = True

    def cells(self) -> list[str]:
        """Return the row of the table."""
        epoch, batch = median(self.epochs), median(self.batch)
        lanes = ", ".join(f"{count} {lane}" for lane, count in sorted(self.lanes.items()))
        return [
            self.name,
            f"{self.made:.1f}",
            *(f"{1e3 * seconds:,.0f}" for seconds in (epoch, max(self.epochs), median(self.cpu))),
            f"{1e3 * batch:,.0f}" if self.batch else "",
            f"{batch / epoch:.1f}" if self.batch else "",
            lanes,
        ]


@dataclass(frozen=True, slots=True)
class SmallResult:
    """The measurements of all work.

    Attributes:
        title: the first line of the text.
        suite: the benchmark whose queries were timed one by one, and beside batch Spark.
    """

    title: str
    suite: str
    work: list[Work]

    @property
    def equal(self) -> bool:
        """Whether all views are equal to offline SQL."""
        return all(one.equal for one in self.work)

    @property
    def mean(self) -> float:
        """Geometric mean of the epochs of the suite's queries one by one, in seconds; NaN without any."""
        single = [median(one.epochs) for one in self.work if one.batch]
        return float(np.exp(np.mean(np.log(single)))) if single else float("nan")

    def text(self) -> str:
        """Format the result as a table."""
        header = ["", "made s", "epoch ms", "longest", "CPU ms", "batch ms", "ratio", "lanes"]
        return "\n".join(
            [
                self.title,
                aligned(header, [one.cells() for one in self.work]),
                f"  {self.suite} one by one, geometric mean: {1e3 * self.mean:.0f} ms an epoch",
                verdict(self.equal),
            ]
        )


def run(
    *,
    rows: int = 150,
    repeat: int = 10,
    cores: int = 2,
    scale: float = 0.1,
    queries: Sequence[str] = tuple(tpch.QUERIES),
) -> SmallResult:
    """Time small epochs.

    Args:
        rows: number of orders that each epoch of TPC-H inserts, and deletes, with their lines.
        repeat: number of timed epochs of each work.
        cores: number of cores of the local session.
        scale: scale factor of TPC-H.
        queries: the queries of TPC-H to run one by one, and then all together.
    """
    require("tpchgen-cli", "the tables of TPC-H need")
    with bench_session(cores) as spark:
        work = [_eight(spark, repeat), _web_statistics(spark, repeat)]
        work += _tpch(spark, rows, repeat, scale, queries)
    title = (
        f"small changes: {EIGHT_ROWS:,} rows, {LINES:,} lines, TPC-H at scale {scale:g} "
        f"with {rows} orders in and {rows} out; medians"
    )
    return SmallResult(title, "TPC-H", work)


def _eight(spark: SparkSession, repeat: int) -> Work:
    work, random = Work("8 small views"), np.random.default_rng(0)
    with new_engine(spark) as engine:
        table = engine.table("t", "id BIGINT, k INT, v INT, s STRING")

        def change(number: int) -> None:
            ids = np.arange(number * EIGHT_ROWS, (number + 1) * EIGHT_ROWS)
            words = pa.array(np.char.add("s", (ids % 17).astype(str)))
            k, v = (random.integers(0, limit, len(ids)) for limit in (200, 1001))
            table.insert(pa.table({"id": ids, "k": k, "v": v, "s": words}))

        timed(engine, work, EIGHT, change, repeat)
    return work


def _web_statistics(spark: SparkSession, repeat: int) -> Work:
    work = Work("web statistics")
    lines = demo.made_up_lines((repeat + WARM_UP) * LINES, 1)
    with new_engine(spark) as engine:
        started = time.perf_counter()
        table, views = demo.create(engine)
        work.made = time.perf_counter() - started
        work.name = f"web statistics, {len(views)} views"

        def change(number: int) -> None:
            part = list(itertools.islice(lines, LINES))
            table.insert(list(zip(part, itertools.count(number * LINES), strict=False)))

        _epochs(engine, work, list(views), change, repeat)
    return work


def _tpch(
    spark: SparkSession, changed: int, repeat: int, scale: float, queries: Sequence[str]
) -> list[Work]:
    """Time each query alone, then all together."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
        new_engine(spark) as engine,
    ):
        tables = tpch.generate(Path(folder), scale)
        handles = {
            name: engine.table(name, from_arrow_schema(rows.schema), tpch.KEYS[name])
            for name, rows in tables.items()
        }
        for name, rows in tables.items():
            handles[name].insert(rows)
        engine.advance()
        batch = spark.newSession()
        for name in tables:
            batch.read.parquet(f"{folder}/{name}.parquet").createOrReplaceTempView(name)
        change = _orders(handles, tables, changed)
        for name in queries:
            work = Work(name)
            timed(engine, work, {name: tpch.QUERIES[name]}, change, repeat)
            engine.drop("view", name)
            for number in range(WARM_UP + 3):
                started = time.perf_counter()
                batch.sql(tpch.QUERIES[name]).toArrow()
                if number >= WARM_UP:
                    work.batch.append(time.perf_counter() - started)
            found.append(work)
        together = Work(f"all {len(queries)} together")
        timed(engine, together, {name: tpch.QUERIES[name] for name in queries}, change, repeat)
    return [*found, together]


def _orders(
    handles: Mapping[str, Table], tables: Mapping[str, pa.Table], changed: int
) -> Callable[[int], None]:
    """Return a change: some orders go with their lines, and those that went before come back."""
    orders, lines = tables["orders"], tables["lineitem"]
    keys = np.random.default_rng(0).permutation(orders["o_orderkey"].to_numpy())
    parts = itertools.cycle(np.array_split(keys, max(len(keys) // changed, 2)))
    away: list[tuple[pa.Table, pa.Table]] = []

    def change(_: int) -> None:
        wanted = pa.array(next(parts))
        rows = (
            orders.filter(pc.is_in(orders["o_orderkey"], wanted)),
            lines.filter(pc.is_in(lines["l_orderkey"], wanted)),
        )
        away.append(rows)
        for name, gone in zip(("orders", "lineitem"), rows, strict=True):
            handles[name].delete(gone)
        if len(away) > 1:
            for name, back in zip(("orders", "lineitem"), away.pop(0), strict=True):
                handles[name].insert(back)

    return change


def timed(
    engine: Engine,
    work: Work,
    queries: Mapping[str, str],
    change: Callable[[int], None],
    repeat: int,
) -> None:
    """Create views, then time epochs."""
    started = time.perf_counter()
    for name, query in queries.items():
        engine.view(name, query)
    work.made = time.perf_counter() - started
    _epochs(engine, work, list(queries), change, repeat)


def _epochs(
    engine: Engine, work: Work, views: Sequence[str], change: Callable[[int], None], repeat: int
) -> None:
    for number in range(WARM_UP + repeat):
        change(number)
        with Meter() as meter:
            engine.advance()
        if number >= WARM_UP:
            work.epochs.append(meter.cost.seconds)
            work.cpu.append(meter.cost.cpu_seconds)
    progress = engine.progress()
    lanes = [] if progress is None else [progress.lanes.get(name, "none") for name in views]
    work.lanes = {lane: lanes.count(lane) for lane in lanes}
    work.equal = all(bool(engine.verify(name)) for name in views)


@contextmanager
def new_engine(spark: SparkSession) -> Iterator[Engine]:
    """Provide an engine over a storage that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as storage,
        Engine(storage, spark=spark) as engine,
    ):
        yield engine
