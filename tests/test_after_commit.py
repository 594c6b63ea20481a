"""Errors after the commit of an epoch: it counts, its sinks and callbacks get it, and the next one follows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
import eddyline.api.epochs
from eddyline.errors import StorageError
from eddyline.storage.fence import NAME
from eddyline.storage.files import Files

pytestmark = pytest.mark.spark


class Failing(Files):
    """Files of a disk with a fault at one effect, while it is armed."""

    armed: tuple[str, str] | None = None
    hidden = False  # whether the fence's file goes with it

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return Files, (self.root,)  # Spark's workers can't import this module

    def step(self, what: str, name: str) -> None:
        if self.armed is not None and self.armed == (what, name.partition("/")[0]):
            self.armed = None
            if self.hidden:
                os.rename(self.path(NAME), self.path("hidden"))
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


@pytest.fixture
def files(tmp_path: Path) -> Failing:
    return Failing(str(tmp_path / "storage"))


@pytest.fixture
def engine(files: Failing, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(files, spark, el.Options(retain_epochs=1, lease_seconds=0)) as engine:
        engine.table("t", "v INT").insert([(1,)])
        engine.view("n", "SELECT v, count(*) AS n FROM t GROUP BY v")
        engine.advance()
        yield engine


def test_an_epoch_whose_commit_fails_after_it_counts_though_the_fence_cannot_be_read(
    engine: el.Engine, files: Failing
) -> None:
    engine.execute("INSERT INTO t VALUES (2)")
    before = engine.progress().epoch
    files.armed, files.hidden = ("sync", "manifests"), True
    with pytest.raises(StorageError) as error:
        engine.advance()
    assert error.value.condition == "WRITE_FAILED"
    os.rename(files.path("hidden"), files.path(NAME))
    engine.execute("INSERT INTO t VALUES (2)")
    assert engine.advance() == before + 2
    assert sorted(map(tuple, engine.snapshot("n").collect())) == [(1, 1), (2, 2)]


def test_sinks_and_callbacks_get_an_epoch_after_which_old_ones_cannot_be_removed(
    engine: el.Engine, files: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", 1)
    engine.sink("k", "n", "jsonl", path=str(tmp_path / "sink"))
    told: list[int] = []
    engine.on_progress(lambda progress: told.append(progress.epoch))
    engine.execute("INSERT INTO t VALUES (2)")
    files.armed = ("remove", "manifests")
    with pytest.raises(StorageError):
        engine.advance()
    assert files.armed is None
    epoch = engine.status()["epoch"]
    assert told == [epoch]
    engine._epochs.sinks.wait(epoch)
    assert [sink["epoch"] for sink in engine.status()["sinks"]] == [epoch]
