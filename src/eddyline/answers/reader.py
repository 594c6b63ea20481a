"""Snapshots and changes of committed results, as DataFrames whose tasks read the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from eddyline.answers.changelog import net_changes, retract_form, update_form
from eddyline.changes import WEIGHT, Epoch
from eddyline.errors import StateError
from eddyline.operators.base import numbered
from eddyline.runtime.worker import batches_of
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.spark.session import numbers, zone_of
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.kernels import repeat
from eddyline.state.manifest import manifest_name
from eddyline.state.runs import Run, read_run
from eddyline.state.weights import check_held
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the rows of an arrangement's buckets in Spark's workers, repeated by weight.

    Attributes:
        epoch: the epoch whose rows these are.
    """

    files: Files
    relation: str
    buckets: tuple[tuple[Run, ...], ...]
    columns: int
    schema: pa.Schema
    epoch: Epoch

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the buckets numbered in the input."""
        layout = Layout(numbered("c", self.columns))
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                with _expiry(self.files, self.epoch):
                    rows = Arrangement(self.files, layout, self.buckets[bucket]).scan()
                if rows is not None:
                    check_held("a result", rows, view=self.relation)
                    rows = repeat(rows, rows[WEIGHT].to_numpy())
                    yield from batches_of(rows.select(numbered("c", self.columns)), self.schema)


@dataclass(frozen=True, slots=True)
class ChangesReader:
    """Reads the net changes of some epochs in Spark's workers, in retract or update form.

    Attributes:
        epochs: number and runs of each epoch.
        columns: number of columns that users see; the runs may have more columns after them.
        key: positions of the columns that pair old and new rows in the update form; None for no
            pairs.
    """

    files: Files
    epochs: tuple[tuple[Epoch, tuple[Run, ...]], ...]
    columns: int
    update: bool
    key: tuple[int, ...] | None
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the epochs whose indices in `epochs` are in the input."""
        names = numbered("c", self.columns)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                epoch, runs = self.epochs[place]
                with _expiry(self.files, epoch):
                    tables = [read_run(self.files, run).select([*names, WEIGHT]) for run in runs]
                if not tables:
                    continue
                rows = net_changes(pa.concat_tables(tables), names)
                if self.update:
                    shown = update_form(rows, names, self.key, self.schema.field("before").type)
                else:
                    shown = retract_form(rows, names)
                numbers = pa.array(np.full(shown.num_rows, epoch, np.int64))
                yield from batches_of(shown.append_column("epoch", numbers), self.schema)


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
    reader = SnapshotReader(files, relation, tuple(buckets), len(schema), kinds, epoch)
    frame = numbers(session, len(buckets)).mapInArrow(reader, plain)
    return frame.toDF(*schema.names)


def changes_frame(
    session: SparkSession,
    files: Files,
    epochs: Sequence[tuple[Epoch, tuple[Run, ...]]],
    schema: StructType,
    *,
    update: bool,
    key: tuple[int, ...] | None,
) -> DataFrame:
    """Return the changes of epochs.

    The retract form has the columns, `op` and `epoch`; the update form `before`, `after`, `epoch`.
    """
    zone = zone_of(session)
    if update:
        row = StructType([StructField(f.name, f.dataType, True) for f in schema])
        out = StructType().add("before", row).add("after", row).add("epoch", LongType())
        final = ["before", "after", "epoch"]
    else:
        out = plain_schema(schema).add("op", StringType()).add("epoch", LongType())
        final = [*schema.names, "op", "epoch"]
    reader = ChangesReader(files, tuple(epochs), len(schema), update, key, arrow_schema(out, zone))
    frame = numbers(session, len(epochs)).mapInArrow(reader, out)
    return frame.toDF(*final)


@contextmanager
def _expiry(files: Files, epoch: Epoch) -> Iterator[None]:
    """Raise SNAPSHOT_EXPIRED in place of the error for a file that went with its epoch."""
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
