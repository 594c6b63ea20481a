"""TPC-DS live: its queries equal offline Spark at every epoch of deletes, updates and new rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import eddyline as el
from eddyline.answers.difference import difference
from eddyline.spark.session import cloned

pytest.importorskip("duckdb", reason="DuckDB generates TPC-DS: pip install 'eddyline-apps[bench]'")

from eddyline_bench import tpcds

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

GROUPS = 9
EPOCHS = 3


@pytest.fixture(scope="module")
def generated() -> tuple[dict[str, str], dict[str, pa.Table]]:
    return tpcds.generate()


@pytest.mark.parametrize("group", range(GROUPS))
def test_queries_are_live(
    spark: SparkSession,
    tmp_path: Path,
    generated: tuple[dict[str, str], dict[str, pa.Table]],
    group: int,
) -> None:
    queries, tables = generated
    chosen = list(queries)[group::GROUPS]
    data, offline = tpcds.Data(tables, 0.3), cloned(spark)
    with el.Engine(str(tmp_path), spark=spark) as engine:
        handles = {
            name: engine.table(name, from_arrow_schema(rows.schema), tpcds.KEYS[name])
            for name, rows in data.tables.items()
        }
        for name, rows in data.tables.items():
            handles[name].insert(rows)
        engine.advance()
        for name in chosen:
            engine.view(name, queries[name])
        found = 0
        for epoch in range(EPOCHS):
            if epoch:
                for change in data.changes(epoch, 10):
                    data.apply(change)
                    getattr(handles[change.table], change.operation)(change.rows)
                engine.advance()
            for name, rows in data.tables.items():
                offline.createDataFrame(rows).createOrReplaceTempView(name)
            for name in chosen:
                found += compared(engine, offline, name, queries[name])
    assert found > 0


def compared(engine: el.Engine, offline: SparkSession, name: str, query: str) -> int:
    """Compare a view with its query, which may fail on the rows; return the number of rows."""
    try:
        wanted = offline.sql(query).toArrow()
    except PySparkException as error:
        with pytest.raises(el.EddylineError, match=str(error.getCondition())):
            engine.snapshot(name)
        return 0
    found = difference(engine.snapshot(name).toArrow(), wanted)
    assert found.equal, f"{name}: {found.left_only} instead of {found.right_only}"
    return wanted.num_rows
