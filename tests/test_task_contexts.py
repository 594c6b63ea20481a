"""The files between the driver and Spark's JVM, where something fails."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import eddyline.spark.driver
from eddyline.spark.driver import TaskContext
from processes import open_files

ROWS = pa.table({"n": [1]})


class Jvm:
    """The JVM's side: it fails, or announces more bytes than it has written."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def task(self, *_: object) -> Jvm:
        if self.fails:
            raise ConnectionError("the JVM is gone")
        return self

    def evaluate(self, plan: object, size: int, rows: int) -> int:
        return 100

    def close(self) -> int:
        return 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(eddyline.spark.driver, "_folder", lambda: str(tmp_path))
    monkeypatch.setattr(TaskContext, "_numbers", itertools.count(-2, -1))
    return tmp_path


def enter(jvm: Any) -> None:
    with TaskContext(jvm):
        pass


def test_a_context_that_cannot_begin_leaves_no_files(folder: Path) -> None:
    with pytest.raises(ConnectionError):
        enter(Jvm(fails=True))
    (folder / "3.out").touch()
    with pytest.raises(FileExistsError):
        enter(Jvm())
    assert [path.name for path in folder.iterdir()] == ["3.out"]
    assert open_files(folder) == []
    with TaskContext(Jvm()):  # type: ignore[arg-type]
        assert open_files(folder)  # they are found
    assert open_files(folder) == []


@pytest.mark.timeout(60)
def test_an_answer_that_is_shorter_than_announced_is_an_error(folder: Path) -> None:
    with TaskContext(Jvm()) as context, pytest.raises(OSError, match="0 bytes instead of 100"):
        context.evaluate(None, ROWS, ROWS.schema)
