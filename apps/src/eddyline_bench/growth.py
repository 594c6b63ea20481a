"""What grows with the number of epochs while the content stays as large as it is: files, bytes, memory."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterable
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
        milliseconds: median time of an epoch, and of writing its input, since the sample before.
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

    title: str
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
                f"growth: {self.title}; {RETAINED} epochs retained",
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
    chance = random.Random(1)

    def prepare(engine: Engine, folder: Path) -> Callable[[int], object]:
        facts = engine.table("facts", "id BIGINT, g INT, v DOUBLE", primary_key=("id",))
        names = engine.table("names", "g INT, name STRING", primary_key=("g",))
        names.insert(pa.table({"g": range(KEYS), "name": [f"group {g}" for g in range(KEYS)]}))
        _create_lines(engine, folder)
        for name, query in VIEWS.items():
            engine.view(name, query)

        def change(number: int) -> None:
            ids = chance.sample(range(IDS), rows)
            values = [chance.random() for _ in ids]
            with appearing(folder / f"{number}.json") as hidden:
                hidden.write_text(_lines(ids, number))
            facts.upsert(pa.table({"id": ids, "g": [i % KEYS for i in ids], "v": values}))

        return change

    title = f"{rows} rows a table and stream an epoch, {IDS:,} ids"
    return _measured(title, prepare, repeat, cores)


def run_log(*, rows: int = 5, repeat: int = 10_000, cores: int = 2) -> GrowthResult:
    """Run very many epochs of one view over a log that grows by a few lines in each.

    Args:
        rows: number of lines an epoch.
        repeat: number of epochs.
        cores: number of cores of the local session.
    """

    def prepare(engine: Engine, folder: Path) -> Callable[[int], object]:
        _create_lines(engine, folder)
        engine.view("seen", VIEWS["seen"])

        def change(number: int) -> None:
            with (folder / "log.json").open("a") as log:
                log.write(_lines(range(number, number + rows), number))

        return change

    return _measured(f"a log grows by {rows} lines an epoch, one view", prepare, repeat, cores)


def _create_lines(engine: Engine, folder: Path) -> None:
    engine.execute(f"CREATE STREAM lines (key INT, at BIGINT) USING json OPTIONS (path '{folder}')")


def _lines(keys: Iterable[int], number: int) -> str:
    """Return lines of an epoch."""
    return "".join(f'{{"key":{key % KEYS},"at":{number}}}\n' for key in keys)


def _measured(
    title: str,
    prepare: Callable[[Engine, Path], Callable[[int], object]],
    repeat: int,
    cores: int,
) -> GrowthResult:
    """Time epochs, look at their storage from time to time, open it anew, and compare all views.

    Args:
        prepare: creates the relations, whose streams read a folder; returns what gives an epoch its input.
    """
    samples, times = list[Sample](), list[float]()
    options = Options(retain_epochs=RETAINED)
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        storage, lines = Path(folder, "storage"), Path(folder, "lines")
        lines.mkdir()
        with Engine(str(storage), spark, options) as engine:
            change = prepare(engine, lines)
            for number in range(1, repeat + 1):
                started = time.perf_counter()
                change(number)
                engine.advance()
                times.append(time.perf_counter() - started)
                if number % max(repeat // SAMPLES, 1) == 0:
                    samples.append(_sample(spark, storage, number, times))
                    times.clear()
        started = time.perf_counter()
        with Engine(str(storage), spark, options) as engine:
            opening = time.perf_counter() - started
            equal = bool(engine.verify())
    return GrowthResult(title, samples, opening, equal)


def _sample(spark: SparkSession, storage: Path, epoch: int, times: list[float]) -> Sample:
    gc.collect()
    heap = heap_bytes(spark)
    size, files = folder_size(storage)
    resident, python = tree_rss()
    milliseconds = median(times) * 1000
    return Sample(epoch, milliseconds, files, size, python, heap, resident)
