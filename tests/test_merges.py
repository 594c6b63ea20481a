"""Large runs are merged beside epochs; an epoch commits what is ready, or nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.runtime.merges import Merges
from eddyline.runtime.reports import epoch_work
from eddyline.state.arrangement import merge_starts, runs_with_parts, waiting_merge
from eddyline.state.manifest import Manifest, last_committed
from eddyline.storage.files import Files
from waiting import until

pytestmark = pytest.mark.spark

OPTIONS = el.Options(buckets=1, task_bytes=256 << 10, compaction_fan_in=2, retain_epochs=3)
VIEWS = {
    "counts": "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM t GROUP BY k",
    "sizes": "SELECT n, count(*) AS groups FROM counts GROUP BY n",
    "pairs": "SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.k = b.k AND a.v < b.v",
}


class CommitFaults:
    """Lets the n-th rename of a commit fail: those of merged runs, and of the manifest.

    Attributes:
        at: n; 0 for none.
        failed: what has failed; empty if nothing has.
    """

    at = 0
    failed = ""

    def __call__(self, what: str, name: str) -> None:
        if self.at and what == "rename" and (".merged-" in name or name.startswith("manifests")):
            self.at -= 1
            if not self.at:
                self.failed = name
                raise OSError(5, "the disk is broken")


class Load:
    """A table with rows that come and go, a few views, and the merges of the engine."""

    def __init__(self, files: Path, spark: SparkSession) -> None:
        self.engine = el.Engine(files, spark, OPTIONS)
        self.table = self.engine.table("t", "id INT, k INT, v INT", ["id"])
        for name, query in VIEWS.items():
            self.engine.view(name, query)
        self.next = 0

    @property
    def merges(self) -> Merges:
        return self.engine._epochs.merges

    def epoch(self, count: int) -> None:
        first = self.next
        self.next += count
        self.table.insert([(i, i * 7919 % 300, i % 13) for i in range(first, first + count)])
        if first > 100:
            self.table.delete([(i, i * 7919 % 300, i % 13) for i in range(first - 100, first - 97)])
        self.engine.advance()

    def until_left(self) -> None:
        """Run epochs until some have left merges, and these are done."""
        if not self.next:
            self.epoch(1000)
        for _ in range(60):
            self.epoch(5)
            if self.merges.waiting or self.merges.ready:
                break
        until(lambda: not self.merges.waiting)
        assert self.merges.ready


def run_counts(manifest: Manifest) -> dict[tuple[str, int], int]:
    return {
        (name, bucket): len(runs_with_parts(runs))
        for name, buckets in manifest.arrangements.items()
        for bucket, runs in buckets.items()
    }


@pytest.fixture
def load(tmp_path: Path, spark: SparkSession) -> Iterator[Load]:
    load = Load(tmp_path, spark)
    yield load
    load.engine.stop()


def test_an_epoch_commits_the_merges_that_are_ready(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eddyline.state")
    load.until_left()
    ready = dict(load.merges.ready)
    load.epoch(1)
    arrangements = load.engine._workspace.manifest.arrangements
    for (name, bucket), (merge, runs) in ready.items():
        held = {Path(run.name).name for run in arrangements[name][bucket]}
        assert {Path(run.name).name for run in runs} <= held
        assert not {Path(run.name).name for run in merge.runs} & held
    assert not load.merges.ready.keys() & ready.keys()
    merged = epoch_work(load.engine._workspace.manifest.counters).merged
    assert merged >= sum(run.bytes for merge, _ in ready.values() for run in merge.runs) > 0
    assert any("merged" in record.getMessage() for record in caplog.records)
    assert load.engine.verify().equal
    for _ in range(30):
        load.epoch(20)
    assert load.engine.verify().equal
    assert max(run_counts(load.engine._workspace.manifest).values()) < 40


def test_what_isnt_committed_is_gone_after_a_restart(
    load: Load, tmp_path: Path, spark: SparkSession
) -> None:
    load.until_left()
    (folder,) = {run.name.split("/")[1] for _, runs in load.merges.ready.values() for run in runs}
    assert Path(tmp_path, "epochs", folder).is_dir()
    load.engine.stop()
    assert not Path(tmp_path, "epochs", folder).exists()
    Path(tmp_path, "epochs", folder).mkdir()  # as a crash leaves it
    Path(tmp_path, "epochs", folder, "x.arrow").write_bytes(b"x")
    again = Load(tmp_path, spark)
    assert not Path(tmp_path, "epochs", folder).exists()
    again.next = load.next
    again.epoch(1)  # looks at the whole state
    until(lambda: not again.merges.waiting)
    assert again.merges.ready
    again.epoch(1)
    assert again.engine.verify().equal
    again.engine.stop()


@pytest.mark.parametrize("reopened", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_fault_at_each_write_of_a_commit_loses_nothing(
    load: Load,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    reopened: bool,
) -> None:
    faults = CommitFaults()
    monkeypatch.setattr(Files, "step", lambda _, what, name: faults(what, name))
    failed: list[str] = []
    for number in range(5):
        load.until_left()
        load.table.insert([(-1 - number, 1, 1)])
        merged = sum(len(runs) for _, runs in load.merges.ready.values())
        faults.at = (1, 1 + merged // 2, merged, merged + 1, merged + 2)[number]
        faults.failed = ""
        try:
            load.engine.advance()
        except EddylineError:
            assert faults.failed
        failed.append(faults.failed)
        faults.at = 0
        if reopened:
            load.engine.stop()
            following = load.next
            load = Load(tmp_path, spark)
            load.next = following
        load.engine.advance()
        assert load.engine.verify().equal
        assert load.engine.sql(f"SELECT id FROM t WHERE id = {-1 - number}").count() == 1
    assert [".merged-" in name for name in failed] == [True, True, True, False, False]
    assert failed[3].startswith("manifests")
    load.engine.stop()


def test_merges_of_runs_that_are_no_longer_there_are_dropped(load: Load) -> None:
    load.until_left()
    names = [run.name for _, runs in load.merges.ready.values() for run in runs]
    load.engine.rebucket(2)
    load.epoch(1)
    assert not any(load.engine.files.exists(name) for name in names)
    manifest = last_committed(load.engine.files)
    kept = {run.name for run in manifest.all_runs()}
    assert not any(".merged-" in name for name in kept)
    assert load.engine.verify().equal


def test_a_merge_that_fails_is_told_and_tried_again(
    load: Load, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Merges._plan

    def broken(self: Merges, place, *arguments) -> None:
        done(self, place, *arguments)
        if (merge := self.waiting.get(place)) is not None:
            run = replace(merge.runs[0], name="epochs/missing.arrow")
            self.waiting[place] = replace(merge, runs=(run, *merge.runs[1:]))

    monkeypatch.setattr(Merges, "_plan", broken)
    with pytest.raises(AssertionError):
        load.until_left()
    assert "couldn't be merged, and stay as they are" in caplog.text
    assert "missing.arrow" in caplog.text
    monkeypatch.undo()
    load.until_left()
    load.epoch(1)
    assert load.engine.verify().equal


def test_the_merge_that_waits_is_that_of_the_newest_full_tier() -> None:
    assert waiting_merge([8, 8, 1], 2) == (0, 2)
    assert waiting_merge([100, 1, 1, 1], 3) == (1, 4)
    assert waiting_merge([100, 10, 1], 2) is None
    assert list(merge_starts([4, 2, 1, 1], 2)) == [2, 1, 0]
