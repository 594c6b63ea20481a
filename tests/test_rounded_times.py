"""Scans round times down of which a view reads only windows or `date_trunc`: views stay equal, and scans send fewer rows."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from eddyline import Engine
from eddyline.runtime import scan
from eddyline.runtime.lane_choice import SHORT, WIDE, Lanes
from eddyline.source.rounding import Rounding
from eddyline.state.kernels import merged_if_repetitive

pytestmark = pytest.mark.spark

MINUTE = 60_000_000
HOP = "window(ts, '10 seconds', '2 seconds')"
ROUNDED = {
    "SELECT a, window.start, count(*) AS c FROM s GROUP BY a, window(ts, '1 minute')": (MINUTE, 0),
    f"SELECT a, window, count(*) AS c FROM s GROUP BY a, {HOP}": (2_000_000, 0),
    "SELECT window(n, '5 minutes', '5 minutes', '-2 minutes') AS w, count(*) AS c, sum(v) AS v "
    "FROM s WHERE a <> 'x' GROUP BY 1": (5 * MINUTE, 3 * MINUTE),
    "SELECT date_trunc('MINUTE', ts) AS m, count(*) AS c FROM s GROUP BY 1": (MINUTE, 0),
    "SELECT date_trunc('hour', ts) AS h, window(ts, '7 minutes') AS w, v FROM s": (MINUTE, 0),
    "SELECT DISTINCT date_trunc('minute', ts) AS m, "
    "window(ts, '7 minutes', '7 minutes', '30 seconds') AS w FROM s": (MINUTE // 2, 0),
    "SELECT a, date_trunc('day', ts) AS d FROM s UNION ALL "
    "SELECT a, date_trunc('minute', ts) FROM s WHERE v > 1": (MINUTE, 0, 1440 * MINUTE, 0),
    "SELECT a, ts FROM s UNION ALL SELECT a, date_trunc('hour', ts) FROM s": (60 * MINUTE, 0),
}
EXACT = [
    "SELECT a, window, count(*) AS c FROM s GROUP BY a, window(ts, '5 seconds', '2 seconds')",
    "SELECT window(ts, '1 minute') AS w, max(ts) AS m FROM s GROUP BY 1",
    "SELECT date_trunc('minute', ts) AS m FROM s WHERE ts > TIMESTAMP '1999-01-01 00:00:30'",
    "SELECT a, date_trunc('hour', ts) AS h FROM s WHERE v > (SELECT avg(v) FROM s)",
    "SELECT window(ts, '1 minute') AS w FROM s "
    "WHERE window(ts, '1 minute').end > current_timestamp() - INTERVAL 5000 DAYS",
    "SELECT date_trunc('month', ts) AS m, date_trunc(a, ts) AS u FROM s",
    "SELECT date_trunc('hour', n) AS h FROM s",
    "SELECT hour(ts) AS h, count(*) AS c FROM s GROUP BY 1",
]


def rows(source: random.Random, number: int) -> list[tuple[object, ...]]:
    """Return rows around some moments, before 1970 and before 1900 too, of which some are null."""
    around = [datetime(1969, 12, 31, 23, 59), datetime(1850, 3, 1), datetime(2026, 3, 29, 1, 59)]
    moments = [
        source.choice(around) + timedelta(microseconds=source.randrange(-9 * MINUTE, 9 * MINUTE))
        for _ in range(number)
    ]
    times = [source.choice([moment, moment.replace(second=0, microsecond=0)]) for moment in moments]
    return [
        (source.choice("xyz"), *(source.choice([time, time, time, None]) for _ in range(2)), 1)
        for time in times
    ]


def roundings(engine: Engine, view: str) -> set[tuple[int, int]]:
    workspace = engine._workspace
    leaves = workspace.plan(workspace.catalog.get(view)).plan.leaves
    return {(one.step, one.start) for leaf in leaves for one in leaf.rounded}


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "Europe/Berlin"])
def test_views_equal_offline_through_inserts_and_deletes(tmp_path, spark, zone, monkeypatch):
    session, source = spark.newSession(), random.Random(7)
    session.conf.set("spark.sql.session.timeZone", zone)
    with Engine(str(tmp_path), spark=session) as engine:
        table = engine.table("s", "a STRING, ts TIMESTAMP, n TIMESTAMP_NTZ, v INT")
        for number, query in enumerate([*ROUNDED, *EXACT]):
            engine.view(f"v{number}", query)
        for number, wanted in enumerate(ROUNDED.values()):
            truncated = "date_trunc" in [*ROUNDED][number] and zone != "UTC"
            pairs = set(zip(wanted[::2], wanted[1::2], strict=True))
            assert roundings(engine, f"v{number}") == ({(1_000_000, 0)} if truncated else pairs)
        for number in range(len(EXACT)):
            assert not roundings(engine, f"v{len(ROUNDED) + number}"), EXACT[number]
        for lane in (SHORT, WIDE) if zone == "UTC" else (SHORT,):
            monkeypatch.setattr(Lanes, "choose", lambda *_, lane=lane: lane)
            table.insert(rows(source, 60))
            engine.execute("DELETE FROM s WHERE second(ts) < 20 AND a = 'y'")
            engine.advance()
            report = engine.verify()
            assert report, report


def test_equal_rows_are_added_up_before_the_jvm(tmp_path, spark, monkeypatch):
    sent = []

    def spied(rows):
        merged = merged_if_repetitive(rows)
        sent.append((rows.num_rows, merged.num_rows))
        return merged

    monkeypatch.setattr(Lanes, "choose", lambda *_: SHORT)
    with Engine(str(tmp_path), spark=spark.newSession()) as engine:
        table = engine.table("s", "ts TIMESTAMP")
        view = engine.view("v", "SELECT window(ts, '1 hour') AS w, count(*) AS c FROM s GROUP BY 1")
        start = datetime(2026, 1, 1)
        table.insert([(start + timedelta(milliseconds=n),) for n in range(2_000)])
        monkeypatch.setattr(scan, "merged_if_repetitive", spied)
        engine.advance()
        assert [sum(counts) for counts in zip(*sent, strict=True)] == [2_000, len(sent)]
        assert [row.c for row in view.snapshot().collect()] == [2_000]


def test_the_very_first_and_last_times_are_left_alone():
    kind = pa.timestamp("us", "UTC")
    rows = pa.table({"c0": pa.array([-(1 << 63), 90_000_000, None], pa.int64()).cast(kind)})
    assert Rounding("c0", MINUTE).applied(rows, rows.schema).equals(rows)
    within = Rounding("c0", MINUTE, 50_000_000).applied(rows.slice(1), rows.schema)
    assert within["c0"].cast(pa.int64()).to_pylist() == [50_000_000, None]
    assert Rounding("c0", MINUTE).applied(rows.slice(0, 0), rows.schema).num_rows == 0
