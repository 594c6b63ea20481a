"""Read the new lines of logs, a part at a time, as `USING tail` finds and reads them."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
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

ROTATED = re.compile(r"(?:\.\d[\d-]*|-\d{8}[\d-]*)(?:\.gz|\.bz2|\.zst)?")
"""What rotation adds to the name of a log: a number or a date."""

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

    A log may have been rotated more than once since it was read: the files beside it that were written later than its
    newest known one are read before it. Older ones are its history from before the first start.

    Args:
        paths: of the logs; the lines of the first come first.
        known: by id the files that were read, each up to its offset. If none of a log is there any more, `modified` tells
            when it was read last.
        tail: whether to skip all but the end of logs that are new at the first look.

    Attributes:
        known: the same after the last `read`.
    """

    def __init__(self, paths: Sequence[Path], known: dict[str, Known], *, tail: bool) -> None:
        self._paths = [str(path.absolute()) for path in paths]
        self._logs = {path: place for place, path in enumerate(self._paths)}  # and rotated files
        self._files = GrowingFiles([escape(path) for path in self._paths])
        self._tail = tail
        self._newest = self._newest_known(list(known.values()))
        self._behind = bool(self._newest)
        self._unread = set[str]()
        self.known = dict(known)

    def read(self, lines_max: int) -> list[Line]:
        """Return the next lines; at most about `lines_max`."""
        names, known = list(self.known), list(self.known.values())
        if self._behind:
            self._find_missed()
        _, changed = self._files.found(known)
        names += [uuid.uuid4().hex[:12] for _ in known[len(names) :]]
        lines: list[Line] = []
        for at, path in sorted(changed, key=lambda one: self._place(known[one[0]])):
            try:
                new = self._place(known[at]) not in self._newest
                if self._tail and new and not known[at].offset:
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
        self._behind = self._behind and len(lines) >= lines_max
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
        """Return the place of the log that a file belongs to."""
        if one.path in self._logs:
            return self._logs[one.path]
        places = (place for path, place in self._logs.items() if _is_rotated(one.path, path))
        return next(places, len(self._paths))

    def _newest_known(self, known: list[Known]) -> dict[int, int]:
        """Return by the place of a log when the newest of its known files that are there was written."""
        then = dict[int, int]()
        for one in known:
            place = self._place(one)
            then[place] = max(one.modified, then.get(place, 0))
        there = dict[int, int]()
        for at, path in self._files.found([replace(one, size=-1) for one in known])[1]:
            if at < len(known):
                place = self._place(known[at])
                with suppress(FileNotFoundError):
                    there[place] = max(os.stat(path).st_mtime_ns, there.get(place, 0))
        return then | there

    def _find_missed(self) -> None:
        """Let the files be read that were rotated before they were seen."""
        for place, newest in self._newest.items():
            for path in _rotated(self._paths[place]) if place < len(self._paths) else ():
                with suppress(FileNotFoundError):
                    if os.stat(path).st_mtime_ns >= newest:
                        self._logs.setdefault(path, place)
        self._files = GrowingFiles([escape(path) for path in self._logs])


def _rotated(log: str) -> Iterator[str]:
    """Yield the paths of the rotated files beside a log."""
    folder = os.path.dirname(log)
    with suppress(FileNotFoundError):
        yield from (
            path
            for path in (os.path.join(folder, name) for name in os.listdir(folder))
            if _is_rotated(path, log)
        )


def _is_rotated(path: str, log: str) -> bool:
    """Return whether a path is that of a log with what rotation adds."""
    return path.startswith(log) and ROTATED.fullmatch(path, len(log)) is not None


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
