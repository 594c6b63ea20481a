"""Read the new lines of logs, a part at a time, as `USING tail` finds and reads them."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from eddyline.errors import DataError
from eddyline.source.compression import is_compressed, open_file
from eddyline.source.growing import BEGINNING_BYTES, GrowingFiles, Known, digest, pieces
from eddyline_apps.webstats.log_formats import BEFORE_LINES

BLOCK_BYTES = 1 << 19
"""Read at once."""

FIRST_BYTES = 16 << 20
"""A log that is new to the storage is read from this many bytes before its end, when it is followed."""

_LOG = logging.getLogger("eddyline.guard")


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, and without `BEFORE_LINES`.

    Attributes:
        file: id of the file.
        end_at: the position after the line.
    """

    file: str
    end_at: int
    value: str


class LogReader:
    """Reads whole lines, each once, of logs that grow and are rotated.

    Args:
        paths: of the logs; the lines of the first come first.
        known: by id the files that were read, each up to its offset.
        tail: whether to skip all but the end of files that are new at the first look.

    Attributes:
        known: the same after the last `read`.
    """

    def __init__(self, paths: Sequence[Path], known: dict[str, Known], *, tail: bool) -> None:
        self._paths = [str(path.absolute()) for path in paths]
        self._files = GrowingFiles([escape(path) for path in self._paths])
        self._tail = tail
        self._unread = set[str]()
        self.known = dict(known)

    def read(self, lines_max: int) -> list[Line]:
        """Return the next lines; at most about `lines_max`."""
        names, known = list(self.known), list(self.known.values())
        _, changed = self._files.found(known)
        names += [uuid.uuid4().hex[:12] for _ in known[len(names) :]]
        lines: list[Line] = []
        for at, path in sorted(changed, key=lambda one: self._place(known[one[0]])):
            try:
                if self._tail and not known[at].offset:
                    known[at] = _near_the_end(known[at], path)
                if len(lines) < lines_max:
                    self._read_file(known, at, path, names[at], lines, lines_max)
            except FileNotFoundError:  # it was moved in this moment; the next look finds it
                continue
            except (DataError, OSError) as error:
                if isinstance(error, OSError) and not is_compressed(path):
                    raise
                if path not in self._unread:
                    _LOG.warning("%s can't be read: %s", path, error)
                    self._unread.add(path)
        self._tail = False
        # others may be copies, half written
        self.known = {name: one for name, one in zip(names, known, strict=True) if one.offset}
        return lines

    def _read_file(
        self, known: list[Known], at: int, path: str, name: str, lines: list[Line], lines_max: int
    ) -> None:
        position = known[at].offset
        for state, text in pieces(known[at], path, BLOCK_BYTES):
            for line in text.split(b"\n")[: -1 if text.endswith(b"\n") else None] if text else ():
                position += len(line) + 1
                value = line.removesuffix(b"\r").decode("utf-8", "replace").lstrip(BEFORE_LINES)
                lines.append(Line(name, min(position, state.offset), value))
            known[at] = state
            # a compressed file is read to its end: the way to its middle leads through its beginning
            if len(lines) >= lines_max and not is_compressed(path):
                return

    def _place(self, one: Known) -> int:
        return self._paths.index(one.path) if one.path in self._paths else len(self._paths)


def _near_the_end(one: Known, path: str) -> Known:
    """Return a new file as if it was read up to a line not far from its end."""
    start = os.path.getsize(path) - FIRST_BYTES
    if start <= 0 or is_compressed(path):
        return one
    with open_file(path) as file:
        beginning = file.read(BEGINNING_BYTES)
        file.seek(start)
        start += len(file.readline())
    return replace(one, offset=start, length=len(beginning), beginning=digest(beginning))
