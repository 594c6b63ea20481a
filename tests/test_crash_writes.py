"""A fault at every effect on the disk: nothing lost, nothing doubled, no committed epoch run again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline.api.epochs
from crashes import LENGTH, RETIRE_EVERY, SMALL_RUNS, WHOLE_EVERY, Load
from eddyline.errors import EddylineError
from eddyline.testing import FaultyFiles

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

KINDS = [
    ("crash", "any", 3),  # the process is as good as dead: the storage is opened again
    ("fail", "any", 2),  # a passing fault: the same engine goes on
    ("kill", "worker", 2),  # one of Spark's Python workers dies: the same engine goes on
]

STRIDE = int(os.environ.get("EDDYLINE_STRIDE", "4"))
"""Slow tests take one of so many effects, from a random one on; with 1, which takes hours, all."""

DISKS = [("full", 4), ("broken", 3), ("read_only", 3)]


@pytest.fixture(autouse=True)
def _retiring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", RETIRE_EVERY)
    monkeypatch.setattr("eddyline.source.log_index.MERGE_FAN_IN", 3)
    monkeypatch.setattr("eddyline.state.manifest.SMALL_RUNS", SMALL_RUNS)
    monkeypatch.setattr("eddyline.state.manifest.WHOLE_EVERY", WHOLE_EVERY)


@pytest.fixture
def load(tmp_path: Path, spark: SparkSession) -> Iterator[Load]:
    load = new_load(tmp_path, spark)
    yield load
    load.close()


def new_load(root: Path, spark: SparkSession, *, operations: bool = False) -> Load:
    return Load(root, spark, FaultyFiles(str(root / "storage")), operations)


def faulty(load: Load) -> FaultyFiles:
    assert isinstance(load.files, FaultyFiles)
    return load.files


def broken_cycle(load: Load, fail_at: int, kind: str, within: str) -> bool:
    """One cycle with a fault in it, and the way back; whether the fault came."""
    files = faulty(load)
    end = load.done + 6
    files.arm(fail_at, kind, within)
    try:
        load.run(end)
    except EddylineError:
        assert files.hit()
    hit, effects = files.hit(), files.effects()
    files.arm(0)
    with_where = f"{kind} at {within} effect {fail_at}: {effects[fail_at - 1 : fail_at]}"
    committed = load.manifests()
    try:
        if kind == "crash":
            load.open()
        if load.done < end:
            load.resume()
            load.run(end)
        load.check()
        kept = {name: data for name, data in load.manifests().items() if name in committed}
        assert kept.items() <= committed.items(), "a committed epoch was run again"
    except Exception as error:
        raise AssertionError(f"wrong after a {with_where}") from error
    return hit


def effects_of_a_cycle(load: Load, within: str) -> int:
    """How many effects a cycle has at most; what comes only now and then is in it too."""
    counts = []
    for _ in range(4):
        faulty(load).arm(0, within=within)
        load.run()
        counts.append(len(faulty(load).effects()))
    return max(counts[2:])


def sample(count: int, wanted: int) -> list[int]:
    """Numbers from 1 to `count`, evenly spread."""
    return sorted({1 + i * (count - 1) // (wanted - 1) for i in range(wanted)})


@pytest.mark.parametrize(("kind", "within", "wanted"), KINDS)
def test_a_fault_in_a_cycle(load: Load, kind: str, within: str, wanted: int) -> None:
    load.open()
    count = effects_of_a_cycle(load, within)
    hits = [broken_cycle(load, n, kind, within) for n in sample(count, wanted)]
    assert sum(hits) >= len(hits) // 2


@pytest.mark.parametrize(("kind", "wanted"), DISKS)
def test_a_disk_that_fails_until_it_is_mended(load: Load, kind: str, wanted: int) -> None:
    """Each call gets a clear error, nothing is lost, and the same engine goes on."""
    load.open()
    for fail_at in sample(effects_of_a_cycle(load, "any"), wanted):
        files = faulty(load)
        end = load.done + LENGTH
        files.arm(fail_at, kind)
        errors: list[EddylineError] = []
        for _ in range(3):
            try:
                load.run(end)
            except EddylineError as error:
                errors.append(error)
        assert not errors or files.hit()
        files.arm(0)
        assert all(error.retryable for error in errors), errors
        conditions = {error.condition for error in errors}
        assert conditions <= {"WRITE_FAILED", "EPOCH_FAILED", "CATALOG_UNAVAILABLE"}
        if load.done < end:
            assert conditions
            load.resume()
            load.run(end)
        load.check()


@pytest.mark.guarantee(
    "tables and streams of files, with views",
    "exactly once",
    "a crash or a failure at every fourth write of a cycle, others in each run",
)
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("kind", "within", "wanted"), KINDS)
def test_a_fault_at_many_effects_of_a_cycle(
    load: Load, kind: str, within: str, wanted: int
) -> None:
    load.open()
    load.run()
    n, missed = random.randrange(STRIDE) + 1, 0
    while missed < 3:
        missed = 0 if broken_cycle(load, n, kind, within) else missed + 1
        n += STRIDE
    assert n > 100


def broken_start(root: Path, spark: SparkSession, fail_at: int) -> int:
    """A fault while a storage is made; how many effects that has."""
    root.mkdir()
    load = new_load(root, spark)
    faulty(load).arm(fail_at, "crash")
    try:
        load.open()
    except EddylineError:
        assert faulty(load).hit()
    count = len(faulty(load).effects())
    faulty(load).arm(0)
    try:
        load.open()
        load.run()
        load.check()
    except Exception as error:
        raise AssertionError(f"wrong after a crash at effect {fail_at}") from error
    load.close()
    return count


def test_a_fault_while_the_storage_is_made(tmp_path: Path, spark: SparkSession) -> None:
    count = broken_start(tmp_path / "0", spark, 0)
    for n in sample(count, 2):
        broken_start(tmp_path / str(n), spark, n)


@pytest.mark.slow
def test_a_fault_at_many_effects_while_the_storage_is_made(
    tmp_path: Path, spark: SparkSession
) -> None:
    count = broken_start(tmp_path / "0", spark, 0)
    for n in range(random.randrange(STRIDE) + 1, count + 1, STRIDE):
        broken_start(tmp_path / str(n), spark, n)


@pytest.mark.parametrize(
    "wanted", [2, pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])]
)
def test_a_fault_in_a_stream_that_spark_reads(
    tmp_path: Path, spark: SparkSession, wanted: int
) -> None:
    load = new_load(tmp_path, spark, operations=True)
    load.open()
    load.run()
    faulty(load).arm(0)
    load.run()
    ids = [load.engine.catalog.get(name).id for name in ("stock", "stock__dead")]
    folders = [f"{folder}/{entry}/" for folder in ("logs", "checkpoints") for entry in ids]
    effects = enumerate(faulty(load).effects(), 1)
    places = [place for place, effect in effects if any(name in effect for name in folders)]
    assert len(places) > 10
    for i in sample(len(places), min(wanted, len(places))):
        for kind in ("crash", "fail"):
            broken_cycle(load, places[i - 1], kind, "any")
    load.close()
