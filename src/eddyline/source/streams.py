"""Streams: what Spark's sources deliver, written to the redo log exactly once."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from eddyline.changes import APPEND, DELETE, OPERATION
from eddyline.errors import EngineError, StateError
from eddyline.source.dead_letters import Rejects
from eddyline.source.generator import Generator
from eddyline.source.redo_log import BAD, LOGGED, LogTask, RedoLog
from eddyline.source.segments import LOG, NDJSON, NEXMARK, PARQUET, Segment
from eddyline.sql.names import quoted
from eddyline.storage.files import Files

APPEND_CODES = ("+", "c", "r", "+I", "+U", "append", "insert", "I")
UPDATE_CODES = ("u", "U", "update")  # the new row only: needs a key to find the old one
DELETE_CODES = ("-", "d", "-D", "-U", "delete", "D")
REJECT = "reject"  # what any other code is taken for

FILE_PART_BYTES = 32 << 20
RECORD, FILE = "eddyline record", "eddyline file"  # columns of what can't be decoded


@dataclass(slots=True)
class SparkStream:
    """A streaming DataFrame, copied batch by batch into the redo log.

    Spark numbers its micro-batches and repeats the last one after a crash; the number is the
    entry's, so that a batch is in the log once.

    Attributes:
        name, columns: of the stream.
        frame: what Spark reads.
        operation: its column of operations.
        keyed: a later row of a key replaces the earlier.
        rejects: the dead letters, where records may be bad.
        decoded: the frame has the columns `RECORD` and `FILE`, of records that can't be decoded.
        query: while it runs.
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
    query: StreamingQuery | None = field(default=None)

    def pull(self) -> None:
        """Take in all that is available now."""
        self.stop()
        query = self._writer().trigger(availableNow=True).start()
        with suppress(StreamingQueryException):  # told by _check
            query.awaitTermination()
        self._check(query)

    def follow(self, interval_s: float) -> None:
        """Take in what arrives, in the background."""
        if self.query is None or not self.query.isActive:
            if self.query is not None:
                self._check(self.query)
            self.query = self._writer().trigger(processingTime=f"{interval_s} seconds").start()

    def stop(self) -> None:
        """Stop taking in."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _writer(self) -> DataStreamWriter:
        if self.log.end() and not self.files.exists(f"{self.checkpoint}/offsets"):
            # Spark would count its batches from 0 again, and those would be taken for repeated ones
            raise StateError(
                f"the checkpoint of stream {self.name} is missing, but its redo log is there",
                condition="MISSING_CHECKPOINT",
                file=self.checkpoint,
                hint="restore the folder from a copy, or drop the stream and create it again",
            )
        return self.frame.writeStream.foreachBatch(self._keep).option(
            "checkpointLocation", self.files.path(self.checkpoint)
        )

    def _keep(self, batch: DataFrame, number: int) -> None:
        if self.log.has(number):
            return
        self.log.clear(number)
        self._make_durable(number)
        columns = [expr(quoted(name)).alias(f"c{i}") for i, name in enumerate(self.columns)]
        if self.operation is not None:
            columns.append(expr(_operation_sql(self.operation, self.keyed)).alias(OPERATION))
        if self.rejects is not None:
            columns += [
                expr(sql).alias(name) for name, sql in zip(BAD, self._bad_sql(), strict=True)
            ]
        task = LogTask(self.files, self.log.folder, number)
        written = batch.select(*columns).mapInArrow(task, LOGGED).collect()
        good, bad = (
            [Segment(LOG, row.file, row.rows, crc=row.crc) for row in written if row.dead is dead]
            for dead in (False, True)
        )
        if bad and self.rejects is not None:
            self.rejects.keep(number, bad)
        if good:
            self.log.append(number, good)

    def _bad_sql(self) -> tuple[str, str]:
        """What a record that is kept apart was, and why it is; both null for a good one."""
        cases = []  # when it is bad, what it was, and why
        if self.decoded:
            record = quoted(RECORD)
            why = f"'malformed record in ' || {quoted(FILE)}"
            cases.append((f"{record} is not null", record, why))
        if self.operation is not None:
            unknown = f"{_operation_sql(self.operation, self.keyed)} = '{REJECT}'"
            names = ", ".join(map(quoted, [*self.columns, self.operation]))
            why = f"'unknown operation ' || coalesce({quoted(self.operation)}, 'null')"
            cases.append((unknown, f"to_json(struct({names}))", why))
        payload = " ".join(f"when {bad} then {what}" for bad, what, _ in cases)
        error = " ".join(f"when {bad} then {why}" for bad, _, why in cases)
        return f"cast(case {payload} end as binary)", f"case {error} end"

    def _make_durable(self, number: int) -> None:
        """Flush Spark's notes on a batch: the log's entry must not outlive them in a power cut."""
        root = self.files.path(self.checkpoint)
        notes = ["", "metadata", "offsets", f"offsets/{number}"]
        for pattern in ("sources", "sources/*", f"sources/*/{number}*"):
            notes += glob(pattern, root_dir=root)
        for name in ("", os.path.dirname(self.checkpoint)):
            self.files.sync(name)
        for name in notes:
            self.files.sync(os.path.join(self.checkpoint, name))

    def _check(self, query: StreamingQuery) -> None:
        error = query.exception()
        if error is not None:
            failfast = "MALFORMED_RECORD" in str(error)
            way_out = "; with the mode DROPMALFORMED bad records are kept apart" * failfast
            raise EngineError(
                f"stream {self.name} can't be read: {str(error).splitlines()[0]}",
                condition="STREAM_FAILED",
                stream=self.name,
                hint="mend the source and call advance() again; nothing was lost" + way_out,
            ) from error


def _operation_sql(column: str, keyed: bool) -> str:
    def listed(codes: tuple[str, ...]) -> str:
        return ", ".join(f"'{code}'" for code in codes)

    appends = APPEND_CODES + UPDATE_CODES if keyed else APPEND_CODES
    return (
        f"case when {quoted(column)} in ({listed(appends)}) then '{APPEND}' "
        f"when {quoted(column)} in ({listed(DELETE_CODES)}) then '{DELETE}' else '{REJECT}' end"
    )


@dataclass(slots=True)
class FileStream:
    """Files of a folder or glob, in the order of their times; each is read once, by the leaves.

    The files themselves are the redo log: entries only name them. They must not be changed or
    removed once seen.
    """

    name: str
    kind: str
    path: str
    files_per_epoch: int
    log: RedoLog
    seen: set[str] | None = None

    def pull(self) -> None:
        """Note the files that are new."""
        if self.seen is None:
            self.seen = {segment.file for segment in self.log.segments(0, self.log.end())}
        found = []
        pattern = os.path.join(self.path, "*") if os.path.isdir(self.path) else self.path
        for path in glob(pattern):
            base = os.path.basename(path)
            if path not in self.seen and not base.startswith((".", "_")) and os.path.isfile(path):
                status = os.stat(path)
                found.append((status.st_mtime_ns, path, status.st_size))
        found.sort()
        for start in range(0, len(found), self.files_per_epoch):
            chosen = found[start : start + self.files_per_epoch]
            segments = []
            for _, path, size in chosen:
                if self.kind == PARQUET:
                    segments.append(Segment(PARQUET, path, 0, 0, 0, size))
                    continue
                for at in range(0, max(size, 1), FILE_PART_BYTES):
                    length = min(FILE_PART_BYTES, size - at)
                    segments.append(Segment(NDJSON, path, 0, at, 0, length))
            try:
                self.log.append(self.log.end(), segments)
            except BaseException:
                self.seen = None  # the entry may be in place: the log itself says what is in it
                raise
            self.seen.update(path for _, path, _ in chosen)

    def follow(self, interval_s: float) -> None:
        """The same as pull: looking into a folder is cheap."""
        self.pull()

    def stop(self) -> None:
        """Nothing runs."""


@dataclass(slots=True)
class GeneratedStream:
    """Generated events: the redo log only says which, and the leaves make them.

    Entry n stands for the n-th step through the common sequence, whatever there is of this
    stream's kind in it: so streams of one seed that take equal steps stay side by side, and the
    log alone knows how far they are.
    """

    name: str
    generator: Generator
    log: RedoLog

    def pull(self) -> None:
        """Note the steps up to the last event."""
        for number in range(self.log.end(), self.generator.steps):
            start, end = self.generator.rows(number)
            segment = Segment(NEXMARK, self.generator.events.text, end - start, start)
            self.log.append(number, [segment] if segment.rows else [])

    def follow(self, interval_s: float) -> None:
        """The same as pull: nothing is waited for."""
        self.pull()

    def stop(self) -> None:
        """Nothing runs."""
