"""A data queue on Kafka: topics `<app>.eden`, `<app>.from` and `<app>.to`, and transactions.

The state is the last message of a fourth topic, `<app>.state`. A transaction writes it together
with the failed records. A second reader takes the queue over: from then on the brokers refuse the
transactions of the first one. The offsets of the consumer group `<app>` are committed too, but only
for tools that show progress, and outside the transaction: librdkafka's call that adds offsets to a
transaction can hang for ever once a broker has died (its issues 5456 and 5511).
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.arguments import check_number, checked, wrong_argument
from eddyline.errors import EddylineError, QueueError
from eddyline.relay.backend import (
    EDEN,
    FROM,
    QUEUES,
    TAKEN_OVER,
    TO,
    Position,
    QueueState,
    RowRange,
    queue_taken_over,
)
from eddyline.relay.kafka_backlog import EdenBacklog
from eddyline.relay.kafka_client import (
    TIMEOUT_S,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewTopic,
    Producer,
    TopicPartition,
    create_topics,
    kafka_errors,
    retried,
    timed_out,
)
from eddyline.relay.kafka_messages import HEADER, bundles, offset_of, row_number
from eddyline.relay.kafka_reader import TopicReader
from eddyline.relay.kafka_retention import check_retention
from eddyline.relay.keys import key_slots
from eddyline.relay.records import KEY, PAYLOAD, encode, no_records

STATE = "state"
_APP = re.compile(r"[A-Za-z0-9._-]{1,200}")  # what Kafka allows as the name of a topic
VISIBLE_EVERY_S = 0.002
BROKERS_DEFAULT = -1  # as a replication factor
UNREAD_EVERY_S = 0.5  # a producer asks for the backlog no more often
MESSAGE_BYTES = 1_000_000  # the client's default
BUNDLE_OVERHEAD_BYTES = 1000
"""What a message has at most besides the payload and the key of its only record."""
RETRY_BYTES = 64 << 20
"""The least limit of a message of the failure queues: a failed record has a reason too, and may come from another program."""
_BYTES, _TOPIC_BYTES = "message.max.bytes", "max.message.bytes"  # of a client, and of a topic
_DURABLE: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "linger.ms": 1}


@checked
class KafkaBackend:
    """The queue of one application on a Kafka cluster.

    Args:
        servers: addresses, as `bootstrap.servers`.
        app: name of the application; prefix of its topics, consumer group and transactions.
        partitions: number of partitions of topics that don't exist yet. Records of one key go to
            one partition.
        replication: replication factor of topics that don't exist yet; None for the default of the
            brokers (`default.replication.factor`).
        settings: further client settings, such as those for security.
        clock: returns milliseconds since 1970.

    Raises:
        EngineError: BAD_OPTION: an argument can't be used.
        StorageError: KAFKA_FAILED: the brokers can't be reached, or refuse to create a topic.

    Example:
        >>> from eddyline import DataQueue
        >>> servers, app = "localhost:9092", "shop"  # doctest: +SKIP
        >>> queue = DataQueue(KafkaBackend(servers, app, partitions=2))
        >>> queue.put(["tea"], keys=["a"])
        1
        >>> batch, records = queue.read(10)
        >>> records["payload"].to_pylist()
        [b'tea']
        >>> queue.ack(batch.number, [0])
        >>> queue.commit()
        1
        >>> queue.close()
    """

    def __init__(
        self,
        servers: str,
        app: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        settings: dict[str, str] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if not servers.strip():
            raise wrong_argument("servers", servers, "give addresses such as host:9092")
        if not _APP.fullmatch(app):
            hint = "use at most 200 letters, digits, dots, underscores and hyphens"
            raise wrong_argument("app", app, hint)
        check_number("partitions", partitions, 1)
        if replication is not None:
            check_number("replication", replication, 1)
        self.app = app
        self.clock = clock
        message_bytes = int((settings or {}).get(_BYTES, MESSAGE_BYTES))
        self._record_bytes = message_bytes - BUNDLE_OVERHEAD_BYTES
        self._retry_bytes = max(RETRY_BYTES, 2 * message_bytes)
        self._settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "logger": logging.getLogger("eddyline.kafka"),
            # Errors are raised by the calls that they break.
            "error_cb": lambda _: None,
            "reconnect.backoff.max.ms": 1000,
            **(settings or {}),
        }
        with kafka_errors(app):
            self._partitions = self._create_topics(partitions, replication or BROKERS_DEFAULT)
            self._new_records = Producer({**self._settings, **_DURABLE})
        self._transactions: Producer | None = None
        self._taken_over: EddylineError | None = None
        # A consumer serves one call at a time: planning and commits don't share one.
        self._offsets, self._group = self._consumer(), self._consumer()
        self._states = TopicReader(self._consumer(), self._topic(STATE))
        self._reading_state = threading.Lock()
        self._owner = uuid.uuid4().hex  # marks the commits of this reader
        self._readers: dict[str, TopicReader] = {}
        self._backlog, self._counting = EdenBacklog(), threading.Lock()
        self._unread = (0.0, 0)  # when it was measured, and the number
        self._own_commit = QueueState()  # may be visible to consumers only later

    @property
    def place(self) -> str:
        """What tells the queue from others: the brokers and the application."""
        servers = sorted(self._settings["bootstrap.servers"].replace(" ", "").split(","))
        return f"kafka://{','.join(servers)}/{self.app}"

    def put(self, records: pa.Table) -> int:
        self._check_sizes(records)
        with kafka_errors(self.app):
            self._send(self._new_records, EDEN, records, self._count)
        return int(records.num_rows)

    def _count(self, partition: int, offset: int, rows: int) -> None:
        """Count the records of a message that was put into eden."""
        with self._counting:
            self._backlog.add(partition, offset, rows)
            self._unread = (self._unread[0], self._unread[1] + rows)

    def _check_sizes(self, records: pa.Table) -> None:
        """Raise QueueError (BAD_RECORDS) if a record is larger than a message may be."""
        payloads, keys = (pc.binary_length(records[name]) for name in (PAYLOAD, KEY))
        sizes = pc.add(payloads, pc.coalesce(keys, 0)).to_numpy()
        large = np.flatnonzero(sizes > self._record_bytes)
        if len(large):
            raise QueueError(
                f"the record at place {large[0]} has {sizes[large[0]]:,} bytes, and a message has room for "
                f"{self._record_bytes:,}; nothing was put",
                condition="BAD_RECORDS",
                topic=self._topic(EDEN),
                hint=f"split it, or raise {_BYTES} in `settings` and {_TOPIC_BYTES} of the topic",
            )

    def check_claim(self) -> None:
        """Raise QueueError if the queue can't be read; a reader goes on, which `claim` would replace."""
        with kafka_errors(self.app):
            self._committed()

    def claim(self) -> QueueState:
        with kafka_errors(self.app):
            self._transactions = self._begin_transactions()
            return self._committed()[0]

    def check_retention(self, retry_delay_ms: int) -> None:
        if retry_delay_ms:
            topics = [self._topic(queue) for queue in (FROM, TO)]
            with kafka_errors(self.app):
                check_retention(AdminClient(self._settings), topics, retry_delay_ms)

    def unread(self) -> int:
        """Return the number of uncommitted records of eden: see `EdenBacklog` for what is approximate.

        The number is cached for `UNREAD_EVERY_S`; records that this process puts are added.
        """
        if time.monotonic() - self._unread[0] > UNREAD_EVERY_S:
            with kafka_errors(self.app):
                durable, ends = self._committed()[0], self._watermarks(EDEN)
            state = max(durable, self._own_commit, key=lambda each: each.number)
            with self._counting:
                known = self._backlog.unread(state.read[EDEN], ends, state.received)
                self._unread = (time.monotonic(), known)
        return self._unread[1]

    def end(self) -> Position:
        with kafka_errors(self.app):
            return self._ends(EDEN)

    def measure(
        self,
        queue: str,
        start: Position,
        rows_max: int,
        before_ms: int | None = None,
        bytes_max: int | None = None,
    ) -> tuple[Position, int]:
        with kafka_errors(self.app):
            if queue not in self._readers:
                self._readers[queue] = TopicReader(self._consumer(), self._topic(queue))
            limits = (rows_max, before_ms, bytes_max)
            return self._readers[queue].measure(start, self._ends(queue), *limits)

    def expired(self, span: RowRange) -> dict[str, int]:
        topic, reader = self._topic(span.queue), self._readers[span.queue]
        gaps = reader.expired(span.start, span.end)
        return {f"{topic} partition {partition}": count for partition, count in gaps.items()}

    def read(self, span: RowRange) -> pa.Table:
        with kafka_errors(self.app):
            reader = self._readers.get(span.queue)
            messages = None if reader is None else reader.pop_measured(span)
            if messages is None:
                consumer = self._consumer()
                try:
                    reader = TopicReader(consumer, self._topic(span.queue))
                    messages = reader.fetch(span.start, span.end)
                finally:
                    consumer.close()
        tables = [message.records_within(span) for message in messages]
        records = pa.concat_tables([no_records(), *tables])
        if records.num_rows < span.rows:
            raise QueueError(
                f"{span.rows - records.num_rows} of {span.rows} records were deleted since they "
                "were planned",
                condition="RECORDS_EXPIRED",
                topic=self._topic(span.queue),
                hint="abandon the batch and plan again",
            )
        return records

    def commit(self, state: QueueState, failed: pa.Table) -> None:
        if self._taken_over:
            raise self._taken_over
        try:
            with kafka_errors(self.app):
                if self._transactions is None:  # an earlier attempt failed, and may be committed
                    self._transactions = self._begin_transactions()
                    durable, owner = self._committed()
                    if durable.number >= state.number:
                        if owner == self._owner:
                            return
                        raise queue_taken_over(app=self.app)
                self._transact(self._transactions, state, failed)
        except EddylineError as error:
            self._transactions = None
            if error.condition == TAKEN_OVER:
                self._taken_over = error
            raise

    def _transact(self, producer: Producer, state: QueueState, failed: pa.Table) -> None:
        """Commit the state and the failed records, and wait until consumers can read these."""
        producer.begin_transaction()
        sent = self._send(producer, state.failure_queue, failed)
        text = json.dumps({"owner": self._owner, **state.as_dict()})
        producer.produce(self._topic(STATE), text, key=STATE, partition=0)
        producer.commit_transaction(TIMEOUT_S)
        self._own_commit = state
        with self._counting:
            self._unread = (0.0, self._unread[1])
        self._group.commit(offsets=self._as_offsets(state), asynchronous=True)
        # The coordinator answers before the committed records are visible to consumers.
        deadline = time.monotonic() + TIMEOUT_S
        while any(
            retried(self._group.get_watermark_offsets, last)[1] <= last.offset for last in sent
        ):
            if time.monotonic() > deadline:
                raise timed_out()
            time.sleep(VISIBLE_EVERY_S)

    def _begin_transactions(self) -> Producer:
        """Return a transactional producer, and fence every earlier one of the application."""
        own = {"transactional.id": f"{self.app}.queue", _BYTES: self._retry_bytes}
        producer = Producer({**self._settings, **_DURABLE, **own})
        producer.init_transactions(TIMEOUT_S)
        return producer

    def close(self) -> None:
        consumers = [reader.consumer for reader in self._readers.values()]
        self._readers = {}
        consumers += [self._offsets, self._group, self._states.consumer]
        for client in (*consumers, self._new_records, self._transactions):
            if client is not None:
                # It may be closed already, or raise its fatal error once more.
                with suppress(RuntimeError, SystemError, KafkaException):
                    client.close()

    def _topic(self, queue: str) -> str:
        return f"{self.app}.{queue}"

    def _create_topics(self, partitions: int, replication: int) -> dict[str, int]:
        """Create the missing topics; return the number of partitions of each queue."""
        admin = AdminClient(self._settings)
        known = admin.list_topics(timeout=TIMEOUT_S).topics
        there = {queue: known.get(self._topic(queue)) for queue in QUEUES}
        if (eden := there[EDEN]) is not None:
            partitions = len(eden.partitions)
        counts = {
            queue: partitions if topic is None else len(topic.partitions)
            for queue, topic in there.items()
        }
        settings = {queue: {_TOPIC_BYTES: str(self._retry_bytes)} for queue in (FROM, TO)}
        topics = [
            NewTopic(self._topic(queue), count, replication, config=settings.get(queue, {}))
            for queue, count in counts.items()
        ]
        compacted = {"cleanup.policy": "compact"}
        topics.append(NewTopic(self._topic(STATE), 1, replication, config=compacted))
        create_topics(admin, topics)
        return counts

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
        """Return the position after the last committed row of a queue."""
        return tuple(row_number(end) for _, end in self._watermarks(queue))

    def _watermarks(self, queue: str) -> list[tuple[int, int]]:
        """Return the first and the next offset of each partition."""
        count = 1 if queue == STATE else self._partitions[queue]
        partitions = [TopicPartition(self._topic(queue), i) for i in range(count)]
        return [retried(self._offsets.get_watermark_offsets, each) for each in partitions]

    def _send(
        self,
        producer: Producer,
        queue: str,
        records: pa.Table,
        count: Callable[[int, int, int], None] = lambda *_: None,
    ) -> list[TopicPartition]:
        """Produce bundles and wait for the brokers; return the last offset of each partition.

        Args:
            count: called with the partition, the offset and the number of records of each message.
        """
        failures: list[KafkaError] = []
        last: dict[int, int] = {}

        def on_delivery(rows: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                partition, offset = message.partition() or 0, message.offset() or 0
                last[partition] = offset
                count(partition, offset, rows)

        topic = self._topic(queue)
        for partition, bundle in _bundles(records, self._partitions[queue]):
            while True:
                try:
                    producer.produce(
                        topic,
                        encode(bundle),
                        partition=partition,
                        headers=[(HEADER, str(bundle.num_rows).encode())],
                        timestamp=self.clock(),
                        on_delivery=partial(on_delivery, bundle.num_rows),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        try:
            undelivered = producer.flush(TIMEOUT_S)
        except SystemError as error:  # the client raised while it called `on_delivery`
            raise error.__cause__ or error from None
        if failures:
            raise KafkaException(failures[0])
        if undelivered:
            raise timed_out()
        return [TopicPartition(topic, partition, offset) for partition, offset in last.items()]

    def _committed(self) -> tuple[QueueState, str]:
        """Return the committed state, and the owner mark of the reader that committed it."""
        with self._reading_state:
            ((begin, end),) = self._watermarks(STATE)
            for distance in (1 << i for i in range(6, 64)):
                # Markers of transactions and aborted messages may follow the last state.
                start = max(begin, end - distance)
                found = self._states.fetch((row_number(start),), (row_number(end),))
                if found:
                    document = json.loads(found[-1].value)
                    owner = document.pop("owner")
                    return self._with_new_partitions(QueueState.from_dict(document)), owner
                if start == begin:
                    break
        return self._with_new_partitions(QueueState(read=dict.fromkeys(QUEUES, ()))), ""

    def _with_new_partitions(self, state: QueueState) -> QueueState:
        """Return the state that also has the begin of each partition of which it knows nothing."""
        read = dict(state.read)
        for queue, position in state.read.items():
            if len(position) < self._partitions[queue]:
                added = self._watermarks(queue)[len(position) :]
                read[queue] = (*position, *(row_number(begin) for begin, _ in added))
        return replace(state, read=read)

    def _as_offsets(self, state: QueueState) -> list[TopicPartition]:
        """Return the state's positions as offsets of the consumer group."""
        return [
            TopicPartition(self._topic(queue), partition, offset_of(row))
            for queue in QUEUES
            for partition, row in enumerate(state.read[queue])
        ]


def _bundles(records: pa.Table, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield bundles that fit into a message, each with its partition of `count`."""
    if count == 1:
        yield from ((0, bundle) for bundle in bundles(records))
        return
    partitions = key_slots(records[KEY], count)
    for partition in range(count):
        own = records.filter(pa.array(partitions == partition))
        yield from ((partition, bundle) for bundle in bundles(own))
