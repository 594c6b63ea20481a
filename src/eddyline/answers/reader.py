"""Snapshots and changes of committed results, as DataFrames whose tasks read the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from eddyline.answers.changelog import CDF, UPDATE, cdf_form, net_changes, retract_form, update_form
from eddyline.changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    HASH,
    INSERT,
    WEIGHT,
    Epoch,
)
from eddyline.errors import StateError
from eddyline.operators.base import numbered
from eddyline.runtime.worker import batches_of, prepare_worker
from eddyline.sink.rows import with_commit
from eddyline.spark.schema import arrow_schema, makes_local_rows, plain_schema
from eddyline.spark.session import held_frame, numbers, zone_of
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import repeat
from eddyline.state.manifest import manifest_name
from eddyline.state.retyping import cast_to
from eddyline.state.runs import Run, read_run
from eddyline.state.weights import check_held
from eddyline.storage.files import Files

HELD_ROWS, HELD_BYTES = 10_000, 1 << 20
"""Results of up to so many rows and bytes are read where the DataFrame is made.

As an action of the frame then needs no Python worker, it takes a fraction of the time. Spark even ends a worker
whose rows it doesn't need to the end, such as for `first()`, and starts another one for the next action.
"""


@dataclass(frozen=True, slots=True)
class SnapshotBucket:
    """Reads the rows of one bucket of an arrangement.

    Attributes:
        epoch: the epoch whose rows these are.
        columns: number of columns that users see; the runs may have more columns after them.
    """

    files: Files
    relation: str
    runs: tuple[Run, ...]
    columns: int
    epoch: Epoch

    def merged(self) -> pa.Table | None:
        """Return the rows with their weights; None if there are no runs."""
        with expiry(self.files, self.epoch):
            tables = [read_run(self.files, run) for run in self.runs]
        if not tables:
            return None
        stored = (name for name in tables[0].column_names if name not in (HASH, WEIGHT))
        rows = Layout(tuple(stored)).merge(tables)
        check_held("a result", rows, view=self.relation)
        return rows

    def repeated(self, rows: pa.Table) -> pa.Table:
        """Return merged rows as often as their weights say, as columns `c0..`."""
        return repeat(rows, rows[WEIGHT].to_numpy()).select(numbered("c", self.columns))

    def read(self) -> pa.Table | None:
        """Return the rows as columns `c0..`; None if there are none."""
        rows = self.merged()
        return None if rows is None else self.repeated(rows)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns of `schema`."""
        rows = self.read()
        if rows is not None:
            yield from batches_of(rows, schema)


@dataclass(frozen=True, slots=True)
class Inserts:
    """Reads the rows of a bucket as the first changes of a feed.

    Attributes:
        committed_at: when their epoch was committed, in microseconds since 1970.
    """

    bucket: SnapshotBucket
    committed_at: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns of `schema`."""
        rows = self.bucket.read()
        if rows is not None:
            kinds = pa.repeat(pa.scalar(INSERT, pa.string()), rows.num_rows)
            rows = with_commit(
                rows.append_column(CHANGE_TYPE, kinds), self.bucket.epoch, self.committed_at
            )
            yield from batches_of(rows, schema)


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the rows of an arrangement's buckets in Spark's workers."""

    buckets: tuple[SnapshotBucket, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the buckets numbered in the input."""
        prepare_worker()
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield from self.buckets[place].batches(self.schema)


@dataclass(frozen=True, slots=True)
class EpochChanges:
    """Reads the net changes of a view in one epoch.

    Attributes:
        columns: number of columns that users see; the runs may have more columns after them.
        form: `retract`, `update` or `cdf`.
        key: positions of the columns that pair old and new rows; None for no pairs.
        committed_at: when the epoch was committed, in microseconds since 1970; for the form `cdf`.
    """

    files: Files
    epoch: Epoch
    runs: tuple[Run, ...]
    columns: int
    form: str
    key: tuple[int, ...] | None
    committed_at: int = 0

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the changes in the columns of `schema`."""
        names = numbered("c", self.columns)
        with expiry(self.files, self.epoch):
            tables = [read_run(self.files, run).select([*names, WEIGHT]) for run in self.runs]
        if not tables:
            return
        rows = net_changes(pa.concat_tables(tables), names)
        if self.form == UPDATE:
            shown = update_form(rows, names, self.key, schema.field("before").type)
        elif self.form == CDF:
            shown = with_commit(cdf_form(rows, names, self.key), self.epoch, self.committed_at)
        else:
            shown = retract_form(rows, names)
        if self.form != CDF:
            epochs = pa.array(np.full(shown.num_rows, self.epoch, np.int64))
            shown = shown.append_column("epoch", epochs)
        yield from batches_of(shown, schema)


@dataclass(frozen=True, slots=True)
class ChangesReader:
    """Reads the net changes of some epochs in Spark's workers."""

    epochs: tuple[EpochChanges, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the epochs whose indices in `epochs` are in the input."""
        prepare_worker()
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield from self.epochs[place].batches(self.schema)


def snapshot_frame(
    session: SparkSession,
    files: Files,
    relation: str,
    buckets: Sequence[tuple[Run, ...]],
    schema: StructType,
    epoch: Epoch,
) -> DataFrame:
    """Return the rows of a table's or view's buckets as of an epoch under the names of `schema`."""
    plain = plain_schema(schema)
    kinds = arrow_schema(plain, zone_of(session))
    held = [SnapshotBucket(files, relation, runs, len(schema), epoch) for runs in buckets]
    if all(makes_local_rows(field.dataType) for field in plain):
        rows = _small(held, kinds)
        if rows is not None:
            return held_frame(session, rows, plain).toDF(*schema.names)
    reader = SnapshotReader(tuple(held), kinds)
    frame = numbers(session, len(buckets)).mapInArrow(reader, plain)
    return frame.toDF(*schema.names)


def _small(buckets: Sequence[SnapshotBucket], schema: pa.Schema) -> pa.Table | None:
    """Return the rows of buckets in the columns of a schema; None if they are too many, or too large."""
    runs = [run for bucket in buckets for run in bucket.runs]
    if sum(run.rows for run in runs) > HELD_ROWS or sum(run.bytes for run in runs) > HELD_BYTES:
        return None
    tables, count, size = [schema.empty_table()], 0, 0
    for bucket in buckets:
        rows = bucket.merged()
        if rows is None or not rows.num_rows:
            continue
        weights = rows[WEIGHT].to_numpy()
        count, size = count + weights.sum(), size + rows.nbytes * weights.max()
        if count > HELD_ROWS or size > HELD_BYTES:
            return None
        tables.append(cast_to(bucket.repeated(rows), schema))
    return pa.concat_tables(tables)


def changes_frame(
    session: SparkSession, epochs: Sequence[EpochChanges], schema: StructType, form: str
) -> DataFrame:
    """Return the changes of epochs.

    Args:
        schema: the columns of the view.
        form: that of the changes. The retract form has the columns, `op` and `epoch`; the update form
            `before`, `after`, `epoch`; the form `cdf` is that of `feed_schema`.
    """
    if form == UPDATE:
        row = StructType([StructField(f.name, f.dataType, True) for f in schema])
        out = StructType().add("before", row).add("after", row).add("epoch", LongType())
        final = ["before", "after", "epoch"]
    elif form == CDF:
        final = feed_schema(schema).names
        out = plain_schema(feed_schema(schema))
    else:
        out = plain_schema(schema).add("op", StringType()).add("epoch", LongType())
        final = [*schema.names, "op", "epoch"]
    reader = ChangesReader(tuple(epochs), arrow_schema(out, zone_of(session)))
    frame = numbers(session, len(epochs)).mapInArrow(reader, out)
    return frame.toDF(*final)


def feed_schema(columns: StructType) -> StructType:
    """Return the columns of a view's change feed."""
    own = [StructField(f.name, f.dataType, True) for f in columns]
    feed = (
        (CHANGE_TYPE, StringType()),
        (COMMIT_VERSION, LongType()),
        (COMMIT_TIMESTAMP, TimestampType()),
    )
    return StructType([*own, *(StructField(name, kind) for name, kind in feed)])


@contextmanager
def expiry(files: Files, epoch: Epoch) -> Iterator[None]:
    """Raise SNAPSHOT_EXPIRED in place of the error for a missing file, if the epoch is no longer retained."""
    try:
        yield
    except StateError as error:
        if not epoch or files.exists(manifest_name(epoch)):
            raise
        raise StateError(
            f"epoch {epoch} is no longer retained, which this DataFrame reads",
            condition="SNAPSHOT_EXPIRED",
            hint="make the DataFrame again; or raise lease_seconds or held_bytes, for which an open "
            "DataFrame keeps its epoch",
        ) from error
