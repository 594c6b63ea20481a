"""From the definitions of a project to streams, views and sinks of an engine."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, Sink, Table, TemporaryView
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from eddyline.api.engine import Engine
from eddyline.api.formats import SINKS
from eddyline.api.sinks import given_options
from eddyline.catalog.entries import COMMIT_INTERVAL, SINK, STREAM, VIEW, Entry
from eddyline.errors import CatalogError, ScriptError, StateGrowthWarning
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.frames import leaves
from eddyline.spark.failures import missing_relation, query_errors
from eddyline.spark_pipelines.cdc import ChangesFlow
from eddyline.spark_pipelines.project import Project, shown
from eddyline.spark_pipelines.spec import INVALID, UNSUPPORTED
from eddyline.sql.names import quoted

TEMPORARY_KIND, SINK_KIND = "temporary view", SINK


@dataclass(slots=True)
class DataflowGraph:
    """Defines a project's datasets on an engine, each after those that it reads.

    Attributes:
        kinds: by dataset what it has become.
        seconds: by dataset how long its definition took, with the first rows of a view.
    """

    project: Project
    engine: Engine
    kinds: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)
    _temporary: dict[str, DataFrame] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def define(self, *, sinks: bool = True) -> None:
        """Define all datasets, then the sinks; drop the sinks and views that the project no longer has.

        Args:
            sinks: whether the sinks begin to deliver; if not, only their queries are checked.
        """
        for sink in self.engine.catalog.sinks:
            own = sink.upstream[0].lower() == self.followed(sink.name).lower()
            if own and not self._has_sink(sink):
                self.engine.drop(SINK, sink.name)
        with chdir(self.project.spec.folder), self._names():
            for name in self.project.datasets():
                self._dataset(name)
            for name in [name for name in self.project.outputs if name not in self.kinds]:
                self._sink(name, deliver=sinks)
            entries = [e for e in reversed(self.engine.catalog.entries) if e.kind == VIEW]
            for entry in entries:
                if entry.name not in self._made and not self.engine.catalog.followers(entry.name):
                    self.engine.drop(VIEW, entry.name)

    def refresh(self, names: Sequence[str]) -> None:
        """Drop datasets and all that reads them; the next `define` computes them anew. Sinks stay."""
        for name in map(self.project.plain, names):
            if name not in self.project.outputs:
                known = ", ".join(self.project.outputs)
                raise ScriptError(
                    f"there is no dataset named {name}", condition=INVALID, hint=f"known: {known}"
                )
            entries = [entry.name for entry in self.engine.catalog.entries]
            for known in entries:
                if known.lower() == name or known.lower().startswith(f"{name}__flow_"):
                    self._drop(known)

    def _dataset(self, name: str) -> DataFrame:
        """Define a dataset unless it is defined already; return the DataFrame that stands for it."""
        if name in self._temporary:
            return self._temporary[name]
        if name in self.kinds:
            return self.engine.relation(name)
        if name in self._path:
            circle = " -> ".join([*self._path[self._path.index(name) :], name])
            raise ScriptError(f"datasets read each other: {circle}", condition=INVALID)
        self._path.append(name)
        started, before = time.monotonic(), sum(self.seconds.values())
        try:
            found = self._defined(name)
        finally:
            self._path.pop()
        upstream = sum(self.seconds.values()) - before
        self.seconds[name] = time.monotonic() - started - upstream
        found.createOrReplaceTempView(quoted(name))
        return found

    def _defined(self, name: str) -> DataFrame:
        output, flows = self.project.outputs[name], self.project.flows.get(name, [])
        at = shown(output.source_code_location)
        if isinstance(output, TemporaryView):
            self._temporary[name] = self._called(flows[0])
            self.kinds[name] = TEMPORARY_KIND
            return self._temporary[name]
        if not flows:
            raise ScriptError(f"no flow writes into {name}", condition=INVALID, at=at)
        frames = [self._called(flow) for flow in flows]
        if isinstance(output, MaterializedView) and any(one.isStreaming for one in frames):
            raise ScriptError(
                f"materialized view {name} reads a streaming source",
                condition=INVALID,
                hint="make it a table (@dp.table), and read that with spark.read.table",
                at=at,
            )
        for frame in frames:
            self._check_source(name, frame, at)
        if isinstance(output, Table) and output.schema is not None:
            self._check_schema(name, output, frames, at)
        if len(flows) == 1 and flows[0].name.lower() == name and frames[0].isStreaming:
            self._stream(name, frames[0])
            self.kinds[name] = STREAM
        else:
            with warnings.catch_warnings():
                if isinstance(flows[0], ChangesFlow):  # as `Engine.auto_cdc`
                    warnings.simplefilter("ignore", StateGrowthWarning)
                self._view(name, self._united(name, flows, frames))
            self.kinds[name] = VIEW
        return self.engine.relation(name)

    def _united(self, name: str, flows: Sequence[Flow], frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all flows; each streaming source becomes a stream of its own."""
        relations = []
        for flow, frame in zip(flows, frames, strict=True):
            own = f"{name}__flow_{flow.name}"
            if frame.isStreaming:
                self._stream(own, frame)
                frame = self.engine.relation(own)
            relations.append(frame)
        return functools.reduce(DataFrame.unionByName, relations)

    @staticmethod
    def followed(sink: str) -> str:
        """Return the name of the view that a sink of the project follows."""
        return f"{sink}__sink"

    def _has_sink(self, sink: Entry) -> bool:
        """Return whether the project has a sink, with the same format and options."""
        output = self.project.outputs.get(sink.name.lower())
        if not isinstance(output, Sink) or output.format.lower() != sink.format:
            return False
        given, present = given_options(output.options), dict(sink.options)
        # it is stored in another form: `_sink` compares it
        given.pop(COMMIT_INTERVAL, None)
        present.pop(COMMIT_INTERVAL, None)
        return given == present

    def _sink(self, name: str, *, deliver: bool) -> None:
        output = self.project.outputs[name]
        assert isinstance(output, Sink)
        flows = self.project.flows.get(name, [])
        if not flows:
            raise ScriptError(
                f"no flow writes into sink {name}",
                condition=INVALID,
                at=shown(output.source_code_location),
            )
        started = time.monotonic()
        frames = [self._called(flow) for flow in flows]
        self._view(self.followed(name), self._united(name, flows, frames))
        if output.format not in SINKS:
            raise ScriptError(
                f"sink {name}: the format {output.format} is not supported",
                condition=UNSUPPORTED,
                hint=f"take one of {', '.join(SINKS)}",
                at=shown(output.source_code_location),
            )
        if deliver:
            options: dict[str, object] = dict(output.options)
            self._put(
                lambda: self.engine.sink(name, self.followed(name), output.format, **options),
                lambda: self.engine.drop(SINK, name, if_exists=True),
            )
        self.kinds[name], self.seconds[name] = SINK_KIND, time.monotonic() - started

    def _called(self, flow: Flow) -> DataFrame:
        """Call the function of a flow again until it succeeds, each time after defining a dataset that it lacked."""
        at = shown(flow.source_code_location)
        while True:
            try:
                frame = flow.func()
            except AnalysisException as error:
                if (missing := self._missing(error)) is None:
                    with query_errors("", flow=flow.name, at=at):
                        raise
                self._dataset(missing)
                continue
            if not isinstance(frame, DataFrame):
                raise ScriptError(
                    f"the function of flow {flow.name} returns no DataFrame",
                    condition=INVALID,
                    at=at,
                )
            return frame

    def _missing(self, error: AnalysisException) -> str | None:
        """Return the dataset of the project whose absence made a query fail; None if the cause is another one."""
        quoted = missing_relation(error)
        if quoted is None:
            return None
        name = self.project.plain(quoted)
        known = name in self.project.datasets() and name not in self.kinds
        return name if known or name in self._path else None

    def _check_source(self, name: str, frame: DataFrame, at: str) -> None:
        catalyst = Catalyst(self.project.spark)
        if frame.isStreaming and leaves(catalyst, catalyst.plan(frame)):
            raise ScriptError(
                f"{name} reads a streaming source together with datasets of the project",
                condition=UNSUPPORTED,
                hint="make the source a table of its own, and read that with spark.readStream.table",
                at=at,
            )

    def _check_schema(self, name: str, output: Table, frames: Sequence[DataFrame], at: str) -> None:
        session = self.project.spark
        wanted = session.createDataFrame([], output.schema).schema
        for frame in frames:
            own = [(field.name.lower(), field.dataType) for field in frame.schema]
            if own != [(field.name.lower(), field.dataType) for field in wanted]:
                raise ScriptError(
                    f"{name} is declared as {wanted.simpleString()}, its query gives "
                    f"{frame.schema.simpleString()}",
                    condition=INVALID,
                    at=at,
                )

    def _stream(self, name: str, frame: DataFrame) -> None:
        self._put(
            lambda: self.engine.stream(name, frame), lambda: self._drop(name, with_sinks=True)
        )

    def _view(self, name: str, frame: DataFrame) -> None:
        self._made.add(name)
        self._put(
            lambda: self.engine.view(name, frame),
            lambda: self._drop(name),
            lambda: self.engine.view(name, frame, replace=True),  # its sinks get the difference
        )

    @staticmethod
    def _put(
        define: Callable[[], object],
        drop: Callable[[], object],
        again: Callable[[], object] | None = None,
    ) -> None:
        """Define something; if it has another definition, drop that, and define it `again`."""
        try:
            define()
        except CatalogError as error:
            if error.condition != "NAME_TAKEN":
                raise
            drop()
            (again or define)()

    def _drop(self, name: str, *, with_sinks: bool = False) -> None:
        """Drop a dataset and all that reads it; views that sinks follow keep their rows until they are replaced.

        Args:
            with_sinks: drop also the sinks of the dataset.
        """
        entry = self.engine.catalog.find(name)
        if entry is None:
            return
        for reader in self.engine.catalog.readers(entry.name):
            self._drop(reader)
        followers = self.engine.catalog.followers(entry.name)
        if followers and entry.of_frame and not with_sinks:
            self.engine.altering.detach(entry.name)
            return
        for sink in followers:
            self.engine.drop(SINK, sink)
        self.engine.drop(entry.kind, entry.name)

    @contextmanager
    def _names(self) -> Iterator[None]:
        """Make `spark.table(name)` and the session's readers return the project's datasets, during the context."""

        def finding(original: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
            @functools.wraps(original)
            def table(reader: Any, name: str) -> DataFrame:
                plain = self.project.plain(name)
                known = plain in self.project.outputs and plain in self.project.datasets()
                return self._dataset(plain) if known else original(reader, name)

            return table

        classes: tuple[Any, ...] = (SparkSession, DataFrameReader, DataStreamReader)
        originals = [one.table for one in classes]
        try:
            for one, original in zip(classes, originals, strict=True):
                one.table = finding(original)
            yield
        finally:
            for one, original in zip(classes, originals, strict=True):
                one.table = original
            for name in self.kinds:
                self.project.spark.catalog.dropTempView(name)
