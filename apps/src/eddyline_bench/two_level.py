"""Epoch time of a two-level count (rows by key, then keys by count), and its breakdown by stage."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict

QUERY = """
    SELECT n, count(*) AS keys FROM (SELECT a, count(*) AS n FROM t GROUP BY a) GROUP BY n
"""


@dataclass(frozen=True, slots=True)
class TwoLevelResult:
    """Seconds of each timed epoch, in total and by stage; `delta` is the rows of an epoch."""

    delta: int
    epochs: list[float]
    stages: dict[str, list[float]]
    equal: bool

    @property
    def seconds(self) -> float:
        """Median duration of an epoch."""
        return median(self.epochs)

    @property
    def p99(self) -> float:
        """The duration that 99 % of the epochs don't exceed."""
        return float(np.quantile(self.epochs, 0.99))

    def text(self) -> str:
        """Format the result as a table."""
        stages = {name: median(seconds) for name, seconds in self.stages.items()}
        stages["other"] = max(self.seconds - sum(stages.values()), 0.0)
        rows = [
            [name, f"{seconds * 1000:.0f}", f"{seconds / self.seconds:.0%}"]
            for name, seconds in [*stages.items(), ("epoch", self.seconds), ("p99", self.p99)]
        ]
        return "\n".join(
            [
                f"two levels: epochs of {self.delta:,} rows, median of {len(self.epochs)}",
                aligned(["", "ms", "share"], rows),
                verdict(self.equal),
            ]
        )


def run(
    *,
    rows: int = 1000,
    keys: int = 10_000,
    history: int = 100_000,
    repeat: int = 200,
    cores: int = 2,
) -> TwoLevelResult:
    """Time `repeat` epochs after five untimed ones.

    Args:
        rows: number of rows inserted in each epoch.
        keys: number of distinct keys.
        history: number of rows in the table before the first epoch.
        repeat: number of timed epochs.
        cores: number of cores of the local session.
    """
    random = np.random.default_rng(0)
    epochs: list[float] = []
    stages: dict[str, list[float]] = {}
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as storage,
        Engine(storage, spark=spark) as engine,
    ):
        table = engine.table("t", "a BIGINT")
        engine.view("levels", QUERY)
        table.insert(pa.table({"a": random.integers(0, keys, history)}))
        engine.advance()
        for number in range(repeat + 5):
            table.insert(pa.table({"a": random.integers(0, keys, rows)}))
            with Meter() as meter:
                engine.advance()
            if number >= 5:
                epochs.append(meter.cost.seconds)
                progress = engine.progress()
                assert progress is not None
                for stage, seconds in progress.seconds.items():
                    stages.setdefault(stage, []).append(seconds)
        equal = bool(engine.verify())
    return TwoLevelResult(rows, epochs, stages, equal)
