"""Streams that follow text files line by line: `USING tail`.

A log file grows, and is rotated: renamed, copied and emptied, compressed, removed. The lines of each
file are copied into the redo log once, in order, whatever its name is by then. A file is known by its
inode and by how it begins, so that a copy of one that has gone is read on, not read again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from glob import escape, glob
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.errors import DataError, StateError
from eddyline.source.base import CopiedSource
from eddyline.source.compression import is_compressed, open_file
from eddyline.source.log_files import SET_ASIDE, new_file, write_rows
from eddyline.source.redo_log import RedoLog

VALUE, LINE, FILE = "value", "line", "file"
COLUMNS = pa.schema([(VALUE, pa.string()), (LINE, pa.int64()), (FILE, pa.string())])
"""The text of a line without its end, its number in the stream from 0 on, and the path of its file."""

BEGINNING_BYTES = 1024
"""So many bytes of a file, or what has been read of a shorter one, tell whether it is the same file."""

SETTLE_S = 10.0
"""For so long a file must not have changed before its last line is taken without a line end."""

PIECE_BYTES = 8 << 20
ENTRY_BYTES = 32 << 20
FOLLOWED_ENTRIES = 4
"""At most so many entries are written at a call of `follow`, so that an epoch can take them."""

GONE_MAX = 1000
"""So many files that are no longer there are remembered, the last ones."""

_LOG = logging.getLogger("eddyline.sources")


@dataclass(frozen=True, slots=True)
class Known:
    """A file that has been read, up to `offset`.

    Attributes:
        path: where it was when it was first seen; the value of the column `file`.
        device, inode: the file that holds it now.
        offset: the bytes that have been read; of a compressed file, of its content.
        length: the bytes that `beginning` covers; 0 before anything has been read.
        beginning: SHA-256 of the first `length` bytes, of the content; before anything has been read, of those
            that were compared with known files.
        size, modified: of the file when it was read last; a compressed file isn't opened again
            before they change.
    """

    path: str
    device: int
    inode: int
    offset: int = 0
    length: int = 0
    beginning: str = ""
    size: int = -1
    modified: int = -1


@dataclass(slots=True)
class TailStream(CopiedSource):
    """The lines of files that grow, copied into the redo log.

    The positions of all files are written before each entry, under its number; they hold once the
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
    _next: int = field(default=-1, init=False)  # the entry that `_known` and `_lines` stand before
    _faults: dict[str, dict[str, Any]] | None = field(default=None, init=False)
    _gone: frozenset[Known] = field(default=frozenset(), init=False)
    _unlike: set[tuple[object, ...]] = field(default_factory=set, init=False)

    def pull(self) -> None:
        """Copy all lines that are there now."""
        self._copy(None)

    def follow(self, interval_s: float) -> None:
        """Copy new lines, about `FOLLOWED_ENTRIES` entries at a call."""
        self._copy(FOLLOWED_ENTRIES)

    def stop(self) -> None:
        """Do nothing: files are open only while they are read."""

    def _copy(self, entries: int | None) -> None:
        """Write entries with new lines.

        Args:
            entries: how many at most; None for all. A compressed file is read to its end, since
                the way to its middle leads through its beginning.
        """
        number = self.log.end()
        if self._known is None or self._next != number:
            self._open(number)
        known = [
            one for one in self._known or [] if one.offset
        ]  # others may be copies, half written
        faults = dict[str, dict[str, Any]]()
        there, changed = self._found(known)
        tables, size, line = list[pa.Table](), 0, self._lines
        for at, path in changed:
            try:
                if self._stands_aside(path):
                    faults[path] = (self._faults or {})[path]
                    continue
                for state, text in _pieces(known[at], path):
                    known[at] = state
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
        self._tell(faults)
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

    def _found(self, known: list[Known]) -> tuple[set[int], list[tuple[int, str]]]:
        """Find the known files wherever they are now, and add new ones to `known`.

        Returns:
            The indices in `known` of the files that are there; the indices and paths of those
            that may have new lines: first what has been read in part, then new files, oldest first.
        """
        paths = dict[int, str]()
        states = _regular(glob(self.path))
        named = set(states)
        self._match(known, paths, states, named)
        gone = frozenset(one for at, one in enumerate(known) if at not in paths)
        if gone != self._gone:
            self._gone, self._unlike = gone, set()
        if gone:  # perhaps under a name that the stream's path doesn't cover
            beside = _regular(_beside(one.path for one in known) - named)
            self._match(known, paths, beside, named)
            states.update(beside)
        changed = []
        for at, path in paths.items():
            one, status = known[at], states[path]
            seen = (one.size, one.modified) == (status.st_size, status.st_mtime_ns)
            if not seen or (one.offset < status.st_size and not is_compressed(path)):
                changed.append((not one.offset, status.st_mtime_ns, path, at))
        return set(paths), [(at, path) for _, _, path, at in sorted(changed)]

    def _match(
        self,
        known: list[Known],
        paths: dict[int, str],
        states: dict[str, os.stat_result],
        named: Container[str],
    ) -> None:
        """Put the paths of known files into `paths`, and new ones of `named` into `known` as well."""
        by_inode = {(one.device, one.inode): at for at, one in enumerate(known)}
        unknown = {}
        for path, status in states.items():
            at = by_inode.get((status.st_dev, status.st_ino))
            if at is not None and at not in paths and _is_same(known[at], path, status):
                paths[at] = path
            else:
                unknown[path] = status
        for path, status in unknown.items():
            look = (path, status.st_ino, status.st_size, status.st_mtime_ns)
            beginning = _beginning(path)
            if is_compressed(path) and not beginning and time.time() - status.st_mtime < SETTLE_S:
                continue  # it is being written: what it is a copy of shows later
            at = None if look in self._unlike else _original(known, paths, path, beginning)
            if at is None and path in named and _is_being_compressed(path, beginning):
                continue  # its original is there, and is read
            if at is None and path in named:
                paths[len(known)] = path
                new = Known(path, status.st_dev, status.st_ino, beginning=_digest(beginning))
                known.append(new)
            elif at is None:
                self._unlike.add(look)
            elif at not in paths and (is_compressed(path) or status.st_size >= known[at].offset):
                paths[at] = path
                known[at] = replace(known[at], device=status.st_dev, inode=status.st_ino, size=-1)
            # else the original is there, or the copy isn't whole: it has nothing new

    def _stands_aside(self, path: str) -> bool:
        """Whether a file couldn't be read, and hasn't changed since."""
        fault = (self._faults or {}).get(path)
        if fault is None:
            return False
        status = os.stat(path)
        return (fault["size"], fault["modified"]) == (status.st_size, status.st_mtime_ns)

    def _tell(self, faults: dict[str, dict[str, Any]]) -> None:
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


def _regular(paths: Iterable[str]) -> dict[str, os.stat_result]:
    """Return the regular files among some paths."""
    found = {}
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found[path] = status
    return found


def _beside(paths: Iterable[str]) -> set[str]:
    """Return the paths of files whose names begin as those of some files do up to the first dot."""
    beginnings = {(os.path.dirname(path), os.path.basename(path).split(".")[0]) for path in paths}
    return {
        path
        for folder, beginning in beginnings
        for path in glob(os.path.join(escape(folder), f"{escape(beginning)}*"))
    }


def _is_same(one: Known, path: str, status: os.stat_result) -> bool:
    """Return whether the file at a path, whose inode is the known one, still begins as it did."""
    if (one.size, one.modified) == (status.st_size, status.st_mtime_ns):
        return True
    if status.st_size < one.offset and not is_compressed(path):
        return False
    return _digest(_beginning(path)[: one.length]) == one.beginning


def _original(
    known: Sequence[Known], paths: Mapping[int, str], path: str, beginning: bytes
) -> int | None:
    """Return the index of the known file that a file is a copy of; None if it is a new one.

    A copy begins as its original. If that isn't a whole kilobyte, its name must also begin
    as that of the original, since files may begin with the same few lines.
    """
    digests: dict[int, str] = {}
    for at in reversed(range(len(known))):
        one = known[at]
        own = paths.get(at, one.path)
        renamed = path.startswith((f"{own}.", f"{own}-", f"{one.path}.", f"{one.path}-"))
        if not 0 < one.length <= len(beginning) or not (renamed or one.length == BEGINNING_BYTES):
            continue
        if one.length not in digests:
            digests[one.length] = _digest(beginning[: one.length])
        if digests[one.length] == one.beginning:
            return at
    return None


def _is_being_compressed(path: str, beginning: bytes) -> bool:
    """Return whether a compressed file lies beside a file of its name that begins as it does."""
    if not is_compressed(path):
        return False
    original = _beginning(os.path.splitext(path)[0])
    copy = beginning[: len(original)]
    return bool(copy) and original.startswith(copy)


def _beginning(path: str) -> bytes:
    """Return how a file begins; nothing if it can't be read."""
    try:
        with open_file(path) as stream:
            return stream.read(BEGINNING_BYTES)
    except (OSError, DataError):
        return b""


def _digest(beginning: bytes) -> str:
    return hashlib.sha256(beginning).hexdigest()


def _pieces(one: Known, path: str) -> Iterator[tuple[Known, bytes]]:
    """Yield the new whole lines of a file, in pieces, each with the state of the file after it.

    Raises:
        FileNotFoundError: the path holds another file by now, even if under the same inode, or a new one that
            begins otherwise than when it was compared with the known ones: a copy that has just been written.
        DataError: it can't be decompressed.
    """
    with open_file(path) as stream:
        status = os.stat(path if is_compressed(path) else stream.fileno())
        if (status.st_dev, status.st_ino) != (one.device, one.inode):
            raise FileNotFoundError(path)
        settled = is_compressed(path) or time.time() - status.st_mtime >= SETTLE_S
        beginning = stream.read(BEGINNING_BYTES)
        # inodes are used again at once: a file may have been rotated, compressed and replaced since
        compared = beginning[: one.length] if one.offset else beginning
        if _digest(compared) != one.beginning:
            raise FileNotFoundError(path)
        _skip(stream, one.offset - len(beginning))
        rest, at_end = beginning[one.offset :], False
        while not at_end:
            block = stream.read(PIECE_BYTES)
            at_end = not block
            rest += block
            if len(beginning) < BEGINNING_BYTES:  # it has grown since
                beginning = (beginning + block)[:BEGINNING_BYTES]
            end = len(rest) if at_end and settled else rest.rfind(b"\n") + 1
            text, rest = rest[:end], rest[end:]
            offset = one.offset + len(text)
            length = min(offset, BEGINNING_BYTES)
            one = replace(one, offset=offset, length=length, beginning=_digest(beginning[:length]))
            if at_end:
                one = replace(one, size=status.st_size, modified=status.st_mtime_ns)
            yield one, text


def _skip(stream: IO[bytes], size: int) -> None:
    """Go on by some bytes; a negative number is none."""
    if size > 0 and stream.seekable():
        stream.seek(size, os.SEEK_CUR)
        return
    while size > 0 and (block := stream.read(min(size, PIECE_BYTES))):
        size -= len(block)


def _lines_of(text: bytes) -> pl.Series:
    """Split text into lines, without their ends (LF or CRLF)."""
    whole = text.removesuffix(b"\n").decode("utf-8", "replace")
    return pl.Series([whole]).str.split("\n").explode().str.strip_suffix("\r")


def _fault(path: str, error: Exception) -> dict[str, Any]:
    """Return why a file can't be read, with what shows that it has changed since."""
    fault = {"size": -1, "modified": -1, "fault": str(error.__cause__ or error)}
    with suppress(OSError):
        status = os.stat(path)
        fault.update(size=status.st_size, modified=status.st_mtime_ns)
    return fault
