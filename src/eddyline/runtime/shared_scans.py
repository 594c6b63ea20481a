"""What several views of an epoch read is decoded once, where they run in the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.operators.base import numbered
from eddyline.source.segments import BUCKET_RUNS, LOG, RUN, Segment

Decode = Callable[[tuple[int, ...], pa.Schema], Iterator[pa.Table]]
"""Reads the columns at some positions of a relation, in the types of a schema."""

Relation = tuple[str, tuple[str, ...]]
"""The name of a relation, and its columns: a scan that was made before a column was dropped has other positions."""

_IN_COLUMNS = frozenset((RUN, LOG, BUCKET_RUNS))  # mapped into memory, not decoded


@dataclass(slots=True)
class _Asked:
    """What the scans of a relation with the same columns ask for in an epoch.

    Attributes:
        readers: how often any of its segments was read.
        types: of the columns that any of them has read, by position.
        times: how often each segment was read; only of the epoch that runs.
    """

    readers: int = 0
    types: dict[int, pa.DataType] = field(default_factory=dict)
    times: dict[Segment, int] = field(default_factory=dict)

    def read(self, segment: Segment, types: dict[int, pa.DataType]) -> None:
        self.times[segment] = times = self.times.get(segment, 0) + 1
        self.readers = max(self.readers, times)
        self.types |= types


@dataclass(slots=True)
class _Held:
    """The rows of a segment, for the scans that are still to come."""

    to_come: int
    tables: list[pa.Table] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedScans:
    """Decodes each segment once in an epoch, with all columns that its readers need.

    Which columns these are, and how many readers there are, is what was so in the epoch before: an epoch's plans
    run as soon as they can, so the first one can't know the others. A reader that asks for something else
    reads for itself. Rows are held until the last reader has had them, at most until the end of the epoch.
    """

    def __init__(self) -> None:
        self._before: dict[Relation, _Asked] = {}
        self._asked: dict[Relation, _Asked] = {}
        self._held: dict[tuple[Relation, Segment], _Held] = {}
        self._guard = threading.Lock()

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Share what is read in the context."""
        try:
            yield
        finally:
            with self._guard:
                for asked in self._asked.values():
                    asked.times.clear()
                self._before |= self._asked
                self._asked, self._held = {}, {}

    def read(
        self,
        relation: Relation,
        segment: Segment,
        columns: tuple[int, ...],
        schema: pa.Schema,
        decode: Decode,
    ) -> Iterator[pa.Table]:
        """Yield the rows of a segment: columns at some positions of its relation, and the weight."""
        names = numbered("c", len(columns))
        if segment.kind in _IN_COLUMNS or schema.names != [*names, WEIGHT]:
            yield from decode(columns, schema)
            return
        types = dict(zip(columns, schema.types, strict=False))
        with self._guard:
            self._asked.setdefault(relation, _Asked()).read(segment, types)
            before, held = self._before.get(relation, _Asked()), None
            if before.readers > 1 and types.items() <= before.types.items():
                held = self._held.setdefault((relation, segment), _Held(before.readers))
        if held is None:
            yield from decode(columns, schema)
            return
        places = sorted(before.types)
        with held.lock:
            if held.tables is None:
                held.tables = list(decode(tuple(places), _schema(before.types, schema)))
            tables = held.tables
            held.to_come -= 1
            if held.to_come <= 0:
                held.tables = None
        wanted = [*(f"c{places.index(place)}" for place in columns), WEIGHT]
        for table in tables:
            yield table.select(wanted).rename_columns(schema.names)


def _schema(types: dict[int, pa.DataType], one: pa.Schema) -> pa.Schema:
    """Return the schema of the columns at all positions, with the weight of one reader's schema."""
    fields = [pa.field(f"c{at}", types[place]) for at, place in enumerate(sorted(types))]
    return pa.schema([*fields, one.field(WEIGHT)])
