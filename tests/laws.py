"""What tests of laws share: values of all kinds, and operators that are fed as Spark feeds them, without a JVM."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from eddyline.operators.base import BucketResult
from eddyline.state.arrangement import Arrangement, Layout, RunWriter
from eddyline.state.runs import Run
from eddyline.state.slices import SLICE_BYTES, in_slices

laws = settings(deadline=None, max_examples=15)

Row = tuple[Any, ...]
Change = tuple[Row, int]

# -- values ---------------------------------------------------------------------------------------

small = st.one_of(st.none(), st.integers(0, 3))
floats = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]))
words = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
maps = st.one_of(st.none(), st.dictionaries(st.sampled_from("ab"), small, max_size=2))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), small),
    "double": (pa.float64(), floats),
    "string": (pa.string(), words),
    "list": (pa.list_(pa.float64()), st.one_of(st.none(), st.lists(floats, max_size=2))),
    "struct": (
        pa.struct([("p", pa.int64()), ("q", pa.float64())]),
        # fields always in this order, as `identity` compares texts
        st.one_of(st.none(), st.tuples(small, floats).map(lambda v: {"p": v[0], "q": v[1]})),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        maps.map(lambda m: None if m is None else [*m.items()]),
    ),
    "nested": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
        st.lists(
            st.one_of(st.none(), maps.map(lambda m: {"m": None if m is None else [*m.items()]})),
            max_size=2,
        ),
    ),
}


def identity(values: Sequence[Any]) -> str:
    """What makes rows the same: as text NaN is NaN, and 0.0 isn't -0.0."""
    return repr(list(values))


def crude_hash(values: Sequence[Any]) -> int:
    """A hash with many collisions."""
    return len(identity(values)) % 3


def table(columns: dict[str, tuple[pa.DataType, Sequence[Any]]]) -> pa.Table:
    return pa.table(
        {name: pa.array(list(values), kind) for name, (kind, values) in columns.items()}
    )


def z_set(rows: Iterable[tuple[Row, int]]) -> dict[str, int]:
    """Rows and weights added up, the empty ones dropped."""
    total: Counter[str] = Counter()
    for row, weight in rows:
        total[identity(row)] += weight
    return {row: weight for row, weight in total.items() if weight}


def weighted(rows: pa.Table | None, columns: Sequence[str]) -> list[Change]:
    """The rows of a table and their weights."""
    if rows is None or not rows.num_rows:
        return []
    values = [rows[name].to_pylist() for name in columns]
    weights = rows["w"].to_pylist()
    return [(tuple(v[i] for v in values), weights[i]) for i in range(rows.num_rows)]


# -- feeding an operator --------------------------------------------------------------------------


class Held(Arrangement):
    """An arrangement in memory."""

    def __init__(self, layout: Layout, tables: list[pa.Table]) -> None:
        self.layout = layout
        self.held = tables
        self.touched = 0

    def mapped(self) -> list[pa.Table]:
        return [self.layout.sorted(t) for t in self.held if t.num_rows]

    def tables(self) -> list[pa.Table]:
        self.touched += sum(rows.num_rows for rows in self.held)
        return self.mapped()

    def lookup(self, hashes: np.ndarray) -> pa.Table | None:
        found = [t.filter(pa.array(np.isin(t["h"].to_numpy(), hashes))) for t in self.held]
        found = [t for t in found if t.num_rows]
        return pa.concat_tables(found) if found and len(hashes) else None

    def scan(self) -> pa.Table | None:
        return self.layout.consolidate(pa.concat_tables(self.held)) if self.held else None


class Stepping(Protocol):
    @property
    def layouts(self) -> dict[str, Layout]: ...

    def step(self, delta: pa.Table, state: Any) -> BucketResult: ...


class Bucket:
    """One bucket of an operator, fed with deltas."""

    def __init__(self, operator: Stepping) -> None:
        self.operator = operator
        self.tables: dict[str, list[pa.Table]] = {slot: [] for slot in operator.layouts}

    def feed(self, delta: pa.Table) -> list[pa.Table]:
        if not delta.num_rows:
            return []
        layouts = self.operator.layouts
        state = {slot: Held(layouts[slot], tables) for slot, tables in self.tables.items()}
        step = self.operator.step(delta, state)
        output = list(step.output)
        for slot, rows in step.appends.items():
            assert rows.column_names == layouts[slot].columns
            self.tables[slot].append(rows)
        return output


def epochs_of(rows: st.SearchStrategy[Row], size: int = 6) -> st.SearchStrategy[list[list[Change]]]:
    """Epochs of appends and deletes, each delete of a row that is there."""

    @st.composite
    def draw(drawn: st.DrawFn) -> list[list[Change]]:
        held: list[Row] = []
        epochs = []
        for _ in range(drawn(st.integers(1, 4))):
            epoch: list[Change] = []
            for _ in range(drawn(st.integers(1, size))):
                if held and drawn(st.integers(0, 2)) == 0:
                    epoch.append((held.pop(drawn(st.integers(0, len(held) - 1))), -1))
                else:
                    row, copies = drawn(rows), drawn(st.integers(1, 2))
                    held += [row] * copies
                    epoch.append((row, copies))
            epochs.append(epoch)
        return epochs

    return draw()


def integrated(epochs: Iterable[list[Change]]) -> list[Row]:
    """The rows that are there after all epochs."""
    held: list[Row] = []
    for row, weight in (change for epoch in epochs for change in epoch):
        if weight > 0:
            held += [row] * weight
        else:
            del held[[identity(r) for r in held].index(identity(row))]
    return held


def rows_delta(changes: list[Change], keys: int, kinds: Sequence[str]) -> pa.Table:
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:keys]) for row, _ in changes]),
            **{
                f"c{i}": (KINDS[kind][0], [row[i] for row, _ in changes])
                for i, kind in enumerate(kinds)
            },
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


def extended(
    held: Arrangement, name: str, rows: pa.Table, fan_in: int, most: int = SLICE_BYTES
) -> tuple[Run, ...]:
    """Write rows as a run in parts, and return the runs with it."""
    writer = RunWriter(held.files, name, held.layout, most)
    pieces = [*in_slices([held.layout.sorted(rows)], most)] if most < SLICE_BYTES else [[rows]]
    for (piece,) in pieces:
        writer.add(piece)
    added = writer.finish()
    assert sum(part.rows for part in added) == rows.num_rows
    return held.extend(f"{name}.merged", added, fan_in, most=most)[0]


def as_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
