"""Follows text files that grow and are rotated: finds each under its current name, and its new lines.

A file is identified by its inode and a digest of its beginning, so that a copy of a removed file is continued,
not read again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape, glob
from typing import IO

from eddyline.errors import DataError
from eddyline.source.compression import is_compressed, open_file

BEGINNING_BYTES = 1024
"""So many bytes of a file, or what has been read of a shorter one, tell whether it is the same file."""

SETTLE_S = 10.0
"""For so long a file must not have changed before its last line is taken without a line end."""

PIECE_BYTES = 8 << 20


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


class GrowingFiles:
    """Finds known files under their current names, and new files.

    Args:
        paths: paths of files, or globs.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._gone: frozenset[Known] = frozenset()
        self._unlike: set[tuple[object, ...]] = set()

    def found(self, known: list[Known]) -> tuple[set[int], list[tuple[int, str]]]:
        """Find the known files under their current names, and add new ones to `known`.

        Returns:
            The indices in `known` of the existing files; and the indices and paths of those
            that may have new lines: first partly read files, then new ones, oldest first.
        """
        paths = dict[int, str]()
        states = _regular(path for one in self._paths for path in glob(one))
        named = set(states)
        self._match(known, paths, states, named)
        gone = frozenset(one for at, one in enumerate(known) if at not in paths)
        if gone != self._gone:
            self._gone, self._unlike = gone, set()
        if gone:  # they may have been renamed to names that the stream's path doesn't match
            siblings = _regular(_siblings(one.path for one in known) - named)
            self._match(known, paths, siblings, named)
            states.update(siblings)
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
                continue  # it is still being written: its original can be found only later
            at = None if look in self._unlike else _original(known, paths, path, beginning)
            if at is None and path in named and _is_being_compressed(path, beginning):
                continue  # its original still exists, and is read
            if at is None and path in named:
                paths[len(known)] = path
                new = Known(path, status.st_dev, status.st_ino, beginning=digest(beginning))
                known.append(new)
            elif at is None:
                self._unlike.add(look)
            elif at not in paths and (is_compressed(path) or status.st_size >= known[at].offset):
                paths[at] = path
                known[at] = replace(known[at], device=status.st_dev, inode=status.st_ino, size=-1)
            # else the original is there, or the copy isn't whole: it has nothing new


def _regular(paths: Iterable[str]) -> dict[str, os.stat_result]:
    """Return the regular files among some paths."""
    found = {}
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found[path] = status
    return found


def _siblings(paths: Iterable[str]) -> set[str]:
    """Return all files in the same folders whose names share the part before the first dot: rotated names."""
    beginnings = {(os.path.dirname(path), os.path.basename(path).split(".")[0]) for path in paths}
    return {
        path
        for folder, beginning in beginnings
        for path in glob(os.path.join(escape(folder), f"{escape(beginning)}*"))
    }


def _is_same(one: Known, path: str, status: os.stat_result) -> bool:
    """Return whether a file with a known inode still has the same beginning, so that it isn't a new file."""
    if (one.size, one.modified) == (status.st_size, status.st_mtime_ns):
        return True
    if status.st_size < one.offset and not is_compressed(path):
        return False
    return digest(_beginning(path)[: one.length]) == one.beginning


def _original(
    known: Sequence[Known], paths: Mapping[int, str], path: str, beginning: bytes
) -> int | None:
    """Return the index of the known file of which a file is a copy; None if it is a new file.

    A copy has the same beginning. If that is less than a kilobyte, the names must also begin
    alike, since files may begin with the same few lines.
    """
    digests: dict[int, str] = {}
    for at in reversed(range(len(known))):
        one = known[at]
        own = paths.get(at, one.path)
        renamed = path.startswith((f"{own}.", f"{own}-", f"{one.path}.", f"{one.path}-"))
        if not 0 < one.length <= len(beginning) or not (renamed or one.length == BEGINNING_BYTES):
            continue
        if one.length not in digests:
            digests[one.length] = digest(beginning[: one.length])
        if digests[one.length] == one.beginning:
            return at
    return None


def _is_being_compressed(path: str, beginning: bytes) -> bool:
    """Return whether a compressed file's uncompressed original still exists beside it."""
    if not is_compressed(path):
        return False
    original = _beginning(os.path.splitext(path)[0])
    copy = beginning[: len(original)]
    return bool(copy) and original.startswith(copy)


def _beginning(path: str) -> bytes:
    """Return the first bytes of a file; empty if it can't be read."""
    try:
        with open_file(path) as stream:
            return stream.read(BEGINNING_BYTES)
    except (OSError, DataError):
        return b""


def digest(beginning: bytes) -> str:
    """Return the digest of a file's beginning."""
    return hashlib.sha256(beginning).hexdigest()


def pieces(one: Known, path: str, size: int = PIECE_BYTES) -> Iterator[tuple[Known, bytes]]:
    """Yield the new complete lines of a file, in pieces, each with the state of the file after it.

    Raises:
        FileNotFoundError: the path holds another file by now, even with the same inode; or the beginning of a new
            file has changed since it was compared with the known ones, as that of a copy being written does.
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
        if digest(compared) != one.beginning:
            raise FileNotFoundError(path)
        _skip(stream, one.offset - len(beginning))
        rest, at_end = beginning[one.offset :], False
        while not at_end:
            block = stream.read(size)
            at_end = not block
            rest += block
            if len(beginning) < BEGINNING_BYTES:  # it has grown since
                beginning = (beginning + block)[:BEGINNING_BYTES]
            end = len(rest) if at_end and settled else rest.rfind(b"\n") + 1
            text, rest = rest[:end], rest[end:]
            offset = one.offset + len(text)
            length = min(offset, BEGINNING_BYTES)
            one = replace(one, offset=offset, length=length, beginning=digest(beginning[:length]))
            if at_end:
                one = replace(one, size=status.st_size, modified=status.st_mtime_ns)
            yield one, text


def _skip(stream: IO[bytes], size: int) -> None:
    """Skip some bytes; none for a negative number."""
    if size > 0 and stream.seekable():
        stream.seek(size, os.SEEK_CUR)
        return
    while size > 0 and (block := stream.read(min(size, PIECE_BYTES))):
        size -= len(block)
