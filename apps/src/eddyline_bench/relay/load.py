"""Shared by the relay benchmarks: numbered records, bolts, and pipelines over a temporary folder."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from eddyline.pipelines.batches import PATIENCE, WINDOW, PipelineSettings, PipelineStream
from eddyline.pipelines.outcomes import PipelineFiles
from eddyline.relay.bolts import Bolt
from eddyline.relay.embedded import LogBackend
from eddyline.relay.flow import FlowControl, Lane
from eddyline.relay.queue import DataQueue
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUT_ROWS = 10_000
UNREAD_ROWS_MAX = 1 << 40
NO_TTL_MS = 1e12

Numbers = npt.NDArray[np.int64]
BoltFunction = Callable[[pa.Table], object]


# --- records: a number of 8 bytes, padded with zeros ---


def numbered_records(first: int, count: int, size: int) -> pa.Table:
    """Create records numbered from `first`, of `size` bytes each."""
    return with_numbers(np.arange(first, first + count), size)


def with_numbers(numbers: Numbers, size: int) -> pa.Table:
    """Create records with these numbers, as a table for a queue."""
    bodies = np.zeros((len(numbers), size), np.uint8)
    bodies[:, :8] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(0, (len(numbers) + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
    return pa.table({"payload": pa.Array.from_buffers(pa.binary(), len(numbers), buffers)})


def numbers_of(payloads: pa.ChunkedArray) -> Numbers:
    """Decode the numbers of records."""
    parts = [np.empty(0, np.int64)]
    for chunk in payloads.chunks:
        _, offsets, data = chunk.buffers()
        starts = np.frombuffer(offsets, np.int32, len(chunk) + 1, chunk.offset * 4)
        body = np.frombuffer(data, np.uint8) if len(chunk) else np.empty(0, np.uint8)
        parts.append(body[starts[:-1, None] + np.arange(8)].view("<i8").ravel())
    return np.concatenate(parts)


# --- bolts ---


def pass_through(records: pa.Table) -> pa.Table:
    """Return the records unchanged; the bolt of a pass-through pipeline."""
    return records.select(["payload"])


@dataclass(frozen=True, slots=True)
class RaiseOnBadRecords:
    """A pass-through bolt that raises if one of its rows is bad; one of `every` records is."""

    every: int

    def bad(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of these records are bad."""
        bad: npt.NDArray[np.bool_] = numbers % self.every == self.every // 1000
        return bad

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the records unchanged, or raise."""
        if self.bad(numbers_of(records["payload"])).any():
            raise ValueError("this record can't be worked on")
        return pass_through(records)


@dataclass(frozen=True, slots=True)
class SleepPerRecord:
    """A pass-through bolt that sleeps for each record, and longer in lane 0 while a file exists.

    Attributes:
        seconds: time per record.
        slowed: path of the file, which holds the factor by which lane 0 is slower.
        whole: whether to emit all columns of the records, not only the payload.
    """

    seconds: float
    slowed: str
    whole: bool = False

    def __call__(self, records: pa.Table) -> pa.Table:
        """Sleep, and return the records unchanged."""
        context, factor = TaskContext.get(), 1.0
        assert context is not None
        if context.partitionId() == 0 and os.path.exists(self.slowed):
            factor = float(Path(self.slowed).read_text())
        time.sleep(self.seconds * factor * records.num_rows)
        return records if self.whole else pass_through(records)


# --- pipelines ---


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """A setting of flow control with fixed windows.

    Attributes:
        window: maximum number of tuples in flight to each lane.
        reassigned: whether a tuple that a lane doesn't begin in time goes to another lane, as with
            adaptive windows.
    """

    window: int
    reassigned: bool

    def __str__(self) -> str:
        return f"fixed {self.window}, {'taken' if self.reassigned else 'kept'}"


class FixedWindows(FlowControl):
    """Flow control whose windows never change."""

    def _step(self, lane: Lane, by: int, now: float) -> None:
        lane.stepped_ms = now


class BenchPipeline:
    """A pipeline from a queue into a stream of one BINARY column, both in a new folder.

    Args:
        spark: the session that runs it.
        folder: the folder of all files.
        functions: the functions of the bolts, all of them vectorised.
        settings: the settings of the pipeline.
        window: initial window of each lane.
        fixed: use these fixed windows; None adapts them.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        functions: Sequence[BoltFunction],
        settings: PipelineSettings,
        *,
        window: int = WINDOW,
        fixed: FixedSetting | None = None,
    ) -> None:
        files = Files(str(folder / "storage"))
        bolts = [
            Bolt.of(function, f"bolt{place}", vectorised=True, retry_delay=0.0)
            for place, function in enumerate(functions)
        ]
        self.queue_folder = str(folder / "queue")
        self.queue = DataQueue(LogBackend(self.queue_folder), unread_rows_max=UNREAD_ROWS_MAX)
        self.outputs, letters = RedoLog(files, "out"), RedoLog(files, "dead")
        pipeline = PipelineFiles(files, "bench", letters, self.outputs)
        columns = StructType().add("payload", BinaryType())
        self.stream = PipelineStream(
            "bench", pipeline, self.queue, bolts, columns, spark, "UTC", settings, own_queue=True
        )
        self.tuple_rows = settings.tuple_rows
        lanes, slow_ms = len(self.stream.waves.flow.lanes), settings.slow_s * 1000
        if fixed is None:
            ttl_ms = PATIENCE * slow_ms
            self.stream.waves.flow = FlowControl(
                lanes, slow_ms=slow_ms, ttl_ms=ttl_ms, window=window
            )
        else:
            ttl_ms = PATIENCE * slow_ms if fixed.reassigned else NO_TTL_MS
            self.stream.waves.flow = FixedWindows(
                lanes, slow_ms=slow_ms, ttl_ms=ttl_ms, window=fixed.window
            )

    def put(self, first: int, count: int, size: int) -> None:
        """Put `count` records of `size` bytes, numbered from `first`."""
        for start in range(first, first + count, PUT_ROWS):
            rows = min(PUT_ROWS, first + count - start)
            self.queue.put(numbered_records(start, rows, size))

    @property
    def settled(self) -> int:
        """Number of records that are done or dead."""
        account = self.queue.account()
        return account.done + account.dead

    @property
    def resent(self) -> float:
        """Number of replayed tuples relative to all tuples."""
        sent = self.settled / self.tuple_rows
        return self.stream.waves.flow.replays / sent if sent else 0.0

    def numbers(self) -> Numbers:
        """Return the numbers of all records in the output stream."""
        segments = self.outputs.segments(self.outputs.start(), self.outputs.end())
        parts = [numbers_of(read_arrow(self.outputs.files, s)["c0"]) for s in segments]
        return np.concatenate([np.empty(0, np.int64), *parts])


@contextmanager
def producing(
    load: BenchPipeline, rate: float, size: int, *, first: int = 0
) -> Iterator[list[int]]:
    """Put `rate` records per second from a thread, however fast they are processed.

    Yields:
        a list whose last entry is the number of records put.
    """
    stopping, put = threading.Event(), [first]

    def run() -> None:
        started = time.perf_counter()
        while not stopping.wait(0.05):
            due = first + int(rate * (time.perf_counter() - started))
            load.put(put[-1], due - put[-1], size)
            put[-1] = due

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield put
    finally:
        stopping.set()
        thread.join()


def each_once(numbers: Numbers, count: int) -> bool:
    """Return whether these are the numbers from 0 to `count - 1`, each of them once."""
    return len(numbers) == count and np.array_equal(np.sort(numbers), np.arange(count))
