"""DEFAULT as a value in INSERT, UPDATE and MERGE."""

from __future__ import annotations

import datetime as dt
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
        ("VALUES (DEFAULT)", "VALUES (#)"),
        ("values (1, default), (Default, 2)", "values (1, ~), (#, 2)"),
        ("VALUES (array(DEFAULT), 'DEFAULT', `DEFAULT`)", None),
        ("VALUES (DEFAULT + 1, -DEFAULT)", None),
        ("VALUES (f(1, 2), DEFAULT)", "VALUES (f(1, 2), ~)"),
        ("VALUES (map(1, DEFAULT), DEFAULT)", "VALUES (map(1, DEFAULT), ~)"),
        ("VALUES (1, 2, DEFAULT)", "VALUES (1, 2, NULL)"),
        ("VALUES (/* DEFAULT */ 1, /* , */ DEFAULT)", "VALUES (/* DEFAULT */ 1, /* , */ ~)"),
        ("SELECT DEFAULT", None),
        ("TABLE default", None),
    ],
)
def test_the_word_is_replaced_where_it_is_a_whole_value(rows: str, wanted: str | None) -> None:
    found = rows_with_defaults(rows, ["A", "b"], {"a": "#", "b": "~"})
    for value in ("#", "~", "NULL"):
        found = found.replace(f"({value}\n)", value)
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
