"""A stream without new rows holds the state of joins, until its idle_timeout has passed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.state_sizes import operator_rows
from eddyline.errors import DataError, EddylineError
from eddyline.state.manifest import last_committed
from eddyline.testing import Crash, FaultyFiles, Offline, PlainTable
from test_max_ahead import DELAY, NOW, micros

pytestmark = pytest.mark.spark

COLUMNS = "ts TIMESTAMP, k STRING, v INT"
MINUTE = timedelta(minutes=1)
VIEWS = {
    "pairs": "SELECT a.ts, a.v AS one, b.v AS two FROM a JOIN b ON a.k = b.k"
    " AND a.ts BETWEEN b.ts - INTERVAL 3 MINUTES AND b.ts + INTERVAL 3 MINUTES",
    "windows": "SELECT x.w, x.n, y.n AS m FROM (SELECT window(ts, '5 minutes') AS w, count(*) AS n"
    " FROM a GROUP BY 1) x LEFT JOIN (SELECT window(ts, '5 minutes') AS w, count(*) AS n"
    " FROM b GROUP BY 1) y ON x.w = y.w",
}
Event = tuple[datetime, str, int]


class Two:
    """Two streams of JSON files under a clock of their own."""

    def __init__(self, root: Path, spark: SparkSession, timeout: str | None) -> None:
        self.root, self.spark, self.now = root, spark, NOW
        self.option = f", idle_timeout '{timeout}'" if timeout else ""
        self.files = FaultyFiles(str(root / "storage"))
        self.fed: dict[str, list[Event]] = {"a": [], "b": []}
        for name in self.fed:
            (root / name).mkdir()
        self.open()

    def open(self) -> None:
        self.engine = el.Engine(self.files, self.spark, el.Options(compaction_fan_in=2))
        self.engine._workspace.clock = lambda: micros(self.now)
        for name in self.fed:
            self.engine.execute(
                f"CREATE STREAM IF NOT EXISTS {name} ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL"
                f" 10 MINUTES) USING json OPTIONS (path '{self.root / name}'{self.option})"
            )

    def feed(self, name: str, *events: Event) -> None:
        number = len(list((self.root / name).iterdir()))
        hidden = self.root / name / f".{number}"
        rows = ({"ts": ts.isoformat(), "k": k, "v": v} for ts, k, v in events)
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.root / name / f"{number:05d}.json")
        self.fed[name] += events

    def state(self, view: str) -> int:
        return operator_rows(self.engine.catalog.get(view), last_committed(self.files))

    def status(self, name: str) -> dict[str, object]:
        found: dict[str, object] = next(
            source for source in self.engine.status()["sources"] if source["name"] == name
        )
        return found

    def check(self) -> None:
        """No row is lost, and views equal offline SQL on those that are in the streams."""
        accepted = {}
        for name, fed in self.fed.items():
            parts = [
                [tuple(row) for row in self.engine.sql(f"SELECT ts, k, v FROM {one}").collect()]
                for one in (name, f"{name}__late")
            ]
            accepted[name] = parts[0]
            plain = [(ts.replace(tzinfo=None), k, v) for ts, k, v in fed]
            assert Counter(parts[0] + parts[1]) == Counter(plain)
        tables = {name: PlainTable(COLUMNS, rows=rows) for name, rows in accepted.items()}
        offline = Offline(self.spark, tables)
        for name, query in VIEWS.items():
            offline.view(name, query)
        offline.load()
        for name in VIEWS:
            found = offline.compared(name, self.engine.snapshot(name))
            assert found.equal, (name, found)


@pytest.fixture
def two(tmp_path: Path, spark: SparkSession) -> Iterator[Callable[[str | None], Two]]:
    opened: list[Two] = []

    def make(timeout: str | None) -> Two:
        root = tmp_path / str(len(opened))
        root.mkdir()
        opened.append(Two(root, spark, timeout))
        return opened[-1]

    yield make
    for one in opened:
        one.engine.stop()


def silent(streams: Two, epochs: int) -> list[int]:
    """Feed both, then only `a`; the rows of the state of the join after each epoch."""
    for name, query in VIEWS.items():
        streams.engine.view(name, query)
    sizes = []
    for number in range(epochs):
        for name in "ab" if number < 3 else "a":
            streams.feed(name, *((streams.now, "xyz"[i % 3], i) for i in range(20)))
        streams.engine.advance()
        sizes.append(streams.state("pairs"))
        streams.now += 4 * MINUTE
    return sizes


def test_a_silent_stream_holds_the_state_of_the_other(two: Callable[[str | None], Two]) -> None:
    held, idle = two(None), two("5 minutes")
    kept, left = silent(held, 16), silent(idle, 16)  # rows leave when runs are merged
    assert kept == sorted(kept)
    assert kept[-1] == 20 * 16 + 20 * 3  # all of both
    assert left[-1] < kept[-1] / 2
    assert left[-1] < left[-2]
    for streams in (held, idle):
        streams.check()
    assert not held.status("b")["idle"]
    assert idle.status("b")["idle"]
    assert not idle.status("a")["idle"]
    assert idle.status("b")["watermark"] == idle.status("a")["watermark"]
    # the stream comes back: what is below the watermark of the other is late, the rest is joined
    last = idle.now - 4 * MINUTE
    idle.engine.stop()
    idle.open()
    idle.feed("b", (last - DELAY - MINUTE, "x", 101), (last - DELAY, "x", 102), (last, "y", 103))
    idle.engine.advance()
    assert not idle.status("b")["idle"]
    assert [row.v for row in idle.engine.sql("SELECT v FROM b__late").collect()] == [101]
    assert {102, 103} <= {row.two for row in idle.engine.snapshot("pairs").collect()}
    idle.check()
    assert idle.engine.verify(), str(idle.engine.verify())


def test_a_stream_that_never_had_a_row_becomes_idle_too(two: Callable[[str | None], Two]) -> None:
    streams = two("5 minutes")
    for name, query in VIEWS.items():
        streams.engine.view(name, query)
    sizes = []
    for _ in range(8):
        streams.feed("a", *((streams.now, "xyz"[i % 3], i) for i in range(20)))
        streams.engine.advance()
        sizes.append(streams.state("pairs"))
        streams.now += 4 * MINUTE
    assert sizes[-1] < sizes[-2]
    assert streams.status("b")["idle"]
    # the reset of an idle stream counts until it is idle again
    streams.engine.reset_watermark("b", NOW)
    assert streams.status("b")["watermark"] == NOW.isoformat()
    assert not streams.status("b")["idle"]
    streams.feed("b", (NOW, "x", 1))
    streams.engine.advance()
    assert streams.engine.sql("SELECT * FROM b__late").count() == 0
    streams.check()


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 4)])
def test_live_equals_offline_with_pauses_of_both_streams(
    two: Callable[[str | None], Two], seed: int
) -> None:
    chance = random.Random(seed)
    streams = two("6 minutes")
    for name, query in VIEWS.items():
        streams.engine.view(name, query)
    idle: Counter[str] = Counter()
    for _ in range(12):
        for name in chance.choice(["a", "a", "b", "ab"]):
            ages = [chance.choice([0, 30, 200, 500, 700, 2000]) for _ in range(8)]
            streams.feed(
                name,
                *(
                    (
                        streams.now - timedelta(seconds=age),
                        chance.choice("xy"),
                        chance.randrange(99),
                    )
                    for age in ages
                ),
            )
        if chance.random() < 0.3:
            streams.files.arm(chance.randrange(1, 150), "crash")
            with suppress(Crash, EddylineError):
                streams.engine.advance()
            streams.files.arm(0)
            streams.engine._workspace.release()
            streams.open()
        streams.engine.advance()
        idle.update(name for name in "ab" if streams.status(name)["idle"])
        streams.check()
        streams.now += chance.choice([1, 3, 7]) * MINUTE
    assert idle
    assert streams.engine.verify(), str(streams.engine.verify())


def test_which_values_are_refused(two: Callable[[str | None], Two]) -> None:
    engine = two(None).engine
    rate = engine.spark.readStream.format("rate").load()
    for value, why in (
        ("soon", "idle_timeout 'soon' is no interval"),
        ("-1 minute", "the idle_timeout -1 minute is negative"),
        ("0 seconds", "the idle_timeout is zero"),
    ):
        options = {"idle_timeout": value}
        with pytest.raises(DataError, match=why) as caught:
            engine.stream("r", rate, watermark=("timestamp", "1 minute"), options=options)
        assert caught.value.condition == "BAD_WATERMARK"
