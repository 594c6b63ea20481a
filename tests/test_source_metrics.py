"""Metrics of sources and of the work of epochs, with files, a followed log and a queue: rows read, lag, merges, operators."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eddyline as el
from console_cases import ask, document
from eddyline import cli
from eddyline.api import run_loop
from eddyline.api.run_loop import RunLoop
from eddyline.catalog.store import open_store
from eddyline.options import Options
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.source.lag import NAME, stored_lags
from eddyline.spark.threads import parts_at_once
from eddyline.storage.files import Files
from waiting import until

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from eddyline.console import graph
from eddyline.console.observer import Observer

pytestmark = pytest.mark.spark


def measured(url: str) -> dict[str, float]:
    lines = ask(url, "/metrics")[2].decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (one.rpartition(" ") for one in lines if one[:1] != "#")
    }


@dataclass
class Shop:
    """An engine that reads a table, NDJSON files and a log that grows."""

    engine: el.Engine
    url: str
    files: Path
    log: Path

    def grown(self, name: str) -> float:
        """Advance; return by how much a counter has grown."""
        before = measured(self.url).get(name, 0.0)
        self.engine.advance()
        return measured(self.url).get(name, 0.0) - before


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("metrics")
    files, log = folder / "files", folder / "access.log"
    files.mkdir()
    log.write_text("")
    with el.Engine(str(folder / "shop"), options=Options(compaction_fan_in=2)) as engine:
        url = engine.serve()
        engine.execute(f"""
            CREATE TABLE orders (id BIGINT, country STRING, PRIMARY KEY (id));
            CREATE STREAM clicks (id BIGINT, at TIMESTAMP) USING json OPTIONS (path '{files}');
            CREATE STREAM lines USING tail OPTIONS (path '{log}');
            CREATE VIEW by_country AS SELECT country, count(*) AS n FROM orders GROUP BY country;
            CREATE VIEW clicked AS SELECT c.id, o.country FROM clicks c JOIN orders o ON c.id = o.id;
            CREATE VIEW twice AS SELECT a.id FROM clicks a JOIN clicks b ON a.id = b.id;
            CREATE VIEW texts AS SELECT value, count(*) AS n FROM lines GROUP BY value;
        """)
        yield Shop(engine, url, files, log)


def rows_of(source: str) -> str:
    return f'eddyline_source_rows_total{{source="{source}"}}'


def test_rows_are_counted_once_for_all_readers(shop):
    orders = shop.engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(1, "de"), (2, "fr")])
    orders.delete([(2, "fr")])
    assert shop.grown(rows_of("orders")) == 3  # operations
    (shop.files / "1.json").write_text("".join(f'{{"id": {n}}}\n' for n in range(5)))
    assert shop.grown(rows_of("clicks")) == 5  # three leaves read them
    shop.log.write_text("GET /\nGET /a\nGET /\n")
    assert shop.grown(rows_of("lines")) == 3
    shop.engine.execute("CREATE VIEW later AS SELECT count(*) AS n FROM lines")
    assert shop.grown(rows_of("lines")) == 0  # its rows were read before

    last = json.loads(ask(shop.url, "/api/progress?last=100")[2])
    read = [{one["description"]: one["numInputRows"] for one in done["sources"]} for done in last]
    assert [sum(done[name] for done in read) for name in ("orders", "clicks", "lines")] == [3, 5, 3]


def test_rows_that_are_late_are_read_too(shop):
    folder = shop.files.parent / "timed"
    folder.mkdir()
    shop.engine.execute(f"""
        CREATE STREAM timed (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 0 SECONDS)
            USING json OPTIONS (path '{folder}');
        CREATE VIEW counted AS SELECT window(at, '1 minute').start AS m, count(*) AS n
            FROM timed GROUP BY window(at, '1 minute');
    """)
    (folder / "1.json").write_text('{"id": 1, "at": "2026-01-01T10:00:00"}\n')
    assert shop.grown(rows_of("timed")) == 1
    (folder / "2.json").write_text(
        '{"id": 2, "at": "2026-01-01T09:00:00"}\n{"id": 3, "at": "2026-01-01T11:00:00"}\n'
    )
    assert shop.grown(rows_of("timed")) == 2
    assert measured(shop.url)['eddyline_late_rows_total{source="timed"}'] == 1


def test_a_stream_that_nobody_reads_is_counted(shop):
    unread = shop.engine.table("unread", "id BIGINT")
    unread.insert([(1,), (2,)])
    assert shop.grown(rows_of("unread")) == 2


def test_operators_and_merges_are_counted_and_add_up_to_the_profile(shop):
    orders = shop.engine.table("orders", "id BIGINT, country STRING", ["id"])
    before = measured(shop.url)
    for number in range(6):
        orders.insert([(10 + number, "de")])
        shop.engine.advance()
    now = measured(shop.url)

    def grown(name: str) -> float:
        return now[name] - before.get(name, 0.0)

    for family in ("table", "aggregate", "join", "result"):
        assert grown(f'eddyline_operator_seconds_total{{op="{family}"}}') > 0, family
    operators = [name for name in now if name.startswith("eddyline_operator_seconds_total")]
    spent = json.loads(ask(shop.url, "/api/profile")[2])
    parts = sum(one["seconds"] for one in spent["spent"] if one["operator"])
    assert 0 < sum(map(grown, operators)) <= parts * 1.001
    assert grown("eddyline_merge_bytes_total") > 0


@pytest.fixture
def alone(spark, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[el.Engine, str]]:
    """An engine of one lane, with a table of countries."""
    options = Options(short_lane_rows=request.param)
    with el.Engine(str(tmp_path / "shop"), options=options) as engine:
        engine.execute("CREATE TABLE orders (id BIGINT, country STRING, PRIMARY KEY (id))")
        yield engine, engine.serve()


IN_BOTH_LANES = pytest.mark.parametrize("alone", [0, 200_000], ids=["wide", "short"], indirect=True)


@IN_BOTH_LANES
def test_changes_are_counted_by_operation(alone):
    engine, url = alone
    engine.execute("CREATE VIEW counts AS SELECT country, count(*) AS n FROM orders GROUP BY 1")

    def changes(relation: str) -> tuple[float, ...]:
        name = 'eddyline_view_changes_total{op="%s",view="%s"}'
        numbers = measured(url)
        return tuple(numbers[name % (op, relation)] for op in ("insert", "delete"))

    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(1, "de"), (2, "fr")])
    engine.advance()
    assert changes("counts") == (2, 0)
    orders.delete([(2, "fr")])
    orders.insert([(3, "de")])  # (de, 1) is replaced
    engine.advance()
    assert changes("orders") == (3, 1)
    assert changes("counts") == (3, 2)
    # the changelog of the replaced view goes on with the difference: (de, 2) is replaced
    engine.execute(
        "CREATE OR REPLACE VIEW counts AS SELECT country, 5 * count(*) AS n FROM orders GROUP BY 1"
    )
    assert changes("counts") == (4, 3)


@IN_BOTH_LANES
def test_the_cpu_of_views_is_measured_where_they_run(alone, request):
    engine, url = alone
    short = "short" in request.node.name
    engine.execute("""
        CREATE VIEW hashes AS SELECT id, sha2(repeat(country, 100000), 256) AS h FROM orders;
        CREATE VIEW kinds AS SELECT id DIV 2 AS k, count(*) AS n FROM orders GROUP BY id DIV 2;
    """)
    rows = engine.spark.range(1_000 if short else 150_000)
    text = "'de'" if short else "''"
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert(rows.selectExpr("id", f"{text} AS country"))
    before = measured(url)
    engine.advance()
    now = measured(url)

    def grown(name: str, view: str = "") -> float:
        name += f'{{view="{view}"}}' if view else ""
        return now[name] - before.get(name, 0.0)

    lane = "short" if short else "wide"
    assert now[f'eddyline_view_epochs_total{{lane="{lane}",view="hashes"}}'] >= 1
    spent = {v: grown("eddyline_view_cpu_seconds_total", v) for v in ("orders", "hashes", "kinds")}
    assert all(seconds > 0 for seconds in spent.values())
    assert sum(spent.values()) <= grown("eddyline_engine_cpu_seconds_total") + 0.05
    if short:  # the JVM has hashed 200 MB for it, perhaps on all cores
        most = parts_at_once() * grown("eddyline_view_seconds_total", "hashes")
        assert 0.05 < spent["hashes"] <= most + 0.01
    else:  # its operators have run in workers, on 75,000 groups
        assert spent["kinds"] > 0.03


def lag_of(shop: Shop, source: str) -> dict[str, float]:
    """What status, metrics and JSON say of a source's lag; they must agree but for the seconds that pass."""
    (found,) = [one["lag"] for one in shop.engine.status()["sources"] if one["name"] == source]
    amounts = {unit: amount for unit, amount in found.items() if unit != "seconds"}

    def shown() -> bool:
        label = f'{{source="{source}"}}'
        numbers = measured(shop.url)
        return {
            unit: numbers.get(f"eddyline_source_lag_{unit}{label}") for unit in amounts
        } == amounts

    until(shown, lambda: (amounts, ask(shop.url, "/metrics")[2]))  # the status is kept for a second
    (listed,) = [
        one for one in document(shop.url, "/api/sources")["sources"] if one["name"] == source
    ]
    assert {**listed["lag"], "seconds": 0} == {**amounts, "seconds": 0}
    return found


def test_one_status_reads_the_lags_once(shop, monkeypatch):
    read: list[str] = []

    def counted(self: Files, name: str) -> Any:
        read.append(name)
        return reading(self, name)

    reading = Files.read_json
    monkeypatch.setattr(Files, "read_json", counted)
    shop.engine.status()
    assert read.count(NAME) == 1
    with closing(open_store(shop.engine.files)) as store:
        read.clear()
        Observer(store).status()
        assert read.count(NAME) == 1


def node(shop: Shop, name: str) -> dict[str, Any]:
    (found,) = [one for one in document(shop.url, "/api/graph")["nodes"] if one["name"] == name]
    return found


@pytest.fixture
def always_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_loop, "EVERY_S", 0.0)
    monkeypatch.setattr(RunLoop.measure_lags, "__defaults__", (0.0,))


@pytest.mark.usefixtures("always_measured")
def test_rows_of_tables_wait_until_an_epoch_has_processed_them(shop, monkeypatch, capsys):
    shop.engine.advance()
    assert lag_of(shop, "orders") == {"rows": 0, "seconds": 0}
    orders = shop.engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(n, "de") for n in range(100, 107)])
    found = lag_of(shop, "orders")
    assert found["rows"] == 7
    time.sleep(0.05)
    later = lag_of(shop, "orders")
    assert later["seconds"] > found["seconds"]
    assert "7 rows" in ask(shop.url, "/sources", Accept="text/html")[2].decode()
    assert "7 rows" in ask(shop.url, "/", Accept="text/html")[2].decode()
    monkeypatch.setattr(graph, "LAGGING_S", 0.0)
    until(lambda: node(shop, "orders")["state"] == "lagging")
    assert node(shop, "orders")["lag"].startswith("7 rows")
    assert "node table lagging" in ask(shop.url, "/graph", Accept="text/html")[2].decode()
    assert cli.main(["status", "--storage", shop.engine.files.root]) == 0
    assert "7 rows" in capsys.readouterr().out
    shop.engine.advance()
    assert lag_of(shop, "orders") == {"rows": 0, "seconds": 0}
    until(lambda: node(shop, "orders")["state"] == "")


@pytest.mark.usefixtures("always_measured")
def test_bytes_of_files_and_lines_wait(shop):
    shop.engine.advance()
    assert lag_of(shop, "clicks") == {"bytes": 0, "seconds": 0}
    assert lag_of(shop, "lines") == {"rows": 0, "bytes": 0, "seconds": 0}
    text = '{"id": 7}\n' * 4
    (shop.files / "lag.json").write_text(text)
    assert lag_of(shop, "clicks")["bytes"] == len(text)
    assert lag_of(shop, "clicks")["seconds"] > 0
    shop.engine.advance()
    assert lag_of(shop, "clicks") == {"bytes": 0, "seconds": 0}

    with shop.log.open("a") as log:
        log.write("GET /b\n" * 3 + "GET /unfin")
    shop.engine.advance()
    assert lag_of(shop, "lines")["bytes"] == len("GET /unfin")
    with shop.log.open("a") as log:
        log.write("ished\n")
    assert lag_of(shop, "lines")["bytes"] == len("GET /unfinished\n")
    shop.engine.advance()
    assert lag_of(shop, "lines") == {"rows": 0, "bytes": 0, "seconds": 0}


def pipelines_page(url: str) -> str:
    return ask(url, "/pipelines", Accept="text/html")[2].decode()


def test_a_background_run_measures_by_itself_and_nothing_is_told_without_an_engine(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_loop, "EVERY_S", 0.05)
    queue = DataQueue(LogBackend(str(tmp_path / "queue")))
    waits = tmp_path / "waits"
    waits.touch()

    def slow(record: dict[str, Any]) -> dict[str, Any]:
        while waits.exists():
            time.sleep(0.01)
        if record["payload"] == b"line 7" and not record["attempts"]:
            raise ValueError("not yet")
        return {"text": record["payload"].decode()}

    with el.Engine(str(tmp_path / "shop")) as engine:
        url = engine.serve()
        pipeline = engine.pipeline("slow", queue, lanes=2, tuple_rows=5).bolt(
            slow, retry_delay=0.01
        )
        pipeline.into("texts", "text STRING")
        queue.put([f"line {n}" for n in range(40)])
        engine.start(0.05)
        label = '{pipeline="slow"}'
        until(lambda: measured(url).get(f"eddyline_pipeline_lag_rows{label}") == 40)
        # the batch has not ended
        until(lambda: measured(url).get(f"eddyline_pipeline_in_flight{label}") == 40)
        until(lambda: measured(url).get(f"eddyline_pipeline_lag_seconds{label}", 0) > 0.1)
        waits.unlink()
        until(lambda: measured(url).get(f"eddyline_pipeline_lag_rows{label}") == 0)
        until(lambda: measured(url).get('eddyline_source_lag_rows{source="texts"}') == 0)
        retried = 'eddyline_pipeline_records_total{outcome="retried",pipeline="slow"}'
        until(lambda: measured(url).get(retried) == 1)
        until(lambda: measured(url).get(f"eddyline_pipeline_in_flight{label}") == 0)
        # the account of the retried record's batch comes with the next status
        until(
            lambda: (
                (shown := document(url, "/api/pipelines")["pipelines"][0]["acker"])["done"]
                == shown["started"]
                == 9
            )  # of the retried record, too
        )
        (status,) = engine.status()[
            "pipelines"
        ]  # of now: the batch of the retried record has ended
        windows = [window * 5 for window in status["windows"]]
        assert len(windows) == 2
        name = 'eddyline_lane_window{lane="%d",pipeline="slow"}'
        until(lambda: [measured(url).get(name % lane) for lane in (0, 1)] == windows)
        until(lambda: '<td class="n">none</td>' in pipelines_page(url))  # no lag
        page = pipelines_page(url)
        assert f"{windows[0]:,}, {windows[1]:,}" in page
        assert "9 of 9 tuples" in page

        def batches() -> list[dict[str, Any]] | None:
            points = document(url, "/api/pipelines/slow/history")["points"]
            return points if sum(one["batches"] for one in points) == 2 else None

        points = until(batches)
        assert max(one["in_flight"] for one in points) == 40
        assert points[-1]["window_rows"] == windows
    with el.Engine(str(tmp_path / "shop")) as engine:  # the files of the pipeline are cleaned up
        assert document(engine.serve(), "/api/pipelines/slow/history")["points"] == points
    files = Files(str(tmp_path / "shop"))
    assert files.exists(NAME)
    assert stored_lags(files) == {}
