"""Queries of strangers read the relations of the storage, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import eddyline as el
from eddyline.errors import QueryError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("confined"))) as engine:
        engine.execute("""
            CREATE TABLE t (a BIGINT, b STRING);
            CREATE VIEW `a view` AS SELECT b, count(*) AS n FROM t GROUP BY b;
            INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'y')
        """)
        engine.advance()
        spark.range(3).createOrReplaceTempView("secret")
        yield engine
        spark.catalog.dropTempView("secret")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT b, count(*) FROM t GROUP BY b HAVING count(*) > 1 ORDER BY 1 LIMIT 3 OFFSET 0",
        "SELECT * FROM `a view` JOIN T USING (b)",
        "SELECT * FROM t VERSION AS OF 2 WHERE a IN (SELECT max(a) FROM t)",
        "WITH x AS (SELECT a FROM t), y AS (SELECT * FROM x) SELECT * FROM y, LATERAL (SELECT y.a + 1)",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
        "SELECT *, row_number() OVER w FROM t WINDOW w AS (PARTITION BY b ORDER BY a)",
        "SELECT * FROM t PIVOT (sum(a) FOR b IN ('x', 'y'))",
        "SELECT e FROM t LATERAL VIEW explode(array(a, a)) AS e",
        "(SELECT 1 UNION ALL SELECT 2) EXCEPT (SELECT 3 INTERSECT SELECT 4)",
        "SELECT * FROM VALUES (1, 2) AS v (a, b), range(2)",
        "SELECT DISTINCT b FROM t SORT BY b",
        "FROM t |> WHERE a > 1 |> AGGREGATE count(*) GROUP BY b",
        "SELECT b, a FROM t QUALIFY row_number() OVER (PARTITION BY b ORDER BY a) = 1",
    ],
)  # fmt: skip
def test_queries_over_the_storage_are_answered(engine, query):
    free = sorted(map(repr, engine.sql(query).collect()))
    assert sorted(map(repr, engine.sql(query, confined=True).collect())) == free


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM text.`/etc/passwd`", "text./etc/passwd"),
        ("SELECT a FROM t WHERE b IN (SELECT value FROM text.`/etc/passwd`)", "text./etc/passwd"),
        ("WITH x AS (SELECT * FROM text.`/etc/passwd`) SELECT 1", "text./etc/passwd"),
        ("SELECT * FROM IDENTIFIER('sec' || 'ret')", "UnresolvedIdentifier"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME')", "reflect"),
        ("SELECT a + length(builtin.java_method('java.lang.System', 'getenv', 'HOME')) FROM t", "java_method"),
        ("SELECT 1 FROM t WHERE (SELECT try_reflect('java.lang.System', 'getenv', 'HOME')) = 'x'", "try_reflect"),
        ("SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')", "IDENTIFIER"),
        ("SELECT TRANSFORM (a) USING 'cat /etc/passwd' FROM t", "ScriptTransformation"),
        ("SELECT '${env:HOME}'", "${...}"),
        ("EXPLAIN SELECT 1", "ExplainCommand"),
    ],
)  # fmt: skip
def test_all_else_is_refused(engine, query, named):
    with pytest.raises(QueryError, match="NOT_ALLOWED") as caught:
        engine.sql(query, confined=True)
    assert named.lower() in caught.value.message.lower()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t, LATERAL (SELECT * FROM secret)",
        "SELECT * FROM secret WHERE EXISTS (WITH secret AS (SELECT 1) SELECT * FROM secret)",
        "WITH secret AS (SELECT * FROM secret) SELECT * FROM secret",
        "WITH x AS (SELECT * FROM secret), secret AS (SELECT 1) SELECT * FROM x",
    ],
)
def test_names_that_the_storage_does_not_have_are_unknown(engine, query):
    """`secret` is a temporary view of the session: to a stranger it is like a name that nobody has."""
    with pytest.raises(QueryError, match="no table, stream or view named secret") as caught:
        engine.sql(query, confined=True)
    assert caught.value.condition == "INVALID_QUERY"
    assert "a view" in str(caught.value.hint)


def test_statements_are_no_queries(engine):
    with pytest.raises(QueryError, match="NOT_A_QUERY"):
        engine.sql("DROP TABLE t", confined=True)
    assert engine.sql("SELECT * FROM secret").count() == 3  # for the program itself
