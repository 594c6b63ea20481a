"""Pipelines: batches of a data queue are processed in Spark and committed with their outputs.

A batch is grouped into tuples. Flow control sends them to lanes, one Spark task each, as many as
each lane's window allows; a tuple that a lane doesn't begin in time goes to another lane in the next
wave. Then one document, the *outcome*, commits the batch: it names the records that were read, those
that failed, the dead letters, and the files with the outputs. Entries of redo logs and the queue's
own commit follow from it; they carry the batch's number and are repeated after a crash.

Back-pressure: a batch has no more tuples than the windows of the lanes have room for, except records
that are joined by key, which must be in one batch.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from eddyline.arguments import check_number
from eddyline.catalog.entries import source_places
from eddyline.changes import APPEND, DELETE
from eddyline.errors import EddylineError, QueueError
from eddyline.pipelines.fit import Fit
from eddyline.pipelines.history import Point
from eddyline.pipelines.outcomes import BACK, Outcome, PipelineFiles, lane_windows
from eddyline.pipelines.retries import retries_and_letters, untried_records
from eddyline.pipelines.tuples import TupleBuilder
from eddyline.pipelines.waves import Waves
from eddyline.relay.backend import EDEN, EXPIRED, TAKEN_OVER
from eddyline.relay.batch import Batch
from eddyline.relay.bolts import FIT, TIME_MAX_S, Bolt, BoltChain
from eddyline.relay.flow import FlowControl
from eddyline.relay.lane import REPORTS
from eddyline.relay.queue import DataQueue
from eddyline.relay.records import RECORDS, no_records
from eddyline.source.dead_letters import DeadLetters
from eddyline.source.lag import ROWS, Unread
from eddyline.source.log_files import as_operations, write_rows
from eddyline.source.segments import LOG, Segment, read_arrow
from eddyline.spark.schema import arrow_schema

TUPLE_ROWS = 1000
SLOW_S = 1.0
WINDOW = 16  # of a lane at the start
PAUSE_SHARE = 0.1  # of the longest retry delay: how often to look for due records if bolts differ
LOOK_S = 5.0  # how old the number of unread records may be
HISTORY_S = 1.0  # the history is written at most so often while batches follow each other
ACKED = ("started", "done", "failed", "timed_out", "in_flight")  # of the counts of the acker
LANES_MAX = ACKERS_MAX = 1024
TUPLE_ROWS_MAX = 1_000_000
PATIENCE = 2  # a tuple waits for its lane for this multiple of `slow`


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of a pipeline.

    Attributes:
        lanes: number of concurrent tasks; 0 for Spark's default parallelism.
        tuple_rows: number of records that are sent to a lane together.
        slow_s: the window of a lane shrinks if it takes longer than this, in seconds.
        ordered: whether to process the records of a key in order.
        acks: whether failed records are kept and retried.
        ackers: number of ackers of the tuples; a tuple belongs to that of its id modulo the number.
    """

    lanes: int = 0
    tuple_rows: int = TUPLE_ROWS
    slow_s: float = SLOW_S
    ordered: bool = False
    acks: bool = True
    ackers: int = 1

    def __post_init__(self) -> None:
        check_number("lanes", self.lanes, 0, LANES_MAX)
        check_number("tuple_rows", self.tuple_rows, 1, TUPLE_ROWS_MAX)
        check_number("ackers", self.ackers, 1, ACKERS_MAX)
        check_number("slow", self.slow_s, 0.001, TIME_MAX_S, whole=False)


class PipelineStream:
    """A running pipeline: the source of a stream, as `SparkStream` is.

    Args:
        name: name of the pipeline.
        files: its files in the storage.
        queue: the queue to read.
        bolts: the bolts to run for each record.
        columns: columns of the stream that it writes; None if it writes none.
        spark: the user's session.
        zone: time zone of the storage.
        settings: how to run it.
        keyed: the stream keeps the last row of each key, so the order of outputs matters.
        own_queue: whether to close the queue when the pipeline stops.
    """

    def __init__(
        self,
        name: str,
        files: PipelineFiles,
        queue: DataQueue,
        bolts: Sequence[Bolt],
        columns: StructType | None,
        spark: SparkSession,
        zone: str,
        settings: PipelineSettings,
        *,
        keyed: bool = False,
        own_queue: bool = False,
    ) -> None:
        self._own_queue = own_queue
        self.name = name
        self.files = files
        self.queue = queue
        self.settings = settings
        lanes = settings.lanes or spark.sparkContext.defaultParallelism
        places = None
        if columns is not None:
            places = source_places(columns)
            given = StructType([columns[place] for place in places])
            fit = Fit(arrow_schema(given, zone), name, zone)
            # the same row never fits: no second attempt, and no time limit that could fail it
            delay_s = bolts[-1].retry_delay
            into = Bolt(fit, "into", FIT, TIME_MAX_S, max_attempts=1, retry_delay=delay_s)
            bolts = [*bolts, into]
        chain = BoltChain(bolts, acks=settings.acks)
        delays = [bolt.retry_delay for bolt in chain.bolts]
        pause_s = max(delays) * (1 if len(set(delays)) == 1 else PAUSE_SHARE)
        queue.retry_delay_ms = round(pause_s * 1000)
        queue.together = chain.joins
        slow_ms = settings.slow_s * 1000
        self.waves = Waves(
            name,
            files,
            chain,
            places,
            FlowControl(lanes, slow_ms=slow_ms, ttl_ms=PATIENCE * slow_ms, window=WINDOW),
            spark,
            ordered=settings.ordered,
            keyed=keyed,
            ackers=settings.ackers,
        )
        self._tuples = TupleBuilder(
            settings.tuple_rows, lanes, ordered=settings.ordered, joins=chain.joins
        )
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._seen: tuple[int, int] | None = None  # uncommitted records, and committed ones by then
        self._looked = -math.inf
        files.storage.make_folder(files.folder)
        self._history, self._unwritten, self._written = files.history(), False, -math.inf
        self._recover()
        self._check_queue()
        files.write_status(self.status())

    def pull(self) -> None:
        """Process all records that are in the queue now, and failed records that are due."""
        self._halt()
        end = self.queue.end()
        while self._run_batch(fresh=not self.queue.is_planned(end)):
            pass

    def follow(self, interval_s: float) -> None:
        """Process records as they arrive, in a background thread.

        Raises:
            BaseException: the error that ended the thread, on the first call after it.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._thread is None or not self._thread.is_alive():
            self._stopping.clear()
            self._thread = threading.Thread(
                target=self._follow, args=(interval_s,), name=f"pipeline {self.name}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop processing, and close the queue if the pipeline owns it."""
        self._halt()
        if self._own_queue:
            self.queue.close()

    @property
    def replayable(self) -> bool:
        """False: the queue removes committed records."""
        return False

    @property
    def steps(self) -> bool:
        """False: an epoch processes all batches that wait."""
        return False

    @property
    def dead_letters(self) -> DeadLetters:
        """The pipeline itself replays and discards its dead letters."""
        return self

    def forget(self, position: int) -> None:
        """Remove the entries before `position` from the log of the dead letters."""
        self.files.letters.forget(position)

    def finish(self) -> None:
        """Apply the outcomes that a failure has left unapplied."""
        with self.between_batches():
            pass

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Block batches during the context, after applying all committed outcomes."""
        with self._lock:
            self._recover()
            yield

    def discard(self, letters: pa.Table) -> None:
        """Remove dead letters."""
        self._remove(letters, no_records())

    def replay(self, letters: pa.Table, payload: bytes | None = None) -> None:
        """Remove dead letters, and queue their records, perhaps with another payload, for a first try."""
        records = untried_records(letters, payload) if letters.num_rows else no_records()
        self._remove(letters, records)

    def _remove(self, letters: pa.Table, retries: pa.Table) -> None:
        if not letters.num_rows:
            return
        with self._lock:
            self._recover()
            account = self.queue.account()
            removed, retried = letters.num_rows, retries.num_rows
            replace(
                account,
                done=account.done + removed - retried,
                dead=account.dead - removed,
                retry=account.retry + retried,
            ).check()
            number = self.queue.committed + 1
            removals = as_operations(letters, DELETE)
            self._tuples.forget_waiting()
            self._commit(Batch(number, ()), [], retries, removals, -removed)

    def unread(self) -> Unread | None:
        """Return the new records of the queue that aren't committed; of a topic about as many."""
        if self._seen is None:
            return None
        (amount, then), now = self._seen, self._committed
        return Unread(max(amount - (now - then), 0), ROWS, now)

    @property
    def _committed(self) -> int:
        """How many new records are in committed batches."""
        account = self.queue.account()
        return account.received - account.in_flight

    def _look(self) -> None:
        """Look how many records the queue has, once in `LOOK_S` at most: a broker is asked for it."""
        if time.monotonic() >= self._looked + LOOK_S:
            self._seen = self.queue.backend.unread(), self._committed
            self._looked = time.monotonic()

    def status(self) -> dict[str, Any]:
        """Return the counts of its records, and the state of its lanes.

        The window of a lane is in tuples, of `tuple_rows` records. `acker` counts tuples that were sent since the
        pipeline was connected: `started = done + failed + timed_out + in_flight`.
        """
        acked = self.waves.acker.counts
        lanes = self.waves.flow.lanes
        return {
            "name": self.name,
            **asdict(self.queue.account()),
            "retried": self.queue.retried,
            "windows": [lane.window for lane in lanes],
            "tuple_rows": self.settings.tuple_rows,
            "lanes": [lane.state.value for lane in lanes],
            "replays": self.waves.flow.replays,
            "acker": {name: getattr(acked, name) for name in ACKED},
        }

    def _halt(self) -> None:
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _follow(self, interval_s: float) -> None:
        try:
            while not self._stopping.is_set():
                if not self._run_batch():
                    self._stopping.wait(interval_s)
        except BaseException as error:  # noqa: BLE001  # raised by `follow`
            self._failure = error

    def _recover(self) -> None:
        """Apply the committed outcomes again, after a crash or a failure."""
        for outcome in self.files.outcomes():
            self._apply(outcome)

    def _check_queue(self) -> None:
        """Check that the queue has committed all batches that the redo logs hold.

        Raises:
            QueueError: it is another queue, or an old copy.
        """
        logs = (self.files.outputs, self.files.letters)
        last = max(log.end() for log in logs if log is not None)
        if last > self.queue.committed + 1:
            raise QueueError(
                f"pipeline {self.name} has committed batch {last - 1}, and its queue knows of "
                f"{self.queue.committed}",
                condition="QUEUE_BEHIND",
                hint="give the pipeline the queue that it has read so far, or drop and create it",
            )

    def _run_batch(self, *, fresh: bool = True) -> bool:
        """Process and commit one batch; False if there is nothing to do now.

        Args:
            fresh: whether the batch may have new records, besides those that are retried.
        """
        with self._lock:
            self._recover()
            self._look()
            self._tuples.load_waiting(self.queue.retries())
            rows_max = self._rows_max()
            batch = self.queue.plan(rows_max, fresh=fresh)
            if batch is None:
                self._write_history()
                return False
            started, in_flight = time.monotonic(), self.queue.account().in_flight
            try:
                self.files.write_status(self.status())
                processed = self._process(batch)
            except BaseException as error:
                self._tuples.forget_waiting()
                self._abandon(batch)
                if isinstance(error, EddylineError) and error.condition == EXPIRED:
                    return True  # plan again without the records that the broker has deleted
                raise
            try:
                self._commit(
                    batch,
                    processed.outputs,
                    processed.retries,
                    as_operations(processed.letters, APPEND),
                    processed.letters.num_rows,
                )
            except BaseException:
                self._tuples.forget_waiting()
                if not self.files.outcomes():
                    self._abandon(batch)
                raise
            self._note(time.monotonic() - started, in_flight)
            self._tuples.add_waiting(processed.retries)
            return processed.any_tuples or batch.rows >= rows_max

    def _abandon(self, batch: Batch) -> None:
        """Give the records of a batch back to the queue."""
        self.queue.abandon(batch)
        with suppress(EddylineError, OSError):  # the error that ended the batch counts
            self.files.write_status(self.status())

    def _note(self, seconds: float, in_flight: int) -> None:
        """Add a batch to the history."""
        windows = tuple(lane_windows(self.status()))
        self._history.add(Point(int(time.time()), 1, round(seconds, 3), in_flight, windows))
        self._unwritten = True
        if time.monotonic() >= self._written + HISTORY_S:
            self._write_history()

    def _write_history(self) -> None:
        if self._unwritten:
            self._written = time.monotonic()
            with suppress(EddylineError, OSError):  # the batches are committed
                self.files.write_history(self._history)
                self._unwritten = False

    def _rows_max(self) -> int:
        """Return the maximum number of records for which the lanes have room."""
        flow = self.waves.flow
        # replayed records get tuples of their own, which should fit into the same wave
        replay_tuples = min(self.queue.account().retry, len(flow.lanes))
        return max(flow.room - replay_tuples, 1) * self.settings.tuple_rows

    def _process(self, batch: Batch) -> _Processed:
        """Run the bolts over a batch."""
        replays = sum(span.rows for span in batch.spans if span.queue != EDEN)
        records = self.queue.load(batch)
        built = self._tuples.build(records, replays, self.queue.clock())
        reports = REPORTS.empty_table()
        if built.tuples:
            reports = self.waves.run(batch.number, built.records, built.tuples)
        retries, letters = retries_and_letters(built, reports, self.queue.clock())
        files = reports.filter(pc.is_valid(reports["file"])).to_pylist()
        outputs = [
            Segment(LOG, row["file"], row["rows"], crc=row["crc"])
            for row in sorted(files, key=itemgetter("tuple"))
        ]
        return _Processed(outputs, retries, letters, any_tuples=bool(built.tuples))

    def _commit(
        self,
        batch: Batch,
        outputs: Sequence[Segment],
        retries: pa.Table,
        letters: pa.Table,
        dead: int,
    ) -> None:
        """Make the outcome of a batch durable, and apply it.

        Args:
            batch: the batch.
            outputs: files with the rows for the stream.
            retries: the records to read again.
            letters: operations on the dead letters.
            dead: how many dead letters were added; negative if some were removed.
        """
        files, number = self.files, batch.number
        letter_files: tuple[Segment, ...] = ()
        if letters.num_rows:
            files.letters.clear(number)
            name = f"{files.letters.folder}/{number:012d}-letters.arrow"
            letter_files = (write_rows(files.letters.files, name, letters),)
        back = None
        if retries.num_rows:
            back = write_rows(files.storage, files.name(number, BACK), retries)
        outcome = Outcome(batch, tuple(outputs), letter_files, back, dead)
        files.commit(outcome)
        self._apply(outcome)

    def _apply(self, outcome: Outcome) -> None:
        """Apply an outcome to the queue, and then to the redo logs, whose rows can be in the next epoch; idempotent.

        Raises:
            QueueError: another reader has taken the queue over: the outcome is dropped, as the records are that reader's.
        """
        files, number = self.files, outcome.batch.number
        if number > self.queue.committed:
            retries = read_arrow(files.storage, outcome.back) if outcome.back else no_records()
            self.queue.settle(outcome.batch, retries.cast(RECORDS), outcome.dead)
            try:
                self.queue.commit()
            except QueueError as error:
                if error.condition == TAKEN_OVER:
                    files.forget(outcome, self.status())
                raise
        files.log(outcome)
        files.forget(outcome, self.status())


@dataclass(frozen=True, slots=True)
class _Processed:
    """The result of running the bolts over a batch.

    Attributes:
        outputs: files with the rows for the stream.
        retries: the records to read again.
        letters: the new dead letters.
        any_tuples: whether any record was processed; otherwise all are held.
    """

    outputs: list[Segment]
    retries: pa.Table
    letters: pa.Table
    any_tuples: bool
