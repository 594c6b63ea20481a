"""The fault experiment: workers of a cluster are killed and suspended during a run."""

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
from eddyline_bench.cluster import SESSION, Cluster
from eddyline_bench.mars.runs import WARM_UP, Commits, open_engine, total_count, write_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
SILENCE_SECONDS = 10
"""The cluster treats a worker without a heartbeat for this time as lost."""

RETRIES_MAX = 5
_DAEMONS = {
    "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.worker.timeout={SILENCE_SECONDS} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "POLARS_MAX_THREADS": "1",
}
_SETTINGS = {
    **SESSION,
    "spark.cores.max": str(WORKERS),
    "spark.executor.heartbeatInterval": "1s",
    "spark.log.level": "OFF",  # it logs every lost worker; errors that matter are raised
    "spark.network.timeout": f"{SILENCE_SECONDS}s",
    "spark.network.timeoutInterval": "1s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.shuffle.partitions": str(WORKERS),
}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """An action on a worker, and its time in seconds since the start of the run."""

    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """One run over the batches on the cluster.

    Attributes:
        times: time of each epoch's commit, in seconds since the start of the run.
        records: total number of records committed by each of these times.
        injected: faults injected during the run.
        retries: number of epochs that failed and were retried.
        counted: sum of all counts at the end.
        verified: whether the view then equalled offline SQL.
    """

    times: list[float]
    records: list[int]
    injected: list[InjectedFault]
    retries: int
    counted: int
    verified: bool

    @property
    def throughput(self) -> float:
        """Records per second after the warm-up batches."""
        records = self.records[-1] - self.records[WARM_UP - 1]
        return records / (self.times[-1] - self.times[WARM_UP - 1])


@dataclass(frozen=True, slots=True)
class Faults:
    """Two runs over the same `rows` records: one without faults, one with workers killed and suspended."""

    rows: int
    batch: int
    undisturbed: ClusterRun
    faults: ClusterRun

    @property
    def equal(self) -> bool:
        """Whether both runs counted every record exactly once."""
        runs = (self.undisturbed, self.faults)
        return all(run.verified and run.counted == self.rows for run in runs)


def run_faults(rows: int, batch: int) -> Faults:
    """Count the same records on a cluster of three workers: without faults, and again with faults.

    Two workers are killed in the middle of an epoch, and each is replaced by a new one. Then a worker
    is suspended until the cluster has committed epochs without it, and resumed.

    Args:
        rows: total number of records; at least 15 batches, so that every fault happens during the run.
        batch: number of records of an epoch.
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

            def no_faults(_: Commits) -> Iterator[str]:
                return iter(())

            _run(spark, Path(name), "warm-up", no_faults)  # the JVMs compile for seconds
            undisturbed = _run(spark, Path(name), "undisturbed", no_faults)
            faults = _run(spark, Path(name), "faults", lambda c: inject_faults(cluster, c, epochs))
        finally:
            spark.stop()
    return Faults(rows, batch, undisturbed, faults)


def inject_faults(cluster: Cluster, commits: Commits, epochs: int) -> Iterator[str]:
    """Inject the faults one after another, each in the middle of an epoch; yield what was done."""
    for worker in (1, 2):
        _sleep_until_middle(commits, epochs * worker // 5)
        cluster.kill(worker)
        yield f"worker {worker} killed"
        cluster.add_worker()
    _sleep_until_middle(commits, epochs * 3 // 5)
    cluster.cut_off(3)
    yield "worker 3 cut off"
    # every epoch has a task on each worker: none commits before the cluster gives this one up
    commits.wait_for(len(commits.times) + 3)
    cluster.let_back(3)
    yield "worker 3 back"


def _sleep_until_middle(commits: Commits, epoch: int) -> None:
    """Sleep until the middle of the epoch after the `epoch`-th commit, going by the mean epoch."""
    if not commits.wait_for(epoch):
        raise EngineError(
            f"the run ended before its epoch {epoch}, where a worker was to be lost",
            condition="RUN_TOO_SHORT",
            hint="give it more records",
        )
    elapsed = commits.times[-1] - commits.times[0]
    time.sleep(elapsed / len(commits.times) / 2)


def _run(
    spark: SparkSession, root: Path, name: str, inject: Callable[[Commits], Iterator[str]]
) -> ClusterRun:
    """Run all batches in a new engine, with faults injected from another thread."""
    engine, view = open_engine(spark, str(root / name), root / "input", WORKERS, WORKERS)
    with engine:
        commits = Commits(engine)
        start = time.perf_counter()
        done: list[InjectedFault] = []

        def inject_all() -> None:
            for what in inject(commits):
                done.append(InjectedFault(time.perf_counter() - start, what))  # noqa: PERF401  # appended as they happen

        with ThreadPoolExecutor(1) as pool:
            injecting = pool.submit(inject_all)
            try:
                retries = _advance_with_retries(engine.advance)
            finally:
                commits.end()
            injecting.result()  # raises the errors of that thread
        return ClusterRun(
            [moment - start for moment in commits.times],
            commits.records,
            done,
            retries,
            total_count(view),
            bool(engine.verify()),
        )


def _advance_with_retries(advance: Callable[[], int]) -> int:
    """Advance an engine until everything is committed; return the number of retries."""
    for retries in range(RETRIES_MAX):
        try:
            advance()
        except EngineError as error:
            print(f"an epoch is called again: {error}", file=sys.stderr)
        else:
            return retries
    advance()
    return RETRIES_MAX
