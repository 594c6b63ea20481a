"""Calendar days in any time zone: live equals offline around midnights and clock changes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import EngineError
from eddyline.runtime.short_lane import OUTPUT_ROWS_MAX
from eddyline.spark.session import ZONE, cloned
from eddyline.state.manifest import last_committed, manifest_name
from eddyline.storage.files import Files
from eddyline.testing import Offline, PlainTable, replayed
from test_watermarks import Fed

pytestmark = pytest.mark.spark

# when clocks are changed; in Kathmandu for good, from +5:30 to +5:45
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Asia/Kathmandu": ["1985-12-31T18:30", "2026-01-01T00:00"],
    "Pacific/Auckland": ["2026-04-04T14:00", "2026-09-26T14:00"],
}


def zones(*fast: str) -> list[Any]:
    """All of them; those not named are slow."""
    return [z if z in fast else pytest.param(z, marks=pytest.mark.slow) for z in CHANGES]


TABLES = {"t": ("ts TIMESTAMP, k STRING, v INT", ()), "p": ("v INT, ts TIMESTAMP", ("v",))}
VIEWS = {
    "truncated": "SELECT date_trunc('day', ts) AS d, count(*) AS n, min(ts) AS a, max(ts) AS b"
    " FROM t GROUP BY 1",
    "dates": "SELECT to_date(ts) AS d, k, sum(v) AS v, count(DISTINCT hour(ts)) AS h FROM t GROUP BY 1, 2",
    "window_days": "SELECT window(ts, '1 day', '1 day', '-75 minutes') AS w, count(*) AS n FROM t GROUP BY 1",
    "clause": "SELECT ts, k, count(*) AS n FROM t GROUP BY ts, k WINDOWING 1 day",
    "day_before": "SELECT k, ts, count(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 1 DAY"
    " PRECEDING AND CURRENT ROW) AS n FROM t",
    "latest": "SELECT date(ts) AS d, hour(ts) AS h, max(v) AS v FROM p GROUP BY 1, 2",
    "across": "SELECT a.d, a.n, b.v FROM truncated a FULL JOIN latest b ON a.d = b.d",
}
STREAM_VIEWS = {
    "s_days": "SELECT date_trunc('day', ts) AS d, k, count(*) AS n, max(v) AS v FROM s GROUP BY 1, 2",
    "s_next": "SELECT to_date(ts) + 1 AS d, count(DISTINCT k) AS n FROM s GROUP BY 1",
    "s_clause": "SELECT ts, count(*) AS n FROM s GROUP BY ts WINDOWING 1 day",
}


def moments(zone: str) -> list[datetime]:
    """In order: around the clock changes, and around the midnights before and after them."""
    here = ZoneInfo(zone)
    centres = []
    for change in (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in CHANGES[zone]):
        day = change.astimezone(here).date()
        midnights = [
            datetime.combine(day + timedelta(n), datetime.min.time(), here) for n in (0, 1, 2)
        ]
        centres += [change, *(m.astimezone(UTC) for m in midnights)]
    steps = (-3600, -1801, -1, 0, 1, 1799, 3600)
    return sorted({centre + timedelta(seconds=step) for centre in centres for step in steps})


@pytest.mark.parametrize("zone", zones("Europe/Berlin"))
def test_days_of_a_time_zone_equal_offline(tmp_path: Path, spark: SparkSession, zone: str) -> None:
    chance, grid = random.Random(zone), moments(zone)
    there = cloned(spark, **{ZONE: zone})
    plain = {name: PlainTable(ddl, (0,) if key else ()) for name, (ddl, key) in TABLES.items()}
    offline = Offline(there, plain)
    with el.Engine(str(tmp_path), there) as engine:
        tables = {name: engine.table(name, *given) for name, given in TABLES.items()}
        for name, query in VIEWS.items():
            offline.view(name, engine.view(name, query) and engine.catalog.get(name).query)
        for _ in range(2):
            gone = chance.sample(plain["t"].rows, min(8, len(plain["t"].rows)))
            come = [
                (chance.choice(grid), chance.choice("ab"), chance.randrange(4)) for _ in range(30)
            ]
            moved = [(number, chance.choice(grid)) for number in chance.sample(range(12), 6)]
            for held in (plain, tables):
                held["t"].delete(gone)
                held["t"].insert(come)
                held["p"].insert(moved)
            engine.advance()
            offline.load()
            for name in VIEWS:
                found = offline.compared(name, engine.snapshot(name))
                assert found.equal, (name, found)
        days = {ts.astimezone(ZoneInfo(zone)).date() for ts, _, _ in plain["t"].rows}
        assert {row.d for row in engine.snapshot("dates").collect()} == days
        held = replayed([tuple(row) for row in engine.changes("dates", None, "retract").collect()])
        assert {row[0] for row in held} == days


@pytest.mark.parametrize("rows", [0, OUTPUT_ROWS_MAX], ids=["wide", "short"])
def test_a_frame_of_a_day_reaches_over_a_clock_change(
    tmp_path: Path, spark: SparkSession, rows: int
) -> None:
    """In Berlin 25 October 2026 has 25 hours, so a frame of one day can reach 25 hours back."""
    there = cloned(spark, **{ZONE: "Europe/Berlin"})
    with el.Engine(str(tmp_path), there, el.Options(short_lane_rows=rows)) as engine:
        table = engine.table("t", *TABLES["t"])
        engine.view("day_before", VIEWS["day_before"])
        table.insert([(datetime(2026, 10, 25, 12, tzinfo=UTC), "a", 1)])
        engine.advance()
        table.insert([(datetime(2026, 10, 24, 11, 30, tzinfo=UTC), "a", 1)])
        engine.advance()
        assert engine.verify()
        counts = {row.ts.day: row.n for row in engine.snapshot("day_before").collect()}
        assert counts == {24: 1, 25: 2}


@pytest.mark.parametrize("zone", zones("Asia/Kathmandu"))
def test_days_of_a_stream_with_a_watermark(tmp_path: Path, spark: SparkSession, zone: str) -> None:
    chance, grid = random.Random(zone), moments(zone)
    there = cloned(spark, **{ZONE: zone})
    fed = Fed(tmp_path, there)
    for name, query in STREAM_VIEWS.items():
        fed.engine.view(name, query)
    fed.engine.view("closed", "SELECT to_date(ts) AS d, count(*) AS n FROM s GROUP BY 1 EMIT FINAL")
    size = len(grid) // 4
    for number in range(4):
        now = grid[number * size : number * size + size]
        behind = chance.sample(grid[: number * size + 1], min(3, number))  # most of them too late
        fed.feed(
            [(ts, chance.choice("ab"), chance.randrange(9)) for ts in [*now, *now[:2], *behind]]
        )
        fed.engine.advance()
        if number == 2:
            fed.check(STREAM_VIEWS)
            fed.engine.stop()
            fed.open()
    assert fed.late
    fed.feed([(grid[-1] + timedelta(days=1), "a", 1)])
    fed.engine.advance()
    fed.check(STREAM_VIEWS)
    assert fed.watermark is not None
    today = fed.watermark.astimezone(ZoneInfo(zone)).date()
    told: dict[date, int] = {}
    for ts, _, _ in fed.in_time:
        assert ts is not None
        day = ts.astimezone(ZoneInfo(zone)).date()
        told[day] = told.get(day, 0) + (day < today)
    rows = [
        tuple(row)
        for row in fed.engine.changes("closed", None, "retract").select("d", "n", "op").collect()
    ]
    assert sorted(rows) == sorted((d, n, "append") for d, n in told.items() if n)
    fed.engine.stop()


def test_each_site_has_its_own_midnight(tmp_path: Path, spark: SparkSession) -> None:
    """In a storage of UTC: `from_utc_timestamp` by a column, which can change too."""
    chance = random.Random(7)
    grid = sorted(moment for zone in CHANGES for moment in moments(zone) if moment.year == 2026)
    plain = {
        "sites": PlainTable("site STRING, zone STRING", (0,)),
        "hits": PlainTable("site STRING, ts TIMESTAMP, visitor INT"),
    }
    offline = Offline(spark, plain)
    views = {
        "daily": "SELECT site, to_date(from_utc_timestamp(ts, zone)) AS d, count(*) AS views,"
        " count(DISTINCT visitor) AS visitors FROM hits JOIN sites USING (site) GROUP BY 1, 2",
        "busiest": "SELECT * FROM daily QUALIFY row_number() OVER (PARTITION BY site ORDER BY views DESC, d) <= 2",
    }
    with el.Engine(str(tmp_path), spark) as engine:
        sites = engine.table("sites", "site STRING, zone STRING", ["site"])
        hits = engine.table("hits", "site STRING, ts TIMESTAMP, visitor INT")
        for name, query in views.items():
            engine.view(name, query)
            offline.view(name, query)
        for step in range(3):
            zones = chance.sample(list(CHANGES), 4)
            rows = (
                [(f"s{i}", zone) for i, zone in enumerate(zones)] if step != 1 else [("s0", "UTC")]
            )
            gone = plain["hits"].rows[: 10 * step]
            come = [
                (f"s{chance.randrange(4)}", chance.choice(grid), chance.randrange(5))
                for _ in range(40)
            ]
            for held, other in ((plain["sites"], plain["hits"]), (sites, hits)):
                held.insert(rows)
                other.delete(gone)
                other.insert(come)
            engine.advance()
            offline.load()
            for name in views:
                found = offline.compared(name, engine.snapshot(name))
                assert found.equal, (name, found)
        zones_now = dict(plain["sites"].rows)
        days = {
            (s, ts.astimezone(ZoneInfo(zones_now[s])).date()) for s, ts, _ in plain["hits"].rows
        }
        assert {(row.site, row.d) for row in engine.snapshot("daily").collect()} == days


# -- the zone belongs to the storage -----------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, spark: SparkSession) -> str:
    """A storage of Berlin, with one row that is of the next day there."""
    with el.Engine(str(tmp_path), cloned(spark, **{ZONE: "Europe/Berlin"})) as engine:
        engine.table("t", "ts TIMESTAMP").insert([(datetime(2026, 1, 1, 23, 30, tzinfo=UTC),)])
        engine.view("days", "SELECT to_date(ts) AS d, count(*) AS n FROM t GROUP BY 1")
        engine.advance()
    return str(tmp_path)


def test_another_zone_is_refused(kept: str, spark: SparkSession) -> None:
    for zone in ("UTC", "Europe/Athens"):
        with pytest.raises(EngineError, match=f"Europe/Berlin, the session is in {zone}") as caught:
            el.Engine(kept, cloned(spark, **{ZONE: zone}))
        assert caught.value.condition == "TIME_ZONE_DIFFERS"
    with pytest.raises(EngineError) as caught:
        el.Engine(kept, cloned(spark, **{ZONE: "+01:00"}))
    assert caught.value.condition == "UNKNOWN_TIME_ZONE"
    # another name of the same zone; and what the user sets while the engine is open is his own
    there = cloned(spark, **{ZONE: "Arctic/Longyearbyen"})
    with el.Engine(kept, there) as engine:
        there.conf.set(ZONE, "Asia/Tokyo")
        engine.execute("INSERT INTO t VALUES (TIMESTAMP '2026-01-02 23:59:59')")
        engine.table("t", "ts TIMESTAMP").insert([(datetime(2026, 1, 3, 0, 0, 1),)])
        engine.view("later", "SELECT date_trunc('day', ts) AS d, count(*) AS n FROM t GROUP BY 1")
        engine.advance()
        assert engine.verify()
        rows = engine.sql("SELECT d, n, to_date(max(ts)) AS e FROM days, t GROUP BY ALL ORDER BY d")
        third = date(2026, 1, 3)
        assert [tuple(row) for row in rows.collect()] == [
            (date(2026, 1, 2), 2, third),
            (third, 1, third),
        ]
        assert last_committed(Files(kept)).zone == "Europe/Berlin"


def test_a_storage_of_before_takes_the_zone_of_its_next_session(
    kept: str, spark: SparkSession
) -> None:
    files = Files(kept)
    manifest = manifest_name(last_committed(files).epoch)
    document = files.read_json(manifest)
    del document["zone"]
    files.write_json(manifest, document)
    with el.Engine(kept, cloned(spark, **{ZONE: "Europe/Berlin"})) as engine:
        engine.execute("DELETE FROM t")
        engine.advance()
    with pytest.raises(EngineError, match="Europe/Berlin"):
        el.Engine(kept, spark)


@pytest.mark.slow
def test_the_command_line_takes_the_zone_of_the_storage(kept: str) -> None:
    main = "import sys; from eddyline.cli import main; sys.exit(main())"
    for command in (["verify"], ["sql", "SELECT *, current_timezone() AS z FROM days"]):
        line = [sys.executable, "-c", main, *command, "--storage", kept]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "2026-01-02" in done.stdout
    assert "Europe/Berlin" in done.stdout


def test_rows_that_were_read_are_deleted_where_the_machine_has_another_zone(
    tmp_path: Path, spark: SparkSession, be_in: Callable[[str], None]
) -> None:
    be_in("Asia/Tokyo")
    with el.Engine(str(tmp_path / "s"), spark) as engine:
        table = engine.table("t", "ts TIMESTAMP, m MAP<STRING, INT>")
        row = datetime(2026, 1, 1, 12), {"b": 1, "a": 2}
        table.insert([row])
        engine.execute(
            "INSERT INTO t VALUES (TIMESTAMP '2026-01-01 03:00:00', map('b', 1, 'a', 2))"
        )
        engine.advance()
        rows = engine.sql("SELECT * FROM t").collect()
        assert rows == spark.createDataFrame([row, row], table.schema).collect()
        table.delete(rows)
        engine.advance()
        assert engine.sql("SELECT * FROM t").count() == 0


def test_the_types_of_times_stay_where_timestamp_means_one_without_a_zone(
    tmp_path: Path, spark: SparkSession
) -> None:
    session = cloned(spark, **{"spark.sql.timestampType": "TIMESTAMP_NTZ", ZONE: "Europe/Berlin"})
    with el.Engine(str(tmp_path / "storage"), session) as engine:
        engine.execute(
            """
            CREATE TABLE t (id INT PRIMARY KEY, dt DATE, ts TIMESTAMP_LTZ, n TIMESTAMP_NTZ);
            CREATE VIEW joined AS SELECT a.id, b.id AS other, b.ts FROM t a LEFT JOIN t b ON a.dt = b.ts;
            CREATE VIEW extremes AS SELECT dt, max(ts) AS latest, min(n) AS n, count(DISTINCT ts) AS c FROM t GROUP BY dt;
            CREATE VIEW running AS SELECT id, max(ts) OVER (ORDER BY id) AS latest FROM t;
            INSERT INTO t VALUES (1, DATE'2024-01-01', TIMESTAMP_LTZ'2024-01-01 00:00:00', TIMESTAMP'2024-01-01'),
                (2, DATE'2024-07-01', TIMESTAMP_LTZ'2024-07-01 00:00:00', NULL), (3, NULL, NULL, NULL)
            """
        )
        engine.advance()
        engine.execute(
            "UPDATE t SET ts = TIMESTAMP_LTZ'2024-01-01 00:00:00', n = now() WHERE id = 2"
        )
        engine.advance()
        assert engine.verify()
        assert sorted((r.id, r.other) for r in engine.snapshot("joined").collect()) == [
            (1, 1), (1, 2), (2, None), (3, None)
        ]  # fmt: skip
        types = dict(engine.snapshot("extremes").dtypes)
        assert (types["latest"], types["n"]) == ("timestamp", "timestamp_ntz")
        assert engine.sql("SELECT count(DISTINCT ts) FROM t").first()[0] == 1
