"""Streams that Spark reads: their rows are copied into the redo log, exactly once."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, expr
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from eddyline.changes import APPEND, DELETE, OPERATION, REPLACED
from eddyline.errors import StateError
from eddyline.source.base import CopiedSource, cannot_read
from eddyline.source.dead_letters import DeadLetters, Rejects
from eddyline.source.log_files import BAD, LOGGED, PLACE, LogTask, in_order
from eddyline.source.received import given_places
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import LOG, Segment
from eddyline.source.spark_files_read import FilesRead, local_path
from eddyline.spark.failures import FAILURES, message_of
from eddyline.spark.jvm import lost_jvm
from eddyline.spark.plan_trees import elements
from eddyline.sql.names import quoted
from eddyline.storage.files import Files

APPEND_CODES = (
    "+", "c", "r", "+I", "+U", "append", "insert", "I", "update_postimage",
)  # fmt: skip
UPDATE_CODES = ("u", "U", "update")  # the new row only: needs a key to find the old one
DELETE_CODES = ("-", "d", "-D", "delete", "D")
REPLACED_CODES = ("-U", "update_preimage")  # the row before an update, whose new one follows
REJECT = "reject"  # any other code: its row is a dead letter

LOOK_S = 10.0
"""How often the background run looks for files that have changed since they were read."""

RECORD, FILE = "eddyline record", PLACE[1]  # columns of a malformed record and its file

_READING = re.compile(r"error while reading file (\S+?)\.?\s")
_PLACE_SQL = (
    "coalesce(unix_micros(_metadata.file_modification_time), 0L)",
    "coalesce(_metadata.file_path, '')",
    "coalesce(_metadata.file_block_start, 0L)",
)


def placed(frame: DataFrame) -> tuple[DataFrame, bool]:
    """Return a frame with the columns `PLACE`, and whether it can have them: it reads one stream, of files.

    Static files that a stream is joined with say nothing about the order of its rows, and Spark keeps the rows
    of streams that are joined in its checkpoint, with their columns.

    Spark reads the largest files of a micro-batch first, so the order of its rows isn't that of their files.
    """
    wanted = [
        expr(sql).alias(name)
        for name, sql in zip(PLACE, _PLACE_SQL, strict=True)
        if name not in frame.columns
    ]
    try:
        found = frame.select("*", *wanted)
    except AnalysisException:
        return frame, False
    return (found, True) if _is_one_stream_of_files(found) else (frame, False)


def _is_one_stream_of_files(frame: DataFrame) -> bool:
    """Return whether a frame reads one stream, and `_metadata` of this and nothing else."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001  # not public in PySpark
    kinds = [
        (leaf.isStreaming(), any(one.name() == "_metadata" for one in elements(leaf.output())))
        for leaf in elements(leaves)
    ]
    return [kind for kind in kinds if any(kind)] == [(True, True)]


@dataclass(slots=True)
class SparkStream(CopiedSource):
    """A streaming DataFrame, copied into the redo log batch by batch.

    Spark numbers its micro-batches and repeats the last one after a crash. The entry of a batch has
    the same number, so that a batch is in the log once.

    Attributes:
        name, columns: name and columns of the stream.
        frame: the streaming DataFrame.
        operation: the column of operations; None if all rows are appends.
        keyed: whether the stream has a primary key.
        checkpoint: folder of Spark's checkpoint.
        rejects: the dead letters; None if no row can become one.
        decoded: whether the frame has the columns `RECORD` and `FILE` for malformed records.
        placed: whether it has the columns `PLACE`, by which its operations count in the order of their files.
        query: the running query.
    """

    name: str
    frame: DataFrame
    operation: str | None
    keyed: bool
    columns: list[str]
    files: Files
    log: RedoLog
    checkpoint: str
    rejects: Rejects | None = None
    decoded: bool = False
    placed: bool = False
    query: StreamingQuery | None = field(default=None)
    _read: FilesRead = field(init=False)
    _look_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._read = FilesRead(self.name, self.log, self.files.path(self.checkpoint))

    @property
    def dead_letters(self) -> DeadLetters | None:
        """Malformed records, and rows with an unknown operation."""
        return self.rejects

    def pull(self) -> None:
        """Copy all rows that are available now."""
        self.stop()
        done = False
        while not done:
            query = self._writer().trigger(availableNow=True).start()
            with suppress(StreamingQueryException):  # _is_done raises it
                query.awaitTermination()
            done = self._is_done(query)
        self._read.look()

    def follow(self, interval_s: float) -> None:
        """Copy new rows in the background; raise the error that ended an earlier query."""
        if self.query is None or not self.query.isActive:
            ended, self.query = self.query, None  # the next call begins a new one
            if ended is not None:
                self._is_done(ended)
            self.query = self._writer().trigger(processingTime=f"{interval_s} seconds").start()
        if time.monotonic() >= self._look_at:
            self._read.look()
            self._look_at = time.monotonic() + LOOK_S

    def stop(self) -> None:
        """Stop the query."""
        if self.query is not None:
            try:
                self.query.stop()
            except (*FAILURES, OSError) as error:
                if lost_jvm(error) is None:  # else the query has ended with it
                    raise
            self.query = None

    def _writer(self) -> DataStreamWriter:
        if self.log.end() and not self.files.exists(f"{self.checkpoint}/offsets"):
            # Spark would number its batches from 0 again, and they would be skipped as repeated ones
            raise StateError(
                f"the checkpoint of stream {self.name} is missing, but its redo log is there",
                condition="MISSING_CHECKPOINT",
                file=self.checkpoint,
                hint="restore the folder from a copy, or drop the stream and create it again",
            )
        frame, left_out = self.frame, self._read.addresses_left_out
        if left_out:  # Spark doesn't open files that this leaves out
            frame = frame.where(~col("_metadata.file_path").isin(left_out))
        return frame.writeStream.foreachBatch(self._keep).option(
            "checkpointLocation", self.files.path(self.checkpoint)
        )

    def _keep(self, batch: DataFrame, number: int) -> None:
        if self.log.has(number):
            return
        self.log.clear(number)
        self._make_durable(number)
        places = given_places(self.columns)
        columns = [expr(quoted(self.columns[i])).alias(f"c{i}") for i in places]
        if self.operation is not None:
            columns.append(expr(_operation_sql(self.operation, self.keyed)).alias(OPERATION))
        if self.rejects is not None:
            columns += [
                expr(sql).alias(name) for name, sql in zip(BAD, self._bad_sql(), strict=True)
            ]
        if self.placed:
            columns += [expr(quoted(name)) for name in PLACE]
        task = LogTask(self.files, self.log.folder, number)
        # Spark has set it to true for this thread; see INTERRUPT
        batch.sparkSession.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "false")
        written = batch.select(*columns).mapInArrow(task, LOGGED).collect()
        if self.placed:
            written.sort(key=lambda row: (row.dead, row.modified, row.path, row.block))
        good, bad = (
            in_order(
                Segment(LOG, row.file, row.rows, row.start, crc=row.crc)
                for row in written
                if row.dead is dead
            )
            for dead in (False, True)
        )
        if bad and self.rejects is not None:
            self.rejects.keep(number, bad)
        if good:
            self.log.append(number, good)

    def _bad_sql(self) -> tuple[str, str]:
        """Return SQL for the payload and the error of a rejected row; both are null for an accepted one."""
        cases = []  # SQL: when a row is bad, its payload, and its error
        if self.decoded:
            record = quoted(RECORD)
            why = f"'malformed record in ' || {quoted(FILE)}"
            cases.append((f"{record} is not null", record, why))
        if self.operation is not None:
            unknown = f"{_operation_sql(self.operation, self.keyed)} = '{REJECT}'"
            given = [self.columns[place] for place in given_places(self.columns)]
            names = ", ".join(map(quoted, [*given, self.operation]))
            why = f"'unknown operation ' || coalesce({quoted(self.operation)}, 'null')"
            cases.append((unknown, f"to_json(struct({names}))", why))
        payload = " ".join(f"when {bad} then {what}" for bad, what, _ in cases)
        error = " ".join(f"when {bad} then {why}" for bad, _, why in cases)
        return f"cast(case {payload} end as binary)", f"case {error} end"

    def _make_durable(self, number: int) -> None:
        """Flush the checkpoint of a batch: after a power cut it must exist if the entry does."""
        root = self.files.path(self.checkpoint)
        names = ["", "metadata", "offsets", f"offsets/{number}"]
        for pattern in ("sources", "sources/*", f"sources/*/{number}*"):
            names += glob(pattern, root_dir=root)
        for name in ("", os.path.dirname(self.checkpoint)):
            self.files.sync(name)
        for name in names:
            self.files.sync(os.path.join(self.checkpoint, name))

    def _is_done(self, query: StreamingQuery) -> bool:
        """Return False if a query has failed on a file that the next one leaves out, True if it hasn't failed.

        Raises:
            EngineError: STREAM_FAILED: it has failed otherwise.
        """
        error = query.exception()
        if error is None:
            return True
        why, failfast = message_of(error), "MALFORMED_RECORD" in str(error)
        way_out = "; with the mode DROPMALFORMED bad records are kept apart" * failfast
        if file := _READING.search(str(error)):
            can_leave_out = not failfast and placed(self.frame)[1]
            if can_leave_out and self._read.leave_out(file[1], why):
                return False
            why = f"{local_path(file[1]) or file[1]}: {why}"
        raise cannot_read(self.name, why, way_out) from error


def _operation_sql(column: str, keyed: bool) -> str:
    """Return SQL that maps a column of operation codes to `APPEND`, `DELETE`, `REPLACED` or `REJECT`."""

    def quoted_codes(codes: tuple[str, ...]) -> str:
        return ", ".join(f"'{code}'" for code in codes)

    appends = APPEND_CODES + UPDATE_CODES if keyed else APPEND_CODES
    return (
        f"case when {quoted(column)} in ({quoted_codes(appends)}) then '{APPEND}' "
        f"when {quoted(column)} in ({quoted_codes(DELETE_CODES)}) then '{DELETE}' "
        f"when {quoted(column)} in ({quoted_codes(REPLACED_CODES)}) then '{REPLACED}' else '{REJECT}' end"
    )
