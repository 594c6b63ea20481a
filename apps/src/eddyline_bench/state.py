"""A large state: the time, memory and disk that a view of many groups takes, to be made and for small changes."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eddyline.api.engine import Engine
from eddyline.storage.files import folder_size
from eddyline_bench.measure import (
    PeakMemory,
    aligned,
    appearing,
    bench_session,
    median,
    verdict,
)

FILE_ROWS = 1_000_000
SMALL = (1_000, 100_000)
QUERY = "SELECT id, count(*) AS n, sum(v) AS total, max(name) AS last FROM events GROUP BY id"
TOTALS = "SELECT count(*) AS ids, sum(n) AS n, sum(total) AS total, max(last) AS last FROM"


@dataclass(frozen=True, slots=True)
class Stage:
    """Epochs of one size.

    Attributes:
        rows: number of rows that each reads.
        seconds: median time.
        memory: the most that processes had for themselves meanwhile.
        storage: bytes of the storage afterwards.
    """

    rows: int
    seconds: float
    memory: PeakMemory
    storage: int


@dataclass(frozen=True, slots=True)
class StateResult:
    """The epoch that makes the state, and smaller ones upon it."""

    stages: list[Stage]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        rows = [
            [
                f"{one.rows:,}",
                f"{one.seconds:.2f}",
                f"{one.rows / one.seconds:,.0f}",
                *(f"{size / (1 << 20):,.0f}" for size in _sizes(one)),
            ]
            for one in self.stages
        ]
        heads = ["rows an epoch", "s", "rows/s", "Python", "JVM", "worker", "storage"]
        return "\n".join(
            [
                "state: a view with as many groups as the first epoch has rows; MiB, of memory the most",
                aligned(heads, rows),
                verdict(self.equal),
            ]
        )


def _sizes(stage: Stage) -> tuple[int, ...]:
    memory = stage.memory
    return memory.python, memory.jvm, memory.worker, stage.storage


def run(*, rows: int = 5_000_000, repeat: int = 5, cores: int = 2) -> StateResult:
    """Make a view of `rows` groups from Parquet files, then change some of them.

    Args:
        rows: number of groups.
        repeat: number of epochs of each smaller size.
        cores: number of cores of the local session.
    """
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        storage, files = Path(folder, "storage"), Path(folder, "files")
        files.mkdir()
        chance = np.random.default_rng(1)
        with Engine(str(storage), spark) as engine:
            for start in range(0, rows, FILE_ROWS):
                ids = np.arange(start, min(start + FILE_ROWS, rows))
                _put(files / f"0-{start}.parquet", chance, ids * 7919 % rows)
            engine.execute(
                "CREATE STREAM events (id BIGINT, v BIGINT, name STRING) USING parquet "
                f"OPTIONS (path '{files}')"
            )
            engine.view("totals", QUERY)
            stages = []
            for number, size in enumerate((rows, *SMALL)):
                times = []
                with PeakMemory() as memory:
                    for repetition in range(repeat if number else 1):
                        if number:
                            ids = chance.integers(0, rows, size)
                            _put(files / f"{number}-{repetition}.parquet", chance, ids)
                        started = time.perf_counter()
                        engine.advance()
                        times.append(time.perf_counter() - started)
                stages.append(Stage(size, median(times), memory, folder_size(storage)[0]))
            engine.view("live", f"{TOTALS} totals")
            engine.advance()
            live = engine.snapshot("live").collect()
        spark.read.parquet(str(files)).createOrReplaceTempView("events")
        offline = spark.sql(f"{TOTALS} ({QUERY})").collect()
        spark.catalog.dropTempView("events")
    return StateResult(stages, live == offline)


def _put(path: Path, chance: np.random.Generator, ids: np.ndarray) -> None:
    """Add a file of events."""
    values = chance.integers(0, 1000, len(ids))
    names = pa.array(values).cast(pa.string())
    with appearing(path) as hidden:
        pq.write_table(pa.table({"id": ids, "v": values, "name": names}), hidden)
