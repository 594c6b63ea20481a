"""Names that Spark allows in backquotes work everywhere; others are refused when defined."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from eddyline import Engine
from eddyline.answers.quick import quick_answer
from eddyline.cli import main
from eddyline.cli.opening import open_catalog
from eddyline.errors import CatalogError, EddylineError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.sql.names import check_name, quoted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

QUOTED = [
    "a b",
    "a-b",
    "u.v",
    "a;b",
    "../../etc",
    "a`b",
    "größe",
    "select",
    "1",
    " x ",
    "it's",
    "/*",
]
REFUSED = ["", "  ", "a\nb", "a\tb", "a\rb", "a\x00b", "a\u2028b", "\ud800", "x" * 256]


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in engine.sql(query).collect())


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(CatalogError, match="INVALID_NAME") as caught:
        check_name(name, "table")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", QUOTED)
def test_names_that_are_accepted(name: str) -> None:
    check_name(name, "table")


@pytest.mark.spark
def test_definitions_refuse_names(tmp_path: Path, spark: SparkSession) -> None:
    with (
        Engine(tmp_path / "storage", spark) as engine,
        closing(DataQueue(LogBackend(str(tmp_path / "queue")))) as queue,
    ):
        rate = spark.readStream.format("rate").load()
        for name in REFUSED:
            for define in (
                lambda name: engine.table(name, "a INT"),
                lambda name: engine.stream(name, rate),
                lambda name: engine.create_stream(name, "a INT", "json", {"path": str(tmp_path)}),
                lambda name: engine.pipeline(name, queue),
                lambda name: engine.view(name, "SELECT 1 AS one"),
            ):
                with pytest.raises(CatalogError, match="INVALID_NAME"):
                    define(name)
            pipeline = engine.pipeline("p", queue).bolt(lambda record: record)
            with pytest.raises(CatalogError, match="INVALID_NAME"):
                pipeline.into(name, "a INT")
        with pytest.raises(EddylineError, match="INVALID_NAME"):
            engine.execute("CREATE VIEW `a\nb` AS SELECT 1 AS one")
        assert engine.catalog.entries == ()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_quoted_names_work_everywhere(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = str(tmp_path / "storage")
    with Engine(storage, spark) as engine:
        engine.table("plain", "id INT").insert([(1,)])
        for name in QUOTED:
            table = quoted(name)
            view = quoted(f"{name} view")
            engine.execute(f"CREATE TABLE {table} (id INT, v INT, PRIMARY KEY (id))")
            engine.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20), (3, 30)")
            engine.execute(f"CREATE VIEW {view} AS SELECT id, v FROM {table} WHERE v > 5")
        epoch = engine.advance()
        for name in QUOTED:
            table = quoted(name)
            engine.execute(f"UPDATE {table} SET v = v + 1 WHERE id = 1")
            engine.execute(f"DELETE FROM {table} WHERE id = 2")
        engine.advance()
        for name in QUOTED:
            table, view = quoted(name), quoted(f"{name} view")
            assert rows(engine, f"SELECT * FROM {view}") == [(1, 11), (3, 30)]
            assert rows(engine, f"SELECT t.v FROM {table} AS t") == [(11,), (30,)]
            old = f"SELECT id FROM {view} VERSION AS OF {epoch}"
            assert rows(engine, old) == [(1,), (2,), (3,)]
            handle = engine.view(f"{name} view", f"SELECT id, v FROM {table} WHERE v > 5")
            assert handle.snapshot().count() == 2
            assert handle.changes(after=epoch).count() == 3
            assert engine.catalog.get(f"{name} view").upstream == (name,)
        assert engine.verify()
        assert "Scan" in engine.explain("a b view")
        assert engine.execute("EXPLAIN `a b view`") is not None
    with open_catalog(storage) as store:
        catalog = store.read()
        assert catalog is not None
        answer = quick_answer(store.files, catalog, "SELECT id FROM `a b view` ORDER BY id")
        assert answer is not None
        assert answer.texts() == [("1",), ("3",)]
    assert main(["sql", "SELECT v FROM `u.v view` ORDER BY v", "--storage", storage]) == 0
    assert capsys.readouterr().out.split()[-4:-2] == ["11", "30"]
    with Engine(storage, spark) as engine:
        assert engine.pause("a b view") == []
        assert engine.resume("a b view") == ["a b view"]
        for name in QUOTED:
            engine.execute(f"DROP VIEW {quoted(f'{name} view')}")
        for name in QUOTED:
            engine.execute(f"DROP TABLE {quoted(name)}")
        assert [entry.name for entry in engine.catalog.entries] == ["plain"]
    assert not (tmp_path / "etc").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["storage"]


@pytest.mark.spark
def test_a_view_depends_on_what_it_reads_not_on_words(tmp_path: Path, spark: SparkSession) -> None:
    storage = str(tmp_path / "storage")
    with Engine(storage, spark) as engine:
        for name in ("t", "n", "other", "never", "twin"):
            engine.table(name, "k STRING, v INT").insert([("a", 1)])
        engine.view("paused", "SELECT k FROM t")
        engine.pause("paused")
        counts = engine.view(
            "counts", "SELECT k, count(*) AS n, 'other' AS paused FROM t GROUP BY k"
        )
        some = """
            WITH twin AS (SELECT k FROM n)
            SELECT k FROM twin WHERE EXISTS (SELECT 1 FROM other WHERE other.k = twin.k)
                AND (false OR (SELECT max(v) FROM t) > 0) UNION ALL SELECT k FROM never WHERE 1 = 0"""
        engine.view("some", some)
        assert engine.catalog.get("counts").upstream == ("t",)
        assert set(engine.catalog.get("some").upstream) == {"t", "n", "other", "never"}
        engine.drop("table", "twin")
        with pytest.raises(CatalogError, match="some"):
            engine.drop("table", "never")
        engine.drop("view", "some")
        engine.drop("table", "n")
        engine.advance()
        assert [tuple(row) for row in counts.snapshot().collect()] == [("a", 1, "other")]
    with Engine(storage, spark) as engine:
        engine.table("n", "x INT").insert([(1,)])
        engine.advance()
        assert engine.verify()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["a b", "../../etc", "u.v"])
def test_pipelines_with_quoted_names(
    tmp_path: Path, spark: SparkSession, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def number(record: dict[str, Any]) -> dict[str, int]:
        return {"n": int(record["payload"])}

    storage = str(tmp_path / "storage")
    with (
        Engine(storage, spark) as engine,
        closing(DataQueue(LogBackend(str(tmp_path / "queue")))) as queue,
    ):
        made = engine.pipeline(name, queue).bolt(number, max_attempts=1)
        pipeline = made.into(f"{name} out", "n INT")
        engine.view(f"{name} view", f"SELECT sum(n) AS n FROM {quoted(f'{name} out')}")
        queue.put(["1", "two", "3"])
        engine.advance()
        assert rows(engine, f"SELECT n FROM {quoted(f'{name} view')}") == [(4,)]
        assert rows(engine, f"SELECT position FROM {quoted(f'{name}__dead')}") == [(1,)]
        assert main(["deadletters", "list", name, "--storage", storage]) == 0
        assert "two" in capsys.readouterr().out
        assert pipeline.discard("position = 1") == 1
        assert engine.verify()
