"""What all joins share: the two sides of a delta, pairs of rows with equal keys, and the rows to emit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import checked_weights, numbered
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.grouping import group_rows
from eddyline.state.kernels import ranges, where, with_weights
from eddyline.state.retyping import cast_to

LEFT, RIGHT = "left", "right"
SIDE, MATCHABLE, EXISTS = "side", "matchable", "x"
PAIRS_MAX = 1 << 19

Places = tuple[np.ndarray, np.ndarray]
"""Places of rows of the left side, and of the rows of the right side that they are paired with."""

Carried = tuple[tuple[str, str], ...]
"""Columns of the right side, each with the column of the left side that has its values in the right side's rows."""


class JoinKind(StrEnum):
    """The rows that a join emits."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    EXISTS = "exists"

    @property
    def pairs(self) -> bool:
        """Whether pairs of rows are emitted."""
        return self is not JoinKind.EXISTS

    @property
    def watches_left(self) -> bool:
        """Whether it is to be known which left rows have a match."""
        return self in (JoinKind.LEFT, JoinKind.FULL, JoinKind.EXISTS)

    @property
    def watches_right(self) -> bool:
        """Whether it is to be known which right rows have a match."""
        return self in (JoinKind.RIGHT, JoinKind.FULL)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Makes the rows that a join emits: `h, l0.., r0.., w`; for EXISTS `h, l0.., x, w`.

    Attributes:
        left, right: number of columns of each side in the output.
    """

    kind: JoinKind
    left: int
    right: int

    def pairs(self, left: pa.Table, right: pa.Table, places: Places) -> pa.Table:
        """Return the pairs of rows at some places."""
        left, right = left.take(pa.array(places[0])), right.take(pa.array(places[1]))
        weights = left[WEIGHT].to_numpy() * right[WEIGHT].to_numpy()
        columns = [left[name] for name in (HASH, *numbered("l", self.left))]
        columns += [right[name] for name in numbered("r", self.right)]
        return pa.table([*columns, pa.array(weights)], names=[*self._names, WEIGHT])

    def flagged(self, rows: pa.Table, matched: bool) -> Iterator[pa.Table]:
        """Yield rows of one side with their flag, or those without a match padded with nulls."""
        if rows.num_rows == 0:
            return
        if self.kind is JoinKind.EXISTS:
            kept = rows.select([HASH, *numbered("l", self.left)])
            flag = pa.array(np.full(rows.num_rows, matched))
            yield kept.append_column(EXISTS, flag).append_column(WEIGHT, rows[WEIGHT])
        elif not matched:
            own, count = set(rows.column_names), rows.num_rows
            columns = [rows[name] if name in own else pa.nulls(count) for name in self._names]
            yield pa.table([*columns, rows[WEIGHT]], names=[*self._names, WEIGHT])

    def flips(
        self, old: pa.Table, had: np.ndarray, has: np.ndarray, added: pa.Table, new: np.ndarray
    ) -> Iterator[pa.Table]:
        """Yield the rows of one side whose flag changes, and its new rows.

        Args:
            old: stored rows.
            had, has: for each stored row whether it had a match before the epoch, and has one after it.
            added: the changes of the epoch.
            new: for each change whether the row has a match after the epoch.
        """
        for matched in (False, True):
            gone = where(old, (had == matched) & (has != matched))
            yield from self.flagged(with_weights(gone, -gone[WEIGHT].to_numpy()), matched)
            yield from self.flagged(where(old, (had != matched) & (has == matched)), matched)
            yield from self.flagged(where(added, new == matched), matched)

    @property
    def _names(self) -> list[str]:
        return [HASH, *numbered("l", self.left), *numbered("r", self.right)]


def sides_of(
    delta: pa.Table, layouts: Mapping[str, Layout], carried: Carried
) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
    """Return for each side its rows that can have a match, and those that can't.

    Args:
        layouts: the columns of each side.
        carried: those that are held in columns of the left side.
    """
    carriers = {LEFT: {}, RIGHT: dict(carried)}
    side = delta[SIDE].to_numpy()
    matchable = delta[MATCHABLE].to_numpy(zero_copy_only=False)
    can, cannot = {}, {}
    for slot, number in ((LEFT, 0), (RIGHT, 1)):
        own = layouts[slot].columns
        mine = delta.select([carriers[slot].get(name, name) for name in own]).rename_columns(own)
        can[slot] = where(mine, (side == number) & matchable)
        cannot[slot] = where(mine, (side == number) & ~matchable)
    return can, cannot


def key_codes(tables: Sequence[pa.Table], keys: int) -> list[np.ndarray]:
    """Return for each row of each table a number that rows with equal hashes and keys share."""
    names = [HASH, *numbered("k", keys)]
    named = [table.select(names) for table in tables]
    all_rows = pa.concat_tables([cast_to(table, named[0].schema) for table in named])
    ends = np.cumsum([table.num_rows for table in tables])
    return np.split(group_rows(all_rows, names).of, ends[:-1])


def pairs_of(in_left: np.ndarray, in_right: np.ndarray) -> Iterator[Places]:
    """Yield the places of all pairs of rows with equal key codes, about `PAIRS_MAX` at once."""
    if not len(in_left) or not len(in_right):
        return
    order = np.argsort(in_right, kind="stable")
    ordered = in_right[order]
    first = np.searchsorted(ordered, in_left, "left")
    counts = np.searchsorted(ordered, in_left, "right") - first
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + PAIRS_MAX, "right")))
        part = counts[start:stop]
        if part.any():
            left = np.repeat(np.arange(start, stop), part)
            yield left, order[ranges(first[start:stop], part)]
        start = stop


def lookup(arrangement: Arrangement, hashes: np.ndarray) -> pa.Table | None:
    """Return the stored rows with some key hashes, each once; None if there are none."""
    found = arrangement.lookup(hashes)
    return None if found is None else checked_weights("join", arrangement.layout.consolidate(found))
