"""Pipelines: batches of a data queue, worked on in Spark, and committed with what was made of them.

A batch is dealt to lanes, one Spark task each, as many tuples as each lane's window allows (flow
control); what a lane doesn't get to in time goes to another one in the next wave. Then one document,
the *outcome*, says all at once: which records were read, which failed, which are dead letters, and
the files that hold the outputs. Its appearance is the commit. What follows from it (entries of redo
logs, the queue's own commit) carries the batch's number, and is done again after a crash.

Sums of the windows admit: a batch has no more tuples than the lanes have room for, besides rows that
wait to be joined by key, which must meet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from eddyline.catalog.entries import Entry
from eddyline.changes import APPEND, DELETE
from eddyline.errors import DataError, QueueError
from eddyline.options import check_number
from eddyline.pipelines.outcomes import BACK, Outcome, Place
from eddyline.pipelines.waves import Waves
from eddyline.relay.acker import new_ids
from eddyline.relay.backend import EDEN
from eddyline.relay.batch import Batch
from eddyline.relay.bolts import FIT, Bolt, Chain
from eddyline.relay.embedded import LogBackend
from eddyline.relay.flow import FlowControl
from eddyline.relay.keys import WaitingKeys, codes, key_slots, too_early
from eddyline.relay.lane import DEAD, HELD, REPORTS, RETRY, Tuple
from eddyline.relay.queue import DataQueue
from eddyline.relay.records import (
    ATTEMPTS,
    KEY,
    PAYLOAD,
    POSITION,
    RECORDS,
    TIME,
    TYPE_OF_TIME,
    failed_records,
    no_records,
)
from eddyline.source.dead_letters import new_letters
from eddyline.source.redo_log import as_operations, write_rows
from eddyline.source.rows import as_arrow
from eddyline.source.segments import LOG, Segment, read_arrow
from eddyline.spark.schema import arrow_schema

TUPLE_ROWS = 1000
SLOW_S = 1.0
WINDOW = 16  # of a lane at the start
PAUSE_SHARE = 0.1  # of the longest retry delay, where bolts differ: how often one looks what is due
PATIENCE = 2  # times `slow` a tuple waits for its lane

Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a pipeline runs.

    Attributes:
        lanes: tasks that work side by side; 0: as many as Spark has cores.
        tuple_rows: records that go to a lane together.
        slow_s: a lane that takes longer for its window gets less.
        ordered: records of a key come one after the other.
        acks: whether what fails is kept and tried again.
    """

    lanes: int = 0
    tuple_rows: int = TUPLE_ROWS
    slow_s: float = SLOW_S
    ordered: bool = False
    acks: bool = True

    def __post_init__(self) -> None:
        check_number("lanes", self.lanes, 0)
        check_number("tuple_rows", self.tuple_rows, 1)
        check_number("slow", self.slow_s, 0.001, whole=False)


class PipelineStream:
    """A pipeline that runs: the source of a stream, as `SparkStream` is.

    Args:
        name: the pipeline's.
        place: where it keeps what it knows.
        queue: what it reads.
        bolts: what is done with each record.
        columns: of the stream that it feeds; None if it feeds none.
        spark: the session of the user.
        zone: time zone of the storage.
        settings: how it runs.
        keyed: of rows of one key the stream keeps the last, so their order counts.
        own_queue: whether the queue is closed when the pipeline stops.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        queue: DataQueue,
        bolts: Sequence[Bolt],
        columns: StructType | None,
        spark: SparkSession,
        zone: str,
        settings: Settings,
        *,
        keyed: bool = False,
        own_queue: bool = False,
    ) -> None:
        self._own_queue = own_queue
        self.name = name
        self.place = place
        self.queue = queue
        self.settings = settings
        lanes = settings.lanes or spark.sparkContext.defaultParallelism
        schema = None
        if columns is not None:
            schema = arrow_schema(columns, zone)
            fit = Fit(schema, name, zone)
            last = bolts[-1]
            into = Bolt(
                fit, "into", FIT, max_attempts=last.max_attempts, retry_delay=last.retry_delay
            )
            bolts = [*bolts, into]
        chain = Chain(bolts, acks=settings.acks)
        delays = [bolt.retry_delay for bolt in chain.bolts]
        pause_s = max(delays) * (1 if len(set(delays)) == 1 else PAUSE_SHARE)
        queue.retry_delay_ms = round(pause_s * 1000)
        queue.together = chain.joins
        slow_ms = settings.slow_s * 1000
        self.waves = Waves(
            name,
            place,
            chain,
            schema,
            FlowControl(lanes, slow_ms=slow_ms, ttl_ms=PATIENCE * slow_ms, window=WINDOW),
            spark,
            ordered=settings.ordered,
            keyed=keyed,
        )
        self._random = np.random.default_rng()
        self._tuples = 0
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        place.files.make_folder(place.folder)
        self._recover()
        self._check_queue()
        self._keys: WaitingKeys | None = None  # of records to be read again; None: not known

    def pull(self) -> None:
        """Work on all that is there now, and on what has failed and is due again."""
        self._halt()
        end = self.queue.end()
        while self._batch(fresh=not self.queue.is_planned(end)):
            pass

    def follow(self, interval_s: float) -> None:
        """Work on what arrives, in the background."""
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
        """Stop working, and give a queue free that is its own."""
        self._halt()
        if self._own_queue:
            self.queue.close()

    def revive(self, letters: pa.Table, *, again: bool) -> None:
        """Take dead letters out; `again`: as records that are read anew."""
        if not letters.num_rows:
            return
        with self._lock:
            self._recover()
            number = self.queue.committed + 1
            back = no_records()
            if again:
                columns = {
                    PAYLOAD: letters["payload"],
                    KEY: letters["key"],
                    ATTEMPTS: pa.nulls(letters.num_rows, pa.int32()).fill_null(0),
                    POSITION: letters["position"],
                    TIME: letters["received"],
                }
                back = pa.table(
                    [columns.get(f.name, pa.nulls(letters.num_rows, f.type)) for f in RECORDS],
                    names=RECORDS.names,
                ).cast(RECORDS)
            taken_out = as_operations(letters, DELETE)
            self._keys = None
            self._commit(Batch(number, ()), [], back, taken_out, -letters.num_rows)

    def status(self) -> dict[str, Any]:
        """Where its records are, and how its lanes do."""
        lanes = self.waves.flow.lanes
        return {
            "name": self.name,
            **asdict(self.queue.account()),
            "windows": [lane.window for lane in lanes],
            "lanes": [lane.state.value for lane in lanes],
            "replays": self.waves.flow.replays,
        }

    # -- inside ----------------------------------------------------------------------------

    def _halt(self) -> None:
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _follow(self, interval_s: float) -> None:
        try:
            while not self._stopping.is_set():
                if not self._batch():
                    self._stopping.wait(interval_s)
        except BaseException as error:  # noqa: BLE001  # handed to follow
            self._failure = error

    def _recover(self) -> None:
        """Tell the queue what is committed here, after a crash or a failure."""
        for outcome in self.place.outcomes():
            self._tell(outcome)

    def _check_queue(self) -> None:
        """What the redo logs hold, the queue must know to be read."""
        logs = (self.place.outputs, self.place.letters)
        last = max(log.end() for log in logs if log is not None)
        if last > self.queue.committed + 1:
            raise QueueError(
                f"pipeline {self.name} has committed batch {last - 1}, and its queue knows of "
                f"{self.queue.committed}",
                condition="QUEUE_BEHIND",
                hint="give the pipeline the queue that it has read so far, or drop and create it",
            )

    def _batch(self, *, fresh: bool = True) -> bool:
        """Work on one batch; False if there is nothing to do now."""
        with self._lock:
            self._recover()
            if self.settings.ordered and self._keys is None:
                self._keys = WaitingKeys(self.queue.retries())
            # replayed records are tuples of their own: all are to go in one wave
            apart = min(self.queue.account().retry, len(self.waves.flow.lanes))
            most = max(self.waves.flow.room - apart, 1) * self.settings.tuple_rows
            batch = self.queue.plan(most, fresh=fresh)
            if batch is None:
                return False
            committing = False
            try:
                records, held, tuples = self._dealt(self.queue.load(batch), _replays(batch))
                reports = REPORTS.empty_table()
                if tuples:
                    reports = self.waves.run(batch.number, records, tuples)
                back, letters = _sorted_out(records, held, reports, self.queue.clock())
                made = reports.filter(pc.is_valid(reports["file"])).to_pylist()
                outputs = [
                    Segment(LOG, row["file"], row["rows"], crc=row["crc"])
                    for row in sorted(made, key=itemgetter("tuple"))
                ]
                committing = True
                self._commit(batch, outputs, back, as_operations(letters, APPEND), letters.num_rows)
            except BaseException:
                self._keys = None
                if not committing or not self.place.outcomes():
                    self.queue.abandon(batch)
                raise
            if self._keys is not None:
                self._keys.add(back)
            return bool(tuples) or batch.rows >= most

    def _dealt(self, records: pa.Table, replays: int) -> tuple[pa.Table, Flags, list[Tuple]]:
        """The records in the order of work, which of them must wait, and the tuples.

        Those that wait are in no tuple, and come first.
        """
        joins = self.waves.chain.joins
        early = too_early(records.slice(0, replays), self.queue.clock(), joins=joins)
        if self._keys is None:
            records, held, starts = self._dealt_freely(records, early)
        else:
            records, held, starts = self._dealt_by_key(records, early, self._keys)
        ends = [*starts[1:], records.num_rows]
        ids = new_ids(2 * len(starts), self._random).view(np.int64).reshape(2, -1).tolist()
        tuples = []
        for start, end, root, edge in zip(starts, ends[: len(starts)], *ids, strict=True):
            self._tuples += 1
            tuples.append(Tuple(self._tuples, root, edge, start, end - start))
        return records, held, tuples

    def _dealt_freely(self, records: pa.Table, early: Flags) -> tuple[pa.Table, Flags, list[int]]:
        """What is tried again is a tuple for each lane; the new ones come behind."""
        rows, replays, most = records.num_rows, len(early), self.settings.tuple_rows
        first = int(np.count_nonzero(early))
        if first:
            again = records.slice(0, replays).take(pa.array(np.argsort(~early, kind="stable")))
            records = pa.concat_tables([again, records.slice(replays)])
        part = max(1, min(most, -(-(replays - first) // len(self.waves.flow.lanes))))
        starts = [*range(first, replays, part), *range(replays, rows, most)]
        return records, np.arange(rows) < first, starts

    def _dealt_by_key(
        self, records: pa.Table, early: Flags, waiting: WaitingKeys
    ) -> tuple[pa.Table, Flags, list[int]]:
        """All records of a key are in one tuple, in their order."""
        waiting.remove(records.slice(0, len(early)).filter(pa.array(~early)))
        held = waiting.behind(records)
        held[: len(early)] |= early
        count = max(1, -(-records.num_rows // self.settings.tuple_rows))
        slots = np.where(held, -1, key_slots(records[KEY], count))
        by = [records[POSITION].to_numpy(), slots]
        if self.waves.chain.joins:  # a key's records one behind the other
            by.insert(1, codes(records[KEY]))
        order = np.lexsort(by)
        records, held, slots = records.take(pa.array(order)), held[order], slots[order]
        first = int(np.count_nonzero(held))
        begins = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        return records, held, begins[begins >= first].tolist()

    def _commit(
        self,
        batch: Batch,
        outputs: Sequence[Segment],
        back: pa.Table,
        changes: pa.Table,
        dead: int,
    ) -> None:
        """Make the outcome of a batch durable, and tell it on."""
        place, number = self.place, batch.number
        letters: tuple[Segment, ...] = ()
        if changes.num_rows:
            place.letters.clear(number)
            name = f"{place.letters.folder}/{number:012d}-letters.arrow"
            letters = (write_rows(place.files, name, changes),)
        kept = None
        if back.num_rows:
            kept = write_rows(place.files, place.name(number, BACK), back)
        outcome = Outcome(batch, tuple(outputs), letters, kept, dead)
        place.commit(outcome)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        """What follows from an outcome; nothing new happens when it is done again."""
        place, number = self.place, outcome.batch.number
        place.log(outcome)
        if number > self.queue.committed:
            back = read_arrow(place.files, outcome.back) if outcome.back else no_records()
            self.queue.settle(outcome.batch, back.cast(RECORDS), outcome.dead)
            self.queue.commit()
        place.forget(outcome, self.status())


@dataclass(frozen=True, slots=True)
class Fit:
    """The last step: rows as the stream's columns; DataError where one doesn't fit."""

    schema: pa.Schema
    name: str
    zone: str

    def __call__(self, rows: Any) -> pa.Table:
        """The table."""
        return as_arrow(rows, self.schema, relation=self.name, zone=self.zone)


def _replays(batch: Batch) -> int:
    """How many of its records were read before; they come first."""
    return sum(span.rows for span in batch.spans if span.queue != EDEN)


def _sorted_out(
    records: pa.Table, held: Flags, reports: pa.Table, now_ms: int
) -> tuple[pa.Table, pa.Table]:
    """What is read again, in the order of positions; and the dead letters."""
    told = reports.filter(pc.is_valid(reports["place"]))
    # all others are let go first: to take places out of many chunks is to copy them all
    touched = held.copy()
    touched[told["place"].to_numpy()] = True
    records, held = records.filter(pa.array(touched)).combine_chunks(), held[touched]
    few = np.cumsum(touched) - 1
    told = told.set_column(
        REPORTS.get_field_index("place"), "place", pa.array(few[told["place"].to_numpy()])
    )
    retried, waiting, chosen = (
        told.filter(pc.equal(told["fate"], fate)) for fate in (RETRY, HELD, DEAD)
    )
    again, found = (
        failed_records(
            records, part["place"].to_numpy(), part["reason"].to_pylist(), _due(part, now_ms)
        )
        for part in (retried, chosen)
    )
    parts = [records.filter(pa.array(held)), records.take(waiting["place"].combine_chunks()), again]
    back = pa.concat_tables(parts).sort_by(POSITION)
    letters = new_letters(
        position=found[POSITION],
        payload=found[PAYLOAD],
        key=found[KEY],
        bolt=chosen["bolt"],
        error=chosen["reason"],
        attempts=found[ATTEMPTS],
        received=found[TIME],
    )
    return back, letters


def _due(told: pa.Table, now_ms: int) -> pa.ChunkedArray:
    """When records may be tried again."""
    due_ms = now_ms + np.rint(told["delay_s"].to_numpy() * 1000).astype(np.int64)
    return pa.chunked_array([due_ms * 1000]).cast(TYPE_OF_TIME)


def open_queue(entry: Entry) -> DataQueue:
    """The queue that the options of a stream name; DataError if they don't."""
    options = {name.lower(): value for name, value in entry.options.items()}
    if set(options) == {"path"}:
        return DataQueue(LogBackend(options["path"]))
    if set(options) == {"servers", "app"}:
        from eddyline.relay.kafka import KafkaBackend  # its client may not be installed

        return DataQueue(KafkaBackend(options["servers"], options["app"]))
    raise DataError(
        f"the options {', '.join(sorted(options)) or '(none)'} name no queue",
        condition="BAD_STREAM",
        stream=entry.name,
        hint="give path, or servers and app of a queue on Kafka",
    )
