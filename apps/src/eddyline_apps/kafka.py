"""Start a private Kafka broker from the jars of Kafka's own distribution, on loopback and free ports."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

from eddyline.errors import StorageError
from eddyline_apps.processes import SHORT_LIVED, free_port, listens

START_SECONDS_MAX = 120.0
CLUSTER = "ZWRkeWxpbmUtdGVzdC1rZg"

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


class Broker:
    """A broker with its data in a folder. It runs within a `with` block, and can be stopped and started in it.

    Args:
        folder: the folder of the data; it must be there, and empty.
        jars: the folder with Kafka's jars.

    Attributes:
        address: host and port, for `bootstrap.servers`.

    Raises:
        StorageError: Java or the jars are missing, or the broker doesn't start.
    """

    def __init__(self, folder: Path, jars: Path) -> None:
        if shutil.which("java") is None or not list(jars.glob("kafka_2.13-*.jar")):
            raise StorageError(
                f"no Kafka in {jars}",
                condition="NO_KAFKA",
                hint="fetch its jars: `make kafka` in the repository puts them into .kafka",
            )
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._class_path = f"{jars}/*"
        self._log = folder / "log"
        self._properties = folder / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(port=self.port, controller=free_port(), data=folder / "data")
        )
        self._process: subprocess.Popen[bytes] | None = None
        arguments = ("format", "-t", CLUSTER, "-c", str(self._properties))
        with open(self._log, "ab") as log:
            command = self._java("kafka.tools.StorageTool", *arguments)
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                raise self._failure("its folder can't be made")

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(kill=True)

    def start(self) -> None:
        """Start the broker; return when it accepts connections."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not reach it: it is stopped last
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(kill=True)
                raise self._failure("it doesn't start")
            time.sleep(0.1)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker: in an orderly way, or with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(START_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _java(self, *arguments: str) -> list[str]:
        return ["java", *SHORT_LIVED.split(), "-Xmx256m", "-cp", self._class_path, *arguments]

    def _failure(self, what: str) -> StorageError:
        last = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return StorageError(
            f"a Kafka broker of our own fails, {what}: {' '.join(last)}",
            condition="BROKER_FAILED",
            hint="mend the cause; the log has the rest",
            log=self._log,
        )
