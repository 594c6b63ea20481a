"""WINDOWING written out in plain SQL, and the same clause live."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

import eddyline as el
from eddyline.errors import ScriptError
from eddyline.spark.session import local_session
from eddyline.sql.dialect import (
    expand_windowing,
    extract_versions,
    remove_emit_final,
    window_notes,
)


@pytest.mark.parametrize(
    ("given", "plain", "found"),
    [
        ("SELECT version FROM v", "SELECT version FROM v", {}),
        ("-- version", "-- version", {}),
        (
            "SELECT v.a FROM v FOR VERSION AS OF 3 WHERE v.a > 'VERSION AS OF 1'",
            "SELECT v.a FROM v_version_3 AS v WHERE v.a > 'VERSION AS OF 1'",
            {"v_version_3": ("v", 3)},
        ),
        (
            "SELECT * FROM `a b` VERSION AS OF 1 x JOIN v version as of 2 AS y ON x.a = y.a",
            "SELECT * FROM `a b_version_1` x JOIN v_version_2 AS y ON x.a = y.a",
            {"a b_version_1": ("a b", 1), "v_version_2": ("v", 2)},
        ),
        (
            "(SELECT * FROM v VERSION AS OF 1) EXCEPT SELECT * FROM v",
            "(SELECT * FROM v_version_1 AS v) EXCEPT SELECT * FROM v",
            {"v_version_1": ("v", 1)},
        ),
    ],
)
def test_earlier_epochs_are_names_of_their_own(given, plain, found):
    assert extract_versions(given) == (plain, found)


TIMES = {"ts"}


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("SELECT windowing FROM t", "SELECT windowing FROM t"),
        (
            "SELECT sip, type, ts, count(*) FROM s GROUP BY sip, type, ts WINDOWING 60 s",
            "SELECT sip, type, window(ts, '60 seconds').start AS ts, count(*) FROM s"
            " GROUP BY sip, type, window(ts, '60 seconds').start",
        ),
        (
            "select a.ts, count(*) as n from s a join t on a.ts < t.ts where a.ts > 1"
            " group by a.ts having count(*) > 1 windowing 1 min slide 10 s order by n",
            "select window(a.ts, '1 minutes', '10 seconds').start AS ts, count(*) as n from s a"
            " join t on a.ts < t.ts where a.ts > 1"
            " group by window(a.ts, '1 minutes', '10 seconds').start having count(*) > 1  order by n",
        ),
        (
            "SELECT a, coalesce(ts, b), count(*) FROM s GROUP BY a, ts WINDOWING 1 h",
            "SELECT a, coalesce(window(ts, '1 hours').start, b), count(*) FROM s"
            " GROUP BY a, window(ts, '1 hours').start",
        ),
        (
            "SELECT ts AS day, max(x) FROM s GROUP BY ts WINDOWING 1 DAY",
            "SELECT date_trunc('DAY', ts) AS day, max(x) FROM s WHERE ts IS NOT NULL"
            " GROUP BY date_trunc('DAY', ts)",
        ),
        (
            "SELECT count(*) FROM s WHERE a OR b WINDOWING LANDMARK '2026-01-01'",
            "SELECT count(*) FROM s WHERE ts >= TIMESTAMP '2026-01-01' AND ( a OR b )",
        ),
        (
            "SELECT * FROM (SELECT ts, n FROM s GROUP BY ts, n WINDOWING 5 min) WHERE ts > 'x'",
            "SELECT * FROM (SELECT window(ts, '5 minutes').start AS ts, n FROM s"
            " GROUP BY window(ts, '5 minutes').start, n ) WHERE ts > 'x'",
        ),
        (
            "SELECT a, (SELECT max(ts) FROM t) AS m FROM s GROUP BY a, ts WINDOWING 1 h",
            "SELECT a, (SELECT max(ts) FROM t) AS m FROM s GROUP BY a, window(ts, '1 hours').start",
        ),
        (
            "SELECT a, count(*) FROM s WHERE a > 0 GROUP BY a WINDOWING 1000 ROWS",
            "SELECT a, count(*) FROM (SELECT * EXCEPT (windowing_tie) FROM (SELECT *,"
            " xxhash64(*) AS windowing_tie FROM s WHERE a > 0) ORDER BY ts DESC, windowing_tie"
            " LIMIT 1000) AS s GROUP BY a",
        ),
    ],
)
def test_written_out(given: str, plain: str) -> None:
    assert " ".join(expand_windowing(given, TIMES).split()) == " ".join(plain.split())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("SELECT a FROM s GROUP BY a WINDOWING 60 parsec", "unit of time"),
        ("SELECT a FROM s WINDOWING 60 s", "GROUP BY"),
        ("SELECT a FROM s WINDOWING 1 day", "GROUP BY"),
        ("SELECT a, ts FROM s GROUP BY a WINDOWING 60 s", "GROUP BY"),
        ("SELECT ts, te FROM s GROUP BY ts, te WINDOWING 60 s", "one timestamp column"),
        ("SELECT ts FROM s GROUP BY ts WINDOWING 0 s", "above zero"),
        ("SELECT ts FROM s GROUP BY ts WINDOWING LANDMARK 'x''y'", "no moment"),
        ("SELECT a FROM s, t GROUP BY a WINDOWING 5 ROWS", "one timestamp column"),
    ],
)
def test_what_cannot_be_read_is_refused(given: str, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        expand_windowing(given, {"ts", "te"} if "one timestamp" in says else TIMES)


WINDOWED = {
    "tumbling": "SELECT sip, type, ts, count(*) AS n FROM s GROUP BY sip, type, ts WINDOWING 60 s",
    "sliding": "SELECT type, ts, count(*) AS n FROM s GROUP BY type, ts WINDOWING 60 s SLIDE 20 s",
    "landmark": "SELECT type, count(*) AS n FROM s GROUP BY type WINDOWING LANDMARK '2026-01-01 00:01'",
    "rows": "SELECT type, count(*) AS n FROM s GROUP BY type WINDOWING 7 ROWS",
    "daily": "SELECT ts, count(*) AS n FROM s GROUP BY ts WINDOWING 1 day",
    "sessions": """SELECT sip, session_window.start AS since, session_window.end AS until,
        count(*) AS n FROM s GROUP BY sip, session_window(ts, '30 seconds')""",
    "all_sessions": """SELECT window.start AS since, n, count(*) AS c FROM (
        SELECT session_window(ts, '10 seconds') AS window, count(*) AS n FROM s
        GROUP BY session_window(ts, '10 seconds')) GROUP BY window.start, n""",
    "window_time": """SELECT window(window_time(w), '2 minutes').start AS ts, sum(n) AS n FROM (
        SELECT window(ts, '1 minute') AS w, count(*) AS n FROM s GROUP BY window(ts, '1 minute'))
        GROUP BY window(window_time(w), '2 minutes')""",
    # from the start of each minute on, in steps of 20 seconds: as rows so far, and one window each
    "running": """SELECT type, date_trunc('minute', ts) AS since, ts AS step,
        sum(count(*)) OVER (PARTITION BY type, date_trunc('minute', ts) ORDER BY ts) AS n
        FROM (SELECT type, window(ts, '20 seconds').start AS ts FROM s) GROUP BY 1, 2, 3""",
    "cumulative": """SELECT since, until, count(*) AS n, count(DISTINCT sip) AS sips FROM (
        SELECT date_trunc('minute', step) AS since, sip, explode(sequence(step + INTERVAL 20 SECONDS,
            date_trunc('minute', step) + INTERVAL 1 MINUTE, INTERVAL 20 SECONDS)) AS until
        FROM (SELECT sip, window(ts, '20 seconds').start AS step FROM s)) GROUP BY since, until""",
    "landmark_of_view": """SELECT sip, sum(n) AS n FROM tumbling GROUP BY sip
        WINDOWING LANDMARK '2026-01-01 00:02'""",
    "last_rows_in_join": """SELECT w.sip, w.ts, w.n, c.n AS type_n FROM (SELECT sip, type, ts, count(*) OVER
        (PARTITION BY sip ORDER BY ts, type ROWS 1 PRECEDING) AS n FROM s) w
        JOIN landmark c ON w.type = c.type""",
    "join": """SELECT a.start, a.n, b.n AS m FROM
        (SELECT window(ts, '60 seconds').start AS start, count(*) AS n FROM s WHERE type = 'x' GROUP BY 1) a
        LEFT JOIN
        (SELECT window(ts, '60 seconds').start AS start, count(*) AS n FROM s WHERE type = 'y' GROUP BY 1) b
        ON a.start = b.start""",
}

MORE = {
    "rows_of_view": "SELECT sip, sum(n) AS n FROM tumbling GROUP BY sip WINDOWING 5 ROWS",
    "landmark_in_join": """SELECT a.sip, a.n, l.n AS of FROM rows_of_view a JOIN landmark_of_view l
        ON a.sip = l.sip""",
    "landmark_of_join": """SELECT s.type, count(*) AS n, sum(d.n) AS all FROM s JOIN landmark d ON s.type = d.type
        GROUP BY s.type WINDOWING LANDMARK '2026-01-01 00:03'""",
    "last_rows": """SELECT sip, ts, n, sum(n) OVER (PARTITION BY sip ORDER BY ts, type
        ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS last_three FROM tumbling""",
}


@pytest.mark.spark
@pytest.mark.parametrize("views", [WINDOWED, pytest.param(WINDOWED | MORE, marks=pytest.mark.slow)])
def test_windows_are_live(tmp_path: Path, views: dict[str, str]) -> None:
    start = datetime.datetime(2026, 1, 1, 0, 0)
    rows = [
        (start + datetime.timedelta(seconds=i * i % 407), f"10.0.0.{i % 5}", "xyz"[i % 3])
        for i in range(60)
    ]
    with el.Engine(str(tmp_path), spark=local_session()) as engine:
        table = engine.table("s", "ts TIMESTAMP, sip STRING, type STRING")
        for name, query in views.items():
            engine.execute(f"CREATE VIEW {name} AS {query}")
        for first in range(0, 60, 30):
            table.insert(rows[first : first + 30])
            if first:
                table.delete(rows[first - 20 : first - 10])
            engine.advance()
            report = engine.verify()
            assert report, report
            assert all(engine.sql(f"SELECT * FROM {name}").count() for name in views)


@pytest.mark.parametrize(
    "query", ["SELECT 'emit final'", "SELECT 1 -- emit final", "SELECT final", "SELECT 1 AS emit"]
)
def test_emit_final_is_a_clause_at_the_end(query):
    assert remove_emit_final(query) == (query, False)
    assert remove_emit_final(query + "\n Emit /* */ FINAL") == (query, True) or "--" in query


WRONG_WINDOWS = {
    "60s": "WINDOWING 60s lacks a space before its unit",
    "5min": "write 5 min",
    "1000ROWS": "write 1000 ROWS",
    "-5 s": "WINDOWING takes a whole number above zero and a unit: WINDOWING -5 s",
    "'60 s'": "WINDOWING takes a whole number above zero and a unit: WINDOWING '60 s'",
    "INTERVAL 60 SECONDS": "a whole number above zero and a unit: WINDOWING INTERVAL 60",
    "0 s": "WINDOWING takes a whole number above zero: WINDOWING 0 s",
    "1.5 s": "WINDOWING takes a whole number above zero: WINDOWING 1.5 s",
    "99999999999999999999 s": "takes at most 100 years",
    "1 month": "WINDOWING has no months: they differ in length",
    "2 YEARS": "group by date_trunc('YEAR', the time column)",
    "60 sek": "a unit of time or ROWS is expected at sek",
    "60": "a unit of time or ROWS is expected at the end",
    "60 s SLIDE": "takes a whole number above zero: WINDOWING 60 s SLIDE",
    "60 s SLIDE 10s": "write 10 s",
    "60 s SLIDE -10 s": "takes a whole number above zero: WINDOWING 60 s SLIDE -10",
    "60 s SLIDE 90 s": "slides by at most the length of the window: WINDOWING 60 s SLIDE 90 s",
    "60 s SLIDE 1 quarter": "WINDOWING has no quarters",
    "LANDMARK '2026-01-01' SLIDE 10 s": "has SLIDE only after a length of time: WINDOWING LANDMARK",
    "1000 ROWS SLIDE 10 ROWS": "has SLIDE only after a length of time: WINDOWING 1000 ROWS SLIDE",
    "60 s LANDMARK '2026-01-01'": "has one window: WINDOWING 60 s LANDMARK",
    "60 s 10 s": "has one window: WINDOWING 60 s 10",
}


@pytest.mark.parametrize("clause", WRONG_WINDOWS)
def test_a_wrong_window_is_quoted_as_written(clause: str) -> None:
    with pytest.raises(ScriptError) as caught:
        expand_windowing(f"SELECT ts, count(*) FROM s GROUP BY ts WINDOWING {clause}", {"ts"})
    assert WRONG_WINDOWS[clause] in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT windowing - 5 s FROM t",
        "SELECT a, windowing -5 FROM t GROUP BY windowing -5, a",
        "SELECT * FROM t AS windowing WHERE windowing.a = - 5",
        "SELECT * FROM t WHERE a = windowing - 5 AND windowing -1 > 2",
        "SELECT 'x' || windowing || 'WINDOWING 60s' FROM t",
    ],
)
def test_a_column_may_be_called_windowing(query: str) -> None:
    assert expand_windowing(query, {"ts"}) == query


def test_notes_on_windows() -> None:
    def notes(clause: str) -> list[str]:
        query = f"SELECT ts, count(*) FROM s GROUP BY ts WINDOWING {clause}"
        return window_notes(expand_windowing(query, {"ts"}), "Asia/Tokyo")

    assert notes("1 day") == ["days begin at midnight of Asia/Tokyo"]
    since = "counted from 1970-01-01 00:00 UTC, a Thursday"
    assert notes("24 h") == [f"windows of 24 hours are {since}"]
    assert notes("1 w SLIDE 1 day") == [f"windows of 1 weeks are {since}"]
    assert notes("60 s") == notes("1 h") == notes("1000 ROWS") == []
