"""Epoch time of the two-level count (by key, then by that count), and where it goes."""

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
    """Seconds of each epoch, whole and by stage."""

    delta: int
    epochs: list[float]
    stages: dict[str, list[float]]
    equal: bool

    @property
    def seconds(self) -> float:
        """Median seconds of an epoch."""
        return median(self.epochs)

    def text(self) -> str:
        """The result as a short table."""
        stages = {name: median(seconds) for name, seconds in self.stages.items()}
        stages["other"] = max(self.seconds - sum(stages.values()), 0.0)
        rows = [
            [name, f"{seconds * 1000:.0f}", f"{seconds / self.seconds:.0%}"]
            for name, seconds in [*stages.items(), ("epoch", self.seconds)]
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
    repeat: int = 20,
    cores: int = 2,
) -> TwoLevelResult:
    """Time `repeat` epochs after five to warm up.

    Args:
        rows: rows inserted in each epoch.
        keys: keys that they are spread over.
        history: rows that the table holds before.
        repeat: timed epochs.
        cores: cores of the local session.
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
