"""Views that fail on their rows are set aside: the others go on, and they come back by themselves."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import eddyline as el
from eddyline.answers.quick import quick_answer
from waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        yield engine


def rows(engine: el.Engine, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in engine.snapshot(name).collect())


def states(engine: el.Engine) -> dict[str, str]:
    return {view["name"]: view["state"] for view in engine.status()["views"]}


def replayed(engine: el.Engine, name: str) -> list[tuple[object, ...]]:
    """Return the rows that a view's whole changelog adds up to."""
    held: list[tuple[object, ...]] = []
    for *values, op, _ in engine.changes(name).orderBy("epoch", "op").collect():
        held.append(tuple(values)) if op == "append" else None
    for *values, op, _ in engine.changes(name).collect():
        held.remove(tuple(values)) if op == "delete" else None
    return sorted(held)


def test_a_failing_view_does_not_turn_into_a_view_of_the_session(engine: el.Engine) -> None:
    session = engine.spark
    engine.execute("CREATE TABLE t (k INT, v INT); CREATE VIEW q AS SELECT k, 10 div v AS r FROM t")
    session.sql("SELECT 42 AS k, 0 AS r").createOrReplaceTempView("q")
    try:
        engine.execute("INSERT INTO t VALUES (1, 1)")
        engine.advance()
        assert engine.sql("SELECT * FROM q").collect() == [(1, 10)]
        engine.execute("INSERT INTO t VALUES (1, 0)")
        engine.advance()
        assert states(engine) == {"q": "failing"}
        for ask in (engine.sql, engine.execute):
            with pytest.raises(el.EddylineError, match="VIEW_FAILING"):
                ask("SELECT sum(k) FROM q")
        assert session.table("q").collect() == [(42, 0)]
    finally:
        session.catalog.dropTempView("q")


@pytest.mark.parametrize("lane", ["short", "wide"])
def test_rows_that_filter_leaves_out_do_not_fail(
    tmp_path: Path, spark: SparkSession, lane: str
) -> None:
    calls = (
        "sum(10 div v)", "count(10 / v)", "max(10 div v)", "median(10 div v)", "percentile(10 div v, array(0.5, 1))",
    )  # fmt: skip
    options = el.Options(short_lane_rows=0) if lane == "wide" else None
    with el.Engine(str(tmp_path), spark, options=options) as engine:
        engine.execute("CREATE TABLE t (k INT, v INT)")
        listed = ", ".join(f"{call} FILTER (WHERE v <> 0)" for call in calls)
        engine.view("by_key", f"SELECT k, {listed} FROM t GROUP BY k")
        engine.view("whole", f"SELECT {listed} FROM t")
        engine.view("mean", "SELECT avg(10 / v) FILTER (WHERE v <> 0) AS a FROM t")
        engine.execute("INSERT INTO t VALUES (1, 5), (1, 0), (2, 0)")
        engine.advance()
        assert set(states(engine).values()) == {"live"}
        assert rows(engine, "mean") == [(2.0,)]
        report = engine.verify()
        assert {name: found.equal for name, found in report.views.items()} == {
            "by_key": True,
            "whole": True,
        }
        # Spark computes it once for the sum and the count, before it looks at the condition
        assert "DIVIDE_BY_ZERO" in report.failing["mean"]
        assert not report


def test_a_failing_view_is_set_aside_and_the_others_go_on(engine: el.Engine) -> None:
    table = engine.table("t", "id INT, a INT, b INT", primary_key=["id"])
    quotients = engine.view("quotients", "SELECT id, a DIV b AS q FROM t")
    engine.view("total", "SELECT count(*) AS n FROM t")
    engine.view("above", "SELECT sum(q) AS s FROM quotients")
    told: list[el.EddylineError] = []
    engine.on_error(told.append)
    table.insert([(1, 6, 2)])
    good = engine.advance()
    table.insert([(2, 1, 0), (3, 8, 2)])
    failed = engine.advance()
    assert failed == good + 1
    assert rows(engine, "total") == [(3,)]
    assert states(engine) == {"quotients": "failing", "total": "live", "above": "failing"}
    with pytest.raises(el.EngineError, match="DIVIDE_BY_ZERO") as caught:
        quotients.snapshot()
    assert caught.value.condition == "VIEW_FAILING"
    assert caught.value.context["since"] == failed
    assert [tuple(row) for row in quotients.snapshot(last_good=True).collect()] == [(1, 3)]
    assert [tuple(row) for row in quotients.snapshot(good).collect()] == [(1, 3)]
    with pytest.raises(el.EngineError, match="reads quotients"):
        engine.snapshot("above")
    with pytest.raises(el.EngineError, match="DIVIDE_BY_ZERO"):
        engine.sql("SELECT max(q) FROM quotients")
    with pytest.raises(el.EngineError, match="DIVIDE_BY_ZERO"):
        quick_answer(engine.files, engine.catalog, "SELECT * FROM quotients")
    assert [error.condition for error in told] == ["VIEW_FAILING", "VIEW_FAILING"]
    progress = engine.progress()
    assert progress is not None
    assert set(progress.failing) == {"quotients", "above"}
    report = engine.verify()
    assert report.equal
    assert "DIVIDE_BY_ZERO" in str(report)

    table.insert([(4, 9, 3)])  # the cause stays
    still = engine.advance()
    assert states(engine)["quotients"] == "failing"
    assert rows(engine, "total") == [(4,)]
    assert engine.advance() == still  # a try that fails commits no epoch

    table.delete([(2, 1, 0)])
    engine.advance()
    assert set(states(engine).values()) == {"live"}
    assert rows(engine, "quotients") == [(1, 3), (3, 4), (4, 3)]
    assert rows(engine, "above") == [(10,)]
    assert engine.verify()
    after = engine.changes("quotients", after=good).collect()
    assert sorted(tuple(row)[:3] for row in after) == [(3, 4, "append"), (4, 3, "append")]
    assert replayed(engine, "above") == [(10,)]


@pytest.mark.parametrize("lane", ["short", "wide"])
def test_what_spark_reports_without_a_class_of_its_own_stops_its_view_alone(
    tmp_path: Path, spark: SparkSession, lane: str
) -> None:
    queries = {
        "parsed": "SELECT id, to_json(parse_json(s)) AS j FROM t",
        "strict": "SELECT id, from_json(s, 'a INT', map('mode', 'FAILFAST')).a AS a FROM t",
    }
    options = el.Options(short_lane_rows=0) if lane == "wide" else None
    with el.Engine(str(tmp_path), spark, options=options) as engine:
        engine.execute("CREATE TABLE t (id INT, s STRING)")
        engine.view("total", "SELECT count(*) AS n FROM t")
        for name, query in queries.items():
            engine.view(name, query)
        engine.execute("""INSERT INTO t VALUES (1, '{"a":1}'), (2, '{bad')""")
        engine.advance()
        assert rows(engine, "total") == [(2,)]
        assert states(engine) == dict.fromkeys(queries, "failing") | {"total": "live"}
        for view in engine.status()["views"]:
            if view["name"] in queries:
                assert "MALFORMED_RECORD_IN_PARSING" in view["error"]
                assert view["rows"] == ["t {'id': 2, 's': '{bad'}"]
        with pytest.warns(el.ViewFailingWarning, match="MALFORMED_RECORD"):
            engine.view("later", queries["parsed"])  # over the rows that are there
        assert states(engine)["later"] == "failing"
        engine.execute("DELETE FROM t WHERE id = 2")
        engine.advance()
        assert set(states(engine).values()) == {"live"}
        assert engine.verify()


def test_the_rows_at_fault_are_told(engine: el.Engine, tmp_path: Path) -> None:
    table = engine.table("t", "id INT, a INT, b INT")
    (tmp_path / "in").mkdir()
    engine.create_stream("s", "id INT, b INT", "json", {"path": str(tmp_path / "in")})
    engine.view("q", "SELECT t.id, t.a DIV t.b AS q FROM t JOIN s ON t.id = s.id")
    engine.view("sums", "SELECT a, sum(CAST(b AS TINYINT)) AS s FROM t GROUP BY a")
    table.insert([(i, i, 1) for i in range(500)])
    (tmp_path / "in" / "1.json").write_text('{"id":7,"b":1}\n{"id":8,"b":1}\n')
    engine.advance()
    table.insert([(i, i, i - 640) for i in range(600, 700)])
    (tmp_path / "in" / "2.json").write_text(
        "".join(f'{{"id":{i},"b":1}}\n' for i in range(640, 650))
    )
    engine.advance()
    found = {view["name"]: view for view in engine.status()["views"]}
    assert "t {'id': 640, 'a': 640, 'b': 0}" in found["q"]["rows"]
    assert found["sums"]["state"] == "live"
    table.insert([(1000 + i, 1, 100 + i) for i in range(50)])
    engine.advance()
    [sums] = [view for view in engine.status()["views"] if view["name"] == "sums"]
    assert sums["rows"] in ([f"t {{'id': {1028 + i}, 'a': 1, 'b': {128 + i}}}"] for i in range(22))
    with pytest.raises(el.EngineError, match=r"rows t \{'id': 10"):
        engine.snapshot("sums")


@pytest.mark.parametrize(
    ("batches", "at_fault"),
    [
        ([[(1, 1), (2, 2), (3, 3)], [(5, 5), (6, 0), (7, 7)]], "{'id': 6, 'v': 0}"),
        ([[(1, 1), (2, 2), (3, 0)], [(5, 5), (1, 6)]], "{'id': 3, 'v': 0}"),
    ],
)
def test_rows_at_fault_are_found_in_a_table_of_several_epochs(
    engine: el.Engine, batches: list[list[tuple[int, int]]], at_fault: str
) -> None:
    table = engine.table("k", "id INT, v INT", primary_key=["id"])
    for batch in batches:
        table.upsert(batch)
        engine.advance()
    with pytest.warns(el.ViewFailingWarning):
        engine.view("dz", "SELECT id, 1 / v AS r FROM k")
    [found] = engine.status()["views"]
    assert found["rows"] == [f"k {at_fault}"]


@pytest.mark.parametrize("kind", ["json", "parquet", "json.gz"])
def test_rows_at_fault_are_found_in_files(engine: el.Engine, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = kind.removesuffix(".gz")
    engine.create_stream("s", "id INT, v INT", source, {"path": str(folder)})
    engine.view("dz", "SELECT id, 1 / v AS r FROM s")
    rows = [{"id": i, "v": 0 if i == 8 else i} for i in range(1, 10)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "parquet":
        kinds = pa.schema([("id", pa.int32()), ("v", pa.int32())])
        pq.write_table(pa.Table.from_pylist(rows, kinds), folder / "1.parquet")
    else:
        (folder / f"1.{kind}").write_bytes(gzip.compress(lines) if kind == "json.gz" else lines)
    engine.advance()
    [found] = engine.status()["views"]
    expected = r"s: among about \d+ rows" if kind == "json.gz" else r"s \{'id': 8, 'v': 0\}"
    assert len(found["rows"]) == 1
    assert re.fullmatch(expected, found["rows"][0])


def test_rows_at_fault_that_are_deleted_make_way_for_others(engine: el.Engine) -> None:
    table = engine.table("k", "id INT, v INT")
    engine.view("sums", "SELECT id, sum(v) AS v FROM k GROUP BY id")
    engine.view("dz", "SELECT id, 1 / v AS r FROM sums")

    def at_fault() -> list[str]:
        return next(v["rows"] for v in engine.status()["views"] if v["name"] == "dz")

    table.insert([(1, 1), (7, 0)])
    engine.advance()
    assert at_fault() == ["sums {'id': 7, 'v': 0}"]
    table.insert([(9, 0)])
    engine.advance()
    assert at_fault() == ["sums {'id': 7, 'v': 0}"]
    table.delete([(7, 0)])
    table.insert([(8, 8)])
    told = engine.advance()
    assert at_fault() == ["sums {'id': 9, 'v': 0}"]
    assert engine.advance() == told  # the same rows again are no news
    table.delete([(9, 0)])
    engine.advance()
    assert states(engine)["dz"] == "live"
    assert rows(engine, "dz") == [(1, 1.0), (8, 0.125)]


def test_rows_that_fail_only_together_are_counted(engine: el.Engine) -> None:
    table = engine.table("t", "id INT, v TINYINT")
    engine.view("high", "SELECT assert_true(count(*) < 9) AS ok FROM t")
    table.insert([(i, 1) for i in range(12)])
    engine.advance()
    [found] = engine.status()["views"]
    assert found["rows"] == ["t: among 12 rows"]


def test_a_failing_view_is_failing_still_when_the_storage_is_opened_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark=spark) as engine:
        table = engine.table("t", "s STRING")
        engine.view("numbers", "SELECT CAST(s AS INT) AS i FROM t")
        table.insert([("1",), ("x",)])
        engine.advance()
        assert states(engine) == {"numbers": "failing"}
    with el.Engine(storage, spark=spark) as engine:
        assert states(engine) == {"numbers": "failing"}
        with pytest.raises(el.EngineError, match="CAST_INVALID_INPUT"):
            engine.snapshot("numbers")
        engine.table("t", "s STRING").delete([("x",)])
        engine.advance()
        assert rows(engine, "numbers") == [(1,)]


def test_a_view_can_be_created_over_data_on_which_it_fails(engine: el.Engine) -> None:
    bid = engine.table("bid", "auction INT, price INT")
    query = """SELECT auction, count(*) AS n FROM bid GROUP BY auction
        HAVING count(*) >= (SELECT count(*) DIV count(DISTINCT auction) FROM bid)"""
    with pytest.warns(el.ViewFailingWarning, match="DIVIDE_BY_ZERO"):
        engine.view("hot", query)
    assert states(engine) == {"hot": "failing"}
    with pytest.warns(el.ViewFailingWarning, match="reads hot"):
        engine.view("hottest", "SELECT max(n) AS n FROM hot")
    bid.insert([(1, 10), (1, 20), (2, 30)])
    engine.advance()
    assert set(states(engine).values()) == {"live"}
    assert rows(engine, "hot") == [(1, 2), (2, 1)]
    assert rows(engine, "hottest") == [(2,)]
    bid.delete([(1, 10), (1, 20), (2, 30)])
    engine.advance()
    assert states(engine) == {"hot": "failing", "hottest": "failing"}
    bid.insert([(3, 1)])
    engine.advance()
    assert engine.verify().failing == {}
    assert engine.verify()
    assert rows(engine, "hot") == [(3, 1)]


def test_a_function_that_is_mended_brings_its_view_back(
    engine: el.Engine, spark: SparkSession
) -> None:
    spark.udf.register("picky", udf(lambda v: 10 // v, "bigint"))
    table = engine.table("t", "v INT")
    engine.view("p", "SELECT v, picky(v) AS x FROM t")
    table.insert([(0,), (5,)])
    engine.advance()
    assert states(engine) == {"p": "failing"}
    assert "ZeroDivisionError" in engine.status()["views"][0]["error"]
    spark.udf.register("picky", udf(lambda v: 10 // v if v else -1, "bigint"))
    engine.advance()
    assert rows(engine, "p") == [(0, -1), (5, 2)]


def test_a_row_that_kills_workers_stops_its_view_alone(engine: el.Engine) -> None:
    def deadly(v: int) -> int:
        if v == 14:
            os._exit(3)
        return v

    engine.spark.udf.register("deadly", udf(deadly, "int"))
    engine.execute(
        "CREATE TABLE t (v INT); CREATE VIEW d AS SELECT deadly(v) AS x FROM t;"
        "CREATE VIEW n AS SELECT count(*) AS n FROM t; INSERT INTO t VALUES (1), (2)"
    )
    engine.advance()
    engine.execute("INSERT INTO t VALUES (13), (14), (15)")
    engine.advance()
    assert states(engine) == {"d": "failing", "n": "live"}
    assert rows(engine, "n") == [(5,)]
    (failing,) = [view for view in engine.status()["views"] if view["name"] == "d"]
    assert failing["rows"] == ["t {'v': 14}"]
    engine.execute("DELETE FROM t WHERE v = 14")
    engine.advance()
    assert rows(engine, "d") == [(1,), (2,), (13,), (15,)] == replayed(engine, "d")


def test_a_worker_that_dies_once_is_no_fault_of_the_view(engine: el.Engine, tmp_path: Path) -> None:
    struck = str(tmp_path / "struck")

    def unlucky(v: int) -> int:
        if not os.path.exists(struck):
            open(struck, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return v

    engine.spark.udf.register("unlucky", udf(unlucky, "int"))
    engine.execute(
        "CREATE TABLE t (v INT); CREATE VIEW u AS SELECT unlucky(v) AS x FROM t; INSERT INTO t VALUES (1), (2)"
    )
    with pytest.raises(el.EngineError, match="EPOCH_FAILED"):
        engine.advance()
    engine.advance()
    assert states(engine) == {"u": "live"}
    assert rows(engine, "u") == [(1,), (2,)]


def test_a_view_that_cannot_be_compiled_any_more_is_set_aside(
    tmp_path: Path, spark: SparkSession
) -> None:
    storage = str(tmp_path / "storage")
    spark.udf.register("twice", udf(lambda v: 2 * v, "bigint"))
    queries = {
        "doubled": "SELECT v, twice(v) AS x FROM t",
        "last": "SELECT v, twice(v) AS x FROM t ORDER BY v DESC LIMIT 1",
        "total": "SELECT sum(x) AS s FROM doubled",
        "n": "SELECT count(*) AS doubled FROM t",  # only a name, no reader of the view
    }
    with el.Engine(storage, spark=spark) as engine:
        table = engine.table("t", "v INT")
        for name, query in queries.items():
            engine.view(name, query)
        table.insert([(1,), (2,)])
        before = engine.advance()
    other = spark.newSession()  # it doesn't have the function
    with el.Engine(storage, spark=other) as engine:
        assert rows(engine, "doubled") == [(1, 2), (2, 4)]  # what is stored needs no function
        assert rows(engine, "n") == [(2,)]
        with pytest.raises(el.QueryError, match="UNRESOLVED_ROUTINE"):
            engine.snapshot("last")  # its order would get lost
        told: list[el.EddylineError] = []
        engine.on_error(told.append)
        table = engine.table("t", "v INT")
        table.insert([(3,)])
        after = engine.advance()
        assert after == before + 1
        assert rows(engine, "n") == [(3,)]
        aside = {"doubled": "failing", "last": "failing", "total": "failing", "n": "live"}
        assert states(engine) == aside
        assert [error.condition for error in told] == ["VIEW_FAILING"] * 3
        [doubled] = [view for view in engine.status()["views"] if view["name"] == "doubled"]
        assert doubled["since"] == after
        assert "can't be compiled" in doubled["error"]
        assert "`twice`" in doubled["error"]
        assert "spark.udf.register" in doubled["error"]
        with pytest.raises(el.EngineError, match=r"spark\.udf\.register"):
            engine.snapshot("doubled")
        with pytest.raises(el.EngineError, match="total reads doubled, which fails"):
            engine.snapshot("total")
        for view, good in (("doubled", [(1, 2), (2, 4)]), ("last", [(2, 4)]), ("total", [(6,)])):
            kept = engine.view(view, queries[view]).snapshot(last_good=True).collect()
            assert sorted(tuple(row) for row in kept) == good
        assert rows(engine, "n") == [(3,)]
        report = engine.verify()
        assert report.equal
        assert set(report.failing) == {"doubled", "last", "total"}
        assert set(report.views) == {"n"}
        assert engine.advance() == after  # a try that fails commits no epoch
        table.insert([(4,)])
        engine.advance()
        assert states(engine) == aside

        other.udf.register("twice", udf(lambda v: 2 * v, "bigint"))
        engine.advance()
        assert set(states(engine).values()) == {"live"}
        assert rows(engine, "doubled") == [(1, 2), (2, 4), (3, 6), (4, 8)]
        assert rows(engine, "last") == [(4, 8)]
        assert rows(engine, "total") == [(20,)]
        assert engine.verify().failing == {}
        assert engine.verify()
        seen = engine.changes("doubled", after=before).collect()
        assert sorted(tuple(row)[:3] for row in seen) == [(3, 6, "append"), (4, 8, "append")]
        assert replayed(engine, "total") == [(20,)]


def test_a_view_that_cannot_be_compiled_is_set_aside_without_new_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    storage = str(tmp_path / "storage")
    spark.udf.register("twice", udf(lambda v: 2 * v, "bigint"))
    with el.Engine(storage, spark=spark) as engine:
        engine.table("t", "v INT").insert([(1,)])
        engine.view("doubled", "SELECT twice(v) AS x FROM t")
        engine.advance()
    other = spark.newSession()
    with el.Engine(storage, spark=other) as engine:
        engine.start(0.02)
        wait(lambda: states(engine) == {"doubled": "failing"}, engine)
        assert engine.status()["run"]["state"] == "running"
        engine.table("t", "v INT").insert([(2,)])
        other.udf.register("twice", udf(lambda v: 2 * v, "bigint"))
        wait(lambda: states(engine) == {"doubled": "live"}, engine)
        wait(lambda: rows(engine, "doubled") == [(2,), (4,)], engine)


def test_a_replaced_view_that_failed_fails_in_its_old_epochs(engine: el.Engine) -> None:
    table = engine.table("t", "a INT")
    engine.view("v", "SELECT 6 DIV a AS q FROM t")
    table.insert([(1,)])
    good = engine.advance()
    table.insert([(0,)])
    bad = engine.advance()
    engine.view("v", "SELECT 6 DIV nullif(a, 0) AS q FROM t", replace=True)
    assert [tuple(row) for row in engine.snapshot("v", good).collect()] == [(6,)]
    with pytest.raises(el.EngineError, match="DIVIDE_BY_ZERO") as caught:
        engine.snapshot("v", bad)
    assert caught.value.condition == "VIEW_FAILING"
    with pytest.raises(el.EngineError, match="DIVIDE_BY_ZERO"):
        engine.sql(f"SELECT * FROM v VERSION AS OF {bad}")


def test_a_failing_view_can_be_paused_resumed_replaced_and_dropped(engine: el.Engine) -> None:
    table = engine.table("t", "a INT")
    engine.view("v", "SELECT 1 DIV a AS q FROM t")
    table.insert([(0,)])
    engine.advance()
    engine.pause("v")
    assert states(engine) == {"v": "paused"}
    with pytest.warns(el.ViewFailingWarning):
        engine.resume("v")
    assert states(engine) == {"v": "failing"}
    engine.view("v", "SELECT a + 1 AS q FROM t", replace=True)
    assert rows(engine, "v") == [(1,)]
    engine.view("w", "SELECT a + 2 AS q FROM t")
    engine.pause("w")
    engine.drop("view", "w")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.view("w", "SELECT a + 3 AS q FROM t")
    assert engine.verify()


def test_in_the_background_a_failing_view_comes_back(engine: el.Engine) -> None:
    table = engine.table("t", "id INT, a INT", primary_key=["id"])
    engine.view("v", "SELECT id, 6 DIV a AS q FROM t")
    engine.view("n", "SELECT count(*) AS n FROM t")
    engine.start(0.02)
    table.insert([(1, 0), (2, 3)])
    wait(lambda: rows(engine, "n") == [(2,)], engine)
    assert states(engine)["v"] == "failing"
    assert engine.status()["run"]["state"] == "running"
    table.delete([(1, 0)])
    wait(lambda: states(engine)["v"] == "live", engine)
    assert rows(engine, "v") == [(2, 2)]


def test_the_background_run_goes_on_after_an_error(engine: el.Engine, tmp_path: Path) -> None:
    table = engine.table("t", "a INT")
    engine.view("v", "SELECT sum(a) AS s FROM t")
    told: list[el.EddylineError] = []
    engine.on_error(told.append)

    def broken(_: object) -> None:
        raise RuntimeError("no")

    engine.on_progress(broken)  # a callback that raises stops nothing
    manifests = Path(engine.files.root) / "manifests"
    engine.start(0.02)
    hidden = manifests.rename(tmp_path / "hidden")
    manifests.write_text("")  # no epoch can be committed
    table.insert([(1,)])
    wait(lambda: engine._running.health()["state"] == "retrying", engine)
    manifests.unlink()
    hidden.rename(manifests)
    wait(lambda: engine.status()["run"]["state"] == "running", engine)
    wait(lambda: rows(engine, "v") == [(1,)], engine)
    assert told


def wait(reached: Callable[[], bool], engine: el.Engine) -> None:
    def reached_while_it_runs() -> bool:
        engine.await_termination(0.05)
        return reached()

    until(reached_while_it_runs)
