"""A real Kafka broker for tests: one node of Kafka's own distribution, on loopback and free ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from processes import SHORT_LIVED

ROOT = Path(__file__).parents[1]
POM = ROOT / "tests/kafka/pom.xml"
JARS = ROOT / ".kafka"
PATIENCE_S = 120

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def class_path() -> str:
    """Return the class path of Kafka's jars; Maven downloads them if they are missing."""
    if not list(JARS.glob("kafka_2.13-*.jar")):
        if shutil.which("mvn") is None and not os.environ.get("CI"):
            pytest.skip("Kafka's jars are missing: `make kafka` fetches them with Maven")
        subprocess.run(["make", "--no-print-directory", "kafka"], cwd=ROOT, check=True)
    return f"{JARS}/*"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Broker:
    """A broker that runs within a `with` block, and can be stopped and started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._class_path = class_path()
        self._properties = folder / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(port=self.port, controller=free_port(), data=folder / "data")
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", "ZWRkeWxpbmUtdGVzdC1rZg"]
        subprocess.run(
            self._java(*format_storage, "-c", str(self._properties)),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker; return when it accepts connections."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            words = (self.folder / "log").read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, words
            assert time.monotonic() < deadline, words
            time.sleep(0.1)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker: in an orderly way, or with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(kill=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _java(self, *arguments: str) -> list[str]:
        return ["java", *SHORT_LIVED.split(), "-Xmx256m", "-cp", self._class_path, *arguments]
