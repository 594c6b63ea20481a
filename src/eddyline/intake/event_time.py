"""Event times of streams: checks the declaration of a watermark, and evaluates event times in Spark."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit
from pyspark.sql.functions import max as sql_max
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from eddyline.catalog.entries import IDLE_TIMEOUT, MAX_AHEAD, TIME_OPTIONS, Entry
from eddyline.errors import DataError
from eddyline.spark.failures import FAILURES
from eddyline.spark.intervals import interval_micros
from eddyline.sql.names import quoted

DEFAULT_MAX_AHEAD = 24 * 3600 * 1_000_000
"""Microseconds that an event time may be ahead of the receipt of its row, where the user gives no limit."""


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
    """Return an interval in microseconds; raise DataError if the text isn't one, or is negative."""
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
    """Parse a text as an event time of a stream, in microseconds since 1970."""
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
    """Return the only value of a frame, an event time of a stream, in microseconds since 1970."""
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
