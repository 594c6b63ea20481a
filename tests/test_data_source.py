"""Spark's data source `eddyline`: tables and views in any Spark session, beside a running engine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import eddyline as el
import eddyline.api.epochs
from eddyline.answers.reader import feed_schema
from eddyline.state.manifest import committed_epochs
from pyspark_eddyline.filters import condition_of
from pyspark_eddyline.streams import FeedReader
from waiting import until

pytestmark = pytest.mark.spark

COMES = ("insert", "update_postimage")


@pytest.fixture(autouse=True)
def _retiring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", 1)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture
def engine(storage: str, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(storage, spark, el.Options(retain_epochs=2)) as engine:
        yield engine


def read(spark: SparkSession, storage: str, view: str, **options: Any) -> DataFrame:
    return spark.read.format("eddyline").options(view=view, **options).load(storage)


def rows(frame: DataFrame) -> Counter:
    return Counter(tuple(row) for row in frame.collect())


def refused(call: Any, condition: str) -> str:
    with pytest.raises(PySparkException) as error:
        call()
    assert f"[{condition}]" in str(error.value), str(error.value)[-2000:]
    return str(error.value)


def advance(engine: el.Engine, *values: int) -> int:
    """Insert one row an epoch; return the last epoch."""
    epoch = 0
    for value in values:
        engine.table("t", "v INT").insert([(value,)])
        epoch = engine.advance()
    return epoch


def test_the_package_is_found_by_its_name_and_imports_nothing_heavy():
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_eddyline\n"
        "assert pyspark_eddyline.DefaultSource.name() == 'eddyline'\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark_eddyline"]


# -- rows --------------------------------------------------------------------------------------


def test_rows_of_tables_and_views_of_all_types(engine, storage, spark):
    columns = (
        "id BIGINT, ts TIMESTAMP, local TIMESTAMP_NTZ, day DATE, d DECIMAL(30, 2), x DOUBLE, s STRING, "
        "b BINARY, l ARRAY<INT>, m MAP<STRING, INT>, n STRUCT<a: INT, b: STRING>, ok BOOLEAN"
    )
    made = spark.sql(
        "SELECT id, timestamp'2026-03-29 01:30:00' + make_interval(0,0,0,id), "
        "timestamp_ntz'2026-01-01 00:00:00', date'1969-12-31', CAST(id / 4 AS DECIMAL(30, 2)), "
        "id / 3D, 'x' || id, CAST('y' AS BINARY), array(1, NULL), map('k', 1), "
        "named_struct('a', 1, 'b', 'z'), id > 1 FROM range(5)"
    )
    table = engine.table("typed", columns, primary_key=["id"])
    table.insert(made.toDF(*table.schema.names))
    table.insert([(7, *[None] * 11)])
    engine.view("all", "SELECT * FROM typed WHERE id <> 2")
    engine.view("sorted", "SELECT s FROM typed ORDER BY id DESC")
    engine.view("twice", "SELECT id % 2 AS odd FROM typed")
    engine.view("none", "SELECT * FROM typed WHERE id > 100")
    engine.advance()
    for name in ("typed", "all", "sorted", "twice", "none"):
        kept = engine.sql(f"SELECT * FROM `{name}`")
        found = read(spark, storage, name)
        assert found.schema == kept.schema, name
        assert Counter(map(str, found.collect())) == Counter(map(str, kept.collect())), name
    assert read(spark, storage, "ALL").where("id = 3").select("s").collect() == [("x3",)]
    spark.sql(f"CREATE TEMPORARY VIEW v USING eddyline OPTIONS (view 'all', path '{storage}')")
    assert spark.sql("SELECT count(*) FROM v").collect() == [(5,)]
    spark.catalog.dropTempView("v")


def test_a_dataframe_keeps_its_epoch(engine, storage, spark):
    engine.table("t", "v INT")
    engine.view("counts", "SELECT v, count(*) AS n FROM t GROUP BY v")
    first = advance(engine, 1)
    frame, brief = read(spark, storage, "counts"), read(spark, storage, "counts", leaseSeconds=0)
    last = advance(engine, 1, 2, 3)
    assert committed_epochs(engine.files)[0] == first
    assert rows(frame) == rows(read(spark, storage, "counts", versionAsOf=first)) == {(1, 1): 1}
    assert rows(read(spark, storage, "counts")) == {(1, 2): 1, (2, 1): 1, (3, 1): 1}
    assert rows(read(spark, storage, "counts", versionAsOf=last - 1)) == {(1, 2): 1, (2, 1): 1}
    assert rows(frame.join(frame, "v")) == {(1, 1, 1): 1}  # one epoch on both sides
    for name in engine.files.names("leases"):
        if ".for" in name:
            engine.files.remove(f"leases/{name}")
    advance(engine, 4)
    assert committed_epochs(engine.files)[0] > first
    refused(lambda: brief.collect(), "SNAPSHOT_EXPIRED")
    refused(lambda: read(spark, storage, "counts", versionAsOf=first), "NO_SUCH_EPOCH")


THIRD = datetime(2026, 1, 1, 0, 0, 3)
FILTERS = (
    ("i = 3", EqualTo(("i",), 3)),
    ("i > 3", GreaterThan(("i",), 3)),
    ("i >= 3", GreaterThanOrEqual(("i",), 3)),
    ("i < 3", LessThan(("i",), 3)),
    ("i <= 3", LessThanOrEqual(("i",), 3)),
    ("i <> 3", Not(EqualTo(("i",), 3))),
    ("NOT i > 3", Not(GreaterThan(("i",), 3))),
    ("i <=> 3", EqualNullSafe(("i",), 3)),
    ("i IN (1, 3, 5)", In(("i",), (1, 3, 5))),
    ("i NOT IN (1, 3)", Not(In(("i",), (1, 3)))),
    ("i IS NULL", IsNull(("i",))),
    ("NOT i IS NULL", Not(IsNull(("i",)))),
    ("x IS NOT NULL", IsNotNull(("x",))),
    ("s = 'v3'", EqualTo(("s",), "v3")),
    ("s > 'v3'", GreaterThan(("s",), "v3")),
    ("d < date'2026-01-03'", LessThan(("d",), date(2026, 1, 3))),
    (
        "ts >= timestamp'2026-01-01 00:00:03'",
        GreaterThanOrEqual(("ts",), THIRD.replace(tzinfo=UTC)),
    ),
    ("local = timestamp_ntz'2026-01-01 00:00:03'", EqualTo(("local",), THIRD)),
    ("dec IN (1.50, 0.75)", In(("dec",), (Decimal("1.5"), Decimal("0.75")))),
    ("ok", EqualTo(("ok",), True)),
    ("NOT ok", Not(EqualTo(("ok",), True))),
)
LEFT_TO_SPARK = (
    EqualTo(("x",), 1.0),
    Not(EqualNullSafe(("i",), 3)),
    EqualNullSafe(("i",), None),
    In(("i",), (1, None)),
    Not(In(("i",), (1, None))),
    EqualTo(("st", "a"), 1),
    EqualTo(("c",), "V3"),
    EqualTo(("i",), 2**40),
    StringStartsWith(("s",), "v"),
)


def test_pushed_filters_keep_the_same_rows(engine, storage, spark):
    """Each condition is evaluated by Spark and as a test of the reader; some are pushed by Spark."""
    columns = (
        "i INT, s STRING, d DATE, ts TIMESTAMP, local TIMESTAMP_NTZ, dec DECIMAL(10, 2), ok BOOLEAN, "
        "x DOUBLE, st STRUCT<a: INT>, c STRING COLLATE UTF8_LCASE"
    )
    made = spark.sql(
        "SELECT CAST(id AS INT), 'v' || id, date'2026-01-01' + CAST(id - 1 AS INT), "
        "timestamp'2026-01-01 00:00:00' + make_interval(0,0,0,0,0,0,id), "
        "timestamp_ntz'2026-01-01 00:00:00' + make_interval(0,0,0,0,0,0,id), "
        "CAST(id / 2 AS DECIMAL(10, 2)), id % 2 = 0, if(id = 4, double('NaN'), id / 3D), "
        "named_struct('a', CAST(id AS INT)), ('v' || id) COLLATE UTF8_LCASE FROM range(9)"
    )
    table = engine.table("t", columns)
    table.insert(made.toDF(*table.schema.names))
    table.insert([[None] * 10] * 2)
    engine.advance()
    frame = read(spark, storage, "t")
    conditions = [f"coalesce({sql}, false) AS `{i}`" for i, (sql, _) in enumerate(FILTERS)]
    evaluated = frame.selectExpr("*", *conditions).toArrow()
    (batch,) = evaluated.combine_chunks().to_batches()
    for place, (sql, pushed) in enumerate(FILTERS):
        condition = condition_of(pushed, frame.schema)
        assert condition is not None, sql
        mask = [bool(met) for met in condition.mask(batch, batch.schema).to_pylist()]
        assert mask == batch.column(str(place)).to_pylist(), sql
        assert 0 < sum(mask) < len(mask), sql
    for pushed in LEFT_TO_SPARK:
        assert condition_of(pushed, frame.schema) is None, pushed

    pushing = spark.newSession()
    pushing.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = read(pushing, storage, "t")
    for sql, kept in (
        ("i IN (1, 3, 5) AND s < 'v4' AND x > 0.5", [(3,)]),
        ("dec = 1.50 AND local > timestamp_ntz'2026-01-01 00:00:00'", [(3,)]),
        ("ts < timestamp'2026-01-01 00:00:01' AND NOT i IN (1, 3) AND ok", [(0,)]),
        ("i IS NULL", [(None,), (None,)]),
    ):
        assert frame.where(sql).select("i").collect() == kept, sql
    for sql, evaluates in (("i = 3 AND s > 'a'", False), ("i = 3 AND x > 0.5", True)):
        plan = frame.where(sql)._jdf.queryExecution().executedPlan().toString()
        assert (" Filter (" in plan) == evaluates, plan
        assert "= 3" not in plan


def test_failing_and_paused_views(engine, storage, spark):
    engine.table("t", "v INT")
    engine.view("inverse", "SELECT 10 div v AS i FROM t")
    engine.view("paused", "SELECT v FROM t")
    good = advance(engine, 1)
    engine.pause("paused")
    advance(engine, 0)
    assert "DIVIDE_BY_ZERO" in refused(lambda: read(spark, storage, "inverse"), "VIEW_FAILING")
    assert rows(read(spark, storage, "inverse", versionAsOf=good)) == {(10,): 1}
    assert rows(read(spark, storage, "paused")) == {(1,): 1}


def test_what_is_refused(engine, storage, spark, tmp_path):
    engine.table("t", "v INT")
    engine.view("plain", "SELECT v FROM t")
    last = advance(engine, 1)
    assert "plain" in refused(lambda: read(spark, storage, "other"), "NOT_FOUND")
    refused(lambda: read(spark, str(tmp_path / "nothing"), "plain"), "NO_STORAGE")
    assert not (tmp_path / "nothing").exists()
    refused(lambda: spark.read.format("eddyline").load(storage), "BAD_OPTION")
    refused(lambda: spark.read.format("eddyline").option("view", "plain").load(), "BAD_OPTION")
    refused(lambda: read(spark, storage, "plain", versionAsOf=last + 1), "NO_SUCH_EPOCH")
    refused(lambda: read(spark, storage, "plain", startingVersion=last + 2), "NO_SUCH_EPOCH")
    refused(lambda: read(spark, storage, "plain", endingVersion=last + 1), "NO_SUCH_EPOCH")
    refused(lambda: read(spark, storage, "plain", startingVersion=2, endingVersion=1), "BAD_OPTION")
    refused(lambda: read(spark, storage, "plain", versionAsOf="x"), "BAD_OPTION")
    refused(lambda: read(spark, storage, "plain", readChangeFeed="yes"), "BAD_OPTION")
    refused(lambda: read(spark, storage, "plain", versionAsOf=1, startingVersion=1), "BAD_OPTION")
    misspelt = refused(lambda: read(spark, storage, "plain", versionOf=1), "BAD_OPTION")
    assert "versionof" in misspelt
    assert "versionAsOf" in misspelt
    other = spark.read.format("eddyline").schema("w INT").option("view", "plain")
    refused(lambda: other.load(storage).collect(), "BAD_OPTION")


def test_a_stream_kept_as_a_log_is_refused(engine, storage, spark):
    frame = spark.readStream.format("rate").load()
    engine.stream("ticks", frame)
    assert "engine.sql" in refused(lambda: read(spark, storage, "ticks"), "NOT_STORED")


# -- the change feed ---------------------------------------------------------------------------


def test_the_change_feed_between_two_epochs(engine, storage, spark):
    engine.table("t", "v INT")
    views = {
        "counts": engine.view("counts", "SELECT v, count(*) AS n FROM t GROUP BY v"),
        "plain": engine.view("plain", "SELECT v FROM t"),
    }
    first = advance(engine, 1)
    for view in views.values():
        view.changes(after=first, reader="keep")
    last = advance(engine, 1, 2, 1)
    for name, view in views.items():
        expected = view.changes(after=first, form="cdf")
        feed = read(spark, storage, name, readChangeFeed=True, startingVersion=first + 1)
        assert feed.schema == expected.schema
        assert rows(feed) == rows(expected)
        whole = read(spark, storage, name, readChangeFeed="true")
        assert rows(whole) == rows(view.changes(form="cdf"))
        part = read(spark, storage, name, startingVersion=first + 2, endingVersion=last - 1)
        assert rows(part) == rows(expected.where(f"_commit_version = {first + 2}"))
    assert read(spark, storage, "counts", startingVersion="latest").collect() == []
    feed = read(spark, storage, "t", startingVersion=last).drop("_commit_timestamp")
    assert feed.collect() == [(1, "insert", last)]
    for view in views.values():
        view.drop_reader("keep")


def test_expired_changes_are_refused(engine, storage, spark):
    engine.table("t", "v INT")
    engine.view("plain", "SELECT v FROM t")
    first = advance(engine, 1)
    advance(engine, 2, 3, 4)
    late = read(spark, storage, "plain", startingVersion=first)
    refused(lambda: late.collect(), "CHANGES_EXPIRED")
    early = read(spark, storage, "plain", readChangeFeed=True, endingVersion=first)
    refused(lambda: early.collect(), "CHANGES_EXPIRED")


# -- streaming queries -------------------------------------------------------------------------


class Copy:
    """The target of a streaming query: applies each micro-batch once, and counts what it got."""

    def __init__(self, spark: SparkSession, storage: str, checkpoint: Path) -> None:
        self.spark, self.storage, self.checkpoint = spark, storage, checkpoint
        self.held: Counter = Counter()
        self.batches: dict[int, list[Any]] = {}
        self.fails = False

    def apply(self, frame: DataFrame, number: int) -> None:
        if self.fails:
            raise ValueError("the target is away")
        assert number not in self.batches
        self.batches[number] = frame.collect()
        for row in sorted(
            self.batches[number], key=lambda r: (r._commit_version, r._change_type in COMES)
        ):
            *values, kind, _, _ = row
            self.held[tuple(values)] += 1 if kind in COMES else -1
            assert self.held[tuple(values)] >= 0, f"{values} goes, but isn't there"
        self.held = +self.held

    def run(self, view: str, **options: Any) -> None:
        """Run a query until it has read all that is committed."""
        query = self.start(view, **options)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def start(self, view: str, **options: Any) -> Any:
        frame = self.spark.readStream.format("eddyline").options(view=view, **options)
        writer = frame.load(self.storage).writeStream.foreachBatch(self.apply)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


@pytest.fixture
def copy(spark: SparkSession, storage: str, tmp_path: Path) -> Copy:
    return Copy(spark, storage, tmp_path / "checkpoint")


COUNTS = "SELECT v, count(*) AS n FROM t GROUP BY v"


def failed(call: Any, condition: str) -> str:
    with pytest.raises(StreamingQueryException) as error:
        call()
    assert f"[{condition}]" in str(error.value), str(error.value)[-2000:]
    return str(error.value)


def test_a_stopped_query_goes_on_while_the_engine_does(engine, copy):
    engine.table("t", "v INT")
    view = engine.view("counts", COUNTS)
    advance(engine, 1, 2, 1)
    options = {"readChangeFeed": True, "reader": "copy"}
    query = copy.start("counts", **options)
    try:
        query.processAllAvailable()
        assert copy.held == rows(view.snapshot())
        assert {row._change_type for row in copy.batches[0]} == {"insert"}
        advance(engine, 2, 3)
        query.processAllAvailable()
        assert copy.held == rows(view.snapshot())
    finally:
        query.stop()
    last = advance(engine, 1, 4, 5, 1)  # more than are retained for others
    copy.fails = True
    with pytest.raises(Exception, match="the target is away"):
        copy.run("counts", **options)
    copy.fails = False
    last = advance(engine, 6, 1, 6)
    copy.run("counts", **options)
    assert copy.held == rows(view.snapshot())
    seen = {row._commit_version for batch in copy.batches.values() for row in batch}
    assert max(seen) == last
    (known,) = engine.status()["readers"]
    assert (known["view"], known["reader"]) == ("counts", "copy")
    # Spark confirms a micro-batch when it plans the next one
    advance(engine, 7)
    copy.run("counts", **options)
    advance(engine, 8)
    copy.run("counts", **options)
    assert engine.status()["readers"][0]["epoch"] >= last
    assert copy.held == rows(view.snapshot())


def test_a_query_without_a_reader_keeps_epochs_only_while_it_runs(engine, copy):
    engine.table("t", "v INT")
    engine.view("counts", COUNTS)
    advance(engine, 1)
    query = copy.start("counts", readChangeFeed=True)
    try:
        query.processAllAvailable()
        last = advance(engine, 2)
        query.processAllAvailable()
        assert copy.held == {(1, 1): 1, (2, 1): 1}
        advance(engine, 1, 2, 3, 4)
        query.processAllAvailable()
        assert copy.held == {(1, 2): 1, (2, 2): 1, (3, 1): 1, (4, 1): 1}
    finally:
        query.stop()

    def let_go() -> bool:
        advance(engine, 1)
        return committed_epochs(engine.files)[0] > last + 5

    until(let_go)  # Spark ends the process of the source after the query
    text = failed(lambda: copy.run("counts", readChangeFeed=True), "CHANGES_EXPIRED")
    assert "new checkpoint" in text


def test_epochs_stay_until_their_micro_batch_is_confirmed(engine, storage):
    def changed(start: Any, end: Any) -> list[int]:
        return [part.value.epoch for part in reader.partitions(start, end)]

    engine.table("t", "v INT")
    view = engine.view("plain", "SELECT v FROM t")
    first = advance(engine, 1)
    options = {"view": "plain", "path": storage, "startingVersion": str(first)}
    reader = FeedReader(options, feed_schema(view.schema))
    start = reader.initialOffset()
    assert start == {"epoch": first - 1, "view": engine.catalog.get("plain").id}
    end = reader.latestOffset()
    advance(engine, 2, 3, 4)
    assert changed(start, end) == [first]
    later = reader.latestOffset()
    reader.commit(end)
    advance(engine, 5, 6, 7)
    assert changed(end, later) == [first + 1, first + 2, first + 3]
    reader.commit(later)
    advance(engine, 8, 9, 10)
    assert committed_epochs(engine.files)[0] == later["epoch"]
    reader.stop()
    advance(engine, 11)
    assert committed_epochs(engine.files)[0] > later["epoch"] + 3
    with pytest.raises(el.StateError) as error:
        changed(later, reader.latestOffset())
    assert error.value.condition == "CHANGES_EXPIRED"


def test_a_query_begins_at_an_epoch_or_with_what_is_new(engine, copy, spark, storage, tmp_path):
    engine.table("t", "v INT")
    view = engine.view("counts", COUNTS)
    first = advance(engine, 1)
    last = advance(engine, 1)
    copy.held = rows(view.snapshot(first))
    copy.run("counts", startingVersion=first + 1)
    assert copy.held == rows(view.snapshot())
    assert [row._commit_version for row in copy.batches[0]] == [last, last]

    late = Copy(spark, storage, tmp_path / "late")
    late.held = rows(view.snapshot())
    query = late.start("counts", startingVersion="latest")
    try:
        query.processAllAvailable()
        assert late.batches.get(0, []) == []
        advance(engine, 2, 1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert late.held == rows(view.snapshot())


def test_rows_that_are_only_inserted_come_without_the_columns_of_the_feed(
    engine, storage, spark, tmp_path
):
    engine.table("t", "v INT")
    engine.view("plain", "SELECT v FROM t")
    advance(engine, 1, 2)
    found: list[Any] = []

    def run() -> None:
        frame = spark.readStream.format("eddyline").option("view", "plain").load(storage)
        assert frame.columns == ["v"]
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / "plain"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    advance(engine, 3)
    run()
    assert sorted(found) == [(1,), (2,), (3,)]
    engine.table("t", "v INT").delete([(1,)])
    engine.advance()
    assert "readChangeFeed" in failed(run, "NOT_APPEND_ONLY")


def test_a_query_of_another_view_is_refused(engine, copy):
    engine.table("t", "v INT")
    engine.view("counts", COUNTS)
    advance(engine, 1)
    copy.run("counts", readChangeFeed=True)
    engine.drop("view", "counts")
    engine.view("counts", COUNTS)
    failed(lambda: copy.run("counts", readChangeFeed=True), "CHANGES_EXPIRED")


def test_micro_batches_of_a_limited_number_of_epochs(engine, copy, storage, spark):
    engine.table("t", "v INT")
    view = engine.view("counts", COUNTS)
    view.changes(reader="keep")
    first = advance(engine, 1, 2)
    copy.run("counts", readChangeFeed=True, maxEpochsPerTrigger=2)
    assert set(copy.batches) == {0}  # all rows come at once
    last = advance(engine, 3, 1, 2, 5, 4)
    copy.run("counts", readChangeFeed=True, maxEpochsPerTrigger=2)
    assert copy.held == rows(view.snapshot())
    epochs = {n: {row._commit_version for row in copy.batches[n]} for n in copy.batches}
    assert {n: epochs[n] for n in epochs if n} == {
        1: {first + 1, first + 2},
        2: {first + 3, first + 4},
        3: {last},
    }
    advance(engine, 6, 1, 2)
    frame = spark.readStream.format("eddyline").options(
        view="counts", readChangeFeed=True, maxEpochsPerTrigger=2
    )
    writer = frame.load(storage).writeStream.foreachBatch(copy.apply)
    writer = writer.option("checkpointLocation", str(copy.checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert copy.held == rows(view.snapshot())
    assert set(copy.batches) == {0, 1, 2, 3, 4, 5}
    bad = spark.readStream.format("eddyline").options(view="counts", maxEpochsPerTrigger=0)
    with pytest.raises(StreamingQueryException, match="BAD_OPTION"):
        bad.load(storage).writeStream.format("noop").option(
            "checkpointLocation", str(copy.checkpoint) + "0"
        ).start().processAllAvailable()
    view.drop_reader("keep")
