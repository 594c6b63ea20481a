"""The trees of records while bolts work on their rows.

What a bolt makes of a row is anchored to it, and a row made of several is anchored to them all. A
record is done when the XOR of all edges of its tree is zero (`acker.py`); a record of whose tree any
row has failed has failed, and nothing made of it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.relay.acker import Anchors, Places, new_ids
from eddyline.relay.calls import Reasons
from eddyline.relay.keys import groups

Rows: TypeAlias = "list[Any] | pa.Table"


@dataclass(slots=True)
class Made:
    """What a bolt has made of rows.

    Attributes:
        rows: the outputs.
        outputs, inputs: pairs of places: this output was made of this input.
        failed: reasons by the place of an input.
    """

    rows: Rows
    outputs: Places
    inputs: Places
    failed: Reasons


@dataclass(slots=True)
class Worked:
    """What a chain has made of records.

    Attributes:
        rows: the outputs of records that are done.
        bolts: for each record the number of the bolt where it failed; -1: it is done, or held.
        reasons: for each record that failed, why.
        held: records that did nothing wrong, but shared a row with one that failed, or were not
            tried, because calls before them got no answer.
    """

    rows: Rows
    bolts: npt.NDArray[np.int16]
    reasons: dict[int, str]
    held: npt.NDArray[np.bool_]

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """Which records are done."""
        done: npt.NDArray[np.bool_] = (self.bolts < 0) & ~self.held
        return done


class Trees:
    """The trees of some records, while bolts work on their rows.

    A root's id is the place of its record, so what an acker keeps of all roots is one array.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self._random = random
        roots = np.arange(count, dtype=np.uint64)
        self._anchors = Anchors(np.arange(count), roots, new_ids(count, random))
        self._values = self._anchors.edges.copy()
        self._bolts = np.full(count, -1, np.int16)
        self._reasons: dict[int, str] = {}
        self._held = np.zeros(count, bool)

    def groups(self, keys: pa.ChunkedArray) -> tuple[list[Places], list[Places]]:
        """Rows whose records have one key: those to be joined, and those of keys that are incomplete.

        A key of which a record has failed, or is held, comes again as a whole.
        """
        tuples = self._anchors.tuples
        owners = np.zeros(int(tuples.max(initial=-1)) + 1, np.int64)
        owners[tuples[::-1]] = _places(self._anchors)[::-1]  # of a row of several the first one
        bad = keys.filter(pa.array(self._bad)).drop_null().combine_chunks()
        incomplete = pc.is_in(keys, bad).to_numpy()
        found: tuple[list[Places], list[Places]] = ([], [])
        for group in groups(keys, owners):
            found[int(incomplete[owners[group[0]]])].append(group)
        return found

    def emit(self, made: Made, bolt: int) -> Rows:
        """Take in what a bolt has made; the rows that go on."""
        before = self._anchors
        self._anchors = before.follow(made.outputs, made.inputs, self._random)
        self._acknowledge(before)
        self._acknowledge(self._anchors)
        if not made.failed:
            return made.rows
        failed = np.fromiter(made.failed, np.int64)
        links = np.flatnonzero(np.isin(before.tuples, failed))
        for link, place in zip(links, _places(before)[links].tolist(), strict=True):
            why = made.failed[int(before.tuples[link])]
            if why is None:
                self._held[place] = True
            elif self._bolts[place] < 0:
                self._bolts[place] = bolt
                self._reasons[place] = why
        return self._without_failed(made.rows)

    def end(self, rows: Rows) -> Worked:
        """All rows are where they should be: acknowledge them, and say what is done."""
        self._acknowledge(self._anchors)
        worked = Worked(rows, self._bolts, self._reasons, self._held)
        assert not np.any(self._values[worked.done]), "a row was neither acknowledged nor failed"
        return worked

    @property
    def _bad(self) -> npt.NDArray[np.bool_]:
        """Which records have failed, or are held."""
        bad: npt.NDArray[np.bool_] = (self._bolts >= 0) | self._held
        return bad

    def _acknowledge(self, anchors: Anchors) -> None:
        """Fold each edge into its root's value: once when it is made, and once when it is done."""
        np.bitwise_xor.at(self._values, _places(anchors), anchors.edges)

    def _without_failed(self, rows: Rows) -> Rows:
        """The rows of no record that failed; whose rows are left out by that is held."""
        anchors, places = self._anchors, _places(self._anchors)
        bad = self._bad
        while True:
            dropped = np.isin(anchors.tuples, anchors.tuples[bad[places]])
            more = places[dropped & ~bad[places]]
            if not len(more):
                break
            self._held[more] = bad[more] = True
        links = np.flatnonzero(~dropped)
        # a row that is anchored to nothing stays
        gone = np.unique(anchors.tuples[dropped])
        kept = np.setdiff1d(np.arange(len(rows)), gone, assume_unique=True)
        tuples = np.searchsorted(kept, anchors.tuples[links])
        self._anchors = Anchors(tuples, anchors.roots[links], anchors.edges[links])
        if isinstance(rows, pa.Table):
            return rows.take(pa.array(kept))
        return [rows[place] for place in kept.tolist()]


def _places(anchors: Anchors) -> Places:
    """The places of the records that the roots of edges are."""
    places: Places = anchors.roots.view(np.int64)
    return places
