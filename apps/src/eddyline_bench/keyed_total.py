"""Keys updated per second in a running total by key: Eddyline against `transformWithState`."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from eddyline.api.engine import Engine
from eddyline.errors import EngineError
from eddyline_bench.grouped_count import STORES
from eddyline_bench.measure import (
    Meter,
    aligned,
    appearing,
    bench_session,
    median,
    same_rows,
    setting,
    verdict,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

SCHEMA = "k BIGINT, v BIGINT"
QUERY = "SELECT k, sum(v) AS total, count(*) AS n FROM s GROUP BY k"
OUTPUT = "k BIGINT, total BIGINT, n BIGINT"
WARM_UP_KEYS = 1000


def running_total(form: str) -> StatefulProcessor:
    """Create the user's processor, which keeps sum and count of each key in a ValueState.

    The classes are local so that they are pickled by value, as from a user's own script: the workers
    needn't import this package.

    Args:
        form: `row` for `transformWithState`, `pandas` for `transformWithStateInPandas`.
    """

    class RowProcessor(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.state = handle.getValueState("total", "total BIGINT, n BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            total, n = self.state.get() or (0, 0)
            for row in rows:
                total, n = total + row.v, n + 1
            self.state.update((total, n))
            yield Row(k=key[0], total=total, n=n)

        def close(self) -> None:
            pass

    class PandasProcessor(RowProcessor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            total, n = self.state.get() or (0, 0)
            for frame in rows:
                total, n = total + int(frame.v.sum()), n + len(frame)
            self.state.update((total, n))
            yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n]})

    return PandasProcessor() if form == "pandas" else RowProcessor()


@dataclass(frozen=True, slots=True)
class KeyedTotalResult:
    """Seconds of each timed batch on both sides; a batch updates `keys` keys with `rows` rows."""

    keys: int
    rows: int
    form: str
    eddyline: list[float]
    transform_with_state: list[float]
    equal: bool

    @property
    def ratio(self) -> float:
        """Keys per second in Eddyline divided by those in `transformWithState`."""
        return median(self.transform_with_state) / median(self.eddyline)

    def text(self) -> str:
        """Format the result as a table."""
        name = "transformWithState" + ("InPandas" if self.form == "pandas" else "")
        sides = {name: self.transform_with_state, "eddyline": self.eddyline}
        rows = [
            [side, f"{median(seconds):.2f}", f"{self.keys / median(seconds):,.0f}"]
            for side, seconds in sides.items()
        ]
        return "\n".join(
            [
                f"keyed total: {self.keys:,} keys and {self.rows:,} rows a batch, "
                f"median of {len(self.eddyline)}",
                aligned(["", "s per batch", "keys/s"], rows),
                f"  ratio of keys/s: {self.ratio:.1f}",
                verdict(self.equal),
            ]
        )


def run(
    *, rows: int = 100_000, repeat: int = 3, cores: int = 2, form: str = "row"
) -> KeyedTotalResult:
    """Feed the same batches to both sides alternately, after a small untimed one.

    Args:
        rows: number of rows of each batch; it updates half as many keys, out of a population of
            `rows` keys.
        repeat: number of timed batches.
        cores: number of cores of the local session.
        form: form of the user's processor, `row` or `pandas`.
    """
    require_protobuf()
    keys = rows // 2
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name,
        bench_session(cores) as spark,
        setting(spark, "spark.sql.streaming.stateStore.providerClass", STORES["rocksdb"]),
        Engine(f"{name}/storage", spark=spark) as engine,
    ):
        source, target = Path(name) / "input", Path(name) / "transformed"
        source.mkdir()
        engine.execute(f"CREATE STREAM s ({SCHEMA}) USING parquet OPTIONS (path '{source}')")
        view = engine.view("totals", QUERY)
        query = transform_with_state(spark, source, target, form)
        theirs: list[float] = []
        ours: list[float] = []
        for number in range(repeat + 1):
            write_batch(
                source / f"{number:05d}.parquet",
                keys if number else min(keys, WARM_UP_KEYS),
                rows,
                number,
            )
            query.processAllAvailable()
            theirs.append(batch_seconds(query, number))
            with Meter() as meter:
                engine.advance()
            ours.append(meter.cost.seconds)
        query.stop()
        updates = pl.read_parquet(target / "result/batch=*/*.parquet", hive_partitioning=True)
        totals = updates.sort("batch").unique("k", keep="last").drop("batch")
        equal = same_rows(totals, pl.DataFrame(view.snapshot().toArrow()))
    return KeyedTotalResult(keys, rows, form, ours[1:], theirs[1:], equal)


def require_protobuf() -> None:
    """Raise EngineError if protobuf is missing, before `transformWithState` fails in a worker."""
    if importlib.util.find_spec("google") is None or not importlib.util.find_spec(
        "google.protobuf"
    ):
        raise EngineError(
            "PySpark's transformWithState needs the package protobuf, which is not installed",
            condition="MISSING_PACKAGE",
            hint="pip install 'protobuf>=6.33,<7'",
        )


def transform_with_state(
    spark: SparkSession, source: Path, target: Path, form: str
) -> StreamingQuery:
    """Start the running total in `transformWithState`, written by hand; it runs until stopped."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{target}/result/batch={number}")

    grouped = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .groupBy("k")
    )
    transform = (
        grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState
    )
    return (
        transform(running_total(form), OUTPUT, "update", "none")
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", f"{target}/checkpoint")
        # Long enough that the idle query takes no time from the other side.
        .trigger(processingTime="1 second")
        .start()
    )


def batch_seconds(query: StreamingQuery, number: int) -> float:
    """Return the duration that Spark reports for a batch."""
    times = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.batchId == number]
    return max(times) / 1000


def write_batch(path: Path, keys: int, population: int, seed: int) -> None:
    """Write a Parquet file with two rows for each of `keys` keys, in random order."""
    random = np.random.default_rng(seed)
    chosen = np.repeat(random.choice(population, keys, replace=False), 2)
    random.shuffle(chosen)
    values = random.integers(-1000, 1000, len(chosen))
    with appearing(path) as hidden:
        pl.DataFrame({"k": chosen, "v": values}).write_parquet(hidden)
