"""Exact sums of doubles, as digits of 32 bits.

A double is an integer of 53 bits times a power of two, so it has at most three nonzero digits.
Adding digits is adding integers: the order doesn't matter, and a retraction leaves no
error. Kulisch calls this a complete register; Neal, "Fast exact summation using small and
large superaccumulators" (2015), describes the variant with digits that are carried late.

A digit at position p counts units of 2^(32 p). A sum of up to 2^31 contributions fits into 64 bits
without a carry.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

DIGIT_BITS = 32
_LOG_BITS = 5
LOWEST, HIGHEST = -36, 36  # the positions of all finite doubles times weights, and room for a carry
_MANTISSA_BITS = 53
_MASK = np.int64((1 << DIGIT_BITS) - 1)
_HALF = np.int64(1 << (DIGIT_BITS - 1))
_PRECISE = 7  # digits that are rounded to a pair of doubles


def digits_of(
    values: np.ndarray, weights: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the digits other than zero of finite values, each multiplied by its weight.

    Yields:
        The rows, their positions, and their digits, at most 2^32 in size. A row occurs once in
        each triple, but the same row and position may occur in two of them.
    """
    mantissa, exponent = np.frexp(values)
    high, low = two_product(mantissa, weights)
    odd = np.flatnonzero(low)
    for rows, part in ((np.arange(len(values)), high), (odd, low[odd])):
        if not len(rows):
            continue
        part_mantissa, more = np.frexp(part)
        whole = np.abs(np.ldexp(part_mantissa, _MANTISSA_BITS)).astype(np.int64)
        sign = np.sign(part).astype(np.int64)
        places = exponent[rows] + more - _MANTISSA_BITS
        position, shift = places >> _LOG_BITS, places & (DIGIT_BITS - 1)
        lower = (whole & _MASK) << shift
        upper = ((whole >> DIGIT_BITS) << shift) + (lower >> DIGIT_BITS)
        for above, digit in enumerate((lower & _MASK, upper & _MASK, upper >> DIGIT_BITS)):
            kept = np.flatnonzero(digit)
            if len(kept):
                yield rows[kept], position[kept] + above, (digit * sign)[kept]


def carried(digits: np.ndarray) -> np.ndarray:
    """Return the only form of each number whose digits lie between -2^31 and 2^31 - 1.

    Args:
        digits: shape (positions, numbers), lowest position first. The highest position isn't
            carried.
    """
    digits = digits.copy()
    for at in range(len(digits) - 1):
        carry = (digits[at] + _HALF) >> DIGIT_BITS
        digits[at] -= carry << DIGIT_BITS
        digits[at + 1] += carry
    return digits


def rounded(digits: np.ndarray, lowest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each number as an unevaluated pair of doubles, the first of which is nearest to it.

    The relative error of the pair is less than 2^-100. Beyond the range of a double the first is
    infinite and the second 0. Equal numbers give equal pairs, whatever positions are given.

    Args:
        digits: shape (positions, numbers), as `carried` returns them.
        lowest: the position of the first row.
    """
    numbers = np.arange(digits.shape[1])
    top = len(digits) - 1 - np.argmax(digits[::-1] != 0, axis=0)
    high, low = np.zeros(len(numbers)), np.zeros(len(numbers))
    for back in range(min(_PRECISE, len(digits))):
        at = top - back
        digit = np.where(at >= 0, digits[np.maximum(at, 0), numbers], 0)
        if digit.any():
            scaled = np.ldexp(digit.astype(np.float64), -DIGIT_BITS * back)
            high, error = two_sum(high, scaled)
            low += error
    high, low = two_sum(high, low)
    places = (DIGIT_BITS * (top + lowest)).astype(np.int32)
    with np.errstate(over="ignore"):
        high, low = np.ldexp(high, places), np.ldexp(low, places)
    return high, np.where(np.isinf(high), 0.0, low)


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a + b as the rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a * b as the rounded product and its exact error (Dekker's splitting)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high
