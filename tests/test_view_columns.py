"""CREATE VIEW v (a, b) AS query: the columns of the query get the names of the list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    """An engine with a stream."""
    folder = tmp_path_factory.mktemp("columns")
    (folder / "in").mkdir()
    with el.Engine(folder / "storage", spark) as engine:
        engine.execute(f"""
            CREATE STREAM timed (ts TIMESTAMP, site STRING, WATERMARK FOR ts AS ts)
                USING json OPTIONS (path '{folder}/in')
        """)
        yield engine


def asked(engine: el.Engine, statement: str) -> list[tuple[Any, ...]]:
    frame = engine.execute(statement)
    assert frame is not None
    return [tuple(row) for row in frame.collect()]


def test_a_list_of_columns_renames_those_of_the_query(tmp_path, spark):
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute("""
            CREATE TABLE t (k STRING, n INT);
            INSERT INTO t VALUES ('a', 1), ('b', 3), ('b', 1), ('c', 2);
            CREATE VIEW sorted (key, `the sum`) AS SELECT k, sum(n) FROM t GROUP BY k ORDER BY sum(n) DESC, k LIMIT 2;
            CREATE VIEW hidden (key) AS WITH x AS (SELECT * FROM t) SELECT k FROM x ORDER BY n, k DESC;
            CREATE VIEW checked (a, b, CONSTRAINT large EXPECT (b > 1) ON VIOLATION DEAD LETTER) AS TABLE t;
            CREATE MATERIALIZED VIEW twice (a, b) AS SELECT n, n FROM t;
            CREATE VIEW reader AS SELECT `the sum` + 1 AS more FROM sorted
        """)
        engine.advance()
        assert asked(engine, "SELECT * FROM sorted") == [("b", 4), ("c", 2)]
        assert engine.snapshot("sorted").columns == ["key", "the sum"]
        assert [key for (key,) in asked(engine, "SELECT * FROM hidden")] == ["b", "a", "c", "b"]
        assert sorted(asked(engine, "SELECT a, b FROM checked")) == [("b", 3), ("c", 2)]
        assert sorted(asked(engine, "SELECT b FROM checked__rejected")) == [(1,), (1,)]
        engine.execute("INSERT INTO t VALUES ('d', 9)")
        engine.advance()
        assert asked(engine, "SELECT * FROM sorted") == [("d", 9), ("b", 4)]
        assert engine.verify()


def test_a_view_with_a_list_of_columns_is_the_same_or_is_replaced(tmp_path, spark):
    with el.Engine(tmp_path / "storage", spark) as engine:
        made = "CREATE VIEW v (a, b) AS SELECT k, count(*) FROM t GROUP BY k"
        engine.execute(f"CREATE TABLE t (k STRING); {made}; CREATE VIEW r AS SELECT a FROM v")
        ids = engine.catalog.ids
        engine.execute(made.replace(" v ", " V "))
        engine.execute(made.replace("VIEW", "VIEW IF NOT EXISTS"))
        assert engine.catalog.ids == ids
        refused(engine, made.replace("(a, b)", "(a, c)"), "NAME_TAKEN")
        refused(
            engine, made.replace("CREATE", "CREATE OR REPLACE").replace("(a,", "(x,"), "STILL_READ"
        )
        engine.execute(made.replace("CREATE", "CREATE OR REPLACE").replace("b)", "c)"))
        assert engine.snapshot("v").columns == ["a", "c"]
        assert engine.snapshot("r").columns == ["a"]


@pytest.mark.parametrize("brackets", ["(x, y)", "(x, y, CONSTRAINT c EXPECT (x > 0))"])
@pytest.mark.parametrize("clause", ["", " ORDER BY 1", " WINDOWING 60 s EMIT FINAL"])
def test_a_wrong_number_of_columns_is_named(engine, brackets, clause):
    query = "SELECT ts, site, count(*) FROM timed GROUP BY ts, site" + clause
    error = refused(engine, f"CREATE VIEW wrong {brackets} AS {query}", "INVALID_QUERY")
    assert "view wrong names 2, its query has 3" in error
    assert engine.catalog.find("wrong") is None


def test_an_error_of_the_query_stays_its_own(engine):
    error = refused(engine, "CREATE VIEW wrong (a, b) AS SELECT nope FROM timed", "INVALID_QUERY")
    assert "nope" in error
    assert "its query has" not in error
