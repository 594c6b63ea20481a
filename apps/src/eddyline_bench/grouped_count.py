"""Grouped, windowed count of NDJSON files: Eddyline beside Structured Streaming, Flink SQL and DuckDB."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from pyspark.sql import functions as sf

from eddyline.api.engine import Engine
from eddyline_bench.flink import Flink
from eddyline_bench.measure import (
    Cost,
    Meter,
    aligned,
    bench_session,
    median,
    require,
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
    """Costs of each repetition of each side, over the same records: `rows` of them in `epochs` batches."""

    rows: int
    bytes: int
    epochs: int
    sides: dict[str, list[Cost]]
    equal: bool

    def ratio(self, side: str) -> float:
        """Return the throughput of Eddyline divided by that of another side."""
        return _seconds(self.sides[side]) / _seconds(self.sides["Eddyline"])

    def text(self) -> str:
        """Format the result as a table."""
        rows = [
            [
                name,
                f"{self.rows / _seconds(costs):,.0f}",
                f"{self.bytes / _seconds(costs) / 1e6:.0f}",
                f"{median(c.cpu_seconds for c in costs) / self.rows * 1e6:.2f}",
                f"{self.ratio(name):.2f}",
            ]
            for name, costs in self.sides.items()
        ]
        return "\n".join(
            [
                f"grouped count: {self.rows:,} records of {self.bytes / self.rows:.0f} bytes, "
                f"{self.epochs} batches, median of {len(self.sides['Eddyline'])}",
                aligned(
                    ["", "records/s", "MB/s", "CPU s per million", "Eddyline is faster by"], rows
                ),
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
    flink: bool = False,
) -> GroupedCountResult:
    """Run all sides in turn, after one untimed run of each that warms them up.

    Args:
        rows: total number of records.
        repeat: number of timed repetitions of each side.
        cores: number of cores of the local session, of Flink's cluster, and threads of DuckDB.
        epochs: number of micro-batches that read the files, in Eddyline and in Structured Streaming.
        store: state store of Structured Streaming, `default` or `rocksdb`.
        flink: also run Flink SQL, which the first time installs 850 MB from PyPI.

    Raises:
        EngineError: Flink can't be installed or doesn't start; DuckDB isn't installed.
    """
    require("duckdb", "the benchmark grouped-count needs")
    files = epochs * cores * 2
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-bench-")))
        source = scratch / "input"
        size = write_tuples(source, rows, files)
        per_batch = files // epochs
        spark = stack.enter_context(bench_session(cores))
        stack.enter_context(
            setting(spark, "spark.sql.streaming.stateStore.providerClass", STORES[store])
        )
        sides: dict[str, Callable[[Path], tuple[Cost, pl.DataFrame]]] = {
            "Eddyline": lambda target: eddyline(spark, source, target, per_batch),
            "Structured Streaming": lambda target: structured_streaming(
                spark, source, target, per_batch
            ),
            "DuckDB, all files at once": lambda target: in_duckdb(source, target, cores),
        }
        if flink:
            cluster = stack.enter_context(Flink(cores, scratch / "flink.log"))
            sides["Flink SQL"] = lambda target: in_flink(cluster, source, target)
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        equal = True
        for number in range(repeat + 1):
            results = {}
            for place, (name, side) in enumerate(sides.items()):
                cost, results[name] = side(scratch / f"{number}-{place}")
                costs[name] += [cost] if number else []
            equal = equal and all(same_rows(results["Eddyline"], one) for one in results.values())
    return GroupedCountResult(rows, size, epochs, costs, equal)


def structured_streaming(
    spark: SparkSession, source: Path, target: Path, per_batch: int
) -> tuple[Cost, pl.DataFrame]:
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
    return meter.cost, latest(target)


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


def in_flink(flink: Flink, source: Path, target: Path) -> tuple[Cost, pl.DataFrame]:
    """Run the query in Flink SQL, whose windows end when the last file does; their counts are written as JSON files.

    Files are read by several tasks, so that the watermark must allow for all of their time.
    """
    columns = SCHEMA.replace("timestamp TIMESTAMP", "`timestamp` TIMESTAMP_LTZ(3)")
    statements = [
        f"CREATE TEMPORARY TABLE s ({columns}, WATERMARK FOR `timestamp` AS `timestamp` - INTERVAL '1' DAY) "
        f"WITH ('connector' = 'filesystem', 'path' = '{source.as_uri()}', 'format' = 'json', "
        "'json.timestamp-format.standard' = 'ISO-8601')",
        "CREATE TEMPORARY TABLE counts (sip STRING, type STRING, `start` TIMESTAMP(3), n BIGINT) WITH "
        f"('connector' = 'filesystem', 'path' = '{(target / 'result').as_uri()}', 'format' = 'json')",
        "INSERT INTO counts SELECT sip, type, window_start, count(*) FROM TABLE(TUMBLE(TABLE s, "
        "DESCRIPTOR(`timestamp`), INTERVAL '60' SECOND)) GROUP BY sip, type, window_start, window_end",
    ]
    with Meter() as meter:
        flink.run(statements, checkpoints=target / "checkpoints")
    rows = pl.concat(pl.read_ndjson(file) for file in (target / "result").rglob("part-*"))
    start = pl.col("start").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", time_zone="UTC")
    return meter.cost, rows.with_columns(start)


def in_duckdb(source: Path, target: Path, cores: int) -> tuple[Cost, pl.DataFrame]:
    """Run the query in DuckDB over all files at once, which keeps no state; the rows are written as Parquet."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {cores}; SET TimeZone = 'UTC'")
        with Meter() as meter:
            target.mkdir()
            columns = "{" + ", ".join(_duckdb_column(one) for one in SCHEMA.split(", ")) + "}"
            connection.execute(
                "COPY (SELECT sip, type, time_bucket(INTERVAL '60 seconds', timestamp) AS start, count(*) AS n "
                f"FROM read_json('{source}/*.json', format = 'newline_delimited', columns = {columns}) "
                f"GROUP BY ALL) TO '{target}/result.parquet'"
            )
    return meter.cost, pl.read_parquet(target / "result.parquet")


def _duckdb_column(column: str) -> str:
    name, kind = column.split()
    return f"{name}: '{'TIMESTAMPTZ' if kind == 'TIMESTAMP' else kind}'"


def _seconds(costs: list[Cost]) -> float:
    return median(cost.seconds for cost in costs)
