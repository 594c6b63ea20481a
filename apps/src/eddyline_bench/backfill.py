"""Making a view over many rows: in one go and in pieces, beside inserts, and after a kill in the middle."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline.api.handles import Table
from eddyline.errors import StateError
from eddyline.options import Options
from eddyline.state.fillings import checkpoints
from eddyline.storage.files import Files
from eddyline_apps.processes import kill_session
from eddyline_bench.measure import aligned, bench_session, median, verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECES = 8
INSERTED = 100
VIEWS = {
    "count": "SELECT g, count(*) AS n, sum(v) AS total FROM facts GROUP BY g",
    "keys": "SELECT k, count(*) AS n FROM facts GROUP BY k",
    "join": "SELECT f.id, f.v, n.name FROM facts f JOIN names n ON f.g = n.g WHERE f.v > 0.5",
}
KILLED = "join"


@dataclass(frozen=True, slots=True)
class Made:
    """Median seconds of making a view.

    Attributes:
        spark: of the query in batch Spark, over Parquet files into Parquet files.
        one_go, pieces: of the view, from all rows at once and in pieces.
        beside: in pieces, while rows are inserted.
        insert, epoch: the slowest insert, and the slowest insert with its epoch, meanwhile.
    """

    spark: float
    one_go: float
    pieces: float
    beside: float
    insert: float
    epoch: float


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The costs of a backfill.

    Attributes:
        rows: of the table.
        views: by name of the view.
        insert, epoch: the slowest insert, and insert with its epoch, while no view is made.
        whole: seconds to make a view in pieces, in a process that has just begun.
        killed: seconds until a process was killed that made it, and how many pieces it had stored.
        resumed: seconds in which the next process made it.
        equal: whether all views were equal to offline SQL.
    """

    rows: int
    views: dict[str, Made]
    insert: float
    epoch: float
    whole: float
    killed: tuple[float, int]
    resumed: float
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        head = ["view", "Spark s", "one go s", "pieces s", "rows/s", "ratio", "beside s", "insert ms", "epoch ms"]  # fmt: skip
        table = [
            [
                name,
                *(f"{seconds:.1f}" for seconds in (one.spark, one.one_go, one.pieces)),
                f"{self.rows / one.pieces:,.0f}",
                f"{one.pieces / one.one_go:.2f}",
                f"{one.beside:.1f}",
                f"{one.insert * 1000:.0f}",
                f"{one.epoch * 1000:.0f}",
            ]
            for name, one in self.views.items()
        ]
        seconds, pieces = self.killed
        return "\n".join(
            [
                f"backfill: {self.rows:,} rows, {PIECES} pieces; beside it {INSERTED} rows are inserted at a time",
                aligned(head, table),
                f"  ratio: in pieces over one go; the slowest insert and epoch meanwhile. Alone: {self.insert * 1000:.0f} and {self.epoch * 1000:.0f} ms",
                f"  {KILLED} in a new process: {self.whole:.1f} s; killed after {seconds:.1f} s and {pieces} pieces, made by the next process in {self.resumed:.1f} s",
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 4_000_000, repeat: int = 3, cores: int = 2) -> BackfillResult:
    """Make views over a table.

    Args:
        rows: of the table.
        repeat: how often each view is made; the first time doesn't count, if there is another one.
        cores: of the local session.
    """
    views, equal = dict[str, Made](), True
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder:
        storage = str(Path(folder, "storage"))
        with bench_session(cores) as spark, Engine(storage, spark) as engine:
            facts = _filled(engine, rows)
            files = str(Path(folder, "facts"))
            engine.snapshot("facts").write.parquet(files)
            alone = _Inserts(engine, facts, rows)
            with alone:
                time.sleep(min(5.0, rows / 500_000))
            for name, query in VIEWS.items():
                batch = _batch(spark, Path(folder), files, query, repeat)
                one_go = _made(engine, query, 0, repeat)
                pieces = _made(engine, query, rows // PIECES, repeat)
                inserts = _Inserts(engine, facts, alone.next)
                with inserts:
                    beside = _made(engine, query, rows // PIECES, 1, keep=True)
                equal = equal and bool(engine.verify("made"))
                engine.drop("view", "made")
                alone.next = inserts.next
                views[name] = Made(batch, one_go, pieces, beside, inserts.insert, inserts.epoch)
        whole, _, _ = _in_process(storage, rows, cores)
        killed, stored, _ = _in_process(storage, rows, cores, PIECES // 2)
        resumed, _, fine = _in_process(storage, rows, cores)
        equal = equal and fine
    return BackfillResult(
        rows, views, alone.insert, alone.epoch, whole, (killed, stored), resumed, equal
    )


def _filled(engine: Engine, rows: int) -> Table:
    """Make the tables; return the large one."""
    rnd, columns = np.random.default_rng(1), "id BIGINT, k BIGINT, g INT, v DOUBLE"
    facts = engine.table("facts", columns, primary_key=("id",))
    names = engine.table("names", "g INT, name STRING")
    names.insert(pa.table({"g": range(1000), "name": [f"group {g}" for g in range(1000)]}))
    for part in range(4):
        ids = np.arange(part * rows // 4, (part + 1) * rows // 4)
        keys, groups = rnd.integers(0, max(rows // 10, 1), len(ids)), rnd.integers(0, 1000, len(ids))  # fmt: skip
        facts.insert(pa.table({"id": ids, "k": keys, "g": groups, "v": rnd.random(len(ids))}))
        engine.advance()
    return facts


def _batch(spark: SparkSession, folder: Path, facts: str, query: str, repeat: int) -> float:
    """Return the median seconds of a query in batch Spark."""
    spark.read.parquet(facts).createOrReplaceTempView("facts")
    names = [(g, f"group {g}") for g in range(1000)]
    spark.createDataFrame(names, "g INT, name STRING").createOrReplaceTempView("names")
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        spark.sql(query).write.mode("overwrite").parquet(str(folder / "result"))
        times.append(time.perf_counter() - started)
    return median(times[1:] or times)


def _made(engine: Engine, query: str, fill_rows: int, repeat: int, *, keep: bool = False) -> float:
    """Return the median seconds of making a view."""
    workspace, times = engine._workspace, []  # noqa: SLF001  # all in one engine: its code is compiled once
    workspace.options = dataclasses.replace(workspace.options, fill_rows=fill_rows)
    for _ in range(repeat):
        started = time.perf_counter()
        engine.view("made", query)
        times.append(time.perf_counter() - started)
        if not keep:
            engine.drop("view", "made")
    return median(times[1:] or times)


class _Inserts:
    """Inserts rows and runs epochs in a thread, in a `with` block.

    Attributes:
        next: the id of the next row.
        insert, epoch: seconds of the slowest insert, and of the slowest insert with its epoch.
    """

    def __init__(self, engine: Engine, table: Table, first: int) -> None:
        self.next = first
        self.insert = self.epoch = 0.0
        self._engine, self._table = engine, table
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            ids = range(self.next, self.next + INSERTED)
            rows = {"id": ids, "k": ids, "g": [i % 1000 for i in ids], "v": [0.75] * INSERTED}
            started = time.perf_counter()
            self._table.insert(pa.table(rows))
            self.insert = max(self.insert, time.perf_counter() - started)
            self._engine.advance()
            self.epoch = max(self.epoch, time.perf_counter() - started)
            self.next += INSERTED


def _in_process(
    storage: str, rows: int, cores: int, kill_after: int = 0
) -> tuple[float, int, bool]:
    """Make a view in a process of its own.

    Args:
        kill_after: number of pieces after which it is killed; 0 to let it end.

    Returns:
        Seconds, stored pieces, and whether the view is equal to offline SQL.
    """
    call = f"from {__name__} import child; child({storage!r}, {rows // PIECES}, {cores})"
    process = subprocess.Popen(
        [sys.executable, "-c", call],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("begun"):
                break
        started, stored = time.perf_counter(), 0
        while kill_after and stored < kill_after and process.poll() is None:
            time.sleep(0.01)
            for one in checkpoints(Files(storage)):
                try:
                    stored = one.done().pieces
                except StateError:  # there is none yet
                    continue
        if kill_after:
            return time.perf_counter() - started, stored, True
        answer = json.loads(process.stdout.readline())
        process.wait()
        return answer["seconds"], 0, answer["equal"]
    finally:
        kill_session(process)
        process.stdout.close()


def child(storage: str, fill_rows: int, cores: int) -> None:
    """Make a view; print its seconds, and whether it is equal to offline SQL."""
    options = Options(fill_rows=fill_rows)
    with bench_session(cores) as spark, Engine(storage, spark, options) as engine:
        print("begun", flush=True)
        started = time.perf_counter()
        engine.view("made", VIEWS[KILLED])
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "equal": bool(engine.verify("made"))}), flush=True)
        engine.drop("view", "made")
