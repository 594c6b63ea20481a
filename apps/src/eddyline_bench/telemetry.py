"""What it costs to be watched: epochs of small views with metrics, traces or lineage events, and without."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from unittest.mock import patch
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from eddyline.api.engine import Engine
from eddyline.options import Options
from eddyline_bench.measure import Meter, aligned, bench_session, median, verdict
from eddyline_bench.small import EIGHT

WITHOUT, METRICS, TRACES, LINEAGE = "without", "metrics", "traces", "lineage"
MODES = (WITHOUT, METRICS, TRACES, LINEAGE)
BLOCK = 25
"""So many epochs of one engine follow each other; then its metrics are scraped once."""

EXPORT_MS, EVENTS_S = 1000, 5
"""Spans and events are sent so often. That is 5 and 12 times as often as by default, so that it falls into the block."""

SETTLE_S = 1.2
"""After a block, what is sent in the background ends; only its CPU time counts."""

WARM_UP = 1
"""Blocks that aren't timed."""


@dataclass(frozen=True, slots=True)
class TelemetryResult:
    """What epochs took, by what watches them.

    Attributes:
        epochs: seconds of each timed epoch.
        cpu: CPU seconds of the process tree an epoch, of each timed block, with all that follows it.
    """

    rows: int
    epochs: Mapping[str, list[float]]
    cpu: Mapping[str, list[float]]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        plain, busy = median(self.epochs[WITHOUT]), median(self.cpu[WITHOUT])
        rows = []
        for name in MODES:
            took, cpu = median(self.epochs[name]), median(self.cpu[name])
            rows.append(
                [
                    name,
                    f"{1e3 * took:.1f}",
                    f"{100 * (took / plain - 1):+.1f} %",
                    f"{1e3 * cpu:.1f}",
                    f"{100 * (cpu / busy - 1):+.1f} %",
                ]
            )
        count = len(self.epochs[WITHOUT])
        return "\n".join(
            [
                f"telemetry: 8 small views, epochs of {self.rows:,} rows, medians of {count}",
                aligned(["", "ms", "more", "CPU ms", "more"], rows),
                verdict(self.equal),
            ]
        )


def run(
    *, rows: int = 1000, repeat: int = 150, cores: int = 2, block: int = BLOCK
) -> TelemetryResult:
    """Time epochs of four engines in turn: one that nothing watches, and one for each kind of telemetry.

    A process of its own takes spans and events.

    Args:
        rows: number of rows inserted in each epoch.
        repeat: number of timed epochs of each engine, up to a multiple of `block`.
        cores: number of cores of the local session.
        block: so many epochs of an engine follow each other.
    """
    random = np.random.default_rng(0)
    epochs: dict[str, list[float]] = {name: [] for name in MODES}
    cpu: dict[str, list[float]] = {name: [] for name in MODES}
    with bench_session(cores) as spark, ExitStack() as ending:
        url = ending.enter_context(_receiver())
        folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-bench-"))
        engines = {
            name: ending.enter_context(_engine(f"{folder}/{name}", spark, name, url))
            for name in MODES
        }
        number = 0
        for turn in range(WARM_UP + -(-repeat // block)):
            first = turn % len(MODES)
            inserted = [_rows(random, number + i, rows) for i in range(block)]
            number += block
            for name in (*MODES[first:], *MODES[:first]):
                seconds, busy = _block(engines[name], inserted, scraped=name == METRICS)
                if turn >= WARM_UP:
                    epochs[name] += seconds
                    cpu[name].append(busy)
        equal = all(bool(engine.verify()) for engine in engines.values())
    return TelemetryResult(rows, epochs, cpu, equal)


def _rows(random: np.random.Generator, number: int, rows: int) -> pa.Table:
    ids = np.arange(number * rows, (number + 1) * rows)
    words = pa.array(np.char.add("s", (ids % 17).astype(str)))
    k, v = (random.integers(0, limit, rows) for limit in (200, 1001))
    return pa.table({"id": ids, "k": k, "v": v, "s": words})


def _block(
    engine: Engine, inserted: Sequence[pa.Table], *, scraped: bool
) -> tuple[list[float], float]:
    """Run epochs; return the seconds of each, and the CPU seconds of one, with its share of what follows."""
    table = engine.table("t", "id BIGINT, k INT, v INT, s STRING")
    seconds, busy = [], 0.0
    for rows in inserted:
        table.insert(rows)
        with Meter() as advancing:
            engine.advance()
        seconds.append(advancing.cost.seconds)
        busy += advancing.cost.cpu_seconds
    with Meter() as after:
        if scraped:
            with urlopen(f"{engine.serve()}/metrics") as answer:
                answer.read()
        time.sleep(SETTLE_S)
    return seconds, (busy + after.cost.cpu_seconds) / len(inserted)


@contextmanager
def _engine(storage: str, spark: SparkSession, name: str, url: str) -> Iterator[Engine]:
    """Provide an engine with the eight views that is watched in one way."""
    environment = {"OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_MS)}
    if name == LINEAGE:
        environment["OPENLINEAGE_URL"] = url
    options = Options(otlp_endpoint=url if name == TRACES else "", lineage_seconds=EVENTS_S)
    with patch.dict(os.environ, environment):
        engine = Engine(storage, spark, options)
    with engine:
        if name == METRICS:
            engine.serve()
        engine.table("t", "id BIGINT, k INT, v INT, s STRING")
        for view, query in EIGHT.items():
            engine.view(view, query)
        yield engine


@contextmanager
def _receiver() -> Iterator[str]:
    """Run a process that takes what is posted to it; yield its address."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_take, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _take(connection: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that http.server calls
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    connection.send(server.server_port)
    server.serve_forever()
