"""Counts of the records of a data queue by where they are."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from eddyline.errors import QueueError


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of records; `received = done + dead + retry + in_flight + missed` always holds.

    Attributes:
        received: records of eden that were read, or are missed.
        done: records that were processed successfully, and dead letters that were dropped.
        dead: records that are dead letters.
        retry: failed records that wait to be read again.
        in_flight: records of batches that aren't committed.
        missed: records that a broker deleted before they were read. New records that were put
            together may count as one, as their number went with them.
    """

    received: int
    done: int
    dead: int
    retry: int
    in_flight: int
    missed: int = 0

    @property
    def balanced(self) -> bool:
        """Whether the equation holds, and no count is negative."""
        received, *parts = astuple(self)
        return min(parts) >= 0 and bool(received == sum(parts))

    def check(self) -> None:
        """Raise QueueError unless the account is balanced."""
        if not self.balanced:
            raise QueueError(
                f"the account of the queue doesn't add up: {self}",
                condition="ACCOUNT_WRONG",
                hint="nothing was committed; drop the pipeline and create it again",
            )
