"""A disk that fails: each error is named, nothing is half written, and the next call goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.store import open_store
from eddyline.changes import Epoch
from eddyline.errors import EddylineError, StateError, StorageError
from eddyline.source.redo_log import RedoLog
from eddyline.state.manifest import Manifest, committed_epochs, last_committed, write_manifest
from eddyline.state.recover import open_storage
from eddyline.state.runs import Run, keep_open, read_run, verify_run, write_run
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock
from eddyline.testing import FaultyFiles

SIZE = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; only root can make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Fill a file system to the last byte."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 4096):
            pass
    assert os.statvfs(folder).f_bavail == 0
    return path


def test_a_full_disk_loses_nothing(small: Path) -> None:
    files = Files(str(small / "storage"))
    files.make_folder("")
    open_storage(files, writable=True)
    store = open_store(files)
    store.write(Catalog(2))
    log = RedoLog(files, "t1")
    rows = pa.table({"c0": np.arange(500)})
    log.append_tables([rows])
    write_manifest(files, Manifest(Epoch(1)))
    names = sorted(path for path in small.rglob("*") if path.is_file())
    filler = fill(small)
    calls = (
        lambda: log.append_tables([rows]),
        lambda: write_manifest(files, Manifest(Epoch(2), counters={"x": {"n": 1}})),
        lambda: store.write(Catalog(2, next_id=2)),
        lambda: write_run(files, "epochs/run", rows),
    )
    for call in calls * 2:
        with pytest.raises(StorageError) as error:
            call()
        assert error.value.condition in ("WRITE_FAILED", "CATALOG_UNAVAILABLE")
        assert error.value.retryable
    assert last_committed(files).epoch == 1
    assert len(log.segments(0, log.end())) == 1
    assert store.read() == Catalog(2)
    left = sorted(path for path in small.rglob("*") if path.is_file() and path != filler)
    assert left == names  # no half of a file takes the last space
    filler.unlink()
    for call in calls:
        call()
    assert committed_epochs(files) == [1, 2]
    assert len(log.segments(0, log.end())) == 2
    assert store.read() == Catalog(2, next_id=2)


def test_a_disk_that_became_read_only_is_named(small: Path) -> None:
    files = Files(str(small))
    open_storage(files, writable=True)
    write_manifest(files, Manifest(Epoch(1)))
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(StorageError) as error:
        write_manifest(files, Manifest(Epoch(2)))
    assert error.value.condition == "WRITE_FAILED"
    with pytest.raises(StorageError) as error:
        StorageLock(files)
    assert error.value.condition == "UNUSABLE_STORAGE"
    assert open_storage(files, writable=False).epoch == 1  # reading goes on
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    write_manifest(files, Manifest(Epoch(2)))


def test_rows_whose_entry_could_not_be_flushed_are_written_once(tmp_path: Path) -> None:
    """The disk fails when the entry of the log has its name already."""
    files = FaultyFiles(str(tmp_path))
    log, rows = RedoLog(files, "t1"), pa.table({"c0": [1]})
    for _ in range(2):
        files.arm(0)
        log.append_tables([rows])
    effects = files.effects()
    assert effects[-2:] == ["rename logs/t1/000000000001.json", "sync logs/t1"]
    files.arm(len(effects))
    with pytest.raises(StorageError) as error:
        log.append_tables([rows])
    assert error.value.condition == "WRITE_FAILED"
    undone = ["remove logs/t1/000000000002.json", "sync logs/t1"]
    assert files.effects()[len(effects) :][:2] == undone
    assert RedoLog(files, "t1").end() == log.end() == 2
    log.append_tables([rows])
    assert len(log.segments(0, log.end())) == 3
    files.arm(len(effects), "broken")  # nor can it be removed
    with pytest.raises(StorageError) as error:
        log.append_tables([rows])
    assert error.value.condition == "WRITE_UNCERTAIN"
    assert not error.value.retryable
    assert log.end() == 4


@pytest.mark.parametrize("below", ["", "storage"])
def test_a_file_is_no_folder_for_a_storage(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as error:
        StorageLock(Files(tmp_path / "file" / below))
    assert error.value.condition == "UNUSABLE_STORAGE"


def run_of(files: Files) -> Run:
    files.make_folder("")
    return write_run(files, "a.arrow", pa.table({"h": np.arange(3), "w": np.ones(3, int)}))


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_read_now_is_not_damaged(tmp_path, monkeypatch, number):
    """Its content may be sound: to restore it from a copy would be the wrong advice."""
    files = Files(str(tmp_path))
    run = run_of(files)
    files.write_json("a", 1)

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.memory_map", failing)
        patch.setattr("pathlib.Path.read_bytes", failing)
        patch.setattr("os.listdir", failing)
        patch.setattr("eddyline.state.runs.checksum", failing)
        keep_open(files, [])
        for call in (
            lambda: read_run(files, run),
            lambda: verify_run(files, run),
            lambda: files.read_json("a"),
            lambda: files.names(""),
        ):
            with pytest.raises(EddylineError) as error:
                call()
            assert error.value.condition == "READ_FAILED"
            assert error.value.retryable
    assert read_run(files, run).num_rows == 3
    assert files.read_json("a") == 1
    files.remove("a.arrow")
    keep_open(files, [])
    with pytest.raises(StateError) as error:
        read_run(files, run)
    assert error.value.condition == "DAMAGED_RUN"
