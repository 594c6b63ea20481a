"""A sink that writes messages to a Kafka topic in transactions; see `KafkaFormat`."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

import eddyline.sink.kafka_topic as topics
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.relay.kafka_client import (
    FENCED,
    TIMEOUT_S,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewTopic,
    Producer,
    create_topics,
    timed_out,
)
from eddyline.sink.base import (
    Target,
    check_owners,
    sink_failed,
    target_moved,
    target_not_empty,
)
from eddyline.sink.envelopes import Changelog, Content, Edit, Envelope, Sent, Stamp, Texts
from eddyline.sink.rows import keyed_changes
from eddyline.state.kernels import repeat

EPOCHS = ".eddyline"
"""The suffix of the topic with the epochs of the sinks of a topic."""

HEADER = "eddyline-epoch"

ABORT_S = 5.0
"""How long a transaction is aborted after an error; the next producer of the sink aborts it in any case."""

_ROOM = 256  # bytes of a batch with one message beside its key and value
_RECENT = 64  # messages
_BATCH_BYTES = 1_000_000
_BROKERS_DEFAULT = -1  # as a replication factor
_BY_KEY = -1  # as a partition
_ROUNDS = 50


class KafkaSink:
    """Writes a topic in transactions.

    Args:
        topic: the topic's name.
        envelope: the form of the messages.
        key: names of the key's columns; None for a changelog without a key.
        settings: of the client.
        overwrite: whether records that this sink hasn't written are replaced.
        partitions, replication: of topics that are created; None for the default of the brokers.
        transaction_s: the time after which the brokers abort a transaction.
        clock: returns milliseconds since 1970.
    """

    def __init__(
        self,
        target: Target,
        *,
        topic: str,
        envelope: Envelope,
        key: tuple[str, ...] | None,
        settings: Mapping[str, str],
        overwrite: bool = False,
        partitions: int = 1,
        replication: int | None = None,
        transaction_s: int = 600,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._version = version("eddyline")
        self._target = target
        self._topic = topic
        self._envelope = envelope
        self._key = key
        self._overwrite = overwrite
        self._partitions = partitions
        self._replication = replication or _BROKERS_DEFAULT
        self._transaction_s = transaction_s
        self._clock = clock
        self._complaint = ""  # the last error of the client's own threads
        self._settings: dict[str, Any] = {
            "logger": logging.getLogger("eddyline.kafka"),
            "error_cb": self._hear,
            "reconnect.backoff.max.ms": 1000,
            **settings,
        }
        self._limit = topics.LEAST_LIMIT
        self._admin: AdminClient | None = None
        self._reader: Consumer | None = None
        self._producer: Producer | None = None
        self._begun = math.inf  # the last transaction, in seconds
        self._open = False  # whether a transaction has neither been committed nor aborted
        self._failed = False  # a message of the transaction
        self._taken: Collection[str] = ()  # the other sinks from which the topic is taken
        self._identity: str | None = None  # of the topic
        self._too_large: list[int] = []  # sizes of messages that the brokers refuse

    @property
    def found_by(self) -> Sequence[str] | None:
        """The view's key; rows of a changelog are found as they are."""
        log = isinstance(self._envelope, Changelog)
        return tuple(self._target.schema.names) if log else self._key

    def committed(self) -> Epoch | None:
        with self._translated():
            return self._held()

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        with self._translated():
            self._check(base)
            self._taken = ()
            self._until_it_fits(lambda: self._edit(changes), epoch)

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        with self._translated():
            self._check(base)
            self._taken = self._owners() if base is None else ()
            content = self._content(base)
            all_rows = repeat(
                rows.select(range(rows.num_columns - 2)),
                rows.column(rows.num_columns - 1).to_numpy(),
            )

            def edit() -> Edit:
                wanted = Texts.of(all_rows, self._key)
                fitting = self._fitting(wanted)
                self._refuse(all_rows, wanted, fitting)
                return self._envelope.difference(content, wanted.chosen(np.flatnonzero(fitting)))

            self._until_it_fits(edit, epoch, content.partitions)
            self._taken = ()

    def close(self) -> None:
        self._drop()

    # -- what is sent ------------------------------------------------------------------------

    def _edit(self, changes: pa.Table) -> Edit:
        """Drop rows that are too large from changes, after storing them as dead letters.

        The topic then has the view's rows without these.
        """
        done = keyed_changes(changes, self._key)
        deleted, before, after, inserted = (
            Texts.of(rows, self._key)
            for rows in (done.deleted, done.before, done.after, done.inserted)
        )
        come, new, old = map(self._fitting, (inserted, after, before))
        self._refuse(done.inserted, inserted, come)
        self._refuse(done.after, after, new)
        stay, gone, arrive = old & new, old & ~new, new & ~old
        deleted_rows: list[str | None] = [
            row if fits else None
            for row, fits in zip(deleted.rows, self._fitting(deleted), strict=True)
        ]
        left = before.chosen(np.flatnonzero(gone))
        added, more = inserted.chosen(np.flatnonzero(come)), after.chosen(np.flatnonzero(arrive))
        kept = after.chosen(np.flatnonzero(stay))
        return Edit(
            [*deleted.keys, *left.keys],
            [*deleted_rows, *left.rows],
            kept.keys,
            list(before.chosen(np.flatnonzero(stay)).rows),
            kept.rows,
            Texts([*added.keys, *more.keys], [*added.rows, *more.rows]),
        )

    def _fitting(self, texts: Texts) -> Any:
        """Return for each row whether any message with it is small enough."""
        most = self._most() - self._envelope.overhead
        longest = (
            max(map(len, filter(None, some)), default=0) for some in (texts.keys, texts.rows)
        )
        if 4 * sum(longest) <= most:
            return np.ones(len(texts.rows), np.bool_)
        return np.fromiter(
            (_size(key, row) <= most for key, row in zip(texts.keys, texts.rows, strict=True)),
            np.bool_,
            len(texts.rows),
        )

    def _most(self) -> int:
        return self._limit - _ROOM

    def _refuse(self, rows: pa.Table, texts: Texts, fitting: Any) -> None:
        places = np.flatnonzero(~fitting)
        if len(places):
            sizes = [_size(texts.keys[i], texts.rows[i]) for i in places]
            errors = [
                f"a message of {size:,} bytes is too large for the topic {self._topic}, which takes "
                f"{self._limit:,} (max.message.bytes)"
                for size in sizes
            ]
            self._target.refuse(rows.take(pa.array(places)), errors)

    def _until_it_fits(
        self,
        edit: Callable[[], Edit],
        epoch: Epoch,
        partitions: Mapping[str | None, int] = MappingProxyType({}),
    ) -> None:
        """Send changes; if brokers refuse messages as too large, retry with a lower limit.

        A batch can be refused for one of its messages, so that the second try has one in each.

        Args:
            partitions: by key the partition in which a row is deleted, if that is known: another
                producer may have chosen another one.
        """
        for round_ in range(_ROUNDS):
            stamp = Stamp(self._target.name, self._version, epoch, self._clock())
            changes = edit()
            sent = self._envelope.messages(changes, stamp, self._most())
            gone = {key: partitions[key] for key in changes.deleted_keys if key in partitions}
            if self._send(sent, epoch, gone):
                return
            if round_:
                self._limit = min(self._too_large) + _ROOM - 1
            self._disconnect()
            self._connect(single=True)
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def _send(
        self, sent: Sequence[Sent], epoch: Epoch, partitions: Mapping[str | None, int]
    ) -> bool:
        """Send messages and the epoch in one transaction; False if a message is too large."""
        producer = self._producer
        assert producer is not None
        self._failed, self._too_large = False, []
        self._begun, self._open = time.monotonic(), True
        producer.begin_transaction()
        try:
            self._produce(producer, sent, epoch, partitions)
            self._flush(producer)
        except SystemError:
            # the client has raised a fatal error within a callback, where it is lost
            producer.abort_transaction(TIMEOUT_S)  # raises it again
            raise
        if self._too_large:
            producer.abort_transaction(TIMEOUT_S)
            self._open = False
            return False
        producer.commit_transaction(TIMEOUT_S)
        self._open = False
        return True

    def _produce(
        self,
        producer: Producer,
        sent: Sequence[Sent],
        epoch: Epoch,
        partitions: Mapping[str | None, int],
    ) -> None:
        header: list[tuple[str, str | bytes | None]] = [(HEADER, str(epoch).encode())]
        produce, topic = producer.produce, self._topic
        most = self._most()
        for place, (key, value) in enumerate(sent):
            if value is None and _size(key, None) > most:
                continue  # nothing was ever sent with a key of this size
            key_bytes = None if key is None else key.encode("utf-8", "surrogateescape")
            partition = partitions.get(key, _BY_KEY) if partitions else _BY_KEY
            while True:
                try:
                    produce(topic, value, key_bytes, partition, headers=header)
                    break
                except BufferError:
                    producer.poll(0.1)
            if not place % 1000:
                producer.poll(0)
        for app in self._taken:
            producer.produce(topic + EPOCHS, None, app, partition=0, headers=header)
        named = {"epoch": epoch, "sink": self._target.name, "topic": self._identity}
        state = json.dumps(named, ensure_ascii=False)
        producer.produce(topic + EPOCHS, state, self._target.app, partition=0, headers=header)

    def _flush(self, producer: Producer) -> None:
        """Wait for the brokers as long as they accept messages.

        After one of them has failed the rest of the transaction isn't sent.
        """
        deadline, before = time.monotonic() + TIMEOUT_S, -1
        while not self._failed and (left := producer.flush(0.5)):
            if left != before:
                deadline, before = time.monotonic() + TIMEOUT_S, left
            elif time.monotonic() > deadline:
                raise timed_out()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # every other error is that of the commit
        if error is not None:
            self._failed = True
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large.append(len(message.key() or b"") + len(message.value() or b""))

    # -- what the topics hold ----------------------------------------------------------------

    def _check(self, base: Epoch | None) -> None:
        found = self._held()
        if found != base:
            raise target_moved(self._target, base, found)

    def _held(self) -> Epoch | None:
        """Return the epoch that the topic of epochs has for this sink; None also if it is that of another topic."""
        if self._producer is None:
            self._connect()
        assert self._admin is not None
        self._identity = topics.identity(self._admin, self._topic)
        (whole,) = topics.committed_ranges(self._admin, self._topic + EPOCHS)
        app, distance = self._target.app.encode(), _RECENT
        while True:
            begin = max(whole.begin, whole.end - distance)
            recent = topics.Range(0, begin, whole.end)
            found = None
            for some in topics.messages(self._consumer(), self._topic + EPOCHS, [recent]):
                for message in some:
                    if message.key() == app:
                        found = message.value()
            if found is not None:
                state = json.loads(found)
                if state.get("topic") not in (None, self._identity):
                    return None  # the topic that was delivered to is gone
                return Epoch(int(state["epoch"]))
            if begin == whole.begin:
                return None
            distance *= 8

    def _owners(self) -> Collection[str]:
        """Return the other sinks whose epochs the topic of epochs has; StateError if it isn't taken from them."""
        assert self._admin is not None
        epochs = self._topic + EPOCHS
        held: dict[str | None, object] = {}
        for some in topics.messages(
            self._consumer(), epochs, topics.committed_ranges(self._admin, epochs)
        ):
            held |= {_text(message.key()): message.value() for message in some}
        owners = [
            app
            for app, state in held.items()
            if state is not None and app not in (None, self._target.app)
        ]
        place = f"the topic {self._topic}"
        return check_owners(self._target, place, owners, overwrite=self._overwrite)

    def _content(self, base: Epoch | None) -> Content:
        """Return the rows that the topic has.

        Raises:
            StateError: SINK_TARGET_NOT_EMPTY, some of its messages are none of this sink's.
        """
        assert self._admin is not None
        ranges = topics.committed_ranges(self._admin, self._topic)
        content, absorb = Content(), self._envelope.absorb
        for some in topics.messages(self._consumer(), self._topic, ranges):
            if base is None and not self._overwrite:
                raise target_not_empty(self._target, f"the topic {self._topic}")
            for message in some:
                key = _text(message.key())
                content.partitions[key] = message.partition() or 0
                absorb(content, key, _text(message.value()))
        whole = not content.foreign and min(content.counts.values(), default=0) >= 0
        if content.counts and any(one.begin for one in ranges):
            whole = False
        if not whole and not self._overwrite:
            raise StateError(
                f"the messages of the topic {self._topic} don't add up to rows: some are missing, or "
                "not of this sink",
                condition="SINK_TARGET_NOT_EMPTY",
                sink=self._target.name,
                hint="delete the topic, and it is filled anew; or set the option overwrite = true: "
                "the changes from what can be added up are sent",
            )
        return content

    def _consumer(self) -> Consumer:
        if self._reader is None:
            self._reader = topics.consumer(self._settings, self._target.app)
        return self._reader

    # -- the connection ----------------------------------------------------------------------

    def _connect(self, *, single: bool = False) -> None:
        """Create the topics if needed, and fence every earlier producer of the sink.

        Args:
            single: put one message into each batch.
        """
        if self._admin is None:
            self._admin = AdminClient(self._settings)
            kept = dict(self._envelope.topic)
            epochs = {"cleanup.policy": "compact", "segment.ms": "3600000"}
            create_topics(
                self._admin,
                [
                    NewTopic(self._topic, self._partitions, self._replication, config=kept),
                    NewTopic(self._topic + EPOCHS, 1, self._replication, config=epochs),
                ],
            )
            self._limit = topics.size_limit(self._admin, self._topic)
        self._producer = Producer(
            {
                **self._settings,
                "transactional.id": self._target.app,
                "transaction.timeout.ms": self._transaction_s * 1000,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "compression.type": "lz4",
                # as the clients in Java: equal keys go to the partitions that these expect
                "partitioner": "murmur2_random",
                "message.max.bytes": max(self._limit, 1000),
                "batch.size": max(1, min(_BATCH_BYTES, self._limit - _ROOM)),
                **({"batch.num.messages": 1} if single else {}),
                "on_delivery": self._delivered,
                "delivery.report.only.error": True,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)

    def _hear(self, error: KafkaError) -> None:
        self._complaint = error.str()

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            if self._open:
                # librdkafka ends the process (an assertion) if a producer is released while it adds partitions
                with suppress(KafkaException, RuntimeError, SystemError):
                    producer.abort_transaction(ABORT_S)
                self._open = False
            with suppress(KafkaException, RuntimeError):
                producer.purge(blocking=False)

    def _drop(self) -> None:
        self._disconnect()
        reader, self._reader, self._admin = self._reader, None, None
        if reader is not None:
            with suppress(KafkaException, RuntimeError):
                reader.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the client. After any error the next call connects anew."""
        self._complaint = ""
        try:
            yield
        except KafkaException as error:
            self._drop()
            cause = error.args[0]
            late = time.monotonic() - self._begun > self._transaction_s
            if cause.code() in FENCED and not late:
                raise StateError(
                    f"another engine has taken over the topic of sink {self._target.name}",
                    condition="SINK_TARGET_MOVED",
                    sink=self._target.name,
                    hint="stop the other engine; the delivery goes on from what the topic holds",
                ) from error
            text = cause.str() or str(cause)
            if cause.code() in FENCED:
                text = f"a delivery took longer than transaction_seconds {self._transaction_s}"
            if self._complaint and self._complaint != text:
                text += f" ({self._complaint})"
            raise sink_failed(self._target, text) from error
        except BaseException:
            self._drop()
            raise


def _size(key: str | None, value: str | None) -> int:
    """Return the size of a message's key and value in bytes."""
    return len((key or "").encode("utf-8", "surrogateescape")) + len((value or "").encode())


def _text(stored: bytes | str | None) -> str | None:
    return stored.decode("utf-8", "surrogateescape") if isinstance(stored, bytes) else stored
