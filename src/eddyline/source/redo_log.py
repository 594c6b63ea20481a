"""The redo log: the input of each source in numbered entries, durable before it is processed."""

from __future__ import annotations

import re
import threading
import time
import uuid
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import OPERATION
from eddyline.errors import StateError
from eddyline.source.segments import LOG, Segment, verify_segment
from eddyline.storage.files import Files, Summing

SEQUENCE_SHIFT = 32  # an entry's operations are numbered from entry << 32 on
NUMBER_DIGITS = 12  # the number of an entry begins the names of its files
START = "start"
MARK = "watermark-"
BAD = ["payload", "error"]  # columns of records that become dead letters
_ENTRY = re.compile(rf"[0-9]{{{NUMBER_DIGITS}}}\.json")
LOGGED = "file string, rows long, crc long, dead boolean"


@dataclass(slots=True)
class _Index:
    """The entries and watermarks of a log, in memory.

    Attributes:
        start: number of the first retained entry.
        entries: numbers of the entries, in order.
        marks: numbers of the watermark files, in order.
        begun: numbers of unfinished entries, which may have files.
        watermarks: the watermarks read so far, by the number of their file.
    """

    start: int
    entries: array[int]
    marks: array[int]
    begun: set[int]
    watermarks: dict[int, int | None] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number after that of the last entry."""
        return self.entries[-1] + 1 if self.entries else self.start

    def mark_of(self, entry: int) -> int | None:
        """Return the number of the watermark file that holds for an entry."""
        at = bisect_right(self.marks, entry)
        return self.marks[at - 1] if at else None


class RedoLog:
    """The redo log of one source. An entry is a JSON document that names segments.

    An entry appears as a whole. The caller numbers entries: a table consecutively, a stream of Spark by
    the number of the micro-batch, so that a batch that Spark repeats is recognised.

    Only one process writes. It caches the list of entries, and reads the folder again only after a
    failed write.

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
        self.folder = f"logs/{source}"
        self._index: _Index | None = None
        self._lock = threading.RLock()  # Spark's batches and epochs write from several threads
        files.make_folder(self.folder)

    def start(self) -> int:
        """Return the number of the first retained entry."""
        return self._known().start

    def end(self) -> int:
        """Return the number after that of the last entry; `start()` for an empty log."""
        return self._known().end

    def has(self, number: int) -> bool:
        """Return whether an entry of that number exists, or did before it was forgotten."""
        return self.files.exists(self._entry(number)) or number < self.start()

    def append(self, number: int, segments: Iterable[Segment], *, new: bool = False) -> None:
        """Write an entry, with the time; it is durable when this returns.

        Args:
            new: never replace an entry.

        Raises:
            StateError: FENCED, another engine writes to the storage.
        """
        numbered = []
        sequence, now = number << SEQUENCE_SHIFT, self.clock()
        for segment in segments:
            numbered.append({**segment.as_dict(), "sequence": sequence, "received_at": now})
            for name in ("watermark", "newest", "counted"):  # known when the entry is processed
                del numbered[-1][name]
            sequence += segment.rows
        with self._changing() as index, self.files.committing():
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

    def append_tables(self, tables: Iterable[pa.Table]) -> None:
        """Write tables (`c0..`, and `op` for operations) and the next entry, which names them."""
        number = self.end()
        self.clear(number)
        segments = [write_rows(self.files, _new_file(self.folder, number), t) for t in tables]
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
        found = []
        for number in index.entries[bisect_left(index.entries, first) :]:
            if number >= end:
                break
            watermark = self._watermark(index, number)
            segments = self.files.read_json(self._entry(number))
            found += [Segment(**segment, watermark=watermark) for segment in segments]
        return found

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
                    self._begin_at(index, end)
                    self._remove(lambda number: number < end)
                    del index.entries[: bisect_left(index.entries, end)]

    def tidy(self) -> None:
        """Remove the files of forgotten and unfinished entries; call it before the first write."""
        with self._lock:
            self._index = None
            self.files.remove_unfinished(self.folder)
            index = self._listed()
            entries = set(index.entries)
            self._remove(lambda number: number < index.start or number not in entries)

    def _known(self, end: int = 0) -> _Index:
        """Return the index; read the folder again if there is none, or it ends before `end`."""
        with self._lock:
            if self._index is not None and end <= self._index.end:
                return self._index
            return self._listed()

    @contextmanager
    def _changing(self) -> Iterator[_Index]:
        """Yield the index for a change on disk; discard it if the change fails."""
        with self._lock:
            index, self._index = self._known(), None
            yield index
            self._index = index

    def _listed(self) -> _Index:
        begin = f"{self.folder}/{START}"
        start = int(self.files.read_json(begin)) if self.files.exists(begin) else 0
        names = self.files.names(self.folder)
        numbered = [(int(n[:NUMBER_DIGITS]), n) for n in names if n[:NUMBER_DIGITS].isdigit()]
        entries = array("q", [number for number, name in numbered if name.endswith(".json")])
        marks = array("q", [int(n.removeprefix(MARK)) for n in names if n.startswith(MARK)])
        begun = {number for number, _ in numbered}.difference(entries)
        return _Index(start, entries, marks, begun)

    def _remove(self, gone: Callable[[int], bool]) -> None:
        """Remove the files of the entries for whose numbers `gone` is true."""
        for name in self.files.names(self.folder):
            number = name[:NUMBER_DIGITS]
            if number.isdigit() and gone(int(number)):
                self.files.remove(f"{self.folder}/{name}")

    def _begin_at(self, index: _Index, number: int) -> None:
        self.files.write_json(f"{self.folder}/{START}", number)
        index.start = number

    def _watermark(self, index: _Index, entry: int) -> int | None:
        """Return the watermark that holds for an entry."""
        mark, known = index.mark_of(entry), index.watermarks
        if mark is not None and mark not in known:
            known[mark] = self.files.read_json(self._mark(mark))
        return None if mark is None else known[mark]

    def _mark(self, number: int) -> str:
        return f"{self.folder}/{MARK}{number:012d}"

    def _entry(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"


def last_received(files: Files, source: str) -> int | None:
    """Return when the last retained entry of a source came (microseconds since 1970), if known.

    Only reads, so that it can be used beside an engine.
    """
    folder = f"logs/{source}"
    entries = [name for name in files.names(folder) if _ENTRY.fullmatch(name)]
    if not entries:
        return None
    segments = files.read_json(f"{folder}/{max(entries)}")
    return max((s.get("received_at") for s in segments if s.get("received_at")), default=None)


def _new_file(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}-{uuid.uuid4().hex[:8]}.arrow"


def as_operations(rows: pa.Table, operation: str) -> pa.Table:
    """Return rows as operations of the redo log: `c0.., op`."""
    kinds = pa.array([operation] * rows.num_rows, pa.string())
    plain = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
    return plain.append_column(OPERATION, kinds)


def write_rows(files: Files, name: str, table: pa.Table) -> Segment:
    """Write rows as a file of the log, and return its segment."""
    crc = 0

    def fill(stream: BinaryIO) -> None:
        nonlocal crc
        summing = Summing(stream)
        with pa.ipc.new_file(pa.PythonFile(summing, mode="w"), table.schema) as writer:
            writer.write_table(table)
        crc = summing.crc

    files.write(name, fill)
    return Segment(LOG, name, table.num_rows, crc=crc)


@dataclass(frozen=True, slots=True)
class LogTask:
    """Write the rows of a micro-batch into files of the redo log, one or two a task.

    Input: `c0..`, for a stream of operations `op`, and for one with dead letters `payload` and
    `error`, which are null for good records. Output: a row for each file, `LOGGED`.
    """

    files: Files
    folder: str
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files; yield for each its name, row count and checksum, and whether records are bad."""
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        rows, dead = pa.Table.from_batches(received), None
        if "error" in rows.column_names:
            bad = pc.is_valid(rows["error"])
            rows, dead = rows.filter(pc.invert(bad)), rows.filter(bad).select(BAD)
            rows = rows.drop_columns(BAD)
        for table in (rows, dead):
            if table is not None and table.num_rows:
                segment = write_rows(self.files, _new_file(self.folder, self.number), table)
                written = [segment.file, segment.rows, segment.crc, table is dead]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([value]) for value in written], names=["file", "rows", "crc", "dead"]
                )
