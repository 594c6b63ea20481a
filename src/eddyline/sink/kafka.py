"""The sink format `kafka`: its options, and what it needs of a view."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eddyline.arguments import check_choice, wrong_argument
from eddyline.errors import has_module, missing_package
from eddyline.sink.base import Sink, Target, check_feed_columns, key_of, sink_key
from eddyline.sink.envelopes import ENVELOPES
from eddyline.sink.json_rows import check_json

SERVERS, SPARK_SERVERS = "bootstrap_servers", "kafka.bootstrap.servers"
CHANGELOG, UPSERT = "changelog", "upsert"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,240}")  # room for the suffix of the topic of epochs
_PASSED = {
    "security_protocol": "plaintext, ssl, sasl_plaintext or sasl_ssl",
    "sasl_mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER",
    "sasl_username": "the user's name",
    "sasl_password": "the user's password",
    "ssl_ca_location": "the file with the certificates that are trusted",
    "ssl_certificate_location": "the file with the client's certificate",
    "ssl_key_location": "the file with the client's private key",
    "ssl_key_password": "the password of that key",
}
_NUMBERS = ("partitions", "replication_factor", "transaction_seconds")


class KafkaFormat:
    """A topic whose messages add up to the view, written in transactions: each change exactly once.

    A transaction has the changes of a delivery, and a message with the epoch on the topic
    `<topic>.eddyline`. Consumers that read with `read_committed`, as Kafka Streams and Flink do, see
    whole deliveries. Each message has its epoch in the header `eddyline-epoch`.
    """

    @property
    def options(self) -> Mapping[str, str]:
        return {
            SERVERS: "addresses of brokers, such as host:9092",
            SPARK_SERVERS: "the same, as Spark's source spells it",
            "topic": "the topic, which is created if it is missing",
            "envelope": "upsert: the row by key, and a tombstone for a delete; debezium: before, "
            "after and op; changelog: the row with _change_type, which needs no key",
            "key": "names of the key's columns, with commas; the view's key if left out",
            "overwrite": "true: records of the topic that this sink hasn't written are replaced",
            "on_refused": "what happens to rows that are too large: 'dead letters' or 'stop'",
            "partitions": "number of partitions of a topic that is created; 1 if left out",
            "replication_factor": "its replication factor; that of the brokers if left out",
            "transaction_seconds": "the most that one delivery takes; 600 if left out",
            **_PASSED,
        }

    @property
    def secrets(self) -> Sequence[str]:
        return ("sasl_password", "ssl_key_password")

    @property
    def fixed(self) -> Sequence[str]:
        return ("topic", "envelope")

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        if not has_module("confluent_kafka"):
            raise missing_package("a sink of format kafka", "confluent-kafka", "kafka")
        servers(options)
        topic = options.get("topic", "")
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            hint = "use at most 240 letters, digits, dots, underscores and hyphens"
            raise wrong_argument("the option topic", topic or None, hint)
        form = envelope(options)
        check_choice("the option envelope", form, ENVELOPES)
        check_choice("the option overwrite", options.get("overwrite", "false"), ("true", "false"))
        refused = options.get("on_refused", "dead letters")
        check_choice("the option on_refused", refused, ("dead letters", "stop"))
        for name in _NUMBERS:
            number(options, name)
        check_json(target, "kafka")
        key = key_of(target, options.get("key"))
        if form != CHANGELOG and key is None:
            raise sink_key(target, f"the envelope {form} needs one, and the view has none")
        if form == CHANGELOG:
            check_feed_columns(target)

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        from eddyline.sink.kafka_sink import KafkaSink  # needs the package confluent-kafka

        return KafkaSink(
            target,
            topic=options["topic"],
            envelope=ENVELOPES[envelope(options)],
            key=key_of(target, options.get("key")),
            settings={
                "bootstrap.servers": servers(options),
                **{name.replace("_", "."): options[name] for name in _PASSED if name in options},
            },
            overwrite=options.get("overwrite") == "true",
            partitions=number(options, "partitions") or 1,
            replication=number(options, "replication_factor"),
            transaction_s=number(options, "transaction_seconds") or 600,
        )


def envelope(options: Mapping[str, str]) -> str:
    """Return the name of the form of messages."""
    return options.get("envelope", UPSERT).strip().lower()


def servers(options: Mapping[str, str]) -> str:
    """Return the addresses of brokers; EngineError BAD_OPTION if there are none."""
    given = options.get(SERVERS, options.get(SPARK_SERVERS, "")).strip()
    if not given:
        raise wrong_argument(f"the option {SERVERS}", None, "give addresses such as host:9092")
    return given


def number(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number; None if it isn't given."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise wrong_argument(f"the option {name}", text, "give a whole number from 1 to 10000")
    return int(text)
