"""Messages of a data queue on Kafka: bundles of records, and the positions of these.

A bundle is an Arrow batch of many records in one message, marked by the header `eddyline`. Any
other message is one record, so other programs can write to eden too; one without a value is an empty record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.errors import StateError
from eddyline.relay.backend import EDEN, RowRange
from eddyline.relay.kafka_client import Message
from eddyline.relay.records import NEW, RECORDS, as_read, decode, new_records

HEADER = "eddyline"  # its value is the number of records in the bundle
ARROW = b"\xff\xff\xff\xff"  # how an Arrow message begins; other programs may have a header of that name too
BUNDLE_ROWS = 1000
BUNDLE_BYTES = 900_000  # a broker accepts messages of 1 MB by default

# A row number of a queue is a message's offset and a row of its bundle; with the partition in
# front it is a record's position.
ROW_BITS, ROW_NUMBER_BITS = 16, 56


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message of a queue.

    Attributes:
        topic, partition, offset: where it is.
        time_ms: when it was written.
        key, value: its content.
        bundled: the number of records in it; None for a message of another program.
    """

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: str | bytes | None
    value: bytes
    bundled: int | None

    @classmethod
    def of(cls, message: Message) -> QueueMessage:
        """Return a message as the client received it."""
        header, value = dict(message.headers() or []).get(HEADER), message.value()
        value = value if isinstance(value, bytes) else b""
        bundled = None
        if isinstance(header, bytes) and header.isdigit() and value.startswith(ARROW):
            bundled = int(header)
        return cls(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            value,
            bundled,
        )

    def records(self) -> pa.Table:
        """Return all records of the message.

        Raises:
            StateError: the bundle is damaged.
        """
        first = (self.partition << ROW_NUMBER_BITS) | row_number(self.offset)
        if self.bundled is None:
            return as_read(new_records([self.value], [self.key]), [first], self.time_ms)
        is_new = self.topic.endswith(f".{EDEN}")
        try:
            table = decode(self.value, NEW if is_new else RECORDS)
            if table.num_rows != self.bundled:
                raise pa.ArrowInvalid(f"{table.num_rows} records, not {self.bundled}")
        except pa.ArrowInvalid as error:
            raise StateError(
                f"a message is not what was written: {error}",
                condition="DAMAGED_MESSAGE",
                topic=self.topic,
                partition=self.partition,
                offset=self.offset,
            ) from error
        if not is_new:
            return table
        return as_read(table, first + np.arange(table.num_rows), self.time_ms)

    def records_within(self, span: RowRange) -> pa.Table:
        """Return the records that belong to a span, which may start or end within the bundle."""
        row = row_number(self.offset)
        start = max(span.start[self.partition] - row, 0)
        return self.records().slice(start, span.end[self.partition] - row - start)


def row_number(offset: int) -> int:
    """Return the row number of the first record in the message at an offset."""
    return offset << ROW_BITS


def offset_of(row: int) -> int:
    """Return the offset of the message that holds a row number."""
    return row >> ROW_BITS


def bundles(records: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of at most `BUNDLE_ROWS` rows and about `BUNDLE_BYTES` bytes."""
    if not records.num_rows:
        return
    fitting = max(1, BUNDLE_BYTES * records.num_rows // max(records.nbytes, 1))
    step = min(BUNDLE_ROWS, fitting)
    for start in range(0, records.num_rows, step):
        bundle = records.slice(start, step)
        if bundle.nbytes > BUNDLE_BYTES and bundle.num_rows > 1:
            half = bundle.num_rows // 2
            yield from bundles(bundle.slice(0, half))
            yield from bundles(bundle.slice(half))
        else:
            yield bundle
