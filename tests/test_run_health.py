"""Whether the engine's background run is in order, as other processes learn it from the storage."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

import eddyline as el
from console_cases import ask, document
from eddyline import cli
from eddyline.answers.run_health import BYTES, NAME, StoredHealth, stored_health
from eddyline.options import Options
from eddyline.storage.fence import Fence
from eddyline.storage.files import Files, damaged
from eddyline.storage.lock import StorageLock
from waiting import until

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from eddyline.console.server import Console

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

STOPPED, RUNNING = {"state": "stopped"}, {"state": "running"}
RETRYING = {"state": "retrying", "error": "the disk is full", "failures": 2}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "storage")


@pytest.fixture
def lock(files: Files) -> Iterator[StorageLock]:
    lock = StorageLock(files)
    yield lock
    lock.release()


def test_the_stored_health_is_the_last_one_while_an_engine_holds_the_storage(files, lock):
    stored = StoredHealth(files)
    assert stored_health(files) == STOPPED
    for health in (RUNNING, RETRYING, RUNNING, {"state": "ended", "error": "damaged"}):
        stored.store(health)
        assert stored_health(files) == health
        assert Path(files.path(NAME)).stat().st_size == BYTES
    lock.release()
    assert stored_health(files) == STOPPED  # that engine may have been killed


def test_the_health_of_an_engine_before_is_forgotten(files, lock):
    StoredHealth(files).store(RETRYING)
    stored = StoredHealth(files)
    stored.forget()
    assert stored_health(files) == STOPPED
    stored.forget()  # it isn't there
    stored.store(RETRYING)
    assert stored_health(files) == RETRYING


def test_an_engine_whose_storage_another_one_has_opened_writes_nothing(files, lock):
    older = StoredHealth(files)
    files.fence = Fence.raised(files.root)
    newer = Files(files.root)
    newer.fence = Fence.raised(files.root)  # on a machine that the lock doesn't reach
    StoredHealth(newer).store(RUNNING)
    older.store(RETRYING)
    older.forget()
    assert stored_health(files) == RUNNING


@pytest.mark.parametrize("error", ["x" * 100_000, "\0" * 9_999, "\U0001f30a" * 9_999, "\udc80\n"])
def test_any_error_fits_into_the_file(files, lock, error):
    StoredHealth(files).store({**RETRYING, "error": error})
    assert Path(files.path(NAME)).stat().st_size == BYTES
    found = stored_health(files)
    assert found["failures"] == 2
    assert found["error"][:1] in (error[0], "?")


def test_a_file_that_is_half_written_says_nothing(files, lock):
    StoredHealth(files).store(RETRYING)
    content = Path(files.path(NAME)).read_bytes()
    Path(files.path(NAME)).write_bytes(content.replace(b"full", b"fuII"))
    assert stored_health(files) == STOPPED


def test_only_changes_are_written_and_a_failed_write_is_made_up_for(files, lock):
    stored = StoredHealth(files)
    stored.store(RUNNING)
    files.remove(NAME)
    stored.store(dict(RUNNING))
    assert not files.exists(NAME)
    Path(files.path(NAME)).mkdir()  # it can't be written
    stored.store(RETRYING)
    Path(files.path(NAME)).rmdir()
    stored.store(RETRYING)
    assert stored_health(files) == RETRYING


FULL_DISK = """
import os, sys
from eddyline.answers.run_health import StoredHealth, stored_health
from eddyline.errors import StorageError
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock

files = Files(sys.argv[1])
lock = StorageLock(files)
stored = StoredHealth(files)
stored.store({"state": "running"})
try:
    with open(files.path("rest"), "wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
except OSError as error:
    print(error.strerror)
try:
    files.write_json("other.json", {"state": "retrying"})
except StorageError as error:
    stored.store({"state": "retrying", "error": str(error), "failures": 1})
print(stored_health(files)["state"])
"""


def test_a_full_disk_is_told_too(tmp_path):
    mount = f'mount -t tmpfs -o size=64k none {tmp_path} && exec "$@"'
    own = ["unshare", "-rm", "sh", "-c", mount, "sh"]  # a file system of its own
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("file systems can't be mounted here")
    command = [*own, sys.executable, "-c", FULL_DISK, str(tmp_path / "storage")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["No space left on device", "retrying"]


class Disk(Files):
    """Files that may have a fault, with which no epoch can be committed."""

    fault: Exception | None = None

    def step(self, what: str, name: str) -> None:
        if self.fault is not None and what == "write" and name.startswith("manifests/"):
            raise self.fault


@pytest.mark.spark
def test_everybody_learns_that_the_run_fails_recovers_and_ends(spark, tmp_path, capsys):
    storage = tmp_path / "storage"

    def status() -> dict:
        assert cli.main(["status", "--storage", str(storage), "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    def ready(url: str) -> tuple[int, list[str]]:
        answer = ask(url, "/ready")
        return answer[0], json.loads(answer[2])["reasons"]

    def shown(url: str) -> bool:
        return "The background run" in ask(url, "/")[2].decode()

    def everywhere(state: str) -> list[str]:
        """Wait until all tell of this state; return the reasons of /ready."""
        until(lambda: all(document(url, "/api/status")["run"]["state"] == state for url in urls))
        health = engine.status()["run"]
        assert health["state"] == status()["run"]["state"] == state
        assert cli.main(["status", "--storage", str(storage)]) == 0
        told = capsys.readouterr().out
        assert ("background run: running\n" in told) == (state == "running")
        given = []
        for url in urls:
            code, reasons = ready(url)
            assert code == (503 if reasons else 200)
            given += reasons
            assert ask(url, "/health")[0] == 204
            metrics = ask(url, "/metrics")[2].decode()
            assert f'eddyline_run_state{{state="{state}"}} 1.0' in metrics
            assert ("eddyline_run_failures 0.0" in metrics) == (state != "retrying")
        until(lambda: {shown(url) for url in urls} == {bool(given)})  # pages are kept for a second
        return given

    disk = Disk(storage)
    with el.Engine(disk, spark=spark) as engine:
        table = engine.table("t", "a INT")
        engine.view("v", "SELECT sum(a) AS s FROM t")
        with Console(Files(storage), Options()) as other:  # it has the storage's files alone
            urls = [engine.serve(), other.url]
            assert everywhere("stopped") == []
            engine.start(0.02)
            assert everywhere("running") == []

            disk.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            table.insert([(1,)])
            until(lambda: engine.status()["run"].get("failures", 0) > 1)
            for reason in everywhere("retrying"):
                assert reason.startswith("the background run fails, ")
                assert "No space left on device" in reason
            disk.fault = None
            until(lambda: engine.status()["run"] == RUNNING)
            assert everywhere("running") == []

            disk.fault = damaged("state/v1/rows", "it doesn't match its checksum")
            table.insert([(2,)])
            until(lambda: engine.status()["run"]["state"] == "ended")
            reasons = everywhere("ended")
            assert len(reasons) == 2
            assert all("has ended: [DAMAGED_FILE]" in reason for reason in reasons)
            engine.stop()
            until(lambda: ready(other.url) == (503, ["no engine runs on this storage"]))
            assert status()["run"] == STOPPED
            assert not (storage / NAME).exists()
