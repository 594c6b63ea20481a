"""The pages of the console, over HTTP and in a real browser."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

import eddyline as el
from console_browser import Browser, picture
from console_cases import EVIL, EVIL_NAME, ROWS, TOKEN, acting_shop, ask, hostile_shop
from eddyline.options import Options
from eddyline_apps.processes import free_port
from waiting import until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from eddyline.console.lists import Lists  # noqa: E402
from eddyline.console.pages import PAGES, STATIC  # noqa: E402
from eddyline.console.server import Console  # noqa: E402

pytestmark = pytest.mark.spark

VIEWS = ("by_country", "largest", "many", EVIL_NAME, "ratio", "orders")
PATHS = (
    *(path for path, _ in PAGES),
    *(f"/views/{quote(view)}" for view in VIEWS),
    "/ask?" + urlencode({"sql": "SELECT * FROM many LIMIT 3"}),
    "/ask?" + urlencode({"sql": EVIL}),
)


@pytest.fixture(autouse=True)
def lane_at_random() -> None:
    """Let small epochs run in the driver, as by default: these tests are about what is shown."""


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with hostile_shop(str(tmp_path_factory.mktemp("console") / "shop")) as engine:
        engine.serve()
        yield engine


@pytest.fixture(scope="module")
def url(engine: el.Engine) -> str:
    return engine.serve()


def page(url: str, path: str) -> str:
    status, headers, body = ask(url, path, Accept="text/html")
    assert status == 200, (path, body)
    assert headers["content-type"].startswith("text/html")
    return body.decode()


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", PATHS)
def test_a_page_holds_no_markup_of_the_storage_and_no_inline_script(url, path):
    text = page(url, path)
    assert EVIL not in text
    assert EVIL_NAME not in text
    assert "<i>text</i>" not in text
    tags = Tags(text).found
    for tag, attributes in tags:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith(("on", "hx-on"))]
        assert tag != "script" or attributes["src"].startswith("/static/")
        assert not (attributes.get("href") or "").startswith(("javascript:", "http"))
    labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    fields = [a for tag, a in tags if tag in ("input", "textarea") and a.get("type") != "hidden"]
    assert all(field["id"] in labels for field in fields)
    assert [tag for tag, _ in tags].count("h1") == 1


def test_rows_come_in_pages_also_of_an_earlier_epoch(engine, url):
    assert f"9,951 to {ROWS + 1:,} of {ROWS + 1:,}" in page(url, "/views/many?offset=9950")
    epoch = engine.status()["epoch"] - 1
    text = page(url, f"/views/many?offset=9950&epoch={epoch}")
    assert f"9,951 to {ROWS:,} of {ROWS:,}" in text
    assert f"offset=9850&amp;epoch={epoch}" in text
    assert html.unescape(text).count(f"<td>{EVIL}</td>") == 50


def test_problems_have_a_page(url):
    for path, status in (("/views/none", 404), ("/none", 404), ("/views/many?offset=x", 400)):
        found, headers, body = ask(url, path)
        assert (found, headers["content-type"].split(";")[0]) == (status, "text/html")
        assert 'role="alert"' in body.decode()
    failing = page(url, "/views/ratio")
    assert "DIVIDE_BY_ZERO" in failing
    assert "last good epoch" in failing
    assert f"of {ROWS:,}" in failing
    assert "DIVIDE_BY_ZERO" in page(url, "/")


def test_files_that_are_set_aside_are_named_with_the_stream_and_the_reason():
    source = {
        "name": "hits",
        "kind": "stream",
        "position": 1,
        "set_aside": {"/in/a.json": "changed"},
    }
    observer = SimpleNamespace(status=lambda: {"sources": [{"name": "t"}, source]})
    _, page = Lists(observer, None).sources(None)
    assert page["problems"] == ["hits: the file /in/a.json is set aside: changed"]


def test_the_token_opens_the_pages(engine, monkeypatch):
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    with Console(engine.files, Options(), token="${env:CONSOLE_TOKEN}") as console:
        url = console.url
        status, headers, _ = ask(url, "/sinks", Accept="text/html")
        assert (status, headers["location"]) == (303, "/login?next=/sinks")
        assert ask(url, "/login?next=/sinks")[0] == 200
        assert ask(url, "/static/console.css")[0] == 200
        status, headers, _ = ask(url, "/login", b"token=wrong&next=/sinks")
        assert headers["location"].startswith("/login?wrong=1")
        assert "set-cookie" not in headers
        form = urlencode({"token": TOKEN, "next": "/sinks"}).encode()
        status, headers, _ = ask(url, "/login", form)
        assert (status, headers["location"]) == (303, "/sinks")
        assert "httponly" in headers["set-cookie"].lower()
        assert "samesite=strict" in headers["set-cookie"].lower()
        cookie = headers["set-cookie"].partition(";")[0]
        assert TOKEN not in cookie
        assert ask(url, "/sinks", Cookie=cookie)[0] == 200
        assert ask(url, "/sinks", Cookie=cookie[:-1])[0] == 401
        elsewhere = urlencode({"token": TOKEN, "next": "//evil.example"}).encode()
        assert ask(url, "/login", elsewhere)[1]["location"] == "/"

        link = "/ask?sql=SELECT%20%27a%2Fb%26c%27%20AS%20%C3%A9&x=%25"
        _, headers, _ = ask(url, link, Accept="text/html")
        (asked,) = parse_qs(urlsplit(headers["location"]).query)["next"]
        form = urlencode({"token": TOKEN, "next": asked}).encode()
        assert ask(url, "/login", form)[1]["location"] == link


def test_files_of_others_are_unchanged_and_have_their_licence():
    readme = (STATIC / "vendor/README.md").read_text()
    listed = re.findall(r"^\| (\S+/\S+) \| .* \| ([0-9a-f]{64}) \|$", readme, re.MULTILINE)
    found = {
        str(path.relative_to(STATIC / "vendor"))
        for path in (STATIC / "vendor").glob("*/*")
        if path.name != "LICENSE"
    }
    assert {name for name, _ in listed} == found
    for name, digest in listed:
        path = STATIC / "vendor" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        assert (path.parent / "LICENSE").read_text()


def test_every_page_loads_without_complaints_and_fits_a_narrow_screen(browser, url):
    with browser.open(url) as shown:
        for path in PATHS:
            shown.set_viewport_size({"width": 1200, "height": 800})
            shown.goto(url + path)
            shown.locator("#connection", has_text="live").wait_for()
            assert shown.locator("h1").count() == 1
            assert shown.evaluate("window.pwned") is None
            if (name := dict(PAGES).get(path)) and name != "Ask":
                picture(shown, name.lower().replace(" ", "-"))
            shown.set_viewport_size({"width": 360, "height": 740})
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360, path
            if path == "/":
                shown.locator("#charts canvas").nth(1).wait_for()
                picture(shown, "narrow")


def test_hostile_values_are_shown_as_they_are(browser, engine, url):
    with browser.open(f"{url}/views/many") as shown:
        assert shown.locator("#live tbody tr").count() == 100
        assert shown.locator("#live tbody tr td").nth(1).inner_text() == EVIL
        assert shown.locator("#live th").nth(1).inner_text() == "<i>text</i>"
        assert f"of {ROWS + 1:,}" in shown.locator(".pager").inner_text()
        shown.get_by_role("link", name="Next").click()
        shown.get_by_text("101 to 200").wait_for()
        assert shown.evaluate("window.pwned") is None
    with browser.open(f"{url}/views/{quote(EVIL_NAME)}") as shown:
        assert shown.locator("h1").inner_text() == EVIL_NAME
        assert shown.locator("h1 *").count() == 0


def test_changes_come_live_without_a_reload(browser, engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    with browser.open(f"{url}/views/{quote(EVIL_NAME)}") as shown:
        shown.evaluate("window.mark = 'still the same page'")
        shown.evaluate("htmx.config.defaultSettleDelay = 2000")  # the focus is kept at once
        rows = shown.locator("#live section table tbody tr").count()
        shown.locator("#live a", has_text="orders").focus()
        orders.upsert([(-1, "<script>window.pwned = 2</script>")])
        epoch = engine.advance()
        shown.locator("#changes-table tbody tr").first.wait_for()
        cells = shown.locator("#changes-table tbody tr").first.locator("td").all_inner_texts()
        assert cells == [str(epoch), "append", "<script>window.pwned = 2</script>"]
        shown.locator("#live section table tbody tr").nth(rows).wait_for()
        shown.locator("#epoch", has_text=re.compile(f"^{epoch}$")).wait_for()
        assert (
            shown.evaluate("document.activeElement.textContent") == "orders"
        )  # it keeps the focus
        assert shown.evaluate("window.mark") == "still the same page"
        assert shown.evaluate("window.pwned") is None
    orders.delete([(-1, "<script>window.pwned = 2</script>")])
    engine.advance()


def test_a_lag_grows_on_the_page_without_an_epoch(browser, engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    epoch = engine.advance()
    with browser.open(f"{url}/sources") as shown:
        shown.evaluate("window.mark = 'still the same page'")
        assert shown.locator("#live tr", has_text="orders").get_by_text("3 rows").count() == 0
        orders.upsert([(-1, "a"), (-2, "b"), (-3, "c")])
        until(lambda: engine.status()["sources"][0]["lag"]["rows"] == 3)  # a status may be 1 s old
        assert engine.status()["epoch"] == epoch
        shown.locator("#live tr", has_text="orders").get_by_text("3 rows").first.wait_for()
        assert shown.evaluate("window.mark") == "still the same page"
    orders.delete([(-1, "a"), (-2, "b"), (-3, "c")])
    engine.advance()


def test_a_page_follows_again_after_the_server_was_away(chromium, engine):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    browser = Browser(chromium)  # it complains of the connection, rightly
    port = free_port()  # which nobody takes meanwhile
    with Console(engine.files, Options(), port=port) as console:
        url = console.url
        with browser.open(f"{url}/views/by_country") as shown:
            console.stop()
            shown.get_by_text("connection lost").wait_for()
            orders.upsert([(-5, "away")])
            missed = engine.advance()
            with Console(engine.files, Options(), port=port):
                shown.get_by_text("live", exact=True).first.wait_for()
                orders.upsert([(-6, "back")])
                epoch = engine.advance()
                shown.locator("#changes-table").get_by_text("back").wait_for()
                changes = shown.locator("#changes-table tbody tr").all_inner_texts()
                shown.locator("#epoch", has_text=str(epoch)).wait_for()
    found = [line.split() for line in changes]
    assert [str(missed), "append", "away", "1"] in found
    assert [str(epoch), "append", "back", "1"] in found
    assert len(found) == len(set(changes)), "each change once"
    orders.delete([(-5, "away"), (-6, "back")])
    engine.advance()


def test_the_token_is_asked_for_in_a_form(browser, engine, monkeypatch):
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    with Console(engine.files, Options(), token="${env:CONSOLE_TOKEN}") as console:
        context = browser.window()
        shown = context.new_page()
        shown.goto(f"{console.url}/views/by_country")
        shown.get_by_label("Token of this console").fill("wrong")
        shown.keyboard.press("Enter")
        shown.get_by_text("This is not the token").wait_for()
        shown.get_by_label("Token of this console").fill(TOKEN)
        shown.get_by_role("button", name="Open").click()
        shown.locator("#connection", has_text="live").wait_for()
        assert shown.locator("h1").inner_text() == "by_country"
        context.close()


def test_the_slider_travels_over_epochs_and_the_filter_stays(browser, engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.upsert([(-9, "gone")])
    earlier = engine.advance()
    orders.delete([(-9, "gone")])
    last = engine.advance()
    address = f"{url}/views/by_country?" + urlencode({"where": "country <> 'fr'"})
    with browser.open(address) as shown:
        cells = shown.locator("#live tbody")
        shown.get_by_text(f"epoch {last}", exact=False).first.wait_for()
        assert "fr" not in cells.inner_text()
        slider = shown.get_by_label("Epoch", exact=True)
        slider.wait_for()
        slider.focus()
        shown.keyboard.press("ArrowLeft")
        cells.get_by_text("gone").wait_for()
        assert slider.evaluate("one => document.activeElement === one")
        assert slider.get_attribute("aria-valuetext").startswith(f"epoch {earlier}, 2")
        assert f"epoch={earlier}" in shown.url
        assert "fr" not in cells.inner_text()
        picture(shown, "view-epochs")
        shown.keyboard.press("End")
        shown.locator("#live small", has_text="live").wait_for()
        assert "epoch=" not in shown.url
        orders.upsert([(-9, "again")])  # and it follows again
        engine.advance()
        cells.get_by_text("again").wait_for()
        shown.get_by_role("textbox", name="Rows where").fill(f"country = '{EVIL[:9]}")
        shown.keyboard.press("Enter")
        shown.get_by_role("alert").get_by_text("NEEDS_SPARK").wait_for()
        assert shown.evaluate("window.pwned") is None
    orders.delete([(-9, "again")])
    engine.advance()


@pytest.fixture(scope="module")
def acting(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with acting_shop(tmp_path_factory.mktemp("acting")) as engine:
        yield engine


def test_actions_are_asked_for_and_their_outcome_is_shown(browser, acting, monkeypatch):
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    with (
        Console(acting.files, Options(), token="${env:CONSOLE_TOKEN}") as console,
        closing(browser.window()) as context,
    ):
        shown = browser.watched(context.new_page())
        shown.goto(f"{console.url}/views/{quote(EVIL_NAME)}")
        shown.get_by_label("Token of this console").fill(TOKEN)
        shown.keyboard.press("Enter")
        asked = shown.locator("#asked")

        def press(name: str, outcome: str) -> None:
            button = shown.get_by_role("button", name=name).first
            button.focus()
            before = shown.url
            shown.keyboard.press("Enter")
            shown.wait_for_url(lambda address: address != before)  # it names the request
            asked.get_by_text(outcome).wait_for()

        press("Pause this view", "done")
        shown.locator("#live .state.paused").wait_for()
        press("Resume this view", "done")
        shown.locator("#live .state.live").wait_for()
        press("Verify", "equal to the same SQL run offline")
        assert asked.locator("td").all_inner_texts()[:4] == [EVIL_NAME, "3", "3", "yes"]
        picture(shown, "view-actions")

        shown.goto(f"{console.url}/sinks")
        press("Pause sink copy <b>", "done")
        shown.locator("#live .state.paused").wait_for()
        press("Resume sink copy <b>", "done")
        press("Resend sink copy <b>", "done")

        shown.goto(f"{console.url}/deadletters")
        assert EVIL in shown.locator("#live code").all_inner_texts()
        shown.locator("#live tr", has_text="two").get_by_role("link").click()
        shown.locator("summary", has_text="Edit and replay").press("Enter")
        mended = shown.get_by_label("Payload to read instead")
        assert mended.input_value() == "one\ntwo"
        picture(shown, "letter")
        mended.fill("40")
        shown.get_by_role("button", name="Replay the edited record").press("Enter")
        asked.get_by_text("done").wait_for()
        shown.goto(f"{console.url}/views/total")
        shown.locator("#live td", has_text="41").first.wait_for()

        shown.goto(f"{console.url}/deadletters")
        shown.locator("#live tr", has_text="gone").get_by_role("link").click()
        assert not shown.get_by_role("button", name="Drop").is_visible()
        shown.locator("summary", has_text="Drop").press("Enter")
        shown.get_by_role("button", name="Drop").press("Enter")
        asked.get_by_text("done").wait_for()
        shown.locator("#live tr", has_text="gone").wait_for(state="detached")

        shown.set_viewport_size({"width": 360, "height": 740})
        letter = shown.locator("#live tbody a").first.get_attribute("href")
        for path in (f"/views/{quote(EVIL_NAME)}", "/sinks", "/deadletters", letter, "/requests"):
            shown.goto(console.url + path)
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360, path
            assert shown.evaluate("window.pwned") is None


def test_light_and_dark_follow_the_system(browser, url):
    colors = set()
    for scheme in ("light", "dark"):
        with browser.open(f"{url}/views/by_country", color_scheme=scheme) as shown:
            colors.add(shown.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
            picture(shown, f"view-{scheme}")
    assert len(colors) == 2


def test_answers_of_spark_are_shown_plotted_and_cancelled(browser, engine, url):
    with browser.open(f"{url}/ask") as shown:
        shown.locator("#sql").fill(
            "SELECT country, count(*) AS n, max(id) AS last FROM orders GROUP BY country ORDER BY 1"
        )
        shown.keyboard.press("Control+Enter")
        shown.get_by_text("4 rows").wait_for()
        assert "by Spark" in shown.locator("#result").inner_text()
        assert shown.locator("#answer td").all_inner_texts()[-3:] == ["fr", "2500", "9997"]
        assert shown.locator("#plot canvas").is_visible()
        legend = shown.locator("#plot .u-legend .u-label").all_inner_texts()
        assert legend == ["country", "n", "last"]
        assert "GROUP+BY" in shown.url.replace("%20", "+")
        picture(shown, "ask")
        shown.locator("#sql").fill(
            "SELECT DATE '2026-01-01' + CAST(id AS INT) AS day, id % 7 AS n FROM range(20)"
        )
        shown.keyboard.press("Control+Enter")
        shown.get_by_text("20 rows").wait_for()
        assert shown.locator("#plot canvas").is_visible()
        for kind in ("CSV", "Parquet"):
            with shown.expect_download() as found:
                shown.get_by_role("link", name=kind).click()
            assert found.value.suggested_filename == f"answer.{kind.lower()}"
            assert Path(found.value.path()).stat().st_size > 40

        shown.locator("#sql").fill(
            "SELECT sum(a.id * b.id) FROM range(10000000000) a JOIN range(10000000000) b ON a.id % 7 = b.id % 5"
        )
        shown.get_by_role("button", name="Ask", exact=True).click()
        jobs = engine.spark.sparkContext.statusTracker().getActiveJobsIds
        until(jobs)
        shown.get_by_role("button", name="Cancel").click()
        until(lambda: not jobs())
        shown.locator("#asking").wait_for(state="hidden")
        assert shown.locator("#answer").count() == 1, "the answer before it stays"
        assert all(text.startswith("htmx:") for text in browser.complaints), (
            "of the cancelled request"
        )
        browser.complaints.clear()

        shown.locator("#sql").fill("SELECT * FROM text.`/etc/passwd`")
        shown.get_by_role("button", name="Ask", exact=True).click()
        shown.get_by_text("NOT_ALLOWED").wait_for()
        assert shown.locator("#plot").count() == 0


def test_names_are_completed(browser, url):
    with browser.open(f"{url}/ask") as shown:
        editor, proposed = shown.locator("#sql"), shown.locator("#proposed")
        options = proposed.locator("[role=option]")
        assert not proposed.is_visible()
        editor.press_sequentially("SELECT country FROM BY_C")
        assert options.all_inner_texts() == ["by_country"]
        shown.keyboard.press("Tab")
        assert editor.input_value() == "SELECT country FROM by_country"
        assert not proposed.is_visible()
        editor.press_sequentially(" WHERE by_country.")
        columns = options.all_inner_texts()
        assert columns[0] == "country"
        shown.keyboard.press("ArrowDown")
        assert editor.get_attribute("aria-activedescendant") == "proposed-0"
        shown.keyboard.press("Enter")
        assert editor.input_value().endswith("WHERE by_country.country")
        editor.press_sequentially(" = 'de' LIM")
        assert options.all_inner_texts() == ["LIMIT"]
        shown.keyboard.press("Escape")
        assert not proposed.is_visible()
        assert editor.input_value().endswith("LIM")
        editor.fill("SELECT * FROM evi")
        assert options.all_inner_texts() == [EVIL_NAME]
        options.first.click()
        assert editor.input_value() == f"SELECT * FROM `{EVIL_NAME}`"
        shown.keyboard.press("Control+Enter")
        shown.locator("#answer").wait_for()
        shown.keyboard.press("Tab")  # no name is begun: the focus moves on
        assert shown.evaluate("document.activeElement.textContent") == "Ask"


def test_the_keyboard_reaches_everything(browser, url):
    with browser.open(f"{url}/ask") as shown:
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.textContent") == "Skip to content"
        shown.locator("#sql").fill("SELECT country, n FROM by_country WHERE country = 'de'")
        shown.keyboard.press("Control+Enter")
        shown.get_by_text("1 row").wait_for()
        assert shown.locator("#result td").all_inner_texts()[0] == "de"
    with browser.open(f"{url}/graph") as shown:
        for _ in range(30):
            shown.keyboard.press("Tab")
            if shown.evaluate("document.activeElement.closest('svg') !== null"):
                break
        shown.keyboard.press("Enter")
        shown.wait_for_url("**/views/orders")
