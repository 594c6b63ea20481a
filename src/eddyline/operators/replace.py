"""Stores outputs that a second evaluation may not give again: of Python functions, and those that depend on the order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.operators.base import BucketResult, State, numbered
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import distinct_hashes, with_weights
from eddyline.state.retyping import cast_to

SLOT = "outputs"


@dataclass(frozen=True, slots=True)
class Replace:
    """Keep rows by group; the new rows of a touched group replace its old ones.

    Input: `h, c0.., w`: the rows of the touched groups (those of one hash) with w > 0; a row with
    w < 0 only marks its group as touched. Output: `h, c0.., w`, the net change.
    """

    family: ClassVar[str] = "recompute"
    columns: int

    @property
    def layouts(self) -> dict[str, Layout]:
        """One arrangement: the rows by group."""
        return {SLOT: Layout(numbered("c", self.columns))}

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch."""
        layout = self.layouts[SLOT]
        delta = delta.select(layout.columns)
        new = delta.filter(pa.array(delta[WEIGHT].to_numpy() > 0))
        stored = state[SLOT].lookup(distinct_hashes(delta))
        if stored is not None:
            weights = np.concatenate([new[WEIGHT].to_numpy(), -stored[WEIGHT].to_numpy()])
            new = with_weights(pa.concat_tables([new, cast_to(stored, new.schema)]), weights)
        change = layout.consolidate(new)
        return BucketResult([change], {SLOT: change})
