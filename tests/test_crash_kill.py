"""`kill -9` of the whole program, Python, JVM and workers, at any moment, over and over again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eddyline.state.manifest import committed_epochs, manifest_name
from eddyline.storage.files import Files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

CHILD = Path(__file__).with_name("crash_child.py")
PATIENCE_S = 600
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"  # a JVM that starts soon


def start(root: Path, cycles: int = 0, fail_at: int = 0) -> subprocess.Popen[str]:
    """A child in a session of its own."""
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(root), str(cycles), str(fail_at)],
        stdout=subprocess.PIPE,
        stderr=open(root / "stderr", "ab"),
        text=True,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": SHORT_LIVED},
    )


def session_members(session: int) -> list[int]:
    """The processes of a session: Spark's workers are in process groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def kill(child: subprocess.Popen[str]) -> None:
    """SIGKILL to all that the child has started, and to itself; gone when this returns."""
    while members := session_members(child.pid):
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                continue
        child.poll()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def wait_for(child: subprocess.Popen[str], word: str, root: Path) -> float:
    """Wait until the child says a word; the seconds that took."""
    started = time.monotonic()
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == word:
            return time.monotonic() - started
    raise AssertionError(f"no {word!r}: " + (root / "stderr").read_text()[-6000:])


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
        wait_for(child, "fine", root)
        assert child.wait(PATIENCE_S) == 0
    finally:
        kill(child)


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
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
                to_ready = wait_for(child, "ready", tmp_path)
                time.sleep(moments.uniform(0, 8))
            # it lives until now: no check in it has failed
            assert child.poll() is None, (tmp_path / "stderr").read_text()[-6000:]
        finally:
            kill(child)
        known = assert_kept(known, tmp_path)
    end_well(tmp_path)
    assert_kept(known, tmp_path)


@pytest.mark.parametrize(
    "effects",
    [(3, 200), pytest.param(tuple(range(1, 420, 14)), marks=pytest.mark.slow)],
)
def test_killing_itself_at_an_effect_on_the_disk(tmp_path: Path, effects: tuple[int, ...]) -> None:
    known: dict[int, bytes] = {}
    for fail_at in effects:
        child = start(tmp_path, fail_at=fail_at)
        try:
            wait_for(child, "ready", tmp_path)
            # where a worker has died, the driver fails and ends by itself
            assert child.wait(PATIENCE_S) != 0
        finally:
            kill(child)
        known = assert_kept(known, tmp_path)
    end_well(tmp_path)
