"""The console over real connections: its JSON interface, events, metrics, and who may ask."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote, urlparse

import pyarrow as pa
import pytest
import yaml
from pyspark.sql.streaming.listener import StreamingQueryProgress

import eddyline as el
from console_cases import EVIL, TOKEN, Answer, ask, console_process, document
from eddyline import cli
from eddyline.answers.deliverer import Delivered
from eddyline.answers.verified import keep_verified
from eddyline.changes import Epoch
from eddyline.errors import EngineError, StorageError
from eddyline.options import Options
from eddyline.state.manifest import last_committed
from eddyline.storage.files import Files
from waiting import PATIENCE_S, until

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from eddyline.console import tally
from eddyline.console.server import Console

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def lane_at_random() -> None:
    """Let small epochs run in the driver, as by default: these tests are about what is shown."""


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    storage = tmp_path_factory.mktemp("console") / "shop"
    with el.Engine(str(storage), options=Options(retain_epochs=4)) as engine:
        engine.serve()
        engine.execute(
            "CREATE TABLE orders (id BIGINT, country STRING, price DECIMAL(10,2), PRIMARY KEY (id))"
        )
        engine.execute("""
            CREATE VIEW by_country AS
                SELECT country, count(*) AS n, sum(price) AS total FROM orders GROUP BY country;
            CREATE VIEW largest AS SELECT country, n FROM by_country ORDER BY n DESC LIMIT 3;
            CREATE VIEW typed AS SELECT id, double(price) AS d, array(id, NULL) AS a, map('k', price) AS m,
                TIMESTAMP '2024-01-02 03:04:05.5' AS ts, X'00FF' AS b, id % 2 = 0 AS even FROM orders;
            CREATE VIEW ratio AS SELECT id, 100 / (id - 99) AS r FROM orders;
        """)
        engine.sink("copy", "by_country", "jsonl", path=str(storage.parent / "copy"))
        engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"]).insert(
            [
                (1, "de", Decimal("1.50")),
                (2, "fr", Decimal(2)),
                (3, EVIL, Decimal(3)),
                (4, None, None),
            ]
        )
        engine.advance()
        yield engine


@pytest.fixture(scope="module")
def url(engine: el.Engine) -> str:
    return engine.serve()


def error_of(answer: Answer) -> tuple[int, str]:
    found = json.loads(answer[2])["error"]
    assert found["message"]
    assert found["hint"]
    return answer[0], found["condition"]


class Events:
    """The events of a stream, as (id, name, data)."""

    def __init__(self, url: str, path: str, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(urlparse(url).netloc, timeout=PATIENCE_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", path, headers=given)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.headers["Content-Type"].startswith("text/event-stream")

    def next(self, *names: str) -> tuple[str | None, str, dict]:
        """Return the next event, of these names."""
        while True:
            found: dict[str, str] = {}
            while (line := self.answer.readline().decode().rstrip("\n")) != "":
                name, _, value = line.partition(": ")
                found[name] = value
            if found.get("event") and (not names or found["event"] in names):
                return found.get("id"), found["event"], json.loads(found["data"])

    def close(self) -> None:
        self.connection.close()


def rows_of(engine: el.Engine, query: str) -> list[str]:
    return sorted(repr(tuple(row)) for row in engine.sql(query).collect())


def test_rows_are_those_of_spark(engine, url):
    found = document(url, "/api/views/by_country")
    shown = sorted(repr((r["country"], r["n"], r["total"])) for r in found["rows"])
    query = "SELECT country, n, double(total) FROM by_country"
    assert shown == rows_of(engine, query)
    assert found["total"] == 4
    assert found["epoch"] == engine.status()["epoch"]
    assert [column["name"] for column in found["columns"]] == ["country", "n", "total"]
    assert document(url, "/api/views/orders")["total"] == 4  # tables, too


def test_values_of_all_types_are_json_as_spark_writes_it(engine, url):
    given = "to_json(struct(*), map('ignoreNullFields', 'false')) AS line"
    expected = [json.loads(row[0]) for row in engine.sql(f"SELECT {given} FROM typed").collect()]
    shown = document(url, "/api/views/typed")["rows"]
    assert sorted(map(repr, shown)) == sorted(map(repr, expected))


def test_pages_of_rows_of_one_epoch_are_disjoint_and_complete(url):
    epoch = document(url, "/api/views/orders")["epoch"]
    parts = [
        document(url, f"/api/views/orders?limit=3&offset={offset}&epoch={epoch}")["rows"]
        for offset in (0, 3, 6)
    ]
    assert [len(part) for part in parts] == [3, 1, 0]
    assert sorted(row["id"] for part in parts for row in part) == [1, 2, 3, 4]


def test_rows_as_arrow_have_the_types_of_the_view(engine, url):
    kind = "application/vnd.apache.arrow.stream"
    status, headers, body = ask(url, "/api/views/by_country", Accept=kind)
    assert (status, headers["content-type"]) == (200, kind)
    table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
    assert table.schema.field("total").type == pa.decimal128(20, 2)
    assert sorted(map(repr, zip(*table.to_pydict().values(), strict=True))) == rows_of(
        engine, "SELECT * FROM by_country"
    )


def test_definitions_come_and_go_at_once(engine, url):
    assert ask(url, "/api/views/fresh")[0] == 404
    engine.execute("CREATE TABLE fresh (id BIGINT)")
    assert document(url, "/api/views/fresh")["rows"] == []
    assert "fresh" in [source["name"] for source in document(url, "/api/sources")["sources"]]
    engine.drop("table", "fresh")
    assert error_of(ask(url, "/api/views/fresh")) == (404, "NOT_FOUND")


def test_wrong_requests_are_answered_with_what_to_do(engine, url):
    assert error_of(ask(url, "/api/views/nothing")) == (404, "NOT_FOUND")
    assert error_of(ask(url, "/api/views/nothing/changes")) == (404, "NOT_FOUND")
    assert error_of(ask(url, "/api/views/orders?limit=x")) == (400, "BAD_OPTION")
    assert error_of(ask(url, "/api/views/orders?limit=99999999")) == (400, "BAD_OPTION")
    assert error_of(ask(url, "/api/views/orders?epoch=999")) == (410, "NO_SUCH_EPOCH")
    assert error_of(ask(url, "/api/query", b"no json")) == (400, "BAD_OPTION")
    assert error_of(ask(url, "/api/query", b'{"sql": 5}')) == (400, "BAD_OPTION")
    assert error_of(ask(url, "/api/query", b"x" * 100_000)) == (413, "TOO_LARGE")
    assert error_of(ask(url, "/api/query", b"[" * 30_000)) == (400, "BAD_OPTION")
    assert ask(url, "/api/query")[0] == 405
    assert error_of(ask(url, "/api/query", b'{"sql": "SELECT \\ud800"}')) == (400, "BAD_OPTION")
    assert error_of(ask(url, f"/api/requests/{10**20}")) == (404, "NOT_FOUND")
    assert ask(url, f"/requests/{10**20}")[0] == 404
    assert error_of(ask(url, "/api/none")) == (404, "NOT_FOUND")
    assert error_of(ask(url, "/api/")) == (404, "NOT_FOUND")
    assert ask(url, f"/api/views/{quote(EVIL)}")[0] == 404
    assert document(url, "/api/status")["engine"] == "running"


def test_queries_are_answered_without_spark_or_refused(engine):
    def query(text: str) -> Answer:
        return ask(console.url, "/api/query", json.dumps({"sql": text}).encode())

    with Console(engine.files, Options()) as console:
        status, _, body = query("SELECT country, n FROM by_country WHERE country = 'de'")
        assert (status, json.loads(body)["rows"]) == (200, [["de", "1"]])
        assert error_of(query("SELECT max(n) FROM by_country")) == (422, "NEEDS_SPARK")
        assert error_of(query("DROP VIEW by_country")) == (422, "NEEDS_SPARK")
        assert error_of(query("SELECT * FROM ratio VERSION AS OF 999"))[0] == 410
    assert "by_country" in {view["name"] for view in engine.status()["views"]}


def test_changes_come_live_and_resume_after_the_last_event(engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"])
    events = Events(url, "/api/views/by_country/changes")
    number, name, data = events.next()
    assert (name, data["epoch"]) == ("epoch", engine.status()["epoch"])
    orders.insert([(5, "de", Decimal("0.50"))])
    epoch = engine.advance()
    number, name, data = events.next("changes")
    assert (int(number), data["epoch"], data["last"]) == (epoch, epoch, True)
    assert [(c["op"], c["row"]) for c in data["changes"]] == [
        ("delete", {"country": "de", "n": 1, "total": 1.5}),
        ("append", {"country": "de", "n": 2, "total": 2.0}),
    ]
    events.close()

    orders.delete([(5, "de", Decimal("0.50"))])
    later = engine.advance()
    events = Events(url, "/api/views/by_country/changes?after=0", Last_Event_ID=number)
    number, _, data = events.next("changes")
    events.close()
    assert int(number) == data["epoch"] == later  # the epochs before it were received
    # else it would miss the changes since the epoch that it means
    answer = ask(url, "/api/views/by_country/changes", Last_Event_ID="12x")
    assert error_of(answer) == (400, "BAD_OPTION")


def test_all_changes_add_up_to_the_rows(engine, url):
    events = Events(url, "/api/views/by_country/changes?after=0")
    rows: dict[str, int] = {}
    until = engine.status()["epoch"]
    while True:
        _, name, data = events.next("changes", "epoch")
        if name == "epoch" and data["epoch"] >= until:
            break
        for change in data.get("changes", ()):
            row = json.dumps(change["row"])
            rows[row] = rows.get(row, 0) + (1 if change["op"] == "append" else -1)
    events.close()
    kept = sorted(row for row, count in rows.items() if count)
    assert set(rows.values()) <= {0, 1}
    assert kept == sorted(map(json.dumps, document(url, "/api/views/by_country")["rows"]))


def test_a_failing_view_harms_nothing_else_and_expired_changes_say_so(engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"])
    assert document(url, "/ready")["ready"]
    orders.insert([(99, "pt", Decimal(1))])
    engine.advance()
    last_good = document(url, "/api/views/ratio?last_good=1")
    assert sorted(row["id"] for row in last_good["rows"]) == [1, 2, 3, 4]
    assert error_of(ask(url, "/api/views/ratio")) == (409, "VIEW_FAILING")
    status, _, body = ask(url, "/ready")
    assert status == 503
    assert "ratio" in body.decode()
    assert (
        'eddyline_view_state{state="failing",view="ratio"} 1.0' in ask(url, "/metrics")[2].decode()
    )
    assert document(url, "/api/views/by_country")["total"] == 5
    orders.delete([(99, "pt", Decimal(1))])
    for number in range(26):  # epochs are retired from time to time
        orders.upsert([(1, "de", Decimal(number))])
        engine.advance()
    events = Events(url, "/api/views/by_country/changes?after=3")
    number, _, data = events.next("expired")
    epoch = engine.status()["epoch"]
    assert data["condition"] == "CHANGES_EXPIRED"
    assert int(number) == data["epoch"] == epoch
    orders.upsert([(1, "de", Decimal("1.50"))])  # and it goes on from there
    assert engine.advance() == epoch + 1
    assert events.next("changes")[2]["epoch"] == epoch + 1
    events.close()
    assert document(url, "/ready")["ready"]


def test_metrics_are_those_of_the_storage(engine, url):
    status, headers, body = ask(url, "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    found = {
        name: float(value)
        for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", body.decode(), re.MULTILINE)
    }
    epoch = engine.status()["epoch"]
    assert found["eddyline_epoch"] == epoch
    assert found["eddyline_engine_running"] == 1
    assert found['eddyline_view_rows{view="by_country"}'] == 4
    assert found['eddyline_sink_epoch{sink="copy"}'] == epoch
    assert found['eddyline_sink_lag_epochs{sink="copy"}'] == 0
    assert found['eddyline_epoch_duration_seconds_count{stage="commit"}'] == epoch
    assert found['eddyline_view_changes_total{op="insert",view="by_country"}'] >= 4
    counted = 'eddyline_view_epochs_total{lane="%s",view="by_country"}'
    lanes = [found.get(counted % lane, 0.0) for lane in ("short", "wide")]
    assert sum(lanes) >= 1
    state = {
        name: value for name, value in found.items() if name.startswith("eddyline_state_rows{")
    }
    views = {view["name"]: view["state_rows"] for view in engine.status()["views"]}
    for view, rows in views.items():
        assert sum(v for name, v in state.items() if f'view="{view}"' in name) == rows
    assert {name.split("_")[0] for name in found} == {"eddyline", "process"}


def measured(url: str) -> dict[str, float]:
    lines = ask(url, "/metrics")[2].decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (one.rpartition(" ") for one in lines if one[:1] != "#")
    }


def test_verifications_are_kept_and_shown(engine, url):
    by_country, typed = (
        f'eddyline_verified_equal{{view="{name}"}}' for name in ("by_country", "typed")
    )

    def known(name: str, value: float) -> dict[str, float] | None:
        numbers = measured(url)
        return numbers if numbers.get(name) == value else None

    report = engine.verify("by_country")
    assert report

    def shown() -> dict[str, dict[str, object] | None]:
        views = document(url, "/api/views")["views"]
        return {view["name"]: view.get("verified") for view in views}

    until(lambda: shown()["by_country"])  # the status is kept for a second
    found = shown()
    assert found["typed"] is None
    assert (found["by_country"]["epoch"], found["by_country"]["equal"]) == (report.epoch, True)
    assert {v["name"]: v.get("verified") for v in engine.status()["views"]} == found
    numbers = until(lambda: known(by_country, 1))
    assert numbers['eddyline_verified_epoch{view="by_country"}'] == report.epoch
    assert typed not in numbers

    wrong = replace(report.views["by_country"], left_only=({"country": "xx"},))
    keep_verified(engine.files, engine.catalog, replace(report, views={"typed": wrong}))
    until(lambda: "1 differ" in ask(url, "/", Accept="text/html")[2].decode())
    assert until(lambda: known(typed, 0))[by_country] == 1
    assert cli.main(["verify", "typed", "--storage", engine.files.root]) == 0
    numbers = until(lambda: known(typed, 1))
    differences = "eddyline_verify_differences_total"
    assert numbers[differences + '{view="typed"}'] == 1
    assert numbers[differences + '{view="by_country"}'] == 0

    Path(engine.files.path("verified.json")).write_text("damaged")
    assert "by_country" in {view["name"] for view in document(url, "/api/status")["views"]}
    assert engine.verify("by_country")
    # neither those of before nor those of the damaged file, which are none
    until(lambda: (now := known(by_country, 1)) is not None and typed not in now)


def test_costs_and_deliveries_are_measured_in_the_engine_s_process(engine, url, monkeypatch):
    before = measured(url)
    assert before["eddyline_engine_cpu_seconds_total"] > before["process_cpu_seconds_total"]
    assert before["eddyline_engine_resident_bytes"] > before["process_resident_memory_bytes"]
    orders = engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"])
    orders.insert([(77, "nl", Decimal(1))])
    engine.advance()
    now = until(
        lambda: _grown(before, measured(url), 'eddyline_sink_rows_total{op="insert",sink="copy"}')
    )
    assert now['eddyline_view_seconds_total{view="by_country"}'] > before.get(
        'eddyline_view_seconds_total{view="by_country"}', 0
    )
    assert now['eddyline_log_bytes{source="orders"}'] > 100
    monkeypatch.setattr(tally, "USAGE_S", 0.0)
    until(lambda: re.search(r"\d\.\d\d cores, ", ask(url, "/", Accept="text/html")[2].decode()))
    with Console(engine.files, Options()) as beside:
        failed = Delivered("copy", 0, 10**9, Epoch(1), Epoch(1), 0, error=OSError("away"))
        beside.delivered(failed)
        beside.delivered(replace(failed, ended=2 * 10**9, rows=5, deletes=2, error=None))
        numbers = measured(beside.url)
        assert numbers['eddyline_sink_errors_total{sink="copy"}'] == 1
        assert numbers['eddyline_sink_rows_total{op="insert",sink="copy"}'] == 3
        assert numbers['eddyline_sink_rows_total{op="delete",sink="copy"}'] == 2
        assert numbers['eddyline_epoch_duration_seconds_count{stage="sink"}'] == 1
        assert numbers['eddyline_epoch_duration_seconds_sum{stage="sink"}'] == 2.0
        assert "eddyline_engine_resident_bytes" not in numbers
        assert b" cores, " not in ask(beside.url, "/", Accept="text/html")[2]
    orders.delete([(77, "nl", Decimal(1))])
    engine.advance()
    now = until(
        lambda: _grown(before, measured(url), 'eddyline_sink_rows_total{op="delete",sink="copy"}')
    )
    assert now['eddyline_epoch_duration_seconds_count{stage="sink"}'] >= 2


def _grown(before: dict[str, float], now: dict[str, float], name: str) -> dict[str, float] | None:
    return now if now.get(name, 0) > before.get(name, 0) else None


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_boards_and_alerts_name_only_metrics_and_labels_that_exist(url, name):
    text = (Path(__file__).parents[1] / "docs/monitoring" / name).read_text()
    loaded = yaml.safe_load(text)  # JSON is YAML
    rules = [rule for group in loaded.get("groups", ()) for rule in group["rules"]]
    shown = [target for one in loaded.get("panels", ()) for target in one["targets"]]
    uses = [(one["expr"], one["annotations"]["summary"]) for one in rules]
    uses += [(one["expr"], one["legendFormat"]) for one in shown]
    assert len(uses) >= 10

    metrics = ask(url, "/metrics")[2].decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.MULTILINE))
    known = {name for name, kind in kinds.items() if kind != "histogram"} | {"up"}
    for histogram in kinds.keys() - known:
        known |= {f"{histogram}_{part}" for part in ("bucket", "sum", "count")}
    labels: dict[str, set[str]] = {}
    for metric, given in re.findall(r"^(\w+)\{([^}]*)\} ", metrics, re.MULTILINE):
        labels.setdefault(metric, set()).update(re.findall(r"(\w+)=", given))
    for expression, legend in uses:
        used = set(re.findall(r"\b(?:eddyline|process|up)(?:_\w+)?\b(?!\")", expression))
        assert used, expression
        assert used <= known, expression
        if used <= labels.keys() | {"eddyline_epoch"}:
            named = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", legend))
            named |= set(re.findall(r"(\w+)(?:=~|=)\"", expression))
            there = set().union(*(labels.get(metric, set()) for metric in used))
            assert named <= there | {"instance"}, expression


def test_lists_show_what_is_there(engine, url):
    status = document(url, "/api/status")
    own = engine.status()
    assert {view["name"] for view in status["views"]} == {view["name"] for view in own["views"]}
    assert [sink["sink"] for sink in document(url, "/api/sinks")["sinks"]] == ["copy"]
    assert [s["name"] for s in document(url, "/api/sources")["sources"]] == ["orders"]
    assert {task["name"] for task in document(url, "/api/tasks")["tasks"]} >= {"orders", "largest"}
    assert document(url, "/api/deadletters") == {"total": 0, "letters": []}
    views = {view["name"]: view for view in document(url, "/api/views")["views"]}
    assert views["by_country"]["read_by"] == ["largest"]
    assert views["by_country"]["sinks"] == ["copy"]
    assert "sum(price)" in views["by_country"]["query"]

    graph = document(url, "/api/graph")
    names = {node["id"]: (node["name"], node["level"]) for node in graph["nodes"]}
    edges = {(names[one], names[two]) for one, two in graph["edges"]}
    assert (("orders", 0), ("by_country", 1)) in edges
    assert (("by_country", 1), ("largest", 2)) in edges
    assert (("by_country", 1), ("copy", 2)) in edges


def test_the_plan_is_shown_in_the_process_of_the_engine(engine, url):
    engine.explain("largest")  # is compiled by now
    plan = document(url, "/api/views/largest/plan")["plan"]
    assert "part 1, level" in plan
    assert plan in engine.explain("largest")
    with Console(engine.files, Options()) as console:
        assert document(console.url, "/api/views/largest/plan")["plan"] is None


def test_progress_has_the_shape_of_spark(engine, url):
    epochs = json.loads(ask(url, "/api/progress?last=3")[2])
    assert [one["batchId"] for one in epochs] == list(
        range(epochs[0]["batchId"], epochs[0]["batchId"] + 3)
    )
    last = epochs[-1]
    assert last["batchId"] == engine.status()["epoch"]
    assert last["numInputRows"] == sum(engine.progress().rows_in.values())
    assert last["durationMs"]["triggerExecution"] == round(
        1000 * sum(engine.progress().seconds.values())
    )
    assert {part["operatorName"] for part in last["stateOperators"]} >= {"by_country", "largest"}
    source = last["sources"][0]
    assert source["endOffset"] == (source["startOffset"] or 0) + 1
    read = [StreamingQueryProgress.fromJson(one) for one in epochs]
    assert len({one.id for one in read}) == len({one.runId for one in read}) == 1
    assert read[-1].batchId == engine.status()["epoch"]
    assert read[-1].batchDuration == last["durationMs"]["triggerExecution"]
    assert json.loads(read[-1].sources[0].endOffset) == source["endOffset"]
    assert read[-1].stateOperators[0].numRowsTotal == last["stateOperators"][0]["numRowsTotal"]
    datetime.strptime(read[-1].timestamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def test_the_description_names_every_path(url):
    described = document(url, "/api/openapi.json")
    assert described["openapi"].startswith("3.")
    values = {"{name}": "by_country", "{source}": "orders", "{position}": "1", "{number}": "1"}
    values["{pipeline}"] = "none"
    values["{kind}"] = "csv?sql=SELECT%20n%20FROM%20by_country"
    for path, methods in described["paths"].items():
        asked = re.sub(r"\{\w+\}", lambda found: values[found[0]], path)
        if "get" in methods and "event-stream" not in json.dumps(methods):
            there = (
                "{name}" in path or "{kind}" in path or "{" not in path
            )  # there are no letters, requests and pipelines
            assert ask(url, asked)[0] in ((200, 204) if there else (404,)), path
        if "post" in methods and path != "/api/query":
            assert error_of(ask(url, asked, b"")) == (403, "READ_ONLY"), path
    (query,) = [
        one
        for one in described["paths"]["/api/query/answer.{kind}"]["get"]["parameters"]
        if one["in"] == "query"
    ]
    assert (query["name"], query["required"]) == ("sql", True)
    named = set(described["paths"])
    assert {"/metrics", "/api/query", "/api/views/{name}/changes"} <= named
    assert {"/api/views/{name}/verify", "/api/deadletters/{source}/all/drop"} <= named


def test_pages_of_other_sites_can_not_ask(url):
    assert error_of(ask(url, "/api/status", Host="evil.example:80")) == (421, "WRONG_HOST")
    assert error_of(ask(url, "/api/status", Host="127.0.0.1.evil.example")) == (421, "WRONG_HOST")
    assert ask(url, "/api/status", Host=f"localhost:{urlparse(url).port}")[0] == 200
    crossed = ask(url, "/api/query", b"{}", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")
    assert error_of(crossed) == (403, "OTHER_SITE")
    crossed = ask(url, "/api/query", b"{}", Origin="http://evil.example")
    assert error_of(crossed) == (403, "OTHER_SITE")
    _, headers, _ = ask(url, "/api/status", Origin="http://evil.example")
    assert "access-control-allow-origin" not in headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_a_token_is_demanded_beyond_loopback(engine, tmp_path, monkeypatch):
    files, options = engine.files, Options()
    with pytest.raises(EngineError, match="BAD_OPTION"):
        Console(files, options, host="0.0.0.0")
    with pytest.raises(EngineError, match="in the clear"):
        Console(files, options, host="0.0.0.0", token=TOKEN)
    monkeypatch.setenv("CONSOLE_TOKEN", "short")
    with pytest.raises(EngineError, match="16"):
        Console(files, options, token="${env:CONSOLE_TOKEN}")
    with pytest.raises(EngineError, match="SECRET_MISSING"):
        Console(files, options, token=f"${{file:{tmp_path}/none}}")
    (tmp_path / "token").write_text(TOKEN + "\n")
    with Console(files, options, host="0.0.0.0", token=f"${{file:{tmp_path}/token}}") as console:
        url = console.url
        assert ask(url, "/health")[0] == 204
        for path in ("/api/status", "/metrics", "/api/views/orders/changes"):
            assert error_of(ask(url, path)) == (401, "NO_TOKEN")
        assert document(url, "/ready") == {"ready": True}
        status, _, body = ask(url, "/ready", Authorization=f"Bearer {TOKEN}")
        assert (status, json.loads(body)["reasons"]) == (200, [])
        assert error_of(ask(url, "/api/status", Authorization="Bearer wrong"))[0] == 401
        assert error_of(ask(url, "/api/status", Authorization=f"Basic {TOKEN}"))[0] == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert ask(url, "/api/status", Authorization=f"{scheme} {TOKEN}")[0] == 200


def test_damage_harms_the_damaged_view_alone(engine, tmp_path):
    storage = tmp_path / "copy"
    shutil.copytree(engine.files.root, storage, ignore=shutil.ignore_patterns("leases"))
    files = Files(str(storage))
    catalog = {entry.name: entry.id for entry in engine.catalog.entries}
    runs = last_committed(files).of(catalog["typed"])
    for run in [run for held in runs.values() for run in held]:
        (storage / run.name).write_bytes(b"damaged")
    with Console(files, Options()) as console:
        url = console.url
        assert error_of(ask(url, "/api/views/typed"))[0] == 503
        assert document(url, "/api/views/by_country")["total"] == 4
        assert b'eddyline_view_rows{view="by_country"} 4.0' in ask(url, "/metrics")[2]
        for path in ("/", "/views/typed", "/views/by_country", "/graph", "/api/status"):
            assert ask(url, path)[0] == 200, path
        events = Events(url, "/api/views/by_country/changes")
        assert events.next()[1] == "epoch"
        shutil.rmtree(storage)
        assert error_of(ask(url, "/api/status"))[0] == 503
        assert ask(url, "/health")[0] == 204
        events.close()


def test_a_request_that_fails_ends_no_server(engine, caplog):
    with Console(engine.files, Options(), explain=lambda entry: str(1 // 0)) as console:
        url = console.url
        assert error_of(ask(url, "/api/views/largest/plan")) == (500, "INTERNAL")
        status, headers, body = ask(url, "/views/largest")
        assert (status, headers["content-type"].split(";")[0]) == (500, "text/html")
        assert b"ZeroDivisionError" in body
        assert "script-src 'self'" in headers["content-security-policy"]
        assert ask(url, "/api/views/largest")[0] == 200
    assert {record.name for record in caplog.records} == {"eddyline.console"}


def test_an_address_that_is_taken_is_refused(engine, url):
    with pytest.raises(EngineError, match="NO_ADDRESS"):
        Console(engine.files, Options(), port=urlparse(url).port)
    with pytest.raises(StorageError, match="NO_STORAGE"):
        Console(Files(str(Path(engine.files.root) / "none")), Options())


def test_the_command_serves_beside_a_running_engine_without_a_jvm(engine, tmp_path):
    settings = {"JAVA_HOME": "/nowhere", "PATH": os.path.dirname(sys.executable)}
    errors = tmp_path / "errors"
    with console_process(engine.files.root, errors, **settings) as (child, url):
        assert document(url, "/api/views/by_country") == document(
            engine.serve(), "/api/views/by_country"
        )
        last = document(url, "/api/progress")[-1]
        assert last["durationMs"] == {}  # only the engine's own process knows them
        nice = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)  # the engine comes first
        assert os.getpriority(os.PRIO_PROCESS, child.process.pid) == nice
        os.kill(child.process.pid, signal.SIGTERM)
        assert child.process.wait(PATIENCE_S) == 0
    assert errors.read_text() == ""


def test_run_prints_the_address_of_its_console(spark, tmp_path, capsys):
    script = tmp_path / "shop.sql"
    script.write_text("CREATE TABLE t (id BIGINT)")
    command = ["run", str(script), "--storage", str(tmp_path / "s"), "--once", "--console"]
    assert cli.main(command) == 0
    assert re.search(r"^console: http://127.0.0.1:\d+$", capsys.readouterr().out, re.MULTILINE)
