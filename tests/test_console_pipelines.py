"""The console's page of pipelines: their last batches as curves, and what their ackers have counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import quote

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from console_browser import picture
from console_cases import PIPELINE, ask, document
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import DEAD, INTO, STREAM, Entry
from eddyline.catalog.entries import PIPELINE as ROLE
from eddyline.catalog.store import open_store
from eddyline.console.server import Console
from eddyline.options import Options
from eddyline.pipelines.history import KEPT, History, Point
from eddyline.storage.files import Files
from waiting import until

EMPTY = '{"type": "struct", "fields": []}'
STARTED = 1_767_225_600  # 2026-01-01
MANY = "many lanes"


@dataclass
class Relay:
    """A console over a storage without an engine, with two pipelines."""

    url: str
    files: Files
    ids: dict[str, str]

    def write(self, pipeline: str, history: History) -> None:
        self.files.write_json(f"pipelines/{self.ids[pipeline]}/history.json", history.as_dict())


@pytest.fixture
def relay(tmp_path) -> Iterator[Relay]:
    catalog = Catalog(1)
    for name in (PIPELINE, MANY):
        catalog = catalog.add(
            Entry("", STREAM, name + DEAD, EMPTY, format=ROLE, options={INTO: ""})
        )
    files = Files(str(tmp_path / "storage"))
    files.make_folder("")
    with closing(open_store(files)) as store:
        store.write(catalog)
    ids = dict(zip((PIPELINE, MANY), (entry.id for entry in catalog.entries), strict=True))
    for one in ids.values():
        files.make_folder(f"pipelines/{one}")
    with Console(files, Options()) as console:
        yield Relay(console.url, files, ids)


def history_of(lanes: int, points: int = 5) -> History:
    history = History()
    for n in range(points):
        pause = 60 if n >= 3 else 0  # nothing is read for a minute
        windows = tuple(1000 * (16 + n + lane) for lane in range(lanes))
        history.add(Point(STARTED + n + pause, 2, 0.5, 1000 * (n + 1), windows))
    return history


def test_the_last_batches_are_given_as_json(relay):
    path = f"/api/pipelines/{quote(PIPELINE)}/history"
    assert document(relay.url, path) == {"points": []}  # it hasn't run yet
    relay.write(PIPELINE, history_of(2, KEPT + 7))
    points = document(relay.url, path)["points"]
    assert len(points) == KEPT
    assert points[-1] == {
        "at": "2026-01-01T00:05:06.000+00:00",
        "batches": 2,
        "seconds": 0.5,
        "in_flight": 247_000,
        "window_rows": [262_000, 263_000],
    }
    relay.files.write_json(f"pipelines/{relay.ids[PIPELINE]}/history.json", {})
    assert document(relay.url, path) == {"points": []}
    status, _, body = ask(relay.url, "/api/pipelines/none/history")
    error = json.loads(body)["error"]
    assert (status, error["condition"]) == (404, "NOT_FOUND")
    assert MANY in error["hint"]


def test_windows_and_records_in_flight_are_drawn_over_time(browser, relay):
    relay.write(PIPELINE, history_of(2))
    relay.write(MANY, history_of(6))
    for name, lanes in ((PIPELINE, 2), (MANY, 6)):
        status = {
            "received": 1_200_000,
            "done": 1_194_897,
            "dead": 3,
            "retry": 100,
            "missed": 0,
            "name": name,
            "in_flight": 5_000,
            "retried": 120,
            "replays": 3,
            "tuple_rows": 1000,
            "windows": [20 + lane for lane in range(lanes)],
            "lanes": ["normal"] * lanes,
            "acker": {"started": 1200, "done": 1196, "failed": 1, "timed_out": 2, "in_flight": 1},
        }
        relay.files.write_json(f"pipelines/{relay.ids[name]}/status.json", status)
    with browser.open(f"{relay.url}/pipelines") as shown:
        first, many = shown.locator("section", has_text=PIPELINE), shown.locator("section").nth(1)
        for section in (first, many):
            section.locator("[data-chart=flight] canvas").wait_for()
        labels = "[data-chart=%s] .u-legend .u-label"
        assert first.locator(labels % "windows").all_inner_texts() == ["time", "lane 0", "lane 1"]
        assert first.locator(labels % "flight").all_inner_texts() == ["time", "records"]
        some = ["time", "smallest", "middle", "largest"]
        assert many.locator(labels % "windows").all_inner_texts() == some
        row = shown.locator("#live tbody tr", has_text=PIPELINE).inner_text()
        assert "1,196 of 1,200 tuples acknowledged, 3 failed, 1 open" in row
        assert "20,000, 21,000" in row

        picture(shown, "pipelines")
        # the cursor shows the value there: between the batches nothing is in flight
        chart = first.locator("[data-chart=flight] .u-over")
        box = chart.bounding_box()
        value = first.locator("[data-chart=flight] .u-legend .u-value").nth(1)
        for share, wanted in ((0.5, "0"), (1.0, "5000")):
            shown.mouse.move(box["x"] + share * (box["width"] - 1), box["y"] + 20)
            until(
                lambda wanted=wanted: value.inner_text().replace(",", "") == wanted,
                value.inner_text,
            )

        # a lane more: the chart is made anew
        relay.write(PIPELINE, history_of(3))
        shown.evaluate("document.body.dispatchEvent(new CustomEvent('epoch'))")
        first.locator(".u-label", has_text="lane 2").wait_for()
        assert first.locator("[data-chart=windows] canvas").count() == 1
        shown.set_viewport_size({"width": 360, "height": 740})
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_pipeline_without_batches_has_no_curve(browser, relay):
    with browser.open(f"{relay.url}/pipelines") as shown:
        assert shown.locator("h2", has_text=PIPELINE).is_visible()
        assert shown.locator("canvas").count() == 0
