"""Counts of the records of a data queue by where they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of records; `received = done + dead + retry + in_flight` always holds.

    Attributes:
        received: records that were read from eden.
        done: records that were processed successfully, and dead letters that were dropped.
        dead: records that are dead letters.
        retry: failed records that wait to be read again.
        in_flight: records of batches that aren't committed.
    """

    received: int
    done: int
    dead: int
    retry: int
    in_flight: int
