"""Dead letters: records that have failed for good, as a stream of operations with a key."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from eddyline.changes import APPEND, DELETE, OPERATION
from eddyline.source.log import SEQUENCE_SHIFT, RedoLog, write_rows
from eddyline.source.segments import Segment, read_arrow
from eddyline.storage.files import Files

LETTERS = (
    "position BIGINT, payload BINARY, key BINARY, bolt STRING, error STRING, attempts INT, "
    "received TIMESTAMP, died TIMESTAMP"
)
KEY = ("position",)
DECODE = "decode"  # told as the bolt where a stream's records can't be decoded


def operations(letters: pa.Table, operation: str) -> pa.Table:
    """Entries of the redo log of dead letters."""
    kinds = pa.array([operation] * letters.num_rows, pa.string())
    plain = letters.rename_columns([f"c{i}" for i in range(letters.num_columns)])
    return plain.append_column(OPERATION, kinds)


@dataclass(slots=True)
class Rejects:
    """The dead letters of a stream that Spark reads: what can't be decoded, or has no known operation.

    A letter's position is the number of its micro-batch and its place among the batch's letters, so
    that a batch which Spark repeats writes the same letters again, and they replace the first.

    Attributes:
        files: of the storage.
        log: redo log of the letters.
    """

    files: Files
    log: RedoLog
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, batch: int, found: Sequence[Segment], micros: int) -> None:
        """Make letters of the rows of files (`payload`, `error`) that the tasks of a batch have left.

        Args:
            micros: the moment, since 1970.
        """
        position = batch << SEQUENCE_SHIFT
        with self._lock:
            number = self.log.end()
            self.log.clear(number)
            segments = []
            for place, segment in enumerate(found):
                letters = _letters(read_arrow(self.files, segment), position, micros)
                position += segment.rows
                name = f"{self.log.folder}/{number:012d}-{place}.arrow"
                segments.append(write_rows(self.files, name, operations(letters, APPEND)))
            self.log.append(number, segments)
        for segment in found:
            self.files.remove(segment.file)

    def discard(self, letters: pa.Table) -> None:
        """Drop letters for good."""
        if not letters.num_rows:
            return
        with self._lock:
            self.log.append_table(operations(letters, DELETE))


def _letters(rows: pa.Table, position: int, micros: int) -> pa.Table:
    count = rows.num_rows
    moment = pa.array(np.full(count, micros)).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "position": pa.array(np.arange(position, position + count)),
            "payload": rows["payload"].cast(pa.binary()),
            "key": pa.nulls(count, pa.binary()),
            "bolt": pa.array([DECODE] * count, pa.string()),
            "error": rows["error"],
            "attempts": pa.array(np.ones(count, np.int32)),
            "received": moment,
            "died": moment,
        }
    )
