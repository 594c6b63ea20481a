"""Reading one topic of a data queue on Kafka by ranges of rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from eddyline.relay.backend import Position, RowRange
from eddyline.relay.kafka_client import (
    TIMEOUT_S,
    TRANSIENT,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    retried,
    timed_out,
)
from eddyline.relay.kafka_messages import QueueMessage, offset_of, row_number


@dataclass(slots=True)
class TopicReader:
    """Reads the messages of one topic, and keeps those that were measured until they are read.

    Attributes:
        consumer: a consumer that nobody else uses.
        topic: the topic's name.
        next_offsets: for each partition, the offset to fetch next.
        fetched: messages from the last start position on.
        measured: the messages of the span that was measured last.
        gaps: ranges of messages that the brokers deleted before they were fetched: partition, first
            offset, and the next offset that exists.
    """

    consumer: Consumer
    topic: str
    next_offsets: list[int] = field(default_factory=list)
    fetched: list[QueueMessage] = field(default_factory=list)
    measured: dict[tuple[Position, Position], list[QueueMessage]] = field(default_factory=dict)
    gaps: list[tuple[int, int, int]] = field(default_factory=list)

    def measure(
        self,
        start: Position,
        ends: Position,
        rows_max: int,
        before_ms: int | None,
        bytes_max: int | None,
    ) -> tuple[Position, int]:
        """Return the end and the number of the next rows from `start`; see `Backend.measure`.

        Args:
            start: position of the first row.
            ends: the position after the last committed row.
            rows_max: maximum number of rows.
            before_ms: only count rows that were written up to that time; None counts all.
            bytes_max: no message is added to so many bytes of messages; None for any number.
        """
        self._seek(start)
        position, rows, used, size = list(start), 0, 0, 0
        while rows < rows_max and (bytes_max is None or size < bytes_max):
            if used == len(self.fetched) and not self._fetch_more(ends):
                # Only markers of transactions may follow: skip them.
                position = [
                    max(*both)
                    for both in zip(position, map(row_number, self.next_offsets), strict=True)
                ]
                break
            message = self.fetched[used]
            if before_ms is not None and message.time_ms > before_ms:
                break
            partition, offset = message.partition, message.offset
            skipped = max(position[partition] - row_number(offset), 0)
            left = (message.bundled or 1) - skipped
            count = min(left, rows_max - rows)
            position[partition] = (
                row_number(offset + 1) if count == left else row_number(offset) + skipped + count
            )
            rows, used, size = rows + count, used + 1, size + len(message.value)
        end = tuple(position)
        if rows:
            # A batch reads the last measured span; earlier ones were only looked at.
            self.measured = {(start, end): self.fetched[:used]}
        return end, rows

    def fetch(self, start: Position, end: Position) -> list[QueueMessage]:
        """Return the messages from `start` up to `end`."""
        self._seek(start)
        while self._fetch_more(end):
            pass
        return [m for m in self.fetched if row_number(m.offset) < end[m.partition]]

    def pop_measured(self, span: RowRange) -> list[QueueMessage] | None:
        """Return the messages of a span if it was measured last; otherwise None."""
        return self.measured.pop((span.start, span.end), None)

    def expired(self, start: Position, end: Position) -> dict[int, int]:
        """Return the number of deleted messages from `start` up to `end`, by partition."""
        counts: dict[int, int] = {}
        for partition, first, begin in self.gaps:
            first = max(first, offset_of(start[partition]))
            count = min(begin, offset_of(end[partition])) - first
            if count > 0:
                counts[partition] = counts.get(partition, 0) + count
        return counts

    def _seek(self, start: Position) -> None:
        """Make `fetched` begin at `start`."""
        wanted = [offset_of(row) for row in start]
        self.gaps = [gap for gap in self.gaps if gap[2] > wanted[gap[0]]]
        for partition, first, begin in self.gaps:
            if first <= wanted[partition]:
                wanted[partition] = begin
        begins = self.next_offsets.copy()
        for message in reversed(self.fetched):
            begins[message.partition] = message.offset
        if self.next_offsets and all(
            begin <= offset <= end
            for begin, offset, end in zip(begins, wanted, self.next_offsets, strict=True)
        ):
            self.fetched = [m for m in self.fetched if m.offset >= wanted[m.partition]]
            return
        self.fetched, self.next_offsets = [], wanted
        self._assign()

    def _assign(self) -> None:
        """Make the consumer continue at `next_offsets`."""
        self.consumer.assign(
            [
                TopicPartition(self.topic, partition, offset)
                for partition, offset in enumerate(self.next_offsets)
            ]
        )

    def _fetch_more(self, ends: Position) -> bool:
        """Fetch at least one message before `ends`; False if there is none."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(
            row_number(offset) < end for offset, end in zip(self.next_offsets, ends, strict=True)
        ):
            gaps = self.gaps
            received = [self._accept(message) for message in self.consumer.consume(500, 0.2)]
            if self.gaps is not gaps:
                self._assign()  # the client has stopped fetching the partition
            if any(received):
                return True
            if time.monotonic() > deadline:
                raise timed_out()
        return False

    def _accept(self, message: Message) -> bool:
        """Keep a message of the consumer; return False if it is only an event of the client."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if error is None:
            self.fetched.append(QueueMessage.of(message))
            self.next_offsets[partition] = offset + 1
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            self.next_offsets[partition] = max(self.next_offsets[partition], offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._skip_expired(partition, error)
        elif error.code() not in TRANSIENT:
            raise KafkaException(error)
        return False

    def _skip_expired(self, partition: int, error: KafkaError) -> None:
        """Continue at the first existing message; raise `error` if no message was deleted."""
        first = self.next_offsets[partition]
        at = TopicPartition(self.topic, partition)
        begin: int = retried(self.consumer.get_watermark_offsets, at)[0]
        if begin <= first:
            raise KafkaException(error)
        # messages before that offset are deleted as well
        self.gaps = [gap for gap in self.gaps if gap[0] != partition or gap[1] < first]
        self.gaps.append((partition, first, begin))
        self.next_offsets[partition] = begin
