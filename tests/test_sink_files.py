"""The files of a sink: what a crash leaves behind, snapshots in place of earlier files."""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from eddyline.changes import Epoch
from eddyline.errors import EngineError, StateError
from eddyline.sink.base import Target
from eddyline.sink.files import FilesFormat, FilesSink, write_parquet

FORMAT = FilesFormat("parquet", write_parquet)
SCHEMA = pa.schema([("n", pa.int64())])
TARGET = Target("eddyline/s/k1", "k", StructType([StructField("n", LongType())]), SCHEMA)


def changes(*weights: tuple[int, int]) -> pa.Table:
    ops = ["append" if weight > 0 else "delete" for _, weight in weights]
    numbers = pa.array([n for n, _ in weights], pa.int64())
    return pa.table(
        {"n": numbers, "op": pa.array(ops, pa.string()),
         "w": pa.array([weight for _, weight in weights], pa.int64())}
    )  # fmt: skip


def opened(folder: Path) -> FilesSink:
    return FilesSink(TARGET, str(folder), FORMAT)


def content(folder: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            found[row["n"]] += -1 if row["_change_type"] == "delete" else 1
    return +found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sink = opened(tmp_path)
    sink.replace(None, Epoch(5), changes((1, 1), (2, 2)))
    sink.deliver(Epoch(5), Epoch(7), changes((1, -1), (3, 1)))
    return tmp_path


def test_an_unfinished_file_of_a_crash_is_removed(folder: Path) -> None:
    (folder / ".000000000008-changes.parquet").write_bytes(b"half")
    sink = opened(folder)
    assert sink.committed() == 7
    sink.deliver(Epoch(7), Epoch(8), changes((4, 1)))
    assert content(folder) == {2: 2, 3: 1, 4: 1}
    assert not list(folder.glob(".0*"))


def test_a_position_that_cannot_be_written_leaves_nothing(folder: Path) -> None:
    """As on a full disk, where each try would leave a file."""
    before = sorted(folder.iterdir())
    for _ in range(3):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            with pytest.raises(EngineError, match="SINK_FAILED"):
                opened(folder).deliver(Epoch(7), Epoch(8), changes())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(folder.iterdir()) == before


def test_positions_that_crashes_have_left_are_removed(folder: Path) -> None:
    (folder / f"._eddyline.json-{'0a' * 16}").write_text("{")
    (folder / "._eddyline.json-mine").write_text("{")
    opened(folder).deliver(Epoch(7), Epoch(8), changes())
    assert [path.name for path in folder.glob("._*")] == ["._eddyline.json-mine"]


def test_a_folder_without_hard_links_is_written(folder: Path, monkeypatch) -> None:
    def no_links(*_: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as FAT and some mounts

    monkeypatch.setattr(os, "link", no_links)
    opened(folder).deliver(Epoch(7), Epoch(8), changes((4, 1)))
    assert content(folder) == {2: 2, 3: 1, 4: 1}
    file = folder / "000000000008-changes.parquet"
    before = file.read_bytes()
    sink = opened(folder)
    monkeypatch.setattr(sink, "_epochs", lambda: {7: "changes"})  # it appears after the look
    with pytest.raises(StateError, match="SINK_TARGET_MOVED"):
        sink.deliver(Epoch(7), Epoch(8), changes((5, 1)))
    assert file.read_bytes() == before


@pytest.mark.parametrize("epoch", [7, 9, 6])
def test_a_snapshot_takes_the_place_of_all_files(folder: Path, epoch: int) -> None:
    sink = opened(folder)
    for _ in range(2):
        sink.replace(sink.committed(), Epoch(epoch), changes((8, 1)))
        assert sink.committed() == epoch
        assert content(folder) == {8: 1}
    sink.deliver(Epoch(epoch), Epoch(epoch + 1), changes((8, -1), (9, 1)))
    assert content(folder) == {9: 1}


@pytest.mark.guarantee("sinks `parquet`, `jsonl`, `csv`", "exactly once", "a crash at each step")
def test_a_crash_at_each_step_of_a_snapshot(folder: Path, monkeypatch) -> None:
    steps = 0
    for dies_at in range(1, 20):
        steps, real = 0, {name: getattr(os, name) for name in ("replace", "unlink", "link")}

        def step(name, *arguments, real=real, dies_at=dies_at):
            nonlocal steps
            steps += 1
            if steps == dies_at:
                raise KeyboardInterrupt
            return real[name](*arguments)

        sink = opened(folder)
        base = sink.committed()
        before = content(folder)
        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, lambda *a, name=name: step(name, *a))
            try:
                sink.replace(base, Epoch(100 * dies_at), changes((dies_at, 1)))
                break
            except KeyboardInterrupt:
                pass
        again = opened(folder)
        found = again.committed()
        again.deliver(found, Epoch(found + 1), changes())
        assert found in (base, 100 * dies_at)
        assert content(folder) == (before if found == base else {dies_at: 1})
    assert dies_at > 3


def test_another_engine_is_noticed(folder: Path) -> None:
    with pytest.raises(StateError, match="SINK_TARGET_MOVED"):
        opened(folder).deliver(Epoch(5), Epoch(8), changes((4, 1)))
    other = FilesSink(Target("eddyline/s/k2", "m", TARGET.columns, SCHEMA), str(folder), FORMAT)
    with pytest.raises(StateError, match="SINK_TARGET_NOT_EMPTY") as refused:
        other.committed()
    assert refused.value.hint == "empty the folder, or give another one"
    assert "overwrite" not in FORMAT.options


def test_a_folder_with_other_files_is_taken(folder: Path) -> None:
    taken = folder / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    sink = opened(taken)
    sink.replace(sink.committed(), Epoch(7), changes((8, 1)))
    assert content(taken) == {8: 1}
    assert (taken / "notes.txt").read_text() == "mine"
    (taken / "_eddyline.json").unlink()
    with pytest.raises(StateError, match="SINK_TARGET_NOT_EMPTY"):
        opened(taken).committed()
