"""What an engine defines: its tables, streams, views, pipelines and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.api import drafts
from eddyline.api.dataframe_views import Query, relation
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.handles import Name, Sink, Stream, Table, View, name_of
from eddyline.api.pipeline import Pipeline
from eddyline.api.reading import Reading
from eddyline.api.rebucketing import rebucket
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.arguments import checked
from eddyline.pipelines.batches import SLOW_S, TUPLE_ROWS, PipelineSettings
from eddyline.relay.queue import DataQueue


@checked
class Relations:
    """The part of an engine that creates, pauses and drops tables, streams, views and sinks.

    Each call that changes a definition raises EngineError STORAGE_IN_USE if the engine is stopped, only reads,
    or another one writes to the storage, and StorageError WRITE_FAILED if the storage can't be written.
    """

    _workspace: Workspace
    _epochs: Epochs
    _reading: Reading
    streams: Streams
    _definitions: Definitions
    writing: Writing

    def table(self, name: str, schema: str | StructType, primary_key: drafts.Key = ()) -> Table:
        """Create a table, or return the existing one if its definition is the same.

        Args:
            schema: DDL such as `"id BIGINT, v INT NOT NULL DEFAULT 0"`, or a StructType.
            primary_key: columns; a later row of a key replaces the earlier. Without: a multiset.

        Raises:
            CatalogError: NAME_TAKEN: the name has another definition. UNKNOWN_COLUMN: the key isn't one of columns.
            DataError: BAD_SCHEMA, UNSUPPORTED_TYPE, BAD_DEFAULT: a table can't have these columns.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     stock = engine.table("stock", "item STRING, n INT DEFAULT 1", primary_key=["item"])
            ...     stock.upsert([{"item": "tea"}, {"item": "tea", "n": 5}])
            ...     epoch = engine.advance()
            ...     [tuple(row) for row in stock.snapshot().collect()]
            [('tea', 5)]
        """
        entry = self._workspace.define(drafts.table(name, schema, primary_key))
        return Table(entry.name, self._reading, self.writing)

    def stream(
        self,
        name: str,
        dataframe: DataFrame,
        op: str | None = None,
        primary_key: drafts.Key = (),
        watermark: tuple[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Create a stream over any streaming DataFrame. Call it again after reopening.

        Args:
            dataframe: `spark.readStream...`; its rows are copied to the log exactly once.
            op: a column with + and - (or Debezium's c, u, d, r): appends and deletes of rows.
            primary_key: columns; with one, a later row of a key replaces the earlier.
            watermark: the column with a row's event time, and how late (`"10 minutes"`) rows may
                come (others are in `<name>__late`); None for that of `dataframe.withWatermark`.
            options: of the watermark, such as `max_ahead`: how far event times may be ahead.

        Raises:
            DataError: NOT_STREAMING, UNKNOWN_COLUMN, BAD_WATERMARK: the DataFrame isn't streaming, has no column
                `op`, or can't have the watermark.
            CatalogError: NAME_TAKEN: the name has another definition. UNKNOWN_COLUMN: the key isn't one of columns.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from eddyline import Engine
            >>> folder = tempfile.mkdtemp()
            >>> characters = Path(folder, "1.txt").write_text("tea")
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     lines = engine.stream("lines", engine.spark.readStream.text(folder))
            ...     sizes = engine.view("sizes", "SELECT value, length(value) AS size FROM lines")
            ...     epoch = engine.advance()
            ...     [tuple(row) for row in sizes.snapshot().collect()]
            [('tea', 3)]
        """
        entry = self.streams.stream(name, dataframe, op, primary_key, watermark, options or {})
        return Stream(entry.name, self._reading, self.writing, self.streams)

    def create_stream(
        self,
        name: str,
        schema: str | StructType | None,
        format: str,
        options: Mapping[str, str] | None = None,
        op: str | None = None,
        primary_key: drafts.Key = (),
        watermark: tuple[str, str] | None = None,
    ) -> Stream:
        """Create a stream by format and options, as CREATE STREAM does; the catalog remembers it.

        Args:
            schema: columns; None if the source declares them. `_received_at` is the time of receipt.
            format: `json`, `parquet`, `generator` (events made from their numbers), `queue` (the JSON
                documents of a data queue), or any streaming source of Spark.
            options: options of the format, and of the watermark as in `stream`.
            op: as in `stream`.
            primary_key: as in `stream`.
            watermark: as in `stream`.

        Raises:
            DataError: BAD_STREAM, BAD_SCHEMA, BAD_WATERMARK: the source can't be opened with these columns and
                options. RESERVED_COLUMN: `_received_at` isn't a TIMESTAMP.
            CatalogError: NAME_TAKEN: the name has another definition. UNKNOWN_COLUMN: the key isn't one of columns.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from eddyline import Engine
            >>> folder = tempfile.mkdtemp()
            >>> characters = Path(folder, "1.json").write_text('{"item": "tea", "n": 2}')
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.create_stream("orders", "item STRING, n INT", "json", {"path": folder})
            ...     total = engine.view("total", "SELECT sum(n) AS n FROM orders")
            ...     epoch = engine.advance()
            ...     [tuple(row) for row in total.snapshot().collect()]
            [(2,)]
        """
        entry = self.streams.create_stream(
            name, schema, format, dict(options or {}), op, primary_key, watermark
        )
        return Stream(entry.name, self._reading, self.writing, self.streams)

    def pipeline(
        self,
        name: str,
        source: DataQueue,
        *,
        lanes: int = 0,
        tuple_rows: int = TUPLE_ROWS,
        slow: float = SLOW_S,
        acks: bool = True,
        ackers: int = 1,
    ) -> Pipeline:
        """Begin a pipeline of bolts over a queue; see `Pipeline`. Build it again after reopening.

        Args:
            name: name of the pipeline; its dead letters are the stream `<name>__dead`.
            source: the queue. Only one pipeline may read it.
            lanes: number of concurrent Spark tasks, at most 1,024; 0: as many as Spark has cores.
            tuple_rows: number of records that are sent to a lane, and acknowledged, together; at most 1,000,000.
            slow: the send window of a lane shrinks if it takes longer than this, in seconds.
            acks: whether failed records are retried; if not, they are dropped.
            ackers: number of tasks that add up the acknowledgements of a batch, at most 1,024.

        Raises:
            EngineError: BAD_OPTION: a number is out of its range. QUEUE_IN_USE: another pipeline reads the queue.
        """
        settings = PipelineSettings(lanes, tuple_rows, slow, acks=acks, ackers=ackers)
        return Pipeline(name, source, settings, self._workspace, self.writing, self.streams)

    def relation(self, name: Name) -> DataFrame:
        """Return a table, stream or view as a DataFrame to make views of; an action raises SCHEMA_ONLY.

        Raises:
            CatalogError: NOT_FOUND.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     teas = engine.view("teas", engine.relation(orders).where("item = 'tea'").select("n"))
            ...     orders.insert([("tea", 1), ("coffee", 2)])
            ...     epoch = engine.advance()
            ...     teas.snapshot().collect()
            [Row(n=1)]
        """
        return relation(self._workspace, name_of(name))

    def view(self, name: str, query: Query, *, replace: bool = False) -> View:
        """Create a live view, and compute it from all existing data of its inputs; others go on meanwhile.

        Args:
            query: any SELECT of Spark SQL over tables, streams and views; with EMIT FINAL at its end
                each row comes once, when by a watermark it can't change any more. Or a DataFrame of
                `relation`s, or a function that returns one (and may call `spark.table`): give it
                again after reopening.
            replace: replace an existing view of this name.

        Raises:
            QueryError: INVALID_QUERY, NOT_A_QUERY: it is wrong. NOT_LIVE, UNSUPPORTED_TYPE, DUPLICATE_COLUMN: it
                can't be kept live; the message says why, and what to write instead.
            CatalogError: NAME_TAKEN: the name is another's. UPSTREAM_PAUSED, VIEW_CIRCLE: it reads a paused
                view, or by `replace` itself. STILL_READ: views or sinks need a column that it doesn't have any more.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     totals = engine.view("totals", "SELECT item, sum(n) AS n FROM orders GROUP BY item")
            ...     top = engine.view("top", "SELECT item FROM totals ORDER BY n DESC LIMIT 1")
            ...     orders.insert([("tea", 1), ("coffee", 2), ("tea", 2)])
            ...     epoch = engine.advance()
            ...     top.snapshot().collect()
            [Row(item='tea')]
        """
        entry = self._definitions.view(name, query, replace=replace)
        return View(entry.name, self._reading, self._epochs.sinks)

    def sink(self, name: str, view: Name = "", format: str = "", **options: object) -> Sink:
        """Keep a target outside of the storage equal to a view: all rows first, then each epoch's changes.

        Args:
            format: `delta`, `kafka`, `postgres`, `parquet`, `jsonl`, `csv` or `webhook`. By its name alone: a sink that exists.
            options: those of the format, and `commit_interval` (`"10 seconds"`): deliveries are so far
                apart, at least. A secret is given as `${env:NAME}` or `${file:PATH}`.

        Raises:
            EngineError: BAD_OPTION: there is no such format, or it can't have these options. MISSING_PACKAGE: the
                format needs a package that isn't installed.
            CatalogError: NOT_FOUND: there is no such view, or no sink of this name. NAME_TAKEN: a sink of this name
                has another definition. A target that fails later doesn't raise: see `Sink.status`.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from eddyline import Engine
            >>> folder = tempfile.mkdtemp()
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     teas = engine.view("teas", "SELECT n FROM orders WHERE item = 'tea'")
            ...     sink = engine.sink("copy", teas, "jsonl", path=folder)
            ...     orders.insert([("tea", 1), ("coffee", 2)])
            ...     epoch = engine.advance()
            >>> ['"n":1' in file.read_text() for file in Path(folder).glob("*-changes.jsonl")]
            [True]
        """
        sinks = self._epochs.sinks
        return Sink(sinks.sink(name, name_of(view), format, options).name, sinks)

    def drop(self, kind: str, name: Name, if_exists: bool = False) -> None:
        """Drop a `table`, `stream` or `view` that nothing reads, with its data, or a `sink`.

        Raises:
            CatalogError: NOT_FOUND: there is none, and `if_exists` is False. STILL_READ: views or sinks read it.
                STILL_FED: a pipeline writes into it.
            EngineError: BAD_OPTION: there is no such kind.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     engine.drop("table", orders)
            ...     engine.show("table").count()
            0
        """
        self._definitions.drop(kind, name_of(name), if_exists=if_exists)

    def pause(self, name: Name) -> list[str]:
        """Pause a view: it keeps the result of the last epoch; return the views paused with it.

        Raises:
            CatalogError: NOT_FOUND: there is no such view.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     total = engine.view("total", "SELECT sum(n) AS n FROM orders")
            ...     twice = engine.view("twice", "SELECT 2 * n AS n FROM total")
            ...     sorted(engine.pause(total))
            ...     orders.insert([("tea", 1)])
            ...     epoch = engine.advance()
            ...     twice.snapshot().collect()
            ...     resumed = engine.resume(total)
            ...     twice.snapshot().collect()
            ['twice']
            [Row(n=None)]
            [Row(n=2)]
        """
        return self._definitions.pause(name_of(name))

    def resume(self, name: Name) -> list[str]:
        """Resume a paused view, and those paused with it, in a separate epoch; return their names.

        Raises:
            CatalogError: NOT_FOUND: there is no such view. UPSTREAM_PAUSED: it reads a paused one.

        Example: see `pause`.
        """
        return self._definitions.resume(name_of(name))

    def reset_watermark(self, name: Name, to: datetime | str | None = None) -> list[str]:
        """Set the watermark of a stream anew, also back; return the views that are computed again.

        Without `to` it follows from the rows that aren't dated more than `max_ahead` after now.

        Raises:
            CatalogError: NOT_FOUND: there is no such stream.
            DataError: BAD_WATERMARK: it has no watermark, or can't have this one.
        """
        return self._definitions.reset_watermark(name_of(name), to)

    def rebucket(self, buckets: int) -> None:
        """Change the number of buckets (1 to 4,096): tables are divided, views computed again; no row changes.

        Raises:
            EngineError: BAD_OPTION: the number is out of its range.
            StateError: OTHER_PLAN, WRONG_BUCKET: a table isn't stored as it should be. ROWS_EXPIRED: a view can't be
                computed again. The storage is as it was.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     engine.rebucket(32)
            ...     engine.status()["buckets"]
            32
        """
        rebucket(self._workspace, self._epochs, buckets)

    def show(self, kind: str) -> DataFrame:
        """List the `table`s, `stream`s or `view`s with columns and definition, or the `sink`s.

        Raises:
            EngineError: BAD_OPTION: there is no such kind.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     [row["name"] for row in engine.show("table").collect()]
            ['orders']
        """
        return self._definitions.show(kind)
