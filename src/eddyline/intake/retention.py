"""The retention of append-only streams, and the views that have counted expired rows.

Expired rows are not retracted: existing views keep their results. Queries and later views read only the
retained rows. So a view that has counted expired rows can neither be compared with offline SQL nor computed
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import SparkSession

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import RETAIN, STREAM, Entry
from eddyline.changes import ViewId
from eddyline.errors import DataError, StateError
from eddyline.intake.sources import Sources
from eddyline.spark.intervals import interval_micros
from eddyline.state.manifest import Manifest


def with_retention(stream: Entry, session: SparkSession) -> Entry:
    """Return a new stream with its option `retain` in microseconds.

    Raises:
        DataError: BAD_RETENTION, the stream can't have that.
    """
    given = [name for name in stream.options if name.lower() == RETAIN]
    for name in given:
        text = stream.options[name]
        options = {key: value for key, value in stream.options.items() if key not in given}
        stream = retaining(replace(stream, options=options), text, session)
    return stream


def retaining(stream: Entry, interval: str | None, session: SparkSession) -> Entry:
    """Return a stream that keeps its rows for a time.

    Args:
        interval: such as `30 days`; None: forever.

    Raises:
        DataError: BAD_RETENTION, the stream can't have that.
    """
    if stream.role:
        raise _refused(stream, "it belongs to another stream", "give it to that one")
    if stream.arranged:
        raise _refused(
            stream,
            "its rows are those that its operations leave, and are stored apart from its log",
            "delete rows in its source",
        )
    options = {name: value for name, value in stream.options.items() if name != RETAIN}
    if interval is not None:
        micros = interval_micros(interval, session)
        if micros is None or micros <= 0:
            raise _refused(stream, f"{interval!r} is no time", "write it like '30 days'")
        options[RETAIN] = str(micros)
    return replace(stream, options=options)


def short_of_rows(view: Entry, catalog: Catalog, manifest: Manifest, sources: Sources) -> str:
    """Return the name of a stream that no longer has all rows of a view; empty if there is none."""
    computed = max(view.since, manifest.rebuilt.get(ViewId(view.id), 0))
    for read in map(catalog.find, view.upstream):
        if read is not None and read.kind == STREAM and not read.arranged:
            expired = sources.log(read).expired()
            if expired.end and expired.epoch >= computed:
                return read.name
    return ""


def views_with_expired_rows(
    views: Iterable[Entry], catalog: Catalog, manifest: Manifest, sources: Sources
) -> dict[str, tuple[str, str]]:
    """Return the views that have counted expired rows: by name the stream, and the view through which they came.

    Args:
        views: upstream first. Rows are only followed through these views, as those of others are stored.

    Returns:
        The second name is empty for a view that reads the stream directly.
    """
    found: dict[str, tuple[str, str]] = {}
    for view in views:
        through = next((name for name in view.upstream if name in found), "")
        if stream := short_of_rows(view, catalog, manifest, sources):
            found[view.name] = stream, ""
        elif through:
            found[view.name] = found[through][0], through
    return found


def rows_expired(view: str, stream: str) -> StateError:
    """Return the error for a view that can't be computed again, because rows of a stream have expired."""
    return StateError(
        f"view {view} can't be computed again: rows of stream {stream} are gone, which are older than it retains",
        condition="ROWS_EXPIRED",
        view=view,
        stream=stream,
        hint=f"CREATE OR REPLACE VIEW {view} while it is paused or set aside, or drop it and create it: it begins "
        f"anew, with the rows that {stream} still has",
    )


def _refused(stream: Entry, why: str, way_out: str) -> DataError:
    return DataError(
        f"stream {stream.name} can't have this retention: {why}",
        condition="BAD_RETENTION",
        stream=stream.name,
        hint=way_out,
    )
