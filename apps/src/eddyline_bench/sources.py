"""Rows per second from a source into a live view: a stream against `foreachBatch` written by hand."""

from __future__ import annotations

import os
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.functions import expr, from_json

from eddyline.api.engine import Engine
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import Producer
from eddyline_apps.kafka import Broker
from eddyline_apps.postgres import Server, programs
from eddyline_apps.processes import free_port
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
from eddyline_bench.sink_targets import KAFKA_JARS, started_broker
from eddyline_bench.sinks import SCHEMA, write_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WARM_UP_ROWS = 1000
GROUPS = 1000
TOKEN = "EDDYLINE_BENCH_TOKEN"
PASSWORD = "EDDYLINE_BENCH_PASSWORD"
TOTALS = "g", "n", "total"
OF_TEXT = tuple(
    f"CAST(split_part(value, ',', {place}) AS BIGINT) AS {name}"
    for place, name in enumerate("kv", 1)
)


@dataclass(frozen=True, slots=True)
class Input:
    """A kind of source.

    Attributes:
        stream: what follows the name in CREATE STREAM.
        put: adds a batch to the source.
        columns: SQL that gives the columns k and v.
        frame: opens the source in Structured Streaming, or returns None without the package for it;
            None where Spark has no source of this kind.
    """

    stream: str
    put: Callable[[pl.DataFrame], None]
    columns: Sequence[str] = ("k", "v")
    frame: Callable[[SparkSession], DataFrame | None] | None = None


@dataclass(frozen=True, slots=True)
class SourcesResult:
    """Seconds of each timed batch of `rows` rows, by source; those by hand only where there is one.

    Attributes:
        cpu: CPU seconds of the streams.
        missing: sources that weren't measured, and why.
    """

    rows: int
    eddyline: dict[str, list[float]]
    cpu: dict[str, list[float]]
    by_hand: dict[str, list[float]]
    missing: dict[str, str]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        rows = []
        for name, seconds in self.eddyline.items():
            ours, theirs = median(seconds), self.by_hand[name]
            cells = [f"{ours:.2f}", f"{self.rows / ours:,.0f}"]
            cells.append(f"{median(self.cpu[name]) * 1e6 / self.rows:.1f}")
            if theirs:
                cells += [f"{self.rows / median(theirs):,.0f}", f"{median(theirs) / ours:.2f}"]
            rows.append([name, *cells, *["-"] * (5 - len(cells))])
        header = ["", "s, stream", "rows/s, stream", "CPU s/M", "rows/s, by hand", "ratio"]
        return "\n".join(
            [
                f"sources: {self.rows:,} rows a batch, median of {min(map(len, self.cpu.values()))}",
                aligned(header, rows),
                *(f"  {name}: not measured, {why}" for name, why in self.missing.items()),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 200_000, repeat: int = 3, cores: int = 2) -> SourcesResult:
    """Put the same batches into each source, after a small untimed one, and time until the view has them.

    The view has count and sum of a thousand groups. The other side is an aggregation of Structured
    Streaming that `foreachBatch` merges into a table in memory: it may count a batch twice after a crash.

    Args:
        rows: number of rows of each batch.
        repeat: number of timed batches.
        cores: number of cores of the local session.
    """
    ours: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
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
        makers: dict[str, Callable[[Path], Input]] = {
            "parquet": parquet,
            "json": json_files,
            "tail": tail,
            "delta": delta,
            "queue": queue,
            "http": http,
            "kafka": lambda inner: kafka(stack.enter_context(started_broker(inner))),
            "postgres": lambda inner: postgres(
                stack.enter_context(Server(inner, settings=["wal_level=logical"]))
            ),
        }
        if programs() is None:
            missing["postgres"] = "PostgreSQL is not installed here"
        if not list(KAFKA_JARS.glob("kafka_2.13-*.jar")):
            missing["kafka"] = "its jars are not in .kafka, where `make kafka` puts them"
        for kind, make in makers.items():
            if kind not in missing:
                (folder / kind).mkdir(mode=0o755)
                made = make(folder / kind / "input")
                measured = _measured(spark, folder / kind, made, rows, repeat)
                ours[kind], cpu[kind], theirs[kind], same = measured
                equal &= same
    return SourcesResult(rows, ours, cpu, theirs, missing, equal)


def _measured(
    spark: SparkSession, folder: Path, source: Input, rows: int, repeat: int
) -> tuple[list[float], list[float], list[float], bool]:
    """Return seconds and CPU seconds of the stream, seconds by hand, and whether the results are right."""
    ours, cpu, theirs = list[float](), list[float](), list[float]()
    batches: list[pl.DataFrame] = []
    totals: dict[Any, tuple[Any, ...]] = {}
    with Engine(f"{folder}/storage", spark=spark) as engine:
        engine.execute(f"CREATE STREAM s {source.stream}")
        query = f"SELECT k % {GROUPS} AS g, v FROM (SELECT {', '.join(source.columns)} FROM s)"
        view = engine.view(
            "totals", f"SELECT g, count(*) AS n, sum(v) AS total FROM ({query}) GROUP BY g"
        )
        by_hand = _by_hand(spark, source, folder / "checkpoint", totals)
        for number in range(repeat + 1):
            count = rows if number else min(rows, WARM_UP_ROWS)
            batches.append(made_batch(folder, count, number))
            source.put(batches[-1])
            if by_hand is not None:
                by_hand.processAllAvailable()
                theirs.append(batch_seconds(by_hand, number))
            with Meter() as meter:
                engine.advance()
            ours.append(meter.cost.seconds)
            cpu.append(meter.cost.cpu_seconds)
        if by_hand is not None:
            by_hand.stop()
        expected = _totals(pl.concat(batches))
        same = same_rows(pl.DataFrame(view.snapshot().toArrow()), expected)
    if by_hand is not None:
        found = pl.DataFrame([(g, *rest) for g, rest in totals.items()], TOTALS, orient="row")
        same &= same_rows(found, expected)
    return ours[1:], cpu[1:], theirs[1:], same


def made_batch(folder: Path, rows: int, number: int) -> pl.DataFrame:
    """Return a batch of rows: the same for each source."""
    path = folder / f"batch-{number}.parquet"
    write_batch(path, rows, number * rows, number)
    return pl.read_parquet(path)


def _totals(rows: pl.DataFrame) -> pl.DataFrame:
    group = (pl.col("k") % GROUPS).alias("g")
    return rows.group_by(group).agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())


def _by_hand(
    spark: SparkSession, source: Input, checkpoint: Path, totals: dict[Any, tuple[Any, ...]]
) -> StreamingQuery | None:
    """Start the query of the other side, which keeps `totals`; None if it has no such source."""
    loaded = None if source.frame is None else source.frame(spark)
    if loaded is None:
        return None

    def merge(batch: DataFrame, _number: int) -> None:
        totals.update({row[0]: tuple(row[1:]) for row in batch.collect()})

    rows = loaded.selectExpr(*source.columns)
    grouped = rows.groupBy((rows.k % GROUPS).alias("g"))
    return (
        grouped.agg(expr("count(*)").alias("n"), expr("sum(v)").alias("total"))
        .writeStream.foreachBatch(merge)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")  # idle, it takes no time from the other side
        .start()
    )


# --- the kinds of sources ---


def _written(folder: Path, ending: str, write: Callable[[pl.DataFrame, Path], object]) -> Any:
    """Return the function that adds a file to a folder."""
    folder.mkdir()

    def put(rows: pl.DataFrame) -> None:
        number = len(list(folder.iterdir()))
        with appearing(folder / f"{number:05d}{ending}") as hidden:
            write(rows, hidden)

    return put


def parquet(folder: Path) -> Input:
    """Return Parquet files."""
    return Input(
        f"({SCHEMA}) USING parquet OPTIONS (path '{folder}')",
        _written(folder, ".parquet", pl.DataFrame.write_parquet),
        frame=lambda spark: spark.readStream.schema(SCHEMA).parquet(str(folder)),
    )


def json_files(folder: Path) -> Input:
    """Return files of JSON lines."""
    return Input(
        f"({SCHEMA}) USING json OPTIONS (path '{folder}')",
        _written(folder, ".json", pl.DataFrame.write_ndjson),
        frame=lambda spark: spark.readStream.schema(SCHEMA).json(str(folder)),
    )


def tail(folder: Path) -> Input:
    """Return text files, whose lines the view splits."""

    def write(rows: pl.DataFrame, path: Path) -> None:
        rows.write_csv(path, include_header=False)

    return Input(
        f"USING tail OPTIONS (path '{folder}/*.log')",
        _written(folder, ".log", write),
        OF_TEXT,
        lambda spark: spark.readStream.text(str(folder)),
    )


def delta(folder: Path) -> Input:
    """Return a Delta table. Spark reads it with a package that isn't there."""
    from deltalake import write_deltalake

    feed: Mapping[str, str | None] = {"delta.enableChangeDataFeed": "true"}
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "s": pa.string()})
    write_deltalake(folder, schema.empty_table(), configuration=feed)

    def put(rows: pl.DataFrame) -> None:
        write_deltalake(folder, rows.to_arrow().cast(schema), mode="append")

    return Input(f"({SCHEMA}) USING delta OP _change_type OPTIONS (path '{folder}')", put)


def queue(folder: Path) -> Input:
    """Return a data queue of JSON documents."""
    producer = Producer(LogBackend(folder))

    def put(rows: pl.DataFrame) -> None:
        producer.put(rows.write_ndjson().splitlines())

    return Input(f"({SCHEMA}) USING queue OPTIONS (path '{folder}')", put)


def http(_: Path) -> Input:
    """Return an HTTP endpoint for JSON documents; sending them isn't timed."""
    port, os.environ[TOKEN] = free_port(), "a token"
    url = f"http://127.0.0.1:{port}/streams/s"
    headers = {"Authorization": f"Bearer {os.environ[TOKEN]}", "Content-Type": "text/plain"}

    def put(rows: pl.DataFrame) -> None:
        for part in rows.iter_slices(50_000):
            body = part.write_ndjson().encode()
            with urllib.request.urlopen(urllib.request.Request(url, body, headers)):  # of ours
                pass

    return Input(f"({SCHEMA}) USING http OPTIONS (port '{port}', token '${{env:{TOKEN}}}')", put)


def postgres(server: Server) -> Input:
    """Return a table of PostgreSQL, by logical replication, which Spark doesn't read."""
    import psycopg

    os.environ[PASSWORD] = server.password
    connection = psycopg.connect(server.url, autocommit=True)
    connection.execute("CREATE TABLE fed (k BIGINT PRIMARY KEY, v BIGINT, s TEXT)")

    def put(rows: pl.DataFrame) -> None:
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY fed FROM STDIN (FORMAT csv)") as copy,
        ):
            copy.write(rows.write_csv(include_header=False))

    options = f"url '{server.url_without_password}', password '${{env:{PASSWORD}}}'"
    return Input(f"USING postgres OPTIONS ({options}, table 'fed')", put)


def kafka(broker: Broker) -> Input:
    """Return a topic of JSON documents. Spark reads it with a package that may not be there."""
    from confluent_kafka import Producer as KafkaProducer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("fed", 2, 1)])["fed"].result(30)
    producer = KafkaProducer({"bootstrap.servers": broker.address, "linger.ms": 20})

    def put(rows: pl.DataFrame) -> None:
        for line in rows.write_ndjson().splitlines():
            while True:
                try:
                    producer.produce("fed", line)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def frame(spark: SparkSession) -> DataFrame | None:
        topic = {"kafka.bootstrap.servers": broker.address, "subscribe": "fed"}
        options = {**topic, "startingOffsets": "earliest"}
        try:
            loaded = spark.readStream.format("kafka").options(**options).load()
        except AnalysisException:
            return None
        return loaded.select(from_json(loaded.value.cast("string"), SCHEMA).alias("r")).select(
            "r.*"
        )

    options = f"kafka.bootstrap.servers '{broker.address}', subscribe 'fed', value.format 'json'"
    return Input(f"({SCHEMA}) USING kafka OPTIONS ({options})", put, frame=frame)
