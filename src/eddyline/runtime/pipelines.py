"""Pipelines: batches of a data queue, worked on in Spark, and committed with what was made of them.

A batch is dealt to lanes, one Spark task each, as many tuples as each lane's window allows (flow
control); what a lane doesn't get to in time goes to another one in the next wave. Then one document,
the *outcome*, says all at once: which records were read, which failed, which are dead letters, and
the files that hold the outputs. Its appearance is the commit. What follows from it (entries of redo
logs, the queue's own commit) carries the batch's number, and is done again after a crash.

Sums of the windows admit: a batch has no more tuples than the lanes have room for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from eddyline.catalog import DEAD as DEAD_SUFFIX
from eddyline.catalog import Entry
from eddyline.changes import APPEND, DELETE, OPERATION
from eddyline.errors import DataError, EngineError, QueueError
from eddyline.operators.base import numbered
from eddyline.relay.acker import Acker, new_ids
from eddyline.relay.bolts import FIT, Bolt, Chain
from eddyline.relay.flow import FlowControl, Sending
from eddyline.relay.lane import (
    DEAD,
    HELD,
    REPORTS,
    RETRY,
    Lane,
    Tuple,
    of_held,
    of_killed,
    report,
)
from eddyline.relay.log_queue import LogBackend
from eddyline.relay.queue import EDEN, Batch, DataQueue
from eddyline.relay.records import (
    ATTEMPTS,
    KEY,
    PAYLOAD,
    POSITION,
    RECORDS,
    TIME,
    failed_records,
    no_records,
)
from eddyline.runtime.reader import arrow_schema, numbers
from eddyline.source.log import RedoLog, write_rows
from eddyline.source.rows import as_arrow
from eddyline.source.segments import LOG, Segment, read_arrow
from eddyline.storage.files import Files

LETTERS = (
    "position BIGINT, payload BINARY, key BINARY, bolt STRING, error STRING, attempts INT, "
    "received TIMESTAMP, died TIMESTAMP"
)

TUPLE_ROWS = 1000
SLOW_S = 1.0
RETRY_DELAY_S = 1.0
WINDOW = 16  # of a lane at the start
PATIENCE = 2  # times `slow` a tuple waits for its lane

PROPERTY = "eddyline.wave"
WORKER_DIED = "WORKER_DIED"
_DEATH = "Python worker exited unexpectedly"  # how Spark says so
FOLDER = "pipelines"
OUTCOME = "outcome.json"
BACK = "back.arrow"
WORK = "work.arrow"
WAVE = "wave.json"
STATUS = "status.json"


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
        for what, least in (("lanes", 0), ("tuple_rows", 1), ("slow_s", 0.001)):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise EngineError(
                    f"{what.removesuffix('_s')} is {value!r}",
                    condition="BAD_OPTION",
                    hint=f"give a number from {least} on",
                )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a batch.

    Attributes:
        batch: what was read.
        outputs: files with the rows for the stream.
        letters: files with operations on the dead letters.
        back: file with the records that are to be read again, if there are any.
        dead: how many more dead letters there are; fewer, if negative.
    """

    batch: Batch
    outputs: tuple[Segment, ...] = ()
    letters: tuple[Segment, ...] = ()
    back: Segment | None = None
    dead: int = 0

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Outcome:
        """The outcome that a document describes."""
        outputs, letters = (
            tuple(Segment(**segment) for segment in found[name]) for name in ("outputs", "letters")
        )
        back = Segment(**found["back"]) if found["back"] else None
        return cls(Batch.from_dict(found["batch"]), outputs, letters, back, found["dead"])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline keeps what it knows.

    Attributes:
        files: of the storage.
        id: of the pipeline: that of its stream of dead letters.
        letters: redo log of that stream.
        outputs: redo log of the stream that it feeds, if it feeds one.
    """

    files: Files
    id: str
    letters: RedoLog
    outputs: RedoLog | None

    @property
    def folder(self) -> str:
        """Name of the folder."""
        return f"{FOLDER}/{self.id}"

    def name(self, number: int, what: str) -> str:
        """Name of a file of a batch."""
        return f"{self.folder}/{number:012d}-{what}"

    def outcomes(self) -> list[Outcome]:
        """Those that are committed and not known to be told to the queue."""
        names = [name for name in self.files.names(self.folder) if name.endswith(OUTCOME)]
        return [Outcome.from_dict(self.files.read_json(f"{self.folder}/{name}")) for name in names]

    def log(self, outcome: Outcome) -> None:
        """Make the redo logs hold what an outcome says."""
        number = outcome.batch.number
        for log, segments in ((self.outputs, outcome.outputs), (self.letters, outcome.letters)):
            if log is not None and segments and not log.has(number):
                log.append(number, segments)

    def recover(self) -> None:
        """Do again what follows from the outcomes, before anything is tidied away."""
        self.files.remove_unfinished(self.folder)
        committed = self.outcomes()
        for outcome in committed:
            self.log(outcome)
        kept = {STATUS}
        kept |= {f"{o.batch.number:012d}-{what}" for o in committed for what in (OUTCOME, BACK)}
        for name in self.files.names(self.folder):
            if name not in kept:  # of a batch that was never committed
                self.files.remove(f"{self.folder}/{name}")


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
        own_queue: bool = False,
    ) -> None:
        self._own_queue = own_queue
        self.name = name
        self.place = place
        self.queue = queue
        self.settings = settings
        self.spark = spark
        lanes = settings.lanes or spark.sparkContext.defaultParallelism
        self.schema = None
        if columns is not None:
            self.schema = arrow_schema(columns, zone)
            fit = Fit(self.schema, name, zone)
            bolts = [*bolts, Bolt(fit, "into", FIT, max_attempts=bolts[-1].max_attempts)]
        self.chain = Chain(bolts, acks=settings.acks)
        slow_ms = settings.slow_s * 1000
        self.flow = FlowControl(lanes, slow_ms=slow_ms, ttl_ms=PATIENCE * slow_ms, window=WINDOW)
        self.acker = Acker()
        self._random = np.random.default_rng()
        self._tuples = 0
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder = "" if place.outputs is None else place.outputs.folder
        self._frame: DataFrame | None = None  # one query for all waves
        self._failure: BaseException | None = None
        place.files.make_folder(place.folder)
        self._recover()
        self._check_queue()
        self._waiting = self._unread_retries() if settings.ordered else _no_keys()

    def pull(self) -> None:
        """Work on all that is there now, and on what has failed and is due again."""
        self._halt()
        while self._batch():
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
            operations = _operations(letters, DELETE)
            self._commit(Batch(number, ()), [], back, operations, -letters.num_rows)
            if self.settings.ordered:
                self._waiting = _with(self._waiting, back)

    def status(self) -> dict[str, Any]:
        """Where its records are, and how its lanes do."""
        lanes = self.flow.lanes
        return {
            "name": self.name,
            **asdict(self.queue.account()),
            "windows": [lane.window for lane in lanes],
            "lanes": [lane.state.value for lane in lanes],
            "replays": self.flow.replays,
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

    def _batch(self) -> bool:
        """Work on one batch; False if there is nothing to read now."""
        with self._lock:
            self._recover()
            # replayed records are tuples of their own: all are to go in one wave
            apart = min(self.queue.account().retry, len(self.flow.lanes))
            batch = self.queue.plan(max(self.flow.room - apart, 1) * self.settings.tuple_rows)
            if batch is None:
                return False
            committing = False
            try:
                records, replays = self.queue.load(batch), _replays(batch)
                if self.settings.ordered:
                    self._waiting = _without(self._waiting, records.slice(0, replays))
                records, held, tuples = self._dealt(records, replays)
                reports = self._work(batch.number, records, tuples)
                back, letters = _sorted_out(records, held, reports)
                outputs = [
                    Segment(LOG, row["file"], row["rows"], crc=row["crc"])
                    for row in reports.filter(pc.is_valid(reports["file"])).to_pylist()
                ]
                committing = True
                self._commit(batch, outputs, back, _operations(letters, APPEND), letters.num_rows)
            except BaseException:
                if not committing or not self.place.outcomes():
                    self.queue.abandon(batch)
                if self.settings.ordered:
                    self._waiting = self._unread_retries()
                raise
            if self.settings.ordered:
                self._waiting = _with(self._waiting, back)
            return True

    def _dealt(
        self, records: pa.Table, replays: int
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], list[Tuple]]:
        """The records in the order of work, which of them must wait, and the tuples."""
        rows, most = records.num_rows, self.settings.tuple_rows
        held = np.zeros(rows, bool)
        if self.settings.ordered:
            held = _behind(self._waiting, records)
            slots = _slots(records, held, max(1, -(-rows // most)))
            order = np.lexsort((records[POSITION].to_numpy(), slots))
            records, held, slots = records.take(pa.array(order)), held[order], slots[order]
            first = int(np.count_nonzero(slots < 0))  # those that wait are in no tuple
            begins = np.r_[True, slots[1:] != slots[:-1]]
            starts = [start for start in np.flatnonzero(begins).tolist() if start >= first]
        else:
            part = max(1, min(most, -(-replays // len(self.flow.lanes))))
            starts = [*range(0, replays, part), *range(replays, rows, most)]
        ranges = list(zip(starts, [*starts[1:], rows], strict=True)) if starts else []
        ids = new_ids(2 * len(ranges), self._random).view(np.int64).reshape(2, -1).tolist()
        tuples = []
        for (start, end), root, edge in zip(ranges, *ids, strict=True):
            self._tuples += 1
            tuples.append(Tuple(self._tuples, root, edge, start, end - start))
        return records, held, tuples

    def _work(self, number: int, records: pa.Table, tuples: Sequence[Tuple]) -> pa.Table:
        """Send tuples to lanes, wave after wave, until all are acknowledged; what was told."""
        name = self.place.name(number, WORK)
        self._write_work(name, records)
        by_number = {bundle.number: bundle for bundle in tuples}
        for bundle in tuples:
            self.flow.put(bundle.number)
        if self.place.outputs is not None:
            self.place.outputs.clear(number)
        told = [REPORTS.empty_table()]
        try:
            while self.flow.buffered:
                now = time.monotonic() * 1000
                sent = list(self.flow.sendings(now))
                wave: list[list[Tuple]] = [[] for _ in self.flow.lanes]
                for sending in sent:
                    wave[sending.lane].append(by_number[sending.number])
                reports = self._wave(number, name, wave)
                told.append(reports)
                self._acknowledge(sent, by_number, reports, now)
        except BaseException as error:
            self.flow.forget()
            self.acker = Acker()
            if not _is_death(error):
                raise
            done = {n for part in told for n in part["tuple"].to_pylist()}
            rest = [bundle for bundle in tuples if bundle.number not in done]
            told += self._one_by_one(number, name, records, rest)
        finally:
            self.place.files.remove(name)
        return pa.concat_tables(told)

    def _one_by_one(
        self, number: int, name: str, records: pa.Table, tuples: Sequence[Tuple]
    ) -> Iterator[pa.Table]:
        """Each tuple alone, and halves of one at which Python dies, until a record stands alone."""
        least = min(bolt.max_attempts for bolt in self.chain.bolts)
        waiting = list(reversed(tuples))
        troubled = set()  # where keys have an order, what is behind a failure waits
        while waiting:
            bundle = waiting.pop()
            if bundle.number in troubled:
                yield of_held(bundle, np.arange(bundle.rows))
                continue
            try:
                wave: list[list[Tuple]] = [[] for _ in self.flow.lanes]
                wave[0].append(bundle)
                reports = self._wave(number, name, wave)
            except EngineError as error:
                if not _is_death(error):
                    raise
                if bundle.rows > 1:
                    half = bundle.rows // 2
                    rest = replace(bundle, start=bundle.start + half, rows=bundle.rows - half)
                    waiting += [rest, replace(bundle, rows=half)]
                    continue
                attempts = records[ATTEMPTS][bundle.start].as_py() + 1
                reports = of_killed(bundle, dead=attempts >= least)
            if self.settings.ordered and reports["place"].null_count < reports.num_rows:
                troubled.add(bundle.number)
            yield reports

    def _wave(self, number: int, records: str, wave: Sequence[Sequence[Tuple]]) -> pa.Table:
        """One Spark job: each lane does what it gets to."""
        files, name = self.place.files, self.place.name(number, WAVE)
        order = {
            "number": number,
            "records": records,
            "patience_ms": self.flow.ttl_ms,
            "lanes": [[astuple(bundle) for bundle in lane] for lane in wave],
        }
        files.write_json(name, order, durable=False)
        context = self.spark.sparkContext
        context.setLocalProperty(PROPERTY, name)
        context.setJobDescription(f"eddyline pipeline {self.name}")
        try:
            if self._frame is None:
                task = WaveTask(files, self.chain, self.settings.ordered, self._folder, self.schema)
                lanes = numbers(self.spark, len(self.flow.lanes))
                self._frame = lanes.mapInArrow(task, from_arrow_schema(REPORTS))
            return self._frame.toArrow().cast(REPORTS)
        except Exception as error:  # of Spark, of Py4J, of pickling
            raise _failed(self.name, error) from error
        finally:
            context.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
            context.setJobDescription(None)  # type: ignore[arg-type]
            files.remove(name)

    def _acknowledge(
        self,
        sent: Sequence[Sending],
        by_number: Mapping[int, Tuple],
        reports: pa.Table,
        now: float,
    ) -> None:
        """Fold the lanes' messages: what is done, and what goes to another lane."""
        roots = [by_number[sending.number].root for sending in sent]
        edges = [by_number[sending.number].edge for sending in sent]
        acks = reports.filter(pc.is_valid(reports["root"]))
        told = self.acker.fold(
            init=(np.array(roots, np.int64), np.array(edges, np.int64), [s.lane for s in sent]),
            ack=(acks["root"].to_numpy(), acks["value"].to_numpy()),
        )
        done = set(told.roots.view(np.int64).tolist())
        elapsed = dict(zip(acks["tuple"].to_pylist(), acks["elapsed_ms"].to_pylist(), strict=True))
        late = [s for s, root in zip(sent, roots, strict=True) if root not in done]
        if late:
            self.acker.fold(fail=np.array([by_number[s.number].root for s in late], np.int64))
        # the lane's last one first: it tells how long the whole window took
        answered = [s for s, root in zip(sent, roots, strict=True) if root in done]
        for sending in sorted(answered, key=lambda s: -elapsed[s.number]):
            self.flow.ack(sending, now + elapsed[sending.number])
        for sending in late:
            self.flow.fail(sending, now + self.flow.ttl_ms)

    def _write_work(self, name: str, records: pa.Table) -> None:
        """The records where lanes find them; not durable: they are in the queue."""

        def fill(stream: Any) -> None:
            with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), RECORDS) as writer:
                writer.write_table(records)

        self.place.files.write(name, fill, durable=False)

    def _commit(
        self,
        batch: Batch,
        outputs: Sequence[Segment],
        back: pa.Table,
        operations: pa.Table,
        dead: int,
    ) -> None:
        """Make the outcome of a batch durable, and tell it on."""
        place, number = self.place, batch.number
        letters: tuple[Segment, ...] = ()
        if operations.num_rows:
            place.letters.clear(number)
            name = f"{place.letters.folder}/{number:012d}-letters.arrow"
            letters = (write_rows(place.files, name, operations),)
        kept = None
        if back.num_rows:
            kept = write_rows(place.files, place.name(number, BACK), back)
        outcome = Outcome(batch, tuple(outputs), letters, kept, dead)
        document = {**asdict(outcome), "batch": batch.as_dict()}
        place.files.write_json(place.name(number, OUTCOME), document)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        """What follows from an outcome; nothing new happens when it is done again."""
        place, number = self.place, outcome.batch.number
        place.log(outcome)
        if number > self.queue.committed:
            back = read_arrow(place.files, outcome.back) if outcome.back else no_records()
            self.queue.settle(outcome.batch, back.cast(RECORDS), outcome.dead)
            self.queue.commit()
        place.files.remove(place.name(number, OUTCOME))
        place.files.remove(place.name(number, BACK))
        place.files.write_json(f"{place.folder}/{STATUS}", self.status(), durable=False)

    def _unread_retries(self) -> pd.Series:
        """The keys of records that wait to be read again, and the first position of each."""
        waiting = _no_keys()
        for records in self.queue.retries():
            waiting = _with(waiting, records)
        return waiting


@dataclass(frozen=True, slots=True)
class WaveTask:
    """The lanes of every wave, for `mapInArrow`: gives rows of `REPORTS`.

    Which wave it is, and what its lanes are to do, says a file that the local property of the job
    names: so Spark plans one query for all waves.

    Attributes:
        files, chain, ordered: of the lanes.
        folder: of the redo log that outputs go to; empty for none.
        schema: of the outputs.
    """

    files: Files
    chain: Chain
    ordered: bool
    folder: str
    schema: pa.Schema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The work of the lanes whose places come in."""
        context = TaskContext.get()
        assert context is not None
        order = self.files.read_json(str(context.getLocalProperty(PROPERTY)))
        patience_ms = order["patience_ms"]
        lane = Lane(self.files, order["records"], self.chain, self.ordered, patience_ms)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                tuples = [Tuple(*bundle) for bundle in order["lanes"][place]]
                yield from self._work(lane, tuples, order["number"])

    def _work(self, lane: Lane, tuples: Sequence[Tuple], number: int) -> Iterator[pa.RecordBatch]:
        told, made = [], []
        for reports, outputs in lane.work(tuples):
            told.append(reports)
            if len(outputs):
                made.append(outputs)
        if self.schema is not None and made:
            rows = pa.concat_tables(made).rename_columns(numbered("c", len(self.schema)))
            # durable before anything is acknowledged
            unique = f"{number:012d}-{np.random.default_rng().integers(1 << 62):x}"
            name = f"{self.folder}/{unique}.arrow"
            segment = write_rows(self.files, name, rows.combine_chunks())
            told.append(report(file=name, rows=segment.rows, crc=segment.crc))
        yield from pa.concat_tables([REPORTS.empty_table(), *told]).combine_chunks().to_batches()


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
    records: pa.Table, held: npt.NDArray[np.bool_], reports: pa.Table
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
        failed_records(records, part["place"].to_numpy(), part["reason"].to_pylist())
        for part in (retried, chosen)
    )
    parts = [records.filter(pa.array(held)), records.take(waiting["place"].combine_chunks()), again]
    back = pa.concat_tables(parts).sort_by(POSITION)
    now = np.datetime64(time.time_ns() // 1000, "us")
    letters = pa.table(
        {
            "position": found[POSITION],
            "payload": found[PAYLOAD],
            "key": found[KEY],
            "bolt": chosen["bolt"],
            "error": chosen["reason"],
            "attempts": found[ATTEMPTS],
            "received": found[TIME],
            "died": pa.array(np.full(found.num_rows, now)).cast(pa.timestamp("us", "UTC")),
        }
    )
    return back, letters


def _operations(letters: pa.Table, operation: str) -> pa.Table:
    """Entries of the redo log of dead letters."""
    kinds = pa.array([operation] * letters.num_rows, pa.string())
    plain = letters.rename_columns(numbered("c", letters.num_columns))
    return plain.append_column(OPERATION, kinds)


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


def stored_status(files: Files, letters: Entry) -> dict[str, Any]:
    """The status of a pipeline after its last batch, for a process where it isn't connected."""
    name = f"{FOLDER}/{letters.id}/{STATUS}"
    if files.exists(name):
        status: dict[str, Any] = files.read_json(name)
        return status
    return {"name": letters.name.removesuffix(DEAD_SUFFIX)}


# --- keys that wait ---


def _no_keys() -> pd.Series:
    """By key, the positions of records that wait to be read again."""
    return pd.Series([], index=pd.Index([], dtype=object), dtype=np.int64)


def _with(waiting: pd.Series, records: pa.Table) -> pd.Series:
    keyed = records.filter(pc.is_valid(records[KEY]))
    if not keyed.num_rows:
        return waiting
    added = pd.Series(keyed[POSITION].to_numpy(), index=keyed[KEY].to_pylist())
    return pd.concat([waiting, added]) if len(waiting) else added


def _without(waiting: pd.Series, records: pa.Table) -> pd.Series:
    if not len(waiting) or not records.num_rows:
        return waiting
    return waiting[~waiting.isin(records[POSITION].to_numpy())]


def _behind(waiting: pd.Series, records: pa.Table) -> npt.NDArray[np.bool_]:
    """Which records have one of their key before them that waits."""
    if not len(waiting):
        return np.zeros(records.num_rows, bool)
    first = waiting.groupby(level=0).min()
    places = pc.index_in(records[KEY], pa.array(first.index, pa.binary()))
    known = places.is_valid().to_numpy(zero_copy_only=False)
    found = first.to_numpy()[places.fill_null(0).to_numpy()]
    behind: npt.NDArray[np.bool_] = known & (found < records[POSITION].to_numpy())
    return behind


def _slots(records: pa.Table, held: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    """The tuple of each record: one for all records of a key; -1 for those that wait."""
    hashes = pd.util.hash_array(records[KEY].fill_null(b"").to_numpy(), categorize=False)
    slots: npt.NDArray[np.int64] = (hashes % np.uint64(count)).astype(np.int64)
    keyless = records[KEY].is_null().to_numpy()
    slots[keyless] = np.arange(np.count_nonzero(keyless)) % count
    slots[held] = -1
    return slots


def _is_death(error: BaseException) -> bool:
    return isinstance(error, EngineError) and error.condition == WORKER_DIED


def _failed(name: str, error: Exception) -> EngineError:
    if _DEATH in str(error):
        return EngineError(
            f"a Python worker of pipeline {name} died",
            condition=WORKER_DIED,
            pipeline=name,
            hint="the records are tried one by one",
        )
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "Error" in line and line[:1].strip()), "")
    return EngineError(
        f"a wave of pipeline {name} failed: {told or (lines or ['?'])[0]}",
        condition="PIPELINE_FAILED",
        pipeline=name,
        hint="nothing of it was committed; mend the cause and call advance() again",
    )
