"""The redo log: the input of each source in numbered entries, durable before it is processed."""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.source.log_files import in_fewer_files, new_file, write_rows
from eddyline.source.log_index import Index, is_entry, mergeable, numbered_files, spans
from eddyline.source.segments import Segment, verify_segment
from eddyline.storage.files import Files

_LOG = logging.getLogger(__name__)

SEQUENCE_SHIFT = 32  # an entry's operations are numbered from entry << 32 on
START = "start"
MARK = "watermark-"
WRITERS = "writers"
EXPIRED = "expired"
_MERGES_MAX = 4  # a call
_NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True)
class Expired:
    """Which entries a log has let go: readers begin behind them.

    Attributes:
        end: the number after that of the last one.
        epoch: the last committed epoch at that time; a reader that began before may still need them.
        before: entries that were received before this time, in microseconds since 1970.
    """

    end: int = 0
    epoch: Epoch = _NO_EPOCH
    before: int = 0


class RedoLog:
    """The redo log of one source. An entry is a JSON document that names segments.

    An entry appears as a whole. The caller numbers entries: a table consecutively, a stream of Spark by
    the number of the micro-batch, so that a batch that Spark repeats is recognised.

    Only one process writes. It caches the list of entries, and reads the folder again only after a
    failed write. Its threads hold `writing` while they append to the log of a table.

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
        self._index: Index | None = None
        self.writing = threading.RLock()
        self._lock = threading.RLock()  # Spark's batches and epochs write from several threads
        files.make_folder(self.folder)

    def start(self) -> int:
        """Return the number of the first retained entry."""
        return self._known().start

    def end(self) -> int:
        """Return the number after that of the last entry; `start()` for an empty log."""
        return self._known().end

    def expired(self) -> Expired:
        """Return which entries are no longer read; see `expire`."""
        return expired(self.files, self.source)

    def begin(self) -> int:
        """Return the number of the first entry that is read."""
        return max(self.start(), self.expired().end)

    def has(self, number: int) -> bool:
        """Return whether an entry of that number exists, or did before it was forgotten."""
        index = self._known()
        if number < index.start or index.holder(number) is not None:
            return True
        return self.files.exists(self._entry(number))

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
            new: never replace an entry.
            batch: whose rows these are: a writer, and the version, for `holds`; None for neither.

        Raises:
            StateError: FENCED, another engine writes to the storage.
        """
        numbered = []
        sequence, now = number << SEQUENCE_SHIFT, self.clock()
        for segment in segments:
            numbered.append(_stored(replace(segment, sequence=sequence, received_at=now)))
            if batch is not None:
                numbered[-1]["batch"] = batch
            sequence += segment.rows
        if batch is not None and not self.files.exists(self._writers):
            self.files.write_json(self._writers, {})  # from now on `forget` looks for batches
        with self._changing() as index, self.files.committing():
            known = None if batch is None else self._written(index)
            try:
                self.files.write_json(self._entry(number), numbered, new=new)
            except FileExistsError as error:
                raise StateError(
                    f"entry {number} of the redo log is there already",
                    condition="FENCED",
                    file=self._entry(number),
                    hint="another engine writes to this storage: stop one of them",
                ) from error
            insort(index.entries, number)
            index.begun.discard(number)
            if batch is not None and known is not None:
                index.written = {**known, batch[0]: batch[1]}

    def holds(self, writer: str, version: int | None) -> bool:
        """Return whether the log holds, or held, a batch: this version of a writer, or a later one.

        A batch without a version is known as long as its entry is retained.
        """
        with self._changing() as index:
            known = self._written(index)
        found = known.get(writer, -1)
        return writer in known if version is None or found is None else found >= version

    def inherit(self, other: RedoLog) -> None:
        """Know the batches that another log holds or has held, as if they were in this one, still empty."""
        with other._changing() as index:  # of the same class
            written = other._written(index)
        known = {writer: version for writer, version in written.items() if version is not None}
        if known:
            self.files.write_json(self._writers, known)

    def adopt(self, number: int, name: str) -> str:
        """Give a file of the storage a second name, as one of an entry; return that name."""
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
        with self._changing() as index:
            if number in index.begun:
                self._remove(lambda found: found == number)
            index.begun.add(number)

    def segments(self, first: int, end: int) -> list[Segment]:
        """Return all segments of the entries from `first` up to but not including `end`.

        Raises:
            StateError: an entry is damaged, or `first` is no longer retained.
        """
        index = self._known(end)
        if first < end and first < index.start:
            raise StateError(
                f"the redo log begins at entry {index.start}, needed is {first}",
                condition="LOG_TOO_SHORT",
                file=self.folder,
                hint="restore the manifest of a later epoch from a copy",
            )
        return list(self._within(index, first, end))

    def _within(self, index: Index, first: int, end: int) -> Iterator[Segment]:
        """Yield the segments of the entries from `first` up to but not including `end`, as they are read."""
        with self._lock:  # entries may be merged or let go meanwhile: their files stay for a while
            entries = index.entries[bisect_left(index.entries, first) :]
            merged = dict(index.merged)
        for number in entries:
            if merged.get(number, number) >= end:
                break
            for segment in self._read(index, number, merged.get(number)):
                # the bounds may lie within a merged one
                if first <= segment.sequence >> SEQUENCE_SHIFT < end:
                    yield segment

    def mark(self, first: int, watermark: int | None) -> None:
        """Record the watermark (microseconds since 1970) that holds for the entries from `first` on.

        None: there is none, or none any more since it was reset.
        Later watermarks belong to epochs that were never committed, or were lost: they are removed.
        """
        with self._changing() as index:
            while index.marks and index.marks[-1] > first:
                self.files.remove(self._mark(index.marks[-1]))
                index.watermarks.pop(index.marks.pop(), None)
            if self._watermark(index, first) != watermark:
                self.files.write_json(self._mark(first), watermark)
                index.watermarks[first] = watermark
                if index.mark_of(first) != first:
                    index.marks.append(first)

    def merge(self, end: int, epoch: Epoch, oldest: Epoch) -> None:
        """Put the rows of old entries into fewer files; numbers and times of their segments stay.

        Entries that were merged are removed by a later call, as other processes may be reading them.
        Damaged ones are left alone.

        Args:
            end: only entries before it are merged.
            epoch: the last committed epoch, which a reader of today may have open.
            oldest: the first epoch that a reader may have open. Files that were replaced in epochs
                before it are removed.
        """
        with self._lock:
            if self._known().replaced:
                self._remove_merged(oldest)
            with self._leaving_damaged("merged"):
                for _ in range(_MERGES_MAX):
                    numbers = mergeable(self._known(), end)
                    if not numbers:
                        return
                    with self._changing() as index:
                        self._merge(index, numbers, epoch)

    @contextmanager
    def _leaving_damaged(self, what: str) -> Iterator[None]:
        """Leave entries alone that turn out to be damaged, for whoever needs their rows to be told.

        Args:
            what: is done to the others, for the log.
        """
        try:
            yield
        except StateError as error:
            if error.condition != "DAMAGED_FILE":
                raise
            _LOG.error("old entries are not %s: %s", what, error)

    def expire(
        self, before: int, end: int, epoch: Epoch, oldest: Epoch, *, remove: bool
    ) -> int | None:
        """Let entries go that were received before a time; readers begin behind them from now on.

        Their files are removed by a later call, once no reader can have them open; so there are two steps,
        and the next entries go after both.

        Args:
            before: microseconds since 1970.
            end: only entries before it go, and never the last entry.
            epoch: the last committed epoch, which a reader of today may have open.
            oldest: the first epoch that a reader may have open.
            remove: whether to remove the files at all; the source may need entries that only name its data.

        Returns:
            The number of the first entry that is read now; None if that is as before.
        """
        with self._lock:
            gone = self.expired()
            if gone.epoch >= oldest:  # a reader may still need those
                return None
            if remove and self.start() < gone.end:
                self.forget(gone.end)
            index = self._known()
            first = max(index.start, gone.end)
            with self._leaving_damaged("let go"):
                found = self._received_since(index, before, first, min(end, index.end - 1))
                if found > first:
                    now = asdict(Expired(found, epoch, before))
                    self.files.write_json(f"{self.folder}/{EXPIRED}", now)
                    return found
            return None

    def _received_since(self, index: Index, moment: int, first: int, end: int) -> int:
        """Return the number of the first entry from `first` on that was received at a time or later; else `end`."""
        unknown = None  # the first of those before it whose time isn't known: versions before didn't store it
        for segment in self._within(index, first, end):
            entry = segment.sequence >> SEQUENCE_SHIFT
            if segment.received_at is None:
                unknown = entry if unknown is None else unknown
            elif segment.received_at >= moment:
                return entry if unknown is None else unknown
            else:
                unknown = None
        return end if unknown is None else unknown

    def _merge(self, index: Index, numbers: list[int], epoch: Epoch) -> None:
        """Merge entries, which follow each other, under the last one's number."""
        first, last = index.merged.get(numbers[0], numbers[0]), numbers[-1]
        # what was forgotten of a merged entry has lost its files
        segments = list(self._within(index, max(first, index.start), last + 1))
        files = self.files.flushing()  # the merged entries may have been flushed before
        segments = in_fewer_files(files, lambda: new_file(self.folder, last), segments)
        stored = [{**_stored(one), "watermark": one.watermark} for one in segments]
        with files.committing():
            files.write_json(self._entry(last, first), {"epoch": epoch, "segments": stored})
        for number in numbers:
            index.merged.pop(number, None)
        at = bisect_left(index.entries, numbers[0])
        del index.entries[at : at + len(numbers) - 1]
        index.merged[last], index.replaced = first, True

    def _remove_merged(self, oldest: Epoch) -> None:
        """Remove the files of entries that were merged in epochs before `oldest`."""
        with self._changing() as index:
            replaced: dict[int, list[str]] = {}
            for name, number in numbered_files(self.files.names(self.folder)):
                holder = index.holder(number)
                if holder in index.merged:
                    replaced.setdefault(holder, []).append(name)
            waiting = set()
            for last, names in replaced.items():
                entry = self._entry(last, index.merged[last]).removeprefix(f"{self.folder}/")
                if sum(map(is_entry, names)) == 1:  # that of all, as entries are removed last
                    continue
                document = self.files.read_json(f"{self.folder}/{entry}")
                if document["epoch"] >= oldest:
                    waiting.add(last)
                    continue
                kept = {entry, *(os.path.basename(one["file"]) for one in document["segments"])}
                for name in sorted(set(names) - kept, key=is_entry):
                    self.files.remove(f"{self.folder}/{name}")
            index.replaced = bool(waiting)
            self._remove_marks(index, waiting)

    def _remove_marks(self, index: Index, waiting: Container[int]) -> None:
        """Remove the watermarks that only entries at the beginning need, which were merged."""
        end = 0
        for number in index.entries:
            if number not in index.merged or number in waiting:
                break
            end = number
        self._drop_marks(index, end)

    def _drop_marks(self, index: Index, entry: int) -> None:
        """Remove the watermarks before the one that holds for an entry."""
        for mark in index.marks[: max(bisect_right(index.marks, entry) - 1, 0)]:
            self.files.remove(self._mark(mark))
            index.marks.remove(mark)
            index.watermarks.pop(mark, None)

    def _read(self, index: Index, number: int, merged: int | None) -> list[Segment]:
        """Return the segments of an entry, with their watermarks.

        Args:
            merged: the first of the entries that were merged into this one; None if it is alone.
        """
        document = self.files.read_json(self._entry(number, merged))
        if merged is not None:
            return [Segment(**segment) for segment in document["segments"]]
        watermark = self._watermark(index, number)
        for segment in document:
            segment.pop("batch", None)
        return [Segment(**segment, watermark=watermark) for segment in document]

    def verify(self, first: int) -> None:
        """Raise StateError if an entry from `first` on, or a file it names, is missing or damaged."""
        for segment in self.segments(first, max(self.end(), first + 1)):
            verify_segment(self.files, segment)

    def skip(self, first: int) -> None:
        """Remove the entries from `first` on, which were never processed."""
        with self._changing() as index:
            while index.entries and index.entries[-1] >= first:
                self.files.remove(self._entry(index.entries[-1]))
                index.begun.add(index.entries.pop())
            if index.end < first:
                self._begin_at(index, first)

    def forget(self, end: int) -> None:
        """Remove the entries before `end`, whose rows are committed elsewhere."""
        with self._lock:
            if self.start() < end:
                with self._changing() as index:
                    if self.files.exists(self._writers):
                        lasting = {w: v for w, v in self._written(index).items() if v is not None}
                        self.files.write_json(self._writers, lasting)
                        index.written = None
                    self._begin_at(index, end)
                    self._remove(lambda number: number < end)
                    del index.entries[: bisect_left(index.entries, end)]
                    index.merged = {n: first for n, first in index.merged.items() if n >= end}
                    self._drop_marks(index, end)

    def tidy(self) -> None:
        """Remove the files of forgotten and unfinished entries; call it before the first write."""
        with self._lock:
            self._index = None
            self.files.remove_unfinished(self.folder)
            index = self._listed()
            self._remove(lambda number: number < index.start or index.holder(number) is None)

    def _known(self, end: int = 0) -> Index:
        """Return the index; read the folder again if there is none, or it ends before `end`."""
        with self._lock:
            if self._index is not None and end <= self._index.end:
                return self._index
            return self._listed()

    @contextmanager
    def _changing(self) -> Iterator[Index]:
        """Yield the index for a change on disk; discard it if the change fails."""
        with self._lock:
            index, self._index = self._known(), None
            yield index
            self._index = index

    def _listed(self) -> Index:
        begin = f"{self.folder}/{START}"
        start = int(self.files.read_json(begin)) if self.files.exists(begin) else 0
        names = self.files.names(self.folder)
        entries, merged, replaced = array("q"), dict[int, int](), False
        for first, last in sorted(spans(names), key=lambda span: (span[0], -span[1])):
            if entries and last <= entries[-1]:
                replaced = True
                continue
            entries.append(last)
            if first < last:
                merged[last] = first
        marks = array("q", [int(n.removeprefix(MARK)) for n in names if n.startswith(MARK)])
        index = Index(start, entries, merged, replaced, marks, set())
        index.begun = {n for _, n in numbered_files(names) if index.holder(n) is None}
        return index

    def _remove(self, gone: Callable[[int], bool]) -> None:
        """Remove the files of the entries for whose numbers `gone` is true."""
        for name, number in numbered_files(self.files.names(self.folder)):
            if gone(number):
                self.files.remove(f"{self.folder}/{name}")

    def _begin_at(self, index: Index, number: int) -> None:
        self.files.write_json(f"{self.folder}/{START}", number)
        index.start = number

    def _watermark(self, index: Index, entry: int) -> int | None:
        """Return the watermark that holds for an entry."""
        mark, known = index.mark_of(entry), index.watermarks
        if mark is not None and mark not in known:
            known[mark] = self.files.read_json(self._mark(mark))
        return None if mark is None else known[mark]

    def _written(self, index: Index) -> dict[str, int | None]:
        """Return the last version of each writer whose batches the log holds or has held."""
        if index.written is None:
            known: dict[str, int | None] = {}
            if self.files.exists(self._writers):
                known = self.files.read_json(self._writers)
                for number in index.entries:
                    for segment in self.files.read_json(self._entry(number))[:1]:
                        if "batch" in segment:
                            writer, version = segment["batch"]
                            known[writer] = version
            index.written = known
        return index.written

    @property
    def _writers(self) -> str:
        return f"{self.folder}/{WRITERS}"

    def _mark(self, number: int) -> str:
        return f"{self.folder}/{MARK}{number:012d}"

    def _entry(self, number: int, first: int | None = None) -> str:
        merged = "" if first is None else f"-from-{first:012d}"
        return f"{self.folder}/{number:012d}{merged}.json"


def _stored(segment: Segment) -> dict[str, Any]:
    """Return a segment without what is known only when its entry is processed."""
    document = segment.as_dict()
    for name in ("watermark", "newest", "counted"):
        del document[name]
    return document


def expired(files: Files, source: str) -> Expired:
    """Return which entries of a source's log are no longer read. Only reads, like `last_received`."""
    name = f"logs/{source}/{EXPIRED}"
    return Expired(**files.read_json(name)) if files.exists(name) else Expired()


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
