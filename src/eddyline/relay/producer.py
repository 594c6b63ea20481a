"""Producers put records into a data queue, from any process."""

from __future__ import annotations

import threading
from typing import Any

from eddyline.arguments import check_number, checked
from eddyline.errors import QueueFullError
from eddyline.relay.backend import Backend
from eddyline.relay.records import new_records

UNREAD_ROWS_MAX = 10_000_000


@checked
class Producer:
    """Puts records into a queue, from any process.

    Args:
        backend: the storage of the queue.
        unread_rows_max: back-pressure limit: `put` is refused if it would leave more unread rows.
            Threads that share this object keep it together; other processes may each exceed it by what
            they put at the same time.

    Raises:
        EngineError: BAD_OPTION: the limit isn't a whole number from 1 on.

    Example:
        >>> import tempfile
        >>> from eddyline import LogBackend
        >>> producer = Producer(LogBackend(tempfile.mkdtemp()), unread_rows_max=3)
        >>> producer.put(["tea", "coffee"], keys=["a", "b"])
        2
        >>> producer.put([b"tea", b"tea"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        eddyline.errors.QueueFullError: [QUEUE_FULL] 2 records of the queue are unread...
    """

    def __init__(self, backend: Backend, *, unread_rows_max: int = UNREAD_ROWS_MAX) -> None:
        check_number("unread_rows_max", unread_rows_max, 1)
        self.backend = backend
        self.unread_rows_max = unread_rows_max
        self._lock = threading.Lock()
        self._putting = 0  # records that other threads are putting

    def put(self, payloads: Any, keys: Any = None) -> int:
        """Put records and return their number; they are durable on return.

        Args:
            payloads: bytes or text, one item a record; or an Arrow table with the column
                `payload`, and `key` if records have keys.
            keys: a key for each record, if `payloads` is not a table.

        Raises:
            QueueError: BAD_RECORDS: these are no records; nothing was put.
            QueueFullError: too many rows are unread. Nothing was put; retry the call later.
            StorageError: the records may or may not have been put; a retry may duplicate them.
        """
        records = new_records(payloads, keys)
        if not records.num_rows:
            return 0
        self._reserve(records.num_rows)
        try:
            return self.backend.put(records)
        finally:
            with self._lock:
                self._putting -= records.num_rows

    def _reserve(self, rows: int) -> None:
        """Count records as being put; QueueFullError if there is no room for them."""
        with self._lock:
            unread = self.backend.unread() + self._putting
            if unread + rows > self.unread_rows_max:
                raise QueueFullError(
                    f"{unread} records of the queue are unread, {rows} more are too many: {self.unread_rows_max} may be",
                    condition="QUEUE_FULL",
                    hint="put them again in a while, or read faster"
                    if rows <= self.unread_rows_max
                    else "put them in several calls",
                )
            self._putting += rows
