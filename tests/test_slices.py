"""Inputs and merges that are larger than a task's memory go through it in slices."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.worker import batches_of
from eddyline.state.arrangement import runs_with_parts
from eddyline.state.manifest import last_committed

pytestmark = pytest.mark.spark

VIEWS = {
    "counts": "SELECT k, count(*) AS n, sum(v) AS total, max(name) AS last FROM t GROUP BY k",
    "sizes": "SELECT n, count(*) AS groups FROM counts GROUP BY n",
    "pairs": "SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.k = b.k AND a.v < b.v",
    "first": "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v, id) AS r FROM t)"
    " WHERE r <= 2",
    "before": "SELECT id, lag(v) OVER (PARTITION BY k ORDER BY id) AS v FROM t",
}


def rows(start: int, count: int) -> list[tuple[int, int, int, str]]:
    return [(i, i * 7919 % 700, i % 13, f"name {i % 101}") for i in range(start, start + count)]


def parts(engine: el.Engine) -> int:
    """How many parts the run with most of them has."""
    held = last_committed(engine.files).arrangements.values()
    runs = [run for own in held for files in own.values() for run in runs_with_parts(files)]
    return max(map(len, runs))


@pytest.mark.slow
def test_slices_and_parts_change_no_result(tmp_path: Path, spark: SparkSession) -> None:
    options = el.Options(buckets=2, task_bytes=32 << 10, short_lane_rows=0, compaction_fan_in=2)
    with el.Engine(tmp_path, spark, options) as engine:
        table = engine.table("t", "id INT, k INT, v INT, name STRING", ["id"])
        table.insert(rows(0, 2000))
        for name, query in VIEWS.items():
            engine.view(name, query)
        engine.advance()
        assert parts(engine) > 4
        for start in (2000, 2600):
            table.insert(rows(start, 600))
            table.delete(rows(start - 1900, 300))
            engine.advance()
            assert engine.verify().equal
        assert parts(engine) > 4
        engine.rebucket(3)
        table.insert(rows(4000, 10))
        engine.advance()
        assert engine.verify().equal
        late = engine.view("late", "SELECT k % 10 AS k, sum(n) AS n FROM counts GROUP BY 1")
        assert late.snapshot().count() == 10
        assert engine.verify().equal
    plain = el.Options(short_lane_rows=0, compaction_fan_in=2)
    with el.Engine(tmp_path, spark, plain) as engine:  # merges the parts
        engine.execute("DELETE FROM t WHERE id % 2 = 0")
        engine.advance()
        assert engine.verify().equal


def test_slices_with_and_without_stored_rows_make_one_run(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Spark knows that a hash is never null; stored rows don't, and their types are those of their slice."""
    folder = tmp_path / "in"
    folder.mkdir()
    options = el.Options(task_bytes=1 << 10, short_lane_rows=0)
    with el.Engine(tmp_path / "storage", spark, options) as engine:
        columns = "k STRING, ts TIMESTAMP, v BIGINT"
        late = ("ts", "10 minutes")
        engine.create_stream("s", columns, "json", {"path": str(folder)}, watermark=late)
        engine.view("v", "SELECT k, ts, max(v) AS v FROM s GROUP BY k, ts")
        draw = random.Random(1)
        for number in range(2):
            lines = [
                f'{{"k": "{draw.choice("abc")}", "v": {draw.randrange(5)},'
                f' "ts": "2024-01-01T00:0{draw.randrange(10)}:{draw.randrange(10, 60)}Z"}}\n'
                for _ in range(400)
            ]
            (folder / f"{number}.json").write_text("".join(lines))
            engine.advance()
            assert engine.progress().failing == {}
        assert engine.verify().equal


def test_a_table_applies_operations_in_pieces(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run_all = Kernel.run_all

    def measured(self: Kernel, context: Any, delta: pa.Table, *others: Any) -> Any:
        sizes.append(delta.num_rows)
        return run_all(self, context, delta, *others)

    monkeypatch.setattr(Kernel, "run_all", measured)
    options = el.Options(buckets=4, task_bytes=32 << 10)
    with el.Engine(tmp_path, spark, options) as engine:
        keyed = engine.table("keyed", "id INT, k INT, v INT, name STRING", ["id"])
        many = engine.table("many", "id INT, k INT, v INT, name STRING")
        for table in (keyed, many):
            table.insert(rows(0, 3000))
            table.delete(rows(100, 500))
        keyed.upsert([(i, -1, -1, "again") for i in range(1000, 2000)])
        many.insert(rows(2000, 500))
        engine.advance()
        assert max(sizes) < 2000
        assert len(sizes) == 8
        plain = rows(0, 100) + rows(600, 400) + rows(2000, 1000)
        again = [(i, -1, -1, "again") for i in range(1000, 2000)]
        held = [tuple(row) for row in engine.sql("SELECT * FROM keyed").collect()]
        assert sorted(held) == sorted([*plain, *again])
        held = [tuple(row) for row in engine.sql("SELECT * FROM many").collect()]
        assert sorted(held) == sorted([*plain, *rows(1000, 1000), *rows(2000, 500)])


def test_many_rows_go_to_spark_in_batches() -> None:
    wide = pa.table({"c0": range(60_000), "c1": ["x" * 1000] * 60_000})
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    batches = list(batches_of(wide, schema))
    assert len(batches) == 4
    assert pa.Table.from_batches(batches).equals(wide.rename_columns(["id", "name"]))
    assert len(list(batches_of(wide.slice(0, 10), schema))) == 1
    assert list(batches_of(wide.slice(0, 0), schema)) == []
