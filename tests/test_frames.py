"""Views that are made of DataFrames equal the same DataFrames over the rows, at every epoch and after reopening."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import eddyline as el
from eddyline.answers.difference import difference
from eddyline.spark.session import cloned, frame
from eddyline.testing import PlainTable

pytestmark = pytest.mark.spark

Relations = Callable[[str], DataFrame]

ORDERS = "id BIGINT, item STRING, v INT, tags ARRAY<STRING>"
ITEMS = "item STRING, price INT"


def sums(of: Relations) -> DataFrame:
    kept = (
        sf.sum("v").alias("s"),
        sf.count(sf.lit(1)).alias("n"),
        sf.countDistinct("id").alias("ids"),
    )
    return of("orders").groupBy("item").agg(*kept)


def joined(of: Relations) -> DataFrame:
    return of("orders").join(of("items"), "item", "left").select("id", "item", "v", "price")


def self_joined(of: Relations) -> DataFrame:
    a, b = of("orders").alias("a"), of("orders").alias("b")
    return a.join(
        b, (sf.col("a.item") == sf.col("b.item")) & (sf.col("a.id") < sf.col("b.id"))
    ).select(sf.col("a.id").alias("x"), sf.col("b.id").alias("y"))


def ranked(of: Relations) -> DataFrame:
    by = Window.partitionBy("item").orderBy(sf.desc("v"), "id")
    columns = sf.row_number().over(by).alias("r"), sf.lag("v").over(by).alias("before")
    return of("orders").select("id", "item", *columns)


def pivoted(of: Relations) -> DataFrame:
    return of("orders").groupBy("item").pivot("v", [1, 2, 3]).agg(sf.count("id"))


def with_subquery(of: Relations) -> DataFrame:
    most = of("orders").agg(sf.max("v"))
    return of("orders").where(sf.col("v") == most.scalar()).select("id", "v")


def python_functions(of: Relations) -> DataFrame:
    def doubled(value: int | None) -> int | None:  # workers can't import this module
        return None if value is None else value * 2

    add = 3
    called = sf.udf(doubled, "int")("v").alias("d"), sf.udf(lambda x: x and x + add, "int")("v")
    return of("orders").select("id", called[0], called[1].alias("e"))


VIEWS: dict[str, Callable[[Relations], DataFrame]] = {
    "sums": sums,
    "joined": joined,
    "self_joined": self_joined,
    "ranked": ranked,
    "pivoted": pivoted,
    "with_subquery": with_subquery,
    "python_functions": python_functions,
    "filtered": lambda of: of("orders").where("v > 1").withColumn("w", sf.col("v") * 10).drop("v"),
    "different": lambda of: of("orders").select("item", "v").distinct(),
    "first_of_each": lambda of: of("orders").select("item", "v").dropDuplicates(),
    "united": lambda of: of("orders").select("item").union(of("items").select("item")),
    "without": lambda of: of("orders").select("item").exceptAll(of("items").select("item")),
    "in_both": lambda of: of("orders").select("item").intersect(of("items").select("item")),
    "semi": lambda of: of("orders").join(of("items"), "item", "left_semi").select("id", "item"),
    "anti": lambda of: of("orders").join(of("items"), "item", "left_anti").select("id", "item"),
    "tags": lambda of: of("orders").select("id", sf.explode("tags").alias("tag")),
    "changed_tags": lambda of: of("orders").select(
        "id",
        sf.transform("tags", lambda tag: sf.upper(tag)).alias("a"),
        sf.filter("tags", lambda tag: tag > "a").alias("b"),
    ),
    "top": lambda of: of("orders").orderBy(sf.desc("v"), "id").limit(3).select("id", "v"),
    "rolled": lambda of: of("orders").rollup("item", "v").agg(sf.count("id").alias("n")),
    "lateral": lambda of: (
        of("orders")
        .alias("o")
        .lateralJoin(
            of("items")
            .alias("i")
            .where(sf.col("o.item").outer() == sf.col("i.item"))
            .select(sf.col("price").alias("p"))
        )
        .select("id", "p")
    ),
    "described": lambda of: of("orders").select("v").summary("count", "min", "max"),
    "with_constants": lambda of: (
        of("orders").sparkSession.range(5).join(of("orders"), "id").select("id")
    ),
    "above": lambda of: of("sums").groupBy("n").agg(sf.sum("s").alias("s")),  # of another view
}


class Program:
    """A program that defines all views, and changes the tables; and the same tables as plain rows."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path, self.spark = str(folder / "storage"), spark
        self.random = random.Random(7)
        self.orders = PlainTable(ORDERS, (0,))
        self.items = PlainTable(ITEMS)

    def open(self) -> el.Engine:
        engine = el.Engine(self.path, spark=self.spark)
        engine.table("orders", ORDERS, primary_key=["id"])
        engine.table("items", ITEMS)
        return engine

    def change(self, engine: el.Engine) -> None:
        pick = self.random
        rows = [
            (
                pick.randrange(12),
                pick.choice("abc"),
                pick.choice([None, 1, 2, 3]),
                pick.choice([None, ["a"], ["b", "c", "c"]]),
            )
            for _ in range(5)
        ]
        gone = [row for row in self.orders.rows if pick.random() < 0.3]
        items = [(pick.choice("bcd"), pick.randrange(3)) for _ in range(2)]
        orders, table = engine.table("orders", ORDERS, ["id"]), engine.table("items", ITEMS)
        orders.delete(gone)
        orders.upsert(rows)
        table.insert(items)
        self.orders.delete(gone)
        self.orders.insert(rows)
        self.items.insert(items)
        if pick.random() < 0.5:
            table.delete(items[:1])
            self.items.delete(items[:1])
        engine.advance()

    def check(self, engine: el.Engine, names: Sequence[str]) -> None:
        session = cloned(self.spark)
        of = {
            "orders": frame(session, self.orders.rows, ORDERS),
            "items": frame(session, self.items.rows, ITEMS),
        }
        of["sums"] = sums(of.__getitem__)
        for name in names:
            offline = VIEWS[name](of.__getitem__).toArrow()
            found = difference(engine.snapshot(name).toArrow(), offline)
            assert found.equal, f"{name}: {found}"


@pytest.fixture
def program(tmp_path: Path, spark: SparkSession) -> Program:
    return Program(tmp_path, spark)


@pytest.fixture
def engine(program: Program) -> Iterator[el.Engine]:
    with program.open() as engine:
        yield engine


def define(engine: el.Engine, name: str) -> None:
    engine.view(name, VIEWS[name](engine.relation))


def states(engine: el.Engine) -> dict[str, str]:
    return {view["name"]: view["state"] for view in engine.status()["views"]}


SOME = ("with_subquery", "changed_tags")

CHILD = """
import logging, sys
from pathlib import Path
import eddyline as el
from test_frames import VIEWS, define, states

class Raising(logging.Handler):
    def emit(self, record):
        assert "computed again" not in record.getMessage(), record.getMessage()

logging.getLogger("eddyline.epochs").addHandler(Raising())
with el.Engine(sys.argv[1]) as engine:
    for name in VIEWS:
        define(engine, name)
    engine.execute("INSERT INTO items VALUES ('b', 9)")
    engine.advance()
    assert set(states(engine).values()) == {"live"}, states(engine)
    report = engine.verify()
    assert report and len(report.views) == len(VIEWS), report
print("equal")
"""


def tables(spark: SparkSession) -> set[str]:
    """Return the names that the session knows; other modules may have left some."""
    return {table.name for table in spark.catalog.listTables()}


@pytest.mark.parametrize(
    ("names", "epochs"),
    [
        pytest.param(SOME, 1, id="some"),
        pytest.param(tuple(VIEWS), 4, id="all", marks=pytest.mark.slow),
    ],
)
def test_views_equal_their_dataframes_at_every_epoch_and_after_reopening(
    program: Program, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], epochs: int
) -> None:
    half, before = len(names) // 2, tables(program.spark)
    with program.open() as engine:
        for name in names[:half]:
            define(engine, name)
        program.change(engine)
        for name in names[half:]:  # over rows that are there
            engine.view(name, lambda name=name: VIEWS[name](program.spark.table))
        for _ in range(epochs):
            program.change(engine)
            program.check(engine, names)
        report = engine.verify()
        assert report, report
        assert set(report.views) == set(names)
        assert tables(program.spark) == before  # those of the functions are gone
    caplog.clear()
    with program.open() as engine:
        for name in names:
            define(engine, name)
        program.change(engine)
        program.check(engine, names)
        assert set(states(engine).values()) == {"live"}
        assert "computed again" not in caplog.text


@pytest.mark.slow
def test_a_new_process_knows_the_views_again(program: Program) -> None:
    with program.open() as engine:
        for name in VIEWS:
            define(engine, name)
        program.change(engine)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, program.path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.stdout.strip().endswith("equal"), done.stderr


def test_a_view_waits_for_its_dataframe_and_the_others_go_on(program: Program) -> None:
    with program.open() as engine:
        define(engine, "sums")
        engine.view("sorted", lambda: engine.relation("sums").orderBy("item"))
        engine.view("read", "SELECT count(*) AS groups, sum(n) AS n FROM sums")
        engine.view("number", "SELECT count(*) AS n FROM orders")
        program.change(engine)
        good = engine.advance()
    with program.open() as engine:
        assert [row["item"] for row in engine.snapshot("sums").collect()]  # as of its last epoch
        assert engine.snapshot("sorted").count() == engine.snapshot("sums").count()
        report = engine.verify()
        assert list(report.views) == ["read", "number"]
        assert report, report
        assert "DataFrame" in report.failing["sums"]
        with pytest.raises(el.QueryError, match="as before") as caught:
            engine.explain("sums")
        assert caught.value.condition == "VIEW_UNDEFINED"
        program.change(engine)
        assert states(engine) == {
            "sums": "failing", "sorted": "failing", "read": "failing", "number": "live"
        }  # fmt: skip
        assert engine.sql("SELECT n FROM number").collect()[0].n == len(program.orders.rows)
        with pytest.raises(el.EngineError, match=r"engine.view\('sums', ...\)"):
            engine.snapshot("sums")
        define(engine, "sums")
        assert states(engine) == {
            "sums": "live", "sorted": "failing", "read": "live", "number": "live"
        }  # fmt: skip
        program.check(engine, ["sums"])
        engine.view("sorted", lambda: engine.relation("sums").orderBy("item"))
        shown = [row["item"] for row in engine.snapshot("sorted").collect()]
        assert shown == sorted(shown)
        assert set(states(engine).values()) == {"live"}
        assert engine.verify()
        # its changelog gets the difference: at most both versions of three groups
        changed = engine.changes("sums", after=good).collect()
        assert len(changed) <= 2 * 3
        assert {row["op"] for row in changed} == {"append", "delete"}


def test_another_dataframe_is_another_definition(program: Program, engine: el.Engine) -> None:
    def added(number: int) -> DataFrame:
        return engine.relation("orders").select(
            "id", sf.udf(lambda x: number, "int")("v").alias("n")
        )

    def text(value: object) -> DataFrame:
        return engine.relation("orders").select(
            sf.concat("item", sf.lit(value).cast("string")).alias("c")
        )

    engine.view("added", added(1))
    engine.view("text", text("1"))
    engine.view("added", added(1))
    engine.view("text", lambda: text("1"))
    for name, other in (("added", added(2)), ("text", text(1)), ("text", added(1))):
        with pytest.raises(el.CatalogError) as caught:
            engine.view(name, other)
        assert caught.value.condition == "NAME_TAKEN"
    with pytest.raises(el.CatalogError, match="another definition"):
        engine.view("added", "SELECT id FROM orders")
    program.change(engine)
    engine.view("added", added(2), replace=True)
    assert {row["n"] for row in engine.snapshot("added").collect()} == {2}
    with pytest.raises(el.QueryError, match="dropped since"):
        engine.view("added", engine.relation("added").where("n = 1"), replace=True)
    engine.view("added", "SELECT id FROM orders", replace=True)
    engine.view("added", engine.relation("orders").select("id"), replace=True)
    assert engine.verify()


def test_a_view_that_another_spark_has_described_is_known_by_its_columns(program: Program) -> None:
    with program.open() as engine:
        define(engine, "sums")
        program.change(engine)
        workspace = engine._workspace
        old = replace(engine.catalog.get("sums"), query="Aggregate", options={"spark": "4.0"})
        entries = tuple(old if e.name == "sums" else e for e in engine.catalog.entries)
        workspace.save(replace(engine.catalog, entries=entries))
    with program.open() as engine:
        with pytest.raises(el.CatalogError, match="another definition"):
            engine.view("sums", engine.relation("orders").select("id"))
        define(engine, "sums")
        assert "Relation orders" in engine.view("sums", sums(engine.relation)).query
        program.change(engine)
        program.check(engine, ["sums"])


def test_what_a_dataframe_may_read(engine: el.Engine, spark: SparkSession, tmp_path: Path) -> None:
    orders = engine.relation("orders")
    assert orders.columns == ["id", "item", "v", "tags"]
    with pytest.raises(PythonException, match="SCHEMA_ONLY"):
        orders.where("v > 1").count()
    with pytest.raises(el.CatalogError) as missing:
        engine.relation("nothing")
    assert missing.value.condition == "NOT_FOUND"
    cached = orders.where("v > 1").cache()
    files = str(tmp_path / "files")
    spark.range(3).write.parquet(files)
    refused: dict[str, tuple[object, str]] = {
        "rows": (
            spark.createDataFrame([(1, "a")], "n INT, m STRING"),
            r"\(n, m\).*engine.relation",
        ),
        "files": (orders.join(spark.read.parquet(files), "id"), "LogicalRelation.*CREATE STREAM"),
        "stream": (spark.readStream.format("rate").load(), "streaming.*engine.stream"),
        "cached": (cached, "cached"),
        "random": (orders.withColumn("r", sf.rand()), "deterministic"),
        "mapped": (orders.mapInPandas(lambda parts: parts, orders.schema), "MapInPandas"),
        "doubled": (orders.crossJoin(orders.select("id")), "several columns named id"),
        "no name": (lambda: spark.table("nothing"), "TABLE_OR_VIEW_NOT_FOUND"),
    }
    for name, (given, message) in refused.items():
        with pytest.raises(el.QueryError, match=message):
            engine.view("refused", given)
        assert engine.catalog.find("refused") is None, name
    cached.unpersist()
    for wrong in (3, lambda: "SELECT 1"):
        with pytest.raises(el.EngineError) as caught:
            engine.view("refused", wrong)
        assert caught.value.condition == "BAD_OPTION"
    engine.drop("table", "items")
    engine.table("gone", "item STRING")
    gone = engine.relation("gone")
    engine.drop("table", "gone")
    engine.table("gone", "item STRING")
    with pytest.raises(el.QueryError, match="dropped since"):
        engine.view("refused", gone)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(el.EngineError) as caught:
            engine.view("refused", orders)
        assert caught.value.condition == "SETTINGS_DIFFER"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_temporary_views_of_the_user_stay(engine: el.Engine, spark: SparkSession) -> None:
    before = tables(spark)
    spark.range(2).createOrReplaceTempView("items")
    engine.relation("orders").createOrReplaceTempView("mine")
    try:
        engine.view("counted", spark.table("mine").groupBy("item").count())
        engine.view("counted", lambda: spark.sql("SELECT item, count(*) FROM orders GROUP BY item")
                    .toDF("item", "count"), replace=True)  # fmt: skip
        with pytest.raises(el.QueryError, match="cannot be resolved"):
            engine.view("refused", lambda: spark.table("items").join(spark.table("orders"), "item"))
        assert tables(spark) == before | {"items", "mine"}
        assert spark.table("items").count() == 2
    finally:
        spark.catalog.dropTempView("items")
        spark.catalog.dropTempView("mine")


def test_a_dataframe_over_another_engines_relation_is_refused(
    engine: el.Engine, spark: SparkSession, tmp_path: Path
) -> None:
    with el.Engine(str(tmp_path / "other"), spark=spark) as other:
        other.table("orders", ORDERS)
        with pytest.raises(el.QueryError, match="no relation of this engine"):
            other.view("v", engine.relation("orders"))


def test_a_failing_dataframe_view_and_one_that_is_paused(engine: el.Engine) -> None:
    table = engine.table("t", "a INT, b INT")
    engine.view("quotients", engine.relation("t").select(sf.expr("a DIV b").alias("q")))
    view = engine.view("kept", engine.relation("t").groupBy("b").count())
    table.insert([(1, 0), (4, 2)])
    engine.advance()
    assert states(engine) == {"quotients": "failing", "kept": "live"}
    table.delete([(1, 0)])
    engine.pause("kept")
    engine.advance()
    assert [row.q for row in engine.snapshot("quotients").collect()] == [2]
    assert view.snapshot().count() == 2
    engine.resume("kept")
    assert view.snapshot().count() == 1
    assert engine.verify()


def test_a_dataframe_view_is_explained_as_its_query_is(engine: el.Engine) -> None:
    define(engine, "sums")
    assert "Aggregate [class 2, stateful" in engine.explain("sums")
    assert "orders" in engine.explain("sums")
    assert "sum(v" in engine.explain("sums", "logical")
    assert "MapInArrow" in engine.explain("sums", "physical")
    engine.execute("INSERT INTO orders VALUES (1, 'a', 2, NULL), (2, 'b', 3, NULL)")
    engine.advance()
    assert "Aggregate" in engine.explain("sums")
    assert "Aggregate" in engine.explain("SELECT n, count(*) AS k FROM sums GROUP BY n")


def test_a_sink_follows_a_dataframe_view_after_reopening(program: Program, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with program.open() as engine:
        define(engine, "sums")
        engine.sink("out", "sums", "jsonl", path=str(target))
        program.change(engine)
    with program.open() as engine:
        define(engine, "sums")
        program.change(engine)
        engine.drop("sink", "out")  # waits for its delivery
    assert any(json.loads(line) for path in target.rglob("*.jsonl") for line in path.open())


def test_nothing_stays_of_what_was_dropped(tmp_path, spark):
    """In a process that runs for a year, definitions come and go."""
    with el.Engine(str(tmp_path / "s"), spark) as engine:
        engine.table("t", "a INT").insert([(1,)])
        workspace = engine._workspace
        frames, lanes = workspace.compiler.frames, workspace.lanes
        kept = None
        for _ in range(2):
            engine.view("v", "SELECT a, count(*) AS n FROM t GROUP BY a UNION ALL VALUES (7, 7L)")
            old = engine.relation("v")
            engine.view("w", old.where("n > 0"))
            engine.advance()
            assert engine.files.names("constants")
            for name in ("w", "v"):
                engine.drop("view", name)
            size = (len(frames._made), len(frames._relations), len(frames._plans))
            left = (size, len(lanes._views), engine.files.names("constants"))
            assert left == (kept or left)
            kept = left
        assert not left[-1]
        assert set(lanes._views) <= workspace.catalog.ids
        assert {made for made, _ in frames._made.values()} <= workspace.catalog.ids
        with pytest.raises(el.QueryError, match="dropped since"):
            engine.view("w", old.where("n > 0"))
