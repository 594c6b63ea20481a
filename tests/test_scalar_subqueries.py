"""A scalar subquery that gives several rows fails as in Spark, as of the end of an epoch only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.spark.failures import FAILURES
from eddyline.testing import Offline, PlainTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

TABLES = {"t": "id INT, a INT, b INT", "u": "k INT, v INT"}
QUERIES = {
    "in select": "SELECT id, (SELECT v FROM u) AS v FROM t",
    "filtered": "SELECT id, a + (SELECT v FROM u WHERE k = 1) AS v FROM t",
    "in a condition": "SELECT id FROM t WHERE a >= (SELECT v FROM u WHERE k = 1)",
    "in an aggregate": "SELECT sum(a + (SELECT v FROM u WHERE k = 1)) AS s FROM t",
    "grouped": "SELECT id, (SELECT max(v) FROM u WHERE k = 1 GROUP BY k, v % 2) AS v FROM t",
    "distinct": "SELECT id, (SELECT DISTINCT v FROM u WHERE k = 1) AS v FROM t",
    "per row": "SELECT id, a, (SELECT v FROM u WHERE u.k = t.a) AS v FROM t",
    "per row, compared": "SELECT id FROM t WHERE b > (SELECT v FROM u WHERE u.k = t.a)",
    "per row, by more than equality": "SELECT id, (SELECT v FROM u WHERE u.k = t.a AND u.v > t.b) AS v FROM t",
    "per row, without equality": "SELECT id, a, (SELECT v FROM u WHERE u.k > t.a) AS v FROM t",
}
Change = tuple[str, str, list[tuple[Any, ...]]]


class Twin:
    """A view over two tables, and the same tables offline."""

    def __init__(self, spark: SparkSession, folder: Path, query: str) -> None:
        self.engine = el.Engine(str(folder), spark=spark)
        self.plain = {name: PlainTable(columns) for name, columns in TABLES.items()}
        self.tables = {name: self.engine.table(name, ddl) for name, ddl in TABLES.items()}
        self.offline = Offline(spark, self.plain)
        self.offline.view("v", query)
        self.query = query
        self.change([("insert", "t", [(1, 1, 0)])])  # Spark evaluates nothing over no row
        self.view = self.engine.view("v", query)

    def change(self, changes: list[Change]) -> None:
        for operation, name, rows in changes:
            for target in (self.tables[name], self.plain[name]):
                getattr(target, operation)(rows)

    def epoch(self, changes: list[Change]) -> bool:
        """Run an epoch; return whether it failed, as it must where offline Spark fails."""
        self.change(changes)
        self.offline.load()
        try:
            wanted = self.offline.result(self.query)
        except FAILURES as error:
            if "SCALAR_SUBQUERY_TOO_MANY_ROWS" not in str(error):
                raise
            self.engine.advance()
            with pytest.raises(el.EngineError, match="SCALAR_SUBQUERY_TOO_MANY_ROWS") as failed:
                self.view.snapshot()
            assert failed.value.condition == "VIEW_FAILING"
            return True
        self.engine.advance()
        live = self.view.snapshot().toArrow()
        assert self.offline.compared("v", live).equal, (live.to_pylist(), wanted.to_pylist())
        return False


STEPS: list[tuple[list[Change], str]] = [
    ([("insert", "u", [(1, 10)]), ("insert", "t", [(2, 1, 3), (3, None, 1)])], "works"),
    # for a moment there are two rows of a key
    ([("insert", "u", [(1, 12)]), ("delete", "u", [(1, 10)])], "works"),
    ([("insert", "u", [(1, 13), (1, 14)])], "fails"),
    ([("insert", "t", [(4, 1, 2)])], "fails"),
    ([("delete", "u", [(1, 12), (1, 13)])], "works"),
    ([("insert", "u", [(1, 14)])], "fails"),  # an equal row
    ([("delete", "u", [(1, 14), (1, 14)])], "works"),
    ([("insert", "u", [(1, 7)]), ("delete", "t", [(2, 1, 3)]), ("insert", "t", [(2, 1, 4)])], "works"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["filtered", "per row", "per row, by more than equality"])
def test_several_rows_fail_the_epoch_until_they_are_deleted(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    twin = Twin(spark, tmp_path, QUERIES[name])
    failed = ["fails" if twin.epoch(changes) else "works" for changes, _ in STEPS]
    twin.engine.stop()
    assert failed == [wanted for _, wanted in STEPS]


def test_only_rows_that_meet_count(spark: SparkSession, tmp_path: Path) -> None:
    twin = Twin(spark, tmp_path, QUERIES["per row"])
    steps: list[list[Change]] = [
        [("insert", "u", [(5, 1), (5, 2), (1, 3)])],  # no row of t has the key 5
        [("insert", "t", [(2, 5, 0)])],
        [("insert", "t", [(3, 1, 0)]), ("delete", "t", [(2, 5, 0)])],
        # the row leaves in the epoch in which it would have got two matches
        [
            ("insert", "u", [(1, 4)]),
            ("delete", "t", [(1, 1, 0), (3, 1, 0)]),
            ("insert", "t", [(4, 2, 0)]),
        ],
    ]
    assert [twin.epoch(changes) for changes in steps] == [False, True, False, False]
    twin.engine.stop()


def test_a_limit_without_an_order_is_compared_by_the_rows_that_the_view_chose(
    spark: SparkSession, tmp_path: Path
) -> None:
    with el.Engine(str(tmp_path), spark=spark) as engine:
        rows = [(number, number % 3) for number in range(30)]
        engine.table("t", "id INT, k INT").insert(rows)
        engine.view("v", "SELECT id, (SELECT id FROM t u WHERE u.k = t.k LIMIT 1) AS one FROM t")
        engine.advance()
        assert {row.one for row in engine.snapshot("v").collect()} == {0, 1, 2}
        assert engine.verify("v")


def test_a_view_over_several_rows_starts_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    with el.Engine(str(tmp_path), spark=spark) as engine:
        for name, columns in TABLES.items():
            engine.table(name, columns)
        engine.execute("INSERT INTO t VALUES (1, 1, 1); INSERT INTO u VALUES (1, 1), (1, 2)")
        engine.advance()
        for query in (QUERIES["in select"], QUERIES["per row"]):
            with pytest.warns(el.ViewFailingWarning, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
                engine.view("v", query, replace=True)
        assert "LeftSingle" not in engine.explain(QUERIES["per row"])
        assert "at most one match" in engine.explain(QUERIES["per row"])


SMALL = st.one_of(st.none(), st.integers(0, 2))
CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["insert", "insert", "delete"]),
            st.just("t"),
            st.lists(st.tuples(st.integers(2, 4), SMALL, SMALL), min_size=1, max_size=2),
        ),
        st.tuples(
            st.sampled_from(["insert", "delete", "delete"]),
            st.just("u"),
            st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=2),
        ),
    ),
    max_size=5,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
@given(epochs=st.lists(CHANGES, min_size=4, max_size=8))
@settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=6,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_random_changes_fail_and_equal_offline_where_spark_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, epochs: Any
) -> None:
    twin = Twin(spark, tmp_path_factory.mktemp("scalar"), QUERIES[name])
    for changes in epochs:
        twin.epoch(changes)
    twin.engine.stop()
