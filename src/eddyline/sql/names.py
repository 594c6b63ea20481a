"""Names as SQL writes them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name in backticks, so that SQL takes it literally, dots and backticks included."""
    return f"`{name.replace('`', '``')}`"
