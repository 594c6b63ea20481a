"""Inner, outer, semi and anti joins by key hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.errors import QueryError
from eddyline.operators.base import BucketResult, State, empty_like, negative_weight, numbered
from eddyline.operators.pairing import (
    LEFT,
    RIGHT,
    Carried,
    JoinedRows,
    JoinKind,
    key_codes,
    lookup,
    pairs_of,
    sides_of,
)
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.kernels import distinct_hashes, distinct_values


@dataclass(frozen=True, slots=True)
class Join:
    """Keep both sides by key; emit the pairs dA x B_old + A_new x dB, or which rows have a match.

    Input: `h, side, matchable, k0.., l0.., r0.., w`: rows of the left side have side 0, those of
    the right 1, with the other side's columns null; rows whose key has a null are not matchable. A column of the right
    side may be carried by one of the left side, and is then no column of the input.
    Output: that of `JoinedRows`, with x = whether the row has a match.

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
    carried: Carried = ()

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
        given, unmatchable = sides_of(delta, layouts, self.carried)
        fresh = {slot: layouts[slot].consolidate(given[slot]) for slot in layouts}
        left_hashes, right_hashes = distinct_hashes(fresh[LEFT]), distinct_hashes(fresh[RIGHT])
        left_old = _stored(
            state[LEFT],
            _union(left_hashes, right_hashes) if self.kind.watches_right else right_hashes,
            fresh[LEFT],
        )
        right_old = _stored(
            state[RIGHT],
            _union(left_hashes, right_hashes) if self.kind.watches_left else left_hashes,
            fresh[RIGHT],
        )
        tables = [left_old, fresh[LEFT], right_old, fresh[RIGHT]]
        codes = key_codes(tables, self.keys)
        if self.scalar:
            self._check_scalar(tables, codes)
        return BucketResult(
            self._output(tables, codes, unmatchable),
            {LEFT: fresh[LEFT], RIGHT: fresh[RIGHT]},
        )

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
        rows = JoinedRows(self.kind, self.left, self.right)
        left_old, left_add, right_old, right_add = tables
        in_left_old, in_left_add, in_right_old, in_right_add = codes
        if self.kind.pairs:
            for left, right, in_left, in_right in (
                (left_add, right_old, in_left_add, in_right_old),
                (left_old, right_add, in_left_old, in_right_add),
                (left_add, right_add, in_left_add, in_right_add),
            ):
                for places in pairs_of(in_left, in_right):
                    yield rows.pairs(left, right, places)
        size = _size(codes)
        if self.kind.watches_left:
            had, has = _had_and_has(right_old, right_add, in_right_old, in_right_add, size)
            yield from rows.flips(
                left_old, had[in_left_old], has[in_left_old], left_add, has[in_left_add]
            )
            yield from rows.flagged(unmatchable[LEFT], False)
        if self.kind.watches_right:
            had, has = _had_and_has(left_old, left_add, in_left_old, in_left_add, size)
            yield from rows.flips(
                right_old, had[in_right_old], has[in_right_old], right_add, has[in_right_add]
            )
            yield from rows.flagged(unmatchable[RIGHT], False)


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


def _stored(arrangement: Arrangement, hashes: np.ndarray, like: pa.Table) -> pa.Table:
    found = lookup(arrangement, hashes)
    return empty_like(like, like.column_names) if found is None else found


def _union(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return distinct_values(np.concatenate([one, other]))
