"""Watermarks: state that leaves, late rows that are kept aside, results that come once."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.state_sizes import operator_rows
from eddyline.errors import DataError, QueryError, ScriptError, StateGrowthWarning
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Term, bound_of
from eddyline.plan.logical import items
from eddyline.state.manifest import last_committed
from eddyline.testing import Offline, PlainTable

Event = tuple[datetime | None, str, int]

EVENTS = "ts TIMESTAMP, k STRING, v INT"
START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(minutes=10)
SOAK = (pytest.mark.slow, pytest.mark.timeout(5400))

VIEWS = {
    "tumbling": "SELECT window(ts, '10 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2",
    "sliding": "SELECT window(ts, '10 minutes', '5 minutes').end AS e, sum(v) AS v FROM s GROUP BY 1",
    "offset": "SELECT window(ts, '7 minutes', '7 minutes', '1 minute') AS w, avg(v) AS v"
    " FROM s GROUP BY 1",
    "sessions": "SELECT session_window(ts, '5 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2",
    "hours": "SELECT date_trunc('hour', ts) AS h, count(DISTINCT k) AS u, max(v) AS m, min(k) AS l"
    " FROM s GROUP BY 1",
    "minutes": "SELECT unix_timestamp(ts) div 300 AS m, collect_set(k) AS k FROM s GROUP BY 1",
    "clause": "SELECT k, ts, count(*) AS n FROM s GROUP BY k, ts WINDOWING 60 s",
    "levels": "SELECT w.start AS s, max(n) AS most, percentile(n, 0.5) AS p FROM tumbling GROUP BY w",
    "third": "SELECT window(window_time(w), '1 hour') AS h, sum(n) AS n FROM tumbling GROUP BY 1",
    "pairs": "SELECT a.ts, a.k, b.v FROM s a JOIN s b ON a.k = b.k"
    " AND a.ts BETWEEN b.ts - INTERVAL 3 MINUTES AND b.ts",
    "unmatched": "SELECT a.ts, a.k, b.v FROM s a LEFT JOIN s b ON a.k = b.k"
    " AND b.ts > a.ts AND b.ts < a.ts + INTERVAL 2 MINUTES",
    "answered": "SELECT a.ts, a.k, a.v FROM s a WHERE EXISTS"
    " (SELECT 1 FROM s b WHERE b.ts = a.ts AND b.v <> a.v)",
    "session_values": "SELECT session_window(ts, '5 minutes') AS w, k, avg(v) AS a,"
    " sort_array(collect_list(v)) AS l FROM s GROUP BY 1, 2",
    "both": "SELECT t.w, t.k, t.n, o.v FROM tumbling t JOIN (SELECT window(ts, '10 minutes') AS w,"
    " sum(v) AS v FROM s GROUP BY 1) o ON t.w = o.w",
    "best": "SELECT * FROM (SELECT w, k, n, row_number() OVER (PARTITION BY w ORDER BY n DESC, k) r"
    " FROM tumbling) WHERE r <= 2",
    "ranked": "SELECT w, k, rank() OVER (PARTITION BY w ORDER BY n) AS r FROM tumbling",
    "either": "SELECT date(ts) AS d, count(*) AS n FROM (SELECT ts FROM s WHERE v > 2 UNION ALL"
    " SELECT ts FROM s WHERE k = 'a') GROUP BY 1",
    "running": "SELECT date(ts) AS d, hour(ts) AS h, sum(count(*)) OVER (PARTITION BY date(ts) ORDER BY"
    " hour(ts)) AS n FROM s GROUP BY 1, 2",
    "cumulated": "SELECT h, until, count(DISTINCT k) AS n FROM (SELECT date_trunc('hour', ts) AS h, k, explode("
    "sequence(date_trunc('minute', ts) + INTERVAL 1 MINUTE, date_trunc('hour', ts) + INTERVAL 1 HOUR,"
    " INTERVAL 1 MINUTE)) AS until FROM s) GROUP BY h, until",
    "paired": "WITH c AS (SELECT window(ts, '5 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2)"
    " SELECT a.w, a.k, b.k AS other, a.n FROM c a JOIN c b ON a.w = b.w AND a.n = b.n AND a.k < b.k",
    "rolled": "SELECT window(ts, '10 minutes') AS w, k, count(*) AS n FROM s GROUP BY ROLLUP (1, 2)",
}
FINAL = {
    "closed": "SELECT window(ts, '10 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2",
    "over": "SELECT session_window(ts, '5 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2",
    "day": "SELECT date(ts) AS d, max(v) AS v FROM s GROUP BY 1",
}


class Fed:
    """A stream of JSON files with a watermark, and what a plain reading of the rules gives for it."""

    def __init__(self, folder: Path, spark: SparkSession, watermark: bool = True) -> None:
        self.folder, self.spark = folder / "in", spark
        self.folder.mkdir(parents=True, exist_ok=True)
        self.storage = str(folder / "storage")
        clause = ", WATERMARK FOR ts AS ts - INTERVAL 10 MINUTES" if watermark else ""
        self.create = (
            f"CREATE STREAM IF NOT EXISTS s ({EVENTS}{clause}) USING json"
            f" OPTIONS (path '{self.folder}', maxFilesPerTrigger 1)"
        )
        self.in_time: list[Event] = []
        self.late: list[Event] = []
        self.watermark: datetime | None = None
        self.files = 0
        self.open()

    def open(self) -> None:
        self.engine = el.Engine(self.storage, self.spark, el.Options(compaction_fan_in=2))
        self.engine.execute(self.create)

    def feed(self, events: Iterable[Event]) -> None:
        events = list(events)
        text = "".join(
            json.dumps({"ts": ts and ts.isoformat(), "k": k, "v": v}) + "\n" for ts, k, v in events
        )
        hidden = self.folder / f".{self.files}"
        hidden.write_text(text)
        hidden.rename(self.folder / f"{self.files:05d}.json")
        self.files += 1
        for event in events:
            ts = event[0]
            late = ts is not None and self.watermark is not None and ts < self.watermark
            (self.late if late else self.in_time).append(event)
        latest = max((ts for ts, _, _ in events if ts is not None), default=None)
        if latest is not None:
            self.watermark = max(latest - DELAY, self.watermark or latest - DELAY)

    def check(self, views: Iterable[str]) -> None:
        """The stream, its late rows, and each view equal offline SQL on the rows in time."""
        offline = Offline(self.spark, {"s": PlainTable(EVENTS, rows=list(self.in_time))})
        for name in views:
            offline.view(name, self.engine.catalog.get(name).query)
        offline.load()
        for name, events in (("s", self.in_time), ("s__late", self.late)):
            rows = self.engine.sql(f"SELECT unix_micros(ts) AS t, k, v FROM {name}").collect()
            assert Counter(map(tuple, rows)) == Counter((_micros(ts), k, v) for ts, k, v in events)
        for name in views:
            found = offline.compared(name, self.engine.snapshot(name))
            assert found.equal, (name, found)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / _MICRO)


_MICRO = timedelta(microseconds=1)


@pytest.fixture
def fed(tmp_path: Path, spark: SparkSession) -> Iterator[Fed]:
    fed = Fed(tmp_path, spark)
    yield fed
    fed.engine.stop()


def batches(count: int, seed: int = 1, rows: int = 12) -> Iterator[list[Event]]:
    """Events that come mostly in order, some behind by up to 25 minutes, some without a time."""
    chance = random.Random(seed)
    for number in range(count):
        yield [
            (
                None
                if chance.random() < 0.03
                else START
                + timedelta(minutes=6 * number)
                - timedelta(seconds=chance.choice([0, 30, 60, 200, 400, 599, 1500])),
                chance.choice("abc"),
                chance.randrange(5),
            )
            for _ in range(rows)
        ]


@pytest.mark.spark
def test_views_equal_offline_sql_on_the_rows_in_time(fed: Fed) -> None:
    for name, query in VIEWS.items():
        fed.engine.view(name, query)
    for number, events in enumerate(batches(10)):
        fed.feed(events)
        if number in (3, 9):  # several epochs each
            fed.engine.advance()
            fed.check(VIEWS)
    assert fed.late
    assert fed.engine.status()["sources"][0]["late_rows"] == len(fed.late)
    # a view that comes later sees the same rows in time, and so does one over the late rows
    fed.engine.view("after", VIEWS["tumbling"])
    fed.engine.view("late", "SELECT k, count(*) AS n FROM s__late GROUP BY k")
    fed.check(["after"])
    fed.engine.stop()
    fed.open()
    fed.feed([(START, "a", 1), (START + timedelta(days=1), "b", 2)])
    fed.engine.advance()
    fed.check([*VIEWS, "after"])
    counts = Counter(k for _, k, _ in fed.late)
    assert {row.k: row.n for row in fed.engine.snapshot("late").collect()} == counts
    assert fed.engine.verify().equal


@pytest.mark.spark
def test_views_that_need_no_column_of_a_stream(fed: Fed) -> None:
    """Their scans read weights alone, also where a piece has only late rows, or none."""
    dims = fed.engine.table("dims", "name STRING")
    dims.insert([("x",), ("y",)])
    fed.engine.view("present", "SELECT 'x' AS c FROM s")
    fed.engine.view("left_out", "SELECT 'x' AS c FROM s__late")
    fed.engine.view("crossed", "SELECT d.name FROM dims d CROSS JOIN s")
    day = timedelta(days=1)
    for events in ([(START, "a", 1)] * 2, [(START - day, "a", 1)] * 3, [(START + day, "b", 2)]):
        fed.feed(events)
        fed.engine.advance()
        fed.check(["present"])
    counts = {name: fed.engine.snapshot(name).count() for name in ("left_out", "crossed")}
    assert counts == {"left_out": 3, "crossed": 6}
    report = fed.engine.verify()
    assert report, str(report)


@pytest.mark.spark
def test_emit_final_gives_each_window_once_when_it_is_closed(fed: Fed) -> None:
    for name, query in FINAL.items():
        fed.engine.view(name, f"{query} EMIT FINAL;")
        fed.engine.view(f"{name}_now", query)
    fed.engine.view("reads", "SELECT w.end AS e, sum(n) AS n FROM closed GROUP BY 1")
    for number, events in enumerate(batches(6, seed=2)):
        fed.feed(events)
        fed.engine.advance()
        if number == 3:
            fed.engine.stop()
            fed.open()
        assert fed.watermark is not None
        now = fed.engine.snapshot("closed_now").collect()
        final = fed.engine.snapshot("closed").collect()
        naive = fed.watermark.replace(tzinfo=None)
        assert sorted(map(repr, final)) == sorted(repr(r) for r in now if r.w.end <= naive)
        over = fed.engine.snapshot("over_now").collect()
        found = fed.engine.snapshot("over").collect()
        assert sorted(map(repr, found)) == sorted(repr(r) for r in over if r.w.end < naive)
    fed.feed([(START + timedelta(days=2), "z", 9)])
    fed.engine.advance()
    assert [tuple(row) for row in fed.engine.snapshot("day").collect()] == [
        tuple(row)
        for row in fed.engine.snapshot("day_now").collect()
        if row.d is not None and row.d.isoformat() < "2026-01-02"
    ]
    for name in FINAL:
        changes = fed.engine.changes(name, None, "retract").collect()
        assert {row.op for row in changes} == {"append"}
        assert len(changes) == fed.engine.snapshot(name).count() > 0
    assert fed.engine.verify().equal


@pytest.mark.spark
def test_a_view_made_while_final_rows_are_due_does_not_keep_them_back(fed: Fed) -> None:
    """The watermark has advanced, and the epoch that emits by it has not come, when another view is filled."""
    fed.engine.view("closed", FINAL["closed"] + " EMIT FINAL")
    made = []

    def make(progress: el.Progress) -> None:
        if not made and progress.rows_in.get("closed"):
            made.append(progress.epoch)
            assert fed.engine.snapshot("closed").isEmpty()
            fed.engine.view("hours", VIEWS["hours"])

    fed.engine.on_progress(make)
    fed.feed([(START, "a", 1), (START + timedelta(hours=1), "b", 2)])
    fed.engine.advance()
    assert made
    assert [(row.k, row.n) for row in fed.engine.snapshot("closed").collect()] == [("a", 1)]
    fed.check(["hours"])
    assert fed.engine.verify().equal


@pytest.mark.spark
@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_pause_takes_nothing_from_final_rows_and_late_ones(fed: Fed, rounds: int) -> None:
    """Windows close and rows come late while views are paused; each final row is still given once."""
    live = {
        "now": FINAL["closed"],
        "closed": FINAL["closed"] + " EMIT FINAL",
        "spans": FINAL["over"],
        "over": FINAL["over"] + " EMIT FINAL",
        "reads": "SELECT w.end AS e, sum(n) AS n FROM closed GROUP BY 1",
        "ended": "SELECT k, n FROM spans WHERE w.end < TIMESTAMP '2026-01-01 00:20:00'",
        "late": "SELECT k, count(*) AS n FROM s__late GROUP BY k",
        "days": "SELECT date(ts) AS d, count(*) AS n FROM s GROUP BY 1",
    }
    for name, query in live.items():
        fed.engine.view(name, query)

    def right() -> None:
        fed.check(["now"])
        report = fed.engine.verify()
        assert report, str(report)
        assert fed.watermark is not None
        naive = fed.watermark.replace(tzinfo=None)
        for name, of, last in (("closed", "now", timedelta(0)), ("over", "spans", _MICRO)):
            rows = fed.engine.snapshot(of).collect()
            final = sorted(repr(tuple(row)) for row in rows if row.w.end <= naive - last)
            told = fed.engine.changes(name, None, "retract").collect()
            assert {row.op for row in told} == {"append"}
            assert sorted(repr(tuple(row[:3])) for row in told) == final, name
        late = Counter(k for _, k, _ in fed.late)
        assert {row.k: row.n for row in fed.engine.snapshot("late").collect()} == late

    def advance(count: int) -> None:
        for _ in range(count):
            fed.feed(next(feed))
            fed.engine.advance()

    feed = batches(4 + 3 * rounds, seed=5)
    advance(4)
    choices = (["closed", "late"], ["over", "now"], ["spans", "closed", "now"], ["late"], ["reads"])
    for number in range(rounds):
        paused = choices[number]
        with_them = [*paused, *(["reads"] if "closed" in paused else [])]
        held = {name: Counter(map(repr, fed.engine.snapshot(name).collect())) for name in with_them}
        late = len(fed.late)
        for name in paused:
            fed.engine.pause(name)
        advance(3)
        assert len(fed.late) > late
        for name, rows in held.items():
            assert Counter(map(repr, fed.engine.snapshot(name).collect())) == rows
        if number == 0:
            fed.engine.stop()
            fed.open()
        for name in paused:
            fed.engine.resume(name)
        right()


@pytest.mark.spark
@pytest.mark.parametrize("epochs", [24, pytest.param(2000, marks=SOAK)])
def test_the_state_stays_flat(tmp_path: Path, spark: SparkSession, epochs: int) -> None:
    fed = Fed(tmp_path, spark)
    names = ["tumbling", "sessions", "hours", "pairs", "unmatched", "ranked", "paired"]
    names.append("answered")
    for name in names:
        # sessions that end: the rows of an open one stay
        fed.engine.view(name, VIEWS[name].replace("(ts, '5 minutes')", "(ts, '20 seconds')"))
    sizes: list[dict[str, int]] = []  # of the state besides the results, at half time and the end
    for number, events in enumerate(batches(epochs, seed=3, rows=40), 1):
        fed.feed(events)
        fed.engine.advance()
        if number in (epochs // 2, epochs):
            manifest = last_committed(fed.engine.files)
            found = {name: operator_rows(fed.engine.catalog.get(name), manifest) for name in names}
            assert all(found.values())
            sizes.append(found)
    half, full = sizes
    for name in names:
        assert full[name] <= 1.3 * half[name] + 50, (name, half, full)
    fed.check(names)
    fed.engine.stop()


@pytest.mark.spark
def test_a_view_whose_state_grows_says_so(fed: Fed, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    fed.engine.create_stream("p", EVENTS, "json", {"path": str(plain)})
    fed.engine.table("dims", "k STRING, name STRING", ["k"])
    growing = {
        "g1": "SELECT window(ts, '1 hour') AS w, count(*) AS n FROM p GROUP BY 1",
        "g2": "SELECT k, percentile(v, 0.5) AS p FROM s GROUP BY k",
        "g3": "SELECT p.k, d.name FROM p JOIN dims d ON p.k = d.k",
        "g4": "SELECT *, sum(v) OVER (PARTITION BY k ORDER BY ts) AS r FROM p",
    }
    for name, query in growing.items():
        with pytest.warns(StateGrowthWarning, match=f"view {name}: the state of .* grows"):
            fed.engine.view(name, query)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StateGrowthWarning)
        for name in VIEWS:
            if name not in ("rolled",):
                fed.engine.view(name, VIEWS[name])
        fed.engine.view("few", "SELECT k, count(*) AS n, sum(v) AS v FROM p GROUP BY k")
        fed.engine.view("one", "SELECT k, min(name) AS m FROM dims GROUP BY k")
    (plain / "1.json").write_text(json.dumps({"ts": START.isoformat(), "k": "a", "v": 1}))
    before = fed.engine.advance()
    (plain / "2.json").write_text(json.dumps({"ts": START.isoformat(), "k": "a", "v": 1}) * 1)
    assert fed.engine.advance() == before + 1
    status = {view["name"]: view["state_growth"] for view in fed.engine.status()["views"]}
    assert status["g4"] is not None
    assert status["g4"] > 0
    assert status["one"] == 0


@pytest.mark.spark
def test_explain_tells_until_when_state_is_kept(fed: Fed) -> None:
    for name, query in VIEWS.items():
        fed.engine.view(name, query)
        assert "until the watermark of s has passed" in fed.engine.explain(name), name
    shown = fed.engine.explain(FINAL["closed"] + " emit final")
    assert "Final [class 2, stateful; rule: hold until final" in shown


@pytest.mark.spark
def test_what_no_watermark_can_be_declared_for(fed: Fed, spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    for column, delay, told in (
        ("value", "1 minute", "value is no TIMESTAMP column of it"),
        ("nothing", "1 minute", "choose of: timestamp"),
        ("timestamp", "a while", "is no interval of time"),
        ("timestamp", "-1 minute", "is negative"),
    ):
        with pytest.raises(DataError, match=told) as caught:
            fed.engine.stream("r", rate, watermark=(column, delay))
        assert caught.value.condition == "BAD_WATERMARK"
    with pytest.raises(DataError, match="can be replaced or retracted"):
        fed.engine.stream("r", rate, primary_key=["value"], watermark=("timestamp", "1 minute"))
    with pytest.raises(ScriptError, match="can change at any time"):
        fed.engine.execute("CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts)")
    with pytest.raises(ScriptError, match="follows k"):
        fed.engine.execute("CREATE STREAM t (ts TIMESTAMP, WATERMARK FOR ts AS k) USING rate")
    for query in ("SELECT k, count(*) AS n FROM s GROUP BY k", "SELECT v FROM s LIMIT 3"):
        with pytest.raises(QueryError, match="EMIT FINAL can't tell") as refused:
            fed.engine.view("never", query + " EMIT FINAL")
        assert refused.value.condition == "NO_WATERMARK"
    with pytest.raises(el.EddylineError, match="belongs to its stream"):
        fed.engine.drop("stream", "s__late")
    for statement in (
        "CREATE VIEW taken__late AS SELECT k FROM s",
        "CREATE TABLE Taken__LATE (k INT)",
    ):
        fed.engine.execute(statement)
        for stream in (
            f"CREATE STREAM taken (ts TIMESTAMP, WATERMARK FOR ts AS ts) USING json OPTIONS (path '{fed.folder}')",
            None,
        ):
            with pytest.raises(
                el.EddylineError, match="late rows of stream taken need the name"
            ) as refused:
                fed.engine.execute(stream) if stream else fed.engine.stream(
                    "taken", rate, watermark=("timestamp", "1 second")
                )
            assert refused.value.condition == "NAME_TAKEN"
        assert fed.engine.catalog.find("taken") is None
        fed.engine.drop("view" if "VIEW" in statement else "table", "taken__late")
    # DataFrame.withWatermark says the same
    fed.engine.stream("r", rate.withWatermark("timestamp", "90 seconds"))
    assert fed.engine.catalog.get("r").delay == 90_000_000
    assert fed.engine.catalog.get("r__late").late_of == fed.engine.catalog.get("r").id


@pytest.mark.spark
@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]
)
def test_the_bound_of_a_rising_expression_holds_through_clock_changes(
    spark: SparkSession, zone: str
) -> None:
    """Against all later moments on a grid, around the changes of 2005 and 2026."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        catalyst = Catalyst(spark)
        given = spark.createDataFrame(spark.sparkContext.emptyRDD(), "ts TIMESTAMP")
        plan = catalyst.optimized(catalyst.plan(given.selectExpr(*RISING)))
        (attribute,) = items(plan.child().output())
        bounds = {attribute.exprId().id(): Bound((Term("s"),))}
        rising = [bound_of(catalyst, output, bounds) for output in items(plan.projectList())]
        assert all(rising), [text for text, bound in zip(RISING, rising, strict=True) if not bound]
        for change in (datetime(2005, 10, 30, 2, 31), datetime(2026, 4, 4, 15), START):
            for hours in (-30.5, -2.25, -0.6, 0.1):
                watermark = _micros(change.replace(tzinfo=UTC) + timedelta(hours=hours))
                assert watermark is not None
                grid = spark.range(400).selectExpr(
                    f"timestamp_micros({watermark} + id * 600000000L) AS ts"
                )
                least = grid.selectExpr(*RISING).selectExpr(*(f"min({c}) AS {c}" for c in NAMES))
                found = least.selectExpr(
                    *(AS_NUMBER[kind].format(name) for name, kind in least.dtypes)
                ).collect()[0]
                for text, bound, seen in zip(RISING, rising, found, strict=True):
                    assert bound is not None
                    told = bound.least(catalyst, {"s": watermark})
                    # the grid can miss the moment of the change itself
                    slack = 0 if zone == "UTC" else 600_000_000 if seen > 10**12 else 10
                    assert told is not None
                    assert 0 <= seen - told <= slack, (text, watermark, told, seen)
        falling = given.selectExpr(
            "ts - INTERVAL 1 MONTH AS a", "timestampadd(MONTH, 1, ts) AS b", "hour(ts) AS c",
            "timestamp_micros(-unix_micros(ts)) AS d", "date_format(ts, 'yyyy') AS e",
            "date_sub(DATE'2030-01-01', unix_date(date(ts))) AS f",
        )  # fmt: skip
        plan = catalyst.optimized(catalyst.plan(falling))
        (attribute,) = items(plan.child().output())
        bounds = {attribute.exprId().id(): Bound((Term("s"),))}
        assert not any(bound_of(catalyst, e, bounds) for e in items(plan.projectList()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("zone", "forward"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 1)),
        ("America/St_Johns", datetime(2026, 3, 8, 5, 30)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30)),
        ("Pacific/Apia", datetime(2011, 12, 30, 10)),  # a day was left out
    ],
)
def test_bounds_hold_when_clocks_go_forward(
    spark: SparkSession, zone: str, forward: datetime
) -> None:
    """They are the least of what comes: a local time that is skipped becomes a later one than the first after it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        catalyst = Catalyst(spark)
        first = _micros(forward.replace(tzinfo=UTC) - timedelta(hours=50))
        grid = (
            spark.range(700)
            .selectExpr(f"{first} + id * 900000000L AS at")
            .selectExpr(
                "at",
                "timestamp_micros(at) AS ts",
                "timestampadd(MICROSECOND, at, timestamp_ntz'1970-01-01') AS n",
            )
        )
        rows = grid.selectExpr("at", *(f"unix_micros({text})" for text in LATER)).collect()
        given = spark.createDataFrame(
            spark.sparkContext.emptyRDD(), "ts TIMESTAMP, n TIMESTAMP_NTZ"
        )
        plan = catalyst.optimized(catalyst.plan(given.selectExpr(*LATER)))
        bounds = {one.exprId().id(): Bound((Term("s"),)) for one in items(plan.child().output())}
        for place, output in enumerate(items(plan.projectList()), 1):
            bound = bound_of(catalyst, output, bounds)
            assert bound is not None, LATER[place - 1]
            for hours in (-24, 0, 24):
                for number in range(4 * hours + 188, 4 * hours + 216):
                    least = min(later[place] for later in rows[number:])
                    told = bound.least(catalyst, {"s": rows[number].at})
                    assert told == least, (LATER[place - 1], rows[number], told, least)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


LATER = [
    "ts + INTERVAL 1 DAY",
    "ts - INTERVAL 1 DAY",
    "ts + INTERVAL 25 HOURS",
    "ts + INTERVAL 2 HOURS",
    "timestampadd(DAY, 1, ts)",
    "date_trunc('MINUTE', ts + INTERVAL 1 DAY)",
    "cast(n AS TIMESTAMP)",
    "cast(n + INTERVAL 1 DAY AS TIMESTAMP)",
]
NAMES = [f"c{i}" for i in range(11)]
RISING = [
    f"{text} AS c{i}"
    for i, text in enumerate(
        [
            "date_trunc('hour', ts)",
            "date(ts)",
            "date_trunc('day', ts)",
            "ts + INTERVAL 1 DAY",
            "timestampadd(HOUR, -5, ts)",
            "cast(ts AS timestamp_ntz)",
            "unix_timestamp(ts) div 60",
            "date_add(date(ts), 3)",
            "year(ts)",
            "trunc(date(ts), 'MM')",
            "timestamp_seconds(cast(ts AS BIGINT) div 3600 * 3600)",
        ]
    )
]
AS_NUMBER = {
    "timestamp": "unix_micros({})",
    "date": "unix_date({})",
    "timestamp_ntz": "timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01', {})",
    "int": "{}",
    "bigint": "{}",
}
