"""The rows of a stream's redo log, as a DataFrame whose tasks read the segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.catalog.logged import Logged
from eddyline.changes import APPEND, OPERATION, SEQUENCE, WEIGHT
from eddyline.operators.base import numbered
from eddyline.runtime.worker import batches_of, prepare_worker
from eddyline.source.segment_readers import Reader, read_segment
from eddyline.source.segments import Segment, accepted_by_time, rejected_by_time
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.spark.session import numbers, zone_of
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class SegmentsReader:
    """Reads segments in Spark's workers.

    Attributes:
        assigned: the segments of each task.
        names, places: names of the columns of the log, and where those of the stream are among them.
        time: position of the event-time column of a stream with a watermark; else None.
        late: return the rejected rows instead of the accepted ones.
        reasons: the last column says why a row is rejected.
        operations: return only the rows that operations append.
        readers: readers for the kinds of segments that only registered formats use.
    """

    files: Files
    assigned: tuple[tuple[Segment, ...], ...]
    names: tuple[str, ...]
    places: tuple[int, ...]
    schema: pa.Schema
    time: int | None
    late: bool
    reasons: bool
    operations: bool
    readers: Mapping[str, Reader]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks numbered in the input, without weights, which are all 1."""
        prepare_worker()
        columns = numbered("c", len(self.places))
        stored = columns[:-1] if self.reasons else columns
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for segment in self.assigned[number]:
                    wire = pa.schema(
                        [pa.field(n, f.type) for n, f in zip(stored, self.schema, strict=False)]
                    ).append(pa.field(WEIGHT, pa.int64()))
                    if self.operations:
                        wire = wire.insert(0, pa.field(SEQUENCE, pa.int64()))
                    places = self.places[: len(stored)]
                    for table in read_segment(
                        self.files, segment, self.names, places, wire, self.readers
                    ):
                        rows = self._chosen(table, segment)
                        yield from batches_of(rows.select(columns), self.schema)

    def _chosen(self, table: pa.Table, segment: Segment) -> pa.Table:
        """Return the accepted rows of a segment, or with `late` the others."""
        if self.operations:
            table = table.filter(pc.equal(table[OPERATION], APPEND))
        if self.time is None:
            return table
        column = f"c{self.time}"
        if not self.late:
            return accepted_by_time(table, column, segment).rows
        reason = f"c{len(self.places) - 1}" if self.reasons else None
        return rejected_by_time(table, column, segment, reason)


def segments_frame(
    session: SparkSession,
    files: Files,
    assigned: Sequence[Sequence[Segment]],
    schema: StructType,
    log: Logged,
    time: int | None = None,
    *,
    late: bool = False,
    reasons: bool = False,
    operations: bool = False,
    readers: Mapping[str, Reader],
) -> DataFrame:
    """Return the rows of segments under the names of `schema`.

    Args:
        assigned: the segments that each task reads.
        log: the columns of the log that has them.
        time: position of the event-time column of a stream with a watermark; else None.
        late: return the rejected rows instead of the accepted ones.
        reasons: the last column says why a row is rejected.
        operations: return only the rows that operations append.
        readers: readers for the kinds of segments that only registered formats use.
    """
    plain = plain_schema(schema)
    zone = zone_of(session)
    given = tuple(tuple(segments) for segments in assigned)
    arrow = arrow_schema(plain, zone)
    reader = SegmentsReader(
        files, given, log.names, log.places, arrow, time, late, reasons, operations, readers
    )
    frame = numbers(session, len(given)).mapInArrow(reader, plain)
    return frame.toDF(*schema.names)
