"""Rows per second from files into a target: a view with a sink against `foreachBatch` written by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from eddyline.api.engine import Engine
from eddyline_apps.postgres import Server, programs
from eddyline_bench import sink_targets as targets
from eddyline_bench.keyed_total import batch_seconds
from eddyline_bench.measure import (
    Meter,
    aligned,
    appearing,
    bench_session,
    median,
    same_rows,
    verdict,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "k BIGINT, v BIGINT, s STRING"
WARM_UP_ROWS = 1000


@dataclass(frozen=True, slots=True)
class SinksResult:
    """Seconds of each timed batch of `rows` rows, by target, on both sides.

    Attributes:
        missing: targets that weren't measured, and why.
    """

    rows: int
    eddyline: dict[str, list[float]]
    by_hand: dict[str, list[float]]
    missing: dict[str, str]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        rows = []
        for name, seconds in self.eddyline.items():
            ours, theirs = median(seconds), median(self.by_hand[name])
            speeds = (f"{self.rows / one:,.0f}" for one in (ours, theirs))
            rows.append([name, f"{ours:.2f}", f"{theirs:.2f}", *speeds, f"{theirs / ours:.2f}"])
        header = ["", "s, sink", "s, by hand", "rows/s, sink", "rows/s, by hand", "ratio"]
        repeat = min(map(len, self.eddyline.values()))
        return "\n".join(
            [
                f"sinks: {self.rows:,} rows a batch, half of them new keys, median of {repeat}",
                aligned(header, rows),
                *(f"  {name}: not measured, {why}" for name, why in self.missing.items()),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 100_000, repeat: int = 3, cores: int = 2) -> SinksResult:
    """Feed the same batches to both sides alternately, after a small untimed one, for each target.

    Both sides read Parquet files and keep the last row of each key. Eddyline's side does all of it exactly
    once, and keeps the view; the other one is what `foreachBatch` needs at least, and may write a batch twice.

    Args:
        rows: number of rows of each batch.
        repeat: number of timed batches.
        cores: number of cores of the local session.
    """
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    equal = True
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name,
        bench_session(cores) as spark,
        ExitStack() as stack,
    ):
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL may run as another user
        makers: dict[str, Callable[[], targets.Target]] = {
            "delta": lambda: targets.delta(folder),
            **{kind: partial(targets.files, folder, kind) for kind in targets.FILES},
            "webhook": lambda: targets.webhook(
                stack.enter_context(targets.Receiver(folder / "received"))
            ),
            "function": lambda: targets.function(folder),
            "postgres": lambda: targets.postgres(stack.enter_context(Server(folder / "postgres"))),
            "kafka": lambda: targets.kafka(
                stack.enter_context(targets.started_broker(folder / "broker"))
            ),
        }
        if programs() is None:
            missing["postgres"] = "PostgreSQL is not installed here"
        if not list(targets.KAFKA_JARS.glob("kafka_2.13-*.jar")):
            missing["kafka"] = "its jars are not in .kafka, where `make kafka` puts them"
        for kind, make in makers.items():
            if kind not in missing:
                target = make()
                ours[kind], theirs[kind] = _measured(
                    spark, folder / kind, kind, target, rows, repeat
                )
                sunk, written = target.held()
                equal &= len(sunk) > rows // 2 and same_rows(sunk, written)
    return SinksResult(rows, ours, theirs, missing, equal)


def _measured(
    spark: SparkSession, folder: Path, kind: str, target: targets.Target, rows: int, repeat: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each timed batch, of the sink and of the side by hand."""
    source = folder / "input"
    source.mkdir(parents=True)
    ours, theirs = list[float](), list[float]()
    with Engine(f"{folder}/storage", spark=spark) as engine:
        engine.execute(
            f"CREATE STREAM s ({SCHEMA}, PRIMARY KEY (k)) USING parquet OPTIONS (path '{source}')"
        )
        view = engine.view("latest", f"SELECT {', '.join(targets.COLUMNS)} FROM s")
        if target.function is None:
            engine.sink("k", "latest", kind, **target.options)
        else:
            view.foreach_epoch(target.function, "k")
        query = _by_hand(spark, source, folder / "checkpoint", target.write)
        try:
            for number in range(repeat + 1):
                count = rows if number else min(rows, WARM_UP_ROWS)
                write_batch(source / f"{number:05d}.parquet", count, number * rows // 2, number)
                query.processAllAvailable()
                theirs.append(batch_seconds(query, number))
                with Meter() as meter:
                    engine.advance()
                ours.append(meter.cost.seconds)
        finally:
            query.stop()
    return ours[1:], theirs[1:]


def _by_hand(
    spark: SparkSession, source: Path, checkpoint: Path, write: targets.Write
) -> StreamingQuery:
    """Start the query of the other side; it runs until stopped."""

    def write_frame(batch: DataFrame, _number: int) -> None:
        write(batch.toArrow())

    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .writeStream.foreachBatch(write_frame)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")  # idle, it takes no time from the other side
        .start()
    )


def write_batch(path: Path, rows: int, first: int, seed: int) -> None:
    """Write a Parquet file with one row for each of the keys from `first` on, in random order."""
    draw = np.random.default_rng(seed)
    keys = draw.permutation(np.arange(first, first + rows))
    frame = pl.DataFrame({"k": keys, "v": draw.integers(0, 1 << 40, rows)})
    with appearing(path) as hidden:
        frame.with_columns(s="row " + pl.col("v").cast(pl.String)).write_parquet(hidden)
