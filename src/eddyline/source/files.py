"""Streams of files: JSON or Parquet in a folder, each file read once, by the tasks of an epoch.

A file whose content can't be read isn't logged: it is set aside with the reason, and tried again when it
changes. One that the system doesn't let read now is left out, and tried again by itself.
Of a JSON file that has grown only the new lines are read; a last line without a line end is read once the
file hasn't changed for a moment.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from errno import ENOENT
from glob import glob, has_magic
from typing import Any, BinaryIO

import pyarrow as pa

from eddyline.source.base import PlannedSource
from eddyline.source.compression import is_compressed
from eddyline.source.lag import BYTES, Unread
from eddyline.source.lines import PART_BYTES, read_json
from eddyline.source.log_files import SET_ASIDE
from eddyline.source.parquet import read_parquet
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, ROWS_MAX, Segment, Wanted
from eddyline.storage.files import Files, damaged
from eddyline.storage.os_errors import input_errors

SETTLE_S = 0.2
"""For so long a file must not grow before its last line is taken without a line end."""

RETRY_S = 1.0
"""So many seconds after a file couldn't be read, the background run opens it again: it may be long."""

TAIL_BYTES = 64 << 10

_GONE = (FileNotFoundError, NotADirectoryError)

_LOG = logging.getLogger("eddyline.sources")


class FileStream(PlannedSource):
    """Files of a folder or glob, in the order of their modification times.

    The files themselves are the redo log: entries only name them. What is in an entry must not be
    changed or removed; JSON files may grow.

    Args:
        name: name of the stream.
        kind: kind of the segments: `NDJSON` or `PARQUET`.
        path: folder or glob.
        files_per_entry: maximum number of files in an entry.
        log: redo log of the stream.
        steps: whether an epoch processes one entry, rather than all that wait.
        fault: returns the reason why a file's content can't be read, empty if it can; raises OSError
            if the file can't be read now.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        path: str,
        files_per_entry: int,
        log: RedoLog,
        *,
        steps: bool = False,
        fault: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(name, log, steps=steps)
        self.kind = kind
        self.path = path
        self.files_per_entry = files_per_entry
        self._fault = fault
        self._faults: dict[str, dict[str, Any]] | None = None  # None: not read yet
        self._logged: dict[str, int] = {}  # the bytes of each file in the entries before `_next`
        self._taken = 0  # the bytes of all of them
        self._next: int | None = None
        self._tails: dict[str, tuple[int, float]] = {}  # of unfinished lines: size, and since when
        # at the last look: the reason, and when it was tried
        self._left_out: dict[str, tuple[str, float]] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """The files that couldn't be read at the last look, with the reason; they are tried again."""
        return {path: why for path, (why, _) in self._left_out.items()}

    def plan(self, first: int) -> Iterator[list[Segment]]:
        """Yield the segments of new files and of new lines, oldest file first."""
        if self._next != first:  # opened just now, or an append failed after its entry was written
            self._logged, self._taken = {}, 0
            for segment in self.log.segments(0, first):
                self._count(segment)
            self._next = first
        found = self._found()
        for start in range(0, len(found), self.files_per_entry):
            chosen = found[start : start + self.files_per_entry]
            segments = [one for path, end in chosen for one in self._segments(path, end)]
            yield segments
            for segment in segments:
                self._count(segment)
            self._next += 1

    def pull(self) -> None:
        """Log all available input, also last lines without a line end, once their file hasn't changed for a moment."""
        self._left_out = {path: (why, -math.inf) for path, (why, _) in self._left_out.items()}
        super().pull()
        if self._tails:
            time.sleep(SETTLE_S)
            super().pull()

    def follow(self, interval_s: float) -> None:
        """Log the complete lines and files; check the rest again after the interval."""
        super().pull()

    def unread(self) -> Unread | None:
        """Return the bytes of new files and of new lines, without those of files that can't be read."""
        if self._next is None:
            return None
        aside = {*(self._faults or {}), *self._left_out}
        grown = [
            status.st_size - self._logged.get(path, 0)
            for path, status in self._files({})
            if path not in aside
        ]
        return Unread(sum(size for size in grown if size > 0), BYTES, self._taken)

    def _count(self, segment: Segment) -> None:
        before = self._logged.get(segment.file, 0)
        end = max(segment.start + segment.bytes, before)
        self._logged[segment.file] = end
        self._taken += end - before

    def _found(self) -> list[tuple[str, int]]:
        """Return the files with bytes that are in no entry yet, and the end of what to read of each."""
        found = []
        failed = dict[str, tuple[str, float]]()
        for path, status in self._files(failed):
            before = self._logged.get(path)
            if before is None or before != status.st_size:
                why, tried = self._left_out.get(path, ("", -math.inf))
                if time.monotonic() - tried < RETRY_S:
                    failed[path] = why, tried
                else:
                    found.append((status.st_mtime_ns, path, status.st_size))
        readable = self._readable(found, failed)
        ends = []
        for path, size in readable:
            try:
                end = self._whole_lines(path, size)
            except _GONE:  # it was moved away in this moment
                continue
            except OSError as error:
                failed[path] = _why(error)
                continue
            if end is not None:
                ends.append((path, end))
        self._tails = {path: tail for path, tail in self._tails.items() if path not in failed}
        for path in failed.keys() - self._left_out.keys():
            _LOG.warning("stream %s: %s can't be read now: %s", self.name, path, failed[path][0])
        self._left_out = failed
        return ends

    def _whole_lines(self, path: str, size: int) -> int | None:
        """Return the end of what can be read of a file: its last line end, or its size if it has stopped growing.

        None if there is nothing to read yet. Raises OSError if the file can't be read now.
        """
        before = self._logged.get(path)
        if self.kind == PARQUET or is_compressed(path):
            return size if before is None else None
        with open(path, "rb") as stream:
            end = _last_line_end(stream, before or 0, size)
        if end < size:
            now = time.monotonic()
            seen, since = self._tails.get(path, (-1, now))
            if seen == size and now - since >= SETTLE_S:
                end = size
            elif seen != size:
                self._tails[path] = size, now
        if end == size:
            self._tails.pop(path, None)
        return end if end > (before or 0) else None

    def _files(self, failed: dict[str, tuple[str, float]]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files of the folder, or those that a glob matches, also as a folder of files.

        Files and folders of which the system doesn't tell that are added to `failed`.
        """
        roots = [self.path] if os.path.isdir(self.path) else glob(self.path)
        if not (roots or has_magic(self.path) or self.path in self._logged):
            failed[self.path] = _why(FileNotFoundError(ENOENT, os.strerror(ENOENT)))
        for root in roots:
            try:
                paths = (
                    [os.path.join(root, name) for name in os.listdir(root)]
                    if os.path.isdir(root)
                    else [root]
                )
            except _GONE:
                continue
            except OSError as error:
                failed[root] = _why(error)
                continue
            for path in paths:
                if os.path.basename(path).startswith((".", "_")):
                    continue
                try:
                    status = os.stat(path)
                except _GONE:  # it was moved away in this moment
                    continue
                except OSError as error:
                    failed[path] = _why(error)
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield path, status

    def _readable(
        self, found: list[tuple[int, str, int]], failed: dict[str, tuple[str, float]]
    ) -> list[tuple[str, int]]:
        """Return the files whose content can be read, and their sizes, oldest first; log and store new faults.

        Files that can't be read now are added to `failed`.
        """
        if self._fault is None:
            return [(path, size) for _, path, size in sorted(found)]
        name = f"{self.log.folder}/{SET_ASIDE}"
        if self._faults is None:
            known = self.log.files.exists(name)
            self._faults = self.log.files.read_json(name) if known else {}
        bad, readable = {}, []
        for modified, path, size in sorted(found):
            old = self._faults.get(path)
            if old is not None and (old["size"], old["modified"]) == (size, modified):
                bad[path] = old
                continue
            try:
                fault = self._changed(path, size) or self._fault(path)
            except _GONE:  # it was moved away in this moment
                continue
            except OSError as error:
                failed[path] = _why(error)
                continue
            if fault:
                bad[path] = {"size": size, "modified": modified, "fault": fault}
                _LOG.warning("stream %s: file %s is set aside: %s", self.name, path, fault)
            else:
                readable.append((path, size))
        self._tails = {path: tail for path, tail in self._tails.items() if path not in bad}
        if bad != self._faults:
            self.log.files.write_json(name, bad)
            self._faults = bad
        return readable

    def _changed(self, path: str, size: int) -> str:
        """Return the reason why the new bytes of a known file can't be read; empty if they can."""
        before = self._logged.get(path)
        if before is None:
            return ""
        if self.kind == PARQUET or is_compressed(path):
            return f"it had {before:,} bytes when it was read, and has {size:,} now"
        if size < before:
            return f"it has shrunk from {before:,} bytes, of which rows are in use, to {size:,}"
        with open(path, "rb") as stream:
            stream.seek(max(before - 1, 0))
            border = stream.read(2)
        whole = not before or b"\n" in border
        return (
            "" if whole else "it went on in the middle of a line that had been read as the last one"
        )

    def _segments(self, path: str, end: int) -> Iterator[Segment]:
        if self.kind == PARQUET:
            yield Segment(PARQUET, path, 0, 0, 0, end)
            return
        first = self._logged.get(path, 0)
        for start in range(first, max(end, 1), PART_BYTES):
            yield Segment(NDJSON, path, 0, start, 0, min(PART_BYTES, end - start))


def _why(error: OSError) -> tuple[str, float]:
    """Return the reason why a file can't be read now, and the time of the try."""
    why = str(error) if error.errno is None else os.strerror(error.errno)
    return why, time.monotonic()


def _last_line_end(stream: BinaryIO, first: int, size: int) -> int:
    """Return the position after the last line end within a part of a file; `first` if there is none."""
    end = size
    while end > first:
        start = max(first, end - TAIL_BYTES)
        stream.seek(start)
        at = stream.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return first


def read_json_part(
    _files: Files, segment: Segment, wanted: Wanted
) -> Iterator[tuple[pa.Table, int]]:
    """Read the lines of a JSON file that begin in a segment, as they were when it was logged."""
    check_size(segment)
    for table in read_json(segment.file, wanted.schema, segment.start, segment.bytes):
        yield table, table.num_rows


def read_parquet_file(
    _files: Files, segment: Segment, wanted: Wanted
) -> Iterator[tuple[pa.Table, int]]:
    """Read a Parquet file, or some of its rows."""
    check_size(replace(segment, start=0))
    first, last = segment.start, segment.start + segment.rows
    for table in read_parquet(segment.file, wanted.schema, ROWS_MAX):
        if not segment.rows:
            yield table, table.num_rows
        elif (count := min(last, table.num_rows) - max(first, 0)) > 0:
            yield table.slice(max(first, 0), count), count
        first, last = first - table.num_rows, last - table.num_rows
        if segment.rows and last <= 0:
            break


def check_size(segment: Segment) -> None:
    """Raise StateError if a file isn't as it was logged, or gone; StorageError if it can't be read now.

    A JSON file may have grown, one that is read as a whole may not.
    """
    with input_errors(segment.file):
        try:
            size = os.stat(segment.file).st_size
        except _GONE:
            size = -1
    end = segment.start + segment.bytes
    whole = is_compressed(segment.file) and segment.bytes != PART_BYTES
    if segment.kind == PARQUET:
        whole = not segment.rows  # else it is a part, and the length about that of the part
    if size < end or (whole and size != end):
        raise damaged(
            segment.file,
            "it was changed or removed after the stream had seen it",
            "restore it from a copy: a stream's files are its redo log",
        )
