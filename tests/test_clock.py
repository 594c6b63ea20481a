"""now() in views: each comparison with it changes when its moment has come, without new rows."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import eddyline as el
from eddyline.catalog.entries import VIEW
from eddyline.errors import EddylineError, QueryError
from eddyline.operators.flip import Flip
from eddyline.operators.hold import PENDING
from eddyline.spark.session import local_session
from eddyline.state.manifest import last_committed
from eddyline.testing import Crash, FaultyFiles
from laws import Held

NOON = 1_750_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
VIEWS = {
    "recent": "SELECT * FROM t WHERE ts > now() - INTERVAL 1 MINUTE",
    "counts": "SELECT count(*) AS n, count_if(ts > now() - INTERVAL 10 SECONDS) AS fresh FROM t",
    "flags": "SELECT id, ts <= current_timestamp() AS past, d = current_date() AS today FROM t",
    "between": "SELECT id FROM t WHERE ts BETWEEN now() - INTERVAL 30 SECONDS AND now()",
    "week": "SELECT tag, count(*) AS n FROM t WHERE datediff(current_date(), d) < 7 GROUP BY tag",
    "quiet": "SELECT tag, max(ts) AS last FROM t GROUP BY tag"
    " HAVING max(ts) < now() - INTERVAL 20 SECONDS",
    "seconds": "SELECT id FROM t WHERE unix_timestamp(ts) >= unix_timestamp() - 60",
    "ago": "SELECT id FROM t WHERE now() - ts < INTERVAL '1' MINUTE",
    "soon": "SELECT id FROM t WHERE INTERVAL '10' SECONDS > ts - now() AND ts > now()",
    "joined": "SELECT a.id, b.id AS other FROM t a LEFT JOIN t b"
    " ON a.tag = b.tag AND b.ts > now() - INTERVAL 15 SECONDS",
    "outer": "SELECT a.id, b.id AS other FROM t a LEFT JOIN t b"
    " ON a.tag = b.tag AND a.ts > now() - INTERVAL 15 SECONDS",
    "present": "SELECT id FROM t a WHERE EXISTS (SELECT 1 FROM t b WHERE b.tag = a.tag"
    " AND b.ts > now() - INTERVAL 5 SECONDS)",
    "in_others": "SELECT id FROM t WHERE tag IN (SELECT tag FROM t WHERE ts > now() - INTERVAL 15 SECONDS)",
    "not_in_others": "SELECT id FROM t WHERE tag NOT IN (SELECT tag FROM t WHERE ts > now() - INTERVAL 15 SECONDS)",
    "old": "SELECT id FROM t WHERE NOT (ts > now() - INTERVAL 1 MINUTE) OR ts IS NULL",
    "top": "SELECT id, ts FROM t WHERE ts < date_trunc('minute', now()) ORDER BY ts DESC LIMIT 2",
}
ON_VIEW = "SELECT count(*) AS n FROM recent"
CLOCKS = {
    r"now\(\)|current_timestamp\(\)": "timestamp_micros({})",
    r"current_date\(\)": "date(timestamp_micros({}))",
    r"unix_timestamp\(\)": "unix_timestamp(timestamp_micros({}))",
}


def at_moment(query: str, moment: int) -> str:
    """Return the query with the time written as a literal."""
    for pattern, text in CLOCKS.items():
        query = re.sub(pattern, text.format(moment), query)
    return query


class Timed:
    """An engine under a clock of its own, with a table of moments."""

    def __init__(self, root: Path, options: el.Options | None = None) -> None:
        self.files = FaultyFiles(str(root))
        self.options = options or el.Options()
        self.now = NOON
        self.open()

    def open(self) -> None:
        self.engine = el.Engine(self.files, local_session(), self.options)
        self.engine._workspace.clock = lambda: self.now
        self.engine.table("t", "id INT, ts TIMESTAMP, d DATE, tag STRING", primary_key=["id"])

    def insert(self, number: int, after_s: float | None, tag: str = "a", days: int = 0) -> None:
        ts = "NULL" if after_s is None else f"timestamp_micros({self.now + int(after_s * SECOND)})"
        self.engine.execute(
            f"INSERT INTO t SELECT {number}, {ts}, date_add(date(timestamp_micros({NOON})), {days}), '{tag}'"
        )

    def change(self, draw: random.Random) -> None:
        number = draw.randint(1, 8)
        if draw.random() < 0.3:
            self.engine.execute(f"DELETE FROM t WHERE id = {number}")
        else:
            after = draw.choice([None, -70, -20, -5, 0, 3, 12, 30])
            self.insert(number, after, draw.choice("ab"), draw.randint(-8, 1))

    def rows(self, view: str) -> Counter[Any]:
        return Counter(map(tuple, self.engine.snapshot(view).collect()))

    def check(self) -> None:
        """Each view has the rows that its query gives offline, at the time of the epoch."""
        moment = last_committed(self.files).moment
        for name in [
            e.name for e in self.engine.catalog.entries if e.kind == VIEW and not e.paused
        ]:
            query = VIEWS.get(name, ON_VIEW)
            query = at_moment(query, moment).replace(
                " recent", f" ({at_moment(VIEWS['recent'], moment)})"
            )
            expected = Counter(map(tuple, self.engine.sql(query).collect()))
            assert self.rows(name) == expected, name


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    timed = Timed(tmp_path)
    yield timed
    timed.engine.stop()


@pytest.mark.spark
def test_views_equal_offline_sql_at_the_time_of_each_epoch(timed: Timed) -> None:
    for name, query in VIEWS.items():
        timed.engine.view(name, query)
    timed.engine.view("on_view", ON_VIEW)
    draw = random.Random(1)
    for step, wait_s in enumerate((0.2, 9, 43_000, 20)):
        for _ in range(draw.randint(0, 3)):
            timed.change(draw)
        timed.now += int(wait_s * SECOND)
        timed.engine.advance()
        timed.check()
        if step == 2:
            written = last_committed(timed.files).plans
            timed.engine.stop()
            timed.open()
            timed.engine.advance()
            assert last_committed(timed.files).plans == written


@pytest.mark.spark
def test_dataframe_views_follow_the_clock(timed: Timed) -> None:
    def define() -> None:
        source = timed.engine.relation("t")
        recent = source.where(sf.col("ts") > sf.now() - sf.expr("INTERVAL 1 MINUTE"))
        timed.engine.view("recent", recent)
        fresh = sf.count_if(sf.col("ts") > sf.now() - sf.expr("INTERVAL 10 SECONDS"))
        timed.engine.view("counts", source.agg(sf.count("*").alias("n"), fresh.alias("fresh")))

    define()
    timed.insert(1, 0)
    timed.insert(2, -55)
    for wait_s, left in ((0, 2), (7, 1), (20, 1), (40, 0)):
        timed.now += wait_s * SECOND
        timed.engine.advance()
        assert sum(timed.rows("recent").values()) == left
        timed.check()
    timed.engine.stop()
    timed.open()
    define()
    timed.insert(3, 0)
    timed.engine.advance()
    timed.check()
    timed.now += 61 * SECOND
    timed.engine.advance()
    timed.check()
    assert not timed.rows("recent")


@pytest.mark.spark
def test_rows_leave_without_new_rows(timed: Timed) -> None:
    """Their retractions are changes as any others; the clock moves in steps of a second."""
    timed.engine.view("recent", VIEWS["recent"])
    timed.insert(1, 0)
    first = timed.engine.advance()
    timed.now += 500_000
    assert timed.engine.advance() == first
    timed.now += 60 * SECOND
    assert timed.engine.advance() == first + 1
    assert not timed.rows("recent")
    (change,) = timed.engine.changes("recent", first).collect()
    assert (change["id"], change["op"]) == (1, "delete")
    timed.now -= DAY  # clocks may be set back: time doesn't
    timed.insert(2, 0)
    assert timed.engine.advance() == first + 2
    assert not timed.rows("recent")


@pytest.mark.spark
def test_a_view_that_begins_or_waits_has_the_time_of_its_epoch(timed: Timed) -> None:
    engine = timed.engine
    engine.view("recent", VIEWS["recent"])
    timed.insert(1, 0)
    engine.advance()
    timed.now += 90 * SECOND
    engine.view("old", VIEWS["old"])  # the views of an epoch agree on the time
    timed.check()
    assert not timed.rows("old")
    engine.advance()
    timed.check()
    assert timed.rows("old")
    engine.pause("recent")
    timed.now += 90 * SECOND
    timed.insert(2, 0)
    engine.advance()
    assert engine.verify().equal
    engine.resume("recent")
    engine.advance()
    timed.check()
    assert len(timed.rows("recent")) == 1


@pytest.mark.spark
def test_as_jobs_of_spark(tmp_path: Path) -> None:
    timed = Timed(tmp_path, el.Options(short_lane_rows=0, compaction_fan_in=2))
    for name in ("counts", "between"):
        timed.engine.view(name, VIEWS[name])
    draw = random.Random(2)
    for wait_s in (0, 8, 25):
        for _ in range(3):
            timed.change(draw)
        timed.now += wait_s * SECOND
        timed.engine.advance()
        timed.check()
    timed.now += DAY
    timed.engine.advance()
    timed.check()
    timed.engine.stop()


@pytest.mark.spark
def test_advance_ends_although_each_epoch_takes_longer_than_a_step_of_the_clock(
    timed: Timed,
) -> None:
    for name in ("recent", "counts"):
        timed.engine.view(name, VIEWS[name])
    for number in range(4):
        timed.insert(number, number)
    timed.engine.advance()
    times = itertools.chain(range(2, 40, 2), itertools.repeat(40))
    timed.engine._workspace.clock = lambda: NOON + next(times) * SECOND
    before = last_committed(timed.files)
    assert timed.engine.advance() == before.epoch + 1
    assert last_committed(timed.files).moment == NOON + 2 * SECOND
    timed.engine._workspace.clock = lambda: timed.now
    timed.check()


@pytest.mark.spark
@pytest.mark.parametrize(
    "query",
    [
        "SELECT now() AS at, id FROM t",
        "SELECT id FROM t WHERE hour(now()) = 3",
        "SELECT id FROM t WHERE now() > TIMESTAMP '2020-01-01'",
        "SELECT id FROM t WHERE ts > now() - INTERVAL 1 MONTH",  # falls at the end of months
        "SELECT id FROM t WHERE ts + (now() - ts) > now()",
        "SELECT id, x FROM t LATERAL VIEW explode(array(ts > now())) AS x",
        "SELECT id, exists(array(ts), y -> y < now()) AS e FROM t",
    ],
)
def test_refused(timed: Timed, query: str) -> None:
    with pytest.raises(QueryError, match="now"):
        timed.engine.view("v", query)


@pytest.mark.spark
def test_a_time_of_both_sides_of_a_join_is_compared_in_a_view_on_it(timed: Timed) -> None:
    join = "SELECT id, a.ts + make_dt_interval(0, 0, 0, b.id) AS until FROM t a JOIN t b USING (id)"
    with pytest.raises(QueryError, match="into a view on a view of that join"):
        timed.engine.view("v", f"SELECT id FROM ({join}) WHERE until > now()")
    timed.engine.view("pairs", join)
    timed.engine.view("v", "SELECT id FROM pairs WHERE until > now()")
    timed.insert(1, 1)
    for later in (0, 1, 2):
        timed.now = NOON + later * SECOND
        timed.engine.advance()
        assert timed.rows("v") == Counter([(1,)] if later < 2 else [])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_random_effects(tmp_path: Path, seed: int) -> None:
    """Each row has changed exactly once, whichever write was the last."""
    draw = random.Random(seed)
    timed = Timed(tmp_path, el.Options(compaction_fan_in=2))
    for name in ("recent", "counts", "between", "quiet"):
        timed.engine.view(name, VIEWS[name])
    for _ in range(12):
        for _ in range(draw.randint(0, 3)):
            timed.change(draw)
        timed.now += draw.choice([1, 5, 30, 90]) * SECOND
        timed.files.arm(draw.randint(1, 60), "crash")
        with suppress(Crash, EddylineError):
            timed.engine.advance()
        timed.files.arm(0)
        with suppress(Crash, EddylineError):
            timed.engine.stop()
        timed.open()
        timed.engine.advance()
        timed.check()
    timed.engine.stop()


Row = tuple[int, int | None]


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 12))),
            st.integers(0, 4),
        ),
        max_size=6,
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_operator_shows_each_row_before_and_after_its_moment(
    epochs: list[tuple[list[Row], int]], first: bool
) -> None:
    """The sum of its output is the comparison of all rows with the bound, in each epoch."""
    operator, pending = Flip(2, first), []
    rows: Counter[Row] = Counter()
    shown: Counter[tuple[int, bool | None]] = Counter()
    bound = 0
    for given_rows, advance in epochs:
        bound += advance
        delta = []
        for row in given_rows:
            weight = -1 if rows[row] and row[0] % 2 else 1
            rows[row] += weight
            delta.append((*row, weight))
        names, types = ("h", "c0", "c1", "w"), (pa.int64(), pa.int64(), pa.int64(), pa.int64())
        columns = zip(*((7, *row) for row in delta), strict=True) if delta else ((),) * 4
        table = pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names
        )
        state = Held(operator.layouts[PENDING], pending)
        step = operator.limited(bound).step(table if delta else None, {PENDING: state})
        due = [at < bound for rows in pending for at in rows["h"].to_pylist()]
        assert state.touched == sum(due)  # no other row is read
        for out in step.output:
            for value, flag, weight in zip(*(c.to_pylist() for c in out.columns), strict=True):
                shown[value, flag] += weight
        pending = [*pending, *(rows for rows in step.appends.values() if rows.num_rows)]
        expected: Counter[tuple[int, bool | None]] = Counter()
        for (value, moment), count in rows.items():
            flag = None if moment is None else first if moment >= bound else not first
            expected[value, flag] += count
        assert +shown == +expected
        assert not -shown
        waiting = sum(sum(t["w"].to_pylist()) for t in pending)
        assert waiting == sum(n for (_, at), n in rows.items() if at is not None and at >= bound)


def test_now_stays_while_a_view_that_asks_for_it_lacks_its_function(tmp_path: Path) -> None:
    """Another view is filled in a process without the function: what is due there isn't passed by."""
    files, now = FaultyFiles(str(tmp_path)), NOON
    with_function, without = local_session().newSession(), local_session().newSession()
    with_function.udf.register("same", lambda number: number, "int")

    def opened(session: SparkSession) -> el.Engine:
        engine = el.Engine(files, session)
        engine._workspace.clock = lambda: now
        return engine

    with opened(with_function) as engine:
        engine.table("t", "id INT, ts TIMESTAMP")
        engine.execute(f"INSERT INTO t VALUES (1, timestamp_micros({NOON + SECOND}))")
        engine.view("due", "SELECT same(id) AS id FROM t WHERE ts <= now()")
        engine.advance()
    before, now = last_committed(files).moment, NOON + 60 * SECOND
    with opened(without) as engine:
        engine.view("other", "SELECT id FROM t WHERE ts > now()")
    assert last_committed(files).moment == before
    with opened(with_function) as engine:
        engine.advance()
        assert [row.id for row in engine.snapshot("due").collect()] == [1]
        assert engine.snapshot("other").isEmpty()
