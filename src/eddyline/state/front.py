"""Reads the first rows of each group of an ordered arrangement, without the rest of the group."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.grouping import SortKey, block_starts, merged, ranked
from eddyline.state.kernels import distinct_hashes, distinct_values, matched, ranges, with_weights
from eddyline.state.retyping import cast_to

PLACE = "place"
FIRST_READ, MOST_AT_FIRST = 4, 4096
GROWTH = 4


class Ties(StrEnum):
    """How rows with equal sort keys are ranked."""

    ROW_NUMBER = "row_number"  # each row has a rank of its own
    RANK = "rank"  # the number of rows before the first of them
    DENSE_RANK = "dense_rank"  # the number of distinct sort keys before theirs


def front(
    arrangement: Arrangement,
    delta: pa.Table,
    groups: pa.Table,
    limit: int,
    ties: Ties = Ties.ROW_NUMBER,
) -> pa.Table:
    """Return the rows of some groups whose rank is below `limit`.

    Each run is sorted by hash and order, so the first rows of a group are the merge of the first
    rows of its runs. The same number of rows is read from each run; the merge is complete up to the
    smallest of the runs' last rows. A group that needs more (because of deletions or ties) is read
    again, four times as deep. So the cost grows with `limit` and the number of runs, not with the
    size of the group.

    Args:
        arrangement: the stored rows.
        delta: changes on top of them: consolidated rows of the same layout; may be empty.
        groups: the groups to read: `h` and the key columns, each group once.
        limit: the ranks to return are those from 0 up to but not including `limit`.
        ties: how rows with equal sort keys are ranked.

    Returns:
        The columns of the layout, sorted by them, each row once; and `place`, the rank of the row's
        first copy. A negative weight means that a row was retracted that doesn't exist.
    """
    layout = arrangement.layout
    runs = [*arrangement.mapped(), layout.sorted(delta)]
    runs = [cast_to(run, runs[0].schema) for run in runs]
    hashes = distinct_hashes(groups)
    found: list[pa.Table] = []
    read = min(max(2 * limit, FIRST_READ), MOST_AT_FIRST)
    while len(hashes):
        heads, cut = _heads(runs, hashes, read)
        arrangement.touched += heads.num_rows
        rows, ranks, incomplete = _merge(layout, heads, cut, groups, limit, ties)
        complete = ~np.isin(rows[HASH].to_numpy(), incomplete)
        kept = complete & ((ranks < limit) | (rows[WEIGHT].to_numpy() < 0))
        rows = rows.append_column(PLACE, pa.array(ranks))
        found.append(rows.filter(pa.array(kept)))
        hashes = incomplete
        read *= GROWTH
    return pa.concat_tables(found)


def _heads(
    runs: Sequence[pa.Table], hashes: np.ndarray, read: int
) -> tuple[pa.Table, list[tuple[int, np.ndarray]]]:
    """Read the first rows, up to `read`, of each hash in each run.

    Returns:
        The rows, and for each run the number of rows read and the hashes that have more.
    """
    heads, cut = [], []
    for run in runs:
        stored = run[HASH].to_numpy()
        first = np.searchsorted(stored, hashes, "left")
        length = np.searchsorted(stored, hashes, "right") - first
        indices = ranges(first, np.minimum(length, read))
        heads.append(run.take(pa.array(indices)))
        cut.append((len(indices), hashes[length > read]))
    return pa.concat_tables(heads), cut


def _merge(
    layout: Layout,
    heads: pa.Table,
    cut: Sequence[tuple[int, np.ndarray]],
    wanted: pa.Table,
    limit: int,
    ties: Ties,
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Merge the first rows of all runs.

    Returns:
        The merged rows that no unread row can precede, their ranks, and the hashes of the groups
        that must be read deeper.
    """
    merge = merged(heads, layout.identity, layout.order)
    weights, first, number = merge.sums(heads[WEIGHT].to_numpy()), merge.first, merge.number
    row_hashes = heads[HASH].to_numpy()[first]

    # the merge is complete up to the smallest last row among the runs with unread rows of a hash
    hashes = distinct_values(row_hashes)
    bound = np.full(len(hashes), len(first))
    begin = 0
    for count, longer in cut:
        at = np.searchsorted(hashes, heads[HASH].to_numpy()[begin : begin + count])
        last = np.zeros(len(hashes), np.int64)
        np.maximum.at(last, at, number[begin : begin + count])
        more = np.searchsorted(hashes, longer)
        bound[more] = np.minimum(bound[more], last[more])
        begin += count
    complete = np.arange(len(first)) <= bound[np.searchsorted(hashes, row_hashes)]
    kept = complete & (weights != 0)
    rows = heads.take(pa.array(first[kept]))
    rows = with_weights(rows, weights[kept])
    # another group with the same hash may be incomplete: only the wanted ones are read to the end
    group = matched(rows.select(wanted.column_names), wanted)
    if (group < 0).any():
        rows, group = rows.filter(pa.array(group >= 0)), group[group >= 0]
    ranks = _ranks(rows, group, layout.order, ties)
    incomplete = hashes[bound < len(first)]
    if len(incomplete):
        lacking = _lacking(rows, group, ranks, wanted, limit, ties)
        incomplete = np.intersect1d(lacking, incomplete)
    return rows, ranks, incomplete


def _lacking(
    rows: pa.Table, group: np.ndarray, ranks: np.ndarray, wanted: pa.Table, limit: int, ties: Ties
) -> np.ndarray:
    """Return the hashes of the wanted groups whose merged rows don't reach the limit yet."""
    reached = ranks + (rows[WEIGHT].to_numpy() if ties is Ties.ROW_NUMBER else 0)
    most = np.full(wanted.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(most, group, reached)
    lacking: np.ndarray = wanted[HASH].to_numpy()[most < limit]
    return lacking


def _ranks(rows: pa.Table, group: np.ndarray, order: Sequence[SortKey], ties: Ties) -> np.ndarray:
    """Return the rank of each row within its group; the rows are sorted."""
    places = np.argsort(group, kind="stable")
    weights = rows[WEIGHT].to_numpy()[places]
    before = np.cumsum(weights) - weights
    starts = block_starts(group[places])
    before -= _first_of(before, starts)
    if ties is not Ties.ROW_NUMBER:
        begins = starts.copy()
        for key in order:
            numbers = ranked(rows[key.column])[places]
            begins[1:] |= numbers[1:] != numbers[:-1]
        if ties is Ties.RANK:
            before = _first_of(before, begins)
        else:
            tie = np.cumsum(begins)
            before = tie - _first_of(tie, starts)
    ranks = np.empty(len(places), np.int64)
    ranks[places] = before
    return ranks


def _first_of(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return for each value the first value of its block."""
    return values[np.flatnonzero(starts)][np.cumsum(starts) - 1] if len(values) else values
