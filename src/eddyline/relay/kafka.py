"""A data queue on Kafka: topics `<app>.eden`, `<app>.from` and `<app>.to`, and transactions.

The state is the last message of a fourth topic, `<app>.state`; it and the records that flow back are
one transaction. A second reader takes the queue over: the transactions of the first one are refused
from then on. The offsets of the consumer group `<app>` are told to the brokers too, but only for
tools that show how far it is: librdkafka's call that makes them a part of a transaction can hang for
ever once a broker has died (its issues 5456 and 5511).

Many records are bundled into one message: an Arrow batch, told by the header `eddyline`. Any other
message is one record: other programs may write to eden too.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.errors import EddylineError, EngineError, StateError, StorageError
from eddyline.relay.keys import spread
from eddyline.relay.queue import EDEN, QUEUES, TAKEN, Position, Span, State, taken
from eddyline.relay.records import (
    KEY,
    NEW,
    RECORDS,
    as_read,
    decode,
    encode,
    new_records,
    no_records,
)

try:
    from confluent_kafka import (
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
except ImportError as error:
    raise EngineError(
        "a queue on Kafka needs the package confluent-kafka, which is not installed",
        condition="MISSING_PACKAGE",
        hint="pip install 'eddyline[kafka]'",
    ) from error

STATE = "state"
HEADER = "eddyline"  # its value is the number of records in the bundle
BUNDLE_ROWS = 1000
BUNDLE_BYTES = 900_000  # a broker takes messages of 1 MB by default
TIMEOUT_S = 30.0
VISIBLE_EVERY_S = 0.002
UNREAD_EVERY_S = 0.5  # a producer asks for the backlog no more often

# A place is offset and row of the bundle; with the partition in front it is a record's position.
ROW_BITS, PLACE_BITS = 16, 56


class KafkaBackend:
    """The queue of one application on a Kafka cluster.

    Args:
        servers: addresses, as `bootstrap.servers`.
        app: name of the application: of its topics, consumer group and transactions.
        partitions: of topics that don't exist yet; records with one key go to one partition.
        replication: copies of topics that don't exist yet.
        settings: more settings of the client, such as those of security.
        clock: milliseconds since 1970.
    """

    def __init__(
        self,
        servers: str,
        app: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        settings: dict[str, str] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.app = app
        self.clock = clock
        self._settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "logger": logging.getLogger("eddyline.kafka"),
            # The call that an error breaks raises it.
            "error_cb": lambda _: None,
            "reconnect.backoff.max.ms": 1000,
            **(settings or {}),
        }
        with _told(app):
            self._partitions = self._topics(partitions, replication)
            self._put = Producer({**self._settings, **_DURABLE})
        self._commits: Producer | None = None
        self._taken: EddylineError | None = None
        # One call at a time waits in a consumer: planning and commits don't share one.
        self._offsets, self._group = self._consumer(), self._consumer()
        self._states = _Reader(self._consumer(), self._topic(STATE))
        self._asking = threading.Lock()
        self._owner = uuid.uuid4().hex  # of the commits of this reader
        self._readers: dict[str, _Reader] = {}
        self._unread = (0.0, 0)

    def put(self, records: pa.Table) -> int:
        with _told(self.app):
            self._send(self._put, EDEN, records)
            self._unread = (self._unread[0], self._unread[1] + records.num_rows)
        return int(records.num_rows)

    def claim(self) -> State:
        with _told(self.app):
            self._commits = self._transactions()
            return self._committed()[0]

    def unread(self) -> int:
        """Messages of eden that aren't committed; a bundle of many records counts as one.

        The broker is asked now and then; what this process has put since then is added.
        """
        asked, known = self._unread
        if time.monotonic() - asked > UNREAD_EVERY_S:
            with _told(self.app):
                read = self._committed()[0].read[EDEN]
                known = sum(
                    _offset(end) - _offset(start)
                    for start, end in zip(read, self._ends(EDEN), strict=True)
                )
            self._unread = (time.monotonic(), known)
        return known

    def end(self) -> Position:
        with _told(self.app):
            return self._ends(EDEN)

    def measure(
        self, queue: str, start: Position, rows_max: int, before_ms: int | None = None
    ) -> tuple[Position, int]:
        with _told(self.app):
            if queue not in self._readers:
                self._readers[queue] = _Reader(self._consumer(), self._topic(queue))
            return self._readers[queue].measure(start, self._ends(queue), rows_max, before_ms)

    def read(self, span: Span) -> pa.Table:
        with _told(self.app):
            reader = self._readers.get(span.queue)
            messages = None if reader is None else reader.held(span)
            if messages is None:
                own = self._consumer()
                try:
                    messages = _Reader(own, self._topic(span.queue)).fetch(span.start, span.end)
                finally:
                    own.close()
        tables = [_within(span, message) for message in messages]
        return pa.concat_tables([no_records(), *tables])

    def commit(self, state: State, back: pa.Table) -> None:
        if self._taken:
            raise self._taken
        try:
            with _told(self.app):
                if self._commits is None:  # a try has failed, and may have gone through
                    self._commits = self._transactions()
                    durable, owner = self._committed()
                    if durable.number >= state.number:
                        if owner == self._owner:
                            return
                        raise taken(app=self.app)
                self._transact(self._commits, state, back)
        except EddylineError as error:
            self._commits = None
            if error.condition == TAKEN:
                self._taken = error
            raise

    def _transact(self, producer: Producer, state: State, back: pa.Table) -> None:
        producer.begin_transaction()
        sent = self._send(producer, state.back, back)
        text = json.dumps({"owner": self._owner, **state.as_dict()})
        producer.produce(self._topic(STATE), text, key=STATE, partition=0)
        producer.commit_transaction(TIMEOUT_S)
        self._unread = (0.0, 0)
        self._group.commit(offsets=self._as_offsets(state), asynchronous=True)
        # The coordinator answers before the brokers show what is committed.
        deadline = time.monotonic() + TIMEOUT_S
        while any(
            _patiently(self._group.get_watermark_offsets, place)[1] <= place.offset
            for place in sent
        ):
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            time.sleep(VISIBLE_EVERY_S)

    def _transactions(self) -> Producer:
        """A producer that ends what others with its id have begun, and refuses them from now on."""
        producer = Producer({**self._settings, **_DURABLE, "transactional.id": f"{self.app}.queue"})
        producer.init_transactions(TIMEOUT_S)
        return producer

    def close(self) -> None:
        readers = [reader.consumer for reader in self._readers.values()]
        self._readers = {}
        readers += [self._offsets, self._group, self._states.consumer]
        for client in (*readers, self._put, self._commits):
            if client is not None:
                # It is closed already, or has failed for good and says so once more.
                with suppress(RuntimeError, SystemError, KafkaException):
                    client.close()

    def _topic(self, queue: str) -> str:
        return f"{self.app}.{queue}"

    def _topics(self, partitions: int, replication: int) -> int:
        """Create the topics that are missing; how many partitions they have."""
        admin = AdminClient(self._settings)
        known = admin.list_topics(timeout=TIMEOUT_S).topics
        eden = known.get(self._topic(EDEN))
        partitions = partitions if eden is None else len(eden.partitions)
        topics = [NewTopic(self._topic(queue), partitions, replication) for queue in QUEUES]
        compacted = {"cleanup.policy": "compact"}
        topics.append(NewTopic(self._topic(STATE), 1, replication, config=compacted))
        missing = [topic for topic in topics if topic.topic not in known]
        for future in admin.create_topics(missing).values() if missing else ():
            try:
                future.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return partitions

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._settings,
                "group.id": self.app,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )

    def _ends(self, queue: str) -> Position:
        """Where what is committed in each partition ends."""
        return tuple(_place(end) for _, end in self._watermarks(queue))

    def _watermarks(self, queue: str) -> list[tuple[int, int]]:
        count = 1 if queue == STATE else self._partitions
        places = [TopicPartition(self._topic(queue), i) for i in range(count)]
        return [_patiently(self._offsets.get_watermark_offsets, place) for place in places]

    def _send(self, producer: Producer, queue: str, records: pa.Table) -> list[TopicPartition]:
        """Produce bundles, and wait until the brokers have all of them; where the last ones are."""
        failures: list[KafkaError] = []
        last: dict[int, int] = {}

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                last[message.partition() or 0] = message.offset() or 0

        topic = self._topic(queue)
        for partition, bundle in self._bundles(records):
            while True:
                try:
                    producer.produce(
                        topic,
                        encode(bundle),
                        partition=partition,
                        headers=[(HEADER, str(bundle.num_rows).encode())],
                        timestamp=self.clock(),
                        on_delivery=told,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        try:
            left = producer.flush(TIMEOUT_S)
        except SystemError as error:  # the client has raised while it called `told`
            raise error.__cause__ or error from None
        if failures:
            raise KafkaException(failures[0])
        if left:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return [TopicPartition(topic, partition, offset) for partition, offset in last.items()]

    def _bundles(self, records: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Parts that fit into messages, each with its partition."""
        count = self._partitions
        if count == 1:
            yield from ((0, bundle) for bundle in _cut(records))
            return
        partitions = spread(records[KEY], count)
        for partition in range(count):
            mine = records.filter(pa.array(partitions == partition))
            yield from ((partition, bundle) for bundle in _cut(mine))

    def _committed(self) -> tuple[State, str]:
        """The state, and who has committed it."""
        with self._asking:
            ((begin, end),) = self._watermarks(STATE)
            for behind in (1 << i for i in range(6, 64)):
                # Between it and the end there are marks and what was broken off.
                start = max(begin, end - behind)
                found = self._states.fetch((_place(start),), (_place(end),))
                if found:
                    document = json.loads(found[-1].value)
                    owner = document.pop("owner")
                    return State.from_dict(document), owner
                if start == begin:
                    break
        begins = {
            queue: [_place(begin) for begin, _ in self._watermarks(queue)] for queue in QUEUES
        }
        return State(read={queue: tuple(places) for queue, places in begins.items()}), ""

    def _as_offsets(self, state: State) -> list[TopicPartition]:
        return [
            TopicPartition(self._topic(queue), partition, _offset(place))
            for queue in QUEUES
            for partition, place in enumerate(state.read[queue])
        ]


@dataclass(frozen=True, slots=True)
class _Message:
    """A message; `bundled` is how many records it holds, None where another program made it."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: str | bytes | None
    value: bytes
    bundled: int | None


@dataclass(slots=True)
class _Reader:
    """Messages of one topic: those that were measured wait here until they are read."""

    consumer: Consumer
    topic: str
    next: list[int] = field(default_factory=list)  # offset that comes next, by partition
    fetched: list[_Message] = field(default_factory=list)
    measured: dict[tuple[Position, Position], list[_Message]] = field(default_factory=dict)

    def measure(
        self, start: Position, ends: Position, rows_max: int, before_ms: int | None
    ) -> tuple[Position, int]:
        self._seek(start)
        places, rows, used = list(start), 0, 0
        while rows < rows_max:
            if used == len(self.fetched) and not self._more(ends):
                # Behind them there may be marks of transactions only.
                places = [max(*both) for both in zip(places, map(_place, self.next), strict=True)]
                break
            message = self.fetched[used]
            if before_ms is not None and message.time_ms > before_ms:
                break
            partition, offset = message.partition, message.offset
            first = max(places[partition] - _place(offset), 0)
            left = (message.bundled or 1) - first
            taken = min(left, rows_max - rows)
            places[partition] = (
                _place(offset + 1) if taken == left else _place(offset) + first + taken
            )
            rows, used = rows + taken, used + 1
        end = tuple(places)
        if rows:
            # The one plan that comes next; what was measured for others was only looked at.
            self.measured = {(start, end): self.fetched[:used]}
        return end, rows

    def fetch(self, start: Position, end: Position) -> list[_Message]:
        """The messages of a span."""
        self._seek(start)
        while self._more(end):
            pass
        return [m for m in self.fetched if _place(m.offset) < end[m.partition]]

    def held(self, span: Span) -> list[_Message] | None:
        """The messages of a span that was measured just now."""
        return self.measured.pop((span.start, span.end), None)

    def _seek(self, start: Position) -> None:
        """Make `fetched` begin at `start`."""
        wanted = [_offset(place) for place in start]
        begins = self.next.copy()
        for message in reversed(self.fetched):
            begins[message.partition] = message.offset
        if self.next and all(
            begin <= place <= end
            for begin, place, end in zip(begins, wanted, self.next, strict=True)
        ):
            self.fetched = [m for m in self.fetched if m.offset >= wanted[m.partition]]
            return
        self.fetched, self.next = [], wanted
        self.consumer.assign(
            [TopicPartition(self.topic, partition, place) for partition, place in enumerate(wanted)]
        )

    def _more(self, ends: Position) -> bool:
        """Fetch something that lies before `ends`; False if there is nothing."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(_place(place) < end for place, end in zip(self.next, ends, strict=True)):
            came = False
            for message in self.consumer.consume(500, 0.2):
                error, partition, offset = message.error(), message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if error is None:
                    self.fetched.append(_received(message))
                    self.next[partition] = offset + 1
                    came = True
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    self.next[partition] = max(self.next[partition], offset)
                elif error.code() not in PASSING:
                    raise KafkaException(error)
            if came:
                return True
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return False


FENCED = (
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
PASSING = (
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # just created, and not known everywhere
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)
PASSING_EVERY_S = 0.05
_DURABLE: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "linger.ms": 1}


def _cut(records: pa.Table) -> Iterator[pa.Table]:
    """Pieces of at most `BUNDLE_ROWS` rows, and of about `BUNDLE_BYTES` where rows are large."""
    if not records.num_rows:
        return
    fit = max(1, BUNDLE_BYTES * records.num_rows // max(records.nbytes, 1))
    step = min(BUNDLE_ROWS, fit)
    for start in range(0, records.num_rows, step):
        piece = records.slice(start, step)
        if piece.nbytes > BUNDLE_BYTES and piece.num_rows > 1:
            half = piece.num_rows // 2
            yield from _cut(piece.slice(0, half))
            yield from _cut(piece.slice(half))
        else:
            yield piece


def _patiently(ask: Callable[[Any, float], Any], what: Any) -> Any:
    """Ask brokers something, again while one that can answer is looked for."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask(what, TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
            time.sleep(PASSING_EVERY_S)


def _place(offset: int) -> int:
    """The place of the first record of a message."""
    return offset << ROW_BITS


def _offset(place: int) -> int:
    return place >> ROW_BITS


def _received(message: Message) -> _Message:
    header, value = dict(message.headers() or []).get(HEADER), message.value()
    bundled = int(header) if isinstance(header, bytes) and header.isdigit() else None
    return _Message(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        value if isinstance(value, bytes) else b"",
        bundled,
    )


def _within(span: Span, message: _Message) -> pa.Table:
    """The records of a message that belong to a span: a plan may cut a bundle."""
    place = _place(message.offset)
    first = max(span.start[message.partition] - place, 0)
    return _records(message).slice(first, span.end[message.partition] - place - first)


def _records(message: _Message) -> pa.Table:
    first = (message.partition << PLACE_BITS) | _place(message.offset)
    if message.bundled is None:
        return as_read(new_records([message.value], [message.key]), [first], message.time_ms)
    new = message.topic.endswith(f".{EDEN}")
    try:
        table = decode(message.value, NEW if new else RECORDS)
        if table.num_rows != message.bundled:
            raise pa.ArrowInvalid(f"{table.num_rows} records, not {message.bundled}")
    except pa.ArrowInvalid as error:
        raise StateError(
            f"a message is not what was written: {error}",
            condition="DAMAGED_MESSAGE",
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
        ) from error
    return as_read(table, first + np.arange(table.num_rows), message.time_ms) if new else table


@contextmanager
def _told(app: str) -> Iterator[None]:
    """What Kafka says becomes an error of ours."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() in FENCED:
            raise taken(app=app) from error
        raise StorageError(
            f"Kafka can't be used: {cause.str()}",
            condition="KAFKA_FAILED",
            app=app,
            hint="see that the brokers run and can be reached, and make the same call again",
        ) from error
