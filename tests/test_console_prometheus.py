"""A real Prometheus server scrapes the console, and evaluates the alerts and the board of the docs."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlparse

import pytest

import eddyline as el
from console_cases import ask, document

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[1]
OWN = ROOT / ".prometheus/usr/bin/prometheus"
SERVER = str(OWN) if OWN.exists() else shutil.which("prometheus")
WAIT_S = 60

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        SERVER is None, reason="there is no Prometheus: `make prometheus` fetches it"
    ),
]


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("scraped") / "shop")) as engine:
        engine.serve()
        orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
        engine.view("by_country", "SELECT country, count(*) AS n FROM orders GROUP BY country")
        engine.view("ratio", "SELECT id, 100 / id AS r FROM orders")
        orders.insert([(1, "de"), (2, "fr")])
        engine.advance()
        yield engine


@pytest.fixture(scope="module")
def prometheus(engine: el.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    target = urlparse(engine.serve()).netloc
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{ROOT}/docs/monitoring/alerts.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: eddyline, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        SERVER,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        # until it has read its storage, it answers all but this with 503
        until(lambda: ask(f"http://{address}", "/-/ready")[0] == 200)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def until(read: Any) -> Any:
    """Return what `read` returns as soon as it is something."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if found := read():
                return found
        except OSError:
            pass  # the server has not started yet
        time.sleep(0.2)
    raise AssertionError(f"nothing within {WAIT_S} seconds")


def values(prometheus: str, expression: str) -> list[tuple[dict[str, str], float]]:
    query = urlencode({"query": expression})
    answer = document(prometheus, f"/api/v1/query?{query}")
    assert answer["status"] == "success", answer
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def test_prometheus_scrapes_the_epoch(engine, prometheus):
    epoch = engine.status()["epoch"]
    assert until(lambda: [v for _, v in values(prometheus, "eddyline_epoch") if v == epoch])
    assert values(prometheus, 'eddyline_view_rows{view="by_country"}')[0][1] == 2
    assert values(prometheus, 'up{job="eddyline"}')[0][1] == 1


def test_an_alert_tells_of_a_failing_view_and_all_rules_are_sound(engine, prometheus):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(0, "de")])
    engine.advance()
    assert until(lambda: values(prometheus, 'ALERTS{alertname="EddylineViewFailing"}'))
    rules = document(prometheus, "/api/v1/rules")["data"]["groups"][0]["rules"]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    firing = {rule["name"]: rule["alerts"] for rule in rules if rule["alerts"]}
    assert set(firing) == {"EddylineViewFailing"}
    assert firing["EddylineViewFailing"][0]["annotations"]["summary"].startswith("View ratio fails")


def test_the_board_asks_what_prometheus_answers(prometheus):
    board = json.loads((ROOT / "docs/monitoring/dashboard.json").read_text())
    until(lambda: values(prometheus, "rate(eddyline_epoch[10s])"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = (
                target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            )
            found = values(prometheus, expression)
            quiet = ("Sinks", "Readers", "Pipelines", "Age of", "Behind the", "Dead")
            assert found or panel["title"].startswith(quiet), panel["title"]
    assert ask(prometheus, "/-/healthy")[0] == 200
