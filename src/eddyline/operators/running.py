"""Running totals, extremes and ranks in the order of a partition: stored with each row, recomputed from the first change on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.errors import DataError
from eddyline.operators.base import BucketResult, State, checked_weights, numbered
from eddyline.state.around import Tails, tails
from eddyline.state.arrangement import Layout
from eddyline.state.grouping import SortKey, block_starts, group_rows, merged, ranked
from eddyline.state.kernels import matched, with_weights
from eddyline.state.retyping import cast_to
from eddyline.state.running_totals import (
    lengths_of,
    places_of_largest,
    totals,
    totals_of_decimals,
    totals_of_doubles,
    totals_overflow,
)

SLOT = "rows"
PLACE = "place"

DIGITS_MORE = 10
"""How many more digits a sum of decimals has than its values, as in Spark."""


class Function(StrEnum):
    """The running functions over the rows of a partition, in order."""

    RANK = "rank"
    DENSE_RANK = "dense_rank"
    COUNT = "count"
    SUM = "sum"
    DOUBLE_SUM = "sum of doubles"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    FIRST_PRESENT = "first that isn't null"
    LAST_PRESENT = "last that isn't null"


@dataclass(frozen=True, slots=True)
class Call:
    """A running function.

    Attributes:
        column: the place of its argument among the `c` columns; -1 for a rank, and for a COUNT of all rows.
        peers: whether all rows with the same sort keys have the result of the last of them (a frame of RANGE).
    """

    function: Function
    column: int = -1
    peers: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """Keep rows by partition, in order, each with its place and its running results; emit the rows where these change.

    Each result follows from that of the row before. So results before the first change of a partition stay, and the others
    are computed from the last unchanged one on. The cost grows with the number of rows from the first change on.

    Input: `h, k0.., s0.., c0.., w`: the partition's key and its hash, the sort keys, the row. Output:
    `h, c0.., place, a0.., w` with a result `a` for each call; places are from 1, and equal rows have one each. Where
    the sort keys leave rows equal, the values of the rows decide. A COUNT is of the values that aren't null; a SUM
    (a DOUBLE_SUM of any numbers), MIN and MAX, FIRST_PRESENT and LAST_PRESENT are null where there is none; FIRST and LAST are
    the values of the first and the last row, null or not.

    Attributes:
        calls: the functions.
        keys, columns: number of `k` and of `c` columns.
        descending, nulls_last: for each sort key.
        placed: whether to emit `place`.
        checked: whether a sum of integers beyond 64 bits is an error; otherwise it wraps around.
    """

    family: ClassVar[str] = "window"
    calls: tuple[Call, ...]
    keys: int
    columns: int
    descending: tuple[bool, ...]
    nulls_last: tuple[bool, ...]
    placed: bool = True
    checked: bool = False

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: all rows by partition, in order, with their places and results."""
        row = (*self._row, PLACE, *numbered("a", len(self.calls)))
        return {SLOT: Layout(row, order=self._order)}

    @property
    def _row(self) -> tuple[str, ...]:
        sorts, columns = numbered("s", len(self.descending)), numbered("c", self.columns)
        return (*numbered("k", self.keys), *sorts, *columns)

    @property
    def _order(self) -> tuple[SortKey, ...]:
        sorts = numbered("s", len(self.descending))
        return tuple(map(SortKey, sorts, self.descending, self.nulls_last))

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        given, kept = Layout(self._row, order=self._order), self.layouts[SLOT]
        delta = given.consolidate(delta.select(given.columns))
        if delta.num_rows == 0:
            return BucketResult([])
        old = tails(state[SLOT], given.sorted(delta), numbered("k", self.keys))
        new = self._computed(given, delta, old)
        if old is not None:
            gone = with_weights(old.rows, -old.rows[WEIGHT].to_numpy())
            new = pa.concat_tables([cast_to(new, gone.schema), gone])
        change = kept.consolidate(new)
        results = [PLACE] * self.placed + [*numbered("a", len(self.calls))]
        shown = Layout((*numbered("c", self.columns), *results))
        return BucketResult([shown.consolidate(change.select(shown.columns))], {SLOT: change})

    def _computed(self, given: Layout, delta: pa.Table, old: Tails | None) -> pa.Table:
        """Return the rows from the first change of each group on, after the epoch, each copy with its results."""
        if old is not None:
            stored = old.rows.select(given.columns)
            delta = pa.concat_tables([cast_to(delta, stored.schema), stored])
        merge = merged(delta, given.identity, given.order)
        rows = delta.take(pa.array(merge.first))
        count = merge.sums(delta[WEIGHT].to_numpy())
        checked_weights("window", with_weights(rows, count))
        key = [HASH, *numbered("k", self.keys)]
        group = group_rows(rows, key).of
        order = np.arange(len(group))
        if (np.diff(group) < 0).any():  # hashes collide
            order = np.argsort(group, kind="stable")
        copies = np.repeat(order, count[order])
        rows, group = with_weights(rows.take(pa.array(copies)), np.ones_like(copies)), group[copies]
        first = np.flatnonzero(block_starts(group))
        before = None if old is None else old.before
        of = np.full(len(first), -1)
        if old is not None:
            places = matched(rows.select(key).take(pa.array(first)), old.groups)
            by_group = np.full(old.groups.num_rows, -1)
            by_group[old.of] = np.arange(len(old.of))
            of = by_group[places]
        return self._with_results(given, rows, _Line(first, len(copies), before, of))

    def _with_results(self, given: Layout, rows: pa.Table, line: _Line) -> pa.Table:
        """Return the rows in order, with their places and the results of the calls."""
        place = line.counted(PLACE, np.ones(rows.num_rows, np.int64))
        begins = _peers_begin(rows, line.first, given.order)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], rows.num_rows) - 1
        peers = np.cumsum(begins) - 1
        found = {PLACE: pa.array(place)}
        for name, call in zip(numbered("a", len(self.calls)), self.calls, strict=True):
            match call.function:
                case Function.RANK:
                    result = pa.array(place[first[peers]])
                case Function.DENSE_RANK:
                    result = pa.array(line.counted(name, begins))
                case Function.COUNT if call.column < 0:
                    result = pa.array(place)
                case _:
                    result = self._result(call, line, name, rows[f"c{call.column}"])
            found[name] = result.take(pa.array(last[peers])) if call.peers else result
        names = given.columns[:-1]
        columns = [*(rows[name] for name in names), *found.values(), rows[WEIGHT]]
        return pa.table(columns, names=[*names, *found, WEIGHT])

    def _result(self, call: Call, line: _Line, name: str, argument: pa.ChunkedArray) -> pa.Array:
        values = argument.combine_chunks()
        match call.function:
            case Function.COUNT:
                return pa.array(line.counted(name, values.is_valid().to_numpy(False)))
            case Function.SUM:
                return self._sums(line, name, values)
            case Function.DOUBLE_SUM:
                return self._sums(line, name, values.cast(pa.float64(), safe=False))
            case Function.LAST:
                return values
        entries = line.entries(name, values)
        match call.function:
            case Function.FIRST:
                # before the first row of a group there is none
                at = np.where(line.of < 0, line.start + 1, line.start)
                return entries.take(pa.array(np.repeat(at, line.length)))
            case Function.FIRST_PRESENT | Function.LAST_PRESENT:
                return entries.take(pa.array(_present(call.function, line, entries)))
        order = ranked(entries, descending=call.function is Function.MIN)
        ranks = np.unique(order, return_inverse=True)[1] + 1
        ranks[entries.is_null().to_numpy(False)] = 0
        return entries.take(pa.array(places_of_largest(ranks, line.start)[line.at]))

    def _sums(self, line: _Line, name: str, values: pa.Array) -> pa.Array:
        kind = values.type
        if pa.types.is_decimal(kind):
            wide = pa.decimal128(kind.precision + DIGITS_MORE, kind.scale)
        else:
            wide = pa.float64() if pa.types.is_floating(kind) else pa.int64()
        entries = line.entries(name, values.cast(wide))
        if pa.types.is_decimal(kind):
            total = totals_of_decimals(entries, line.start)
        elif pa.types.is_floating(kind):
            total = pa.array(totals_of_doubles(entries.fill_null(0).to_numpy(), line.start))
        else:
            numbers = entries.fill_null(0).to_numpy()
            if self.checked and (beyond := totals_overflow(numbers, line.start)) is not None:
                _check_range(beyond)
            total = pa.array(totals(numbers, line.start))
        some = totals(entries.is_valid().to_numpy(False).astype(np.int64), line.start) > 0
        shown = pc.if_else(pa.array(some), total, pa.scalar(None, wide))
        return shown.take(pa.array(line.at))


def _peers_begin(rows: pa.Table, first: np.ndarray, order: Sequence[SortKey]) -> np.ndarray:
    """Return which rows begin a set of peers: their sort keys or group differ from those of the row before.

    Args:
        first: where the rows of each group begin.
    """
    begins = np.zeros(rows.num_rows, bool)
    begins[first] = True
    for key in order:
        ranks = ranked(rows[key.column])
        begins[1:] |= ranks[1:] != ranks[:-1]
    return begins


def _present(function: Function, line: _Line, entries: pa.Array) -> np.ndarray:
    """Return for each row the place of the first or last non-null entry up to it; that of a null if there is none."""
    valid, at = entries.is_valid().to_numpy(False), line.at
    if function is Function.LAST_PRESENT:
        begins = np.repeat(line.start, line.length + 1)
        latest = np.maximum.accumulate(np.where(valid, np.arange(len(entries)), begins))
        found: np.ndarray = latest[at]
        return found
    places = np.flatnonzero(valid)
    firsts = np.append(places, len(entries))[np.searchsorted(places, line.start)]
    first, start = (np.repeat(one, line.length) for one in (firsts, line.start))
    return np.where(first <= at, first, start)


def _check_range(beyond: np.ndarray) -> None:
    """Raise DataError ARITHMETIC_OVERFLOW if a running sum doesn't fit into 64 bits."""
    if beyond.any():
        raise DataError(
            "a running sum is beyond the range of BIGINT",
            condition="ARITHMETIC_OVERFLOW",
            operator="window",
            hint="delete or correct its rows; or sum a wider type: sum(CAST(value AS DECIMAL(20, 0)))",
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """The rows of groups in sequence, with an extra entry before each group for the row that precedes it.

    Attributes:
        first: where the rows of each group begin.
        rows: how many rows there are.
        before: preceding rows, with their results; None for none.
        of: for each group the place of its preceding row; -1 for none.
    """

    first: np.ndarray
    rows: int
    before: pa.Table | None
    of: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """Where the entries of each group begin."""
        return self.first + np.arange(len(self.first))

    @property
    def length(self) -> np.ndarray:
        """The number of rows of each group."""
        return lengths_of(self.first, self.rows)

    @property
    def at(self) -> np.ndarray:
        """The entry of each row."""
        return np.arange(self.rows) + np.repeat(np.arange(len(self.first)) + 1, self.length)

    def entries(self, name: str, values: pa.Array) -> pa.Array:
        """Return the values of all entries: those of the rows, and for the extra ones a column of the preceding row, or null."""
        held = pa.nulls(0, values.type)
        if self.before is not None:
            held = self.before[name].combine_chunks().cast(values.type)
        both = pa.concat_arrays([held, values])
        places = np.empty(self.rows + len(self.first), np.int64)
        places[self.at] = len(held) + np.arange(self.rows)
        places[self.start] = self.of
        return both.take(pa.array(places, mask=places < 0))

    def counted(self, name: str, counts: np.ndarray) -> np.ndarray:
        """Return running counts: the value in a column of the preceding row, plus the counts of the rows up to each."""
        entries = self.entries(name, pa.array(counts.astype(np.int64))).fill_null(0)
        found: np.ndarray = totals(entries.to_numpy(), self.start)[self.at]
        return found
