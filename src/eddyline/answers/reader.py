"""Reading committed results: snapshots and changes, as DataFrames that read the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from eddyline.answers.changelog import net, paired, retracted
from eddyline.changes import WEIGHT
from eddyline.operators.base import numbered
from eddyline.runtime.task import fitted
from eddyline.source.segments import Segment, in_time, read_segment
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.spark.session import numbers, zone_of
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.kernels import repeat
from eddyline.state.runs import Run, read_run
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """The rows of some buckets of an arrangement, each as often as its weight says."""

    files: Files
    buckets: tuple[tuple[Run, ...], ...]
    columns: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the buckets whose numbers come in."""
        layout = Layout(numbered("c", self.columns))
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                rows = Arrangement(self.files, layout, self.buckets[bucket]).scan()
                if rows is not None:
                    rows = repeat(rows, rows[WEIGHT].to_numpy())
                    yield from fitted(rows.select(numbered("c", self.columns)), self.schema)


@dataclass(frozen=True, slots=True)
class ChangesTask:
    """The net changes of some epochs, in retract or update form.

    Attributes:
        epochs: number and runs of each epoch.
        columns: number of columns that users see; the runs may hold more behind them.
        key: places of the columns that pair old and new rows, for the update form; None for retract.
    """

    files: Files
    epochs: tuple[tuple[int, tuple[Run, ...]], ...]
    columns: int
    update: bool
    key: tuple[int, ...] | None
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes of the epochs whose places in `epochs` come in."""
        names = numbered("c", self.columns)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                epoch, runs = self.epochs[place]
                tables = [read_run(self.files, run).select([*names, WEIGHT]) for run in runs]
                if not tables:
                    continue
                rows = net(pa.concat_tables(tables), names)
                if self.update:
                    shown = paired(rows, names, self.key, self.schema.field("before").type)
                else:
                    shown = retracted(rows, names)
                numbers = pa.array(np.full(shown.num_rows, epoch, np.int64))
                yield from fitted(shown.append_column("epoch", numbers), self.schema)


@dataclass(frozen=True, slots=True)
class SegmentsTask:
    """The rows of segments, one list of segments a task; see `segments_frame`."""

    files: Files
    dealt: tuple[tuple[Segment, ...], ...]
    names: tuple[str, ...]
    schema: pa.Schema
    time: int | None
    late: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, without their weights (which are 1)."""
        columns = numbered("c", len(self.names))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for segment in self.dealt[number]:
                    wire = pa.schema(
                        [pa.field(n, f.type) for n, f in zip(columns, self.schema, strict=True)]
                    ).append(pa.field(WEIGHT, pa.int64()))
                    places = range(len(columns))
                    for table in read_segment(self.files, segment, self.names, places, wire):
                        if self.time is not None:
                            mark = segment.watermark
                            table = in_time(table, f"c{self.time}", mark, late=self.late)
                        yield from fitted(table.select(columns), self.schema)


def snapshot_frame(
    session: SparkSession, files: Files, buckets: Sequence[tuple[Run, ...]], schema: StructType
) -> DataFrame:
    """The rows of an arrangement under the names of `schema`."""
    plain = plain_schema(schema)
    zone = zone_of(session)
    task = SnapshotTask(files, tuple(buckets), len(schema), arrow_schema(plain, zone))
    frame = numbers(session, len(buckets)).mapInArrow(task, plain)
    return frame.toDF(*schema.names)


def segments_frame(
    session: SparkSession,
    files: Files,
    dealt: Sequence[Sequence[Segment]],
    schema: StructType,
    time: int | None = None,
    *,
    late: bool = False,
) -> DataFrame:
    """The rows of segments under the names of `schema`.

    Args:
        time: of a stream with a watermark the place of its event time.
        late: the late rows, not those in time.
    """
    plain = plain_schema(schema)
    zone = zone_of(session)
    given = tuple(tuple(segments) for segments in dealt)
    task = SegmentsTask(files, given, tuple(schema.names), arrow_schema(plain, zone), time, late)
    frame = numbers(session, len(given)).mapInArrow(task, plain)
    return frame.toDF(*schema.names)


def changes_frame(
    session: SparkSession,
    files: Files,
    epochs: Sequence[tuple[int, tuple[Run, ...]]],
    schema: StructType,
    *,
    update: bool,
    key: tuple[int, ...] | None,
) -> DataFrame:
    """The changes of epochs: the columns, `op`, `epoch`; or `before`, `after`, `epoch`."""
    zone = zone_of(session)
    if update:
        row = StructType([StructField(f.name, f.dataType, True) for f in schema])
        out = StructType().add("before", row).add("after", row).add("epoch", LongType())
        final = ["before", "after", "epoch"]
    else:
        out = plain_schema(schema).add("op", StringType()).add("epoch", LongType())
        final = [*schema.names, "op", "epoch"]
    task = ChangesTask(files, tuple(epochs), len(schema), update, key, arrow_schema(out, zone))
    frame = numbers(session, len(epochs)).mapInArrow(task, out)
    return frame.toDF(*final)
