"""The protocol of sources: what feeds a stream."""

from __future__ import annotations

from typing import Protocol


class Source(Protocol):
    """Feeds one stream: puts what comes in into the stream's redo log."""

    @property
    def name(self) -> str:
        """Name of the stream, for errors."""

    def pull(self) -> None:
        """Take in all that is available now."""

    def follow(self, interval_s: float) -> None:
        """Take in what arrives, in the background or at each call."""

    def stop(self) -> None:
        """Stop taking in."""
