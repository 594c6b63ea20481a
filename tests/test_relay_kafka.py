"""What only a queue on Kafka has: other programs' messages, partitions, brokers that die."""

from __future__ import annotations

import uuid
from concurrent.futures import Future

import pyarrow as pa
import pytest

from broker import Broker
from eddyline.errors import QueueError, StateError
from eddyline.relay.queue import DataQueue

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from eddyline.relay.kafka import KafkaBackend
from eddyline.relay.kafka_messages import BUNDLE_BYTES

pytestmark = pytest.mark.kafka


@pytest.fixture
def app() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def all_of(queue: DataQueue, rows_max: int = 1000) -> list[pa.Table]:
    found = []
    while read := queue.read(rows_max):
        batch, records = read
        queue.ack(batch.number, range(batch.rows))
        queue.commit()
        found.append(records)
    return found


def test_the_topics_are_created_on_the_first_run(broker: Broker, app: str) -> None:
    for _ in range(2):
        KafkaBackend(broker.address, app, partitions=2).close()
    topics = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics
    mine = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(app)}
    assert mine == {f"{app}.eden": 2, f"{app}.from": 2, f"{app}.to": 2, f"{app}.state": 1}


def test_topics_have_the_replication_of_the_brokers(
    broker: Broker, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def topic(name: str, partitions: int, replication: int, **more: object) -> object:
        asked.append(replication)
        return NewTopic(name, partitions, replication, **more)

    monkeypatch.setattr("eddyline.relay.kafka.NewTopic", topic)
    KafkaBackend(broker.address, app).close()
    assert asked == [-1] * 4  # Kafka's word for the brokers' default
    KafkaBackend(broker.address, app + "b", replication=1).close()
    assert asked[4:] == [1] * 4


def configure(broker: Broker, topic: str, **settings: str) -> None:
    """Set settings of a topic, such as `retention_ms`."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


@pytest.mark.parametrize("queue", ["from", "to"])
def test_failed_records_must_be_retained_until_their_retry(
    broker: Broker, app: str, queue: str
) -> None:
    KafkaBackend(broker.address, app).close()
    configure(broker, f"{app}.{queue}", retention_ms="60000")
    backend = KafkaBackend(broker.address, app)
    for retry_delay_ms in (60_000, 90_000):
        with pytest.raises(QueueError, match="RETENTION_TOO_SHORT") as refused:
            DataQueue(backend, retry_delay_ms=retry_delay_ms)
        for part in (f"{app}.{queue}", "60,000 ms", f"{retry_delay_ms:,} ms", "retention.ms"):
            assert part in str(refused.value)
    opened = DataQueue(backend, retry_delay_ms=59_999)
    with pytest.raises(QueueError, match="RETENTION_TOO_SHORT"):
        opened.retry_delay_ms = 60_000  # as a pipeline does
    assert opened.retry_delay_ms == 59_999
    configure(broker, f"{app}.{queue}", retention_ms="-1")
    opened.retry_delay_ms = 10**8
    opened.close()


def test_retention_may_be_hidden_from_the_user(
    broker: Broker, app: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def describe(*_: object, **__: object) -> object:
        denied: Future[object] = Future()
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        denied.set_exception(KafkaException(error))
        return {0: denied}

    monkeypatch.setattr(AdminClient, "describe_configs", describe)
    DataQueue(KafkaBackend(broker.address, app), retry_delay_ms=10**12).close()
    assert "retention" in caplog.text


def test_messages_of_other_programs_are_records(broker: Broker, app: str) -> None:
    backend = KafkaBackend(broker.address, app)
    queue = DataQueue(backend)
    other = Producer({"bootstrap.servers": broker.address})
    other.produce(f"{app}.eden", b"plain", key=b"k")
    other.flush(10)
    queue.put(["bundled"])
    other.produce(f"{app}.eden", b"no bundle", headers=[("eddyline", b"3")])
    other.flush(10)
    (batch, records) = queue.read(2)
    assert records["payload"].to_pylist() == [b"plain", b"bundled"]
    assert records["key"].to_pylist() == [b"k", None]
    queue.ack(batch.number, [0, 1])
    queue.commit()
    with pytest.raises(StateError, match="DAMAGED_MESSAGE"):
        queue.read(10)
    other.close()
    queue.close()


def test_records_of_one_key_stay_in_order_over_partitions(broker: Broker, app: str) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app, partitions=3))
    keys = [f"k{i % 10}" for i in range(3000)]
    queue.put([f"{i}" for i in range(3000)], keys=keys)
    queue.put(["no key"] * 30)
    records = pa.concat_tables(all_of(queue, 700))
    assert records.num_rows == 3030
    positions = records["position"].to_pylist()
    assert len(set(positions)) == 3030
    by_partition = {position >> 56 for position in positions}
    assert by_partition == {0, 1, 2}
    keyed = list(zip(records["key"].to_pylist(), records["payload"].to_pylist(), strict=True))
    for key in set(keys):
        mine = [int(payload) for held, payload in keyed if held == key.encode()]
        assert mine == sorted(mine)
        assert len(mine) == 300
    queue.close()


def test_large_records_go_in_bundles_that_a_broker_takes(broker: Broker, app: str) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    payloads = [b"x" * (BUNDLE_BYTES // 3), b"y"] * 10
    queue.put(payloads)
    assert pa.concat_tables(all_of(queue))["payload"].to_pylist() == payloads
    queue.close()


@pytest.mark.slow
def test_a_broker_that_is_killed_and_started_again_loses_nothing(broker: Broker, app: str) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    queue.put([f"{i}" for i in range(10)])
    batch, _ = queue.read(6)
    queue.fail(batch.number, [0], "no answer")
    queue.ack(batch.number, range(1, 6))
    queue.commit()
    batch, _ = queue.read(3)
    broker.stop(kill=True)
    broker.start()
    queue.ack(batch.number, range(3))
    queue.put(["after"])
    queue.commit()
    rest = [r["payload"].to_pylist() for r in all_of(queue)]
    assert rest == [[b"8", b"9", b"after"]]
    account = queue.account()
    assert (account.received, account.done, account.retry) == (11, 11, 0)
    queue.close()
