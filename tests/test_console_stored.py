"""The console alone, without a JVM: over storages of older versions, with everything that a storage can hold."""

from __future__ import annotations

import http.client
import json
import tarfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

import pytest

from console_cases import ask, document
from eddyline.options import Options
from eddyline.state.manifest import last_committed, manifest_name
from eddyline.storage.files import Files
from waiting import PATIENCE_S

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from eddyline.console.pages import PAGES  # noqa: E402
from eddyline.console.server import Console  # noqa: E402

STORED = Path(__file__).parent / "compat"
VERSIONS = ["v1", "v2"]


@pytest.fixture(scope="module", params=VERSIONS)
def stored(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The address of a console, and what the storage must hold."""
    folder = tmp_path_factory.mktemp(request.param)
    with tarfile.open(STORED / f"{request.param}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    expected = json.loads((STORED / f"{request.param}.json").read_text())
    with Console(Files(str(folder / request.param / "storage")), Options()) as console:
        yield console.url, expected


def plain(value: Any) -> Any:
    """A value without the form in which numbers and times are written."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in sorted(value.items())}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        for read in (float, lambda text: datetime.fromisoformat(text).replace(tzinfo=None)):
            try:
                return read(value)
            except ValueError:
                pass
    return value


def rows(found: list[Any]) -> list[str]:
    return sorted(repr(plain(row)) for row in found)


def test_every_table_and_view_has_its_rows(stored):
    url, expected = stored
    for name, known in expected["opened"].items():
        found = document(url, f"/api/views/{name}?limit=10000")
        assert rows(found["rows"]) == rows(known), name


def test_every_page_is_there(stored):
    url, _ = stored
    names = [task["name"] for task in document(url, "/api/tasks")["tasks"]]
    assert len(names) > 10
    for path in [path for path, _ in PAGES] + [f"/views/{quote(name)}" for name in names]:
        assert ask(url, path)[0] == 200, path
    assert document(url, "/api/status")["engine"] == "stopped"
    status, _, body = ask(url, "/ready")
    assert (status, json.loads(body)["reasons"][0]) == (503, "no engine runs on this storage")


@pytest.mark.parametrize("stored", ["v2"], indirect=True)
def test_streams_pipelines_and_dead_letters_are_counted(stored):
    url, _ = stored
    letters = document(url, "/api/deadletters")["letters"]
    assert {letter["source"] for letter in letters} == {"orders", "clicked_raw", "readings"}
    assert "no document" in {letter["payload"] for letter in letters}
    assert "no document" in ask(url, "/deadletters")[2].decode()
    assert [
        one["source"] for one in document(url, "/api/deadletters?source=orders")["letters"]
    ] == ["orders"]
    metrics = ask(url, "/metrics")[2].decode()
    for line in (
        'eddyline_late_rows_total{source="hits"} 1.0',
        'eddyline_dead_letters{source="readings"} 2.0',
        'eddyline_pipeline_records_total{outcome="dead",pipeline="orders"} 1.0',
        'eddyline_pipeline_in_flight{pipeline="orders"} 0.0',
        'eddyline_view_state{state="paused",view="frozen"} 1.0',
        "eddyline_engine_running 0.0",
    ):
        assert line in metrics
    moment = datetime.fromisoformat("2026-01-01T00:06:10+00:00").timestamp()
    assert f'eddyline_watermark_timestamp_seconds{{source="hits"}} {moment:.8e}' in metrics
    assert "paused since" in ask(url, "/tasks")[2].decode()


@pytest.mark.parametrize("stored", ["v2"], indirect=True)
def test_letters_and_epochs_are_shown_and_nothing_is_asked_for(stored):
    url, _ = stored
    letters = document(url, "/api/deadletters")["letters"]
    assert letters
    for letter in letters:
        path = f"/deadletters/{quote(letter['source'])}/{letter['position']}"
        assert document(url, f"/api{path}") == letter
        status, _, body = ask(url, path)
        assert (status, b'method="post"' in body) == (200, False)
    last = document(url, "/api/status")["epoch"]
    for view in document(url, "/api/views")["views"]:
        epochs = document(url, f"/api/views/{quote(view['name'])}/epochs")["epochs"]
        assert [one["epoch"] for one in epochs][-1:] == [last]
    assert document(url, "/api/requests") == {"requests": []}
    assert document(url, "/api/profile")["epochs"][-1] == last
    assert document(url, "/api/settings")["console"]["actions"] == []


def test_answers_that_are_kept_are_those_of_the_last_epoch_at_once(tmp_path):
    with tarfile.open(STORED / "v3.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = Files(str(tmp_path / "v3" / "storage"))
    last = last_committed(files).epoch
    manifest = Path(files.path(manifest_name(last)))
    manifest.rename(tmp_path / "away")  # as if it were not committed yet
    with Console(files, Options()) as console:
        url = console.url
        events = http.client.HTTPConnection(urlparse(url).netloc, timeout=PATIENCE_S)
        events.request("GET", f"/api/views/totals/changes?after={last - 1}")
        stream = events.getresponse()
        assert stream.readline() == f"id: {last - 1}\n".encode()
        rows = ("/api/views/totals", "/views/totals")
        before = [ask(url, path)[2] for path in rows]
        kept = [ask(url, path)[2] for path in rows]
        assert kept == before
        (tmp_path / "away").rename(manifest)
        after = [ask(url, path)[2] for path in rows]
        assert json.loads(before[0])["epoch"] == last - 1
        assert json.loads(after[0])["epoch"] == last
        assert len(json.loads(after[0])["rows"]) > len(json.loads(before[0])["rows"])
        assert f"as of epoch {last}" in after[1].decode()
        found: list[str] = []
        while len(found) < 3:  # there may be pings between them
            line = stream.readline().decode().rstrip()
            found += [line] if line.startswith("event") else []
        events.close()
    assert found == ["event: epoch", "event: changes", "event: epoch"]
