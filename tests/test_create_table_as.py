"""CREATE TABLE AS, and ALTER VIEW: rows and columns, failures, scripts that run again, crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import eddyline as el
from eddyline.api import writing
from eddyline.cli import main
from eddyline.errors import EddylineError
from eddyline.source import bulk
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark

SALES = [(n, "abc"[n % 3], n * 10) for n in range(12)]
QUERIES = {
    "all": "SELECT * FROM sales",
    "groups": "SELECT shop, count(*) AS n, avg(v) AS mean, array_sort(collect_list(id)) AS ids FROM sales GROUP BY shop",
    "with": "WITH big AS (SELECT shop, v FROM sales WHERE v > 30) SELECT b.shop, s.shop AS other FROM big b JOIN sales s USING (v)",
    "values": "VALUES (1, 'a', 1.50BD), (1, 'a', 1.50BD), (NULL, 'b', NULL) AS given (id, name, price)",
    "kinds": "SELECT id AS `a b`, named_struct('x', v, 'y', array(shop)) AS s, map(shop, id) AS m, DATE'2026-01-01' AS d,"
    " TIMESTAMP'2026-01-01 10:00:00' AS ts, v > 30 AS big, CAST(NULL AS DECIMAL(9, 2)) AS none, X'01' AS x FROM sales",
    "nothing": "SELECT id, shop FROM sales WHERE false",
    "count": "SELECT count(1) FROM sales",
    "a view": "SELECT shop, sum AS total FROM sums",
    "no relation": "SELECT id, id % 7 AS rest FROM range(1000)",
}


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), spark) as made:
        prepare(made)
        yield made


def prepare(engine: el.Engine) -> None:
    engine.execute(
        "CREATE TABLE sales (id BIGINT, shop STRING, v INT);"
        "CREATE VIEW sums AS SELECT shop, sum(v) AS sum FROM sales GROUP BY shop"
    )
    engine.writing.write("sales", [("append", SALES)])
    engine.advance()


@pytest.fixture(params=["driver", "tasks"])
def written_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tasks":
        monkeypatch.setattr(bulk, "SMALL_ROWS", -1)
        monkeypatch.setattr(bulk, "SMALL_BYTES", -1)
        monkeypatch.setattr(writing, "SMALL_ROWS", -1)
    return str(request.param)


def rows(frame: DataFrame | None) -> Counter[str]:
    assert frame is not None
    return Counter(repr(tuple(row)) for row in frame.collect())


def kinds(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


def offline(spark: SparkSession, query: str) -> DataFrame:
    session = spark.newSession()
    sales = session.createDataFrame(SALES, "id BIGINT, shop STRING, v INT")
    sales.createOrReplaceTempView("sales")
    sums = session.sql("SELECT shop, sum(v) AS sum FROM sales GROUP BY shop")
    sums.createOrReplaceTempView("sums")
    return session.sql(query)


def left(engine: el.Engine) -> tuple[set[str], set[str]]:
    """What the catalog names, and the folders of the logs and inboxes."""
    files = engine.files
    folders = {f"{folder}/{name}" for folder in ("logs", "inbox") for name in files.names(folder)}
    return {entry.name for entry in engine.catalog.entries}, folders


def refused(engine: el.Engine, script: str) -> EddylineError:
    """The error of a script that leaves nothing."""
    before = left(engine)
    with pytest.raises(EddylineError) as caught:
        engine.execute(script)
    assert left(engine) == before
    return caught.value


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_a_table_has_columns_and_rows_of_the_query(
    engine: el.Engine,
    spark: SparkSession,
    written_in: str,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_tasks = []
    write_files = writing.Writing._write_files
    monkeypatch.setattr(
        writing.Writing, "_write_files", lambda *args: [by_tasks.append(1), write_files(*args)][1]
    )
    answer = engine.execute(f"CREATE TABLE made AS {query}; SELECT * FROM made")
    expected = offline(spark, query)
    assert answer is not None
    assert kinds(answer) == kinds(expected)
    assert rows(answer) == rows(expected)
    assert len(by_tasks) == (written_in == "tasks")
    assert left(engine)[0] == {"sales", "sums", "made"}


def test_the_table_is_an_ordinary_one(engine: el.Engine) -> None:
    engine.execute(
        "CREATE TABLE made AS SELECT shop, named_struct('x', 1) AS s, count(*) AS n FROM sales GROUP BY shop;"
        "CREATE VIEW big AS SELECT shop, s.x, n FROM made WHERE n > 4;"
        "INSERT INTO made VALUES ('d', named_struct('x', NULL), 9), (NULL, NULL, 5), (NULL, NULL, 5);"
        "UPDATE made SET n = 6 WHERE shop = 'a';"
        "ALTER TABLE made ADD COLUMN note STRING DEFAULT 'new'"
    )
    answer = engine.execute("SELECT * FROM big")
    expected = [("a", 1, 6), ("d", None, 9), (None, None, 5), (None, None, 5)]
    assert rows(answer) == Counter(map(repr, expected))
    assert engine.verify("big")
    shown = engine.execute("SHOW CREATE TABLE made")
    assert shown is not None
    text = shown.collect()[0][0]
    assert text.startswith("CREATE TABLE made (")
    engine.execute(text)  # is the definition that the table has
    engine.execute("DROP VIEW big; DROP TABLE made")
    assert "made" not in left(engine)[0]


def test_names_may_hold_backquotes(engine: el.Engine) -> None:
    engine.execute("CREATE TABLE t AS SELECT 1 AS ```a```, 2 AS `b c`")
    engine.advance()
    frame = engine.sql("SELECT * FROM t")
    assert (frame.columns, frame.collect()) == (["`a`", "b c"], [(1, 2)])


def test_rows_of_statements_before_it_are_in_it(engine: el.Engine, written_in: str) -> None:
    answer = engine.execute(
        "INSERT INTO sales VALUES (100, 'z', 1);"
        "CREATE TABLE first AS SELECT * FROM sales WHERE id > 10;"
        "INSERT INTO first SELECT * FROM first;"
        "CREATE TABLE second AS SELECT f.id, sums.sum FROM first f LEFT JOIN sums USING (shop);"
        "SELECT * FROM second"
    )
    sums = {row.shop: row["sum"] for row in offline(engine.spark, "TABLE sums").collect()}
    assert rows(answer) == Counter(map(repr, [(11, sums["c"]), (100, 1)] * 2))


BAD_COLUMNS = {
    "SELECT 1 AS a, NULL AS nothing": ("UNSUPPORTED_TYPE", "nothing"),
    "SELECT array() AS empty_one": ("UNSUPPORTED_TYPE", "empty_one"),
    "SELECT named_struct('x', NULL) AS inner_one": ("UNSUPPORTED_TYPE", "inner_one"),
    "SELECT map() AS m1": ("UNSUPPORTED_TYPE", "m1"),
    "SELECT INTERVAL 1 MONTH AS months": ("UNSUPPORTED_TYPE", "months"),
    "SELECT 1 AS twice, 2 AS TWICE": ("DUPLICATE_COLUMN", "twice"),
    "SELECT a.*, b.shop FROM sales a JOIN sales b USING (id)": ("DUPLICATE_COLUMN", "shop"),
    "SELECT array(named_struct('x', 1, 'x', 2)) AS pairs": ("UNSUPPORTED_TYPE", "pairs"),
    "SELECT 1 AS _received_at": ("RESERVED_COLUMN", "_received_at"),
    "SELECT nowhere FROM sales": ("INVALID_QUERY", "nowhere"),
    "SELECT * FROM made": ("INVALID_QUERY", "made"),
}


@pytest.mark.parametrize("query", BAD_COLUMNS)
def test_a_column_that_a_table_cannot_have_is_named(
    engine: el.Engine, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(*_: Any, **__: Any) -> None:
        raise AssertionError("the query was run")

    monkeypatch.setattr(writing.Writing, "_write", written)
    next_id = engine.catalog.next_id
    error = refused(engine, f"CREATE TABLE made AS {query}")
    condition, name = BAD_COLUMNS[query]
    assert error.condition == condition
    assert name in error.message
    assert error.hint
    assert engine.catalog.next_id == next_id  # nothing was begun


def test_insert_of_another_type_is_an_error_of_the_query(engine: el.Engine) -> None:
    error = refused(engine, "INSERT INTO sales (v) SELECT map(1, 2)")
    assert error.condition == "INVALID_QUERY"
    assert "cast" in error.message.lower()


def test_a_query_that_fails_leaves_no_table(engine: el.Engine, written_in: str) -> None:
    refused(engine, "CREATE TABLE made AS SELECT id, 1 DIV (id - 5) AS part FROM sales")
    refused(engine, "CREATE TABLE made AS SELECT id, 1 DIV (id - 5) AS part FROM range(10)")
    answer = engine.execute(
        "CREATE TABLE made AS SELECT id, 1 DIV (id - 50) AS part FROM sales; SELECT count(*) FROM made"
    )
    assert rows(answer) == Counter(["(12,)"])


def test_an_existing_name(engine: el.Engine) -> None:
    engine.execute("CREATE TABLE made (a INT); INSERT INTO made VALUES (7)")
    error = refused(engine, "CREATE TABLE Made AS SELECT 1 AS a")
    assert error.condition == "NAME_TAKEN"
    assert "table made exists with another definition" in error.message
    assert "IF NOT EXISTS" in str(error.hint)
    engine.execute("CREATE TABLE IF NOT EXISTS MADE AS SELECT 1 DIV 0 AS a")
    engine.advance()
    assert rows(engine.execute("SELECT * FROM made")) == Counter(["(7,)"])
    for head in ("CREATE TABLE sums", "CREATE TABLE IF NOT EXISTS sums"):
        error = refused(engine, f"{head} AS SELECT 1 AS a")
        assert error.condition == "NAME_TAKEN"
        assert "IF NOT EXISTS" not in str(error.hint)


def test_a_script_that_runs_again_doubles_nothing(
    tmp_path: Path, spark: SparkSession, written_in: str
) -> None:
    script = "CREATE TABLE made AS SELECT shop, v FROM sales; CREATE TABLE IF NOT EXISTS ones AS VALUES (1), (1)"
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark) as engine:
        prepare(engine)
        engine.execute(script)
    with el.Engine(storage, spark) as engine:  # opened before any epoch has the rows
        engine.execute(script)
        expected = rows(offline(spark, "SELECT shop, v FROM sales"))
        engine.advance()
        assert rows(engine.execute("SELECT * FROM made")) == expected
        assert rows(engine.execute("SELECT * FROM ones")) == Counter({"(1,)": 2})
        engine.execute("DELETE FROM made WHERE shop = 'a'; ALTER TABLE made ADD COLUMN c INT")
    with el.Engine(storage, spark) as engine:
        engine.execute(script)  # what was written since stays
        engine.advance()
        found = engine.snapshot("made").select("shop", "v")
        assert rows(found) == rows(offline(spark, "SELECT shop, v FROM sales WHERE shop <> 'a'"))
        assert refused(engine, "CREATE TABLE made AS SELECT shop, v + 1 AS v FROM sales")
        engine.execute("DROP TABLE made; " + script)
        engine.advance()
        assert rows(engine.snapshot("made")) == expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [pytest.param("fail", marks=pytest.mark.slow), "crash"])
def test_a_fault_leaves_the_whole_table_or_none(
    tmp_path: Path, spark: SparkSession, written_in: str, kind: str
) -> None:
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    prepare(engine)
    expected = rows(offline(spark, "SELECT id, v FROM sales"))
    number, whole = 0, 0
    while True:
        number += 1
        script = f"CREATE TABLE made{number} AS SELECT id, v FROM sales"
        files.arm(number, kind)
        try:
            engine.execute(script)
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        if kind == "crash":
            engine._workspace.release()  # as the end of the process would
            engine = el.Engine(files, spark)
        before = engine.catalog.find(f"made{number}")
        whole += before is not None
        ids = engine.catalog.ids
        if kind == "crash":
            assert all(name.split("/")[1] in ids for name in left(engine)[1])
        engine.execute(script)  # the way on, whatever has happened
        engine.advance()
        assert rows(engine.snapshot(f"made{number}")) == expected, number
        engine.execute(f"DROP TABLE made{number}")
        if not hit:
            break
    assert number > 4
    assert whole >= 1
    engine.stop()


def test_views_follow_rows_in_the_order_of_the_epochs(engine: el.Engine) -> None:
    engine.execute(
        "CREATE TABLE made AS SELECT shop, v FROM sales;"
        "CREATE VIEW by_shop AS SELECT shop, sum(v) AS v FROM made GROUP BY shop"
    )
    engine.advance()
    assert rows(engine.snapshot("by_shop")) == rows(offline(engine.spark, "TABLE sums"))
    assert engine.verify()


def test_explain_defines_the_table_and_runs_no_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE TABLE a (x INT); INSERT INTO a VALUES (0);"
        "CREATE TABLE b AS SELECT id, 1 DIV (id * 0) AS part FROM range(5);"
        "CREATE TABLE IF NOT EXISTS b AS SELECT 1 AS other;"
        "CREATE VIEW v AS SELECT id FROM b;"
        "ALTER VIEW v AS SELECT id, sum(part) AS parts FROM b GROUP BY id;"
    )
    assert main(["explain", str(script)]) == 0
    assert "sum(" in capsys.readouterr().out


def test_run_makes_the_table_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE TABLE made AS SELECT id FROM range(5); SELECT count(*) AS n FROM made"
    )
    command = ["run", str(script), "--storage", str(tmp_path / "storage"), "--once"]
    for _ in range(2):
        assert main([*command, "--format", "json"]) == 0
        assert '{"n":5}' in capsys.readouterr().out


def test_alter_view_replaces_the_query(engine: el.Engine) -> None:
    engine.execute("CREATE VIEW top AS SELECT max(sum) AS best FROM sums")
    epoch = engine.advance()
    engine.execute(
        "ALTER VIEW SUMS AS WITH x AS (SELECT shop, v FROM sales WHERE v > 50) "
        "SELECT shop, sum(v) AS sum FROM x GROUP BY shop"
    )
    query = "SELECT shop, sum(v) AS sum FROM sales WHERE v > 50 GROUP BY shop"
    after = offline(engine.spark, query)
    assert rows(engine.snapshot("sums")) == rows(after)
    before = rows(offline(engine.spark, "TABLE sums"))
    changes = [tuple(row) for row in engine.changes("sums", after=epoch).collect()]
    gone = Counter(repr(row[:2]) for row in changes if "delete" in row)
    come = Counter(repr(row[:2]) for row in changes if "append" in row)
    assert gone == before - rows(after)
    assert come == rows(after) - before
    assert gone
    assert engine.verify()
    engine.execute("ALTER VIEW sums AS SELECT shop, sum(v) AS sum FROM sales GROUP BY shop")
    assert rows(engine.snapshot("sums")) == before


def test_alter_view_needs_a_view(engine: el.Engine) -> None:
    for name in ("nothing", "sales"):
        error = refused(engine, f"ALTER VIEW {name} AS SELECT 1 AS a")
        assert error.condition == "NOT_FOUND"
        assert f"there is no view named {name}" in error.message
    before = rows(engine.snapshot("sums"))
    assert (
        refused(engine, "ALTER VIEW sums AS SELECT rand() AS r FROM sales").condition == "NOT_LIVE"
    )
    engine.execute("CREATE VIEW reader AS SELECT sum FROM sums")
    assert refused(engine, "ALTER VIEW sums AS SELECT shop FROM sales").condition == "STILL_READ"
    assert rows(engine.snapshot("sums")) == before
