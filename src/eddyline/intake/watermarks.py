"""Watermarks of an epoch, and the event times that the next watermarks are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from eddyline.catalog.entries import Catalog, Entry
from eddyline.errors import DataError
from eddyline.operators.hold import Hold
from eddyline.plan.nodes import StatefulPart
from eddyline.spark.failures import FAILURES
from eddyline.sql.names import quoted
from eddyline.state.manifest import Clock, Manifest


@dataclass(slots=True)
class Watermarks:
    """The watermarks that are in force in the epoch after a committed one.

    Attributes:
        streams: the streams that have a watermark.
        clocks: by stream id, the event time as of the committed epoch.
        reported: by stream name, the latest event time and the number of late rows in the running
            epoch.
    """

    streams: tuple[Entry, ...]
    clocks: Mapping[str, Clock]
    reported: dict[str, tuple[int | None, int]] = field(default_factory=dict)

    @classmethod
    def of_next_epoch(cls, manifest: Manifest, catalog: Catalog) -> Watermarks:
        """Return the watermarks for the epoch after a committed one."""
        streams = tuple(e for e in catalog.entries if e.event_time and not e.late_of)
        return cls(streams, manifest.clocks)

    @property
    def values(self) -> dict[str, int]:
        """Watermarks in microseconds since 1970 by stream name, for streams that have had an event time."""
        return {
            stream.name: self.clocks[stream.id].latest - stream.delay
            for stream in self.streams
            if stream.id in self.clocks
        }

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

    def observe(self, stream: str, latest: int | None, late: int) -> None:
        """Record the latest event time and the late rows of a stream, as reported by a view's leaves.

        Each view reads the whole input, so the reports of several views are not added up.
        """
        known, lates = self.reported.get(stream, (None, 0))
        times = [time for time in (known, latest) if time is not None]
        self.reported[stream] = max(times, default=None), max(late, lates)

    def next_clocks(self, positions: Mapping[str, int]) -> dict[str, Clock]:
        """Return the clocks to commit with the epoch.

        Args:
            positions: end positions of the sources with new input; the late rows of other sources
                were counted before.
        """
        clocks = dict(self.clocks)
        for stream in self.streams:
            latest, late = self.reported.get(stream.name, (None, 0))
            clock = clocks.get(stream.id)
            if clock is None:
                if latest is not None:
                    clocks[stream.id] = Clock(latest)
                continue
            clocks[stream.id] = replace(
                clock,
                latest=clock.latest if latest is None else max(clock.latest, latest),
                watermark=clock.latest - stream.delay,
                late=clock.late + (late if stream.id in positions else 0),
            )
        return clocks


def with_watermark(
    stream: Entry, watermark: tuple[str, str] | None, session: SparkSession
) -> Entry:
    """Return a stream with a watermark; DataError if that watermark isn't possible."""
    if watermark is None:
        return stream
    column, delay = watermark
    if stream.arranged:
        raise _refused(
            stream,
            "its rows can be replaced or retracted at any time, which a watermark would leave out",
            "leave the watermark, or OP and PRIMARY KEY, away",
        )
    known = {field.name.lower(): field for field in stream.columns}
    found = known.get(column.lower())
    if found is None or not isinstance(found.dataType, TimestampType | TimestampNTZType):
        names = [f.name for f in known.values() if f.dataType.typeName().startswith("timestamp")]
        raise _refused(
            stream,
            f"{column} is no TIMESTAMP column of it",
            f"choose of: {', '.join(names)}" if names else "give it a column of type TIMESTAMP",
        )
    interval = delay if delay.strip().lower().startswith("interval") else f"INTERVAL '{delay}'"
    try:
        rows = session.sql(f"SELECT unix_micros(timestamp_micros(0) + {interval})").collect()
    except FAILURES as error:
        raise _refused(
            stream, f"{delay!r} is no interval of time", "write it like 10 minutes"
        ) from error
    if rows[0][0] is None or rows[0][0] < 0:
        raise _refused(stream, f"the delay {delay} is negative", "give how late rows may come")
    return replace(stream, event_time=found.name, delay=rows[0][0])


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


def _refused(stream: Entry, why: str, way_out: str) -> DataError:
    return DataError(
        f"stream {stream.name} can't have this watermark: {why}",
        condition="BAD_WATERMARK",
        hint=way_out,
    )
