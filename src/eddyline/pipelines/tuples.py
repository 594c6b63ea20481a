"""Groups the records of a batch into tuples, and holds those that can't be processed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eddyline.relay.acker import new_ids
from eddyline.relay.keys import WaitingKeys, key_codes, key_slots, not_due
from eddyline.relay.lane import Tuple
from eddyline.relay.records import KEY, POSITION

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchTuples:
    """The records of a batch, grouped into tuples.

    Attributes:
        records: the records in the order of processing; held ones come first.
        held: mask of the records that are in no tuple, because they must wait.
        tuples: the tuples.
    """

    records: pa.Table
    held: Mask
    tuples: list[Tuple]


class TupleBuilder:
    """Groups records into tuples.

    A replayed record whose retry isn't due is held. With `ordered`, so is every record with an
    earlier waiting record of its key, and all records of a key are in one tuple, in their order.

    Args:
        tuple_rows: records of a tuple.
        lanes: number of lanes, over which replayed records are distributed.
        ordered: whether to keep the order of the records of a key.
        joins: whether records are joined by key, so that those of one key wait for each other.
    """

    def __init__(self, tuple_rows: int, lanes: int, *, ordered: bool, joins: bool) -> None:
        self.tuple_rows = tuple_rows
        self.lanes = lanes
        self.ordered = ordered
        self.joins = joins
        self._random = np.random.default_rng()
        self._last_number = 0
        self._waiting: WaitingKeys | None = None  # None: not known

    def load_waiting(self, retries: Iterable[pa.Table]) -> None:
        """Load the records that wait for their retry, if order matters and they aren't known yet."""
        if self.ordered and self._waiting is None:
            self._waiting = WaitingKeys(retries)

    def add_waiting(self, records: pa.Table) -> None:
        """Add records that wait for their retry from now on."""
        if self._waiting is not None:
            self._waiting.add(records)

    def forget_waiting(self) -> None:
        """Forget which records wait; call it when a batch was not committed."""
        self._waiting = None

    def build(self, records: pa.Table, replays: int, now_ms: int) -> BatchTuples:
        """Group the records of a batch.

        Args:
            records: of schema `RECORDS`.
            replays: number of records at the start that were read before.
            now_ms: the time now, in milliseconds since 1970.
        """
        waiting = not_due(records.slice(0, replays), now_ms, joins=self.joins)
        if self._waiting is None:
            records, held, starts = self._in_any_order(records, waiting)
        else:
            records, held, starts = self._by_key(records, waiting, self._waiting)
        ends = [*starts[1:], records.num_rows]
        ids = new_ids(2 * len(starts), self._random).view(np.int64).reshape(2, -1).tolist()
        tuples = []
        for start, end, root, edge in zip(starts, ends[: len(starts)], *ids, strict=True):
            self._last_number += 1
            tuples.append(Tuple(self._last_number, root, edge, start, end - start))
        return BatchTuples(records, held, tuples)

    def _in_any_order(self, records: pa.Table, waiting: Mask) -> tuple[pa.Table, Mask, list[int]]:
        """Distribute replayed records over all lanes; new ones follow.

        Returns:
            The records, which of them are held, and the first row of each tuple.
        """
        rows, replays = records.num_rows, len(waiting)
        first = int(np.count_nonzero(waiting))
        if first:
            order = np.argsort(~waiting, kind="stable")
            replayed = records.slice(0, replays).take(pa.array(order))
            records = pa.concat_tables([replayed, records.slice(replays)])
        step = max(1, min(self.tuple_rows, -(-(replays - first) // self.lanes)))
        starts = [*range(first, replays, step), *range(replays, rows, self.tuple_rows)]
        return records, np.arange(rows) < first, starts

    def _by_key(
        self, records: pa.Table, waiting: Mask, keys: WaitingKeys
    ) -> tuple[pa.Table, Mask, list[int]]:
        """Put all records of a key into one tuple, in order; returns the same as `_in_any_order`."""
        keys.remove(records.slice(0, len(waiting)).filter(pa.array(~waiting)))
        held = keys.blocked(records)
        held[: len(waiting)] |= waiting
        count = max(1, -(-records.num_rows // self.tuple_rows))
        slots = np.where(held, -1, key_slots(records[KEY], count))
        sort_keys = [records[POSITION].to_numpy(), slots]
        if self.joins:  # the records of a key must be next to each other
            sort_keys.insert(1, key_codes(records[KEY]))
        order = np.lexsort(sort_keys)
        records, held, slots = records.take(pa.array(order)), held[order], slots[order]
        first = int(np.count_nonzero(held))
        begins = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        return records, held, begins[begins >= first].tolist()
