"""Groups that Spark recomputes: emits all rows of each touched group, before and after the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.operators.base import BucketResult, State, checked_weights, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import distinct_hashes, repeat, sorted_rows
from eddyline.state.retyping import cast_to

SLOT = "rows"
VERSION = WEIGHT


@dataclass(frozen=True, slots=True)
class Regroup:
    """Keep the input rows by group key; emit all rows of the touched groups, before and after.

    Input: `h, c0.., w`. Output: `h, c0.., w` with w = -1 for the rows of the version before the
    epoch, +1 for those after; a row of weight n comes n times. Spark then
    evaluates both versions, with w as one more grouping key that becomes the weight of the result.
    A group is all rows of one key hash: the results of colliding keys are equal in both versions, and cancel out.
    The rows of a version always have the same order. An aggregation of Spark needn't keep it: results that depend on it
    (`collect_list`, `first`, the last bits of a sum of doubles) are stored by `Replace`.
    """

    family: ClassVar[str] = "recompute"
    columns: int

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: the input rows by key."""
        return {SLOT: Layout(numbered("c", self.columns))}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout = self.layouts[SLOT]
        delta = layout.consolidate(delta.select(layout.columns))
        if delta.num_rows == 0:
            return BucketResult([], {SLOT: delta})
        stored = state[SLOT].lookup(distinct_hashes(delta))
        if stored is None:
            old = delta.slice(0, 0)
            new = delta
        else:
            old = layout.consolidate(stored)
            new = layout.consolidate(pa.concat_tables([old, cast_to(delta, old.schema)]))
        new = checked_weights("recompute", new)
        versions = [_version(old, -1, layout), _version(new, 1, layout)]
        return BucketResult(versions, {SLOT: delta})


def _version(table: pa.Table, version: int, layout: Layout) -> pa.Table:
    table = sorted_rows(table, layout.identity, ())
    rows = repeat(table, table[WEIGHT].to_numpy())
    mark = pa.array(np.full(rows.num_rows, version, np.int64))
    return rows.drop_columns([WEIGHT]).append_column(VERSION, mark)
