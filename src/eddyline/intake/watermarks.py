"""The watermarks of an epoch, and the event times from which the next ones are computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import Entry
from eddyline.state.manifest import CLOCK, Clock, Manifest

if TYPE_CHECKING:
    from eddyline.plan.nodes import StatefulPart


CLOCK_STEP = 1_000_000
"""Microseconds by which now() advances at least in an epoch without new rows."""


@dataclass(slots=True)
class Observed:
    """The event times of a stream's rows in an epoch, as reported by the leaves of views.

    Attributes:
        latest: the latest event time of the accepted rows, microseconds since 1970; None for none.
        late, ahead: number of rows that are late, or too far ahead of their receipt.
        accepted: number of the other rows.
    """

    latest: int | None = None
    late: int = 0
    ahead: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Watermarks:
    """The watermarks that are in force in the epoch after a committed one.

    Attributes:
        streams: the streams that have a watermark.
        clocks: by stream id, the event time as of the committed epoch.
        joined: by stream id, the streams that views read together with it.
        now: when the epoch begins, microseconds since 1970; None where no epoch runs.
        before, moment: the value of now() in the committed epoch and in this one, microseconds since
            1970; 0 if no view uses it.
        deferred: whether views that this epoch doesn't run still need these watermarks. The committed
            clocks then keep the watermarks of the epoch before.
        reported: by stream name, what the running epoch has observed.
    """

    streams: tuple[Entry, ...]
    clocks: Mapping[str, Clock]
    joined: Mapping[str, Collection[str]] = field(default_factory=dict)
    now: int | None = None
    before: int = 0
    moment: int = 0
    deferred: bool = False
    reported: dict[str, Observed] = field(default_factory=dict)

    @classmethod
    def of_next_epoch(
        cls, manifest: Manifest, catalog: Catalog, now: int | None = None
    ) -> Watermarks:
        """Return the watermarks for the epoch after a committed one."""
        streams = tuple(e for e in catalog.entries if e.event_time and not e.late_of)
        moment = manifest.moment
        return cls(streams, manifest.clocks, catalog.joined(), now, moment, moment)

    def advance(self, plans: Iterable[Sequence[StatefulPart]], *, rows: bool) -> None:
        """Advance the value of now(), if a view uses it.

        Args:
            plans: the stateful operators of each view that the epoch can run.
            rows: whether the epoch has new rows; otherwise the clock moves in steps.
        """
        if self.now is None or not any(map(asks_for_clock, plans)):
            return
        if rows or not self.moment or self.now - self.moment >= CLOCK_STEP:
            self.moment = max(self.moment, self.now)  # clocks may be set back

    @property
    def values(self) -> dict[str, int]:
        """Watermarks by stream name, for streams that have had an event time, and the clock."""
        known = [(e, self.clocks[e.id].latest) for e in self.streams if e.id in self.clocks]
        values = {e.name: latest - e.delay for e, latest in known if latest is not None}
        return {**values, CLOCK: self.moment} if self.moment else values

    @property
    def applied(self) -> dict[str, int]:
        """The watermarks that were in force in the committed epoch."""
        known = {e.name: self.clocks[e.id].watermark for e in self.streams if e.id in self.clocks}
        values = {name: value for name, value in known.items() if value is not None}
        return {**values, CLOCK: self.before} if self.before else values

    def of(self, stream: Entry) -> int | None:
        """Return the watermark of a stream; None if it has no watermark, or no event time yet."""
        return self.values.get(stream.name)

    def have_advanced(self, parts: Iterable[StatefulPart]) -> bool:
        """Return whether a watermark or now() has advanced for which a `Timed` operator (EMIT FINAL) holds rows back."""
        from eddyline.operators.base import Timed  # takes longer than all else that `status` needs

        values, applied = self.values, self.applied
        names = {
            name
            for part in parts
            if isinstance(part.operator, Timed)
            for one in part.expiry
            for name in one.bound.streams
        }
        return any(values[name] != applied.get(name) for name in names & set(values))

    def observe(self, stream: str, found: Observed) -> None:
        """Record what a leaf of a view has observed of a stream.

        Each leaf reads the whole input, so the numbers of several leaves are not added up.
        """
        known = self.reported.get(stream, Observed())
        times = [time for time in (known.latest, found.latest) if time is not None]
        self.reported[stream] = Observed(
            max(times, default=None),
            max(known.late, found.late),
            max(known.ahead, found.ahead),
            max(known.accepted, found.accepted),
        )

    def next_clocks(self, positions: Mapping[str, int]) -> dict[str, Clock]:
        """Return the clocks to commit with the epoch.

        Args:
            positions: end positions of the sources with new input; the late rows of other sources
                were counted before.
        """
        clocks = dict(self.clocks)
        for stream in self.streams:
            found = self.reported.get(stream.name, Observed())
            clock = clocks.get(stream.id)
            new = stream.id in positions
            if clock is None:
                if found.latest is not None or (new and found.ahead):
                    clocks[stream.id] = Clock(found.latest, ahead=found.ahead)
                continue
            times = [time for time in (clock.latest, found.latest) if time is not None]
            watermark = None if clock.latest is None else clock.latest - stream.delay
            clocks[stream.id] = replace(
                clock,
                latest=max(times, default=None),
                watermark=clock.watermark if self.deferred else watermark,
                late=clock.late + (found.late if new else 0),
                ahead=clock.ahead + (found.ahead if new else 0),
            )
        if self.now is not None:
            self._find_idle(clocks, positions, self.now)
            self._advance_idle(clocks)
        return clocks

    def _find_idle(self, clocks: dict[str, Clock], positions: Mapping[str, int], now: int) -> None:
        """Mark the streams that have become idle in their clocks, which are committed with the epoch."""
        for stream in self.streams:
            if stream.idle_timeout is None:
                continue
            found = self.reported.get(stream.name)
            rows = found is None or bool(found.accepted or found.late)
            clock = clocks.get(stream.id, Clock(None))
            new = (stream.id in positions and rows) or clock.active is None
            active = now if new or clock.active is None else clock.active
            idle = now - active >= stream.idle_timeout
            clocks[stream.id] = replace(clock, active=active, idle=idle)

    def _advance_idle(self, clocks: dict[str, Clock]) -> None:
        """Raise the watermark of each idle stream to the minimum of the streams that views combine with it.

        Joins then drop state as if the stream had reached that time; its rows below are late.
        """
        values = {
            stream.id: None if clock.latest is None else clock.latest - stream.delay
            for stream in self.streams
            if not (clock := clocks.get(stream.id, Clock(None))).idle
        }
        for stream in self.streams:
            clock = clocks.get(stream.id, Clock(None))
            others = [values[other] for other in self.joined.get(stream.id, ()) if other in values]
            known = [value for value in others if value is not None]
            if clock.idle and known and len(known) == len(others):
                latest = min(known) + stream.delay
                latest = latest if clock.latest is None else max(latest, clock.latest)
                clocks[stream.id] = replace(clock, latest=latest)


def asks_for_clock(parts: Iterable[StatefulPart]) -> bool:
    """Return whether the rows of a view depend on the progress of now()."""
    return any(CLOCK in one.bound.streams for part in parts for one in part.expiry)
