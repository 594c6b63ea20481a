"""The format `USING kafka`: the records of topics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from eddyline.catalog.entries import REJECTS, Entry
from eddyline.intake.formats import Context, SparkFormat, check_columns, log_columns
from eddyline.sink.secrets import check_secrets, filled_in
from eddyline.source.avro import AvroReader, AvroValues
from eddyline.source.avro_schema import AvroType, UnreadableError
from eddyline.source.base import Source
from eddyline.source.dead_letters import Rejects
from eddyline.source.kafka import EARLIEST, LATEST, KafkaStream, Partition, starting_offsets
from eddyline.source.kafka import bad_stream as _bad
from eddyline.source.kafka_rows import (
    HEADERS,
    HEADERS_TYPE,
    META,
    RAW,
    Decode,
    Decoded,
    Json,
    RawRecords,
    Values,
)
from eddyline.source.schema_registry import Registry
from eddyline.source.segment_readers import Reader
from eddyline.spark.schema import arrow_schema

if TYPE_CHECKING:
    from eddyline.intake.kafka_topics import KafkaTopics

CLIENT = "kafka."
SERVERS, SUBSCRIBE, PATTERN = "kafka.bootstrap.servers", "subscribe", "subscribepattern"
STARTING, LIMIT, WITH_HEADERS = "startingoffsets", "maxoffsetspertrigger", "includeheaders"
FORMAT = "value.format"
REGISTRY, REGISTRY_USER = "schema.registry.url", "schema.registry.basic.auth.user.info"
JSON, AVRO = "json", "avro"
FORMATS = (JSON, AVRO)
OPTIONS: Mapping[str, str] = {
    "kafka.bootstrap.servers": "addresses of brokers, such as host:9092",
    "kafka.*": "any other setting of the client, librdkafka, such as kafka.security.protocol",
    "subscribe": "names of topics, with commas",
    "subscribePattern": "a regular expression of the names of topics, instead",
    "startingOffsets": "earliest, latest, or a JSON object of offsets by topic and partition",
    "maxOffsetsPerTrigger": "the number of records of an epoch at most",
    "includeHeaders": "true: one more column, headers",
    "value.format": "json or avro: the columns are members of the value",
    "schema.registry.url": "address of the schema registry, for avro",
    "schema.registry.basic.auth.user.info": "user:password for it, as a reference such as ${env:NAME}",
}
SECRETS = (
    "kafka.sasl.password",
    "kafka.ssl.key.password",
    "kafka.ssl.key.pem",
    "kafka.ssl.keystore.password",
    "kafka.sasl.oauthbearer.client.secret",
    "kafka.sasl.oauthbearer.config",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "kafka.sasl.oauthbearer.assertion.private.key.pem",
    REGISTRY_USER,
)
_BOUND = ("group.id", "group.instance.id", "auto.offset.reset", "isolation.level")  # Java's names
_KINDS: Mapping[str, Sequence[type[DataType]]] = {"_key": (BinaryType, StringType)}


class KafkaRecords:
    """The records of topics, each once: `USING kafka`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns of undecoded records, or of the latest schema; documents declare none."""
        given = _checked(stream, options)
        if FORMAT not in given:
            return _raw(given)
        if given[FORMAT] == JSON:
            raise _bad(stream, "documents declare no columns", "give the columns of the values")
        return from_arrow_schema(pa.schema(_latest(stream, given).arrow))

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the topics, the columns or an option don't fit."""
        if _read_by_spark(stream, context):
            SparkFormat("kafka").check(stream, context)
            return
        given = _checked(stream.name, stream.options)
        if FORMAT in given:
            _check_decoded(stream, given, context)
        else:
            check_columns(stream, _raw(given))
            if stream.operation:
                raise _bad(
                    stream.name,
                    "records as they are have no operations",
                    f"leave OP out, or give {FORMAT}",
                )
        starting: int | Mapping[Partition, int] = EARLIEST
        if not stream.id:  # an existing stream has begun
            starting = _starting(stream.name, given)
            _check_names(stream.name, given, starting)
        topics = _topics(stream.name, given, threading.Event())
        try:
            found = topics.describe(())
            if missing := [name for name, one in found.items() if one is None]:
                raise _bad(stream.name, f"there is no topic {missing[0]}", "create the topic first")
            if not isinstance(starting, int):
                there = {name: one for name, one in found.items() if one is not None}
                starting_offsets(stream.name, topics, there, starting)
        finally:
            topics.close()

    def letters(self, stream: Entry) -> str:
        """Return `REJECTS` where values are decoded, or operations: a record may not fit."""
        decoded = any(name.lower() == FORMAT for name in stream.options)
        return REJECTS if decoded or stream.operation else ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that reads the topics; Spark's source if the stream was begun with it."""
        if _read_by_spark(stream, context):
            return SparkFormat("kafka").open(stream, letters, context)
        given = {name.lower(): value for name, value in stream.options.items()}
        limit = given.get(LIMIT)
        return KafkaStream(
            stream.name,
            _starting(stream.name, given),
            _decode(stream, given, context),
            None if limit is None else int(limit),
            partial(_topics, stream.name, given),
            context.log_of(stream),
            f"checkpoints/{stream.id}",
            None if letters is None else Rejects(stream.name, context.log_of(letters)),
        )


def _read_by_spark(stream: Entry, context: Context) -> bool:
    """Return whether an earlier version has begun to read a stream, by Spark's source."""
    return bool(stream.id) and context.files.exists(f"checkpoints/{stream.id}/offsets")


def _checked(stream: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by names in lower case; an error if one is unknown, missing or wrong."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in OPTIONS}
    for name in given:
        if name not in known and not name.startswith(CLIENT):
            raise _bad(stream, f"it has no option {name}", f"the options are {', '.join(OPTIONS)}")
        if name.removeprefix(CLIENT) in _BOUND:
            raise _bad(
                stream,
                f"it sets {name} itself",
                "leave it out: only committed records are read, and no group is joined",
            )
    check_secrets(given, SECRETS)
    if not given.get(SERVERS, "").strip():
        raise _bad(stream, f"the option {SERVERS} is missing", "give addresses such as host:9092")
    if (PATTERN in given) == bool(_names(given)):
        raise _bad(stream, "it needs subscribe or subscribePattern", "give one of the two")
    try:
        re.compile(given.get(PATTERN, ""))
    except re.error as error:
        why = f"subscribePattern is no regular expression: {error}"
        raise _bad(stream, why, "correct it") from error
    if not given.get(LIMIT, "1").isdecimal() or int(given.get(LIMIT, "1")) < 1:
        raise _bad(stream, f"maxOffsetsPerTrigger is {given[LIMIT]!r}", "give a number from 1 on")
    if given.get(WITH_HEADERS, "false").lower() not in ("true", "false"):
        raise _bad(stream, f"includeHeaders is {given[WITH_HEADERS]!r}", "give true or false")
    if given.get(FORMAT, FORMATS[0]) not in FORMATS:
        way_out = f"give {' or '.join(FORMATS)}, or leave it out for records as they are"
        raise _bad(stream, f"{FORMAT} is {given[FORMAT]!r}", way_out)
    if FORMAT in given and WITH_HEADERS in given:
        raise _bad(stream, "decoded values come without headers", "leave includeHeaders out")
    if (given.get(FORMAT) == AVRO) != (REGISTRY in given):
        way_out = f"give both {FORMAT} '{AVRO}' and {REGISTRY}, or neither"
        raise _bad(stream, f"{AVRO} needs a schema registry, which nothing else has", way_out)
    if "@" in (address := given.get(REGISTRY, "")):
        way_out = (
            f"leave them out, and write {REGISTRY_USER} '${{env:NAME}}', of a text name:password"
        )
        raise _bad(stream, f"{REGISTRY} holds a user or password, which would be stored", way_out)
    if REGISTRY in given and urlsplit(address).scheme not in ("http", "https"):
        why = f"{REGISTRY} is {address!r}"
        raise _bad(stream, why, "give an address such as http://registry:8081")
    _starting(stream, given)
    return given


def _names(given: Mapping[str, str]) -> list[str]:
    names = (name.strip() for name in given.get(SUBSCRIBE, "").split(","))
    return [name for name in names if name]


def _starting(stream: str, given: Mapping[str, str]) -> int | Mapping[Partition, int]:
    """Return where to begin; raise DataError if it is neither a keyword nor offsets by topic and partition."""
    text = given.get(STARTING, "earliest").strip()
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return words[text.lower()]
    try:
        offsets = {
            (topic, int(number)): offset
            for topic, numbers in json.loads(text).items()
            for number, offset in numbers.items()
        }
        if all(type(offset) is int and offset >= EARLIEST for offset in offsets.values()):
            return offsets
    except (ValueError, AttributeError):
        pass
    raise _bad(
        stream,
        f"startingOffsets is {text!r}",
        'give earliest, latest, or JSON such as {"clicks": {"0": 23, "1": -2}}, where -2 is the first '
        "offset and -1 the last",
    )


def _check_names(
    stream: str, given: Mapping[str, str], starting: int | Mapping[Partition, int]
) -> None:
    """Raise DataError if there are offsets of a topic that isn't subscribed to."""
    names, pattern = _names(given), given.get(PATTERN)
    for topic, _ in () if isinstance(starting, int) else starting:
        if not (topic in names if pattern is None else re.fullmatch(pattern, topic)):
            what = (
                f"subscribe is {given[SUBSCRIBE]!r}" if names else f"subscribePattern {pattern!r}"
            )
            raise _bad(
                stream,
                f"startingOffsets has topic {topic}, and {what}",
                "name the same topics in both",
            )


def _topics(stream: str, given: Mapping[str, str], stopped: threading.Event) -> KafkaTopics:
    """Return the topics, with the secrets of the options filled in."""
    from eddyline.intake.kafka_topics import KafkaTopics  # needs the package confluent-kafka

    settings = {
        name.removeprefix(CLIENT): value
        for name, value in filled_in(given).items()
        if name.startswith(CLIENT)
    }
    return KafkaTopics(stream, settings, _names(given), given.get(PATTERN, ""), stopped)


def _raw(given: Mapping[str, str]) -> StructType:
    """Return the columns of undecoded records."""
    schema = RAW
    if given.get(WITH_HEADERS, "false").lower() == "true":
        schema = schema.append(pa.field(HEADERS, HEADERS_TYPE))
    return from_arrow_schema(schema)


def _registry(stream: str, given: Mapping[str, str]) -> Registry:
    """Return the schema registry, with the secret filled in."""
    options = filled_in(given)
    return Registry(stream, options[REGISTRY], options.get(REGISTRY_USER, ""))


def _latest(stream: str, given: Mapping[str, str]) -> AvroType:
    """Return the latest schema of the values of a stream's one topic."""
    names = _names(given)
    if len(names) != 1:
        raise _bad(
            stream, "the columns of several topics aren't in one schema", "declare the columns"
        )
    try:
        return _registry(stream, given).latest(f"{names[0]}-value")
    except UnreadableError as error:
        raise _bad(
            stream, str(error), "declare the columns, or register the schema first"
        ) from error


def _check_decoded(stream: Entry, given: Mapping[str, str], context: Context) -> None:
    """Raise DataError unless the columns of a stream of decoded values can be read."""
    for one in stream.given_columns:
        what = META.get(one.name.lower())
        if what is None:
            continue
        kinds = _KINDS.get(one.name.lower()) or (type(from_arrow_schema(RAW)[what].dataType),)
        if not isinstance(one.dataType, tuple(kinds)):
            shown = " or ".join(kind.typeName().upper() for kind in kinds)
            raise _bad(
                stream.name,
                f"column {one.name} is of the record, and no {one.dataType.simpleString().upper()}",
                f"declare it as {shown}",
            )
    schema = _of_values(stream, context)
    if given[FORMAT] == JSON:
        try:
            Json(schema, context.zone)(pa.array([b"{}"]))
        except Exception as error:
            why = f"the columns can't be read from JSON: {error}"
            raise _bad(stream.name, why, "declare other types, such as STRING") from error
        return
    try:
        registry = _registry(stream.name, given)
        latest = [registry.latest(f"{name}-value") for name in _names(given)]
    except UnreadableError:  # records may have schemas of other subjects, and later ones
        return
    try:
        for kind in latest:
            AvroReader(kind, schema)
    except UnreadableError as error:
        raise _bad(stream.name, str(error), "declare the column as its schema has it") from error


def _of_values(stream: Entry, context: Context) -> pa.Schema:
    """Return the columns that the values hold, including that of operations."""
    own = StructType([one for one in stream.given_columns if one.name.lower() not in META])
    if stream.operation:
        own = own.add(stream.operation, "string")
    return arrow_schema(own, context.zone)


def _decode(stream: Entry, given: Mapping[str, str], context: Context) -> Decode:
    wanted: Any = log_columns(stream)
    if FORMAT not in given:
        return RawRecords(wanted)
    schema = _of_values(stream, context)
    values: Values = Json(schema, context.zone)
    if given[FORMAT] == AVRO:
        values = AvroValues(schema, partial(_numbered, stream.name, given))
    return Decoded(wanted, values, stream.operation, bool(stream.key))


def _numbered(stream: str, given: Mapping[str, str], number: int) -> AvroType:
    """Return the schema with a number; the registry is contacted only then."""
    return _registry(stream, given).numbered(number)
