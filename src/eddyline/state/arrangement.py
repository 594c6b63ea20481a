"""Arrangements: keyed state; each bucket is a small log-structured merge tree of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.state.expiry import ExpiryColumn, without_expired
from eddyline.state.grouping import SortKey
from eddyline.state.kernels import Measure, consolidate, indices_of, sorted_rows
from eddyline.state.runs import Run, read_run, write_run
from eddyline.state.weights import check_held
from eddyline.storage.files import Files

SLICE_ROWS = 4_000_000
"""About how many rows of two versions of a result are compared at once."""

Z_SET: tuple[tuple[str, Measure], ...] = ((WEIGHT, Measure.SUM),)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an arrangement: the key hash `h`, identity columns, measures.

    Attributes:
        identity: the columns that identify a row.
        measures: the columns that are combined when equal rows meet, and how.
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

    def sorted(self, table: pa.Table) -> pa.Table:
        """Sort rows as a run of this layout stores them."""
        if self.order:
            return sorted_rows(table, self.identity, self.order)
        hashes = table[HASH].to_numpy()
        if len(hashes) < 2 or (hashes[:-1] <= hashes[1:]).all():
            return table
        return table.take(pa.array(np.argsort(hashes, kind="stable")))


class Arrangement:
    """One bucket of an arrangement, as of the last committed epoch.

    Args:
        files: the files of the storage.
        layout: the columns.
        runs: the runs of the bucket, old to new.

    Attributes:
        touched: how many stored rows have been returned, for the profile of an epoch.
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
        return self.layout.consolidate(pa.concat_tables(self.tables()))

    def tables(self) -> list[pa.Table]:
        """Return the rows of each run, old to new."""
        self.touched += sum(run.rows for run in self.runs)
        return self.mapped()

    def mapped(self) -> list[pa.Table]:
        """Return the rows of each run for a caller that reads a few of them, and adds their number to `touched`."""
        return [read_run(self.files, run) for run in self.runs]

    def extend(
        self,
        name: str,
        delta: pa.Table,
        fan_in: int,
        expired: Sequence[tuple[ExpiryColumn, int]] = (),
    ) -> tuple[tuple[Run, ...], Run | None]:
        """Write the delta of an epoch as a run, and compact runs if a size tier is full.

        Args:
            name: file name without extension. The delta is written to `<name>.arrow`, a merged run
                to `<name>.merged.arrow`.
            delta: changed rows, with the columns of the layout.
            fan_in: number of runs of one tier (sizes within a factor `fan_in`) to merge into one.
            expired: limits below which rows may be dropped; compaction drops them.

        Returns:
            The runs that now make up the bucket, and the run of the delta (None if it is empty).
        """
        if delta.num_rows == 0:
            return self.runs, None
        added = write_run(self.files, f"{name}.arrow", self.layout.sorted(delta))
        runs = [*self.runs, added]
        first = compaction_start([run.rows for run in runs], fan_in)
        if first is not None:
            tables = [read_run(self.files, run) for run in runs[first:]]
            merged = self.layout.consolidate(pa.concat_tables(tables))
            if first == 0 and WEIGHT in merged.column_names:  # then these are all rows
                check_held("an arrangement", merged, file=name)
                gone = pc.equal(merged[WEIGHT], 0)
                if pc.any(gone).as_py():  # groups without rows, whose sums were rounded
                    merged = merged.filter(pc.invert(gone))
            merged = without_expired(merged, expired, whole=first == 0)
            runs = runs[:first]
            if merged.num_rows:
                merged = self.layout.sorted(merged)
                runs.append(write_run(self.files, f"{name}.merged.arrow", merged))
        return tuple(runs), added


def difference_runs(
    files: Files,
    prefix: str,
    old: Sequence[Run],
    new: Sequence[Run],
    columns: Sequence[str] | None = None,
) -> tuple[Run, ...]:
    """Write the difference of two versions of a Z-set as runs; none if they are equal.

    A row may be in another bucket in the other version, so all buckets are compared together: a slice of
    the key hashes after the other, as many rows as fit into memory well.

    Args:
        files: the files of the storage.
        prefix: what the names of the runs begin with.
        old, new: the runs of all buckets of both versions.
        columns: the columns to compare, if others differ; the hash of the rows is then 0, and there is
            one slice.
    """
    tables = [read_run(files, run) for run in (*new, *old)]
    hashes = [table[HASH].to_numpy() for table in tables]
    slices = min(1, len(tables)) if columns else -(-sum(map(len, hashes)) // SLICE_ROWS)
    # hashes are spread evenly
    bounds = np.linspace(-(2**63), 2**63, slices + 1)[1:-1].astype(np.int64)
    cuts = [[0, *np.searchsorted(own, bounds), len(own)] for own in hashes]
    found = []
    for number in range(slices):
        rows = []
        for place, (table, cut) in enumerate(zip(tables, cuts, strict=True)):
            part = table.slice(cut[number], cut[number + 1] - cut[number])
            if columns is not None:
                part = part.select([*columns, WEIGHT])
                part = part.add_column(0, HASH, pa.array(np.zeros(len(part), np.int64)))
            if place >= len(new):
                at = part.column_names.index(WEIGHT)
                part = part.set_column(at, WEIGHT, pc.negate(part[WEIGHT]))
            rows.append(part)
        layout = Layout(tuple(n for n in rows[0].column_names if n not in (HASH, WEIGHT)))
        net = layout.consolidate(pa.concat_tables(rows, promote_options="default"))
        if net.num_rows:
            found.append(write_run(files, f"{prefix}-{number}.arrow", layout.sorted(net)))
    return tuple(found)


def compaction_start(rows: Sequence[int], fan_in: int) -> int | None:
    """Return the index of the oldest run to merge with all newer ones; None if there is no merge.

    Compaction is size-tiered: the tier of a run is the logarithm of its rows to the base `fan_in`.
    Once the newest `fan_in` runs are of one tier or below, they are merged; the merged run counts
    in its own tier again. So a row is rewritten once for each tier, and each tier has fewer than
    `fan_in` runs.

    Args:
        rows: the sizes of the runs, old to new.
        fan_in: number of runs of a tier that are merged.

    Example:
        >>> compaction_start([100, 1, 1, 1], 3), compaction_start([100, 1, 1], 3)
        (1, None)
    """
    start, merged = None, 0
    at = len(rows)
    while True:
        total, count, first = merged, int(start is not None), at
        tier = _tier(rows[at - 1] if start is None else merged, fan_in)
        while first and _tier(rows[first - 1], fan_in) <= tier:
            first -= 1
            total += rows[first]
            count += 1
        if count < fan_in:
            return start
        start, merged, at = first, total, first


def _tier(rows: int, fan_in: int) -> int:
    tier = 0
    while rows >= fan_in:
        rows //= fan_in
        tier += 1
    return tier
