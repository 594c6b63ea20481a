"""The list of a redo log's entries in memory, made from the names of its files."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eddyline.source.log_files import NUMBER_DIGITS
from eddyline.source.segments import LOG

MERGE_FAN_IN = 64
"""The number of entries, and then of merged ones, that `RedoLog.merge` puts together."""

_ENTRY = re.compile(r"([0-9]{12})(?:-from-([0-9]{12}))?\.json")


@dataclass(frozen=True, slots=True)
class LogSize:
    """The size of some entries.

    Attributes:
        rows: their rows, or operations, without those of files that are counted when they are read.
        bytes: the bytes of these files.
        exact: whether there are none, so that `rows` is the number of all rows.
        received_at: when the oldest entry was written (microseconds since 1970); None if that isn't known.
    """

    rows: int = 0
    bytes: int = 0
    exact: bool = True
    received_at: int | None = None

    def plus(self, other: LogSize) -> LogSize:
        """Return the size of these entries and later ones."""
        return LogSize(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.exact and other.exact,
            other.received_at if self.received_at is None else self.received_at,
        )


@dataclass(slots=True)
class Index:
    """The entries and watermarks of a log, in memory.

    Attributes:
        start: number of the first retained entry.
        entries: numbers of the entries, in order; of merged ones that of the last.
        merged: the number of the first entry that was merged, by that of the last.
        replaced: whether there are files of entries that have been merged.
        marks: numbers of the watermark files, in order.
        begun: numbers of unfinished entries, which may have files.
        watermarks: the watermarks read so far, by the number of their file.
        written: the last version of each writer of batches; None if that isn't read yet.
        sizes: of entries that no epoch has processed, as far as they are known, by number.
    """

    start: int
    entries: array[int]
    merged: dict[int, int]
    replaced: bool
    marks: array[int]
    begun: set[int]
    watermarks: dict[int, int | None] = field(default_factory=dict)
    written: dict[str, int | None] | None = None
    sizes: dict[int, LogSize] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number after that of the last entry."""
        return max(self.start, self.entries[-1] + 1) if self.entries else self.start

    def mark_of(self, entry: int) -> int | None:
        """Return the number of the watermark file that holds for an entry."""
        at = bisect_right(self.marks, entry)
        return self.marks[at - 1] if at else None

    def before(self, entry: int) -> int | None:
        """Return the number of the last entry before another one; None if there is none."""
        at = bisect_left(self.entries, entry)
        return self.entries[at - 1] if at else None

    def holder(self, entry: int) -> int | None:
        """Return the number under which an entry is stored, alone or merged; None if it doesn't exist."""
        at = bisect_left(self.entries, entry)
        if at == len(self.entries):
            return None
        number = self.entries[at]
        return number if self.merged.get(number, number) <= entry else None


def entry_size(segments: Iterable[Mapping[str, Any]]) -> LogSize:
    """Return the size of an entry, from its segments as its document has them."""
    found = LogSize()
    for one in segments:
        counted = one["kind"] == LOG or one["rows"] > 0
        size = 0 if counted else one["bytes"]
        found = found.plus(LogSize(one["rows"], size, counted, one.get("received_at")))
    return found


def mergeable(index: Index, end: int) -> list[int]:
    """Return the numbers of the oldest entries before `end` that can be merged; an empty list if none can."""
    found: list[int] = []
    level = 0
    for number in index.entries:
        if number >= end:
            break
        size = number - index.merged.get(number, number) + 1
        now = 0 if size < MERGE_FAN_IN else 1 if size < MERGE_FAN_IN**2 else 2
        if now != level:
            found, level = [], now
        if level < 2:
            found.append(number)
        if len(found) == MERGE_FAN_IN:
            return found
    return []


def numbered_files(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the names of files of entries, with the number of the entry."""
    for name in names:
        if name[:NUMBER_DIGITS].isdigit():
            yield name, int(name[:NUMBER_DIGITS])


def spans(names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the first and the last entry of each document."""
    for name in names:
        if found := _ENTRY.fullmatch(name):
            yield int(found[2] or found[1]), int(found[1])


def is_entry(name: str) -> bool:
    """Return whether a file is the document of an entry, alone or merged."""
    return _ENTRY.fullmatch(name) is not None
