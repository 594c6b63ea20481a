"""Small results are read where their DataFrame is made, without Python workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from eddyline import Engine, Options
from eddyline.answers import reader
from eddyline.errors import StateError
from eddyline.spark.schema import from_arrow
from eddyline.spark.session import BATCH_ROWS
from eddyline.state.manifest import ROWS, committed_epochs, last_committed
from waiting import until

pytestmark = pytest.mark.spark

KINDS = {
    "flag": "BOOLEAN", "tiny": "TINYINT", "small": "SMALLINT", "number": "INT", "big": "BIGINT",
    "single": "FLOAT", "real": "DOUBLE", "price": "DECIMAL(38, 10)", "name": "STRING", "code": "CHAR(3)",
    "short": "VARCHAR(5)", "data": "BINARY", "day": "DATE", "ts": "TIMESTAMP", "local": "TIMESTAMP_NTZ",
    "list": "ARRAY<STRUCT<a: INT, b: STRING>>", "parts": "STRUCT<a: INT, b: MAP<STRING, DATE>>",
}  # fmt: skip
VALUES = (
    "true, 1, 2, 3, 4, 1.5, -0.0, 12.3400000000, 'é', 'ab', 'xyz', X'00ff', DATE '0001-01-01', "
    "TIMESTAMP '1883-11-18 12:00:00.000001', TIMESTAMP_NTZ '9999-12-31 23:59:59', "
    "array(struct(1, 'x'), NULL, struct(NULL, NULL)), struct(1, map('k', NULL))"
)


@pytest.fixture
def by_workers(monkeypatch):
    def read(frame_of):
        """Return a frame of small results that workers read."""
        with monkeypatch.context() as patched:
            patched.setattr(reader, "HELD_ROWS", -1)
            return frame_of()

    monkeypatch.setattr(reader, "HELD_ROWS", 10_000)
    return read


def is_held(frame) -> bool:
    return frame._jdf.queryExecution().analyzed().collectLeaves().head().nodeName() == "LogicalRDD"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_and_types_are_those_that_workers_read(tmp_path, spark, by_workers, zone):
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    with Engine(str(tmp_path), session) as engine:
        columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
        engine.execute(f"CREATE TABLE t ({columns}); CREATE VIEW v AS SELECT * FROM t ORDER BY big")
        engine.execute(f"INSERT INTO t VALUES ({VALUES}), ({', '.join(['NULL'] * len(KINDS))})")
        engine.execute(f"INSERT INTO t VALUES ({VALUES})")  # a row that is there twice
        engine.advance()
        for name in ("t", "v"):
            local = engine.snapshot(name)
            read = by_workers(lambda name=name: engine.snapshot(name))
            assert (is_held(local), is_held(read)) == (True, False)
            assert local.schema == read.schema
            assert sorted(map(repr, local.collect())) == sorted(map(repr, read.collect()))
            assert local.count() == 3
        assert [row.big for row in engine.snapshot("v").collect()] == [None, 4, 4]
        empty = engine.sql("SELECT * FROM v WHERE big < 0")
        assert (empty.count(), empty.columns) == (0, [*KINDS])


def test_what_is_large_or_of_other_types_is_read_by_workers(tmp_path, spark, by_workers):
    with Engine(str(tmp_path), spark) as engine:
        engine.execute("""
            CREATE TABLE t (a INT);
            CREATE TABLE j (v VARIANT, d INTERVAL DAY TO SECOND);
            CREATE TABLE n (s STRUCT<a: INT NOT NULL>);
            CREATE VIEW pair AS SELECT named_struct('a', a, 'A', a + 1) AS s FROM t WHERE a = 1;
            CREATE VIEW many AS SELECT 'x' AS x FROM t;
            CREATE VIEW wide AS SELECT a, repeat(uuid_of, 60000) AS text
            FROM (SELECT a, sha2(CAST(a AS STRING), 256) AS uuid_of FROM t WHERE a < 3);
        """)
        engine.execute("INSERT INTO t SELECT id FROM range(10001); INSERT INTO n VALUES (NULL)")
        engine.execute("INSERT INTO j SELECT parse_json('1'), INTERVAL '1' DAY")
        engine.advance()
        frames = {name: engine.snapshot(name) for name in ("t", "j", "n", "many", "wide")}
        assert not [name for name, frame in frames.items() if is_held(frame)]
        frames["pair"] = engine.snapshot("pair")
        counts = {name: frame.count() for name, frame in frames.items()}
        assert counts == {"t": 10_001, "j": 1, "n": 1, "pair": 1, "many": 10_001, "wide": 3}


def test_rows_that_are_there_often_are_not_repeated_in_the_driver(
    tmp_path, spark, by_workers, monkeypatch
):
    with Engine(str(tmp_path), spark) as engine:
        engine.execute("""
            CREATE TABLE t (a INT);
            CREATE VIEW long AS SELECT repeat('x', 300) AS text FROM t;
            CREATE VIEW often AS SELECT 'x' AS text FROM t LATERAL VIEW explode(sequence(1, 4)) AS n;
        """)
        engine.execute("INSERT INTO t SELECT 1 FROM range(4000)")
        engine.advance()
        with monkeypatch.context() as patched:
            patched.setattr(reader, "repeat", None)
            frames = [engine.snapshot(name) for name in ("long", "often")]
        assert [frame.count() for frame in frames] == [4_000, 16_000]


def test_threads_leave_the_active_session_as_it_is(tmp_path, spark, by_workers):
    with Engine(str(tmp_path), spark.newSession()) as engine:
        engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
        engine.advance()
        before = SparkSession._activeSession
        with ThreadPoolExecutor(8) as pool:
            frames = [pool.submit(engine.sql, "SELECT a FROM t") for _ in range(40)]
            made = [pool.submit(engine.view, f"v{n}", "SELECT a FROM t") for n in range(4)]
            assert {frame.result().first().a for frame in frames} == {1}
            assert all(view.result() for view in made)
        assert SparkSession._activeSession is before


def test_rows_behind_an_empty_part_are_not_lost(tmp_path, spark, by_workers):
    kinds = pa.schema([("a", pa.int64())])
    parts = [pa.table({"a": numbers}, kinds) for numbers in ([1], [], [2])]
    columns = StructType([StructField("a", LongType())])
    rows = from_arrow(spark, pa.concat_tables(parts), columns).collect()
    assert [row.a for row in rows] == [1, 2]
    with Engine(str(tmp_path), spark, Options(buckets=8)) as engine:
        engine.execute(
            "CREATE TABLE t (a INT); CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a"
        )
        engine.execute("INSERT INTO t SELECT id FROM range(40)")
        engine.advance()
        engine.execute("DELETE FROM t WHERE a > 3")
        engine.advance()
        for name in ("t", "v"):
            assert sorted(row.a for row in engine.snapshot(name).collect()) == [0, 1, 2, 3]


def test_such_a_frame_keeps_its_rows_and_retains_no_epoch(tmp_path, spark, by_workers):
    with Engine(str(tmp_path), spark, Options(retain_epochs=1)) as engine:
        engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
        engine.advance()
        frame, first = engine.snapshot("t"), engine.advance()
        rows = iter(range(2, 100))

        def gone() -> bool:
            engine.execute(f"INSERT INTO t VALUES ({next(rows)})")
            engine.advance()
            return committed_epochs(engine.files)[0] > first

        until(gone, lambda: "the epoch is held, and stays")
        assert [row.a for row in frame.collect()] == [1]


def test_damage_is_named_when_the_frame_is_made(tmp_path, spark, by_workers):
    with Engine(str(tmp_path / "s"), spark) as engine:
        engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
        engine.advance()
        runs = last_committed(engine.files).all_runs()
    shutil.copytree(tmp_path / "s", tmp_path / "damaged")  # this process has not read it yet
    with Engine(str(tmp_path / "damaged"), spark, read_only=True) as engine:
        for run in runs:
            os.truncate(engine.files.path(run.name), run.bytes - 9)
        with pytest.raises(StateError, match=r"it has \d+ bytes"):
            engine.snapshot("t")


def test_sql_needs_no_relation_that_is_only_mentioned(tmp_path, spark, by_workers):
    with Engine(str(tmp_path / "s"), spark) as engine:
        engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
        engine.execute("CREATE TABLE other (t INT); INSERT INTO other VALUES (7)")
        engine.execute("CREATE VIEW v AS SELECT a FROM t; CREATE VIEW w AS SELECT t FROM other")
        engine.advance()
        manifest = last_committed(engine.files)
        runs = {
            name: manifest.arrangements[manifest.result(engine.catalog.get(name).id, ROWS)]
            for name in "tv"
        }
    shutil.copytree(tmp_path / "s", tmp_path / "damaged")
    with Engine(str(tmp_path / "damaged"), spark, read_only=True) as engine:
        for buckets in runs.values():
            for run in sum(buckets.values(), ()):
                os.truncate(engine.files.path(run.name), run.bytes - 9)
        assert engine.sql("SELECT t FROM other").collect() == [(7,)]
        with pytest.raises(StateError, match=r"it has \d+ bytes"):
            engine.sql("SELECT a FROM t")
        report = engine.verify()  # compares the others
        assert ([*report.views], report.broken) == (["w"], ("v",))
        assert "DAMAGED_RUN" in report.failing["v"]


# what plain Spark doesn't evaluate, for these rows
NOT_EVALUATED = {
    "SELECT count(*) AS n FROM (SELECT 1 / b AS x FROM t)": 2,
    "SELECT t.a FROM t JOIN (SELECT a, CAST(s AS INT) AS i FROM t) u ON t.a = u.a WHERE t.a = 1": 1,
    "SELECT x FROM (SELECT b, 1 / b AS x FROM t) WHERE b <> 0": 1.0,
    "SELECT a FROM t WHERE a = 1 AND EXISTS (SELECT 1 / b FROM t u WHERE u.a = t.a)": 1,
}


def test_errors_of_rows_and_columns_that_a_query_leaves_out_stay_out(tmp_path, spark, by_workers):
    with Engine(str(tmp_path), spark) as engine:
        engine.execute("CREATE TABLE t (a INT, b INT, s STRING)")
        for number, query in enumerate(NOT_EVALUATED):
            engine.execute(f"CREATE VIEW v{number} AS {query}")
        engine.execute("INSERT INTO t VALUES (1, 0, 'x'), (3, 1, '7')")
        engine.advance()
        for query, wanted in NOT_EVALUATED.items():
            assert engine.sql(query).collect() == [(wanted,)], query
        assert engine.verify()
        engine.execute("DELETE FROM t WHERE b <> 0 AND 1 / b > 0")
        engine.advance()
        assert [row.a for row in engine.snapshot("t").collect()] == [1]


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_session_without_a_limit_of_batches(tmp_path, spark, by_workers, limit):
    session = spark.newSession()
    session.conf.set(BATCH_ROWS, limit)
    with Engine(str(tmp_path), session) as engine:
        engine.execute("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2)")
        engine.execute("UPDATE t SET a = a + 10 WHERE a = 2")  # reads rows that wait
        engine.advance()
        frame = engine.snapshot("t")
        assert is_held(frame)
        assert sorted(frame.collect()) == sorted(engine.sql("SELECT a FROM t").collect())
        assert sorted(frame.collect()) == [(1,), (12,)]
    assert session.conf.get(BATCH_ROWS) == limit


PROGRAM = """
import sys
import eddyline as el

with el.Engine(sys.argv[1]) as engine:
    engine.table("t", "a INT").insert([(n,) for n in range(20_000)])
    with open(sys.argv[2] + "/lines.json", "w") as lines:
        lines.writelines('{"a": %d}\\n' % n for n in range(20_000))
    engine.execute(f"CREATE STREAM s (a INT) USING json OPTIONS (path '{sys.argv[2]}')")
    view = engine.view("v", "SELECT a FROM t")
    engine.advance()
    frames = [engine.snapshot("t"), view.changes(), engine.sql("SELECT a FROM s")]
    print([len(frame.take(2)) for frame in frames])
"""


def test_workers_whose_rows_are_not_needed_end_silently(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "storage"), str(tmp_path / "lines")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[2, 2, 2]\n", "")
