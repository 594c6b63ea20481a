"""A real Prometheus server scrapes the console, and evaluates the alerts and the board of the docs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlparse

import pytest

import eddyline as el
from console_cases import ask, document
from eddyline_apps.processes import free_port
from waiting import PATIENCE_S, until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[1]
OWN = ROOT / ".prometheus/usr/bin/prometheus"
SERVER = str(OWN) if OWN.exists() else shutil.which("prometheus")

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
        log = tmp_path_factory.mktemp("followed") / "access.log"
        log.write_text("GET /\n")
        engine.execute(f"CREATE STREAM lines USING tail OPTIONS (path '{log}')")
        orders.insert([(1, "de"), (2, "fr")])
        engine.advance()
        assert engine.verify("by_country")
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
    address = f"127.0.0.1:{free_port()}"
    command = [
        SERVER,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: ready(f"http://{address}"))
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ready(address: str) -> bool:
    """Whether a server has started and has read its storage; before, it answers all but this with 503."""
    try:
        return ask(address, "/-/ready")[0] == 200
    except OSError:
        return False


def values(prometheus: str, expression: str) -> list[tuple[dict[str, str], float]]:
    query = urlencode({"query": expression})
    answer = document(prometheus, f"/api/v1/query?{query}")
    assert answer["status"] == "success", answer
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def await_values(prometheus: str, expression: str, wanted: list[float]) -> None:
    """Wait for the values of an expression; a scrape that takes longer than its second gives none."""

    def found() -> list[float]:
        return [value for _, value in values(prometheus, expression)]

    until(lambda: found() == wanted, found, pause_s=0.2)


def test_prometheus_scrapes_the_epoch(engine, prometheus):
    epoch = engine.status()["epoch"]
    await_values(prometheus, "eddyline_epoch", [epoch])
    await_values(prometheus, 'eddyline_view_rows{view="by_country"}', [2])
    await_values(prometheus, 'up{job="eddyline"}', [1])


def test_an_alert_tells_of_a_failing_view_and_all_rules_are_sound(engine, prometheus):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(0, "de")])
    engine.advance()

    def rules() -> list[dict[str, Any]]:
        return document(prometheus, "/api/v1/rules")["data"]["groups"][0]["rules"]

    def alerts() -> dict[str, Any]:
        return {rule["name"]: rule["alerts"] for rule in rules() if rule["alerts"]}

    def only_of_views() -> list[Any]:
        found = alerts()  # others come and go with scrapes that take longer than their second
        return found["EddylineViewFailing"] if set(found) == {"EddylineViewFailing"} else []

    until(lambda: {rule["health"] for rule in rules()} == {"ok"}, rules, pause_s=0.2)
    (alert,) = until(only_of_views, alerts, pause_s=0.2)
    assert alert["annotations"]["summary"].startswith("View ratio fails")


def test_the_board_asks_what_prometheus_answers(prometheus):
    board = json.loads((ROOT / "docs/monitoring/dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = (
                target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            )
            quiet = ("Sinks", "Readers", "Pipelines", "Age of", "Behind the", "Dead")
            title = panel["title"]
            read = partial(values, prometheus, expression)
            until(lambda: read() or title.startswith(quiet), lambda: title, pause_s=0.2)  # noqa: B023
    assert ask(prometheus, "/-/healthy")[0] == 200
