"""A topic for tests of streams of Kafka: what is sent to it, and what a stream has read of it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from broker import Broker
from eddyline.relay.kafka_client import OffsetSpec, offsets_at
from waiting import PATIENCE_S, until


@dataclass
class Topic:
    """A topic on a broker."""

    broker: Broker
    partitions: int = 1
    config: dict[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.settings = {"bootstrap.servers": self.broker.address}
        self.admin = AdminClient(self.settings)
        self.producer = Producer({**self.settings, "linger.ms": 0})
        self.create()

    def create(self) -> None:
        topic = NewTopic(self.name, self.partitions, 1, config=self.config)
        self.admin.create_topics([topic])[self.name].result(PATIENCE_S)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(PATIENCE_S)

    def send(self, *values: Any, partition: int = 0, key: bytes | None = None, **more: Any) -> None:
        """Send values: texts and bytes as they are, others as JSON."""
        for value in values:
            plain = value is None or isinstance(value, str | bytes)
            sent = value if plain else json.dumps(value)
            self.producer.produce(self.name, sent, key=key, partition=partition, **more)
        assert self.producer.flush(PATIENCE_S) == 0

    def transaction(self, *values: Any, commit: bool = True, partition: int = 0) -> None:
        """Send values in a transaction of a producer of its own."""
        producer = self.begin(*values, partition=partition)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
        self.settle(partition)

    def settle(self, partition: int = 0) -> None:
        """Wait until brokers have marked the ends of all transactions: they do so after their answer."""
        at = [(self.name, partition)]

        def settled() -> bool:
            ends = [
                offsets_at(self.admin, at, OffsetSpec.latest(), read_committed=committed)
                for committed in (True, False)
            ]
            return ends[0] == ends[1]

        until(settled)

    def begin(self, *values: Any, partition: int = 0) -> Producer:
        """Send values in a transaction that stays open."""
        producer = Producer({**self.settings, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, json.dumps(value), partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        return producer

    def extend(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(
            PATIENCE_S
        )
        self.producer = Producer({**self.settings, "linger.ms": 0})  # it learns of them late

    def expire(self, before: int, partition: int = 0) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        at = TopicPartition(self.name, partition, before)
        for future in self.admin.delete_records([at]).values():
            future.result(PATIENCE_S)

    def options(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.broker.address,
            "subscribe": self.name,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
