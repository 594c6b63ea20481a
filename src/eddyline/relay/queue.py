"""The data queue: records that fail are read again before new ones.

Three queues are read through two pointers. Producers append to `eden`. A read takes rows from the
queue at toP first, then from eden. A failed record is appended, as a new row, to the queue at
fromP. When the queue at toP is empty, the pointers are swapped, and no data is copied. So a record
is either unread or done, never pending, and the durable state is three positions and a pointer.

A reader works in batches. It *plans* a batch (chooses rows of the queues), processes it, and
*settles* it (reports which records failed). A commit appends the failed records of the settled batches and
advances the positions, in one atomic step, up to the first batch that isn't settled. After a
crash, everything that wasn't committed is unread and is planned again.

Reading and committing run concurrently: planning never waits for a commit, and the pointers are
swapped only while no commit is running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.arguments import check_number, checked, wrong_argument
from eddyline.errors import EddylineError, QueueError
from eddyline.relay.account import Account
from eddyline.relay.backend import EDEN, EXPIRED, FROM, TO, Backend, Position, QueueState, RowRange
from eddyline.relay.batch import READ_BYTES_MAX, Batch, OpenBatch, RecordOutcome
from eddyline.relay.producer import UNREAD_ROWS_MAX, Producer
from eddyline.relay.records import no_records

__all__ = ["DataQueue", "Producer"]

TTL_MS = 60_000
_LOG = logging.getLogger("eddyline.sources")


@checked
class DataQueue:
    """The only reader of an application's queue.

    There are two ways to read:

    - A pipeline plans a batch, loads it (in any process: `backend.read`), and settles it by its
      number when its own results are committed. To settle it again after a crash changes nothing.
    - A plain consumer calls `read`, then `ack` or `fail` for each record, and `commit`. A record without a report
      within the TTL has failed: the next commit puts it back. `Backflow` commits in the background.

    Args:
        backend: the storage of the queue.
        ttl_ms: how long a record may stay without a report after `read`.
        retry_delay_ms: how long a failed record waits before it is read again.
        together: as soon as one failed record is due, read all of them, beyond the limit of a
            batch. For records that must meet, such as those joined by key.
        unread_rows_max: back-pressure limit of `put`, as for `Producer`.
        clock: returns milliseconds since 1970.

    Raises:
        EngineError: BAD_OPTION: a number can't be used.
        QueueError: QUEUE_IN_USE: another process reads this folder. NEWER_FORMAT. RETENTION_TOO_SHORT.
        StateError, StorageError: the queue is damaged, or can't be used.

    Example:
        >>> import tempfile
        >>> from eddyline.relay.embedded import LogBackend
        >>> queue = DataQueue(LogBackend(tempfile.mkdtemp()))
        >>> queue.put([b"good", b"bad"])
        2
        >>> batch, records = queue.read(10)
        >>> queue.ack(batch.number, [0])
        >>> queue.fail(batch.number, [1], "no answer")
        >>> queue.commit()
        1
        >>> batch, records = queue.read(10)
        >>> records.select(["payload", "attempts", "reason"]).to_pylist()
        [{'payload': b'bad', 'attempts': 1, 'reason': 'no answer'}]
        >>> queue.account()
        Account(received=2, done=1, dead=0, retry=0, in_flight=1, missed=0)
    """

    def __init__(
        self,
        backend: Backend,
        *,
        ttl_ms: int = TTL_MS,
        retry_delay_ms: int = 0,
        together: bool = False,
        unread_rows_max: int = UNREAD_ROWS_MAX,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        check_number("ttl_ms", ttl_ms, 1)
        check_number("retry_delay_ms", retry_delay_ms, 0)
        self.backend = backend
        self.ttl_ms = ttl_ms
        self.retry_delay_ms = retry_delay_ms  # checked before the queue is claimed
        self.together = together
        self.clock = clock
        self.late = 0  # reports of records whose outcome was already set
        self._producer = Producer(backend, unread_rows_max=unread_rows_max)
        self._state = backend.claim()
        self._planned = self._state  # the state once all open batches are committed
        self._open: dict[int, OpenBatch] = {}  # by number, in the order of planning
        self._attempt: tuple[QueueState, pa.Table] | None = None  # a commit that may have succeeded
        # Always acquired in this order.
        self._planning = threading.Lock()
        self._committing = threading.Lock()
        self._lock = threading.RLock()

    def put(self, payloads: Any, keys: Any = None) -> int:
        """Put records and return their number; see `Producer.put`, also for errors."""
        return self._producer.put(payloads, keys)

    @property
    def retry_delay_ms(self) -> int:
        """How long a failed record waits before it is read again.

        Raises:
            QueueError: on setting it, if the backend may delete failed records before.
        """
        return self._retry_delay_ms

    @retry_delay_ms.setter
    def retry_delay_ms(self, delay_ms: int) -> None:
        self.backend.check_retention(delay_ms)
        self._retry_delay_ms = delay_ms

    @property
    def committed(self) -> int:
        """The number of the last committed batch."""
        return self._state.number

    @property
    def retried(self) -> int:
        """How many times committed batches have put a record back, to be read again."""
        return self._state.returned

    def end(self) -> Position:
        """Return the position after the last new record that can be read now."""
        return self.backend.end()

    def is_planned(self, end: Position) -> bool:
        """Whether all new records before `end` are in planned batches."""
        return all(a >= b for a, b in zip(self._planned.read[EDEN], end, strict=True))

    def plan(self, rows_max: int, number: int | None = None, *, fresh: bool = True) -> Batch | None:
        """Choose the next records to read; None if there are none.

        A batch without rows tells that records were deleted before they were read.

        Args:
            rows_max: maximum number of records.
            number: the number of the batch, higher than all before; None for the next one.
            fresh: whether the batch may have new records, besides those that are read again.

        Raises:
            QueueError: the number is not higher than that of the batch before.
        """
        check_number("rows_max", rows_max, 1)
        with self._planning:
            before = self._planned
            number = before.number + 1 if number is None else number
            if number <= before.number:
                raise QueueError(
                    f"batch {number} comes after batch {before.number}",
                    condition="BATCH_PASSED",
                    hint="give each batch a higher number than the one before",
                )
            spans, planned = self._next_spans(before, rows_max, fresh=fresh)
            spans, planned = self._with_missed(before, spans, planned)
            batch = Batch(number, tuple(spans))
            if not batch.rows and not batch.missed:
                return None
            with self._lock:
                self._planned = replace(planned, number=number)
                self._open[number] = OpenBatch(batch, self._planned)
            return batch

    def load(self, batch: Batch) -> pa.Table:
        """Return the records of a batch, with the schema `RECORDS`."""
        return pa.concat_tables([self.backend.read(span) for span in batch.spans])

    def read(self, rows_max: int) -> tuple[Batch, pa.Table] | None:
        """Plan a batch and load it; None if there is nothing to read.

        Report each record with `ack`, `fail` or `bury` within the TTL.

        Args:
            rows_max: maximum number of records.

        Raises:
            EngineError: BAD_OPTION: `rows_max` isn't a whole number from 1 on.
            StateError, StorageError: the queue is damaged, or can't be used; the records stay unread.
        """
        while (batch := self.plan(rows_max)) is not None:
            if not batch.rows:
                self.settle(batch)
                continue
            try:
                records = self.load(batch)
            except BaseException as error:
                self.abandon(batch)
                if isinstance(error, EddylineError) and error.condition == EXPIRED:
                    continue
                raise
            with self._lock:
                opened = self._open[batch.number]
                opened.records = records
                opened.outcomes = np.zeros(records.num_rows, np.uint8)
                opened.deadline_ms = self.clock() + self.ttl_ms
            return batch, records
        return None

    def retries(self) -> Iterator[pa.Table]:
        """Yield the failed records that wait to be read again."""
        for queue in (TO, FROM):
            start = self._planned.read[queue]
            end, rows = self.backend.measure(queue, start, UNREAD_ROWS_MAX)
            if rows:
                yield self.backend.read(RowRange(queue, start, end, rows))

    def abandon(self, batch: Batch) -> None:
        """Make a batch, and all that were planned after it, unread again.

        Batches that are committed, or may be by a commit that raised an error, stay as they are.
        """
        with self._planning, self._committing, self._lock:
            passed = self._attempt[0].number if self._attempt else self._state.number
            for number in [n for n in self._open if n >= batch.number and n > passed]:
                del self._open[number]
            last = max(self._open, default=None)
            self._planned = self._state if last is None else self._open[last].state_after

    def settle(self, batch: Batch, failed: pa.Table | None = None, dead: int = 0) -> None:
        """Report the outcome of a whole batch; durable with the next commit.

        Args:
            batch: a planned batch. After a crash it may be the next one that the previous process
                had planned.
            failed: its records that are to be read again (see `failed_records`).
            dead: how many dead letters were added; negative if dead letters were removed, because
                they are among `failed` now or were dropped.

        Raises:
            QueueError: UNKNOWN_BATCH: the batch doesn't start where the planned ones end. BAD_RECORDS: it has
                fewer records than are reported.

        Example:
            >>> import tempfile
            >>> from eddyline.relay import embedded, records
            >>> queue = DataQueue(embedded.LogBackend(tempfile.mkdtemp()))
            >>> queue.put([b"good", b"bad", b"poison"])
            3
            >>> batch = queue.plan(10)
            >>> failed = records.failed_records(queue.load(batch), [1], "no answer")
            >>> queue.settle(batch, failed, dead=1)
            >>> queue.commit()
            1
            >>> queue.account()
            Account(received=3, done=1, dead=1, retry=1, in_flight=0, missed=0)
        """
        with self._lock:
            if batch.number <= self._state.number:
                return
            opened = self._open.get(batch.number) or self._adopt(batch)
            if not opened.settled:
                opened.settle(no_records() if failed is None else failed, dead)

    def ack(self, number: int, places: Any) -> None:
        """Report the records at these rows of a batch as done.

        The first report of a record counts. A later one, or one for a batch that isn't open, only adds to `late`.

        Args:
            number: of the batch.
            places: indices of rows of the batch, from 0 on: a list, or an array of integers.

        Raises:
            QueueError: BAD_RECORDS: the batch has no such row.
            EngineError: BAD_OPTION: `places` aren't integers.
        """
        self._report(number, places, RecordOutcome.DONE)

    def fail(self, number: int, places: Any, reason: str) -> None:
        """Report the records at these rows of a batch as failed; they are read again.

        Args:
            number: of the batch.
            places: as for `ack`.
            reason: given with the record when it is read again.

        Raises:
            QueueError, EngineError: as for `ack`.
        """
        self._report(number, places, RecordOutcome.FAILED, reason)

    def bury(self, number: int, places: Any) -> None:
        """Report the records at these rows of a batch, given as for `ack`, as dead letters, kept elsewhere.

        Raises:
            QueueError, EngineError: as for `ack`.
        """
        self._report(number, places, RecordOutcome.DEAD)

    def _expire(self) -> None:
        """Fail the records that have had no report within the TTL."""
        now = self.clock()
        with self._lock:
            for opened in self._open.values():
                opened.expire(now, self.ttl_ms)

    def commit(self) -> int:
        """Commit the settled batches up to the first open one; return the last committed number.

        Records that have had no report within the TTL fail first.

        Raises:
            QueueError: the account wouldn't add up; nothing was committed.
            StorageError: nothing or everything was committed; the next commit finds out.
        """
        self._expire()
        with self._committing:
            self._commit_settled()
            return self._state.number

    def _commit_settled(self) -> None:
        """Commit the settled batches; `_committing` is held."""
        state, failed = self._attempt or self._next_commit()
        if state.number > self._state.number:
            state.account.check()
            self._attempt = state, failed
            self.backend.commit(state, failed)
            with self._lock:
                self._attempt = None
                self._state = state
                for number in [n for n in self._open if n <= state.number]:
                    del self._open[number]

    def account(self) -> Account:
        """Return the counts of all records by where they are."""
        with self._lock:
            state, planned = self._state, self._planned
        return Account(
            received=planned.received,
            done=state.done,
            dead=state.dead,
            retry=state.returned - planned.again,
            in_flight=(planned.received + planned.again - planned.missed)
            - (state.received + state.again - state.missed),
            missed=planned.missed,
        )

    def close(self) -> None:
        """Release the queue; the next reader reads again what isn't committed."""
        with self._planning, self._committing:
            self.backend.close()

    def _next_spans(
        self, planned: QueueState, rows_max: int, *, fresh: bool
    ) -> tuple[list[RowRange], QueueState]:
        """Choose replayed records first; then new ones, as far as there is room."""
        spans: list[RowRange] = []
        replays_max = UNREAD_ROWS_MAX if self.together else rows_max
        due_ms = self.clock() - self.retry_delay_ms if self.retry_delay_ms else None
        if self.together and due_ms is not None and self._is_any_due(planned, due_ms):
            due_ms = None

        def read_next(
            queue: str, planned: QueueState, most: int, before_ms: int | None = None
        ) -> QueueState:
            start, room = planned.read[queue], most - sum(span.rows for span in spans)
            bytes_max = None if self.together and queue != EDEN else READ_BYTES_MAX
            limits = (room, before_ms, bytes_max)
            end, rows = self.backend.measure(queue, start, *limits) if room else (start, 0)
            if end == start:
                return planned
            spans.append(RowRange(queue, start, end, rows))
            return planned.after_reading(spans[-1])

        planned = read_next(planned.to, planned, replays_max, due_ms)
        # A commit appends to the queue at fromP: swap the pointers only while none is running.
        if self._is_empty(planned, planned.to) and self._committing.acquire(blocking=False):
            try:
                if not self._is_empty(planned, planned.failure_queue):
                    swapped = replace(planned, to=planned.failure_queue)
                    planned = read_next(planned.failure_queue, swapped, replays_max, due_ms)
            finally:
                self._committing.release()
        if self.together:
            rows_max += sum(span.rows for span in spans)
        return spans, read_next(EDEN, planned, rows_max) if fresh else planned

    def _with_missed(
        self, before: QueueState, spans: list[RowRange], planned: QueueState
    ) -> tuple[list[RowRange], QueueState]:
        """Count the records that the spans miss, and log them.

        Args:
            before: the state before the spans.
            spans: the spans to plan.
            planned: the state after them.
        """
        expired = [self.backend.expired(span) for span in spans]
        if not any(expired):
            return spans, planned
        counted, retries = [], None
        for span, places in zip(spans, expired, strict=True):
            missed = 0
            if span.queue == EDEN:
                missed = sum(places.values())
                for place, messages in places.items():
                    _LOG.warning(
                        "the brokers deleted %d messages of %s before they were read",
                        messages,
                        place,
                    )
            elif places and retries is None:
                missed = retries = self._missed_retries(before)
                if missed:
                    _LOG.warning(
                        "the brokers deleted %d failed records before their retry, of %s",
                        missed,
                        " and ".join(places),
                    )
            counted.append(replace(span, missed=missed))
            planned = planned.after_missing(span.queue, missed)
        return counted, planned

    def _missed_retries(self, before: QueueState) -> int:
        """Return how many failed records were deleted; `before` is the state before their spans.

        Messages don't tell it: it is the number of records that wait, without those that are there.
        """
        with self._committing:
            self._commit_settled()  # needs the exact number of existing records
            retry = self._state.returned - before.again
            there = (
                self.backend.measure(queue, before.read[queue], max(retry, 1))[1]
                for queue in (FROM, TO)
            )
            return max(retry - sum(there), 0)

    def _is_empty(self, planned: QueueState, queue: str, before_ms: int | None = None) -> bool:
        start = planned.read[queue]
        return self.backend.measure(queue, start, 1, before_ms)[0] == start

    def _is_any_due(self, planned: QueueState, due_ms: int) -> bool:
        """Return whether the retry of any failed record is due."""
        return not all(self._is_empty(planned, queue, due_ms) for queue in (FROM, TO))

    def _adopt(self, batch: Batch) -> OpenBatch:
        """Open a batch that another process planned before it died."""
        planned = self._planned
        for span in batch.spans:
            if planned.read.get(span.queue) != span.start:
                raise QueueError(
                    f"batch {batch.number} doesn't begin where batch {planned.number} ends",
                    condition="UNKNOWN_BATCH",
                    queue=span.queue,
                    hint="settle a batch that this queue has planned, in the order of planning",
                )
            planned = planned.after_reading(span)
        self._planned = replace(planned, number=batch.number)
        opened = self._open[batch.number] = OpenBatch(batch, self._planned)
        return opened

    def _report(
        self, number: int, places: Any, outcome: RecordOutcome, reason: str | None = None
    ) -> None:
        rows = np.asarray(places)
        if rows.dtype.kind not in "iu" and rows.size:
            raise wrong_argument("places", places, "give the indices of rows of the batch")
        rows = rows.astype(np.int64).reshape(-1)
        with self._lock:
            opened = self._open.get(number)
            if opened is None or opened.outcomes is None or opened.settled:
                self.late += len(rows)
            else:
                self.late += opened.report(rows, outcome, reason)

    def _next_commit(self) -> tuple[QueueState, pa.Table]:
        """Return the state after the settled batches, and their failed records."""
        with self._lock:
            state, failed = self._state, []
            for opened in self._open.values():
                if not opened.settled:
                    break
                failed.append(opened.failed)
                state = replace(
                    opened.state_after,
                    to=self._planned.to,
                    done=state.done + opened.batch.rows - opened.failed.num_rows - opened.dead,
                    dead=state.dead + opened.dead,
                    returned=state.returned + opened.failed.num_rows,
                )
            return state, pa.concat_tables([no_records(), *failed])
