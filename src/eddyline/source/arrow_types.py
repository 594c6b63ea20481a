"""Questions about Arrow's types."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def holds(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a condition is true of a type, or of one within it.

    Example:
        >>> holds(pa.list_(pa.struct([("a", pa.int64())])), pa.types.is_struct)
        True
    """
    return is_one(kind) or any(
        holds(kind.field(place).type, is_one) for place in range(kind.num_fields)
    )
