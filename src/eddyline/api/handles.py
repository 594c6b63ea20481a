"""The objects that users hold for tables, streams and views."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.api.reading import Reading
from eddyline.api.sinks import Function, Sinks
from eddyline.api.streams import Streams
from eddyline.api.writing import Writing
from eddyline.arguments import checked
from eddyline.catalog.entries import STREAM, TABLE, VIEW
from eddyline.changes import APPEND, DELETE
from eddyline.errors import DataError
from eddyline.source.user_rows import Rows


@checked
@dataclass(frozen=True, slots=True)
class Table:
    """A table, written by DML. Rows are durable when the call returns.

    Get one from `Engine.table`.
    """

    name: str
    _reading: Reading = field(repr=False)
    _writing: Writing = field(repr=False)

    def insert(self, rows: Rows) -> None:
        """Append rows; with a primary key, a row replaces the one with its key.

        The rows of a Spark DataFrame are written by its tasks, unless Spark knows that they are few: the driver
        doesn't hold them, and epochs go on meanwhile.

        Args:
            rows: dicts, tuples, a pandas or Spark DataFrame, or a pyarrow Table.
        """
        self._writing.write(self.name, [(APPEND, rows)])

    def delete(self, rows: Rows) -> None:
        """Delete rows: by primary key, or without one, for each given row one equal row. Missing rows are ignored."""
        self._writing.write(self.name, [(DELETE, rows)])

    def upsert(self, rows: Rows) -> None:
        """Insert rows, or replace those of the same primary key.

        Raises:
            DataError: the table has no primary key.
        """
        if not self._reading.entry(self.name, TABLE).key:
            raise DataError(
                f"table {self.name} has no primary key",
                condition="NO_PRIMARY_KEY",
                hint="give it one when creating it, or use insert and delete",
            )
        self.insert(rows)

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """Read the rows as of the last committed epoch, or an earlier retained one."""
        return self._reading.snapshot(self.name, epoch)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._reading.entry(self.name, TABLE).columns


@checked
@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that views can read. Get one from `Engine.stream` or `Engine.create_stream`."""

    name: str
    _reading: Reading = field(repr=False)
    _writing: Writing = field(repr=False)
    _streams: Streams = field(repr=False)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._reading.entry(self.name, STREAM).columns

    def dead_letters(self) -> DataFrame:
        """Read the records that the stream couldn't accept, as of now.

        Views read them as the stream `<name>__dead`.
        """
        return self._writing.dead_letters(self.name)

    def discard(self, where: str | None = None) -> int:
        """Drop dead letters for good; return how many.

        Args:
            where: a condition on their columns, as in SQL; None: all.
        """
        return self._streams.remove_dead_letters(self.name, where, replay=False)


@checked
@dataclass(frozen=True, slots=True)
class Sink:
    """A target that follows a view. Get one from `Engine.sink` or `View.foreach_epoch`."""

    name: str
    _sinks: Sinks = field(repr=False)

    def status(self) -> dict[str, Any]:
        """Return what `Engine.status` has of this sink.

        `state` is live, failing (with `error`; it tries again by itself), paused, waiting (for its view
        to come back) or not connected (its function must be given again); `epoch` is the last epoch that the target
        holds, `behind` the number of epochs after it.
        """
        return self._sinks.status_of(self.name)

    def pause(self) -> None:
        """Deliver nothing until `resume`; undelivered epochs are retained, up to the option `held_epochs`."""
        self._sinks.pause(self.name)

    def resume(self) -> None:
        """Deliver again, from the epoch that the target holds."""
        self._sinks.resume(self.name)

    def resend(self) -> None:
        """Replace all rows of the target by those of the view, whatever has happened to them.

        The target must be one that the sink has delivered to: another one is refused if it holds rows
        (SINK_TARGET_NOT_EMPTY). Before the first delivery nothing is done.
        """
        self._sinks.resend(self.name)

    def drop(self) -> None:
        """Remove the sink; its target stays as it is."""
        self._sinks.drop(self.name, if_exists=True)


@checked
@dataclass(frozen=True, slots=True)
class View:
    """A live view. Get one from `Engine.view`."""

    name: str
    _reading: Reading = field(repr=False)
    _sinks: Sinks = field(repr=False)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._reading.entry(self.name, VIEW).columns

    @property
    def query(self) -> str:
        """The SQL."""
        return self._reading.entry(self.name, VIEW).query

    def snapshot(self, epoch: int | None = None, *, last_good: bool = False) -> DataFrame:
        """Read the result as of the last committed epoch, or an earlier retained one.

        The rows come in the order of the view's ORDER BY.

        Args:
            epoch: a retained epoch; None for the last committed one.
            last_good: if the view is set aside, read the rows that it had before it failed.

        Raises:
            EngineError: VIEW_FAILING: the view is set aside in that epoch, for the reason given.
        """
        return self._reading.snapshot(self.name, epoch, last_good=last_good)

    def changes(
        self, after: int | None = None, form: str = "retract", reader: str | None = None
    ) -> DataFrame:
        """Read the changes of the epochs after `after`, or of all.

        Args:
            after: an epoch; None for all changes: replayed from an empty table they give the snapshot.
            form: `retract`: the columns, `op` (append or delete) and `epoch`, rows repeated by
                multiplicity; `update`: structs `before` and `after` (null for a new or removed
                row) and `epoch`, paired by the key of the view if it has one: the grouping columns
                of an aggregate, the primary keys of the tables of a selection, top-N or join; `cdf`:
                the columns and those of a change feed of Spark or Delta: `_change_type` (insert,
                delete; by that key also update_preimage, update_postimage), `_commit_version` (the
                epoch) and `_commit_timestamp`.
            reader: a name that you choose. The storage remembers the reader's position, and keeps the
                epochs after it, up to the options `held_epochs` and `held_bytes`. Without `after`
                it reads on from its position, at first from the beginning; call `commit` when the
                changes are processed. With `after`, this becomes its position.

        Raises:
            StateError: CHANGES_EXPIRED, the epochs after `after` are no longer retained;
                NO_SUCH_EPOCH, that epoch is still to come.
        """
        return self._reading.changes(self.name, after, form, reader)

    def commit(self, reader: str, epoch: int | None = None) -> None:
        """Move a reader, durably: it has processed the changes up to `epoch`.

        Args:
            reader: its name in `changes`.
            epoch: a committed epoch; None for all changes that this engine has given to the reader.

        Raises:
            CatalogError: there is no such reader.
            StateError: the epoch isn't committed, or this engine has given it no changes.
        """
        self._reading.commit(self.name, reader, epoch)

    def foreach_epoch(self, function: Function, name: str) -> Sink:
        """Call `function(changes, epoch)` with each epoch's changes. Call this again after reopening.

        It is called at least once for each epoch that changed the view: after a crash, or an error of
        the function, the last epoch comes again. Make it exactly once by writing the epoch's number in
        the same transaction as the rows, and ignoring an epoch whose number is there.

        Args:
            function: gets a DataFrame of the view's columns and `_change_type` (insert, delete,
                update_preimage, update_postimage), `_commit_version`, `_commit_timestamp`; and the
                epoch. The first call gets all rows, as inserts.
            name: names the sink, in whose thread the function is called.
        """
        return Sink(self._sinks.foreach_epoch(name, self.name, function).name, self._sinks)

    def drop_reader(self, reader: str) -> None:
        """Forget a reader: it holds no epochs any more. Does nothing if there is none."""
        self._reading.drop_reader(self.name, reader)


Name: TypeAlias = str | Table | Stream | View | Sink
"""The name of a table, stream, view or sink, or its handle."""


def name_of(named: Name) -> str:
    """Return the name that is given as text or by a handle."""
    return named if isinstance(named, str) else named.name
