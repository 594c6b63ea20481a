"""By how much a console with many browsers slows an engine's epochs: alternately with and without the browsers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from eddyline.api.engine import Engine
from eddyline.api.handles import Table
from eddyline.spark.processes import tree_cpu_seconds
from eddyline_bench.console_load import READY, main
from eddyline_bench.measure import (
    aligned,
    bench_session,
    median,
    process_cpu_seconds,
    require,
    verdict,
)
from eddyline_bench.page import Machine
from eddyline_bench.small import EIGHT, new_engine

ASKERS = 16
"""The connections on which requests are sent."""
ROWS = 1_000
SMALL = ("counts_of_counts", "top")
WARM_UP = 5  # epochs that aren't timed


@dataclass(slots=True)
class Phase:
    """What was measured with, or without, the browsers.

    Attributes:
        epochs: seconds of each epoch.
        cpu: CPU seconds of the engine's process and its JVM in each epoch.
        seconds: the time that all took.
        used: CPU seconds of the console and of the browsers meanwhile.
        loads: what the browsers have counted, of each round.
    """

    epochs: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    seconds: float = 0.0
    used: dict[str, float] = field(default_factory=lambda: {"console": 0.0, "browsers": 0.0})
    loads: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsoleResult:
    """The measurements.

    Attributes:
        quiet, loaded: without and with the browsers.
        rounds: for each round the medians of its epochs without and with them.
    """

    title: str
    machine: Machine
    quiet: Phase
    loaded: Phase
    rounds: list[tuple[float, float]]
    equal: bool

    @property
    def slower(self) -> float:
        """By which factor epochs are slower with browsers: the median over the rounds."""
        return median(loaded / quiet for quiet, loaded in self.rounds)

    def text(self) -> str:
        """Format the result as a table."""
        header = ["", "epochs", "epoch ms", "engine CPU ms", "engine", "console", "browsers"]
        rows = [
            [
                name,
                str(len(phase.epochs)),
                f"{1e3 * median(phase.epochs):,.0f}",
                f"{1e3 * median(phase.cpu):,.0f}",
                f"{sum(phase.cpu) / phase.seconds:.0%}",
                *(f"{used / phase.seconds:.0%}" for used in phase.used.values()),
            ]
            for name, phase in (("without browsers", self.quiet), ("with browsers", self.loaded))
        ]
        loads = self.loaded.loads
        answered = sum(one["answered"] for one in loads)
        due = sum(one["due"] for one in loads)
        factors = ", ".join(f"{loaded / quiet:.2f}" for quiet, loaded in self.rounds)
        return "\n".join(
            [
                self.title,
                f"  {self.machine}",
                aligned(header, rows),
                f"  epochs take {self.slower:.2f} times as long with browsers; by round: {factors}",
                f"  requests: {answered / self.loaded.seconds:,.0f}/s answered, {answered / due:.0%} of those due; "
                f"median {1e3 * median(one['median_s'] for one in loads):.1f} ms, "
                f"99 % within {1e3 * max(one['p99_s'] for one in loads):.0f} ms; "
                f"{sum(one['failed'] for one in loads):.0f} failed, {sum(one['lost'] for one in loads):.0f} connections lost; "
                f"{sum(one['events'] for one in loads):,.0f} events",
                verdict(self.equal),
            ]
        )


def run(
    *,
    rows: int = ROWS,
    repeat: int = 4,
    cores: int = 2,
    browsers: int = 200,
    rate: int = 1_000,
    seconds: float = 8.0,
    interval: float = 0.5,
) -> ConsoleResult:
    """Time epochs, alternately with and without browsers.

    Each browser has the two streams of events that the page of a view has. Requests are for small views, half
    for pages and half for JSON.

    Args:
        rows: number of rows that each epoch inserts.
        repeat: number of rounds, each once with and once without browsers.
        cores: number of cores of the local session.
        browsers: number of browsers.
        rate: requests a second, of all together.
        seconds: how long each half of a round takes.
        interval: seconds from the begin of an epoch to that of the next one.
    """
    require("uvicorn", "the console needs")
    machine = Machine.now()
    with bench_session(cores) as spark, _shop(spark) as (engine, table):
        random, number = np.random.default_rng(0), 0

        def epoch() -> None:
            nonlocal number
            ids = np.arange(number * rows, (number + 1) * rows)
            number += 1
            words = pa.array(np.char.add("s", (ids % 17).astype(str)))
            k, v = (random.integers(0, limit, len(ids)) for limit in (200, 1001))
            table.upsert(pa.table({"id": ids % (20 * rows), "k": k, "v": v, "s": words}))
            engine.advance()

        def epochs(phase: Phase, others: Sequence[int]) -> float:
            timed: list[float] = []
            end = time.perf_counter() + seconds
            while (started := time.perf_counter()) < end:
                before = _cpu_without(others)
                epoch()
                timed.append(time.perf_counter() - started)
                phase.cpu.append(_cpu_without(others) - before)
                time.sleep(max(0.0, started + interval - time.perf_counter()))
            phase.epochs += timed
            return median(timed)

        for _ in range(WARM_UP + 20):
            epoch()
        quiet, loaded, rounds = Phase(), Phase(), []
        with _console(engine.files.root) as (console, port):
            for turn in range(repeat):
                halves: dict[str, float] = {}
                for name in ("quiet", "loaded") if turn % 2 == 0 else ("loaded", "quiet"):
                    phase = quiet if name == "quiet" else loaded
                    busy = name == "loaded"
                    with _measured(phase, console, port, browsers, rate, busy=busy) as others:
                        halves[name] = epochs(phase, others)
                rounds.append((halves["quiet"], halves["loaded"]))
        equal = all(bool(engine.verify(name)) for name in EIGHT)
    title = (
        f"console: {browsers} browsers with two streams each, {rate:,} requests/s, eight small views, "
        f"{rows:,} rows an epoch, one each {interval:g} s; medians"
    )
    return ConsoleResult(title, machine, quiet, loaded, rounds, equal)


@contextmanager
def _shop(spark: SparkSession) -> Iterator[tuple[Engine, Table]]:
    with new_engine(spark) as engine:
        table = engine.table("t", "id BIGINT, k INT, v INT, s STRING", ["id"])
        for name, query in EIGHT.items():
            engine.view(name, query)
        yield engine, table


@contextmanager
def _console(storage: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the console beside the engine; yield its process and port."""
    command = [sys.executable, "-m", "eddyline", "console", "--storage", storage, "--port", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = urlparse(child.stdout.readline().strip()).port
        assert port is not None
        yield child, port
    finally:
        child.terminate()
        child.wait()


@contextmanager
def _measured(
    phase: Phase,
    console: subprocess.Popen[str],
    port: int,
    browsers: int,
    rate: int,
    *,
    busy: bool,
) -> Iterator[Sequence[int]]:
    """Let browsers ask during the context, if `busy`; add what was measured to the phase.

    Yields:
        The ids of the processes that aren't the engine's.
    """
    child = _browsers(port, browsers, rate) if busy else None
    pids = {"console": console.pid, **({"browsers": child.pid} if child else {})}
    before = {name: process_cpu_seconds(pid) for name, pid in pids.items()}
    started = time.perf_counter()
    yield list(pids.values())
    phase.seconds += time.perf_counter() - started
    for name, pid in pids.items():
        phase.used[name] += process_cpu_seconds(pid) - before[name]
    if child is not None:
        output, _ = child.communicate("")
        phase.loads.append(json.loads(output))


def _cpu_without(others: Sequence[int]) -> float:
    """Return the CPU seconds of this process and its descendants, without those of some."""
    return tree_cpu_seconds() - sum(process_cpu_seconds(process) for process in others)


def _browsers(port: int, browsers: int, rate: int) -> subprocess.Popen[str]:
    """Start the browsers, and wait until all their streams are open."""
    views = list(EIGHT)
    streams = ["/api/events"] * browsers
    streams += [f"/api/views/{views[i % len(views)]}/changes?as=texts" for i in range(browsers)]
    paths = [path for view in SMALL for path in (f"/views/{view}", f"/api/views/{view}")]
    given = {"port": port, "rate": rate, "streams": streams, "paths": paths, "askers": ASKERS}
    start = f"from {main.__module__} import main; main()"
    command = [sys.executable, "-c", start, json.dumps(given)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if child.stdout.readline().strip() != READY:
        child.kill()
        raise RuntimeError("the browsers have not come up")
    return child
