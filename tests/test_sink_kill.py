"""Sinks of an engine that is killed at any moment: their targets equal the view, nothing doubled or lost."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from processes import Child
from receiver import serving

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
COLUMNS = pa.schema(
    {"k": pa.string(), "n": pa.int64(), "total": pa.int64(), "_change_type": pa.string()}
)
CHILD = Path(__file__).with_name("sink_engine_child.py")


def start(root: Path, url: str, seconds: float = 0) -> Child:
    return Child([sys.executable, str(CHILD), str(root), url, str(seconds)], root / "stderr")


@pytest.mark.guarantee(
    "sink `webhook` of an engine",
    "exactly once for receivers that take each `Idempotency-Key` once",
    "the engine, {kills} times by kill -9; the receiver hangs up, before and after it has kept a request",
)
@pytest.mark.guarantee(
    "sinks `delta`, `parquet`, `csv` of an engine",
    "exactly once",
    "the engine, {kills} times by kill -9",
)
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_targets_equal_the_view_after_kills(tmp_path: Path, kills: int) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs eddyline[delta]")
    moments = random.Random(kills)
    with serving(lambda change: (change["k"], change["n"], change["total"])) as receiver:
        for _ in range(kills):
            receiver.answers = [moments.choice([200, 200, 503, 0, -1]) for _ in range(10)]
            child = start(tmp_path, receiver.url)
            try:
                child.wait_for("ready")
                time.sleep(moments.uniform(0, 5))
                assert child.process.poll() is None, child.last_words()
            finally:
                child.kill()
        child = start(tmp_path, receiver.url, 1)
        try:
            wanted = Counter(tuple(row) for row in json.loads(child.wait_for("rows")))
        finally:
            child.kill()
        assert {row: n for row, n in receiver.counts.items() if n} == wanted
    assert wanted
    table = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert Counter(map(tuple, table.select(["k", "n", "total"]).to_pandas().to_numpy())) == wanted
    for name in ("parquet", "csv"):
        files = sorted(str(path) for path in (tmp_path / name).glob(f"*.{name}"))
        content: Counter = Counter()
        for row in pyarrow.dataset.dataset(files, COLUMNS, format=name).to_table().to_pylist():
            sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
            content[row["k"], row["n"], row["total"]] += sign
        assert {row: n for row, n in content.items() if n} == wanted
