"""The format `USING delta`: the changes of a Delta table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from eddyline.catalog.entries import Entry
from eddyline.changes import CHANGE_TYPE
from eddyline.errors import DataError
from eddyline.intake.formats import Context, check_columns, log_columns
from eddyline.sink.delta import is_held
from eddyline.sink.delta_sink import package
from eddyline.sink.secrets import filled_in
from eddyline.source.base import Source
from eddyline.source.delta import ADDED, DeltaStream
from eddyline.source.delta_log import DeltaLog, TableVersion
from eddyline.source.segment_readers import Reader

PATH, STARTING = "path", "startingversion"
OPTIONS: Mapping[str, str] = {
    "path": "folder or URL of the table",
    "startingVersion": "the first version whose changes are read; else a snapshot comes first",
}


class DeltaChanges:
    """The rows of a Delta table, then the changes of each version: `USING delta`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    @property
    def about(self) -> Sequence[str]:
        """The columns that describe a change; streams of operations don't have them."""
        return list(ADDED.names)

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns of the table, and those that describe a change."""
        given = _checked(stream, options)
        return _columns(_layout(stream, given))

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the table, its columns or an option don't fit."""
        given = _checked(stream.name, stream.options)
        if stream.id:  # it has begun to read; from now on its columns follow those of the table
            given.pop(STARTING, None)
        layout = _layout(stream.name, given)
        if why := _unreadable(layout):
            raise _bad(stream.name, why, _WAYS_OUT.get(why, "give the column another name"))
        if stream.operation not in ("", CHANGE_TYPE):
            raise _bad(
                stream.name,
                f"the operations of this source are in {CHANGE_TYPE}, not in {stream.operation}",
                f"give OP {CHANGE_TYPE}, or leave OP out",
            )
        if stream.key and not stream.operation:
            raise _bad(
                stream.name,
                "this source has deletes and old rows, which PRIMARY KEY alone would keep",
                f"give OP {CHANGE_TYPE}, too, or leave PRIMARY KEY out",
            )
        about = [name for name in stream.given_columns.names if name in ADDED.names]
        if about and stream.operation and not stream.key:
            raise _bad(
                stream.name,
                f"a row is deleted in another version than it came, so {about[0]} would differ",
                f"leave out {', '.join(about)}, or declare a primary key",
            )
        check_columns(stream, _columns(layout))
        for field in stream.given_columns:
            if not is_held(field.dataType):
                kind = field.dataType.simpleString()
                raise _bad(
                    stream.name,
                    f"column {field.name} has the type {kind}, which can't be read",
                    "declare the other columns",
                )

    def letters(self, stream: Entry) -> str:
        """Return no role: a table that doesn't fit stops the stream."""
        return ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that follows the table."""
        given = {name.lower(): value for name, value in stream.options.items()}
        starting = given.get(STARTING)
        return DeltaStream(
            stream.name,
            None if starting is None else int(starting),
            bool(stream.operation),
            log_columns(stream),
            partial(_misfit, stream),
            partial(_log, stream.name, given),
            context.log_of(stream),
            f"checkpoints/{stream.id}",
        )


_NO_FEED, _MAPPED = "its change data feed is off", "its columns have other names in its files"
_WAYS_OUT = {
    _NO_FEED: "ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true); the feed then "
    "has what is written from that version on",
    _MAPPED: "write the table anew without column mapping, which delta-rs can't read in a feed",
}


def _bad(stream: str, why: str, way_out: str) -> DataError:
    return DataError(
        f"stream {stream} can't follow its Delta table: {why}",
        condition="BAD_STREAM",
        stream=stream,
        hint=way_out,
    )


def _checked(stream: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by names in lower case; an error if one is unknown, missing or wrong."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in OPTIONS}
    for unknown in given.keys() - known:
        raise _bad(stream, f"it has no option {unknown}", f"the options are {', '.join(OPTIONS)}")
    if not given.get(PATH, "").strip():
        raise _bad(stream, "the option path is missing", "give the folder or URL of the table")
    if not given.get(STARTING, "0").isdecimal():
        why = f"startingVersion is {given[STARTING]!r}"
        raise _bad(stream, why, "give the number of a version, or leave it out")
    return given


def _log(stream: str, given: Mapping[str, str]) -> DeltaLog:
    """Return the table, with the secrets of the options filled in."""
    path = filled_in(given)[PATH]
    return DeltaLog(
        package("a stream of format delta"),
        stream,
        path if "://" in path else os.path.abspath(path),
    )


def _layout(stream: str, given: Mapping[str, str]) -> TableVersion:
    """Return the layout of the version that a stream begins with."""
    delta = _log(stream, given)
    if not delta.is_table():
        raise _bad(
            stream, f"there is none at {delta.path}", "give the folder or URL of a Delta table"
        )
    table = delta.open()
    starting = given.get(STARTING)
    if starting is None:
        return delta.layout(table)
    if int(starting) > table.version():
        raise _bad(
            stream,
            f"there is no version {starting} yet, the last one is {table.version()}",
            "leave startingVersion out to begin with a snapshot of the last version",
        )
    if delta.there(int(starting)) == [False]:
        raise _bad(
            stream,
            f"version {starting} is no longer in the log of the table",
            "give a later version, or leave startingVersion out",
        )
    return delta.layout(delta.open(int(starting)))


def _columns(layout: TableVersion) -> StructType:
    own = StructType.fromJson(json.loads(layout.schema))
    return StructType([*own, *from_arrow_schema(ADDED)])


def _misfit(stream: Entry, layout: TableVersion) -> str:
    """Return the reason why a stream can't read a table of a layout; empty if it can."""
    if why := _unreadable(layout):
        return why
    own = StructType.fromJson(json.loads(layout.schema))
    there = {one.name: one.dataType.simpleString() for one in own}
    for one in stream.given_columns:
        kind = one.dataType.simpleString()
        if one.name not in ADDED.names and there.get(one.name) != kind:
            found = there.get(one.name)
            return (
                f"it has no column {one.name}"
                if found is None
                else (f"its column {one.name} is {found}, not {kind}")
            )
    return ""


def _unreadable(layout: TableVersion) -> str:
    """Return the reason why no stream can read a table of a layout; empty if one can."""
    if not layout.feed:
        return _NO_FEED
    if layout.mapped:
        return _MAPPED
    taken = [name for name in layout.names if name.lower() in ADDED.names]
    return f"its column {taken[0]} has a name that the stream adds itself" if taken else ""
