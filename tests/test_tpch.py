"""TPC-H live: all queries equal offline Spark at every epoch, through refreshes and updates."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import eddyline as el
from eddyline.answers.difference import difference
from eddyline.spark.session import cloned
from eddyline.testing import replayed
from eddyline_bench import tpch

pytestmark = pytest.mark.spark
SAMPLE = ["q1", "q15", "q21"]


def run(spark: SparkSession, folder: Path, scale: float, queries: list[str]) -> None:
    (folder / "data").mkdir()
    data = tpch.Data(tpch.generate(folder / "data", scale))
    offline = cloned(spark)
    with el.Engine(str(folder / "storage"), spark=spark) as engine:
        tables = {
            name: engine.table(name, from_arrow_schema(rows.schema), tpch.KEYS[name])
            for name, rows in data.tables.items()
        }
        for name, rows in data.tables.items():
            tables[name].insert(rows)
        views = {name: engine.view(name, tpch.QUERIES[name]) for name in queries}
        for epoch in [[], *data.refreshes()]:
            for refresh in epoch:
                data.apply(refresh)
                getattr(tables[refresh.table], refresh.operation)(refresh.rows)
            engine.advance()
            for name, rows in data.tables.items():
                offline.createDataFrame(rows).createOrReplaceTempView(name)
            for name, view in views.items():
                wanted = offline.sql(tpch.QUERIES[name]).toArrow()
                live = view.snapshot().toArrow()
                found = difference(live, wanted)
                assert found.equal, f"{name}: {found.left_only} instead of {found.right_only}"
                assert sort_columns(live, name) == sort_columns(wanted, name), name
        for name, view in views.items():
            rows = replayed([tuple(row) for row in view.changes().collect()])
            assert len(rows) == view.snapshot().count(), name


def sort_columns(rows: pa.Table, query: str) -> list[dict[str, object]]:
    """What the query sorts by, in the order of the rows."""
    _, found, clause = tpch.QUERIES[query].rpartition("ORDER BY")
    keys = clause.partition("LIMIT")[0].split(",") if found else []
    return rows.select([key.split()[0] for key in keys]).to_pylist()


def test_a_sample_is_live(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, 0.001, SAMPLE)


@pytest.mark.slow
def test_all_queries_are_live(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, 0.01, list(tpch.QUERIES))
