"""The public object: an engine over one storage, with its tables, streams and views."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from eddyline.answers.dead_letters import no_replay
from eddyline.answers.results import Results
from eddyline.answers.status import state_size, storage_status
from eddyline.answers.verify import Report, verified
from eddyline.api import definitions
from eddyline.api.dml import Dml, wrong_query
from eddyline.api.handles import Stream, Table, View
from eddyline.api.pipeline import Pipeline, follow_queue
from eddyline.catalog.entries import (
    DEAD,
    PIPELINE,
    QUEUE,
    REJECTS,
    STREAM,
    TABLE,
    VIEW,
    Catalog,
    Entry,
)
from eddyline.catalog.requests import Inbox
from eddyline.catalog.store import Request, open_store
from eddyline.errors import CatalogError, DataError, EngineError, QueryError, StateGrowthWarning
from eddyline.intake.sources import Sources
from eddyline.intake.watermarks import Watermarks, below
from eddyline.options import Options
from eddyline.pipelines.batches import SLOW_S, TUPLE_ROWS, PipelineStream, Settings
from eddyline.pipelines.outcomes import FOLDER as PIPELINES
from eddyline.pipelines.outcomes import place_of, recover_pipelines, stored_status
from eddyline.plan.eventtime import Bound
from eddyline.plan.explain import explain_text
from eddyline.plan.nodes import Leaf
from eddyline.relay.queue import DataQueue
from eddyline.runtime.compiler import CompiledPlan, Compiler
from eddyline.runtime.epoch import EpochRunner, Inputs, Plan, Progress
from eddyline.source.redo_log import as_operations
from eddyline.source.rows import Rows, as_arrow
from eddyline.source.segments import Segment
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import ZONE, cloned, epoch_session, local_session, storage_zone
from eddyline.sql.dialect import at_epochs, without_emit, written_out
from eddyline.state.manifest import (
    Manifest,
    committed_epochs,
    last_committed,
    manifest_name,
    read_manifest,
)
from eddyline.state.recover import flush, open_storage, retire
from eddyline.storage.files import Files, damaged
from eddyline.storage.lock import StorageLock

RETIRE_EVERY = 16
YIELD_S = 0.001
UNFLUSHED = {
    "exactly_once": (),
    "at_least_once": ("epochs/", "manifests/"),
    "at_most_once": ("epochs/", "manifests/", "logs/"),
}


class Engine:
    """Keeps SQL views live over tables and streams, durably, in one storage folder.

    Args:
        storage: folder of state, redo log and catalog; created if missing, reopened if present.
        spark: a SparkSession; None takes the running one or makes a tuned local one. Days begin in
            its time zone, which is that of the storage from its first epoch on.
        options: settings; None reads the `EDDYLINE_*` environment variables.

    Raises:
        StateError: the storage is damaged; the error names the file.
        StorageError: the folder can't be used.
        EngineError: the session has another time zone than the storage.

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
        storage: str | Files,
        spark: SparkSession | None = None,
        options: Options | None = None,
    ) -> None:
        self.options = options or Options.from_environment()
        self.files = storage if isinstance(storage, Files) else Files(str(storage))
        self._lock = threading.RLock()
        self._storage_lock = StorageLock(self.files)
        try:
            self.files.unflushed = UNFLUSHED[self.options.delivery]
            self._store = open_store(self.files, self.options.catalog)
            self._inbox = Inbox(self._store)
            self.catalog, self._manifest = self._open()
            self.spark = spark or local_session(self._manifest.zone)
            self.zone = storage_zone(self.spark, self._manifest.zone)
            self._sources = Sources(self.files, self.spark, self.zone)
            if self._storage_lock.held:
                skip = self.options.delivery == "at_most_once"
                recover_pipelines(self.files, self.catalog, self._sources.log, skip=skip)
                self._sources.recover(self.catalog, self._manifest, skip=skip)
        except BaseException:
            self._storage_lock.release()
            raise
        session = epoch_session(self.spark, self.catalog.buckets, self.zone)
        self._compiler = Compiler(
            session,
            self.files,
            self.options,
            self.catalog.buckets,
            lambda: epoch_session(self.spark, self.catalog.buckets, self.zone),
        )
        self._runner = EpochRunner(
            self.files, session, self._compiler.catalyst, self.options.scan_tasks, self.zone
        )
        self._results = Results(self.files, self._sources, self._plan, self.options.scan_tasks)
        self._plans: dict[str, CompiledPlan] = {}
        self._callbacks: list[Callable[[Progress], Any]] = []
        self._progress: Progress | None = None
        self._background: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        for entry in self.catalog.entries:
            if entry.format == QUEUE and self._storage_lock.held:
                follow_queue(self, entry)
            elif entry.format not in ("", PIPELINE, QUEUE, REJECTS):  # the user attaches the rest
                self._sources.attach(entry, self.catalog.letters_of(entry))

    # -- definitions -----------------------------------------------------------------------

    def table(self, name: str, schema: str | StructType, primary_key: Sequence[str] = ()) -> Table:
        """A table fed by insert, delete and upsert; created, or reopened if it is the same.

        Args:
            name: name in SQL.
            schema: DDL such as `"id BIGINT, v INT"`, or a StructType.
            primary_key: columns; with one, a later row of a key replaces the earlier. Without one
                the table is a multiset.

        Raises:
            CatalogError: the name is taken by another definition.
        """
        entry = definitions.table(name, schema, primary_key)
        return Table(self, self._define(entry).name)

    def stream(
        self,
        name: str,
        dataframe: DataFrame,
        op: str | None = None,
        primary_key: Sequence[str] = (),
        watermark: tuple[str, str] | None = None,
    ) -> Stream:
        """A stream over any streaming DataFrame; call it again after reopening to attach it again.

        Args:
            name: name in SQL.
            dataframe: `spark.readStream...`; its rows are copied to the redo log exactly once.
            op: a column with + and - (or Debezium's c, u, d, r): appends and deletes of rows.
            primary_key: columns; with one, a later row of a key replaces the earlier.
            watermark: the column that tells a row's time, and how far (`"10 minutes"`) rows may
                come behind the latest; later ones are kept in `<name>__late`. Left out, what
                `dataframe.withWatermark` says holds.

        Raises:
            DataError: the DataFrame isn't streaming, or has no column `op`; the watermark can't be.
        """
        entry = self._define(
            definitions.stream_of_frame(name, dataframe, op, primary_key, watermark, self.spark)
        )
        self._sources.attach(entry, self.catalog.letters_of(entry), dataframe)
        return Stream(self, entry.name)

    def create_stream(
        self,
        name: str,
        schema: str | StructType | None,
        format: str,
        options: Mapping[str, str] | None = None,
        op: str | None = None,
        primary_key: Sequence[str] = (),
        watermark: tuple[str, str] | None = None,
    ) -> Stream:
        """A stream by format and options, as CREATE STREAM defines it; the catalog remembers it.

        JSON and Parquet files are decoded in vectorised code, only in the columns that views need.
        The format `generator` makes events up from their numbers (see `source/nexmark.py`); its
        options are `kind`, `seed`, `total`, `eventsPerEpoch` and `eventsPerSecond`. The format `queue`
        reads the JSON documents of a data queue; those that can't be decoded are the stream
        `<name>__dead`. Its option is `path`, or `servers` and `app` of a queue on Kafka. Every other
        format is read by Spark's own source.

        Args:
            schema: columns; None where the source tells them itself.
            watermark: as in `stream`.

        Raises:
            DataError: the source can't be opened with these columns and options.
        """
        given = dict(options or {})
        if format.lower() == QUEUE:
            if schema is None or op is not None:
                raise DataError(
                    "a stream of a queue needs columns, and has no operations",
                    condition="BAD_STREAM",
                    stream=name,
                    hint="give the columns of its JSON documents",
                )
            entry = definitions.stream(
                name, definitions.columns_of(schema), primary_key, watermark, self.spark,
                format=QUEUE, options=given,
            )  # fmt: skip
            present = self.catalog.find(name)
            if present is None or not self._sources.attached(self.catalog.get(name + DEAD)):
                follow_queue(self, entry)
            else:
                self._define(entry)
            return Stream(self, entry.name)
        if schema is None:
            columns = definitions.nullable(self._sources.columns(format, given))
        else:
            columns = definitions.columns_of(schema)
        entry = definitions.stream(
            name, columns, primary_key, watermark, self.spark, op=op, format=format, options=given
        )
        if self.catalog.find(name) is None:
            self._sources.check(entry)
        defined = self._define(entry)
        if not self._sources.attached(defined):
            self._sources.attach(defined, self.catalog.letters_of(defined))
        return Stream(self, defined.name)

    def pipeline(
        self,
        name: str,
        source: DataQueue,
        *,
        lanes: int = 0,
        tuple_rows: int = TUPLE_ROWS,
        slow: float = SLOW_S,
        acks: bool = True,
    ) -> Pipeline:
        """A pipeline of bolts from a queue: see `Pipeline`. After reopening build it again.

        Args:
            name: of the pipeline; its dead letters are the stream `<name>__dead`.
            source: the queue, whose one reader this is.
            lanes: Spark tasks that work side by side; 0: as many as Spark has cores.
            tuple_rows: records that go to a lane together, and are acknowledged together.
            slow: seconds; a lane that takes longer for all that is under way to it gets less.
            acks: False: what fails is left out, and nothing is tried again.
        """
        return Pipeline(self, name, source, Settings(lanes, tuple_rows, slow, acks=acks))

    def attach(self, pipeline: Pipeline, into: Entry | None, *, own_queue: bool = False) -> None:
        """Define the streams of a pipeline, and let it run; see `Pipeline.into`."""
        with self._lock:
            self._writable()
            fed = None if into is None else self._define(into)
            letters = self._define(definitions.letters(pipeline.name, into))
            old = self._sources.connected(letters)
            if old is not None:
                old.stop()
            for other in self._pipelines:
                if other.queue is pipeline.source and other is not old:
                    raise EngineError(
                        f"pipeline {other.name} reads this queue",
                        condition="QUEUE_IN_USE",
                        hint="give each pipeline a queue of its own, or both steps to one pipeline",
                    )
            stream = PipelineStream(
                pipeline.name, place_of(self.files, letters, fed, self._sources.log),
                queue=pipeline.source, bolts=pipeline.bolts,
                columns=None if fed is None else fed.columns,
                keyed=fed is not None and bool(fed.key),
                spark=self.spark, zone=self.zone,
                settings=pipeline.settings, own_queue=own_queue,
            )  # fmt: skip
            self._sources.connect(letters, stream)

    def view(self, name: str, query: str, *, replace: bool = False) -> View:
        """A live view; on an engine that holds data it starts from all of it.

        Args:
            name: name in SQL.
            query: any SELECT of Spark SQL over tables, streams and views. With EMIT FINAL at its
                end the view gives each row once, when a watermark says that it can't change.
            replace: take the place of a view of this name with another query.

        Raises:
            QueryError: the query is wrong, or can't be kept live; the error says why.
            CatalogError: the name is taken.
        """
        query, final = without_emit(query.strip().rstrip(";"))
        if at_epochs(query)[1]:
            raise QueryError(
                "a live view follows all epochs: VERSION AS OF can't be kept live",
                condition="NOT_LIVE",
                hint="leave it out, or ask ad hoc with engine.sql",
                view=name,
                fragment=query[:200],
            )
        query = self._written_out(query)
        with self._lock:
            self._writable()
            present = self.catalog.find(name)
            if present is not None:
                if present.kind == VIEW and (present.query, present.final) == (query, final):
                    return View(self, present.name)
                if not replace or present.kind != VIEW:
                    raise definitions.taken(present)
                if self.catalog.readers(name):
                    raise CatalogError(
                        f"view {name} is read by {', '.join(self.catalog.readers(name))}",
                        condition="STILL_READ",
                        hint="drop these views first",
                    )
            catalog = self.catalog if present is None else self.catalog.drop(name)
            draft = Entry(f"v{catalog.next_id}", VIEW, name, "", query=query, final=final)
            upstream = self._compiler.mentioned(query, catalog)
            for known in map(catalog.get, upstream):
                if known.paused:
                    raise CatalogError(
                        f"view {name} would read {known.name}, which is paused",
                        condition="UPSTREAM_PAUSED",
                        hint=f"resume {known.name} first",
                    )
            compiled = self._compiler.view(draft, catalog, self._plan, upstream)
            for growing in compiled.compiled.build.growing:
                warnings.warn(f"view {name}: {growing}", StateGrowthWarning, stacklevel=2)
            entry = dataclasses.replace(
                draft,
                schema=compiled.compiled.schema.json(),
                upstream=tuple(upstream),
                result="" if compiled.order else compiled.plan.result.partition("/")[2],
            )
            catalog = catalog.add(entry)
            self._backfill(catalog, catalog.get(name), compiled, present)
            return View(self, name)

    def drop(self, kind: str, name: str, if_exists: bool = False) -> None:
        """Remove a table, stream or view that no view reads; its data is deleted."""
        with self._lock:
            self._writable()
            entry = self.catalog.find(name)
            if entry is None and if_exists:
                return
            entry = self.catalog.get(name, kind)
            letters = self.catalog.letters_of(entry)
            self._save(self.catalog.drop(name))
            for gone in filter(None, (entry, letters)):
                self._forget(gone)

    def pause(self, name: str) -> list[str]:
        """Let a view take no more changes: it keeps the result of the last committed epoch.

        Returns:
            the views that are paused with it, because they read it.
        """
        with self._lock:
            self._writable()
            catalog = self.catalog.pause(name, self._manifest.epoch)
            pairs = list(zip(self.catalog.entries, catalog.entries, strict=True))
            self._save(catalog)
            return [now.name for old, now in pairs if now.paused_with and not old.paused]

    def resume(self, name: str) -> list[str]:
        """Let a paused view go on, and those that were paused with it, in one epoch of their own.

        They are made anew from what their inputs hold by now; their changelogs get the difference.

        Returns:
            the views that go on; none if it was not paused.
        """
        with self._lock:
            self._writable()
            pairs = zip(self.catalog.entries, self.catalog.resume(name).entries, strict=True)
            resumed = [entry for entry, after in pairs if entry.paused and not after.paused]
            if resumed:
                plans = [self._plan(entry) for entry in resumed]
                seconds = self._fill(self.catalog, plans, [entry.id for entry in resumed])
                self._save(self.catalog)
                self._committed({"ingest": 0.0, **seconds})
            return [entry.name for entry in resumed]

    def show(self, kind: str) -> DataFrame:
        """The tables, streams or views, with their columns and what they are made of."""
        rows = [
            (
                entry.name,
                ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in entry.columns),
                entry.query or entry.format or ", ".join(entry.key),
            )
            for entry in self.catalog.entries
            if entry.kind == kind
        ]
        return self.spark.createDataFrame(rows, "name string, columns string, definition string")

    # -- running ---------------------------------------------------------------------------

    def advance(self) -> int:
        """Process all that is available now; the last committed epoch.

        One epoch is one consistent cut over all sources. A source that is read in limited steps
        (files with `maxFilesPerTrigger`, generated events) takes several epochs.
        """
        with self._lock:
            self._writable()
            started = time.perf_counter()
            self._sources.pull()
            ingest = time.perf_counter() - started
            while self._epoch(ingest):
                ingest = 0.0
            return self._manifest.epoch

    def answer(self) -> None:
        """Do what other processes have asked for (`eddyline task`).

        A running engine and `advance()` do this by themselves before each epoch.
        """
        actions: dict[str, Callable[[Request], Any]] = {
            "add": lambda request: self.view(request.name, request.query),
            "pause": lambda request: self.pause(request.name),
            "resume": lambda request: self.resume(request.name),
            "drop": lambda request: self.drop(VIEW, request.name),
            "replay": lambda request: self.revive(request.name, request.query or None, again=True),
            "discard": lambda request: self.revive(
                request.name, request.query or None, again=False
            ),
        }
        with self._lock:
            self._writable()
            for request in self._inbox.waiting():
                with self._inbox.answering(request):
                    actions[request.action](request)

    def start(self, interval: float | None = None) -> None:
        """Run in the background until `stop()`.

        Args:
            interval: seconds between looks for new input; default 0.1.
        """
        self._writable()
        if self._background is not None and self._background.is_alive():
            return
        self._stopping.clear()
        self._failure = None
        self._background = threading.Thread(
            target=self._follow, args=(0.1 if interval is None else interval,), daemon=True
        )
        self._background.start()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the background run has ended; False when `timeout` seconds ran out before.

        Raises:
            EddylineError: what ended the background run.
        """
        if self._background is None:
            return True
        self._background.join(timeout)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return not self._background.is_alive()

    def stop(self) -> None:
        """Stop the background run and the sources, and give the storage free."""
        self._stopping.set()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join()
        with self._lock:
            if self._storage_lock.held:
                self._flush()
            self._release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- reading ---------------------------------------------------------------------------

    def execute(self, script: str) -> DataFrame | None:
        """Run SQL statements; the result of the last SELECT, EXPLAIN or SHOW, if there is one."""
        from eddyline.api.script import run_script

        return run_script(self, script)

    def sql(self, query: str) -> DataFrame:
        """Ad hoc SQL over tables, streams and views, all as of the last committed epoch.

        `name VERSION AS OF epoch` reads an earlier one, as long as that is retained.
        """
        manifest = self._current()
        query, earlier = at_epochs(query)
        query = self._written_out(query)
        session = self._session()
        for alias, (name, epoch) in earlier.items():
            self.snapshot(name, epoch).createOrReplaceTempView(alias)
        for name in self._compiler.mentioned(query, self.catalog):
            content = self._results.content(self.catalog.get(name), manifest, session)
            content.createOrReplaceTempView(name)
        try:
            return session.sql(query)
        except PySparkException as error:
            raise wrong_query(query, error) from error

    def explain(self, name_or_query: str, stage: str = "dag") -> str:
        """How a view, or a query that could be one, is kept live.

        Args:
            stage: `dag` (parts, levels, rules, state), `logical` (Spark's optimised plan),
                `physical` (what Spark runs each epoch).
        """
        entry = self.catalog.find(name_or_query.strip())
        if entry is not None:
            compiled = self._plan(entry)
        else:
            query, final = without_emit(name_or_query)
            query = self._written_out(query)
            upstream = self._compiler.mentioned(query, self.catalog)
            draft = Entry("explained", VIEW, "explained", "", query=query, final=final)
            compiled = self._compiler.view(draft, self.catalog, self._plan, upstream)
        return explain_text(compiled.compiled, stage)

    def progress(self) -> Progress | None:
        """What the last epoch of this engine did; None before the first."""
        return self._progress

    def on_progress(self, callback: Callable[[Progress], Any]) -> None:
        """Call `callback` with the Progress of each epoch, after its commit."""
        self._callbacks.append(callback)

    def status(self) -> dict[str, Any]:
        """Last epoch, sources, views and pipelines.

        Sources with position, watermark, late rows and dead letters; views with level and state;
        pipelines with the account of their records, and window and state of each lane.

        `state_growth` is by how many rows an epoch the operators' state has grown over the retained
        epochs, None where that isn't known yet. The result's own rows are not counted in it.
        """
        manifest = self._current()
        status = storage_status(self.files, self.catalog, manifest)
        live = {pipeline.name: pipeline.status() for pipeline in self._pipelines}
        stored = [
            stored_status(self.files, e) for e in self.catalog.entries if e.format == PIPELINE
        ]
        status["pipelines"] = [live.get(told["name"], told) for told in stored]
        return status

    def verify(self, view: str | None = None) -> Report:
        """The self-proof: the identical SQL offline on the same inputs, compared as multisets.

        A paused view is compared as of its pause, or skipped if that epoch is no longer retained.

        Args:
            view: name of one view; None for all.
        """
        manifest = self._current()
        wanted = [e for e in self.catalog.entries if e.kind == VIEW]
        if view is not None:
            wanted = [self.catalog.get(view, VIEW)]
        session = self._session()
        return verified(self._results, self.catalog, manifest, session, wanted, self._final_rows)

    def _final_rows(self, entry: Entry, manifest: Manifest, content: DataFrame) -> DataFrame:
        """Those rows of a query's result that EMIT FINAL has let through by an epoch."""
        place, bound = self._plan(entry).compiled.final or (0, Bound(()))
        applied = Watermarks.behind(manifest, self.catalog).applied
        value = bound.least(self._compiler.catalyst, applied)
        return below(content, content.columns[place], bound.field, value)

    # -- DML by SQL ------------------------------------------------------------------------

    def insert_query(self, table: str, columns: Sequence[str] | None, query: str) -> None:
        """INSERT INTO table (columns) query."""
        with self._lock:
            entry = self.catalog.get(table, TABLE)
            query = self._written_out(query)
            self.write(entry.name, self._dml(query).insert(entry, columns, query))

    def delete_where(self, table: str, condition: str | None) -> None:
        """DELETE FROM table WHERE condition."""
        with self._lock:
            entry = self.catalog.get(table, TABLE)
            dml = self._dml(f"{entry.name} {condition or ''}")
            self.write(entry.name, dml.delete(entry, condition))

    def update_where(
        self, table: str, assignments: Sequence[tuple[str, str]], condition: str | None
    ) -> None:
        """UPDATE table SET column = expression, ... WHERE condition."""
        with self._lock:
            entry = self.catalog.get(table, TABLE)
            texts = " ".join(text for _, text in assignments)
            dml = self._dml(f"{entry.name} {texts} {condition or ''}")
            self.write(entry.name, dml.update(entry, assignments, condition))

    # -- what the handles call -------------------------------------------------------------

    def dead_letters(self, name: str) -> DataFrame:
        """See `Pipeline.dead_letters` and `Stream.dead_letters`."""
        with self._lock:
            entry = self.catalog.get(name + DEAD, STREAM)
            return self._dml(entry.name).rows(entry, None)

    def revive(self, name: str, where: str | None, *, again: bool) -> int:
        """See `replay` and `discard` of `Pipeline`, and `Stream.discard`."""
        with self._lock:
            self._writable()
            entry = self.catalog.get(name + DEAD, STREAM)
            take_out: Callable[[pa.Table], None]
            if entry.format != REJECTS:
                take_out = partial(self._pipeline(entry).revive, again=again)
            elif again:
                raise no_replay(name)
            else:
                take_out = self._sources.rejects(entry).discard
            letters = self._dml(f"{entry.name} {where or ''}").rows(entry, where).toArrow()
            take_out(letters)
            return int(letters.num_rows)

    def write(self, table: str, operations: Sequence[tuple[str, Rows]]) -> None:
        """Put operations (`append` or `delete`, rows) into a table's redo log, all or none."""
        entry = self.catalog.get(table, TABLE)
        schema = arrow_schema(entry.columns, self.zone)
        parts = []
        for operation, rows in operations:
            given = as_arrow(rows, schema, relation=table, zone=self.zone, required=entry.key)
            parts.append(as_operations(given, operation))
        logged = pa.concat_tables(parts)
        with self._lock:
            self._writable()
            if logged.num_rows:
                self._sources.log(entry).append_tables([logged])

    def snapshot(self, name: str, epoch: int | None = None) -> DataFrame:
        """The rows of a table or view as of the last, or an earlier committed epoch."""
        manifest = self._current()
        if epoch is not None and epoch != manifest.epoch:
            manifest = read_manifest(self.files, epoch)
        return self._results.content(self.catalog.get(name), manifest, self.spark)

    def changes(self, view: str, after: int | None, form: str) -> DataFrame:
        """The changes of a view; see `View.changes`."""
        manifest = self._current()
        entry = self.catalog.get(view, VIEW)
        return self._results.changes(entry, manifest, self.spark, after, form)

    # -- inside ----------------------------------------------------------------------------

    def _session(self) -> SparkSession:
        """A session beside the user's, in the zone of the storage whatever the user sets meanwhile."""
        return cloned(self.spark, **{ZONE: self.zone})

    def _written_out(self, query: str) -> str:
        """The query in plain Spark SQL: without WINDOWING."""
        if "windowing" not in query.lower():
            return query
        times = {
            field.name
            for name in self._compiler.mentioned(query, self.catalog)
            for field in self.catalog.get(name).columns
            if isinstance(field.dataType, TimestampType | TimestampNTZType)
        }
        return written_out(query, times)

    def _open(self) -> tuple[Catalog, Manifest]:
        held = self._storage_lock.held
        # the catalog first: a view is in it only once its state is committed
        found = self._store.read()
        catalog = found or Catalog(self.options.buckets)
        last = max(committed_epochs(self.files), default=0)
        for entry in catalog.entries:
            needed = max(entry.since, entry.paused)
            if needed > last:
                raise damaged(
                    manifest_name(needed), f"it is missing, but {entry.name} is made of it"
                )
        if found is None and (last or self.files.names("logs")):
            raise damaged(self._store.name, "it is missing")
        manifest = open_storage(self.files, writable=held, lenient=bool(self.files.unflushed))
        self._flushed = manifest.epoch
        catalog = catalog.resumed_by(manifest.rebuilt)
        if held and (found is None or self._store.outdated):
            self._store.write(catalog)
        return catalog, manifest.owned(catalog.ids)

    def _save(self, catalog: Catalog, *, final: bool = True) -> None:
        """Make the catalog durable; `final`: with that a request is done, if one is answered."""
        self._flush()  # it may tell of epochs
        try:
            self._store.write(catalog, self._inbox.number if final else None)
        except BaseException:
            if not self._store.certain:  # it may be in place though the call failed behind that
                try:
                    self._reread()
                except BaseException:
                    # what is defined is not known: nothing can go on before someone opens it again
                    self._stopping.set()
                    self._release()
                    raise
            raise
        self.catalog = catalog

    def _flush(self) -> None:
        """Make the committed epochs durable, where they aren't flushed one by one."""
        if self.files.unflushed and self._flushed < self._manifest.epoch:
            flush(self.files, self._flushed)
        self._flushed = self._manifest.epoch

    def _reread(self) -> None:
        self.catalog = (self._store.read() or self.catalog).resumed_by(self._manifest.rebuilt)

    def _release(self) -> None:
        self._sources.stop()
        self._store.close()
        self._storage_lock.release()

    def _writable(self) -> None:
        if not self._storage_lock.held:
            raise EngineError(
                f"the storage {self.files.root} is in use by another engine, or this one is stopped",
                condition="STORAGE_IN_USE",
                hint="stop the other engine; reading works meanwhile",
            )

    def _current(self) -> Manifest:
        """The last committed epoch; a reader beside a running engine looks anew."""
        if not self._storage_lock.held:
            with self._lock:
                while True:  # until both are of one moment
                    known = self._store.read()
                    self._manifest = last_committed(self.files)
                    self._reread()
                    if self._store.read() == known:
                        break
        return self._manifest

    def _define(self, entry: Entry) -> Entry:
        with self._lock:
            present = self.catalog.find(entry.name)
            if present is not None:
                same = dataclasses.replace(entry, id=present.id, name=present.name)
                if same != present:
                    raise definitions.taken(present)
                return present
            self._writable()
            catalog = self.catalog.add(entry)
            if entry.rejects:
                letters = definitions.rejects(catalog.get(entry.name))
                if (present := catalog.find(letters.name)) is not None:
                    raise definitions.taken(present)
                catalog = catalog.add(letters)
            self._save(catalog)
            return catalog.get(entry.name)

    def _plan(self, entry: Entry) -> CompiledPlan:
        compiled = self._plans.get(entry.id)
        if compiled is None:
            if entry.kind == VIEW:
                compiled = self._compiler.view(entry, self.catalog, self._plan, entry.upstream)
            elif entry.arranged:
                compiled = self._compiler.table(entry)
            else:
                raise CatalogError(
                    f"stream {entry.name} is read as it comes: it has no plan of its own",
                    condition="NO_PLAN",
                    hint="explain a view that reads it",
                )
            self._plans[entry.id] = compiled
        return compiled

    def _epoch(self, ingest: float) -> bool:
        """One epoch over what the redo logs hold; False if there is nothing new."""
        self.answer()
        base = self._manifest
        positions = self._sources.waiting(self.catalog, base)
        watermarks = Watermarks.behind(base, self.catalog)
        if not positions and not self._due(watermarks):
            return False
        started = time.perf_counter()
        plans = [
            self._plan(entry).plan
            for entry in self.catalog.entries
            if (entry.kind == VIEW and not entry.paused) or entry.arranged
        ]
        compile_s = time.perf_counter() - started

        def inputs(plan: Plan, leaf: Leaf, changed: Mapping[str, list[Segment]]) -> list[Segment]:
            if not leaf.relation:
                return []  # constant rows came in the view's first epoch
            entry = self.catalog.get(leaf.relation)
            if entry.id == plan.id or (entry.kind == STREAM and not entry.arranged):
                return self._sources.between(entry, base, positions.get(entry.source))
            return changed.get(leaf.relation.lower(), [])

        for stream in watermarks.streams:
            watermark = watermarks.of(stream)
            if stream.id in positions and watermark is not None:
                first = base.positions.get(stream.id, 0)
                self._sources.log(stream).mark(first, watermark)
        seconds = self._run(plans, positions, inputs, watermarks)
        seconds["plan"] += compile_s
        self._committed({"ingest": ingest, **seconds})
        return True

    def _due(self, watermarks: Watermarks) -> bool:
        """Whether rows that EMIT FINAL holds back can be final now."""
        return any(
            watermarks.moved(self._plan(entry).plan.parts)
            for entry in self.catalog.entries
            if entry.final and not entry.paused
        )

    def _run(
        self,
        plans: Sequence[Plan],
        positions: Mapping[str, int],
        inputs: Inputs,
        watermarks: Watermarks,
        rebuilt: Sequence[str] = (),
    ) -> dict[str, float]:
        """Run an epoch on the last committed one; the seconds of its stages."""
        try:
            self._manifest, seconds = self._runner.run(
                self._manifest, plans, positions, inputs, watermarks, rebuilt
            )
        except BaseException:
            # the commit may be in place though the call failed behind that
            self._manifest = last_committed(self.files).owned(self.catalog.ids)
            raise
        finally:
            # an epoch that made views anew has ended their pauses, whatever comes of the catalog
            self.catalog = self.catalog.resumed_by(self._manifest.rebuilt)
        return seconds

    def _committed(self, seconds: dict[str, float]) -> None:
        manifest = self._manifest
        rows_in, rows_out, state = {}, {}, {}
        for entry in self.catalog.entries:
            counts = manifest.counters.get(entry.name)
            if counts:
                rows_in[entry.name], rows_out[entry.name] = counts["in"], counts["out"]
            rows, size = state_size(manifest, entry)
            if rows:
                state[entry.name] = {"rows": rows, "bytes": size}
        self._progress = Progress(manifest.epoch, rows_in, rows_out, seconds, state)
        if manifest.epoch % RETIRE_EVERY == 0:
            self._flush()
            before = read_manifest(self.files, manifest.epoch - 1)
            for entry in self.catalog.entries:
                if entry.arranged:
                    # enough stays to run the last epoch anew, should its manifest be lost
                    self._sources.log(entry).forget(before.positions.get(entry.id, 0))
            retire(self.files, self.options.retain_epochs)
        for callback in self._callbacks:
            callback(self._progress)

    def _backfill(
        self, catalog: Catalog, entry: Entry, compiled: CompiledPlan, replaced: Entry | None
    ) -> None:
        """Give a new view all that its inputs hold, in an epoch of its own.

        Its id is spent before anything is written under it, and the catalog makes it known after
        the commit: a crash between leaves state that belongs to nothing, which the next epoch
        leaves out. A view that it takes the place of is whole until then.
        """
        self._save(dataclasses.replace(self.catalog, next_id=catalog.next_id), final=False)
        seconds = self._fill(catalog, [compiled])
        self._save(catalog.committed(entry, self._manifest.epoch))
        self._plans[entry.id] = compiled
        if replaced is not None:
            self._forget(replaced)
        self._committed({"ingest": 0.0, **seconds})

    def _fill(
        self, catalog: Catalog, plans: Sequence[CompiledPlan], rebuilt: Sequence[str] = ()
    ) -> dict[str, float]:
        """Give views all that their inputs hold, in an epoch of their own; its seconds.

        Args:
            rebuilt: ids of those that have rows already, which these take the place of.
        """
        base = self._manifest
        filled = {compiled.plan.name for compiled in plans}
        constants = {
            compiled.plan.id: self._compiler.write_constants(compiled) for compiled in plans
        }

        def inputs(plan: Plan, leaf: Leaf, changed: Mapping[str, list[Segment]]) -> list[Segment]:
            if not leaf.relation:
                return constants[plan.id][leaf.name]
            entry = catalog.get(leaf.relation)
            if entry.name in filled:
                return changed.get(entry.name.lower(), [])
            return self._results.history(entry, base)

        watermarks = Watermarks.behind(base, self.catalog)
        return self._run([compiled.plan for compiled in plans], {}, inputs, watermarks, rebuilt)

    @property
    def _pipelines(self) -> list[PipelineStream]:
        """Those that are connected."""
        return [source for source in self._sources.all if isinstance(source, PipelineStream)]

    def _pipeline(self, letters: Entry) -> PipelineStream:
        """The pipeline with this stream of dead letters; CatalogError if it isn't connected."""
        found = self._sources.connected(letters)
        if not isinstance(found, PipelineStream):
            raise CatalogError(
                f"the pipeline of {letters.name} is not connected",
                condition="NOT_CONNECTED",
                hint="call engine.pipeline(...) with its bolts again, after opening the storage",
            )
        return found

    def _forget(self, entry: Entry) -> None:
        self.files.remove(f"{PIPELINES}/{entry.id}")
        self._plans.pop(entry.id, None)
        self._manifest = self._manifest.owned(self.catalog.ids)
        self._sources.forget(entry)

    def _dml(self, text: str) -> Dml:
        """DML over the relations that a text mentions."""
        session = self._session()
        manifest = self._manifest

        def waiting(entry: Entry) -> list[Segment]:
            return self._sources.between(entry, manifest, self._sources.log(entry).end())

        dml = Dml(session, self.files, waiting)
        for name in self._compiler.mentioned(text, self.catalog):
            entry = self.catalog.get(name)
            dml.register(entry, self._results.content(entry, manifest, session))
        return dml

    def _follow(self, interval: float) -> None:
        looked = -math.inf
        try:
            while not self._stopping.is_set():
                with self._lock:
                    if time.monotonic() - looked >= interval:
                        self._sources.follow(interval)
                        looked = time.monotonic()
                    more = self._epoch(0.0)
                # where epochs follow each other, others get the lock between them
                self._stopping.wait(YIELD_S if more else interval)
        except BaseException as error:  # noqa: BLE001  # handed to await_termination
            self._failure = error
