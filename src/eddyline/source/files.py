"""Streams of files: JSON or Parquet in a folder, each file read once, by the tasks of an epoch.

A file that can't be read isn't logged: it is set aside with the reason, and tried again when it changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from glob import escape as glob_escape
from glob import glob
from typing import Any

import pyarrow as pa

from eddyline.source.base import PlannedSource
from eddyline.source.lines import read_json
from eddyline.source.parquet import read_parquet
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, ROWS_MAX, Segment, Wanted
from eddyline.storage.files import Files, damaged

PART_BYTES = 32 << 20
SET_ASIDE = "set-aside.json"
"""File in the folder of the log: by path, the size, modification time and fault of unreadable files."""

_LOG = logging.getLogger("eddyline.sources")


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
        fault: returns why a file can't be read; an empty text if it can.
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
        self._aside: dict[str, dict[str, Any]] | None = None  # None: not read yet
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
        for path in self._paths():
            if path not in self._logged:
                status = os.stat(path)
                found.append((status.st_mtime_ns, path, status.st_size))
        bad = self._faulty(found)
        return [(path, size) for _, path, size in sorted(found) if path not in bad]

    def _paths(self) -> Iterator[str]:
        """Yield the files of the folder, or those that a glob matches, also as a folder of files."""
        roots = [self.path] if os.path.isdir(self.path) else glob(self.path)
        for root in roots:
            for path in (
                glob(os.path.join(glob_escape(root), "*")) if os.path.isdir(root) else [root]
            ):
                if not os.path.basename(path).startswith((".", "_")) and os.path.isfile(path):
                    yield path

    def _faulty(self, found: list[tuple[int, str, int]]) -> dict[str, dict[str, Any]]:
        """Return the files that can't be read; log and store new faults."""
        if self._fault is None:
            return {}
        name = f"{self.log.folder}/{SET_ASIDE}"
        if self._aside is None:
            known = self.log.files.exists(name)
            self._aside = self.log.files.read_json(name) if known else {}
        bad = {}
        for modified, path, size in found:
            old = self._aside.get(path)
            if old is not None and (old["size"], old["modified"]) == (size, modified):
                bad[path] = old
            elif fault := self._fault(path):
                bad[path] = {"size": size, "modified": modified, "fault": fault}
                _LOG.warning("stream %s: file %s is set aside: %s", self.name, path, fault)
        if bad != self._aside:
            self.log.files.write_json(name, bad)
            self._aside = bad
        return bad

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
