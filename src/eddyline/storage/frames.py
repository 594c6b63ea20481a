"""A log of rows: append-only segments of checksummed frames, with many producers.

A frame holds rows, as bytes that only the caller understands, and is there as a whole or not at
all: what a write that broke off has left at the end of the log is not read, and the next append
cuts it. Rows are numbered from 0 on, and frames never change.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from eddyline.storage.files import Files, damaged

MARK = b"EDL1"
HEADER = struct.Struct(
    "<4sIIIIQq"
)  # mark, CRC of what follows, CRC and bytes of the body, rows, ...
CHECKED = 8  # where in the header what its CRC covers begins
SUFFIX = ".frames"
LOCK = "appending"
SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that were appended together.

    Attributes:
        first: number of the first row.
        rows: how many there are.
        time_ms: when they were appended, in milliseconds since 1970; never falls within a log.
        body: the bytes.
    """

    first: int
    rows: int
    time_ms: int
    body: memoryview


@dataclass(slots=True)
class _Segment:
    """A file of frames: what of it was read and found sound."""

    name: str
    first: int
    end: int
    size: int = 0
    rows: array[int] = field(default_factory=lambda: array("q"))  # first row of each frame
    places: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))


class FrameLog:
    """The log in one folder. Threads and processes may append side by side.

    Example:
        >>> import tempfile
        >>> log = FrameLog(Files(tempfile.mkdtemp()), "eden")
        >>> log.append(b"two rows", rows=2, time_ms=5), log.append(b"one", rows=1, time_ms=6)
        (0, 2)
        >>> log.sync()
        >>> [(frame.first, bytes(frame.body)) for frame in log.frames(1, 3)]
        [(0, b'two rows'), (2, b'one')]
    """

    def __init__(self, files: Files, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.files = files
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._index = threading.RLock()
        self._syncing = threading.Lock()
        files.make_folder(folder)
        self._segments: list[_Segment] = []
        self._synced = 0
        with self._appending():
            self._load(self._names(), torn=True)

    @property
    def start(self) -> int:
        """The first row that is kept."""
        return self._segments[0].first

    def end(self) -> int:
        """One more than the number of the last row, what other processes have appended included."""
        with self._index:
            self._refresh(torn=False)
            return self._segments[-1].end

    def append(self, body: bytes, rows: int, time_ms: int, at: int | None = None) -> int:
        """Append a frame; the number of its first row. Durable after `sync`.

        Args:
            body: the bytes.
            rows: how many rows these are.
            time_ms: now.
            at: the row behind which the log goes on; what is there now was never committed and
                is cut. None: at the end.
        """
        with self._appending():
            self._refresh(torn=True)
            if at is not None:
                self._cut(at)
            segment = self._segments[-1]
            if segment.size >= self.segment_bytes:
                self.files.sync(segment.name)
                segment = self._segment(segment.end)
            first, place = segment.end, segment.size
            last = self._last_time()
            time_ms = max(time_ms, last)
            rest = (zlib.crc32(body), len(body), rows, first, time_ms)
            checked = HEADER.pack(MARK, 0, *rest)[CHECKED:]
            self.files.append(
                segment.name, HEADER.pack(MARK, zlib.crc32(checked), *rest) + body, place
            )
            if not place:
                self.files.sync(self.folder)
            if segment is not self._segments[-1]:
                self._follow(segment)
            self._found(segment, first, rows, time_ms, place, len(body))
            return first

    def sync(self) -> None:
        """Flush all rows up to `end` to the disk; of calls side by side one does it for all."""
        wanted = self._segments[-1].end
        with self._syncing:
            if self._synced >= wanted:
                return
            with self._index:
                name, end = self._segments[-1].name, self._segments[-1].end
            self.files.sync(name)
            self._synced = end

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """The frames that hold the rows from `start` up to but not including `end`.

        Raises:
            StateError: a frame is damaged or no longer kept.
        """
        with self._index:
            segments = [s for s in self._segments if s.end > start and s.first < end]
        if start < end and (not segments or segments[0].first > start):
            raise damaged(self.folder, f"row {start} is not there")
        for segment in segments:
            low = max(bisect_right(segment.rows, start) - 1, 0)
            high = bisect_left(segment.rows, end)
            stop = segment.places[high] if high < len(segment.places) else segment.size
            yield from self._read(segment, segment.places[low], stop)

    def end_before(self, time_ms: int) -> int:
        """The first row that was appended after a moment; `end` if there is none."""
        with self._index:
            for segment in reversed(self._segments):
                place = bisect_right(segment.times, time_ms)
                if place or segment is self._segments[0]:
                    return segment.rows[place] if place < len(segment.rows) else segment.end
            return self._segments[-1].end

    def cut(self, end: int) -> None:
        """Forget the rows from `end` on, which were never committed.

        Raises:
            StateError: rows before `end` are missing.
        """
        with self._appending():
            self._cut(end)

    def forget(self, start: int) -> None:
        """Remove segments whose rows are all before `start`; the last one stays."""
        with self._index:
            gone = [segment for segment in self._segments[:-1] if segment.end <= start]
            for segment in gone:
                self.files.remove(segment.name)
                self._segments.remove(segment)

    @contextmanager
    def _appending(self) -> Iterator[None]:
        """Only one appends at a time, over all threads and processes."""
        with self._index:
            handle = os.open(
                self.files.path(f"{self.folder}/{LOCK}"), os.O_RDWR | os.O_CREAT, 0o644
            )
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _segment(self, first: int) -> _Segment:
        return _Segment(f"{self.folder}/{first:020d}{SUFFIX}", first, first)

    def _last_time(self) -> int:
        times = [segment.times[-1] for segment in self._segments[-2:] if segment.times]
        return times[-1] if times else 0

    def _names(self) -> list[str]:
        return [name for name in self.files.names(self.folder) if name.endswith(SUFFIX)]

    def _load(self, names: list[str], *, torn: bool) -> None:
        """Take in all that is there; `torn` as for `_scan`."""
        self._segments = [self._segment(int(name.removesuffix(SUFFIX))) for name in names]
        self._segments = self._segments or [self._segment(0)]
        self._synced = self._segments[-1].first  # a segment is flushed before the next one is begun
        for segment in self._segments:
            self._scan(segment, torn=torn and segment is self._segments[-1])
        # a reader, maybe another process, removes old ones meanwhile, the oldest first
        while len(self._segments) > 1 and not self.files.exists(self._segments[0].name):
            del self._segments[0]
        for segment, follower in pairwise(self._segments):
            if segment.end != follower.first:
                raise damaged(segment.name, f"it ends before row {follower.first}")

    def _refresh(self, *, torn: bool) -> None:
        """Take in what other processes have appended."""
        while True:
            last = self._segments[-1]
            if not self.files.exists(last.name) and (names := self._names()):
                self._load(names, torn=torn)  # others went on, and a reader has removed it
                last = self._segments[-1]
            self._scan(last, torn=torn)
            follower = self._segment(last.end)
            if last.end == last.first or not self.files.exists(follower.name):
                return
            self._follow(follower)

    def _follow(self, segment: _Segment) -> None:
        """A new segment is there; a reader, maybe another process, may have removed old ones."""
        kept = [held for held in self._segments[:-1] if self.files.exists(held.name)]
        self._segments = [*kept, self._segments[-1], segment]

    def _scan(self, segment: _Segment, *, torn: bool) -> None:
        """Read and check new frames; `torn`: this is the end of the log, and no one writes now."""
        try:
            if os.path.getsize(self.files.path(segment.name)) <= segment.size:
                return
            with open(self.files.path(segment.name), "rb") as stream:
                stream.seek(segment.size)
                data = memoryview(stream.read())
        except FileNotFoundError:
            return
        start, place = segment.size, 0
        while (frame := _frame_at(data, place)) is not None and frame.first == segment.end:
            self._found(
                segment, frame.first, frame.rows, frame.time_ms, start + place, len(frame.body)
            )
            place += HEADER.size + len(frame.body)
        if place < len(data) and segment is not self._segments[-1]:
            raise damaged(segment.name, f"the frame at byte {segment.size} is not what was written")
        if torn and place < len(data) and _goes_on(data, place):
            raise damaged(
                segment.name,
                f"the frame at byte {segment.size} is not what was written, and others follow it",
            )

    def _found(
        self, segment: _Segment, first: int, rows: int, time_ms: int, place: int, length: int
    ) -> None:
        segment.rows.append(first)
        segment.places.append(place)
        segment.times.append(time_ms)
        segment.end = first + rows
        segment.size = place + HEADER.size + length

    def _read(self, segment: _Segment, start: int, stop: int) -> Iterator[Frame]:
        try:
            with open(self.files.path(segment.name), "rb") as stream:
                stream.seek(start)
                data = memoryview(stream.read(stop - start))
        except OSError as error:
            raise damaged(segment.name, str(error)) from error
        place = 0
        while place < stop - start:
            frame = _frame_at(data, place)
            if frame is None:
                raise damaged(
                    segment.name, f"the frame at byte {start + place} is not what was written"
                )
            yield frame
            place += HEADER.size + len(frame.body)

    def _cut(self, end: int) -> None:
        if end == self._segments[-1].end:
            return
        while len(self._segments) > 1 and self._segments[-1].first >= end:
            self.files.remove(self._segments.pop().name)
        last = self._segments[-1]
        keep = bisect_left(last.rows, end)
        if last.end < end or (keep < len(last.rows) and last.rows[keep] != end):
            raise damaged(last.name, f"it has no end at row {end}, where the state has it")
        if keep < len(last.rows):
            last.size, last.end = last.places[keep], end
            for column in (last.rows, last.places, last.times):
                del column[keep:]
        self._synced = min(self._synced, last.first)
        self.files.append(last.name, b"", last.size)


def _frame_at(data: memoryview, place: int) -> Frame | None:
    """The frame that begins there; None if it isn't whole and sound."""
    body = place + HEADER.size
    if body > len(data):
        return None
    mark, head, crc, length, rows, first, time_ms = HEADER.unpack_from(data, place)
    if mark != MARK or head != zlib.crc32(data[place + CHECKED : body]):
        return None
    if body + length > len(data) or zlib.crc32(data[body : body + length]) != crc:
        return None
    return Frame(first, rows, time_ms, data[body : body + length])


def _goes_on(data: memoryview, place: int) -> bool:
    """Whether sound frames follow one that isn't: then it is damaged, not a write broken off."""
    raw = bytes(data[place:])
    found = raw.find(MARK, 1)
    while found >= 0:
        if _frame_at(memoryview(raw), found) is not None:
            return True
        found = raw.find(MARK, found + 1)
    return False
