"""Commands that only read: they take no lock, need no JVM, and work beside an engine that writes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.catalog.store import open_store
from eddyline.changes import BucketId, Epoch
from eddyline.cli import main
from eddyline.errors import EngineError
from eddyline.state.manifest import Manifest, write_manifest
from eddyline.state.recover import open_storage
from eddyline.state.runs import write_run
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock

SCHEMA = '{"type":"struct","fields":[{"name":"v","type":"integer","nullable":true,"metadata":{}}]}'

READING = (
    ["status"],
    ["sql", "SELECT v FROM w ORDER BY v"],
    ["deadletters", "list"],
    ["task", "list"],
)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A storage with one view of three rows, made without Spark."""
    files = Files(str(tmp_path / "storage"))
    open_storage(files, writable=True)
    files.make_folder("epochs/000000000001-aa")
    rows = pa.table(
        {"h": np.arange(3), "c0": pa.array([1, 2, 3], pa.int32()), "w": np.ones(3, int)}
    )
    run = write_run(files, "epochs/000000000001-aa/v1.op0.rows.0.arrow", rows)
    arrangements = {"v1/op0/rows": {BucketId(0): (run,)}}
    write_manifest(files, Manifest(Epoch(1), arrangements=arrangements))
    store = open_store(files)
    view = Entry("", VIEW, "w", SCHEMA, query="SELECT 1 AS v", since=1, result="op0/rows")
    store.write(Catalog(2).add(view))
    return files.root


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr("eddyline.spark.session.start_jvm", None)


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_they_never_lock_the_storage_for_writing(storage, command, monkeypatch, capsys):
    lock = fcntl.flock

    def flock(handle: int, kind: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        assert name != "lock" or not kind & fcntl.LOCK_EX, "the writer's lock"
        lock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert main([*command, "--storage", storage]) == 0
    with pytest.raises(AssertionError, match="the writer's lock"):  # this test can fail
        StorageLock(Files(storage))
    shown = capsys.readouterr().out
    assert command[0] == "deadletters" or "w" in shown or "3" in shown


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_they_work_while_an_engine_writes(storage, command, capsys):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, storage], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"True\n"
        assert main([*command, "--storage", storage]) == 0
        writer.communicate(b"\n")
    assert capsys.readouterr().out


HOLDER = """
import sys
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock
print(StorageLock(Files(sys.argv[1])).held, flush=True)
sys.stdin.readline()
"""

LOOKING = """
import sys
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use
print("begun", flush=True)
while True:
    in_use(Files(sys.argv[1]))
"""


def test_a_service_can_restart_while_others_look(storage):
    """`task list` looks whether an engine runs, which needs a shared lock for a moment."""
    lookers = [
        subprocess.Popen([sys.executable, "-c", LOOKING, storage], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for looker in lookers:
            assert looker.stdout is not None
            looker.stdout.readline()
        for _ in range(200):
            lock = StorageLock(Files(storage))
            assert lock.held
            lock.release()
    finally:
        for looker in lookers:
            looker.kill()
            looker.communicate()


def test_a_process_locks_a_storage_once(storage, tmp_path):
    first = StorageLock(Files(storage))
    link = tmp_path / "link"
    link.symlink_to(storage)
    for path in (storage, str(link)):
        with pytest.raises(EngineError) as error:
            StorageLock(Files(path))
        assert error.value.condition == "STORAGE_IN_USE"
        assert first.held
    first.release()
    second = StorageLock(Files(storage))
    assert second.held
    del second  # nothing refers to it any more
    assert StorageLock(Files(storage)).held


def test_a_queue_is_taken_over_by_a_newer_reader(storage):
    first = StorageLock(Files(storage))
    assert StorageLock(Files(storage), take_over=True).held
    assert not first.held
