"""The words in which changes travel between the layers: column names and operations."""

from __future__ import annotations

HASH = "h"  # 64-bit hash of the key, an index only
BUCKET = "bucket"  # which bucket of the state a row belongs to
WEIGHT = "w"  # signed count of a row: +n append, -n delete
SEQUENCE = "seq"  # order of the operations on a table
OPERATION = "op"

APPEND = "append"
DELETE = "delete"


def quoted(name: str) -> str:
    """An exact name as SQL writes it, dots and backticks included."""
    return f"`{name.replace('`', '``')}`"
