"""The views of the web statistics: the known figures of real logs, visits over midnight, and nothing personal."""

import json
import re
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eddyline.errors import DataError
from eddyline.storage.files import Files
from eddyline_apps import demo
from eddyline_apps.traffic import Traffic
from eddyline_apps.webstats.log_formats import COMBINED
from eddyline_apps.webstats.places import define_place, keep_files
from eddyline_apps.webstats.views import (
    INPUT,
    KEY_FILE,
    SCHEMA,
    Settings,
    define_key,
    queries,
    script,
    secret_of,
)
from mmdb_files import countries
from test_web_statistics import DATA, LOGS, line, truth

SECRET = "0123456789abcdef" * 2
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_2 like Mac OS X) Version/19.2 Mobile/1 Safari/604.1"
EVIL = "<script>window.pwned = 1</script>'"


def end(agent, referer="-"):
    return f' "{referer}" "{agent}"'


@pytest.fixture(scope="module")
def session(spark):
    from eddyline.spark.session import ZONE, cloned

    return cloned(spark, **{ZONE: "Asia/Kathmandu"})  # no day may depend on it


@pytest.fixture
def offline(session, tmp_path):
    """Lines -> the rows of a query over the views."""

    def run(lines, query, settings=None, files=None, places=()):
        lines = list(lines)
        path = tmp_path / "lines.parquet"
        files = pa.array(files or ["x"] * len(lines), pa.string())
        table = pa.table(
            {"line": pa.array(lines, pa.string()), "seq": range(len(lines)), "file": files}
        )
        pq.write_table(table, path)
        define_key(session, SECRET)
        define_place(session, *places)
        session.read.parquet(str(path)).createOrReplaceTempView(INPUT)
        for name, text in queries(script(settings or Settings(COMBINED))).items():
            session.sql(text).createOrReplaceTempView(name)
        return [tuple(row) for row in session.sql(query).collect()]

    return run


# --- without a JVM ---


def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path):
    first = secret_of(tmp_path / "storage")
    assert secret_of(tmp_path / "storage") == first
    path = tmp_path / "storage" / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("'; DROP")
    with pytest.raises(DataError, match="OTHER_RUN"):
        secret_of(tmp_path / "storage")


def test_a_pattern_without_its_site_is_refused():
    with pytest.raises(DataError, match=re.escape("{site}")):
        script(Settings(COMBINED, "/var/log/access.log"))


# --- real logs ---


DAILY = """
SELECT CAST(day AS STRING), sum(pv), sum(page_pv), sum(uv), sum(bytes), sum(visits), sum(bounces),
  sum(visit_seconds), sum(new_visitors) FROM daily_statistics GROUP BY day
"""


@pytest.mark.spark
@pytest.mark.parametrize("log", LOGS)
def test_real_logs_give_their_known_figures(log, offline):
    known = truth(log)
    # the known figures take each host for a visitor: so do lines without user agents
    lines = [
        re.sub(r'( (?:\d+|-)) "[^"]*" "[^"]*"$', r"\1", one)
        for one in demo.read_log(DATA / LOGS[log])
    ]
    found = {day: figures for day, *figures in offline(lines, DAILY)}
    assert found.keys() == known["per_day"].keys()
    names = (
        "requests",
        "page_requests",
        "uv_host",
        "bytes",
        "visits",
        "bounces",
        "visit_seconds_total",
    )
    for day, figures in known["per_day"].items():
        assert found[day][:7] == [figures[name] for name in names]
    assert sum(figures[7] for figures in found.values()) == known["total"]["uv_host"]


@pytest.mark.spark
def test_a_host_with_two_user_agents_is_two_visitors(offline):
    known = truth("elastic_apache")
    lines = list(demo.read_log(DATA / LOGS["elastic_apache"]))
    found = {day: figures for day, *figures in offline(lines, DAILY)}
    for day, figures in known["per_day"].items():
        assert found[day][0] == figures["requests"]
        assert found[day][2] == figures["uv_host_ua"]
        assert found[day][3] == figures["bytes"]


@pytest.mark.spark
def test_hours_and_top_pages_of_a_real_log(offline):
    known = truth("nasa_19950801_fullday")
    lines = list(demo.read_log(DATA / LOGS["nasa_19950801_fullday"]))
    begin = 807249600  # midnight of that day at -0400
    hours = offline(lines, "SELECT hour, pv, uv FROM hourly_statistics")
    assert {str(begin + 3600 * hour): (pv, uv) for hour, pv, uv in hours} == {
        hour: (figures["requests"], figures["uv_host"])
        for hour, figures in known["per_hour_epoch"].items()
    }
    found = offline(lines, """
        SELECT value, sum(requests) AS n FROM day_values WHERE kind IN ('page', 'file')
        GROUP BY value ORDER BY n DESC LIMIT 10
    """)  # fmt: skip
    assert sorted(found) == sorted(map(tuple, known["total"]["top_paths"]))


# --- what the numbers mean ---


def at(day, time, host="192.0.2.1", agent=BROWSER, path="/", **parts):
    return line(
        host=host, day=day, time=time, request=f"GET {path} HTTP/1.1", end=end(agent), **parts
    )


@pytest.mark.spark
def test_pages_were_answered_without_an_error(offline):
    codes = ["000", "200", "206", "301", "302", "304", "400", "404", "499", "500"]
    lines = [at("01/Aug/1995", "12:00:00", path=f"/{code}", status=code) for code in codes]
    found = offline(lines, "SELECT path FROM requests WHERE is_page ORDER BY path")
    assert [path for (path,) in found] == ["/200", "/206", "/301", "/302", "/304"]


FILES = [
    "gif", "jpg", "jpeg", "png", "bmp", "ico", "xbm", "svg", "webp", "avif", "heic", "jxl", "css",
    "js", "mjs", "map", "wasm", "webmanifest", "ttf", "otf", "woff", "woff2", "eot", "swf", "mpg",
    "mpeg", "mp3", "mp4", "m4a", "m4v", "m3u8", "ts", "webm", "mov", "avi", "wav", "ogg", "opus",
    "flac", "pdf", "zip", "gz", "tgz", "tar", "bz2", "xz", "zst", "7z", "rar",
]  # fmt: skip


@pytest.mark.spark
def test_images_scripts_films_and_archives_are_no_pages(offline):
    pages = [
        "/",
        "/a.html",
        "/feed.xml",
        "/robots.txt",
        "/v1/x.json",
        "/setup.exe",
        "/x.ts/y",
        "/webm",
        "/?f=x.js",
    ]
    others = [path for end in FILES for path in (f"/x.{end}", f"/x/Y.{end.upper()}?v=1")]
    lines = [at("01/Aug/1995", "12:00:00", path=path) for path in [*pages, *others]]
    found = offline(lines, "SELECT path FROM requests WHERE is_page")
    assert sorted(path for (path,) in found) == sorted(pages)


@pytest.mark.spark
def test_a_referrer_keeps_an_address_in_its_brackets(offline):
    referrers = [
        "http://[2001:DB8::1]:80/x",
        "http://u:p@[::1]/",
        "http://[2001:db8::1",
        "http://[",
        "http://192.0.2.1:80/",
        "http://a.example:80/",
    ]
    lines = [line(end=end(BROWSER, one)) for one in referrers]
    lines.append(line(end=end(BROWSER, referrers[0]), site="[2001:db8::1]:80 "))
    found = offline(lines, "SELECT referrer FROM requests ORDER BY seq")
    assert [referrer for (referrer,) in found] == [
        "[2001:db8::1]", "[::1]", None, None, "192.0.2.1", "a.example", None,
    ]  # fmt: skip


@pytest.mark.spark
def test_a_visit_over_midnight_belongs_to_the_day_of_its_start(offline):
    lines = [
        at("01/Aug/1995", "12:00:00", path="/first"),
        at("01/Aug/1995", "23:20:00", path="/late"),
        at("01/Aug/1995", "23:50:00"),
        at("02/Aug/1995", "00:10:00"),
        at("02/Aug/1995", "00:40:00", path="/last"),
        at("02/Aug/1995", "01:10:01", path="/next"),
        at("02/Aug/1995", "00:10:00", host="192.0.2.2", path="/other"),
    ]
    visits = offline(lines, """
        SELECT CAST(day AS STRING), hour, duration_s, pv, entry_page, exit_page FROM visits ORDER BY first_s
    """)  # fmt: skip
    assert visits == [
        ("1995-08-01", 12, 0, 1, "/first", "/first"),
        ("1995-08-01", 23, 4800, 4, "/late", "/last"),
        ("1995-08-02", 0, 0, 1, "/other", "/other"),
        ("1995-08-02", 1, 0, 1, "/next", "/next"),
    ]
    daily = offline(lines, """
        SELECT CAST(day AS STRING), pv, uv, ips, visits, bounces, returning_visitors, new_visitors,
          visit_seconds, average_depth, bounce_rate
        FROM daily_statistics ORDER BY day
    """)  # fmt: skip
    assert daily == [
        ("1995-08-01", 3, 1, 1, 2, 1, 1, 1, 4800, 1.5, 0.5),
        ("1995-08-02", 4, 2, 2, 2, 2, 0, 1, 0, 2.0, 1.0),
    ]


@pytest.mark.spark
def test_visitors_and_addresses_are_two_things(offline):
    lines = [
        at("01/Aug/1995", "10:00:00"),
        at("01/Aug/1995", "10:00:01", agent=PHONE),  # another visitor of the same address
        at("01/Aug/1995", "10:00:02", host="192.0.2.9"),
        at(
            "02/Aug/1995", "10:00:00", agent="Mozilla/5.0 Firefox/1.0 (x)"
        ),  # a visitor of a known address
        at("02/Aug/1995", "10:00:00", host="192.0.2.10"),
    ]
    found = offline(lines, "SELECT uv, ips, new_visitors FROM daily_statistics ORDER BY day")
    assert found == [(3, 2, 3), (2, 2, 1)]
    ids = offline(lines, "SELECT DISTINCT visitor FROM visitor_days")
    assert len(ids) == 5  # the same browser has another id on another day


@pytest.mark.spark
def test_programs_are_apart_and_clients_are_described(offline):
    google = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
    search = "https://www.google.co.uk/search?q=x"
    lines = [
        line(end=end(BROWSER, search)),
        line(end=end(PHONE, "https://user:p@evil.example/")),
        line(end=end("-"), host="192.0.2.3"),
        line(end=end(google)),
        line(end=end("curl/8.5.0")),
        line(end=end(EVIL, EVIL), request=f"GET /{EVIL} HTTP/1.1"),
    ]
    found = offline(
        lines, "SELECT is_bot, browser, device, search_engine, referrer FROM requests ORDER BY seq"
    )
    assert found == [
        (False, "Firefox", "computer", "Google", "www.google.co.uk"),
        (False, "Safari", "phone", None, "evil.example"),
        (False, "unknown", "unknown", None, None),
        (True, "other", "other", None, None),
        (True, "other", "other", None, None),
        (False, "other", "other", None, None),
    ]
    assert offline(lines, "SELECT is_bot, pv FROM daily_statistics ORDER BY is_bot") == [
        (False, 4),
        (True, 2),
    ]


@pytest.mark.spark
def test_days_are_those_of_the_site(offline):
    lines = [
        at("01/Aug/1995", "20:30:00", site=f"{site}:80 ")
        for site in ("a.example", "b.example", "c.example")
    ]
    query = "SELECT site, CAST(day AS STRING), hour FROM requests ORDER BY site"
    zones = {"a.example": "Europe/Berlin", "b.example": "Asia/Kathmandu"}
    assert offline(lines, query, Settings(COMBINED, zones=zones)) == [
        ("a.example", "1995-08-02", 2),
        ("b.example", "1995-08-02", 6),
        ("c.example", "1995-08-01", 20),  # that of the log's clock
    ]
    found = offline(lines, query, Settings(COMBINED, zones={"": "UTC"}))
    assert {row[1:] for row in found} == {("1995-08-02", 0)}


@pytest.mark.spark
def test_the_site_comes_from_the_file(offline):
    files = [
        "/var/log/www.example-access.log.2.gz",
        "/x/access.log-20260301",
        "/x/b.example.log",
        "",
        "/l/a.example/access.log.1",
        "/l/b.example/access.log-20260301.zst",
        "/x/www.example.org.access.log.1.zst",
        "/x/access-shop.log-20260101.bz2",
        "/l/c.example/access.log.2.bz2",
        "/x/d.example.log.deflate",
        "/l/d.example/access.log-2026-03-01.gz",
    ]
    lines = [line()] * len(files)
    query = "SELECT site FROM requests ORDER BY seq"
    found = offline(lines, query, Settings(COMBINED, "file"), files)
    assert [site for (site,) in found] == [
        "www.example", "access", "b.example", "-", "access", "access", "www.example.org", "shop",
        "access", "d.example", "access",
    ]  # fmt: skip
    found = offline(lines, query, Settings(COMBINED, "/l*/{site}/access.log"), files)
    assert [site for (site,) in found] == [
        "-", "-", "-", "-", "a.example", "b.example", "-", "-", "c.example", "-", "d.example",
    ]  # fmt: skip


ROTATED = {
    "shop-1.log": "shop-1",
    "shop-2.log.gz": "shop-2",
    "app.2024.log": "app.2024",
    "shop.2.log": "shop.2",
    "shop-12345678.log": "shop-12345678",
    "10.0.0.1.log": "10.0.0.1",
    "10.0.0.1.log.1": "10.0.0.1",
    "10.0.0.1-20260301.log": "10.0.0.1",
    "access-10.0.0.1.log": "10.0.0.1",
    "shop-1-access.log.2": "shop-1",
    "shop.log.2026-03-01": "shop",
    "shop.log-2026030110.gz": "shop",
    "shop.log-20260301-1772323200": "shop",
    "shop-20260327.log": "shop",
    "Shop.2026-03-27.log.zst": "shop",
    "shop-2026-03-27-10.log": "shop",
    "access-20260327.log.gz": "access",
    "access.1.log": "access",
    "shop-access.2.log.gz": "shop",
    "10.0.0.1": "10.0.0.1",
    "10.0.0.1.gz": "10.0.0.1",
    "10.0.0.1.2.gz": "10.0.0.1",
    "access-10.0.0.1": "10.0.0.1",
    "shop-1": "shop-1",
    "shop.1": "shop",
    "shop-20260301.gz": "shop",
    "app.2024": "app.2024",
    ".log": "-",
}
"""The names of files, and their sites."""


@pytest.mark.spark
def test_of_the_name_of_a_file_only_what_rotation_adds_is_removed(offline):
    files = [f"/var/log/{name}" for name in ROTATED]
    settings = Settings(COMBINED, "file")
    found = offline(
        [line()] * len(files), "SELECT site FROM requests ORDER BY seq", settings, files
    )
    assert dict(zip(ROTATED, (site for (site,) in found), strict=True)) == ROTATED


@pytest.mark.spark
@pytest.mark.parametrize(
    ("pattern", "sites"),
    [
        (
            "/l/{site}/access.log",
            {
                "/l/Shop-1/access-20260327.log.gz": "shop-1",
                "/l/shop/access.2026-03-27.log": "shop",
                "/l/shop/access.2.log.gz": "shop",
                "/l/shop/access.log-20260327": "shop",
                "/l/shop/access2.log": "-",
            },
        ),
        (
            "/l/{site}.log",
            {
                "/l/shop-1.log": "shop-1",
                "/l/shop-1-20260327.log.1": "shop-1",
                "/l/10.0.0.1.log": "10.0.0.1",
            },
        ),
        (
            "/l/{site}",
            {"/l/10.0.0.1": "10.0.0.1", "/l/shop-1": "shop-1", "/l/shop-1-20260327.gz": "shop-1"},
        ),
    ],
)
def test_a_pattern_finds_the_site_of_rotated_files(pattern, sites, offline):
    settings = Settings(COMBINED, pattern)
    query = "SELECT site FROM requests ORDER BY seq"
    found = offline([line()] * len(sites), query, settings, list(sites))
    assert dict(zip(sites, (site for (site,) in found), strict=True)) == sites


@pytest.mark.spark
def test_a_site_of_a_pattern_has_its_zone(offline):
    settings = Settings(COMBINED, "/l/{site}.log", {"shop.example": "Europe/Berlin"})
    lines = [at("01/Aug/1995", "20:30:00")]
    found = offline(
        lines, "SELECT site, CAST(day AS STRING) FROM requests", settings, ["/l/Shop.Example.log"]
    )
    assert found == [("shop.example", "1995-08-02")]


@pytest.mark.spark
def test_the_key_of_a_record_is_the_site_as_it_is(offline):
    keys = ["shop-1", "Shop-2", "192.0.2.1", "access-www", "www-20260301", "a/b.log.gz", ""]
    query = "SELECT site FROM requests ORDER BY seq"
    lines = [line()] * len(keys)
    settings = Settings(COMBINED, "file", relation="", records=INPUT)
    found = [site for (site,) in offline(lines, query, settings, keys)]
    assert found == [*(key.lower() for key in keys[:-1]), "-"]
    settings = Settings(COMBINED, "access-{site}", relation="", records=INPUT)
    found = offline(lines[:3], query, settings, ["access-Shop-1", "access-10.0.0.1", "shop"])
    assert [site for (site,) in found] == ["shop-1", "10.0.0.1", "-"]


@pytest.mark.spark
def test_beacons_have_the_place_that_they_were_stored_with(offline, tmp_path):
    beacon = {
        "time": 1_790_000_000_000_000,
        "site": "a.example",
        "host": "def052d7207e0d67",
        "path": "/",
    }
    places = [
        {"country": "DE", "carrier": "Alpha"},
        {},
        {},
        {"country": "FR"},
        {"country": None, "carrier": "Beta"},
    ]
    storage = Files(tmp_path / "storage")
    storage.make_folder("")
    periods, _ = keep_files(
        storage, [countries(tmp_path / "c.mmdb", {"192.0.2.0/24": "AT"})], lambda: 2
    )
    query = "SELECT country, carrier FROM requests ORDER BY seq"
    lines = [json.dumps(beacon | place) for place in places]
    settings = Settings(COMBINED, relation="", beacons=INPUT)
    found = offline(lines, query, settings, places=(storage, periods))
    assert found == [
        ("DE", "Alpha"),
        (None, None),
        ("unknown", None),
        ("FR", None),
        ("unknown", "Beta"),
    ]
    stored = [("DE", "Alpha"), (None, None), (None, None), ("FR", None), (None, "Beta")]
    assert offline(lines, query, settings) == stored


@pytest.mark.spark
def test_a_beacon_is_of_a_page_whatever_its_path(offline):
    paths = ["/", "/wiki/File:X.jpg", "/a.css", "/down.zip?now"]
    beacon = {"time": 1_790_000_000_000_000, "site": "a.example", "host": "def052d7207e0d67"}
    lines = [json.dumps(beacon | {"path": path}) for path in paths]
    settings = Settings(COMBINED, relation="", beacons=INPUT)
    found = offline(lines, "SELECT path FROM requests WHERE is_page ORDER BY seq", settings)
    assert [path for (path,) in found] == paths


# --- live ---


@pytest.mark.spark
def test_live_statistics_equal_offline_ones_and_hold_nothing_personal(tmp_path):
    from eddyline.api.engine import Engine

    log = [one for batch in Traffic(lines=900, days=2, seed=4).batches(300) for one in batch]
    storage = tmp_path / "storage"
    given = countries(tmp_path / "country.mmdb", {"81.0.0.0/8": "DE", "198.51.100.0/24": "FR"})
    for part in (0, 1):
        with Engine(str(storage)) as engine:
            define_key(engine.spark, secret_of(storage))
            periods, changed = keep_files(engine.files, [given], lambda: 0)
            assert changed == (part == 0)
            define_place(engine.spark, engine.files, periods)
            if part == 0:
                engine.table(INPUT, SCHEMA)
                for name, text in queries(script(Settings(COMBINED))).items():
                    engine.view(name, text)
            rows = [(text, seq, "x.log") for seq, text in enumerate(log) if seq % 2 == part]
            engine.table(INPUT, SCHEMA).insert(rows)
            engine.advance()
            if part == 0:
                continue
            assert engine.verify()
            personal = re.compile(
                r"dsl-\d+|198\.51\.100|81\.\d+\.\d+|Mozilla|python-requests|Gecko"
            )
            for view in engine.status()["views"]:
                assert view["state"] == "live"
                if view["name"] != "malformed_lines":
                    held = engine.sql(f"SELECT * FROM {view['name']}").toPandas().to_csv()
                    assert not personal.search(held), view["name"]
                assert secret_of(storage) not in engine.explain(view["name"])
            (days,) = engine.sql("SELECT collect_set(day) FROM daily_statistics").first()
            assert date(2026, 3, 3) in days
            places = dict(
                map(
                    tuple,
                    engine.sql("SELECT country, count(*) FROM requests GROUP BY 1").collect(),
                )
            )
            damaged = [row.line for row in engine.sql("SELECT line FROM malformed_lines").collect()]
            for country, host in (("DE", "81."), ("FR", "198.51.100."), ("unknown", "dsl-")):
                lines, lost = (
                    sum(f":80 {host}" in one or f":443 {host}" in one for one in some)
                    for some in (log, damaged)
                )
                assert places[country] == lines - lost > 0
