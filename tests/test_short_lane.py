"""The short lane: epochs of few rows in the driver write the same state as Spark jobs."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import eddyline as el
from eddyline.operators.aggregate import Reduce
from eddyline.plan.catalyst import Catalyst
from eddyline.spark import driver
from eddyline.spark.batches import batch_rows
from eddyline.spark.driver import INTERPRETED_ROWS_MAX, Driver, DriverPlan, TaskContext
from eddyline.spark.session import cloned, epoch_session
from eddyline.state.arrangement import Arrangement
from test_shapes import ALWAYS, EPOCHS, SOME_CHANGES, Twins, closed, every

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def lane_at_random() -> None:
    """Leave the choice of the lane to the engine in this module."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[list[Twins]]:
    """The same views in two engines: all epochs in the short lane, in parts and slices of few rows, and all in the wide one."""
    names = closed([*every(20, 2), *ALWAYS])
    made = [
        Twins(
            tmp_path_factory.mktemp(f"lane{rows}"), spark, names, el.Options(short_lane_rows=rows)
        )
        for rows in (1_000_000, 0)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eddyline.runtime.short_lane.PART_ROWS", 2)
        patch.setattr("eddyline.runtime.kernel.CACHED_BYTES", 256)
        yield made
    for twins in made:
        twins.engine.stop()


def state(engine: el.Engine) -> dict[tuple[str, int], list[str]]:
    """All rows of all arrangements, by the name of the arrangement and the bucket."""
    workspace = engine._workspace
    found = {}
    for entry in engine.catalog.entries:
        if entry.kind != "view":
            continue
        plan = workspace.plan(entry).plan
        for part in plan.parts:
            for slot, layout in part.operator.layouts.items():
                name = f"{plan.id}/{part.name}/{slot}"
                for bucket, runs in workspace.manifest.arrangements.get(name, {}).items():
                    rows = Arrangement(workspace.files, layout, runs).scan()
                    lines = sorted(map(repr, rows.to_pylist())) if rows is not None else []
                    if lines:
                        found[f"{entry.name} {name}", bucket] = lines
    return found


@given(changes=SOME_CHANGES)
@settings(EPOCHS, max_examples=2)
def test_both_lanes_write_the_same_state(pair: list[Twins], changes) -> None:
    for twins in pair:
        twins.change(changes)
        twins.engine.advance()
    short, wide = (state(twins.engine) for twins in pair)
    assert short == wide
    lanes = [set(twins.engine.progress().lanes.values()) for twins in pair]
    assert lanes[0] in (set(), {"short"}, {"short", "wide"})  # few plans are always jobs
    assert lanes[1] <= {"wide"}


@pytest.mark.parametrize("rows", [1000, 0], ids=["short", "wide"])
def test_nulls_within_arrays_structs_and_maps_pass_through_functions(
    tmp_path: Path, spark: SparkSession, rows: int
) -> None:
    """Spark generates code for some of these functions that doesn't look for nulls in Arrow's arrays."""
    columns = "id INT, a ARRAY<INT>, s ARRAY<STRUCT<x: INT, y: STRING>>, m MAP<STRING, ARRAY<DATE>>"
    day = dt.date(2026, 1, 2)
    with el.Engine(str(tmp_path / "s"), spark, el.Options(short_lane_rows=rows)) as engine:
        table = engine.table("t", columns, ["id"])
        calls = (
            "reduce(a, 1, (t, y) -> t * coalesce(y, 1))",
            "transform(a, y -> y + id)",
            "filter(a, y -> y IS NULL OR y > 1)",
            "exists(a, y -> y > 2)",
            "zip_with(a, s, (y, z) -> coalesce(z.x, y))",
            "transform(s, z -> z.y)",
            "array_sort(a)",
            "map_filter(m, (k, v) -> size(v) > 0)",
            "transform_values(m, (k, v) -> transform(v, d -> year(d)))",
            "element_at(a, 2)",
            "s[0].x",
        )
        listed = ", ".join(f"{call} AS c{i}" for i, call in enumerate(calls))
        engine.view("called", f"SELECT id, {listed} FROM t")
        engine.view("kept", f"SELECT * FROM (SELECT *, {calls[0]} AS n FROM t) WHERE n > 0")
        table.insert(
            [
                (1, [3, None, 1], [(None, "a"), None, (2, None)], {"k": [day, None], "l": None}),
                (2, None, None, None),
                (3, [None, 7, 8], [None, (1, "b"), (None, None)], {"m": []}),
            ]
        )
        engine.advance()
        table.delete([(3, None, None, None)])
        engine.advance()
        assert set(engine.progress().lanes.values()) == {"short" if rows else "wide"}
        assert all(engine.verify(name).equal for name in ("called", "kept"))


@pytest.mark.parametrize("rows", [1000, 0], ids=["short", "wide"])
def test_settings_of_the_storage_hold_in_both_lanes(
    tmp_path: Path, spark: SparkSession, rows: int
) -> None:
    """Spark reads some settings only when it generates code, or when it evaluates a row."""
    settings = {
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    session = cloned(spark, **settings)
    with el.Engine(str(tmp_path / "s"), session, el.Options(short_lane_rows=rows)) as engine:
        table = engine.table("t", "s STRING, ts TIMESTAMP")
        engine.view("parsed", "SELECT to_timestamp(s, 'yyyy-MM-dd HH:mm') AS p FROM t")
        engine.view("shown", "SELECT date_format(ts, 'YYYY-MM-dd u') AS f FROM t")
        engine.view(
            "written", "SELECT to_json(named_struct('t', ts)) AS j, 1 / (s - s) AS q FROM t"
        )
        table.insert([("2020-1-5 1:2", dt.datetime(2020, 1, 5, tzinfo=dt.UTC)), ("7", None)])
        engine.advance()
        assert set(engine.progress().lanes.values()) == {"short" if rows else "wide"}
        assert engine.verify()
        assert (dt.datetime(2020, 1, 4, 16, 2),) in engine.snapshot("parsed").collect()


EVERYTHING = (
    "b BOOLEAN, y TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, c DECIMAL(20,3), t STRING,"
    " x BINARY, a DATE, m TIMESTAMP, n TIMESTAMP_NTZ, g INTERVAL DAY TO SECOND, r ARRAY<INT>,"
    " q STRUCT<u: INT, v: STRING>, p MAP<STRING, INT>"
)


def rows_later(driver: Driver, schema: StructType) -> DataFrame:
    """A frame over a leaf for rows that come later."""
    catalyst = Catalyst(driver.session)
    return catalyst.frame(driver.leaf(catalyst.plan(catalyst.relation(schema))))


@pytest.mark.parametrize("generated", [True, False])
def test_rows_of_every_type_go_through_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, generated: bool
) -> None:
    monkeypatch.setattr("eddyline.spark.driver.INTERPRETED_ROWS_MAX", 0)
    session = epoch_session(spark, 2, "Europe/Berlin", {})
    driver = Driver(session)
    schema = StructType.fromDDL(EVERYTHING)
    frame = rows_later(driver, schema)
    plan = DriverPlan(driver, frame._jdf.queryExecution().executedPlan(), schema)
    moment = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)
    row = {
        "b": True,
        "y": -128,
        "s": 1,
        "i": 2,
        "l": -(2**63),
        "f": 1.5,
        "d": float("inf"),
        "c": Decimal("12345678901234567.891"),
        "t": "ä\0",
        "x": b"\xff",
        "a": moment.date(),
        "m": moment,
        "n": moment.replace(tzinfo=None),
        "g": dt.timedelta(days=1),
        "r": [1, None],
        "q": {"u": 1, "v": None},
        "p": [("k", 1)],
    }
    table = pa.Table.from_pylist([row, {}], driver.schema(schema))
    plan.prepare(int(generated))
    with driver.context() as context:
        assert plan(table, context).equals(table)
        assert plan(table[:0], context).num_rows == 0
        assert plan(table, context).equals(table)  # a plan can be evaluated again


def test_code_is_generated_for_a_plan_of_many_rows_only(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of the limit that is drawn for each test
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    driver = Driver(epoch_session(spark, 2, "UTC", {}))
    frame = rows_later(driver, StructType.fromDDL("n BIGINT"))
    result = frame.selectExpr("n * 31 + 123454321 as m").where("m % 4 <> 1")
    plan = DriverPlan(driver, result._jdf.queryExecution().executedPlan(), result.schema)
    table = pa.table({"n": [1, 2, None]})
    with driver.context() as context:
        before = compiled.getCount()
        plan.prepare(INTERPRETED_ROWS_MAX)
        interpreted = plan(table, context)
        assert compiled.getCount() == before
        plan.prepare(1)
        assert compiled.getCount() > before
        assert plan(table, context).equals(interpreted)
        before = compiled.getCount()
        plan.prepare(INTERPRETED_ROWS_MAX, threads=2)
        assert compiled.getCount() == before
    assert interpreted["m"].to_pylist() == [123454352, 123454383]


def test_many_rows_of_several_messages(spark: SparkSession) -> None:
    driver = Driver(epoch_session(spark, 2, "UTC", {}))
    frame = rows_later(driver, StructType.fromDDL("n BIGINT"))
    result = frame.selectExpr("explode(sequence(n, n + 2)) as m")
    physical = result._jdf.queryExecution().executedPlan()
    plan = DriverPlan(driver, physical, result.schema)
    table = pa.table({"n": range(0, 300_000, 3)})
    with driver.context() as context:
        assert plan(table, context)["m"].to_pylist() == list(range(300_000))


def test_parts_of_a_large_input_are_evaluated_side_by_side(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.runtime.short_lane.PART_ROWS", 100)
    evaluate, evaluated = TaskContext.evaluate, []

    def noted(self: TaskContext, plan: object, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        evaluated.append((threading.get_ident(), plan, rows.num_rows))
        return evaluate(self, plan, rows, schema)

    monkeypatch.setattr(TaskContext, "evaluate", noted)
    with el.Engine(str(tmp_path / "s"), spark) as engine:
        table = engine.table("t", "id INT, line STRING", ["id"])
        read = "from_json(line, 'a INT, b STRING')"  # its parser belongs to one thread
        engine.view("read", f"SELECT id, upper({read}.b) AS b, {read}.a AS a FROM t")
        engine.view("kept", "SELECT id, 10 DIV a AS v FROM read WHERE a % 3 <> 1")
        engine.view("pairs", "SELECT id, p FROM read LATERAL VIEW explode(array(a, id)) e AS p")
        engine.advance()
        evaluated.clear()
        rows = [(i, f'{{"a": {i + 1}, "b": "b{i}"}}') for i in range(1000)]
        table.insert(rows)
        engine.advance()
        assert len({thread for thread, _, rows in evaluated if rows == 500}) > 1
        assert all(rows <= 1000 for _, _, rows in evaluated)
        assert engine.verify()
        table.upsert([(998, '{"a": 0}')])  # in the second part
        table.upsert([(i, '{"a": 6}') for i in range(400)])
        engine.advance()
        states = {view["name"]: view for view in engine.status()["views"]}
        assert states["kept"]["state"] == "failing"
        assert "998" in str(states["kept"]["rows"])
        table.upsert([(998, '{"a": 5}')])
        engine.advance()
        assert engine.verify()


def test_parts_without_a_free_thread_are_evaluated_in_the_same_context(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(epoch_session(spark, 2, "UTC", {}))
    frame = rows_later(driver, StructType.fromDDL("t STRING"))
    result = frame.selectExpr("cast(t as timestamp) as m")  # by the settings of the task
    plan = DriverPlan(driver, result._jdf.queryExecution().executedPlan(), result.schema)
    table = pa.table({"t": ["2026-01-01 00:00:00"] * 3})
    monkeypatch.setattr(
        "eddyline.spark.driver.side_by_side", lambda works: [work() for work in works]
    )
    plan.prepare(3, threads=3)
    with driver.context() as context:
        whole = plan(table, context)
        parts = [table.slice(n, 1) for n in range(3)]
        assert context.beside(lambda _, own: own, parts) == [context] * 3
        found = context.beside(plan, parts)
        assert pa.concat_tables(found).equals(whole)
        assert plan(table, context).equals(whole)


def test_an_epoch_takes_the_lane_by_its_rows(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path / "s"), spark, el.Options(short_lane_rows=10)) as engine:
        table = engine.table("t", "k INT, v INT")
        engine.view("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k")
        engine.view("most", "SELECT max(s) AS m FROM sums")
        cold = [(3, "short"), (30, "wide")] * 2
        for rows, lane in (*cold, (1, "short"), (11, "wide")):
            table.insert([(i % 20, i) for i in range(rows)])
            engine.advance()
            assert engine.progress().lanes["sums"] == lane
            assert engine.verify()
        assert engine.progress().lanes["most"] == "wide"  # its input are the changes of sums
        lanes, view = engine._workspace.lanes, engine.catalog.get("sums")
        assert lanes._views[view.id].epochs == {"short": 3, "wide": 3}
        for lane in ("short", "wide"):
            weight, rows, _, seconds, _ = lanes._views[view.id].lines[lane]._sums
            assert weight >= 1
            assert rows / weight == (1 if lane == "short" else 11)
            assert seconds > 0


def test_a_run_in_the_driver_that_gives_up_counts_with_its_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.runtime.short_lane.OUTPUT_ROWS_MAX", 5)
    with el.Engine(str(tmp_path / "s"), spark) as engine:
        table = engine.table("t", "k INT")
        engine.view("sums", "SELECT k, count(*) AS n FROM t GROUP BY k")
        for _ in range(3):
            table.insert([(i,) for i in range(20)])
            engine.advance()
            assert engine.progress().lanes["sums"] == "wide"
        known = engine._workspace.lanes._views[engine.catalog.get("sums").id]
        (short, wide) = (known.lines[lane]._sums for lane in ("short", "wide"))
        assert short[0] >= 1
        assert short[3] / short[0] > wide[3] / wide[0]
        assert engine.verify()


def test_many_bytes_go_to_the_jvm_and_back_in_batches(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a batch in its direct memory, and grows one that it writes by doubling."""
    monkeypatch.setattr("eddyline.spark.batches.BATCH_BYTES", 1000)
    taken, given = [], []
    plain = TaskContext.evaluate

    def evaluate(self, plan, table, schema):
        found = plain(self, plan, table, schema)
        taken.append(table.nbytes / len(driver._batches(table, batch_rows(table))))
        given.append(max(map(len, found.column(0).chunks), default=0) / max(table.num_rows, 1))
        return found

    monkeypatch.setattr(TaskContext, "evaluate", evaluate)
    with el.Engine(str(tmp_path / "s"), spark, el.Options(buckets=1)) as engine:
        table = engine.table("t", "k INT, v BIGINT, s STRING")
        ranked = "SELECT k, v, s, ntile(3) OVER (PARTITION BY k ORDER BY v) AS n FROM t"
        engine.view("ranked", ranked)
        for number in range(2):
            table.insert([(0, i, "é" * (i % 7)) for i in range(500 * number, 500 * number + 500)])
            engine.advance()
            assert engine.progress().lanes["ranked"] == "short"
            assert engine.snapshot("ranked").count() == 500 * number + 500
            assert engine.verify()
    assert 0 < max(taken) <= 1000
    assert min(given) < 0.1


def test_a_plan_with_python_functions_is_always_a_job(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark.udf.register("twice", lambda n: 2 * n, "int")
    with (
        caplog.at_level(logging.INFO, "eddyline"),
        el.Engine(str(tmp_path / "s"), spark) as engine,
    ):
        table = engine.table("t", "v INT")
        engine.view("doubled", "SELECT twice(v) AS d FROM t")
        table.insert([(1,), (2,)])
        engine.advance()
        assert engine.progress().lanes == {"doubled": "wide"}
        assert engine.verify()
    assert "view doubled always runs as a Spark job" in caplog.text


def test_an_error_in_the_driver_sets_the_view_aside(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path / "s"), spark) as engine:
        table = engine.table("t", "id INT, v INT, s STRING")
        engine.view("quotients", "SELECT id, 10 / v AS q FROM t")
        engine.view("numbers", "SELECT s, sum(CAST(s AS INT)) AS n FROM t GROUP BY s")
        engine.view("counted", "SELECT count(*) AS n FROM t")
        table.insert([(1, 2, "3"), (2, 0, "x")])
        engine.advance()
        failing = engine.progress().failing
        assert failing.keys() == {"quotients", "numbers"}
        assert "DIVIDE_BY_ZERO" in failing["quotients"]
        assert "CAST_INVALID_INPUT" in failing["numbers"]
        assert engine.progress().lanes["counted"] == "short"
        engine.execute("DELETE FROM t WHERE id = 2")
        engine.advance()
        engine.advance()
        assert engine.progress().failing == {}
        assert engine.verify()


def test_lanes_that_know_different_things_about_nulls_write_one_state(tmp_path, spark):
    """A list is known to hold no null in the wide lane only; Arrow takes these for two types."""
    for number, rows in enumerate([200_000, 0, 200_000, 0]):
        with el.Engine(str(tmp_path), spark, el.Options(short_lane_rows=rows)) as engine:
            table = engine.table("t", "k STRING, c BIGINT")
            if not number:
                engine.view(
                    "v",
                    "SELECT l.c, r.list FROM t l, LATERAL (SELECT sort_array(collect_list(s.c)) AS list"
                    " FROM t s WHERE s.k = l.k) r",
                )
            table.insert([("a", number), ("b", number + 1)])
            engine.advance()
            assert engine.snapshot("v").count() == 2 * number + 2
            assert engine.verify()


def test_runs_of_both_lanes_are_merged(tmp_path, spark):
    """A count is known to be no null in the wide lane only, also where it is a column of the state."""
    for number, rows in enumerate([200_000, 0, 200_000, 0]):
        options = el.Options(short_lane_rows=rows, buckets=1, compaction_fan_in=2)
        with el.Engine(str(tmp_path), spark, options) as engine:
            table = engine.table("t", "k STRING, g INT")
            if not number:
                counts = "SELECT k, g, count(*) AS n FROM t GROUP BY k, g"
                engine.view("v", f"SELECT g, max(n) AS most FROM ({counts}) GROUP BY g")
            table.insert([("a", number), ("b", number), ("b", 0)])
            engine.advance()
            assert engine.progress().failing == {}
            assert engine.snapshot("v").where("g = 0").first().most == number + 2
            assert engine.verify()


def test_kernels_in_the_driver_take_their_input_as_they_read_stored_rows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow puts no tables together that differ in what can be null."""
    given: list[pa.Schema] = []
    plain = Reduce.step

    def step(self, delta, state):
        given.append(delta.schema)
        return plain(self, delta, state)

    monkeypatch.setattr(Reduce, "step", step)
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "k INT, v INT")
        engine.view("sums", "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k")
        table.insert([(1, 2), (2, 3)])
        engine.advance()
        assert engine.progress().lanes["sums"] == "short"
    assert given
    assert all(field.nullable for schema in given for field in schema)
