"""The column `_received_at` of a stream: when the redo log received the entry that holds a row.

No source provides its values. The time is that of the entry, so all views see the same time, also when
they read the entry again.
"""

from __future__ import annotations

from collections.abc import Sequence

RECEIVED_AT = "_received_at"


def is_received(name: str) -> bool:
    """Return whether a column has the reserved name; letter case doesn't matter, as in Spark."""
    return name.lower() == RECEIVED_AT


def given_places(names: Sequence[str]) -> list[int]:
    """Return the places of the columns that the source provides.

    Example:
        >>> given_places(["id", "_received_at", "name"])
        [0, 2]
    """
    return [place for place, name in enumerate(names) if not is_received(name)]
