"""Leases: a reader of any process keeps its epoch until it ends, dies, or its time is up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eddyline.answers.open_reads import OpenReads
from eddyline.api.retiring import retire_epochs
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.options import Options
from eddyline.state.leases import Leases, hold_for, pinned, release, renew, retiring
from eddyline.state.manifest import Manifest, committed_epochs, write_manifest
from eddyline.state.recover import open_storage
from eddyline.storage.files import Files
from processes import open_files
from retired import retire
from waiting import PATIENCE_S

CHILD = """
import sys, time
from eddyline.state.leases import pinned
from eddyline.storage.files import Files
with pinned(Files(sys.argv[1])) as manifest:
    print(manifest.epoch, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(str(tmp_path / "storage"))
    open_storage(files, writable=True)
    commit(files, 1, 2, 3)
    return files


def commit(files: Files, *epochs: int) -> None:
    for epoch in epochs:
        write_manifest(files, Manifest(Epoch(epoch)))


def oldest_after_retiring(files: Files, seconds: float = 60) -> int:
    with retiring(files, seconds) as (possible, leased):
        assert possible
        retire(files, 1, leased)
    return committed_epochs(files)[0]


def reader(files: Files) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", CHILD, files.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "3\n"
    return made


class StillThere:
    """A DataFrame that is still used."""

    def alive(self) -> bool:
        return True


def test_an_epoch_stays_while_it_is_read(files):
    with pinned(files) as manifest:
        commit(files, 4, 5)
        assert oldest_after_retiring(files) == manifest.epoch == 3
        with pinned(files):
            commit(files, 6)
        assert oldest_after_retiring(files) == 3
    assert oldest_after_retiring(files) == 6
    with pytest.raises(StateError) as error, pinned(files, Epoch(3)):
        pass
    assert error.value.condition == "NO_SUCH_EPOCH"
    assert sorted(os.listdir(files.path("leases"))) == ["gate"]


def test_another_process_keeps_its_epoch_until_it_ends(files):
    with reader(files) as child:
        commit(files, 4, 5)
        assert oldest_after_retiring(files) == 3
        child.communicate("\n")
    assert oldest_after_retiring(files) == 5


def test_a_process_that_dies_keeps_nothing(files):
    with reader(files) as child:
        commit(files, 4, 5)
        child.kill()
        child.wait()
    assert oldest_after_retiring(files) == 5
    assert sorted(os.listdir(files.path("leases"))) == ["gate"]


def test_a_lease_ends_with_its_time(files):
    with pinned(files):
        commit(files, 4, 5)
        assert oldest_after_retiring(files, seconds=0.0) == 5


def test_a_lease_with_a_time_needs_no_living_reader(files):
    code = (
        "import sys; from eddyline.state.leases import hold_for; "
        "from eddyline.storage.files import Files; print(hold_for(Files(sys.argv[1]), 3, 100))"
    )
    command = [sys.executable, "-c", code, files.root]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name = done.stdout.strip()
    commit(files, 4, 5)
    assert oldest_after_retiring(files) == 3
    past = time.time() - 101
    os.utime(files.path(name), (past, past))
    renew(files, name)
    assert oldest_after_retiring(files) == 3
    os.utime(files.path(name), (past, past))
    assert oldest_after_retiring(files) == 5
    renew(files, name)  # too late
    assert not files.exists(name)
    assert hold_for(files, Epoch(3), 100) is None
    assert sorted(os.listdir(files.path("leases"))) == ["gate"]


def test_a_lease_with_a_time_ends_early_when_it_is_released_or_the_engine_allows_less(files):
    name = hold_for(files, Epoch(3), 100)
    commit(files, 4)
    release(files, name)
    assert oldest_after_retiring(files) == 4
    hold_for(files, Epoch(4), 100)
    commit(files, 5)
    assert oldest_after_retiring(files, seconds=0.0) == 5


def test_a_clock_that_was_set_back_ends_no_lease(files):
    leases = Leases(files)
    assert leases.hold(Epoch(3))
    (name,) = [name for name in files.names("leases") if name.startswith(f"{3:012d}-")]
    future = time.time() + 1e6
    os.utime(files.path(f"leases/{name}"), (future, future))
    commit(files, 4)
    assert oldest_after_retiring(files) == 3


@pytest.mark.parametrize("calls", [1, 0])
def test_the_lease_of_a_call_under_way_does_not_end(files, calls):
    """However long it takes, or if the clock was set ahead, in a process that does nothing else; a DataFrame's time ends."""
    reads = OpenReads(files, 60)
    assert reads.begin(Epoch(3))
    if not calls:
        reads._open[Epoch(3)].frames.append((StillThere(), time.monotonic() + 60))
        reads.end(Epoch(3))
    commit(files, 4)
    past = time.time() - 61
    for name in files.names("leases"):
        os.utime(files.path(f"leases/{name}"), (past, past))
    assert oldest_after_retiring(files) == (3 if calls else 4)
    assert len(open_files(files.root)) == 1 + calls  # `.alive` stays locked


def test_the_time_of_a_dataframe_begins_with_the_end_of_its_calls(files):
    reads = OpenReads(files, 60)
    assert reads.begin(Epoch(3))
    assert reads.begin(Epoch(3))
    reads._open[Epoch(3)].frames.append((StillThere(), time.monotonic() + 60))
    commit(files, 4)
    for calls in (1, 0):
        past = time.time() - 61
        (lease,) = [name for name in files.names("leases") if name.startswith(f"{3:012d}-")]
        os.utime(files.path(f"leases/{lease}"), (past, past))
        reads.end(Epoch(3))
        assert oldest_after_retiring(files) == 3, calls
    os.utime(files.path(f"leases/{lease}"), (past, past))
    assert oldest_after_retiring(files) == 4


def test_no_lease_for_an_epoch_that_is_gone(files):
    retire(files, 1)
    leases = Leases(files)
    assert not leases.hold(Epoch(1))
    assert not leases.hold(Epoch(9))
    commit(files, 4)
    assert oldest_after_retiring(files) == 4


def test_epochs_stay_while_a_reader_takes_a_lease(files):
    with retiring(files, 60) as (possible, _):
        assert possible
        with retiring(files, 60) as (again, _):
            assert not again


def test_readers_do_not_wait_while_the_files_of_old_epochs_are_removed(files, monkeypatch):
    """They take leases of the epochs that stay, whose files are there."""
    for epoch in (1, 2, 3):
        files.make_folder(f"epochs/{epoch:012d}-a")
        files.write(f"epochs/{epoch:012d}-a/run.arrow", lambda stream: stream.write(b"rows"))
    commit(files, 4)
    held: list[bool] = []

    def reading() -> None:
        for epoch in (2, 3, 4):
            leases = Leases(Files(files.root))
            held.append(leases.hold(Epoch(epoch)))
            leases.release(Epoch(epoch))

    def step(what: str, name: str) -> None:
        if what == "remove" and name.startswith("epochs/") and not held:
            reader = threading.Thread(target=reading, daemon=True)
            reader.start()
            reader.join(PATIENCE_S / 5)
            held.append(reader.is_alive())

    monkeypatch.setattr(files, "step", step)
    retire_epochs(files, Epoch(4), Options(retain_epochs=2))
    assert held == [False, True, True, False]
    assert files.names("epochs") == [f"{3:012d}-a"]
