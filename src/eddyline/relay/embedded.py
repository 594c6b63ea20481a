"""A data queue in a folder: three logs of checksummed frames, and a document with the state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from os import PathLike

import numpy as np
import pyarrow as pa

from eddyline.arguments import check_number, checked
from eddyline.errors import QueueError, StorageError
from eddyline.relay.backend import (
    EDEN,
    FROM,
    QUEUES,
    TO,
    Position,
    QueueState,
    RowRange,
    queue_taken_over,
)
from eddyline.relay.records import NEW, RECORDS, as_read, decode, encode, no_records
from eddyline.storage.fence import NAME as WRITER
from eddyline.storage.files import Files, damaged
from eddyline.storage.frame_log import SEGMENT_BYTES, Frame, FrameLog
from eddyline.storage.lock import StorageLock, held_elsewhere

FORMAT_VERSION = 2
STATE = "state.json"


@checked
class LogBackend:
    """The queue of one folder. Any number of processes may put; one process reads.

    Args:
        folder: path of the folder, or its `Files`.
        fsync: whether `put` and `commit` wait for the disk. Without, a power cut can lose the last
            seconds, and damage in the newest segment is taken for that; a killed process still loses nothing.
        segment_bytes: size at which a new segment file is begun. Read rows are removed a whole
            segment at a time.
        clock: returns milliseconds since 1970.

    Raises:
        EngineError: BAD_OPTION: `segment_bytes` isn't a whole number from 1 on.
        StorageError: STORAGE_NOT_EMPTY: the folder holds something else than a queue. WRITE_FAILED: it can't be made.

    Example:
        >>> import tempfile
        >>> from eddyline import DataQueue, Producer
        >>> folder = tempfile.mkdtemp()
        >>> Producer(LogBackend(folder)).put(["tea", "coffee"])  # in one process
        2
        >>> queue = DataQueue(LogBackend(folder))  # in another one
        >>> queue.backend.unread()
        2
        >>> batch, records = queue.read(10)
        >>> records["payload"].to_pylist()
        [b'tea', b'coffee']
        >>> queue.close()
    """

    def __init__(
        self,
        folder: str | PathLike[str] | Files,
        *,
        fsync: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        check_number("segment_bytes", segment_bytes, 1)
        self.files = folder if isinstance(folder, Files) else Files(folder)
        self.fsync = fsync
        self.clock = clock
        self.files.make_folder("")
        _check_folder(self.files)
        self._logs = {
            queue: FrameLog(self.files, queue, segment_bytes=segment_bytes) for queue in QUEUES
        }
        self._lock: StorageLock | None = None
        self._ends = {FROM: 0, TO: 0}  # after the last committed row

    @property
    def place(self) -> str:
        """What tells the queue from others: the path of its folder."""
        return os.path.realpath(self.files.root)

    def put(self, records: pa.Table) -> int:
        log = self._logs[EDEN]
        log.append(encode(records), records.num_rows, self.clock())
        if self.fsync:
            log.sync()
        return int(records.num_rows)

    def check_claim(self) -> None:
        """Raise QueueError if `claim` couldn't succeed now; a reader of this process would be replaced by it."""
        if held_elsewhere(self.files):
            raise self._in_use()
        self._committed()

    def claim(self) -> QueueState:
        self._lock = StorageLock(self.files, take_over=True)
        if not self._lock.held:
            raise self._in_use()
        self.files.remove_unfinished("")
        state, self._ends = self._committed()
        for queue, end in self._ends.items():
            self._logs[queue].cut(end)
        for queue, log in self._logs.items():
            (read,) = state.read[queue]
            if log.end() < read:
                raise damaged(log.folder, f"it ends before row {read}, which was read")
            log.forget(read)
        return state

    def check_retention(self, retry_delay_ms: int) -> None:
        """Do nothing: a record is only removed after it was read."""

    def unread(self) -> int:
        """Return the number of rows of eden after the last commit."""
        (read,) = self._committed()[0].read[EDEN]
        return self._logs[EDEN].end() - read

    def end(self) -> Position:
        return (self._logs[EDEN].end(),)

    def measure(
        self,
        queue: str,
        start: Position,
        rows_max: int,
        before_ms: int | None = None,
        bytes_max: int | None = None,
    ) -> tuple[Position, int]:
        log = self._logs[queue]
        if queue == EDEN:
            end = log.end()
            if self.fsync and end > start[0]:
                log.sync()  # another process may have appended rows that aren't on the disk yet
        else:
            end = self._ends[queue]
        if before_ms is not None:
            end = min(end, log.end_before(before_ms))
        if bytes_max is not None:
            end = min(end, log.end_within(start[0], bytes_max))
        end = max(start[0], min(end, start[0] + rows_max))
        return (end,), end - start[0]

    def expired(self, span: RowRange) -> Mapping[str, int]:
        """Return none: a record is only removed after it was read."""
        return {}

    def read(self, span: RowRange) -> pa.Table:
        (start,), (end,) = span.start, span.end
        log = self._logs[span.queue]
        tables = [_frame_records(frame, span.queue, log.folder) for frame in log.frames(start, end)]
        if not tables:
            return no_records()
        first = tables[0][0]
        return pa.concat_tables([table for _, table in tables]).slice(start - first, end - start)

    def commit(self, state: QueueState, failed: pa.Table) -> None:
        if self._lock is None or not self._lock.held:  # claimed again in this process
            raise queue_taken_over(folder=self.files.root)
        durable, ends = self._committed()
        if durable.number >= state.number:
            self.files.sync("")  # an earlier attempt failed after its last write
            self._ends = ends
            return
        if failed.num_rows:
            queue = state.failure_queue
            log = self._logs[queue]
            log.append(encode(failed), failed.num_rows, self.clock(), at=ends[queue])
            if self.fsync:
                log.sync()
            ends[queue] += failed.num_rows
        document = {"format": FORMAT_VERSION, "ends": ends, **state.as_dict()}
        self.files.write_json(STATE, document, durable=self.fsync)
        self._ends = ends
        for queue, log in self._logs.items():
            log.forget(state.read[queue][0])

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _in_use(self) -> QueueError:
        return QueueError(
            "another process reads this queue",
            condition="QUEUE_IN_USE",
            folder=self.files.root,
            hint="stop it, or put with Producer, which may run beside it",
        )

    def _committed(self) -> tuple[QueueState, dict[str, int]]:
        """Return the stored state, and the ends of `from` and `to` at that commit."""
        if not self.files.exists(STATE):
            return QueueState(read=dict.fromkeys(QUEUES, (0,))), {FROM: 0, TO: 0}
        document = self.files.read_json(STATE)
        if document.pop("format") > FORMAT_VERSION:
            raise QueueError(
                "a newer version of Eddyline has written this queue",
                condition="NEWER_FORMAT",
                folder=self.files.root,
                hint="use that version",
            )
        ends = document.pop("ends")
        return QueueState.from_dict(document), ends


def is_queue(files: Files) -> bool:
    """Return whether a folder is that of a queue, and not the storage of an engine."""
    return files.exists(EDEN) and not files.exists(WRITER)


def _check_folder(files: Files) -> None:
    """Raise StorageError STORAGE_NOT_EMPTY if a folder holds something else than a queue."""
    # a new disk has a folder lost+found
    others = [name for name in files.names("") if not name.startswith((".", "lost+found"))]
    if others and not is_queue(files):
        what = "the storage of an engine" if WRITER in others else "something else than a queue"
        raise StorageError(
            f"the folder {files.root} holds {what}",
            condition="STORAGE_NOT_EMPTY",
            hint="give the queue an empty folder, a new one, or one that a queue has made",
        )


def _frame_records(frame: Frame, queue: str, folder: str) -> tuple[int, pa.Table]:
    """Return the number of the first row of a frame, and its records."""
    try:
        table = decode(frame.body, NEW if queue == EDEN else RECORDS)
    except pa.ArrowInvalid as error:
        raise damaged(folder, f"the frame of row {frame.first} is not a table: {error}") from error
    if queue == EDEN:
        table = as_read(table, np.arange(frame.first, frame.first + frame.rows), frame.time_ms)
    return frame.first, table
