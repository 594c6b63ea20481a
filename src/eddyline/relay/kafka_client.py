"""The Kafka client: imports, translation of its errors, and retries of transient failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from eddyline.errors import StorageError, missing_package
from eddyline.relay.backend import queue_taken_over

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        ConfigResource,
        OffsetSpec,
    )
    from confluent_kafka.cimpl import NewTopic
except ImportError as error:
    raise missing_package("a queue, stream or sink on Kafka", "confluent-kafka", "kafka") from error

__all__ = [
    "AdminClient",
    "ConfigResource",
    "Consumer",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "TopicCollection",
    "TopicPartition",
]

TIMEOUT_S = 30.0
RETRY_EVERY_S = 0.05

FENCED = (
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
TRANSIENT = (
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._NOENT,  # noqa: SLF001  # no partition has a leader yet
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,  # the client knows the leader of before a restart; it looks again
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader doesn't know its last offset yet
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # just created, and not known to every broker
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)


@contextmanager
def kafka_errors(app: str) -> Iterator[None]:
    """Translate KafkaException into StorageError, or into QueueError where a reader is fenced."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() in FENCED:
            raise queue_taken_over(app=app) from error
        raise StorageError(
            f"Kafka can't be used: {cause.str()}",
            condition="KAFKA_FAILED",
            app=app,
            hint="see that the brokers run and can be reached, and make the same call again",
        ) from error


def retried(
    request: Callable[[Any, float], Any],
    argument: Any,
    wait_s: float = TIMEOUT_S,
    prepare: Callable[[], object] = lambda: None,
) -> Any:
    """Return `request(argument, wait_s)`; retry transient failures until `wait_s` is over.

    Args:
        prepare: called before each retry; that fails by itself where this does.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return request(argument, wait_s)
        except KafkaException as error:
            if error.args[0].code() not in TRANSIENT or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_EVERY_S)
            with suppress(KafkaException):
                prepare()


def offsets_at(
    admin: AdminClient,
    partitions: Iterable[tuple[str, int]],
    spec: Any,
    *,
    read_committed: bool,
    wait_s: float = TIMEOUT_S,
) -> dict[tuple[str, int], int]:
    """Return an offset of each partition, given by topic and number; retry transient failures.

    Args:
        spec: which one: an `OffsetSpec`.
        read_committed: the latest one is that after all transactions that have ended.
        wait_s: how long to wait for an answer.
    """
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(*one): spec for one in partitions}

    def ask(asked: dict[TopicPartition, Any], wait_s: float) -> dict[tuple[str, int], int]:
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=wait_s).items()
        return {(at.topic, at.partition): future.result(wait_s).offset for at, future in answers}

    def look() -> None:  # who leads; else the client keeps an old leader for minutes
        for topic in {at.topic for at in asked}:
            admin.list_topics(topic, wait_s)

    found: dict[tuple[str, int], int] = retried(ask, asked, wait_s, look)
    return found


def timed_out() -> KafkaException:
    """Return the client's own error for a time-out."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001


def create_topics(admin: AdminClient, topics: list[NewTopic]) -> None:
    """Create the topics that are missing."""
    known = admin.list_topics(timeout=TIMEOUT_S).topics
    missing = [topic for topic in topics if topic.topic not in known]
    for future in admin.create_topics(missing).values() if missing else ():
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
