"""Arrangements: keyed state; each bucket is a small log-structured merge tree of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.state.expiry import ExpiryColumn, without_expired
from eddyline.state.grouping import SortKey
from eddyline.state.kernels import (
    Measure,
    consolidate,
    distinct_values,
    in_several,
    indices_of,
    nonzero,
    ordered,
    sorted_rows,
    where,
    with_weights,
)
from eddyline.state.runs import Run, read_run, write_run
from eddyline.state.slices import SLICE_BYTES, in_slices
from eddyline.state.weights import check_held
from eddyline.storage.files import Files

_NEXT_PART = "+"
SMALL_MERGE_SHARE = 16
"""A merge of so small a part of a slice, 4 MB by default, is done within an epoch,"""
MERGED_PER_ADDED = 4
"""and so is one of so many times the bytes that the epoch adds."""
WAITING_RUNS = 16
"""So many times the runs of a full tier may wait in a bucket before an epoch merges them in any case."""
_SMALL_ROWS = 4096
"""A run with no more rows is merged whole."""
Limits = Sequence[tuple[ExpiryColumn, int]]
Z_SET: tuple[tuple[str, Measure], ...] = ((WEIGHT, Measure.SUM),)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an arrangement: the key hash `h`, identity columns, measures.

    Attributes:
        identity: the columns that identify a row.
        measures: the columns that are combined when equal rows are merged, and how.
        order: how the rows of one hash are sorted in each run; empty for no order.
    """

    identity: tuple[str, ...]
    measures: tuple[tuple[str, Measure], ...] = Z_SET
    order: tuple[SortKey, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in their order on disk."""
        return [HASH, *self.identity, *(name for name, _ in self.measures)]

    def consolidate(self, table: pa.Table) -> pa.Table:
        """Merge equal rows, and drop those whose measures are zero."""
        return consolidate(table, self.identity, self.measures)

    def merge(self, runs: Sequence[pa.Table], columns: Sequence[str] | None = None) -> pa.Table:
        """Merge the equal rows of runs, and drop those whose measures are zero.

        Rows of large runs whose hash is in no other run aren't compared, and no more of them is read than their
        measures and the wanted columns.

        Args:
            runs: rows of at least one run; those of each are sorted by hash, and no two of them are equal.
            columns: names of the wanted columns, at least one; None for all.

        Returns:
            The rows in any order.
        """
        columns = self.columns if columns is None else columns
        small = [run for run in runs if run.num_rows <= _SMALL_ROWS]
        large = [run for run in runs if run.num_rows > _SMALL_ROWS]
        hashes = [run[HASH].to_numpy() for run in large]
        common = []
        if small:
            common.append(pa.concat_tables(small, promote_options="default").combine_chunks())
        few = [run[HASH].to_numpy() for run in common]
        shared = distinct_values(np.concatenate([in_several(hashes), *few]))
        alone = []
        for run, own in zip(large, hashes, strict=True):
            places = indices_of(own, shared)
            if len(places) == len(own):
                common.append(run)
                continue
            common.append(run.take(pa.array(places)))
            kept = nonzero(run, self.measures)
            kept[places] = False
            alone.append(where(run.select(columns), kept))
        merged = self.consolidate(pa.concat_tables(common, promote_options="default"))
        return pa.concat_tables([*alone, merged.select(columns)], promote_options="default")

    def sorted(self, table: pa.Table) -> pa.Table:
        """Sort rows as a run of this layout stores them."""
        if self.order:
            return sorted_rows(table, self.identity, self.order)
        return ordered(table, HASH)


class Arrangement:
    """One bucket of an arrangement, as of the last committed epoch.

    Args:
        files: the files of the storage.
        layout: the columns.
        runs: the runs of the bucket, old to new.

    Attributes:
        touched: number of stored rows that were read, for the profile of an epoch.
    """

    def __init__(self, files: Files, layout: Layout, runs: Sequence[Run]) -> None:
        self.files = files
        self.layout = layout
        self.runs = tuple(runs)
        self.touched = 0

    def lookup(self, hashes: np.ndarray) -> pa.Table | None:
        """Return the stored rows whose key hash is in `hashes`; None if there are none.

        Rows are not consolidated: a row that is in several runs is returned several times.

        Args:
            hashes: key hashes, sorted and distinct.
        """
        if not len(hashes):
            return None
        found = []
        for run in self.runs:
            table = read_run(self.files, run)
            indices = indices_of(table[HASH].to_numpy(), hashes)
            if len(indices):
                found.append(table.take(pa.array(indices)))
                self.touched += len(indices)
        return pa.concat_tables(found) if found else None

    def scan(self) -> pa.Table | None:
        """Return all rows, consolidated; None if the bucket has no runs."""
        if not self.runs:
            return None
        return self.layout.merge(self.tables())

    def tables(self) -> list[pa.Table]:
        """Return the rows of each run, old to new."""
        self.touched += sum(run.rows for run in self.runs)
        return self.mapped()

    def mapped(self) -> list[pa.Table]:
        """Return the mapped rows of each run. The caller reads a few of them, and adds their number to `touched`."""
        return [read_run(self.files, run) for run in self.runs]

    def extend(
        self,
        name: str,
        added: Sequence[Run],
        fan_in: int,
        expired: Limits = (),
        most: int = SLICE_BYTES,
    ) -> tuple[tuple[Run, ...], bool]:
        """Add the run of an epoch, in its parts, and merge runs if a size tier is full.

        A merge that is large compared with what the epoch adds is postponed, to run beside later epochs, unless
        too many are postponed already.

        Args:
            name: file name without extension of a merged run.
            added: the parts; none if nothing has changed.
            fan_in: number of runs of one tier (sizes within a factor `fan_in`) to merge into one.
            expired: limits below which rows may be dropped; merges drop them.
            most: about how many bytes are merged at once.

        Returns:
            The runs that now make up the bucket, and whether a merge was postponed.
        """
        if not added:
            return self.runs, False
        runs = runs_with_parts((*self.runs, *added))
        sizes = [sum(part.bytes for part in run) for run in runs]
        allowed = max(most // SMALL_MERGE_SHARE, MERGED_PER_ADDED * sizes[-1])
        first, left = None, False
        for start in merge_starts([sum(part.rows for part in run) for run in runs], fan_in):
            left = sum(sizes[start:]) > allowed and len(runs) <= WAITING_RUNS * fan_in
            if left:
                break
            first = start
        if first is None:
            return (*self.runs, *added), left
        older = tuple(part for run in runs[:first] for part in run)
        files = [part for run in runs[first:] for part in run]
        merged = merged_runs(self.files, name, self.layout, files, expired, most, whole=first == 0)
        return (*older, *merged), left


def merged_runs(
    files: Files,
    name: str,
    layout: Layout,
    runs: Sequence[Run],
    expired: Limits,
    most: int,
    *,
    whole: bool,
) -> tuple[Run, ...]:
    """Merge runs into one, and write it in its parts; return none if no row is left.

    Args:
        name: file name of the new run without extension.
        runs: the runs in the files of the storage.
        expired: limits below which rows are dropped.
        most: about how many bytes are merged at once.
        whole: whether these are all runs of the bucket.
    """
    merged = RunWriter(files, name, layout, most)
    for pieces in in_slices([read_run(files, run) for run in runs], most):
        rows = layout.merge(pieces)
        if whole and WEIGHT in rows.column_names:
            check_held("an arrangement", rows, file=name)
            gone = pc.equal(rows[WEIGHT], 0)
            if pc.any(gone).as_py():  # groups without rows, whose sums were rounded
                rows = rows.filter(pc.invert(gone))
        merged.add(without_expired(rows, expired, whole=whole))
    return merged.finish()


class RunWriter:
    """Writes a run from rows that come in ranges of the hash, lowest first.

    A large run is cut into parts at some hashes, each a file of its own: `<name>.arrow`, `<name>+1.arrow`
    and so on. Only one of them is in memory at a time.

    Args:
        files: the files of the storage.
        name: file name without extension.
        layout: the columns of the rows, and their order.
        most: about how many bytes a part has.
    """

    def __init__(self, files: Files, name: str, layout: Layout, most: int = SLICE_BYTES) -> None:
        self._files = files
        self.name = name
        self._layout = layout
        self._most = most
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._parts: list[Run] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows, whose hashes are above those of all rows before."""
        if rows.num_rows:
            self._rows.append(self._layout.sorted(rows))
            self._bytes += rows.nbytes
            if self._bytes >= self._most:
                self._write()

    def finish(self) -> tuple[Run, ...]:
        """Write the last part, and return all parts; none if there were no rows."""
        if self._rows:
            self._write()
        return tuple(self._parts)

    def _write(self) -> None:
        rows = self._rows[0] if len(self._rows) == 1 else pa.concat_tables(self._rows)
        part = f"{_NEXT_PART}{len(self._parts)}" if self._parts else ""
        self._parts.append(write_run(self._files, f"{self.name}{part}.arrow", rows))
        self._rows, self._bytes = [], 0


def runs_with_parts(files: Iterable[Run]) -> list[list[Run]]:
    """Group the files of a bucket by run; a large run has several parts."""
    runs: list[list[Run]] = []
    for file in files:
        if runs and _NEXT_PART in file.name:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def difference_runs(
    files: Files,
    prefix: str,
    old: Sequence[Run],
    new: Sequence[Run],
    columns: Sequence[str] | None = None,
) -> tuple[Run, ...]:
    """Write the difference of two versions of a Z-set as runs; none if they are equal.

    A row may be in different buckets in the two versions, so all buckets are compared together, in slices of
    the key hash that fit into memory.

    Args:
        files: the files of the storage.
        prefix: what the names of the runs begin with.
        old, new: the runs of all buckets of both versions.
        columns: the columns to compare, if others differ; the hash of the rows is then 0, and there is
            one slice.
    """
    tables = [read_run(files, run) for run in (*new, *old)]
    if columns is not None:
        tables = [_without_hash(table, columns) for table in tables]
    found = []
    for number, pieces in enumerate(in_slices(tables, SLICE_BYTES)):
        rows = [
            piece if place < len(new) else with_weights(piece, -piece[WEIGHT].to_numpy())
            for place, piece in enumerate(pieces)
        ]
        layout = Layout(tuple(n for n in rows[0].column_names if n not in (HASH, WEIGHT)))
        net = layout.consolidate(pa.concat_tables(rows, promote_options="default"))
        if net.num_rows:
            found.append(write_run(files, f"{prefix}-{number}.arrow", layout.sorted(net)))
    return tuple(found)


def _without_hash(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return some columns and the weights of rows, with the hash set to 0."""
    rows = table.select([*columns, WEIGHT])
    return rows.add_column(0, HASH, pa.array(np.zeros(len(rows), np.int64)))


def merge_starts(rows: Sequence[int], fan_in: int) -> Iterator[int]:
    """Yield the index of the oldest run to merge with all newer ones, for each tier that is full, newest first.

    Compaction is size-tiered: the tier of a run is the logarithm of its rows to the base `fan_in`. Once the
    newest `fan_in` runs are of one tier or below, they are merged; the result counts in its own tier.
    So a row is rewritten once for each tier, and each tier has fewer than `fan_in` runs.

    Args:
        rows: the sizes of the runs, old to new.
        fan_in: number of runs of a tier that are merged.

    Example:
        >>> list(merge_starts([100, 1, 1, 1], 3)), list(merge_starts([100, 1, 1], 3))
        ([1], [])
    """
    total, count, start = rows[-1], 1, len(rows) - 1
    while True:
        tier = _tier(total, fan_in)
        while start and _tier(rows[start - 1], fan_in) <= tier:
            start -= 1
            total += rows[start]
            count += 1
        if count < fan_in:
            return
        yield start
        count = 1


def waiting_merge(rows: Sequence[int], fan_in: int) -> tuple[int, int] | None:
    """Return the first and the last index (excluded) of the runs of a postponed merge; None if there is none.

    Args:
        rows: the sizes of the runs, old to new.
        fan_in: number of runs of a tier that are merged.
    """
    for end in range(len(rows), fan_in - 1, -1):
        starts = list(merge_starts(rows[:end], fan_in))
        if starts:
            return starts[-1], end
    return None


def _tier(rows: int, fan_in: int) -> int:
    tier = 0
    while rows >= fan_in:
        rows //= fan_in
        tier += 1
    return tier
