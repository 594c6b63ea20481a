"""Grouped, windowed count of NDJSON files: Eddyline against Structured Streaming."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from pyspark.sql import functions as sf

from eddyline.api.engine import Engine
from eddyline_bench.measure import (
    Cost,
    Meter,
    aligned,
    bench_session,
    median,
    same_rows,
    setting,
    verdict,
)
from eddyline_bench.tuples import SCHEMA, write_tuples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = """
    SELECT sip, type, window.start AS start, count(*) AS n
    FROM s GROUP BY sip, type, window(timestamp, '60 seconds')
"""
KEY = ["sip", "type", "start"]
STORES = {
    "default": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@dataclass(frozen=True, slots=True)
class GroupedCountResult:
    """Costs of each repetition on both sides, over the same records: `rows` of them in `epochs` batches."""

    rows: int
    bytes: int
    epochs: int
    eddyline: list[Cost]
    structured_streaming: list[Cost]
    equal: bool

    @property
    def ratio(self) -> float:
        """Throughput of Eddyline divided by that of Structured Streaming."""
        return _seconds(self.structured_streaming) / _seconds(self.eddyline)

    def text(self) -> str:
        """Format the result as a table."""
        sides = {"structured streaming": self.structured_streaming, "eddyline": self.eddyline}
        rows = [
            [
                name,
                f"{self.rows / _seconds(costs):,.0f}",
                f"{self.bytes / _seconds(costs) / 1e6:.0f}",
                f"{median(c.cpu_seconds for c in costs) / self.rows * 1e6:.2f}",
            ]
            for name, costs in sides.items()
        ]
        return "\n".join(
            [
                f"grouped count: {self.rows:,} records of {self.bytes / self.rows:.0f} bytes, "
                f"{self.epochs} batches, median of {len(self.eddyline)}",
                aligned(["", "records/s", "MB/s", "CPU s per million"], rows),
                f"  ratio of throughput: {self.ratio:.2f}",
                verdict(self.equal),
            ]
        )


def run(
    *,
    rows: int = 2_000_000,
    repeat: int = 5,
    cores: int = 2,
    epochs: int = 4,
    store: str = "default",
) -> GroupedCountResult:
    """Run both sides alternately, after one untimed run of each that warms up the JVM.

    Args:
        rows: total number of records.
        repeat: number of timed repetitions of each side.
        cores: number of cores of the local session.
        epochs: number of micro-batches that read the files, on both sides.
        store: state store of Structured Streaming, `default` or `rocksdb`.
    """
    files = epochs * cores * 2
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name,
        bench_session(cores) as spark,
    ):
        scratch = Path(name)
        size = write_tuples(scratch / "input", rows, files)
        structured: list[Cost] = []
        live: list[Cost] = []
        equal = True
        for number in range(repeat + 1):
            with setting(spark, "spark.sql.streaming.stateStore.providerClass", STORES[store]):
                theirs = scratch / f"structured-{number}"
                cost = structured_streaming(spark, scratch / "input", theirs, files // epochs)
            our_cost, ours = eddyline(
                spark, scratch / "input", scratch / f"eddyline-{number}", files // epochs
            )
            equal = equal and same_rows(latest(theirs), ours)
            if number:
                structured.append(cost)
                live.append(our_cost)
    return GroupedCountResult(rows, size, epochs, live, structured, equal)


def structured_streaming(spark: SparkSession, source: Path, target: Path, per_batch: int) -> Cost:
    """Run the query in Structured Streaming, written by hand; each batch writes its updates as Parquet."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{target}/result/batch={number}")

    with Meter() as meter:
        counts = (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", per_batch)
            .json(str(source))
            .groupBy("sip", "type", sf.window("timestamp", "60 seconds"))
            .count()
            .select(
                "sip", "type", sf.col("window.start").alias("start"), sf.col("count").alias("n")
            )
        )
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", f"{target}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return meter.cost


def latest(target: Path) -> pl.DataFrame:
    """Reduce the updates of all batches to the latest row of each key."""
    updates = pl.read_parquet(target / "result/batch=*/*.parquet", hive_partitioning=True)
    return updates.sort("batch").unique(KEY, keep="last").drop("batch")


def eddyline(
    spark: SparkSession, source: Path, storage: Path, per_batch: int
) -> tuple[Cost, pl.DataFrame]:
    """Run the same query as a live view; return its cost and its final rows."""
    with Engine(str(storage), spark=spark) as engine:
        with Meter() as meter:
            engine.execute(
                f"CREATE STREAM s ({SCHEMA}) USING json "
                f"OPTIONS (path '{source}', maxFilesPerTrigger '{per_batch}')"
            )
            view = engine.view("counts", QUERY)
            engine.advance()
        rows = pl.DataFrame(view.snapshot().toArrow())
    return meter.cost, rows


def _seconds(costs: list[Cost]) -> float:
    return median(cost.seconds for cost in costs)
