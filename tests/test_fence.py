"""Two engines write to one storage because its lock doesn't work: one loses, loudly."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import eddyline as el
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.source.redo_log import RedoLog
from eddyline.state.manifest import (
    Manifest,
    committed_epochs,
    last_committed,
    read_manifest,
    write_manifest,
)
from eddyline.state.recover import open_storage
from eddyline.storage.fence import Fence
from eddyline.storage.files import Files
from receiver import serving

WRITER = """
import json, sys
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.state.manifest import Manifest, last_committed, write_manifest
from eddyline.storage.fence import Fence
from eddyline.storage.files import Files

files = Files(sys.argv[1])
files.fence = Fence.raised(files.root)
epoch, done, error = last_committed(files).epoch, [], ""
print("begun", flush=True)
try:
    while len(done) < int(sys.argv[2]):
        epoch += 1
        write_manifest(files, Manifest(Epoch(epoch), writer=files.fence.writer))
        done.append(epoch)
except StateError as lost:
    error = lost.condition
print(json.dumps({"writer": files.fence.writer, "done": done, "error": error}))
"""


def writer(root: str, epochs: int) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", WRITER, root, str(epochs)], stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "begun\n"
    return made


def test_the_older_of_two_processes_loses(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    open_storage(files, writable=True)
    first = writer(files.root, 1_000_000)
    while len(committed_epochs(files)) < 20:
        pass
    second = writer(files.root, 50)
    lost, won = (json.loads(process.communicate()[0]) for process in (first, second))
    assert lost["error"] in ("FENCED", "EPOCH_COMMITTED")
    assert (won["error"], len(won["done"])) == ("", 50)
    writers = [read_manifest(files, epoch).writer for epoch in committed_epochs(files)]
    assert writers == [lost["writer"]] * len(lost["done"]) + [won["writer"]] * 50
    assert committed_epochs(files) == lost["done"] + won["done"]


def test_of_two_commits_of_one_epoch_one_wins(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    open_storage(files, writable=True)
    start, results, conditions = threading.Barrier(8), [], []

    def commit(number: int) -> None:
        start.wait()
        try:
            write_manifest(files, Manifest(Epoch(1), writer=str(number)))
            results.append(number)
        except StateError as error:
            conditions.append(error.condition)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1
    assert conditions == ["EPOCH_COMMITTED"] * 7
    assert last_committed(files).writer == str(results[0])
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_system_without_hard_links_serves_too(tmp_path, monkeypatch):
    def refused(*_: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    files = Files(str(tmp_path))
    files.write_json("a", 1, new=True)
    with pytest.raises(FileExistsError):
        files.write_json("a", 2, new=True)
    assert files.read_json("a") == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_rows_of_a_fenced_writer_are_refused(tmp_path: Path) -> None:
    files, newer = Files(str(tmp_path)), Files(str(tmp_path))
    files.fence = Fence.raised(files.root)
    log = RedoLog(files, "t1")
    rows = pa.table({"c0": [1]})
    log.append_tables([rows])
    without = RedoLog(newer, "t1")  # not even fenced
    without.append_tables([rows])
    with pytest.raises(StateError) as error:
        log.append_tables([rows])
    assert error.value.condition == "FENCED"
    newer.fence = Fence.raised(files.root)
    with pytest.raises(StateError) as error:
        log.append_tables([rows])
    assert error.value.condition == "FENCED"
    assert len(without.segments(0, without.end())) == 2


class NoLock:
    """A lock that locks nobody out."""

    held = True

    def __init__(self, files: Files) -> None:
        files.make_folder("")

    def release(self) -> None:
        self.held = False


@pytest.mark.guarantee(
    "sinks `delta`, `jsonl`, `webhook` of an engine",
    "exactly once",
    "nothing: an older engine goes on beside the new one, and no lock keeps them apart",
)
@pytest.mark.spark
def test_sinks_of_two_engines_without_a_lock(tmp_path, monkeypatch):
    deltalake = pytest.importorskip("deltalake", reason="needs eddyline[delta]")
    from eddyline.spark.session import local_session

    monkeypatch.setattr("eddyline.api.workspace.StorageLock", NoLock)
    spark = local_session()
    with serving(lambda change: (change["v"], change["n"])) as receiver:
        first = el.Engine(str(tmp_path / "storage"), spark)
        table = first.table("t", "v INT")
        first.view("n", "SELECT v, count(*) AS n FROM t GROUP BY v")
        first.sink("to_delta", "n", "delta", path=str(tmp_path / "delta"))
        first.sink("to_jsonl", "n", "jsonl", path=str(tmp_path / "jsonl"))
        first.sink("to_webhook", "n", "webhook", url=receiver.url)
        table.insert([(1,)])
        first.advance()
        told: list[str] = []
        first.on_error(lambda error: told.append(error.condition))
        older = list(first._epochs.sinks._deliverers.values())
        assert {deliverer.epoch for deliverer in older} == {first.status()["epoch"]}
        second = el.Engine(str(tmp_path / "storage"), spark)
        for number in range(12):
            second.table("t", "v INT").insert([(number % 4,)])
            for deliverer in older:
                deliverer.wake()
                deliverer._not_before = 0.0  # no pause after its errors
            epoch = second.advance()
        assert (
            {"SINK_TARGET_RESTORED"}
            <= set(told)
            <= {"SINK_TARGET_RESTORED", "SINK_TARGET_MOVED", "FENCED"}
        )
        for sink in second.status()["sinks"]:
            assert (sink["epoch"], sink["state"]) == (epoch, "live"), sink
        first.stop()
        second.table("t", "v INT").insert([(4,)])
        second.advance()
        wanted = Counter(map(tuple, second.snapshot("n").collect()))
        second.stop()
        assert {row: n for row, n in receiver.counts.items() if n} == wanted
    found = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
    assert Counter((row["v"], row["n"]) for row in found) == wanted
    content: Counter = Counter()
    for path in sorted((tmp_path / "jsonl").glob("0*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
            content[row["v"], row["n"]] += sign
    assert {row: n for row, n in content.items() if n} == wanted


@pytest.mark.spark
def test_two_engines_without_a_lock(tmp_path, monkeypatch):
    from eddyline.spark.session import local_session

    monkeypatch.setattr("eddyline.api.workspace.StorageLock", NoLock)
    spark = local_session()
    first = el.Engine(str(tmp_path / "storage"), spark)
    table = first.table("t", "v INT")
    first.view("n", "SELECT v, count(*) AS n FROM t GROUP BY v")
    table.insert([(1,)])
    first.advance()
    table.insert([(2,)])
    second = el.Engine(str(tmp_path / "storage"), spark)
    for call in (first.advance, lambda: table.insert([(3,)]), first.advance):
        with pytest.raises(el.StateError) as error:
            call()
        assert error.value.condition == "FENCED"
    second.table("t", "v INT").insert([(2,)])
    second.advance()
    assert sorted(map(tuple, second.snapshot("n").collect())) == [(1, 1), (2, 2)]
    assert second.verify()
    first.stop()
    second.table("t", "v INT").insert([(4,)])
    second.advance()
    second.stop()
    with el.Engine(str(tmp_path / "storage"), spark) as third:
        assert sorted(map(tuple, third.snapshot("n").collect())) == [(1, 1), (2, 2), (4, 1)]
