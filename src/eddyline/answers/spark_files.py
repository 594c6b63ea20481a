"""Reads files of streams again with Spark's own readers, so that `verify` also checks Eddyline's readers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr
from pyspark.sql.types import TimestampNTZType

from eddyline.answers.results import Results
from eddyline.catalog.entries import STREAM, Entry
from eddyline.catalog.logged import as_source, logged
from eddyline.source.files import check_size
from eddyline.source.parquet import parquet_fault
from eddyline.source.received import is_received
from eddyline.source.segments import NDJSON, PARQUET, Segment
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import frame
from eddyline.sql.names import quoted
from eddyline.state.manifest import Manifest

_FORMATS = {NDJSON: "json", PARQUET: "parquet"}
_FILE, _RECEIVED, _WATERMARK, _NEWEST = (
    f"__eddyline_{name}" for name in ("file", "received", "watermark", "newest")
)
_TIMES = f"{_FILE} STRING, {_RECEIVED} LONG, {_WATERMARK} LONG, {_NEWEST} LONG"
_PLAIN = re.compile(r"[\w/.-]+")  # a path that Spark takes as it is


def read_by_spark(
    results: Results, entry: Entry, manifest: Manifest, session: SparkSession
) -> DataFrame | None:
    """Return the rows of a stream of files as of an epoch, as Spark reads them.

    None for other relations, and for input that Spark can't read in the same way: late rows, columns that it
    doesn't convert, files that have grown since, paths that it takes as patterns, and files whose parts
    were received at different times or under different watermarks, where that matters.
    """
    if entry.kind != STREAM or entry.arranged:
        return None
    segments = results.history(entry, manifest)
    kinds = {segment.kind for segment in segments}
    if len(kinds) != 1 or not kinds <= set(_FORMATS):
        return None
    kind = kinds.pop()
    if entry.late_of or not all(_PLAIN.fullmatch(os.path.abspath(s.file)) for s in segments):
        return None
    if not _unchanged(segments):
        return None
    paths = sorted({os.path.abspath(segment.file) for segment in segments})
    source = as_source(entry).given_columns
    if kind == PARQUET:
        schema = arrow_schema(source, "UTC")
        try:
            if any(parquet_fault(path, schema, by_spark=True) for path in paths):
                return None
        except OSError:  # our own reader names the file
            return None
    rows = session.read.schema(source).format(_FORMATS[kind]).load(paths)
    log = logged(entry)
    rows = rows.select(
        *(
            col(quoted(log.names[place])).alias(name)
            for name, place in zip(entry.columns.names, log.places, strict=True)
            if not is_received(name)
        )
    )
    timed = entry.columns != entry.given_columns
    return _accepted(rows, entry, segments) if timed or entry.event_time else rows


def _accepted(rows: DataFrame, entry: Entry, segments: Sequence[Segment]) -> DataFrame | None:
    """Return those rows of files that the stream has accepted, with the column `_received_at`.

    None if parts of one file have different times of receipt or limits: Spark reads whole files.
    """
    known = {_times_of(segment, entry) for segment in segments}
    files = [file for file, *_ in known]
    if len(files) > len(set(files)) or not all(map(str.isascii, files)):
        return None
    path = expr("regexp_replace(_metadata.file_path, '^file:/+', '/')").alias(_FILE)
    times = frame(rows.sparkSession, list(known), _TIMES)
    placed = rows.select("*", path).join(times, _FILE, "left")
    if entry.event_time:
        micros = _micros(entry)
        late, ahead = f"{micros} < {_WATERMARK}", f"{micros} > {_NEWEST}"
        placed = placed.where(f"NOT coalesce({late}, false) AND NOT coalesce({ahead}, false)")
    received = f"timestamp_micros({_RECEIVED})"
    return placed.select(
        *(
            expr(received if is_received(name) else quoted(name)).alias(name)
            for name in entry.columns.names
        )
    )


def _micros(entry: Entry) -> str:
    """Return the SQL of a stream's event time as microseconds since 1970."""
    if is_received(entry.event_time):
        return _RECEIVED
    time = quoted(entry.event_time)
    if isinstance(entry.columns[entry.event_time].dataType, TimestampNTZType):
        return f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {time})"
    return f"unix_micros({time})"


def _times_of(segment: Segment, entry: Entry) -> tuple[str, int | None, int | None, int | None]:
    """Return a segment's file, with the time of receipt and limits if its rows depend on them."""
    received = segment.received_at if any(map(is_received, entry.columns.names)) else None
    limits = (segment.watermark, segment.newest) if entry.event_time else (None, None)
    return os.path.abspath(segment.file), received, *limits


def _unchanged(segments: Sequence[Segment]) -> bool:
    """Whether the segments are whole files, as they are now; StateError if one is shorter, or gone."""
    logged: dict[str, int] = {}
    for segment in segments:
        check_size(segment)
        logged[segment.file] = logged.get(segment.file, 0) + segment.bytes
    return all(os.path.getsize(path) == size for path, size in logged.items())
