"""The same engine on a standalone cluster of two workers, one of which is killed in mid-epoch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eddyline.state.manifest import committed_epochs
from eddyline.storage.files import Files
from eddyline_apps.processes import SHORT_LIVED
from eddyline_bench.cluster import Cluster
from processes import Child
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, {"JAVA_TOOL_OPTIONS": SHORT_LIVED}) as cluster:
        cluster.add_worker()
        cluster.add_worker()
        yield cluster


EPOCHS = 3  # of a cycle: its input, what the watermark makes final, the view that is replaced


def effects_behind(control: str, folder: Path, count: int) -> int:
    """Wait until Spark's workers have made so many effects on the disk; the last epoch then."""
    until(lambda: len(Path(control).read_text().splitlines()) > count, pause_s=0.002)
    return last_epoch(folder)


def last_epoch(folder: Path) -> int:
    return max(committed_epochs(Files(str(folder / "storage"))))


@pytest.mark.guarantee(
    "views on a Spark cluster", "exactly once", "a worker of the cluster in mid-epoch, by kill -9"
)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)], ids=["one", "ten"])
def test_a_worker_is_killed_in_mid_epoch(cluster: Cluster, tmp_path: Path, kills: int) -> None:
    command = [sys.executable, str(HERE / "cluster_child.py"), str(tmp_path), cluster.address]
    driver = Child(command, tmp_path / "driver", SPARK_LOCAL_IP="127.0.0.1")
    try:
        driver.wait_for("ready")
        driver.say("a cycle in peace")
        control = driver.wait_for("running")
        assert driver.wait_for("equal") == "0"
        in_all = len(Path(control).read_text().splitlines())
        assert in_all > kills
        for number in range(kills):
            # early and late in a cycle, but not in its last fifth: the next one may have fewer
            effects = int(in_all * 0.8 * (number + 0.5) / kills)
            begun = False
            while not begun:
                before = last_epoch(tmp_path)
                driver.say("a cycle")
                control = driver.wait_for("running")
                epoch = effects_behind(control, tmp_path, effects)
                assert epoch >= before
                # else this process stood still until the cycle had ended
                if begun := epoch < before + EPOCHS:
                    cluster.kill(number + 1)
                again = driver.wait_for("equal")
            print(f"killed behind {effects} effects of epoch {epoch + 1}: called again {again}")
            assert last_epoch(tmp_path) == before + EPOCHS
            cluster.add_worker()
        driver.say_no_more()
        driver.wait_for("fine")
        os.stat(tmp_path / "storage" / "catalog.db")
    finally:
        driver.kill()
