"""MERGE, INSERT OVERWRITE and INSERT BY NAME: what they leave in a table, in the driver and in Spark's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.api import writing
from eddyline.errors import DataError, EddylineError, QueryError
from eddyline.source import bulk

pytestmark = pytest.mark.spark

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("merge")), spark) as made:
        made.execute(
            "CREATE TABLE t (id BIGINT, name STRING, v INT, PRIMARY KEY (id));"
            "CREATE TABLE bag (id BIGINT, v INT);"
            "CREATE TABLE given (id BIGINT, name STRING, v INT);"
            "CREATE VIEW total AS SELECT count(*) AS n, sum(v) AS v FROM t"
        )
        yield made


@pytest.fixture(params=["driver", "tasks"])
def written_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tasks":
        monkeypatch.setattr(bulk, "SMALL_ROWS", -1)
        monkeypatch.setattr(bulk, "SMALL_BYTES", -1)
        monkeypatch.setattr(writing, "SMALL_ROWS", -1)


def fill(engine: el.Engine, **tables: Rows) -> None:
    for name, rows in tables.items():
        engine.execute(f"TRUNCATE TABLE {name}")
        engine.writing.write(name, [("append", rows)])


def held(engine: el.Engine, table: str) -> Rows:
    engine.advance()
    return sorted((tuple(row) for row in engine.snapshot(table).collect()), key=repr)


def test_each_clause_takes_its_rows(engine: el.Engine, written_in: None) -> None:
    fill(
        engine,
        t=[(1, "a", 10), (2, "b", 20), (3, "c", 30), (4, "d", 4)],
        given=[(1, "A", 11), (2, "x", -1), (5, "E", 50), (6, "F", -6)],
    )
    engine.execute(
        """
        MERGE INTO t AS old USING given AS new ON old.id = new.id
        WHEN MATCHED AND new.v < 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET old.v = old.v + new.v, name = CASE WHEN new.v > 5 THEN concat(old.name, new.name) END
        WHEN NOT MATCHED AND v < 0 THEN INSERT (id, name) VALUES (-id, lower(name)) -- the names are those of the source
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND v >= 30 THEN UPDATE SET v = v * 2
        WHEN NOT MATCHED BY SOURCE THEN DELETE;
        """
    )
    assert held(engine, "t") == [(-6, "f", None), (1, "aA", 21), (3, "c", 60), (5, "E", 50)]
    assert [tuple(row) for row in engine.snapshot("total").collect()] == [(4, 131)]
    assert engine.verify("total")


def test_what_no_clause_is_for_stays(engine: el.Engine) -> None:
    fill(engine, t=[(1, "a", 1), (2, "b", 2)], given=[(2, "x", None), (3, "y", 3)])
    engine.execute(
        "MERGE INTO t USING given ON t.id = given.id WHEN MATCHED AND given.v > 0 THEN DELETE"
    )
    assert held(engine, "t") == [(1, "a", 1), (2, "b", 2)]
    engine.execute("MERGE INTO t USING given ON t.id = given.id WHEN MATCHED THEN UPDATE SET *")
    assert held(engine, "t") == [(1, "a", 1), (2, "x", None)]


def test_the_source_is_a_query_a_view_or_the_table_itself(engine: el.Engine) -> None:
    fill(engine, t=[(1, "a", 1), (2, "b", 2)])
    engine.execute(
        "MERGE INTO t USING (VALUES (2, 'new')) AS s (id, name) ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name"
    )
    engine.execute(
        "MERGE INTO t USING (SELECT id + 1 AS id, name, v FROM t) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    engine.advance()
    engine.execute("MERGE INTO t USING total ON true WHEN MATCHED THEN UPDATE SET v = n")
    assert held(engine, "t") == [(1, "a", 3), (2, "new", 3), (3, "new", 3)]


def test_a_row_is_changed_once(engine: el.Engine, written_in: None) -> None:
    fill(engine, t=[(1, "a", 1), (2, "b", 2)], given=[(1, "x", 7), (1, "y", 8), (2, "z", 9)])
    matched = "MERGE INTO t USING given ON t.id = given.id WHEN MATCHED"
    with pytest.raises(DataError, match="changed more than once") as caught:
        engine.execute(f"{matched} THEN UPDATE SET v = given.v")
    assert caught.value.condition == "CONFLICTING_CHANGES"
    assert held(engine, "t") == [(1, "a", 1), (2, "b", 2)]
    engine.execute(f"{matched} AND given.v > 7 THEN UPDATE SET v = given.v")  # one of the two
    assert held(engine, "t") == [(1, "a", 8), (2, "b", 9)]
    engine.execute(f"{matched} THEN DELETE")
    assert held(engine, "t") == []


def test_equal_rows_of_a_table_without_a_key_are_several(
    engine: el.Engine, written_in: None
) -> None:
    fill(engine, bag=[(1, 1), (1, 1), (2, 2)], given=[(1, "x", 5), (1, "y", 5)])
    engine.execute(
        "MERGE INTO bag USING (SELECT DISTINCT id, v FROM given) g ON bag.id = g.id WHEN MATCHED THEN UPDATE SET v = g.v"
    )
    assert held(engine, "bag") == [(1, 5), (1, 5), (2, 2)]
    engine.execute("DELETE FROM bag WHERE id = 2; INSERT INTO bag VALUES (1, 5)")
    engine.execute("MERGE INTO bag USING given ON bag.id = given.id WHEN MATCHED THEN DELETE")
    assert held(engine, "bag") == []


KEYED = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-2, 2)), max_size=5, unique_by=lambda r: r[0]
)
GIVEN = st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 2)), max_size=5)
CLAUSES = st.tuples(
    st.sampled_from(["", "delete", "update", "delete if", "update if"]),
    st.sampled_from(["", "insert", "insert if"]),
    st.sampled_from(["", "delete", "update", "delete if", "update if"]),
).filter(any)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(KEYED, GIVEN, CLAUSES)
def test_random_merges(
    engine: el.Engine, rows: Rows, source: Rows, clauses: tuple[str, str, str]
) -> None:
    """The result is that of a loop over the rows; a condition is `v > 0` of the row that the clause is about."""
    fill(engine, t=[(i, None, v) for i, v in rows], given=[(i, None, v) for i, v in source])
    texts = []
    for of, clause in zip(
        ("MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"), clauses, strict=True
    ):
        side = "t" if of == "NOT MATCHED BY SOURCE" else "s"
        what = {
            "delete": "DELETE",
            "update": f"UPDATE SET v = {side}.v + 10",
            "insert": "INSERT (id, v) VALUES (id, v)",
        }
        if clause:
            condition = f" AND {side}.v > 0" if clause.endswith("if") else ""
            texts.append(f"WHEN {of}{condition} THEN {what[clause.split()[0]]}")
    merge = f"MERGE INTO t USING given AS s ON t.id = s.id {' '.join(texts)}"
    expected = merged(rows, source, *clauses)
    if expected is None:
        with pytest.raises(DataError, match="CONFLICTING_CHANGES"):
            engine.execute(merge)
        return
    engine.execute(merge)
    # of new rows with one key the table keeps one
    left = {i: v for i, _, v in held(engine, "t")}
    assert left.items() <= expected
    assert left.keys() == {i for i, _ in expected}


def merged(
    rows: Rows, source: Rows, pair: str, only_source: str, only_table: str
) -> set[tuple[int, int]] | None:
    """Return all rows that a merge may leave; None if it changes a row twice."""
    given = Counter(i for i, _ in source)
    kept = dict(rows)
    for i, v in rows:
        if i not in given and only_table and (v > 0 or not only_table.endswith("if")):
            kept.pop(i)
            if only_table.startswith("update"):
                kept[i] = v + 10
        hits = [v for j, v in source if j == i and pair and (v > 0 or not pair.endswith("if"))]
        if len(hits) > 1 and pair != "delete":
            return None
        if hits:
            kept.pop(i)
            if pair.startswith("update"):
                kept[i] = hits[0] + 10
    known = {i for i, _ in rows}
    new = {
        (i, v)
        for i, v in source
        if i not in known and only_source and (v > 0 or not only_source.endswith("if"))
    }
    return {*kept.items(), *new}


@pytest.mark.parametrize(
    ("statement", "condition", "message"),
    [
        ("MERGE INTO nope USING given ON true WHEN MATCHED THEN DELETE", "NOT_FOUND", "nope"),
        ("MERGE INTO total USING given ON true WHEN MATCHED THEN DELETE", "NOT_FOUND", "table"),
        ("MERGE INTO t USING nope ON true WHEN MATCHED THEN DELETE", "INVALID_QUERY", "`nope`"),
        ("MERGE INTO t USING given ON t.x = 1 WHEN MATCHED THEN DELETE", "INVALID_QUERY", "`t`.`x`"),
        ("MERGE INTO t USING given ON true WHEN MATCHED THEN UPDATE SET x = 1", "UNKNOWN_COLUMN", "x"),
        ("MERGE INTO t USING given ON t.id = given.id WHEN MATCHED THEN UPDATE SET v = id", "INVALID_QUERY", "ambiguous"),
        ("MERGE INTO t USING given ON true WHEN NOT MATCHED THEN INSERT (id) VALUES (t.id)", "INVALID_QUERY", "`t`.`id`"),
        ("MERGE INTO bag USING (SELECT 1 AS id) s ON true WHEN NOT MATCHED THEN INSERT *", "INVALID_QUERY", "`s`.`v`"),
        ("INSERT INTO t BY NAME SELECT 1 AS x", "UNKNOWN_COLUMN", "x"),
        ("INSERT INTO t BY NAME SELECT 1 AS v, 2 AS v", "DUPLICATE_COLUMN", "v"),
        ("INSERT INTO t (v, V) VALUES (1, 2)", "DUPLICATE_COLUMN", "v"),
        ("INSERT OVERWRITE t SELECT 1", "WRONG_WIDTH", "1 columns"),
        ("INSERT OVERWRITE t SELECT v, name, v FROM given WHERE v / 0 > 1", "QUERY_FAILED", "DIVIDE_BY_ZERO"),
    ],
)  # fmt: skip
def test_a_wrong_statement_writes_nothing(
    engine: el.Engine, statement: str, condition: str, message: str
) -> None:
    fill(engine, t=[(1, "a", 1)], given=[(1, "b", 2)])
    with pytest.raises(EddylineError, match=message) as caught:
        engine.execute(statement)
    assert caught.value.condition == condition
    assert held(engine, "t") == [(1, "a", 1)]


def test_a_value_that_fails_only_matters_where_its_clause_applies(engine: el.Engine) -> None:
    fill(engine, t=[(1, "a", 0)], given=[(1, "1", 0), (2, "2", 4)])
    engine.execute(
        "MERGE INTO t USING given s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (id, 8 / s.v)"
    )
    assert held(engine, "t") == [(1, "a", 0), (2, None, 2)]
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO"):
        engine.execute(
            "MERGE INTO t USING given s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 8 / s.v"
        )


def test_odd_columns_and_values(engine: el.Engine, written_in: None) -> None:
    engine.execute(
        "DROP TABLE IF EXISTS odd; CREATE TABLE odd (id INT PRIMARY KEY, `end` INT, va VARIANT, s STRUCT<`x y`: INT>);"
        "INSERT INTO odd VALUES (1, 1, NULL, NULL), (2, 2, parse_json('2'), named_struct('x y', 2));"
        "MERGE INTO odd o USING (SELECT id, id AS n, id AS n FROM odd UNION ALL SELECT 3, 3, 3) s ON o.id = s.id"
        " WHEN MATCHED AND CASE WHEN o.end > 1 THEN true END THEN UPDATE SET o.`end` = 7"
        " WHEN NOT MATCHED THEN INSERT (id, `end`) VALUES (id, length(uuid()))"
    )
    engine.advance()
    found = engine.sql("SELECT id, `end`, CAST(va AS STRING), s.`x y` FROM odd ORDER BY id")
    rows = [tuple(row) for row in found.collect()]
    assert rows == [(1, 1, None, None), (2, 7, "2", 2), (3, 36, None, None)]


def test_rules_of_columns_hold_for_merges(engine: el.Engine, written_in: None) -> None:
    engine.execute(
        "CREATE TABLE IF NOT EXISTS ruled (id BIGINT PRIMARY KEY, name VARCHAR(3) NOT NULL DEFAULT 'new', v INT)"
    )
    fill(engine, ruled=[(1, "a", 1)], given=[(1, "abcd", 5), (2, None, 6)])
    merge = "MERGE INTO ruled t USING given s ON t.id = s.id"
    for clause, condition in (
        ("WHEN MATCHED THEN UPDATE SET name = s.name", "TOO_LONG"),
        ("WHEN NOT MATCHED THEN INSERT *", "NULL_VALUE"),
    ):
        with pytest.raises(DataError, match="name") as caught:
            engine.execute(f"{merge} {clause}")
        assert caught.value.condition == condition
    engine.execute(f"{merge} WHEN NOT MATCHED THEN INSERT (id, v) VALUES (id, v)")
    assert held(engine, "ruled") == [(1, "a", 1), (2, "new", 6)]


def test_overwriting_replaces_all_rows_at_once(engine: el.Engine, written_in: None) -> None:
    fill(engine, t=[(1, "a", 1), (2, "b", 2)])
    engine.execute(
        "INSERT OVERWRITE t SELECT id + 1, upper(name), v FROM t"
    )  # it reads what it replaces
    assert held(engine, "t") == [(2, "A", 1), (3, "B", 2)]
    before = engine.advance()
    engine.execute("INSERT OVERWRITE TABLE t (id) VALUES (7), (8)")
    assert held(engine, "t") == [(7, None, None), (8, None, None)]
    assert (
        engine.advance() == before + 1
    )  # one epoch took away the old rows and brought the new ones


def test_rows_come_by_the_names_of_the_query(engine: el.Engine) -> None:
    fill(engine, t=[])
    engine.execute(
        "INSERT INTO t BY NAME SELECT 5 AS V, 1L AS id; INSERT OVERWRITE t BY NAME SELECT v, id FROM t"
    )
    assert held(engine, "t") == [(1, None, 5)]
