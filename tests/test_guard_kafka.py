"""The block list in a topic of Kafka."""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from console_cases import ask, document
from eddyline.catalog.entries import Entry
from eddyline.errors import CatalogError, ScriptError
from eddyline.sink.kafka import SPARK_SERVERS, KafkaFormat
from eddyline_apps.guard import SHORT_LANE_ROWS
from eddyline_apps.guard.config import Notification, load_config
from eddyline_apps.guard.notifying import _kept
from processes import Child
from sink_changes import target
from waiting import until

RULES = """
rules:
  flood: {by: address, metric: requests, window: 10 s, at_least: 20, block: 5 s}
"""


def options_of(folder: Path, **options: object) -> dict[str, str]:
    given = {"to": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topic": "blocked", **options}
    path = folder / "guard.yml"
    path.write_text(f"{RULES}notify:\n  - {json.dumps(given)}\n")
    (notification,) = load_config(path).notify
    return dict(notification.options)


def test_servers_and_a_topic_are_enough(tmp_path):
    pytest.importorskip("confluent_kafka")
    options = options_of(tmp_path)
    assert options == {
        "bootstrap_servers": "127.0.0.1:9092", "topic": "blocked", "envelope": "changelog",
    }  # fmt: skip
    followed = target("blocked", keyed=False)
    KafkaFormat().check(followed, options)
    with pytest.raises(CatalogError, match="SINK_KEY"):
        KafkaFormat().check(followed, options_of(tmp_path, envelope="upsert"))


def test_the_options_are_those_of_the_sink(tmp_path):
    values = {name: "1" for name in KafkaFormat().options if name != SPARK_SERVERS}
    values |= {"envelope": "debezium", "overwrite": "true", "on_refused": "stop"}
    values |= dict.fromkeys(KafkaFormat().secrets, "${env:NAME}")
    assert options_of(tmp_path, **values) == values
    found = options_of(tmp_path, overwrite=True, partitions=3)
    assert (found["overwrite"], found["partitions"]) == ("true", "3")
    with pytest.raises(ScriptError, match="BAD_CONFIG") as caught:
        options_of(tmp_path, ssl_ca="ca.pem")
    assert "ssl_ca: there is no such setting" in str(caught.value)
    assert "ssl_ca_location" in str(caught.value)


def line(address: str) -> str:
    now = datetime.now(UTC)
    return f'{address} - - [{now:%d/%b/%Y:%H:%M:%S +0000}] "GET / HTTP/1.1" 200 9 "-" "Browser"\n'


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.spark
def test_changes_of_the_list_arrive_in_the_topic(broker, tmp_path):
    pytest.importorskip("confluent_kafka")
    from test_sink_kafka import messages_of

    options_of(tmp_path, bootstrap_servers=broker.address)
    log = tmp_path / "access.log"
    log.touch()
    words = ["--follow", "--log", log, "--config", tmp_path / "guard.yml", "--port", "0"]
    child = Child(
        [sys.executable, str(Path(__file__).with_name("guard_child.py")), *map(str, words)],
        tmp_path / "errors",
    )

    def changes():
        found = [json.loads(message.value()) for message in messages_of(broker, "blocked")]
        return [(one["_change_type"], one["target"], one["reason"]) for one in found]

    inserted = ("insert", "203.0.113.9", "flood")
    try:
        url = child.wait_for("page:").removesuffix("/guard")
        child.wait_for("following")
        with log.open("a") as file:
            file.writelines([*map(line, ["203.0.113.9"] * 60), line("198.51.100.7")])
        assert until(changes, child.last_words, pause_s=0.5)[:1] == [inserted]
        until(lambda: len(changes()) == 2, child.last_words, pause_s=0.5)
        assert changes() == [inserted, ("delete", *inserted[1:])]
        settings = document(url, "/api/settings")
        assert settings["console"]["engine"] == "in this process"
        options = {one["name"]: one["value"] for one in settings["options"]}
        assert options["short_lane_rows"] == SHORT_LANE_ROWS
        assert (
            'eddyline_sink_rows_total{op="delete",sink="guard_kafka'
            in ask(url, "/metrics")[2].decode()
        )
    finally:
        child.kill()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_topic_stays_equal_to_the_list_through_dry_runs_and_other_options(broker, tmp_path):
    pytest.importorskip("confluent_kafka")
    from eddyline.api.engine import Engine
    from eddyline_apps.guard.notifying import hold, notify
    from test_guard_lists import Listed
    from test_sink_kafka import messages_of

    topic, port = f"t{uuid.uuid4().hex[:8]}", broker.address.rpartition(":")[2]
    storage = tempfile.mkdtemp()

    def run(inserted, deleted, *, storage=storage, dry_run=False, servers=broker.address, **more):
        """Run the guard on a list that changes before and after it notifies; return how it delivers."""
        options_of(tmp_path, bootstrap_servers=servers, topic=topic, **more)
        config = replace(load_config(tmp_path / "guard.yml"), dry_run=dry_run)
        with Engine(storage) as engine:
            hold(engine, config, follow=True)
            listed = Listed(engine)
            listed.table.insert([(inserted, "flood")])
            engine.advance()
            notify(engine, listed, config)
            if deleted:
                listed.table.delete([(deleted, "flood")])
            engine.advance()
            return [(one["state"], one.get("error", "")[:23]) for one in engine.status()["sinks"]]

    def list_of_topic():
        """The sum of the messages, and their number."""
        found = [json.loads(one.value()) for one in messages_of(broker, topic)]
        kinds = {"insert": 1, "delete": -1}
        total = Counter()
        for one in found:
            total[one["target"]] += kinds[one["_change_type"]]
        return {target: count for target, count in total.items() if count}, len(found)

    live = [("live", "")]
    assert run("192.0.2.1", None) == live
    assert list_of_topic() == ({"192.0.2.1": 1}, 1)
    more = f"{broker.address}, localhost:{port}"
    assert run("192.0.2.2", "192.0.2.1", servers=more) == live
    assert list_of_topic() == ({"192.0.2.2": 1}, 3)
    assert run("192.0.2.3", "192.0.2.2", dry_run=True) == [("paused", "")]
    assert list_of_topic() == ({"192.0.2.2": 1}, 3)
    assert run("192.0.2.4", None) == live
    assert list_of_topic() == ({"192.0.2.3": 1, "192.0.2.4": 1}, 6)
    assert run("192.0.2.5", "192.0.2.3", servers=f"localhost:{port}", on_refused="stop") == live
    assert list_of_topic() == ({"192.0.2.4": 1, "192.0.2.5": 1}, 8)
    refused = run("192.0.2.6", None, storage=tempfile.mkdtemp())
    assert refused == [("failing", "[SINK_TARGET_NOT_EMPTY]")]
    assert list_of_topic()[1] == 8


def test_a_notification_goes_on_with_the_sink_that_is_most_like_it():
    def kafka(servers, topic="blocked", **more):
        return {"bootstrap_servers": servers, "topic": topic, "envelope": "changelog", **more}

    sinks = [
        Entry(str(number), "sink", f"guard_kafka_{number}", "", format="kafka", options=options)
        for number, options in enumerate([kafka("a:1,b:1"), kafka("c:1"), kafka("a:1", "other")])
    ]
    wanted = [kafka("c:1"), kafka("x:1, b:1"), kafka("c:1", "new"), kafka("y:1", "other")]
    found = _kept(sinks, [Notification("kafka", one) for one in wanted])
    assert [one and one.name[-1] for one in found] == ["1", "0", None, "2"]
