"""How long failed records wait under overload: read again first, or put at the queue's tail."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.pipelines.batches import PipelineSettings
from eddyline.relay.bolts import Emitted
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import Producer
from eddyline_bench.measure import bench_session
from eddyline_bench.relay.load import (
    UNREAD_ROWS_MAX,
    BenchPipeline,
    SleepPerRecord,
    each_once,
    numbers_of,
    producing,
    with_numbers,
)
from eddyline_bench.relay.overload import LANES, LOAD

RECORD_BYTES = 16
REQUEUED_BYTES = 17
"""Size of a record that was put at the tail: the size tells it from a new one."""

FAILING_EVERY = 100
"""Every 100th record fails at its first attempt."""

WINDOW = 10
BACKFLOW, TAIL = "backflow", "tail of the queue"

LOG_ENTRY = np.dtype([("number", "<i8"), ("seconds", "<f8"), ("failed", "?")])


@dataclass(frozen=True, slots=True)
class Flaky:
    """A bolt in which some records fail at their first attempt. It logs these and their next attempts.

    Attributes:
        log_folder: folder of the log, a file per process.
        tail: folder of the queue, if failed records are put there again; if empty, they fail.
    """

    log_folder: str
    tail: str = ""

    def __call__(self, records: pa.Table) -> Emitted:
        """Emit the records that don't fail."""
        numbers = numbers_of(records["payload"])
        requeued = pc.equal(pc.binary_length(records["payload"]), REQUEUED_BYTES)
        first = ~requeued.to_numpy() if self.tail else records["attempts"].to_numpy() == 0
        chosen = numbers % FAILING_EVERY == 0
        bad = chosen & first
        self._log(numbers[bad], True)
        self._log(numbers[chosen & ~first], False)
        kept = pa.array(np.flatnonzero(~bad))
        rows = records.select(["payload"]).take(kept)
        if not self.tail:
            return Emitted(rows, kept, dict.fromkeys(np.flatnonzero(bad).tolist(), "first"))
        if bad.any():
            _producer(self.tail).put(with_numbers(numbers[bad], REQUEUED_BYTES))
        return Emitted(rows, kept)

    def _log(self, numbers: npt.NDArray[np.int64], failed: bool) -> None:
        if len(numbers):
            found = np.zeros(len(numbers), LOG_ENTRY)
            found["number"], found["seconds"], found["failed"] = numbers, time.time(), failed
            with open(f"{self.log_folder}/{os.getpid()}", "ab") as stream:
                stream.write(found.tobytes())


@functools.cache
def _producer(folder: str) -> Producer:
    return Producer(LogBackend(folder), unread_rows_max=UNREAD_ROWS_MAX)


@dataclass(frozen=True, slots=True)
class Replays:
    """Seconds from the first failure of a record to the attempt that succeeded.

    Attributes:
        load_seconds: duration of the overload.
        waits: one value per failed record, by the way of retrying: `BACKFLOW` or `TAIL`.
        equal: whether each record is in the output once.
    """

    load_seconds: float
    waits: Mapping[str, npt.NDArray[np.float64]]
    equal: bool


def run_replays(seconds: float, record_s: float, tuple_rows: int = 1000) -> Replays:
    """Measure both ways of retrying under the same load, until all records are processed.

    Args:
        seconds: duration of the load.
        record_s: processing time of a record in seconds.
        tuple_rows: number of records of a tuple.
    """
    waits, equal = {}, True
    with bench_session(LANES) as spark:
        for name in (BACKFLOW, TAIL):
            with TemporaryDirectory(prefix="eddyline-bench-") as folder:
                log_folder = Path(folder) / "log"
                log_folder.mkdir()
                tail = f"{folder}/queue" if name == TAIL else ""
                load = BenchPipeline(
                    spark,
                    Path(folder),
                    [
                        SleepPerRecord(record_s, f"{folder}/slowed", whole=True),
                        Flaky(str(log_folder), tail),
                    ],
                    PipelineSettings(lanes=LANES, tuple_rows=tuple_rows),
                    window=WINDOW,
                )
                with producing(load, LOAD * LANES / record_s, RECORD_BYTES) as put:
                    load.stream.follow(0.01)
                    time.sleep(seconds)
                while load.queue.backend.unread():  # records put at the tail meanwhile included
                    load.stream.pull()
                waits[name], failures = _waits(log_folder)
                load_equal = each_once(load.numbers(), put[-1])
                equal = equal and load_equal and failures == len(range(0, put[-1], FAILING_EVERY))
                load.stream.stop()
    return Replays(seconds, waits, equal)


def _waits(log_folder: Path) -> tuple[npt.NDArray[np.float64], int]:
    """Read the log; return the seconds that each record waited, and the number of records.

    The number is -1 if some record failed but never succeeded.
    """
    parts = [np.fromfile(path, LOG_ENTRY) for path in log_folder.iterdir()]
    found = np.concatenate([np.empty(0, LOG_ENTRY), *parts])
    failed, done = (np.sort(found[found["failed"] == which]) for which in (True, False))
    if not np.array_equal(failed["number"], done["number"]):
        return np.empty(0), -1
    return done["seconds"] - failed["seconds"], len(done)
