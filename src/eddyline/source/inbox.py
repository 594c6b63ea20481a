"""The inbox of a table: batches that other processes write, until the engine moves them into the redo log.

A writer puts files of operations into `inbox/<table>`, and then one document that names them: its
appearance commits the batch. The engine links the files into the redo log, appends
an entry that names them and the batch, and only then clears the inbox. So a batch that is committed twice,
or whose document remains after a crash, is in the log once.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from eddyline.changes import APPEND
from eddyline.errors import EngineError, StorageError
from eddyline.source.dead_letters import DeadLetters
from eddyline.source.lag import ROWS, Unread
from eddyline.source.log_files import as_operations, write_rows
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import LOG, Segment
from eddyline.storage.files import Files

FOLDER = "inbox"
BATCH = ".json"
CLAIMED = ".taken"  # then follows the name of a batch that the engine is moving
CLOSED = "closed"  # a file that is there while the table is altered
FILE_BYTES = 64 << 20
"""Rows of a task that are written as one file; a task holds as many in memory."""
ABANDONED_S = 24 * 3600.0
"""Files of a write that has written nothing for so long, and isn't committed, are removed."""

_LOG = logging.getLogger("eddyline.engine")


@dataclass(frozen=True, slots=True)
class InboxBatch:
    """A committed batch of an inbox.

    Attributes:
        document: its name.
        writer: id of the writer: of a streaming query, an application, or one write.
        version: its number among the writer's batches; None if the writer numbers none.
        committed_at: microseconds since 1970.
        files: its files and their numbers of rows and checksums.
    """

    document: str
    writer: str
    version: int | None
    committed_at: int
    files: tuple[tuple[str, int, int], ...]

    @property
    def names(self) -> list[str]:
        """The names of its files."""
        return [name for name, _, _ in self.files]


def write_files(
    files: Files, table: str, attempt: str, rows: Iterable[pa.Table]
) -> list[tuple[str, int, int]]:
    """Write rows to append to a table; return the files, with their numbers of rows and checksums.

    Args:
        table: id of the table.
        attempt: begins the names of the files of this write; has no hyphen.
        rows: tables of all columns of the table, in their order.
    """
    return [write_file(files, table, attempt, part, APPEND) for part in concatenated(rows)]


def write_file(
    files: Files, table: str, attempt: str, rows: pa.Table, operation: str
) -> tuple[str, int, int]:
    """Write rows as operations of one kind; return the file, with its number of rows and checksum."""
    name = f"{FOLDER}/{table}/{attempt}-{uuid.uuid4().hex}.arrow"
    segment = write_rows(files, name, as_operations(rows, operation))
    return name, segment.rows, segment.crc


def log_files(
    files: Files,
    log: RedoLog,
    written: Iterable[tuple[str, int, int]],
    batch: tuple[str, int | None] | None = None,
) -> None:
    """Append an entry that names files of an inbox, in this order; the files are linked into the log.

    Args:
        batch: whose rows these are, as `RedoLog.append` takes it.
    """
    number = log.end()
    log.clear(number)
    segments = [Segment(LOG, log.adopt(number, name), rows, crc=crc) for name, rows, crc in written]
    files.sync_all([segment.file for segment in segments])  # before the entry
    log.append(number, segments, new=True, batch=batch)


def commit_batch(
    files: Files,
    table: str,
    writer: str,
    version: int | None,
    written: Sequence[tuple[str, int, int]],
    is_unaltered: Callable[[], bool] = lambda: True,
) -> None:
    """Commit a batch: it is durable when this returns, and the engine inserts it exactly once.

    Args:
        is_unaltered: returns whether the table's columns and their rules are those that the rows meet.

    Raises:
        EngineError: BEING_ALTERED: the table is being altered, or was since the rows were checked.
        StorageError: a file is gone, or the batch can't be written.
    """
    if not written:
        return
    for name, _, _ in written:
        try:
            os.utime(files.path(name))  # a fresh time, so that no engine removes it as abandoned
        except OSError as error:
            raise StorageError(
                f"a file of this write is gone: {error}",
                condition="WRITE_FAILED",
                file=name,
                hint="write again: nothing was inserted. Did the write take more than a day, or was "
                "the table dropped or altered meanwhile?",
            ) from error
    if not is_unaltered():
        raise being_altered()
    folder = f"{FOLDER}/{table}"
    name = _document(table, written)
    files.write_json(
        name, [writer, version, time.time_ns() // 1000, [list(one) for one in written]]
    )
    # a batch from before the closing is inserted; a later one may not be
    late = files.exists(f"{folder}/{CLOSED}") or not is_unaltered()
    lost = late and _withdraw_document(files, name)
    if lost or not files.exists(folder):
        raise being_altered()


def being_altered() -> EngineError:
    """Return the error for a write during an ALTER TABLE."""
    return EngineError(
        "the table is being altered",
        condition="BEING_ALTERED",
        hint="write again: nothing was inserted",
    )


def withdraw_batch(
    files: Files, table: str, attempt: str, written: Sequence[tuple[str, int, int]]
) -> None:
    """Remove the files of a failed write.

    Args:
        attempt: the prefix of the names of its files; empty if only `written` are its own.
    """
    if written:
        document = _document(table, written)
        if not _withdraw_document(files, document) and files.exists(document + CLAIMED):
            return  # an engine inserts it, although the commit failed after it
    for name, _, _ in written:
        files.remove(name)
    for name in files.sizes(f"{FOLDER}/{table}") if attempt else ():
        if name.startswith(f"{attempt}-"):
            files.remove(f"{FOLDER}/{table}/{name}")


class TableInbox:
    """Moves the committed batches of a table's inbox into its redo log. A `Source`.

    Args:
        name: name of the table.
        table: its id.
        log: its redo log.
        files: files of the storage.
    """

    steps = False
    replayable = False
    dead_letters: DeadLetters | None = None

    def __init__(self, name: str, table: str, log: RedoLog, files: Files) -> None:
        self.name = name
        self._log = log
        self._files = files
        self._folder = f"{FOLDER}/{table}"
        self._tidy_at = 0.0

    def open(self) -> None:
        """Reopen the inbox, in case an engine has died during `closed`."""
        self._files.remove(f"{self._folder}/{CLOSED}")

    def pull(self) -> None:
        """Move all batches that are committed by now."""
        now = time.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + ABANDONED_S / 24
            self._remove_abandoned(time.time() - ABANDONED_S)
        with self._log.writing:
            for batch in self._committed():
                self._take(batch)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Move all committed batches, and refuse new ones during the context."""
        self._files.make_folder(self._folder)
        marker = f"{self._folder}/{CLOSED}"
        self._files.write_json(marker, None)
        try:
            self.pull()
            yield
        finally:
            self._files.remove(marker)

    def follow(self, interval_s: float) -> None:
        """Do the same as `pull`."""
        self.pull()

    def stop(self) -> None:
        """Do nothing: no thread runs."""

    def unread(self) -> Unread:
        """Return the rows of the batches that wait to be moved."""
        batches = list(self._read(self._documents()))
        rows = sum(rows for batch in batches for _, rows, _ in batch.files)
        return Unread(rows, ROWS, since=min((b.committed_at for b in batches), default=None))

    def forget(self, position: int) -> None:
        """Remove the entries before `position` from the log."""
        self._log.forget(position)

    def _committed(self) -> list[InboxBatch]:
        """Return the batches in the order in which they were committed; those of a writer by version.

        A listing of a folder that changes may miss a batch but show the next one of the writer; the missed one would then
        look like a repetition. A second listing contains all that existed at the end of the first.
        """
        seen = {batch.document: batch for batch in self._read(self._documents())}
        if not seen:
            return []
        newest: dict[str, int] = {}
        for batch in seen.values():
            newest[batch.writer] = max(newest.get(batch.writer, -1), _number(batch))
        later = self._read(name for name in self._documents() if name not in seen)
        batches = [*seen.values(), *(b for b in later if _number(b) < newest.get(b.writer, -1))]
        batches.sort(key=_number)
        times: dict[str, int] = {}
        for batch in batches:  # a clock that was set back doesn't change the order of a writer's
            before = times.get(batch.writer, 0)
            times[batch.document] = times[batch.writer] = max(batch.committed_at, before)
        return sorted(batches, key=lambda batch: times[batch.document])

    def _documents(self) -> list[str]:
        names = self._files.names(self._folder)
        return [f"{self._folder}/{name}" for name in names if name.endswith((BATCH, CLAIMED))]

    def _read(self, documents: Iterable[str]) -> Iterator[InboxBatch]:
        for name in documents:
            if self._files.exists(name):  # its writer may have withdrawn it
                writer, version, at, written = self._files.read_json(name)
                yield InboxBatch(name, writer, version, at, tuple(tuple(one) for one in written))

    def _take(self, batch: InboxBatch) -> None:
        log = self._log
        if log.holds(batch.writer, batch.version):
            _LOG.info("table %s: a batch was committed twice, and is inserted once", self.name)
        else:
            document = batch.document
            if not document.endswith(CLAIMED):
                document += CLAIMED
                if not self._files.rename(batch.document, document):
                    return  # its writer has withdrawn it
                batch = replace(batch, document=document)
            log_files(self._files, log, batch.files, (batch.writer, batch.version))
        self._files.remove(batch.document)
        for name in batch.names:
            self._files.remove(name)

    def _remove_abandoned(self, before_s: float) -> None:
        """Remove the files of writes that ended without a commit: those whose newest file is old."""
        named = {name for batch in self._read(self._documents()) for name in batch.names}
        folder = self._files.path(self._folder)
        newest: dict[str, float] = {}
        found = [entry.name for entry in os.scandir(folder)] if os.path.isdir(folder) else []
        loose = [
            n
            for n in found
            if f"{self._folder}/{n}" not in named and not n.endswith((BATCH, CLAIMED, CLOSED))
        ]
        for name in loose:
            attempt = name.partition("-")[0]
            try:
                changed = os.stat(os.path.join(folder, name)).st_mtime
            except FileNotFoundError:  # its write has just ended
                continue
            newest[attempt] = max(newest.get(attempt, 0.0), changed)
        for name in loose:
            if newest.get(name.partition("-")[0], before_s) < before_s:
                self._files.remove(f"{self._folder}/{name}")


def _document(table: str, written: Sequence[tuple[str, int, int]]) -> str:
    """Return the name of the document of a batch, which is derived from its files."""
    first = os.path.basename(written[0][0])
    return f"{FOLDER}/{table}/{first.removesuffix('.arrow')}{BATCH}"


def _withdraw_document(files: Files, document: str) -> bool:
    """Remove the document of a batch; False if an engine has claimed it, or its folder is gone."""
    gone = f"{document}.{uuid.uuid4().hex}.withdrawn"
    if not files.rename(document, gone):
        return False
    files.remove(gone)
    return True


def _number(batch: InboxBatch) -> int:
    return -1 if batch.version is None else batch.version


def concatenated(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate small tables, as far as they fit into one file."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= FILE_BYTES:
            yield pa.concat_tables(held).combine_chunks()
            held, size = [], 0
    if sum(table.num_rows for table in held):
        yield pa.concat_tables(held).combine_chunks()
