"""The dashboard of the web statistics, over HTTP and in a real browser, with hostile lines in the log."""

import csv
import io
import json
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from markupsafe import escape

from console_cases import TOKEN, ask
from eddyline.options import Options
from eddyline_apps.traffic import SITES, Traffic
from eddyline_apps.webstats.log_formats import COMBINED
from eddyline_apps.webstats.places import define_place, keep_files
from eddyline_apps.webstats.views import INPUT, SCHEMA, Settings, define_key, queries, script
from mmdb_files import carriers, countries
from test_web_statistics import line

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from eddyline.console.server import Console  # noqa: E402
from eddyline_apps.webstats.dashboard import DASHBOARD  # noqa: E402
from test_console_pages import Tags, page  # noqa: E402

pytestmark = pytest.mark.spark

EVIL = "<script>window.pwned=1</script>'&</td>"
EVIL_SITE = "evil<b>&'"
EVIL_AGENT = "Mozilla/5.0 (<img src=x onerror=window.pwned=1>) Firefox/1.0"
FORMULA = "=1+1"
SITE = SITES[0][0]
BOTS_SITE = "robots.example"
QUIET_SITE = "quiet.example"  # whose newest day has only programs
DAY = "2026-03-04"
PICTURES = Path(__file__).parents[1] / "build" / "webstats"


def evil_line(time, **parts):
    end = f' "https://{EVIL}/" "{EVIL_AGENT}"'
    return line(
        site=f"{EVIL_SITE}:80 ", request=f"GET /{EVIL} HTTP/1.1", time=time, end=end, **parts
    )


@pytest.fixture(autouse=True)
def lane_at_random() -> None:
    """Let small epochs run in the driver, as by default: these tests are about what is shown."""


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory):
    import eddyline as el

    folder = tmp_path_factory.mktemp("webstats")
    places = [
        countries(folder / "country.mmdb", {"81.0.0.0/9": "DE", "81.128.0.0/9": "AT"}),
        carriers(folder / "asn.mmdb", {"81.0.0.0/8": EVIL}),
    ]
    with el.Engine(str(folder / "storage"), spark=spark) as engine:
        define_key(engine.spark, "0" * 32)
        define_place(engine.spark, engine.files, keep_files(engine.files, places, lambda: 0)[0])
        table = engine.table(INPUT, SCHEMA)
        for name, query in queries(script(Settings(COMBINED))).items():
            engine.view(name, query)
        log = [one for batch in Traffic(lines=6000, seed=2).batches(1000) for one in batch]
        log += [evil_line("10:00:00"), evil_line("10:00:01", host=EVIL), "<b>malformed</b>"]
        log.append(
            line(site=f"{EVIL_SITE}:80 ", request=f"GET {FORMULA} HTTP/1.1", time="10:00:02")
        )
        robot = ' "-" "Googlebot/2.1"'
        log.append(line(site=f"{BOTS_SITE}:80 ", time="10:00:03", end=robot))
        log.append(line(site=f"{QUIET_SITE}:80 ", time="10:00:04"))
        log.append(line(site=f"{QUIET_SITE}:80 ", day="02/Aug/1995", time="03:10:00", end=robot))
        table.insert([(text, seq, "x.log") for seq, text in enumerate(log)])
        engine.advance()
        yield engine


@pytest.fixture(scope="module")
def url(engine):
    with Console(engine.files, Options(), additions=(DASHBOARD,)) as console:
        yield console.url


def daily(engine, site, day):
    return engine.sql(
        f"SELECT * FROM daily_statistics WHERE site = '{site}' AND day = DATE'{day}' AND NOT is_bot"
    ).first()


def test_the_page_has_the_numbers_of_the_views(engine, url):
    text = page(url, f"/webstats?site={SITE.upper()}&day={DAY}")
    row = daily(engine, SITE, DAY)
    for name in ("pv", "page_pv", "uv", "visits"):
        assert f"<b>{row[name]:,}</b>" in text
    before = daily(engine, SITE, "2026-03-03")
    assert f"<b>{row.uv:,}</b> <small>day before: {before.uv:,}</small>" in text
    assert 'href="/webstats" aria-current="page"' in text
    assert "Web statistics" in page(url, "/")  # in the navigation of all pages


def test_a_site_that_only_programs_visit_is_listed_last(url):
    sites = [
        attributes["value"]
        for tag, attributes in Tags(page(url, "/webstats")).found
        if tag == "option"
    ]
    assert sites[0] == SITE
    assert sites[-1] == BOTS_SITE
    assert "Programs apart: 1 requests" in page(url, f"/webstats?site={BOTS_SITE}")


def test_countries_and_carriers_are_shown_and_exported(engine, url):
    text = page(url, f"/webstats?site={SITE}&day={DAY}")
    status, _, body = ask(url, f"/webstats/export?what=tops&site={SITE}&day={DAY}")
    assert status == 200
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    pv = daily(engine, SITE, DAY).pv
    for kind, title, names in (
        ("country", "Countries", {"AT", "DE", "unknown"}),
        ("carrier", "Carriers", {EVIL, "unknown"}),
    ):
        found = {
            row["value"]: int(row["requests"])
            for row in rows
            if row["kind"] == kind and row["is_bot"] == "False"
        }
        assert found.keys() == names
        assert sum(found.values()) == pv
        assert f'<section aria-label="{title}">' in text
        for name, requests in found.items():
            assert f'<td>{escape(name)}</td><td class="n">{requests:,}</td>' in text


def test_curves_have_the_numbers_of_the_views(engine, url):
    status, _, body = ask(url, f"/webstats/curve?by=hour&site={SITE}&day={DAY}")
    found = json.loads(body)
    assert status == 200
    hours = engine.sql(
        f"SELECT hour, page_pv FROM hourly_statistics WHERE site = '{SITE}' AND day = DATE'{DAY}' AND NOT is_bot"
    ).collect()
    assert found["x"] == list(range(24))
    assert {hour: n for hour, n in enumerate(found["series"][0]["values"]) if n} == {
        hour: n for hour, n in hours if n
    }
    minutes = json.loads(ask(url, f"/webstats/curve?by=minute&site={SITE}&day={DAY}")[2])
    assert len(minutes["x"]) == 1440
    for curve in (found, minutes):
        assert sum(filter(None, curve["series"][0]["values"])) == daily(engine, SITE, DAY).page_pv
        assert sum(curve["series"][1]["values"]) == daily(engine, SITE, "2026-03-03").page_pv
    days = json.loads(ask(url, f"/webstats/curve?by=day&site={SITE}")[2])
    assert daily(engine, SITE, DAY).uv in days["series"][1]["values"]


def test_curves_are_of_the_day_of_the_page_also_if_only_programs_came_on_it(url):
    assert f"{QUIET_SITE}, 1995-08-02" in page(url, f"/webstats?site={QUIET_SITE}")
    found = json.loads(ask(url, f"/webstats/curve?by=hour&site={QUIET_SITE}")[2])
    today, before = (series["values"] for series in found["series"])
    assert today == [0] * 4 + [None] * 20
    assert before == [0] * 10 + [1] + [0] * 13


def test_exports_are_csv_that_no_spreadsheet_computes(engine, url):
    evil = urlencode({"site": EVIL_SITE, "day": "1995-08-01"})
    status, headers, body = ask(url, f"/webstats/export?what=tops&{evil}")
    assert status == 200
    assert headers["content-type"].startswith("text/csv")
    assert headers["content-disposition"] == 'attachment; filename="webstats-tops.csv"'
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    pages = {row["value"]: row["requests"] for row in rows if row["kind"] == "page"}
    assert pages == {f"/{EVIL}": "2", f"'{FORMULA}": "1"}
    for what in ("days", "hours", "slowest"):
        text = ask(url, f"/webstats/export?what={what}&site={SITE}&day={DAY}")[2].decode()
        view = {"days": "daily", "hours": "hourly"}.get(what)
        if view:
            where = "" if what == "days" else f" AND day = DATE'{DAY}'"
            (n,) = engine.sql(
                f"SELECT count(*) FROM {view}_statistics WHERE site = '{SITE}'{where}"
            ).first()
            assert len(text.splitlines()) == n + 1


@pytest.mark.parametrize(
    "path",
    [
        "/webstats?day=x",
        "/webstats?day=0001-01-01",  # there is no day before
        "/webstats/curve?by=minute&day=0001-01-01",
        "/webstats/curve?by=hour&day=0001-01-01",
        "/webstats/curve?by=year",
        "/webstats/export?what=requests",
        f"/webstats?day={quote(EVIL)}",
    ],
)
def test_what_cannot_be_shown_has_a_problem(path, url):
    status, _, body = ask(url, path)
    assert status == 400
    assert "BAD_OPTION" in body.decode()
    assert EVIL not in body.decode()


def test_hostile_lines_are_text(url):
    for query in (
        "",
        f"?site={quote(EVIL_SITE)}",
        "?" + urlencode({"site": EVIL, "day": "2026-01-01"}),
    ):
        text = page(url, f"/webstats{query}")
        assert EVIL not in text
        assert EVIL_SITE not in text
        assert "<img" not in text
        for tag, attributes in Tags(text).found:
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith(("on", "hx-on"))]
            assert tag != "script" or attributes["src"].startswith("/static/")


def test_the_dashboard_is_behind_the_token(engine, monkeypatch):
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    with Console(
        engine.files, Options(), token="${env:CONSOLE_TOKEN}", additions=(DASHBOARD,)
    ) as console:
        for path in ("/webstats", "/webstats/curve", "/webstats/export"):
            assert ask(console.url, path)[0] == 401
            assert ask(console.url, path, Authorization=f"Bearer {TOKEN}")[0] == 200
    with Console(engine.files, Options()) as console:
        assert ask(console.url, "/webstats")[0] == 404


def test_a_browser_shows_hostile_lines_and_follows_new_ones(browser, engine, url):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser.open(f"{url}/webstats?site={SITE}&day={DAY}") as shown:
        shown.locator("[data-drawn]").nth(2).wait_for()
        assert shown.locator("#curves canvas").count() == 3
        shown.screenshot(path=PICTURES / "dashboard.png", full_page=True)
        shown.emulate_media(media="print")
        assert not shown.locator("#pick").is_visible()
        shown.screenshot(path=PICTURES / "print.png", full_page=True)
        shown.emulate_media(media="screen")
        shown.set_viewport_size({"width": 360, "height": 740})
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        shown.get_by_role("link", name="Previous day").click()
        shown.locator("#shown", has_text="2026-03-03").wait_for()
    with browser.open(f"{url}/webstats") as shown:
        shown.get_by_label("Site").fill(EVIL_SITE)
        shown.get_by_role("button", name="Show").click()
        shown.locator("#shown", has_text="1995-08-01").wait_for()
        shown.locator("#connection", has_text="live").wait_for()
        assert shown.locator("#shown").inner_text() == f"{EVIL_SITE}, 1995-08-01"
        assert (
            shown.get_by_label("Pages", exact=True).locator("td").first.inner_text() == f"/{EVIL}"
        )
        requests = shown.locator(".cards div", has_text="Requests").first.locator("b")
        assert requests.inner_text() == "3"
        shown.screenshot(path=PICTURES / "hostile.png", full_page=True)
        shown.evaluate("window.mark = 'still the same page'")
        engine.table(INPUT, SCHEMA).insert([(evil_line("10:00:05"), 1 << 40, "x.log")])
        engine.advance()
        shown.locator(".cards div", has_text="Requests").first.locator("b", has_text="4").wait_for()
        assert shown.evaluate("window.mark") == "still the same page"
        assert shown.evaluate("window.pwned") is None
