"""Sinks of an engine that is killed at any moment: their targets equal the view, nothing doubled or lost."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from postgres import PASSWORD, server
from processes import Child
from receiver import serving

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
COLUMNS = pa.schema(
    {"k": pa.string(), "n": pa.int64(), "total": pa.int64(), "_change_type": pa.string()}
)
REFUSED = "k3"
CHILD = Path(__file__).with_name("sink_engine_child.py")


Sinks = dict[str, dict[str, str]]


def start(root: Path, sinks: Sinks, seconds: float = 0) -> Child:
    command = [sys.executable, str(CHILD), str(root), json.dumps(sinks), str(seconds)]
    return Child(command, root / "stderr")


def ended(root: Path, sinks: Sinks) -> tuple[dict[str, list[dict]], Counter]:
    """Let a last engine bring the sinks up to date; return the dead letters of each, and the view's rows."""
    child = start(root, sinks, 1)
    try:
        letters = json.loads(child.wait_for("letters"))
        wanted = Counter(tuple(row) for row in json.loads(child.wait_for("rows")))
    finally:
        child.kill()
    assert wanted
    return letters, wanted


def summed(changes: Iterable[dict]) -> Counter:
    """Add up rows with `_change_type`."""
    content: Counter = Counter()
    for row in changes:
        sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
        content[row["k"], row["n"], row["total"]] += sign
    return Counter({row: n for row, n in content.items() if n})


@pytest.mark.guarantee(
    "sink `webhook` of an engine",
    "exactly once for receivers that take each `Idempotency-Key` once",
    "the engine, {kills} times by kill -9; the receiver hangs up, before and after it has kept a request, and refuses some changes",
)
@pytest.mark.guarantee(
    "sinks `delta`, `parquet`, `csv`, `jsonl` of an engine",
    "exactly once",
    "the engine, {kills} times by kill -9",
)
@pytest.mark.guarantee(
    "a function by epoch (`foreach_epoch`)",
    "exactly once, if it stores the epoch in the transaction of its rows",
    "the engine, {kills} times by kill -9",
)
@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_targets_equal_the_view_after_kills(tmp_path: Path, kills: int) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs eddyline[delta]")
    moments = random.Random(kills)
    sinks: Sinks = {
        f"to_{name}": {"format": name, "path": str(tmp_path / name)}
        for name in ("delta", "parquet", "csv", "jsonl", "function")
    }
    with serving(lambda change: (change["k"], change["n"], change["total"])) as receiver:
        receiver.refuses = lambda change: change["k"] == REFUSED
        sinks["to_webhook"] = {"format": "webhook", "url": receiver.url}
        for _ in range(kills):
            receiver.answers = [moments.choice([200, 200, 503, 0, -1]) for _ in range(10)]
            child = start(tmp_path, sinks)
            try:
                child.wait_for("ready")
                time.sleep(moments.uniform(0, 5))
                assert child.process.poll() is None, child.last_words()
            finally:
                child.kill()
        letters, wanted = ended(tmp_path, sinks)
        taken = Counter({row: n for row, n in wanted.items() if row[0] != REFUSED})
        assert {row: n for row, n in receiver.counts.items() if n} == taken
    refused = [tuple(row.values()) for row in letters.pop("to_webhook")]
    assert {row for row in wanted if row[0] == REFUSED} <= set(refused)
    assert {row[0] for row in refused} <= {REFUSED}
    assert len(set(refused)) == len(refused)
    assert not any(letters.values())
    table = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert Counter(map(tuple, table.select(["k", "n", "total"]).to_pandas().to_numpy())) == wanted
    for name in ("parquet", "csv"):
        files = sorted(str(path) for path in (tmp_path / name).glob(f"*.{name}"))
        read = pyarrow.dataset.dataset(files, COLUMNS, format=name).to_table()
        assert summed(read.to_pylist()) == wanted
    lines = [
        line
        for path in (tmp_path / "jsonl").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert summed(map(json.loads, lines)) == wanted
    with closing(sqlite3.connect(tmp_path / "function")) as database:
        assert Counter(database.execute("SELECT k, n, total FROM v")) == wanted


@pytest.mark.guarantee(
    "sink `kafka` of an engine",
    "exactly once for `read_committed`",
    "the engine, the broker and the PostgreSQL server, {kills} times each by kill -9",
)
@pytest.mark.guarantee(
    "sink `postgres` of an engine",
    "exactly once",
    "the engine, the broker and the PostgreSQL server, {kills} times each by kill -9",
)
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, 30])
def test_servers_equal_the_view_after_kills_of_engine_and_servers(
    tmp_path: Path, broker: Any, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs eddyline[postgres]")
    pytest.importorskip("confluent_kafka", reason="needs eddyline[kafka]")
    from test_sink_kafka import messages_of

    monkeypatch.setenv("EDDYLINE_TEST_PASSWORD", PASSWORD)
    moments, topic = random.Random(kills), f"killed{uuid.uuid4().hex[:8]}"
    with server() as postgres:
        sinks: Sinks = {
            "to_kafka": {
                "format": "kafka",
                "bootstrap_servers": broker.address,
                "topic": topic,
                "envelope": "changelog",
            },
            "to_postgres": {
                "format": "postgres",
                "url": postgres.url_without_password,
                "password": "${env:EDDYLINE_TEST_PASSWORD}",
                "table": "v",
            },
        }
        victims = ["engine", "broker", "server"] * kills
        moments.shuffle(victims)
        child = start(tmp_path, sinks)
        try:
            child.wait_for("ready")
            for victim in victims:
                time.sleep(moments.uniform(0, 3))
                assert child.process.poll() is None, child.last_words()
                if victim == "broker":
                    broker.stop(kill=True)
                    broker.start()
                elif victim == "server":
                    postgres.kill()
                    postgres.start()
                else:
                    child.kill()
                    child = start(tmp_path, sinks)
                    child.wait_for("ready")
        finally:
            child.kill()
        letters, wanted = ended(tmp_path, sinks)
        assert not any(letters.values())
        with psycopg.connect(postgres.url) as connection:
            assert Counter(connection.execute("SELECT k, n, total FROM v")) == wanted
        sent = [json.loads(message.value()) for message in messages_of(broker, topic)]
        assert summed(sent) == wanted
        assert len({change["_commit_version"] for change in sent}) > kills
