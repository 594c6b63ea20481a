"""The public object: an engine over one storage, with its tables, streams and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.answers.verified import keep_verified
from eddyline.answers.verify import Report
from eddyline.api import drafts
from eddyline.api.altering import Altering
from eddyline.api.cdc import ChangeFlows
from eddyline.api.dataframe_views import Query, relation
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.expecting import Expecting
from eddyline.api.handles import Name, Sink, Stream, Table, View, name_of
from eddyline.api.observing import Monitored
from eddyline.api.pipeline import Pipeline
from eddyline.api.reading import Parameters, Reading
from eddyline.api.rebucketing import rebucket
from eddyline.api.run_loop import RunLoop
from eddyline.api.script import run_script
from eddyline.api.serving import Served
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.arguments import checked
from eddyline.catalog.catalog import Catalog
from eddyline.options import Options
from eddyline.pipelines.batches import SLOW_S, TUPLE_ROWS, PipelineSettings
from eddyline.relay.queue import DataQueue
from eddyline.source.user_rows import Rows
from eddyline.storage.files import Files


@checked
class Engine(ChangeFlows, Monitored, Served):
    """Keeps SQL views live over tables and streams, durably, in one storage folder.

    Args:
        storage: folder of state, redo log and catalog; created if missing.
        spark: a SparkSession; None uses the active one, or starts a tuned local one. Days begin at
            midnight in its time zone, which the first epoch fixes for the storage.
        options: settings; None reads the `EDDYLINE_*` environment variables.
        read_only: read an existing storage, also beside the engine that writes to it.

    Raises:
        StateError, StorageError: the storage is damaged, or can't be used; the error names the file.
        EngineError: the session has another time zone, or this process has another engine on it.

    Attributes:
        writing, altering, expecting, describing: what statements of scripts call.

    Example:
        >>> import tempfile
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> orders.insert([(1, "tea"), (2, "tea")])
        >>> epoch = engine.advance()
        >>> [tuple(row) for row in counts.snapshot().collect()]
        [('tea', 2)]
        >>> engine.stop()
    """

    def __init__(
        self,
        storage: str | PathLike[str] | Files,
        spark: SparkSession | None = None,
        options: Options | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._workspace = Workspace(storage, spark, options, read_only=read_only)
        self._epochs = Epochs(self._workspace)
        self._reading = Reading(self._workspace)
        self.writing = Writing(self._workspace)
        self._streams = Streams(self._workspace, self.writing)
        self._definitions = Definitions(self._workspace, self._epochs)
        self.altering = Altering(self._workspace, self._epochs, self._definitions)
        self._running = RunLoop(
            self._workspace, self._epochs, self._definitions, self._streams, self._reading
        )
        self._streams.connect_stored()
        self.expecting = Expecting(
            self._workspace, self._definitions, self._streams
        ).repair_companions()

    @property
    def files(self) -> Files:
        """The storage."""
        return self._workspace.files

    @property
    def spark(self) -> SparkSession:
        """The user's session."""
        return self._workspace.spark

    @property
    def options(self) -> Options:
        """The settings."""
        return self._workspace.options

    @property
    def catalog(self) -> Catalog:
        """The definitions."""
        return self._workspace.catalog

    def table(self, name: str, schema: str | StructType, primary_key: drafts.Key = ()) -> Table:
        """Create a table, or return the existing one if its definition is the same.

        Args:
            schema: DDL such as `"id BIGINT, v INT NOT NULL DEFAULT 0"`, or a StructType.
            primary_key: columns; a later row of a key replaces the earlier. Without: a multiset.

        Raises:
            CatalogError: the name has another definition. DataError: BAD_SCHEMA, BAD_DEFAULT: wrong columns.
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
            DataError: the DataFrame isn't streaming, has no column `op`, or the watermark is wrong.
        """
        entry = self._streams.stream(name, dataframe, op, primary_key, watermark, options or {})
        return Stream(entry.name, self._reading, self.writing, self._streams)

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

        Raises:
            DataError: the source can't be opened with these columns and options.
        """
        entry = self._streams.create_stream(
            name, schema, format, dict(options or {}), op, primary_key, watermark
        )
        return Stream(entry.name, self._reading, self.writing, self._streams)

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
            lanes: number of concurrent Spark tasks; 0: as many as Spark has cores.
            tuple_rows: number of records that are sent to a lane, and acknowledged, together.
            slow: the send window of a lane shrinks if it takes longer than this, in seconds.
            acks: whether failed records are retried; if not, they are dropped.
        """
        settings = PipelineSettings(lanes, tuple_rows, slow, acks=acks, ackers=ackers)
        return Pipeline(name, source, settings, self._workspace, self.writing, self._streams)

    def relation(self, name: Name) -> DataFrame:
        """Return a table, stream or view as a DataFrame to make views of; an action raises SCHEMA_ONLY."""
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
            QueryError: it is wrong, or can't be kept live. CatalogError: the name is another's.
        """
        entry = self._definitions.view(name, query, replace=replace)
        return View(entry.name, self._reading, self._epochs.sinks)

    def sink(self, name: str, view: Name = "", format: str = "", **options: object) -> Sink:
        """Keep a target outside of the storage equal to a view: all rows first, then each epoch's changes.

        Args:
            format: `delta`, `kafka`, `postgres`, `parquet`, `jsonl`, `csv` or `webhook`. By its name alone: a sink that exists.
            options: those of the format, and `commit_interval` (`"10 seconds"`): deliveries are so far
                apart, at least. A secret is given as `${env:NAME}` or `${file:PATH}`.
        """
        sinks = self._epochs.sinks
        return Sink(sinks.sink(name, name_of(view), format, options).name, sinks)

    def drop(self, kind: str, name: Name, if_exists: bool = False) -> None:
        """Drop a `table`, `stream` or `view` that nothing reads, with its data, or a `sink`."""
        self._definitions.drop(kind, name_of(name), if_exists=if_exists)

    def pause(self, name: Name) -> list[str]:
        """Pause a view: it keeps the result of the last epoch; return the views paused with it."""
        return self._definitions.pause(name_of(name))

    def resume(self, name: Name) -> list[str]:
        """Resume a paused view, and those paused with it, in a separate epoch; return their names."""
        return self._definitions.resume(name_of(name))

    def reset_watermark(self, name: Name, to: datetime | str | None = None) -> list[str]:
        """Set the watermark of a stream anew, also back; return the views that are computed again.

        Without `to` it follows from the rows that aren't dated more than `max_ahead` after now.
        """
        return self._definitions.reset_watermark(name_of(name), to)

    def rebucket(self, buckets: int) -> None:
        """Change the number of buckets (1 to 4,096): tables are divided, views computed again; no row changes."""
        rebucket(self._workspace, self._epochs, buckets)

    def show(self, kind: str) -> DataFrame:
        """List the `table`s, `stream`s or `view`s with columns and definition, or the `sink`s."""
        return self._definitions.show(kind)

    def advance(self) -> int:
        """Process all available input, in one epoch or several; return the last committed epoch.

        A view that fails on its rows, or can't be compiled, is set aside; each call tries it again. The
        error of a stream that can't be read is raised once all other input has been processed.
        """
        return self._running.advance()

    def answer(self) -> None:
        """Answer the requests of other processes; `advance` and the background run do so too."""
        self._running.answer()

    def start(self, interval: float | None = None) -> None:
        """Run in the background until `stop()`, or damaged state; look for input every `interval` (0.1) seconds."""
        self._running.start(interval)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the background run, and raise its error; return False after `timeout`."""
        return self._running.await_termination(timeout)

    def stop(self) -> None:
        """Stop the background run and the sources, and release the storage."""
        self._running.stop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def execute(self, script: str) -> DataFrame | None:
        """Run SQL statements; return the result of the last SELECT, EXPLAIN, DESCRIBE or SHOW, if any.

        An epoch is run before a SELECT after statements that write, and before one that writes what it reads of views.
        """
        return run_script(self, script)

    def sql(self, query: str, args: Parameters = None, *, confined: bool = False) -> DataFrame:
        """Run ad hoc SQL over tables, streams and views, all as of the last committed epoch.

        `name VERSION AS OF epoch` reads an earlier epoch, as long as that is retained. `args` are the values of `:name`
        or `?`, as Spark's `sql` takes them. `confined` is for queries of strangers: no files, other tables, scripts, Java.
        """
        return self._reading.sql(query, args, confined=confined)

    def snapshot(self, name: Name, epoch: int | None = None) -> DataFrame:
        """Read a table or view as of the last committed epoch, or an earlier retained one."""
        return self._reading.snapshot(name_of(name), epoch)

    def explain(self, name_or_query: Name, stage: str = "dag") -> str:
        """Show how a view or query is kept live (`stage` "dag"), or Spark's "logical" or "physical" plan."""
        return self._reading.explain(name_of(name_or_query), stage)

    def status(self) -> dict[str, Any]:
        """Report the last epoch, `buckets`, sources, views and pipelines in numbers.

        Sources with position, `lag`, watermark, late rows, dead letters, `violations` of expectations, `error`; views
        with level, size, `state`, `state_growth` in rows an epoch; pipelines; `readers`; `sinks`; the `run`.
        """
        lags = self._running.lags()
        pipelines = self._streams.pipelines_status(lags)
        own = {"sinks": self._epochs.sinks.status(), "pipelines": pipelines}
        return self._reading.status(lags) | own | {"run": self._running.health()}

    def verify(self, view: Name | None = None) -> Report:
        """Run the identical SQL offline on the same inputs, and compare as multisets.

        A paused view is compared as of its pause, or skipped if that epoch is no longer retained.
        Without `view`, also checks that the records of each pipeline add up.
        """
        report = self._reading.verify(None if view is None else name_of(view))
        keep_verified(self.files, self.catalog, report)
        return report if view else replace(report, pipelines=self._streams.check_pipelines())

    def changes(self, view: Name, after: int | None = None, form: str = "retract") -> DataFrame:
        """Read the changes of a view; see `View.changes`."""
        return self._reading.changes(name_of(view), after, form, None)

    def write(self, table: Name, operations: Sequence[tuple[str, Rows]]) -> None:
        """Write operations (`append` or `delete`, rows) into a table, all or none."""
        self.writing.write(name_of(table), operations)

    def dead_letters(self, name: Name) -> DataFrame:
        """Read the dead letters of a pipeline, stream or sink; see `Stream.dead_letters`."""
        return self.writing.dead_letters(name_of(name))

    def remove_dead_letters(self, name: Name, where: str | None, *, replay: bool) -> int:
        """Replay dead letters, or drop them for good; see `Pipeline.replay` and `discard`."""
        return self._streams.remove_dead_letters(name_of(name), where, replay=replay)
