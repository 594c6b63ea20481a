"""Rows whose event time is far ahead of their receipt don't enter a stream with a watermark."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import DataError, EddylineError, EngineError
from eddyline.source.files import FileStream
from eddyline.source.segments import Segment, accepted_by_time, rejected_by_time
from eddyline.spark.session import ZONE, cloned
from eddyline.testing import Crash, FaultyFiles, Offline, PlainTable

Event = tuple[datetime | None, str, int]

pytestmark = pytest.mark.spark

EVENTS = "ts TIMESTAMP, k STRING, v INT"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAR = datetime(2999, 1, 1, tzinfo=UTC)
DELAY, MAX_AHEAD = timedelta(minutes=10), timedelta(hours=1)
VIEWS = {
    "rows": "SELECT * FROM s",
    "counts": "SELECT window(ts, '10 minutes') AS w, k, count(*) AS n FROM s GROUP BY 1, 2",
    "last": "SELECT k, max(v) AS v FROM s GROUP BY k",
    "pairs": "SELECT a.ts, b.v FROM s a JOIN s b ON a.k = b.k"
    " AND a.ts BETWEEN b.ts - INTERVAL 3 MINUTES AND b.ts",
}


def micros(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


class Fed:
    """A stream of JSON files, one an epoch, under a clock of its own; and the rules in plain Python."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.folder, self.spark, self.now = root / "in", spark, NOW
        self.folder.mkdir()
        self.files = FaultyFiles(str(root / "storage"))
        self.fed: list[list[Event]] = []
        self.resets: dict[
            int, datetime | None
        ] = {}  # watermarks by the first entry that they hold for
        self.limited = True
        self.open()

    def open(self) -> None:
        options = el.Options(compaction_fan_in=2)
        self.engine = el.Engine(self.files, self.spark, options)
        self.engine._workspace.clock = lambda: micros(self.now)
        self.engine.execute(
            f"CREATE STREAM IF NOT EXISTS s ({EVENTS}, WATERMARK FOR ts AS ts - INTERVAL 10 MINUTES)"
            f" USING json OPTIONS (path '{self.folder}', maxFilesPerTrigger 1, max_ahead '1 hour')"
        )

    def feed(self, *events: Event) -> None:
        text = "".join(
            json.dumps({"ts": ts and ts.isoformat(), "k": k, "v": v}) + "\n" for ts, k, v in events
        )
        hidden = self.folder / f".{len(self.fed)}"
        hidden.write_text(text)
        hidden.rename(self.folder / f"{len(self.fed):05d}.json")
        self.fed.append(list(events))

    def without_limit(self) -> None:
        """Make the stream one of an older version: its entries have no max_ahead, and no reasons."""
        workspace = self.engine._workspace
        stream, late = workspace.catalog.entries
        options = {k: v for k, v in stream.options.items() if k != "max_ahead"}
        old = (replace(stream, options=options), replace(late, options={}, schema=stream.schema))
        workspace.save(replace(workspace.catalog, entries=old))
        self.limited = False
        self.engine.stop()
        self.open()

    def crash(self, fail_at: int) -> None:
        """Advance until an effect on the disk fails, and leave the engine as a dead process would."""
        self.files.arm(fail_at, "crash")
        with suppress(Crash, EddylineError):
            self.engine.advance()
        self.files.arm(0)
        self.engine._workspace.release()

    def judged(self) -> tuple[list[Event], list[Event], list[Event]]:
        """The accepted rows, the late ones, and those too far ahead, by the stored times of receipt."""
        log = self.engine._workspace.sources.log(self.engine.catalog.get("s"))
        accepted: list[Event] = []
        late: list[Event] = []
        ahead: list[Event] = []
        watermark = None
        for number, events in enumerate(self.fed):
            watermark = self.resets.get(number, watermark)
            (segment,) = log.segments(number, number + 1)
            received = segment.received_at
            assert received is not None
            within = []
            for event in events:
                ts = event[0]
                newest = received + MAX_AHEAD / timedelta(microseconds=1)
                if self.limited and ts is not None and micros(ts) > newest:
                    ahead.append(event)
                    continue
                within += [ts] if ts is not None else []
                is_late = ts is not None and watermark is not None and ts < watermark
                (late if is_late else accepted).append(event)
            if within:
                watermark = max(max(within) - DELAY, watermark or max(within) - DELAY)
        return accepted, late, ahead

    def check(self, views: Iterable[str] = VIEWS) -> None:
        accepted, late, ahead = self.judged()
        offline = Offline(self.spark, {"s": PlainTable(EVENTS, rows=list(accepted))})
        for name in views:
            offline.view(name, VIEWS[name])
        offline.load()
        for name in views:
            found = offline.compared(name, self.engine.snapshot(name))
            assert found.equal, (name, found)
        rows = self.engine.sql("SELECT unix_micros(ts), k, v FROM s__late").collect()
        expected = Counter((micros(ts), k, v) for ts, k, v in [*late, *ahead] if ts is not None)
        assert Counter(map(tuple, rows)) == expected
        (status,) = self.engine.status()["sources"]
        assert (status["late_rows"], status["ahead_rows"]) == (len(late), len(ahead))


@pytest.fixture
def fed(tmp_path: Path, spark: SparkSession) -> Iterator[Fed]:
    fed = Fed(tmp_path, spark)
    yield fed
    fed.engine.stop()


def test_one_row_of_the_year_2999_makes_no_later_row_late(
    fed: Fed, caplog: pytest.LogCaptureFixture
) -> None:
    for name, query in VIEWS.items():
        fed.engine.view(name, query)
    fed.engine.view("why", "SELECT k, reason FROM s__late")
    fed.feed((FAR, "far", 1))  # also as the first row of all
    fed.feed((NOW, "a", 1), (FAR, "far", 2), (None, "none", 3))
    fed.feed((NOW - timedelta(minutes=5), "a", 2), (NOW - timedelta(minutes=11), "late", 3))
    fed.feed((NOW + MAX_AHEAD, "edge", 4), (NOW + MAX_AHEAD + timedelta(seconds=1), "far", 5))
    fed.engine.advance()
    warned = [r.getMessage() for r in caplog.records if "max_ahead" in r.getMessage()]
    assert warned == ["stream s: rows dated more than max_ahead ahead: 1; they are in s__late"] * 3
    accepted, late, ahead = fed.judged()
    assert Counter(k for _, k, _ in accepted) == {"a": 2, "none": 1, "edge": 1}
    assert [k for _, k, _ in late] == ["late"]
    assert [k for _, k, _ in ahead] == ["far"] * 3
    fed.check()
    (status,) = fed.engine.status()["sources"]
    assert status["max_ahead"] == "1:00:00"
    assert status["watermark"] == (NOW + MAX_AHEAD - DELAY).isoformat()
    reasons = {row.k: row.reason for row in fed.engine.snapshot("why").collect()}
    assert set(reasons) == {"late", "far"}
    assert reasons["late"] == (
        "event time 2026-01-01 11:49:00.000000Z is below the watermark 2026-01-01 11:50:00.000000Z"
    )
    far = fed.engine.sql("SELECT reason FROM s__late WHERE v = 5").collect()[0].reason
    assert far == (
        "event time 2026-01-01 13:00:01.000000Z is after 2026-01-01 13:00:00.000000Z, the receipt of"
        " the row plus max_ahead: send the row again with its right time, or create the stream with"
        " a larger max_ahead"
    )
    # a view that comes later, and offline SQL, see the same rows; time goes on meanwhile
    fed.now += timedelta(days=400_000)
    fed.engine.view("after", VIEWS["counts"])
    assert fed.engine.snapshot("after").count() == fed.engine.snapshot("counts").count()
    fed.engine.pause("rows")
    fed.engine.resume("rows")
    fed.check()
    assert fed.engine.verify(), str(fed.engine.verify())


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_live_equals_offline_on_the_accepted_rows_after_every_epoch(fed: Fed, seed: int) -> None:
    chance = random.Random(seed)
    for name, query in VIEWS.items():
        fed.engine.view(name, query)
    behind = [0, 0, 60, 400, 599, 1500, 7200]
    before = [*behind, -3600, -3599, -3601, -7200, -86400, -(10**9), -(3 * 10**10)]
    for _ in range(6):
        for _ in range(chance.choice([1, 1, 3])):
            fed.feed(
                *(
                    (
                        None
                        if chance.random() < 0.05
                        else fed.now - timedelta(seconds=chance.choice(before)),
                        chance.choice("abc"),
                        chance.randrange(5),
                    )
                    for _ in range(chance.randrange(1, 9))
                )
            )
        if chance.random() < 0.4:
            fed.crash(chance.randrange(1, 120))
            fed.now += timedelta(hours=chance.choice([0, 2]))  # an entry keeps its time of receipt
            fed.open()
        fed.engine.advance()
        fed.check()
        fed.now += timedelta(minutes=chance.choice([1, 20, 300]))
    accepted, late, ahead = fed.judged()
    assert accepted
    assert late
    assert ahead
    fed.engine.view("after", VIEWS["counts"])
    found = fed.engine.snapshot("after").exceptAll(fed.engine.snapshot("counts"))
    assert found.count() == 0
    assert fed.engine.verify(), str(fed.engine.verify())


def test_each_row_is_accepted_or_rejected_once() -> None:
    """Also where the limit is below the watermark, because the clock was set back."""
    chance = random.Random(0)
    choices = [None, *range(-3, 4)]
    for _ in range(2000):
        times = [chance.choice(choices) for _ in range(chance.randrange(4))]
        table = pa.table({"c0": pa.array(times, pa.timestamp("us", "UTC")), "w": [1] * len(times)})
        mark, newest = chance.choice(choices), chance.choice(choices)
        segment = Segment("log", "", 0, watermark=mark, newest=newest)
        found = accepted_by_time(table, "c0", segment)
        ahead = [t for t in times if None not in (t, newest) and t > newest]
        late = [t for t in times if None not in (t, mark) and t < mark and t not in ahead]
        assert (found.late, found.ahead) == (len(late), len(ahead))
        assert found.rows.num_rows == len(times) - len(late) - len(ahead)
        rejected = rejected_by_time(table, "c0", segment, "c1")
        micro = [int(value.value) for value in rejected["c0"]]
        assert micro == [*late, *ahead]
        reasons = rejected["c1"].to_pylist()
        assert [" is below the watermark " in reason for reason in reasons] == [
            *(True for _ in late),
            *(False for _ in ahead),
        ]


def test_local_times_are_compared_with_the_local_time_of_the_receipt(
    tmp_path: Path, spark: SparkSession
) -> None:
    engine = el.Engine(tmp_path / "storage", cloned(spark, **{ZONE: "Asia/Tokyo"}))
    engine._workspace.clock = lambda: micros(NOW)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text(
        '{"ts": "2026-01-01T21:59:00", "v": 1}\n{"ts": "2026-01-01T22:01:00", "v": 2}\n'
    )
    options = {"path": str(folder), "Max_Ahead": "INTERVAL 1 HOUR"}
    engine.create_stream(
        "s", "ts TIMESTAMP_NTZ, v INT, reason STRING", "json", options, watermark=("ts", "1 minute")
    )
    engine.view("v", "SELECT v FROM s")
    engine.advance()
    assert [row.v for row in engine.snapshot("v").collect()] == [1]
    (late,) = engine.sql("SELECT * FROM s__late").collect()
    assert (late.v, late.reason) == (2, None)
    assert "2026-01-01 22:01:00.000000 is after 2026-01-01 22:00:00.000000, " in late.reason_
    assert engine.verify()
    engine.stop()


def test_streams_of_every_kind_have_the_limit(tmp_path: Path, spark: SparkSession) -> None:
    """Files that Spark reads, Parquet, a DataFrame, documents of a queue, and rows of a pipeline."""
    rows = [(NOW, 1), (FAR, 2), (NOW + 2 * MAX_AHEAD, 3), (None, 4)]
    documents = [json.dumps({"ts": ts and ts.isoformat(), "v": v}).encode() for ts, v in rows]
    frame = spark.createDataFrame(rows, "ts TIMESTAMP, v INT").coalesce(1)
    for kind in ("csv", "parquet"):
        frame.write.format(kind).save(str(tmp_path / kind))
    engine = el.Engine(tmp_path / "storage", spark)
    engine._workspace.clock = lambda: micros(NOW)
    mark, limit = ("ts", "1 minute"), {"max_ahead": "1 hour"}
    columns = "ts TIMESTAMP, v INT"
    for kind in ("csv", "parquet"):
        options = {"path": str(tmp_path / kind), **limit}
        engine.create_stream(kind, columns, kind, options, watermark=mark)
    source = spark.readStream.schema(columns).parquet(str(tmp_path / "parquet"))
    engine.stream("frame", source, watermark=mark, options=limit)
    queues = [el.DataQueue(el.LogBackend(tmp_path / name)) for name in ("documents", "records")]
    for queue in queues:
        queue.put(documents)
    queues[0].close()
    options = {"path": str(tmp_path / "documents"), **limit}
    engine.create_stream("documents", columns, "queue", options, watermark=mark)

    def decoded(record: dict[str, bytes]) -> dict[str, object]:
        found = json.loads(record["payload"])
        return {**found, "ts": found["ts"] and datetime.fromisoformat(found["ts"])}

    pipeline = engine.pipeline("decoding", queues[1]).bolt(decoded)
    pipeline.into("piped", columns, watermark=mark, options=limit)
    names = ("csv", "parquet", "frame", "documents", "piped")
    for name in names:
        engine.view(f"v_{name}", f"SELECT v FROM {name}")
    engine.advance()
    for name in names:
        assert sorted(row.v for row in engine.snapshot(f"v_{name}").collect()) == [1, 4], name
        late = engine.sql(f"SELECT v, reason FROM {name}__late ORDER BY v").collect()
        assert [row.v for row in late] == [2, 3], name
        assert "2999-01-01 00:00:00.000000Z is after 2026-01-01 13:00:00" in late[0].reason
    statuses = {source["name"]: source["ahead_rows"] for source in engine.status()["sources"]}
    assert statuses == dict.fromkeys(names, 2)
    assert engine.verify(), str(engine.verify())
    engine.stop()
    queues[1].close()


def test_which_values_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(tmp_path / "storage", spark) as engine:
        rate = spark.readStream.format("rate").load()
        mark = ("timestamp", "1 minute")
        for value, why in (
            ("a while", "max_ahead 'a while' is no interval of time; write it like '1 hour'"),
            ("-1 hour", "the max_ahead -1 hour is negative"),
            ("", "max_ahead '' is no interval of time"),
        ):
            with pytest.raises(DataError, match=why.split(";")[0]) as caught:
                engine.stream("r", rate, watermark=mark, options={"max_ahead": value})
            assert caught.value.condition == "BAD_WATERMARK"
        with pytest.raises(DataError, match="option max_ahead is given but no watermark"):
            engine.stream("r", rate, options={"max_ahead": "1 hour"})
        with pytest.raises(EngineError, match="an option is 'path'") as unknown:
            engine.stream("r", rate, watermark=mark, options={"path": "x"})
        assert unknown.value.condition == "BAD_OPTION"
        engine.stream("r", rate, watermark=mark, options={"MAX_AHEAD": "36500 days"})
        engine.stream("r", rate, watermark=mark, options={"max_ahead": "INTERVAL 36500 DAYS"})
        assert engine.status()["sources"][0]["max_ahead"] == "36500 days, 0:00:00"
        with pytest.raises(el.EddylineError, match="exists with another definition"):
            engine.stream("r", rate, watermark=mark)
        engine.stream("q", rate, watermark=mark)  # with the default
        engine.stream("q", rate, watermark=mark, options={"max_ahead": "24 hours"})


def test_streams_of_older_versions_have_no_limit(fed: Fed) -> None:
    """Their catalog entries hold no max_ahead, and their late rows no reason."""
    workspace = fed.engine._workspace
    source = workspace.sources.connected(workspace.catalog.get("s"))
    assert isinstance(source, FileStream)  # the option is none of Spark's reader
    fed.without_limit()
    options = fed.engine.catalog.get("s").options
    fed.engine.create_stream("s", EVENTS, "json", options, watermark=("ts", "10 minutes"))
    fed.engine.view("rows", VIEWS["rows"])
    fed.feed((FAR, "a", 1))
    fed.feed((NOW, "b", 2))
    fed.engine.advance()
    assert [row.v for row in fed.engine.snapshot("rows").collect()] == [1]
    assert [tuple(row)[1:] for row in fed.engine.sql("SELECT * FROM s__late").collect()] == [
        ("b", 2)
    ]
    assert fed.engine.status()["sources"][0]["max_ahead"] is None
    assert fed.engine.verify()
