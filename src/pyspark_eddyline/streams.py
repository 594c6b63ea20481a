"""The reader of streaming queries: each micro-batch holds the changes of some epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from eddyline.answers.changed import changes_expired, check_feed
from eddyline.answers.named_readers import reader_file
from eddyline.answers.reader import feed_schema
from eddyline.answers.stored import Feed, StoredRelation, no_such_epoch, stored_relation
from eddyline.changes import CHANGE_TYPE, INSERT, Epoch, ViewId
from eddyline.errors import EngineError, StateError
from eddyline.sink.cursors import Cursor, CursorFile
from eddyline.spark.schema import arrow_schema
from eddyline.state.leases import Leases
from pyspark_eddyline.readers import (
    ZONE,
    Part,
    ReadOptions,
    bad_option,
    check_columns,
    epochs_of,
    nullable,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.1 has no limits, and reads all at once with availableNow
        SupportsTriggerAvailableNow = object


Offset = dict[str, Any]
"""`{"epoch": n, "view": id}`: everything up to that epoch has been read. Epoch 0 is before all rows."""


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a table or view as they are committed.

    The epochs that the next micro-batch needs stay as long as the query runs; with the option `reader`
    also while it is stopped. Spark makes a copy of this object in each task.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._asked = ReadOptions.of(options)
        if self._asked.version is not None or self._asked.ending is not None:
            raise bad_option(
                "a stream has no end", "leave out versionAsOf and endingVersion, or use spark.read"
            )
        self._reader = options.get("reader", "")
        self._schema = schema
        self._most = epochs_of(options)
        self._target: Epoch | None = None
        self._leases: Leases | None = None
        self._held: list[Epoch] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leases": None, "_held": []}

    def initialOffset(self) -> Offset:
        # Spark asks again if the first micro-batch has failed
        relation = self._relation()
        committed, after = relation.manifest.epoch, self._asked.after
        whole = self._asked.starting is None
        if after is not None and after > committed:
            raise no_such_epoch(relation.entry, after + 1, committed)
        first = committed if after is None else Epoch(after)
        if self._reader:
            cursor, view = self._cursor(relation), ViewId(relation.entry.id)
            known = cursor.cursor()
            if known is not None and known.view == view and known.epoch <= committed:
                first = known.epoch if after is None else first
            if known is None or known.view != view or not (whole or after is None):
                # the rows that come first are those of the last epoch, which has to stay
                cursor.advance(Cursor(view, Epoch(max(committed - 1, 0)) if whole else first))
        self._hold(relation, committed if whole else Epoch(min(first + 1, committed)))
        return _offset(relation, first)

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

        return ReadAllAvailable() if self._most is None else ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._relation().manifest.epoch

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the end of the next micro-batch; `limit` counts epochs as files. PySpark 4.1 gives none."""
        most = getattr(limit, "max_files", None)
        while True:
            relation = self._relation()
            now = last = relation.manifest.epoch
            if start is not None:
                first = start["epoch"]
                if self._target is not None:
                    last = Epoch(min(now, max(self._target, first)))
                if most is not None and (first or self._asked.starting is not None):
                    last = Epoch(min(last, first + most))  # but all rows come at once
            # an epoch that is gone and isn't the last one: `partitions` tells that
            if self._hold(relation, last) or last < now:
                return _offset(relation, last)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        relation = self._relation()
        try:
            return [Part(part, relation.files, "") for part in self._parts(relation, start, end)]
        except StateError as error:
            if error.condition not in ("CHANGES_EXPIRED", "NO_SUCH_EPOCH", "SNAPSHOT_EXPIRED"):
                raise
            raise StateError(
                error.message,
                condition="CHANGES_EXPIRED",
                view=relation.entry.name,
                hint="start the query with a new checkpoint and an empty target: without "
                "startingVersion it begins with all rows. The option reader makes the storage keep "
                "the epochs that a stopped query needs, up to its options held_epochs and held_bytes",
            ) from error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return
        if self._asked.feed:
            yield from partition.read(self._schema)
            return
        for batch in partition.read(feed_schema(self._schema)):
            if pc.any(pc.not_equal(batch.column(CHANGE_TYPE), INSERT)).as_py():
                raise EngineError(
                    f"rows of {self._asked.name} are changed or deleted, not only inserted",
                    condition="NOT_APPEND_ONLY",
                    hint='set .option("readChangeFeed", True), and apply the changes by _change_type',
                )
            columns = batch.columns[: len(self._schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._schema, ZONE))

    def commit(self, end: Offset) -> None:
        epoch = Epoch(end["epoch"])
        self._release(epoch)
        if self._reader:
            cursor = self._cursor(self._relation())
            known = cursor.cursor()
            if known is None or known.epoch < epoch or known.view != end["view"]:
                cursor.advance(Cursor(ViewId(end["view"]), epoch))

    def stop(self) -> None:
        self._release(None)

    def _release(self, before: Epoch | None) -> None:
        """End the leases of the epochs before one; None: all."""
        for epoch in [held for held in self._held if before is None or held < before]:
            self._held.remove(epoch)
            if self._leases is not None:
                self._leases.release(epoch)

    def _parts(self, relation: StoredRelation, start: Offset, end: Offset) -> Sequence[Any]:
        """Return what the tasks of a micro-batch read."""
        entry, now = relation.entry, relation.manifest
        first, last, view = Epoch(start["epoch"]), Epoch(end["epoch"]), ViewId(entry.id)
        followed = start["view"] in (view, now.holder(view, first))
        if last > now.epoch or last < first or not (followed or not first):
            why = "the query has read another view, or another copy of this storage"
            raise changes_expired(entry.name, first, now.epoch, why)
        check_feed(entry)
        columns = nullable(feed_schema(entry.columns) if self._asked.feed else entry.columns)
        check_columns(columns, self._schema)
        if not first and self._asked.starting is None:
            return relation.snapshot(last).inserts()
        return Feed(relation.files, entry, first, last, now.epoch, "").parts()

    def _relation(self) -> StoredRelation:
        return stored_relation(self._asked.storage, self._asked.name)

    def _cursor(self, relation: StoredRelation) -> CursorFile:
        return reader_file(relation.files, relation.entry.name, self._reader)

    def _hold(self, relation: StoredRelation, epoch: Epoch) -> bool:
        """Keep an epoch and all after it until a later one is committed; False if it is gone."""
        if self._leases is None:
            self._leases = Leases(relation.files)
        if not self._leases.hold(epoch):
            return False
        if epoch not in self._held:
            self._held.append(epoch)
        return True


def _offset(relation: StoredRelation, epoch: Epoch) -> Offset:
    return {"epoch": epoch, "view": relation.entry.id}
