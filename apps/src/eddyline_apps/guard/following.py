"""Read the new lines of log files that grow and are rotated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 1 << 19
"""Read at once; a longer line is cut here."""

FIRST_BYTES = 16 << 20
"""A log that is new to the storage is read from this many bytes before its end, when it is followed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        file: device, inode and how often the file was cut short.
        end_at: the position after the line.
    """

    file: str
    end_at: int
    value: str


class Follower:
    """Reads whole lines, each once, from files that are found again by inode.

    A file that was renamed (`access.log.1`) is read to its end before the new one is begun, also
    after a restart. One that was cut short (copytruncate) is read from its beginning.

    Args:
        paths: of the logs.
        positions: file -> how far it was read, as in the lines.
        tail: whether to skip all but the end of files that are new at the first look.
    """

    def __init__(self, paths: list[Path], positions: Mapping[str, int], *, tail: bool) -> None:
        self._paths = paths
        self._positions = dict(positions)
        self._tail = tail

    def read(self, lines_max: int) -> list[Line]:
        """Return the next lines, in the order of each file; at most about `lines_max`."""
        found: list[Line] = []
        for path in self._paths:
            for each in self._with_rotated(path):
                found += self._read_file(each, lines_max - len(found))
        self._tail = False
        return found

    def _with_rotated(self, path: Path) -> Iterator[Path]:
        """Yield what the log was renamed to, as far as it is known and has unread bytes; then the log."""
        old = []
        for other in path.parent.glob(f"{path.name}*"):
            try:
                status = other.stat()
            except OSError:
                continue
            position = self._positions.get(self._identity(status))
            if other != path and position is not None and position < status.st_size:
                old.append((status.st_mtime, other))
        yield from (other for _, other in sorted(old))
        yield path

    def _read_file(self, path: Path, lines_max: int) -> list[Line]:
        lines: list[Line] = []
        try:
            file = path.open("rb")
        except FileNotFoundError:  # between two files of a rotation
            return lines
        with file:
            status = os.fstat(file.fileno())
            name = self._identity(status)
            position = self._positions.get(name)
            if position is None:
                position = max(0, status.st_size - FIRST_BYTES) if self._tail else 0
                if position:
                    file.seek(position)
                    position += len(file.readline(BLOCK_BYTES))
            while len(lines) < lines_max:
                file.seek(position)
                block = file.read(BLOCK_BYTES)
                end = block.rfind(b"\n") + 1
                if not end and len(block) == BLOCK_BYTES:
                    end = BLOCK_BYTES
                if not end:
                    break
                for line in _lines(block[:end]):
                    position += len(line)
                    lines.append(Line(name, position, _decode(line.removesuffix(b"\n"))))
            self._positions[name] = position
        return lines

    def _identity(self, status: os.stat_result) -> str:
        """Return the name of a file; a new one if it is shorter than what was read of it."""
        stem = f"{status.st_dev:x}:{status.st_ino:x}:"
        number = 0
        while self._positions.get(f"{stem}{number}", -1) > status.st_size or (
            f"{stem}{number + 1}" in self._positions
        ):
            number += 1
        return f"{stem}{number}"


def _lines(block: bytes) -> list[bytes]:
    """Split at line feeds only, which stay."""
    parts = block.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _decode(line: bytes) -> str:
    """Decode UTF-8, or any other bytes as Latin-1."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")
