"""How many records of a queue on Kafka are unread, as far as it can be known without reading them.

The brokers tell the number of messages. A process knows how many records are in those that it has put;
in others there are taken to be as many as in those that were read and in its own, on average.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from eddyline.relay.backend import Position
from eddyline.relay.kafka_messages import offset_of, row_number

COUNTED_TOGETHER = 100
"""So many records of small messages are counted together: there may be millions of messages."""


@dataclass(slots=True)
class PutMessages:
    """Messages of one partition that this process has put, one after the other, perhaps with others between them.

    Attributes:
        start, end: offset of the first one, and the offset after the last one.
        messages, rows: their number, and that of their records.
    """

    start: int
    end: int
    messages: int
    rows: int


class EdenBacklog:
    """Counts the unread records of eden."""

    def __init__(self) -> None:
        self._own: dict[int, deque[PutMessages]] = {}

    def add(self, partition: int, offset: int, rows: int) -> None:
        """Remember a message that this process has put."""
        own = self._own.setdefault(partition, deque())
        few = bool(own) and own[-1].rows + rows <= COUNTED_TOGETHER
        if few or (own and own[-1].rows == own[-1].messages * rows):
            own[-1].end = max(own[-1].end, offset + 1)
            own[-1].messages += 1
            own[-1].rows += rows
        else:
            own.append(PutMessages(offset, offset + 1, 1, rows))

    def unread(self, read: Position, ends: Sequence[tuple[int, int]], received: int) -> int:
        """Return the number of unread records, and forget the messages that are read.

        Args:
            read: the position of the first record that isn't committed.
            ends: of each partition the first and the next offset.
            received: the number of committed records.
        """
        rows = messages = others = 0.0
        parts = [0]  # of bundles that the reader has begun, the numbers of records that are read
        for partition, (start, (begin, end)) in enumerate(zip(read, ends, strict=True)):
            first = max(begin, offset_of(start))
            own = self._own.get(partition, deque())
            while own and own[0].end <= first:
                own.popleft()
            mine = 0.0
            for some in own:
                share = (some.end - max(some.start, first)) / (some.end - some.start)
                rows += some.rows * share
                mine += some.messages * share
            messages += mine
            others += max(end - first - mine, 0)
            if end > first:
                parts.append(max(start - row_number(first), 0))
        known = messages + sum(map(offset_of, read))
        mean = (rows + received - sum(parts)) / known if known else 1
        return max(round(rows + others * max(mean, *parts, 1)) - sum(parts), 0)
