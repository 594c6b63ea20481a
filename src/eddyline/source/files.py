"""Streams of files: JSON or Parquet in a folder, each file read once, by the tasks of an epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import glob

import pyarrow as pa

from eddyline.source.base import PlannedSource
from eddyline.source.lines import read_json
from eddyline.source.parquet import read_parquet
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, ROWS_MAX, Segment, Wanted
from eddyline.storage.files import Files, damaged

PART_BYTES = 32 << 20


class FileStream(PlannedSource):
    """Files of a folder or glob, in the order of their modification times.

    The files themselves are the redo log: entries only name them. They must not be changed or
    removed once they are in an entry.

    Args:
        name: name of the stream.
        kind: kind of the segments: `NDJSON` or `PARQUET`.
        path: folder or glob.
        files_per_entry: maximum number of files in an entry.
        log: redo log of the stream.
        steps: whether an epoch processes one entry, rather than all that wait.
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
    ) -> None:
        super().__init__(name, log, steps=steps)
        self.kind = kind
        self.path = path
        self.files_per_entry = files_per_entry
        self._logged: set[str] = set()  # files that are in the entries before `_next`
        self._next: int | None = None

    def plan(self, first: int) -> Iterator[list[Segment]]:
        """Yield the segments of new files, oldest file first."""
        if self._next != first:  # opened just now, or an append failed after its entry was written
            self._logged = {segment.file for segment in self.log.segments(0, first)}
            self._next = first
        found = self._found()
        for start in range(0, len(found), self.files_per_entry):
            chosen = found[start : start + self.files_per_entry]
            yield [segment for path, size in chosen for segment in self._segments(path, size)]
            self._logged.update(path for path, _ in chosen)
            self._next += 1

    def _found(self) -> list[tuple[str, int]]:
        """Paths and sizes of the files that are in no entry."""
        found = []
        pattern = os.path.join(self.path, "*") if os.path.isdir(self.path) else self.path
        for path in glob(pattern):
            hidden = os.path.basename(path).startswith((".", "_"))
            if path not in self._logged and not hidden and os.path.isfile(path):
                status = os.stat(path)
                found.append((status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, path, size in sorted(found)]

    def _segments(self, path: str, size: int) -> Iterator[Segment]:
        if self.kind == PARQUET:
            yield Segment(PARQUET, path, 0, 0, 0, size)
            return
        for start in range(0, max(size, 1), PART_BYTES):
            yield Segment(NDJSON, path, 0, start, 0, min(PART_BYTES, size - start))


def read_json_part(
    _files: Files, segment: Segment, wanted: Wanted
) -> Iterator[tuple[pa.Table, int]]:
    """Read the lines of a JSON file that begin in a segment."""
    _check_size(segment)
    for table in read_json(segment.file, wanted.schema, segment.start, segment.bytes):
        yield table, table.num_rows


def read_parquet_file(
    _files: Files, segment: Segment, wanted: Wanted
) -> Iterator[tuple[pa.Table, int]]:
    """Read a Parquet file."""
    _check_size(segment)
    for table in read_parquet(segment.file, wanted.schema, ROWS_MAX):
        yield table, table.num_rows


def _check_size(segment: Segment) -> None:
    size = os.path.getsize(segment.file) if os.path.exists(segment.file) else -1
    if size < segment.start + segment.bytes:
        raise damaged(
            segment.file,
            "it was changed or removed after the stream had seen it",
            "restore it from a copy: a stream's files are its redo log",
        )
