"""The first rows of each group of an ordered arrangement, read without the rest of the group."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.kernels import (
    cast_to,
    comparable_frame,
    distinct_hashes,
    matched,
    order_frame,
    ranges,
    with_weights,
)

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
    runs = [*arrangement.tables(), layout.sorted(delta)]
    runs = [cast_to(run, runs[0].schema) for run in runs]
    keys = groups.column_names
    wanted = comparable_frame(groups, keys)
    hashes = distinct_hashes(groups)
    found: list[pa.Table] = []
    read = min(max(2 * limit, FIRST_READ), MOST_AT_FIRST)
    while len(hashes):
        heads, cut = _heads(runs, hashes, read)
        rows, ranks, incomplete = _merge(layout, heads, cut, wanted, limit, ties)
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
    wanted: pl.DataFrame,
    limit: int,
    ties: Ties,
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Merge the first rows of all runs.

    Returns:
        The merged rows that no unread row can precede, their ranks, and the hashes of the groups
        that must be read deeper.
    """
    frame, by, descending, nulls_last = order_frame(heads, layout.identity, layout.order)
    frame = frame.hstack(
        [
            pl.Series("run", np.repeat(np.arange(len(cut)), [count for count, _ in cut])),
            pl.Series("row", np.arange(heads.num_rows)),
            pl.Series(WEIGHT, heads[WEIGHT].combine_chunks()),
        ]
    ).sort(by, descending=descending, nulls_last=nulls_last)
    sort_keys = by[1 : len(layout.order) + 1]
    rows = frame.group_by([HASH, *layout.identity], maintain_order=True).agg(
        pl.col("row").first(), pl.len().alias("copies"), pl.col(WEIGHT).sum(),
        *(pl.col(name).first() for name in sort_keys),
    )  # fmt: skip
    count = len(rows)
    number = np.repeat(np.arange(count), rows["copies"].to_numpy())

    # of the runs that have more rows of a hash, the smallest last row bounds what is complete
    hashes, at = np.unique(frame[HASH].to_numpy(), return_inverse=True)
    bound = np.full(len(hashes), count)
    run_of = frame["run"].to_numpy()
    for run, (_, longer) in enumerate(cut):
        in_run, has_more = run_of == run, np.isin(hashes, longer)
        last = np.zeros(len(hashes), np.int64)
        np.maximum.at(last, at[in_run], number[in_run])
        bound[has_more] = np.minimum(bound[has_more], last[has_more])
    hash_index = np.searchsorted(hashes, rows[HASH].to_numpy())
    complete = pl.Series(np.arange(count) <= bound[hash_index])
    rows = rows.filter(complete & (pl.col(WEIGHT) != 0))
    if len(wanted.columns) > 1:
        # another group with the same hash may be incomplete: only the wanted ones are read to the end
        rows = rows.join(
            wanted, on=wanted.columns, how="semi", nulls_equal=True, maintain_order="left"
        )
    rows = _ranked(rows, wanted.columns, sort_keys, ties)
    incomplete = hashes[bound < count]
    if len(incomplete):
        lacking = _lacking(rows, wanted, limit, ties)
        incomplete = np.intersect1d(lacking, incomplete)
    table = heads.take(pa.array(rows["row"].to_numpy()))
    table = with_weights(table, rows[WEIGHT].to_numpy())
    return table, rows[PLACE].to_numpy(), incomplete


def _lacking(rows: pl.DataFrame, wanted: pl.DataFrame, limit: int, ties: Ties) -> np.ndarray:
    """Return the hashes of the wanted groups of which ranked rows don't reach the limit."""
    reached = pl.col(PLACE) + (pl.col(WEIGHT) if ties is Ties.ROW_NUMBER else 0)
    full = rows.group_by(wanted.columns).agg((reached.max() >= limit).alias("full"))
    full = full.filter("full").select(wanted.columns)
    lacking: np.ndarray = wanted.filter(pl.Series(matched(wanted, full) < 0))[HASH].to_numpy()
    return lacking


def _ranked(
    rows: pl.DataFrame, group: Sequence[str], sort_keys: Sequence[str], ties: Ties
) -> pl.DataFrame:
    """Add the rank of each row within its group to sorted rows."""
    before = pl.col(WEIGHT).cum_sum().over(group) - pl.col(WEIGHT)
    rows = rows.with_columns(before.alias(PLACE))
    if ties is Ties.ROW_NUMBER:
        return rows
    first = pl.col(PLACE).min().over([*group, *sort_keys])
    if ties is Ties.RANK:
        return rows.with_columns(first.alias(PLACE))
    rows = rows.with_columns((pl.col(PLACE) == first).alias("starts"))
    return rows.with_columns(
        (pl.col("starts").cum_sum().over(group).cast(pl.Int64) - 1).alias(PLACE)
    )
