"""What grows with the number of epochs while the content stays as large as it is: files, bytes, memory."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline.options import Options
from eddyline.spark.processes import tree_rss
from eddyline.storage.files import folder_size
from eddyline_bench.measure import (
    aligned,
    appearing,
    bench_session,
    heap_bytes,
    median,
    verdict,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = 5000
KEYS = 50
RETAINED = 50
SAMPLES = 12
VIEWS = {
    "totals": "SELECT g, count(*) AS n, sum(v) AS total FROM facts GROUP BY g",
    "top": "SELECT id, v FROM facts ORDER BY v DESC, id LIMIT 10",
    "named": "SELECT f.id, f.v, n.name FROM facts f JOIN names n ON f.g = n.g WHERE f.v > 0.9",
    "seen": "SELECT key, count(*) AS n, max(at) AS last FROM lines GROUP BY key",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What there is after an epoch.

    Attributes:
        epoch: number of epochs before.
        milliseconds: median time of an epoch since the sample before.
        files: number of files of the storage.
        storage: their bytes.
        python: resident bytes of this process.
        heap: bytes of the JVM's heap that are in use after a garbage collection.
        resident: resident bytes of all processes, with the JVM and Python workers.
    """

    epoch: int
    milliseconds: float
    files: int
    storage: int
    python: int
    heap: int
    resident: int


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """Samples at equal distances, and the seconds of opening the storage at the end."""

    samples: list[Sample]
    opening: float
    equal: bool

    def ratio(self, name: str) -> float:
        """Return the mean of an attribute of samples in the last third of all, over that in the third before."""
        third = len(self.samples) // 3
        values = [float(getattr(sample, name)) for sample in self.samples]
        return sum(values[-third:]) / max(sum(values[-2 * third : -third]), 1e-9)

    def text(self) -> str:
        """Format the result as a table."""
        rows = [
            [
                f"{one.epoch:,}",
                f"{one.milliseconds:.0f}",
                f"{one.files:,}",
                *(f"{size / (1 << 20):.1f}" for size in (one.storage, one.python, one.heap, one.resident)),
            ]
            for one in self.samples
        ]  # fmt: skip
        names = ("milliseconds", "files", "storage", "python", "heap", "resident")
        rows.append(["ratio", *(f"{self.ratio(name):.2f}" for name in names)])
        heads = ["epochs", "ms", "files", "storage, MiB", "Python, MiB", "heap, MiB", "all, MiB"]
        return "\n".join(
            [
                f"growth: {KEYS} rows a table and stream an epoch, {IDS:,} ids; {RETAINED} epochs retained",
                aligned(heads, rows),
                f"ratio: the last third over the third before; opening at the end: {self.opening:.1f} s",
                verdict(self.equal),
            ]
        )


def run(*, rows: int = KEYS, repeat: int = 6000, cores: int = 2) -> GrowthResult:
    """Run many small epochs over a table whose content stays as large, and over a stream of files.

    Args:
        rows: number of rows an epoch of each.
        repeat: number of epochs.
        cores: number of cores of the local session.
    """
    chance, samples, times = random.Random(1), list[Sample](), list[float]()
    options = Options(retain_epochs=RETAINED)
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        storage, lines = Path(folder, "storage"), Path(folder, "lines")
        lines.mkdir()
        with Engine(str(storage), spark, options) as engine:
            facts = engine.table("facts", "id BIGINT, g INT, v DOUBLE", primary_key=("id",))
            names = engine.table("names", "g INT, name STRING", primary_key=("g",))
            names.insert(pa.table({"g": range(KEYS), "name": [f"group {g}" for g in range(KEYS)]}))
            engine.execute(
                f"CREATE STREAM lines (key INT, at BIGINT) USING json OPTIONS (path '{lines}')"
            )
            for name, query in VIEWS.items():
                engine.view(name, query)
            for number in range(1, repeat + 1):
                ids = chance.sample(range(IDS), rows)
                values = [chance.random() for _ in ids]
                changed = pa.table({"id": ids, "g": [i % KEYS for i in ids], "v": values})
                written = "".join(f'{{"key":{i % KEYS},"at":{number}}}\n' for i in ids)
                with appearing(lines / f"{number}.json") as hidden:
                    hidden.write_text(written)
                started = time.perf_counter()
                facts.upsert(changed)
                engine.advance()
                times.append(time.perf_counter() - started)
                if number % max(repeat // SAMPLES, 1) == 0:
                    samples.append(_sample(spark, storage, number, times))
                    times.clear()
        started = time.perf_counter()
        with Engine(str(storage), spark, options) as engine:
            opening = time.perf_counter() - started
            equal = bool(engine.verify())
    return GrowthResult(samples, opening, equal)


def _sample(spark: SparkSession, storage: Path, epoch: int, times: list[float]) -> Sample:
    gc.collect()
    heap = heap_bytes(spark)
    size, files = folder_size(storage)
    resident, python = tree_rss()
    milliseconds = median(times) * 1000
    return Sample(epoch, milliseconds, files, size, python, heap, resident)
