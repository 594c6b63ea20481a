"""Streams that follow text files line by line: `USING tail`.

A log file grows, and is rotated: renamed, copied and emptied, compressed, removed. The lines of each
file are copied into the redo log once, in order, whatever its name is by then; see `growing.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.errors import DataError, StateError
from eddyline.source.base import CopiedSource
from eddyline.source.compression import is_compressed
from eddyline.source.growing import GrowingFiles, Known, pieces
from eddyline.source.lag import BYTES, Unread
from eddyline.source.log_files import SET_ASIDE, new_file, write_rows
from eddyline.source.redo_log import RedoLog
from eddyline.storage.os_errors import is_of_system

VALUE, LINE, FILE = "value", "line", "file"
COLUMNS = pa.schema([(VALUE, pa.string()), (LINE, pa.int64()), (FILE, pa.string())])
"""The text of a line without its end, its number in the stream from 0 on, and the path of its file."""

ENTRY_BYTES = 32 << 20
FOLLOWED_ENTRIES = 4
"""At most so many entries are written at a call of `follow`, so that an epoch can take them."""

GONE_MAX = 1000
"""So many files that are no longer there are remembered, the last ones."""

_LOG = logging.getLogger("eddyline.sources")


@dataclass(slots=True)
class TailStream(CopiedSource):
    """The lines of files that grow, copied into the redo log.

    The positions of all files are written before each entry, under its number; they become valid once the
    entry is in the log.

    Attributes:
        name: name of the stream.
        path: path of a file, or a glob.
        columns: names of the columns that the log keeps, by place.
        log: redo log of the stream.
        folder: folder of the positions in the storage.
    """

    name: str
    path: str
    columns: Sequence[tuple[int, str]]
    log: RedoLog
    folder: str
    _known: list[Known] | None = field(default=None, init=False)  # None: not read yet
    _lines: int = field(default=0, init=False)
    # the number of the entry that follows `_known` and `_lines`
    _next: int = field(default=-1, init=False)
    _faults: dict[str, dict[str, Any]] | None = field(default=None, init=False)
    # the files at the last look, and the indices and paths of those that had new lines
    _looked: tuple[list[Known], list[tuple[int, str]]] | None = field(default=None, init=False)
    _taken: int = field(default=0, init=False)  # the bytes that were read
    _growing: GrowingFiles = field(init=False)

    def __post_init__(self) -> None:
        self._growing = GrowingFiles((self.path,))

    def pull(self) -> None:
        """Copy all lines that are there now."""
        self._copy(None)

    def follow(self, interval_s: float) -> None:
        """Copy new lines, about `FOLLOWED_ENTRIES` entries at a call."""
        self._copy(FOLLOWED_ENTRIES)

    def stop(self) -> None:
        """Do nothing: files are open only while they are read."""

    def unread(self) -> Unread | None:
        """Return the bytes of new lines, without those of files that can't be read."""
        if self._looked is None:
            return None
        known, changed = self._looked
        amount = 0
        for at, path in changed:
            one = known[at]
            with suppress(FileNotFoundError):  # it was moved: the next look finds it
                status = os.stat(path)
                seen = (one.size, one.modified) == (status.st_size, status.st_mtime_ns)
                if path not in (self._faults or {}) and not (is_compressed(path) and seen):
                    amount += max(status.st_size - one.offset, 0)
        return Unread(amount, BYTES, self._taken)

    def _copy(self, entries: int | None) -> None:
        """Write entries with new lines.

        Args:
            entries: how many at most; None for all. A compressed file is read to its end, since
                the way to its middle leads through its beginning.
        """
        number = self.log.end()
        if self._known is None or self._next != number:
            self._open(number)
        # other files may be incomplete copies
        known = [one for one in self._known or [] if one.offset]
        faults = dict[str, dict[str, Any]]()
        there, changed = self._growing.found(known)
        self._looked = known, changed
        tables, size, line = list[pa.Table](), 0, self._lines
        for at, path in changed:
            try:
                if self._is_set_aside(path):
                    faults[path] = (self._faults or {})[path]
                    continue
                for state, text in pieces(known[at], path):
                    known[at] = state
                    self._taken += len(text)
                    if text:
                        lines = _lines_of(text)
                        tables.append(self._rows(lines, line, state.path))
                        size, line = size + len(text), line + len(lines)
                    if size >= ENTRY_BYTES:
                        self._write(tables, known, there, line)
                        tables, size = [], 0
                        entries = None if entries is None else entries - 1
                        if entries == 0 and not is_compressed(path):
                            return
            except (
                FileNotFoundError
            ):  # it was moved or written in this moment; the next look finds it
                continue
            except (OSError, DataError) as error:
                faults[path] = _fault(path, error)
            if entries is not None and entries <= 0:
                break
        self._store_faults(faults)
        if tables:
            self._write(tables, known, there, line)
        self._known = known

    def _write(
        self, tables: list[pa.Table], known: list[Known], there: set[int], line: int
    ) -> None:
        """Write an entry, and before it the positions that hold after it."""
        number, files = self.log.end(), self.log.files
        self.log.clear(number)
        left_out = [at for at in range(len(known)) if at not in there][:-GONE_MAX]
        kept = [asdict(one) for at, one in enumerate(known) if at not in left_out]
        files.write_json(self._positions(number), {"lines": line, "files": kept})
        rows = pa.concat_tables(tables).combine_chunks()
        segment = write_rows(files, new_file(self.log.folder, number), rows)
        self.log.append(number, [segment], new=True)
        self._known, self._lines, self._next = list(known), line, number + 1
        files.remove(self._positions(number - 2))

    def _open(self, number: int) -> None:
        """Read the positions that hold after the last entry of the log."""
        self.log.files.make_folder(self.folder)
        self._known, self._lines, self._next = [], 0, number
        if not number:
            return
        name = self._positions(number - 1)
        if not self.log.files.exists(name):
            raise StateError(
                f"the positions of stream {self.name} are missing, but its redo log is there",
                condition="MISSING_CHECKPOINT",
                file=name,
                hint="restore the folder from a copy, or drop the stream and create it again",
            )
        document = self.log.files.read_json(name)
        self._known = [Known(**one) for one in document["files"]]
        self._lines = document["lines"]

    def _positions(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"

    def _rows(self, texts: pl.Series, first: int, path: str) -> pa.Table:
        columns = {
            VALUE: texts.to_arrow().cast(pa.string()),
            LINE: pa.array(np.arange(first, first + len(texts), dtype=np.int64)),
            FILE: pa.repeat(pa.scalar(path, pa.string()), len(texts)),
        }
        return pa.table({f"c{place}": columns[name] for place, name in self.columns})

    def _is_set_aside(self, path: str) -> bool:
        """Return whether a file is set aside: it couldn't be read, and hasn't changed since."""
        fault = (self._faults or {}).get(path)
        if fault is None:
            return False
        status = os.stat(path)
        return (fault["size"], fault["modified"]) == (status.st_size, status.st_mtime_ns)

    def _store_faults(self, faults: dict[str, dict[str, Any]]) -> None:
        """Store which files can't be read, for the status of the stream, and log new ones."""
        name = f"{self.log.folder}/{SET_ASIDE}"
        if self._faults is None:
            exists = self.log.files.exists(name)
            self._faults = self.log.files.read_json(name) if exists else {}
        for path in faults.keys() - self._faults.keys():
            _LOG.warning("stream %s: %s can't be read: %s", self.name, path, faults[path]["fault"])
        if faults != self._faults:
            self.log.files.write_json(name, faults)
            self._faults = faults


def _lines_of(text: bytes) -> pl.Series:
    """Split text into lines, without their ends (LF or CRLF)."""
    whole = text.removesuffix(b"\n").decode("utf-8", "replace")
    return pl.Series([whole]).str.split("\n").explode().str.strip_suffix("\r")


def _fault(path: str, error: Exception) -> dict[str, Any]:
    """Return the reason why a file can't be read, with its size and time, by which a change is noticed.

    They are -1, so that it is read again at the next look, if the system doesn't let it be read now.
    """
    fault = {"size": -1, "modified": -1, "fault": str(error.__cause__ or error)}
    if is_of_system(error):
        return fault
    with suppress(OSError):
        status = os.stat(path)
        fault.update(size=status.st_size, modified=status.st_mtime_ns)
    return fault
