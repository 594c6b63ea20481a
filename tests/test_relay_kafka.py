"""What only a queue on Kafka has: other programs' messages, partitions, brokers that die."""

from __future__ import annotations

import doctest
import re
import uuid
from concurrent.futures import Future

import pyarrow as pa
import pytest

from broker import Broker
from eddyline.errors import QueueError, QueueFullError, StateError
from eddyline.relay.account import Account
from eddyline.relay.backend import RowRange
from eddyline.relay.queue import DataQueue
from waiting import PATIENCE_S, until

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from eddyline.relay.kafka import KafkaBackend
from eddyline.relay.kafka_backlog import EdenBacklog
from eddyline.relay.kafka_messages import BUNDLE_BYTES, row_number

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


def test_back_pressure_counts_records_and_not_messages(
    broker: Broker, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.relay.kafka.UNREAD_EVERY_S", -1)  # ask the brokers each time
    queue = DataQueue(KafkaBackend(broker.address, app), unread_rows_max=1000)
    assert queue.put(["x"] * 500) + queue.put(["x"] * 400) == 900
    queue.put(["x"])
    assert queue.backend.unread() == 901
    with pytest.raises(QueueFullError, match="901 records"):
        queue.put(["x"] * 100)
    elsewhere = KafkaBackend(broker.address, app)
    assert elsewhere.unread() == 3  # it knows of the messages alone
    # there, as many records are taken to be in each message as were read of the first one
    for rows, rest, also_elsewhere in ((300, 601, 600), (200, 401, 1000)):
        batch, _ = queue.read(rows) or pytest.fail("nothing is read")
        queue.ack(batch.number, range(batch.rows))
        queue.commit()
        assert queue.backend.unread() == rest
        until(lambda wanted=also_elsewhere: elsewhere.unread() == wanted)
    all_of(queue)
    assert queue.backend.unread() == 0
    until(lambda: elsewhere.unread() == 0)
    queue.close()
    elsewhere.close()


def test_own_messages_are_counted_in_spans_between_those_of_others() -> None:
    backlog = EdenBacklog()
    for offset in range(0, 4000, 2):  # one in two is of another process
        backlog.add(0, offset, 3)
    ends = [(0, 4000)]
    assert backlog.unread((0,), ends, 0) == 2000 * 3 * 2
    assert backlog.unread((row_number(2000),), ends, 6000) == 1000 * 3 * 2
    assert backlog.unread((row_number(3999),), ends, 12_000) == 3
    assert EdenBacklog().unread((0, 0), [(0, 4), (5, 7)], 0) == 6


def test_the_example_in_the_docstring(broker: Broker, app: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(
        KafkaBackend, globs={"KafkaBackend": KafkaBackend, "servers": broker.address, "app": app}
    )
    result = doctest.DocTestRunner().run(example)
    assert result.attempted
    assert result.failed == 0


def test_the_topics_are_created_on_the_first_run(broker: Broker, app: str) -> None:
    for _ in range(2):
        KafkaBackend(broker.address, app, partitions=2).close()
    topics = (
        AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=PATIENCE_S).topics
    )
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
        future.result(PATIENCE_S)

    def applied() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = admin.describe_configs([asked]).values()
        shown = found.result(PATIENCE_S)
        return all(shown[one.name].value == one.value for one in entries)

    until(applied)  # the broker applies what the controller has accepted a little later


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
    assert other.flush(PATIENCE_S) == 0
    queue.put(["bundled"])
    other.produce(f"{app}.eden", b"no bundle", headers=[("eddyline", b"3")])
    other.produce(f"{app}.eden", None, key=b"k")
    other.produce(f"{app}.eden", b"\xff\xff\xff\xff damaged", headers=[("eddyline", b"3")])
    assert other.flush(PATIENCE_S) == 0
    (batch, records) = queue.read(4)
    assert records["payload"].to_pylist() == [b"plain", b"bundled", b"no bundle", b""]
    assert records["key"].to_pylist() == [b"k", None, None, b"k"]
    queue.ack(batch.number, range(4))
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


@pytest.mark.parametrize("key", [None, b"k" * 300])
def test_the_largest_record_can_fail_and_a_larger_one_is_refused(
    broker: Broker, app: str, key: bytes | None
) -> None:
    backend = KafkaBackend(broker.address, app)
    queue = DataQueue(backend)
    largest = b"x" * (backend._record_bytes - len(key or b""))
    with pytest.raises(QueueError, match=r"at place 1 has .* nothing was put") as refused:
        queue.put([b"a", largest + b"x", b"b"], keys=[key] * 3)
    assert refused.value.condition == "BAD_RECORDS"
    assert queue.read(10) is None
    queue.put([largest], keys=[key])
    other = Producer({"bootstrap.servers": broker.address, "message.max.bytes": 1_048_000})
    foreign = b"y" * 1_047_500  # nearly all that a broker takes by default
    other.produce(f"{app}.eden", foreign)
    assert other.flush(PATIENCE_S) == 0
    for _ in range(3):
        batch, records = queue.read(10)
        assert records["payload"].to_pylist() == [largest, foreign]
        queue.fail(batch.number, range(batch.rows), "ä" * 500)
        queue.commit()
    assert pa.concat_tables(all_of(queue))["attempts"].to_pylist() == [3, 3]
    other.close()
    queue.close()


def test_failed_records_have_more_room_than_the_largest_new_ones(broker: Broker, app: str) -> None:
    large = 40 << 20
    KafkaBackend(broker.address, app, settings={"message.max.bytes": str(large)}).close()
    asked = ConfigResource(ResourceType.TOPIC, f"{app}.from")
    admin = AdminClient({"bootstrap.servers": broker.address})
    (found,) = admin.describe_configs([asked]).values()
    assert int(found.result(PATIENCE_S)["max.message.bytes"].value) >= 2 * large


def test_partitions_that_are_added_are_read_from_the_next_start_on(
    broker: Broker, app: str
) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app, partitions=2))
    queue.put(["a", "b"], keys=["a", "b"])
    fail(queue, 10)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_partitions([NewPartitions(f"{app}.eden", 4)]).values():
        future.result(PATIENCE_S)

    def all_there() -> bool:
        return len(admin.list_topics(f"{app}.eden").topics[f"{app}.eden"].partitions) == 4

    until(all_there)
    for partition in range(4):
        put_singly(broker, f"{app}.eden", [f"{partition}"], partition)
    queue.close()
    backend = KafkaBackend(broker.address, app)
    queue = DataQueue(backend)
    assert backend.unread() == 4
    assert sorted(payloads(all_of(queue))) == [*"0123", "a", "b"]
    fresh = [f"{n}" for n in range(40)]
    queue.put(fresh, keys=fresh)
    queue.close()
    queue = DataQueue(KafkaBackend(broker.address, app))
    found = all_of(queue)
    assert sorted(payloads(found)) == sorted(fresh)
    assert {at >> 56 for table in found for at in table["position"].to_pylist()} == {0, 1, 2, 3}
    assert queue.account() == Account(46, 46, 0, 0, 0)
    queue.close()


def expire(broker: Broker, topic: str, *before: int) -> None:
    """Delete the messages of each partition before an offset, as retention does."""
    gone = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(before)]
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records(gone).values():
        future.result(PATIENCE_S)


def put_singly(broker: Broker, topic: str, payloads: list[str], partition: int = 0) -> None:
    """Write messages of one record each."""
    producer = Producer({"bootstrap.servers": broker.address})
    for payload in payloads:
        producer.produce(topic, payload.encode(), partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    producer.close()


def payloads(tables: list[pa.Table]) -> list[str]:
    return [value.decode() for table in tables for value in table["payload"].to_pylist()]


def test_new_records_that_expired_are_a_gap_that_is_counted(
    broker: Broker, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app, partitions=2))
    put_singly(broker, f"{app}.eden", [f"a{i}" for i in range(10)], partition=0)
    put_singly(broker, f"{app}.eden", [f"b{i}" for i in range(10)], partition=1)
    expire(broker, f"{app}.eden", 4, 7)
    read = payloads(all_of(queue, 3))
    assert sorted(read) == [f"a{i}" for i in range(4, 10)] + [f"b{i}" for i in range(7, 10)]
    assert queue.account() == Account(20, 9, 0, 0, 0, missed=11)
    warnings = [r.getMessage() for r in caplog.records if r.name == "eddyline.sources"]
    lost = {0: 0, 1: 0}
    for text in warnings:
        found = re.fullmatch(
            rf".* deleted (\d+) messages of {app}.eden partition (.) before .*", text
        )
        assert found, text
        lost[int(found[2])] += int(found[1])
    assert lost == {0: 4, 1: 7}
    queue.close()
    reopened = DataQueue(KafkaBackend(broker.address, app))
    put_singly(broker, f"{app}.eden", ["later"])
    assert payloads(all_of(reopened)) == ["later"]
    assert reopened.account() == Account(21, 10, 0, 0, 0, missed=11)
    reopened.close()


def test_a_queue_of_which_everything_expired_goes_on(broker: Broker, app: str) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    put_singly(broker, f"{app}.eden", ["a", "b", "c"])
    expire(broker, f"{app}.eden", 3)
    assert queue.backend.unread() == 0
    assert queue.read(10) is None
    queue.commit()
    assert queue.account() == Account(3, 0, 0, 0, 0, missed=3)
    queue.close()
    queue = DataQueue(KafkaBackend(broker.address, app))
    assert queue.account() == Account(3, 0, 0, 0, 0, missed=3)
    queue.put(["d"])
    assert payloads(all_of(queue)) == ["d"]
    assert queue.account() == Account(4, 1, 0, 0, 0, missed=3)
    queue.close()


def test_records_that_expire_between_plan_and_load_are_planned_again(
    broker: Broker, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = KafkaBackend(broker.address, app)
    queue = DataQueue(backend)
    put_singly(broker, f"{app}.eden", list("abcd"))
    read, raised = backend.read, []

    def late(span: RowRange) -> pa.Table:
        if not raised:
            expire(broker, f"{app}.eden", 2)
            backend._readers.clear()  # what was fetched while planning
        try:
            return read(span)
        except QueueError as error:
            raised.append((error.condition, error.retryable))
            raise

    monkeypatch.setattr(backend, "read", late)
    assert payloads(all_of(queue)) == ["c", "d"]
    assert raised == [("RECORDS_EXPIRED", True)]
    assert queue.account() == Account(4, 2, 0, 0, 0, missed=2)
    queue.close()


def test_failed_records_that_expired_are_counted(
    broker: Broker, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    queue.put([str(i) for i in range(10)])
    for batch in [queue.read(4)[0], queue.read(3)[0]]:
        queue.fail(batch.number, range(batch.rows), "no answer")
        queue.commit()  # writes one message, and the marker of the transaction
    assert queue.account() == Account(7, 0, 0, 7, 0)
    queue.close()  # with what it has fetched
    expire(broker, f"{app}.from", 2)
    queue = DataQueue(KafkaBackend(broker.address, app))
    assert payloads(list(queue.retries())) == list("456")
    assert sorted(payloads(all_of(queue))) == list("456789")
    assert queue.account() == Account(10, 6, 0, 0, 0, missed=4)
    assert "deleted 4 failed records" in caplog.text
    queue.close()


def test_a_queue_of_which_all_failed_records_expired_goes_on(broker: Broker, app: str) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    queue.put(["a", "b"])
    fail(queue, 1)
    queue.close()
    expire(broker, f"{app}.from", 2)
    queue = DataQueue(KafkaBackend(broker.address, app))
    assert payloads(all_of(queue)) == ["b"]
    assert queue.account() == Account(2, 1, 0, 0, 0, missed=1)
    queue.put(["c"])
    fail(queue, 1)
    fail(queue, 1)
    assert payloads(all_of(queue)) == ["c"]
    assert queue.account() == Account(3, 2, 0, 0, 0, missed=1)
    queue.close()


def fail(queue: DataQueue, rows: int) -> None:
    """Read records and report them as failed."""
    read = queue.read(rows)
    assert read is not None
    queue.fail(read[0].number, range(read[0].rows), "no answer")
    queue.commit()


def test_expired_markers_of_transactions_are_no_gap(
    broker: Broker, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DataQueue(KafkaBackend(broker.address, app))
    queue.put(["a"])
    fail(queue, 1)
    fail(queue, 1)
    all_of(queue)
    queue.close()
    for name in ("from", "to"):
        expire(broker, f"{app}.{name}", 2)  # the record, which was read, and the marker after it
    queue = DataQueue(KafkaBackend(broker.address, app))
    assert queue.read(10) is None
    queue.put(["b"])
    fail(queue, 1)
    assert payloads(all_of(queue)) == ["b"]
    assert queue.account() == Account(2, 2, 0, 0, 0)
    assert "deleted" not in caplog.text
    queue.close()


@pytest.mark.guarantee(
    "queue on Kafka", "at least once, each acknowledged record once", "the broker, by kill -9"
)
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
