"""Recomputed groups, more of them than Spark's hash aggregation holds: it doesn't keep the order of their rows."""

from __future__ import annotations

from collections import defaultdict
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import eddyline as el

pytestmark = pytest.mark.spark

GROUPS = 400
VIEWS = {
    "lists": "SELECT k, collect_list(v) AS l, first(v) AS f, sum(x) AS s FROM t GROUP BY k",
    "distinct_lists": "SELECT k % 7 AS g, collect_list(DISTINCT v) AS l FROM t GROUP BY 1",
    "sketches": "SELECT k, percentile_approx(v, 0.5, 10) AS p, kurtosis(x) AS c FROM t GROUP BY k",
    "exact": "SELECT k, approx_count_distinct(v) AS d, bit_and(v) AS b, max(x) AS m, sum(v) AS s FROM t GROUP BY k",
}


@pytest.mark.parametrize("short_lane_rows", [200_000, 0])
def test_results_by_order_are_retracted_as_they_were_emitted(
    tmp_path: Path, spark: SparkSession, short_lane_rows: int
) -> None:
    random, rows = Random(1), list[tuple[int, int, int, float]]()
    options = el.Options(buckets=2, short_lane_rows=short_lane_rows)
    with el.Engine(tmp_path, spark, options) as engine:
        table = engine.table("t", "id INT, k INT, v INT, x DOUBLE")
        for name, query in VIEWS.items():
            engine.view(name, query)
        ids = count()
        for changes in (3000, 40, 1200, 1500):
            gone = random.sample(rows, min(len(rows), changes // 2))
            rows = [row for row in rows if row not in set(gone)]
            new = []
            for number in islice(ids, changes):
                x = random.random() * 10.0 ** random.randint(-5, 5)
                new.append((number, random.randrange(GROUPS), random.randrange(30), x))
            rows += new
            table.delete(gone)
            table.insert(new)
            engine.advance()
            check(engine, rows)
        assert {view["state"] for view in engine.status()["views"]} == {"live"}


def check(engine: el.Engine, rows: list[tuple[int, int, int, float]]) -> None:
    values, sums, distinct = defaultdict(list), defaultdict(float), defaultdict(set)
    for _, k, v, x in rows:
        values[k].append(v)
        sums[k] += x
        distinct[k % 7].add(v)
    held = engine.snapshot("lists").collect()
    assert {row.k: sorted(row.l) for row in held} == {k: sorted(of) for k, of in values.items()}
    assert len(held) == len(values)
    assert all(row.f in row.l for row in held)
    assert {row.k: row.s for row in held} == pytest.approx(sums)
    held = engine.snapshot("distinct_lists").collect()
    assert {row.g: sorted(row.l) for row in held} == {g: sorted(of) for g, of in distinct.items()}
    assert len(held) == len(distinct)
    assert engine.snapshot("sketches").count() == len(values)
    assert engine.verify("exact").equal
