"""Keys of records: who comes behind whom, and who waits for one that is read again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.relay.acker import Places
from eddyline.relay.records import DUE, KEY, POSITION, TYPE_OF_TIME


def rounds(keys: pa.ChunkedArray) -> list[Places]:
    """Places of rows, so that in each round a key is there once, in order; without a key: first.

    Example:
        >>> [part.tolist() for part in rounds(pa.chunked_array([["a", "b", "a", None, None]]))]
        [[0, 1, 3, 4], [2]]
    """
    numbers = codes(keys)
    order = np.argsort(numbers, kind="stable")
    order = order[numbers[order] >= 0]
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else ordered
    sizes = np.diff(np.r_[starts, len(ordered)])
    turn = np.zeros(len(numbers), np.int64)
    turn[order] = np.arange(len(ordered)) - np.repeat(starts, sizes)
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.searchsorted(turn[by_turn], np.arange(1, turn.max(initial=0) + 1))
    return np.split(by_turn, cuts)


def codes(keys: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A number for each key, by which the rows of one can be brought together; null: -1."""
    encoded = keys.combine_chunks().dictionary_encode().indices.fill_null(-1)
    numbers: npt.NDArray[np.int64] = encoded.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def groups(keys: pa.ChunkedArray, owners: Places) -> list[Places]:
    """Places of rows whose records have one key; without a key each is for itself."""
    mine = codes(keys.take(pa.array(owners)))
    keyless = mine < 0
    mine[keyless] = len(mine) + np.arange(np.count_nonzero(keyless))
    order = np.argsort(mine, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(mine[order])) + 1)


def key_slots(keys: pa.ChunkedArray, count: int) -> npt.NDArray[np.int64]:
    """One of `count` places for each row: by its key's hash; in turns where there is no key."""
    hashes = pd.util.hash_array(keys.fill_null(b"").to_numpy(), categorize=False)
    places: npt.NDArray[np.int64] = (hashes % np.uint64(count)).astype(np.int64)
    keyless = keys.is_null().to_numpy()
    places[keyless] = np.arange(np.count_nonzero(keyless)) % count
    return places


def too_early(records: pa.Table, now_ms: int, *, joins: bool) -> npt.NDArray[np.bool_]:
    """Which records aren't due; `joins`: nor is any that has the key of one that isn't.

    Example:
        >>> from eddyline.relay.records import as_read, failed_records, new_records
        >>> read = as_read(new_records([b"1", b"2", b"3"], [b"a", b"a", None]), range(3), 0)
        >>> due = pa.array([None, 60_000_000, 0]).cast(pa.timestamp("us", "UTC"))
        >>> failed = failed_records(read, range(3), "no answer", due)
        >>> too_early(failed, 59_999, joins=False).tolist()
        [False, True, False]
        >>> too_early(failed, 59_999, joins=True).tolist()
        [True, True, False]
        >>> too_early(failed, 60_000, joins=True).tolist()
        [False, False, False]
    """
    now = pa.scalar(now_ms * 1000, TYPE_OF_TIME)
    early = pc.greater(records[DUE], now).fill_null(False)
    if joins:
        keys = records[KEY].filter(early).drop_null()
        early = pc.or_(early, pc.is_in(records[KEY], keys.combine_chunks()))
    found: npt.NDArray[np.bool_] = early.to_numpy()
    return found


class WaitingKeys:
    """The keys and positions of records that wait to be read again.

    Args:
        tables: these records.
    """

    def __init__(self, tables: Iterable[pa.Table] = ()) -> None:
        self._positions = pd.Series([], index=pd.Index([], dtype=object), dtype=np.int64)
        for records in tables:
            self.add(records)

    def add(self, records: pa.Table) -> None:
        """These wait too; some may do so already."""
        keyed = records.filter(pc.is_valid(records[KEY]))
        if keyed.num_rows:
            added = pd.Series(keyed[POSITION].to_numpy(), index=keyed[KEY].to_pylist())
            known = self._positions[~self._positions.isin(added)]
            self._positions = pd.concat([known, added]) if len(known) else added

    def remove(self, records: pa.Table) -> None:
        """These are being read."""
        if len(self._positions) and records.num_rows:
            read = self._positions.isin(records[POSITION].to_numpy())
            self._positions = self._positions[~read]

    def behind(self, records: pa.Table) -> npt.NDArray[np.bool_]:
        """Which records have one of their key before them that waits."""
        if not len(self._positions):
            return np.zeros(records.num_rows, bool)
        first = self._positions.groupby(level=0).min()
        places = pc.index_in(records[KEY], pa.array(first.index, pa.binary()))
        known = places.is_valid().to_numpy(zero_copy_only=False)
        found = first.to_numpy()[places.fill_null(0).to_numpy()]
        behind: npt.NDArray[np.bool_] = known & (found < records[POSITION].to_numpy())
        return behind
