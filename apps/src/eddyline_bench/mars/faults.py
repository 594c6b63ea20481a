"""The fault experiment of Mars: workers of a cluster are killed and cut off in mid-run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from eddyline.errors import EngineError
from eddyline_bench.cluster import Cluster
from eddyline_bench.mars.runs import WARM_UP, Commits, opened, total, write_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
SILENCE_SECONDS = 10
"""A worker that is silent for so long is taken for lost."""

AGAIN_MAX = 5
_DAEMONS = {
    "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.worker.timeout={SILENCE_SECONDS} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "POLARS_MAX_THREADS": "1",
}
_SETTINGS = {
    "spark.cores.max": str(WORKERS),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.heartbeatInterval": "1s",
    "spark.executor.memory": "512m",
    "spark.log.level": "OFF",  # it tells of each lost worker; what matters is raised
    "spark.network.timeout": f"{SILENCE_SECONDS}s",
    "spark.network.timeoutInterval": "1s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(WORKERS),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class Mishap:
    """What was done to a worker, and when: seconds since the run began."""

    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """One run over the same batches on the cluster.

    Attributes:
        times: seconds since the run began, by epoch.
        records: how many records were committed by then.
        mishaps: what was done to workers meanwhile.
        again: how often an epoch failed and was called again.
        counted: sum of all counts at the end.
        verified: whether the view then was equal to offline SQL.
    """

    times: list[float]
    records: list[int]
    mishaps: list[Mishap]
    again: int
    counted: int
    verified: bool

    @property
    def throughput(self) -> float:
        """Records a second behind the warm-up batches."""
        records = self.records[-1] - self.records[WARM_UP - 1]
        return records / (self.times[-1] - self.times[WARM_UP - 1])


@dataclass(frozen=True, slots=True)
class Faults:
    """The same `rows` records in peace, and with workers killed and cut off."""

    rows: int
    batch: int
    peace: ClusterRun
    faults: ClusterRun

    @property
    def equal(self) -> bool:
        """Whether nothing was lost and nothing counted twice."""
        runs = (self.peace, self.faults)
        return all(run.verified and run.counted == self.rows for run in runs)


def on_cluster(rows: int, batch: int) -> Faults:
    """Count the same records on a cluster of three workers: in peace, and again with mishaps.

    Two workers are killed in the middle of an epoch, and a new one starts for each. Then one is
    stopped until the cluster has given it up and gone on without it; and comes back.

    Args:
        rows: records in all; 15 batches at least, so that all of it happens in mid-run.
        batch: records of an epoch.
    """
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="eddyline-bench-", ignore_cleanup_errors=True) as name,
        Cluster(Path(name), _DAEMONS) as cluster,
    ):
        epochs = -(-rows // batch)
        write_batches(Path(name) / "input", rows, epochs * WORKERS)
        for _ in range(WORKERS):
            cluster.add_worker()
        builder = SparkSession.builder.appName("eddyline bench").master(cluster.address)
        for key, value in _SETTINGS.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:

            def nothing(_: Commits) -> Iterator[str]:
                return iter(())

            _run(spark, Path(name), "warm-up", nothing)  # JVMs compile what they run for seconds
            peace = _run(spark, Path(name), "peace", nothing)
            faults = _run(spark, Path(name), "faults", lambda c: mishaps(cluster, c, epochs))
        finally:
            spark.stop()
    return Faults(rows, batch, peace, faults)


def mishaps(cluster: Cluster, commits: Commits, epochs: int) -> Iterator[str]:
    """Do them one after another, each in the middle of an epoch; what was done."""
    for worker in (1, 2):
        _middle(commits, epochs * worker // 5)
        cluster.kill(worker)
        yield f"worker {worker} killed"
        cluster.add_worker()
    _middle(commits, epochs * 3 // 5)
    cluster.cut_off(3)
    yield "worker 3 cut off"
    # an epoch has tasks for all workers: it can't end before this one is given up
    commits.wait_for(len(commits.times) + 3)
    cluster.let_back(3)
    yield "worker 3 back"


def _middle(commits: Commits, epoch: int) -> None:
    if not commits.wait_for(epoch):
        raise EngineError(
            f"the run ended before its epoch {epoch}, where a worker was to be lost",
            condition="RUN_TOO_SHORT",
            hint="give it more records",
        )
    passed = commits.times[-1] - commits.times[0]
    time.sleep(passed / len(commits.times) / 2)


def _run(
    spark: SparkSession, root: Path, name: str, doings: Callable[[Commits], Iterator[str]]
) -> ClusterRun:
    engine, view = opened(spark, str(root / name), root / "input", WORKERS, WORKERS)
    with engine:
        commits = Commits(engine)
        start = time.perf_counter()
        done: list[Mishap] = []

        def act() -> None:
            for what in doings(commits):
                done.append(Mishap(time.perf_counter() - start, what))  # noqa: PERF401  # as it comes

        with ThreadPoolExecutor(1) as pool:
            actor = pool.submit(act)
            try:
                again = _to_the_end(engine.advance)
            finally:
                commits.end()
            actor.result()  # raises what went wrong there
        return ClusterRun(
            [moment - start for moment in commits.times],
            commits.records,
            done,
            again,
            total(view),
            bool(engine.verify()),
        )


def _to_the_end(advance: Callable[[], int]) -> int:
    """Call an engine until all is committed; how often that was needed beyond the first time."""
    for again in range(AGAIN_MAX):
        try:
            advance()
        except EngineError as error:
            print(f"an epoch is called again: {error}", file=sys.stderr)
        else:
            return again
    advance()
    return AGAIN_MAX
