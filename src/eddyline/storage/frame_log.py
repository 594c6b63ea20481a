"""An append-only log of rows: segments of checksummed frames, written by many producers.

A frame holds rows, as bytes that are opaque to the log, and is written completely or not at all:
the remains of interrupted writes at the end of the log are not read, and the next append
truncates them. Rows are numbered from 0, and frames never change.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from eddyline.errors import StorageError
from eddyline.storage.files import Files, damaged
from eddyline.storage.os_errors import storage_errors

MARK = b"EDL1"
HEADER = struct.Struct(
    "<4sIIIIQq"
)  # mark, CRC of the next fields, CRC and size of the body, row count, first row, time
CHECKED = 8  # offset in the header from which its CRC is computed
SUFFIX = ".frames"
LOCK = "appending"
DURABLE = "durable"
"""The file with the number after the last row that is known to be on the disk."""
SEGMENT_BYTES = 64 << 20

_LOG = logging.getLogger("eddyline.sources")


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that were appended together.

    Attributes:
        first: number of the first row.
        rows: number of rows.
        time_ms: when they were appended, in milliseconds since 1970; never decreases within a log.
        body: the bytes.
    """

    first: int
    rows: int
    time_ms: int
    body: memoryview


@dataclass(slots=True)
class _Segment:
    """The index of a file of frames, up to the last frame that was read and verified.

    Attributes:
        name: name of the file.
        first: number of its first row.
        end: number of the row after its last verified one.
        size: number of verified bytes.
        rows: for each frame, the number of its first row.
        offsets: for each frame, its offset in the file.
        times: for each frame, when it was appended.
    """

    name: str
    first: int
    end: int
    size: int = 0
    rows: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))


class FrameLog:
    """A log in one folder. Several threads and processes may append to it concurrently.

    Args:
        files: the files of the storage.
        folder: name of the log's folder.
        segment_bytes: size at which a new segment is begun.

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
            if not files.exists(f"{folder}/{DURABLE}"):
                if files.exists(self._segments[-1].name):
                    files.sync(self._segments[-1].name)
                # or a power cut leaves it empty or takes it away, and with it the right to cut what wasn't flushed
                with suppress(StorageError):
                    self._mark_durably(self._segments[-1].end)

    @property
    def start(self) -> int:
        """Number of the first retained row."""
        return self._segments[0].first

    def end(self) -> int:
        """Return the number after the last row, including rows appended by other processes."""
        with self._index:
            self._refresh(torn=False)
            return self._segments[-1].end

    def append(self, body: bytes, rows: int, time_ms: int, at: int | None = None) -> int:
        """Append a frame and return the number of its first row. Durable after `sync`.

        Args:
            body: the bytes.
            rows: number of rows in it.
            time_ms: the time now, in milliseconds since 1970.
            at: the number of its first row; later rows, which were never committed, are truncated.
                None to append at the end.
        """
        with self._appending():
            self._refresh(torn=True)
            if at is not None:
                self._cut(at)
            segment = self._segments[-1]
            if segment.size >= self.segment_bytes:
                self.files.sync(segment.name)
                self._mark(segment.end)
                segment = self._segment(segment.end)
            first, offset = segment.end, segment.size
            last = self._last_time()
            time_ms = max(time_ms, last)
            rest = (zlib.crc32(body), len(body), rows, first, time_ms)
            checked = HEADER.pack(MARK, 0, *rest)[CHECKED:]
            self.files.append(
                segment.name, HEADER.pack(MARK, zlib.crc32(checked), *rest) + body, offset
            )
            if not offset:
                self.files.sync(self.folder)
            if segment is not self._segments[-1]:
                self._add_segment(segment)
            self._add_frame(segment, first, rows, time_ms, offset, len(body))
            return first

    def sync(self) -> None:
        """Flush all rows to the disk; one flush serves all concurrent calls."""
        wanted = self._segments[-1].end
        with self._syncing:
            if self._synced >= wanted:
                return
            with self._index:
                name, end = self._segments[-1].name, self._segments[-1].end
            self.files.sync(name)
            self._synced = end
            self._mark(end)

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """Yield the frames that hold the rows from `start` up to but not including `end`.

        Raises:
            StateError: a frame is damaged or not retained.
        """
        with self._index:
            segments = [s for s in self._segments if s.end > start and s.first < end]
        if start < end and (not segments or segments[0].first > start):
            raise damaged(self.folder, f"row {start} is not there")
        for segment in segments:
            low = max(bisect_right(segment.rows, start) - 1, 0)
            high = bisect_left(segment.rows, end)
            stop = segment.offsets[high] if high < len(segment.offsets) else segment.size
            yield from self._read(segment, segment.offsets[low], stop)

    def end_within(self, start: int, bytes_max: int) -> int:
        """Return the number after the last row of the next frames that have so many bytes together; one frame at least.

        Args:
            start: a row of the first of these frames.
        """
        with self._index:
            segments = [one for one in self._segments if one.rows and one.end > start]
            for place, segment in enumerate(segments):
                first = max(bisect_right(segment.rows, start) - 1, 0)
                limit = segment.offsets[first] + bytes_max
                if segment.size > limit:
                    frame = bisect_right(segment.offsets, limit) - 1
                    frame = max(frame, first + (place == 0))
                    return segment.rows[frame] if frame < len(segment.rows) else segment.end
                bytes_max = limit - segment.size
            return self._segments[-1].end

    def end_before(self, time_ms: int) -> int:
        """Return the first row that was appended after `time_ms`; `end` if there is none."""
        with self._index:
            for segment in reversed(self._segments):
                frame = bisect_right(segment.times, time_ms)
                if frame or segment is self._segments[0]:
                    return segment.rows[frame] if frame < len(segment.rows) else segment.end
            return self._segments[-1].end

    def cut(self, end: int) -> None:
        """Truncate the rows from `end` on, which were never committed.

        Raises:
            StateError: rows before `end` are missing.
        """
        with self._appending():
            self._cut(end)

    def forget(self, start: int) -> None:
        """Remove segments with rows before `start` only; the last segment stays."""
        with self._index:
            obsolete = [segment for segment in self._segments[:-1] if segment.end <= start]
            for segment in obsolete:
                self.files.remove(segment.name)
                self._segments.remove(segment)

    @contextmanager
    def _appending(self) -> Iterator[None]:
        """Hold the lock for appending, which is exclusive over all threads and processes."""
        with self._index:
            name = f"{self.folder}/{LOCK}"
            with storage_errors(name):
                handle = os.open(self.files.path(name), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _mark(self, end: int) -> None:
        """Store that all rows before `end` are on the disk.

        It isn't flushed: an older number is as true, and what is damaged beyond it is only taken for an unfinished write.
        """
        with suppress(StorageError):
            self._write_mark(end)

    def _mark_durably(self, end: int) -> None:
        """Store, and flush, that no more than the rows before `end` are known to be on the disk."""
        self._write_mark(end)
        self.files.sync(f"{self.folder}/{DURABLE}")
        self.files.sync(self.folder)

    def _write_mark(self, end: int) -> None:
        text = f"{end:020d}".encode()
        self.files.overwrite(f"{self.folder}/{DURABLE}", text + _checksum(text))

    def _marked(self) -> int | None:
        """Return the number after the last row that is known to be on the disk; None if that isn't known."""
        try:
            text = Path(self.files.path(f"{self.folder}/{DURABLE}")).read_bytes()
        except OSError:
            return None
        return int(text[:20]) if text[20:] == _checksum(text[:20]) else None

    def _segment(self, first: int) -> _Segment:
        return _Segment(f"{self.folder}/{first:020d}{SUFFIX}", first, first)

    def _last_time(self) -> int:
        times = [segment.times[-1] for segment in self._segments[-2:] if segment.times]
        return times[-1] if times else 0

    def _names(self) -> list[str]:
        return [name for name in self.files.names(self.folder) if name.endswith(SUFFIX)]

    def _load(self, names: list[str], *, torn: bool) -> None:
        """Index all segments; `torn` as for `_scan`."""
        self._segments = [self._segment(int(name.removesuffix(SUFFIX))) for name in names]
        self._segments = self._segments or [self._segment(0)]
        self._synced = self._segments[-1].first  # earlier segments were flushed before it was begun
        for segment in self._segments:
            self._scan(segment, torn=torn and segment is self._segments[-1])
        # a reader, perhaps in another process, may remove old segments meanwhile, oldest first
        while len(self._segments) > 1 and not self.files.exists(self._segments[0].name):
            del self._segments[0]
        for segment, follower in pairwise(self._segments):
            if segment.end != follower.first:
                raise damaged(segment.name, f"it ends before row {follower.first}")

    def _refresh(self, *, torn: bool) -> None:
        """Index what other processes have appended."""
        while True:
            last = self._segments[-1]
            if not self.files.exists(last.name) and (names := self._names()):
                # other processes have begun new segments, and a reader has removed this one
                self._load(names, torn=torn)
                last = self._segments[-1]
            self._scan(last, torn=torn)
            follower = self._segment(last.end)
            if last.end == last.first or not self.files.exists(follower.name):
                return
            self._add_segment(follower)

    def _add_segment(self, segment: _Segment) -> None:
        """Add a new segment, and drop those that a reader, perhaps of another process, has removed."""
        kept = [held for held in self._segments[:-1] if self.files.exists(held.name)]
        self._segments = [*kept, self._segments[-1], segment]

    def _scan(self, segment: _Segment, *, torn: bool) -> None:
        """Read, verify and index the new frames of a segment.

        Args:
            segment: the segment.
            torn: whether this is the end of the log and nobody writes now, so that bytes after the
                last complete frame are the remains of interrupted writes, or damage: a power cut may leave a frame
                without one before it, but only of rows that aren't known to be on the disk.
        """
        try:
            if os.path.getsize(self.files.path(segment.name)) <= segment.size:
                return
            with open(self.files.path(segment.name), "rb") as stream:
                stream.seek(segment.size)
                data = memoryview(stream.read())
        except FileNotFoundError:
            return
        start, offset = segment.size, 0
        while (frame := _frame_at(data, offset)) is not None and frame.first == segment.end:
            self._add_frame(
                segment, frame.first, frame.rows, frame.time_ms, start + offset, len(frame.body)
            )
            offset += HEADER.size + len(frame.body)
        if offset < len(data) and segment is not self._segments[-1]:
            raise damaged(segment.name, f"the frame at byte {segment.size} is not what was written")
        if torn and offset < len(data) and _has_frame_after(data, offset):
            durable = self._marked()
            if durable is not None and durable <= segment.end:
                text = "%s: no rows are read after row %d: a frame that was never flushed is unfinished; the next append cuts %d bytes"
                _LOG.warning(text, segment.name, segment.end, len(data) - offset)
                return
            raise damaged(
                segment.name,
                f"the frame at byte {segment.size} is not what was written, and others follow it",
            )

    def _add_frame(
        self, segment: _Segment, first: int, rows: int, time_ms: int, offset: int, length: int
    ) -> None:
        """Add a verified frame at the end of a segment's index."""
        segment.rows.append(first)
        segment.offsets.append(offset)
        segment.times.append(time_ms)
        segment.end = first + rows
        segment.size = offset + HEADER.size + length

    def _read(self, segment: _Segment, start: int, stop: int) -> Iterator[Frame]:
        try:
            with open(self.files.path(segment.name), "rb") as stream:
                stream.seek(start)
                data = memoryview(stream.read(stop - start))
        except OSError as error:
            raise damaged(segment.name, str(error)) from error
        offset = 0
        while offset < stop - start:
            frame = _frame_at(data, offset)
            if frame is None:
                raise damaged(
                    segment.name, f"the frame at byte {start + offset} is not what was written"
                )
            yield frame
            offset += HEADER.size + len(frame.body)

    def _cut(self, end: int) -> None:
        count = len(self._segments)
        while count > 1 and self._segments[count - 1].first >= end:
            count -= 1
        last = self._segments[count - 1]
        keep = bisect_left(last.rows, end)
        if last.end < end or (keep < len(last.rows) and last.rows[keep] != end):
            raise damaged(last.name, f"it has no end at row {end}, where the state has it")
        # first: else, after a crash here, the next rows would count as flushed; also if the crash was then
        if (self._marked() or 0) > end:
            self._mark_durably(end)
        if end == self._segments[-1].end:
            return
        while len(self._segments) > count:
            self.files.remove(self._segments.pop().name)
        if keep < len(last.rows):
            last.size, last.end = last.offsets[keep], end
            for column in (last.rows, last.offsets, last.times):
                del column[keep:]
        self._synced = min(self._synced, last.first)
        self.files.append(last.name, b"", last.size)


def _checksum(text: bytes) -> bytes:
    return f" {zlib.crc32(text):08x}".encode()


def _frame_at(data: memoryview, offset: int) -> Frame | None:
    """Return the frame at an offset; None if it is incomplete or damaged."""
    body = offset + HEADER.size
    if body > len(data):
        return None
    mark, head, crc, length, rows, first, time_ms = HEADER.unpack_from(data, offset)
    if mark != MARK or head != zlib.crc32(data[offset + CHECKED : body]):
        return None
    if body + length > len(data) or zlib.crc32(data[body : body + length]) != crc:
        return None
    return Frame(first, rows, time_ms, data[body : body + length])


def _has_frame_after(data: memoryview, offset: int) -> bool:
    """Whether a valid frame follows an invalid one, which is then damaged rather than unfinished."""
    raw = bytes(data[offset:])
    found = raw.find(MARK, 1)
    while found >= 0:
        if _frame_at(memoryview(raw), found) is not None:
            return True
        found = raw.find(MARK, found + 1)
    return False
