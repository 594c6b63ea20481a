"""The entries of a redo log on disk: documents that name segments, watermarks, and their list in memory."""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from eddyline.errors import StateError
from eddyline.source.log_index import Index, LogSize, entry_size, numbered_files, spans
from eddyline.source.segments import Segment
from eddyline.storage.files import Files, damaged

_LOG = logging.getLogger(__name__)

AFTER = "after"
"""The number of the entry before another one, in the first segment of that, or in the document of a merged one."""
SEQUENCE_SHIFT = 32  # an entry's operations are numbered from entry << 32 on
_START = "start"
_WATERMARK = "watermark-"


class LogEntries:
    """The files of one redo log, and the list of its entries.

    Only one process writes. It caches the list, and reads the folder again only after a failed write.

    Args:
        files: files of the storage.
        source: id of the source.

    Attributes:
        lock: held while the list changes: Spark's batches and epochs write from several threads.
    """

    def __init__(self, files: Files, source: str) -> None:
        self.files = files
        self.source = source
        self.folder = f"logs/{source}"
        self.lock = threading.RLock()
        self._index: Index | None = None
        files.make_folder(self.folder)

    def index(self, end: int = 0) -> Index:
        """Return the list; read the folder again if none is cached, or the cached one ends before `end`."""
        with self.lock:
            if self._index is not None and end <= self._index.end:
                return self._index
            return self._listed()

    def tidy(self) -> None:
        """Remove the files of forgotten and unfinished entries; call it before the first write."""
        with self.lock:
            self._index = None
            self.files.remove_unfinished(self.folder)
            index = self._listed()
            self.remove(lambda number: number < index.start or index.holder(number) is None)

    @contextmanager
    def changing(self) -> Iterator[Index]:
        """Yield the index for a change on disk; discard it if the change fails."""
        with self.lock:
            index, self._index = self.index(), None
            yield index
            self._index = index

    def within(self, index: Index, first: int, end: int) -> Iterator[Segment]:
        """Yield the segments of the entries from `first` up to but not including `end`, as they are read."""
        with self.lock:  # entries that are merged or expire meanwhile keep their files for a while
            entries = index.entries[bisect_left(index.entries, first) :]
            merged = dict(index.merged)
        for number in entries:
            if merged.get(number, number) >= end:
                break
            for segment in self._read(index, number, merged.get(number)):
                # the bounds may lie within a merged one
                if first <= segment.sequence >> SEQUENCE_SHIFT < end:
                    yield segment

    def size(self, first: int, end: int | None = None) -> LogSize:
        """Return the size of the entries from `first` up to but not including `end`; None: of all that follow.

        Reads only entries whose size this process doesn't know, and forgets the sizes before `first`.
        """
        with self.lock:
            index = self.index()
            while index.sizes and (oldest := next(iter(index.sizes))) < first:
                del index.sizes[oldest]
            total = LogSize()
            for number in index.entries[bisect_left(index.entries, first) :]:
                if end is not None and number >= end:
                    break
                if number not in index.sizes:
                    document = self.files.read_json(
                        self.entry_file(number, index.merged.get(number))
                    )
                    merged = isinstance(document, dict)
                    index.sizes[number] = entry_size(document["segments"] if merged else document)
                total = total.plus(index.sizes[number])
            return total

    def _read(self, index: Index, number: int, merged: int | None) -> list[Segment]:
        """Return the segments of an entry, with their watermarks.

        Args:
            merged: the first of the entries that were merged into this one; None if it is alone.
        """
        document = self.files.read_json(self.entry_file(number, merged))
        if merged is not None:
            self._check_before(index, document.get(AFTER))
            return [Segment(**segment) for segment in document["segments"]]
        watermark = self.watermark(index, number)
        for segment in document:
            segment.pop("batch", None)
            self._check_before(index, segment.pop(AFTER, None))
        return [Segment(**segment, watermark=watermark) for segment in document]

    def _check_before(self, index: Index, entry: int | None) -> None:
        """Raise StateError DAMAGED_FILE if an entry is missing that wasn't forgotten; None, as of older versions, isn't checked."""
        if entry is None or entry < index.start or index.holder(entry) is not None:
            return
        if entry < self._start():  # the writer has forgotten it meanwhile
            return
        raise damaged(self.entry_file(entry), f"entry {entry} of the redo log is missing")

    def _start(self) -> int:
        """Read the number of the first entry that is kept."""
        name = f"{self.folder}/{_START}"
        return int(self.files.read_json(name)) if self.files.exists(name) else 0

    def watermark(self, index: Index, entry: int) -> int | None:
        """Return the watermark that holds for an entry."""
        mark, known = index.mark_of(entry), index.watermarks
        if mark is not None and mark not in known:
            known[mark] = self.files.read_json(self.watermark_file(mark))
        return None if mark is None else known[mark]

    def drop_watermarks(self, index: Index, entry: int) -> None:
        """Remove the watermarks before the one that holds for an entry."""
        for mark in index.marks[: max(bisect_right(index.marks, entry) - 1, 0)]:
            self.files.remove(self.watermark_file(mark))
            index.marks.remove(mark)
            index.watermarks.pop(mark, None)

    def begin_at(self, index: Index, number: int) -> None:
        """Store the number of the first entry that is kept."""
        self.files.write_json(f"{self.folder}/{_START}", number)
        index.start = number

    def remove(self, chosen: Callable[[int], bool]) -> None:
        """Remove the files of the entries for whose numbers `chosen` is true."""
        for name, number in numbered_files(self.files.names(self.folder)):
            if chosen(number):
                self.files.remove(f"{self.folder}/{name}")

    def entry_file(self, number: int, first: int | None = None) -> str:
        """Return the name of an entry's document; of a merged one with the `first` of the merged entries."""
        merged = "" if first is None else f"-from-{first:012d}"
        return f"{self.folder}/{number:012d}{merged}.json"

    def watermark_file(self, number: int) -> str:
        """Return the name of the file with the watermark that holds from an entry on."""
        return f"{self.folder}/{_WATERMARK}{number:012d}"

    def _listed(self) -> Index:
        """Read the folder."""
        start = self._start()
        names = self.files.names(self.folder)
        entries, merged, replaced = array("q"), dict[int, int](), False
        for first, last in sorted(spans(names), key=lambda span: (span[0], -span[1])):
            if entries and last <= entries[-1]:
                replaced = True
                continue
            entries.append(last)
            if first < last:
                merged[last] = first
        marks = array(
            "q", [int(n.removeprefix(_WATERMARK)) for n in names if n.startswith(_WATERMARK)]
        )
        index = Index(start, entries, merged, replaced, marks, set())
        index.begun = {n for _, n in numbered_files(names) if index.holder(n) is None}
        return index


@contextmanager
def logging_damage(done: str) -> Iterator[None]:
    """Log DAMAGED_FILE instead of raising it: whoever needs the rows of the damaged entries gets the error.

    Args:
        done: what isn't done to these entries, for the log: `merged`.
    """
    try:
        yield
    except StateError as error:
        if error.condition != "DAMAGED_FILE":
            raise
        _LOG.error("old entries are not %s: %s", done, error)


def as_document(segment: Segment) -> dict[str, Any]:
    """Return a segment as an entry stores it: without what is known only when the entry is processed."""
    document = segment.as_dict()
    for name in ("watermark", "newest", "counted"):
        del document[name]
    return document
