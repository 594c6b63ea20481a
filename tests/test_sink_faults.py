"""Each call to a target's client fails, before or after its work: the target still equals the view."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eddyline.sink import files
from eddyline.sink.files import FilesFormat, write_parquet
from sink_cases import COLUMNS, as_texts, changelog, counted
from sink_changes import Changelog as Plain
from sink_changes import expected as parsed_rows
from sink_changes import target as plain_target
from sink_faults import STEPS, Case, Faults

ALL = [(step, reopen) for step in STEPS for reopen in (False, True)]
EVERY = pytest.mark.parametrize(("step", "reopen"), ALL)
MOST_SLOW = pytest.mark.parametrize(
    ("step", "reopen"),
    [
        one if one == ("deliver", True) else pytest.param(*one, marks=pytest.mark.slow)
        for one in ALL
    ],
)
FAULT = "each call to the client fails, before and after its work; then the same sink goes on, or a new one"


def case_of(opened: Any, held: Any, *, expected: Any = None) -> Case:
    log = changelog("keyed", 5)
    return Case(opened, held, log.rows, log.changes, expected or log.expected)


@pytest.mark.guarantee("sink `delta`", "exactly once", FAULT)
@EVERY
@pytest.mark.parametrize("optimize_every", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_delta(
    step: str, reopen: bool, optimize_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs eddyline[delta]")
    from deltalake import table

    from eddyline.sink.delta import DeltaFormat

    log = changelog("keyed", 5)

    def opened(place: str) -> Any:
        options = {"path": str(tmp_path / place), "optimize_every": str(optimize_every)}
        return DeltaFormat().open(log.target(), options)

    def held(place: str) -> Counter[str]:
        found = real(str(tmp_path / place)).to_pyarrow_table(columns=COLUMNS.names)
        return counted(found.select(COLUMNS.names).cast(log.schema))

    real, errors = deltalake.DeltaTable, iter(range(10**6))
    kinds = (OSError, deltalake.exceptions.DeltaError, deltalake.exceptions.CommitFailedError)
    faults = Faults(lambda: kinds[next(errors) % len(kinds)]("fault"))
    faults.wrap(monkeypatch, deltalake, "write_deltalake")
    faults.wrap(monkeypatch, table.TableMerger, "execute")
    faults.wrap(monkeypatch, table.TableOptimizer, "compact")
    faults.wrap(monkeypatch, deltalake.QueryBuilder, "execute")
    methods = ("create_write_transaction", "update_incremental", "vacuum", "transaction_version")
    faults.wrap(monkeypatch, real, "create", *methods)
    assert case_of(opened, held).survive(faults, step, reopen=reopen) >= 4
    commits = {"first": "create", "empty": "create_write_transaction"}
    assert faults.names[commits.get(step, "execute")] >= 2
    assert bool(optimize_every) == bool(faults.names["compact"] and faults.names["vacuum"])


@pytest.mark.guarantee("sink `postgres`", "exactly once", FAULT)
@MOST_SLOW
def test_postgres(
    step: str, reopen: bool, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs eddyline[postgres]")
    from eddyline.sink.postgres import PostgresFormat
    from test_sink_postgres import expected, held

    log = changelog("keyed", 5)

    def opened(place: str) -> Any:
        return PostgresFormat().open(log.target(), {"url": postgres_url, "table": place})

    def rows_in(place: str) -> Counter[str]:
        with monkeypatch.context() as real:
            real.setattr(psycopg.Connection, "wait", wait)
            real.setattr(psycopg, "connect", connect)
            return held(postgres_url, table=place)

    wait, connect = psycopg.Connection.wait, psycopg.connect
    faults = Faults(lambda: psycopg.OperationalError("fault"))
    # each exchange with the server: statements, copies, BEGIN, COMMIT, ROLLBACK
    faults.wrap(monkeypatch, psycopg.Connection, "wait")
    faults.wrap(monkeypatch, psycopg, "connect")
    case = case_of(opened, rows_in, expected=lambda position: expected(log, position))
    assert case.survive(faults, step, reopen=reopen) >= 14


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Any]:
    from postgres import server

    with server() as made:
        yield made


@pytest.fixture
def postgres_url(postgres_server: Any) -> str:
    import psycopg

    name = f"d{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    return f"{postgres_server.url.rsplit('/', 1)[0]}/{name}"


@pytest.mark.guarantee(
    "sink `kafka`, envelope `changelog`", "exactly once for `read_committed`", FAULT
)
@pytest.mark.kafka
@MOST_SLOW
def test_kafka(broker: Any, step: str, reopen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="needs eddyline[kafka]")
    from confluent_kafka import KafkaError, KafkaException, Producer

    import test_sink_kafka as readers
    from eddyline.sink import kafka_sink
    from eddyline.sink.kafka import KafkaFormat

    log, name = Plain(4, keys=3), uuid.uuid4().hex[:8]

    def opened(place: str) -> Any:
        topic = f"{name}_{place}"
        given = {"bootstrap_servers": broker.address, "topic": topic, "envelope": "changelog"}
        return KafkaFormat().open(plain_target(topic), given)

    def held(place: str) -> Counter[Any]:
        return readers.content(broker, f"{name}_{place}", "changelog")

    faults = Faults(lambda: KafkaException(KafkaError(KafkaError._TRANSPORT, "fault")))
    counted = ("begin_transaction", "produce", "flush", "commit_transaction", "init_transactions")

    class Faulty:
        def __init__(self, settings: dict[str, Any]) -> None:
            self.real = Producer(settings)

        def __getattr__(self, name: str) -> Any:
            method = getattr(self.real, name)
            return faults.wrapped(name, method) if name in counted else method

    monkeypatch.setattr(kafka_sink, "Producer", Faulty)
    case = Case(
        opened, held, log.rows, log.changes, lambda position: parsed_rows(log.content(position))
    )
    assert case.survive(faults, step, reopen=reopen) >= 8
    assert faults.names["commit_transaction"] == 2


@pytest.mark.guarantee("sinks `parquet`, `jsonl`, `csv`", "exactly once", FAULT)
@EVERY
def test_files(step: str, reopen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = changelog("keyed", 5)
    faults = Faults(lambda: OSError("fault"))
    form = FilesFormat("parquet", faults.wrapped("write", write_parquet))

    def opened(place: str) -> Any:
        return form.open(log.target(), {"path": str(tmp_path / place)})

    def held(place: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for path in (tmp_path / place).glob("0*.parquet"):
            feed = pq.read_table(path)
            rows = as_texts(feed.select(COLUMNS.names).cast(log.schema))
            for row, kind in zip(rows, feed["_change_type"].to_pylist(), strict=True):
                total[row] += 1 if kind in ("insert", "update_postimage") else -1
        return Counter({row: n for row, n in total.items() if n})

    faults.wrap(monkeypatch, os, "link", "unlink", "replace")
    faults.wrap(monkeypatch, files, "sync_path")
    assert case_of(opened, held).survive(faults, step, reopen=reopen) >= 6
