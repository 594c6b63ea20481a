"""Count the lines of a log that the view `requests` of guard.sql can't read, so that nobody is missed in silence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from eddyline_apps.addresses import parsed_address
from eddyline_apps.guard.reading import Line
from eddyline_apps.guard.timing import times_of

PATTERN = (
    r"(?:((?:[^\s,:]++|\[[^\s,\]]*+\])(?=:\d++ )|[^\s,]++(?= \S*[.:]))(?::\d++)? )?(?i:::ffff:(?=[\d.]+ ))?"
    r'([^\s,]++) (-|[^\s,]++(?= \S++ \[)) (?>([^\r\n]*?) \[(\d\d/\w{3}/[12]\d{3}:\d\d:\d\d:\d\d [+-]\d{4})\] ")'
    r'([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)" (\d{3}) (-?\d++|-)'
    r'(?: "([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)" "([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)")?(?: (\d{1,9}(?:\.\d{1,9})?))?'
)
"""What guard.sql has: the text of a view of it holds this one."""

SHOWN_MAX = 200
"""Characters of a line that are shown."""

_LINE = re.compile(PATTERN, re.ASCII)
_ADDRESS = 2


class Unreadable:
    """Counts lines that are no requests. Empty ones don't count.

    Attributes:
        lines: how many there were.
        first: the first of them, cut.
    """

    def __init__(self) -> None:
        self.lines, self.first = 0, ""

    def observe(self, lines: Sequence[Line]) -> None:
        """Count those of some lines."""
        for line, time in zip(lines, times_of(lines), strict=True):
            if (time is not None and _is_request(line.value)) or not line.value.strip():
                continue
            self.lines += 1
            self.first = self.first or line.value[:SHOWN_MAX]

    @property
    def text(self) -> str:
        """What people are told."""
        return (
            f"{self.lines:,} lines can't be read and don't count, such as {self.first!r}: "
            "see docs/guard.md on the format of the log"
        )


def _is_request(line: str) -> bool:
    found = _LINE.fullmatch(line)
    return found is not None and _is_address(found[_ADDRESS])


@lru_cache(100_000)
def _is_address(text: str) -> bool:
    try:
        parsed_address(text)
    except ValueError:
        return False
    return "%" not in text
