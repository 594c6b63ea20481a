"""The registries of formats: of streams that Spark's own sources don't read, and of sinks."""

from __future__ import annotations

from eddyline.intake.delta import DeltaChanges
from eddyline.intake.formats import FileFormat, GeneratorFormat, SourceFormat, TailFormat
from eddyline.intake.kafka import KafkaRecords
from eddyline.intake.postgres import PostgresChanges
from eddyline.pipelines.documents import QueueFormat
from eddyline.pipelines.http import HttpFormat
from eddyline.sink.base import SinkFormat
from eddyline.sink.delta import DeltaFormat
from eddyline.sink.files import FilesFormat, write_csv, write_jsonl, write_parquet
from eddyline.sink.kafka import KafkaFormat
from eddyline.sink.postgres import PostgresFormat
from eddyline.sink.webhook import WebhookFormat
from eddyline.source.segments import NDJSON, PARQUET

FORMATS: dict[str, SourceFormat] = {
    "delta": DeltaChanges(),
    "generator": GeneratorFormat(),
    "http": HttpFormat(),
    "json": FileFormat("json", NDJSON),
    "kafka": KafkaRecords(),
    "parquet": FileFormat("parquet", PARQUET),
    "postgres": PostgresChanges(),
    "queue": QueueFormat(),
    "tail": TailFormat(),
}
"""Formats by the name after USING, in lower case; Spark's sources read every other format.

To add a format, add an entry before opening a storage.
"""

SINKS: dict[str, SinkFormat] = {
    "csv": FilesFormat("csv", write_csv, flat=True),
    "delta": DeltaFormat(),
    "jsonl": FilesFormat("jsonl", write_jsonl),
    "kafka": KafkaFormat(),
    "parquet": FilesFormat("parquet", write_parquet),
    "postgres": PostgresFormat(),
    "webhook": WebhookFormat(),
}
"""Formats of sinks by the name after USING, in lower case."""
