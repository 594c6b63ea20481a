"""The block list in a topic of Kafka."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from console_cases import ask, document
from eddyline.errors import CatalogError, ScriptError
from eddyline.sink.kafka import SPARK_SERVERS, KafkaFormat
from eddyline_apps.guard import SHORT_LANE_ROWS
from eddyline_apps.guard.config import load_config
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
