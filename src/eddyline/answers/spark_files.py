"""Files of streams, read again by Spark's own readers: `verify` compares what ours has made of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import StructType

from eddyline.answers.results import Results
from eddyline.catalog.entries import STREAM, Entry
from eddyline.source.files import check_size
from eddyline.source.parquet import parquet_fault
from eddyline.source.received import RECEIVED_AT, is_received
from eddyline.source.segments import NDJSON, PARQUET, Segment
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import frame
from eddyline.sql.names import quoted
from eddyline.state.manifest import Manifest

_FORMATS = {NDJSON: "json", PARQUET: "parquet"}
_PLAIN = re.compile(r"[\w/.-]+")  # a path that Spark takes as it is


def read_by_spark(
    results: Results, entry: Entry, manifest: Manifest, session: SparkSession
) -> DataFrame | None:
    """Return the rows of a stream of files as of an epoch, as Spark reads them.

    None for other relations, and for what only our readers can tell: late rows, columns that Spark
    doesn't convert, files that have grown since, paths that Spark takes as patterns, files whose parts
    were received at different times if the stream has the column `_received_at`.
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
        schema = arrow_schema(entry.given_columns, "UTC")
        if any(parquet_fault(path, schema, by_spark=True) for path in paths):
            return None
    given = entry.given_columns
    rows = session.read.schema(given).format(_FORMATS[kind]).load(paths)
    return rows if len(given) == len(entry.columns) else _with_times(rows, entry.columns, segments)


def _with_times(
    rows: DataFrame, columns: StructType, segments: Sequence[Segment]
) -> DataFrame | None:
    """Return the rows of files with the column `_received_at`; None if only our readers can tell it."""
    times = {(segment.file, segment.received_at) for segment in segments}
    if len(times) > len(dict(times)) or not all(file.isascii() for file, _ in times):
        return None
    at, file = f"eddyline {RECEIVED_AT}", "eddyline file"
    schema = f"{quoted(file)} STRING, {quoted(at)} LONG"
    known = [(os.path.normpath(file), time) for file, time in times]
    received = frame(rows.sparkSession, known, schema)
    path = expr("regexp_replace(_metadata.file_path, '^file:/+', '/')").alias(file)
    placed = rows.select("*", path).join(received, file, "left")
    return placed.select(
        *(
            expr(f"timestamp_micros({quoted(at)})").alias(name)
            if is_received(name)
            else expr(quoted(name))
            for name in columns.names
        )
    )


def _unchanged(segments: Sequence[Segment]) -> bool:
    """Whether files have the size of their segments; StateError if one is shorter, or gone."""
    logged: dict[str, int] = {}
    for segment in segments:
        check_size(segment)
        end = segment.start + segment.bytes
        logged[segment.file] = max(end, logged.get(segment.file, 0))
    return all(os.path.getsize(path) == size for path, size in logged.items())
