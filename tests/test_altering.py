"""ALTER TABLE: columns come, leave and change, while views and earlier rows stay as they are."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused, rows
from eddyline.errors import EddylineError
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark

TABLE = "CREATE TABLE t (k BIGINT, a INT, b STRING, PRIMARY KEY (k));"
VIEWS = """
CREATE VIEW sums AS SELECT a % 2 AS odd, count(*) AS n, sum(a) AS s FROM t GROUP BY a % 2;
CREATE VIEW star AS SELECT * FROM t WHERE a > 1;
CREATE VIEW texts AS SELECT b, count(*) AS n FROM t GROUP BY b;
CREATE VIEW above AS SELECT max(n) AS most FROM sums;
"""


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


def changes_after(engine: el.Engine, epoch: int, *views: str) -> list:
    found = [engine.changes(view).where(f"epoch > {epoch}").collect() for view in views]
    return [row for one in found for row in one]


def test_views_go_on_untouched_and_old_rows_stay(engine, tmp_path, spark):
    engine.execute(TABLE + VIEWS + "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'x')")
    engine.advance()
    engine.execute("INSERT INTO t VALUES (4, 4, 'z')")  # no epoch has it yet
    built = engine._workspace.manifest.epoch + 1
    plans = {e.id: engine._workspace.manifest.plans[e.id] for e in engine.catalog.entries[1:]}
    engine.execute("ALTER TABLE t ADD COLUMN c DECIMAL(10, 2)")
    assert engine._workspace.manifest.epoch == built + 1
    assert changes_after(engine, built, "sums", "star", "texts", "above") == []
    assert rows(engine, "t") == Counter(
        [(1, 1, "x", None), (2, 2, "y", None), (3, 3, "x", None), (4, 4, "z", None)]
    )
    engine.execute(
        "INSERT INTO t VALUES (5, 5, 'x', 1.5); UPDATE t SET c = a, a = a + 1 WHERE k = 1"
    )
    engine.execute("CREATE VIEW dear AS SELECT k, c FROM t WHERE c > 1.2")
    engine.execute("DELETE FROM t WHERE k = 2")
    engine.advance()
    assert engine.sql("SELECT * FROM star").columns == ["k", "a", "b"]  # as when it was created
    assert rows(engine, "star") == Counter([(1, 2, "x"), (3, 3, "x"), (4, 4, "z"), (5, 5, "x")])
    assert [str(c) for _, c in engine.sql("SELECT * FROM dear").collect()] == ["1.50"]
    assert rows(engine, "sums") == Counter([(0, 2, 6), (1, 2, 8)])
    report = engine.verify()
    assert report
    assert set(report.views) == {"sums", "star", "texts", "above", "dear"}
    now = engine._workspace.manifest.plans
    assert {i: now[i] for i in plans} == plans

    with pytest.raises(EddylineError, match="NO_SUCH_EPOCH"):
        engine.sql(f"SELECT * FROM t VERSION AS OF {built}").collect()
    feed = spark.read.format("eddyline").option("table", "t").option("readChangeFeed", True)
    with pytest.raises(PySparkException, match="CHANGES_EXPIRED"):
        feed.option("startingVersion", built + 1).load(engine.files.root).collect()
    begun = feed.option("startingVersion", built + 2).load(engine.files.root)
    assert {row._commit_version for row in begun.collect()} == {built + 3}  # after that of `dear`
    engine.execute("CREATE OR REPLACE VIEW star AS SELECT * FROM t WHERE a > 1")
    assert engine.sql("SELECT * FROM star").columns == ["k", "a", "b", "c"]
    engine.pause("above")
    assert "resume" in refused(engine, "ALTER TABLE t ADD COLUMN d INT", "STILL_READ")
    engine.resume("above")

    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        before = again.advance()
        again.execute(
            "DROP VIEW star; DROP VIEW texts; DROP VIEW dear; ALTER TABLE t DROP COLUMN b"
        )
        again.execute("ALTER TABLE t RENAME COLUMN k TO id")
        more = spark.sql("SELECT 5L AS id, 8 AS a, CAST(2.5 AS DECIMAL(10, 2)) AS c")
        writer = more.write.format("eddyline").option("table", "t").mode("append")
        writer.save(str(tmp_path / "storage"))
        again.advance()
        assert again.catalog.get("t").key == ("id",)
        assert rows(again, "sums") == Counter([(0, 3, 14), (1, 1, 3)])
        assert {str(r.c) for r in again.sql("SELECT c FROM t WHERE id IN (1, 5)").collect()} == {
            "1.00",
            "2.50",
        }
        assert len(changes_after(again, before, "sums")) == 4
        assert again.verify()


def test_several_columns_come_and_leave_in_one_statement(engine):
    engine.execute(TABLE + VIEWS + "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, NULL)")
    engine.execute(
        "ALTER TABLE t ADD COLUMNS (c INT DEFAULT 7, d STRING, e DATE NOT NULL DEFAULT DATE'2026-01-02')"
    )
    epoch = engine._workspace.manifest.epoch
    day = dt.date(2026, 1, 2)
    assert rows(engine, "t") == Counter([(1, 1, "x", 7, None, day), (2, 2, None, 7, None, day)])
    engine.execute("INSERT INTO t (k, d) VALUES (3, 'new')")
    engine.advance()
    assert (3, None, None, 7, "new", day) in rows(engine, "t")
    assert engine.verify()
    # all or none
    refused(engine, "ALTER TABLE t ADD COLUMNS (f INT, g NOTHING)", "BAD_SCHEMA")
    refused(engine, "ALTER TABLE t ADD COLUMNS (f INT, F INT)", "SCRIPT_SYNTAX")
    refused(engine, "ALTER TABLE t ADD COLUMNS (f INT, g INT NOT NULL)", "BAD_SCHEMA")
    refused(engine, "ALTER TABLE t DROP COLUMNS (c, b)", "STILL_READ")
    refused(engine, "ALTER TABLE t DROP COLUMNS IF EXISTS (c, C)", "SCRIPT_SYNTAX")
    refused(engine, "ALTER TABLE t DROP COLUMNS (c d)", "SCRIPT_SYNTAX")
    refused(engine, "ALTER TABLE t ADD COLUMNS ()", "SCRIPT_SYNTAX")
    assert engine.catalog.get("t").columns.names == ["k", "a", "b", "c", "d", "e"]
    engine.execute("ALTER TABLE t DROP COLUMNS (e, C)")
    assert (3, None, None, "new") in rows(engine, "t")
    assert engine._workspace.manifest.epoch == epoch + 2
    assert engine.verify()


def test_if_not_exists_and_if_exists_leave_out_what_is_done(engine):
    engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
    for _ in range(2):  # as when a script runs again
        engine.execute("ALTER TABLE t ADD COLUMNS IF NOT EXISTS (A INT, b INT DEFAULT 2)")
        assert rows(engine, "t") == Counter([(1, 2)])
    epoch = engine._workspace.manifest.epoch
    engine.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS b STRING")  # its type isn't compared
    engine.execute("ALTER TABLE t DROP COLUMN IF EXISTS c")
    assert engine._workspace.manifest.epoch == epoch
    for _ in range(2):
        engine.execute("ALTER TABLE t DROP COLUMNS IF EXISTS c, b")
        assert rows(engine, "t") == Counter([(1,)])
    refused(engine, "ALTER TABLE other ADD COLUMN IF NOT EXISTS c INT", "NOT_FOUND")


def test_what_is_refused(engine, tmp_path):
    (tmp_path / "in").mkdir()
    stream = f"CREATE STREAM s (v INT) USING json OPTIONS (path '{tmp_path / 'in'}')"
    engine.execute(TABLE + VIEWS + stream)
    for statement, condition, words in (
        ("DROP COLUMN b", "STILL_READ", ("star", "texts")),
        ("RENAME COLUMN b TO c", "STILL_READ", ("star, texts", "CREATE OR REPLACE")),
        ("ALTER COLUMN a TYPE BIGINT", "STILL_READ", ("sums",)),
        ("DROP COLUMN k", "BAD_SCHEMA", ("primary key",)),
        ("ALTER COLUMN k TYPE DECIMAL(20, 0)", "BAD_SCHEMA", ("primary key",)),
        ("ADD COLUMN A INT", "BAD_SCHEMA", ("already",)),
        ("RENAME COLUMN a TO B", "BAD_SCHEMA", ("already",)),
        ("ADD COLUMN c NOTHING", "BAD_SCHEMA", ()),
        ("DROP COLUMN c", "UNKNOWN_COLUMN", ("k, a, b",)),
        ("SET TBLPROPERTIES (x = 1)", "SCRIPT_UNSUPPORTED", ("ADD COLUMN",)),
    ):
        text = refused(engine, f"ALTER TABLE t {statement}", condition)
        assert all(word in text for word in words), text
    assert "sums" not in refused(engine, "ALTER TABLE t DROP COLUMN b", "STILL_READ")
    refused(engine, "ALTER TABLE other ADD COLUMN c INT", "NOT_FOUND")
    refused(engine, "ALTER STREAM s DROP COLUMN value", "UNKNOWN_COLUMN")
    refused(engine, "ALTER STREAM s DROP COLUMN v", "BAD_SCHEMA")
    engine.view("framed", lambda: engine.relation("t").select("k"))
    assert "framed" in refused(engine, "ALTER TABLE t ADD COLUMN c INT", "STILL_READ")
    engine.execute("DROP VIEW framed; DROP VIEW above; DROP VIEW sums; DROP VIEW star")
    assert "TYPE SMALLINT" not in refused(
        engine, "ALTER TABLE t ALTER COLUMN a TYPE SMALLINT", "BAD_SCHEMA"
    )
    refused(engine, "ALTER TABLE t RENAME COLUMN a TO _received_at", "RESERVED_COLUMN")
    engine.execute(
        "ALTER TABLE t ALTER COLUMN a TYPE BIGINT; INSERT INTO t VALUES (1, 5000000000, 'x')"
    )
    engine.advance()
    assert rows(engine, "t") == Counter([(1, 5_000_000_000, "x")])


def test_a_table_without_a_key_stays_a_multiset(engine):
    engine.execute("CREATE TABLE t (a INT, b INT); INSERT INTO t VALUES (1, 1), (1, 1), (2, 1)")
    engine.execute("CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a")
    engine.advance()
    engine.execute("ALTER TABLE t ALTER COLUMN b TYPE DOUBLE; ALTER TABLE t ADD COLUMN c STRING")
    engine.execute("DELETE FROM t WHERE a = 2; INSERT INTO t VALUES (1, 0.5, 'x')")
    engine.advance()
    assert rows(engine, "t") == Counter({(1, 1.0, None): 2, (1, 0.5, "x"): 1})
    assert rows(engine, "v") == Counter({(1, 3): 1})
    engine.execute("ALTER TABLE t DROP COLUMN b")
    assert rows(engine, "t") == Counter({(1, None): 2, (1, "x"): 1})
    assert engine.verify()


def test_a_crash_at_effects_on_the_disk(tmp_path, spark):
    """Either nothing has changed, or all has; views and rows are right in both cases."""
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute("CREATE TABLE t (k INT, a INT, PRIMARY KEY (k))")
    engine.execute("CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a")
    engine.execute("INSERT INTO t VALUES (1, 1), (2, 1), (3, 2)")
    engine.advance()
    expected, done = Counter([(1, 2), (2, 1)]), 0
    fail_at = 1
    while True:
        files.arm(fail_at, "crash", "driver")
        try:
            engine.execute(f"ALTER TABLE t ADD COLUMN c{done} INT")
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        columns = engine.catalog.get("t").columns.names
        assert len(columns) - 2 in (done, done + 1), fail_at
        done = len(columns) - 2
        engine.advance()
        assert rows(engine, "v") == expected, fail_at
        assert {row[:2] for row in rows(engine, "t")} == {(1, 1), (2, 1), (3, 2)}
        if not hit:
            break
        fail_at += 7
    assert done
    engine.execute("DELETE FROM t WHERE k = 3")
    engine.advance()
    assert rows(engine, "v") == Counter([(1, 2)])
    assert engine.verify()
    engine.stop()
