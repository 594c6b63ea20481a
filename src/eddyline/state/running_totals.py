"""Running totals and extremes over segments of arrays, in numpy.

A segment is a stretch of neighbouring values, at least one, over which totals and extremes run. Segments follow one another
without gaps, so the place where each begins tells them apart.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from eddyline.state.integers import WORD_BITS, may_overflow, overflows

_WORDS = 4  # of a decimal, the lowest first
_LOW = np.int64((1 << WORD_BITS) - 1)


def lengths_of(start: np.ndarray, rows: int) -> np.ndarray:
    """Return the lengths of segments, given where they begin."""
    return np.diff(start, append=rows)


def totals(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the running sum of integers within each segment, modulo 2^64.

    Example:
        >>> totals(np.array([1, 2, 3, 4]), np.array([0, 2])).tolist()
        [1, 3, 3, 7]
    """
    running: np.ndarray = np.cumsum(values, dtype=np.int64)
    before = running[start] - values[start]
    running -= np.repeat(before, lengths_of(start, len(values)))
    return running


def totals_overflow(values: np.ndarray, start: np.ndarray) -> np.ndarray | None:
    """Return a mask of the `totals` that overflow 64 bits; None if none does."""
    high, low, none = values >> WORD_BITS, values & _LOW, np.zeros(1, np.int64)
    if not may_overflow(none, high, low):
        return None
    return overflows(none, totals(high, start), totals(low, start))


def totals_of_doubles(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the running sum of doubles within each segment.

    Values are added in order, as Spark does, because another order would round differently. Long segments
    are summed one by one, short ones together, one value of each at a time. So the number of numpy calls is at
    most about twice the square root of the number of values.
    """
    running = values.copy()
    length = lengths_of(start, len(values))
    long = length > math.isqrt(len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # to infinity, and from there to NaN
        for first, end in zip(start[long], (start + length)[long], strict=True):
            np.cumsum(values[first:end], out=running[first:end])
        at, left = start[~long] + 1, length[~long] - 1
        while (more := left > 0).any():
            at, left = at[more], left[more]
            running[at] += running[at - 1]
            at, left = at + 1, left - 1
    return running


def totals_of_decimals(values: pa.Array, start: np.ndarray) -> pa.Array:
    """Return the running sum of decimals within each segment; nulls count as zero.

    Sums keep the type of the values, whose digits must be enough for them.
    """
    rows = len(values)
    held = np.frombuffer(values.buffers()[1], np.uint32).reshape(-1, _WORDS)
    words = held[values.offset : values.offset + rows].T.astype(np.int64)
    words[-1] = words[-1].astype(np.int32)  # the highest has the sign
    if values.null_count:
        words[:, values.is_null().to_numpy(zero_copy_only=False)] = 0
    running = [totals(word, start) for word in words]
    for place in range(_WORDS - 1):
        running[place + 1] += running[place] >> WORD_BITS
    stored = np.stack(running, axis=1).astype(np.uint32)  # modulo 2^32
    return pa.Array.from_buffers(values.type, rows, [None, pa.py_buffer(stored.tobytes())])


def places_of_largest(ranks: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return for each place the place of the first largest rank of its segment so far; ranks are 0 or more.

    Example:
        >>> places_of_largest(np.array([2, 5, 5, 1, 0]), np.array([0, 3])).tolist()
        [0, 1, 1, 3, 3]
    """
    segment = np.repeat(np.arange(len(start)), lengths_of(start, len(ranks)))
    # later segments have larger numbers, so the largest so far never comes from an earlier one
    largest = np.maximum.accumulate(segment * (ranks.max(initial=0) + 1) + ranks)
    attained = np.diff(largest, prepend=-1) > 0
    found: np.ndarray = np.maximum.accumulate(np.where(attained, np.arange(len(ranks)), 0))
    return found
