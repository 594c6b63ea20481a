"""Where columns come from: for people, and as events of OpenLineage that a receiver on loopback gets."""

from __future__ import annotations

import doctest
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

import eddyline as el
from eddyline.cli import main
from eddyline.telemetry import datasets, tracker
from eddyline.telemetry.datasets import outside
from eddyline_apps.processes import free_port
from telemetry_receivers import Taken, events_in, taking
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.spark

SECRET = "very-secret-value"
SPEC = json.loads(Path(__file__).with_name("openlineage.json").read_text())
"""The schemas of OpenLineage's specification, by their addresses."""

ORDERS = "id BIGINT, customer STRING, country STRING, amount DOUBLE, items ARRAY<STRING>"
VIEWS = {
    "totals": "SELECT upper(country) AS land, sum(amount) AS total, count(*) AS n FROM orders "
    "WHERE id > 0 GROUP BY upper(country)",
    "ranked": "WITH t AS (SELECT * FROM totals) SELECT land, total / n AS mean, "
    "row_number() OVER (ORDER BY total DESC) AS place FROM t",
}


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with el.Engine(tmp_path_factory.mktemp("lineage") / "shop") as engine:
        engine.table("orders", ORDERS, ["id"])
        engine.table("customers", "name STRING, since DATE", ["name"])
        for name, query in VIEWS.items():
            engine.view(name, query)
        yield engine


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last events of an engine are taken, however slow the machine."""
    monkeypatch.setattr(tracker, "CLOSE_S", PATIENCE_S)


def short(origins: list[dict[str, Any]]) -> dict[str, str]:
    return {f"{one['relation']}.{one['column']}": " ".join(one["how"]) for one in origins}


def columns(engine: el.Engine, view: str, which: str = "from") -> dict[str, dict[str, str]]:
    return {line["column"]: short(line[which]) for line in engine.lineage(view)}


def test_values_and_rows_of_an_aggregate(engine):
    assert columns(engine, "totals") == {
        "land": {"orders.country": "transformation"},
        "total": {"orders.amount": "aggregation"},
        "n": {},
        "(rows)": {"orders.id": "filter", "orders.country": "group_by"},
    }


def test_columns_are_followed_through_views_to_their_tables(engine):
    assert columns(engine, "ranked") == {
        "land": {"totals.land": "identity"},
        "mean": {"totals.total": "transformation", "totals.n": "transformation"},
        "place": {"totals.total": "window"},
        "(rows)": {},
    }
    assert columns(engine, "ranked", "sources") == {
        "land": {"orders.country": "transformation"},
        "mean": {"orders.amount": "aggregation"},
        "place": {"orders.amount": "window"},
        "(rows)": {"orders.id": "filter", "orders.country": "group_by"},
    }


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (
            # the words `customer` and `country` in text and names mean nothing
            "SELECT amount AS customer, 'country' AS id FROM orders",
            {"customer": {"orders.amount": "identity"}, "id": {}, "(rows)": {}},
        ),
        (
            "SELECT o.id, c.since FROM orders o LEFT JOIN customers c ON o.customer = c.name",
            {
                "id": {"orders.id": "identity"},
                "since": {"customers.since": "identity"},
                "(rows)": {"orders.customer": "join", "customers.name": "join"},
            },
        ),
        (
            "SELECT a.id, b.amount FROM orders a JOIN orders b ON a.id = b.id",
            {
                "id": {"orders.id": "identity"},
                "amount": {"orders.amount": "identity"},
                "(rows)": {"orders.id": "join"},
            },
        ),
        (
            "SELECT CASE WHEN country = 'de' THEN customer ELSE 'x' END AS who, "
            "max(amount) FILTER (WHERE id > 1) AS top FROM orders GROUP BY country, customer",
            {
                "who": {"orders.country": "conditional", "orders.customer": "transformation"},
                "top": {"orders.amount": "aggregation", "orders.id": "conditional"},
                "(rows)": {"orders.country": "group_by", "orders.customer": "group_by"},
            },
        ),
        (
            "SELECT id AS k FROM orders UNION ALL SELECT year(since) FROM customers",
            {
                "k": {"orders.id": "identity", "customers.since": "transformation"},
                "(rows)": {},
            },
        ),
        (
            "SELECT id, item FROM orders LATERAL VIEW explode(items) AS item",
            {
                "id": {"orders.id": "identity"},
                "item": {"orders.items": "transformation"},
                "(rows)": {},
            },
        ),
        (
            "SELECT country, customer, count(*) AS n FROM orders GROUP BY ROLLUP (country, customer)",
            {
                "country": {"orders.country": "identity"},
                "customer": {"orders.customer": "identity"},
                "n": {},
                "(rows)": {"orders.country": "group_by", "orders.customer": "group_by"},
            },
        ),
        (
            "SELECT id, (SELECT max(since) FROM customers) AS newest FROM orders "
            "WHERE customer IN (SELECT name FROM customers WHERE since IS NOT NULL)",
            {
                "id": {"orders.id": "identity"},
                "newest": {"customers.since": "aggregation"},
                "(rows)": {
                    "orders.customer": "filter",
                    "customers.name": "filter",
                    "customers.since": "filter",
                },
            },
        ),
        (
            "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.name = o.customer)",
            {
                "id": {"orders.id": "identity"},
                "(rows)": {"customers.name": "filter", "orders.customer": "filter"},
            },
        ),
        (
            "SELECT customer FROM orders EXCEPT SELECT name FROM customers",
            {
                "customer": {"orders.customer": "identity"},
                "(rows)": {"orders.customer": "filter", "customers.name": "filter"},
            },
        ),
        (
            "SELECT DISTINCT country FROM orders ORDER BY country LIMIT 3",
            {
                "country": {"orders.country": "identity"},
                "(rows)": {"orders.country": "group_by sort"},
            },
        ),
        (
            "WITH a AS (SELECT country AS c, amount FROM orders), b AS (SELECT c, sum(amount) AS s "
            "FROM a GROUP BY c) SELECT x.c, y.s FROM b x JOIN b y ON x.c = y.c",
            {
                "c": {"orders.country": "identity"},
                "s": {"orders.amount": "aggregation"},
                "(rows)": {"orders.country": "group_by join"},
            },
        ),
        (
            "SELECT id, transform(items, i -> concat(i, customer)) AS named FROM orders",
            {
                "id": {"orders.id": "identity"},
                "named": {"orders.items": "transformation", "orders.customer": "transformation"},
                "(rows)": {},
            },
        ),
        (
            "SELECT id, lag(amount) OVER (PARTITION BY customer ORDER BY id) AS before FROM orders",
            {
                "id": {"orders.id": "identity"},
                "before": {
                    "orders.amount": "transformation",
                    "orders.customer": "window",
                    "orders.id": "window",
                },
                "(rows)": {},
            },
        ),
    ],
)
def test_the_plan_tells_where_columns_come_from(engine, query, wanted):
    engine.view("one", query, replace=True)
    assert columns(engine, "one") == wanted


def test_views_of_dataframes_and_of_altered_tables(engine):
    from pyspark.sql import functions as F  # noqa: N812

    orders = engine.relation("orders")
    engine.view("framed", orders.groupBy("country").agg(F.sum("amount").alias("s")))
    assert columns(engine, "framed")["s"] == {"orders.amount": "aggregation"}
    engine.execute(
        "CREATE TABLE t (a INT, b INT, c INT); CREATE VIEW old AS SELECT a + b AS s FROM t"
    )
    engine.execute("ALTER TABLE t RENAME COLUMN c TO z; ALTER TABLE t ADD COLUMN c INT")
    assert columns(engine, "old")["s"] == {"t.a": "transformation", "t.b": "transformation"}


def test_the_command_shows_it(engine, capsys):
    storage = engine.files.root
    assert main(["lineage", "ranked", "--storage", storage]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["land", "totals.land", "identity", "orders.country"] in lines
    assert main(["lineage", "ranked", "--storage", storage, "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == engine.lineage("ranked")
    assert main(["lineage", "orders", "--storage", storage]) == 2
    assert "NOT_FOUND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("format", "options", "wanted"),
    [
        ("delta", {"path": "s3://bucket/lake/t"}, [("s3://bucket", "lake/t")]),
        ("jsonl", {"path": "/data/out/"}, [("file", "/data/out")]),
        ("json", {"path": "file:///data/in"}, [("file", "/data/in")]),
        (
            "kafka",
            {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "x, y"},
            [("kafka://a:1", "x"), ("kafka://a:1", "y")],
        ),
        ("kafka", {"bootstrap_servers": "${env:BROKERS}", "topic": "x"}, []),
        (
            "postgres",
            {"url": f"host=db port=5433 dbname=shop password={SECRET}", "table": 'sales."by day"'},
            [("postgres://db:5433", "shop.sales.by day")],
        ),
        ("postgres", {"url": "${file:/run/url}", "table": "t"}, []),
        (
            "webhook",
            {"url": f"https://u:{SECRET}@h:8443/in?t={SECRET}"},
            [("https://h:8443", "/in")],
        ),
        ("webhook", {"url": "${env:HOOK}"}, []),
        ("function", {}, []),
        ("generator", {"rows": "10"}, []),
    ],
)
def test_datasets_outside_have_names_without_secrets(format, options, wanted):
    assert outside(format, options) == wanted
    assert doctest.testmod(datasets).failed == 0


# -- events ------------------------------------------------------------------------------------

REGISTRY = Registry().with_resources(
    [(name, Resource.from_contents(document)) for name, document in SPEC.items()]
)
RUN_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"


def check(event: dict[str, Any]) -> None:
    """Check an event, and each of its facets, against the specification."""
    assert event["schemaURL"] == RUN_EVENT
    parts = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    named = ("facets", "inputFacets", "outputFacets")
    facets = [one for part in parts for kind in named for one in (part.get(kind) or {}).values()]
    for address, document in [(RUN_EVENT, event), *((one["_schemaURL"], one) for one in facets)]:
        jsonschema.Draft202012Validator(
            {"$ref": address},
            registry=REGISTRY,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        ).validate(document)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    pytest.importorskip("openlineage.client")
    with taking(events_in) as taken:
        monkeypatch.setenv("OPENLINEAGE_URL", taken.url)
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "web")
        # the client itself derives these from the address, and would find them in the next test
        for name in ("TYPE", "URL"):
            monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}", "")
            monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}")
        yield taken


def told(taken: Taken, state: str, job: str) -> list[dict[str, Any]]:
    return [
        one for one in taken.items if (one["eventType"], one["job"]["name"]) == (state, f"s.{job}")
    ]


def test_views_and_sinks_are_jobs_that_run_until_they_end(spark, tmp_path, receiver):
    (tmp_path / "in").mkdir()
    storage, target = str(tmp_path / "s"), str(tmp_path / "out")
    options = el.Options(lineage_seconds=1)
    with el.Engine(storage, options=options) as engine:
        engine.table("orders", "id BIGINT, at STRUCT<x: INT, y: DOUBLE>", ["id"])
        engine.create_stream("clicks", "n BIGINT", "json", {"path": str(tmp_path / "in")})
        engine.view("per", "SELECT at.x AS x, count(*) AS n FROM orders WHERE id > 0 GROUP BY at.x")
        engine.view("ratio", "SELECT id, 100 / at.x AS r FROM orders")
        engine.sink("lines", "per", "jsonl", path=target)
        until(lambda: told(receiver, "START", "sink.lines"), lambda: receiver.items)
        started = time.monotonic()
        epochs = 0
        while epochs < 12 or time.monotonic() < started + 2.5:
            epochs += 1
            engine.writing.write("orders", [("append", [(epochs, (epochs % 7 + 1, 1.0))])])
            engine.advance()
        engine.writing.write("orders", [("append", [(0, (0, 1.0))])])
        engine.advance()  # 100 / 0
        until(lambda: told(receiver, "FAIL", "view.ratio"), lambda: receiver.items)
        engine.execute("DELETE FROM orders WHERE id = 0")
        engine.advance()
        until(lambda: len(told(receiver, "START", "view.ratio")) == 2, lambda: receiver.items)
        engine.drop("view", "ratio")
        until(lambda: told(receiver, "COMPLETE", "view.ratio"), lambda: receiver.items)
        engine.pause("per")
        until(lambda: told(receiver, "COMPLETE", "view.per"), lambda: receiver.items)
    for event in receiver.items:
        check(event)
        assert event["job"]["namespace"] == "web"
        assert event["run"]["facets"]["processing_engine"]["name"] == "eddyline"
    running = told(receiver, "RUNNING", "view.per")
    assert running
    times = [datetime.fromisoformat(one["eventTime"]).timestamp() for one in running]
    assert all(later - earlier > 0.9 for earlier, later in pairwise(times))

    (start,) = told(receiver, "START", "view.per")
    namespace = f"eddyline://{storage}"
    assert start["job"]["facets"]["sql"]["query"].startswith("SELECT at.x AS x")
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (given,), (made,) = start["inputs"], start["outputs"]
    assert (given["namespace"], given["name"]) == (namespace, "orders")
    fields = {one["name"]: one for one in given["facets"]["schema"]["fields"]}
    assert fields["id"]["type"] == "bigint"
    assert [one["name"] for one in fields["at"]["fields"]] == ["x", "y"]
    assert (made["namespace"], made["name"]) == (namespace, "per")
    lines = made["facets"]["columnLineage"]
    (origin,) = lines["fields"]["x"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == (namespace, "orders", "at")
    assert [(one["type"], one["subtype"]) for one in origin["transformations"]] == [
        ("DIRECT", "TRANSFORMATION")
    ]
    assert lines["fields"]["n"]["inputFields"] == []
    assert {one["field"]: one["transformations"][0]["subtype"] for one in lines["dataset"]} == {
        "id": "FILTER",
        "at": "GROUP_BY",
    }
    assert {one["run"]["runId"] for one in running} == {start["run"]["runId"]}
    written = [one["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for one in running]
    assert all(rows > 0 for rows in written)

    (failed,) = told(receiver, "FAIL", "view.ratio")
    assert failed["run"]["facets"]["errorMessage"]["message"] == "VIEW_FAILING"
    runs = [one["run"]["runId"] for one in told(receiver, "START", "view.ratio")]
    assert runs[0] == failed["run"]["runId"] != runs[1]
    (dropped,) = told(receiver, "COMPLETE", "view.ratio")
    assert dropped["outputs"][0]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    (paused,) = told(receiver, "COMPLETE", "view.per")
    assert "lifecycleStateChange" not in paused["outputs"][0]["facets"]

    (sink,) = told(receiver, "START", "sink.lines")
    assert sink["inputs"][0]["name"] == "per"
    assert (sink["outputs"][0]["namespace"], sink["outputs"][0]["name"]) == ("file", target)
    assert set(sink["outputs"][0]["facets"]["columnLineage"]["fields"]) == {"x", "n"}
    (stream,) = told(receiver, "START", "stream.clicks")
    assert (stream["inputs"][0]["name"], stream["outputs"][0]["name"]) == (
        str(tmp_path / "in"),
        "clicks",
    )
    ended = Counter(
        one["run"]["runId"] for one in receiver.items if one["eventType"] in ("COMPLETE", "FAIL")
    )
    begun = Counter(one["run"]["runId"] for one in receiver.items if one["eventType"] == "START")
    assert ended == begun
    assert max(begun.values()) == 1


def test_a_view_that_is_replaced_or_sees_another_table_is_told_anew(spark, tmp_path, receiver):
    with el.Engine(tmp_path / "s") as engine:
        engine.execute(
            "CREATE TABLE t (a INT, b INT, c INT); CREATE VIEW v AS SELECT a AS s FROM t"
        )
        until(lambda: told(receiver, "START", "view.v"))
        engine.execute("CREATE OR REPLACE VIEW v AS SELECT a + b AS s FROM t")
        until(lambda: len(told(receiver, "START", "view.v")) == 2)
        engine.execute("ALTER TABLE t RENAME COLUMN c TO z")
        until(lambda: told(receiver, "RUNNING", "view.v"))
    fields = [
        sorted(
            one["field"]
            for one in event["outputs"][0]["facets"]["columnLineage"]["fields"]["s"]["inputFields"]
        )
        for state in ("START", "RUNNING")
        for event in told(receiver, state, "view.v")
    ]
    assert fields == [["a"], ["a", "b"], ["a", "b"]]
    table = told(receiver, "RUNNING", "view.v")[0]["inputs"][0]
    assert [one["name"] for one in table["facets"]["schema"]["fields"]] == ["a", "b", "z"]
    first = told(receiver, "COMPLETE", "view.v")[0]
    assert "lifecycleStateChange" not in first["outputs"][0]["facets"]


def test_events_wait_for_a_receiver_that_refuses_and_an_absent_one_stops_nothing(
    spark, tmp_path, receiver, monkeypatch
):
    receiver.status = 400
    with el.Engine(tmp_path / "s") as engine:
        table = engine.table("t", "n BIGINT")
        engine.view("v", "SELECT n FROM t")
        table.insert([(1,)])
        engine.advance()
        receiver.status = 200
        until(lambda: told(receiver, "START", "view.v"))
    assert [one["eventType"] for one in receiver.items] == ["START", "COMPLETE"]
    monkeypatch.setattr(tracker, "CLOSE_S", 0.5)
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{free_port()}")
    for name in ("TYPE", "URL"):
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{name}")
    with el.Engine(tmp_path / "s") as engine:
        engine.table("t", "n BIGINT").insert([(2,)])
        engine.advance()
        started = time.monotonic()
    assert time.monotonic() - started < PATIENCE_S / 5


def test_secrets_and_rows_are_in_no_event(spark, tmp_path, receiver, monkeypatch):
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:9/{SECRET}")
    with el.Engine(tmp_path / "s") as engine:
        table = engine.table("t", "n BIGINT, text STRING")
        engine.view("v", "SELECT text, CAST(text AS INT) AS number, n FROM t")
        url = f"http://ann:{SECRET}@127.0.0.1:9/hook?token={SECRET}"
        with pytest.raises(el.EddylineError):  # the catalog holds no secret in the clear
            engine.sink("hook", "v", "webhook", url=url)
        engine.sink("hidden", "v", "webhook", url="${env:HOOK}")
        table.insert([(1, SECRET)])
        engine.advance()
        until(lambda: told(receiver, "FAIL", "view.v"))
    assert receiver.items
    assert not any(SECRET.encode() in body for body in receiver.bodies)


def test_only_standard_configuration_turns_it_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not tracker.is_wanted({})
    assert tracker.is_wanted({"OPENLINEAGE_URL": "http://127.0.0.1:1"})
    assert tracker.is_wanted({"OPENLINEAGE__TRANSPORT__TYPE": "console"})
    assert not tracker.is_wanted({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "true"})
    (tmp_path / "openlineage.yml").write_text("transport: {type: noop}\n")
    assert tracker.is_wanted({})


def test_openlineage_yml_is_read(spark, tmp_path, monkeypatch):
    pytest.importorskip("openlineage.client")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "events.json"
    (tmp_path / "openlineage.yml").write_text(
        f"transport: {{type: file, log_file_path: {log}, append: true}}\n"
    )
    with el.Engine(tmp_path / "s") as engine:
        engine.table("t", "n BIGINT")
        engine.view("v", "SELECT n FROM t")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["eventType"] for one in events] == ["START", "COMPLETE"]
    for event in events:
        check(event)


def test_a_missing_package_and_a_broken_configuration_are_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "nonsense")
    with pytest.raises(el.EngineError, match=r"BAD_OPTION.*openlineage\.yml"):
        el.Engine(tmp_path / "s")
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(el.EngineError, match=r"MISSING_PACKAGE.*eddyline\[lineage\]") as caught:
        el.Engine(tmp_path / "s")
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("OPENLINEAGE__TRANSPORT__TYPE")
    el.Engine(tmp_path / "s").stop()  # the storage was let go
