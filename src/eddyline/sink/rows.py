"""Converts changes for targets: paired by key, or as a change feed with Spark's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eddyline.changes import (
    AFTER,
    APPEND,
    BEFORE,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    OPERATION,
    WEIGHT,
    Epoch,
)
from eddyline.state.grouping import group_rows
from eddyline.state.kernels import repeat

_SIDE, _AT = "side", "at"


@dataclass(frozen=True, slots=True)
class KeyedChanges:
    """Net changes, paired by key. Rows of weight n occur n times.

    Attributes:
        inserted: rows with a new key.
        before, after: the old and the new row of each other key, in the same order.
        deleted: rows whose key is gone.
    """

    inserted: pa.Table
    before: pa.Table
    after: pa.Table
    deleted: pa.Table

    @property
    def upserted(self) -> pa.Table:
        """The rows that are new or have changed."""
        return pa.concat_tables([self.inserted, self.after])


def keyed_changes(changes: pa.Table, key: Sequence[str] | None) -> KeyedChanges:
    """Pair changes in the form that `Sink` describes.

    Args:
        key: names of columns; without columns, all rows have the same key; None: nothing is paired.

    Example:
        >>> changes = pa.table({"k": [1, 1, 2], "op": ["delete", "append", "append"], "w": [-1, 1, 1]})
        >>> done = keyed_changes(changes, ["k"])
        >>> done.inserted["k"].to_pylist(), done.after["k"].to_pylist()
        ([2], [1])
    """
    return _keyed(*_weighted(changes), key)


def change_feed(changes: pa.Table, key: Sequence[str] | None) -> pa.Table:
    """Return changes in the form that `Sink` describes as rows with `_change_type`.

    Args:
        key: as in `keyed_changes`.
    """
    return feed_of(*_weighted(changes), key)


def feed_of(rows: pa.Table, weights: npt.NDArray[np.int64], key: Sequence[str] | None) -> pa.Table:
    """Return weighted rows as rows with `_change_type`.

    Deletes come first, inserts last; in between the old and the new row of a key follow each other.

    Args:
        key: as in `keyed_changes`.
    """
    done = _keyed(rows, weights, key)
    count = done.before.num_rows
    both = np.arange(2 * count).reshape(2, count).T.ravel()  # old and new in turns
    kinds = np.repeat(
        np.array([DELETE, BEFORE, INSERT], object),
        [done.deleted.num_rows, 2 * count, done.inserted.num_rows],
    )
    kinds[done.deleted.num_rows + 1 : done.deleted.num_rows + 2 * count : 2] = AFTER
    updated = pa.concat_tables([done.before, done.after]).take(pa.array(both))
    # an empty first chunk makes PySpark lose the others
    feed = pa.concat_tables([done.deleted, updated, done.inserted]).combine_chunks()
    return feed.append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))


def with_commit(feed: pa.Table, epoch: Epoch, committed_at: int) -> pa.Table:
    """Append `_commit_version` and `_commit_timestamp` to a change feed.

    Args:
        committed_at: when the epoch was committed, in microseconds since 1970.
    """
    time = pa.scalar(committed_at, pa.timestamp("us", "UTC"))
    feed = feed.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(epoch, pa.int64()), len(feed)))
    return feed.append_column(COMMIT_TIMESTAMP, pa.repeat(time, len(feed)))


def _weighted(changes: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    count = changes.num_columns - 2
    return changes.select(range(count)), changes.column(count + 1).to_numpy()


def _keyed(
    rows: pa.Table, weights: npt.NDArray[np.int64], key: Sequence[str] | None
) -> KeyedChanges:
    gone, come = repeat(rows, -weights), repeat(rows, weights)
    old, new = paired(gone, come, key)
    return KeyedChanges(
        come.filter(_others(come.num_rows, new)),
        gone.take(old),
        come.take(new),
        gone.filter(_others(gone.num_rows, old)),
    )


def difference(held: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return the changes that lead from some rows to others, in the form that `Sink` describes.

    Example:
        >>> difference(pa.table({"n": [1, 1, 2]}), pa.table({"n": [1, 3]})).to_pydict()
        {'n': [1, 2, 3], 'op': ['delete', 'delete', 'append'], 'w': [-1, -1, 1]}
    """
    rows = pa.concat_tables([held, wanted])
    names = [f"c{place}" for place in range(rows.num_columns)]
    signs = np.ones(rows.num_rows, np.int64)
    signs[: held.num_rows] = -1
    groups = group_rows(rows.rename_columns(names), names)
    sums = groups.sums(signs)
    kept = np.flatnonzero(sums)
    weights = sums[kept]
    operations = pa.array(np.where(weights > 0, APPEND, DELETE), pa.string())
    changed = rows.take(pa.array(groups.first[kept]))
    return changed.append_column(OPERATION, operations).append_column(WEIGHT, pa.array(weights))


def paired(
    gone: pa.Table, come: pa.Table, key: Sequence[str] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of rows with equal keys in two tables: the first with the first, and so on."""
    if key is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    both = pa.concat_tables([gone, come])
    groups = group_rows(both, key)
    sides = np.split(groups.of, [gone.num_rows])
    # rows of one key are numbered in each table
    one, other = (of * (both.num_rows + 1) + _occurrences(of) for of in sides)
    _, left, right = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    order = np.argsort(left)
    return left[order], right[order]


def _occurrences(of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each value how many equal ones are before it."""
    places = np.argsort(of, kind="stable")
    ordered = of[places]
    found = np.empty(len(of), np.int64)
    found[places] = np.arange(len(of)) - np.searchsorted(ordered, ordered, "left")
    return found


def _others(count: int, chosen: npt.NDArray[np.int64]) -> pa.Array:
    mask = np.ones(count, np.bool_)
    mask[chosen] = False
    return pa.array(mask)
