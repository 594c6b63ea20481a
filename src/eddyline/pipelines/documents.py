"""Streams of JSON documents in a data queue: `USING queue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from eddyline.catalog.entries import PIPELINE, Entry
from eddyline.errors import DataError
from eddyline.intake.formats import Context
from eddyline.pipelines.batches import PipelineStream, Settings
from eddyline.pipelines.decode import Decode
from eddyline.pipelines.outcomes import pipeline_files
from eddyline.relay.bolts import Bolt
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.source.base import Source
from eddyline.source.dead_letters import DECODE
from eddyline.source.readers import Reader
from eddyline.spark.schema import arrow_schema


@dataclass(frozen=True, slots=True)
class QueueFormat:
    """A queue of JSON documents, read by a pipeline whose one bolt decodes them."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Raise DataError: documents declare no columns."""
        raise _without_columns(stream)

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the options name no queue; QueueError if it can't be read."""
        if stream.operation:
            raise _without_columns(stream.name)
        open_queue(stream).close()

    def letters(self, stream: Entry) -> str:
        """Return `PIPELINE`: documents that can't be decoded are dead letters of the pipeline."""
        return PIPELINE

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the pipeline, which owns the queue."""
        assert letters is not None
        queue = open_queue(stream)
        try:
            decode = Decode(arrow_schema(stream.given_columns, context.zone), context.zone)
            return PipelineStream(
                stream.name,
                pipeline_files(context.files, letters, stream, context.log_of),
                queue,
                [Bolt.of(decode, DECODE, vectorised=True, max_attempts=1)],
                stream.columns,
                context.spark,
                context.zone,
                Settings(),
                keyed=bool(stream.key),
                own_queue=True,
            )
        except BaseException:
            queue.close()
            raise


def open_queue(stream: Entry) -> DataQueue:
    """Open the queue that the options of a stream name; DataError if they name none."""
    options = {name.lower(): value for name, value in stream.options.items()}
    if set(options) == {"path"}:
        return DataQueue(LogBackend(options["path"]))
    if set(options) == {"servers", "app"}:
        from eddyline.relay.kafka import KafkaBackend  # its client may not be installed

        return DataQueue(KafkaBackend(options["servers"], options["app"]))
    raise DataError(
        f"the options {', '.join(sorted(options)) or '(none)'} name no queue",
        condition="BAD_STREAM",
        stream=stream.name,
        hint="give path, or servers and app of a queue on Kafka",
    )


def _without_columns(stream: str) -> DataError:
    return DataError(
        "a stream of a queue needs columns, and has no operations",
        condition="BAD_STREAM",
        stream=stream,
        hint="give the columns of its JSON documents",
    )
