"""Generated streams: `USING generator`, its options, columns and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from eddyline.errors import DataError
from eddyline.source.base import PlannedSource
from eddyline.source.nexmark import KINDS, Nexmark
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NEXMARK, ROWS_MAX, Segment, Wanted
from eddyline.storage.files import Files

KIND, SEED, EVENTS_PER_EPOCH = "kind", "seed", "eventsPerEpoch"
EVENTS_PER_SECOND, TOTAL = "eventsPerSecond", "total"

_NUMBERS = {
    # option: default (None: it must be given), least, most
    SEED: (1, 0, 2**63 - 1),
    EVENTS_PER_EPOCH: (10_000, 1, 10**9),
    EVENTS_PER_SECOND: (10_000, 1, 10**6),  # so that no two events have the same microsecond
    TOTAL: (None, 0, 10**12),
}


@dataclass(frozen=True, slots=True)
class Generator:
    """The options of a generated stream: one kind of event, out of a sequence of all kinds.

    Attributes:
        events: the events of the kind, seed and rate.
        step: number of events of all kinds in one entry.
        total: number of events of all kinds after which the stream ends.

    Example:
        >>> options = {"kind": "nexmark.bid", "total": "120", "eventsPerEpoch": "50"}
        >>> generator = Generator.of(options)
        >>> [generator.rows(number) for number in range(generator.steps)]
        [(0, 46), (46, 92), (92, 108)]
    """

    events: Nexmark
    step: int
    total: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Generator:
        """Read the OPTIONS of a stream, whose names may be in any case.

        Raises:
            DataError: an option is unknown, missing or out of its range.
        """
        known = {name.lower(): name for name in (KIND, *_NUMBERS)}
        given = {known.get(name.lower(), name): value for name, value in options.items()}
        for name in given:
            if name not in known.values():
                raise _bad(f"there is no option {name}", f"one of {', '.join(known.values())}")
        if given.get(KIND) not in KINDS:
            raise _bad(_shown(given, KIND), f"{KIND} as one of {', '.join(KINDS)}")
        numbers = {name: _number(given, name) for name in _NUMBERS}
        events = Nexmark(given[KIND], numbers[SEED], numbers[EVENTS_PER_SECOND])
        return cls(events, numbers[EVENTS_PER_EPOCH], numbers[TOTAL])

    @property
    def schema(self) -> pa.Schema:
        """All columns of this kind of event."""
        return KINDS[self.events.kind].schema

    @property
    def steps(self) -> int:
        """Number of entries up to the last event."""
        return -(-self.total // self.step)

    def rows(self, number: int) -> tuple[int, int]:
        """Return the range of an entry's rows among the events of the kind: `(start, end)`."""
        kind = KINDS[self.events.kind]
        first, end = number * self.step, min((number + 1) * self.step, self.total)
        return kind.count(first), kind.count(end)


class GeneratedStream(PlannedSource):
    """Generated events: entries only name them, and the tasks of an epoch generate them.

    Entry n is the n-th step through the sequence of all kinds, even if it has no event of this kind.
    So streams of one seed with equal steps stay aligned, and the log alone determines their position.
    """

    def __init__(self, name: str, generator: Generator, log: RedoLog) -> None:
        super().__init__(name, log, steps=True)
        self.generator = generator

    def plan(self, first: int) -> Iterator[list[Segment]]:
        """Yield the steps up to the last event; each is one segment, or none."""
        for number in range(first, self.generator.steps):
            start, end = self.generator.rows(number)
            segment = Segment(NEXMARK, self.generator.events.text, end - start, start)
            yield [segment] if segment.rows else []


def read_events(_files: Files, segment: Segment, wanted: Wanted) -> Iterator[tuple[pa.Table, int]]:
    """Generate the events of a segment."""
    events = Nexmark.parse(segment.file)
    for start in range(0, segment.rows, ROWS_MAX):
        rows = min(ROWS_MAX, segment.rows - start)
        yield events.rows(segment.start + start, rows, wanted.schema), rows


def _number(given: Mapping[str, str], name: str) -> int:
    default, least, most = _NUMBERS[name]
    if name not in given and default is not None:
        return default
    text = given.get(name, "")
    if not text.isdecimal() or not least <= int(text) <= most:
        raise _bad(_shown(given, name), f"{name} as a whole number from {least:,} to {most:,}")
    return int(text)


def _shown(given: Mapping[str, str], name: str) -> str:
    return f"option {name} is {given[name]!r}" if name in given else f"option {name} is missing"


def _bad(what: str, wanted: str) -> DataError:
    return DataError(
        f"a generated stream can't be made: {what}",
        condition="BAD_STREAM",
        hint=f"give {wanted}",
    )
