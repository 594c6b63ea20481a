"""Streams of the changes of a table in PostgreSQL: `USING postgres`.

The first entry of the redo log is a snapshot of the table; later entries have the changes that a replication
slot retains on the server, whole transactions in each. The position after an entry is written before the
entry, under the number of the next one; the slot then advances to it.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from eddyline.errors import DataError, EddylineError, EngineError
from eddyline.source.lag import BYTES, LOOK_AGAIN_S, Unread
from eddyline.source.log_files import LogColumn, new_file, write_rows
from eddyline.source.pgoutput import (
    ADDED,
    PgoutputDecoder,
    PublishedColumn,
    PublishedTable,
    UndecodableError,
)
from eddyline.source.positions import Positions
from eddyline.source.postgres_server import Server, Slot
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment
from eddyline.source.source_thread import SourceThread, ThreadedSource

ENTRY_MESSAGES = 200_000
"""An entry ends with the transaction that brings so many messages."""

KEPT_BYTES = 4 << 20
"""After so much log of the server without changes of the table, the slot is let go of it."""

BUSY_S = 10.0
"""For so long a slot may be in use by the connection of a process that has ended."""

_AGAIN = (
    "drop the stream with its views and create them again: it begins with a new snapshot. What was "
    "received before stays readable until then"
)
_LOG = logging.getLogger("eddyline.sources")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SlotPosition:
    """What has been read.

    Attributes:
        slot, publication: their names on the server.
        table: as described when the snapshot was taken; None before.
        confirmed: transactions that are committed before this LSN are in the log.
        sequence: number of the next row.
    """

    slot: str
    publication: str
    table: PublishedTable | None = None
    confirmed: int = 0
    sequence: int = 0


@dataclass(slots=True)
class PostgresStream(ThreadedSource):
    """The changes of a table, copied into the redo log.

    Attributes:
        name: name of the stream.
        table: name of the table, quoted where it must be.
        slot, publication: names that the user gave; empty for names of our own.
        wanted: the columns that the log keeps.
        fit: raises DataError if a table doesn't have the stream's columns.
        reached: makes the server's object; called when it is first needed, as a secret may be missing.
        log: redo log of the stream.
        folder: folder of the states in the storage.
    """

    name: str
    table: str
    slot: str
    publication: str
    wanted: Sequence[LogColumn]
    fit: Callable[[PublishedTable], None]
    reached: Callable[[], Server]
    log: RedoLog
    folder: str
    _server: Server | None = field(default=None, init=False)
    _state: SlotPosition | None = field(default=None, init=False)  # None: not read yet
    _next: int = field(default=-1, init=False)  # the number of the entry that follows `_state`
    _looked: int = field(default=0, init=False)  # there are no changes before this LSN
    _unread: Unread | None = field(default=None, init=False)
    _positions: Positions = field(init=False)
    _thread: SourceThread = field(init=False)

    def __post_init__(self) -> None:
        self._positions = Positions(self.name, self.log, self.folder)
        self._thread = SourceThread(f"eddyline-postgres-{self.name}", self._copy)

    @property
    def server(self) -> Server:
        """The server; connected on first use."""
        if self._server is None:
            self._server = self.reached()
        return self._server

    def pull(self) -> None:
        """Copy the snapshot, or all changes that are committed now."""
        self._thread.run_now()

    def follow(self, interval_s: float) -> None:
        """Copy new changes in a thread, so that no other stream waits for this one's server."""
        self._thread.run_in_background()

    def stop(self) -> None:
        """Stop the thread and close the connection; the slot stays on the server."""
        self._thread.stop(lambda: self.server.cancel())
        if self._server is not None:
            self._server.close()

    def unread(self) -> Unread | None:
        """Return the bytes of the server's log that weren't searched for changes; it holds those of other tables, too."""
        return self._unread

    def drop(self) -> None:
        """Drop the slot, and the publication if the stream has created it; log an error if that is impossible."""
        slot = self.slot
        try:
            state = self._state or self._stored(self.log.end())
            if state is None:
                return
            slot = state.slot
            with self.server.used_for(self.name):
                self._retried(lambda: self.server.drop_slot(slot))
                if not self.publication:
                    self.server.drop_publication(state.publication)
        except EddylineError as error:
            text = "stream %s: drop its slot yourself, or the server keeps its log for ever: "
            text += "SELECT pg_drop_replication_slot('%s'); %s"
            _LOG.warning(text, self.name, slot or "eddyline_...", error)
        self.stop()

    def _copy(self) -> None:
        with self.server.used_for(self.name):
            number = self.log.end()
            if self._state is None or self._next != number:
                self._state, self._next = self._stored(number), number
            if self._state is None or self._state.table is None:
                self._begin()
            target = self.server.flushed()
            latest, asked = target, time.monotonic()
            self._measure(latest)
            more = True
            while more and not self._thread.stopped.is_set():
                more = self._copy_changes(target)
                if more and time.monotonic() >= asked + LOOK_AGAIN_S:
                    latest, asked = self.server.flushed(), time.monotonic()
                self._measure(latest)

    def _measure(self, latest: int) -> None:
        """Keep how much log of the server there is after the position."""
        self._thread.reached()
        assert self._state is not None
        position = max(self._looked, self._state.confirmed)
        self._unread = Unread(max(latest - position, 0), BYTES, position)

    def _begin(self) -> None:
        """Create the slot, and copy the table as of that moment."""
        table = self.server.describe(self.name, self.table)
        self.fit(table)
        own = _own_name(self.name)
        state = self._state or SlotPosition(self.slot or own, self.publication or own)
        if self._state is None:
            self._check_free(state.slot)
            self._store(state)  # before there is a slot, which is ours from now on
        else:  # of a snapshot that wasn't finished
            self._retried(lambda: self.server.drop_slot(state.slot))
        if self.publication:
            self.server.check_publication(self.name, state.publication, table)
        else:
            self.server.create_publication(state.publication, table)
        self.log.clear(0)
        columns = [one.name for one in self.wanted if one.name not in ADDED.names]
        with self.server.new_slot(state.slot) as (lsn, snapshot):
            decoder = PgoutputDecoder(self.name, table, self.wanted, lsn, 0)
            with closing(self.server.snapshot(snapshot, table, columns or [table.key[0]])) as texts:
                rows = [self._written(decoder.snapshot(part)) for part in texts]
        state = replace(state, table=table, confirmed=lsn, sequence=decoder.sequence)
        if rows:
            self._append(rows, state)
        else:
            self._store(state)

    def _copy_changes(self, target: int) -> bool:
        """Copy the transactions of an entry; return whether there may be more before an LSN."""
        before = self._state
        assert before is not None
        assert before.table is not None
        slot = self._checked(before)
        if slot.confirmed < before.confirmed:
            self._retried(lambda: self.server.advance(before.slot, before.confirmed))
        if target <= max(self._looked, before.confirmed):
            return False
        failure = None
        try:
            rows, count, state = self._read(before, target)
        except UndecodableError as error:  # log the transactions before it
            if error.before <= before.confirmed:
                raise error.error from None
            failure = error.error
            rows, count, state = self._read(before, error.before)
        if rows:
            self._append(rows, state)
        elif count >= ENTRY_MESSAGES or state.confirmed - before.confirmed >= KEPT_BYTES:
            self._store(state)
        self._looked = state.confirmed
        if failure is not None:
            raise failure
        if count >= ENTRY_MESSAGES:
            return True
        if not self.server.published(state.publication, before.table):
            raise DataError(
                f"stream {self.name} gets no more changes: table {before.table.shown} has been "
                f"dropped, or is no longer in publication {state.publication}",
                condition="SOURCE_CHANGED",
                stream=self.name,
                hint=_AGAIN,
            )
        return False

    def _read(self, state: SlotPosition, upto: int) -> tuple[list[Segment], int, SlotPosition]:
        """Write the rows of the next entry.

        Returns:
            The rows, the number of messages that they were, and the state after them.
        """
        assert state.table is not None
        decoder = PgoutputDecoder(
            self.name, state.table, self.wanted, state.confirmed, state.sequence
        )
        segments, count = [], 0
        self.log.clear(self._next)
        batches = self._retried(
            lambda: self.server.changes(state.slot, state.publication, upto, ENTRY_MESSAGES)
        )
        with closing(batches):
            for messages in batches:
                count += len(messages)
                rows = decoder.rows(messages)
                if rows.num_rows:
                    segments.append(self._written(rows))
        end = max(decoder.end, state.confirmed)
        confirmed = end if count >= ENTRY_MESSAGES else max(upto, end)
        state = replace(state, table=decoder.table)
        return segments, count, replace(state, confirmed=confirmed, sequence=decoder.sequence)

    def _checked(self, state: SlotPosition) -> Slot:
        """Return the slot; raise EngineError if it no longer has all changes after the position."""
        slot, why = self.server.slot(state.slot), ""
        if slot is None:
            why = "isn't there any more"
        elif slot.lost:
            why = "has lost changes, as it would have kept more than max_slot_wal_keep_size"
        elif not slot.own:
            why = "is another one: it belongs to another database, or isn't one of pgoutput"
        elif slot.confirmed > state.confirmed:
            why = "was read by somebody else, perhaps by a copy of this storage"
        if slot is None or why:
            raise EngineError(
                f"stream {self.name} can't go on without a gap: its slot {state.slot} on the server "
                + why,
                condition="SOURCE_LOST",
                stream=self.name,
                hint=_AGAIN,
            )
        return slot

    def _retried(self, call: Callable[[], T]) -> T:
        """Retry a call while the slot is in use, for instance by the connection of a killed process."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                return call()
            except self.server.psycopg.errors.ObjectInUse:
                if self._thread.stopped.is_set() or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _check_free(self, slot: str) -> None:
        if self.server.slot(slot) is not None:
            raise DataError(
                f"stream {self.name} can't use slot {slot}: it is there already, perhaps somebody "
                "else's",
                condition="BAD_STREAM",
                stream=self.name,
                hint=f"give another name, or SELECT pg_drop_replication_slot('{slot}')",
            )

    def _written(self, rows: pa.Table) -> Segment:
        return write_rows(self.log.files, new_file(self.log.folder, self._next), rows)

    def _append(self, segments: list[Segment], state: SlotPosition) -> None:
        """Write an entry, and before it the position that holds after it."""
        number, self._state = self._next, None  # unless this succeeds, it is read again
        self._positions.append(number, segments, asdict(state))
        self._state, self._next = state, number + 1

    def _store(self, state: SlotPosition) -> None:
        """Store the current position."""
        self._state = None
        self._positions.write(self._next, asdict(state))
        self._state = state

    def _stored(self, number: int) -> SlotPosition | None:
        """Return the position that belongs to a log of `number` entries; None before the first."""
        document = self._positions.read(number)
        if document is None:
            return None
        if (table := document["table"]) is not None:
            columns = tuple(PublishedColumn(**one) for one in table["columns"])
            document["table"] = PublishedTable(
                **{**table, "columns": columns, "key": tuple(table["key"])}
            )
        return SlotPosition(**document)


def _own_name(stream: str) -> str:
    """Return a new name for slot and publication of a stream."""
    plain = re.sub(r"[^a-z0-9_]", "_", stream.lower())[:40]
    return f"eddyline_{plain}_{uuid.uuid4().hex[:8]}"
