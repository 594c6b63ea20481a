"""The redo log: the input of each source in numbered entries, durable before it is processed."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.source.log_entries import AFTER, SEQUENCE_SHIFT, LogEntries, as_document
from eddyline.source.log_expiry import Expired, expire_entries, expired
from eddyline.source.log_files import new_file, write_rows
from eddyline.source.log_index import Index, LogSize, entry_size, is_entry
from eddyline.source.log_merging import merge_entries
from eddyline.source.segments import Segment, verify_segment
from eddyline.storage.files import Files

_WRITERS = "writers"


class RedoLog:
    """The redo log of one source. An entry is a JSON document that names segments.

    An entry appears as a whole. The caller numbers entries: a table consecutively, a stream of Spark by
    the number of the micro-batch, so that a batch that Spark repeats is recognised.

    Only one process writes. Its threads hold `writing` while they append to the log of a table.

    Args:
        files: files of the storage.
        source: id of the source.
        clock: returns microseconds since 1970.
    """

    def __init__(
        self,
        files: Files,
        source: str,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.files = files
        self.clock = clock
        self.source = source
        self.folder = f"logs/{source}"
        self.writing = threading.RLock()
        self._entries = LogEntries(files, source)

    def start(self) -> int:
        """Return the number of the first retained entry."""
        return self._entries.index().start

    def end(self) -> int:
        """Return the number after that of the last entry; `start()` for an empty log."""
        return self._entries.index().end

    def expired(self) -> Expired:
        """Return which entries have expired; see `expire`."""
        return expired(self.files, self.source)

    def begin(self) -> int:
        """Return the number of the first entry that is read."""
        return max(self.start(), self.expired().end)

    def has(self, number: int) -> bool:
        """Return whether an entry of that number exists, or was forgotten."""
        index = self._entries.index()
        if number < index.start or index.holder(number) is not None:
            return True
        return self.files.exists(self._entries.entry_file(number))

    def append(
        self,
        number: int,
        segments: Iterable[Segment],
        *,
        new: bool = False,
        batch: tuple[str, int | None] | None = None,
    ) -> None:
        """Write an entry, with the time; it is durable when this returns.

        Args:
            new: never replace an entry; after an error it isn't there.
            batch: the writer of the rows, and the version of its batch, for `holds`; None for other rows.

        Raises:
            StateError: FENCED, another engine writes to the storage.
            StorageError: WRITE_FAILED; or WRITE_UNCERTAIN, a new entry is there, but not flushed.
        """
        numbered = []
        sequence, now = number << SEQUENCE_SHIFT, self.clock()
        for segment in segments:
            numbered.append(as_document(replace(segment, sequence=sequence, received_at=now)))
            if batch is not None:
                numbered[-1]["batch"] = batch
            sequence += segment.rows
        if batch is not None and not self.files.exists(self._writers):
            self.files.write_json(self._writers, {})  # from now on `forget` looks for batches
        with self._entries.changing() as index, self.files.committing():
            if numbered:
                numbered[0][AFTER] = index.before(number)
            known = None if batch is None else self._written(index)
            try:
                name = self._entries.entry_file(number)
                self.files.write_json(name, numbered, new=new, undo=new)
            except FileExistsError as error:
                raise StateError(
                    f"entry {number} of the redo log is there already",
                    condition="FENCED",
                    file=self._entries.entry_file(number),
                    hint="another engine writes to this storage: stop one of them",
                ) from error
            insort(index.entries, number)
            index.begun.discard(number)
            index.sizes[number] = entry_size(numbered)
            if batch is not None and known is not None:
                index.written = {**known, batch[0]: batch[1]}

    def holds(self, writer: str, version: int | None) -> bool:
        """Return whether the log contains, or contained, a batch: this version of a writer, or a later one.

        A batch without a version is recognised as long as its entry is retained.
        """
        with self._entries.changing() as index:
            known = self._written(index)
        found = known.get(writer, -1)
        return writer in known if version is None or found is None else found >= version

    def inherit(self, other: RedoLog) -> None:
        """Take over the versions of writers from another log, so that this empty one recognises their batches."""
        with other._entries.changing() as index:  # of the same class
            written = other._written(index)
        known = {writer: version for writer, version in written.items() if version is not None}
        if known:
            self.files.write_json(self._writers, known)

    def adopt(self, number: int, name: str) -> str:
        """Link a file of the storage into the log, as a file of an entry; return its name there."""
        own = new_file(self.folder, number)
        self.files.link(name, own)
        return own

    def append_tables(self, tables: Iterable[pa.Table]) -> None:
        """Write tables (`c0..`, and `op` for operations) and the next entry, which names them."""
        number = self.end()
        self.clear(number)
        segments = [write_rows(self.files, new_file(self.folder, number), t) for t in tables]
        self.append(number, segments, new=True)

    def clear(self, number: int) -> None:
        """Begin an entry: remove the files of an earlier attempt."""
        with self._entries.changing() as index:
            if number in index.begun:
                self._entries.remove(lambda found: found == number)
            index.begun.add(number)

    def segments(self, first: int, end: int) -> list[Segment]:
        """Return all segments of the entries from `first` up to but not including `end`.

        Raises:
            StateError: an entry is damaged, or `first` is no longer retained.
        """
        index = self._entries.index(end)
        if first < end and first < index.start:
            raise StateError(
                f"the redo log begins at entry {index.start}, needed is {first}",
                condition="LOG_TOO_SHORT",
                file=self.folder,
                hint="restore the manifest of a later epoch from a copy",
            )
        return list(self._entries.within(index, first, end))

    def size(self, first: int, end: int | None = None) -> LogSize:
        """Return the size of the entries from `first` up to but not including `end`; None: of all that follow.

        Args:
            first: the committed position, or later: the sizes of entries before it are forgotten.
        """
        return self._entries.size(first, end)

    def mark(self, first: int, watermark: int | None) -> None:
        """Record the watermark (microseconds since 1970) that holds for the entries from `first` on.

        None means no watermark, also after a reset. Later watermarks belong to epochs that were never
        committed, or were lost, and are removed.
        """
        with self._entries.changing() as index:
            while index.marks and index.marks[-1] > first:
                self.files.remove(self._entries.watermark_file(index.marks[-1]))
                index.watermarks.pop(index.marks.pop(), None)
            if self._entries.watermark(index, first) != watermark:
                self.files.write_json(self._entries.watermark_file(first), watermark)
                index.watermarks[first] = watermark
                if index.mark_of(first) != first:
                    index.marks.append(first)

    def merge(self, end: int, epoch: Epoch, oldest: Epoch) -> None:
        """Merge old entries into fewer files; the numbers and times of their segments stay.

        The files of merged entries are removed by a later call, as other processes may be reading them.
        Damaged entries are left alone.

        Args:
            end: only entries before it are merged.
            epoch: the last committed epoch; a reader that is open now may read it.
            oldest: the first epoch that a reader may have open. Files that were replaced in epochs
                before it are removed.
        """
        merge_entries(self._entries, end, epoch, oldest)

    def expire(
        self, before: int, end: int, epoch: Epoch, oldest: Epoch, *, remove: bool
    ) -> int | None:
        """Let the entries expire that were received before a time: readers begin after them from now on.

        Their files are removed by a later call, once no reader can have them open. Until then no
        further entries expire.

        Args:
            before: microseconds since 1970.
            end: only entries before it expire, and never the last entry.
            epoch: the last committed epoch; a reader that is open now may read it.
            oldest: the first epoch that a reader may have open.
            remove: whether to remove the files at all; the source may need entries that only name its data.

        Returns:
            The number of the first entry that is read now; None if that is as before.
        """
        with self._entries.lock:
            earlier = self.expired()
            # a reader may still need the entries that have expired last
            if earlier.epoch >= oldest:
                return None
            if remove and self.start() < earlier.end:
                self.forget(earlier.end)
            return expire_entries(self._entries, before, end, epoch)

    def verify(self, first: int) -> None:
        """Raise StateError if an entry from `first` on, or a file it names, is missing or damaged, or the log ends before `first`."""
        if (end := self.end()) < first:
            raise StateError(
                f"the redo log ends before entry {end}, processed are those before {first}",
                condition="LOG_TOO_SHORT",
                file=self.folder,
                hint="restore the folder from a copy; or, to give up what is lost in it, open the storage once with "
                "Options(delivery='at_most_once'), and make the views of a stream anew",
            )
        for segment in self.segments(first, max(self.end(), first + 1)):
            verify_segment(self.files, segment)

    def skip(self, first: int) -> None:
        """Remove the entries from `first` on, which were never processed."""
        with self._entries.changing() as index:
            while index.entries and index.entries[-1] >= first:
                self.files.remove(self._entries.entry_file(index.entries[-1]))
                index.begun.add(index.entries.pop())
            if index.end < first:
                self._entries.begin_at(index, first)

    def forget(self, end: int) -> None:
        """Remove the entries before `end`, whose rows are committed elsewhere."""
        with self._entries.lock:
            if self.start() < end:
                with self._entries.changing() as index:
                    if self.files.exists(self._writers):
                        lasting = {w: v for w, v in self._written(index).items() if v is not None}
                        self.files.write_json(self._writers, lasting)
                        index.written = None
                    self._entries.begin_at(index, end)
                    self._entries.remove(lambda number: number < end)
                    del index.entries[: bisect_left(index.entries, end)]
                    index.merged = {n: first for n, first in index.merged.items() if n >= end}
                    self._entries.drop_watermarks(index, end)

    def tidy(self) -> None:
        """Remove the files of forgotten and unfinished entries; call it before the first write."""
        self._entries.tidy()

    def _written(self, index: Index) -> dict[str, int | None]:
        """Return the last version of each writer whose batches the log contains, or contained."""
        if index.written is None:
            known: dict[str, int | None] = {}
            if self.files.exists(self._writers):
                known = self.files.read_json(self._writers)
                for number in index.entries:
                    for segment in self.files.read_json(self._entries.entry_file(number))[:1]:
                        if "batch" in segment:
                            writer, version = segment["batch"]
                            known[writer] = version
            index.written = known
        return index.written

    @property
    def _writers(self) -> str:
        return f"{self.folder}/{_WRITERS}"


def last_received(files: Files, source: str) -> int | None:
    """Return when the last retained entry of a source came (microseconds since 1970), if known.

    Only reads, so that it can be used beside an engine.
    """
    folder = f"logs/{source}"
    entries = [name for name in files.names(folder) if is_entry(name)]
    if not entries:
        return None
    document = files.read_json(f"{folder}/{max(entries)}")
    segments = document["segments"] if isinstance(document, dict) else document
    return max((s.get("received_at") for s in segments if s.get("received_at")), default=None)
