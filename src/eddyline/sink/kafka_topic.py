"""Topics of a Kafka sink: creating them, and reading what is committed on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eddyline.relay.kafka_client import (
    RETRY_EVERY_S,
    TIMEOUT_S,
    TRANSIENT,
    AdminClient,
    ConfigResource,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    offsets_at,
    timed_out,
)

LEAST_LIMIT = 1_000_000
"""The size of messages that brokers accept, where they don't tell."""

_LIMIT = "max.message.bytes"
_READ_AT_ONCE = 10_000
_KNOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Range:
    """The committed messages of a partition: from the offset `begin` up to `end`."""

    partition: int
    begin: int
    end: int


def size_limit(admin: AdminClient, topic: str) -> int:
    """Return the number of bytes up to which a topic accepts messages."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (found,) = admin.describe_configs([resource]).values()
        return int(found.result(TIMEOUT_S)[_LIMIT].value)
    except (KafkaException, KeyError, TypeError):  # not every client may read settings
        return LEAST_LIMIT


def identity(admin: AdminClient, topic: str) -> str | None:
    """Return the id that brokers have given to a topic when it was created; None if it isn't there.

    A broker that has just started, or a topic just created, may not be known to all at once.
    """
    deadline = time.monotonic() + _KNOWN_S
    while True:
        (found,) = admin.describe_topics(TopicCollection([topic])).values()
        try:
            return str(found.result(TIMEOUT_S).topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        if time.monotonic() > deadline:
            return None
        time.sleep(RETRY_EVERY_S)


def committed_ranges(admin: AdminClient, topic: str) -> list[Range]:
    """Return the committed messages of a topic, after all open transactions have ended.

    An open transaction of another program would hide the messages after it.
    """
    partitions = _partitions(admin, topic)
    begins = _offsets(admin, topic, partitions, OffsetSpec.earliest(), read_committed=False)
    ends = _offsets(admin, topic, partitions, OffsetSpec.latest(), read_committed=False)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        stable = _offsets(admin, topic, partitions, OffsetSpec.latest(), read_committed=True)
        if all(stable[one] >= ends[one] for one in partitions):
            return [Range(one, begins[one], ends[one]) for one in partitions]
        if time.monotonic() > deadline:
            raise timed_out()
        time.sleep(0.005)


def consumer(settings: Mapping[str, Any], group: str) -> Consumer:
    """Return a consumer of committed messages, which belongs to no group."""
    return Consumer(
        {
            **settings,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,  # readers stop at the end
            "fetch.error.backoff.ms": 20,
        }
    )


def messages(reader: Consumer, topic: str, ranges: list[Range]) -> Iterator[list[Message]]:
    """Yield the messages of a topic within ranges, each partition in its order."""
    left = {one.partition: one.end for one in ranges if one.begin < one.end}
    starts = [TopicPartition(topic, r.partition, r.begin) for r in ranges if r.partition in left]
    if not starts:
        return
    reader.list_topics(topic, timeout=TIMEOUT_S)  # a client learns of a topic seconds later else
    reader.assign(starts)
    deadline = time.monotonic() + TIMEOUT_S
    while left:
        found = []
        # a wait for several messages lasts for its whole time, however many are there
        for message in (*reader.consume(1, 0.2), *reader.consume(_READ_AT_ONCE, 0)):
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            end = left.get(partition)
            if error is None:
                if end is not None and offset is not None and offset < end:
                    found.append(message)
                    deadline = time.monotonic() + TIMEOUT_S
                if end is not None and offset is not None and offset + 1 >= end:
                    del left[partition]
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                if end is not None and (offset is None or offset >= end):
                    del left[partition]
            elif error.code() not in TRANSIENT:
                raise KafkaException(error)
        if found:
            yield found
        elif time.monotonic() > deadline:
            raise timed_out()
    reader.unassign()


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions; one just created may not be known at once."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is None and found.partitions:
            return sorted(found.partitions)
        if found.error is not None and (
            found.error.code() not in TRANSIENT or time.monotonic() > deadline
        ):
            raise KafkaException(found.error)
        time.sleep(RETRY_EVERY_S)


def _offsets(
    admin: AdminClient, topic: str, partitions: list[int], spec: Any, *, read_committed: bool
) -> dict[int, int]:
    asked = [(topic, one) for one in partitions]
    found = offsets_at(admin, asked, spec, read_committed=read_committed)
    return {partition: offset for (_, partition), offset in found.items()}
