"""The consoles of the guard and of the web statistics are those of the engine in their process."""

from __future__ import annotations

import pytest

import eddyline as el
from console_cases import TOKEN, ask, document
from eddyline.errors import EngineError
from eddyline.options import Options
from waiting import until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from eddyline_apps.guard import page  # noqa: E402
from eddyline_apps.webstats import command  # noqa: E402

pytestmark = pytest.mark.spark
KEY = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("serve", "path", "title"),
    [
        (lambda engine: page.serve(engine, 0, "${env:APP_TOKEN}"), "/guard", "Guard"),
        (lambda engine: command.serve(engine, 0), "/webstats", "Web statistics"),
    ],
)
def test_a_console_of_an_application_knows_its_engine(
    spark, tmp_path, monkeypatch, serve, path, title
):
    monkeypatch.setenv("APP_TOKEN", TOKEN)
    monkeypatch.setenv("EDDYLINE_SHORT_LANE_ROWS", "55")  # another than the engine has
    storage, options = str(tmp_path / "storage"), Options(short_lane_rows=77)
    with el.Engine(storage, spark=spark, options=options) as engine:
        address = serve(engine)
        url = address.removesuffix(path)
        assert address == url + path
        table = engine.table("t", "id BIGINT", primary_key=["id"])
        engine.view("doubled", "SELECT 2 * id AS d FROM t")
        engine.sink("copy", "doubled", "jsonl", path=str(tmp_path / "copy"))
        table.insert([(1,), (2,)])
        engine.advance()
        settings = document(url, "/api/settings", **KEY)
        assert settings["console"]["engine"] == "in this process"
        shown = {one["name"]: (one["value"], one["source"]) for one in settings["options"]}
        assert shown["short_lane_rows"] == (77, "program")
        assert document(url, "/api/views/doubled/plan", **KEY)["plan"]
        assert "eddyline_engine_resident_bytes" in ask(url, "/metrics", **KEY)[2].decode()
        delivered = 'eddyline_sink_rows_total{op="insert",sink="copy"} 2.0'
        until(lambda: delivered in ask(url, "/metrics", **KEY)[2].decode())
        html = ask(url, "/", Accept="text/html", **KEY)[2].decode()
        assert f'href="{path}"' in html
        assert title in html
        assert engine.serve() == url
    with pytest.raises(OSError, match="refused"):
        ask(url, "/health")


def test_what_is_no_addition_is_refused(spark, tmp_path):
    with (
        el.Engine(str(tmp_path / "storage"), spark=spark) as engine,
        pytest.raises(EngineError, match="BAD_OPTION"),
    ):
        engine.serve(additions=["guard"])
