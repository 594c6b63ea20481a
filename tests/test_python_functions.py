"""Python functions in views: live as offline, and taken back as they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import DoubleType, LongType, StringType, StructType
from pyspark.util import PythonEvalType

import eddyline as el
from eddyline.errors import EngineError, QueryError
from eddyline.spark.session import local_session
from eddyline.testing import replayed

pytestmark = pytest.mark.spark

TABLE = ("id BIGINT, k STRING, v BIGINT", ["id"])
SCALARS = {
    "plain": udf(lambda v: None if v is None else v * 3 + 1, LongType()),
    "pickled": udf(lambda v: str(v), StringType(), useArrow=False),
    "pandas": pandas_udf(lambda v: v * 2, LongType()),
    "arrow": arrow_udf(lambda v: pc.add(v, 7), LongType()),
}


@pandas_udf(StructType().add("a", LongType()).add("b", StringType()))  # type: ignore[call-overload]
def parts(v: pd.Series, k: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"a": v + 1, "b": k + "!"})


@pandas_udf(LongType())  # type: ignore[call-overload]
def batches(given: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    for v, k in given:
        yield v + k.str.len()


@pandas_udf(DoubleType())  # type: ignore[call-overload]
def spread(v: pd.Series) -> float:
    return float(v.max() - v.min())


@arrow_udf(DoubleType())
def middle(v: pa.Array) -> float:
    return pc.quantile(v, 0.5)[0].as_py()


VIEWS = {
    "scalars": "SELECT id, plain(v) AS a, pickled(v) AS b, pandas(v) AS c, arrow(v) AS d FROM t",
    "twice": "SELECT plain(pandas(v)) AS x, count(*) AS n FROM t WHERE plain(v) > 4 GROUP BY 1",
    "structs": "SELECT parts(v, k).a AS a, parts(v, k).b AS b, batches(v, k) AS c FROM t",
    "over": "SELECT k, plain(n) AS m FROM (SELECT k, count(*) AS n FROM t GROUP BY k)",
    "grouped": "SELECT k, spread(v) AS s, abs(spread(id)) AS m FROM t GROUP BY k",
    "arrowed": "SELECT k AS g, middle(v) AS m FROM t GROUP BY k HAVING middle(v) > 1",
    "global": "SELECT spread(v) AS s FROM t",
    "window": "SELECT id, k, spread(v) OVER (PARTITION BY k) AS s FROM t",
    "joined": "SELECT a.id, b.id AS other FROM t a JOIN t b ON plain(a.v) = plain(b.v)",
}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    session = local_session()
    for name, function in {
        **SCALARS, "parts": parts, "batches": batches, "spread": spread, "middle": middle
    }.items():  # fmt: skip
        session.udf.register(name, function)
    return session


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), spark) as engine:
        engine.table("t", *TABLE)
        yield engine


def test_views_with_python_functions_equal_offline(engine: el.Engine) -> None:
    table = engine.table("t", *TABLE)
    table.insert([(i, "abc"[i % 3], i % 5) for i in range(20)])
    engine.advance()
    for name, query in VIEWS.items():
        engine.view(name, query)
    for epoch in range(4):
        table.upsert([(i, "abcd"[(i + epoch) % 4], i + epoch) for i in range(epoch, 18, 5)])
        table.delete([(epoch, None, None), (19 - epoch, None, None)])
        engine.advance()
        report = engine.verify()
        assert report.equal, report
    for name in VIEWS:
        changes = [tuple(row) for row in engine.changes(name, None, "retract").collect()]
        rows = [tuple(row) for row in engine.snapshot(name).collect()]
        assert sorted(map(repr, replayed(changes))) == sorted(map(repr, rows)), name


def test_a_view_that_is_replaced_by_the_same_text_takes_the_function_of_now(
    tmp_path: Path, spark: SparkSession
) -> None:
    made = {
        "py": "SELECT a, times_py(a) AS b FROM t",
        "in_sql": "SELECT `Times_SQL`(a) AS b, count(*) AS n FROM t GROUP BY 1",
        "plain": "SELECT count(*) AS n FROM t",
    }
    with el.Engine(str(tmp_path / "s"), spark.newSession()) as engine:
        engine.table("t", "a INT").insert([(1,), (2,)])
        engine.advance()
        for number, epochs in ((10, 3), (100, 2), (100, 1)):  # the last time, that of Python only
            engine.spark.udf.register("times_py", lambda a, by=number: a * by, "int")
            engine.execute(
                f"CREATE OR REPLACE TEMPORARY FUNCTION times_sql(a INT) RETURNS INT RETURN a * {number}"
            )
            before = engine.status()["epoch"]
            for name in ("py", "in_sql"):
                engine.execute(f"CREATE OR REPLACE VIEW {name} AS {made[name]}")
            engine.view("plain", made["plain"], replace=True)
            assert engine.status()["epoch"] - before == epochs
            assert engine.verify()
            rows = {tuple(row) for row in engine.snapshot("py").collect()}
            assert rows == {(1, number), (2, 2 * number)}


_AGGREGATE = PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
FORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "plain": lambda f: udf(f, "string"),
    "pandas": lambda f: pandas_udf(lambda v: v.map(f), "string"),
    "arrow": lambda f: arrow_udf(lambda v: pa.array(map(f, v.to_pylist()), pa.string()), "string"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_output_is_retracted_as_it_was_given(
    tmp_path: Path, spark: SparkSession, form: str
) -> None:
    """Although the function then changes, and then fails."""
    versions = [
        lambda v: f"{v} at first",
        lambda v: f"{v} later",
        lambda v: 1 // 0 if v != "c" else "c still",
    ]
    seen: list[set[str]] = []
    for number, function in enumerate(versions):

        def least(v: pd.Series, f: Callable[[Any], Any] = function) -> str:
            return f(min(v))

        spark.udf.register("told", FORMS[form](function))
        spark.udf.register("summed", pandas_udf(least, StringType(), _AGGREGATE))
        with el.Engine(str(tmp_path / "storage"), spark) as engine:
            table = engine.table("t", "k STRING, n BIGINT", ["n"])
            engine.view("v", "SELECT told(k) AS x FROM t")
            engine.view("g", "SELECT k, summed(k) AS x FROM t GROUP BY k")
            engine.view("w", "SELECT n, summed(k) OVER (PARTITION BY k) AS x FROM t")
            if number == 0:
                table.insert([("a", 1), ("b", 2), ("b", 3)])
            elif number == 1:
                table.delete([("a", 1)])
                table.insert([("d", 4)])
            else:
                table.delete([("b", 2), ("d", 4), ("b", 3)])
                table.insert([("c", 5)])
            engine.advance()
            seen.append({row.x for row in engine.snapshot("v").collect()})
            for name in "vgw":
                changes = [tuple(row) for row in engine.changes(name, None, "retract").collect()]
                rows = [tuple(row) for row in engine.snapshot(name).collect()]
                assert sorted(replayed(changes)) == sorted(rows)
                assert len(rows) == engine.snapshot("t").count() or name == "g"
            assert {row.x for row in engine.snapshot("g").collect()} == seen[-1]
    assert seen == [{"a at first", "b at first"}, {"b at first", "d later"}, {"c still"}]


def test_explain_says_that_outputs_are_kept(engine: el.Engine, tmp_path: Path) -> None:
    for name in ("scalars", "grouped", "window"):
        assert "outputs kept" in engine.explain(VIEWS[name]), name
    (tmp_path / "in").mkdir()
    engine.create_stream("s", "v BIGINT", "json", {"path": str(tmp_path / "in")})
    assert "outputs kept" not in engine.explain("SELECT plain(v) AS x FROM s")  # never retracted


def test_a_function_that_fails_sets_its_view_aside_and_loses_nothing(
    engine: el.Engine, spark: SparkSession
) -> None:
    spark.udf.register("picky", udf(lambda v: 10 // v, "bigint"))
    engine.view("p", "SELECT id, picky(v) AS x FROM t")
    engine.table("t", *TABLE).insert([(1, "a", 5), (2, "a", 0)])
    engine.advance()
    with pytest.raises(EngineError, match="ZeroDivisionError") as caught:
        engine.snapshot("p")
    assert caught.value.condition == "VIEW_FAILING"
    engine.table("t", *TABLE).upsert([(2, "a", 2)])
    engine.advance()
    assert sorted(tuple(row) for row in engine.snapshot("p").collect()) == [(1, 2), (2, 5)]


def test_what_is_not_deterministic_is_refused(engine: el.Engine, spark: SparkSession) -> None:
    spark.udf.register("dice", udf(lambda v: v, "bigint").asNondeterministic())
    with pytest.raises(QueryError, match="not marked deterministic"):
        engine.view("d", "SELECT dice(v) AS x FROM t")


def test_functions_of_sql_are_of_the_session(tmp_path: Path, spark: SparkSession) -> None:
    area = (
        "CREATE OR REPLACE TEMPORARY FUNCTION area(a DOUBLE, b DOUBLE) RETURNS DOUBLE RETURN a * b;"
    )
    with el.Engine(str(tmp_path / "s"), spark.newSession()) as engine:
        engine.execute(
            f"{area} CREATE TABLE t (a DOUBLE, b DOUBLE); INSERT INTO t VALUES (2, 3), (4, 5);"
            "CREATE VIEW total AS SELECT sum(area(a, b)) AS s FROM t WHERE area(a, a) > 1;"
            "UPDATE t SET b = area(a, b) WHERE a = 2"
        )
        engine.advance()
        assert engine.snapshot("total").collect() == [(32.0,)]
        assert engine.verify("total")
        with pytest.raises(QueryError, match="ROUTINE_ALREADY_EXISTS"):
            engine.execute(area.replace("OR REPLACE ", ""))
    with el.Engine(str(tmp_path / "s"), spark.newSession()) as engine:
        engine.execute(area.replace("*", "+"))  # another function: the view is computed anew
        engine.table("t", "a DOUBLE, b DOUBLE").insert([(1.5, 2.0)])
        engine.advance()
        assert engine.snapshot("total").collect() == [(20.5,)]
        engine.view("plain", "SELECT count(*) AS n FROM t")
        engine.execute("DROP TEMPORARY FUNCTION area")
        report = engine.verify()  # the other view is compared
        assert not report
        assert set(report.views) == {"plain"}
        assert "area" in report.failing["total"]
        with pytest.raises(QueryError, match="CREATE TEMPORARY FUNCTION"):
            engine.view("w", "SELECT area(a, b) AS s FROM t")
