"""Which rows window functions read again: settings of Spark and distances that the shapes don't have."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.profile import profile
from eddyline.spark.session import cloned
from eddyline.testing import replayed

pytestmark = pytest.mark.spark


WHOLE, NEAR = "recompute touched partitions", "recompute rows near changes"
AHEAD = "compute on from the first change"
RULES = {
    "lag(v, 2) OVER (PARTITION BY k ORDER BY id)": NEAR,
    "sum(v) OVER (ORDER BY id DESC ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING)": NEAR,
    "count(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)": NEAR,
    "lag(v) IGNORE NULLS OVER (ORDER BY id)": WHOLE,
    "sum(v) OVER (ORDER BY id)": AHEAD,
    "avg(x) OVER (PARTITION BY k ORDER BY id ROWS UNBOUNDED PRECEDING)": AHEAD,
    "rank() OVER (ORDER BY id)": AHEAD,
    "first_value(v) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)": AHEAD,
    "first_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY id)": AHEAD,
    "last_value(v) OVER (ORDER BY id)": AHEAD,
    "last_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY id)": AHEAD,
    "last(v, true) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)": AHEAD,
    "last_value(v) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)": WHOLE,
    "sum(CAST(v AS DECIMAL(28, 2))) OVER (ORDER BY id)": AHEAD,
    "sum(CAST(v AS DECIMAL(29, 2))) OVER (ORDER BY id)": WHOLE,
    "try_sum(v) OVER (ORDER BY id)": WHOLE,
    "count(v, x) OVER (ORDER BY id)": WHOLE,
    "nth_value(v, 2) OVER (ORDER BY id)": WHOLE,
    "percent_rank() OVER (ORDER BY id)": WHOLE,
    "sum(v) OVER (ORDER BY id ROWS BETWEEN 10001 PRECEDING AND CURRENT ROW)": WHOLE,
    "count(*) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)": WHOLE,
    "count(*) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW)": WHOLE,
}


def test_each_window_function_has_the_rule_that_reads_least(
    tmp_path: Path, spark: SparkSession
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        engine.table("t", "id BIGINT, k STRING, v INT, x DOUBLE, ts TIMESTAMP")
        for number, (function, rule) in enumerate(RULES.items()):
            engine.view(f"v{number}", f"SELECT {function} AS y FROM t")
            assert f"rule: {rule}" in engine.explain(f"v{number}"), function


FIRSTS = {
    "row_number() OVER w AS n": ("n = 1", False),
    "row_number() OVER w AS n, rank() OVER w AS r": ("n = 1", False),
    "rank() OVER w AS n, dense_rank() OVER w AS d": ("n = 1", False),
    "rank() OVER w AS n, row_number() OVER w AS r": ("n = 1", True),  # ties are numbered
    "row_number() OVER w AS n, sum(v) OVER w AS s": ("n = 1", True),
    "row_number() OVER w AS r": ("r <= 2", True),
}


def test_ranks_of_first_rows_need_no_operator(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        engine.table("t", "id BIGINT, k STRING, v INT")
        for number, (functions, (condition, computed)) in enumerate(FIRSTS.items()):
            ranked = f"SELECT *, {functions} FROM t WINDOW w AS (PARTITION BY k ORDER BY v, id)"
            engine.view(f"v{number}", f"SELECT * FROM ({ranked}) WHERE {condition}")
            shown = engine.explain(f"v{number}")
            assert ("Window [class 1, stateless" not in shown) == computed, shown


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        ("v - lag(v) OVER (ORDER BY id)", 2500),
        ("sum(v) OVER (ORDER BY id)", 4990),  # all results after a change are others
    ],
)
def test_a_change_reads_few_rows_of_a_large_partition(
    tmp_path: Path, spark: SparkSession, function: str, changed: int
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, v INT", primary_key=("id",))
        table.insert([(number, number) for number in range(5000)])
        engine.advance()
        engine.view("results", f"SELECT id, {function} AS r FROM t")
        table.insert([(changed, 0)])
        engine.advance()
        _, spent = profile(engine.files, engine.catalog, 1)
        (results,) = [one for one in spent if (one.view, one.operator) == ("results", "")]
        assert 0 < results.touched < 100
        assert engine.verify()


def test_a_mix_of_nearby_rows_and_running_functions_is_split(
    tmp_path: Path, spark: SparkSession
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, v INT", primary_key=("id",))
        engine.view(
            "mixed",
            "SELECT id, v - lag(v) OVER w AS step, sum(v) OVER w AS total, rank() OVER w AS place"
            " FROM t WINDOW w AS (ORDER BY id)",
        )
        shown = engine.explain("mixed")
        assert f"rule: {NEAR}" in shown
        assert f"rule: {AHEAD}" in shown
        assert f"rule: {WHOLE}" not in shown
        for number in range(6):
            table.insert([(number * 7 % 11, number), (number * 5 % 11, -number)])
            engine.advance()
            assert engine.verify()


def test_a_mix_over_equal_rows_takes_these_in_one_order(
    tmp_path: Path, spark: SparkSession
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "k STRING, v INT")
        view = engine.view(
            "mixed",
            "SELECT v, lag(v) OVER w AS before, lead(v, 2) OVER w AS later, row_number() OVER w AS place"
            " FROM t WINDOW w AS (PARTITION BY k ORDER BY v DESC)",
        )
        table.insert([("a", 4), ("a", 1), ("a", 1), ("a", 0)])
        engine.advance()
        found = sorted(map(tuple, view.snapshot().collect()), reverse=True)
        assert found == [(4, None, 1, 1), (1, 4, 0, 2), (1, 1, None, 3), (0, 1, None, 4)]
        chance = random.Random(7)
        for _ in range(6):
            table.insert([("a", chance.randrange(3)) for _ in range(3)])
            table.delete([("a", chance.randrange(3)) for _ in range(2)])
            engine.advance()
            assert engine.verify()
        changes = [tuple(row) for row in view.changes().collect()]
        left = sorted(map(repr, replayed(changes)))
        assert left == sorted(repr(tuple(row)) for row in view.snapshot().collect())


def test_gaps_are_filled_with_the_last_value_before(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, k STRING, v DOUBLE", primary_key=("id",))
        engine.view(
            "filled",
            "SELECT id, last_value(v) IGNORE NULLS OVER w AS last, first_value(v) IGNORE NULLS OVER w AS first,"
            " last_value(v) OVER w AS own, last(v, true) OVER (PARTITION BY k ORDER BY id ROWS UNBOUNDED PRECEDING) AS same"
            " FROM t WINDOW w AS (PARTITION BY k ORDER BY id)",
        )
        chance = random.Random(5)
        for _ in range(8):
            ids = chance.sample(range(40), 8)
            table.upsert([(i, "ab"[i % 2], chance.choice([None, None, i / 4])) for i in ids])
            table.delete([(i, None, None) for i in chance.sample(range(40), 2)])
            engine.advance()
            assert engine.verify()
        table.insert([(41, "b", None)])
        engine.advance()
        _, spent = profile(engine.files, engine.catalog, 1)
        assert sum(one.touched for one in spent if one.view == "filled") < 20


def test_visits_by_gaps_between_hits(tmp_path: Path, spark: SparkSession) -> None:
    """Sessions in plain SQL: a running count of the rows that come long after the one before."""
    with el.Engine(str(tmp_path), spark) as engine:
        hits = engine.table("hits", "id BIGINT, host STRING, at TIMESTAMP", primary_key=("id",))
        engine.view(
            "numbered",
            "SELECT id, host, at, sum(begins) OVER (PARTITION BY host ORDER BY at, id) AS visit FROM"
            " (SELECT *, CASE WHEN at - lag(at) OVER (PARTITION BY host ORDER BY at, id)"
            " <= INTERVAL 30 MINUTES THEN 0 ELSE 1 END AS begins FROM hits)",
        )
        engine.view(
            "visits",
            "SELECT host, visit, count(*) AS pages, max(at) - min(at) AS took FROM numbered GROUP BY host, visit",
        )
        chance = random.Random(3)
        begin = datetime(2026, 1, 1)
        for _ in range(5):
            hits.insert(
                [
                    (
                        chance.randrange(60),
                        chance.choice("ab"),
                        begin + timedelta(minutes=chance.randrange(900)),
                    )
                    for _ in range(12)
                ]
            )
            engine.execute(f"DELETE FROM hits WHERE id % 9 = {chance.randrange(9)}")
            engine.advance()
            assert engine.verify()


def test_a_running_sum_beyond_its_range_sets_the_view_aside_until_it_is_back(
    tmp_path: Path, spark: SparkSession
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, v BIGINT", primary_key=("id",))
        engine.view("total", "SELECT id, sum(v) OVER (ORDER BY id) AS s FROM t")
        table.insert([(1, 2**62), (2, 5)])
        engine.advance()
        table.insert([(3, 2**62)])
        engine.advance()
        (view,) = engine.status()["views"]
        assert view["state"] == "failing"
        assert "ARITHMETIC_OVERFLOW" in view["error"]
        table.delete([(3, 2**62)])
        engine.advance()
        assert {view["state"] for view in engine.status()["views"]} == {"live"}
        assert engine.verify()


def test_sums_of_doubles_stay_equal_where_spark_would_take_a_segment_tree(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Such a sum depends on the place of its frame in the partition, and only a part of that is computed again."""
    chance = random.Random(1)
    session = cloned(spark, **{"spark.sql.window.segmentTree.enabled": "true"})
    with el.Engine(str(tmp_path), session) as engine:
        table = engine.table("t", "id BIGINT, x DOUBLE", primary_key=("id",))
        engine.view(
            "near",
            "SELECT id, sum(x) OVER (ORDER BY id ROWS BETWEEN 50 PRECEDING AND 50 FOLLOWING) AS s FROM t",
        )
        table.insert([(10 * number, chance.random()) for number in range(2000)])
        engine.advance()
        for _ in range(3):
            table.insert([(chance.randrange(20_000), chance.random())])
            engine.advance()
        assert engine.verify()
        assert {view["state"] for view in engine.status()["views"]} == {"live"}


def test_distances_beyond_all_numbers(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, ts TIMESTAMP")
        engine.view(
            "ids",
            "SELECT id, count(*) OVER (ORDER BY id RANGE BETWEEN 9223372036854775807 PRECEDING"
            " AND 1 FOLLOWING) AS n FROM t",
        )
        engine.view(
            "times",
            "SELECT ts, count(*) OVER (ORDER BY ts RANGE BETWEEN INTERVAL '106751990' DAY PRECEDING"
            " AND INTERVAL '2' DAY FOLLOWING) AS n FROM t",
        )
        for number in range(3):
            engine.execute(f"INSERT INTO t VALUES ({number}, TIMESTAMP '2026-01-0{number + 1}')")
            engine.advance()
            assert {view["state"] for view in engine.status()["views"]} == {"live"}
        assert engine.verify()
        assert table.snapshot().count() == 3
