"""The contract between a data queue and the storage that holds its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from eddyline.errors import QueueError
from eddyline.relay.account import Account

EDEN, FROM, TO = "eden", "from", "to"
QUEUES = (EDEN, FROM, TO)

TAKEN_OVER = "QUEUE_TAKEN"
EXPIRED = "RECORDS_EXPIRED"

Position = tuple[int, ...]
"""A place in a queue: the number of its next row, one number for each partition."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """A range of rows of one queue: from `start` up to but not including `end`.

    Attributes:
        rows: number of rows that can be read.
        missed: number of records that were deleted before they were read.
    """

    queue: str
    start: Position
    end: Position
    rows: int
    missed: int = 0


@dataclass(frozen=True, slots=True)
class QueueState:
    """The committed state of a data queue.

    Attributes:
        number: the last committed batch; 0 before the first.
        to: the name of the queue at toP, `to` or `from`.
        read: for each queue, the position of its first unread row.
        received: number of rows read from eden, or missed there.
        done: number of records that were processed successfully.
        dead: number of records that became dead letters.
        returned: number of rows written to the queue at fromP.
        again: number of rows read from the queue at toP, or missed there.
        missed: number of records that were deleted before they were read.
    """

    number: int = 0
    to: str = TO
    read: Mapping[str, Position] = field(default_factory=dict)
    received: int = 0
    done: int = 0
    dead: int = 0
    returned: int = 0
    again: int = 0
    missed: int = 0

    @property
    def account(self) -> Account:
        """The counts of all committed records."""
        retry = self.returned - self.again
        return Account(self.received, self.done, self.dead, retry, 0, self.missed)

    @property
    def failure_queue(self) -> str:
        """The name of the queue at fromP, to which failed records are written."""
        return other_retry_queue(self.to)

    def after_reading(self, span: RowRange) -> QueueState:
        """Return the state in which the rows of `span` are read as well."""
        state = self.after_missing(span.queue, span.missed)
        read = {**self.read, span.queue: span.end}
        if span.queue == EDEN:
            return replace(state, read=read, received=state.received + span.rows)
        return replace(state, read=read, to=span.queue, again=state.again + span.rows)

    def after_missing(self, queue: str, records: int) -> QueueState:
        """Return the state in which this many records of a queue are known to be missed."""
        missed = self.missed + records
        if queue == EDEN:
            return replace(self, received=self.received + records, missed=missed)
        return replace(self, again=self.again + records, missed=missed)

    def as_dict(self) -> dict[str, Any]:
        """Return the state as a JSON document."""
        return {**asdict(self), "read": dict(self.read)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> QueueState:
        """Return the state that `as_dict` described."""
        read = {queue: tuple(position) for queue, position in document["read"].items()}
        return cls(**{**document, "read": read})


class Backend(Protocol):
    """Storage for the three queues of one application: durable rows and an atomic commit."""

    def put(self, records: pa.Table) -> int:
        """Append new records to eden and return their number; they are durable on return."""
        ...

    def claim(self) -> QueueState:
        """Become the only reader of the queue and return the committed state."""
        ...

    def check_retention(self, retry_delay_ms: int) -> None:
        """Check that failed records are kept until they are read again.

        Raises:
            QueueError: they may be deleted before.
        """
        ...

    def unread(self) -> int:
        """Return roughly how many rows of eden are not committed; needs no `claim`."""
        ...

    def end(self) -> Position:
        """Return the position after the last row of eden that can be read now."""
        ...

    def measure(
        self,
        queue: str,
        start: Position,
        rows_max: int,
        before_ms: int | None = None,
        bytes_max: int | None = None,
    ) -> tuple[Position, int]:
        """Return the end position and the number of the next rows from `start`.

        Args:
            queue: name of the queue.
            start: position of the first row.
            rows_max: maximum number of rows.
            before_ms: only count rows that were written up to that time; None counts all.
            bytes_max: about how many bytes the rows may have; None for any number.
        """
        ...

    def expired(self, span: RowRange) -> Mapping[str, int]:
        """Return how many messages of a span were gone when it was measured, by topic and partition."""
        ...

    def read(self, span: RowRange) -> pa.Table:
        """Return the records of a span; every call returns the same records.

        Raises:
            QueueError: RECORDS_EXPIRED, a broker has deleted some of them since they were measured.
        """
        ...

    def commit(self, state: QueueState, failed: pa.Table) -> None:
        """Append `failed` to the queue at fromP and store `state`, atomically.

        Does nothing if a batch of that number is already committed.

        Raises:
            QueueError: another reader has claimed the queue since.
            StorageError: the commit may or may not have succeeded.
        """
        ...

    def close(self) -> None:
        """Release the queue and all resources."""
        ...


def other_retry_queue(queue: str) -> str:
    """Return `to` for `from`, and `from` for `to`."""
    return FROM if queue == TO else TO


def is_same_queue(one: Backend, other: Backend) -> bool:
    """Return whether two backends, perhaps of two objects, have the same rows.

    A backend tells it by an attribute `place`; one without it has the rows of no other object.
    """
    place = getattr(one, "place", None)
    return one is other or (place is not None and place == getattr(other, "place", None))


def queue_taken_over(**context: object) -> QueueError:
    """Return the error for a reader that another reader has replaced."""
    return QueueError(
        "another reader has taken this queue over",
        condition=TAKEN_OVER,
        hint="run one reader for each application",
        **context,
    )
