"""One definition of a catalog: a table, stream, view or sink, and the names of its roles and options."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.source.received import given_places

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TABLE, STREAM, VIEW, SINK = "table", "stream", "view", "sink"
FRAME = "dataframe"  # format of a view that a DataFrame defines
LATE = "__late"  # suffix of the stream of late rows
DEAD = "__dead"  # suffix of the stream of dead letters of a pipeline or stream
PIPELINE = "pipeline"  # role of a pipeline's dead letters; the entry also represents the pipeline
REJECTS = "rejects"  # role of the dead letters of a stream that Spark reads
KEPT_OUT = "kept out"  # role of the stream of records that the expectations of a stream of operations reject
KEPT = "__kept_out"  # suffix of that stream
LATE_ROWS = "late"  # role of the late rows of a stream
INTO = "into"  # option of role PIPELINE: name of the stream that the pipeline writes
OF = "of"  # option of these two roles: id of the stream
MAX_AHEAD = "max_ahead"  # option of a stream with a watermark: see `Entry.max_ahead`
IDLE_TIMEOUT = "idle_timeout"  # option of a stream with a watermark: see `Entry.idle_timeout`
TIME_OPTIONS = (MAX_AHEAD, IDLE_TIMEOUT)  # options that the engine itself reads, in microseconds
COMMIT_INTERVAL = (
    "commit_interval"  # option of any sink: deliveries are so far apart, in microseconds
)
RETAIN = "retain"  # another one, see `intake/retention.py`
EXPECTATIONS = "row expectations"  # option of a stream or view: see `catalog/expectations.py`
LOGGED = "log columns"  # option of a stream whose columns have changed: see `catalog/logged.py`
MADE_AS = "made as"  # option of a table that CREATE TABLE AS has made: a hash of the query
LEFT = "left"  # in the metadata of a column of a log that the stream no longer has
LATER = "later"  # in the metadata of a column that was added to a stream of operations: it comes after `OP`
COMPANION = "companion of"  # option of a view that belongs to a relation: its name in lower case
REASON = "reason"  # the last column of a stream of late rows, unless the stream has one


@dataclass(frozen=True, slots=True)
class Entry:
    """One definition.

    Attributes:
        id: part of its file names; never reused.
        kind: table, stream, view or sink.
        schema: JSON of the columns' StructType.
        key: names of the primary key's columns.
        query: the SQL of a view; for one of a DataFrame the text of its plan, to compare with.
        upstream: names of the relations that a view reads, or of the view that a sink follows.
        format: the name after USING of a stream or sink, or the role of a stream of dead letters;
            empty for a stream of a DataFrame, or one that a pipeline writes. `FRAME` for a view of
            a DataFrame, empty for one of SQL.
        options: the OPTIONS of a stream or sink; `RETAIN` and `TIME_OPTIONS` as microseconds. For a view of a
            DataFrame the versions of `spark` and `python` that the text of its plan is of.
        operation: the column of a stream that holds + or -.
        event_time: the column from which a stream's watermark is computed; empty without one.
        delay: how many microseconds the watermark lags behind the latest event time.
        late_of: the id of the stream whose late rows these are; empty for other relations.
        result: the arrangement that holds a view's rows. For a view with ORDER BY two words follow for each sort
            key: `asc` or `desc`, and `first` or `last` for nulls. Empty for views with ORDER BY of older versions.
        final: whether a view has EMIT FINAL.
        since: the epoch that computed a view's first rows, or computed them again after a pause.
        paused: the epoch whose result a paused view keeps; 0 for one that is not paused. 1 for a
            paused sink.
        paused_with: the upstream view with which it was paused; empty if paused directly.
    """

    id: str
    kind: str
    name: str
    schema: str
    key: tuple[str, ...] = ()
    query: str = ""
    upstream: tuple[str, ...] = ()
    format: str = ""
    options: dict[str, str] = field(default_factory=dict)
    operation: str = ""
    since: int = 0
    event_time: str = ""
    delay: int = 0
    late_of: str = ""
    final: bool = False
    result: str = ""
    paused: int = 0
    paused_with: str = ""

    @property
    def columns(self) -> StructType:
        """The columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.schema))

    @property
    def given_columns(self) -> StructType:
        """The columns that the source of a stream provides: all but `_received_at`."""
        from pyspark.sql.types import StructType

        columns = self.columns
        return StructType([columns[place] for place in source_places(columns)])

    @property
    def source(self) -> str:
        """The id of its redo log and position; a stream of late or rejected rows shares those of its stream."""
        return self.options[OF] if self.role == KEPT_OUT else self.late_of or self.id

    @property
    def time_place(self) -> int | None:
        """The place of the event-time column; None without a watermark."""
        return self.columns.names.index(self.event_time) if self.event_time else None

    @property
    def max_ahead(self) -> int | None:
        """How many microseconds an event time may be ahead of its receipt; None for no limit.

        Streams that were made before this option existed have no limit.
        """
        given = self.options.get(MAX_AHEAD) if self.event_time else None
        return None if given is None else int(given)

    @property
    def idle_timeout(self) -> int | None:
        """After how many microseconds without rows the stream is idle; None if it never is."""
        given = self.options.get(IDLE_TIMEOUT) if self.event_time else None
        return None if given is None else int(given)

    @property
    def sorts(self) -> list[tuple[bool, bool]] | None:
        """For each sort key of a view whether it is descending, and whether nulls come last; None if unknown.

        The keys are stored in columns after the view's own.
        """
        if self.kind == VIEW and not self.result:
            return None
        words = self.result.split()[1:]
        pairs = zip(words[::2], words[1::2], strict=True)
        return [(direction == "desc", nulls == "last") for direction, nulls in pairs]

    @property
    def gives_reasons(self) -> bool:
        """Whether these are late rows, with the reason of each in the last column."""
        return bool(self.late_of) and self.max_ahead is not None

    @property
    def source_options(self) -> dict[str, str]:
        """The options for its source, without those that the engine reads itself."""
        own = (EXPECTATIONS, LOGGED, RETAIN, *(TIME_OPTIONS if self.event_time else ()))
        return {name: value for name, value in self.options.items() if name not in own}

    @property
    def role(self) -> str:
        """`PIPELINE`, `REJECTS`, `KEPT_OUT` or `LATE_ROWS` for a stream that belongs to another; else empty."""
        if self.late_of:
            return LATE_ROWS
        roles = PIPELINE, REJECTS, KEPT_OUT
        return self.format if self.kind == STREAM and self.format in roles else ""

    @property
    def holds_letters(self) -> bool:
        """Whether its rows are dead letters."""
        return self.role in (PIPELINE, REJECTS)

    @property
    def takes_input(self) -> bool:
        """Whether a source or a pipeline can write it; false for streams of late rows and dead letters."""
        return self.kind == STREAM and not self.role

    @property
    def reopens(self) -> bool:
        """Whether format and options suffice to open its source again."""
        return self.takes_input and bool(self.format)

    @property
    def attached_to(self) -> str:
        """The id of the entry to which the source of its rows is attached."""
        return self.options[OF] if self.role == REJECTS else self.id

    def writes(self, stream: Entry) -> bool:
        """Return whether this represents the pipeline that writes a stream."""
        into = self.options.get(INTO, "") if self.role == PIPELINE else ""
        return into.lower() == stream.name.lower()

    @property
    def of_frame(self) -> bool:
        """Whether it is a view that a DataFrame defines."""
        return self.kind == VIEW and self.format == FRAME

    @property
    def arranged(self) -> bool:
        """Whether its rows are stored in an arrangement, because operations can change them."""
        return self.kind == TABLE or (self.kind == STREAM and bool(self.operation or self.key))


def source_places(columns: StructType) -> list[int]:
    """Return the places of a log's columns that the source provides."""
    return [place for place in given_places(columns.names) if LEFT not in columns[place].metadata]
