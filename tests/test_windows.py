"""Window functions over nearby rows: settings of Spark and distances that the shapes don't have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.profile import profile
from eddyline.spark.session import cloned

pytestmark = pytest.mark.spark


WHOLE, NEAR = "recompute touched partitions", "recompute rows near changes"
RULES = {
    "lag(v, 2) OVER (PARTITION BY k ORDER BY id)": NEAR,
    "sum(v) OVER (ORDER BY id DESC ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING)": NEAR,
    "count(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)": NEAR,
    "lag(v) IGNORE NULLS OVER (ORDER BY id)": WHOLE,
    "sum(v) OVER (ORDER BY id)": WHOLE,
    "rank() OVER (ORDER BY id)": WHOLE,
    "sum(v) OVER (ORDER BY id ROWS BETWEEN 10001 PRECEDING AND CURRENT ROW)": WHOLE,
    "count(*) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)": WHOLE,
    "count(*) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW)": WHOLE,
}


def test_functions_of_nearby_rows_and_no_others_are_evaluated_near_changes(
    tmp_path: Path, spark: SparkSession
) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        engine.table("t", "id BIGINT, k STRING, v INT, x DOUBLE, ts TIMESTAMP")
        for number, (function, rule) in enumerate(RULES.items()):
            engine.view(f"v{number}", f"SELECT {function} AS y FROM t")
            assert f"rule: {rule}" in engine.explain(f"v{number}"), function


def test_a_change_reads_few_rows_of_a_large_partition(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        table = engine.table("t", "id BIGINT, v INT", primary_key=("id",))
        table.insert([(number, number) for number in range(5000)])
        engine.advance()
        engine.view("steps", "SELECT id, v - lag(v) OVER (ORDER BY id) AS step FROM t")
        table.insert([(2500, 0)])
        engine.advance()
        _, spent = profile(engine.files, engine.catalog, 1)
        (steps,) = [one for one in spent if (one.view, one.operator) == ("steps", "")]
        assert 0 < steps.touched < 100
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
