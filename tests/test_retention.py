"""Streams that keep their rows for a time: live views go on, and what needs older rows says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import eddyline as el
import eddyline.answers.verify
import eddyline.api.epochs
from eddyline.answers.difference import Difference

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = "SELECT k, count(*) AS n FROM s GROUP BY k"
OPTIONS = el.Options(retain_epochs=1, lease_seconds=0)


@pytest.fixture(autouse=True)
def _retire_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", 1)


class Days:
    """A stream of files that keeps its rows for three days, under a clock that the test sets.

    Args:
        format: Spark reads csv, so that rows are copied; those of json stay in their files.
    """

    def __init__(
        self, root: Path, spark: SparkSession, format: str, columns: str = "k INT, v INT"
    ) -> None:
        self.root, self.spark, self.format, self.day = root, spark, format, 0
        (root / "in").mkdir()
        self.open()
        self.engine.execute(
            f"CREATE STREAM s ({columns}) USING {format} OPTIONS (path '{root / 'in'}', retain '3 days')"
        )

    def open(self) -> None:
        """Open the storage, perhaps again."""
        self.engine = el.Engine(str(self.root / "storage"), self.spark, OPTIONS)
        self.engine._workspace.clock = lambda: self.micros

    @property
    def micros(self) -> int:
        return round((START + timedelta(days=self.day)).timestamp()) * 1_000_000

    def next_days(self, days: int) -> None:
        """Let days go by, each with two rows."""
        for _ in range(days):
            self.day += 1
            rows = [{"k": self.day % 2, "v": self.day}, {"k": 2, "v": self.day}]
            lines = (
                json.dumps(row) if self.format == "json" else f"{row['k']},{row['v']}"
                for row in rows
            )
            path = self.root / "in" / f"{self.day:03}"
            path.with_name(f".{path.name}").write_text("".join(f"{line}\n" for line in lines))
            path.with_name(f".{path.name}").rename(path)
            self.engine.advance()

    def days_in(self, query: str) -> list[int]:
        return sorted(row[0] for row in self.engine.sql(query).collect())

    def rows(self, view: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.engine.snapshot(view).collect()))

    @property
    def status(self) -> dict[str, Any]:
        return next(one for one in self.engine.status()["sources"] if one["name"] == "s")


@pytest.mark.parametrize("format", [pytest.param("csv", marks=pytest.mark.slow), "json"])
def test_views_go_on_and_later_ones_begin_with_the_rows_that_are_left(
    tmp_path: Path, spark: SparkSession, format: str
) -> None:
    days = Days(tmp_path, spark, format)
    days.engine.view("early", COUNTS)
    days.engine.view("above", "SELECT sum(n) AS n FROM early")
    days.next_days(4)
    assert days.status["retain"] == "3 days, 0:00:00"
    days.next_days(8)
    kept = days.days_in("SELECT DISTINCT v FROM s")
    assert kept == list(range(kept[0], 13))
    assert 3 <= len(kept) <= 6  # what epochs need that are still open stays a little longer
    assert days.rows("early") == [(0, 6), (1, 6), (2, 12)]
    assert days.rows("above") == [(24,)]
    gone = datetime.fromisoformat(days.status["expired_before"])
    assert START + timedelta(days=kept[0] - 1) < gone <= START + timedelta(days=kept[0])

    days.engine.view("late", COUNTS)
    report = days.engine.verify()
    assert set(report.views) == {"late"}
    assert report.equal
    assert set(report.failing) == {"early", "above"}
    assert "not compared: rows of stream s" in str(report)
    assert sum(n for _, n in days.rows("late")) == 2 * len(kept)

    days.next_days(8)
    assert set(days.engine.verify().failing) == {"early", "above", "late"}
    assert days.rows("above") == [(40,)]
    days.engine.stop()
    days.open()
    days.next_days(2)
    assert days.rows("above") == [(44,)]
    files = list((tmp_path / "storage" / "logs").rglob("*.arrow"))
    assert len(files) <= 8
    # nothing is read twice, nor do files have to stay
    for day in range(1, 15):
        (tmp_path / "in" / f"{day:03}").unlink()
    days.engine.advance()
    days.engine.view("last", COUNTS)
    days.next_days(1)
    assert days.rows("above") == [(46,)]
    assert days.engine.verify("last").equal
    days.engine.stop()


def test_what_would_compute_a_view_from_fewer_rows_is_refused(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.view("early", COUNTS)
    days.engine.view("paused", COUNTS)
    days.next_days(3)
    days.engine.pause("paused")
    days.next_days(9)
    for refused in (lambda: days.engine.resume("paused"), lambda: days.engine.rebucket(5)):
        with pytest.raises(el.StateError, match="ROWS_EXPIRED") as caught:
            refused()
        assert "CREATE OR REPLACE VIEW" in str(caught.value)
    before = days.rows("early")
    days.next_days(1)
    assert sum(n for _, n in days.rows("early")) == sum(n for _, n in before) + 2
    days.engine.stop()


def test_a_view_with_a_python_function_is_not_computed_again_from_fewer_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.spark.udf.register("same", lambda k: k, "int")
    query = "SELECT same(k) AS k, count(*) AS n FROM s GROUP BY 1"
    days.engine.view("early", query)
    days.next_days(12)
    days.engine.view("early", query, replace=True)
    assert sum(n for _, n in days.rows("early")) == 24
    days.engine.stop()


def test_a_view_whose_state_another_version_has_written_is_set_aside(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.view("early", COUNTS)
    days.engine.view("above", "SELECT sum(n) AS n FROM early")
    days.engine.table("t", "k INT")
    days.engine.view("other", "SELECT count(*) AS n FROM t")
    days.next_days(12)
    before = days.rows("early")
    days.engine.stop()
    changed = el.Options(retain_epochs=1, lease_seconds=0, native_rules=0)
    with el.Engine(str(tmp_path / "storage"), spark, changed) as engine:
        engine._workspace.clock = lambda: days.micros
        days.engine = engine
        days.next_days(1)
        failing = {
            one["name"]: one for one in engine.status()["views"] if one["state"] == "failing"
        }
        assert set(failing) == {"early", "above"}
        assert "rows of stream s are gone" in failing["early"]["error"]
        assert "reads early" in failing["above"]["error"]
        with pytest.raises(el.EngineError, match="VIEW_FAILING"):
            engine.snapshot("early")
        last = engine.status()["epoch"]
        days.next_days(1)
        assert engine.status()["epoch"] == last + 1  # no epoch is spent on trying again
        engine.execute(f"CREATE OR REPLACE VIEW early AS {COUNTS}")
        days.next_days(1)
        assert sum(n for _, n in days.rows("early")) < sum(n for _, n in before)
        assert days.rows("above") == [(sum(n for _, n in days.rows("early")),)]
        assert engine.verify().equal


def test_a_view_that_stands_still_begins_anew(tmp_path: Path, spark: SparkSession) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.view("paused", COUNTS)
    days.engine.view("framed", days.engine.relation("s").groupBy("k").count())
    days.engine.view("live", COUNTS)
    days.engine.pause("paused")
    days.engine.pause("framed")
    days.next_days(12)
    days.engine.execute("ALTER STREAM s RETAIN ALL")  # what is left stays from now on
    days.engine.execute(f"CREATE OR REPLACE VIEW paused AS {COUNTS}")
    days.engine.view("framed", days.engine.relation("s").groupBy("k").count(), replace=True)
    days.engine.execute(f"CREATE OR REPLACE VIEW live AS {COUNTS}")
    days.next_days(1)
    assert set(days.engine.verify().failing) == {"live"}
    assert days.engine.verify()
    assert days.rows("paused") == days.rows("framed") != days.rows("live")
    assert sum(n for _, n in days.rows("live")) == 26
    days.engine.stop()


def test_a_view_that_fails_says_when_it_can_no_longer_go_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.table("t", "k INT").insert([(0,)])
    days.engine.view("early", f"SELECT c.k, n FROM ({COUNTS}) c JOIN t ON 1 / (t.k - 1) < c.k + n")
    days.next_days(3)
    days.engine.execute("INSERT INTO t VALUES (1)")
    days.next_days(9)
    days.engine.execute("DELETE FROM t WHERE k = 1")
    days.engine.advance()
    epoch = days.engine.status()["epoch"]
    for _ in range(3):
        days.engine._epochs.retry()
    assert days.engine.status()["epoch"] == epoch
    (view,) = days.engine.status()["views"]
    assert "rows of stream s are gone" in view["error"]
    days.engine.stop()


@pytest.fixture
def due(tmp_path: Path, spark: SparkSession) -> Iterator[Days]:
    """A stream all of whose rows are there, most of which go with the next epoch."""
    days = Days(tmp_path, spark, "csv")
    days.engine.execute("ALTER STREAM s RETAIN ALL")
    days.engine.view("early", COUNTS)
    days.next_days(9)
    days.engine.execute("ALTER STREAM s RETAIN '3 days'")
    yield days
    days.engine.stop()


def test_rows_stay_until_rebucket_has_computed_the_views(due: Days) -> None:
    due.engine.rebucket(5)
    assert due.days_in("SELECT DISTINCT v FROM s")[0] > 1
    due.next_days(1)
    assert sum(n for _, n in due.rows("early")) == 20


def test_rows_that_go_while_views_are_compared_are_no_difference(
    due: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = eddyline.answers.verify.frames_difference

    def late(*sides: Any) -> Difference:
        workspace = due.engine._workspace
        manifest = workspace.manifest
        workspace.sources.expire(workspace.catalog, manifest, manifest.epoch)
        return compare(*sides)

    monkeypatch.setattr(eddyline.answers.verify, "frames_difference", late)
    report = due.engine.verify()
    assert set(report.failing) == {"early"}
    assert not report.views


def test_a_constraint_stays_where_views_could_not_be_computed_without_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    rule = "CONSTRAINT positive EXPECT (v > 0) ON VIOLATION DROP ROW"
    days = Days(tmp_path, spark, "csv", f"k INT, v INT, {rule}")
    days.engine.view("early", COUNTS)
    days.next_days(12)
    with pytest.raises(el.StateError, match="ROWS_EXPIRED"):
        days.engine.execute("ALTER STREAM s DROP CONSTRAINT positive")
    days.next_days(1)
    assert sum(n for _, n in days.rows("early")) == 26
    days.engine.drop("view", "early")
    days.engine.execute("ALTER STREAM s DROP CONSTRAINT positive")
    days.engine.stop()


def test_files_that_grow_are_compared_by_what_is_left_of_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = Days(tmp_path, spark, "json")
    grown = tmp_path / "in" / "000.json"
    grown.write_text('{"k": 7, "v": 0}\n')
    days.next_days(9)
    with grown.open("a") as file:
        file.write('{"k": 7, "v": 9}\n')
    days.next_days(1)
    days.engine.view("late", COUNTS)
    assert (7, 1) in days.rows("late")
    assert days.engine.verify("late").equal
    days.engine.stop()


def test_columns_change_after_old_files_are_gone(tmp_path: Path, spark: SparkSession) -> None:
    days = Days(tmp_path, spark, "parquet")
    for day in range(12):
        days.day = day
        rows = pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([day], pa.int32())})
        pq.write_table(rows, tmp_path / "in" / f"{day:03}.parquet")
        days.engine.advance()
    (tmp_path / "in" / "000.parquet").unlink()
    days.engine.execute("ALTER STREAM s ADD COLUMN more STRING")
    days.engine.view("late", "SELECT count(more) AS m, count(*) AS n FROM s")
    assert days.rows("late")[0][0] == 0
    days.engine.stop()


def test_retention_is_changed(tmp_path: Path, spark: SparkSession) -> None:
    days = Days(tmp_path, spark, "csv")
    days.engine.execute("ALTER STREAM s RETAIN ALL")
    days.next_days(8)
    assert days.days_in("SELECT DISTINCT v FROM s") == list(range(1, 9))
    assert "retain" not in days.status
    days.engine.execute("ALTER STREAM s RETAIN '36 hours'")
    assert days.status["retain"] == "1 day, 12:00:00"
    days.next_days(2)
    assert days.days_in("SELECT DISTINCT v FROM s")[0] >= 7
    days.engine.stop()
    days.open()
    assert days.status["retain"] == "1 day, 12:00:00"
    days.engine.stop()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE STREAM r (k INT) USING csv OPTIONS (path '{0}', retain 'soon')", "'soon' is no time"),
        ("CREATE STREAM r (k INT) USING csv OPTIONS (path '{0}', retain '-1 day')", "'-1 day' is no time"),
        ("CREATE STREAM r (k INT, PRIMARY KEY (k)) USING csv OPTIONS (path '{0}', retain '1 day')", "stored apart"),
        ("ALTER STREAM s__late RETAIN '1 day'", "belongs to another stream"),
        ("ALTER STREAM s RETAIN '0 days'", "'0 days' is no time"),
    ],
)  # fmt: skip
def test_what_is_no_retention_is_refused(
    tmp_path: Path, spark: SparkSession, statement: str, why: str
) -> None:
    with el.Engine(str(tmp_path / "storage"), spark) as engine:
        engine.execute(
            "CREATE STREAM s (ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL 1 MINUTE) USING json"
            f" OPTIONS (path '{tmp_path}', RETAIN '1 hour')"
        )
        with pytest.raises(el.DataError, match=why):
            engine.execute(statement.format(tmp_path))
