"""The public object: an engine over one storage, with its tables, streams and views."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from eddyline.catalog import STREAM, TABLE, VIEW, Catalog, Entry, read_catalog, write_catalog
from eddyline.changes import APPEND, DELETE, HASH, OPERATION, SEQUENCE, WEIGHT
from eddyline.errors import CatalogError, DataError, EngineError, QueryError
from eddyline.operators.collect import ROWS, Apply
from eddyline.options import Options
from eddyline.plan.explain import explain_text
from eddyline.plan.nodes import Leaf
from eddyline.runtime.changelog import Difference, difference
from eddyline.runtime.compiler import CompiledPlan, Compiler
from eddyline.runtime.epoch import EpochRunner, Plan, Progress
from eddyline.runtime.reader import arrow_schema, changes_frame, segments_frame, snapshot_frame
from eddyline.runtime.session import cloned, epoch_session, local_session
from eddyline.runtime.task import arrangement_name
from eddyline.source.log import RedoLog
from eddyline.source.ndjson import readable
from eddyline.source.rows import Rows, as_arrow
from eddyline.source.segments import RUN, Segment, spread
from eddyline.source.streams import FileStream, SparkStream
from eddyline.state.manifest import Manifest, read_manifest
from eddyline.state.recover import open_storage, retire
from eddyline.state.runs import Run
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock

_JSON_OPTIONS = {"path", "maxFilesPerTrigger"}
RETIRE_EVERY = 16


class Engine:
    """Keeps SQL views live over tables and streams, durably, in one storage folder.

    Args:
        storage: folder of state, redo log and catalog; created if missing, reopened if present.
        spark: a SparkSession; None takes the running one or makes a tuned local one.
        options: settings; None reads the `EDDYLINE_*` environment variables.

    Raises:
        StateError: the storage is damaged; the error names the file.
        StorageError: the folder can't be used.

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
        self.spark = spark or local_session()
        self._catalog, self._manifest = self._open()
        self._session = epoch_session(self.spark, self._catalog.buckets)
        self._compiler = Compiler(
            self._session, self.files, self.options, self._catalog.buckets, self._session_clone
        )
        self._runner = EpochRunner(
            self.files, self._session, self._compiler.catalyst, self.options.scan_tasks
        )
        self._plans: dict[str, CompiledPlan] = {}
        self._logs: dict[str, RedoLog] = {}
        self._streams: dict[str, SparkStream | FileStream] = {}
        self._callbacks: list[Callable[[Progress], Any]] = []
        self._progress: Progress | None = None
        self._background: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        for entry in self._catalog.entries:
            if entry.format:
                self._attach(entry)

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
        columns = _schema(schema, self._session)
        key = _key(columns, primary_key, name)
        entry = Entry("", TABLE, name, columns.json(), key)
        return Table(self, self._define(entry).name)

    def stream(
        self,
        name: str,
        dataframe: DataFrame,
        op: str | None = None,
        primary_key: Sequence[str] = (),
    ) -> Stream:
        """A stream over any streaming DataFrame; call it again after reopening to attach it again.

        Args:
            name: name in SQL.
            dataframe: `spark.readStream...`; its rows are copied to the redo log exactly once.
            op: a column with + and - (or Debezium's c, u, d, r): appends and deletes of rows.
            primary_key: columns; with one, a later row of a key replaces the earlier.

        Raises:
            DataError: the DataFrame isn't streaming, or has no column `op`.
        """
        if not dataframe.isStreaming:
            raise DataError(
                f"the DataFrame of stream {name} is not a streaming one",
                condition="NOT_STREAMING",
                hint="make it with spark.readStream, or use engine.table for rows at rest",
            )
        if op is not None and op not in dataframe.columns:
            raise DataError(
                f"stream {name} has no column {op}",
                condition="UNKNOWN_COLUMN",
                hint=f"the columns are {', '.join(dataframe.columns)}",
            )
        columns = StructType([field for field in dataframe.schema if field.name != op])
        columns = _nullable(columns)
        key = _key(columns, primary_key, name)
        entry = self._define(Entry("", STREAM, name, columns.json(), key, operation=op or ""))
        self._streams[entry.id] = self._spark_stream(entry, dataframe)
        return Stream(self, entry.name)

    def create_stream(
        self,
        name: str,
        schema: str | StructType | None,
        format: str,
        options: Mapping[str, str] | None = None,
        op: str | None = None,
        primary_key: Sequence[str] = (),
    ) -> Stream:
        """A stream by format and options, as CREATE STREAM defines it; the catalog remembers it.

        JSON files are decoded in vectorised code, only in the columns that views need; every
        other format is read by Spark's own source.
        """
        given = dict(options or {})
        if schema is None:
            columns = _nullable(self._reader(format, None, given).schema)
        else:
            columns = _schema(schema, self._session)
        shown = StructType([field for field in columns if field.name != op])
        entry = Entry(
            "", STREAM, name, shown.json(), _key(shown, primary_key, name),
            format=format, options=given, operation=op or "",
        )  # fmt: skip
        defined = self._define(entry)
        if defined.id not in self._streams:
            self._attach(defined, columns)
        return Stream(self, defined.name)

    def view(self, name: str, query: str, *, replace: bool = False) -> View:
        """A live view; on an engine that holds data it starts from all of it.

        Args:
            name: name in SQL.
            query: any SELECT of Spark SQL over tables, streams and views.
            replace: take the place of a view of this name with another query.

        Raises:
            QueryError: the query is wrong, or can't be kept live; the error says why.
            CatalogError: the name is taken.
        """
        query = query.strip().rstrip(";")
        with self._lock:
            self._writable()
            present = self._catalog.find(name)
            if present is not None:
                if present.kind == VIEW and present.query == query:
                    return View(self, present.name)
                if not replace or present.kind != VIEW:
                    raise _taken(present)
                if self._catalog.readers(name):
                    raise CatalogError(
                        f"view {name} is read by {', '.join(self._catalog.readers(name))}",
                        condition="STILL_READ",
                        hint="drop these views first",
                    )
            catalog = self._catalog if present is None else self._catalog.drop(name)
            draft = Entry("", VIEW, name, "", query=query)
            number = f"v{catalog.next_id}"
            upstream = self._compiler.upstream(query, catalog)
            compiled = self._compiler.view(
                replace_id(draft, number), catalog, self._append_only, upstream
            )
            entry = replace_entry(draft, compiled, upstream)
            catalog = catalog.add(entry)
            self._backfill(catalog, catalog.get(name), compiled, present)
            return View(self, name)

    def drop(self, kind: str, name: str, if_exists: bool = False) -> None:
        """Remove a table, stream or view that no view reads; its data is deleted."""
        with self._lock:
            self._writable()
            entry = self._catalog.find(name)
            if entry is None and if_exists:
                return
            entry = self._catalog.get(name, kind)
            catalog = self._catalog.drop(name)
            write_catalog(self.files, catalog)
            self._catalog = catalog
            self._forget(entry)

    def show(self, kind: str) -> DataFrame:
        """The tables, streams or views, with their columns and what they are made of."""
        rows = [
            (
                entry.name,
                ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in entry.columns),
                entry.query or entry.format or ", ".join(entry.key),
            )
            for entry in self._catalog.entries
            if entry.kind == kind
        ]
        return self.spark.createDataFrame(rows, "name string, columns string, definition string")

    # -- running ---------------------------------------------------------------------------

    def advance(self) -> int:
        """Process all that is available now; the last committed epoch.

        One epoch is one consistent cut over all sources. A source that is read in limited steps
        (files with `maxFilesPerTrigger`) takes several epochs.
        """
        with self._lock:
            self._writable()
            started = time.perf_counter()
            for stream in self._streams.values():
                stream.pull()
            ingest = time.perf_counter() - started
            while self._epoch(ingest):
                ingest = 0.0
            return self._manifest.epoch

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
            for stream in self._streams.values():
                stream.stop()
            self._storage_lock.release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- reading ---------------------------------------------------------------------------

    def execute(self, script: str) -> DataFrame | None:
        """Run SQL statements; the result of the last SELECT, EXPLAIN or SHOW, if there is one."""
        from eddyline.script import run_script

        return run_script(self, script)

    def sql(self, query: str) -> DataFrame:
        """Ad hoc SQL over tables, streams and views, all as of the last committed epoch."""
        manifest = self._current()
        session = cloned(self.spark)
        for name in self._compiler.mentioned(query, self._catalog):
            self._content(self._catalog.get(name), manifest, session).createOrReplaceTempView(name)
        try:
            return session.sql(query)
        except Exception as error:  # Spark's own errors, of many classes
            raise _wrong(query, error) from error

    def explain(self, name_or_query: str, stage: str = "dag") -> str:
        """How a view, or a query that could be one, is kept live.

        Args:
            stage: `dag` (parts, levels, rules, state), `logical` (Spark's optimised plan),
                `physical` (what Spark runs each epoch).
        """
        entry = self._catalog.find(name_or_query.strip())
        if entry is not None:
            compiled = self._plan(entry)
        else:
            upstream = self._compiler.upstream(name_or_query, self._catalog)
            draft = Entry("explained", VIEW, "explained", "", query=name_or_query)
            compiled = self._compiler.view(draft, self._catalog, self._append_only, upstream)
        return explain_text(compiled.compiled, stage)

    def progress(self) -> Progress | None:
        """What the last epoch of this engine did; None before the first."""
        return self._progress

    def on_progress(self, callback: Callable[[Progress], Any]) -> None:
        """Call `callback` with the Progress of each epoch, after its commit."""
        self._callbacks.append(callback)

    def status(self) -> dict[str, Any]:
        """Last epoch, sources with their positions, views with level and size of state."""
        manifest = self._current()
        sources, views = [], []
        for entry in self._catalog.entries:
            if entry.kind == VIEW:
                rows, size = _state_size(manifest, entry)
                views.append(
                    {
                        "name": entry.name,
                        "state_rows": rows,
                        "state_bytes": size,
                        "level": self._catalog.level(entry),
                    }
                )
            else:
                position = manifest.positions.get(entry.id, 0)
                sources.append({"name": entry.name, "kind": entry.kind, "position": position})
        return {"epoch": manifest.epoch, "sources": sources, "views": views}

    def verify(self, view: str | None = None) -> Report:
        """The self-proof: the identical SQL offline on the same inputs, compared as multisets.

        Args:
            view: name of one view; None for all.
        """
        manifest = self._current()
        session = cloned(self.spark)
        found: dict[str, Difference] = {}
        wanted = None if view is None else self._catalog.get(view, VIEW).name
        for entry in self._catalog.entries:
            if entry.kind != VIEW:
                content = self._content(entry, manifest, session)
            else:
                content = session.sql(entry.query)
                if wanted in (None, entry.name):
                    live = self._content(entry, manifest, session).toArrow()
                    found[entry.name] = difference(live, content.toArrow())
            content.createOrReplaceTempView(entry.name)
        return Report(manifest.epoch, found)

    # -- DML by SQL ------------------------------------------------------------------------

    def insert_query(self, table: str, columns: Sequence[str] | None, query: str) -> None:
        """INSERT INTO table (columns) query."""
        entry = self._catalog.get(table, TABLE)
        with self._lock:
            result = self._settled(query)
            names = list(columns) if columns else entry.columns.names
            if len(result.columns) != len(names):
                raise DataError(
                    f"INSERT gives {len(result.columns)} columns, wanted are {len(names)}",
                    condition="WRONG_WIDTH",
                    table=entry.name,
                    hint="name the columns: INSERT INTO t (a, b) ...",
                )
            types = {field.name.lower(): field.dataType for field in entry.columns}
            unknown = [name for name in names if name.lower() not in types]
            if unknown:
                raise DataError(
                    f"unknown column {', '.join(unknown)}",
                    condition="UNKNOWN_COLUMN",
                    table=entry.name,
                    hint=f"the columns are {', '.join(entry.columns.names)}",
                )
            proper = {field.name.lower(): field.name for field in entry.columns}
            renamed = result.toDF(*(proper[name.lower()] for name in names))
            typed = renamed.select(
                *(col(f"`{c}`").cast(types[c.lower()]).alias(c) for c in renamed.columns)
            )
            Table(self, entry.name).insert(typed)

    def delete_where(self, table: str, condition: str | None) -> None:
        """DELETE FROM table WHERE condition."""
        entry = self._catalog.get(table, TABLE)
        with self._lock:
            where = f" WHERE {condition}" if condition else ""
            rows = self._settled(f"SELECT * FROM {_quoted(entry.name)}{where}", entry.name)
            Table(self, entry.name).delete(rows)

    def update_where(
        self, table: str, assignments: Sequence[tuple[str, str]], condition: str | None
    ) -> None:
        """UPDATE table SET column = expression, ... WHERE condition."""
        entry = self._catalog.get(table, TABLE)
        names = {field.name.lower(): field for field in entry.columns}
        given = {name.lower().strip("`"): text for name, text in assignments}
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise DataError(
                f"unknown column {', '.join(unknown)}",
                condition="UNKNOWN_COLUMN",
                table=entry.name,
                hint=f"the columns are {', '.join(entry.columns.names)}",
            )
        with self._lock:
            where = f" WHERE {condition}" if condition else ""
            new = ", ".join(
                f"CAST(({given[low]}) AS {field.dataType.simpleString()}) AS {_quoted(field.name)}"
                if low in given
                else _quoted(field.name)
                for low, field in names.items()
            )
            old_names = ", ".join(
                f"{_quoted(field.name)} AS `{i}`" for i, field in enumerate(names.values())
            )
            source = _quoted(entry.name)
            # one evaluation for both versions of each row
            both = self._settled(
                f"SELECT struct({old_names}) AS before, struct({new}) AS after FROM {source}{where}",
                entry.name,
            ).toArrow()
            fields = entry.columns.names
            before, after = (
                pa.table(both[side].combine_chunks().flatten(), names=fields)
                for side in ("before", "after")
            )
            self._write(entry, [(DELETE, before), (APPEND, after)])

    # -- inside ----------------------------------------------------------------------------

    def _open(self) -> tuple[Catalog, Manifest]:
        manifest = open_storage(self.files, writable=self._storage_lock.held)
        catalog = read_catalog(self.files)
        if catalog is None:
            catalog = Catalog(self.options.buckets)
            if self._storage_lock.held:
                write_catalog(self.files, catalog)
        return catalog, manifest

    def _session_clone(self) -> SparkSession:
        return epoch_session(self.spark, self._catalog.buckets)

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
                self._manifest = open_storage(self.files, writable=False, check=False)
                self._catalog = read_catalog(self.files) or self._catalog
        return self._manifest

    def _define(self, entry: Entry) -> Entry:
        with self._lock:
            present = self._catalog.find(entry.name)
            if present is not None:
                same = replace(entry, id=present.id, name=present.name)
                if same != present:
                    raise _taken(present)
                return present
            self._writable()
            catalog = self._catalog.add(entry)
            write_catalog(self.files, catalog)
            self._catalog = catalog
            return catalog.get(entry.name)

    def _attach(self, entry: Entry, columns: StructType | None = None) -> None:
        """Connect a stream that the catalog describes."""
        if self._vectorised(entry):
            limit = int(entry.options.get("maxFilesPerTrigger", 1_000_000))
            self._streams[entry.id] = FileStream(
                entry.name, entry.options["path"], limit, self._log(entry)
            )
            return
        if columns is None:
            columns = entry.columns
            if entry.operation:
                columns = StructType([*columns.fields]).add(entry.operation, "string")
        frame = self._reader(entry.format, columns, entry.options)
        self._streams[entry.id] = self._spark_stream(entry, frame)

    def _vectorised(self, entry: Entry) -> bool:
        return (
            entry.format.lower() == "json"
            and not entry.arranged
            and set(entry.options) <= _JSON_OPTIONS
            and "path" in entry.options
            and readable(arrow_schema(entry.columns, "UTC"))
            and self.spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "GMT")
        )

    def _reader(
        self, format: str, columns: StructType | None, options: Mapping[str, str]
    ) -> DataFrame:
        reader = self.spark.readStream.format(format).options(**options)
        if columns is not None and format.lower() not in ("rate", "rate-micro-batch", "kafka"):
            reader = reader.schema(columns)
        try:
            frame = reader.load()
        except Exception as error:  # Spark's own errors, of many classes
            raise DataError(
                f"a stream of format {format} can't be opened: {str(error).splitlines()[0]}",
                condition="BAD_STREAM",
                hint="check the format and its OPTIONS",
            ) from error
        return frame if columns is None else frame.select(*columns.names)

    def _spark_stream(self, entry: Entry, frame: DataFrame) -> SparkStream:
        old = self._streams.get(entry.id)
        if old is not None:
            old.stop()
        return SparkStream(
            entry.name,
            frame,
            entry.operation or None,
            bool(entry.key),
            entry.columns.names,
            self.files,
            self._log(entry),
            f"checkpoints/{entry.id}",
        )

    def _log(self, entry: Entry) -> RedoLog:
        log = self._logs.get(entry.id)
        if log is None:
            log = self._logs[entry.id] = RedoLog(self.files, entry.id)
        return log

    def _append_only(self, entry: Entry) -> bool:
        if entry.kind == STREAM:
            return not entry.arranged
        if entry.kind == VIEW:
            return self._plan(entry).compiled.append_only
        return False

    def _plan(self, entry: Entry) -> CompiledPlan:
        compiled = self._plans.get(entry.id)
        if compiled is None:
            if entry.kind == VIEW:
                compiled = self._compiler.view(
                    entry, self._catalog, self._append_only, entry.upstream
                )
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
        base = self._manifest
        positions: dict[str, int] = {}
        for entry in self._catalog.entries:
            if entry.kind == VIEW:
                continue
            position, end = base.positions.get(entry.id, 0), self._log(entry).end()
            if end > position:
                stream = self._streams.get(entry.id)
                step = isinstance(stream, FileStream) and "maxFilesPerTrigger" in entry.options
                positions[entry.id] = position + 1 if step else end
        if not positions:
            return False
        started = time.perf_counter()
        plans = [
            self._plan(entry).plan
            for entry in self._catalog.entries
            if entry.kind == VIEW or entry.arranged
        ]
        compile_s = time.perf_counter() - started

        def inputs(plan: Plan, leaf: Leaf, changed: Mapping[str, list[Segment]]) -> list[Segment]:
            if not leaf.relation:
                return []  # constant rows came in the view's first epoch
            entry = self._catalog.get(leaf.relation)
            if entry.id == plan.id or (entry.kind == STREAM and not entry.arranged):
                end = positions.get(entry.id)
                if end is None:
                    return []
                return self._log(entry).segments(base.positions.get(entry.id, 0), end)
            return changed.get(leaf.relation.lower(), [])

        manifest, seconds = self._runner.run(base, plans, positions, inputs)
        seconds["plan"] += compile_s
        self._committed(manifest, {"ingest": ingest, **seconds})
        return True

    def _committed(self, manifest: Manifest, seconds: dict[str, float]) -> None:
        self._manifest = manifest
        rows_in, rows_out, state = {}, {}, {}
        for entry in self._catalog.entries:
            counts = manifest.counters.get(entry.name)
            if counts:
                rows_in[entry.name], rows_out[entry.name] = counts["in"], counts["out"]
            rows, size = _state_size(manifest, entry)
            if rows:
                state[entry.name] = {"rows": rows, "bytes": size}
        self._progress = Progress(manifest.epoch, rows_in, rows_out, seconds, state)
        if manifest.epoch % RETIRE_EVERY == 0:
            retire(self.files, self.options.retain_epochs)
            for entry in self._catalog.entries:
                if entry.arranged:
                    self._log(entry).forget(manifest.positions.get(entry.id, 0))
        for callback in self._callbacks:
            callback(self._progress)

    def _backfill(
        self, catalog: Catalog, entry: Entry, compiled: CompiledPlan, replaced: Entry | None
    ) -> None:
        """Give a new view all that its inputs hold, in an epoch of its own."""
        constants = self._compiler.write_constants(entry, compiled)
        base = self._manifest
        if replaced is not None:
            base = _without(base, replaced)

        def inputs(plan: Plan, leaf: Leaf, _: Mapping[str, list[Segment]]) -> list[Segment]:
            if not leaf.relation:
                return constants[leaf.name]
            return self._history(catalog.get(leaf.relation), base)

        manifest, seconds = self._runner.run(base, [compiled.plan], {}, inputs)
        # the catalog makes the view known; a crash before this line leaves state without an owner
        write_catalog(self.files, catalog)
        self._catalog = catalog
        self._plans[entry.id] = compiled
        if replaced is not None:
            self._forget(replaced)
        self._committed(manifest, {"ingest": 0.0, **seconds})

    def _history(self, entry: Entry, manifest: Manifest) -> list[Segment]:
        """All that a relation holds as of an epoch, as segments with weights."""
        if entry.kind == STREAM and not entry.arranged:
            return self._log(entry).segments(0, manifest.positions.get(entry.id, 0))
        buckets = manifest.arrangements.get(self._plan(entry).plan.result, {})
        return [Segment(RUN, r.name, r.rows) for runs in buckets.values() for r in runs]

    def _forget(self, entry: Entry) -> None:
        self._plans.pop(entry.id, None)
        self._logs.pop(entry.id, None)
        stream = self._streams.pop(entry.id, None)
        if stream is not None:
            stream.stop()
        for folder in (f"logs/{entry.id}", f"checkpoints/{entry.id}"):
            self.files.remove(folder)

    def _content(self, entry: Entry, manifest: Manifest, session: SparkSession) -> DataFrame:
        """The rows of a table, stream or view as of an epoch."""
        columns = entry.columns
        if entry.kind == STREAM and not entry.arranged:
            segments = self._log(entry).segments(0, manifest.positions.get(entry.id, 0))
            dealt = spread(segments, self.options.scan_tasks)
            return segments_frame(session, self.files, dealt, columns)
        compiled = self._plan(entry)
        buckets = manifest.arrangements.get(compiled.plan.result, {})
        stored = compiled.stored_schema
        frame = snapshot_frame(session, self.files, list(buckets.values()), stored)
        keys = [name for name in stored.names if name not in columns.names][: len(compiled.order)]
        sorts = []
        for name, order in zip(keys, compiled.order, strict=True):
            key = col(f"`{name}`")
            if order.descending:
                sorts.append(key.desc_nulls_last() if order.nulls_last else key.desc_nulls_first())
            else:
                sorts.append(key.asc_nulls_last() if order.nulls_last else key.asc_nulls_first())
        if sorts:
            frame = frame.orderBy(*sorts)
        return frame.select(*(col(f"`{name}`") for name in columns.names))

    def _changes(self, entry: Entry, after: int | None, form: str) -> DataFrame:
        if form not in ("retract", "update"):
            raise QueryError(
                f"there is no changelog form {form!r}",
                condition="UNKNOWN_FORM",
                hint="use retract or update",
            )
        from eddyline.state.manifest import committed_epochs

        manifest = self._current()
        compiled = self._plan(entry)
        name = compiled.plan.result
        retained = [e for e in committed_epochs(self.files) if e <= manifest.epoch]
        epochs: list[tuple[int, tuple[Run, ...]]] = []
        for epoch in retained:
            if after is not None and epoch <= after:
                continue
            known = read_manifest(self.files, epoch)
            first = epoch == retained[0] and epoch > 1
            if first and (after is None or after < epoch - 1):
                # what lies before the oldest retained epoch comes as one append of all its rows
                parts = known.arrangements.get(name, {})
            else:
                parts = known.deltas.get(name, {})
            runs = tuple(run for bucket in parts.values() for run in bucket)
            if runs:
                epochs.append((epoch, runs))
        return changes_frame(
            self.spark, self.files, epochs, entry.columns,
            update=form == "update", key=compiled.key,
        )  # fmt: skip

    def _write(self, entry: Entry, parts: Sequence[tuple[str, pa.Table]]) -> None:
        """Put operations into a table's redo log, as one entry; durable when this returns."""
        with self._lock:
            self._writable()
            parts = [(operation, rows) for operation, rows in parts if rows.num_rows]
            if not parts:
                return
            columns = [f"c{i}" for i in range(len(entry.columns))]
            schema = arrow_schema(entry.columns, self._zone())
            tables = []
            for operation, rows in parts:
                renamed = pa.table(
                    [c.cast(f.type) for c, f in zip(rows.columns, schema, strict=True)],
                    names=columns,
                )
                tables.append(
                    renamed.append_column(OPERATION, pa.array([operation] * rows.num_rows))
                )
            log = self._log(entry)
            log.append_table(log.next(), pa.concat_tables(tables))

    def _settled(self, query: str, table: str | None = None) -> DataFrame:
        """A query over the tables as they are with all operations that wait in the redo log."""
        session = cloned(self.spark)
        names = set(self._compiler.mentioned(query, self._catalog)) | ({table} if table else set())
        for name in names:
            entry = self._catalog.get(name)
            content = self._content(entry, self._manifest, session)
            if entry.kind == TABLE:
                content = self._with_waiting(entry, content, session)
            content.createOrReplaceTempView(entry.name)
        try:
            return session.sql(query)
        except Exception as error:  # Spark's own errors, of many classes
            raise _wrong(query, error) from error

    def _with_waiting(self, entry: Entry, content: DataFrame, session: SparkSession) -> DataFrame:
        log = self._log(entry)
        position = self._manifest.positions.get(entry.id, 0)
        waiting = log.segments(position, log.end())
        if not waiting:
            return content
        from eddyline.runtime.reader import plain_schema
        from eddyline.source.segments import read_segment

        columns = entry.columns
        places = range(len(columns))
        names = [f"c{i}" for i in places]
        arrow = arrow_schema(plain_schema(columns), self._zone())
        wire = pa.schema(
            [
                pa.field(SEQUENCE, pa.int64()),
                pa.field(OPERATION, pa.string()),
                *arrow,
                pa.field(WEIGHT, pa.int64()),
            ]
        )
        operations = pa.concat_tables(
            [t for s in waiting for t in read_segment(self.files, s, names, places, wire)]
        )
        zeros = pa.array(np.zeros(operations.num_rows, np.int64))
        operations = operations.add_column(0, HASH, zeros)
        stored = content.toArrow()
        rows = pa.table(
            [c.cast(f.type) for c, f in zip(stored.columns, arrow, strict=True)], names=names
        )
        rows = rows.add_column(0, HASH, pa.array(np.zeros(rows.num_rows, np.int64)))
        rows = rows.append_column(WEIGHT, pa.array(np.ones(rows.num_rows, np.int64)))
        key = tuple(columns.names.index(name) for name in entry.key)
        operator = Apply(len(columns), key)
        change = operator.resolve(operations, rows)
        layout = operator.layouts[ROWS]
        from eddyline.state.kernels import repeat

        settled = layout.consolidate(
            pa.concat_tables([rows.select(layout.columns), change.select(layout.columns)])
        )
        settled = repeat(settled, settled[WEIGHT].to_numpy()).select(names)
        return session.createDataFrame(settled.rename_columns(columns.names), columns)

    def _zone(self) -> str:
        return self.spark.conf.get("spark.sql.session.timeZone") or "UTC"

    def _follow(self, interval: float) -> None:
        try:
            while not self._stopping.is_set():
                with self._lock:
                    for stream in list(self._streams.values()):
                        stream.follow(interval)
                    while not self._stopping.is_set() and self._epoch(0.0):
                        pass
                self._stopping.wait(interval)
        except BaseException as error:  # noqa: BLE001  # handed to await_termination
            self._failure = error


@dataclass(frozen=True, slots=True)
class Table:
    """A table fed by DML. What a call wrote is durable when the call returns."""

    engine: Engine
    name: str

    def insert(self, rows: Rows) -> None:
        """Append rows; with a primary key, a row takes the place of the one with its key.

        Args:
            rows: dicts, tuples, a pandas or Spark DataFrame, or a pyarrow Table.
        """
        entry = self._entry
        self.engine._write(entry, [(APPEND, self._arrow(entry, rows))])

    def delete(self, rows: Rows) -> None:
        """Delete rows: by primary key, or one equal row each; deleting what is not there does nothing."""
        entry = self._entry
        self.engine._write(entry, [(DELETE, self._arrow(entry, rows))])

    def upsert(self, rows: Rows) -> None:
        """Insert rows or replace those of the same primary key."""
        if not self._entry.key:
            raise DataError(
                f"table {self.name} has no primary key",
                condition="NO_PRIMARY_KEY",
                hint="give it one when creating it, or use insert and delete",
            )
        self.insert(rows)

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """The rows as of the last (or an earlier, still retained) committed epoch."""
        return _snapshot(self.engine, self._entry, epoch)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._entry.columns

    @property
    def _entry(self) -> Entry:
        return self.engine._catalog.get(self.name, TABLE)

    def _arrow(self, entry: Entry, rows: Rows) -> pa.Table:
        zone = self.engine._zone()
        schema = arrow_schema(entry.columns, zone)
        return as_arrow(rows, schema, relation=self.name, zone=zone, required=entry.key)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that views can read."""

    engine: Engine
    name: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.engine._catalog.get(self.name, STREAM).columns


@dataclass(frozen=True, slots=True)
class View:
    """A live view."""

    engine: Engine
    name: str

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._entry.columns

    @property
    def query(self) -> str:
        """The SQL."""
        return self._entry.query

    def snapshot(self, epoch: int | None = None) -> DataFrame:
        """The result as of the last (or an earlier, still retained) committed epoch.

        The ORDER BY of the view is honoured.
        """
        return _snapshot(self.engine, self._entry, epoch)

    def changes(self, after: int | None = None, form: str = "retract") -> DataFrame:
        """The changes of the epochs after `after`, or of all.

        Args:
            after: an epoch; None for all retained ones: replayed from empty they give the snapshot.
            form: `retract`: the columns, `op` (append or delete) and `epoch`, a row as often as its
                multiplicity; `update`: structs `before` and `after` (null for a new or removed
                row) and `epoch`, paired by the grouping key of the view if it has one.
        """
        return self.engine._changes(self._entry, after, form)

    @property
    def _entry(self) -> Entry:
        return self.engine._catalog.get(self.name, VIEW)


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; true if all views agree with offline SQL.

    Attributes:
        epoch: as of which epoch.
        views: the difference of each view (left: live, right: offline).
    """

    epoch: int
    views: dict[str, Difference]

    @property
    def equal(self) -> bool:
        """Whether all views agree."""
        return all(found.equal for found in self.views.values())

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        width = max((len(name) for name in self.views), default=4)
        lines = [f"{'view':{width}}  {'live':>9}  {'offline':>9}  equal"]
        for name, found in self.views.items():
            lines.append(
                f"{name:{width}}  {found.left_rows:9,}  {found.right_rows:9,}  "
                f"{'yes' if found.equal else 'NO'}"
            )
            for side, rows in (("live", found.left_only), ("offline", found.right_only)):
                lines += [f"  only {side}: {row}" for row in rows]
        return "\n".join(lines)


def _snapshot(engine: Engine, entry: Entry, epoch: int | None) -> DataFrame:
    manifest = engine._current()
    if epoch is not None and epoch != manifest.epoch:
        manifest = read_manifest(engine.files, epoch)
    return engine._content(entry, manifest, engine.spark)


def replace_id(entry: Entry, number: str) -> Entry:
    """The entry under the id that it will get."""
    return replace(entry, id=number)


def replace_entry(entry: Entry, compiled: CompiledPlan, upstream: Sequence[str]) -> Entry:
    """The entry with what its compilation found."""
    return replace(entry, schema=compiled.compiled.schema.json(), upstream=tuple(upstream))


def _state_size(manifest: Manifest, entry: Entry) -> tuple[int, int]:
    runs = [
        run
        for name, buckets in manifest.arrangements.items()
        if name.startswith(f"{entry.id}/")
        for part in buckets.values()
        for run in part
    ]
    return sum(run.rows for run in runs), sum(run.bytes for run in runs)


def _without(manifest: Manifest, entry: Entry) -> Manifest:
    kept = {
        name: buckets
        for name, buckets in manifest.arrangements.items()
        if not name.startswith(arrangement_name(entry.id, "", "").rstrip("/") + "/")
    }
    return replace(manifest, arrangements=kept)


def _schema(schema: str | StructType, session: SparkSession) -> StructType:
    if isinstance(schema, str):
        del session
        parsed = parse_ddl(schema)
        if not isinstance(parsed, StructType):
            raise DataError(
                f"{schema!r} is not a list of columns",
                condition="BAD_SCHEMA",
                hint='write it like "id BIGINT, name STRING"',
            )
        schema = parsed
    return _nullable(schema)


def _nullable(schema: StructType) -> StructType:
    return StructType().fromJson(
        {
            **schema.jsonValue(),
            "fields": [{**f, "nullable": True} for f in schema.jsonValue()["fields"]],
        }
    )


def _key(columns: StructType, names: Sequence[str], relation: str) -> tuple[str, ...]:
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",")]
    proper = {name.lower(): name for name in columns.names}
    unknown = [name for name in names if name.lower() not in proper]
    if unknown:
        raise CatalogError(
            f"the primary key of {relation} names {', '.join(unknown)}, which is not a column",
            condition="UNKNOWN_COLUMN",
            hint=f"the columns are {', '.join(columns.names)}",
        )
    return tuple(proper[name.lower()] for name in names)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _taken(entry: Entry) -> CatalogError:
    return CatalogError(
        f"{entry.kind} {entry.name} exists with another definition",
        condition="NAME_TAKEN",
        hint="take another name, or drop it first",
    )


def _wrong(query: str, error: Exception) -> QueryError:
    return QueryError(
        str(error).split("\n\nJVM stacktrace")[0].strip(),
        condition="INVALID_QUERY",
        fragment=query.strip()[:200],
        hint="correct the query; the names known are those of SHOW TABLES, STREAMS and VIEWS",
    )
