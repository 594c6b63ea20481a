"""The web statistics give the known figures of real logs, offline and live."""

import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eddyline.cli import main
from eddyline.cli.output import Output
from eddyline_apps import demo, script, views
from eddyline_apps.traffic import SITES, Traffic, damage
from waiting import PATIENCE_S

DATA = Path(os.environ.get("EDDYLINE_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
LOGS = {
    "elastic_apache": "elastic_apache_combined.log.gz",
    "nasa_19950801_fullday": "derived_nasa_19950801_fullday.log.gz",
    "nasa_19950801_tsv": "nasa_19950801.tsv.gz",
    "nasa_aug95_head_broken_lines": "nasa_aug95_head_broken_lines.log.gz",
}
LINE = '{site}{host} - {user} [{day}:{time} {zone}] "{request}" {status} {size}{end}'
"""The parts of a line; see `line`."""


def line(**parts):
    given = {
        "site": "",
        "host": "192.0.2.1",
        "user": "-",
        "day": "01/Aug/1995",
        "time": "00:00:01",
        "zone": "-0400",
        "request": "GET / HTTP/1.0",
        "status": "200",
        "size": "12",
        "end": "",
    }
    return LINE.format(**given | parts)


def truth(log):
    if not (DATA / LOGS[log]).exists():
        pytest.skip(f"{LOGS[log]} is not in {DATA}: set EDDYLINE_DATA to where the real logs are")
    return json.loads((DATA / "truth.json").read_text())[log]


# --- without a JVM ---


def test_script_is_split_into_its_views():
    text = script("web_statistics")
    found = views(text)
    assert list(found) == re.findall(r"^CREATE VIEW (\w+) AS$", text, re.MULTILINE)
    assert all(query in text for query in found.values())
    assert [name for name, query in found.items() if demo.is_ordered(query)] == [
        "top_pages",
        "top_hosts",
    ]


def test_traffic_depends_on_its_seed_alone():
    log = [line for batch in Traffic(lines=5000, seed=3).batches(1000) for line in batch]
    assert log == [line for batch in Traffic(lines=5000, seed=3).batches(77) for line in batch]
    assert log != [line for batch in Traffic(lines=5000, seed=4).batches(77) for line in batch]


@pytest.mark.parametrize("lines", [0, 1, 2, 7, 1000])
def test_traffic_has_the_lines_asked_for(lines):
    batches = list(Traffic(lines=lines, days=3).batches(4))
    assert [len(batch) for batch in batches] == [4] * (lines // 4) + [lines % 4] * (lines % 4 > 0)


def test_traffic_looks_like_a_log():
    log = [
        line for batch in Traffic(lines=20_000, malformed_share=0.01).batches(500) for line in batch
    ]
    form = re.compile(
        r'(\S+):\d+ (\S+) - - \[((?!00)\d\d/\w{3}/\d{4}):\S+ [+-]\d{4}\] "GET (\S+) HTTP/1.1" \d{3} (?:\d+|-)'
        r' "[^"]*" "(?:[^"\\]|\\.)*"'
    )
    hits = [match.groups() for match in map(form.fullmatch, log) if match]
    assert 0.005 < 1 - len(hits) / len(log) < 0.015
    sites, hosts, days, pages = (set(column) for column in zip(*hits, strict=True))
    assert sites == {site for site, *_ in SITES}
    assert len(days) == 6  # four of UTC, and what the sites west and east of it have beyond
    assert len(hosts) > 500
    assert len(pages) > 100
    seen = {}
    for _, host, day, _ in hits:
        seen.setdefault(host, set()).add(day)
    assert sum(len(found) > 1 for found in seen.values()) > 50
    bot = sum(host.startswith("198.51.100.") for _, host, _, _ in hits)
    assert 0.1 < bot / len(hits) < 0.2


def test_traffic_refuses_nonsense():
    with pytest.raises(ValueError, match="no such traffic"):
        Traffic(lines=-1)
    with pytest.raises(ValueError, match="at least one"):
        next(Traffic().batches(0))


@pytest.mark.parametrize("compress", [False, True])
def test_log_is_read_whole_whatever_its_bytes(tmp_path, compress):
    data = 'a "caf\u00e9"\r\n\n\x00\n'.encode() + b"caf\xe9 \xff\nlast"
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(data) if compress else data)
    assert list(demo.read_log(path)) == ['a "caf\u00e9"\r', "", "\x00", "caf\u00e9 \u00ff", "last"]


def test_log_in_columns_is_turned_into_lines(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text(
        f"{demo.TSV_HEADER}\treferer\tuseragent\n"
        'h\t-\t807256800\tGET\t/a"b\t404\t\t\t\n'
        "h\t-\tsoon\tGET\t/\t200\t1\t\t\n"
    )
    assert list(demo.read_log(path)) == [
        'h - - [01/Aug/1995:06:00:00 +0000] "GET /a\\"b HTTP/1.0" 404 -',
        "h\t-\tsoon\tGET\t/\t200\t1\t\t",
    ]


def test_log_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 1000)[:-8])
    for name in ("cut.gz", "missing"):
        with pytest.raises(demo.DataError, match="LOG_NOT_READABLE"):
            list(demo.read_log(tmp_path / name))
    (tmp_path / "empty").touch()
    assert list(demo.read_log(tmp_path / "empty")) == []


def test_a_missing_log_is_named_before_spark_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("eddyline.api.engine.Engine", None)
    assert main(["demo", "--log", str(tmp_path / "missing"), "--storage", str(tmp_path / "s")]) != 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "LOG_NOT_READABLE" in shown.err


# --- offline ---


@pytest.fixture(scope="module")
def spark():
    from eddyline.spark.session import ZONE, cloned, local_session

    return cloned(local_session(), **{ZONE: "Asia/Kathmandu"})  # no day may depend on it


@pytest.fixture
def offline(spark, tmp_path):
    """Lines -> a session that has the views over them."""

    def run(lines):
        path = tmp_path / "lines.parquet"
        lines = list(lines)
        pq.write_table(
            pa.table({"line": pa.array(lines, pa.string()), "seq": range(len(lines))}), path
        )
        return demo.offline(spark, path, views(script("web_statistics")))

    return run


def rows(frame):
    return [tuple(row) for row in frame.collect()]


def check_truth(table, known):
    """Compare views (name -> DataFrame) with the known figures of a log."""
    total = known["total"]
    daily = {str(row["day"]): row for row in table("daily_statistics").collect()}
    assert {row["site"] for row in daily.values()} == {"-"}
    assert rows(table("malformed_count")) == [(known["malformed"],)]
    kept = dict(rows(table("malformed_lines")))
    assert len(kept) == known["malformed"]
    for position, text in known.get("malformed_examples", ()):
        assert kept[position - 1].startswith(text)

    sums = {
        name: sum(row[name] for row in daily.values())
        for name in ("pv", "page_pv", "bytes", "visits", "bounces", "visit_seconds", "new_visitors")
    }
    assert sums == {
        "pv": total["requests"],
        "page_pv": total["page_requests"],
        "bytes": total["bytes"],
        "visits": total["visits"],
        "bounces": total["bounces"],
        "visit_seconds": total["visit_seconds_total"],
        "new_visitors": total["uv_host"],  # each visitor is new once
    }
    status = {}
    for day, code, count in rows(table("status_counts").select("day", "status", "requests")):
        status.setdefault(str(day), {})[str(code)] = count
    assert daily.keys() == known["per_day"].keys()
    for day, figures in known["per_day"].items():
        row = daily[day]
        assert row["pv"] == figures["requests"]
        assert row["page_pv"] == figures["page_requests"]
        assert row["uv"] == figures["uv_host"]
        assert row["bytes"] == figures["bytes"]
        assert row["visits"] == figures["visits"]
        assert row["bounces"] == figures["bounces"]
        assert row["visit_seconds"] == figures["visit_seconds_total"]
        assert row["pages_per_visitor"] == figures["pages_per_visitor"]
        assert round(row["average_duration_s"], 3) == figures["visit_seconds_mean"]
        assert row["visit_frequency"] == round(figures["visits"] / figures["uv_host"], 6)
        assert row["average_depth"] == round(figures["requests"] / figures["visits"], 6)
        assert status[day] == figures["status"]
    top = rows(table("top_pages").select("path", "requests"))
    assert sorted(top) == sorted(map(tuple, total["top_paths"]))
    top = rows(table("top_hosts").select("host", "requests"))
    assert sorted(top) == sorted(map(tuple, total["top_hosts"]))


@pytest.mark.spark
@pytest.mark.parametrize("log", LOGS)
def test_real_log_gives_its_known_figures_offline(log, offline):
    known = truth(log)
    session = offline(demo.read_log(DATA / LOGS[log]))
    check_truth(session.table, known)


@pytest.mark.spark
def test_each_form_of_line_is_read(offline):
    agent = ' "https://a.example/?q=\\"x\\"" "Reader \\"1\\" \\\\"'
    session = offline(
        [
            line(),
            line(site="www.example:443 ", end=agent, time="23:59:59", zone="+0530"),
            line(end=agent + "\r", size="-", host="2001:db8::1", user="ann"),
            line(request="GET /a b.gif?c HTTP/1.1", host="a.example"),
            line(request="GET /old"),
            line(request="-", status="408", size="-"),
            line(request=r"POST /q\"uote HTTP/1.1", status="404"),
        ]
    )
    found = session.table("requests").orderBy("seq")
    columns = found.select("site", "host", "login", "method", "path", "status", "bytes", "is_page")
    assert rows(columns) == [
        ("-", "192.0.2.1", None, "GET", "/", 200, 12, True),
        ("www.example", "192.0.2.1", None, "GET", "/", 200, 12, True),
        ("-", "2001:db8::1", "ann", "GET", "/", 200, 0, True),
        ("-", "a.example", None, "GET", "/a b.gif?c", 200, 12, False),
        ("-", "192.0.2.1", None, "GET", "/old", 200, 12, True),
        ("-", "192.0.2.1", None, "-", "", 408, 0, False),
        ("-", "192.0.2.1", None, "POST", r"/q\"uote", 404, 12, False),
    ]
    quoted = ('https://a.example/?q=\\"x\\"', 'Reader \\"1\\" \\\\')
    assert rows(found.select("referer", "agent"))[:3] == [("", ""), quoted, quoted]
    moments = rows(found.selectExpr("cast(day AS STRING)", "unix_seconds(ts)"))[:2]
    assert moments == [("1995-08-01", 807249601), ("1995-08-01", 807301799)]
    daily = session.table("daily_basic").orderBy("site").select("site", "pv", "uv", "ips")
    assert rows(daily) == [("-", 6, 3, 2), ("www.example", 1, 1, 1)]


@pytest.mark.spark
def test_no_line_is_lost_and_none_raises(offline):
    good = line(site="www.example:443 ", end=' "-" "-"')
    bad = [
        None,
        "",
        "\n" * 9,  # as many fields as a good line, were it cut at its line feeds
        "-",
        "x" * 1_000_000,
        "x " * 300_000,
        line(request='\\"' * 300_000).removesuffix('" 200 12'),
        line(day="31/Feb/1995"),
        line(day="01/Foo/1995"),
        line(day="01/Aug/0000"),
        line(time="24:00:00"),
        line(time="00:00:60"),
        line(zone="-9900"),
        line(status="20"),
        line(end=" stray"),
        line(end=' "only a referer"'),
        line(request='GET /"unescaped HTTP/1.0'),
        *(damage(good, how) for how in range(7 * 20)),
    ]
    fine = [good, line(request='\\"' * 300_000), line(request="GET /" + "a" * 1_000_000)]
    fine += [line(size="1" * 13), line(size="9" * 30)]  # as if they had no size
    session = offline(bad + fine)
    kept = session.table("malformed_lines").orderBy("seq")
    assert [text for _, text in rows(kept)] == bad
    counted = session.table("requests").selectExpr("count(*)", "max(bytes)")
    assert rows(counted) == [(5, 12)]
    for name in views(script("web_statistics")):
        session.table(name).collect()


@pytest.mark.spark
def test_visits_and_visitors(offline):
    def at(host, day, time):
        return line(host=host, day=f"{day:02}/Aug/1995", time=time)

    session = offline(
        [
            at("a", 1, "10:00:00"),
            at("a", 1, "10:30:00"),  # 1,800 s later: the same visit
            at("a", 1, "11:00:01"),  # 1,801 s later: another
            at("b", 1, "23:59:00"),
            at("b", 2, "00:01:00"),  # a day begins from zero
            at("c", 2, "12:00:00"),
            at("c", 2, "12:00:00"),
            at("a", 2, "09:00:20"),  # late lines find their place
            at("a", 2, "09:00:00"),
        ]
    )
    columns = "day(day) pv uv visits bounces visit_seconds returning_visitors new_visitors"
    found = session.table("daily_statistics").orderBy("day").selectExpr(*columns.split())
    assert rows(found) == [(1, 4, 2, 3, 2, 1800, 1, 2), (2, 5, 3, 3, 1, 20, 0, 1)]


def test_a_view_that_differs_is_reported(capsys):
    compared = [demo.Comparison("a", 1200, ""), demo.Comparison("b", 3, "1 rows only live")]
    assert not demo.report(compared)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2:4] == ["a     1,200  equal", "b         3  1 rows only live"]
    assert shown[-1] == "1 of 2 views DIFFER from offline: b"
    assert not demo.report(compared, Output("json"))
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [
        {"event": "comparison", "equal": True, "view": "a", "rows": 1200, "difference": ""},
        {"event": "comparison", "equal": False, "view": "b", "rows": 3, "difference": "1 rows only live"},
        {"event": "result", "equal": False, "views": 2, "different": ["b"]},
    ]  # fmt: skip


# --- live ---


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("log", LOGS)
def test_real_log_gives_its_known_figures_live(log, tmp_path):
    engines = pytest.importorskip("eddyline.api.engine")
    known = truth(log)
    lines = list(demo.read_log(DATA / LOGS[log]))
    with engines.Engine(str(tmp_path / "engine")) as engine:
        table, live = demo.create(engine)
        batch = -(-len(lines) // 3)
        assert demo.feed(engine, table, lines, batch, tmp_path / "copy.parquet") == len(lines)
        check_truth(lambda name: live[name].snapshot(), known)


@pytest.mark.spark
def test_demo_agrees_with_offline(tmp_path, capsys):
    pytest.importorskip("eddyline.api.engine")
    storage = str(tmp_path / "engine")
    arguments = ["demo", "--lines", "3000", "--batch", "1000", "--seed", "5", "--storage", storage]
    assert main([*arguments, "--format", "json"]) == 0
    events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    kinds = Counter(one["event"] for one in events)
    names = list(views(script("web_statistics")))
    assert [one["lines"] for one in events if one["event"] == "batch"] == [1000, 2000, 3000]
    assert [one["view"] for one in events if one["event"] == "comparison"] == names
    assert kinds["address"] == kinds["input"] == kinds["malformed"] == 1
    assert kinds["day"] > 1
    newest = [one["newest_day"] for one in events if one["event"] == "batch"][-1]
    days = [one for one in events if one["event"] == "day"]
    assert newest["day"] == days[-1]["day"]
    assert newest["pv"] == sum(one["pv"] for one in days if one["day"] == newest["day"])
    numbers = (value for name, value in days[0].items() if name not in ("event", "site", "day"))
    assert all(isinstance(number, int | float) for number in numbers)
    assert events[-1] == {"event": "result", "equal": True, "views": len(names), "different": []}
    assert main(arguments) == 2  # the storage is not empty now
    assert "STORAGE_NOT_EMPTY" in capsys.readouterr().err


@pytest.mark.spark
def test_the_demo_in_a_terminal_serves_a_console_until_it_is_interrupted(tmp_path):
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "eddyline", "demo", "--lines", "300"]
    with (tmp_path / "errors").open("wb") as errors:
        child = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=errors, env=environment
        )
    os.close(theirs)
    shown = b""
    try:
        while b"until Ctrl-C" not in shown:
            shown += os.read(ours, 1 << 16)  # OSError if it ends before
        assert re.search(rb" 300 lines +[\d,]+/s  epoch +\d+ in .* \| \d{4}-\d\d-\d\d  pv ", shown)
        assert f"All {len(views(script('web_statistics')))} views are equal".encode() in shown
        found = re.search(rb"The console stays at (http://127\.0\.0\.1:\d+)", shown)
        assert found is not None
        with urlopen(f"{found[1].decode()}/api/status") as answer:
            assert b"daily_statistics" in answer.read()
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
