"""How long a record that has failed waits under overload: read first, or put at the queue's tail."""

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

from eddyline.pipelines.batches import Settings
from eddyline.relay.bolts import Emitted
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import Producer
from eddyline_bench.measure import bench_session
from eddyline_bench.relay.load import (
    UNREAD_ROWS_MAX,
    BenchPipeline,
    Waited,
    each_once,
    numbers_of,
    producing,
    with_numbers,
)
from eddyline_bench.relay.overload import LANES, LOADED

RECORD_BYTES = 16
AGAIN_BYTES = 17
"""Of a record that was put at the tail: so it is known again."""

EVERY = 100
"""One of so many records fails when it is tried first."""

WINDOW = 10
BACKFLOW, TAIL = "backflow", "tail of the queue"

NOTE = np.dtype([("number", "<i8"), ("seconds", "<f8"), ("failed", "?")])


@dataclass(frozen=True, slots=True)
class Flaky:
    """A bolt of which some records fail when they are tried first; it notes when.

    Attributes:
        notes: folder for a file of each process.
        tail: folder of the queue, if records are put there again; empty: they fail.
    """

    notes: str
    tail: str = ""

    def __call__(self, records: pa.Table) -> Emitted:
        """The rows that didn't fail."""
        numbers = numbers_of(records["payload"])
        again = pc.equal(pc.binary_length(records["payload"]), AGAIN_BYTES)
        first = ~again.to_numpy() if self.tail else records["attempts"].to_numpy() == 0
        chosen = numbers % EVERY == 0
        bad = chosen & first
        self._note(numbers[bad], True)
        self._note(numbers[chosen & ~first], False)
        kept = pa.array(np.flatnonzero(~bad))
        rows = records.select(["payload"]).take(kept)
        if not self.tail:
            return Emitted(rows, kept, dict.fromkeys(np.flatnonzero(bad).tolist(), "first"))
        if bad.any():
            _producer(self.tail).put(with_numbers(numbers[bad], AGAIN_BYTES))
        return Emitted(rows, kept)

    def _note(self, numbers: npt.NDArray[np.int64], failed: bool) -> None:
        if len(numbers):
            found = np.zeros(len(numbers), NOTE)
            found["number"], found["seconds"], found["failed"] = numbers, time.time(), failed
            with open(f"{self.notes}/{os.getpid()}", "ab") as stream:
                stream.write(found.tobytes())


@functools.cache
def _producer(folder: str) -> Producer:
    return Producer(LogBackend(folder), unread_rows_max=UNREAD_ROWS_MAX)


@dataclass(frozen=True, slots=True)
class Replays:
    """Seconds from the first failure of a record to the attempt in which it was done.

    Attributes:
        load_seconds: for which twice the records came in that could be worked on.
        waits: one value for each record that failed, by what was done with them.
        equal: whether each record came out once.
    """

    load_seconds: float
    waits: Mapping[str, npt.NDArray[np.float64]]
    equal: bool


def own_replays(seconds: float, record_s: float, tuple_rows: int = 1000) -> Replays:
    """The same load twice, and all of it worked on; to be run in a process of its own.

    Args:
        seconds: for which records come in.
        record_s: seconds that a record takes.
        tuple_rows: records of a tuple.
    """
    waits, equal = {}, True
    with bench_session(LANES) as spark:
        for name in (BACKFLOW, TAIL):
            with TemporaryDirectory(prefix="eddyline-bench-") as folder:
                notes = Path(folder) / "notes"
                notes.mkdir()
                tail = f"{folder}/queue" if name == TAIL else ""
                load = BenchPipeline(
                    spark,
                    Path(folder),
                    [Waited(record_s, f"{folder}/slowed", whole=True), Flaky(str(notes), tail)],
                    Settings(lanes=LANES, tuple_rows=tuple_rows),
                    window=WINDOW,
                )
                with producing(load, LOADED * LANES / record_s, RECORD_BYTES) as put:
                    load.stream.follow(0.01)
                    time.sleep(seconds)
                while load.queue.backend.unread():  # what is put while others are worked on too
                    load.stream.pull()
                waits[name], told = _waits(notes)
                right = each_once(load.numbers(), put[-1])
                equal = equal and right and told == len(range(0, put[-1], EVERY))
                load.stream.stop()
    return Replays(seconds, waits, equal)


def _waits(notes: Path) -> tuple[npt.NDArray[np.float64], int]:
    """The seconds that records have waited, and how many there were."""
    parts = [np.fromfile(path, NOTE) for path in notes.iterdir()]
    found = np.concatenate([np.empty(0, NOTE), *parts])
    failed, done = (np.sort(found[found["failed"] == which]) for which in (True, False))
    if not np.array_equal(failed["number"], done["number"]):
        return np.empty(0), -1
    return done["seconds"] - failed["seconds"], len(done)
