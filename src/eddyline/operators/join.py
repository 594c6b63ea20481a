"""Inner, outer, semi and anti joins by key hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.errors import QueryError
from eddyline.operators.base import (
    BucketResult,
    State,
    checked_weights,
    empty_like,
    negative_weight,
    numbered,
)
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.grouping import group_rows
from eddyline.state.kernels import distinct_hashes, ranges, with_weights
from eddyline.state.retyping import cast_to

LEFT, RIGHT = "left", "right"
SIDE, MATCHABLE, EXISTS = "side", "matchable", "x"
PAIRS_MAX = 1 << 19


class JoinKind(StrEnum):
    """The rows that a join emits."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    EXISTS = "exists"

    @property
    def keeps_left(self) -> bool:
        """Whether left rows without a match are emitted."""
        return self in (JoinKind.LEFT, JoinKind.FULL)

    @property
    def keeps_right(self) -> bool:
        """Whether right rows without a match are emitted."""
        return self in (JoinKind.RIGHT, JoinKind.FULL)


@dataclass(frozen=True, slots=True)
class Join:
    """Keep both sides by key; emit the pairs dA x B_old + A_new x dB, or which rows have a match.

    Input: `h, side, matchable, k0.., l0.., r0.., w`: rows of the left side have side 0, those of
    the right 1, with the other side's columns null; rows whose key has a null are not matchable.
    Output: `h, l0.., r0.., w`; for EXISTS `h, l0.., x, w` with x = whether the row has a match.

    An inner join pairs rows by hash alone and has no `k` columns: the condition itself, evaluated
    by Spark after the operator, decides. The other kinds compare the real keys here.

    Attributes:
        scalar: the right side is a scalar subquery: QueryError if at the end of the epoch a left row
            has more than one match, or without keys the right side more than one row. For EXISTS
            the right side holds the pairs of the left rows, which are the keys.
    """

    family: ClassVar[str] = "join"
    kind: JoinKind
    keys: int
    left: int
    right: int
    scalar: bool = False

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement for each side."""
        keys = numbered("k", self.keys)
        return {
            LEFT: Layout((*keys, *numbered("l", self.left))),
            RIGHT: Layout((*keys, *numbered("r", self.right))),
        }

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layouts = self.layouts
        side = delta[SIDE].to_numpy()
        matchable = delta[MATCHABLE].to_numpy(zero_copy_only=False)
        fresh, unmatchable = {}, {}
        for slot, number in ((LEFT, 0), (RIGHT, 1)):
            mine = delta.select(layouts[slot].columns)
            fresh[slot] = layouts[slot].consolidate(_where(mine, (side == number) & matchable))
            unmatchable[slot] = _where(mine, (side == number) & ~matchable)
        left_hashes, right_hashes = distinct_hashes(fresh[LEFT]), distinct_hashes(fresh[RIGHT])
        watch_left = self.kind.keeps_left or self.kind is JoinKind.EXISTS
        left_old = _lookup(
            state[LEFT],
            np.union1d(right_hashes, left_hashes) if self.kind.keeps_right else right_hashes,
            fresh[LEFT],
        )
        right_old = _lookup(
            state[RIGHT],
            np.union1d(left_hashes, right_hashes) if watch_left else left_hashes,
            fresh[RIGHT],
        )
        tables = [left_old, fresh[LEFT], right_old, fresh[RIGHT]]
        codes = self._codes(tables)
        if self.scalar:
            self._check_scalar(tables, codes)
        return BucketResult(
            self._output(tables, codes, unmatchable),
            {LEFT: fresh[LEFT], RIGHT: fresh[RIGHT]},
        )

    def _codes(self, tables: list[pa.Table]) -> list[np.ndarray]:
        """Return for each row of each table a number that equal keys share."""
        keys = [HASH, *numbered("k", self.keys)]
        named = [table.select(keys) for table in tables]
        both = pa.concat_tables([cast_to(table, named[0].schema) for table in named])
        ends = np.cumsum([table.num_rows for table in tables])
        return np.split(group_rows(both, keys).of, ends[:-1])

    def _check_scalar(self, tables: list[pa.Table], codes: list[np.ndarray]) -> None:
        """Raise QueryError if a left row has several matches.

        Only the rows after the whole epoch count. The old left rows of keys that only left rows
        touch are not loaded: they had one match at most, and still have it.
        """
        size = _size(codes)
        left_old, left_add, right_old, right_add = (
            _counts(table, code, size) for table, code in zip(tables, codes, strict=True)
        )
        left, right = left_old + left_add, right_old + right_add
        most = left if self.kind is JoinKind.EXISTS else np.ones(size, np.int64)
        wrong = right > most
        if self.keys:
            wrong &= left > 0
        if wrong.any():
            raise QueryError(
                "a scalar subquery gives more than one row",
                condition="SCALAR_SUBQUERY_TOO_MANY_ROWS",
                hint="delete the extra rows, or make it one row with an aggregate or LIMIT 1",
            )

    def _output(
        self, tables: list[pa.Table], codes: list[np.ndarray], unmatchable: dict[str, pa.Table]
    ) -> Iterator[pa.Table]:
        left_old, left_add, right_old, right_add = tables
        in_left_old, in_left_add, in_right_old, in_right_add = codes
        if self.kind is not JoinKind.EXISTS:
            yield from self._pairs(left_add, right_old, in_left_add, in_right_old)
            yield from self._pairs(left_old, right_add, in_left_old, in_right_add)
            yield from self._pairs(left_add, right_add, in_left_add, in_right_add)
        size = _size(codes)
        if self.kind.keeps_left or self.kind is JoinKind.EXISTS:
            flags = _had_and_has(right_old, right_add, in_right_old, in_right_add, size)
            for rows, matched in _flips(left_old, left_add, in_left_old, in_left_add, *flags):
                yield from self._flagged(rows, matched, LEFT)
            yield from self._flagged(unmatchable[LEFT], False, LEFT)
        if self.kind.keeps_right:
            flags = _had_and_has(left_old, left_add, in_left_old, in_left_add, size)
            for rows, matched in _flips(right_old, right_add, in_right_old, in_right_add, *flags):
                yield from self._flagged(rows, matched, RIGHT)
            yield from self._flagged(unmatchable[RIGHT], False, RIGHT)

    def _pairs(
        self, left: pa.Table, right: pa.Table, in_left: np.ndarray, in_right: np.ndarray
    ) -> Iterator[pa.Table]:
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
                left_rows = left.take(pa.array(np.repeat(np.arange(start, stop), part)))
                right_rows = right.take(pa.array(order[ranges(first[start:stop], part)]))
                yield self._joined(left_rows, right_rows)
            start = stop

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        weights = left[WEIGHT].to_numpy() * right[WEIGHT].to_numpy()
        columns = [left[name] for name in (HASH, *numbered("l", self.left))]
        columns += [right[name] for name in numbered("r", self.right)]
        names = [HASH, *numbered("l", self.left), *numbered("r", self.right), WEIGHT]
        return pa.table([*columns, pa.array(weights)], names=names)

    def _flagged(self, rows: pa.Table, matched: bool, slot: str) -> Iterator[pa.Table]:
        """Yield rows with their flag, or padded with nulls where the flag says unmatched."""
        if rows.num_rows == 0:
            return
        if self.kind is JoinKind.EXISTS:
            kept = rows.select([HASH, *numbered("l", self.left)])
            flag = pa.array(np.full(rows.num_rows, matched))
            yield kept.append_column(EXISTS, flag).append_column(WEIGHT, rows[WEIGHT])
        elif not matched:
            names = [HASH, *numbered("l", self.left), *numbered("r", self.right)]
            own = set(rows.column_names)
            columns = [rows[name] if name in own else pa.nulls(rows.num_rows) for name in names]
            yield pa.table([*columns, rows[WEIGHT]], names=[*names, WEIGHT])


def _had_and_has(
    old: pa.Table, add: pa.Table, in_old: np.ndarray, in_add: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each key code whether the side has a row of it, before and after."""
    before = _counts(old, in_old, size)
    after = before + _counts(add, in_add, size)
    missing = after[in_add] < 0
    if missing.any():
        raise negative_weight("join", add.slice(int(missing.argmax()), 1).to_pylist()[0])
    return before > 0, after > 0


def _size(codes: list[np.ndarray]) -> int:
    """Return the number of different key codes."""
    return 1 + max((int(part.max()) for part in codes if len(part)), default=-1)


def _counts(table: pa.Table, codes: np.ndarray, size: int) -> np.ndarray:
    """Return the number of rows of each key code."""
    counts = np.zeros(size, np.int64)
    np.add.at(counts, codes, table[WEIGHT].to_numpy())
    return counts


def _flips(
    old: pa.Table,
    add: pa.Table,
    in_old: np.ndarray,
    in_add: np.ndarray,
    had: np.ndarray,
    has: np.ndarray,
) -> Iterator[tuple[pa.Table, bool]]:
    """Yield rows whose match flag changes, and new rows, with the flag and a signed weight."""
    for matched in (False, True):
        leaves = (had[in_old] == matched) & (has[in_old] != matched)
        enters = (had[in_old] != matched) & (has[in_old] == matched)
        gone = _where(old, leaves)
        yield with_weights(gone, -gone[WEIGHT].to_numpy()), matched
        yield _where(old, enters), matched
        yield _where(add, has[in_add] == matched), matched


def _where(table: pa.Table, mask: np.ndarray) -> pa.Table:
    return table if mask.all() else table.filter(pa.array(mask))


def _lookup(arrangement: Arrangement, hashes: np.ndarray, like: pa.Table) -> pa.Table:
    found = arrangement.lookup(hashes)
    if found is None:
        return empty_like(like, like.column_names)
    return checked_weights("join", arrangement.layout.consolidate(found))
