"""The sources of an engine: their redo logs, and what is connected to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from eddyline.catalog.entries import OF, VIEW, Catalog, Entry
from eddyline.errors import CatalogError, DataError
from eddyline.source.base import Source
from eddyline.source.dead_letters import Rejects
from eddyline.source.generator import FORMAT as GENERATOR
from eddyline.source.generator import Generator
from eddyline.source.ndjson import readable
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, Segment
from eddyline.source.streams import FILE, RECORD, FileStream, GeneratedStream, SparkStream
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import ZONE, cloned
from eddyline.sql.names import quoted
from eddyline.state.manifest import Manifest
from eddyline.storage.files import Files

FOLDERS = ("logs", "checkpoints")
FILES_PER_EPOCH = "maxFilesPerTrigger"
_VECTORISED_FORMATS = {"json": NDJSON, "parquet": PARQUET}
_VECTORISED_OPTIONS = frozenset(("path", FILES_PER_EPOCH))
_CORRUPT = "columnnameofcorruptrecord"
_OWN_SCHEMA = frozenset(("rate", "rate-micro-batch", "kafka"))


@dataclass(slots=True)
class Sources:
    """Redo logs of tables and streams, by entry; and the streams that are attached."""

    files: Files
    spark: SparkSession
    zone: str
    _logs: dict[str, RedoLog] = field(default_factory=dict)
    _streams: dict[str, Source] = field(default_factory=dict)

    def log(self, entry: Entry) -> RedoLog:
        """The redo log of a table or stream."""
        log = self._logs.get(entry.source)
        if log is None:
            log = self._logs[entry.source] = RedoLog(self.files, entry.source)
        return log

    def attach(self, entry: Entry, letters: Entry | None, frame: DataFrame | None = None) -> None:
        """Connect a stream: to a streaming DataFrame, or to what its format and options say.

        Args:
            letters: the stream of its dead letters, where it has one.
        """
        self.disconnect(entry)
        if frame is None and entry.format.lower() == GENERATOR:
            generator = Generator.of(entry.options)
            self._streams[entry.id] = GeneratedStream(entry.name, generator, self.log(entry))
            return
        if frame is None and self._vectorised(entry):
            self._streams[entry.id] = FileStream(
                entry.name,
                _VECTORISED_FORMATS[entry.format.lower()],
                entry.options["path"],
                _files_per_epoch(entry),
                self.log(entry),
            )
            return
        decoded = frame is None and entry.drops_malformed
        if frame is None:
            frame = self._frame(entry)
        self._streams[entry.id] = SparkStream(
            entry.name,
            frame,
            entry.operation or None,
            bool(entry.key),
            entry.columns.names,
            self.files,
            self.log(entry),
            f"checkpoints/{entry.id}",
            None if letters is None else Rejects(self.log(letters)),
            decoded=decoded,
        )

    def connect(self, entry: Entry, source: Source) -> None:
        """Connect a source that is made elsewhere; what was connected before is stopped."""
        self.disconnect(entry)
        self._streams[entry.id] = source

    def connected(self, entry: Entry) -> Source | None:
        """What is connected to a stream."""
        return self._streams.get(entry.id)

    def rejects(self, letters: Entry) -> Rejects:
        """The dead letters of a stream that Spark reads; CatalogError if it isn't connected."""
        stream = self._streams.get(letters.options[OF])
        if not isinstance(stream, SparkStream) or stream.rejects is None:
            raise CatalogError(
                f"the stream of {letters.name} is not connected",
                condition="NOT_CONNECTED",
                hint="call engine.stream(...) again, after opening the storage",
            )
        return stream.rejects

    @property
    def all(self) -> list[Source]:
        """All that is connected."""
        return list(self._streams.values())

    def attached(self, entry: Entry) -> bool:
        """Whether a stream is connected."""
        return entry.id in self._streams

    def columns(self, format: str, options: Mapping[str, str]) -> StructType:
        """The columns that a source itself tells; DataError if it can't."""
        if format.lower() == GENERATOR:
            return from_arrow_schema(Generator.of(options).schema)
        return self.open(format, None, options).schema

    def check(self, entry: Entry) -> None:
        """Whether a stream can be connected to its format; DataError otherwise, and nothing done.

        What the catalog holds must be good: each opening of the storage connects it again.
        """
        if entry.format.lower() == GENERATOR:
            _check_generated(entry, self.columns(entry.format, entry.options))
        elif self._vectorised(entry):
            _files_per_epoch(entry)
        else:
            self._frame(entry)

    def _frame(self, entry: Entry) -> DataFrame:
        columns = StructType([*entry.columns])
        if entry.operation:
            columns.add(entry.operation, "string")
        if not entry.drops_malformed:
            return self.open(entry.format, columns, entry.options)
        # what would be dropped is kept apart: the same records, as Spark's other mode tells them
        kept = {k: v for k, v in entry.options.items() if k.lower() not in ("mode", _CORRUPT)}
        read = StructType([*columns]).add(RECORD, "string")
        return self.open(entry.format, read, {**kept, _CORRUPT: RECORD}, from_file=True)

    def open(
        self,
        format: str,
        columns: StructType | None,
        options: Mapping[str, str],
        *,
        from_file: bool = False,
    ) -> DataFrame:
        """A streaming DataFrame; DataError if Spark can't open it.

        Args:
            from_file: with the column `FILE` besides, where each row is from.
        """
        session = cloned(self.spark, **{ZONE: self.zone})
        reader = session.readStream.format(format).options(**options)
        if columns is not None and format.lower() not in _OWN_SCHEMA:
            reader = reader.schema(columns)
        try:
            frame = reader.load()
            if columns is None:
                return frame
            more = [expr("_metadata.file_path").alias(FILE)] if from_file else []
            return frame.select(*map(quoted, columns.names), *more)
        except Exception as error:  # Spark's own errors, of many classes
            raise DataError(
                f"a stream of format {format} can't be opened: {_told(error)}",
                condition="BAD_STREAM",
                hint="check the format and its OPTIONS",
            ) from error

    def pull(self) -> None:
        """Take in all that is available now."""
        for stream in self._streams.values():
            stream.pull()

    def follow(self, interval_s: float) -> None:
        """Take in what arrives, in the background."""
        for stream in self._streams.values():
            stream.follow(interval_s)

    def stop(self) -> None:
        """Stop taking in."""
        for stream in self._streams.values():
            stream.stop()

    def forget(self, entry: Entry) -> None:
        """Disconnect a source and remove its log."""
        self._logs.pop(entry.id, None)
        self.disconnect(entry)
        for folder in FOLDERS:
            self.files.remove(f"{folder}/{entry.id}")

    def recover(self, catalog: Catalog, manifest: Manifest, *, skip: bool) -> None:
        """Remove what crashes have left, and check what waits in the logs.

        Args:
            skip: what waits is left out instead.

        Raises:
            StateError: a log is damaged, or doesn't hold all that the manifest lacks.
        """
        ids = catalog.ids
        for folder in FOLDERS:
            for name in self.files.names(folder):
                if name not in ids:
                    self.files.remove(f"{folder}/{name}")
        for entry in catalog.entries:
            if entry.kind != VIEW and not entry.late_of:
                log, position = self.log(entry), manifest.positions.get(entry.id, 0)
                if skip:
                    log.skip(position)
                log.tidy()
                log.verify(position)

    def waiting(self, catalog: Catalog, manifest: Manifest) -> dict[str, int]:
        """For each source with input that is not committed yet: how far the next epoch goes."""
        found = {}
        for entry in catalog.entries:
            if entry.kind == VIEW or entry.late_of:
                continue
            position, end = manifest.positions.get(entry.id, 0), self.log(entry).end()
            if end > position:
                found[entry.id] = position + 1 if self._in_steps(entry) else end
        return found

    def between(self, entry: Entry, manifest: Manifest, end: int | None) -> list[Segment]:
        """What a source's log holds from the committed position to `end`; None for no input."""
        if end is None:
            return []
        return self.log(entry).segments(manifest.positions.get(entry.source, 0), end)

    def disconnect(self, entry: Entry) -> None:
        """Stop what is connected to a stream, if anything is."""
        old = self._streams.pop(entry.id, None)
        if old is not None:
            old.stop()

    def _in_steps(self, entry: Entry) -> bool:
        """Whether an epoch takes one entry of the log at most."""
        stream = self._streams.get(entry.id)
        if isinstance(stream, FileStream):
            return FILES_PER_EPOCH in entry.options
        return isinstance(stream, GeneratedStream)

    def _vectorised(self, entry: Entry) -> bool:
        """Whether our own reader gives what Spark's would."""
        kind = _VECTORISED_FORMATS.get(entry.format.lower())
        if kind is None or entry.arranged or "path" not in entry.options:
            return False
        corrupt = self.spark.conf.get("spark.sql.columnNameOfCorruptRecord")
        if corrupt in entry.columns.names:  # which Spark's reader fills
            return False
        if not set(entry.options) <= _VECTORISED_OPTIONS:
            return False
        return kind == PARQUET or (
            readable(arrow_schema(entry.columns, "UTC")) and self.zone in ("UTC", "Etc/UTC", "GMT")
        )


def _files_per_epoch(entry: Entry) -> int:
    text = entry.options.get(FILES_PER_EPOCH, "1000000")
    if not text.isdecimal() or int(text) < 1:
        raise DataError(
            f"option {FILES_PER_EPOCH} is {text!r}",
            condition="BAD_STREAM",
            stream=entry.name,
            hint="give a whole number from 1 on",
        )
    return int(text)


def _told(error: Exception) -> str:
    """What an error says first; of one that Py4J passes on, what Java said."""
    lines = [*str(error).splitlines(), ""]
    return lines[1].removeprefix(": ") if lines[0].startswith("An error occurred") else lines[0]


def _check_generated(entry: Entry, columns: StructType) -> None:
    known = {field.name: field.dataType for field in columns}
    for column in entry.columns:
        if known.get(column.name) != column.dataType:
            shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise DataError(
                f"{column.name} {column.dataType.simpleString()} is no column of this generator",
                condition="BAD_STREAM",
                stream=entry.name,
                hint=f"leave the columns out, or choose of: {shown}",
            )
    if entry.arranged:
        raise DataError(
            "a generator only appends: it has no operations and no key",
            condition="BAD_STREAM",
            stream=entry.name,
            hint="leave OP and PRIMARY KEY out",
        )
