"""What the console asks the engine for: its JSON interface and forms, and what they refuse."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import eddyline as el
from console_cases import EVIL, EVIL_NAME, PIPELINE, TOKEN, acting_shop, ask, document
from eddyline.options import Options
from waiting import until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from eddyline.console.server import Console  # noqa: E402
from eddyline.console.settings import options_in_force  # noqa: E402

pytestmark = pytest.mark.spark

KEY = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def lane_at_random() -> None:
    """Let small epochs run in the driver, as by default."""


@pytest.fixture(scope="module")
def engine(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with acting_shop(tmp_path_factory.mktemp("acting")) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: el.Engine) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSOLE_TOKEN", TOKEN)
        with Console(engine.files, Options(), token="${env:CONSOLE_TOKEN}") as console:
            yield console.url


def post(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    text = b"" if body is None else json.dumps(body).encode()
    status, _, answer = ask(url, path, text, **{**KEY, **headers})
    return status, json.loads(answer)


def done(url: str, path: str, body: Any = None) -> dict[str, Any]:
    """Ask for an action, and return the request once the engine has answered it."""
    status, request = post(url, path, body)
    assert status == 202, request
    where = f"/api/requests/{request['number']}"
    until(lambda: document(url, where, **KEY)["state"] != "waiting")
    return document(url, where, **KEY)


def state_of(url: str, kind: str, name: str) -> str:
    key = "sink" if kind == "sinks" else "name"
    return {one[key]: one["state"] for one in document(url, "/api/status", **KEY)[kind]}[name]


def dead_letters(url: str) -> list[dict[str, Any]]:
    return document(url, f"/api/deadletters?source={quote(PIPELINE)}", **KEY)["letters"]


def letters(url: str) -> dict[str, int]:
    return {one["payload"]: one["position"] for one in dead_letters(url)}


def died(url: str, payload: str) -> str | None:
    return next((one["died"] for one in dead_letters(url) if one["payload"] == payload), None)


def test_views_are_paused_resumed_and_verified(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eddyline.console")
    path = f"/api/views/{quote(EVIL_NAME)}"
    assert done(url, f"{path}/pause")["state"] == "done"
    until(lambda: state_of(url, "views", EVIL_NAME) == "paused")
    assert done(url, f"{path}/resume")["state"] == "done"
    until(lambda: state_of(url, "views", EVIL_NAME) == "live")
    found = done(url, f"{path}/verify")
    assert (found["state"], found["message"]) == ("done", "")
    assert found["report"]["views"][EVIL_NAME] == {
        "equal": True, "live": 3, "offline": 3, "live_only": [], "offline_only": [],
    }  # fmt: skip
    lines = [record.getMessage() for record in caplog.records]
    assert any(re.search(r"request \d+ by 127\.0\.0\.1: pause 'evil", line) for line in lines)
    listed = document(url, "/api/requests?last=3", **KEY)["requests"]
    assert [one["action"] for one in listed] == ["verify", "resume", "pause"]


def test_sinks_are_paused_resumed_and_resent(url: str) -> None:
    path = f"/api/sinks/{quote('copy <b>')}"
    assert done(url, f"{path}/pause")["state"] == "done"
    until(lambda: state_of(url, "sinks", "copy <b>") == "paused")
    assert done(url, f"{path}/resend")["state"] in ("done", "refused")
    assert done(url, f"{path}/resume")["state"] == "done"
    until(lambda: state_of(url, "sinks", "copy <b>") == "live")
    assert post(url, "/api/sinks/none/pause")[0] == 404


def test_dead_letters_are_shown_replayed_mended_and_dropped(engine: el.Engine, url: str) -> None:
    path = f"/api/deadletters/{quote(PIPELINE)}"
    found = letters(url)
    one = document(url, f"{path}/{found[EVIL]}", **KEY)
    assert (one["payload"], one["source"]) == (EVIL, PIPELINE)
    assert "invalid literal" in one["error"]
    assert ask(url, f"{path}/{found[EVIL] + 99}", **KEY)[0] == 404
    assert post(url, f"{path}/{found[EVIL] + 99}/drop")[0] == 404
    assert ask(url, f"{path}/{10**23}", **KEY)[0] == 404
    assert post(url, f"{path}/{10**23}/replay")[0] == 404

    lines = found["one\ntwo"]
    assert done(url, f"{path}/{lines}/replay", {"payload": "40"})["state"] == "done"
    until(lambda: engine.snapshot("total").collect()[0].n == 41)
    assert done(url, f"{path}/{found['gone']}/drop")["state"] == "done"
    until(lambda: letters(url).keys() == {EVIL, "ff 00"})
    assert done(url, f"{path}/{found[EVIL]}/replay")["state"] == "done"
    until(lambda: died(url, EVIL) not in (None, one["died"]))
    until(lambda: letters(url).keys() == {EVIL, "ff 00"})
    assert post(url, f"{path}/{found[EVIL]}/drop", {"payload": "1"})[0] == 400
    assert post(url, f"{path}/{found[EVIL]}/replay", {"payload": 1})[0] == 400
    assert post(url, f"{path}/{found[EVIL]}/replay", {"payload": "\ud800"})[0] == 400
    assert post(url, f"{path}/{found[EVIL]}/replay", {"payload": "1" * 70_000})[0] == 413
    assert done(url, f"{path}/all/drop")["state"] == "done"
    until(lambda: letters(url) == {})
    assert post(url, "/api/deadletters/none/all/drop")[0] == 404


def test_a_letter_that_can_not_be_replayed_says_so(
    engine: el.Engine, url: str, spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    engine.stream("operations", lines.selectExpr("value", "value AS op"), op="op")
    until(lambda: document(url, "/api/deadletters?source=operations", **KEY)["total"] == 1)
    (one,) = document(url, "/api/deadletters?source=operations", **KEY)["letters"]
    path = f"/deadletters/operations/{one['position']}"
    for body in (None, {"payload": "+"}):
        status, answer = post(url, f"/api{path}/replay", body)
        assert (status, answer["error"]["condition"]) == (409, "NO_REPLAY")
    page = ask(url, path, Accept="text/html", **KEY)[2].decode()
    assert "put the mended record into the source" in page
    assert "/replay" not in page
    assert f'action="{path}/drop"' in page
    assert done(url, f"/api{path}/drop")["state"] == "done"


def test_forms_lead_to_the_page_that_shows_what_becomes_of_them(url: str) -> None:
    status, headers, _ = ask(url, f"/views/{quote(EVIL_NAME)}/verify", b"", **KEY)
    assert status == 303
    where = headers["location"]
    assert re.fullmatch(rf"/views/{re.escape(quote(EVIL_NAME))}\?asked=\d+", where)
    until(lambda: "equal to the same SQL" in ask(url, where, **KEY)[2].decode())
    text = ask(url, where, **KEY)[2].decode()
    assert EVIL_NAME not in text
    assert 'data-state="done"' in text
    assert "equal to the same SQL" in ask(url, "/requests", **KEY)[2].decode()
    assert ask(url, "/views/by_country?asked=999999", **KEY)[0] == 404
    assert ask(url, "/views/by_country/pause", **KEY)[0] == 404  # no view has this name


def test_a_request_waits_while_no_engine_runs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with el.Engine(str(tmp_path / "shop")) as engine:
        engine.execute("CREATE TABLE t (id BIGINT); CREATE VIEW v AS SELECT count(*) AS n FROM t")
        engine.advance()
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    with Console(engine.files, Options(), token="${env:CONSOLE_TOKEN}") as console:
        status, request = post(console.url, "/api/views/v/pause")
        assert (status, request["state"]) == (202, "waiting")
        text = ask(console.url, f"/requests/{request['number']}", **KEY)[2].decode()
        assert "waits for an engine: none runs now" in text
        with el.Engine(str(tmp_path / "shop")) as engine:
            engine.advance()
            assert engine.catalog.get("v").paused
        assert document(console.url, "/api/requests/1", **KEY)["state"] == "done"


ACTIONS = (
    "/views/by_country/pause",
    "/views/by_country/verify",
    f"/sinks/{quote('copy <b>')}/resend",
    f"/deadletters/{quote(PIPELINE)}/1/drop",
    f"/deadletters/{quote(PIPELINE)}/all/drop",
)


@pytest.mark.parametrize("path", ACTIONS)
def test_without_a_token_and_from_other_sites_nothing_is_asked_for(
    engine: el.Engine, url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = document(url, "/api/requests", **KEY)
    with Console(engine.files, Options()) as shows:
        status, answer = post(shows.url, f"/api{path}")
        assert (status, answer["error"]["condition"]) == (403, "READ_ONLY")
        status, _, body = ask(shows.url, path, b"")
        assert (status, b"READ_ONLY" in body) == (403, True)
        assert 'method="post"' not in ask(shows.url, "/views/by_country")[2].decode()
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    reference = "${env:CONSOLE_TOKEN}"
    with Console(engine.files, Options(), token=reference, read_only=True) as shows:
        assert post(shows.url, f"/api{path}")[0] == 403
    for where in (path, f"/api{path}"):
        assert ask(url, where, b"")[0] == 401
        assert ask(url, where, b"", Origin="http://evil.example", **KEY)[0] == 403
        crossed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        assert ask(url, where, b"", **crossed, **KEY)[0] == 403
        assert ask(url, where, **KEY)[0] in (404, 405)
    assert document(url, "/api/requests", **KEY) == before


def test_settings_tell_no_secret(
    engine: el.Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = document(url, "/api/settings", **KEY)
    assert found["storage"]["path"] == engine.files.root
    assert found["storage"]["bytes"] > 1000
    assert found["versions"]["pyspark"]
    assert found["extras"]["console"] is True
    assert "replay dead letter" in found["console"]["actions"]
    with Console(engine.files, Options()) as shows:
        assert document(shows.url, "/api/settings")["console"]["actions"] == []
    page = ask(url, "/settings", **KEY)[2].decode()
    assert "retain_epochs" in page
    secret = "postgresql://eddy:hunter2hunter2@db/x"
    collector = "https://eddy:hunter2hunter2@traces:4318"
    options = Options(catalog=secret, otlp_endpoint=collector, retain_epochs=7, buckets=3)
    shown = options_in_force(options, {"EDDYLINE_RETAIN_EPOCHS": "7", "EDDYLINE_BUCKETS": "9"})
    sources = {one["name"]: (one["value"], one["source"]) for one in shown}
    assert sources["retain_epochs"] == (7, "EDDYLINE_RETAIN_EPOCHS")
    assert sources["buckets"] == (3, "program or cores")
    assert sources["delivery"] == ("exactly_once", "default")
    for text in (json.dumps(found), page, json.dumps(shown)):
        assert TOKEN not in text
        assert "hunter2" not in text


def test_rows_are_filtered_and_epochs_listed(engine: el.Engine, url: str) -> None:
    def rows(where: str) -> list[Any]:
        path = f"/api/views/by_country?{urlencode({'where': where})}"
        return document(url, path, **KEY)["rows"]

    assert rows("country = 'de' AND n >= 1") == [{"country": "de", "n": 1}]
    assert rows("country LIKE '<script>%'") == [{"country": EVIL, "n": 1}]
    assert rows("n IS NULL") == []
    refused = ask(url, "/api/views/by_country?" + urlencode({"where": "n > (SELECT 1)"}), **KEY)
    assert refused[0] == 422
    page = ask(url, "/views/by_country?" + urlencode({"where": EVIL}), **KEY)
    assert page[0] == 200
    assert EVIL not in page[2].decode()
    assert "NEEDS_SPARK" in page[2].decode()

    found = document(url, "/api/views/by_country/epochs", **KEY)["epochs"]
    numbers = [one["epoch"] for one in found]
    assert numbers == sorted(numbers)
    for one in (found[0], found[-1]):
        path = f"/api/views/by_country?epoch={one['epoch']}"
        assert document(url, path, **KEY)["epoch"] == one["epoch"]
        assert one["committed_at"].startswith("20")
    assert ask(url, "/api/views/none/epochs", **KEY)[0] == 404
    assert ask(url, "/api/views/numbers/epochs", **KEY)[0] == 409  # a stream

    spent = document(url, "/api/profile", **KEY)["spent"]
    assert {one["view"] for one in spent} >= {"by_country"}
    assert any(one["operator"] for one in spent)
