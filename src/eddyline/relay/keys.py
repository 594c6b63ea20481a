"""Keys of records: order within a key, groups by key, and records blocked by a failed one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.relay.acker import Indices
from eddyline.relay.records import DUE, KEY, POSITION, TYPE_OF_TIME


def rounds(keys: pa.ChunkedArray) -> list[Indices]:
    """Split rows into rounds: the n-th round has the n-th row of each key.

    Rows without a key are in the first round.

    Returns:
        The indices of the rows of each round.

    Example:
        >>> [part.tolist() for part in rounds(pa.chunked_array([["a", "b", "a", None, None]]))]
        [[0, 1, 3, 4], [2]]
    """
    numbers = key_codes(keys)
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


def key_codes(keys: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return an integer for each row that is equal for equal keys; -1 for null."""
    encoded = keys.combine_chunks().dictionary_encode().indices.fill_null(-1)
    numbers: npt.NDArray[np.int64] = encoded.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def group_by_key(keys: pa.ChunkedArray, owners: Indices) -> list[Indices]:
    """Group rows by the keys of their records; a row without a key is a group of its own.

    Args:
        keys: the key of each record.
        owners: for each row, the index of its record.

    Returns:
        The indices of the rows of each group.
    """
    mine = key_codes(keys.take(pa.array(owners)))
    keyless = mine < 0
    mine[keyless] = len(mine) + np.arange(np.count_nonzero(keyless))
    order = np.argsort(mine, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(mine[order])) + 1)


def key_slots(keys: pa.ChunkedArray, count: int) -> npt.NDArray[np.int64]:
    """Assign each row one of `count` slots: by the hash of its key, or in turns without a key."""
    hashes = pd.util.hash_array(keys.fill_null(b"").to_numpy(), categorize=False)
    slots: npt.NDArray[np.int64] = (hashes % np.uint64(count)).astype(np.int64)
    keyless = keys.is_null().to_numpy()
    slots[keyless] = np.arange(np.count_nonzero(keyless)) % count
    return slots


def not_due(records: pa.Table, now_ms: int, *, joins: bool) -> npt.NDArray[np.bool_]:
    """Return a mask of the records whose retry is not due yet.

    Args:
        records: of schema `RECORDS`.
        now_ms: the time now, in milliseconds since 1970.
        joins: whether all records with the key of one that isn't due wait with it.

    Example:
        >>> from eddyline.relay.records import as_read, failed_records, new_records
        >>> read = as_read(new_records([b"1", b"2", b"3"], [b"a", b"a", None]), range(3), 0)
        >>> due = pa.array([None, 60_000_000, 0]).cast(pa.timestamp("us", "UTC"))
        >>> failed = failed_records(read, range(3), "no answer", due)
        >>> not_due(failed, 59_999, joins=False).tolist()
        [False, True, False]
        >>> not_due(failed, 59_999, joins=True).tolist()
        [True, True, False]
        >>> not_due(failed, 60_000, joins=True).tolist()
        [False, False, False]
    """
    now = pa.scalar(now_ms * 1000, TYPE_OF_TIME)
    waiting = pc.greater(records[DUE], now).fill_null(False)
    if joins:
        keys = records[KEY].filter(waiting).drop_null()
        waiting = pc.or_(waiting, pc.is_in(records[KEY], keys.combine_chunks()))
    mask: npt.NDArray[np.bool_] = waiting.to_numpy()
    return mask


class WaitingKeys:
    """The keys and positions of failed records that wait to be read again.

    Where the order of a key matters, a waiting record blocks all later records of its key.

    Args:
        tables: the records that wait.
    """

    def __init__(self, tables: Iterable[pa.Table] = ()) -> None:
        self._positions = pd.Series([], index=pd.Index([], dtype=object), dtype=np.int64)
        for records in tables:
            self.add(records)

    def add(self, records: pa.Table) -> None:
        """Add waiting records; some may be known already."""
        keyed = records.filter(pc.is_valid(records[KEY]))
        if keyed.num_rows:
            added = pd.Series(keyed[POSITION].to_numpy(), index=keyed[KEY].to_pylist())
            known = self._positions[~self._positions.isin(added)]
            self._positions = pd.concat([known, added]) if len(known) else added

    def remove(self, records: pa.Table) -> None:
        """Remove records that are being read again."""
        if len(self._positions) and records.num_rows:
            read = self._positions.isin(records[POSITION].to_numpy())
            self._positions = self._positions[~read]

    def blocked(self, records: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a mask of the records blocked by an earlier waiting record of the same key."""
        if not len(self._positions):
            return np.zeros(records.num_rows, bool)
        first = self._positions.groupby(level=0).min()
        places = pc.index_in(records[KEY], pa.array(first.index, pa.binary()))
        known = places.is_valid().to_numpy(zero_copy_only=False)
        found = first.to_numpy()[places.fill_null(0).to_numpy()]
        blocked: npt.NDArray[np.bool_] = known & (found < records[POSITION].to_numpy())
        return blocked
