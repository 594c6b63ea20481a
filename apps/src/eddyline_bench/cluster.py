"""A Spark standalone cluster on loopback, whose workers can be killed or suspended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from eddyline.errors import EngineError
from eddyline_apps.processes import free_port, kill_session, listens, signal_session

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_SECONDS = 120

SESSION = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session on such a cluster, which waits for all of its workers."""


class Cluster:
    """A master and workers with one core each; every daemon leads a process session.

    Args:
        root: folder for the workers' files and the daemons' log.
        settings: environment variables of all daemons and of the executors that they start.

    Raises:
        EngineError: the master can't be started.

    Example:
        >>> with Cluster(Path(folder)) as cluster:  # doctest: +SKIP
        ...     worker = cluster.add_worker()
        ...     cluster.kill(worker)
    """

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        self.log = root / "daemons"
        self._root = root
        self._settings = dict(settings or {})
        self._daemons: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.address = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--port", str(port))
        deadline = time.monotonic() + START_SECONDS
        while not listens(port):
            if self._daemons[0].poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EngineError(
                    f"the master of a cluster does not start: {self.log.read_text()[-2000:]}",
                    condition="NO_CLUSTER",
                    hint="it needs Java, memory, and the address 127.0.0.1",
                )
            time.sleep(0.2)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add_worker(self) -> int:
        """Start one more worker; return its number, counted from 1."""
        number = len(self._daemons)
        folder = self._root / f"worker{number}"
        self._start(
            "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(folder),
            self.address,
        )  # fmt: skip
        return number

    def kill(self, worker: int) -> None:
        """Send SIGKILL to a worker and all that it has started; return when they are gone."""
        kill_session(self._daemons[worker])

    def cut_off(self, worker: int) -> None:
        """Suspend a worker and all that it has started (SIGSTOP), as if its network were lost."""
        signal_session(self._daemons[worker].pid, signal.SIGSTOP)

    def let_back(self, worker: int) -> None:
        """Resume a suspended worker (SIGCONT)."""
        signal_session(self._daemons[worker].pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill all workers and the master."""
        for daemon in reversed(self._daemons):
            kill_session(daemon)

    def _start(self, name: str, *arguments: str) -> None:
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._root / "scratch"),
            **self._settings,
        }
        with open(self.log, "ab") as log:
            daemon = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self._daemons.append(daemon)
