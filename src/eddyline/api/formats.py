"""The registry of stream formats that Spark's own sources don't read."""

from __future__ import annotations

from eddyline.intake.formats import FileFormat, GeneratorFormat, SourceFormat
from eddyline.pipelines.documents import QueueFormat
from eddyline.source.segments import NDJSON, PARQUET

FORMATS: dict[str, SourceFormat] = {
    "generator": GeneratorFormat(),
    "json": FileFormat("json", NDJSON),
    "parquet": FileFormat("parquet", PARQUET),
    "queue": QueueFormat(),
}
"""Formats by the name after USING, in lower case; Spark's sources read every other format.

To add a format, add an entry before opening a storage.
"""
