"""The kinds of targets that `eddyline bench sinks` fills: for a sink, and by hand."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from eddyline_apps.kafka import Broker
from eddyline_apps.postgres import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPES = {"k": pl.Int64, "v": pl.Int64, "s": pl.String}
COLUMNS = list(TYPES)
FEED = [*COLUMNS, "_change_type"]
KAFKA_JARS = Path(".kafka")
PARTITIONS = 1
ROWS_OF_A_REQUEST = 1000

Write = Callable[[pa.Table], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of target, once for each side.

    Attributes:
        options: of the sink.
        write: merges a batch into the target of the other side, as a user would write it.
        held: returns the rows that the targets of both sides hold, the sink's first.
        function: what `foreach_epoch` calls; None for a sink with a format.
    """

    options: Mapping[str, str]
    write: Write
    held: Callable[[], tuple[pl.DataFrame, pl.DataFrame]]
    function: Callable[[DataFrame, int], None] | None = None


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


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files of a format are written by hand, and read."""

    write: Callable[[pl.DataFrame, Path], object]
    read: Callable[[Path], pl.DataFrame]


FILES = {
    "parquet": FileFormat(pl.DataFrame.write_parquet, pl.read_parquet),
    "jsonl": FileFormat(pl.DataFrame.write_ndjson, pl.read_ndjson),
    "csv": FileFormat(pl.DataFrame.write_csv, partial(pl.read_csv, schema_overrides=TYPES)),
}


def files(folder: Path, kind: str) -> Target:
    """Return folders of files; the other side writes each batch as a file."""
    form, sink = FILES[kind], folder / kind / "sink"

    def held() -> pl.DataFrame:
        with_rows = [path for path in sink.glob(f"*.{kind}") if path.stat().st_size]
        found = [form.read(path) for path in with_rows]
        return added_up(pl.concat([one.select(FEED) for one in found]))

    write, other = _batches(folder / kind / "other", form)
    return Target({"path": str(sink)}, write, lambda: (held(), other()))


def _batches(folder: Path, form: FileFormat) -> tuple[Write, Callable[[], pl.DataFrame]]:
    """Return what writes each batch as a file, and what returns the last row of each key in them."""
    folder.mkdir(parents=True)

    def write(rows: pa.Table) -> None:
        form.write(pl.DataFrame(rows), folder / f"{len(list(folder.iterdir())):05d}")

    def held() -> pl.DataFrame:
        batches = pl.concat(map(form.read, sorted(folder.iterdir())))
        return batches.unique("k", keep="last", maintain_order=True).select(COLUMNS)

    return write, held


def added_up(changes: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that changes, with `_change_type`, lead to."""
    is_gone = pl.col("_change_type").is_in(["delete", "update_preimage"])
    counts = changes.group_by(COLUMNS).agg(n=pl.when(is_gone).then(-1).otherwise(1).sum())
    return counts.filter(pl.col("n") > 0).select(COLUMNS)


def function(folder: Path) -> Target:
    """Return folders of Parquet files, which a function writes on both sides."""
    sink = folder / "function/sink"
    sink.mkdir(parents=True)

    def write_epoch(changes: DataFrame, epoch: int) -> None:
        pl.DataFrame(changes.toArrow()).write_parquet(sink / f"{epoch:012d}")

    def held() -> pl.DataFrame:
        found = [pl.read_parquet(path, columns=FEED) for path in sorted(sink.iterdir())]
        return added_up(pl.concat(found))

    write, other = _batches(folder / "function/other", FILES["parquet"])
    return Target({}, write, lambda: (held(), other()), write_epoch)


class Receiver:
    """An HTTP server in a process of its own, which appends the bodies posted to a path to a file of its name.

    Args:
        folder: of the files; it is made.

    Example:
        >>> with Receiver(folder) as receiver:  # doctest: +SKIP
        ...     post(f"{receiver.url}/orders", b"{}")
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Receiver:
        self.folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as listening:  # clients may connect at once
            self.port = listening.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            self._process = get_context("spawn").Process(
                target=_serve, args=(listening, self.folder)
            )
            self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Return the JSON documents posted to a path."""
        return [json.loads(line) for line in (self.folder / path).read_text().splitlines()]


def _serve(listening: socket.socket, folder: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with open(folder / self.path.strip("/"), "ab") as stream:
                stream.write(body + b"\n")
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        listening.getsockname(), Handler, bind_and_activate=False
    )
    server.socket = listening
    server.serve_forever()


def webhook(receiver: Receiver) -> Target:
    """Return two addresses; the other side posts as many rows a request as the sink does changes."""
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port)

    def write(rows: pa.Table) -> None:
        for part in rows.to_batches(max_chunksize=ROWS_OF_A_REQUEST):
            connection.request("POST", "/other", json.dumps({"rows": part.to_pylist()}))
            connection.getresponse().read()

    def held() -> pl.DataFrame:
        changes = [change for body in receiver.bodies("sink") for change in body["changes"]]
        return added_up(pl.DataFrame(changes))

    def other() -> pl.DataFrame:
        rows = pl.DataFrame([row for body in receiver.bodies("other") for row in body["rows"]])
        return rows.unique("k", keep="last", maintain_order=True).select(COLUMNS)

    return Target({"url": f"{receiver.url}/sink"}, write, lambda: (held(), other()))


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
