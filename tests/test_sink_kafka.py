"""The sink to Kafka against a real broker: a consumer of committed messages adds them up."""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from broker import Broker
from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EddylineError, EngineError
from processes import Child
from sink_changes import SCHEMA, Changelog, Row, expected, parsed, target, weighted
from waiting import PATIENCE_S, until

pytest.importorskip("confluent_kafka")

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import eddyline.relay.kafka_client as kafka_client
import eddyline.sink.kafka_sink as kafka_sink
import eddyline.sink.kafka_topic as kafka_topic
from eddyline.sink.base import Refuse, keep_none
from eddyline.sink.kafka import KafkaFormat

pytestmark = pytest.mark.kafka

CHILD = Path(__file__).with_name("sink_kafka_child.py")
FORMS = ("upsert", "debezium", "changelog")


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def opened(
    broker: Broker, topic: str, *, keyed: bool = True, refuse: Refuse = keep_none, **options: str
) -> kafka_sink.KafkaSink:
    given = {"bootstrap_servers": broker.address, "topic": topic, **options}
    followed = target(topic, keyed=keyed, refuse=refuse)
    KafkaFormat().check(followed, given)
    return KafkaFormat().open(followed, given)


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def created(broker: Broker, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    client = admin(broker)
    for future in client.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        future.result(PATIENCE_S)


def messages_of(broker: Broker, topic: str) -> list[Message]:
    settings = {"bootstrap.servers": broker.address}
    reader = kafka_topic.consumer(settings, f"test-{topic}")
    ranges = kafka_topic.committed_ranges(admin(broker), topic)
    found = [m for some in kafka_topic.messages(reader, topic, ranges) for m in some]
    reader.close()
    return found


@dataclass
class Reader:
    """Adds the messages of a topic up, as a consumer would."""

    envelope: str
    rows: dict[str | None, Row] = field(default_factory=dict)
    counts: Counter[Row] = field(default_factory=Counter)
    last: int = 0

    def add(self, message: Message) -> None:
        ((name, epoch),) = message.headers() or []
        assert name == "eddyline-epoch"
        assert int(epoch) >= self.last, "an earlier delivery came again"
        self.last = int(epoch)
        key = None if message.key() is None else message.key().decode()
        if message.value() is None:
            assert self.rows.pop(key, None) is None or self.envelope == "upsert"
            return
        value = json.loads(message.value())
        if self.envelope == "upsert":
            self.rows[key] = parsed(value)
            assert {name: value[name] for name in json.loads(key)} == json.loads(key)
        elif self.envelope == "debezium":
            old = value["before"]
            if old is not None and len(old) == 2:  # only the key, as the whole row is too large
                old = dict.fromkeys(SCHEMA.names)
                self.rows[key] = parsed(old)
            before = None if old is None else parsed(old)
            after = None if value["after"] is None else parsed(value["after"])
            assert (
                value["op"]
                == {(0, 1): "c", (1, 1): "u", (1, 0): "d"}[(before is not None, after is not None)]
            )
            assert value["source"]["epoch"] == int(epoch)
            assert self.rows.pop(key, None) == before
            if after is not None:
                self.rows[key] = after
        else:
            assert value["_commit_version"] == int(epoch)
            kind = value["_change_type"]
            sign = 1 if kind in ("insert", "update_postimage") else -1
            self.counts[parsed(value)] += sign

    def content(self) -> Counter[Row]:
        return self.counts if self.envelope == "changelog" else Counter(self.rows.values())


def content(broker: Broker, topic: str, envelope: str) -> Counter[Row]:
    reader = Reader(envelope)
    for message in messages_of(broker, topic):
        reader.add(message)
    found = reader.content()
    assert min(found.values(), default=0) >= 0
    return +found


@pytest.mark.parametrize(
    ("envelope", "keyed"),
    [*((form, True) for form in FORMS), ("changelog", False)],
)
def test_a_topic_follows_a_view(broker: Broker, topic: str, envelope: str, keyed: bool) -> None:
    changelog, chance = Changelog(3, keyed=keyed), random.Random(f"{envelope}{keyed}")
    sink, base = opened(broker, topic, keyed=keyed, envelope=envelope), None
    for step in range(14):
        assert sink.committed() == base
        epoch = Epoch((base or 0) + chance.choice([1, 1, 1, 4]))
        if base is None or chance.random() < 0.2:
            sink.replace(base, epoch, changelog.rows(epoch))
        else:
            sink.deliver(base, epoch, changelog.changes(base, epoch))
        base = epoch
        assert content(broker, topic, envelope) == expected(changelog.content(epoch)), step
        if chance.random() < 0.2:
            sink.close()
            if chance.random() < 0.5:
                sink = opened(broker, topic, keyed=keyed, envelope=envelope)
    assert sink.committed() == base
    before = len(messages_of(broker, topic))
    sink.replace(base, Epoch(base + 1), changelog.rows(base))  # nothing differs: nothing is sent
    assert len(messages_of(broker, topic)) == before
    sink.deliver(Epoch(base + 1), Epoch(base + 2), changelog.changes(base, base))
    assert sink.committed() == base + 2
    sink.close()


def row(k: int | None, s: str | None = "", v: float | None = None) -> Row:
    return (k, s, v, None, None)


def one(k: int, s: str = "", count: int = 1) -> pa.Table:
    return weighted(Counter({row(k, s): count}))


def test_what_messages_look_like(broker: Broker, topic: str) -> None:
    sink = opened(broker, topic, envelope="debezium")
    sink.replace(None, Epoch(1), one(1, "a"))
    net = Counter({row(1, "a"): -1, row(1, "a", 2.5): 1})
    sink.deliver(Epoch(1), Epoch(2), weighted(net))
    sink.deliver(Epoch(2), Epoch(3), weighted(Counter({row(1, "a", 2.5): -1})))
    sink.close()
    sent = messages_of(broker, topic)
    assert {m.key() for m in sent} == {b'{"k":1,"s":"a"}'}
    values = [m.value() and json.loads(m.value()) for m in sent]
    assert [value and value["op"] for value in values] == ["c", "u", "d", None]
    plain = {"k": 1, "s": "a", "v": None, "d": None, "op": None}
    assert values[1]["before"] == plain
    assert values[1]["after"] == {**plain, "v": 2.5}
    assert values[1]["source"] | {"version": "", "ts_ms": 0} == {
        "version": "",
        "connector": "eddyline",
        "name": topic,
        "ts_ms": 0,
        "epoch": 2,
    }
    client = admin(broker)
    asked = kafka_topic.ConfigResource("topic", topic + kafka_sink.EPOCHS)
    settings = client.describe_configs([asked])[asked].result(PATIENCE_S)
    assert settings["cleanup.policy"].value == "compact"


@pytest.mark.guarantee(
    "sink `kafka`",
    "exactly once for `read_committed`",
    "nothing: an older engine goes on beside the new one",
)
def test_of_two_engines_the_older_is_fenced(broker: Broker, topic: str) -> None:
    older, newer = opened(broker, topic), opened(broker, topic)
    older.replace(None, Epoch(1), one(1))
    assert newer.committed() == 1
    with pytest.raises(EddylineError) as error:
        older.deliver(Epoch(1), Epoch(2), one(2))
    assert error.value.condition == "SINK_TARGET_MOVED"
    assert error.value.hint
    # it may take the topic back, and then the other one is fenced
    assert older.committed() == 1
    older.deliver(Epoch(1), Epoch(2), one(3))
    for _ in range(2):  # its memory of the epoch, then what the topic says
        with pytest.raises(EddylineError) as error:
            newer.deliver(Epoch(1), Epoch(2), one(4))
        assert error.value.condition == "SINK_TARGET_MOVED"
    assert content(broker, topic, "upsert") == expected(Counter([row(1), row(3)]))
    older.close()
    newer.close()


def test_two_sinks_write_to_different_topics_only(broker: Broker, topic: str) -> None:
    sink = opened(broker, topic)
    sink.replace(None, Epoch(1), one(1))
    other = KafkaFormat().open(
        target("other"), {"bootstrap_servers": broker.address, "topic": topic}
    )
    assert other.committed() is None
    with pytest.raises(EddylineError) as error:
        other.replace(None, Epoch(9), one(2))
    assert error.value.condition == "SINK_TARGET_NOT_EMPTY"
    sink.close()
    other.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_a_target_without_an_epoch(
    broker: Broker, topic: str, again: bool
) -> None:
    sink = opened(broker, topic)
    sink.replace(sink.committed(), Epoch(1), one(1))
    client = admin(broker)
    client.delete_topics([topic])[topic].result(PATIENCE_S)
    until(lambda: topic not in admin(broker).list_topics(timeout=PATIENCE_S).topics)
    if again:
        created(broker, topic)
        until(lambda: topic in admin(broker).list_topics(timeout=PATIENCE_S).topics)
    else:
        assert sink.committed() is None
    sink.close()
    sink = opened(broker, topic)
    assert sink.committed() is None  # though it has connected, and made the topic
    sink.close()
    sink = opened(broker, topic)  # what resend() does
    sink.replace(sink.committed(), Epoch(2), one(1, "x"))
    assert sink.committed() == 2
    assert content(broker, topic, "upsert") == expected(Counter([row(1, "x")]))
    sink.close()


def test_a_topic_without_messages_has_one_sink(broker: Broker, topic: str) -> None:
    given = {"bootstrap_servers": broker.address, "topic": topic}
    followed = replace(target("other"), others=lambda: {target(topic).app: "first"})
    first = opened(broker, topic)
    first.replace(None, Epoch(1), one(1).slice(1))
    second = KafkaFormat().open(followed, given)
    with pytest.raises(EddylineError, match=r"SINK_TARGET_NOT_EMPTY.*one of sink first"):
        second.replace(second.committed(), Epoch(3), one(2))
    assert first.committed() == 1
    second = KafkaFormat().open(followed, given | {"overwrite": "true"})
    second.replace(second.committed(), Epoch(3), one(2))
    assert first.committed() is None  # so it delivers no more
    assert second.committed() == 3
    assert content(broker, topic, "upsert") == expected(Counter([row(2)]))
    first.close()
    second.close()


@pytest.mark.parametrize("envelope", FORMS)
def test_records_of_others_are_replaced_on_demand(
    broker: Broker, topic: str, envelope: str
) -> None:
    created(broker, topic, 2)
    other = Producer({"bootstrap.servers": broker.address})
    for key, value in [(b"\xff\x00", b"\xfe"), (b"a", b"{}"), (b"b", b""), (b"c", None)]:
        other.produce(topic, value, key)
    assert other.flush(PATIENCE_S) == 0
    with pytest.raises(EddylineError) as error:
        opened(broker, topic, envelope=envelope).replace(None, Epoch(1), one(1))
    assert error.value.condition == "SINK_TARGET_NOT_EMPTY"
    assert "overwrite" in error.value.hint
    sink = opened(broker, topic, envelope=envelope, overwrite="true")
    sink.replace(None, Epoch(1), one(1))
    sink.replace(Epoch(1), Epoch(2), one(1, "x"))
    found = {m.key(): m.value() for m in messages_of(broker, topic)}
    if envelope != "changelog":
        assert {key for key, value in found.items() if value is not None} == {b'{"k":1,"s":"x"}'}
    sink.close()


def test_an_empty_topic_after_an_aborted_transaction_is_empty(broker: Broker, topic: str) -> None:
    created(broker, topic)
    other = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    other.init_transactions()
    other.begin_transaction()
    other.produce(topic, b"x", b"x")
    other.flush()
    other.abort_transaction()
    sink = opened(broker, topic)
    sink.replace(None, Epoch(1), one(1))
    assert content(broker, topic, "upsert") == expected(Counter([row(1)]))
    sink.close()


# -- rows that are too large -----------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("envelope", FORMS)
def test_rows_that_are_too_large_become_dead_letters(
    broker: Broker, topic: str, envelope: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 3000
    created(broker, topic, max_message_bytes=str(limit))
    if not told:
        monkeypatch.setattr(kafka_topic, "size_limit", lambda *_: kafka_topic.LEAST_LIMIT)
    letters: list[Row] = []

    def keep(rows: pa.Table, errors: list[str]) -> None:
        assert rows.schema == SCHEMA
        assert len(errors) == rows.num_rows
        assert all("too large" in text for text in errors)
        letters.extend(tuple(r.values()) for r in rows.to_pylist())

    noise = random.Random(1)

    def large(k: int) -> Row:  # compression doesn't help
        return (k, "", None, None, noise.randbytes(limit))

    sink = opened(broker, topic, envelope=envelope, refuse=keep)
    first, second, third = large(1), large(2), large(3)
    state = Counter([row(0), first, row(2), row(3, "é" * 300)])
    sink.replace(None, Epoch(1), weighted(state))
    assert set(letters) == {first}
    small = Counter([row(0), row(2), row(3, "é" * 300)])
    assert content(broker, topic, envelope) == expected(small)

    def step(base: int, gone: list[Row], come: list[Row]) -> Counter[Row]:
        net = Counter(come)
        net.subtract(gone)
        sink.deliver(Epoch(base), Epoch(base + 1), weighted(net))
        return content(broker, topic, envelope)

    # it grows: the topic has the view without it; it shrinks again; a refused one is deleted
    assert step(1, [row(2)], [second, row(4)]) == expected(
        small - Counter([row(2)]) + Counter([row(4)])
    )
    assert set(letters) == {first, second}
    assert step(2, [second], [row(2, v=1.0)]) == expected(
        small - Counter([row(2)]) + Counter([row(4), row(2, v=1.0)])
    )
    letters.clear()
    assert step(3, [first, row(4)], [third]) == expected(
        small - Counter([row(2)]) + Counter([row(2, v=1.0)])
    )
    assert set(letters) == {third}
    sink.replace(Epoch(4), Epoch(5), weighted(Counter([third, row(0)])))
    assert content(broker, topic, envelope) == expected(Counter([row(0)]))
    sink.close()


def test_too_large_rows_can_stop_the_sink(broker: Broker, topic: str) -> None:
    created(broker, topic, max_message_bytes="2000")
    sink = opened(broker, topic, on_refused="stop")
    sink.replace(None, Epoch(1), one(1))
    with pytest.raises(EddylineError) as error:
        sink.deliver(Epoch(1), Epoch(2), one(2, "x" * 2000))
    assert error.value.condition == "SINK_REFUSED"
    assert sink.committed() == 1
    sink.deliver(Epoch(1), Epoch(3), one(3))
    assert content(broker, topic, "upsert") == expected(Counter([row(1), row(3)]))
    sink.close()


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.guarantee(
    "sink `kafka`, envelope `{envelope}`",
    "exactly once for `read_committed`",
    "the sink's process and, each fourth time, the broker: {kills} times by kill -9",
)
@pytest.mark.parametrize(
    ("envelope", "kills"),
    [
        ("changelog", 4),
        *(pytest.param(form, 30, marks=pytest.mark.slow) for form in FORMS),
    ],
)
def test_kills_of_sink_and_broker_lose_and_double_nothing(
    broker: Broker, topic: str, tmp_path: Path, envelope: str, kills: int
) -> None:
    seed = 11
    moments, changelog = random.Random(f"{envelope}{kills}"), Changelog(seed)
    command = [sys.executable, str(CHILD), broker.address, topic, envelope, str(seed)]
    child = Child(command, tmp_path / "errors")
    child.wait_for("ready")
    seen = 0
    for kill in range(kills):
        seen = max(seen, int(child.wait_for("delivered")))
        time.sleep(moments.uniform(0, 0.3))
        if kill % 4 == 3:
            broker.stop(kill=True)
            broker.start()
        else:
            child.kill()
            child = Child(command, tmp_path / "errors")
            child.wait_for("ready")
    seen = max(seen, int(child.wait_for("delivered")))
    child.kill()
    sink = opened(broker, topic, envelope=envelope)
    held = sink.committed()
    assert held is not None
    assert held >= seen
    assert content(broker, topic, envelope) == expected(changelog.content(held))
    sink.close()


def test_a_broker_that_is_away_is_an_error_that_passes(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "TIMEOUT_S", 0.5)
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "topic": topic,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "me",
        "sasl_password": "s3cret-word",
    }
    sink = KafkaFormat().open(target(topic), options)
    with pytest.raises(EngineError) as error:
        sink.committed()
    assert error.value.condition == "SINK_FAILED"
    assert error.value.retryable
    assert "s3cret" not in str(error.value)
    sink.close()


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, "bootstrap_servers"),
        ({"bootstrap_servers": "h:1"}, "topic"),
        ({"bootstrap_servers": "h:1", "topic": "a b"}, "topic"),
        ({"bootstrap_servers": "h:1", "topic": "t", "envelope": "avro"}, "envelope"),
        ({"bootstrap_servers": "h:1", "topic": "t", "partitions": "0"}, "partitions"),
        ({"bootstrap_servers": "h:1", "topic": "t", "overwrite": "yes"}, "overwrite"),
        ({"bootstrap_servers": "h:1", "topic": "t", "on_refused": "drop"}, "on_refused"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], wrong: str) -> None:
    with pytest.raises(EngineError, match=wrong) as error:
        KafkaFormat().check(target("t"), options)
    assert error.value.condition == "BAD_OPTION"


def test_only_a_changelog_needs_no_key() -> None:
    options = {"bootstrap_servers": "h:1", "topic": "t"}
    for form in ("upsert", "debezium"):
        with pytest.raises(CatalogError) as error:
            KafkaFormat().check(target("t", keyed=False), {**options, "envelope": form})
        assert error.value.condition == "SINK_KEY"
    KafkaFormat().check(target("t", keyed=False), {**options, "envelope": "changelog"})
    with pytest.raises(CatalogError):
        KafkaFormat().check(target("t"), {**options, "key": "k"})
    KafkaFormat().check(target("t"), {**options, "key": "S, k"})
