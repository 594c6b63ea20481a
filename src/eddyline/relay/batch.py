"""Batches of a data queue: the records that a reader gets at once, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eddyline.errors import QueueError, encodable
from eddyline.relay.backend import QueueState, RowRange
from eddyline.relay.records import failed_records, no_records

READ_BYTES_MAX = 256 << 20
"""A batch has about so many bytes at most of each queue, however few records that are."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The records that a reader gets at once.

    Attributes:
        number: identifies the batch; higher than that of every earlier batch.
        spans: the ranges of rows to read, in this order.
    """

    number: int
    spans: tuple[RowRange, ...]

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(span.rows for span in self.spans)

    @property
    def missed(self) -> int:
        """Number of records that were deleted before they were read."""
        return sum(span.missed for span in self.spans)

    def as_dict(self) -> dict[str, Any]:
        """Return the batch as a JSON document."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Batch:
        """Return the batch that `as_dict` described."""
        spans = (
            RowRange(s["queue"], tuple(s["start"]), tuple(s["end"]), s["rows"], s.get("missed", 0))
            for s in document["spans"]
        )
        return cls(document["number"], tuple(spans))


class RecordOutcome(IntEnum):
    """The reported outcome of a record."""

    IN_FLIGHT = 0
    DONE = 1
    FAILED = 2
    DEAD = 3


@dataclass(slots=True)
class OpenBatch:
    """A planned batch that isn't committed, and the outcomes of its records so far.

    Attributes:
        batch: the batch.
        state_after: the queue's state once this batch and all before it are committed.
        records: the records, if the reader reports them one by one.
        outcomes: for each of those records, its `RecordOutcome`.
        reasons: for each of those records, why it failed.
        deadline_ms: when records without a report have failed.
        settled: whether the outcomes of all records are known.
        failed: the records to read again, once settled.
        dead: the number of dead letters, once settled.
    """

    batch: Batch
    state_after: QueueState
    records: pa.Table | None = None
    outcomes: npt.NDArray[np.uint8] | None = None
    reasons: npt.NDArray[np.object_] | None = None
    deadline_ms: int = 0
    settled: bool = False
    failed: pa.Table = field(default_factory=no_records)
    dead: int = 0

    def settle(self, failed: pa.Table, dead: int) -> None:
        """Set the outcome of the whole batch.

        Raises:
            QueueError: there are more outcomes than records.
        """
        if failed.num_rows + dead > self.batch.rows:
            raise QueueError(
                f"{failed.num_rows} failed and {dead} dead records of {self.batch.rows}",
                condition="BAD_RECORDS",
                hint="tell each record of the batch once",
            )
        self.failed, self.dead, self.settled = failed, dead, True

    def report(
        self, rows: npt.NDArray[np.int64], outcome: RecordOutcome, reason: str | None = None
    ) -> int:
        """Set the outcome of some rows, and settle the batch after the last one.

        Returns:
            The number of rows whose outcome was already set; it stays as it is.
        """
        assert self.outcomes is not None
        assert self.records is not None
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self.outcomes):
            raise QueueError(
                f"the batch has {len(self.outcomes)} records, and none at {rows.min()} to {rows.max()}",
                condition="BAD_RECORDS",
                hint="give the indices of rows of the batch, from 0 on",
            )
        unreported = np.unique(rows[self.outcomes[rows] == RecordOutcome.IN_FLIGHT])
        self.outcomes[unreported] = outcome
        if reason is not None:
            if self.reasons is None:
                self.reasons = np.full(len(self.outcomes), None, object)
            self.reasons[unreported] = encodable(reason)
        if not np.any(self.outcomes == RecordOutcome.IN_FLIGHT):
            failed = np.flatnonzero(self.outcomes == RecordOutcome.FAILED)
            retries = no_records()
            if len(failed):
                assert self.reasons is not None
                retries = failed_records(self.records, failed, self.reasons[failed].tolist())
            self.settle(retries, int(np.count_nonzero(self.outcomes == RecordOutcome.DEAD)))
        return len(rows) - len(unreported)

    def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Fail the records without a report if the deadline has passed."""
        if self.outcomes is not None and not self.settled and self.deadline_ms <= now_ms:
            late = np.flatnonzero(self.outcomes == RecordOutcome.IN_FLIGHT)
            self.report(late, RecordOutcome.FAILED, f"no answer within {ttl_ms} ms")
