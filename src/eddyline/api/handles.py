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
from eddyline.catalog.column_rules import declared_columns
from eddyline.catalog.entries import STREAM, TABLE, VIEW
from eddyline.changes import APPEND, DELETE
from eddyline.errors import DataError
from eddyline.source.user_rows import Rows


@checked
@dataclass(frozen=True, slots=True)
class Table:
    """A table, written by DML. Rows are durable when the call returns.

    Get one from `Engine.table`.

    Example:
        >>> import tempfile
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
        >>> orders.insert([(1, "tea"), (2, "coffee")])
        >>> first = engine.advance()
        >>> orders.delete([{"id": 1}])
        >>> epoch = engine.advance()
        >>> [tuple(row) for row in orders.snapshot().collect()]
        [(2, 'coffee')]
        >>> orders.snapshot(first).count()
        2
        >>> engine.stop()
    """

    name: str
    _reading: Reading = field(repr=False)
    _writing: Writing = field(repr=False)

    def insert(self, rows: Rows) -> None:
        """Append rows; with a primary key, a row replaces the one with its key.

        The rows of a Spark DataFrame are written by its tasks, unless Spark knows that they are few: the driver
        doesn't hold them, and epochs go on meanwhile.

        Args:
            rows: dicts, tuples in the order of the columns, a pandas or Spark DataFrame, or a pyarrow Table
                (matched by name). Missing columns get their DEFAULT, or null. Datetimes without a zone are in that
                of the machine, as `collect` returns them; those of tables and DataFrames in the session's.

        Raises:
            DataError: rows don't fit the columns, a key is null (NULL_KEY), as is a column that is NOT NULL
                (NULL_VALUE), or a text has too many characters (TOO_LONG); nothing was written.
            QueryError: Spark fails on a Spark DataFrame; nothing was written.
            CatalogError: NOT_FOUND: the table was dropped.
            EngineError: STORAGE_IN_USE: another engine writes to the storage, or this one is stopped or only
                reads. BEING_ALTERED: the table is being altered; write again.
            StorageError: WRITE_FAILED, or WRITE_UNCERTAIN: the rows may have been written.

        Example:
            >>> import tempfile
            >>> import pyarrow as pa
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> orders = engine.table("orders", "id BIGINT, item STRING")
            >>> orders.insert([(1, "tea"), (2, "coffee")])
            >>> orders.insert([{"id": 3}])
            >>> orders.insert(pa.table({"id": [4], "item": ["tea"]}))
            >>> epoch = engine.advance()
            >>> sorted(tuple(row) for row in orders.snapshot().collect())
            [(1, 'tea'), (2, 'coffee'), (3, None), (4, 'tea')]
            >>> orders.insert([(5, "tea", 2.5)])  # doctest: +ELLIPSIS
            Traceback (most recent call last):
            eddyline.errors.DataError: [WRONG_WIDTH] a row has 3 values for 2 columns...
            >>> engine.stop()
        """
        self._writing.write(self.name, [(APPEND, rows)])

    def delete(self, rows: Rows) -> None:
        """Delete rows: by primary key, or without one, for each given row one equal row. Missing rows are ignored.

        Args:
            rows: as for `insert`; with a primary key, dicts or tables with its columns are enough.

        Raises:
            DataError, QueryError, CatalogError, EngineError, StorageError: as for `insert`.
        """
        self._writing.write(self.name, [(DELETE, rows)])

    def upsert(self, rows: Rows) -> None:
        """Insert rows, or replace those of the same primary key.

        Args:
            rows: as for `insert`. A row replaces the whole row: columns that it doesn't give get their DEFAULT, or
                null.

        Raises:
            DataError: NO_PRIMARY_KEY: the table has none; or as for `insert`.
            QueryError, CatalogError, EngineError, StorageError: as for `insert`.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> stock = engine.table("stock", "item STRING, n INT", primary_key=["item"])
            >>> stock.upsert([("tea", 5), ("coffee", 2)])
            >>> stock.upsert([{"item": "tea", "n": 4}])
            >>> epoch = engine.advance()
            >>> sorted(tuple(row) for row in stock.snapshot().collect())
            [('coffee', 2), ('tea', 4)]
            >>> engine.stop()
        """
        if not self._reading.entry(self.name, TABLE).key:
            raise DataError(
                f"table {self.name} has no primary key",
                condition="NO_PRIMARY_KEY",
                hint="give it one when creating it, or use insert and delete",
            )
        self.insert(rows)

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """Read the rows as of the last committed epoch, or an earlier retained one.

        Rows that no epoch has processed yet are not among them.

        Raises:
            StateError: NO_SUCH_EPOCH: the epoch isn't committed, is no longer retained, or the table had other
                columns in it. DAMAGED_RUN: a file of a small result is damaged; of a
                large one Spark tells when the DataFrame is run.
            CatalogError: NOT_FOUND: the table was dropped.
        """
        return self._reading.snapshot(self.name, epoch)

    @property
    def schema(self) -> StructType:
        """The columns; those with NOT NULL aren't nullable."""
        return declared_columns(self._reading.entry(self.name, TABLE))


@checked
@dataclass(frozen=True, slots=True)
class Stream:
    r"""A stream that views can read. Get one from `Engine.stream` or `Engine.create_stream`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> folder = tempfile.mkdtemp()
        >>> characters = Path(folder, "1.json").write_text('{"id": 1}\n{"id": "one"}\n')
        >>> options = {"path": folder, "mode": "DROPMALFORMED"}
        >>> orders = engine.create_stream("orders", "id INT", "json", options)
        >>> total = engine.view("total", "SELECT sum(id) AS total FROM orders")
        >>> epoch = engine.advance()
        >>> [tuple(row) for row in total.snapshot().collect()]
        [(1,)]
        >>> [bytes(letter.payload) for letter in orders.dead_letters().collect()]
        [b'{"id": "one"}']
        >>> orders.discard()
        1
        >>> orders.dead_letters().count()
        0
        >>> engine.stop()
    """

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

        Views read them as the stream `<name>__dead`. A stream of one of Spark's sources keeps dead letters if it has
        an operation (`op`), or the mode DROPMALFORMED.

        Raises:
            CatalogError: NOT_FOUND: the stream keeps no dead letters, or was dropped.
        """
        return self._writing.dead_letters(self.name)

    def discard(self, where: str | None = None) -> int:
        """Drop dead letters for good; return how many.

        Args:
            where: a condition on their columns, as in SQL, such as `"position < 100"`; None: all.

        Raises:
            QueryError: Spark can't read the condition. EngineError: BAD_OPTION: it is blank.
            CatalogError: NOT_FOUND: the stream keeps no dead letters, or was dropped. NOT_CONNECTED: its source
                isn't connected since the storage was reopened.
            EngineError: STORAGE_IN_USE: another engine writes to the storage, or this one is stopped or only reads.
        """
        return self._streams.remove_dead_letters(self.name, where, replay=False)


@checked
@dataclass(frozen=True, slots=True)
class Sink:
    """A target that follows a view. Get one from `Engine.sink` or `View.foreach_epoch`.

    `alter`, `pause`, `resume`, `resend` and `drop` raise EngineError STORAGE_IN_USE while another engine writes to the
    storage, or if this one is stopped or only reads.

    Example:
        >>> import tempfile
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING")
        >>> teas = engine.view("teas", "SELECT id FROM orders WHERE item = 'tea'")
        >>> sink = engine.sink("copy", teas, "jsonl", path=tempfile.mkdtemp())
        >>> orders.insert([(1, "tea"), (2, "coffee")])
        >>> epoch = engine.advance()
        >>> status = sink.status()
        >>> status["state"], status["epoch"] == epoch, status["behind"]
        ('live', True, 0)
        >>> sink.pause()
        >>> sink.status()["state"]
        'paused'
        >>> sink.resume()
        >>> sink.resend()
        >>> sink.drop()
        >>> engine.stop()
    """

    name: str
    _sinks: Sinks = field(repr=False)

    def status(self) -> dict[str, Any]:
        """Return what `Engine.status` has of this sink.

        `state` is live, failing (with `error`; it tries again by itself), paused, waiting (for its view
        to come back) or not connected (its function must be given again); `epoch` is the last epoch that the target
        holds, `behind` the number of epochs after it.

        Raises:
            CatalogError: NOT_FOUND: the sink was dropped.
        """
        return self._sinks.status_of(self.name)

    def alter(self, **options: object) -> None:
        """Deliver with these options instead of the present ones, from the epoch that the target holds.

        Raises:
            EngineError: BAD_OPTION: an option is wrong, or another sink is needed for it (`docs/sinks.md`).
            CatalogError: NOT_FOUND: the sink was dropped.
        """
        self._sinks.alter(self.name, options)

    def pause(self) -> None:
        """Deliver nothing until `resume`; undelivered epochs are retained, up to the option `held_epochs`.

        Raises:
            CatalogError: NOT_FOUND: the sink was dropped.
        """
        self._sinks.pause(self.name)

    def resume(self) -> None:
        """Deliver again, from the epoch that the target holds.

        Raises:
            CatalogError: NOT_FOUND: the sink was dropped.
        """
        self._sinks.resume(self.name)

    def resend(self) -> None:
        """Replace all rows of the target by those of the view, whatever has happened to them.

        The target must be one that the sink has delivered to: another one is refused if it holds rows
        (SINK_TARGET_NOT_EMPTY). Before the first delivery nothing is done.

        Raises:
            CatalogError: NOT_FOUND: the sink was dropped.
        """
        self._sinks.resend(self.name)

    def drop(self) -> None:
        """Remove the sink; its target stays as it is. Does nothing if it was dropped already.

        Raises:
            CatalogError: STILL_READ: views read its dead letters, the stream `<name>__dead`.
        """
        self._sinks.drop(self.name, if_exists=True)


@checked
@dataclass(frozen=True, slots=True)
class View:
    """A live view. Get one from `Engine.view`.

    Example:
        >>> import tempfile
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> counts.schema.names
        ['item', 'n']
        >>> orders.insert([(1, "tea"), (2, "tea")])
        >>> epoch = engine.advance()
        >>> counts.changes(reader="mails").select("item", "n", "op").collect()
        [Row(item='tea', n=2, op='append')]
        >>> counts.commit("mails")
        >>> counts.changes(reader="mails").count()
        0
        >>> counts.drop_reader("mails")
        >>> engine.stop()
    """

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
            StateError: NO_SUCH_EPOCH: the epoch isn't committed, is no longer retained, or the view was made
                later, or had other columns. DAMAGED_RUN: a file of a small result is damaged; of a
                large one Spark tells when the DataFrame is run.
            CatalogError: NOT_FOUND: the view was dropped.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
            >>> query = "SELECT item, count(*) AS n FROM orders GROUP BY item ORDER BY n DESC"
            >>> counts = engine.view("counts", query)
            >>> orders.insert([(1, "coffee"), (2, "tea"), (3, "tea")])
            >>> first = engine.advance()
            >>> orders.delete([{"id": 3}, {"id": 1}])
            >>> epoch = engine.advance()
            >>> counts.snapshot().collect()
            [Row(item='tea', n=1)]
            >>> counts.snapshot(first).collect()
            [Row(item='tea', n=2), Row(item='coffee', n=1)]
            >>> engine.stop()
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
            QueryError: UNKNOWN_FORM; DUPLICATE_COLUMN, the view has a column that the form adds.
            EngineError: BAD_OPTION: `after` is negative, or `reader` can't be a name.
            CatalogError: NOT_FOUND: the view was dropped.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
            >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
            >>> orders.insert([(1, "tea")])
            >>> first = engine.advance()
            >>> orders.insert([(2, "tea")])
            >>> epoch = engine.advance()
            >>> counts.changes(after=first).drop("epoch").orderBy("n").collect()
            [Row(item='tea', n=1, op='delete'), Row(item='tea', n=2, op='append')]
            >>> counts.changes(after=first, form="update").select("before", "after").collect()
            [Row(before=Row(item='tea', n=1), after=Row(item='tea', n=2))]
            >>> feed = counts.changes(after=first, form="cdf")
            >>> [tuple(row) for row in feed.select("item", "n", "_change_type").orderBy("n").collect()]
            [('tea', 1, 'update_preimage'), ('tea', 2, 'update_postimage')]
            >>> {row["_commit_version"] for row in feed.collect()} == {epoch}
            True
            >>> engine.stop()
        """
        return self._reading.changes(self.name, after, form, reader)

    def commit(self, reader: str, epoch: int | None = None) -> None:
        """Move a reader, durably: it has processed the changes up to `epoch`.

        Args:
            reader: its name in `changes`.
            epoch: a committed epoch; None for all changes that this engine has given to the reader.

        Raises:
            CatalogError: NOT_FOUND: there is no such reader, or the view was dropped.
            StateError: NO_SUCH_EPOCH: the epoch isn't committed, or this engine has given it no changes.
            EngineError: BAD_OPTION: `reader` can't be a name.
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

        Raises:
            CatalogError: NOT_FOUND: the view was dropped. INVALID_NAME; NAME_TAKEN: a sink of another view or
                format has this name. DUPLICATE_COLUMN: the view has a column that a change feed adds.
            EngineError: STORAGE_IN_USE: another engine writes to the storage, or this one is stopped or only reads.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
            >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
            >>> seen = []
            >>> def remember(changes, epoch):
            ...     seen.extend((row.item, row.n, row._change_type) for row in changes.collect())
            >>> sink = counts.foreach_epoch(remember, "memory")
            >>> orders.insert([(1, "tea"), (2, "tea")])
            >>> epoch = engine.advance()
            >>> seen
            [('tea', 2, 'insert')]
            >>> engine.stop()
        """
        return Sink(self._sinks.foreach_epoch(name, self.name, function).name, self._sinks)

    def drop_reader(self, reader: str) -> None:
        """Forget a reader: it holds no epochs any more. Does nothing if there is none.

        Raises:
            CatalogError: NOT_FOUND: the view was dropped.
            EngineError: BAD_OPTION: `reader` can't be a name.
        """
        self._reading.drop_reader(self.name, reader)


Name: TypeAlias = str | Table | Stream | View | Sink
"""The name of a table, stream, view or sink, or its handle."""


def name_of(named: Name) -> str:
    """Return the name that is given as text or by a handle."""
    return named if isinstance(named, str) else named.name
