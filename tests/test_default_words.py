"""DEFAULT as a value in INSERT, UPDATE and MERGE."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.sql.default_words import rows_with_defaults

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ("VALUES (DEFAULT)", "VALUES (<# int>)"),
        (
            "values (1, default), (Default, 2)",
            "values (<1 int>, <~ map<int, int>>), (<# int>, <2 map<int, int>>)",
        ),
        ("VALUES (array(DEFAULT), 'DEFAULT', `DEFAULT`)", None),
        ("VALUES (DEFAULT + 1, -DEFAULT)", None),
        ("VALUES (f(1, 2), DEFAULT)", "VALUES (f(1, 2), <~ map<int, int>>)"),
        ("VALUES (map(1, DEFAULT), DEFAULT)", "VALUES (map(1, DEFAULT), <~ map<int, int>>)"),
        ("VALUES (1, 2, DEFAULT)", "VALUES (1, 2, <NULL void>)"),
        (
            "VALUES (/* DEFAULT */ 1, /* , */ DEFAULT)",
            "VALUES (/* DEFAULT */ 1, /* , */ <~ map<int, int>>)",
        ),
        ("VALUES (1, 2) AS v(a, default)", None),
        ("VALUES (1, 2) UNION ALL SELECT a, coalesce(null, default) FROM t", None),
        ("VALUES coalesce(1, DEFAULT), 4", None),
        ("SELECT DEFAULT", None),
        ("TABLE default", None),
    ],
)
def test_the_word_is_replaced_where_it_is_a_whole_value(rows: str, wanted: str | None) -> None:
    columns = [("A", "int"), ("b", "map<int, int>")]
    found = rows_with_defaults(rows, columns, {"a": "#", "b": "~"})
    found = re.sub(r"CAST\(\((\S+)\n\) AS (void|int|map<int, int>)\)", r"<\1 \2>", found)
    assert found == (wanted or rows)


@pytest.mark.spark
def test_columns_are_set_to_their_defaults(engine: el.Engine) -> None:
    engine.execute(
        "CREATE TABLE t (id INT, v INT DEFAULT 5 -- five\n, s STRING DEFAULT 'a, DEFAULT', `at` TIMESTAMP DEFAULT "
        "current_timestamp(), n INT NOT NULL DEFAULT 1, m INT, PRIMARY KEY (id));"
        "INSERT INTO t VALUES (1, DEFAULT, default, DEFAULT, DEFAULT, 3), (2, 8, 'DEFAULT', NULL, 2, DEFAULT);"
        "INSERT INTO t (m, id, V) VALUES (DEFAULT, 3, DEFAULT)"
    )
    engine.advance()
    rows = engine.execute("SELECT id, v, s, `at` IS NULL, n, m FROM t ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [
        (1, 5, "a, DEFAULT", False, 1, 3),
        (2, 8, "DEFAULT", True, 2, None),
        (3, 5, "a, DEFAULT", False, 1, None),
    ]
    before = dt.datetime.now(dt.UTC)
    engine.execute(
        "UPDATE t SET V = default, n = DEFAULT, m = DEFAULT, `at` = DEFAULT WHERE id = 2"
    )
    engine.advance()
    (row,) = engine.execute("SELECT v, n, m, `at` FROM t WHERE id = 2").collect()
    assert row[:3] == (5, 1, None)
    assert row[3].astimezone(dt.UTC) >= before - dt.timedelta(seconds=1)
    engine.execute(
        "UPDATE t SET v = 0;"
        "MERGE INTO t USING (SELECT 3 AS id, 7 AS v UNION ALL SELECT 4, 8) AS q ON t.id = q.id "
        "WHEN MATCHED THEN UPDATE SET v = DEFAULT, m = q.v "
        "WHEN NOT MATCHED THEN INSERT (id, v, s, m) VALUES (q.id, DEFAULT, 'new', DEFAULT)"
    )
    engine.advance()
    rows = engine.execute("SELECT id, v, s, n, m FROM t WHERE id > 2 ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(3, 5, "a, DEFAULT", 1, 7), (4, 5, "new", 1, None)]


@pytest.mark.spark
def test_the_default_of_a_column_without_one_is_null(engine: el.Engine) -> None:
    engine.execute("CREATE TABLE t (id INT, m INT NOT NULL)")
    for statement, condition in (
        ("INSERT INTO t VALUES (1, DEFAULT)", "NULL_VALUE"),
        ("INSERT INTO t VALUES (1, 2, DEFAULT)", "WRONG_WIDTH"),
        ("INSERT INTO t VALUES (1, DEFAULT + 1)", "INVALID_QUERY"),
    ):
        with pytest.raises(el.EddylineError) as caught:
            engine.execute(statement)
        assert caught.value.condition == condition
    assert engine.execute("SELECT * FROM t").collect() == []


@pytest.mark.spark
def test_a_default_does_not_change_the_type_of_other_rows(engine: el.Engine) -> None:
    engine.execute(
        "CREATE TABLE t (id INT, s STRING DEFAULT 1.5, l BIGINT DEFAULT 1e0);"
        "INSERT INTO t VALUES (1, 7, 9007199254740993), (2, DEFAULT, DEFAULT), (3, 'abc', 1)"
    )
    engine.advance()
    rows = engine.execute("SELECT * FROM t ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "7", 2**53 + 1), (2, "1.5", 1), (3, "abc", 1)]
