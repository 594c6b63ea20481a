"""Joins whose condition compares more than equal keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.operators.base import BucketResult, State, negative_weight, numbered
from eddyline.operators.pairing import (
    LEFT,
    RIGHT,
    Carried,
    JoinedRows,
    JoinKind,
    Places,
    key_codes,
    lookup,
    pairs_of,
    sides_of,
)
from eddyline.state.arrangement import Z_SET, Layout
from eddyline.state.grouping import ranked
from eddyline.state.kernels import Measure, distinct_hashes, with_weights
from eddyline.state.retyping import cast_to

MATCHES = "m"
"""The measure of a stored row: the number of pairs that its copies are in."""


class Sign(StrEnum):
    """How a value of a left row is compared with one of a right row."""

    EQUAL = "="
    DIFFERENT = "<>"
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    SAME = "<=>"
    DISTINCT = "is distinct from"
    EQUAL_OR_UNKNOWN = "= or unknown"


_COMPARE = {
    Sign.EQUAL: np.equal,
    Sign.DIFFERENT: np.not_equal,
    Sign.LESS: np.less,
    Sign.AT_MOST: np.less_equal,
    Sign.MORE: np.greater,
    Sign.AT_LEAST: np.greater_equal,
    Sign.SAME: np.equal,
    Sign.DISTINCT: np.not_equal,
    Sign.EQUAL_OR_UNKNOWN: np.equal,
}


@dataclass(frozen=True, slots=True)
class PairTest:
    """What the rows of a pair have to meet: a column of the left row, compared with one of the right row."""

    left: str
    sign: Sign
    right: str


@dataclass(frozen=True, slots=True)
class ConditionalJoin:
    """Keep both sides by key; emit the pairs that meet some tests, and for other kinds than INNER the rows without a pair.

    Input: `h, side, matchable, k0.., l0.., a0.., r0.., b0.., w`, as that of `Join`, with columns `a0..` of left rows and
    `b0..` of right ones that are only compared. Output: that of `JoinedRows`.

    The rows of a side whose unmatched rows are of interest are stored with the number of their pairs. It is bilinear in
    both sides: dA x B_old + A_new x dB adds to it. It tells whether a row has a match without its partners, and no pair is
    stored or shuffled for that. An inner join has no `k` columns, as in `Join`.

    Attributes:
        left, right: number of columns of each side in the output.
        compared: number of further columns of each side.
        tests: what a pair has to meet, apart from equal keys.
    """

    family: ClassVar[str] = "join"
    kind: JoinKind
    keys: int
    left: int
    right: int
    compared: tuple[int, int]
    tests: tuple[PairTest, ...]
    carried: Carried = ()

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement for each side."""
        counted = (*Z_SET, (MATCHES, Measure.SUM))
        return {
            slot: Layout(layout.identity, counted) if slot in self._watched else layout
            for slot, layout in self._z_sets.items()
        }

    @property
    def _z_sets(self) -> dict[str, Layout]:
        keys = numbered("k", self.keys)
        left = numbered("l", self.left) + numbered("a", self.compared[0])
        right = numbered("r", self.right) + numbered("b", self.compared[1])
        return {LEFT: Layout((*keys, *left)), RIGHT: Layout((*keys, *right))}

    @property
    def _watched(self) -> list[str]:
        watches = {LEFT: self.kind.watches_left, RIGHT: self.kind.watches_right}
        return [slot for slot, watched in watches.items() if watched]

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layouts = self._z_sets
        given, unmatchable = sides_of(delta, layouts, self.carried)
        fresh = {slot: layouts[slot].consolidate(given[slot]) for slot in layouts}
        sides = {
            slot: _Side.of(fresh[slot], lookup(state[slot], distinct_hashes(fresh[other])))
            for slot, other in ((LEFT, RIGHT), (RIGHT, LEFT))
        }
        pairs = _Pairs.of(sides[LEFT], sides[RIGHT], self.keys, self.tests)
        pairs.count_partners([sides[slot] for slot in self._watched])
        appends = dict(fresh)
        for slot in self._watched:
            sides[slot].check()
            appends[slot] = self.layouts[slot].consolidate(sides[slot].counted())
        return BucketResult(self._output(pairs, unmatchable), appends)

    def _output(self, pairs: _Pairs, unmatchable: dict[str, pa.Table]) -> Iterator[pa.Table]:
        rows = JoinedRows(self.kind, self.left, self.right)
        if self.kind.pairs:
            for places in pairs:
                yield rows.pairs(pairs.left.rows, pairs.right.rows, places)
        for slot in self._watched:
            side = pairs.left if slot == LEFT else pairs.right
            matches = side.matches
            had, has = matches > 0, matches + side.added_matches > 0
            yield from rows.flips(
                side.stored, had, has, side.changes, side.partners[side.held :] > 0
            )
            yield from rows.flagged(unmatchable[slot], False)


@dataclass(slots=True)
class _Side:
    """The rows of one side that an epoch touches.

    Attributes:
        rows: the stored rows whose keys the other side changes, then the changes of this side.
        held: number of stored rows.
        matches: of the stored rows, before the epoch.
        partners: for each stored row how many rows more it matches than before the epoch; for each change how many
            rows it matches after the epoch.
    """

    rows: pa.Table
    held: int
    matches: np.ndarray
    partners: np.ndarray

    @classmethod
    def of(cls, changes: pa.Table, stored: pa.Table | None) -> _Side:
        """Return a side whose partners aren't counted yet."""
        held, matches, rows = 0, np.zeros(0, np.int64), changes
        if stored is not None:
            held = stored.num_rows
            if MATCHES in stored.column_names:
                matches = stored[MATCHES].to_numpy()
                stored = stored.drop_columns([MATCHES])
            rows = pa.concat_tables([cast_to(stored, changes.schema), changes]).combine_chunks()
        return cls(rows, held, matches, np.zeros(rows.num_rows, np.int64))

    @property
    def stored(self) -> pa.Table:
        """The stored rows."""
        return self.rows.slice(0, self.held)

    @property
    def changes(self) -> pa.Table:
        """The changes of the epoch."""
        return self.rows.slice(self.held)

    @property
    def weights(self) -> np.ndarray:
        """The weights of all rows."""
        found: np.ndarray = self.rows[WEIGHT].to_numpy()
        return found

    @property
    def added_matches(self) -> np.ndarray:
        """How many matches more each stored row has after the epoch, not counting those of its changes."""
        added: np.ndarray = (self.weights * self.partners)[: self.held]
        return added

    def counted(self) -> pa.Table:
        """Return what the epoch adds to the state: the changes, and the stored rows that gain or lose matches."""
        weights = self.weights
        matches = weights * self.partners
        added = np.concatenate([np.zeros(self.held, np.int64), weights[self.held :]])
        rows = with_weights(self.rows, added).append_column(MATCHES, pa.array(matches))
        return rows.filter(pa.array((added != 0) | (matches != 0)))

    def check(self) -> None:
        """Raise StateError if a row has less than no match: the other side has retracted a row that it doesn't hold."""
        total = self.partners.copy()
        if self.held:
            total[: self.held] = self.matches + self.added_matches
        if len(total) and total.min() < 0:
            raise negative_weight("join", self.rows.slice(int(total.argmin()), 1).to_pylist()[0])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs of rows that an epoch adds, or takes back: all but those of two stored rows.

    Attributes:
        codes: for each row of the left side, and of the right one, a number that equal keys share.
        values: the values that each of the tests compares.
    """

    left: _Side
    right: _Side
    codes: tuple[np.ndarray, np.ndarray]
    values: tuple[tuple[Sign, _Values], ...]

    @classmethod
    def of(cls, left: _Side, right: _Side, keys: int, tests: Sequence[PairTest]) -> _Pairs:
        """Prepare the pairs of rows with equal keys that meet some tests."""
        one, two = key_codes([left.rows, right.rows], keys)
        values = tuple(
            (test.sign, _Values.of(left.rows[test.left], right.rows[test.right])) for test in tests
        )
        return cls(left, right, (one, two), values)

    def __iter__(self) -> Iterator[Places]:
        """Yield the places of pairs, many at once."""
        (left, right), one, two = self.codes, self.left.held, self.right.held
        for left_from, left_to, right_from, right_to in (
            (one, len(left), 0, two),
            (0, one, two, len(right)),
            (one, len(left), two, len(right)),
        ):
            for places in pairs_of(left[left_from:left_to], right[right_from:right_to]):
                found = places[0] + left_from, places[1] + right_from
                for sign, values in self.values:
                    hold = values.hold(sign, found)
                    found = found[0][hold], found[1][hold]
                if len(found[0]):
                    yield found

    def count_partners(self, watched: Sequence[_Side]) -> None:
        """Count the partners of each row of some sides."""
        left_weights, right_weights = self.left.weights, self.right.weights
        for left, right in self if watched else ():
            for side in watched:
                if side is self.left:
                    np.add.at(side.partners, left, right_weights[right])
                else:
                    np.add.at(side.partners, right, left_weights[left])


@dataclass(frozen=True, slots=True)
class _Values:
    """What a test compares, as numbers that are equal and sort as the values do in Spark."""

    left: np.ndarray
    right: np.ndarray
    left_null: np.ndarray
    right_null: np.ndarray

    @classmethod
    def of(cls, left: pa.ChunkedArray, right: pa.ChunkedArray) -> _Values:
        """Number the values of two columns of one type."""
        both = pa.chunked_array([*left.chunks, *right.cast(left.type).chunks], left.type)
        numbers, null = ranked(both), both.is_null().to_numpy()
        return cls(*np.split(numbers, [len(left)]), *np.split(null, [len(left)]))

    def hold(self, sign: Sign, places: Places) -> np.ndarray:
        """Return for each pair whether its values meet a comparison; null meets none but the last three of `Sign`."""
        left, right = places
        found: np.ndarray = _COMPARE[sign](self.left[left], self.right[right])
        if not (self.left_null.any() or self.right_null.any()):
            return found
        one, two = self.left_null[left], self.right_null[right]
        some, both = one | two, one & two
        if_null = {Sign.SAME: both, Sign.DISTINCT: some & ~both, Sign.EQUAL_OR_UNKNOWN: some}
        found[some] = if_null[sign][some] if sign in if_null else False
        return found
