"""The inbox of a table: committed batches reach its redo log once, whatever fails in between."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

from eddyline.errors import EddylineError, EngineError, StorageError
from eddyline.source.inbox import (
    ABANDONED_S,
    CLAIMED,
    CLOSED,
    FOLDER,
    TableInbox,
    commit_batch,
    withdraw_batch,
    write_files,
)
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles

TABLE = "t1"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return prepared(Files(tmp_path / "storage"))


def prepared(files: Files) -> Files:
    files.make_folder(f"{FOLDER}/{TABLE}")
    return files


def inbox_of(files: Files) -> TableInbox:
    """Return an inbox as after opening the storage."""
    log = RedoLog(files, TABLE)
    log.tidy()
    return TableInbox("t", TABLE, log, files)


def write(files: Files, writer: str, version: int | None, *values: int) -> list[tuple]:
    written = write_files(files, TABLE, f"{writer}{version}", [pa.table({"v": list(values)})])
    commit_batch(files, TABLE, writer, version, written)
    return written


def logged(files: Files) -> list[int]:
    """Return all values in the redo log, in their order."""
    log = RedoLog(files, TABLE)
    found: list[int] = []
    for segment in log.segments(log.start(), log.end()):
        rows = read_arrow(files, segment)
        assert set(rows["op"].to_pylist()) == {"append"}
        found += rows["c0"].to_pylist()
    return found


def left(files: Files) -> list[str]:
    return os.listdir(files.path(f"{FOLDER}/{TABLE}"))


def test_batches_are_taken_in_the_order_of_their_commits(files):
    write(files, "q", 0, 1, 2)
    write(files, "once", None, 3)
    write(files, "q", 1, 4)
    inbox_of(files).pull()
    assert logged(files) == [1, 2, 3, 4]
    assert left(files) == []


def test_a_batch_that_is_committed_again_is_inserted_once(files):
    write(files, "q", 0, 1)
    write(files, "q", 0, 1)  # before it was taken
    write(files, "q", 1, 2)
    inbox = inbox_of(files)
    inbox.pull()
    write(files, "q", 1, 2)  # after that
    write(files, "q", 0, 1)
    write(files, "other", 0, 3)
    inbox.pull()
    inbox.forget(3)  # the entries have been processed and removed
    assert logged(files) == []
    write(files, "q", 1, 2)
    inbox.pull()
    again = inbox_of(files)
    write(files, "other", 0, 3)
    write(files, "q", 2, 4)
    again.pull()
    assert logged(files) == [4]
    assert left(files) == []


def test_a_clock_that_is_set_back_loses_nothing(files, monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    write(files, "q", 0, 1)
    now -= 3600 * 10**9
    write(files, "q", 1, 2)
    inbox_of(files).pull()
    assert logged(files) == [1, 2]


def test_a_folder_that_changes_while_it_is_listed_hides_no_batch(files, monkeypatch):
    """The list shows a batch, but not the one that was committed before it."""
    write(files, "q", 0, 1)
    hidden = set(left(files))
    write(files, "q", 1, 2)
    names, lists = files.names, 0

    def changing(folder: str) -> list[str]:
        nonlocal lists
        found = names(folder)
        if folder.startswith(FOLDER):
            lists += 1
            found = [name for name in found if lists > 1 or name not in hidden]
        return found

    monkeypatch.setattr(files, "names", changing)
    inbox = inbox_of(files)
    inbox._tidy_at = time.monotonic() + 60
    inbox.pull()
    inbox.pull()
    assert logged(files) == [1, 2]


def test_a_write_that_fails_leaves_nothing(files):
    written = write_files(files, TABLE, "lost", [pa.table({"v": [1]})])
    write_files(files, TABLE, "lost", [pa.table({"v": [2]})])  # a task that failed later
    commit_batch(files, TABLE, "lost", None, written)  # a commit that says it failed
    withdraw_batch(files, TABLE, "lost", written)
    assert left(files) == []
    commit_batch(files, TABLE, "empty", 0, [])
    assert left(files) == []
    inbox_of(files).pull()
    assert logged(files) == []


def test_files_of_writes_that_never_end_are_removed_after_a_day(files):
    write_files(files, TABLE, "dead", [pa.table({"v": [1]})])
    slow = write_files(files, TABLE, "slow", [pa.table({"v": [2]})])
    Path(files.path(f"{FOLDER}/{TABLE}/dead-x.arrow.tmp")).touch()
    for name in left(files):
        past = time.time() - ABANDONED_S - 60
        os.utime(files.path(f"{FOLDER}/{TABLE}/{name}"), (past, past))
    slow += write_files(files, TABLE, "slow", [pa.table({"v": [3]})])
    inbox = inbox_of(files)
    inbox.pull()
    assert sorted(left(files)) == sorted(os.path.basename(name) for name, _, _ in slow)
    commit_batch(files, TABLE, "slow", None, slow)
    inbox.pull()
    assert sorted(logged(files)) == [2, 3]
    gone = write_files(files, TABLE, "gone", [pa.table({"v": [4]})])
    files.remove(gone[0][0])
    with pytest.raises(StorageError, match="is gone"):
        commit_batch(files, TABLE, "gone", None, gone)


def test_large_tasks_write_several_files(files, monkeypatch):
    monkeypatch.setattr("eddyline.source.inbox.FILE_BYTES", 100)
    parts = [pa.table({"v": list(range(i, i + 5))}) for i in range(0, 50, 5)]
    written = write_files(files, TABLE, "big", parts)
    assert len(written) > 2
    commit_batch(files, TABLE, "big", None, written)
    inbox_of(files).pull()
    assert logged(files) == list(range(50))


def test_a_table_that_is_altered_takes_no_batch(files):
    inbox = inbox_of(files)
    write(files, "q", 0, 1)
    with inbox.closed():
        assert logged(files) == [1]
        with pytest.raises(EngineError, match="BEING_ALTERED"):
            write(files, "q", 1, 2)
        inbox.pull()
    inbox.pull()
    assert logged(files) == [1]
    write(files, "q", 1, 2)
    files.write_json(f"{FOLDER}/{TABLE}/{CLOSED}", None)  # an engine has died meanwhile
    with pytest.raises(EngineError, match="BEING_ALTERED"):
        write(files, "q", 2, 3)
    again = inbox_of(files)
    again.open()
    write(files, "q", 2, 3)
    again.pull()
    assert logged(files) == [1, 2, 3]
    later = RedoLog(files, "t2")  # the table after it was altered
    later.inherit(again._log)
    assert later.holds("q", 2)
    assert not later.holds("q", 3)


def test_a_batch_is_withdrawn_or_taken_but_not_both(files):
    written = write(files, "q", 0, 1)
    inbox = inbox_of(files)
    (batch,) = inbox._committed()
    withdraw_batch(files, TABLE, "", written)
    inbox._take(batch)
    assert logged(files) == []
    written = write(files, "q", 1, 2)
    (batch,) = inbox._committed()
    claimed = batch.document + CLAIMED
    assert files.rename(batch.document, claimed)  # then the engine dies
    name = files.path(batch.document)
    assert not os.path.exists(name)
    withdraw_batch(files, TABLE, "q1", written)  # too late
    inbox_of(files).pull()
    assert logged(files) == [2]
    assert left(files) == []


def test_without_hard_links_files_are_copied(files, monkeypatch):
    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    write(files, "q", 0, 1, 2)
    inbox = inbox_of(files)
    monkeypatch.setattr(os, "link", none)
    number = inbox._log.end()
    inbox._log.clear(number)
    (name,) = [n for n in left(files) if n.endswith(".arrow")]
    copied = inbox._log.adopt(number, f"{FOLDER}/{TABLE}/{name}")
    assert Path(files.path(copied)).read_bytes()


@pytest.mark.parametrize("kind", ["crash", "fail", "full", "broken"])
def test_a_fault_at_every_effect_on_the_disk(tmp_path: Path, kind: str) -> None:
    """A writer goes on as Spark does: it commits its last batch again if the call failed."""
    chance = random.Random(3)
    faults = 0
    for fail_at in range(1, 50, 2):
        files = FaultyFiles(str(tmp_path / f"{kind}{fail_at}"))
        prepared(files)
        inbox = inbox_of(files)
        files.arm(fail_at, kind)
        seen: list[int] = []  # as epochs do: what was in entries that are forgotten
        version = 0
        while version < 4:
            try:
                write(files, "q", version, version)
                version += chance.choice([0, 1, 1, 1])  # 0: dies before it knows of its commit
                inbox.pull()
                if version == 3 and not seen:
                    seen = logged(files)
                    inbox.forget(inbox._log.end())
            except EddylineError:
                faults += 1
                files.arm(0)
                if kind == "crash":
                    inbox = inbox_of(files)
        inbox.pull()
        assert sorted({*seen, *logged(files)}) == [0, 1, 2, 3], fail_at
        forgotten = RedoLog(files, TABLE).start()
        total = logged(files) if not forgotten else [*seen, *logged(files)]
        assert sorted(total) == [0, 1, 2, 3], fail_at
        assert [name for name in left(files) if name.endswith(".json")] == []
    assert faults > 10
