"""`kill -9` of the whole program, Python, JVM and workers, at any moment, over and over again."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from eddyline.state.manifest import committed_epochs, manifest_name
from eddyline.storage.files import Files
from processes import Child

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

CHILD = Path(__file__).with_name("crash_child.py")
PATIENCE_S = 600


def start(root: Path, cycles: int = 0, fail_at: int = 0) -> Child:
    return Child(
        [sys.executable, str(CHILD), str(root), str(cycles), str(fail_at)], root / "stderr"
    )


def manifests(root: Path) -> dict[int, bytes]:
    """The committed epochs, byte by byte."""
    files = Files(str(root / "storage"))
    return {e: Path(files.path(manifest_name(e))).read_bytes() for e in committed_epochs(files)}


def assert_kept(before: dict[int, bytes], root: Path) -> dict[int, bytes]:
    """No committed epoch was run again; the epochs now."""
    now = manifests(root)
    assert all(now.get(epoch, data) == data for epoch, data in before.items())
    assert max(now, default=0) >= max(before, default=0)
    return now


def end_well(root: Path) -> None:
    """A last child that nobody kills finds everything as it must be."""
    child = start(root, cycles=1)
    try:
        child.wait_for("fine")
        assert child.process.wait(PATIENCE_S) == 0
    finally:
        child.kill()


@pytest.mark.guarantee(
    "tables and streams of files, with views",
    "exactly once",
    "the engine, {kills} times by kill -9 at random moments",
)
@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    moments = random.Random(7)
    known: dict[int, bytes] = {}
    to_ready = 15.0
    for number in range(kills):
        child = start(tmp_path)
        try:
            if number % 4 == 3:  # on its way up: JVM, recovery, first cycle
                time.sleep(moments.uniform(0.2, 1) * to_ready)
            else:  # in the middle of its work
                started = time.monotonic()
                child.wait_for("ready")
                to_ready = min(time.monotonic() - started, 60.0)
                time.sleep(moments.uniform(0, 8))
            # it lives until now: no check in it has failed
            assert child.process.poll() is None, child.last_words()
        finally:
            child.kill()
        known = assert_kept(known, tmp_path)
    end_well(tmp_path)
    assert_kept(known, tmp_path)


@pytest.mark.guarantee(
    "tables and streams of files, with views",
    "exactly once",
    "the engine by kill -9, at chosen writes",
)
@pytest.mark.slow
def test_killing_itself_at_an_effect_on_the_disk(tmp_path: Path) -> None:
    known: dict[int, bytes] = {}
    for fail_at in range(1, 420, 14):
        child = start(tmp_path, fail_at=fail_at)
        try:
            child.wait_for("ready")
            # where a worker has died, the driver fails and ends by itself
            assert child.process.wait(PATIENCE_S) != 0
        finally:
            child.kill()
        known = assert_kept(known, tmp_path)
    end_well(tmp_path)
