"""Formats of streams: what `USING <format>` means, and how its source is opened."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from eddyline.catalog.entries import LATER, LEFT, REJECTS, Entry, source_places
from eddyline.errors import DataError
from eddyline.source.base import Source
from eddyline.source.compression import compression_fault
from eddyline.source.dead_letters import Rejects
from eddyline.source.files import FileStream
from eddyline.source.generator import GeneratedStream, Generator
from eddyline.source.lines import readable
from eddyline.source.log_files import LogColumn
from eddyline.source.parquet import parquet_fault
from eddyline.source.received import is_received
from eddyline.source.redo_log import RedoLog
from eddyline.source.segment_readers import Reader
from eddyline.source.segments import NDJSON
from eddyline.source.spark import FILE, RECORD, SparkStream, placed
from eddyline.source.tail import COLUMNS, TailStream
from eddyline.spark.failures import message_of
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import ZONE, cloned
from eddyline.sql.names import quoted
from eddyline.storage.files import Files

PATH, FILES_PER_ENTRY, MODE = "path", "maxFilesPerTrigger", "mode"
DROP_MALFORMED = "DROPMALFORMED"
_CORRUPT = "columnnameofcorruptrecord"
_WITH_MALFORMED = ("csv", "json", "xml")  # formats whose readers recognise malformed records
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # of a URI
_PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "avro": "org.apache.spark:spark-avro_2.13",
}  # that Spark's distribution lacks
_OWN_SCHEMA = ("rate", "rate-micro-batch", "kafka")  # formats that take no schema
_BY_NAME = (*_OWN_SCHEMA, "json", "xml", "parquet", "orc", "avro", "text")
_BY_PLACE = "csv"  # finds the columns of a record by their places


@dataclass(frozen=True, slots=True)
class Context:
    """The storage and the Spark session that sources are opened with.

    Attributes:
        files: files of the storage.
        spark: the user's session.
        zone: time zone of the storage.
        log_of: returns the redo log of a stream.
        opens: whether sources are opened; else streams are only checked.
    """

    files: Files
    spark: SparkSession
    zone: str
    log_of: Callable[[Entry], RedoLog]
    opens: bool = True


class SourceFormat(Protocol):
    """One format of streams. The engine looks it up by the name after USING."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Readers for the kinds of segments that only this format uses."""

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns that the source itself declares; DataError if it can't.

        Args:
            stream: name of the stream, for errors.
        """

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the stream can't be opened; called before it is stored: each engine opens it again."""

    def letters(self, stream: Entry) -> str:
        """Return the role of its stream of dead letters, `REJECTS` or `PIPELINE`; empty for none."""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source of a stream; it reads nothing before `pull` or `follow`.

        Args:
            letters: the stream of its dead letters.
        """


@runtime_checkable
class FeedFormat(SourceFormat, Protocol):
    """A format whose rows are changes of rows, which the operations of a stream can apply."""

    @property
    def about(self) -> Sequence[str]:
        """Names of the columns that describe a change; streams of operations don't have them."""


@dataclass(frozen=True, slots=True)
class SparkFormat:
    """Any format that Spark reads as a stream.

    Attributes:
        name: the format, as Spark knows it.
        frame: the user's streaming DataFrame to read; None to open the format.
    """

    name: str
    frame: DataFrame | None = None

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns that Spark infers."""
        return self._load(None, options, context).schema

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if Spark can't open it with these columns and options."""
        if _left(stream) and self.name.lower() not in (*_BY_NAME, _BY_PLACE):
            raise DataError(
                f"columns can't leave a stream of format {self.name}, which may find them by their places",
                condition="BAD_STREAM",
                stream=stream.name,
                hint="leave them, and read the stream through a view without them",
            )
        self._frame(stream, context)

    def letters(self, stream: Entry) -> str:
        """Return `REJECTS` for streams of operations, and with the mode DROPMALFORMED."""
        return REJECTS if stream.operation or self._drops_malformed(stream) else ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that copies Spark's micro-batches."""
        frame = self._frame(stream, context) if self.frame is None else self.frame
        marked = self.frame is None and self._drops_malformed(stream)
        if marked and letters is None:  # the stream was created before dead letters existed
            frame, marked = frame.where(f"{quoted(RECORD)} IS NULL"), False
        ordered = False
        if stream.operation or stream.key:
            frame, ordered = placed(frame)
        return SparkStream(
            stream.name,
            frame,
            stream.operation or None,
            bool(stream.key),
            stream.columns.names,
            context.files,
            context.log_of(stream),
            f"checkpoints/{stream.id}",
            None if letters is None else Rejects(stream.name, context.log_of(letters)),
            decoded=marked,
            placed=ordered,
        )

    def _drops_malformed(self, stream: Entry) -> bool:
        """Return whether the options make Spark's reader drop malformed records."""
        modes = [value.upper() for name, value in stream.options.items() if name.lower() == MODE]
        return self.name.lower() in _WITH_MALFORMED and modes == [DROP_MALFORMED]

    def _frame(self, stream: Entry, context: Context) -> DataFrame:
        read = [one for one in stream.columns if not is_received(one.name)]
        if stream.operation:
            at = sum(LATER not in one.metadata for one in read)
            read.insert(at, StructField(stream.operation, StringType()))
        columns = StructType(read)
        if not self._drops_malformed(stream):
            return self._load(columns, stream.options, context)
        # in PERMISSIVE mode Spark keeps the same records, in a column of their own
        kept = {k: v for k, v in stream.options.items() if k.lower() not in (MODE, _CORRUPT)}
        corrupt = _corrupt_column(stream, context)  # it isn't a field of the records
        found = StructType([column for column in columns if column.name != corrupt])
        found = found.add(RECORD, "string")
        frame = self._load(found, {**kept, _CORRUPT: RECORD}, context, file_names=True)
        return (
            frame
            if corrupt not in columns.names
            else frame.withColumn(corrupt, lit(None).cast("string"))
        )

    def _load(
        self,
        columns: StructType | None,
        options: Mapping[str, str],
        context: Context,
        *,
        file_names: bool = False,
    ) -> DataFrame:
        """Return a streaming DataFrame; DataError if Spark can't open it.

        Args:
            columns: the columns; None for those that Spark infers.
            file_names: add the column `FILE`, with the file of each row.
        """
        session = cloned(context.spark, **{ZONE: context.zone})
        reader = session.readStream.format(self.name).options(**options)
        if columns is not None and self.name.lower() not in _OWN_SCHEMA:
            placed = self.name.lower() == _BY_PLACE
            found = [one for one in columns if placed or LEFT not in one.metadata]
            reader = reader.schema(StructType(found))
        try:
            frame = reader.load()
            if columns is None:
                return frame
            more = [expr("_metadata.file_path").alias(FILE)] if file_names else []
            wanted = [
                lit(None).cast(one.dataType).alias(one.name)
                if LEFT in one.metadata
                else col(quoted(one.name))
                for one in columns
            ]
            return frame.select(*wanted, *more)
        except Exception as error:  # Spark's own errors, of many classes
            package = _PACKAGES.get(self.name.lower())
            if package is not None and "Failed to find data source" in str(error):
                version = f"{package}:{context.spark.version}"
                raise DataError(
                    f"Spark reads {self.name} with a package that this session lacks",
                    condition="MISSING_PACKAGE",
                    hint=f"export PYSPARK_SUBMIT_ARGS='--packages {version} pyspark-shell'",
                ) from error
            raise DataError(
                f"a stream of format {self.name} can't be opened: {message_of(error)}",
                condition="BAD_STREAM",
                hint="check the format and its OPTIONS",
            ) from error


@dataclass(frozen=True, slots=True)
class FileFormat:
    """JSON or Parquet files, decoded by vectorised code if the result equals that of Spark's reader.

    Attributes:
        name: the format, as Spark knows it.
        kind: of the segments: `NDJSON` or `PARQUET`.
    """

    name: str
    kind: str

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: every storage may hold segments of files."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns that Spark infers."""
        return self._spark.columns(stream, options, context)

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if an option is wrong, or Spark has to read the files and can't."""
        if self._vectorised(stream, context):
            _files_per_entry(stream)
            _check_path(stream)
            self._check_files(stream, context)
            return
        if stream.id and self._vectorised_so_far(stream, context):
            raise DataError(
                f"stream {stream.name} has begun to read its files without Spark, and can't with "
                "these columns",
                condition="BAD_STREAM",
                stream=stream.name,
                hint="take another type: a text, which views cast or parse",
            )
        self._spark.check(stream, context)

    def letters(self, stream: Entry) -> str:
        """Return the role as for Spark's reader: vectorised code has no dead letters."""
        return self._spark.letters(stream)

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source of the files, or Spark's."""
        if not self._vectorised(stream, context):
            return self._spark.open(stream, letters, context)
        return FileStream(
            stream.name,
            self.kind,
            stream.options[PATH],
            _files_per_entry(stream),
            context.log_of(stream),
            steps=FILES_PER_ENTRY in stream.options,
            fault=self._fault(stream),
        )

    def _check_files(self, stream: Entry, context: Context) -> None:
        """Raise DataError if Parquet files that a stream has read already lack a column of its type."""
        if not stream.id or self.kind == NDJSON:
            return
        log, fault = context.log_of(stream), self._fault(stream)
        files = dict.fromkeys(one.file for one in log.segments(log.begin(), log.end()))
        if bad := next(((file, why) for file in files if (why := fault(file))), None):
            raise DataError(
                f"stream {stream.name} has read {bad[0]}: {bad[1]}",
                condition="BAD_STREAM",
                stream=stream.name,
                hint="take the type that all files have, or make a second stream",
            )

    def _fault(self, stream: Entry) -> Callable[[str], str]:
        """Return the function that gives the reason why a file can't be read; empty if it can."""
        if self.kind == NDJSON:
            return compression_fault
        return partial(parquet_fault, schema=arrow_schema(stream.given_columns, "UTC"))

    @property
    def _spark(self) -> SparkFormat:
        return SparkFormat(self.name)

    def _vectorised(self, stream: Entry, context: Context) -> bool:
        """Return whether vectorised code returns the same rows as Spark's reader."""
        if stream.arranged or PATH not in stream.options:
            return False
        if self._read_by_spark(stream, context):
            return False
        if _corrupt_column(stream, context) in stream.columns.names:  # which Spark's reader fills
            return False
        if not set(stream.options) <= {PATH, FILES_PER_ENTRY}:
            return False
        return self.kind != NDJSON or (
            readable(arrow_schema(stream.given_columns, "UTC"))
            and context.zone in ("UTC", "Etc/UTC", "GMT")
        )

    def _vectorised_so_far(self, stream: Entry, context: Context) -> bool:
        """Return whether an existing stream has input that vectorised code has logged."""
        spark = context.files.exists(f"checkpoints/{stream.id}/offsets")
        return not spark and bool(context.files.names(f"logs/{stream.id}"))

    def _read_by_spark(self, stream: Entry, context: Context) -> bool:
        """Return whether Spark reads the files: it has begun to, or only Spark understands the path."""
        if context.files.exists(f"checkpoints/{stream.id}/offsets"):
            return True
        if any(name[0].isdigit() for name in context.files.names(f"logs/{stream.id}")):
            return False
        path = stream.options[PATH]
        foreign = _SCHEME.match(path) is not None or any(mark in path for mark in "{\\")
        return foreign or any(map(os.path.isdir, glob.glob(f"{path}/*=*")))


def _corrupt_column(stream: Entry, context: Context) -> str:
    """Return the name of the column that Spark's reader fills with malformed records."""
    given = [value for name, value in stream.options.items() if name.lower() == _CORRUPT]
    return (
        given[0] if given else context.spark.conf.get("spark.sql.columnNameOfCorruptRecord") or ""
    )


@dataclass(frozen=True, slots=True)
class GeneratorFormat:
    """Generated events: `USING generator`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: every storage may hold segments of generated events."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return all columns of this kind of event."""
        return from_arrow_schema(Generator.of(options).schema)

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError for unknown columns, a key or operations, and wrong options."""
        check_given(stream, self.columns(stream.name, stream.options, context))

    def letters(self, stream: Entry) -> str:
        """Return no role: a generator has no bad records."""
        return ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that logs the generator's steps."""
        return GeneratedStream(stream.name, Generator.of(stream.options), context.log_of(stream))


@dataclass(frozen=True, slots=True)
class TailFormat:
    """The lines of text files that grow and are rotated: `USING tail`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: lines are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the text of a line, its number, and the path of its file."""
        return from_arrow_schema(COLUMNS)

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError for unknown columns and options, a key or operations, and a wrong path."""
        check_given(stream, self.columns(stream.name, stream.options, context))
        path = stream.options.get(PATH, "")
        if set(stream.options) != {PATH} or not path.strip():
            given = ", ".join(stream.options) or "none"
            raise DataError(
                f"a stream of format tail has one option, {PATH}; given: {given}",
                condition="BAD_STREAM",
                stream=stream.name,
                hint=f"give OPTIONS ({PATH} '/var/log/app/access.log')",
            )
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path) or not (glob.has_magic(folder) or os.path.isdir(folder)):
            raise DataError(
                f"the path {path!r} of stream {stream.name} is no file in an existing folder",
                condition="BAD_STREAM",
                stream=stream.name,
                hint="give the path of a file, which may come later, or a glob such as logs/*.log",
            )

    def letters(self, stream: Entry) -> str:
        """Return no role: any line is a row."""
        return ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that follows the files."""
        names = stream.columns.names
        return TailStream(
            stream.name,
            os.path.abspath(stream.options[PATH]),
            [(place, names[place].lower()) for place in source_places(stream.columns)],
            context.log_of(stream),
            f"checkpoints/{stream.id}",
        )


def check_given(stream: Entry, declared: StructType) -> None:
    """Raise DataError unless a stream only appends, and its columns are among those of the source."""
    check_columns(stream, declared)
    if stream.arranged:
        raise DataError(
            "this source only appends: it has no operations and no key",
            condition="BAD_STREAM",
            stream=stream.name,
            hint="leave OP and PRIMARY KEY out",
        )


def check_columns(stream: Entry, declared: StructType) -> None:
    """Raise DataError unless a stream's columns are among those of the source."""
    known = {column.name: column.dataType.simpleString() for column in declared}
    for column in stream.given_columns:
        if known.get(column.name) != column.dataType.simpleString():
            shown = ", ".join(f"{name} {kind}" for name, kind in known.items())
            raise DataError(
                f"{column.name} {column.dataType.simpleString()} is no column of this source",
                condition="BAD_STREAM",
                stream=stream.name,
                hint=f"leave the columns out, or choose of: {shown}",
            )


def _check_path(stream: Entry) -> None:
    """Raise DataError unless the path of a stream exists or has wildcards."""
    path = stream.options[PATH]
    if not path.strip() or not (glob.has_magic(path) or os.path.exists(path)):
        raise DataError(
            f"the path {path!r} of stream {stream.name} doesn't exist",
            condition="BAD_STREAM",
            stream=stream.name,
            hint="give an existing folder, or create it first",
        )


def _files_per_entry(stream: Entry) -> int:
    text = stream.options.get(FILES_PER_ENTRY, "1000000")
    if not text.isdecimal() or int(text) < 1:
        raise DataError(
            f"option {FILES_PER_ENTRY} is {text!r}",
            condition="BAD_STREAM",
            stream=stream.name,
            hint="give a whole number from 1 on",
        )
    return int(text)


def log_columns(stream: Entry) -> list[LogColumn]:
    """Return the columns that a stream's source provides, under their names in the log."""
    names, kinds = stream.columns.names, arrow_schema(stream.columns, "UTC")
    return [
        LogColumn(f"c{place}", names[place], kinds[place].type)
        for place in source_places(stream.columns)
    ]


def _left(stream: Entry) -> bool:
    """Return whether columns of a stream were dropped."""
    return any(LEFT in column.metadata for column in stream.columns)
