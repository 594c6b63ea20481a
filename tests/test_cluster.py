"""The same engine on a standalone cluster of two workers, one of which is killed in mid-epoch."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from eddyline.state.manifest import committed_epochs
from eddyline.storage.files import Files
from processes import Child

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@dataclass(slots=True)
class Cluster:
    """A master and its workers, all on loopback."""

    root: Path
    port: int = field(default_factory=free_port)
    master: Child = field(init=False)
    workers: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.master = self._start(
            "org.apache.spark.deploy.master.Master", "--port", str(self.port), "--webui-port", "0"
        )
        deadline = time.monotonic() + 120
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, self.master.last_words()
            time.sleep(0.2)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def add_worker(self) -> None:
        folder = self.root / f"worker{len(self.workers)}"
        self.workers.append(
            self._start(
                "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g",
                "--webui-port", "0", "--work-dir", str(folder), self.address,
            )
        )  # fmt: skip

    def stop(self) -> None:
        for child in (*self.workers, self.master):
            child.kill()

    def _start(self, name: str, *arguments: str) -> Child:
        return Child(
            [str(SPARK_CLASS), name, "--host", "127.0.0.1", *arguments],
            self.root / "daemons",
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_DAEMON_MEMORY="256m",
            SPARK_LOCAL_DIRS=str(self.root / "scratch"),
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.add_worker()
        cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()


EPOCHS = 3  # of a cycle: its input, what the watermark makes final, the view that is replaced


def effects_behind(control: str, folder: Path, count: int) -> int:
    """Wait until Spark's workers have made so many effects on the disk; the last epoch then."""
    deadline = time.monotonic() + 300
    while len(Path(control).read_text().splitlines()) <= count:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return last_epoch(folder)


def last_epoch(folder: Path) -> int:
    return max(committed_epochs(Files(str(folder / "storage"))))


@pytest.mark.parametrize(
    "moments",
    [(2, 30), pytest.param(tuple(range(0, 80, 8)), marks=pytest.mark.slow)],
    ids=["two", "ten"],
)
def test_a_worker_is_killed_in_mid_epoch(
    cluster: Cluster, tmp_path: Path, moments: tuple[int, ...]
) -> None:
    command = [sys.executable, str(HERE / "cluster_child.py"), str(tmp_path), cluster.address]
    driver = Child(command, tmp_path / "driver", SPARK_LOCAL_IP="127.0.0.1")
    try:
        driver.wait_for("ready")
        driver.say("a cycle in peace")
        driver.wait_for("running")
        assert driver.wait_for("equal") == "0"
        for number, effects in enumerate(moments):
            before = last_epoch(tmp_path)
            driver.say("a cycle")
            control = driver.wait_for("running")
            epoch = effects_behind(control, tmp_path, effects)
            cluster.workers[number].kill()
            assert before <= epoch < before + EPOCHS
            again = driver.wait_for("equal")
            print(f"killed behind {effects} effects of epoch {epoch + 1}: called again {again}")
            assert last_epoch(tmp_path) == before + EPOCHS
            cluster.add_worker()
        driver.say_no_more()
        driver.wait_for("fine")
        os.stat(tmp_path / "storage" / "catalog.db")
    finally:
        driver.kill()
