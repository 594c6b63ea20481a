"""Files of streams, read again by Spark's own readers: `verify` compares what ours has made of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from eddyline.answers.results import Results
from eddyline.catalog.entries import STREAM, Entry
from eddyline.source.files import check_size
from eddyline.source.parquet import parquet_fault
from eddyline.source.segments import NDJSON, PARQUET, Segment
from eddyline.spark.schema import arrow_schema
from eddyline.state.manifest import Manifest

_FORMATS = {NDJSON: "json", PARQUET: "parquet"}
_PLAIN = re.compile(r"[\w/.-]+")  # a path that Spark takes as it is


def read_by_spark(
    results: Results, entry: Entry, manifest: Manifest, session: SparkSession
) -> DataFrame | None:
    """Return the rows of a stream of files as of an epoch, as Spark reads them.

    None for other relations, and for what only our readers can tell: late rows, columns that Spark
    doesn't convert, files that have grown since, paths that Spark takes as patterns.
    """
    if entry.kind != STREAM or entry.arranged:
        return None
    segments = results.history(entry, manifest)
    kinds = {segment.kind for segment in segments}
    if len(kinds) != 1 or not kinds <= set(_FORMATS):
        return None
    kind = kinds.pop()
    if (
        entry.event_time
        or entry.late_of
        or not all(_PLAIN.fullmatch(segment.file) for segment in segments)
    ):
        return None
    if not _unchanged(segments):
        return None
    paths = sorted({segment.file for segment in segments})
    if kind == PARQUET:
        schema = arrow_schema(entry.columns, "UTC")
        if any(parquet_fault(path, schema, by_spark=True) for path in paths):
            return None
    return session.read.schema(entry.columns).format(_FORMATS[kind]).load(paths)


def _unchanged(segments: Sequence[Segment]) -> bool:
    """Whether files have the size of their segments; StateError if one is shorter, or gone."""
    logged: dict[str, int] = {}
    for segment in segments:
        check_size(segment)
        end = segment.start + segment.bytes
        logged[segment.file] = max(end, logged.get(segment.file, 0))
    return all(os.path.getsize(path) == size for path, size in logged.items())
