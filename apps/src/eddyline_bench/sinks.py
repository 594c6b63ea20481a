"""Rows per second from files into a target: a view with a sink against `foreachBatch` written by hand."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.api.engine import Engine
from eddyline_apps.kafka import Broker
from eddyline_apps.postgres import Server, programs
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
COLUMNS = ["k", "v", "s"]
WARM_UP_ROWS = 1000
KAFKA_JARS = Path(".kafka")
PARTITIONS = 1

Write = Callable[[pa.Table], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of target, once for each side.

    Attributes:
        options: of the sink.
        write: merges a batch into the target of the other side, as a user would write it.
        held: returns the rows that the targets of both sides hold, the sink's first.
    """

    options: Mapping[str, str]
    write: Write
    held: Callable[[], tuple[pl.DataFrame, pl.DataFrame]]


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
        makers: dict[str, Callable[[], Target]] = {
            "delta": lambda: delta(folder),
            "parquet": lambda: parquet(folder),
            "postgres": lambda: postgres(stack.enter_context(Server(folder / "postgres"))),
            "kafka": lambda: kafka(stack.enter_context(started_broker(folder / "broker"))),
        }
        if programs() is None:
            missing["postgres"] = "PostgreSQL is not installed here"
        if not list(KAFKA_JARS.glob("kafka_2.13-*.jar")):
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
    spark: SparkSession, folder: Path, kind: str, target: Target, rows: int, repeat: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each timed batch, of the sink and of the side by hand."""
    source = folder / "input"
    source.mkdir(parents=True)
    ours, theirs = list[float](), list[float]()
    with Engine(f"{folder}/storage", spark=spark) as engine:
        engine.execute(
            f"CREATE STREAM s ({SCHEMA}, PRIMARY KEY (k)) USING parquet OPTIONS (path '{source}')"
        )
        engine.view("latest", f"SELECT {', '.join(COLUMNS)} FROM s")
        engine.sink("k", "latest", kind, **target.options)
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


def _by_hand(spark: SparkSession, source: Path, checkpoint: Path, write: Write) -> StreamingQuery:
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


# --- the kinds of targets ---


def delta(folder: Path) -> Target:
    """Return Delta tables; the other side merges with deltalake."""
    from deltalake import DeltaTable, write_deltalake

    sink, other = f"{folder}/delta/sink", f"{folder}/delta/other"

    def write(rows: pa.Table) -> None:
        if not DeltaTable.is_deltatable(other):
            write_deltalake(other, rows)
            return
        (
            DeltaTable(other)
            .merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def held(path: str) -> pl.DataFrame:
        return pl.DataFrame(DeltaTable(path).to_pyarrow_table(columns=COLUMNS))

    return Target({"path": sink}, write, lambda: (held(sink), held(other)))


def parquet(folder: Path) -> Target:
    """Return folders of files; the other side writes each batch as a file."""
    sink, other = folder / "parquet/sink", folder / "parquet/other"
    other.mkdir(parents=True)

    def write(rows: pa.Table) -> None:
        pl.DataFrame(rows).write_parquet(other / f"{len(list(other.iterdir())):05d}.parquet")

    def held() -> tuple[pl.DataFrame, pl.DataFrame]:
        changes = pl.concat(
            [pl.read_parquet(path, columns=[*COLUMNS, "_change_type"]) for path in _files(sink)]
        )
        is_gone = pl.col("_change_type").is_in(["delete", "update_preimage"])
        counts = changes.group_by(COLUMNS).agg(n=pl.when(is_gone).then(-1).otherwise(1).sum())
        batches = pl.concat(map(pl.read_parquet, _files(other)))
        latest = batches.unique("k", keep="last", maintain_order=True)
        return counts.filter(pl.col("n") > 0).select(COLUMNS), latest.select(COLUMNS)

    return Target({"path": str(sink)}, write, held)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def postgres(server: Server) -> Target:
    """Return tables of PostgreSQL; the other side copies into a temporary table, and merges it."""
    import psycopg

    os.environ["EDDYLINE_BENCH_PASSWORD"] = server.password
    connection = psycopg.connect(server.url, autocommit=True)
    connection.execute("CREATE TABLE other (k BIGINT PRIMARY KEY, v BIGINT, s TEXT)")

    def write(rows: pa.Table) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE batch (LIKE other) ON COMMIT DROP")
            with cursor.copy("COPY batch FROM STDIN") as copy:
                for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    copy.write_row(row)
            cursor.execute(
                "INSERT INTO other SELECT * FROM batch "
                "ON CONFLICT (k) DO UPDATE SET v = excluded.v, s = excluded.s"
            )

    def held(table: str) -> pl.DataFrame:
        rows = connection.execute(f"SELECT k, v, s FROM {table}").fetchall()
        return pl.DataFrame(rows, COLUMNS, orient="row")

    options = {
        "url": server.url_without_password,
        "password": "${env:EDDYLINE_BENCH_PASSWORD}",
        "table": "sink",
    }
    return Target(options, write, lambda: (held("sink"), held("other")))


def started_broker(folder: Path) -> Broker:
    """Return a broker with its data in a new folder, to be used in a `with` block."""
    folder.mkdir()
    return Broker(folder, KAFKA_JARS)


def kafka(broker: Broker) -> Target:
    """Return topics with the last value of each key; the other side produces each row."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([NewTopic("other", PARTITIONS, 1)]).values():
        future.result()
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, "log_level": 0})

    def write(rows: pa.Table) -> None:
        for row in rows.to_pylist():
            key = json.dumps({"k": row["k"]})
            while True:
                try:
                    producer.produce("other", json.dumps(row), key)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def held(topic: str) -> pl.DataFrame:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": f"bench-{topic}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([topic])
        values: dict[bytes, Any] = {}
        quiet = 0
        while quiet < 5 or not values:
            messages = consumer.consume(10_000, 1.0)
            quiet = 0 if messages else quiet + 1
            values.update({message.key() or b"": message.value() for message in messages})
        consumer.close()
        rows = [json.loads(value) for value in values.values()]
        return pl.DataFrame(rows).select(COLUMNS)

    options = {"bootstrap_servers": broker.address, "topic": "sink", "envelope": "upsert"}
    return Target(options, write, lambda: (held("sink"), held("other")))
