"""Reads topics of Kafka for streams, with a consumer that joins no group."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from eddyline.errors import DataError, EngineError
from eddyline.relay.kafka_client import (
    RETRY_EVERY_S,
    TIMEOUT_S,
    TRANSIENT,
    AdminClient,
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
from eddyline.source.base import cannot_read
from eddyline.source.kafka import (
    EARLIEST,
    ENTRY_BYTES,
    Described,
    Partition,
    StoppedError,
    lost,
)

OURS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
"""Settings of the client that the source itself needs."""

_SETTINGS: Mapping[str, Any] = {
    "group.id": "eddyline",  # the client asks for one, and doesn't join it
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}
WAIT_S = 10.0
"""So long topics are asked for; reading waits for `TIMEOUT_S`."""

LOOK_S = 0.1
"""How late it may be noticed that the stream is being stopped, while brokers are waited for."""

_READ_AT_ONCE = 10_000
_STALL_S = 1.0  # an entry ends when no record has come for so long
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001
_LOST = (
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,  # noqa: SLF001
)

T = TypeVar("T")


class KafkaTopics:
    """The topics of a stream; see `eddyline.source.kafka.Topics`.

    Args:
        stream: its name, for errors.
        settings: of the client, with its addresses.
        names: the topics to read.
        pattern: a regular expression; topics with matching names are read too, except Kafka's internal ones. Empty for none.
        stopped: set to make running calls return.
    """

    def __init__(
        self,
        stream: str,
        settings: Mapping[str, Any],
        names: Sequence[str],
        pattern: str,
        stopped: threading.Event,
    ) -> None:
        self._stream, self._names, self._stopped = stream, names, stopped
        self._pattern = re.compile(pattern) if pattern else None
        self._unconnected = ""
        shared = {
            **settings,
            "logger": logging.getLogger("eddyline.kafka"),
            "error_cb": self._keep_error,
        }
        own = {**_SETTINGS, **settings, **OURS}
        with self._translated_errors():
            try:
                self._consumer = Consumer({**shared, **own})
                self._admin = AdminClient(shared)
            except KafkaException as error:
                raise DataError(
                    f"stream {stream} has a setting that the Kafka client doesn't take: "
                    f"{error.args[0].str()}",
                    condition="BAD_STREAM",
                    stream=stream,
                    hint="the settings after kafka. are those of librdkafka, which has other names for "
                    "some of Java's client: kafka.ssl.ca.location, kafka.sasl.username",
                ) from error
        self._next: dict[Partition, int] | None = None  # where the consumer is

    def _keep_error(self, error: KafkaError) -> None:
        """Keep the client's reason for a failed connection, for the error of the call that times out meanwhile."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._unconnected = error.str()

    def describe(self, known: Iterable[str]) -> dict[str, Described | None]:
        """Return the topics to read, and the known ones; None for a topic that doesn't exist."""
        names = [*self._names, *known]
        with self._translated_errors():
            return self._awaited(lambda: self._describe(names))

    def _describe(self, names: Sequence[str]) -> dict[str, Described | None]:
        found: dict[str, Described | None] = {}
        matching = set[str]()
        if self._pattern is not None:
            there = self._admin.list_topics(timeout=WAIT_S).topics
            matching = set(filter(self._pattern.fullmatch, there)).difference(names)
        asked, deadline = [*dict.fromkeys(names), *sorted(matching)], time.monotonic() + WAIT_S
        while asked:
            answers = self._admin.describe_topics(TopicCollection(asked), request_timeout=WAIT_S)
            asked = []
            for name, future in answers.items():
                try:
                    topic = future.result(WAIT_S)
                    if not (topic.is_internal and name in matching):
                        found[name] = _described(topic)
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        found[name] = None
                    elif code in TRANSIENT and time.monotonic() < deadline:
                        asked.append(name)
                    else:
                        raise
            self._check_stopped()
            if asked:
                time.sleep(RETRY_EVERY_S)
        return found

    def offsets(self, partitions: Iterable[Partition], which: int) -> dict[Partition, int]:
        """Return for each partition its first offset, or the one after all committed records."""
        asked = list(partitions)
        if not asked:
            return {}
        spec = OffsetSpec.earliest() if which == EARLIEST else OffsetSpec.latest()
        with self._translated_errors():
            committed = which != EARLIEST
            return self._awaited(
                lambda: offsets_at(
                    self._admin, asked, spec, read_committed=committed, wait_s=WAIT_S
                )
            )

    def read(
        self, after: Mapping[Partition, int], ends: Mapping[Partition, int], most: int | None
    ) -> tuple[list[Message], dict[Partition, int]]:
        """Return committed records, and the offsets after them; see `eddyline.source.kafka.Topics`."""
        with self._translated_errors():
            if self._next != after:
                self._assign(after)
            messages, offsets = self._read(dict(after), dict(ends), most)
            self._next = offsets
            if most is not None:
                return messages, offsets
            cut = {**after, **ends}
            self._next = None if cut != offsets else offsets
            within = (m for m in messages if (m.offset() or 0) < ends.get(_partition(m), 0))
            return list(within), cut

    def _read(
        self, offsets: dict[Partition, int], left: dict[Partition, int], most: int | None
    ) -> tuple[list[Message], dict[Partition, int]]:
        """Read until all partitions in `left` are read up to their offsets, or there are enough records for an entry."""
        messages: list[Message] = []
        size, moved = 0, time.monotonic()
        while left and (most is None or (len(messages) < most and size < ENTRY_BYTES)):
            self._check_stopped()
            rest = _READ_AT_ONCE if most is None else min(_READ_AT_ONCE, most - len(messages))
            found, reports = self._consume(rest)
            if found:
                offsets |= _offsets_after(found)
                messages += found
                size += sum(map(len, found))
                moved = time.monotonic()
            all_there = self._handle_reports(reports, offsets)
            left = {one: end for one, end in left.items() if offsets[one] < end}
            waited = time.monotonic() - moved
            may_stop = bool(messages) and most is not None
            if may_stop and (not all_there or waited > _STALL_S):
                break
            if waited > TIMEOUT_S:
                raise timed_out()
        return messages, offsets

    def _consume(self, most: int) -> tuple[list[Message], list[Message]]:
        """Wait a moment for records; return up to `most` of them, and the client's events: errors, ends of partitions."""
        # a wait for several messages lasts for its whole time, however many are there
        found = self._consumer.consume(1, 0.1) or []
        if found and most > 1:
            found += self._consumer.consume(most - 1, 0)
        reports = [message for message in found if message.error() is not None]
        if reports:
            found = [message for message in found if message.error() is None]
        return found, reports

    def _handle_reports(self, reports: Sequence[Message], offsets: dict[Partition, int]) -> bool:
        """Process the client's events; return whether all topics exist.

        Raises:
            EngineError: SOURCE_LOST.
            KafkaException: brokers refuse something.
        """
        there = True
        for message in reports:
            error, one = message.error(), _partition(message)
            assert error is not None
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                offsets[one] = max(offsets[one], message.offset() or 0)
            elif error.code() in _LOST:
                self._raise_lost(one, offsets[one], error)
            elif error.code() not in TRANSIENT:
                raise KafkaException(error)
            elif error.code() in _GONE:
                there = False
        return there

    def _raise_lost(self, one: Partition, offset: int, error: KafkaError) -> None:
        first = self.offsets([one], EARLIEST)[one]
        where = f"partition {one[1]} of topic {one[0]}"
        if offset < first:
            raise lost(
                self._stream,
                f"{where} begins at offset {first} by now, and {first - offset} offsets before it were not "
                "read: retention has deleted their records",
            )
        raise lost(self._stream, f"{where} has no offset {offset}: {error.str()}")

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def _assign(self, offsets: Mapping[Partition, int]) -> None:
        self._consumer.assign([TopicPartition(*one, offset) for one, offset in offsets.items()])
        self._next = dict(offsets)

    def _awaited(self, call: Callable[[], T]) -> T:
        """Make a call that may wait for brokers in a thread, which is left alone when the stream is stopped."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # raised below
                future.set_exception(error)

        threading.Thread(target=run, name="eddyline-kafka-call", daemon=True).start()
        while not wait([future], LOOK_S).done:
            self._check_stopped()
        return future.result()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoppedError

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the client's errors."""
        self._unconnected = ""
        try:
            yield
        except KafkaException as error:
            self._next = None
            raise self._failed(error.args[0].str()) from error
        except TimeoutError as error:
            self._next = None
            raise self._failed("no broker answers") from error
        except BaseException:
            self._next = None
            raise

    def _failed(self, what: str) -> EngineError:
        self._admin.poll(0)  # calls `_keep_error`
        return cannot_read(
            self._stream, ": ".join(filter(None, ("Kafka", what, self._unconnected)))
        )


def _described(topic: Any) -> Described:
    number = topic.topic_id
    known = number.get_most_significant_bits() or number.get_least_significant_bits()
    return Described(str(number) if known else "", len(topic.partitions))


def _offsets_after(messages: Sequence[Message]) -> dict[Partition, int]:
    """Return for each partition the offset after its last record; takes dicts of zips in place of a loop."""
    topics, numbers = [m.topic() for m in messages], [m.partition() for m in messages]
    places: Any = zip(topics, numbers, strict=True)
    last: Any = zip(places, [m.offset() for m in messages], strict=True)
    return {one: offset + 1 for one, offset in dict(last).items()}


def _partition(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0
