"""The best rows of each group of an arrangement that keeps an order, without reading the others."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.changes import HASH, WEIGHT
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.kernels import (
    hashes_of,
    identities,
    in_types_of,
    matched,
    order_frame,
    ranges,
    with_weights,
)

PLACE = "place"
FIRST_READ, MOST_AT_FIRST = 4, 4096
GROWTH = 4


class Ties(StrEnum):
    """How the place of a row is counted among rows that the order finds equal."""

    ROW_NUMBER = "row_number"  # each row has its own
    RANK = "rank"  # rows before the first of them
    DENSE_RANK = "dense_rank"  # different sort keys before theirs


def front(
    arrangement: Arrangement,
    delta: pa.Table,
    groups: pa.Table,
    limit: int,
    ties: Ties = Ties.ROW_NUMBER,
) -> pa.Table:
    """The rows of some groups whose place is below `limit`, of the state and a delta on top of it.

    Each run is sorted by hash and order, so the front of a group is the merge of the fronts of its
    runs. Of each run the same number of rows is read; what the merge gives is complete up to the
    first of the runs' last rows. A group that needs more (because of deletions, or ties) is read
    again, four times as deep. So the cost follows `limit` and the number of runs, not the group.

    Args:
        delta: consolidated rows in the arrangement's layout, as one more run; may be empty.
        groups: the wanted groups: `h` and the key columns, each group once.

    Returns:
        the columns of the layout, sorted by them, each row once; and `place`, that of the row's
        first copy. A weight below zero says that a row was retracted which is not there.
    """
    layout = arrangement.layout
    runs = [*arrangement.tables(), layout.sorted(delta)]
    runs = [in_types_of(run, runs[0].schema) for run in runs]
    keys = groups.column_names
    wanted = identities(groups, keys)
    hashes = hashes_of(groups)
    found: list[pa.Table] = []
    read = min(max(2 * limit, FIRST_READ), MOST_AT_FIRST)
    while len(hashes):
        taken, cut = _heads(runs, hashes, read)
        rows, places, short = _merged(layout, taken, cut, wanted, limit, ties)
        settled = ~np.isin(rows[HASH].to_numpy(), short)
        kept = settled & ((places < limit) | (rows[WEIGHT].to_numpy() < 0))
        rows = rows.append_column(PLACE, pa.array(places))
        found.append(rows.filter(pa.array(kept)))
        hashes = short
        read *= GROWTH
    return pa.concat_tables(found)


def _heads(
    runs: Sequence[pa.Table], hashes: np.ndarray, read: int
) -> tuple[pa.Table, list[tuple[int, np.ndarray]]]:
    """Up to `read` first rows of each hash in each run.

    Returns:
        the rows, and for each run its number of rows and which hashes go on behind them.
    """
    taken, cut = [], []
    for run in runs:
        stored = run[HASH].to_numpy()
        first = np.searchsorted(stored, hashes, "left")
        length = np.searchsorted(stored, hashes, "right") - first
        places = ranges(first, np.minimum(length, read))
        taken.append(run.take(pa.array(places)))
        cut.append((len(places), hashes[length > read]))
    return pa.concat_tables(taken), cut


def _merged(
    layout: Layout,
    taken: pa.Table,
    cut: Sequence[tuple[int, np.ndarray]],
    wanted: pl.DataFrame,
    limit: int,
    ties: Ties,
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """The rows that are complete, their places, and the hashes of groups that need more."""
    frame, by, descending, nulls_last = order_frame(taken, layout.identity, layout.order)
    frame = frame.with_columns(
        pl.Series("run", np.repeat(np.arange(len(cut)), [count for count, _ in cut])),
        pl.Series("row", np.arange(taken.num_rows)),
        pl.Series(WEIGHT, taken[WEIGHT].combine_chunks()),
    ).sort(by, descending=descending, nulls_last=nulls_last)
    sort_keys = by[1 : len(layout.order) + 1]
    rows = frame.group_by([HASH, *layout.identity], maintain_order=True).agg(
        pl.col("row").first(), pl.len().alias("copies"), pl.col(WEIGHT).sum(),
        *(pl.col(name).first() for name in sort_keys),
    )  # fmt: skip
    count = len(rows)
    number = np.repeat(np.arange(count), rows["copies"].to_numpy())

    # a hash is complete up to the first of the last rows of those runs that go on
    hashes, at = np.unique(frame[HASH].to_numpy(), return_inverse=True)
    bound = np.full(len(hashes), count)
    run_of = frame["run"].to_numpy()
    for run, (_, longer) in enumerate(cut):
        mine, goes_on = run_of == run, np.isin(hashes, longer)
        last = np.zeros(len(hashes), np.int64)
        np.maximum.at(last, at[mine], number[mine])
        bound[goes_on] = np.minimum(bound[goes_on], last[goes_on])
    place_of_hash = np.searchsorted(hashes, rows[HASH].to_numpy())
    complete = pl.Series(np.arange(count) <= bound[place_of_hash])
    rows = rows.filter(complete & (pl.col(WEIGHT) != 0))
    # another group of the same hash may be cut short: only the wanted ones are read to their end
    rows = rows.join(wanted, on=wanted.columns, how="semi", nulls_equal=True, maintain_order="left")
    rows = _placed(rows, wanted.columns, sort_keys, ties)

    reached = pl.col(PLACE) + (pl.col(WEIGHT) if ties is Ties.ROW_NUMBER else 0)
    full = rows.group_by(wanted.columns).agg((reached.max() >= limit).alias("full"))
    full = full.filter("full").select(wanted.columns)
    lacking = wanted.filter(pl.Series(matched(wanted, full) < 0))[HASH].to_numpy()
    short = np.intersect1d(lacking, hashes[bound < count])
    table = taken.take(pa.array(rows["row"].to_numpy()))
    table = with_weights(table, rows[WEIGHT].to_numpy())
    return table, rows[PLACE].to_numpy(), short


def _placed(
    rows: pl.DataFrame, group: Sequence[str], sort_keys: Sequence[str], ties: Ties
) -> pl.DataFrame:
    """Sorted rows with their places within their groups."""
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
