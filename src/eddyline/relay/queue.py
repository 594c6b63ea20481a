"""The data queue: what has failed flows back and is read first, and nothing is ever pending.

Three queues stand behind pointers: `eden` (what comes in), and `from` and `to`. A read takes from
the queue at toP first, else from eden. What fails is written to the queue at fromP, as a new
message. Once the queue at toP is empty the two pointers are swapped, and no data is copied. So a
record is unread or done, and durable state is but three positions and a pointer.

Reading is by the batch. A batch is *planned* (which spans of which queues), worked on, and *settled*
(which of its records have failed). A commit writes the failed records of settled batches and moves
the positions behind them, in one atomic step, up to the first batch that isn't settled: what was not
committed when a process dies is unread, and is planned again.

Acks and fails are handled beside the reading: planning never waits for a commit, and the pointers
are swapped when no commit writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eddyline.errors import EddylineError, QueueError, QueueFullError
from eddyline.relay.records import failed_records, new_records, no_records

EDEN, FROM, TO = "eden", "from", "to"
QUEUES = (EDEN, FROM, TO)

TTL_MS = 60_000
UNREAD_ROWS_MAX = 10_000_000
BACKFLOW_EVERY_S = 0.02

TAKEN = "QUEUE_TAKEN"

Position = tuple[int, ...]
"""Where in a queue: the first row that is meant, or a number for each partition."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one queue, from one position up to but not including another."""

    queue: str
    start: Position
    end: Position
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a reader takes at once.

    Attributes:
        number: counts up; a batch is settled once, by its number.
        spans: what to read, in this order.
    """

    number: int
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """How many records it has."""
        return sum(span.rows for span in self.spans)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Batch:
        """The batch that such a document describes."""
        spans = (
            Span(s["queue"], tuple(s["start"]), tuple(s["end"]), s["rows"]) for s in found["spans"]
        )
        return cls(found["number"], tuple(spans))


@dataclass(frozen=True, slots=True)
class State:
    """What is committed.

    Attributes:
        number: of the last batch that is settled, with all before it; 0 before the first.
        to: name of the queue at toP, `to` or `from`.
        read: for each queue the position of its first unread row.
        received: rows of eden that were read.
        done, dead: records that have ended, well or in the dead letters.
        returned, again: rows that were written to the queue at fromP, and read from that at toP.
    """

    number: int = 0
    to: str = TO
    read: Mapping[str, Position] = field(default_factory=dict)
    received: int = 0
    done: int = 0
    dead: int = 0
    returned: int = 0
    again: int = 0

    @property
    def back(self) -> str:
        """Name of the queue at fromP."""
        return other(self.to)

    def behind(self, span: Span) -> State:
        """The state in which the rows of a span are read too."""
        read = {**self.read, span.queue: span.end}
        if span.queue == EDEN:
            return replace(self, read=read, received=self.received + span.rows)
        return replace(self, read=read, to=span.queue, again=self.again + span.rows)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        return {**asdict(self), "read": dict(self.read)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> State:
        """The state that such a document describes."""
        read = {queue: tuple(position) for queue, position in found["read"].items()}
        return cls(**{**found, "read": read})


@dataclass(frozen=True, slots=True)
class Account:
    """Where all records are: `received = done + dead + retry + in_flight`, at every moment.

    Attributes:
        received: records that were read from eden.
        done, dead: records that have ended: well, or in the dead letters. Letters that were dropped
            are done.
        retry: records that have failed and wait to be read again.
        in_flight: records of batches that aren't committed.
    """

    received: int
    done: int
    dead: int
    retry: int
    in_flight: int


class Backend(Protocol):
    """Where the three queues are: durable rows, and one atomic commit."""

    def put(self, records: pa.Table) -> int:
        """Append new records to eden; durable when this returns. How many."""
        ...

    def claim(self) -> State:
        """Become the application's one reader; what is committed."""
        ...

    def unread(self) -> int:
        """How many rows of eden are not committed, about; may be asked without `claim`."""
        ...

    def end(self) -> Position:
        """Where the rows of eden end that may be read now."""
        ...

    def measure(
        self, queue: str, start: Position, rows_max: int, before_ms: int | None = None
    ) -> tuple[Position, int]:
        """Where the next rows from `start` end, and how many these are.

        Args:
            queue: its name.
            start: position of the first row.
            rows_max: most rows; a bundle that exceeds it by itself comes whole.
            before_ms: only rows that were written until that moment; None: all.
        """
        ...

    def read(self, span: Span) -> pa.Table:
        """The records of a span; the same whenever it is called."""
        ...

    def commit(self, state: State, back: pa.Table) -> None:
        """Append records to the queue at fromP and make `state` the state, both or neither.

        Nothing happens if a batch of that number is committed already.

        Raises:
            QueueError: another reader has claimed the queue since.
            StorageError: it isn't known whether the commit went through.
        """
        ...

    def close(self) -> None:
        """Give the queue free."""
        ...


class Producer:
    """Puts records into a queue, from any process.

    Args:
        backend: where the queue is.
        unread_rows_max: from so many unread rows on, records are refused.
    """

    def __init__(self, backend: Backend, *, unread_rows_max: int = UNREAD_ROWS_MAX) -> None:
        self.backend = backend
        self.unread_rows_max = unread_rows_max

    def put(self, payloads: Any, keys: Any = None) -> int:
        """Put records; durable when this returns. How many there were.

        Args:
            payloads: bytes or text, one a record; or an Arrow table with `payload` and maybe `key`.
            keys: as many keys, for payloads without a table.

        Raises:
            QueueFullError: too much is unread; nothing was put, and the same call succeeds later.
            StorageError: it isn't known whether the records were put; putting them again may
                double them.
        """
        records = new_records(payloads, keys)
        unread = self.backend.unread()
        if unread + records.num_rows > self.unread_rows_max:
            raise QueueFullError(
                f"{unread} records of the queue are unread",
                condition="QUEUE_FULL",
                hint="put them again in a while, or read faster",
            )
        return self.backend.put(records) if records.num_rows else 0


class DataQueue:
    """The one reader of an application's queue.

    A pipeline plans a batch, loads it (in any process: `backend.read`), works, and settles it by
    its number when its epoch is committed; to settle it again after a crash changes nothing. A plain
    consumer reads, and tells `ack` and `fail` by the record; what isn't told within the TTL has
    failed.

    Args:
        backend: where the queue is.
        ttl_ms: longest time from `read` to being told.
        retry_delay_ms: a record that has failed is read again after so long.
        together: when one of those is due, all are read at once, besides the new ones: some may wait
            for each other.
        unread_rows_max: of `put`, as for `Producer`.
        clock: milliseconds since 1970.

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
        Account(received=2, done=1, dead=0, retry=0, in_flight=1)
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
        self.backend = backend
        self.ttl_ms = ttl_ms
        self.retry_delay_ms = retry_delay_ms
        self.together = together
        self.clock = clock
        self.late = 0  # records that were told when their batch was over
        self._producer = Producer(backend, unread_rows_max=unread_rows_max)
        self._state = backend.claim()
        self._planned = self._state  # as if all that is under way were committed
        self._held: dict[int, _Held] = {}  # batches that aren't committed, in their order
        self._attempt: tuple[State, pa.Table] | None = None  # a commit that may have gone through
        # Always taken in this order.
        self._planning = threading.Lock()
        self._committing = threading.Lock()
        self._lock = threading.RLock()

    def put(self, payloads: Any, keys: Any = None) -> int:
        """As `Producer.put`."""
        return self._producer.put(payloads, keys)

    @property
    def committed(self) -> int:
        """Number of the last batch that is committed with all before it."""
        return self._state.number

    def end(self) -> Position:
        """Where the new records end that are there now."""
        return self.backend.end()

    def is_planned(self, end: Position) -> bool:
        """Whether all new records up to an end are in batches."""
        return all(a >= b for a, b in zip(self._planned.read[EDEN], end, strict=True))

    def plan(self, rows_max: int, number: int | None = None, *, fresh: bool = True) -> Batch | None:
        """Which records come next, at most `rows_max`; None if there are none.

        Args:
            rows_max: most records.
            number: of the batch, above those of all before; None: the next one.
            fresh: whether new records are among them.
        """
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
            batch = Batch(number, tuple(spans))
            if not batch.rows:
                return None
            with self._lock:
                self._planned = replace(planned, number=number)
                self._held[number] = _Held(batch, self._planned)
            return batch

    def load(self, batch: Batch) -> pa.Table:
        """The records of a batch, of schema `RECORDS`."""
        return pa.concat_tables([self.backend.read(span) for span in batch.spans])

    def read(self, rows_max: int) -> tuple[Batch, pa.Table] | None:
        """Plan a batch and load it; each of its records is to be told within the TTL."""
        batch = self.plan(rows_max)
        if batch is None:
            return None
        try:
            records = self.load(batch)
        except BaseException:
            self.abandon(batch)
            raise
        with self._lock:
            held = self._held[batch.number]
            held.records = records
            held.told = np.zeros(records.num_rows, np.uint8)
            held.deadline_ms = self.clock() + self.ttl_ms
        return batch, records

    def retries(self) -> Iterator[pa.Table]:
        """The records that wait to be read again."""
        for queue in (TO, FROM):
            start = self._planned.read[queue]
            end, rows = self.backend.measure(queue, start, UNREAD_ROWS_MAX)
            if rows:
                yield self.backend.read(Span(queue, start, end, rows))

    def abandon(self, batch: Batch) -> None:
        """A batch, and all that were planned behind it, are unread again.

        But for those that were committed, or may have been by a commit that has failed.
        """
        with self._planning, self._committing, self._lock:
            passed = self._attempt[0].number if self._attempt else self._state.number
            for number in [n for n in self._held if n >= batch.number and n > passed]:
                del self._held[number]
            last = max(self._held, default=None)
            self._planned = self._state if last is None else self._held[last].planned

    def settle(self, batch: Batch, failed: pa.Table | None = None, dead: int = 0) -> None:
        """Say what has become of a batch; durable with the next commit.

        Args:
            batch: one that was planned; also by a process that has died since, if it is the next.
            failed: those of its records that are to be read again (`failed_records`).
            dead: how many are kept elsewhere for good; fewer than none, if some of those that were
                are among `failed` now, or given up.

        Raises:
            QueueError: this batch was not planned from what is committed.
        """
        with self._lock:
            if batch.number <= self._state.number:
                return
            held = self._held.get(batch.number) or self._adopt(batch)
            if not held.settled:
                held.settle(no_records() if failed is None else failed, dead)

    def ack(self, number: int, places: Any) -> None:
        """The records at these places of a batch are done."""
        self._tell(number, places, _DONE)

    def fail(self, number: int, places: Any, reason: str) -> None:
        """The records at these places of a batch have failed, and are to be read again."""
        self._tell(number, places, _FAILED, reason)

    def bury(self, number: int, places: Any) -> None:
        """The records at these places of a batch are kept elsewhere, as dead letters."""
        self._tell(number, places, _DEAD)

    def expire(self) -> None:
        """What was read longer ago than the TTL and isn't told has failed."""
        now = self.clock()
        with self._lock:
            for held in self._held.values():
                if held.told is not None and not held.settled and held.deadline_ms <= now:
                    late = np.flatnonzero(held.told == _IN_FLIGHT)
                    held.tell(late, _FAILED, f"no answer within {self.ttl_ms} ms")

    def commit(self) -> int:
        """Make durable what was settled, up to the first batch that isn't; its last number.

        Raises:
            StorageError: nothing has changed, or all has; the next commit finds out.
        """
        with self._committing:
            state, back = self._attempt or self._next_commit()
            if state.number > self._state.number:
                self._attempt = state, back
                self.backend.commit(state, back)
                with self._lock:
                    self._attempt = None
                    self._state = state
                    for number in [n for n in self._held if n <= state.number]:
                        del self._held[number]
            return self._state.number

    def account(self) -> Account:
        """Where all records are."""
        with self._lock:
            state, planned = self._state, self._planned
        return Account(
            received=planned.received,
            done=state.done,
            dead=state.dead,
            retry=state.returned - planned.again,
            in_flight=planned.received - state.received + planned.again - state.again,
        )

    def close(self) -> None:
        """Give the queue free; what isn't committed is read again by the next reader."""
        with self._planning, self._committing:
            self.backend.close()

    def _next_spans(
        self, planned: State, rows_max: int, *, fresh: bool
    ) -> tuple[list[Span], State]:
        """Replayed records first; then, as far as there is room, new ones."""
        spans: list[Span] = []
        again_max = UNREAD_ROWS_MAX if self.together else rows_max
        due_ms = self.clock() - self.retry_delay_ms if self.retry_delay_ms else None
        if self.together and due_ms is not None and self._is_one_due(planned, due_ms):
            due_ms = None

        def take(queue: str, planned: State, most: int, before_ms: int | None = None) -> State:
            start, room = planned.read[queue], most - sum(span.rows for span in spans)
            end, rows = self.backend.measure(queue, start, room, before_ms) if room else (start, 0)
            if end == start:
                return planned
            spans.append(Span(queue, start, end, rows))
            return planned.behind(spans[-1])

        planned = take(planned.to, planned, again_max, due_ms)
        # A commit writes to the queue at fromP: the pointers wait for it, and reading doesn't.
        if self._is_empty(planned, planned.to) and self._committing.acquire(blocking=False):
            try:
                if not self._is_empty(planned, planned.back):
                    swapped = replace(planned, to=planned.back)
                    planned = take(planned.back, swapped, again_max, due_ms)
            finally:
                self._committing.release()
        if self.together:
            rows_max += sum(span.rows for span in spans)
        return spans, take(EDEN, planned, rows_max) if fresh else planned

    def _is_empty(self, planned: State, queue: str, before_ms: int | None = None) -> bool:
        start = planned.read[queue]
        return self.backend.measure(queue, start, 1, before_ms)[0] == start

    def _is_one_due(self, planned: State, due_ms: int) -> bool:
        """Whether one of the records that have failed is due."""
        return not all(self._is_empty(planned, queue, due_ms) for queue in (FROM, TO))

    def _adopt(self, batch: Batch) -> _Held:
        """A batch that a process has planned, and died before it was committed here."""
        planned = self._planned
        for span in batch.spans:
            if planned.read.get(span.queue) != span.start:
                raise QueueError(
                    f"batch {batch.number} doesn't begin where batch {planned.number} ends",
                    condition="UNKNOWN_BATCH",
                    queue=span.queue,
                    hint="settle a batch that this queue has planned, in the order of planning",
                )
            planned = planned.behind(span)
        self._planned = replace(planned, number=batch.number)
        held = self._held[batch.number] = _Held(batch, self._planned)
        return held

    def _tell(self, number: int, places: Any, outcome: int, reason: str | None = None) -> None:
        chosen = np.asarray(places, np.int64)
        with self._lock:
            held = self._held.get(number)
            if held is None or held.told is None or held.settled:
                self.late += len(chosen)
            else:
                self.late += held.tell(chosen, outcome, reason)

    def _next_commit(self) -> tuple[State, pa.Table]:
        with self._lock:
            state, back = self._state, []
            for held in self._held.values():
                if not held.settled:
                    break
                failed, dead = held.failed, held.dead
                back.append(failed)
                state = replace(
                    held.planned,
                    to=self._planned.to,
                    done=state.done + held.batch.rows - failed.num_rows - dead,
                    dead=state.dead + dead,
                    returned=state.returned + failed.num_rows,
                )
            return state, pa.concat_tables([no_records(), *back])


class Backflow:
    """The thread beside the reading: what is late fails, and what is told becomes durable.

    Used as a context manager around the reading. An error ends it, and is raised at the end of the
    block or by `check`, which a reader calls now and then.
    """

    def __init__(self, queue: DataQueue, every_s: float = BACKFLOW_EVERY_S) -> None:
        self.queue = queue
        self.every_s = every_s
        self.error: EddylineError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eddyline-backflow", daemon=True)

    def __enter__(self) -> Backflow:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise what has ended the thread."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.every_s):
                self.queue.expire()
                self.queue.commit()
            self.queue.commit()
        except EddylineError as error:
            self.error = error


def taken(**context: object) -> QueueError:
    """The error of a reader that isn't the one any more."""
    return QueueError(
        "another reader has taken this queue over",
        condition=TAKEN,
        hint="run one reader for each application",
        **context,
    )


def other(queue: str) -> str:
    """The one of `from` and `to` that isn't meant."""
    return FROM if queue == TO else TO


# What a reader was told of a record.
_IN_FLIGHT, _DONE, _FAILED, _DEAD = 0, 1, 2, 3


@dataclass(slots=True)
class _Held:
    """A batch that isn't committed.

    Attributes:
        planned: the state, with all up to this batch as if it were committed.
        records, told, reasons, deadline_ms: of a batch whose records are told one by one.
        settled, failed, dead: what has become of it.
    """

    batch: Batch
    planned: State
    records: pa.Table | None = None
    told: npt.NDArray[np.uint8] | None = None
    reasons: npt.NDArray[np.object_] | None = None
    deadline_ms: int = 0
    settled: bool = False
    failed: pa.Table = field(default_factory=no_records)
    dead: int = 0

    def settle(self, failed: pa.Table, dead: int) -> None:
        if failed.num_rows + dead > self.batch.rows:
            raise QueueError(
                f"{failed.num_rows} failed and {dead} dead records of {self.batch.rows}",
                condition="BAD_RECORDS",
                hint="tell each record of the batch once",
            )
        self.failed, self.dead, self.settled = failed, dead, True

    def tell(self, places: npt.NDArray[np.int64], outcome: int, reason: str | None = None) -> int:
        """Set the outcome of records that aren't told; of how many it was known already."""
        assert self.told is not None
        assert self.records is not None
        untold = np.unique(places[self.told[places] == _IN_FLIGHT])
        self.told[untold] = outcome
        if reason is not None:
            if self.reasons is None:
                self.reasons = np.full(len(self.told), None, object)
            self.reasons[untold] = reason
        if not np.any(self.told == _IN_FLIGHT):
            failed = np.flatnonzero(self.told == _FAILED)
            back = no_records()
            if len(failed):
                assert self.reasons is not None
                back = failed_records(self.records, failed, self.reasons[failed].tolist())
            self.settle(back, int(np.count_nonzero(self.told == _DEAD)))
        return len(places) - len(untold)
