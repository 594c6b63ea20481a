"""Reads the rows next to changes in ordered groups, without the rest of the group.

Each run is sorted by hash and order, so a binary search by the first sort key finds the place of a change in it. The cost
grows with the number of changes, with how far around them is read, and with the number of runs, not
with the size of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.grouping import SortKey, group_rows, merged
from eddyline.state.kernels import matched, ranges
from eddyline.state.retyping import cast_to
from eddyline.state.search import key_ranges, keys_of

FIRST_READ = 8
GROWTH = 4


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of groups: each is a contiguous part of a group, in order.

    Attributes:
        rows: the rows, each once, by group and in order.
        old, new: how many copies of each there are before the changes and after them.
        stretch: the number of each row's stretch, from 0; the rows of a stretch are consecutive.
    """

    rows: pa.Table
    old: np.ndarray
    new: np.ndarray
    stretch: np.ndarray


def rows_around(
    arrangement: Arrangement, delta: pa.Table, group: Sequence[str], reach: int
) -> Stretches:
    """Return the changed rows, and up to `reach` rows before and after each.

    The same number of rows is read on both sides of a change in each run; their merge is complete between the
    innermost of the runs' ends. Where that isn't enough (because of deletions or equal
    keys) four times as many are read. If the first sort key is neither a number nor a time, whole groups are read.

    Args:
        arrangement: the stored rows, in order.
        delta: the changes: consolidated rows of the same layout.
        group: the columns that tell the groups of a hash apart.
        reach: how many rows there are to be on each side of a change, before the changes and after them;
            fewer only where the group ends.
    """
    layout = arrangement.layout
    changes, runs = _sorted(arrangement, delta)
    if not runs:
        return _first(changes, group)
    found: list[Stretches] = []
    read = max(2 * reach, FIRST_READ)
    while changes.num_rows:
        near, again = _read(layout, runs, changes, group, reach, read)
        arrangement.touched += near.rows.num_rows
        found.append(near)
        changes = changes.filter(pa.array(np.isin(changes[HASH].to_numpy(), again)))
        read *= GROWTH
    return _joined(found)


def values_around(
    arrangement: Arrangement, delta: pa.Table, group: Sequence[str], reach: int
) -> Stretches:
    """Return the changed rows, and the rows of their groups whose sort keys differ from theirs by at most `reach`.

    Args:
        arrangement: the stored rows, in the order of one key, whose type can be searched.
        delta, group: as `rows_around` takes them.
        reach: as large as a difference may be, of the stored numbers: days of dates, microseconds of timestamps.
    """
    layout = arrangement.layout
    changes, runs = _sorted(arrangement, delta)
    if not runs:
        return _first(changes, group)
    pieces = []
    for run in runs:
        _, _, first, end = key_ranges(run, changes, layout.order[0], reach, reach)
        pieces.append(run.take(pa.array(_union(first, end))))
    near, _ = _Around.of(layout, changes, pieces, group)
    _, _, first, end = key_ranges(near.in_order, changes, layout.order[0], reach, reach)
    found = near.stretches(*near.spans(first, end - 1))
    arrangement.touched += found.rows.num_rows
    return found


@dataclass(frozen=True, slots=True)
class Tails:
    """For each changed group the rows from its first change to its end.

    Attributes:
        groups: the hash and the columns of each group, each once.
        rows: the stored rows from there on, each once, in no particular order.
        before: the last row before; only of groups that have one.
        of: the place of each such row's group in `groups`.
    """

    groups: pa.Table
    rows: pa.Table
    before: pa.Table
    of: np.ndarray


def tails(arrangement: Arrangement, changes: pa.Table, group: Sequence[str]) -> Tails | None:
    """Return the stored rows of changed groups whose first sort key isn't before that of each change, and the last one before.

    If the first sort key is neither a number nor a time, they are all rows of the groups.

    Args:
        arrangement: the stored rows, in order.
        changes: rows sorted by hash and in that order, with these columns and maybe others.
        group: the columns that tell the groups of a hash apart.

    Returns:
        None if nothing is stored.
    """
    runs = arrangement.mapped()
    if not runs:
        return None
    layout, key = arrangement.layout, arrangement.layout.order[0]
    runs = [cast_to(run, runs[0].schema) for run in runs]
    columns = [HASH, *group]
    firsts = changes.take(pa.array(group_rows(changes, columns).first))
    found = []
    for run in runs:
        _, high, left, _ = key_ranges(run, firsts, key)
        found.append(run.take(pa.array(_union(left, high))))
    rows = layout.consolidate(pa.concat_tables(found))
    place, sooner = _located(rows, firsts, group, key)
    mine = (place >= 0) & ~sooner
    if not mine.all():  # hashes collide
        rows = rows.filter(pa.array(mine))
    before, of = _last_before(layout, runs, firsts, group)
    arrangement.touched += rows.num_rows + before.num_rows
    return Tails(firsts.select(columns), rows, before, of)


def _last_before(
    layout: Layout, runs: Sequence[pa.Table], firsts: pa.Table, group: Sequence[str]
) -> tuple[pa.Table, np.ndarray]:
    """Return of each group the last row whose first sort key is before that of its first change.

    The same number of rows is read from each run; their merge is complete from the last of the runs' first ones on. Where
    that isn't enough (because of deletions) four times as many are read.

    Returns:
        The rows, and for each of them the place of its group in `firsts`.
    """
    key = layout.order[0]
    found, of = [runs[0].slice(0, 0)], [np.empty(0, np.int64)]
    open_, read = np.arange(firsts.num_rows), FIRST_READ
    while len(open_):
        wanted = firsts.take(pa.array(open_))
        pieces, reads, begin = [], [], 0
        for run in runs:
            low, _, left, _ = key_ranges(run, wanted, key)
            first = np.maximum(low, left - read)
            indices = _union(first, left)
            pieces.append(run.take(pa.array(indices)))
            reads.append((begin + np.searchsorted(indices, first), first > low))
            begin += len(indices)
        rows = pa.concat_tables(pieces)
        merge = merged(rows, layout.identity, layout.order)
        complete, cut = np.zeros(len(open_), np.int64), np.zeros(len(open_), bool)
        for starts, more in reads:
            complete[more] = np.maximum(complete[more], merge.number[starts[more]])
            cut |= more
        in_order = rows.take(pa.array(merge.first))
        place, sooner = _located(in_order, wanted, group, key)
        there = sooner & (merge.sums(rows[WEIGHT].to_numpy()) > 0)
        at = np.flatnonzero(there & (np.arange(len(place)) >= complete[place]))
        last = np.full(len(open_), -1)
        np.maximum.at(last, place[at], at)
        known = np.flatnonzero(last >= 0)
        found.append(in_order.take(pa.array(last[known])))
        of.append(open_[known])
        open_, read = open_[(last < 0) & cut], read * GROWTH
    return pa.concat_tables(found), np.concatenate(of)


def _located(
    rows: pa.Table, firsts: pa.Table, group: Sequence[str], key: SortKey
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each row the place of its group in `firsts`, or -1, and whether its sort key is before the one there."""
    columns = [HASH, *group]
    place = matched(rows.select(columns), firsts.select(columns))
    held, given = keys_of(rows, key), keys_of(firsts, key)
    if held is None or given is None:
        return place, np.zeros(len(place), bool)
    side, number = held.at(np.arange(len(place)))
    least_side, least = (part[place] for part in given.at(np.arange(firsts.num_rows)))
    sooner = (side < least_side) | ((side == least_side) & (number < least))
    return place, sooner & (place >= 0)


def _sorted(arrangement: Arrangement, delta: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
    """Return the changes in order, and the runs, all with the same types."""
    changes = arrangement.layout.sorted(delta)
    return changes, [cast_to(run, changes.schema) for run in arrangement.mapped()]


def _first(changes: pa.Table, group: Sequence[str]) -> Stretches:
    """Return the stretches where nothing is stored yet: the changes are whole groups."""
    groups = group_rows(changes, [HASH, *group]).of
    if len(groups) and np.diff(groups).min(initial=0) < 0:  # the hashes of some collide
        by_group = np.argsort(groups, kind="stable")
        changes, groups = changes.take(pa.array(by_group)), groups[by_group]
    weights = changes[WEIGHT].to_numpy()
    return Stretches(changes, np.zeros(len(weights), np.int64), weights, groups)


@dataclass(frozen=True, slots=True)
class _Around:
    """The changes merged with what was read of the runs; equal rows are one, and numbered in order.

    Attributes:
        in_order: the rows by hash and in order.
        by_group: their numbers by group: hashes can collide, so the rows of a group need not be neighbours.
        old, new: how many copies of each there are, by group.
        own: the number of each change.
        place: for each row by group what `base` and its number add up to.
        base: for each change where the places of its group begin.
    """

    in_order: pa.Table
    by_group: np.ndarray
    old: np.ndarray
    new: np.ndarray
    own: np.ndarray
    place: np.ndarray
    base: np.ndarray

    @classmethod
    def of(
        cls, layout: Layout, changes: pa.Table, pieces: Sequence[pa.Table], group: Sequence[str]
    ) -> tuple[_Around, np.ndarray]:
        """Merge rows; also return the number that each of them got."""
        rows = pa.concat_tables([changes, *pieces])
        merge = merged(rows, layout.identity, layout.order)
        weights = rows[WEIGHT].to_numpy().copy()
        new = merge.sums(weights)
        weights[: changes.num_rows] = 0
        old = merge.sums(weights)
        in_order = rows.take(pa.array(merge.first))
        groups = group_rows(in_order, [HASH, *group]).of
        by_group = np.argsort(groups, kind="stable")
        own, count = merge.number[: changes.num_rows], in_order.num_rows
        place, base = groups[by_group] * count + by_group, groups[own] * count
        found = cls(in_order, by_group, old[by_group], new[by_group], own, place, base)
        return found, merge.number

    def spans(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each change the begin and end, in `by_group`, of the rows of its group with numbers in a range."""
        begin = np.searchsorted(self.place, self.base + first)
        return begin, np.searchsorted(self.place, self.base + last, "right")

    def stretches(self, first: np.ndarray, end: np.ndarray) -> Stretches:
        """Return the rows in some spans; spans that overlap become one stretch."""
        order = np.lexsort((end, first))
        first, end = first[order], np.maximum.accumulate(end[order])
        starts = np.flatnonzero(first >= np.concatenate(([-1], end[:-1])))
        lengths = np.maximum.reduceat(end, starts) - first[starts] if len(starts) else first
        kept = ranges(first[starts], lengths)
        rows = self.in_order.take(pa.array(self.by_group[kept]))
        stretch = np.repeat(np.arange(len(starts)), lengths)
        return Stretches(rows, self.old[kept], self.new[kept], stretch)


def _read(
    layout: Layout,
    runs: Sequence[pa.Table],
    changes: pa.Table,
    group: Sequence[str],
    reach: int,
    read: int,
) -> tuple[Stretches, np.ndarray]:
    """Read up to `read` rows on each side of each change from each run.

    Returns:
        The stretches of the groups where that is enough, and the hashes of the others.
    """
    pieces, reads, begin = [], [], changes.num_rows
    for run in runs:
        low, high, left, right = key_ranges(run, changes, layout.order[0])
        first, end = np.maximum(low, left - read), np.minimum(high, right + read)
        indices = _union(first, end)
        pieces.append(run.take(pa.array(indices)))
        some = end > first
        starts = np.where(some, begin + np.searchsorted(indices, first), 0)
        lasts = np.where(some, begin + np.searchsorted(indices, end) - 1, 0)
        reads.append((starts, lasts, first > low, end < high))
        begin += len(indices)
    near, number = _Around.of(layout, changes, pieces, group)

    # around each change the merge is complete between the innermost ends of the runs with unread rows
    rows = len(near.by_group)
    first, last = np.zeros(len(near.own), np.int64), np.full(len(near.own), rows - 1)
    before_cut = after_cut = np.zeros(len(near.own), bool)
    for starts, lasts, more_before, more_after in reads:
        first = np.where(more_before, np.maximum(first, number[starts]), first)
        last = np.where(more_after, np.minimum(last, number[lasts]), last)
        before_cut, after_cut = before_cut | more_before, after_cut | more_after
    begin_, end_ = near.spans(first, last)
    at = np.searchsorted(near.place, near.base + near.own)
    enough = np.ones(len(at), bool)
    for copies in (near.old, near.new):
        total = np.concatenate(([0], np.cumsum(copies)))
        enough &= ~before_cut | (total[at] - total[begin_] >= reach)
        enough &= ~after_cut | (total[end_] - total[at + 1] >= reach)
    hashes = changes[HASH].to_numpy()
    again = np.unique(hashes[~enough])
    done = ~np.isin(hashes, again)
    return near.stretches(begin_[done], end_[done]), again


def _union(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the sorted union of integer ranges `[first, end)`, whose bounds are both sorted."""
    unread = np.maximum(first, np.concatenate(([0], end[:-1])))
    return ranges(unread, np.maximum(end - unread, 0))


def _joined(parts: Sequence[Stretches]) -> Stretches:
    if len(parts) == 1:
        return parts[0]
    counts = [int(part.stretch.max(initial=-1)) + 1 for part in parts]
    offsets = np.concatenate(([0], np.cumsum(counts[:-1])))
    return Stretches(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.old for part in parts]),
        np.concatenate([part.new for part in parts]),
        np.concatenate([p.stretch + o for p, o in zip(parts, offsets, strict=True)]),
    )
