"""Connects streams to their sources and pipelines to their queues, and handles dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.answers.dead_letters import no_replay
from eddyline.api import drafts
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.catalog.entries import DEAD, PIPELINE, QUEUE, REJECTS, STREAM, Entry
from eddyline.errors import CatalogError, DataError, EngineError
from eddyline.pipelines.batches import PipelineStream, Settings, open_queue
from eddyline.pipelines.decode import Decode
from eddyline.pipelines.outcomes import pipeline_files, stored_status
from eddyline.relay.bolts import Bolt
from eddyline.relay.queue import DataQueue
from eddyline.source.dead_letters import DECODE
from eddyline.spark.schema import arrow_schema


class Streams:
    """The streams of a workspace that are connected to something."""

    def __init__(self, workspace: Workspace, writing: Writing) -> None:
        self._workspace = workspace
        self._writing = writing

    def connect_stored(self) -> None:
        """Connect the streams that the catalog knows by format and options, after opening."""
        workspace = self._workspace
        for entry in workspace.catalog.entries:
            if entry.format == QUEUE and workspace.writes:
                self._read_queue(entry)
            elif entry.format not in ("", PIPELINE, QUEUE, REJECTS):  # the user attaches the rest
                workspace.sources.attach(entry, workspace.catalog.letters_of(entry))

    def stream(
        self,
        name: str,
        dataframe: DataFrame,
        op: str | None,
        primary_key: Sequence[str],
        watermark: tuple[str, str] | None,
    ) -> Entry:
        """Define and connect a stream over a DataFrame; see `Engine.stream`."""
        workspace = self._workspace
        entry = workspace.define(
            drafts.stream_of_frame(name, dataframe, op, primary_key, watermark, workspace.spark)
        )
        workspace.sources.attach(entry, workspace.catalog.letters_of(entry), dataframe)
        return entry

    def create_stream(
        self,
        name: str,
        schema: str | StructType | None,
        format: str,
        options: Mapping[str, str],
        op: str | None,
        primary_key: Sequence[str],
        watermark: tuple[str, str] | None,
    ) -> Entry:
        """Define and connect a stream by format and options; see `Engine.create_stream`."""
        workspace = self._workspace
        sources = workspace.sources
        if format.lower() == QUEUE:
            return self._create_queue_stream(name, schema, options, op, primary_key, watermark)
        if schema is None:
            columns = drafts.nullable(sources.columns(format, options))
        else:
            columns = drafts.columns_of(schema)
        entry = drafts.stream(
            name, columns, primary_key, watermark, workspace.spark,
            op=op, format=format, options=options,
        )  # fmt: skip
        if workspace.catalog.find(name) is None:
            sources.check(entry)
        defined = workspace.define(entry)
        if not sources.attached(defined):
            sources.attach(defined, workspace.catalog.letters_of(defined))
        return defined

    def attach_pipeline(
        self,
        name: str,
        queue: DataQueue,
        bolts: Sequence[Bolt],
        settings: Settings,
        into: Entry | None,
        *,
        own_queue: bool = False,
    ) -> None:
        """Define the streams of a pipeline, and let it run.

        Args:
            into: the stream that it feeds; None if it feeds none.
            own_queue: close the queue when the pipeline stops.

        Raises:
            EngineError: another pipeline reads the queue.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            fed = None if into is None else workspace.define(into)
            letters = workspace.define(drafts.letters(name, into))
            workspace.sources.disconnect(letters)
            for other in self._pipelines():
                if other.queue is queue:
                    raise EngineError(
                        f"pipeline {other.name} reads this queue",
                        condition="QUEUE_IN_USE",
                        hint="give each pipeline a queue of its own, or both steps to one pipeline",
                    )
            pipeline = PipelineStream(
                name,
                pipeline_files(workspace.files, letters, fed, workspace.sources.log),
                queue,
                bolts,
                None if fed is None else fed.columns,
                workspace.spark,
                workspace.zone,
                settings,
                keyed=fed is not None and bool(fed.key),
                own_queue=own_queue,
            )
            workspace.sources.connect(letters, pipeline)

    def revive(self, name: str, where: str | None, *, again: bool) -> int:
        """Read dead letters again, or drop them for good; how many.

        Args:
            name: of the pipeline or stream.
            where: a condition on their columns, as in SQL; None: all.
            again: read them again.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            entry = workspace.catalog.get(name + DEAD, STREAM)
            take_out: Callable[[pa.Table], None]
            if entry.format != REJECTS:
                take_out = partial(self._pipeline(entry).revive, again=again)
            elif again:
                raise no_replay(name)
            else:
                take_out = workspace.sources.rejects(entry).discard
            letters = self._writing.dead_letters(name, where).toArrow()
            take_out(letters)
            return int(letters.num_rows)

    def pipelines_status(self) -> list[dict[str, Any]]:
        """The status of each pipeline: as it runs, or as it was stored after its last batch."""
        workspace = self._workspace
        live = {pipeline.name: pipeline.status() for pipeline in self._pipelines()}
        stored = [
            stored_status(workspace.files, entry)
            for entry in workspace.catalog.entries
            if entry.format == PIPELINE
        ]
        return [live.get(status["name"], status) for status in stored]

    def _create_queue_stream(
        self,
        name: str,
        schema: str | StructType | None,
        options: Mapping[str, str],
        op: str | None,
        primary_key: Sequence[str],
        watermark: tuple[str, str] | None,
    ) -> Entry:
        workspace = self._workspace
        if schema is None or op is not None:
            raise DataError(
                "a stream of a queue needs columns, and has no operations",
                condition="BAD_STREAM",
                stream=name,
                hint="give the columns of its JSON documents",
            )
        entry = drafts.stream(
            name, drafts.columns_of(schema), primary_key, watermark, workspace.spark,
            format=QUEUE, options=options,
        )  # fmt: skip
        present = workspace.catalog.find(name)
        if present is None or not workspace.sources.attached(workspace.catalog.get(name + DEAD)):
            self._read_queue(entry)
        return workspace.define(entry)

    def _read_queue(self, entry: Entry) -> None:
        """Let a stream of JSON documents run: a pipeline whose one bolt decodes them."""
        zone = self._workspace.zone
        queue = open_queue(entry)
        try:
            decode = Decode(arrow_schema(entry.columns, zone), zone)
            bolt = Bolt.of(decode, DECODE, vectorised=True, max_attempts=1)
            into = replace(entry, id="")
            self.attach_pipeline(entry.name, queue, [bolt], Settings(), into, own_queue=True)
        except BaseException:
            queue.close()
            raise

    def _pipelines(self) -> list[PipelineStream]:
        """Those that are connected."""
        connected = self._workspace.sources.all
        return [source for source in connected if isinstance(source, PipelineStream)]

    def _pipeline(self, letters: Entry) -> PipelineStream:
        """The pipeline with this stream of dead letters; CatalogError if it isn't connected."""
        found = self._workspace.sources.connected(letters)
        if not isinstance(found, PipelineStream):
            raise CatalogError(
                f"the pipeline of {letters.name} is not connected",
                condition="NOT_CONNECTED",
                hint="call engine.pipeline(...) with its bolts again, after opening the storage",
            )
        return found
