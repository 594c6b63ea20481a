"""A pipeline's processes killed at random moments under load, and its broker too: nothing is lost."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from broker import Broker
from eddyline.errors import StorageError
from eddyline.relay.queue import Producer
from eddyline_apps.processes import SHORT_LIVED
from eddyline_bench.cluster import Cluster
from pipeline_child import backend_of
from processes import Child

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

KEYS = 7
CHILD = Path(__file__).with_name("pipeline_child.py")


class Source(threading.Thread):
    """Puts numbers while the others are killed; knows which are acknowledged, and which may be in."""

    def __init__(self, producer: Callable[[], Producer]) -> None:
        super().__init__(daemon=True)
        self.producer = producer
        self.acknowledged: set[int] = set()
        self.uncertain: set[int] = set()
        self.enough = threading.Event()

    def run(self) -> None:
        producer, number = self.producer(), 0
        while not self.enough.is_set():
            numbers = list(range(number, number + 5))
            number += 5
            try:
                producer.put([str(n) for n in numbers], [str(n % KEYS) for n in numbers])
                self.acknowledged |= set(numbers)
            except StorageError:
                self.uncertain |= set(numbers)
            time.sleep(0.05)

    def stop(self) -> None:
        self.enough.set()
        self.join()


def killed_and_checked(
    root: Path,
    where: str,
    source: Source,
    kills: int,
    between: Callable[[int], None],
    order: str = "free",
) -> None:
    moments = random.Random(11)
    source.start()
    for number in range(kills):
        command = [sys.executable, str(CHILD), str(root), where, "live"]
        child = Child(command, root / "stderr", PIPELINE_ORDER=order)
        try:
            child.wait_for("ready")
            time.sleep(moments.uniform(1, 5))
            if number % 3 == 2:  # workers only: the engine tells, and goes on
                child.kill_workers()
                time.sleep(moments.uniform(1, 3))
            assert child.process.poll() is None, child.last_words()
        finally:
            child.kill()
        between(number)
    check(root, where, source, order)


def check(root: Path, where: str, source: Source, order: str = "free") -> None:
    """What is there when all has been worked on."""
    source.stop()
    command = [sys.executable, str(CHILD), str(root), where, "last"]
    child = Child(command, root / "stderr", PIPELINE_ORDER=order)
    try:
        received, done, dead = map(int, child.wait_for("account").split())
        seen = dict(tuple(map(int, pair.split(":"))) for pair in child.wait_for("seen").split())
        letters = list(map(int, child.wait_for("dead").split()))
        assert child.process.wait(600) == 0
    finally:
        child.kill()
    put = source.acknowledged
    assert set(seen.values()) == {1}  # exactly once in views
    assert len(letters) == len(set(letters))
    assert not set(seen) & set(letters)
    everything = set(seen) | set(letters)
    assert put <= everything <= put | source.uncertain  # nothing is lost
    assert {n for n in everything if n % 11 == 0} == set(letters)
    assert (received, done, dead) == (len(everything), len(seen), len(letters))
    effects = Counter((root / "effects").read_text().split())
    assert set(map(int, effects)) >= set(seen)  # at least once at bolts
    assert len(everything) > 100
    if order == "key":
        first = list(dict.fromkeys(map(int, (root / "effects").read_text().split())))
        for key in range(KEYS):
            mine = [n for n in first if n % KEYS == key]
            assert mine == sorted(mine)


@pytest.mark.guarantee(
    "pipeline with order `{order}`",
    "exactly once into its stream",
    "the engine, {kills} times by kill -9",
)
@pytest.mark.parametrize(
    ("kills", "order"),
    [
        (1, "key"),
        pytest.param(20, "free", marks=pytest.mark.slow),
        pytest.param(12, "key", marks=pytest.mark.slow),
    ],
)
def test_killed_under_load(tmp_path: Path, kills: int, order: str) -> None:
    source = Source(lambda: Producer(backend_of(tmp_path, "log")))
    killed_and_checked(tmp_path, "log", source, kills, lambda _: None, order)


@pytest.mark.guarantee(
    "pipeline on a queue on Kafka",
    "exactly once into its stream",
    "the engine, {kills} times by kill -9, and the broker each second time",
)
@pytest.mark.kafka
@pytest.mark.parametrize("kills", [pytest.param(n, marks=pytest.mark.slow) for n in (1, 8)])
def test_killed_under_load_with_the_broker(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with Broker(folder) as broker:

        def between(number: int) -> None:
            if number % 2 == 0:
                broker.stop(kill=True)
                time.sleep(1)
                broker.start()

        source = Source(lambda: Producer(backend_of(tmp_path, broker.address)))
        killed_and_checked(tmp_path, broker.address, source, kills, between)


@pytest.mark.guarantee(
    "pipeline on a Spark cluster",
    "exactly once into its stream",
    "workers of the cluster, by kill -9",
)
@pytest.mark.slow
def test_workers_of_a_cluster_killed_under_load(tmp_path: Path) -> None:
    moments = random.Random(5)
    source = Source(lambda: Producer(backend_of(tmp_path, "log")))
    with Cluster(tmp_path, {"JAVA_TOOL_OPTIONS": SHORT_LIVED}) as cluster:
        workers = [cluster.add_worker(), cluster.add_worker()]
        command = [sys.executable, str(CHILD), str(tmp_path), "log", "live", cluster.address]
        child = Child(command, tmp_path / "stderr", SPARK_LOCAL_IP="127.0.0.1")
        try:
            child.wait_for("ready")
            source.start()
            for _ in range(6):
                time.sleep(moments.uniform(2, 6))
                cluster.kill(workers.pop(0))
                workers.append(cluster.add_worker())
                assert child.process.poll() is None, child.last_words()
            time.sleep(5)
        finally:
            child.kill()
    check(tmp_path, "log", source)
