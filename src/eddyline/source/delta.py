"""Streams of the changes of a Delta table: `USING delta`.

The first entry of the redo log is a snapshot; later entries hold the change data feed of one or more whole
versions. Rows are copied, because VACUUM removes old files of a table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import (
    AFTER,
    APPEND,
    BEFORE,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    OPERATION,
    REPLACED,
)
from eddyline.errors import DataError, EddylineError, EngineError
from eddyline.source.base import cannot_read
from eddyline.source.delta_log import Commit, DeltaLog, TableVersion
from eddyline.source.lag import LOOK_AGAIN_S, VERSIONS, Unread
from eddyline.source.log_files import LogColumn, new_file, write_rows
from eddyline.source.positions import Positions
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment
from eddyline.source.source_thread import SourceThread, ThreadedSource

if TYPE_CHECKING:
    from deltalake import DeltaTable

SEQUENCE_COLUMN = "_seq"
ADDED = pa.schema(
    [
        (CHANGE_TYPE, pa.string()),
        (COMMIT_VERSION, pa.int64()),
        (COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
        (SEQUENCE_COLUMN, pa.int64()),
    ]
)
"""The columns after those of the table, named as in Delta's change feed, and the order of all rows."""

ENTRY_VERSIONS, ENTRY_BYTES = 100, 32 << 20
"""An entry ends with the version that makes it so large; it has one version at least."""

FILE_BYTES = 32 << 20
"""Rows are kept in memory up to this, before they are written to a file of the entry."""

LOOK_S = 0.5
"""In the background the table is looked at no more often."""

CHECK_S = 30.0
"""After so long without new versions, the table is opened to see whether they are elsewhere."""

_ALTER = "ALTER STREAM can follow with a wider type, or without the column; else "
_AFTER = pa.array([INSERT, AFTER])
_AGAIN = (
    "drop the stream with its views and create them again: it begins with a new snapshot. What was "
    "received before stays readable until then"
)
_LOG = logging.getLogger("eddyline.sources")


@dataclass(frozen=True, slots=True)
class DeltaPosition:
    """What has been read.

    Attributes:
        table: the table's id.
        version: the last version whose rows are in the log; -1 for none.
        digest: of its commit; empty if that was already gone from the table's log, or not read.
        partitions: names of the columns of the table's partitions.
        columns: names of the table's columns.
    """

    table: str
    version: int
    digest: str
    partitions: tuple[str, ...]
    columns: tuple[str, ...]


class _StoppedError(Exception):
    """The stream is being stopped."""


@dataclass(slots=True)
class DeltaStream(ThreadedSource):
    """The changes of a Delta table, copied into the redo log.

    Attributes:
        name: name of the stream.
        starting: the first version whose changes are read; None to begin with a snapshot.
        operations: whether the log keeps operations, for a stream with `OP _change_type`.
        wanted: the columns that the log keeps.
        misfit: returns the reason why a layout doesn't fit the stream's columns; empty if it fits.
        reached: opens the table; called when it is first needed, as a secret may be missing.
        log: redo log of the stream.
        folder: folder of the positions in the storage.
    """

    name: str
    starting: int | None
    operations: bool
    wanted: Sequence[LogColumn]
    misfit: Callable[[TableVersion], str]
    reached: Callable[[], DeltaLog]
    log: RedoLog
    folder: str
    _delta: DeltaLog | None = field(default=None, init=False)
    _table: tuple[DeltaTable, TableVersion] | None = field(default=None, init=False)
    _state: DeltaPosition | None = field(default=None, init=False)  # None: not read yet
    _next: int = field(default=-1, init=False)  # the number of the entry that follows `_state`
    _looked: float = field(default=0.0, init=False)
    _checked: float = field(default=0.0, init=False)
    _latest: tuple[int, float] = field(
        default=(0, 0.0), init=False
    )  # a version, and when it was asked for
    _unread: Unread | None = field(default=None, init=False)
    _positions: Positions = field(init=False)
    _thread: SourceThread = field(init=False)

    def __post_init__(self) -> None:
        self._positions = Positions(self.name, self.log, self.folder)
        self._thread = SourceThread(f"eddyline-delta-{self.name}", self._copy)

    @property
    def delta(self) -> DeltaLog:
        """The table; opened on first use."""
        if self._delta is None:
            self._delta = self.reached()
        return self._delta

    def pull(self) -> None:
        """Copy the snapshot, and the changes of all versions that are there now."""
        self._checked = 0.0
        self._thread.run_now()

    def follow(self, interval_s: float) -> None:
        """Copy new versions in a thread, so that no other stream waits for this one's store."""
        if time.monotonic() >= self._looked + LOOK_S:
            self._looked = time.monotonic()
            self._thread.run_in_background()

    def stop(self) -> None:
        """Stop the thread; an interrupted version is read again."""
        self._thread.stop()

    def unread(self) -> Unread | None:
        """Return the versions that weren't read."""
        return self._unread

    def _copy(self) -> None:
        number = self.log.end()
        if self._state is None or self._next != number:
            stored = self._positions.read(number)
            self._state = None if stored is None else _state(stored)
            self._next = number
        try:
            if self._state is None:
                self._begin()
            more = True
            while more and not self._thread.stopped.is_set():
                more = self._copy_versions()
                self._measure(more)
        except _StoppedError:
            pass
        except BaseException:
            self._table = self._delta = None  # opened again by the next try
            raise

    def _measure(self, more: bool) -> None:
        """Keep how many versions there are after the position; where there may be more, ask from time to time."""
        self._thread.reached()
        assert self._state is not None
        version, now = self._state.version, time.monotonic()
        if not more:
            self._latest = version, 0.0
        elif now >= self._latest[1] + LOOK_AGAIN_S:
            self._latest = self.delta.latest(max(version, 0)), now
        self._unread = Unread(max(self._latest[0] - version, 0), VERSIONS, version)

    def _begin(self) -> None:
        """Copy a snapshot of the table, or set the position before the first version to read."""
        table = self.delta.open(self.starting)
        layout, version = self.delta.layout(table), table.version()
        self._check(layout, version)
        state = DeltaPosition(layout.table, version, "", layout.partitions, tuple(layout.names))
        if self.starting is not None:
            self._store(replace(state, version=self.starting - 1))
            return
        commit = self.delta.commit(version)
        if commit is not None:
            state = replace(state, digest=commit.digest)
        self.log.clear(self._next)
        parts = _EntryRows(self)
        numbers = _RowNumbering(self, version, None if commit is None else commit.committed_at)
        for found in self._rows(self.delta.snapshot(table, self._names(state))):
            parts.add(numbers.rows(found, is_after=True))
        self._append(parts.finish(), state)

    def _copy_versions(self) -> bool:
        """Copy the versions of an entry; return whether there may be more."""
        before = done = self._state
        assert before is not None
        assert done is not None
        commits = self._commits(before)
        if not commits:
            return False
        self.log.clear(self._next)
        parts = _EntryRows(self)
        for commit in commits:
            try:
                after = self._next_position(done, commit)
                self._read(commit, after, parts)
            except EddylineError:
                if done is before:
                    raise
                break  # log the versions before it; the next call raises the error
            done = after
        self._append(parts.finish(), done)
        return True

    def _commits(self, state: DeltaPosition) -> list[Commit]:
        """Return the commits of the next entry."""
        self._check_continuity(state)
        commits, size = list[Commit](), 0
        for version in range(state.version + 1, state.version + 1 + ENTRY_VERSIONS):
            commit = self.delta.commit(version)
            if commit is None:
                break
            size += commit.size
            if commits and size > ENTRY_BYTES:
                break
            commits.append(commit)
        return commits

    def _check_continuity(self, state: DeltaPosition) -> None:
        """Raise an error unless the table's next commits continue the one that was read last."""
        last = state.version
        there, known = self.delta.there(last + 1, max(last, 0))
        if there and known:
            if state.digest:
                found = self.delta.commit(last)
                if found is not None and found.digest != state.digest:
                    raise self._changed(f"its version {last} is another one than when it was read")
            return
        if known and time.monotonic() < self._checked + CHECK_S:
            return
        table = self.delta.open()
        if self.delta.layout(table).table != state.table:
            raise self._changed("another table is at its path")
        if table.version() < last:
            raise self._changed(f"it had version {last}, and its last one is {table.version()}")
        (there,) = self.delta.there(last + 1)
        if table.version() > last and not there:
            raise self._lost(
                f"version {last + 1} is no longer in the log of the table, whose last version is "
                f"{table.version()}"
            )
        self._checked = time.monotonic()

    def _next_position(self, state: DeltaPosition, commit: Commit) -> DeltaPosition:
        """Return the state after a commit; DataError if its layout doesn't fit."""
        state = replace(state, version=commit.version, digest=commit.digest)
        layout = commit.layout
        if layout is None:
            return state
        if layout.table != state.table:
            raise self._changed(f"version {commit.version} replaces it with another one")
        self._check(layout, commit.version)
        if new := [name for name in layout.names if name not in state.columns]:
            text = "stream %s doesn't have the columns that version %d adds to its table: %s"
            _LOG.warning(text, self.name, commit.version, ", ".join(new))
        return replace(state, partitions=layout.partitions, columns=tuple(layout.names))

    def _check(self, layout: TableVersion, version: int) -> None:
        if why := self.misfit(layout):
            raise self._changed(f"as of version {version} {why}", _ALTER)

    def _read(self, commit: Commit, state: DeltaPosition, parts: _EntryRows) -> None:
        """Add the changes of one version to an entry: first the removed rows, then the new ones."""
        if not commit.files:  # it changes no row, as OPTIMIZE and VACUUM
            return
        gone, came = _EntryRows(self), _EntryRows(self)
        numbers = _RowNumbering(self, commit.version, commit.committed_at)
        try:
            table, names = self._opened(state), self._names(state)
            for changed in self._rows(self.delta.changes(table, commit.version, names)):
                is_after = pc.is_in(changed[CHANGE_TYPE], _AFTER)
                came.add(numbers.rows(changed.filter(is_after), is_after=True))
                gone.add(numbers.rows(changed.filter(pc.invert(is_after)), is_after=False))
        except EddylineError as error:
            gone.discard()
            came.discard()
            missing = list[str]()
            with suppress(EddylineError):
                missing = self.delta.missing(commit)
            if missing:
                raise self._lost(
                    f"{len(missing)} files of version {commit.version} are gone, such as {missing[0]}: "
                    "they were vacuumed before they were read"
                ) from error
            if any("%" in name for name in commit.files):
                raise cannot_read(
                    self.name,
                    f"version {commit.version} of Delta table {self.delta.path} changes partitions whose "
                    "names are encoded in paths, such as those with spaces or colons: deltalake doesn't "
                    "find their files",
                ) from error
            raise
        parts.join(gone)
        parts.join(came)

    def _opened(self, state: DeltaPosition) -> DeltaTable:
        """Return the table as of a version that has the layout of a state."""
        for version in (None, state.version):
            if self._table is None:
                table = self.delta.open(version)
                self._table = table, self.delta.layout(table)
            table, layout = self._table
            same = (layout.table, layout.partitions) == (state.table, state.partitions)
            if same and not self.misfit(layout):
                return table
            self._table = None
        raise self._changed(f"its version {state.version} can't be opened as it was")

    def _names(self, state: DeltaPosition) -> list[str]:
        """Return the names of the columns to read; at least one, without which the number of rows is unknown."""
        own = [one.name for one in self.wanted if one.name not in ADDED.names]
        return own or [state.columns[0]]

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield rows in the types of the stream, and `_change_type`."""
        for batch in batches:
            if self._thread.stopped.is_set():
                raise _StoppedError
            found = set(batch.schema.names)
            columns = {
                one.name: batch[one.name].cast(one.type) for one in self.wanted if one.name in found
            }
            kinds = batch[CHANGE_TYPE].cast(pa.string()) if CHANGE_TYPE in found else None
            columns[CHANGE_TYPE] = (
                pa.repeat(pa.scalar(INSERT), len(batch)) if kinds is None else kinds
            )
            yield pa.table(columns)

    def _changed(self, why: str, first: str = "") -> DataError:
        return DataError(
            f"stream {self.name} gets no more changes of Delta table {self.delta.path}: {why}",
            condition="SOURCE_CHANGED",
            stream=self.name,
            hint=first + _AGAIN,
        )

    def _lost(self, why: str) -> EngineError:
        return EngineError(
            f"stream {self.name} can't go on without a gap in Delta table {self.delta.path}: {why}",
            condition="SOURCE_LOST",
            stream=self.name,
            hint=_AGAIN,
        )

    def written(self, rows: pa.Table) -> Segment:
        """Write rows as a file of the next entry."""
        return write_rows(self.log.files, new_file(self.log.folder, self._next), rows)

    def _append(self, segments: list[Segment], state: DeltaPosition) -> None:
        """Write an entry, and before it the position that holds after it; without rows only the position."""
        number, self._state = self._next, None  # unless this succeeds, it is read again
        if segments:
            self._positions.append(number, segments, asdict(state))
            self._next = number + 1
        else:
            self._positions.write(number, asdict(state))
        self._state = state

    def _store(self, state: DeltaPosition) -> None:
        self._append([], state)


class _RowNumbering:
    """Converts the rows of one version to rows of the log, and numbers them.

    Args:
        committed_at: when the version was committed, in milliseconds since 1970; None if that isn't known.
    """

    def __init__(self, stream: DeltaStream, version: int, committed_at: int | None) -> None:
        self._stream, self._version = stream, version
        time = None if committed_at is None else committed_at * 1000
        self._time = pa.scalar(time, ADDED.field(COMMIT_TIMESTAMP).type)
        self._counts = [0, 0]

    def rows(self, rows: pa.Table, *, is_after: bool) -> pa.Table:
        """Return rows of the log.

        Args:
            is_after: whether these are new rows, rather than removed ones.
        """
        count, first = rows.num_rows, self._counts[is_after]
        self._counts[is_after] += count
        columns = {}
        for one in self._stream.wanted:
            column: pa.Array | pa.ChunkedArray
            if one.name == COMMIT_VERSION:
                column = pa.repeat(pa.scalar(self._version), count)
            elif one.name == COMMIT_TIMESTAMP:
                column = pa.repeat(self._time, count)
            elif one.name == SEQUENCE_COLUMN:
                base = (self._version << 36) + (is_after << 35) + first
                column = pa.array(np.arange(base, base + count))
            else:
                column = rows[one.name]
            columns[one.place] = column.cast(one.type)
        if self._stream.operations:
            gone = pc.if_else(pc.equal(rows[CHANGE_TYPE], BEFORE), REPLACED, DELETE)
            columns[OPERATION] = pa.repeat(pa.scalar(APPEND), count) if is_after else gone
        return pa.table(columns)


class _EntryRows:
    """The rows of an entry in order; those that don't fit in memory are in files."""

    def __init__(self, stream: DeltaStream) -> None:
        self._stream = stream
        self._segments: list[Segment] = []
        self._held: list[pa.Table] = []
        self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if rows.num_rows:
            self._held.append(rows)
            self._bytes += rows.nbytes
            if self._bytes >= FILE_BYTES:
                self._write()

    def join(self, other: _EntryRows) -> None:
        """Add the rows of another one."""
        if other._segments:
            self._write()
            self._segments += other._segments
        for rows in other._held:
            self.add(rows)

    def finish(self) -> list[Segment]:
        """Return the segments of all rows."""
        self._write()
        return self._segments

    def discard(self) -> None:
        """Remove the files."""
        for segment in self._segments:
            self._stream.log.files.remove(segment.file)

    def _write(self) -> None:
        if self._held:
            self._segments.append(self._stream.written(pa.concat_tables(self._held)))
            self._held, self._bytes = [], 0


def _state(document: dict[str, Any]) -> DeltaPosition:
    lists = {name: tuple(document[name]) for name in ("partitions", "columns")}
    return DeltaPosition(**{**document, **lists})
