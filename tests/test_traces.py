"""Traces of epochs, as a collector on loopback gets them by OTLP over HTTP."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

import eddyline as el
from eddyline.telemetry import traces
from eddyline.testing.faults import FaultyFiles
from eddyline_apps.processes import free_port
from telemetry_receivers import Received, Taken, spans_in, taking
from waiting import PATIENCE_S, until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

pytestmark = pytest.mark.spark

SECRET = "very-secret-value"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    with taking(spans_in) as taken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", taken.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setattr(traces, "CLOSE_S", PATIENCE_S)
        yield taken


def below(spans: list[Received], parent: Received) -> dict[str, Received]:
    """The children of a span by their names, or what they are of."""
    found = [one for one in spans if one.parent == parent.id]
    own = ("eddyline.view", "eddyline.table", "eddyline.sink")
    return {
        next((one.attributes[n] for n in own if n in one.attributes), one.name): one
        for one in found
    }


def epochs(spans: list[Received]) -> dict[int, Received]:
    return {one.attributes["eddyline.epoch"]: one for one in spans if one.name == "epoch"}


def test_an_epoch_is_a_trace_with_true_times(spark, tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    with el.Engine(tmp_path / "s") as engine:
        orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
        counts = engine.view("counts", "SELECT country, count(*) AS n FROM orders GROUP BY country")
        engine.view("total", "SELECT sum(n) AS n FROM counts")
        sink = engine.sink("lines", "counts", "jsonl", path=str(tmp_path / "lines"))
        orders.insert([(i, SECRET) for i in range(3)])
        before = time.time_ns()
        last = engine.advance()
        after = time.time_ns()
        until(lambda: sink.status()["epoch"] == last, sink.status)
        lanes, seconds = engine.progress().lanes, engine.progress().seconds
        assert counts.snapshot().count() == 1
    spans = collector.items
    assert collector.paths[0] == "/v1/traces"
    assert collector.headers[0]["authorization"] == SECRET
    assert {one.resource["service.name"] for one in spans} == {"shop"}
    assert spans[0].resource["deployment.environment.name"] == "test"

    epoch = epochs(spans)[last]
    assert (epoch.parent, epoch.failed) == (b"", False)
    assert before <= epoch.started <= epoch.ended <= after
    assert epoch.attributes == {
        "eddyline.storage": str(tmp_path / "s"),
        "eddyline.epoch": last,
        "eddyline.rows.in": 3 + 3 + 1,
        "eddyline.rows.out": 3 + 1 + 2,
        "eddyline.views.short": list(lanes.values()).count("short"),
        "eddyline.views.wide": list(lanes.values()).count("wide"),
        "eddyline.views.failing": 0,
    }
    stages = below(spans, epoch)
    assert list(stages) == ["ingest", "plan", "run", "commit", "lines"]
    times = [
        at
        for name in ("ingest", "plan", "run", "commit")
        for at in (stages[name].started, stages[name].ended)
    ]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (epoch.started, epoch.ended)
    for name in ("ingest", "commit"):
        took = (stages[name].ended - stages[name].started) / 1e9
        assert took == pytest.approx(seconds[name], abs=1e-6)
    run = stages["run"]
    assert (run.ended - run.started) / 1e9 >= seconds["run"]

    views = below(spans, run)
    assert set(views) == {"orders", "counts", "total"}
    assert all(run.started <= one.started <= one.ended <= run.ended for one in views.values())
    assert views["orders"].ended <= views["counts"].started <= views["total"].started
    assert views["orders"].name == "table"
    assert views["counts"].name == "view"
    assert views["counts"].attributes == {
        "eddyline.epoch": last,
        "eddyline.view": "counts",
        "eddyline.rows.in": 3,
        "eddyline.rows.out": 1,
        "eddyline.lane": lanes["counts"],
    }
    lines = stages["lines"]
    assert lines.started >= run.ended
    assert lines.attributes["eddyline.rows.out"] == 1
    assert lines.attributes["eddyline.sink.format"] == "jsonl"
    assert {one.trace for one in (*stages.values(), *views.values())} == {epoch.trace}
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_view_that_fails_has_a_span_with_an_error(spark, tmp_path, collector):
    with el.Engine(tmp_path / "s") as engine:
        orders = engine.table("orders", "id BIGINT, by STRING")
        engine.view("ratio", "SELECT 100 / id AS r, by FROM orders")
        engine.view("ids", "SELECT id FROM orders")
        orders.insert([(0, SECRET)])
        last = engine.advance()
    epoch = epochs(collector.items)[last]
    run = below(collector.items, epoch)["run"]
    views = below(collector.items, run)
    assert (views["ratio"].failed, views["ids"].failed, epoch.failed) == (True, False, False)
    assert views["ratio"].attributes["error.type"] == "VIEW_FAILING"
    assert epoch.attributes["eddyline.views.failing"] == 1
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_failed_epoch_has_the_condition_of_its_error(spark, tmp_path, collector):
    files = FaultyFiles(str(tmp_path / "s"))
    with el.Engine(files) as engine:
        orders = engine.table("orders", "id BIGINT, by STRING")
        for n in range(2):
            orders.insert([(n, SECRET)])
            files.arm(0)
            engine.advance()
        commit = next(i for i, one in enumerate(files.effects(), 1) if "manifests/" in one)
        orders.insert([(2, SECRET)])
        files.arm(commit, "full")
        with pytest.raises(el.EddylineError) as caught:
            engine.advance()
        assert "manifests/" in files.effects()[commit - 1]
        files.arm(0)
        last = engine.advance()
    spans = [one for one in collector.items if one.attributes["eddyline.epoch"] == last]
    failed, done = [one for one in spans if one.name == "epoch"]
    assert (failed.failed, done.failed) == (True, False)
    assert failed.attributes["error.type"] == caught.value.condition == failed.message
    stages = below(spans, failed)
    assert [one.name for one in stages.values() if one.failed] == ["commit"]
    assert stages["commit"].attributes["error.type"] == caught.value.condition
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_delivery_of_several_epochs_links_them_and_one_that_fails_says_so(
    spark, tmp_path, collector
):
    target = tmp_path / "blocked"
    target.write_text("no folder")
    with el.Engine(tmp_path / "s") as engine:
        numbers = engine.table("numbers", "n BIGINT")
        engine.view("v", "SELECT n FROM numbers")
        sink = engine.sink("lines", "v", "jsonl", path=str(target))
        until(lambda: sink.status().get("error"), sink.status)
        for n in range(3):
            numbers.insert([(n,)])
            last = engine.advance()
        target.unlink()
        until(lambda: sink.status()["epoch"] == last, sink.status)
    spans = collector.items
    known = epochs(spans)
    deliveries = [one for one in spans if one.name == "sink"]
    assert {one.attributes["error.type"] for one in deliveries if one.failed}
    (done,) = [one for one in deliveries if not one.failed]
    assert (done.parent, done.trace) == (known[last].id, known[last].trace)
    assert set(done.links) >= {known[last - 1].id, known[last - 2].id}
    assert done.attributes["eddyline.rows.out"] == 3


def has_dropped(caplog: pytest.LogCaptureFixture, times: int) -> bool:
    told = [one for one in caplog.records if "they are dropped" in one.getMessage()]
    return len(told) == times


def test_a_collector_that_is_absent_or_refuses_stops_nothing(
    spark, tmp_path, collector, monkeypatch, caplog
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr(traces, "CLOSE_S", 0.5)
    collector.status = 503
    for number, url in enumerate([f"http://127.0.0.1:{free_port()}", collector.url], 1):
        options = el.Options(otlp_endpoint=url)
        with el.Engine(tmp_path / url.rpartition(":")[2], options=options) as engine:
            table = engine.table("t", "n BIGINT")
            view = engine.view("v", "SELECT count(*) AS n FROM t")
            for n in range(4):
                table.insert([(n,)])
                engine.advance()
            assert view.snapshot().collect()[0].n == 4
            until(partial(has_dropped, caplog, number))
            started = time.monotonic()
        assert time.monotonic() - started < PATIENCE_S / 5
    assert not collector.items
    told = [one.getMessage() for one in caplog.records if one.name == "eddyline.telemetry"]
    assert told == ["the collector doesn't take spans: they are dropped until it does"] * 2
    theirs = [one for one in caplog.records if one.name.startswith("opentelemetry.exporter")]
    assert len(theirs) <= 2  # the first error of each outage


def test_without_configuration_nothing_is_loaded(tmp_path):
    program = (
        "import sys, eddyline as el\n"
        f"with el.Engine({str(tmp_path / 's')!r}) as engine:\n"
        "    engine.table('t', 'n BIGINT').insert([(1,)])\n"
        "    engine.advance()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'openlineage'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variables", "made"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, False),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
            False,
        ),
    ],
)
def test_the_standard_variables_turn_it_on_and_off(variables, made, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = traces.traces_of("s", "", dict)
    assert (found is not None) == made
    if found is not None:
        found.close()


def test_another_protocol_and_a_missing_package_are_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(el.EngineError, match="http/protobuf"):
        el.Engine(tmp_path / "s")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    monkeypatch.delitem(sys.modules, "eddyline.telemetry.exporting", raising=False)
    with pytest.raises(el.EngineError, match=r"MISSING_PACKAGE.*eddyline\[otel\]") as caught:
        el.Engine(tmp_path / "s")
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    el.Engine(tmp_path / "s").stop()  # the storage was let go
    with pytest.raises(el.EngineError, match="BAD_OPTION"):
        el.Options(otlp_endpoint="collector:4318")


def test_a_program_with_its_own_provider_gets_the_spans_into_it(spark, tmp_path, monkeypatch):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    own = TracerProvider()
    own.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: own)
    with el.Engine(tmp_path / "s") as engine:
        table = engine.table("t", "n BIGINT")
        engine.view("v", "SELECT n FROM t")
        table.insert([(1,)])
        with own.get_tracer("program").start_as_current_span("request") as request:
            last = engine.advance()
    found = {
        (one.name, one.attributes["eddyline.epoch"]): one
        for one in kept.get_finished_spans()
        if one.name != "request"
    }
    assert found["epoch", last].parent.span_id == request.get_span_context().span_id
    own.force_flush()
