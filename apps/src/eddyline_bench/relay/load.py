"""What the parts of the relay benchmark share: records with numbers, pipelines over a temporary folder."""

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

from eddyline.pipelines.batches import PATIENCE, WINDOW, PipelineStream, Settings
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
FOR_EVER_MS = 1e12

Numbers = npt.NDArray[np.int64]
Called = Callable[[pa.Table], object]


# --- records: a number of 8 bytes, and 0 up to their size ---


def numbered_records(first: int, count: int, size: int) -> pa.Table:
    """Records with the numbers from `first` on."""
    return with_numbers(np.arange(first, first + count), size)


def with_numbers(numbers: Numbers, size: int) -> pa.Table:
    """Records with these numbers, as a table for a queue."""
    bodies = np.zeros((len(numbers), size), np.uint8)
    bodies[:, :8] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(0, (len(numbers) + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
    return pa.table({"payload": pa.Array.from_buffers(pa.binary(), len(numbers), buffers)})


def numbers_of(payloads: pa.ChunkedArray) -> Numbers:
    """The numbers of records."""
    parts = [np.empty(0, np.int64)]
    for chunk in payloads.chunks:
        _, offsets, data = chunk.buffers()
        starts = np.frombuffer(offsets, np.int32, len(chunk) + 1, chunk.offset * 4)
        body = np.frombuffer(data, np.uint8) if len(chunk) else np.empty(0, np.uint8)
        parts.append(body[starts[:-1, None] + np.arange(8)].view("<i8").ravel())
    return np.concatenate(parts)


# --- bolts ---


def passed(records: pa.Table) -> pa.Table:
    """What comes in goes on."""
    return records.select(["payload"])


@dataclass(frozen=True, slots=True)
class Passed:
    """A bolt that raises if a bad record is among its rows: one of `every`, early among them."""

    every: int

    def bad(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these records it can't work on."""
        bad: npt.NDArray[np.bool_] = numbers % self.every == self.every // 1000
        return bad

    def __call__(self, records: pa.Table) -> pa.Table:
        """The rows as they are."""
        if self.bad(numbers_of(records["payload"])).any():
            raise ValueError("this record can't be worked on")
        return passed(records)


@dataclass(frozen=True, slots=True)
class Waited:
    """A bolt that sleeps for each record: on some lane longer, as long as a file says so.

    Attributes:
        seconds: for one record.
        slowed: path of the file with the factor for lane 0; as usual if it isn't there.
        whole: the rows go on with all that is known of their records.
    """

    seconds: float
    slowed: str
    whole: bool = False

    def __call__(self, records: pa.Table) -> pa.Table:
        """The rows as they are, after a while."""
        context, factor = TaskContext.get(), 1.0
        assert context is not None
        if context.partitionId() == 0 and os.path.exists(self.slowed):
            factor = float(Path(self.slowed).read_text())
        time.sleep(self.seconds * factor * records.num_rows)
        return records if self.whole else passed(records)


# --- pipelines ---


@dataclass(frozen=True, slots=True)
class Fixed:
    """A static setting.

    Attributes:
        window: tuples under way to each lane.
        taken: whether a tuple that isn't begun in time goes to another lane, as with windows that
            adapt.
    """

    window: int
    taken: bool

    def __str__(self) -> str:
        return f"fixed {self.window}, {'taken' if self.taken else 'kept'}"


class FixedWindows(FlowControl):
    """Flow control whose windows stay as they are."""

    def _step(self, lane: Lane, by: int, now: float) -> None:
        lane.stepped_ms = now


class BenchPipeline:
    """A pipeline from a queue into a stream of one BINARY column, both in a new folder.

    Args:
        spark: where it runs.
        folder: for all files.
        functions: the vectorised bolts.
        settings: of the pipeline.
        window: of each lane at the start.
        fixed: the windows stay as they are; see `Fixed`.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        functions: Sequence[Called],
        settings: Settings,
        *,
        window: int = WINDOW,
        fixed: Fixed | None = None,
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
            ttl_ms = PATIENCE * slow_ms if fixed.taken else FOR_EVER_MS
            self.stream.waves.flow = FixedWindows(
                lanes, slow_ms=slow_ms, ttl_ms=ttl_ms, window=fixed.window
            )

    def put(self, first: int, count: int, size: int) -> None:
        """Put records with the numbers from `first` on."""
        for start in range(first, first + count, PUT_ROWS):
            rows = min(PUT_ROWS, first + count - start)
            self.queue.put(numbered_records(start, rows, size))

    @property
    def ended(self) -> int:
        """Records that are done or dead."""
        account = self.queue.account()
        return account.done + account.dead

    @property
    def resent(self) -> float:
        """Share of the tuples that were sent to a second lane."""
        sent = self.ended / self.tuple_rows
        return self.stream.waves.flow.replays / sent if sent else 0.0

    def numbers(self) -> Numbers:
        """The numbers of all records that came out."""
        segments = self.outputs.segments(self.outputs.start(), self.outputs.end())
        parts = [numbers_of(read_arrow(self.outputs.files, s)["c0"]) for s in segments]
        return np.concatenate([np.empty(0, np.int64), *parts])


@contextmanager
def producing(
    load: BenchPipeline, rate: float, size: int, *, first: int = 0
) -> Iterator[list[int]]:
    """A thread that puts `rate` records a second, at the same times whatever becomes of them.

    Gives a list whose last entry is how many were put.
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
    """Whether these are the numbers from 0 up to but not including `count`, each of them once."""
    return len(numbers) == count and np.array_equal(np.sort(numbers), np.arange(count))
