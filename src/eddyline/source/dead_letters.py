"""Dead letters: records that have failed for good, as a stream of operations with a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.changes import APPEND, DELETE
from eddyline.source.redo_log import SEQUENCE_SHIFT, RedoLog, as_operations
from eddyline.source.segments import Segment, read_arrow

LETTERS = (
    "position BIGINT, payload BINARY, key BINARY, bolt STRING, error STRING, attempts INT, "
    "received TIMESTAMP, died TIMESTAMP"
)
KEY = ("position",)
DECODE = "decode"  # told as the bolt where a stream's records can't be decoded


def new_letters(
    position: Any, payload: Any, key: Any, bolt: Any, error: Any, attempts: Any, received: Any
) -> pa.Table:
    """Letters that die now, of Arrow columns; `received` is None for records that came in now."""
    now = np.full(len(position), np.datetime64(time.time_ns() // 1000, "us"))
    died = pa.array(now).cast(pa.timestamp("us", "UTC"))
    given = {"position": position, "payload": payload, "key": key, "bolt": bolt, "error": error}
    times = {"received": died if received is None else received, "died": died}
    return pa.table({**given, "attempts": attempts, **times})


@dataclass(slots=True)
class Rejects:
    """The dead letters of a stream that Spark reads: what can't be decoded, or has no known operation.

    A letter's position is the number of its micro-batch and its place among the batch's letters, so
    that a batch which Spark repeats writes the same letters again, and they replace the first.

    Attributes:
        log: redo log of the letters.
    """

    log: RedoLog
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, batch: int, found: Sequence[Segment]) -> None:
        """Make letters of the rows of files (`payload`, `error`) that the tasks of a batch have left."""
        starts = np.cumsum([batch << SEQUENCE_SHIFT, *(segment.rows for segment in found)])
        files = self.log.files
        with self._lock:
            self.log.append_tables(
                as_operations(_rejected(read_arrow(files, segment), start), APPEND)
                for segment, start in zip(found, starts.tolist(), strict=False)
            )
        for segment in found:
            files.remove(segment.file)

    def discard(self, letters: pa.Table) -> None:
        """Drop letters for good."""
        if letters.num_rows:
            with self._lock:
                self.log.append_tables([as_operations(letters, DELETE)])


def _rejected(rows: pa.Table, start: int) -> pa.Table:
    count = rows.num_rows
    return new_letters(
        position=pa.array(np.arange(start, start + count)),
        payload=rows["payload"].cast(pa.binary()),
        key=pa.nulls(count, pa.binary()),
        bolt=pa.array([DECODE] * count, pa.string()),
        error=rows["error"],
        attempts=pa.array(np.ones(count, np.int32)),
        received=None,
    )
