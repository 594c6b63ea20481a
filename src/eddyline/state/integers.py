"""Sums of 64-bit integers that may leave the range: contributions in two words, high * 2^32 + low."""

from __future__ import annotations

import numpy as np

WORD_BITS = 32
_LOW = np.int64((1 << WORD_BITS) - 1)
_SAFE = 2.0**63 * (1 - 2.0**-20)


def from_words(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return high * 2^32 + low modulo 2^64."""
    total: np.ndarray = (high << WORD_BITS) + low
    return total


def may_overflow(old: np.ndarray, high: np.ndarray, low: np.ndarray) -> bool:
    """Return whether a sum of one old value and any of the contributions may leave the range.

    This takes one pass; if it returns False no sum does.
    """
    largest = np.abs(old.astype(np.float64)).max(initial=0.0)
    added = np.abs(high.astype(np.float64)).sum() * 2.0**WORD_BITS
    return bool(largest + added + np.abs(low.astype(np.float64)).sum() >= _SAFE)


def overflows(old: np.ndarray, high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return for each sum old + high * 2^32 + low whether it is beyond 64 bits."""
    carry = ((old & _LOW) + (low & _LOW)) >> WORD_BITS
    top = (old >> WORD_BITS) + high + (low >> WORD_BITS) + carry
    beyond: np.ndarray = (top < -(1 << 31)) | (top >= 1 << 31)
    return beyond
