"""Window functions whose sort spills: Spark doesn't keep the order of tied rows then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# in a process of its own: Spark reads the setting once
SCRIPT = """
import sys
from random import Random
from pyspark.sql import SparkSession
import eddyline as el

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", False)
    .config("spark.shuffle.spill.numElementsForceSpillThreshold", 500)
    .getOrCreate()
)
random = Random(1)
rows = [(i, random.randrange(5), random.random() * 10.0 ** random.randint(-5, 5)) for i in range(1500)]
with el.Engine(sys.argv[1], spark, el.Options(buckets=1)) as engine:
    table = engine.table("t", "id INT, o INT, x DOUBLE", ["id"])
    engine.view("share", "SELECT id, x / sum(x) OVER () AS s FROM t")
    engine.view("tiles", "SELECT id, o, ntile(7) OVER (ORDER BY o) AS n FROM t")
    engine.view("later", "SELECT id, sum(id) OVER (ORDER BY o ROWS BETWEEN CURRENT ROW"
                " AND UNBOUNDED FOLLOWING) AS n FROM t")
    engine.view("ranks", "SELECT id, percent_rank() OVER (ORDER BY o) AS n FROM t")
    table.insert(rows)
    engine.advance()
    for gone in (7, 900):
        table.delete([(gone, None, None)])
        engine.advance()
    for name in ("share", "tiles", "later", "ranks"):
        assert engine.snapshot(name).count() == 1498, name
    assert engine.verify("ranks").equal
"""


@pytest.mark.spark
@pytest.mark.slow
def test_results_by_the_order_of_ties_are_retracted_as_they_were_emitted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "storage")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
