"""What weaker delivery semantics save: the time of an insert and of an epoch under each of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline.api.workspace import UNFLUSHED
from eddyline.options import Options
from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict
from eddyline_bench.two_level import QUERY


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Seconds of each timed insert and epoch, by delivery semantics."""

    rows: int
    inserts: dict[str, list[float]]
    epochs: dict[str, list[float]]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        full = median(self.epochs["exactly_once"])
        rows = [
            [
                name,
                f"{median(self.inserts[name]) * 1000:.1f}",
                f"{median(self.epochs[name]) * 1000:.0f}",
                f"{median(self.epochs[name]) / full:.2f}",
            ]
            for name in self.epochs
        ]
        count = len(self.epochs["exactly_once"])
        return "\n".join(
            [
                f"delivery: two levels, epochs of {self.rows:,} rows, median of {count}",
                aligned(["", "insert ms", "epoch ms", "ratio"], rows),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 1000, repeat: int = 15, cores: int = 2) -> DeliveryResult:
    """Time inserts and epochs under each of the delivery semantics, alternating between them.

    Args:
        rows: number of rows inserted in each epoch.
        repeat: number of timed epochs of each.
        cores: number of cores of the local session.
    """
    random = np.random.default_rng(0)
    inserts: dict[str, list[float]] = {name: [] for name in UNFLUSHED}
    epochs: dict[str, list[float]] = {name: [] for name in UNFLUSHED}
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        engines = {
            name: Engine(f"{folder}/{name}", spark, Options(delivery=name)) for name in UNFLUSHED
        }
        for engine in engines.values():
            engine.table("t", "a BIGINT")
            engine.view("levels", QUERY)
        for number in range(repeat + 3):
            inserted = pa.table({"a": random.integers(0, 10_000, rows)})
            for name, engine in engines.items():
                with Meter() as inserting:
                    engine.table("t", "a BIGINT").insert(inserted)
                with Meter() as advancing:
                    engine.advance()
                if number >= 3:
                    inserts[name].append(inserting.cost.seconds)
                    epochs[name].append(advancing.cost.seconds)
        equal = all(bool(engine.verify()) for engine in engines.values())
        for engine in engines.values():
            engine.stop()
    return DeliveryResult(rows, inserts, epochs, equal)
