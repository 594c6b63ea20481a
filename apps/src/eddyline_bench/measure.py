"""Shared by all benchmarks: time and CPU of the process tree, the Spark session, text tables."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pyspark.sql import SparkSession

from eddyline.errors import EngineError
from eddyline.spark.jvm import compiler_options, java_settings, start_jvm
from eddyline.spark.processes import process_tree, tree_cpu_seconds
from eddyline.spark.session import CODE_CACHE, CODE_CACHE_ENTRIES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run: wall-clock seconds, and CPU seconds of the whole process tree."""

    seconds: float
    cpu_seconds: float


class Meter:
    """Measures the body of a `with` block; `cost` is set when the block ends.

    Example:
        >>> with Meter() as meter:
        ...     total = sum(range(1000))
        >>> meter.cost.seconds >= 0
        True
    """

    cost: Cost

    def __enter__(self) -> Meter:
        self._cpu, self._clock = tree_cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._clock
        self.cost = Cost(seconds, tree_cpu_seconds() - self._cpu)


def process_cpu_seconds(process: int) -> float:
    """Return CPU seconds of one process, without its children; 0 without /proc, or if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of a process, in bytes.

    Attributes:
        name: of its program.
        private: what it has for itself.
        mapped: files, of which the system takes back what it needs.
    """

    name: str = ""
    private: int = 0
    mapped: int = 0

    @staticmethod
    def of(process: int) -> ProcessMemory:
        """Read the memory of a process; all is 0 without /proc, or if it has ended."""
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            return ProcessMemory()
        fields = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
        private, mapped = (int(fields.get(name, ["0"])[0]) << 10 for name in ("RssAnon", "RssFile"))
        return ProcessMemory(fields["Name"][0], private, mapped)


def heap_bytes(spark: SparkSession) -> int:
    """Return the bytes of the JVM's heap that are in use after a garbage collection."""
    jvm: Any = spark._jvm  # noqa: SLF001
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Provide a name to write a file under, which readers skip; then give it its own, so that it appears as a whole."""
    hidden = path.with_name(f".{path.name}")
    yield hidden
    hidden.rename(path)


@dataclass
class PeakMemory:
    """The most memory that processes have had for themselves, in a `with` block; read ten times a second.

    Mapped files don't count: the system takes their memory back when others need it. Without /proc all is 0.

    Attributes:
        python: bytes of this process.
        jvm: bytes of the JVM.
        worker: bytes of the largest of the other descendants, which are Python workers.
    """

    python: int = 0
    jvm: int = 0
    worker: int = 0

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._read()
            if self._ended.wait(0.1):
                return

    def _read(self) -> None:
        for process in process_tree():
            memory = ProcessMemory.of(process)
            if process == os.getpid():
                self.python = max(self.python, memory.private)
            elif memory.name == "java":
                self.jvm = max(self.jvm, memory.private)
            else:
                self.worker = max(self.worker, memory.private)


@contextlib.contextmanager
def bench_session(cores: int) -> Iterator[SparkSession]:
    """Provide a local session with `cores` cores and as many shuffle partitions.

    A session that is already active is used unchanged and left running.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    # Workers must use the same Python interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # as for sessions that an engine starts
    start_jvm({"spark.driver.memory": "3g"} | java_settings(compiler_options()))
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("eddyline bench")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", True)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config(CODE_CACHE, CODE_CACHE_ENTRIES)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Set a configuration of the session within the `with` block."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a new process, with a JVM of its own, and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def require(package: str, wanted_by: str) -> None:
    """Raise EngineError if an optional package is missing.

    Args:
        wanted_by: the beginning of the message: what needs the package.
    """
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise EngineError(
            f"{wanted_by} the package {package}, which is not installed",
            condition="MISSING_PACKAGE",
            hint="pip install 'eddyline-apps[bench]'",
        ) from None


def median(values: Iterable[float]) -> float:
    """Return the median; NaN of no values."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def same_rows(left: pl.DataFrame, right: pl.DataFrame) -> bool:
    """Return whether both have the same rows as multisets, columns matched by name."""
    if sorted(left.columns) != sorted(right.columns) or left.height != right.height:
        return False
    by = left.columns
    return left.sort(by).equals(right.select(by).cast(left.schema).sort(by))


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a text table: the first column left-aligned, the others right-aligned."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def verdict(equal: bool) -> str:
    """Return the last line of a result: whether the compared results are equal."""
    return "  results are equal" if equal else "  RESULTS DIFFER"
