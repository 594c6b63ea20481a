"""A subquery in the SELECT above ORDER BY and LIMIT: plain Spark loses the order, so that any rows are the first ones."""

from __future__ import annotations

import pytest

from eddyline import Engine

pytestmark = pytest.mark.spark

QUERIES = {
    "SELECT y.g, (SELECT max(x.k) FROM t x WHERE x.k = y.k) AS s "
    "FROM (SELECT * FROM t ORDER BY g LIMIT 2) y": ["0a", "ab"],
    "SELECT y.g, EXISTS(SELECT 1 FROM t x WHERE x.k = y.k + 1) AS s "
    "FROM (SELECT * FROM t ORDER BY g LIMIT 2 OFFSET 1) y": ["ac", "bc"],
    "SELECT y.g, k IN (SELECT k + 1 FROM t) AS s FROM (SELECT * FROM t ORDER BY g OFFSET 3) y": [
        "def",
        "def",
    ],
    "WITH top AS (SELECT g, count(*) AS c FROM t GROUP BY g ORDER BY c DESC, g DESC LIMIT 2) "
    "SELECT g, (SELECT max(k) FROM t x WHERE x.g = top.g) AS m FROM top": ["ef", "ef"],
}  # by query the names of the rows, after each of two epochs


def test_the_first_rows_are_those_of_the_order(tmp_path, spark):
    with Engine(str(tmp_path), spark.newSession()) as engine:
        engine.execute("CREATE TABLE t (k INT, g STRING)")
        for number, query in enumerate(QUERIES):
            engine.view(f"v{number}", query)
        changes = [
            "INSERT INTO t VALUES (0, 'c'), (2, 'f'), (1, 'e'), (7, '0'), (4, 'd'), (3, 'a')",
            "INSERT INTO t VALUES (5, 'b'); DELETE FROM t WHERE k = 7",
        ]
        for epoch, change in enumerate(changes):
            engine.execute(change)
            engine.advance()
            for number, (query, wanted) in enumerate(QUERIES.items()):
                live = engine.snapshot(f"v{number}").collect()
                assert "".join(sorted(row.g for row in live)) == wanted[epoch], query
                assert sorted(engine.sql(query).collect()) == sorted(live), query
            assert engine.verify()
