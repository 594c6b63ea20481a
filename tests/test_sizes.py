"""Which inputs are known to have short rows, so that batches needn't be limited by their bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from eddyline import Engine, Options
from eddyline.changes import BucketId, Epoch
from eddyline.plan import catalyst
from eddyline.runtime.sizes import (
    FEW_BYTES,
    has_short_rows,
    has_short_state,
    keeps_rows_short,
    rows_of,
)
from eddyline.source.segments import BUCKET_RUNS, NDJSON, NEXMARK, PARQUET, RUN, Segment
from eddyline.spark.session import BATCH_BYTES, UNLIMITED
from eddyline.state.manifest import Manifest
from eddyline.state.runs import Run
from eddyline.storage.files import Files

LARGE = FEW_BYTES + 1


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", LARGE)  # sparse
    (tmp_path / "small").write_bytes(b"x" * 100)
    return Files(str(tmp_path))


@pytest.mark.parametrize(
    ("segments", "short"),
    [
        ([], True),
        ([Segment(RUN, "small", 1)], True),
        ([Segment(RUN, "large", 10)], False),
        ([Segment(RUN, "large", 1_000_000)], True),
        ([Segment(RUN, "large", 10), Segment(RUN, "small", 1_000_000)], True),
        ([Segment(BUCKET_RUNS, json.dumps([["large", 10], ["small", 5]]), 0)], False),
        ([Segment(BUCKET_RUNS, json.dumps([["large", 1_000_000]]), 0)], True),
        ([Segment(NDJSON, "/a/file", 0, bytes=1000)], True),
        ([Segment(NDJSON, "/a/file", 0, bytes=LARGE)], False),
        ([Segment(NEXMARK, '{"seed": 1}', 10_000_000)], True),
        ([Segment(RUN, "missing", 10)], True),  # its reader says so
    ],
)
def test_short_rows(files: Files, segments: list[Segment], short: bool) -> None:
    assert has_short_rows(files, segments) is short


def test_rows_of_a_bucket_are_those_of_its_runs() -> None:
    assert rows_of([Segment(BUCKET_RUNS, json.dumps([["a", 10], ["b", 5]]), 0)]) == 15


@pytest.mark.parametrize(
    ("plan", "short"),
    [
        ("MapInArrow op0(h#1L), [k#2]\n+- Project [xxhash64(k#1) AS h#2L, upper(k#1)]", True),
        ("Project [repeat(k#1, 100000) AS blob#2]", False),
        ("HashAggregate(keys=[k#1], functions=[collect_list(v#2)])", False),
        ("ArrowEvalPython [lower(k#1)#2], [pythonUDF0#3]", False),
        ("Generate explode(a#1), [k#2], false, [x#3]", False),
    ],
)
def test_plans_that_keep_rows_short(plan: str, short: bool) -> None:
    assert keeps_rows_short(plan) is short


def test_compressed_input_may_have_long_rows(files: Files) -> None:
    assert not has_short_rows(files, [Segment(PARQUET, "small", 100, bytes=100)])
    assert not has_short_rows(files, [Segment(NDJSON, "/a/file.gz", 0, bytes=100)])


@pytest.mark.parametrize(
    ("runs", "short"),
    [
        ([], True),
        ([Run("a", 1, FEW_BYTES, 0)], True),
        ([Run("a", 1, FEW_BYTES, 0), Run("b", 1, 1, 0)], False),
        ([Run("a", 1_000_000, LARGE, 0)], True),
    ],
)
def test_state_with_long_rows_is_known(runs: list[Run], short: bool) -> None:
    small = {BucketId(0): (Run("c", 1_000_000, 1, 0),)}
    manifest = Manifest(
        Epoch(1), {}, {"v1/op0/rows": {BucketId(0): tuple(runs)}, "v1/op1/rows": small}
    )
    assert has_short_state(manifest, "v1") is short
    assert has_short_state(manifest, "v2")


def test_jobs_of_such_plans_have_no_limit_of_bytes(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[str | None] = []
    given_to_tasks = catalyst.given_to_tasks

    @contextmanager
    def noted(session: SparkSession, *settings: object) -> Iterator[None]:
        with given_to_tasks(session, *settings):
            limits.append(spark.sparkContext.getLocalProperty(BATCH_BYTES))
            yield

    monkeypatch.setattr(catalyst, "given_to_tasks", noted)
    with Engine(tmp_path / "s", spark, Options(short_lane_rows=0)) as engine:
        engine.table("t", "a STRING").insert([("x",)])
        engine.advance()
        engine.view("short", "SELECT upper(a) AS a, count(*) AS n FROM t GROUP BY a")
        engine.view("long", "SELECT repeat(a, 1000) AS a FROM t")
    assert limits == [UNLIMITED, None]
    assert spark.sparkContext.getLocalProperty(BATCH_BYTES) is None
