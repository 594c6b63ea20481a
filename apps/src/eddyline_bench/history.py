"""Epoch time for the same delta over a short history and over a many times longer one."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = {
    "aggregate": "SELECT g, count(*) AS n, sum(v) AS total FROM facts GROUP BY g",
    "join": "SELECT id, v, name FROM facts JOIN names USING (g)",
    "top 100": "SELECT id, v FROM facts ORDER BY v DESC, id LIMIT 100",
    # 16 groups, whatever the number of rows
    "extremes": "SELECT g % 16 AS g, min(v) AS low, max(v) AS high FROM facts GROUP BY g % 16",
    "percentiles": """
        SELECT g % 16 AS g, median(v) AS middle, percentile(v, 0.95) AS high FROM facts GROUP BY g % 16
    """,
    "top of group": """
        SELECT g % 16 AS part, id, v FROM facts
        QUALIFY row_number() OVER (PARTITION BY g % 16 ORDER BY v DESC, id) <= 3
    """,
    "previous row": """
        SELECT id, v - lag(v) OVER (PARTITION BY g % 16 ORDER BY v, id) AS step FROM facts
    """,
    "moving average": """
        SELECT id, avg(v) OVER (PARTITION BY g % 16 ORDER BY id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
            AS mean FROM facts
    """,
    "running sum": """
        SELECT id, sum(v) OVER (PARTITION BY g % 16 ORDER BY id) AS total FROM facts
    """,
}
APPENDED = frozenset(("running sum",))
"""Queries whose epochs only have new rows: another one changes the results of all that follow it."""

ROWS_PER_GROUP = 10


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """Seconds of each timed epoch by query, over `rows` and over `rows * factor` rows of history."""

    rows: int
    factor: int
    delta: int
    short: dict[str, list[float]]
    long: dict[str, list[float]]
    equal: bool

    @property
    def ratios(self) -> dict[str, float]:
        """By query: the median epoch over the long history divided by that over the short one."""
        return {name: median(self.long[name]) / median(self.short[name]) for name in self.short}

    def text(self) -> str:
        """Format the result as a table."""
        rows = [
            [
                name,
                f"{median(self.short[name]) * 1000:.0f}",
                f"{median(self.long[name]) * 1000:.0f}",
                f"{ratio:.2f}",
            ]
            for name, ratio in self.ratios.items()
        ]
        repeat = len(next(iter(self.short.values())))
        return "\n".join(
            [
                f"history: epochs of {self.delta:,} changed rows, median of {repeat}",
                aligned(
                    [
                        "",
                        f"{self.rows:,} rows, ms",
                        f"{self.rows * self.factor:,} rows, ms",
                        "ratio",
                    ],
                    rows,
                ),
                verdict(self.equal),
            ]
        )


def run(
    *, rows: int = 10_000, factor: int = 100, delta: int = 1000, repeat: int = 9, cores: int = 2
) -> HistoryResult:
    """Time the same kind of epoch over both histories alternately, for each query of `SHAPES`.

    Half of the rows of an epoch's delta replace rows, the other half are new; for those of `APPENDED` all are.

    Args:
        rows: number of rows of the short history.
        factor: length of the long history relative to the short one.
        delta: number of rows upserted in an epoch.
        repeat: number of timed epochs of each.
        cores: number of cores of the local session.
    """
    short: dict[str, list[float]] = {}
    long: dict[str, list[float]] = {}
    equal = True
    with bench_session(cores) as spark:
        for name, query in SHAPES.items():
            with (
                tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
                ExitStack() as stack,
            ):
                sides = [
                    stack.enter_context(LiveQuery(spark, f"{folder}/{size}", query, size))
                    for size in (rows, rows * factor)
                ]
                times: list[list[float]] = [[], []]
                # The first two epochs warm up and are not counted.
                for number in range(repeat + 2):
                    for side, seconds in zip(sides, times, strict=True):
                        replaced = 0 if name in APPENDED else delta // 2
                        seconds.append(side.epoch(delta, number, replaced))
                short[name], long[name] = (seconds[2:] for seconds in times)
                equal = equal and all(side.is_equal() for side in sides)
    return HistoryResult(rows, factor, delta, short, long, equal)


class LiveQuery:
    """An engine with one view over a history of `rows` rows."""

    def __init__(self, spark: SparkSession, storage: str, query: str, rows: int) -> None:
        self.rows = rows
        self.groups = max(rows // ROWS_PER_GROUP, 1)
        self.engine = Engine(storage, spark=spark)
        self.facts = self.engine.table(
            "facts", "id BIGINT, g BIGINT, v BIGINT", primary_key=("id",)
        )
        names = self.engine.table("names", "g BIGINT, name STRING", primary_key=("g",))
        group = np.arange(self.groups)
        names.insert(pa.table({"g": group, "name": [f"group {g}" for g in group]}))
        self.facts.insert(self.changes(np.arange(rows), seed=0))
        self.engine.view("live", query)
        self.engine.advance()

    def __enter__(self) -> LiveQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def changes(self, ids: np.ndarray, seed: int) -> pa.Table:
        """Generate rows of `facts` with these ids and random values."""
        random = np.random.default_rng(seed)
        count = len(ids)
        return pa.table(
            {
                "id": ids,
                "g": random.integers(0, self.groups, count),
                "v": random.integers(0, 1_000_000, count),
            }
        )

    def epoch(self, delta: int, number: int, replaced: int) -> float:
        """Upsert `delta` rows, some of them there already; return the seconds that the next epoch takes."""
        random = np.random.default_rng(number)
        old = random.choice(self.rows, replaced, replace=False)
        first = self.rows + number * delta
        new = np.arange(first, first + delta - len(old))
        self.facts.upsert(self.changes(np.concatenate([old, new]), seed=number + 1))
        with Meter() as meter:
            self.engine.advance()
        return meter.cost.seconds

    def is_equal(self) -> bool:
        """Return whether the view equals the same query run offline."""
        return bool(self.engine.verify())
