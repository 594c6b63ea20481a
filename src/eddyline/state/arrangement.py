"""Arrangements: one bucket of a keyed collection, as a small log-structured merge tree of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.state.expiry import Place, without_expired
from eddyline.state.kernels import Measure, SortKey, consolidate, sorted_rows, spans
from eddyline.state.runs import Run, read_run, write_run
from eddyline.storage.files import Files

Z_SET: tuple[tuple[str, Measure], ...] = ((WEIGHT, Measure.SUM),)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the rows of an arrangement look like: `h`, identity columns, measures.

    Attributes:
        order: how the rows of one hash are sorted in each run; in any way if there is none.
    """

    identity: tuple[str, ...]
    measures: tuple[tuple[str, Measure], ...] = Z_SET
    order: tuple[SortKey, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All columns in their order on disk."""
        return [HASH, *self.identity, *(name for name, _ in self.measures)]

    def consolidate(self, table: pa.Table) -> pa.Table:
        """Equal rows brought together, empty ones dropped."""
        return consolidate(table, self.identity, self.measures)

    def sorted(self, table: pa.Table) -> pa.Table:
        """The rows as a run of this layout has them."""
        if self.order:
            return sorted_rows(table, self.identity, self.order)
        hashes = table[HASH].to_numpy()
        if len(hashes) < 2 or (hashes[:-1] <= hashes[1:]).all():
            return table
        return table.take(pa.array(np.argsort(hashes, kind="stable")))


class Arrangement:
    """One bucket: its runs as of the last committed epoch, and what this epoch adds."""

    def __init__(self, files: Files, layout: Layout, runs: Sequence[Run]) -> None:
        self.files = files
        self.layout = layout
        self.runs = tuple(runs)

    def lookup(self, hashes: np.ndarray) -> pa.Table | None:
        """All stored rows whose key hash is in `hashes` (sorted, unique); None if there is none.

        Rows come as they lie in the runs: the same row can come several times.
        """
        if not len(hashes):
            return None
        found = []
        for run in self.runs:
            table = read_run(self.files, run)
            places = spans(table[HASH].to_numpy(), hashes)
            if len(places):
                found.append(table.take(pa.array(places)))
        return pa.concat_tables(found) if found else None

    def scan(self) -> pa.Table | None:
        """All rows, consolidated; None if there never was one."""
        if not self.runs:
            return None
        return self.layout.consolidate(pa.concat_tables(self.tables()))

    def tables(self) -> list[pa.Table]:
        """The runs, old to new."""
        return [read_run(self.files, run) for run in self.runs]

    def extend(
        self,
        name: str,
        delta: pa.Table,
        fan_in: int,
        expired: Sequence[tuple[Place, int]] = (),
    ) -> tuple[tuple[Run, ...], Run | None]:
        """Write this epoch's delta, and a merged run where a size tier is full.

        Args:
            name: file name without ending; the delta is `<name>.arrow`, a merged run `<name>.merged.arrow`.
            delta: columns of the layout.
            fan_in: runs of one tier (of sizes within a factor `fan_in`) that are merged into one.
            expired: limits below which rows needn't be kept; they are left out of a merged run.

        Returns:
            the runs that now make up the bucket, and the delta's own run (None if it is empty).
        """
        if delta.num_rows == 0:
            return self.runs, None
        added = write_run(self.files, f"{name}.arrow", self.layout.sorted(delta))
        runs = [*self.runs, added]
        first = compaction_start([run.rows for run in runs], fan_in)
        if first is not None:
            tables = [read_run(self.files, run) for run in runs[first:]]
            merged = self.layout.consolidate(pa.concat_tables(tables))
            merged = without_expired(merged, expired, whole=first == 0)
            runs = runs[:first]
            if merged.num_rows:
                merged = self.layout.sorted(merged)
                runs.append(write_run(self.files, f"{name}.merged.arrow", merged))
        return tuple(runs), added


def difference_run(files: Files, name: str, old: Sequence[Run], new: Sequence[Run]) -> Run | None:
    """Write what leads from one content of a bucket to another; None if they are the same.

    Args:
        name: of the file.
        old, new: runs of Z-sets with the same columns.
    """
    tables = [read_run(files, run) for run in new]
    for run in old:
        rows = read_run(files, run)
        taken = pc.negate(rows[WEIGHT])
        tables.append(rows.set_column(rows.column_names.index(WEIGHT), WEIGHT, taken))
    if not tables:
        return None
    layout = Layout(tuple(n for n in tables[0].column_names if n not in (HASH, WEIGHT)))
    rows = layout.consolidate(pa.concat_tables(tables, promote_options="default"))
    return write_run(files, name, layout.sorted(rows)) if rows.num_rows else None


def compaction_start(rows: Sequence[int], fan_in: int) -> int | None:
    """Where in a list of run sizes, old to new, the merge of the newest runs begins; None for none.

    Size-tiered: a run's tier is the logarithm of its rows to the base `fan_in`; once the newest
    `fan_in` runs lie in one tier or below they are merged, and so on with what that gives. So each
    row is rewritten once a tier, and there are fewer than `fan_in` runs a tier.

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
