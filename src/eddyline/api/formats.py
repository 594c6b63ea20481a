"""The formats of streams that don't go to Spark's own sources."""

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
"""By the name after USING, in small letters; Spark's sources read every other format.

An entry that is added before an engine opens a storage is a new kind of stream.
"""
