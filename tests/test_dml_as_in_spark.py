"""DML in forms of Spark's: WITH before INSERT and MERGE; fields of structs by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import eddyline as el
from eddyline.errors import QueryError, ScriptError

pytestmark = pytest.mark.spark

NESTED = (
    "id INT, s STRUCT<x: INT, y: INT>, m MAP<STRING, STRUCT<x: INT, y: INT>>, "
    "a ARRAY<STRUCT<p: INT, q: ARRAY<STRUCT<u: INT, `v'w`: STRING>>>>"
)
SWAPPED = (
    "SELECT {id} AS id, map('k', named_struct('y', 3, 'x', 4)) AS m, named_struct('y', 1, 'X', 2L) AS s, "
    "array(named_struct('q', array(named_struct('v\\'w', 'z', 'u', 5)), 'p', 9)) AS a"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("dml")), spark) as made:
        made.execute(f"CREATE TABLE t (k INT, g STRING); CREATE TABLE st ({NESTED})")
        yield made


def rows(engine: el.Engine, query: str) -> list[tuple[Any, ...]]:
    engine.advance()
    return [tuple(row) for row in engine.execute(query).collect()]


def test_with_before_insert_and_merge(engine: el.Engine) -> None:
    engine.execute(
        """
        TRUNCATE TABLE t;
        WITH w AS (SELECT 1 AS k, 'a' AS g) INSERT INTO t SELECT * FROM w;
        WITH RECURSIVE r (n) AS (VALUES (5) UNION ALL SELECT n + 1 FROM r WHERE n < 7), s AS (SELECT n FROM r)
            INSERT INTO TABLE t (g, k) WITH q AS (SELECT * FROM s) SELECT 'r', n FROM q -- the end
        """
    )
    assert rows(engine, "SELECT * FROM t ORDER BY k") == [(1, "a"), (5, "r"), (6, "r"), (7, "r")]
    engine.execute(
        """
        WITH w AS (SELECT 1 AS k, 'z' AS g), `v` AS (SELECT k, g FROM w UNION ALL SELECT 9, 'new')
            MERGE INTO t USING v AS s ON t.k = s.k
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
        WITH w AS (SELECT 6 AS k) MERGE INTO t USING w ON t.k = w.k WHEN MATCHED THEN DELETE
        """
    )
    assert rows(engine, "SELECT * FROM t ORDER BY k") == [(1, "z"), (5, "r"), (7, "r"), (9, "new")]
    engine.execute(
        """
        WITH w AS (VALUES (9), (5)), z (a) (SELECT 9 AS one)
            MERGE INTO t USING w AS n(k) ON t.k = n.k AND n.k IN (SELECT a FROM z)
            WHEN MATCHED AND n.k >= (SELECT max(a) FROM z) THEN UPDATE SET g = (SELECT concat('g', a) FROM z);
        WITH w (a) (SELECT 11 AS x) INSERT INTO t (k) SELECT a FROM w;
        WITH w AS (SELECT 1) INSERT INTO t VALUES (12, DEFAULT)
        """
    )
    assert rows(engine, "SELECT * FROM t WHERE k > 7 ORDER BY k") == [
        (9, "g9"),
        (11, None),
        (12, None),
    ]
    with pytest.raises(ScriptError, match="both called t"):
        engine.execute(
            "WITH t AS (SELECT 1 AS k) MERGE INTO t USING t AS s ON true WHEN MATCHED THEN DELETE"
        )
    # names that are words of DML
    named = "WITH insert AS (SELECT 1 AS k) SELECT * FROM (SELECT k FROM insert) update"
    assert rows(engine, named) == [(1,)]


@pytest.mark.parametrize("statement", ["DELETE FROM t", "UPDATE t SET g = 'q'"])
def test_with_before_delete_and_update_names_the_way_out(engine: el.Engine, statement: str) -> None:
    start, where = "WITH w AS (SELECT 1 AS k)", "WHERE k IN (SELECT k FROM w)"
    with pytest.raises(ScriptError, match=r"SCRIPT_UNSUPPORTED.*WITH before .*IN \(WITH"):
        engine.execute(f"{start} {statement} {where}")
    with pytest.raises(QueryError):  # as before: without its SELECT it is a wrong query
        engine.execute(start)
    engine.execute(f"{statement} WHERE k IN ({start} SELECT k FROM w)")


def test_fields_of_structs_are_written_by_name(engine: el.Engine) -> None:
    engine.execute("TRUNCATE TABLE st; INSERT INTO st BY NAME " + SWAPPED.format(id=1))
    nothing = "CAST(NULL AS STRUCT<y: INT, x: INT>)"
    engine.execute(f"INSERT INTO st BY NAME SELECT 2 AS id, {nothing} AS s")
    a, m = [Row(p=9, q=[Row(5, "z")])], {"k": Row(x=4, y=3)}
    assert rows(engine, "SELECT id, s, m, a FROM st ORDER BY id") == [
        (1, Row(x=2, y=1), m, a),
        (2, None, None, None),
    ]
    union = f"{SWAPPED.format(id=2)} UNION ALL {SWAPPED.format(id=3)}"
    engine.execute(
        f"MERGE INTO st USING ({union}) AS n ON st.id = n.id "
        "WHEN MATCHED AND n.s.y = 1 THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;"
        "UPDATE st SET s = named_struct('y', id, 'x', 7), id = id + 100 WHERE id = 1"
    )
    assert rows(engine, "SELECT id, s, m, a FROM st ORDER BY id") == [
        (2, Row(x=2, y=1), m, a),
        (3, Row(x=2, y=1), m, a),
        (101, Row(x=7, y=1), m, a),
    ]


def test_merge_gives_fields_by_name_and_conditions_see_the_source_as_it_is(
    engine: el.Engine,
) -> None:
    engine.execute(
        "TRUNCATE TABLE st; INSERT INTO st (id, s) VALUES (1, struct(10, 20)), (2, NULL)"
    )
    swapped = "named_struct('y', 1, 'x', 2)"
    source = (
        f"(SELECT id, {swapped} AS s, id AS k, id AS k FROM VALUES (1), (2), (3) AS v(id)) AS n"
    )
    engine.execute(
        f"MERGE INTO st USING {source} ON st.id = n.id WHEN MATCHED AND n.s = {swapped} AND n.id = 1 "
        "THEN UPDATE SET s = n.s WHEN MATCHED THEN UPDATE SET s = named_struct('y', n.s.x, 'x', 5) "
        f"WHEN NOT MATCHED THEN INSERT (id, s, m) VALUES (n.id, n.s, map('k', {swapped}))"
    )
    assert rows(engine, "SELECT id, s, m FROM st ORDER BY id") == [
        (1, Row(x=2, y=1), None),
        (2, Row(x=5, y=2), None),
        (3, Row(x=2, y=1), {"k": Row(x=2, y=1)}),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO st BY NAME SELECT 3 AS id, named_struct('y', 1) AS s",
        "INSERT INTO st BY NAME SELECT 3 AS id, named_struct('x', 1, 'y', 1, 'z', 1) AS s",
        "UPDATE st SET s = named_struct('y', 1)",
        "MERGE INTO st USING (SELECT 3 AS id, named_struct('y', 1) AS s, NULL AS m, NULL AS a) AS n "
        "ON st.id = n.id WHEN NOT MATCHED THEN INSERT *",
    ],
)
def test_structs_with_other_fields_are_refused(engine: el.Engine, statement: str) -> None:
    with pytest.raises(QueryError, match=r"INVALID_QUERY.*column s .*: [xz] is (missing|unknown)"):
        engine.execute(statement)


def test_with_before_merge_reads_stored_rows(engine: el.Engine) -> None:
    engine.execute(
        """
        CREATE TABLE source (k INT, g STRING);
        TRUNCATE TABLE t;
        INSERT INTO source VALUES (1, 'a'), (2, 'b');
        WITH w AS (SELECT * FROM source WHERE k > 1)
            MERGE INTO t USING w ON t.k = w.k WHEN NOT MATCHED THEN INSERT *
        """
    )
    assert rows(engine, "SELECT * FROM t") == [(2, "b")]


@pytest.mark.parametrize(
    ("statement", "target", "expected"),
    [
        ("INSERT INTO out SELECT n, (SELECT count(*) FROM fed) FROM size", "out", [(2, 2)]),
        ("CREATE TABLE taken AS SELECT n, (SELECT count(*) FROM fed) FROM size", "taken", [(2, 2)]),
        ("DELETE FROM fed WHERE v IN (SELECT most FROM greatest)", "fed", [(1, 10)]),
        ("UPDATE fed SET v = (SELECT most FROM greatest) WHERE id = 1", "fed", [(1, 20), (2, 20)]),
        (
            "WITH w AS (SELECT 1 AS id, most FROM greatest) MERGE INTO fed USING w ON fed.id = w.id "
            "WHEN MATCHED THEN UPDATE SET v = most",
            "fed",
            [(1, 20), (2, 20)],
        ),
    ],
    ids=["insert", "create", "delete", "update", "merge"],
)
def test_statements_find_tables_and_views_of_one_moment(
    tmp_path: Path,
    spark: SparkSession,
    statement: str,
    target: str,
    expected: list[tuple[int, int]],
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        engine.execute(
            """
            CREATE TABLE fed (id INT PRIMARY KEY, v INT); CREATE TABLE out (n BIGINT, m BIGINT);
            CREATE VIEW size AS SELECT count(*) AS n FROM fed;
            CREATE VIEW greatest AS SELECT max(v) AS most FROM fed;
            INSERT INTO fed VALUES (1, 10), (2, 20)
            """
        )
        engine.execute(statement)
        assert rows(engine, f"SELECT * FROM {target} ORDER BY 1") == expected
