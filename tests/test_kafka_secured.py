"""A broker that asks for TLS and a password: streams and sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer

import eddyline as el
from broker import SecuredBroker
from eddyline.errors import EddylineError
from kafka_topics import Topic
from test_webstats_command import webstats
from waiting import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def test_a_password_over_tls(
    broker: SecuredBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From a topic through a view into a topic; a wrong password and an unknown certificate are said."""
    orders, totals, storage = Topic(broker), Topic(broker), tmp_path / "storage"
    orders.send({"item": "tea", "n": 2}, {"item": "tea", "n": 3})
    sasl = {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": "${env:BROKER}"}
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(broker.authority)}
    settings = {"bootstrap.servers": broker.secured, **sasl, **tls}
    options = {f"kafka.{name}": value for name, value in settings.items()}
    options |= {"subscribe": orders.name, "value.format": "json"}
    monkeypatch.setenv("BROKER", broker.PASSWORD)
    with el.Engine(storage) as engine:
        engine.create_stream("orders", "item STRING, n INT", "kafka", options)
        totals_of = engine.view("totals", "SELECT item, sum(n) AS n FROM orders GROUP BY item")
        sink = {name.replace(".", "_"): value for name, value in settings.items()}
        engine.sink("k", "totals", "kafka", topic=totals.name, **sink)
        engine.advance()
        assert [tuple(row) for row in totals_of.snapshot().collect()] == [("tea", 5)]
        client = Consumer(
            {
                **settings,
                "sasl.password": broker.PASSWORD,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        client.subscribe([totals.name])
        try:
            message = next(
                one for one in iter(lambda: client.poll(PATIENCE_S), None) if not one.error()
            )
        finally:
            client.close()
        assert json.loads(message.value()) == {"item": "tea", "n": 5}
    monkeypatch.setenv("BROKER", "another-secret")
    orders.send({"item": "tea", "n": 1})
    with el.Engine(storage) as engine:
        with pytest.raises(
            EddylineError, match=r"STREAM_FAILED.*Invalid username or password"
        ) as failed:
            engine.advance()
        shown = f"{failed.value} {engine.status()} {caplog.text}"
        assert "another-secret" not in shown
    monkeypatch.setenv("BROKER", broker.PASSWORD)
    with el.Engine(storage) as engine:
        engine.advance()
        assert [tuple(row) for row in engine.snapshot("totals").collect()] == [("tea", 6)]
        del options["kafka.ssl.ca.location"]
        with pytest.raises(EddylineError, match=r"STREAM_FAILED.*certificate"):
            engine.create_stream("unknown", "item STRING", "kafka", options)
    for file in storage.rglob("*"):
        if file.is_file():
            assert broker.PASSWORD.encode() not in file.read_bytes()


def test_web_statistics_read_lines_over_tls(
    broker: SecuredBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, storage = Topic(broker), tmp_path / "storage"
    lines.send('127.0.0.1 - - [01/Aug/2026:06:00:00 +0000] "GET /a HTTP/1.1" 200 12')
    monkeypatch.setenv("BROKER", broker.PASSWORD)
    settings = [
        "security.protocol=SASL_SSL",
        f"ssl.ca.location={broker.authority}",
        "sasl.mechanism=PLAIN",
        "sasl.username=reader",
        "sasl.password=${env:BROKER}",
    ]
    options = [word for one in settings for word in ("--kafka-option", one)]
    topic = ("--kafka", broker.secured, "--topic", lines.name, *options)
    assert webstats(*topic, "--storage", storage) == 0
    assert "epoch" in capsys.readouterr().out
    with el.Engine(storage) as engine:
        assert engine.sql("SELECT path FROM requests").first().path == "/a"
    assert broker.PASSWORD not in (storage / "webstats.json").read_text()
