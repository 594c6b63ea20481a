"""Whatever text the engine is given, only errors of Eddyline come out: none of Spark or the JVM."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
import shapes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

BROKEN = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
TOKEN = re.compile(r"'[^']*'|\w+|\S")
QUERIES = list(shapes.SHAPES.values())
CONDITIONS = ["id = 1 AND k IS NOT NULL", "x > (SELECT max(y) FROM u)", "id IN (SELECT id FROM u)"]
SCHEMAS = ["id INT, k STRING", "a ARRAY<STRUCT<p: INT, q: STRING>>, m MAP<STRING, DECIMAL(10,2)>"]
OTHERS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "BY", "OVER", "DISTINCT", "UNION", "LATERAL", "WITHIN"),
    *("(", ")", ",", ".", "*", "-", "'", "`", "<", ">", "0", "1", "-1", "'a'", "NULL", "t", "u", "id", "k", "x"),
    *("count", "max", "explode", "rank", "array", "struct", "INTERVAL", "CAST", "AS", "INT", "LIMIT", "IN"),
    *("WINDOWING", "EMIT", "FINAL", "VERSION", "OF", "s", "ROWS", "{", "}", ":", "?", "$", "\\", "--", "/*", ";"),
)  # fmt: skip


def changed(text: str, source: random.Random) -> str:
    """Return a text with some of its tokens dropped, repeated, exchanged or replaced."""
    tokens = TOKEN.findall(text)
    for _ in range(source.randint(1, 3)):
        place, other = source.randrange(len(tokens)), source.randrange(len(tokens))
        change = source.randrange(5)
        if change == 0 and len(tokens) > 1:
            del tokens[place]
        elif change == 1:
            tokens.insert(other, tokens[place])
        elif change == 2:
            tokens[place], tokens[other] = tokens[other], tokens[place]
        else:
            tokens[place] = source.choice(OTHERS)
    return " ".join(tokens)


def nested(source: random.Random) -> str:
    """Return a query that nests one construct in itself."""
    depth = source.choice([3, 30, 300, 3000])
    before, within, after = source.choice(
        [
            ("SELECT * FROM (", "t", ")"),
            ("SELECT (", "1", ")"),
            ("(", "SELECT 1", ")"),
            ("SELECT abs(", "id", ")"),
            ("SELECT id + ", "1 FROM t", ""),
            ("SELECT (SELECT max(id) FROM t WHERE id > ", "1", ")"),
            ("SELECT id FROM t WHERE id IN (", "1", ")"),
            ("SELECT 1 UNION ", "SELECT 1", ""),
        ]
    )
    if before.startswith("SELECT abs"):
        return "SELECT " + "abs(" * depth + within + after * depth + " AS z FROM t"
    if before.startswith("SELECT id + "):
        return "SELECT " + "id + " * depth + within
    return before * depth + within + after * depth


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    folder: Path = tmp_path_factory.mktemp("broken")
    (folder / "in").mkdir()
    with el.Engine(str(folder / "storage"), spark=spark) as made:
        for name, (columns, key) in shapes.TABLES.items():
            made.table(name, columns, key)
        path = {"path": str(folder / "in")}
        made.create_stream(shapes.STREAM, shapes.STREAM_COLUMNS, "json", path)
        yield made


def only_own(call: Callable[[], object]) -> str:
    """Run a call; return what comes out of it that is no error of Eddyline."""
    try:
        call()
    except el.EddylineError:
        return ""
    except Exception as error:  # noqa: BLE001  # whatever it is: it is what the test is about
        return f"{type(error).__name__}: {str(error)[:500]}"
    return ""


def escaping(engine: el.Engine, seed: int) -> list[str]:
    """Give the engine texts that are made from a seed; return the errors that aren't Eddyline's."""
    source = random.Random(seed)
    query = changed(source.choice(QUERIES), source)
    deep = nested(source)
    condition = changed(source.choice(CONDITIONS), source)
    schema = changed(source.choice(SCHEMAS), source)
    calls: dict[str, Callable[[], object]] = {
        f"explain: {query}": lambda: engine.explain(query),
        f"sql: {query}": lambda: engine.sql(query),
        f"explain: {deep[:80]}": lambda: engine.explain(deep),
        f"sql: {deep[:80]}": lambda: engine.sql(deep),
        f"delete: {condition}": lambda: engine.execute(f"DELETE FROM t WHERE {condition}"),
        f"update: {condition}": lambda: engine.execute(f"UPDATE t SET id = 2 WHERE {condition}"),
        f"set: {condition}": lambda: engine.execute(f"UPDATE t SET id = {condition}"),
        f"script: {query}": lambda: engine.execute(f"EXPLAIN {query}"),
        f"columns: {schema}": lambda: engine.create_stream("z", schema, "json", {"path": "/none"}),
        f"watermark: {condition}": lambda: engine.create_stream(
            "z", "ts TIMESTAMP", "json", {"path": "/none"}, watermark=("ts", condition)
        ),
    }
    return [f"{name}: {wrong}" for name, call in calls.items() if (wrong := only_own(call))]


@given(seed=st.integers(0, 10**6))
@settings(BROKEN, max_examples=6)
def test_a_few_broken_texts_raise_only_errors_of_eddyline(engine: el.Engine, seed: int) -> None:
    assert escaping(engine, seed) == []


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(BROKEN, max_examples=600)
def test_many_broken_texts_raise_only_errors_of_eddyline(engine: el.Engine, seed: int) -> None:
    assert escaping(engine, seed) == []


# Spark fails on them with classes of the JVM that PySpark passes as they are.
FAILING = (
    "SELECT listagg(DISTINCT k, ',') WITHIN GROUP (ORDER BY k) FILTER (WHERE id > 1) AS l FROM t",
    "SELECT count(DISTINCT id) AS n, listagg(DISTINCT k) WITHIN GROUP (ORDER BY k) AS l FROM t",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000,
)


@pytest.mark.parametrize("query", FAILING)
def test_a_query_that_spark_itself_fails_on(engine: el.Engine, query: str) -> None:
    with pytest.raises(el.QueryError) as error:
        engine.explain(query)
    assert error.value.condition == "QUERY_FAILED"
    assert "\n" not in str(error.value)


def test_values_that_a_statement_fails_on(engine: el.Engine) -> None:
    engine.execute("INSERT INTO u VALUES (1, 'a', 0, 0.5D)")
    for statement in (
        "DELETE FROM u WHERE id / v > 1",
        "UPDATE u SET v = id / v",
        "INSERT INTO u SELECT id, k, CAST(k AS INT), y FROM u",
    ):
        with pytest.raises(el.EddylineError) as error:
            engine.execute(statement)
        assert "\n" not in str(error.value)


def test_a_wrong_list_of_columns(engine: el.Engine) -> None:
    for columns in ("id BIGINTT", "id", "id INT,, k STRING", "m MAP<STRING"):
        with pytest.raises(el.DataError) as error:
            engine.table("z", columns)
        assert error.value.condition == "BAD_SCHEMA"
