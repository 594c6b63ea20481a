"""The column `_received_at` of a stream: when the redo log received the entry that holds a row.

No source gives its values: the time is that of the entry, so it is the same however often, and
by whichever view, the entry is read.
"""

from __future__ import annotations

from collections.abc import Sequence

RECEIVED_AT = "_received_at"


def is_received(name: str) -> bool:
    """Return whether a column has the reserved name; letter case doesn't matter, as in Spark."""
    return name.lower() == RECEIVED_AT


def given_places(names: Sequence[str]) -> list[int]:
    """Return the places of the columns whose values the source gives.

    Example:
        >>> given_places(["id", "_received_at", "name"])
        [0, 2]
    """
    return [place for place, name in enumerate(names) if not is_received(name)]
