"""The console alone, without a JVM: over storages of older versions, with everything that a storage can hold."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from console_cases import ask, document
from eddyline.options import Options
from eddyline.storage.files import Files

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
