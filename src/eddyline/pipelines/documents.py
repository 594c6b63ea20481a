"""Streams of JSON documents in a data queue: `USING queue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from eddyline.catalog.entries import PIPELINE, Entry
from eddyline.errors import DataError
from eddyline.intake.formats import Context
from eddyline.pipelines.batches import PipelineSettings, PipelineStream
from eddyline.pipelines.decode import Decode
from eddyline.pipelines.outcomes import pipeline_files
from eddyline.relay.bolts import Bolt
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.source.base import Source
from eddyline.source.dead_letters import DECODE
from eddyline.source.segment_readers import Reader
from eddyline.spark.schema import arrow_schema

if TYPE_CHECKING:
    from eddyline.relay.kafka import KafkaBackend


class DocumentFormat:
    """What formats of JSON documents have in common; see `SourceFormat`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Raise DataError: documents declare no columns."""
        raise without_columns(stream)

    def letters(self, stream: Entry) -> str:
        """Return `PIPELINE`: documents that can't be decoded are dead letters of the pipeline."""
        return PIPELINE


class QueueFormat(DocumentFormat):
    """A queue of JSON documents, read by a pipeline whose one bolt decodes them."""

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the options name no queue; QueueError if it can't be read.

        A stream of this process that reads the queue goes on.
        """
        check_documents(stream)
        if not context.opens:
            _queue_options(stream)
            return
        backend = _backend(stream)
        try:
            backend.check_claim()
        finally:
            backend.close()

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the pipeline, which owns the queue."""
        assert letters is not None
        return DocumentStream(stream, letters, open_queue(stream), context)


class DocumentStream(PipelineStream):
    """The source of a stream of JSON documents; closes the queue when it stops.

    Args:
        stream: the stream; its columns say how documents are decoded.
        letters: the stream of its dead letters.
        queue: holds the documents.
        context: the storage and the session.
    """

    def __init__(self, stream: Entry, letters: Entry, queue: DataQueue, context: Context) -> None:
        try:
            decode = Decode(arrow_schema(stream.given_columns, context.zone), context.zone)
            super().__init__(
                stream.name,
                pipeline_files(context.files, letters, stream, context.log_of),
                queue,
                [Bolt.of(decode, DECODE, vectorised=True, max_attempts=1)],
                stream.columns,
                context.spark,
                context.zone,
                PipelineSettings(),
                keyed=bool(stream.key),
                own_queue=True,
            )
        except BaseException:
            queue.close()
            raise


def open_queue(stream: Entry) -> DataQueue:
    """Open the queue that the options of a stream name; DataError if they name none."""
    return DataQueue(_backend(stream))


def _backend(stream: Entry) -> LogBackend | KafkaBackend:
    """Return the queue that the options of a stream name, which isn't claimed; DataError if they name none."""
    options = _queue_options(stream)
    if "path" in options:
        return LogBackend(options["path"])
    from eddyline.relay.kafka import KafkaBackend  # its client may not be installed

    return KafkaBackend(options["servers"], options["app"])


def _queue_options(stream: Entry) -> dict[str, str]:
    """Return the options of a stream, with names in lower case; DataError if they name no queue."""
    options = {name.lower(): value for name, value in stream.options.items()}
    if set(options) not in ({"path"}, {"servers", "app"}):
        raise DataError(
            f"the options {', '.join(sorted(options)) or '(none)'} name no queue",
            condition="BAD_STREAM",
            stream=stream.name,
            hint="give path, or servers and app of a queue on Kafka",
        )
    return options


def check_documents(stream: Entry) -> None:
    """Raise DataError if a stream can't have documents as rows."""
    if stream.operation:
        raise without_columns(stream.name)


def without_columns(stream: str) -> DataError:
    """Return the error for a stream of documents without columns, or with operations."""
    return DataError(
        "a stream of JSON documents from a queue or over HTTP needs columns, and has no operations",
        condition="BAD_STREAM",
        stream=stream,
        hint="give the columns of its JSON documents",
    )
