"""Exponential backoff: the pauses between retries."""

from __future__ import annotations

FIRST_S, LONGEST_S = 0.25, 30.0
"""Seconds before the second try, and at most, where the caller doesn't say."""

_DOUBLINGS_MAX = 30


def back_off(failures: int, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> float:
    """Return the seconds until the next try: doubled each time, up to a limit.

    Args:
        failures: number of tries that have failed, one after the other; from 1 on.

    Example:
        >>> [back_off(failures) for failures in (1, 2, 5, 5_000)]
        [0.25, 0.5, 4.0, 30.0]
    """
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest_s)
