"""Streams of the records of Kafka's topics: `USING kafka`."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaException

import eddyline as el
from avro import framed, registry
from broker import Broker
from eddyline.changes import APPEND, DELETE
from eddyline.errors import EddylineError
from eddyline.intake import kafka_topics
from eddyline.intake.kafka_topics import KafkaTopics
from eddyline.intake.sources import Sources
from eddyline.source import kafka
from eddyline.source.dead_letters import Rejects
from eddyline.source.kafka import EARLIEST, LATEST, KafkaStream
from eddyline.source.kafka_rows import HEADERS, HEADERS_TYPE, RAW, Decoded, Json, RawRecords
from eddyline.source.log_files import LogColumn
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.storage.files import Files
from kafka_topics import Topic
from lags import Measured, told_before_entries
from processes import Child
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that runs may take its time."""
    monkeypatch.setattr(kafka_topics, "WAIT_S", 120.0)
    monkeypatch.setattr(kafka_topics, "TIMEOUT_S", 120.0)


def wanted(schema: pa.Schema) -> list[LogColumn]:
    return [LogColumn(f"c{place}", one.name, one.type) for place, one in enumerate(schema)]


def stream_of(
    topic: Topic,
    folder: Path,
    schema: pa.Schema = COLUMNS,
    *,
    raw: bool = False,
    operation: str = "",
    starting: Any = EARLIEST,
    limit: int | None = None,
    names: list[str] | None = None,
    pattern: str = "",
) -> KafkaStream:
    """A stream of JSON documents; their place is added."""
    added = [("_partition", pa.int32()), ("_offset", pa.int64())]
    files = Files(str(folder))
    own = pa.schema([*schema, (operation, pa.string())]) if operation else schema
    decode = RawRecords(wanted(schema)) if raw else None
    names = names or ([] if pattern else [topic.name])
    return KafkaStream(
        "s",
        starting,
        decode or Decoded(wanted(pa.schema([*schema, *added])), Json(own, "UTC"), operation, False),
        limit,
        lambda stopped: KafkaTopics("s", topic.settings, names, pattern, stopped),
        RedoLog(files, "s"),
        "checkpoints/s",
        None if raw else Rejects("s", RedoLog(files, "dead")),
    )


def entries(stream: KafkaStream) -> list[list[dict[str, Any]]]:
    """The rows of each entry of the redo log."""
    names = [one.name for one in stream.decode.wanted]  # type: ignore[attr-defined]
    found = []
    for number in range(stream.log.start(), stream.log.end()):
        segments = stream.log.segments(number, number + 1)
        tables = [read_arrow(stream.log.files, one) for one in segments]
        rows = [
            dict(zip(names, row.values(), strict=False)) for t in tables for row in t.to_pylist()
        ]
        found.append(rows)
    return found


def rows_of(stream: KafkaStream) -> list[dict[str, Any]]:
    """All rows; checks that none is there twice, and those of a partition are in order."""
    rows = [row for rows in entries(stream) for row in rows]
    last: dict[int, int] = {}
    for row in rows:
        assert last.get(row["_partition"], -1) < row["_offset"], row
        last[row["_partition"]] = row["_offset"]
    return rows


def letters_of(stream: KafkaStream) -> dict[int, dict[str, Any]]:
    """The dead letters by position, as the stream of operations keeps them."""
    assert stream.rejects is not None
    log, found = stream.rejects.log, {}
    for segment in log.segments(log.start(), log.end()):
        for row in read_arrow(log.files, segment).to_pylist():
            position, payload, key, bolt, error, attempts, *_ = row.values()
            found[position] = {"payload": payload, "key": key, "error": error}
            assert (bolt, attempts) == ("decode", 1)
    return found


def values(stream: KafkaStream) -> list[int]:
    return sorted(row["a"] for row in rows_of(stream))


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the streams of a test at its end."""
    made: list[KafkaStream] = []
    init = KafkaStream.__post_init__

    def noted(self: KafkaStream) -> None:
        init(self)
        made.append(self)

    monkeypatch.setattr(KafkaStream, "__post_init__", noted)
    yield
    for stream in made:
        stream.stop()


def refused(stream: KafkaStream, match: str) -> None:
    with pytest.raises(EddylineError, match=match):
        stream.pull()


def test_records_come_once_each_partition_in_order(broker: Broker, tmp_path: Path) -> None:
    """In entries of various sizes, by a stream that is opened again and again."""
    topic, dice = Topic(broker, 3), random.Random(1)
    stream, sent = stream_of(topic, tmp_path / "s"), 0
    for turn in range(6):
        for _ in range(dice.randrange(1, 4)):
            count = dice.randrange(1, 20)
            documents = [{"a": n, "b": "x"} for n in range(sent, sent + count)]
            kind = dice.randrange(6)
            if kind == 0:
                topic.transaction(*documents, commit=False, partition=dice.randrange(3))
                continue
            send = topic.transaction if kind == 1 else topic.send
            send(*documents, partition=dice.randrange(3))
            sent += count
        if turn % 3 == 2:
            stream.stop()
            stream = stream_of(topic, tmp_path / "s", limit=dice.choice([None, 1, 7]))
        stream.pull()
        assert values(stream) == list(range(sent))
    if stream.limit is None:
        return
    assert stream.steps


def test_records_that_are_not_read_are_counted(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, 2)
    for partition in range(2):
        topic.send(*[{"a": n, "b": "x"} for n in range(40)], partition=partition)
    stream = stream_of(topic, tmp_path / "s", limit=10)
    measured = Measured(stream)
    assert stream.unread() is None
    told = told_before_entries(stream, monkeypatch)
    monkeypatch.setattr(kafka, "LOOK_AGAIN_S", 0.0)
    stream.pull()
    amounts = [(one.amount, one.position, one.unit) for one in told if one]
    assert amounts[0] == (80, 0, "rows")
    assert len(amounts) == stream.log.end() > 4
    assert all(amount + position == 80 for amount, position, _ in amounts)
    assert measured.lag().items() >= {"rows": 80}.items()  # in the log, no epoch has processed them
    rows = len(entries(stream)[0])
    lag = measured.lag(processed=1)
    assert lag["rows"] == 80 - rows
    assert 0 < time.time() - lag["since"] / 1e6 < PATIENCE_S
    assert measured.lag(processed=stream.log.end()) == {"rows": 0}

    topic.send({"a": 80, "b": "x"}, partition=0)
    told.clear()
    stream.follow(0.1)
    until(lambda: stream.log.has(len(amounts)))
    assert [one and one.amount for one in told] == [1]


def test_columns_of_records_are_those_of_spark(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(b"\xff", key=b"k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    topic.send(None)
    stream = stream_of(topic, tmp_path / "s", RAW.append(pa.field(HEADERS, HEADERS_TYPE)), raw=True)
    stream.pull()
    first, second = entries(stream)[0]
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert {**first, "timestamp": 0} == {
        "key": b"k", "value": b"\xff", "topic": topic.name, "partition": 0, "offset": 0,
        "timestamp": 0, "timestampType": 0, "headers": headers,
    }  # fmt: skip
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)
    assert second["headers"] in (None, [])


class CrashError(Exception):
    pass


@pytest.mark.guarantee(
    "stream `kafka`", "exactly once", "a crash at each write of entries with dead letters"
)
def test_a_crash_at_any_write_loses_and_doubles_nothing(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More records come after the crash; the dead letters of the entry are those of before."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # it is the process that crashes
    topic, sent, bad, crashes = Topic(broker, 2), 0, 0, 0
    for effect in range(200):
        stream, left = stream_of(topic, tmp_path / f"{effect}", limit=7), effect
        for partition in (0, 1):
            topic.send({"a": sent}, "{", {"a": sent + 1}, partition=partition)
            sent, bad = sent + 2, bad + 1

        def step(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise CrashError

        stream.log.files.step = step  # type: ignore[method-assign]
        with suppress(CrashError):
            stream.pull()
        stream.stop()
        topic.send({"a": sent}, "[", partition=effect % 2)
        sent, bad = sent + 1, bad + 1
        stream = stream_of(topic, tmp_path / f"{effect}", limit=100)
        stream.pull()
        assert values(stream) == list(range(sent))
        payloads = [letter["payload"] for letter in letters_of(stream).values()]
        assert len(payloads) == bad
        stream.stop()
        if left >= 0:
            break
        crashes += 1
        if effect > 25:  # later entries are written like these
            break
    assert crashes > 15


def test_open_and_aborted_transactions_are_not_seen(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.transaction({"a": 1}, {"a": 2})
    topic.transaction({"a": 10}, commit=False)
    pending = topic.begin({"a": 3})
    topic.send({"a": 4})
    stream = stream_of(topic, tmp_path / "s")
    stream.pull()
    assert values(stream) == [1, 2]
    pending.commit_transaction(PATIENCE_S)
    topic.settle()
    stream.pull()
    assert values(stream) == [1, 2, 3, 4]
    # what is no record is read, too: the stream isn't behind when retention deletes it
    topic.transaction({"a": 11}, commit=False)
    stream.pull()
    stream.stop()
    topic.expire(-1)
    stream = stream_of(topic, tmp_path / "s")
    stream.pull()
    topic.send({"a": 5})
    stream.pull()
    assert values(stream) == [1, 2, 3, 4, 5]


def test_records_that_retention_deleted_are_an_error(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send({"a": 1})
    stream = stream_of(topic, tmp_path / "s")
    stream.pull()
    topic.send({"a": 2}, {"a": 3}, {"a": 4})
    stream.stop()
    topic.expire(3)
    stream = stream_of(topic, tmp_path / "s")
    for _ in range(2):
        refused(
            stream, r"SOURCE_LOST.*partition 0 of topic \w+ begins at offset 3 by now, and 2 offs"
        )
    assert values(stream) == [1]
    fresh = stream_of(topic, tmp_path / "fresh")
    fresh.pull()
    assert values(fresh) == [4]


def test_a_topic_that_is_deleted_or_made_again_is_an_error(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send({"a": 1}, {"a": 2})
    stream = stream_of(topic, tmp_path / "s")
    stream.pull()
    topic.delete()
    refused(stream, r"SOURCE_CHANGED.*topic \w+ isn't there")

    def created() -> bool:
        with suppress(KafkaException):
            topic.create()
            return True
        return False

    until(created)  # brokers may need a moment to delete it
    topic.send({"a": 3}, {"a": 4}, {"a": 5})
    refused(stream, r"SOURCE_CHANGED.*topic \w+ has been deleted and created again")
    assert values(stream) == [1, 2]


def test_new_partitions_and_topics_are_read_from_their_beginning(
    broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker)
    prefix = topic.name
    topic.send({"a": 1})
    stream = stream_of(topic, tmp_path / "s", pattern=f"{prefix}.*|__.*", starting=LATEST)
    topic.transaction({"a": 1}, commit=False)  # there are topics of Kafka's own
    stream.pull()
    assert values(stream) == []
    assert stream.topics.describe(()).keys() == {prefix}
    topic.extend(2)
    topic.send({"a": 2}, partition=1)
    topic.send({"a": 3})
    stream.pull()
    assert values(stream) == [2, 3]
    other = Topic(broker, name=f"{prefix}.more")
    other.send({"a": 4})
    stream.pull()
    assert sorted(row["a"] for rows in entries(stream) for row in rows) == [2, 3, 4]


def test_offsets_to_begin_at(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, 4)
    for partition in range(4):
        topic.send(*({"a": 10 * partition + n} for n in range(3)), partition=partition)
    starting = {(topic.name, 0): 2, (topic.name, 1): LATEST, (topic.name, 2): EARLIEST}
    stream = stream_of(topic, tmp_path / "s", starting=starting)
    stream.pull()
    assert values(stream) == [2, 20, 21, 22, 30, 31, 32]
    topic.send({"a": 13}, partition=1)
    stream.pull()
    assert values(stream) == [2, 13, 20, 21, 22, 30, 31, 32]


def test_offsets_to_begin_at_that_are_not_there_are_an_error(
    broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker, 2)
    topic.send({"a": 1}, {"a": 2}, {"a": 3})
    topic.expire(1)
    name = topic.name
    for starting, why in (
        (
            {("clicsk", 0): 2},
            rf"topic clicsk, and the stream reads {name} .*create it with names",
        ),
        ({(name, 2): -2}, rf"partition 2 of topic {name}, whose partitions are 0 to 1"),
        ({(name, -1): 0}, r"partition -1 of"),
        ({(name, 0): 500}, r"offset 500 of partition 0 .*from offset 1 on.*next one gets offset 3"),
        ({(name, 0): 4}, r"create it with an offset from 1 to 3, with -2 for .* or -1 for"),
        ({(name, 0): 0}, r"offset 0 of partition 0"),
        (
            {(name, 0): 3, (name, 1): 1},
            r"offset 1 of partition 1 .*from offset 0 on.*gets offset 0",
        ),
    ):
        stream = stream_of(topic, tmp_path / "s", starting=starting)
        for _ in range(2):
            refused(stream, f"BAD_STREAM.*startingOffsets has .*{why}")
        assert stream.log.end() == 0
    for offset, found in ((1, [2, 3]), (3, [])):
        stream = stream_of(topic, tmp_path / f"s{offset}", starting={(name, 0): offset})
        stream.pull()
        assert values(stream) == found
    topic.send({"a": 4})
    stream.pull()
    assert values(stream) == [4]


def test_documents_that_do_not_fit_are_dead_letters(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send({"a": 1}, {"a": "x"}, "[1]", "", None, {"b": "y"}, key=b"k")
    stream = stream_of(topic, tmp_path / "s")
    stream.pull()
    assert [(row["a"], row["b"], row["_offset"]) for row in rows_of(stream)] == [
        (1, None, 0),
        (None, "y", 5),
    ]
    dead = list(letters_of(stream).values())
    assert [letter["payload"] for letter in dead] == [b'{"a": "x"}', b"[1]", b""]
    assert {letter["key"] for letter in dead} == {b"k"}
    assert dead[1]["error"].startswith(f"topic {topic.name}, partition 0, offset 2: ")
    topic.send("{")
    stream.pull()
    topic.send("}")
    stream.pull()
    assert len(letters_of(stream)) == 5  # entries without rows have letters of their own


def test_a_record_without_a_value_tells_that_its_key_is_gone(
    broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker)
    topic.send({"a": 1}, "{", None, {"a": 2}, key=b"k")
    schema = pa.schema([("a", pa.int64()), ("_key", pa.string())])
    stream = stream_of(topic, tmp_path / "s", schema)
    stream.decode.values.__init__(pa.schema([("a", pa.int64())]), "UTC")  # type: ignore[attr-defined]
    stream.pull()
    assert [(row["a"], row["_key"], row["_offset"]) for row in rows_of(stream)] == [
        (1, "k", 0),
        (None, "k", 2),
        (2, "k", 3),
    ]
    assert len(letters_of(stream)) == 1


def test_operations_are_in_a_column_of_the_documents(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    for op in ("c", "d", "?", None, "+I"):
        topic.send({"a": 1, "op": op})
    topic.send(None, "{")
    stream = stream_of(topic, tmp_path / "s", operation="op")
    stream.pull()
    (segment,) = stream.log.segments(0, 1)
    table = read_arrow(stream.log.files, segment)
    assert table["op"].to_pylist() == [APPEND, DELETE, APPEND]
    errors = [letter["error"].partition(": ")[2] for letter in letters_of(stream).values()]
    assert errors[:2] == ["unknown operation ?", "unknown operation null"]
    assert len(errors) == 3


def test_settings_of_the_client_are_checked(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.settings["no.such.setting"] = "1"
    refused(stream_of(topic, tmp_path / "s"), "BAD_STREAM.*no.such.setting")


def follow_until(stream: KafkaStream, done: Callable[[], bool]) -> None:
    def followed() -> bool:
        with suppress(EddylineError):
            stream.follow(0.1)
        return done()

    until(followed)


@pytest.mark.slow
@pytest.mark.guarantee("stream `kafka`", "exactly once", "the broker, once by kill -9")
def test_a_broker_that_is_killed_is_read_on(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "WAIT_S", 1.0)
    monkeypatch.setattr(kafka_topics, "TIMEOUT_S", 1.0)
    topic = Topic(broker, 2)
    topic.send(*({"a": n} for n in range(500)))
    stream = stream_of(topic, tmp_path / "s", limit=100)
    stream.pull()
    broker.stop(kill=True)
    sources = Sources(Files(str(tmp_path)), None, "UTC", {}, lambda: 0)  # type: ignore[arg-type]  # no DataFrames
    sources._sources[stream.name] = stream

    def failures() -> int:
        sources.follow(0.1)
        return sources.outages[stream.name].failures if sources.outages else 0

    try:
        refused(stream, "STREAM_FAILED")
        until(failures)
        seen = [failures()]
        until(lambda: seen.append(failures()) or seen[-1] >= 4)
        # a try takes longer than the pause before it, and ends no outage
        assert seen == sorted(seen)
    finally:
        broker.start()
    topic.send(*({"a": n} for n in range(500, 600)), partition=1)
    until(lambda: not failures() and len(values(stream)) >= 600)
    assert values(stream) == list(range(600))


def options_of(topic: Topic, **more: str) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in topic.options(**more).items())


TAGS = {"type": "array", "items": "string"}
COLUMNS_OF = "id BIGINT, v DOUBLE, ts TIMESTAMP"
STREAMS = {
    "documents": f"({COLUMNS_OF}, _partition INT, _offset BIGINT) USING kafka",
    "applied": f"({COLUMNS_OF}) USING kafka OP op",
    "latest": f"({COLUMNS_OF}, PRIMARY KEY (id)) USING kafka",
    "timed": f"({COLUMNS_OF}, WATERMARK FOR ts AS ts - INTERVAL 1 HOUR) USING kafka",
    "raw": "USING kafka",
}
VIEWS = {
    "documents": "SELECT _partition, max(_offset) AS last, count(*) AS n, sum(v) AS v FROM documents GROUP BY 1",
    "applied": "SELECT count(*) AS n, sum(v) AS v FROM applied",
    "latest": "SELECT v, count(*) AS n FROM latest GROUP BY v",
    "timed": "SELECT window(ts, '1 hour').start AS h, count(*) AS n FROM timed GROUP BY 1",
    "raw": "SELECT d.id, count(*) AS n FROM (SELECT from_json(cast(value AS STRING), 'id BIGINT') AS d "
    "FROM raw) GROUP BY 1",
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "chosen",
    [("documents", "applied"), pytest.param(("latest", "timed", "raw"), marks=pytest.mark.slow)],
)
def test_views_of_topics_equal_offline_queries_at_each_epoch(
    broker: Broker, tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    """Of documents, with keys, operations and a watermark, and of records as they are."""
    topic, dice, sent = Topic(broker, 2), random.Random(5), 0
    for opening in range(2):
        with el.Engine(tmp_path / "storage") as engine:
            for name in () if opening else chosen:
                json_too = {} if name == "raw" else {"value_format": "json"}
                engine.execute(
                    f"CREATE STREAM {name} {STREAMS[name]} OPTIONS ({options_of(topic, **json_too)})"
                )
                engine.view(f"of_{name}", VIEWS[name])
            for _ in range(2 if "raw" in chosen else 1):
                hour = f"2026-01-01T{10 + sent}:00:00Z"
                for partition in (0, 1):
                    rows: list[Any] = [
                        {"id": dice.randrange(5), "v": dice.randrange(3), "ts": hour, "op": "c"}
                        for _ in range(30)
                    ]
                    undone = {**rows[3], "op": "d"}
                    topic.send(*rows, {"id": "x"}, undone, partition=partition)
                sent += 2
                topic.transaction({"id": 1}, commit=False)
                engine.advance()
                assert engine.verify()
                expected = {"documents": 31, "applied": 29, "timed": 31, "raw": 32}
                for name in chosen:
                    (n,) = engine.sql(f"SELECT count(*) FROM {name}").first()
                    assert n == (5 if name == "latest" else expected[name] * sent), name
                    if name not in ("raw", "latest"):
                        assert engine.sql(f"SELECT * FROM {name}__dead").count() == sent
                if "documents" in chosen:
                    places = engine.sql("SELECT count(DISTINCT _partition, _offset) FROM documents")
                    assert places.first()[0] == 31 * sent


@pytest.mark.spark
def test_wrong_definitions_are_refused(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    right = topic.options(value_format="json")
    plain = topic.options()
    with el.Engine(tmp_path / "storage") as engine:

        def refused(match: str, columns: str | None, options: dict[str, str], **more: Any) -> None:
            with pytest.raises(EddylineError, match=match):
                engine.create_stream("s", columns, "kafka", options, **more)
            assert engine.catalog.entries == ()

        refused("documents declare no columns", None, right)
        refused("there is no topic none", None, {**plain, "subscribe": "none"})
        refused("no option failondataloss", None, {**plain, "failOnDataLoss": "false"})
        refused("sets kafka.group.id itself", None, {**plain, "kafka.group.id": "g"})
        refused("setting that the Kafka client doesn't take", None, {**plain, "kafka.no": "1"})
        refused("in the clear", None, {**plain, "kafka.sasl.password": "p"})
        refused("in the clear", None, {**plain, "kafka.sasl.oauthbearer.config": "secret=p"})
        refused("SECRET_MISSING", None, {**plain, "kafka.sasl.password": "${env:NO_SUCH}"})
        refused("bootstrap.servers is missing", None, {"subscribe": topic.name})
        refused("subscribe or subscribePattern", None, {**plain, "subscribePattern": "x"})
        refused("no regular expression", None, {**plain, "subscribe": "", "subscribePattern": "("})
        refused("maxOffsetsPerTrigger is '0'", None, {**plain, "maxOffsetsPerTrigger": "0"})
        refused("startingOffsets is 'soon'", None, {**plain, "startingOffsets": "soon"})
        refused("startingOffsets is", None, {**plain, "startingOffsets": '{"t": {"0": -3}}'})
        for address in ("http://ann:hidden@127.0.0.1:1", "ftp://ann:hidden@127.0.0.1"):
            given = topic.options(value_format="avro", schema_registry_url=address)
            refused("^(?!.*hidden).*holds a user or password", "a INT", given)
        pattern = {**plain, "subscribe": "", "subscribePattern": f"{topic.name}.*"}
        for options in (plain, pattern):

            def begins(offsets: str, options: dict[str, str] = options) -> dict[str, str]:
                return {**options, "startingOffsets": offsets.replace("<topic>", topic.name)}

            refused(
                "has topic clicsk, and subscribe.*the same", None, begins('{"clicsk": {"0": 2}}')
            )
            refused("partition 7 of topic", None, begins('{"<topic>": {"7": -2}}'))
            refused("BAD_STREAM.*offset 500 of", None, begins('{"<topic>": {"0": 500}}'))
        refused("stream reads", None, begins('{"<topic>.none": {"0": 2}}'))
        absent = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "clicks"}
        # no broker is asked for that
        refused("has topic clicsk", None, {**absent, "startingOffsets": '{"clicsk": {"0": 2}}'})
        refused("value.format is 'xml'", "a INT", {**plain, "value.format": "xml"})
        refused("a int is no column of this source", "a INT", plain)
        refused("_offset is of the record, and no INT", "a INT, _offset INT", right)
        refused("records as they are have no operations", "value BINARY", plain, op="op")
        assert engine.create_stream("s", "a INT, _key STRING", "kafka", right).name == "s"
        more = {"includeHeaders": "true", "startingOffsets": "latest"}
        stream = engine.create_stream("h", None, "kafka", {**plain, **more})
        assert stream.schema.names[-1] == "headers"


@pytest.mark.spark
def test_a_topic_of_avro_with_a_schema_that_changes(broker: Broker, tmp_path: Path) -> None:
    """The registry is a server of our own, see `avro.registry`."""

    def record(*fields: tuple[str, Any]) -> dict[str, Any]:
        types = [{"name": name, "type": kind} for name, kind in fields]
        return {"type": "record", "name": "Order", "fields": types}

    cents = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    old = record(("id", "int"), ("price", cents))
    new = record(("id", "long"), ("price", ["null", cents]), ("tags", ["null", TAGS]))
    topic = Topic(broker)
    with registry() as known, el.Engine(tmp_path / "storage") as engine:
        options = topic.options(value_format="avro", schema_registry_url=known.url)
        with pytest.raises(EddylineError, match="has no subject"):
            engine.create_stream("orders", None, "kafka", options)
        declared = "id BIGINT, price DECIMAL(12, 2), _offset BIGINT"
        engine.create_stream("declared", declared, "kafka", options)
        first = known.add(f"{topic.name}-value", old)
        second = known.add(f"{topic.name}-value", new)
        with pytest.raises(EddylineError, match="field id is int64, and the column string"):
            engine.create_stream("orders", "id STRING", "kafka", options)
        with pytest.raises(EddylineError, match="needs a schema registry"):
            engine.create_stream("orders", None, "kafka", topic.options(value_format="avro"))
        secret = {**options, "schema.registry.basic.auth.user.info": "me:secret"}
        with pytest.raises(EddylineError, match="in the clear"):
            engine.create_stream("orders", None, "kafka", secret)
        orders = engine.create_stream("orders", None, "kafka", options)
        shown = [(one.name, one.dataType.simpleString()) for one in orders.schema]
        assert shown == [("id", "bigint"), ("price", "decimal(10,2)"), ("tags", "array<string>")]
        engine.view("sums", "SELECT count(*) AS n, sum(price) AS price FROM orders")
        engine.view("all", "SELECT count(*) AS n, sum(price) AS price FROM declared")
        good = framed(second, new, {"id": 2, "price": Decimal("-0.50"), "tags": ["a"]})
        topic.send(framed(first, old, {"id": 1, "price": Decimal("1.25")}), good, good[:-1], b"{}")
        engine.advance()
        assert engine.verify()
        for view in ("sums", "all"):
            assert [str(value) for value in engine.snapshot(view).first()] == ["2", "0.75"]
        engine.execute("ALTER STREAM declared ADD COLUMN tags ARRAY<STRING>")
        topic.send(framed(77, new, {"id": 3, "price": Decimal("0.01"), "tags": None}), good)
        engine.advance()
        tags = engine.sql("SELECT tags FROM declared ORDER BY _offset").collect()
        assert [row.tags for row in tags] == [None, None, ["a"]]
        assert engine.verify()
        assert engine.snapshot("sums").first().n == 3
        errors = [
            row.error
            for row in engine.sql("SELECT * FROM orders__dead ORDER BY position").collect()
        ]
        place = f"topic {topic.name}, partition 0, offset"
        assert errors == [
            f"{place} 2: no value of schema 2: it ends too early",
            f"{place} 3: no value of Avro: it doesn't begin with a zero byte and the number of a schema",
            f"{place} 4: schema 77 can't be read: the schema registry has no schema 77",
        ]
        assert known.asked.count("/schemas/ids/1") == 2  # once by each stream
    with el.Engine(tmp_path / "storage") as engine:  # without the registry
        topic.send(good)
        with pytest.raises(EddylineError, match=r"STREAM_FAILED.*schema registry"):
            engine.advance()
        assert engine.snapshot("sums").first().n == 3


@pytest.mark.guarantee(
    "stream `kafka`", "exactly once", "the engine 6 times, and the broker 3 times by kill -9"
)
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_kills_of_engine_and_broker_lose_and_double_nothing(tmp_path: Path) -> None:
    """While records are sent, some of them in transactions, some that can't be decoded."""
    folder, dice = tmp_path / "broker", random.Random(7)
    folder.mkdir()
    sent, bad = list[int](), list[str]()

    def send(topic: Topic, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            first, partition = len(sent), dice.randrange(3)
            documents = [{"id": n} for n in range(first, first + dice.randrange(1, 200))]
            kind = dice.randrange(10)
            if kind == 0:
                topic.transaction(*documents, commit=False, partition=partition)
                continue
            if kind == 1:
                topic.transaction(*documents, partition=partition)
            else:
                topic.send(*documents, partition=partition)
            sent.extend(one["id"] for one in documents)
            if kind == 2:
                bad.append(f"bad {len(bad)}")
                topic.send(bad[-1], partition=partition)
            time.sleep(0.02)

    with Broker(folder) as own:
        topic = Topic(own, 3)

        def child(what: str) -> Child:
            file = str(Path(__file__).with_name("kafka_child.py"))
            given = [str(tmp_path / "storage"), own.address, topic.name, what]
            return Child([sys.executable, file, *given], tmp_path / "stderr")

        for turn in range(6):
            killed = child("follow")
            try:
                killed.wait_for("epoch")
                send(topic, dice.uniform(1, 5))
                if turn % 2:
                    own.stop(kill=True)
                    time.sleep(dice.uniform(0, 2))
                    own.start()
                    send(topic, 2)
                assert killed.process.poll() is None, killed.last_words()
            finally:
                killed.kill()
            send(topic, 0.3)
        last = child("end")
        try:
            ids, dead = json.loads(last.wait_for("ids"))
        finally:
            last.kill()
    assert ids == sent
    assert dead == sorted(bad)
    assert len(sent) > 5000
    assert len(bad) > 3


@pytest.mark.spark
def test_a_stream_of_an_earlier_version_goes_on_with_sparks_source(
    broker: Broker, tmp_path: Path
) -> None:
    """Its checkpoint tells; here Spark's package is missing, which the error names."""
    topic = Topic(broker)
    with el.Engine(tmp_path / "storage") as engine:
        engine.create_stream("s", None, "kafka", topic.options())
        (entry,) = engine.catalog.entries
    (tmp_path / "storage" / "checkpoints" / entry.id / "offsets").mkdir(parents=True)
    with pytest.raises(EddylineError, match=r"MISSING_PACKAGE.*spark-sql-kafka"):
        el.Engine(tmp_path / "storage")


@pytest.mark.spark
def test_columns_of_a_topic_come_leave_and_get_other_names(broker: Broker, tmp_path: Path) -> None:
    """Operations with a key, and appends: documents keep the names that they had."""
    topic = Topic(broker)
    with el.Engine(tmp_path / "storage") as engine:
        given = options_of(topic, value_format="json")
        engine.execute(f"""
            CREATE STREAM plain (id INT, v INT, s STRING, _offset BIGINT) USING kafka OPTIONS ({given});
            CREATE STREAM keyed (id INT, v INT, s STRING, PRIMARY KEY (id)) USING kafka OP op OPTIONS ({given});
            CREATE VIEW n AS SELECT count(*) AS n FROM plain;
        """)
        topic.send(*({"id": k, "v": k, "s": "x", "op": "c"} for k in range(3)))
        engine.advance()
        for stream in ("plain", "keyed"):
            engine.execute(f"""
                ALTER STREAM {stream} RENAME COLUMN v TO amount;
                ALTER STREAM {stream} ALTER COLUMN amount TYPE BIGINT;
                ALTER STREAM {stream} DROP COLUMN s;
                ALTER STREAM {stream} ADD COLUMN t STRING;
            """)
        many = 1 << 40
        topic.send({"id": 2, "v": many, "s": "y", "t": "new", "op": "c"}, {"id": 9, "v": "no"})
        engine.advance()
    with el.Engine(tmp_path / "storage") as engine:
        topic.send({"id": 0, "op": "d"}, {"id": 4, "v": 4, "t": "z", "op": "c"})
        engine.advance()
        assert engine.verify()
        found = engine.sql("SELECT id, amount, t FROM keyed ORDER BY id").collect()
        assert [tuple(row) for row in found] == [(1, 1, None), (2, many, "new"), (4, 4, "z")]
        found = engine.sql("SELECT id, amount, t, _offset FROM plain ORDER BY _offset").collect()
        assert [tuple(row) for row in found] == [
            *((k, k, None, k) for k in range(3)),
            (2, many, "new", 3),
            (0, None, None, 5),
            (4, 4, "z", 6),
        ]
        assert engine.sql("SELECT * FROM plain__dead").count() == 1
        assert engine.sql("SELECT * FROM keyed__dead").count() == 1


@pytest.mark.spark
def test_columns_change_when_the_offset_to_begin_at_is_gone(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send({"id": 1}, {"id": 2}, {"id": 3})
    with el.Engine(tmp_path / "storage") as engine:
        given = topic.options(value_format="json")
        begins = {"startingOffsets": json.dumps({topic.name: {"0": 1}})}
        engine.create_stream("s", "id INT", "kafka", {**given, **begins})
        engine.advance()
        topic.expire(3)
        engine.execute("ALTER STREAM s ADD COLUMN t STRING")
        topic.send({"id": 4, "t": "new"})
        engine.advance()
        found = engine.sql("SELECT id, t FROM s ORDER BY id").collect()
        assert [tuple(row) for row in found] == [(2, None), (3, None), (4, "new")]


COLUMNS_OF_PERSONS = "id BIGINT, name STRING"
ENVELOPE = (
    f"before STRUCT<{COLUMNS_OF_PERSONS}>, after STRUCT<{COLUMNS_OF_PERSONS}>, op STRING, "
    "source STRUCT<lsn: BIGINT>"
)


@pytest.mark.spark
@pytest.mark.parametrize(
    "schemas",
    [
        pytest.param(False, marks=pytest.mark.slow, id="plain"),
        pytest.param(True, id="with_schemas"),
    ],
)
def test_a_table_follows_a_topic_of_debezium(broker: Broker, tmp_path: Path, schemas: bool) -> None:
    """As its connector writes it: tombstones after deletes, records again, a key that changes, TRUNCATE."""
    topic, dice, lsn = Topic(broker, 3), random.Random(3), 0
    persons: dict[int, str] = {}
    last: list[tuple[int, Any]] = []

    def change(op: str, key: int, before: Any = None, after: Any = None) -> None:
        nonlocal lsn
        lsn += dice.randrange(1, 3)
        envelope = {"before": before, "after": after, "op": op, "source": {"lsn": lsn}, "ts_ms": 0}
        last.append(
            (key, {"schema": {"type": "struct"}, "payload": envelope} if schemas else envelope)
        )
        if op == "d":
            last.append((key, None))

    def send() -> None:
        """Each key's records to a partition of its own, in order, some of them twice."""
        for key, value in last:
            for _ in range(dice.choice([1, 1, 1, 2])):
                topic.send(value, partition=key % 3, key=json.dumps({"id": key}).encode())
        last.clear()

    def row(key: int) -> dict[str, Any]:
        return {"id": key, "name": persons[key]}

    def turn() -> None:
        key, name = dice.randrange(12), f"n{dice.randrange(100)}"
        kind = dice.randrange(20)
        if kind == 0:
            persons.clear()
            change("t", key)
        elif key not in persons:
            persons[key] = name
            change(dice.choice("cr"), key, after=row(key))
        elif kind < 10:
            before, persons[key] = row(key), name
            change("u", key, before, row(key))
        else:
            before = row(key)
            name = persons.pop(key)
            change("d", key, before)
            if kind < 13:  # an UPDATE of the key
                moved = key + 100
                persons[moved] = name
                change("c", moved, after=row(moved))

    for opening in range(2):
        with el.Engine(tmp_path / "storage") as engine:
            if not opening:
                columns = f"payload STRUCT<{ENVELOPE}>" if schemas else ENVELOPE
                record = "payload." if schemas else ""
                options = options_of(topic, value_format="json", maxOffsetsPerTrigger="40")
                engine.execute(f"""
                    CREATE STREAM documents ({columns}) USING kafka OPTIONS ({options});
                    CREATE VIEW person_changes AS
                        SELECT coalesce({record}after.id, {record}before.id) AS id, {record}after.name,
                            {record}op, {record}source.lsn
                        FROM documents;
                    CREATE FLOW f AS AUTO CDC INTO persons FROM person_changes KEYS (id)
                    APPLY AS DELETE WHEN op = 'd' APPLY AS TRUNCATE WHEN op = 't'
                    SEQUENCE BY lsn COLUMNS (id, name);
                    CREATE VIEW names AS SELECT name, count(*) AS n FROM persons GROUP BY name;
                """)
            for _ in range(3):
                for _ in range(dice.randrange(1, 80)):
                    turn()
                send()
                engine.advance()
                found = [tuple(one) for one in engine.snapshot("persons").collect()]
                assert sorted(found) == sorted(persons.items())
                assert engine.verify()
                assert not engine.sql("FROM documents__dead").collect()
