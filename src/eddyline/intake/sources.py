"""The sources of an engine: the redo logs of its tables and streams, and the open sources that write them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampNTZType

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import PIPELINE, RETAIN, STREAM, VIEW, Entry
from eddyline.catalog.logged import as_source
from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EddylineError, StateError, StorageError
from eddyline.intake.backoff import back_off
from eddyline.intake.formats import Context, FeedFormat, SourceFormat, SparkFormat
from eddyline.source.base import HasRemoteResources, LeavesOut, Source, cannot_read
from eddyline.source.dead_letters import DeadLetters
from eddyline.source.inbox import FOLDER as INBOX
from eddyline.source.inbox import TableInbox
from eddyline.source.log_entries import SEQUENCE_SHIFT
from eddyline.source.redo_log import RedoLog
from eddyline.source.segment_readers import Reader
from eddyline.source.segments import Segment
from eddyline.source.source_thread import ThreadedSource
from eddyline.state.manifest import Manifest
from eddyline.storage.files import Files

QUEUES = "queues"
"""Queues of streams that have theirs in the storage, by the id of their dead letters."""
FOLDERS = ("logs", "checkpoints", QUEUES, INBOX)
_LATEST = 2**63 - 1
_LOG = logging.getLogger("eddyline.sources")


@dataclass(frozen=True, slots=True)
class SourceOutage:
    """The outage of a source; other sources continue.

    Attributes:
        error: of the last try.
        failures: number of tries that failed, one after the other.
        retry_at: when the background run tries it again, on the monotonic clock.
        partial: whether only some files can't be read: all others are, and these at each look; an
            error is reported again at `retry_at`.
    """

    error: EddylineError
    failures: int
    retry_at: float
    partial: bool = False


@dataclass(slots=True)
class Sources:
    """Redo logs of tables and streams, and the open sources of streams.

    Attributes:
        files: files of the storage.
        spark: the user's session.
        zone: time zone of the storage.
        formats: formats by name in lower case; Spark reads all others.
        clock: returns microseconds since 1970.
        opens: whether the sources of streams are opened. Else streams are only defined: no port is bound, no queue
            locked, nothing made on another system.
        outages: by name, the sources that can't be read now.
    """

    files: Files
    spark: SparkSession
    zone: str
    formats: Mapping[str, SourceFormat]
    clock: Callable[[], int]
    opens: bool = True
    outages: dict[str, SourceOutage] = field(default_factory=dict)
    _logs: dict[str, RedoLog] = field(default_factory=dict)
    _sources: dict[str, Source] = field(default_factory=dict)
    _letters: dict[str, DeadLetters] = field(default_factory=dict)

    def log(self, entry: Entry) -> RedoLog:
        """Return the redo log of a table or stream."""
        log = self._logs.get(entry.source)
        if log is None:
            # the account of a queue counts its dead letters: always flush them with it
            files = self.files.flushing() if entry.holds_letters else self.files
            # another thread may have made one meanwhile
            log = self._logs.setdefault(entry.source, RedoLog(files, entry.source, self.clock))
        return log

    def columns(
        self, stream: str, format: str, options: Mapping[str, str], operation: str | None
    ) -> StructType:
        """Return the columns that a source itself declares; DataError if it can't.

        Args:
            operation: the column of operations; None if all rows are appends.
        """
        one = self._format(format)
        found = one.columns(stream, options, self._context)
        if operation is None or not isinstance(one, FeedFormat):
            return found
        return StructType([column for column in found if column.name not in one.about])

    def check(self, entry: Entry) -> None:
        """Raise DataError if a stream of this definition can't be opened."""
        self._format(entry.format).check(as_source(entry), self._context)

    def has_remote_resources(self, entry: Entry) -> bool:
        """Return whether the source of an entry owns resources on another system."""
        return isinstance(self._sources.get(entry.id), HasRemoteResources)

    def letters_role(self, entry: Entry) -> str:
        """Return the role of an entry's stream of dead letters; empty if it needs none."""
        return self._format(entry.format).letters(as_source(entry)) if entry.takes_input else ""

    @property
    def readers(self) -> dict[str, Reader]:
        """Readers for the kinds of segments that only registered formats use."""
        return {
            kind: reader for one in self.formats.values() for kind, reader in one.readers.items()
        }

    def format_name(self, name: str) -> str:
        """Return the name under which a format is registered; that of a source of Spark as given."""
        return name.lower() if name.lower() in self.formats else name

    def attach(self, entry: Entry, letters: Entry | None, frame: DataFrame | None = None) -> None:
        """Open the source of a stream, if this opens sources.

        Args:
            letters: the stream of its dead letters.
            frame: the streaming DataFrame to read; None to open format and options.
        """
        if not self.opens:
            return
        opened = self._format(entry.format) if frame is None else SparkFormat(entry.format, frame)
        holder = _attached_entry(entry, letters)
        self.disconnect(holder)
        self._sources[holder.id] = opened.open(as_source(entry), letters, self._context)

    def attached(self, entry: Entry, letters: Entry | None) -> bool:
        """Return whether the source of a stream is open."""
        return _attached_entry(entry, letters).id in self._sources

    def connect(self, entry: Entry, source: Source) -> None:
        """Attach a source that the caller has created; stop the previous one."""
        self.disconnect(entry)
        self._sources[entry.id] = source

    def open_inbox(self, table: Entry) -> None:
        """Begin to accept rows that other processes write into a table."""
        inbox = TableInbox(table.name, table.id, self.log(table), self.files)
        inbox.open()
        self.connect(table, inbox)

    def inbox(self, table: Entry) -> TableInbox:
        """Return the inbox of a table of this engine."""
        inbox = self._sources[table.id]
        assert isinstance(inbox, TableInbox)
        return inbox

    def log_inbox(self, table: Entry) -> None:
        """Move the batches that other processes have committed for a table into its log."""
        inbox = self._sources.get(table.id)
        if inbox is not None:
            inbox.pull()

    def connected(self, entry: Entry) -> Source | None:
        """Return the source that is attached to an entry."""
        return self._sources.get(entry.id)

    def holds(self, letters: Entry) -> bool:
        """Return whether the source of a stream of dead letters is attached."""
        return letters.attached_to in self._sources or letters.id in self._letters

    def register_letters(self, letters: Entry, handler: DeadLetters) -> None:
        """Register the handler of a sink's dead letters, which no source has."""
        self._letters[letters.id] = handler

    def dead_letters(self, letters: Entry) -> DeadLetters:
        """Return the handler of a stream of dead letters; CatalogError if its source isn't attached."""
        if letters.id in self._letters:
            return self._letters[letters.id]
        source = self._sources.get(letters.attached_to)
        if letters.role and source is not None and source.dead_letters is not None:
            return source.dead_letters
        if letters.role == PIPELINE:
            raise CatalogError(
                f"the pipeline of {letters.name} is not connected",
                condition="NOT_CONNECTED",
                hint="call engine.pipeline(...) with its bolts again, after opening the storage",
            )
        raise CatalogError(
            f"the stream of {letters.name} is not connected",
            condition="NOT_CONNECTED",
            hint="call engine.stream(...) again, after opening the storage",
        )

    @property
    def all(self) -> list[Source]:
        """All attached sources."""
        return list(self._sources.values())

    def pull(self) -> list[EddylineError]:
        """Log all input that is available now; return the errors of sources that can't be read."""
        self.outages.clear()
        return self._read(lambda source: source.pull(), self.all)

    def follow(self, interval_s: float) -> list[EddylineError]:
        """Log new input continuously, in the background; return the errors of this call.

        A source that fails is retried with backoff. As it may fail in its own thread, it leaves
        `outages` only after it has worked for as long as the last pause, and not while a try may still fail.
        """
        now = time.monotonic()
        waiting = {
            name
            for name, outage in self.outages.items()
            if now < outage.retry_at and not outage.partial
        }
        errors = self._read(
            lambda source: source.follow(interval_s),
            [source for source in self.all if source.name not in waiting],
        )
        trying = {one.name for one in self.all if isinstance(one, ThreadedSource) and one.trying}
        for name, outage in list(self.outages.items()):
            if now > outage.retry_at + back_off(outage.failures) and name not in trying:
                del self.outages[name]
        return errors

    def _read(
        self, read: Callable[[Source], object], sources: Sequence[Source]
    ) -> list[EddylineError]:
        """Read sources; the failure of one doesn't affect the others.

        Raises:
            StateError: what the storage holds of a source is damaged.
            StorageError: the storage can't be used.
        """
        errors: list[EddylineError] = []
        for source in sources:
            error: EddylineError | None = None
            partial = False
            try:
                read(source)
            except (StateError, StorageError):
                raise
            except Exception as raised:  # noqa: BLE001  # whatever a source raises: it is named
                error = _as_eddyline_error(source, raised)
            else:
                error = _left_out(source)
                partial = error is not None
            before = self.outages.get(source.name)
            if error is None:
                if before is not None and before.partial:
                    del self.outages[source.name]
            elif partial and before is not None and time.monotonic() < before.retry_at:
                self.outages[source.name] = replace(before, error=error, partial=True)
            else:
                errors.append(error)
                failures = 1 if before is None else before.failures + 1
                retry_at = time.monotonic() + back_off(failures)
                self.outages[source.name] = SourceOutage(error, failures, retry_at, partial)
        return errors

    def stop(self) -> None:
        """Stop all sources, also where some fail."""
        with ExitStack() as rest:
            for source in self._sources.values():
                rest.callback(source.stop)

    def forget(self, entry: Entry, position: int) -> None:
        """Remove the entries before `position` from the log of a table or stream."""
        (self._sources.get(entry.id) or self.log(entry)).forget(position)

    def expire(self, catalog: Catalog, oldest: Manifest, epoch: Epoch) -> None:
        """Let rows expire that are older than the retention of their stream.

        Args:
            oldest: the manifest of the first epoch that somebody may be reading.
            epoch: the last committed epoch.
        """
        for entry in catalog.entries:
            if entry.kind == STREAM and (retain := entry.options.get(RETAIN)):
                source = self._sources.get(entry.id)
                before, end = self.clock() - int(retain), oldest.positions.get(entry.id, 0)
                # entries that only name data also tell a source what it has read
                copied = source is None or not source.replayable
                log = self.log(entry)
                first = log.expire(before, end, epoch, oldest.epoch, remove=copied)
                if first is not None:
                    moment = datetime.fromtimestamp(before // 1_000_000, UTC)
                    _LOG.info("stream %s: rows received before %s are gone", entry.name, moment)

    def merge(self, catalog: Catalog, oldest: Manifest, epoch: Epoch) -> None:
        """Put old input of streams, whose logs keep it, into fewer files.

        Args:
            oldest: the manifest of the first epoch that somebody may be reading.
            epoch: the last committed epoch.
        """
        for entry in catalog.entries:
            if entry.kind == STREAM and entry.source == entry.id and not entry.arranged:
                end = oldest.positions.get(entry.id, 0)
                self.log(entry).merge(end, epoch, oldest.epoch)

    def remove(self, entry: Entry) -> None:
        """Stop the source of an entry, and delete its log and checkpoint."""
        self._logs.pop(entry.id, None)
        self._letters.pop(entry.id, None)
        source = self._sources.get(entry.id)
        self.disconnect(entry)
        if isinstance(source, HasRemoteResources):
            source.drop()
        for folder in FOLDERS:
            self.files.remove(f"{folder}/{entry.id}")

    def recover(self, catalog: Catalog, manifest: Manifest, *, skip: bool) -> None:
        """Remove the remains of crashes, and verify the unprocessed entries of the logs.

        Args:
            skip: remove the unprocessed entries instead, except those of dead letters.

        Raises:
            StateError: a log is damaged, or lacks entries that the manifest needs.
        """
        ids = catalog.ids
        for folder in FOLDERS:
            for name in self.files.names(folder):
                if name not in ids:
                    self.files.remove(f"{folder}/{name}")
        for entry in catalog.entries:
            if entry.kind != VIEW and entry.source == entry.id:
                log, position = self.log(entry), manifest.positions.get(entry.id, 0)
                if skip and not entry.holds_letters:
                    log.skip(position)
                log.tidy()
                log.verify(position)

    def waiting(self, catalog: Catalog, manifest: Manifest) -> dict[str, int]:
        """Return the end position of the next epoch, for each source with uncommitted input."""
        found = {}
        for entry in catalog.entries:
            if entry.kind == VIEW or entry.source != entry.id:
                continue
            position, end = manifest.positions.get(entry.id, 0), self.log(entry).end()
            if end > position:
                source = self._sources.get(entry.id)
                found[entry.id] = position + 1 if source is not None and source.steps else end
        return found

    def received(
        self, catalog: Catalog, manifest: Manifest, positions: Mapping[str, int]
    ) -> dict[str, int | None]:
        """Return the rows from the committed positions up to others, by name of a table or stream.

        None where only reading the source's files tells how many there are.
        """
        found = {}
        for entry in catalog.entries:
            if entry.id in positions and not entry.role:
                first = manifest.positions.get(entry.id, 0)
                size = self.log(entry).size(first, positions[entry.id])
                found[entry.name] = size.rows if size.exact else None
        return found

    def between(self, entry: Entry, manifest: Manifest, end: int | None) -> list[Segment]:
        """Return the segments of a log from the committed position to `end`; none if `end` is None."""
        if end is None:
            return []
        return self.segments(entry, manifest, manifest.positions.get(entry.source, 0), end)

    def history(self, entry: Entry, manifest: Manifest) -> list[Segment]:
        """Return the segments of all retained rows of a stream, up to the committed position."""
        end = manifest.positions.get(entry.source, 0)
        return self.segments(entry, manifest, min(self.log(entry).begin(), end), end)

    def segments(self, entry: Entry, manifest: Manifest, first: int, end: int) -> list[Segment]:
        """Return the segments of the entries of a log from `first` up to but not including `end`.

        Segments of a stream with a watermark carry the limits for the event times of their rows.
        """
        found = self.log(entry).segments(first, end)
        place, clock = entry.time_place, manifest.clocks.get(entry.source)
        if place is None:
            return found
        ahead, reset = entry.max_ahead, 0 if clock is None else clock.reset
        if ahead is None and not reset:
            return found
        local = self.local_time(entry)
        return [
            replace(
                one,
                newest=None if ahead is None else _newest(one.received_at, ahead, local),
                counted=one.sequence >> SEQUENCE_SHIFT >= reset,
            )
            for one in found
        ]

    def local_time(self, entry: Entry) -> Callable[[int], int]:
        """Return the function that converts a time to the form of a stream's event times.

        Those of type TIMESTAMP_NTZ are local times of the storage's time zone. Both are microseconds
        since 1970.
        """
        place = entry.time_place
        if place is None or not isinstance(entry.columns[place].dataType, TimestampNTZType):
            return lambda moment: moment
        zone = ZoneInfo(self.zone)

        def local(moment: int) -> int:
            utc = datetime.fromtimestamp(moment // 1_000_000, UTC)
            offset = utc.astimezone(zone).utcoffset() or timedelta(0)
            return moment + round(offset.total_seconds()) * 1_000_000

        return local

    @property
    def _context(self) -> Context:
        return Context(self.files, self.spark, self.zone, self.log, self.opens)

    def _format(self, name: str) -> SourceFormat:
        return self.formats.get(name.lower()) or SparkFormat(name)

    def disconnect(self, entry: Entry) -> None:
        """Stop and release the source that is attached to an entry, if there is one."""
        old = self._sources.pop(entry.id, None)
        if old is not None:
            self.outages.pop(old.name, None)
            old.stop()


def _as_eddyline_error(source: Source, error: Exception) -> EddylineError:
    """Return the error of a source that can't be read, as one of Eddyline."""
    if isinstance(error, EddylineError):
        return error
    named = cannot_read(source.name, f"{type(error).__name__}: {error}")
    named.__cause__ = error
    return named


def _left_out(source: Source) -> EddylineError | None:
    """Return the error that names the files which a source has left out; None if there are none."""
    found = source.left_out if isinstance(source, LeavesOut) else {}
    if not found:
        return None
    path = min(found)
    others = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
    return cannot_read(source.name, f"{path}: {found[path]}{others}")


def _attached_entry(entry: Entry, letters: Entry | None) -> Entry:
    """Return the entry to which a stream's source is attached; for a pipeline its stream of dead letters."""
    return letters if letters is not None and letters.role == PIPELINE else entry


def _newest(received: int | None, max_ahead: int, local: Callable[[int], int]) -> int | None:
    """Return the latest event time that rows of an entry may have, from its time of receipt and `max_ahead`."""
    return None if received is None else min(local(received) + max_ahead, _LATEST)
