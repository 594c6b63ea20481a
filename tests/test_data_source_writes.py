"""Spark's data source `eddyline`: DataFrames and streaming queries that write into tables."""

from __future__ import annotations

import os
import random
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import eddyline as el
from eddyline.source.inbox import BATCH, FOLDER
from processes import Child
from waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture
def engine(storage: str, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(storage, spark) as engine:
        yield engine


def append(frame: DataFrame, storage: str, table: str, **options: Any) -> None:
    writer = frame.write.format("eddyline").options(table=table, **options)
    writer.mode("append").save(storage)


def rows(frame: DataFrame) -> Counter:
    return Counter(tuple(row) for row in frame.collect())


def left(engine: el.Engine, table: str) -> list[str]:
    """Return what is in the inbox of a table."""
    return os.listdir(engine.files.path(f"{FOLDER}/{engine.catalog.get(table).id}"))


def refused(call: Any, condition: str) -> str:
    with pytest.raises(PySparkException) as error:
        call()
    assert f"[{condition}]" in str(error.value), str(error.value)[-2000:]
    return str(error.value)


def test_rows_of_all_types_become_those_of_the_table(engine, storage, spark):
    columns = (
        "id BIGINT, ts TIMESTAMP, local TIMESTAMP_NTZ, day DATE, d DECIMAL(30, 2), x DOUBLE, s STRING, "
        "b BINARY, l ARRAY<TIMESTAMP>, m MAP<STRING, INT>, n STRUCT<a: INT, t: TIMESTAMP>, ok BOOLEAN"
    )
    table = engine.table("typed", columns, primary_key=["id"])
    other = engine.table("other", columns, primary_key=["id"])
    berlin = spark.newSession()
    berlin.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    made = berlin.sql(
        "SELECT id, timestamp'2026-03-29 01:30:00' + make_interval(0,0,0,id) AS ts, "
        "timestamp_ntz'2026-01-01 00:00:00' AS local, date'1969-12-31' AS day, "
        "CAST(id / 4 AS DECIMAL(30, 2)) AS d, id / 3D AS x, 'x' || id AS s, CAST('y' AS BINARY) AS b, "
        "array(timestamp'2026-01-01 00:00:00', NULL) AS l, map('k', 1) AS m, "
        "named_struct('a', 1, 't', timestamp'1900-01-01 00:00:00') AS n, id > 1 AS ok FROM range(5)"
    )
    engine.view("twice", "SELECT s, n.t AS t, l[0] AS first FROM typed WHERE ts IS NOT NULL")
    append(made, storage, "typed")
    other.insert(made)
    engine.advance()
    assert table.snapshot().count() == 5
    assert Counter(map(str, table.snapshot().collect())) == Counter(
        map(str, other.snapshot().collect())
    )
    assert engine.verify("twice")
    assert left(engine, "typed") == []


def test_columns_are_matched_by_name_and_types_may_be_narrower(engine, storage, spark):
    table = engine.table("t", "Id BIGINT, price DECIMAL(12, 2), x DOUBLE, note STRING")
    frame = spark.sql(
        "SELECT CAST(1.5 AS FLOAT) AS X, CAST(2 AS TINYINT) AS ID, 3.25 AS PRICE UNION ALL "
        "SELECT CAST(0.5 AS FLOAT), CAST(4 AS TINYINT), 0.25"
    )
    append(frame, storage, "t")
    engine.advance()
    found = {(i, str(p), x, n) for i, p, x, n in table.snapshot().collect()}
    assert found == {(2, "3.25", 1.5, None), (4, "0.25", 0.5, None)}


def test_what_is_refused(engine, storage, spark):
    engine.table("t", "k STRING, v INT", primary_key=["k"])
    engine.view("w", "SELECT k FROM t")
    good = spark.sql("SELECT 'a' AS k, 1 AS v")
    assert "t" in refused(lambda: append(good, storage, "other"), "NOT_FOUND")
    refused(lambda: append(good, storage, "w"), "NOT_FOUND")
    refused(lambda: append(good, storage + "x", "t"), "NO_STORAGE")
    assert not os.path.exists(storage + "x")
    for options in (
        {"view": "t"},
        {"table": "t", "txnAppId": "a"},
        {"table": "t", "txnVersion": 1},
        {"table": "t", "txnAppId": "a", "txnVersion": 1, "txnVersions": 2},
    ):
        writer = good.write.format("eddyline").options(**options).mode("append")
        refused(lambda writer=writer: writer.save(storage), "BAD_OPTION")
    overwrite = good.write.format("eddyline").option("table", "t").mode("overwrite")
    assert "DELETE FROM" in refused(lambda: overwrite.save(storage), "BAD_OPTION")
    for query, condition, word in (
        ("SELECT 'a' AS k, 1 AS w", "UNKNOWN_COLUMN", "column w"),
        ("SELECT 'a' AS k, 1 AS v, 2 AS V", "UNKNOWN_COLUMN", "several"),
        ("SELECT 1 AS v", "UNKNOWN_COLUMN", "primary key"),
        ("SELECT 'a' AS k, 1L AS v", "WRONG_TYPE", "cast"),
        ("SELECT 'a' AS k, '1' AS v", "WRONG_TYPE", "cast"),
    ):
        text = refused(lambda query=query: append(spark.sql(query), storage, "t"), condition)
        assert word in text, query
    # a task that fails takes the others' rows with it
    null = spark.sql("SELECT if(id = 9, NULL, 'k' || id) AS k, 1 AS v FROM range(0, 10, 1, 4)")
    assert "column k" in refused(lambda: append(null, storage, "t"), "NULL_KEY")
    broken = spark.sql("SELECT 'k' AS k, CAST(1 div (id - 9) AS INT) AS v FROM range(0, 10, 1, 4)")
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        append(broken, storage, "t")
    # a task may end after its write has failed: its files belong to no batch, and are removed in time
    assert not [name for name in left(engine, "t") if name.endswith(BATCH)]
    engine.advance()
    assert engine.sql("SELECT * FROM t").collect() == []


def test_a_key_is_replaced_by_the_later_row_and_writes_keep_their_order(engine, storage, spark):
    table = engine.table("t", "k STRING, v INT", primary_key=["k"])
    table.insert([("a", 1), ("b", 1), ("c", 1)])
    append(spark.sql("SELECT 'a' AS k, 2 AS v UNION ALL SELECT 'b', 2"), storage, "t")
    append(spark.sql("SELECT 'b' AS k, 3 AS v"), storage, "t")
    table.insert([("a", 4)])  # after what was written before it
    assert rows(engine.sql("SELECT * FROM t")) == {}
    append(spark.sql("SELECT 'c' AS k, 5 AS v"), storage, "t")
    engine.execute("UPDATE t SET v = v * 10 WHERE k <> 'a'")  # it sees what was written
    engine.advance()
    assert rows(table.snapshot()) == {("a", 4): 1, ("b", 30): 1, ("c", 50): 1}


def test_the_same_version_of_an_application_is_inserted_once(engine, storage, spark):
    table = engine.table("t", "v INT")
    one = spark.sql("SELECT 1 AS v")
    for version in (7, 7, 8, 8):
        append(one, storage, "t", txnAppId="loader", txnVersion=version)
    append(one, storage, "t", txnAppId="another", txnVersion=7)
    append(one, storage, "t")
    append(one, storage, "t")
    engine.advance()
    append(one, storage, "t", txnAppId="loader", txnVersion=7)
    engine.advance()
    assert rows(table.snapshot()) == {(1,): 5}


def test_a_dropped_table_takes_its_inbox_along(engine, storage, spark):
    engine.table("t", "v INT")
    append(spark.sql("SELECT 1 AS v"), storage, "t")
    assert left(engine, "t")
    engine.drop("table", "t")
    assert os.listdir(f"{storage}/{FOLDER}") == []
    engine.table("t", "v INT")
    engine.advance()
    assert engine.sql("SELECT * FROM t").collect() == []


WRITER = """
    import sys
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.range(1000).selectExpr("id", "id % 7 AS grp")
    for _ in sys.stdin:
        frame.write.format("eddyline").option("table", "t").mode("append").save(sys.argv[1])
        print("written", flush=True)
"""


def test_another_process_writes_without_an_engine_and_beside_one(storage, spark, tmp_path):
    with el.Engine(storage, spark) as engine:
        engine.table("t", "id BIGINT, grp BIGINT")
        engine.view("by_grp", "SELECT grp, count(*) AS n, sum(id) AS s FROM t GROUP BY grp")
    child = Child([sys.executable, "-c", textwrap.dedent(WRITER), storage], tmp_path / "errors")
    try:
        child.say("write")
        child.wait_for("written")
        with el.Engine(storage, spark) as engine:
            engine.advance()
            assert rows(engine.sql("SELECT count(*), sum(id) FROM t")) == {(1000, 499500): 1}
            engine.start(interval=0.05)
            child.say("write")
            child.wait_for("written")
            until(lambda: engine.sql("SELECT count(*) FROM t").collect() == [(2000,)])
            assert engine.verify("by_grp")
            assert engine.status()["run"]["state"] == "running"
    finally:
        child.kill()


# -- streaming queries -------------------------------------------------------------------------


def numbers_in(folder: Path, number: int) -> list[int]:
    """Add a file of ten numbers to a folder; return them."""
    folder.mkdir(exist_ok=True)
    own = list(range(number * 10, number * 10 + 10))
    unfinished = folder / f".{number}"
    unfinished.write_text("".join(f'{{"id": {i}}}\n' for i in own))
    unfinished.rename(folder / f"{number:04d}.json")
    return own


def stream_into(spark: SparkSession, storage: str, inputs: Path, checkpoint: Path) -> Any:
    frame = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(str(inputs))
    writer = frame.writeStream.format("eddyline").option("table", "t").trigger(availableNow=True)
    writer = writer.queryName(f"into {checkpoint}")
    return writer.option("checkpointLocation", str(checkpoint)).start(storage)


def test_a_micro_batch_that_spark_repeats_is_inserted_once(engine, storage, spark, tmp_path):
    table = engine.table("t", "id BIGINT")
    inputs, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    expected: Counter = Counter()
    for number in range(5):
        expected.update((i,) for i in numbers_in(inputs, number))
        query = stream_into(spark, storage, inputs, checkpoint)
        query.awaitTermination()
        if number % 2:  # Spark dies before it notes that the batch is done
            newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            newest.unlink()
            (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        if number != 2:  # then two versions of a batch wait together
            engine.advance()
    engine.advance()
    assert rows(table.snapshot()) == expected
    assert left(engine, "t") == []


def test_what_a_streaming_query_is_refused(engine, storage, spark, tmp_path):
    engine.table("t", "id BIGINT")
    numbers_in(tmp_path / "in", 0)
    source = spark.readStream.schema("id BIGINT").json(str(tmp_path / "in"))

    def run(frame: DataFrame, mode: str, **options: Any) -> None:
        writer = frame.writeStream.format("eddyline").outputMode(mode).options(**options)
        checkpoint = str(tmp_path / f"checkpoint-{time.monotonic_ns()}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start(storage).awaitTermination()

    counts = source.groupBy("id").count().select("id")
    for frame, mode, options, condition in (
        (source, "append", {"table": "other"}, "NOT_FOUND"),
        (source, "append", {"table": "t", "txnAppId": "x", "txnVersion": 1}, "BAD_OPTION"),
        (source.withColumnRenamed("id", "n"), "append", {"table": "t"}, "UNKNOWN_COLUMN"),
        (counts, "complete", {"table": "t"}, "BAD_OPTION"),
    ):
        with pytest.raises(StreamingQueryException) as error:
            run(frame, mode, **options)
        assert f"[{condition}]" in str(error.value), str(error.value)[-1500:]


KILLED = """
    import sys, time
    from pyspark.sql import SparkSession
    storage, inputs, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(inputs)
    writer = frame.writeStream.format("eddyline").option("table", "t")
    query = writer.option("checkpointLocation", checkpoint).start(storage)
    while not query.recentProgress:
        time.sleep(0.01)
    print("ready", flush=True)
    query.awaitTermination()
"""


@pytest.mark.guarantee(
    "Spark's `writeStream` into a table",
    "exactly once",
    "the writing query, by kill -9, again and again",
)
@pytest.mark.slow
def test_a_query_that_is_killed_again_and_again_inserts_each_row_once(storage, spark, tmp_path):
    """Its whole process is killed, with JVM and workers, while an engine of another process runs."""
    inputs, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    expected: Counter = Counter()
    moments = random.Random(5)
    with el.Engine(storage, spark) as engine:
        table = engine.table("t", "id BIGINT")
        engine.start(interval=0.05)
        for _ in range(6):
            for _ in range(40):  # more than a child has time for
                expected.update((i,) for i in numbers_in(inputs, len(expected) // 10))
            child = Child(
                [
                    sys.executable,
                    "-c",
                    textwrap.dedent(KILLED),
                    storage,
                    str(inputs),
                    str(checkpoint),
                ],
                tmp_path / "errors",
            )
            try:
                child.wait_for("ready")
                time.sleep(moments.uniform(0, 2))
                assert child.process.poll() is None, child.last_words()
            finally:
                child.kill()
        stream_into(spark, storage, inputs, checkpoint).awaitTermination()
        engine.advance()
        assert rows(table.snapshot()) == expected
        assert engine.status()["run"]["state"] == "running"
