"""The column `_received_at` of a stream: when the redo log received the entry that holds a row.

No source gives its values: the time is that of the entry, so it is the same however often, and
by whichever view, the entry is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

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


def with_received(
    rows: pa.Table, at: int, count: int, field: pa.Field, time: int | None
) -> pa.Table:
    """Insert the column of a time at place `at` of `count` rows.

    Args:
        field: name and type of the column.
        time: microseconds since 1970; None for null.
    """
    column = pa.repeat(pa.scalar(time, field.type), count)
    columns, names = list(rows.columns), list(rows.column_names)
    columns.insert(at, pa.chunked_array([column]))
    names.insert(at, field.name)
    return pa.table(columns, names=names)
