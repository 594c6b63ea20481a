"""Binary search for many rows at once in a run that is sorted by hash and a sort key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH
from eddyline.state.grouping import SortKey, ordered_doubles

_MIN, _MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Keys:
    """The values of a sort key, as numbers that sort as its values do in Spark.

    Attributes:
        values: the numbers as they are stored; of nulls any.
        null: which are null; None if none is.
        key: how they sort.
    """

    values: np.ndarray
    null: np.ndarray | None
    key: SortKey

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays of integers for the values at some places; compared as pairs, they sort as the values do.

        The first is -1 for a null that comes first, 1 for one that comes last, else 0; the second is the value.
        """
        found = self.values[places]
        if found.dtype.kind == "f":
            found = ordered_doubles(found.astype(np.float64))
        found = found.astype(np.int64)
        if self.key.descending:
            found = ~found
        side = np.zeros(len(places), np.int8)
        if self.null is not None:
            null = self.null[places]
            found = np.where(null, 0, found)
            side[null] = 1 if self.key.nulls_last else -1
        return side, found


def keys_of(table: pa.Table, key: SortKey) -> Keys | None:
    """Return a sort key for a search, without reading its values; None if its type has no order as integers."""
    column = table[key.column]
    kind = column.type
    timed = pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    floating = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (timed or floating or pa.types.is_signed_integer(kind)):
        return None
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if not len(array):
        return Keys(np.empty(0, np.int64), None, key)
    stored = np.dtype(f"{'f' if floating else 'i'}{kind.bit_width // 8}")
    values = np.frombuffer(array.buffers()[1], stored)
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return Keys(values[array.offset : array.offset + len(array)], null, key)


def key_ranges(
    run: pa.Table, rows: pa.Table, key: SortKey | None, below: int = 0, above: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find for each of other rows the rows of a run with its hash, and among these those near its sort key.

    Args:
        run: rows sorted by hash and then by the key.
        key: None if only the hash is to be looked for.
        below, above: how far before and after the key's value, in the order of the key, values may lie.

    Returns:
        For each of the other rows where those with its hash begin and end, and where those about its key
        begin and end; the latter are the same as the former if the key's type can't be searched.
    """
    stored, wanted = run[HASH].to_numpy(), rows[HASH].to_numpy()
    low, high = np.searchsorted(stored, wanted, "left"), np.searchsorted(stored, wanted, "right")
    held = None if key is None else keys_of(run, key)
    given = None if key is None else keys_of(rows, key)
    if held is None or given is None:
        return low, high, low, high
    side, number = given.at(np.arange(len(wanted)))
    least = np.where(number < _MIN + below, _MIN, number - below)
    most = np.where(number > _MAX - above, _MAX, number + above)
    first = _search(held, low, high, (side, least))
    return low, high, first, _search(held, low, high, (side, most), after=True)


def _search(
    held: Keys,
    low: np.ndarray,
    high: np.ndarray,
    targets: tuple[np.ndarray, np.ndarray],
    *,
    after: bool = False,
) -> np.ndarray:
    """Return for each target the first place between `low` and `high` whose value isn't less; with `after`, is more."""
    low, high = low.copy(), high.copy()
    side, number = targets
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        own_side, own = held.at(middle)
        wanted_side, wanted = side[open_], number[open_]
        same = own_side == wanted_side
        less = (own_side < wanted_side) | (same & (own < wanted))
        if after:
            less |= same & (own == wanted)
        low[open_[less]] = middle[less] + 1
        high[open_[~less]] = middle[~less]
    return low
