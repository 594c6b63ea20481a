"""After a start, views are compiled when their input first changes, and what they show is right all the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.runtime.compiler import Compiler

pytestmark = pytest.mark.spark

NOON = 1_700_000_000_000_000


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the views that are compiled, in their order."""
    names: list[str] = []
    compile_view = Compiler.view

    def noted(self, entry, *rest):
        names.append(entry.name)
        return compile_view(self, entry, *rest)

    monkeypatch.setattr(Compiler, "view", noted)
    return names


def rows(engine: el.Engine, view: str) -> list[tuple[object, ...]]:
    return sorted(map(tuple, engine.snapshot(view).collect()))


def make(folder: Path, spark: SparkSession) -> None:
    """Make a storage of two tables, with views on each, on both, and on views."""
    with el.Engine(folder, spark) as engine:
        for name in ("a", "b"):
            engine.table(name, "k INT, v INT").insert([(1, 2), (2, 3)])
            engine.view(f"of_{name}", f"SELECT k, sum(v) AS s FROM {name} GROUP BY k")
        engine.view("above_a", "SELECT count(*) AS n, max(s) AS most FROM of_a")
        engine.view("both", "SELECT x.k, y.s FROM b x JOIN of_a y ON x.k = y.k")
        engine.view("constant", "SELECT 1 AS one")
        engine.advance()


def test_a_change_waits_for_the_plans_of_the_views_that_it_reaches(
    spark: SparkSession, tmp_path: Path, compiled: list[str]
) -> None:
    make(tmp_path, spark)
    compiled.clear()
    with el.Engine(tmp_path, spark) as engine:
        engine.advance()
        assert compiled == []
        assert rows(engine, "above_a") == [(2, 3)]
        engine.execute("INSERT INTO a VALUES (3, 9)")
        engine.advance()
        assert compiled == ["of_a", "above_a", "both"]
        assert rows(engine, "above_a") == [(3, 9)]
        assert rows(engine, "of_b") == [(1, 2), (2, 3)]
        # compiles what it reads, and no other
        engine.view("late", "SELECT count(*) AS n FROM of_b")
        assert compiled[3:] == ["late", "of_b"]
        engine.execute("INSERT INTO b VALUES (3, 1)")
        engine.advance()
        assert rows(engine, "late") == [(3,)]
        assert rows(engine, "both") == [(1, 2), (2, 3), (3, 9)]
        assert "constant" not in compiled
        assert engine.verify().equal


def test_a_view_that_moves_with_time_is_compiled_at_once(
    spark: SparkSession, tmp_path: Path, compiled: list[str]
) -> None:
    with el.Engine(tmp_path, spark) as engine:
        engine._workspace.clock = lambda: NOON
        engine.table("t", "id INT, ts TIMESTAMP")
        engine.execute(f"INSERT INTO t VALUES (1, timestamp_micros({NOON + 5_000_000}))")
        engine.view("due", "SELECT id FROM t WHERE ts <= now()")
        engine.view("above", "SELECT count(*) AS n FROM due")
        engine.view("all_rows", "SELECT count(*) AS n FROM t")
        engine.advance()
        assert rows(engine, "above") == [(0,)]
    compiled.clear()
    with el.Engine(tmp_path, spark) as engine:
        engine._workspace.clock = lambda: NOON + 60_000_000
        engine.advance()
        assert compiled == ["due", "above"]
        assert rows(engine, "above") == [(1,)]


def test_views_of_another_version_are_compiled_at_once(
    spark: SparkSession, tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("eddyline.runtime.compiler.version", lambda _: "0.0.9")
        make(tmp_path, spark)
    compiled.clear()
    with el.Engine(tmp_path, spark) as engine:
        epoch = engine._workspace.manifest.epoch
        engine.advance()
        assert sorted(compiled) == ["above_a", "both", "constant", "of_a", "of_b"]
        # their plans are the same, so none is computed again
        assert engine._workspace.manifest.epoch == epoch


def test_views_of_what_the_program_defines_are_compiled_at_once(
    spark: SparkSession, tmp_path: Path, compiled: list[str]
) -> None:
    session = spark.newSession()
    session.sql("CREATE TEMPORARY FUNCTION tenfold(x INT) RETURNS INT RETURN 10 * x")
    with el.Engine(tmp_path, session) as engine:
        engine.table("t", "v INT").insert([(1,)])
        engine.view("tenfold_sum", "SELECT sum(Tenfold(v)) AS s FROM t")
        # a column of the name counts as a call
        engine.view("plain_sum", "SELECT sum(v) AS tenfold FROM t")
        engine.view("of_frame", engine.relation("t").where("v > 0"))
        engine.view("other", "SELECT max(v) AS m FROM t")
        engine.advance()
    compiled.clear()
    with el.Engine(tmp_path, session) as engine:
        engine.advance()
        assert sorted(compiled) == ["of_frame", "plain_sum", "tenfold_sum"]
