"""The trees of records while bolts process their rows.

An output of a bolt is anchored to the row, or the rows, that it was made from. A record is done when
the XOR of all edges of its tree is zero (`acker.py`). A record fails when any row of its tree fails;
no output made from it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import QueueError
from eddyline.relay.acker import Anchors, Indices, new_ids
from eddyline.relay.calls import Reasons
from eddyline.relay.keys import group_by_key

Rows: TypeAlias = "list[Any] | pa.Table"


@dataclass(slots=True)
class BoltOutput:
    """The output of one bolt for some rows.

    Attributes:
        rows: the output rows.
        outputs, inputs: pairs of indices: this output row was made from this input row.
        failed: why input rows failed, by their index; None: not tried.
    """

    rows: Rows
    outputs: Indices
    inputs: Indices
    failed: Reasons


@dataclass(slots=True)
class ChainOutput:
    """The output of a chain of bolts for some records.

    Attributes:
        rows: the output rows of the records that are done.
        bolts: for each record, the index of the bolt where it failed; -1 if it is done or held.
        reasons: why records failed, by their index.
        held: mask of records to replay though they did not fail: they shared a row with one that
            failed, or were not tried because calls before them timed out.
    """

    rows: Rows
    bolts: npt.NDArray[np.int16]
    reasons: dict[int, str]
    held: npt.NDArray[np.bool_]

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """Mask of the records that are done."""
        done: npt.NDArray[np.bool_] = (self.bolts < 0) & ~self.held
        return done


class Trees:
    """The trees of the records of one tuple.

    The id of a root is the index of its record, so one array holds the acker's entries.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self._random = random
        roots = np.arange(count, dtype=np.uint64)
        self._anchors = Anchors(np.arange(count), roots, new_ids(count, random))
        self._values = self._anchors.edges.copy()
        self._bolts = np.full(count, -1, np.int16)
        self._reasons: dict[int, str] = {}
        self._held = np.zeros(count, bool)

    def groups(self, keys: pa.ChunkedArray) -> tuple[list[Indices], list[Indices]]:
        """Group the rows by the keys of their records.

        A key with a failed or held record is incomplete: all of its records are replayed together.

        Returns:
            The groups of rows of complete keys, and those of incomplete keys.
        """
        tuples = self._anchors.tuples
        owners = np.zeros(int(tuples.max(initial=-1)) + 1, np.int64)
        owners[tuples[::-1]] = _records(self._anchors)[::-1]  # the first of several records
        replayed = keys.filter(pa.array(self._failed_or_held)).drop_null().combine_chunks()
        incomplete = pc.is_in(keys, replayed).to_numpy()
        found: tuple[list[Indices], list[Indices]] = ([], [])
        for group in group_by_key(keys, owners):
            found[int(incomplete[owners[group[0]]])].append(group)
        return found

    def apply(self, output: BoltOutput, bolt: int) -> Rows:
        """Anchor the output of a bolt; return the rows for the next bolt."""
        before = self._anchors
        self._anchors = before.derive(output.outputs, output.inputs, self._random)
        self._acknowledge(before)
        self._acknowledge(self._anchors)
        if not output.failed:
            return output.rows
        failed = np.fromiter(output.failed, np.int64)
        links = np.flatnonzero(np.isin(before.tuples, failed))
        for link, record in zip(links, _records(before)[links].tolist(), strict=True):
            why = output.failed[int(before.tuples[link])]
            if why is None:
                self._held[record] = True
            elif self._bolts[record] < 0:
                self._bolts[record] = bolt
                self._reasons[record] = why
        return self._without_failed(output.rows)

    def finish(self, rows: Rows) -> ChainOutput:
        """Acknowledge the output of the last bolt; return the outcome of each record.

        Raises:
            QueueError: ACCOUNT_WRONG, the tree of a record that is done has an open edge.
        """
        self._acknowledge(self._anchors)
        output = ChainOutput(rows, self._bolts, self._reasons, self._held)
        if wrong := np.count_nonzero(self._values[output.done]):
            raise QueueError(
                f"{wrong} records have rows that were neither acknowledged nor failed",
                condition="ACCOUNT_WRONG",
                hint="nothing of them was committed; report it, as this is a bug",
            )
        return output

    @property
    def _failed_or_held(self) -> npt.NDArray[np.bool_]:
        """Mask of the records that failed or are held."""
        mask: npt.NDArray[np.bool_] = (self._bolts >= 0) | self._held
        return mask

    def _acknowledge(self, anchors: Anchors) -> None:
        """XOR each edge into its root's value; called when an edge is made and when it is done."""
        np.bitwise_xor.at(self._values, _records(anchors), anchors.edges)

    def _without_failed(self, rows: Rows) -> Rows:
        """Drop rows made from failed or held records; hold the other records of these rows."""
        anchors, records = self._anchors, _records(self._anchors)
        replayed = self._failed_or_held
        while True:
            dropped = np.isin(anchors.tuples, anchors.tuples[replayed[records]])
            more = records[dropped & ~replayed[records]]
            if not len(more):
                break
            self._held[more] = replayed[more] = True
        links = np.flatnonzero(~dropped)
        # an unanchored row stays
        dropped_rows = np.unique(anchors.tuples[dropped])
        kept = np.setdiff1d(np.arange(len(rows)), dropped_rows, assume_unique=True)
        tuples = np.searchsorted(kept, anchors.tuples[links])
        self._anchors = Anchors(tuples, anchors.roots[links], anchors.edges[links])
        if isinstance(rows, pa.Table):
            return rows.take(pa.array(kept))
        return [rows[index] for index in kept.tolist()]


def _records(anchors: Anchors) -> Indices:
    """Return the index of the record at the root of each edge."""
    records: Indices = anchors.roots.view(np.int64)
    return records
