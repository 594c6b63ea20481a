"""Dead letters: records that have failed permanently, stored as a stream of operations with a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from eddyline.changes import APPEND, DELETE
from eddyline.errors import CatalogError
from eddyline.source.log_entries import SEQUENCE_SHIFT
from eddyline.source.log_files import as_operations
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment, read_arrow

LETTERS = (
    "position BIGINT, payload BINARY, key BINARY, bolt STRING, error STRING, attempts INT, "
    "received TIMESTAMP, died TIMESTAMP"
)
KEY = ("position",)
DECODE = "decode"  # the bolt that letters name when a stream's records can't be decoded


class DeadLetters(Protocol):
    """Handles the dead letters of one source: drops them, or replays their records."""

    def finish(self) -> None:
        """Complete an interrupted removal; call it before you select letters."""

    def discard(self, letters: pa.Table) -> None:
        """Delete dead letters; `letters` has the schema `LETTERS`."""

    def replay(self, letters: pa.Table, payload: bytes | None = None) -> None:
        """Delete dead letters, and read their records again; raise CatalogError if the source can't.

        Args:
            payload: what the records shall hold instead; None: what they held.
        """


def new_letters(
    position: Any, payload: Any, key: Any, bolt: Any, error: Any, attempts: Any, received: Any
) -> pa.Table:
    """Return dead letters from Arrow columns, with the current time as `died`.

    Args:
        received: when each record arrived; None for the current time.
    """
    now = np.full(len(position), np.datetime64(time.time_ns() // 1000, "us"))
    died = pa.array(now).cast(pa.timestamp("us", "UTC"))
    given = {"position": position, "payload": payload, "key": key, "bolt": bolt, "error": error}
    times = {"received": died if received is None else received, "died": died}
    return pa.table({**given, "attempts": attempts, **times})


@dataclass(slots=True)
class Rejects:
    """The dead letters of a stream: malformed records and unknown operations. Its source repeats whole batches.

    A letter's position combines the number of its batch and its index among the letters of the batch.
    So the letters of a repeated batch replace those of the first try.

    Attributes:
        stream: name of the stream.
        log: redo log of the dead letters.
    """

    stream: str
    log: RedoLog
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, position: pa.Array, payload: pa.Array, error: pa.Array, bolt: str) -> None:
        """Log letters; one with the position of an earlier letter replaces it."""
        letters = _failed_once(position, payload, error, bolt)
        with self._lock:
            self.log.append_tables([as_operations(letters, APPEND)])

    def keep(self, batch: int, found: Sequence[Segment]) -> None:
        """Log the rows (`payload`, `error`) of files that a batch's tasks have written, as letters."""
        starts = np.cumsum([batch << SEQUENCE_SHIFT, *(segment.rows for segment in found)])
        files = self.log.files
        with self._lock:
            self.log.append_tables(
                as_operations(_rejected(read_arrow(files, segment), start), APPEND)
                for segment, start in zip(found, starts.tolist(), strict=False)
            )
        for segment in found:
            files.remove(segment.file)

    def put(self, number: int, rows: pa.Table) -> None:
        """Log the rows (`payload`, `error`, `key`) that an entry rejects; a repeated entry replaces them."""
        with self._lock:
            letters = _rejected(rows, number << SEQUENCE_SHIFT)
            self.log.append_tables([as_operations(letters, APPEND)])

    def finish(self) -> None:
        """Do nothing: a removal is one entry of the log."""

    def discard(self, letters: pa.Table) -> None:
        """Delete letters."""
        if letters.num_rows:
            with self._lock:
                self.log.append_tables([as_operations(letters, DELETE)])

    def replay(self, letters: pa.Table, payload: bytes | None = None) -> None:
        """Raise CatalogError: the source reads each record only once."""
        raise no_replay(self.stream)


def no_replay(stream: str) -> CatalogError:
    """Return the error for replaying letters of a stream whose source reads each record only once."""
    return CatalogError(
        f"stream {stream} can't read a record again: its source gives each once",
        condition="NO_REPLAY",
        hint="put the mended records into the source, then drop these dead letters",
    )


def _rejected(rows: pa.Table, start: int) -> pa.Table:
    position = pa.array(np.arange(start, start + rows.num_rows))
    keys = rows["key"] if "key" in rows.column_names else None
    return _failed_once(position, rows["payload"], rows["error"], DECODE, keys)


def _failed_once(position: Any, payload: Any, error: Any, bolt: str, keys: Any = None) -> pa.Table:
    count = len(position)
    return new_letters(
        position=position,
        payload=payload.cast(pa.binary()),
        key=pa.nulls(count, pa.binary()) if keys is None else keys,
        bolt=pa.array([bolt] * count, pa.string()),
        error=error,
        attempts=pa.array(np.ones(count, np.int32)),
        received=None,
    )
