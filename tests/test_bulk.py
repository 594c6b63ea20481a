"""DataFrames and DML that are too large for the driver: tasks write the files, one entry commits them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import lit, udf

import eddyline as el
from eddyline.api import writing
from eddyline.errors import DataError, EddylineError, QueryError
from eddyline.source import bulk
from eddyline.testing import FaultyFiles
from waiting import PATIENCE_S

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "SMALL_ROWS", -1)
    monkeypatch.setattr(bulk, "SMALL_BYTES", -1)


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "s"), spark) as made:
        made.table("t", "id BIGINT, v INT, s STRUCT<a: INT, b: STRING>", primary_key=("id",))
        made.table("plain", "v INT, d DATE")
        made.view("total", "SELECT count(*) AS n, sum(v) AS v FROM t")
        yield made


def held(engine: el.Engine, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row)[:2] for row in engine.snapshot(table).collect())


def left(engine: el.Engine) -> list[Path]:
    """Files that wait in inboxes."""
    return [path for path in Path(engine.files.root, "inbox").rglob("*") if path.is_file()]


def rows(spark: SparkSession, start: int, end: int, tasks: int = 3):
    return spark.range(start, end, 1, tasks).selectExpr(
        "id",
        "CAST(id * 2 AS INT) AS v",
        "IF(id % 2 = 0, named_struct('a', 1, 'b', 'x'), NULL) AS s",
    )


def one_after(flag: Path) -> Column:
    """1, as soon as there is a file."""
    path, ended = str(flag), time.time() + PATIENCE_S

    def waits(value: int) -> int:
        while not os.path.exists(path) and time.time() < ended:
            time.sleep(0.05)
        return value

    return udf(waits, "int")(lit(1))


def test_dataframes_go_into_tables(engine: el.Engine, spark: SparkSession) -> None:
    table = engine.table("t", "id BIGINT, v INT, s STRUCT<a: INT, b: STRING>", primary_key=("id",))
    table.insert(rows(spark, 0, 10))
    engine.advance()
    assert held(engine, "t") == [(i, 2 * i) for i in range(10)]
    table.upsert(rows(spark, 5, 12).selectExpr("id", "v + 1 AS v"))
    table.delete(rows(spark, 0, 3))
    engine.advance()
    kept = [(i, 2 * i) for i in (3, 4)] + [(i, 2 * i + 1) for i in range(5, 12)]
    assert held(engine, "t") == kept
    assert [tuple(row) for row in engine.snapshot("total").collect()] == [
        (len(kept), sum(v for _, v in kept))
    ]
    assert engine.verify().equal
    assert left(engine) == []


def test_statements_move_rows_without_the_driver(
    engine: el.Engine, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark.range(1)), "toArrow", None)  # nothing is collected
    engine.execute("INSERT INTO t (id, v) SELECT id, id * 2 FROM range(0, 10, 1, 4)")
    engine.advance()
    # a row takes the key of another one that goes in the same statement
    engine.execute("UPDATE t SET id = id + 1, v = v + 100 WHERE id >= 5")
    engine.execute("DELETE FROM plain")
    engine.advance()
    engine.execute("DELETE FROM t WHERE v < 4")
    engine.advance()  # what waits for its epoch is read by the driver
    engine.execute("INSERT INTO plain SELECT v, DATE '2026-01-01' FROM t")
    engine.advance()
    monkeypatch.undo()
    wanted = [(i, 2 * i) for i in range(2, 5)] + [(i + 1, 2 * i + 100) for i in range(5, 10)]
    assert held(engine, "t") == wanted
    assert [v for v, _ in held(engine, "plain")] == sorted(v for _, v in wanted)
    assert engine.verify().equal


STATEMENTS = (
    "INSERT INTO odd SELECT v, x, m, n FROM odd WHERE v = 5",
    "DELETE FROM t WHERE id = 3",
    "DELETE FROM odd WHERE v = 7 OR x IS NULL",
    "UPDATE t SET v = -1 WHERE id IN (3, 4, 5)",
    "INSERT INTO t (id, v) SELECT id - 2, v FROM t WHERE v = -1",
    "UPDATE odd SET x = -x WHERE x = 0 OR isnan(x)",
    "DELETE FROM odd WHERE v = 5 AND m['a'] = 5",
    "UPDATE t SET id = id + 1 WHERE id < 6",
)


def test_statements_collect_only_what_waiting_operations_touch(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see the operations before them, which no epoch has processed."""
    collected: list[int] = []
    kind = type(spark.range(1))  # the class of `pyspark.sql` is only its base
    to_arrow = kind.toArrow

    def counted(frame: DataFrame) -> pa.Table:
        rows = to_arrow(frame)
        collected.append(rows.num_rows)
        return rows

    results = {}
    most = 0
    for small in (100_000, -1):
        monkeypatch.setattr(writing, "SMALL_ROWS", small)
        with el.Engine(str(tmp_path / f"{small}"), spark) as engine:
            engine.table("t", "id BIGINT, v INT", primary_key=("id",))
            engine.table(
                "odd", "v INT, x DOUBLE, m MAP<STRING, INT>, n STRUCT<a: INT, b: ARRAY<STRING>>"
            )
            engine.execute("INSERT INTO t SELECT id, id * 2 FROM range(2000)")
            engine.execute(
                "INSERT INTO odd SELECT id % 50, CASE WHEN id % 50 > 3 THEN id % 50 ELSE"
                " element_at(array(0.0D, -0.0D, double('NaN'), NULL), int(id % 4 + 1)) END,"
                " map('a', id % 10), IF(id % 3 = 0, NULL, struct(id % 2, array('x', NULL))) FROM range(2000)"
            )
            engine.advance()
            monkeypatch.setattr(kind, "toArrow", counted)
            for statement in STATEMENTS:
                collected.clear()
                engine.execute(statement)
                if small < 0:
                    assert sum(collected) < 500, statement
                    most = max(most, sum(collected))
            monkeypatch.setattr(kind, "toArrow", to_arrow)
            engine.advance()
            results[small] = [sorted(map(repr, engine.snapshot(t).collect())) for t in ("t", "odd")]
            assert engine.verify()
    assert most > 0  # the rows were counted
    assert results[-1] == results[100_000]
    assert len(results[-1][0]) == 1999


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("SELECT IF(id = 7, NULL, id) AS id, 1 AS v FROM range(10)", "NULL_KEY"),
        ("SELECT id, id * 1000000000 AS v FROM range(10)", "WRONG_TYPE"),
        ("SELECT id, 1 AS w FROM range(10)", "UNKNOWN_COLUMN"),
        ("SELECT id, 1 AS w FROM range(10) WHERE id * id > 100", "UNKNOWN_COLUMN"),
        ("SELECT id, 1 AS v, 2 AS v FROM range(10)", "DUPLICATE_COLUMN"),
        # one task: another one could still write when the first has failed
        ("SELECT id, CAST(1 / (id - 7) AS INT) AS v FROM range(0, 10, 1, 1)", "QUERY_FAILED"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_leave_nothing(
    engine: el.Engine, spark: SparkSession, query: str, condition: str
) -> None:
    table = engine.table("t", "id BIGINT, v INT, s STRUCT<a: INT, b: STRING>", primary_key=("id",))
    with pytest.raises((DataError, QueryError)) as refused:
        table.insert(spark.sql(query))
    assert (refused.value.condition, refused.value.context["table"]) == (condition, "t")
    assert left(engine) == []
    assert held(engine, "t") == []
    engine.advance()
    assert held(engine, "t") == []


def test_epochs_go_on_while_tasks_write(
    engine: el.Engine, spark: SparkSession, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    table = engine.table("t", "id BIGINT, v INT, s STRUCT<a: INT, b: STRING>", primary_key=("id",))
    frame = spark.range(0, 6, 1, 1).select("id", one_after(flag).alias("v"))
    writer = threading.Thread(target=table.insert, args=(frame,))
    writer.start()
    table.insert([(100, 1, None)])
    engine.advance()
    assert held(engine, "t") == [(100, 1)]
    assert writer.is_alive()
    flag.touch()
    writer.join()
    engine.advance()
    assert len(held(engine, "t")) == 7


@pytest.mark.parametrize(
    ("statement", "condition"),
    [("ALTER TABLE plain ADD COLUMN e INT", "BEING_ALTERED"), ("DROP TABLE plain", "NOT_FOUND")],
)
def test_a_table_that_changes_meanwhile(
    engine: el.Engine, spark: SparkSession, tmp_path: Path, statement: str, condition: str
) -> None:
    flag = tmp_path / "flag"
    errors: list[EddylineError] = []

    def write() -> None:
        try:
            engine.table("plain", "v INT, d DATE").insert(
                spark.range(0, 3, 1, 1).select(one_after(flag).alias("v"))
            )
        except EddylineError as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    while not list(Path(engine.files.root).glob("inbox/*")):
        time.sleep(0.05)
    engine.execute(statement)
    flag.touch()
    writer.join()
    assert [error.condition for error in errors] == [condition]
    assert left(engine) == []


def test_rows_are_not_written_into_a_table_that_is_altered_while_they_are_read(
    engine: el.Engine,
) -> None:
    """The same for rows that pass through the driver."""
    table = engine.table("plain", "v INT, d DATE")

    def given() -> Iterator[tuple[int, None]]:
        yield 1, None
        engine.execute("ALTER TABLE plain ADD COLUMN e INT")
        yield 2, None

    with pytest.raises(EddylineError, match="BEING_ALTERED"):
        table.insert(given())
    table.insert([(3, None, 4)])
    engine.advance()
    assert [tuple(row) for row in engine.snapshot("plain").collect()] == [(3, None, 4)]


def test_a_fault_at_any_effect_leaves_all_rows_or_none(tmp_path: Path, spark: SparkSession) -> None:
    storage = str(tmp_path / "s")
    with el.Engine(storage, spark) as engine:
        engine.table("t", "id BIGINT, v INT", primary_key=("id",)).insert([(-1, 0)])
        engine.advance()
    number = outcomes = 0
    while True:
        number += 1
        files = FaultyFiles(storage)
        with el.Engine(files, spark) as engine:
            table = engine.table("t", "id BIGINT, v INT", primary_key=("id",))
            before = held(engine, "t")
            files.arm(number)
            first = 10 * number
            with suppress(EddylineError, OSError):
                table.insert(rows(spark, first, first + 4, 2).drop("s"))
            hit = files.hit()
            files.arm(0)
            engine.advance()
            added = [row for row in held(engine, "t") if row not in before]
            assert added in ([], [(i, 2 * i) for i in range(first, first + 4)])
            outcomes += not added
        if not hit:
            break
    assert number > 6
    assert outcomes >= 3
