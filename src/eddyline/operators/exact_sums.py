"""The state of exact sums of doubles: a window of digits in the group's row, digits outside in a second arrangement.

The window is enough for usual numbers: all doubles below 2^64 whose lowest bit is at least 2^-128, such
as any of at least 10^-22. A digit outside, of 1e300 or of the square of 1e-20, is a row of the
second arrangement, by group, sum and position. Both store digits in the unique form of `doubles.carried`. So the
stored number always rounds to the value that was emitted, whatever compaction has merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH
from eddyline.operators.base import numbered
from eddyline.state.arrangement import Layout
from eddyline.state.doubles import DIGIT_BITS, HIGHEST, LOWEST, carried, digits_of, rounded
from eddyline.state.kernels import Measure, matched

SLOT, SUM, POSITION, DIGIT = "digits", "sum", "position", "digit"
WINDOW = range(-4, 2)  # the positions in a group's own row
INFINITE = HIGHEST + 1  # the position at which infinite contributions are counted, such as squares
PAIR = pa.struct([("hi", pa.float64()), ("lo", pa.float64())])


def layout(keys: int) -> Layout:
    """Return the layout of the digits outside the window."""
    return Layout((*numbered("k", keys), SUM, POSITION), ((DIGIT, Measure.SUM),))


def columns(sum_: str) -> list[str]:
    """Return the columns of a sum's window, lowest position first."""
    return [f"{sum_}_{at}" for at in range(len(WINDOW))]


def expanded(delta: pa.Table, keys: int, sums: Sequence[str]) -> tuple[pa.Table, pa.Table | None]:
    """Replace contributions {hi: value, lo: weight} by their digits.

    Returns:
        The delta with the columns of the windows, and the digits outside, not consolidated, or
        None if there are none.
    """
    beside = []
    for name in sums:
        values, weights = (
            part.to_numpy(zero_copy_only=False) for part in delta[name].combine_chunks().flatten()
        )
        infinite = np.isinf(values)
        window = np.zeros((len(WINDOW), len(values)), np.int64)
        outside = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
        for rows, positions, digits in digits_of(np.where(infinite, 0.0, values), weights):
            at = positions - WINDOW.start
            inside = (at >= 0) & (at < len(WINDOW))
            if inside.all():
                window[at, rows] += digits
            else:
                window[at[inside], rows[inside]] += digits[inside]
                outside.append((rows[~inside], positions[~inside], digits[~inside]))
        if infinite.any():
            rows = np.flatnonzero(infinite)
            counts = (np.sign(values[rows]) * weights[rows]).astype(np.int64)
            outside.append((rows, np.full(len(rows), INFINITE), counts))
        for column, values_at in zip(columns(name), window, strict=True):
            delta = delta.append_column(column, pa.array(values_at))
        for piece in outside:
            own = delta.select([HASH, *numbered("k", keys)])
            beside.append(_digit_rows(own, name, *piece))
    return delta, pa.concat_tables(beside) if beside else None


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of doubles of some groups before and after an epoch.

    Attributes:
        before, after: for each sum its values, structs {hi, lo}.
        change: for each column of a sum's window what to add to the stored one.
        beside: what to add to the stored digits outside the windows; None for nothing.
        changed: for each group whether its stored state changes.
    """

    before: dict[str, pa.Array]
    after: dict[str, pa.Array]
    change: dict[str, pa.Array]
    beside: pa.Table | None
    changed: np.ndarray


def added(
    before: pa.Table,
    change: pa.Table,
    rows: pa.Table,
    sums: Sequence[str],
    stored: pa.Table | None,
    beside: pa.Table | None,
) -> Sums:
    """Add the contributions of an epoch to the sums of groups.

    Args:
        before, change: by group the stored columns of the windows, and what the epoch adds to them.
        rows: the hash and the key columns of the groups, in the same order.
        sums: the columns of sums.
        stored: the stored digits outside the windows, not consolidated; None if there are none.
        beside: what the epoch adds to them; None if nothing.
    """
    count = rows.num_rows
    old, add = (
        np.stack([[table[column].to_numpy() for column in columns(name)] for name in sums], axis=1)
        for table in (before, change)
    )
    shape = (len(WINDOW) + 1, 2, len(sums), count)  # before and after, for all sums at once
    numbers = np.zeros(shape, np.int64)
    numbers[:-1, 0], numbers[:-1, 1] = old, old + add
    numbers = carried(numbers.reshape(len(numbers), -1))
    pairs = [part.reshape(shape[1:]) for part in rounded(numbers, WINDOW.start)]
    numbers = numbers.reshape(shape)
    kept = numbers[:-1, 1]
    kept[-1] += numbers[-1, 1] << DIGIT_BITS  # the highest digit of a window has no limit
    changed, appends = np.zeros(count, bool), list[pa.Table]()
    if stored is not None or beside is not None:
        outside = [_located(table, rows) for table in (stored, beside)]
        for at, name in enumerate(sums):
            of, digits = _add_outside(
                _dense(outside, name),
                old[:, at],
                add[:, at],
                kept[:, at],
                [(high[at], low[at]) for high, low in zip(*pairs, strict=True)],
            )
            changed[of] = True
            appends.append(_digit_rows(rows, name, of, *digits))
    changed |= (kept != old).any(axis=(0, 1))
    values, later = (
        {name: _pairs(high[at], low[at]) for at, name in enumerate(sums)}
        for high, low in zip(*pairs, strict=True)
    )
    more = {
        column: pa.array(own)
        for at, name in enumerate(sums)
        for column, own in zip(columns(name), kept[:, at] - old[:, at], strict=True)
    }
    return Sums(values, later, more, pa.concat_tables(appends) if appends else None, changed)


def _pairs(high: np.ndarray, low: np.ndarray) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(high), pa.array(low)], fields=list(PAIR))


def equal_pairs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Return for each row whether two columns of structs {hi, lo} have the same value."""
    found: np.ndarray = np.logical_and.reduce(
        [
            a.to_numpy() == b.to_numpy()
            for a, b in zip(
                one.combine_chunks().flatten(), other.combine_chunks().flatten(), strict=True
            )
        ]
    )
    return found


_IN_WINDOW = slice(WINDOW.start - LOWEST, WINDOW.stop - LOWEST)


def _add_outside(
    dense: tuple[np.ndarray, np.ndarray, np.ndarray],
    old: np.ndarray,
    add: np.ndarray,
    kept: np.ndarray,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Combine the digits outside the window of one sum with those inside.

    Args:
        dense: the groups that have such digits, the stored ones, and the new ones; see `_dense`.
        old: the stored window, shape (positions, groups).
        add: what the epoch adds to it.
        kept: the new window; its groups with digits outside are corrected.
        pairs: the sum before and after the epoch as pairs of doubles; corrected as well.

    Returns:
        For each digit outside that changes: its group; its position and what to add to it.
    """
    which, stored, new = dense
    stored[_IN_WINDOW], new[_IN_WINDOW] = old[:, which], add[:, which]
    before, after = stored[:-1], carried(stored[:-1] + new[:-1])
    endless = stored[-1], stored[-1] + new[-1]
    for (high, low), digits, count in zip(pairs, (carried(before), after), endless, strict=True):
        finite = rounded(digits, LOWEST)
        high[which] = np.where(count, np.copysign(np.inf, count), finite[0])
        low[which] = np.where(count, 0.0, finite[1])
    kept[:, which] = after[_IN_WINDOW]
    changes = np.vstack([after - before, new[-1:]])
    changes[_IN_WINDOW] = 0
    positions, at = np.nonzero(changes)
    return which[at], (positions + LOWEST, changes[positions, at])


@dataclass(frozen=True, slots=True)
class _Located:
    """Digits outside the windows: for each the place of its group, its sum, its position, and its value."""

    group: np.ndarray
    sum: np.ndarray
    position: np.ndarray
    digit: np.ndarray


def _located(digits: pa.Table | None, rows: pa.Table) -> _Located:
    """Locate digits outside the windows by the places of their groups; digits of other groups are dropped."""
    if digits is None:
        none = np.empty(0, np.int64)
        return _Located(none, none.astype(str), none, none)
    groups = matched(digits.select(rows.column_names), rows)
    mine = groups >= 0
    columns = (digits[name].to_numpy()[mine] for name in (SUM, POSITION, DIGIT))
    return _Located(groups[mine], *columns)


def _dense(outside: Sequence[_Located], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the groups with digits outside a sum's window, and their stored and new digits.

    The digits have the shape (positions, groups), from LOWEST to INFINITE.
    """
    own = [part.sum == name for part in outside]
    which = np.unique(
        np.concatenate([part.group[mine] for part, mine in zip(outside, own, strict=True)])
    )
    stored, new = np.zeros((2, INFINITE - LOWEST + 1, len(which)), np.int64)
    for digits, part, mine in zip((stored, new), outside, own, strict=True):
        at = np.searchsorted(which, part.group[mine])
        np.add.at(digits, (part.position[mine] - LOWEST, at), part.digit[mine])
    return which, stored, new


def _digit_rows(
    rows: pa.Table, name: str, of: np.ndarray, positions: np.ndarray, digits: np.ndarray
) -> pa.Table:
    """Return digits of one sum as rows of the layout, `of` giving the row whose keys each has."""
    found = rows.take(pa.array(of))
    found = found.append_column(SUM, pa.array([name] * len(of), pa.string()))
    found = found.append_column(POSITION, pa.array(positions.astype(np.int8)))
    return found.append_column(DIGIT, pa.array(digits))
