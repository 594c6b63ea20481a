"""Watermarks of an epoch, and the event times that the next watermarks are computed from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit
from pyspark.sql.functions import max as sql_max
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from eddyline.catalog.entries import IDLE_TIMEOUT, MAX_AHEAD, TIME_OPTIONS, Catalog, Entry
from eddyline.errors import DataError
from eddyline.operators.hold import Hold
from eddyline.plan.nodes import StatefulPart
from eddyline.spark.failures import FAILURES
from eddyline.spark.intervals import interval_micros
from eddyline.sql.names import quoted
from eddyline.state.manifest import Clock, Manifest

DEFAULT_MAX_AHEAD = 24 * 3600 * 1_000_000
"""Microseconds that an event time may be ahead of the receipt of its row, where the user gives no limit."""


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
        reported: by stream name, what the running epoch has observed.
    """

    streams: tuple[Entry, ...]
    clocks: Mapping[str, Clock]
    joined: Mapping[str, Collection[str]] = field(default_factory=dict)
    now: int | None = None
    reported: dict[str, Observed] = field(default_factory=dict)

    @classmethod
    def of_next_epoch(
        cls, manifest: Manifest, catalog: Catalog, now: int | None = None
    ) -> Watermarks:
        """Return the watermarks for the epoch after a committed one."""
        streams = tuple(e for e in catalog.entries if e.event_time and not e.late_of)
        return cls(streams, manifest.clocks, catalog.joined(), now)

    @property
    def values(self) -> dict[str, int]:
        """Watermarks in microseconds since 1970 by stream name, for streams that have had an event time."""
        known = [(e, self.clocks[e.id].latest) for e in self.streams if e.id in self.clocks]
        return {e.name: latest - e.delay for e, latest in known if latest is not None}

    @property
    def applied(self) -> dict[str, int]:
        """The watermarks that were in force in the committed epoch."""
        known = {e.name: self.clocks[e.id].watermark for e in self.streams if e.id in self.clocks}
        return {name: value for name, value in known.items() if value is not None}

    def of(self, stream: Entry) -> int | None:
        """Return the watermark of a stream; None if it has no watermark, or no event time yet."""
        return self.values.get(stream.name)

    def have_advanced(self, parts: Iterable[StatefulPart]) -> bool:
        """Return whether a watermark has advanced on which rows held by EMIT FINAL depend."""
        values, applied = self.values, self.applied
        names = {
            name
            for part in parts
            if isinstance(part.operator, Hold)
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
            clocks[stream.id] = replace(
                clock,
                latest=max(times, default=None),
                watermark=None if clock.latest is None else clock.latest - stream.delay,
                late=clock.late + (found.late if new else 0),
                ahead=clock.ahead + (found.ahead if new else 0),
            )
        if self.now is not None:
            self._find_idle(clocks, positions, self.now)
            self._follow(clocks)
        return clocks

    def _find_idle(self, clocks: dict[str, Clock], positions: Mapping[str, int], now: int) -> None:
        """Decide which streams are idle from now on. The clocks keep it, so it is decided once."""
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

    def _follow(self, clocks: dict[str, Clock]) -> None:
        """Raise the watermark of each idle stream to the least of the others that views join with it.

        The state of joins then leaves as if the stream had reached that time; its rows below are late.
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


def with_watermark(
    stream: Entry, watermark: tuple[str, str] | None, session: SparkSession
) -> Entry:
    """Return a stream with a watermark; DataError if that watermark isn't possible.

    Options that belong to the watermark are checked, and converted to microseconds.
    """
    given = {name: name.lower() for name in stream.options if name.lower() in TIME_OPTIONS}
    if watermark is None:
        for name in given:
            raise refused(
                stream,
                f"option {name} is given but no watermark",
                "declare a watermark, or drop it",
            )
        return stream
    column, delay = watermark
    if stream.arranged:
        raise refused(
            stream,
            "its rows can be replaced or retracted at any time, which a watermark would leave out",
            "leave the watermark, or OP and PRIMARY KEY, away",
        )
    known = {field.name.lower(): field for field in stream.columns}
    found = known.get(column.lower())
    if found is None or not isinstance(found.dataType, TimestampType | TimestampNTZType):
        names = [f.name for f in known.values() if f.dataType.typeName().startswith("timestamp")]
        raise refused(
            stream,
            f"{column} is no TIMESTAMP column of it",
            f"choose of: {', '.join(names)}" if names else "give it a column of type TIMESTAMP",
        )
    micros = _interval(stream, "delay", delay, "write it like 10 minutes", session)
    options = {
        given.get(name, name): value
        if name not in given
        else str(_interval(stream, given[name], value, _HINTS[given[name]], session))
        for name, value in stream.options.items()
    }
    if options.get(IDLE_TIMEOUT) == "0":
        raise refused(stream, f"the {IDLE_TIMEOUT} is zero", _HINTS[IDLE_TIMEOUT])
    return replace(stream, event_time=found.name, delay=micros, options=options)


_HINTS = {
    MAX_AHEAD: "write it like '1 hour', or '36500 days' for practically no limit",
    IDLE_TIMEOUT: "write it like '5 minutes'",
}


def with_default_limit(stream: Entry) -> Entry:
    """Return a new stream with the default of `max_ahead`, if it has a watermark and no limit."""
    if not stream.event_time or MAX_AHEAD in stream.options:
        return stream
    return replace(stream, options={**stream.options, MAX_AHEAD: str(DEFAULT_MAX_AHEAD)})


def _interval(stream: Entry, what: str, text: str, way_out: str, session: SparkSession) -> int:
    """Return an interval of time in microseconds; DataError if it is none, or negative."""
    micros = interval_micros(text, session)
    if micros is None:
        shown = repr(text) if what == "delay" else f"{what} {text!r}"
        raise refused(stream, f"{shown} is no interval of time", way_out)
    if micros < 0:
        raise refused(stream, f"the {what} {text} is negative", way_out)
    return micros


def declared_watermark(frame: DataFrame) -> tuple[str, str] | None:
    """Return the watermark that `DataFrame.withWatermark` has declared."""
    for column in frame.schema:
        delay = (column.metadata or {}).get("spark.watermarkDelayMs")
        if delay is not None:
            return column.name, f"{delay} milliseconds"
    return None


def rows_below(frame: DataFrame, column: str, field: str, value: int | None) -> DataFrame:
    """Return the rows whose column (or a field of it) is below a value in Spark's internal form."""
    if value is None:
        return frame.limit(0)
    given = col(quoted(column))
    kind = frame.schema[column].dataType
    if isinstance(kind, StructType):
        given, kind = given[field], kind[field].dataType
    if isinstance(kind, TimestampType):
        limit = expr(f"timestamp_micros({value})")
    elif isinstance(kind, TimestampNTZType):
        seconds, micros = divmod(value, 1_000_000)
        moment = f"make_dt_interval(0, 0, 0, {seconds}.{micros:06d})"
        limit = expr(f"timestamp_ntz'1970-01-01' + {moment}")
    elif isinstance(kind, DateType):
        limit = expr(f"date_from_unix_date({value})")
    else:
        limit = lit(value)
    return frame.where(given < limit)


def latest_time(frame: DataFrame, stream: Entry, limit: int) -> int | None:
    """Return the latest event time up to a limit, both in microseconds since 1970; None without one."""
    column = stream.event_time
    rows = rows_below(frame, column, "", min(limit, 2**63 - 2) + 1)
    return _micros(rows.select(sql_max(col(quoted(column)))))


def parsed_time(text: str, stream: Entry, session: SparkSession) -> int:
    """Return the event time that a text means for a stream, in microseconds since 1970."""
    kind = stream.columns[stream.event_time].dataType.simpleString()
    way_out = "write it like 2026-01-31 10:00:00"
    try:
        found = _micros(session.range(1).select(lit(text).cast(kind)))
    except FAILURES as error:
        raise refused(stream, f"{text!r} is no moment", way_out) from error
    if found is None:
        raise refused(stream, f"{text!r} is no moment", way_out)
    return found


def _micros(frame: DataFrame) -> int | None:
    """Return the one value of a frame, an event time of a stream, in microseconds since 1970."""
    named = frame.toDF("t")
    if isinstance(named.schema["t"].dataType, TimestampNTZType):
        number = "timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01', t)"
    else:
        number = "unix_micros(t)"
    found: int | None = named.selectExpr(number).collect()[0][0]
    return found


def refused(stream: Entry, why: str, way_out: str) -> DataError:
    """Return the error for a watermark that a stream can't have."""
    return DataError(
        f"stream {stream.name} can't have this watermark: {why}",
        condition="BAD_WATERMARK",
        hint=way_out,
    )
