"""Connects streams to their sources and pipelines to their queues, and handles dead letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.answers.dead_letters import at_positions, no_letters
from eddyline.answers.status import row_count
from eddyline.answers.verify import PipelineCheck
from eddyline.api import drafts
from eddyline.api.paths import with_absolute_path
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.catalog.entries import (
    DEAD,
    EXPECTATIONS,
    PIPELINE,
    REJECTS,
    RETAIN,
    STREAM,
    TABLE,
    TIME_OPTIONS,
    Entry,
)
from eddyline.errors import EngineError
from eddyline.pipelines.batches import PipelineSettings, PipelineStream
from eddyline.pipelines.outcomes import pipeline_files, pipelines_status
from eddyline.relay.account import Account
from eddyline.relay.backend import is_same_queue
from eddyline.relay.bolts import Bolt
from eddyline.relay.queue import DataQueue
from eddyline.source.dead_letters import no_replay
from eddyline.source.lag import Lags
from eddyline.spark.failures import query_errors

COUNTS = {field.name for field in fields(Account)}
DAY_S = 24 * 3600
RETIRED_AT_ONCE = 10_000

_LOG = logging.getLogger("eddyline.engine")


class Streams:
    """Connects the streams of a workspace to their sources."""

    def __init__(self, workspace: Workspace, writing: Writing) -> None:
        self._workspace = workspace
        self._writing = writing

    def define_only(self) -> None:
        """Define streams from now on without opening their sources."""
        self._workspace.sources.opens = False

    def connect_stored(self) -> None:
        """Connect tables, and the streams whose format and options are stored; users connect others."""
        workspace = self._workspace
        try:
            for entry in workspace.catalog.entries if workspace.writes else ():
                if entry.kind == TABLE:
                    workspace.sources.open_inbox(entry)
                elif entry.reopens:
                    self._attach(entry)
        except BaseException:
            workspace.release()  # nobody gets an engine that could be stopped
            raise

    def stream(
        self,
        name: str,
        dataframe: DataFrame,
        op: str | None,
        primary_key: drafts.Key,
        watermark: tuple[str, str] | None,
        options: Mapping[str, str],
    ) -> Entry:
        """Define and connect a stream over a DataFrame; see `Engine.stream`."""
        workspace = self._workspace
        draft = drafts.stream_of_frame(
            name, dataframe, op, primary_key, watermark, options, workspace.spark
        )
        with workspace.lock:
            entry = workspace.define(draft)
            self._attach(entry, dataframe)
        return entry

    def create_stream(
        self,
        name: str,
        schema: str | StructType | None,
        format: str,
        options: Mapping[str, str],
        op: str | None,
        primary_key: drafts.Key,
        watermark: tuple[str, str] | None,
        check: Callable[[Entry], None] = lambda _: None,
    ) -> Entry:
        """Define and connect a stream by format and options; see `Engine.create_stream`.

        Args:
            check: raises an error if the stream must not be created.
        """
        workspace = self._workspace
        sources = workspace.sources
        options = with_absolute_path(format, options, workspace.catalog.find(name))
        if schema is None:
            engines = (*TIME_OPTIONS, EXPECTATIONS, RETAIN)
            own = {k: v for k, v in options.items() if k.lower() not in engines}
            columns = drafts.nullable(sources.columns(name, format, own, op))
        else:
            columns = drafts.columns_of(schema)
        entry = drafts.stream(
            name, columns, primary_key, watermark, workspace.spark,
            op=op, format=sources.format_name(format), options=options,
        )  # fmt: skip
        check(entry)
        with workspace.lock:
            if workspace.catalog.find(name) is None:
                sources.check(entry)
            defined = workspace.define(entry)
            if workspace.writes and not sources.attached(defined, self._letters(defined)):
                self._attach(defined)
        return defined

    def attach_pipeline(
        self,
        name: str,
        queue: DataQueue,
        bolts: Sequence[Bolt],
        settings: PipelineSettings,
        into: Entry | None,
        *,
        own_queue: bool = False,
    ) -> None:
        """Define the streams of a pipeline, and start it.

        Args:
            into: the stream that it writes; None if it writes none.
            own_queue: close the queue when the pipeline stops.

        Raises:
            EngineError: another pipeline reads the queue.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            for other in self._pipelines():
                same = is_same_queue(other.queue.backend, queue.backend)
                if same and other.name.lower() != name.lower():
                    raise EngineError(
                        f"pipeline {other.name} reads this queue",
                        condition="QUEUE_IN_USE",
                        hint=f"give each pipeline a queue of its own, or both steps to one pipeline; or drop {other.name}",
                    )
            fed = None if into is None else workspace.define(into)
            letters = workspace.define(drafts.pipeline_letters(name, into))
            workspace.sources.disconnect(letters)
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

    def remove_dead_letters(
        self, name: str, where: str | None, *, replay: bool, payload: bytes | None = None
    ) -> int:
        """Replay dead letters, or drop them for good; return how many.

        Args:
            name: of the pipeline or stream.
            where: a condition on their columns, as in SQL; None: all.
            replay: read their records again instead of dropping them.
            payload: what replayed records shall hold instead; None: what they held.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            entry = workspace.catalog.get(name + DEAD, STREAM)
            if replay and entry.role == REJECTS:
                raise no_replay(name)
            dead_letters = workspace.sources.dead_letters(entry)
            dead_letters.finish()
            with query_errors(where or ""):
                letters = self._writing.dead_letters(name, where).toArrow()
            if replay:
                dead_letters.replay(letters, payload)
            else:
                dead_letters.discard(letters)
            return int(letters.num_rows)

    def remove_chosen_letters(
        self, name: str, where: str, *, replay: bool, payload: bytes | None = None
    ) -> None:
        """Replay or drop the dead letters of a request, as `remove_dead_letters`; `where` is empty for all.

        Raises:
            CatalogError: NOT_FOUND: all that were chosen are gone.
        """
        found = self.remove_dead_letters(name, where or None, replay=replay, payload=payload)
        if where and not found:
            raise no_letters(name, where)

    def mend_dead_letter(self, name: str, position: int, payload: bytes) -> None:
        """Replay one dead letter with another payload.

        Raises:
            CatalogError: NOT_FOUND: there is no such letter any more.
        """
        self.remove_chosen_letters(name, at_positions([position]), replay=True, payload=payload)

    def retire_dead_letters(self, now_s: float) -> int:
        """Drop the dead letters beyond the limits of number and age; return how many.

        Those of pipelines and streams that aren't connected stay until they are.

        Args:
            now_s: the time now, in seconds since 1970.
        """
        workspace, retired = self._workspace, 0
        most, days = workspace.options.dead_letter_rows, workspace.options.dead_letter_days
        for entry in [entry for entry in workspace.catalog.entries if entry.holds_letters]:
            held = row_count(workspace.files, workspace.manifest, entry.id)
            if not held or (held <= most and not days) or not workspace.sources.holds(entry):
                continue
            name = entry.name.removesuffix(DEAD)
            letters = self._writing.dead_letters(name).select("died", "position").toArrow()
            letters = letters.sort_by([("died", "descending"), ("position", "descending")])
            oldest = pa.scalar(round((now_s - days * DAY_S) * 1e6)).cast(letters["died"].type)
            young = pc.sum(pc.greater(letters["died"], oldest)).as_py() if days else held
            old = letters["position"].slice(min(young or 0, most)).to_pylist()
            for start in range(0, len(old), RETIRED_AT_ONCE):
                chosen = at_positions(old[start : start + RETIRED_AT_ONCE])
                retired += self.remove_dead_letters(name, chosen, replay=False)
            if old:
                _LOG.warning("dropped %d dead letters of %s, beyond the limits", len(old), name)
        return retired

    def pipelines_status(self, lags: Lags) -> list[dict[str, Any]]:
        """Return the status of each pipeline, live or as stored after its last batch; `lags` are from `stored_lags`."""
        workspace = self._workspace
        live = {pipeline.name: pipeline.status() for pipeline in self._pipelines()}
        stored = pipelines_status(workspace.files, workspace.catalog, lags)
        return [{**status, **live.get(status["name"], {})} for status in stored]

    def check_pipelines(self) -> dict[str, PipelineCheck]:
        """Return the account of each pipeline, and for connected ones the number of dead letters."""
        workspace = self._workspace
        with workspace.lock:
            checked = {
                status["name"]: PipelineCheck(Account(**{name: status[name] for name in COUNTS}))
                for status in self.pipelines_status({})
                if status.keys() >= COUNTS
            }
            for pipeline in self._pipelines():
                with pipeline.between_batches():
                    letters = self._writing.dead_letters(pipeline.name).count()
                    checked[pipeline.name] = PipelineCheck(pipeline.queue.account(), letters)
            return checked

    def _pipelines(self) -> list[PipelineStream]:
        """Return the connected pipelines."""
        connected = self._workspace.sources.all
        return [source for source in connected if isinstance(source, PipelineStream)]

    def _letters(self, stream: Entry) -> Entry | None:
        """Return the stream of a stream's dead letters; a pipeline's is created if it is missing."""
        workspace = self._workspace
        letters = workspace.catalog.letters_of(stream)
        if letters is None and workspace.sources.letters_role(stream) == PIPELINE:
            return workspace.define(drafts.pipeline_letters(stream.name, stream))
        return letters

    def _attach(self, stream: Entry, frame: DataFrame | None = None) -> None:
        self._workspace.sources.attach(stream, self._letters(stream), frame)
