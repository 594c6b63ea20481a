"""Waves: Spark jobs that process the tuples of a batch, with a task for each lane."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from eddyline.errors import EngineError, message_text
from eddyline.pipelines.outcomes import PipelineFiles
from eddyline.relay.acker import Ackers
from eddyline.relay.bolts import Bolt, BoltChain
from eddyline.relay.flow import FlowControl, Sending
from eddyline.relay.keys import key_codes
from eddyline.relay.lane import (
    REASON_KILLED,
    REPORTS,
    LaneWorker,
    Tuple,
    held_report,
    killed_report,
    report_row,
)
from eddyline.relay.records import KEY, REASON, RECORDS
from eddyline.source.log_files import write_rows
from eddyline.spark.failures import message_of, worker_died
from eddyline.spark.session import numbers
from eddyline.storage.files import Files

PROPERTY = "eddyline.wave"
WORKER_DIED = "WORKER_DIED"
_WORK = "work.arrow"
_WAVE = "wave.json"


class Waves:
    """Processes the batches of a pipeline in Spark.

    Args:
        pipeline: name of the pipeline.
        files: its files.
        chain: the bolts to run for each record.
        places: places of the outputs' columns in the stream; None if they aren't kept.
        flow: assigns tuples to lanes.
        spark: the session that runs the lanes as tasks.
        ordered: whether to process the records of a key in order.
        keyed: whether the order of outputs matters.
        ackers: number of ackers of the tuples.
    """

    def __init__(
        self,
        pipeline: str,
        files: PipelineFiles,
        chain: BoltChain,
        places: Sequence[int] | None,
        flow: FlowControl,
        spark: SparkSession,
        *,
        ordered: bool,
        keyed: bool = False,
        ackers: int = 1,
    ) -> None:
        self.name = pipeline
        self.files = files
        self.chain = chain
        self.places = places
        self.flow = flow
        self.spark = spark
        self.ordered = ordered
        self.keyed = keyed
        self.acker = Ackers(ackers)
        self._folder = "" if files.outputs is None else files.outputs.folder
        self._frame: DataFrame | None = None  # one query, planned once, for all waves

    def run(self, number: int, records: pa.Table, tuples: Sequence[Tuple]) -> pa.Table:
        """Process tuples, wave after wave, until all are acknowledged.

        If a Python worker dies, the remaining tuples are tried one by one.

        Args:
            number: number of the batch.
            records: the records of the batch, of schema `RECORDS`.
            tuples: the tuples; each is a range of `records`.

        Returns:
            The rows of `REPORTS` from all lanes.
        """
        name = self.files.name(number, _WORK)
        self._write_records(name, records)
        if self.files.outputs is not None:
            self.files.outputs.clear(number)
        suspects = _suspects(records, tuples)
        reports = [REPORTS.empty_table()]
        try:
            unsuspected = [bundle for bundle in tuples if bundle.number not in suspects]
            self._run_waves(number, name, unsuspected, reports)
            reports += self._one_by_one(number, name, records, suspects.values())
        except BaseException as error:
            self.flow.reset()
            for _ in range(2):  # its roots are sent again, if at all, under other ids
                self.acker.rotate()
            if not _is_worker_death(error):
                raise
            processed = {n for part in reports for n in part["tuple"].to_pylist()}
            rest = [bundle for bundle in tuples if bundle.number not in processed]
            reports += self._one_by_one(number, name, records, rest)
        finally:
            self.files.storage.remove(name)
        return pa.concat_tables(reports)

    def _run_waves(
        self, number: int, records: str, tuples: Sequence[Tuple], reports: list[pa.Table]
    ) -> None:
        """Send tuples to lanes until all are acknowledged; append each wave to `reports`."""
        by_number = {bundle.number: bundle for bundle in tuples}
        for tuple_number in by_number:
            self.flow.put(tuple_number)
        while self.flow.buffered:
            now = time.monotonic() * 1000
            sent = [(sending, by_number[sending.number]) for sending in self.flow.sendings(now)]
            wave: list[list[Tuple]] = [[] for _ in self.flow.lanes]
            for sending, bundle in sent:
                wave[sending.lane].append(bundle)
            reports.append(self._run_wave(number, records, wave))
            self._acknowledge(sent, reports[-1], now)

    def _one_by_one(
        self, number: int, name: str, records: pa.Table, tuples: Iterable[Tuple]
    ) -> Iterator[pa.Table]:
        """Process each tuple in a wave of its own, to find the records that kill Python workers.

        A tuple that kills a worker is halved and tried again, down to single records. Records that are
        joined by key stay together.

        Yields:
            The reports of each wave, or of records that killed a worker or are held.
        """
        waiting = list(tuples)[::-1]
        failed = set()  # numbers of tuples in which the records after a failure are held
        while waiting:
            bundle = waiting.pop()
            if bundle.number in failed:
                yield held_report(bundle, np.arange(bundle.rows))
                continue
            try:
                wave: list[list[Tuple]] = [[] for _ in self.flow.lanes]
                wave[0].append(bundle)
                reports = self._run_wave(number, name, wave)
            except EngineError as error:
                if not _is_worker_death(error):
                    raise
                half = self._middle(records, bundle)
                if half:
                    rest = replace(bundle, start=bundle.start + half, rows=bundle.rows - half)
                    waiting += [rest, replace(bundle, rows=half)]
                    continue
                reports = killed_report(self.chain.bolts, bundle, records)
            if self.ordered and reports["place"].null_count < reports.num_rows:
                failed.add(bundle.number)
            yield reports

    def _middle(self, records: pa.Table, bundle: Tuple) -> int:
        """Return the number of rows in the first half of a tuple; 0 if it can't be split."""
        if not self.chain.joins:
            return bundle.rows // 2
        keys = key_codes(records[KEY].slice(bundle.start, bundle.rows))
        cuts = np.flatnonzero((np.diff(keys) != 0) | (keys[1:] < 0)) + 1
        return int(cuts[np.argmin(np.abs(cuts - bundle.rows // 2))]) if len(cuts) else 0

    def _run_wave(self, number: int, records: str, wave: Sequence[Sequence[Tuple]]) -> pa.Table:
        """Run one Spark job and return the reports of its lanes.

        Args:
            number: number of the batch.
            records: name of the file with its records.
            wave: the tuples of each lane.

        Raises:
            EngineError: the job failed; `WORKER_DIED` if a Python worker died.
        """
        files, name = self.files.storage, self.files.name(number, _WAVE)
        assignment = {
            "number": number,
            "records": records,
            "patience_ms": self.flow.ttl_ms,
            "lanes": [[astuple(bundle) for bundle in lane] for lane in wave],
        }
        files.write_json(name, assignment, durable=False)
        context = self.spark.sparkContext
        context.setLocalProperty(PROPERTY, name)
        context.setJobDescription(f"eddyline pipeline {self.name}")
        try:
            if self._frame is None:
                task = WaveTask(
                    files, self.chain, self.ordered, self._folder, self.places, self.keyed
                )
                lanes = numbers(self.spark, len(self.flow.lanes))
                self._frame = lanes.mapInArrow(task, from_arrow_schema(REPORTS))
            return self._frame.toArrow().cast(REPORTS)
        except Exception as error:  # of Spark, of Py4J, of pickling
            raise _job_error(self.name, error) from error
        finally:
            context.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
            context.setJobDescription(None)  # type: ignore[arg-type]
            files.remove(name)

    def _acknowledge(
        self, sent: Sequence[tuple[Sending, Tuple]], reports: pa.Table, now: float
    ) -> None:
        """Report to flow control which tuples of a wave were processed in time."""
        acks = reports.filter(pc.is_valid(reports["root"]))
        done = self._fold(sent, acks)
        elapsed = dict(zip(acks["tuple"].to_pylist(), acks["elapsed_ms"].to_pylist(), strict=True))
        answered = [sending for sending, bundle in sent if bundle.root in done]
        # the last tuple of a lane first: its time is that of the whole window
        for sending in sorted(answered, key=lambda s: -elapsed[s.number]):
            self.flow.ack(sending, now + elapsed[sending.number])
        for sending, bundle in sent:
            if bundle.root not in done:
                self.flow.fail(sending, now + self.flow.ttl_ms)

    def _fold(self, sent: Sequence[tuple[Sending, Tuple]], acks: pa.Table) -> set[int]:
        """Fold the messages of a wave into the acker; return the roots that are done."""
        roots = np.array([bundle.root for _, bundle in sent], np.int64)
        edges = np.array([bundle.edge for _, bundle in sent], np.int64)
        ended = self.acker.fold(
            init=(roots, edges, [sending.lane for sending, _ in sent]),
            ack=(acks["root"].to_numpy(), acks["value"].to_numpy()),
        )
        done = set(ended.roots.view(np.int64).tolist())
        late = roots[[root not in done for root in roots.tolist()]]
        if len(late):
            self.acker.fold(fail=late)
        return done

    def _write_records(self, name: str, records: pa.Table) -> None:
        """Write the records for the lanes; not durably, since the queue has them."""

        def fill(stream: Any) -> None:
            with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), RECORDS) as writer:
                writer.write_table(records)

        self.files.storage.write(name, fill, durable=False)


@dataclass(frozen=True, slots=True)
class WaveTask:
    """The function of a wave's tasks, for `mapInArrow`; returns rows of `REPORTS`.

    A file, named by a local property of the job, assigns tuples to lanes. So the query is the same
    for all waves, and Spark plans it once.

    Attributes:
        files, chain, ordered: as for `LaneWorker`.
        folder: folder of the redo log for the outputs; empty for none.
        places: places of the outputs' columns in the stream; None if they aren't kept.
        keyed: write a file for each tuple, so that the order of outputs is known.
    """

    files: Files
    chain: BoltChain
    ordered: bool
    folder: str
    places: Sequence[int] | None
    keyed: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the lanes whose numbers are in the first column."""
        context = TaskContext.get()
        assert context is not None
        assignment = self.files.read_json(str(context.getLocalProperty(PROPERTY)))
        worker = LaneWorker(
            self.files, assignment["records"], self.chain, self.ordered, assignment["patience_ms"]
        )
        for batch in batches:
            for lane in batch.column(0).to_pylist():
                tuples = [Tuple(*bundle) for bundle in assignment["lanes"][lane]]
                yield from self._run_lane(worker, tuples, assignment["number"])

    def _run_lane(
        self, worker: LaneWorker, tuples: Sequence[Tuple], number: int
    ) -> Iterator[pa.RecordBatch]:
        reports, unwritten = [REPORTS.empty_table()], []
        for bundle, (report, outputs) in zip(tuples, worker.work(tuples), strict=False):
            reports.append(report)
            if self.places is not None and len(outputs):
                unwritten.append(outputs)
                if self.keyed:
                    reports.append(self._write_outputs(unwritten, bundle, number))
                    unwritten = []
        if unwritten:
            reports.append(self._write_outputs(unwritten, tuples[0], number))
        yield from pa.concat_tables(reports).combine_chunks().to_batches()

    def _write_outputs(self, outputs: Sequence[pa.Table], first: Tuple, number: int) -> pa.Table:
        """Write outputs durably, before they are acknowledged; return the report of the file."""
        assert self.places is not None
        rows = pa.concat_tables(outputs).rename_columns([f"c{place}" for place in self.places])
        unique = f"{number:012d}-{np.random.default_rng().integers(1 << 62):x}"
        name = f"{self.folder}/{unique}.arrow"
        segment = write_rows(self.files, name, rows.combine_chunks())
        return report_row(tuple=first.number, file=name, rows=segment.rows, crc=segment.crc)


def _suspects(records: pa.Table, tuples: Sequence[Tuple]) -> dict[int, Tuple]:
    """Return the tuples with records that have killed a Python worker, by number.

    They are processed on their own, so that they don't kill the worker of other tuples.
    """
    killed = pc.equal(records[REASON], REASON_KILLED).fill_null(False).to_numpy()
    indices = np.flatnonzero(killed)
    if not len(indices):
        return {}
    starts = np.array([bundle.start for bundle in tuples])
    found = {int(at) for at in np.searchsorted(starts, indices, side="right") - 1 if at >= 0}
    return {tuples[at].number: tuples[at] for at in sorted(found)}


def _is_worker_death(error: BaseException) -> bool:
    return isinstance(error, EngineError) and error.condition == WORKER_DIED


def check_bolts(bolts: Iterable[Bolt]) -> None:
    """Raise EngineError (BAD_BOLT) for a bolt that Spark can't send to its workers."""
    for bolt in bolts:
        try:
            cloudpickle.dumps(bolt.function)
        except Exception as error:  # of whatever the function refers to
            raise EngineError(
                f"bolt {bolt.name} can't be sent to Spark's workers: {message_text(error)}",
                condition="BAD_BOLT",
                bolt=bolt.name,
                hint="open connections and make locks within the function, at its first call",
            ) from error


def _job_error(name: str, error: Exception) -> EngineError:
    """Translate an error of a Spark job into EngineError."""
    if worker_died(error):
        return EngineError(
            f"a Python worker of pipeline {name} died",
            condition=WORKER_DIED,
            pipeline=name,
            hint="the records are tried one by one",
        )
    return EngineError(
        f"a wave of pipeline {name} failed: {message_of(error)}",
        condition="PIPELINE_FAILED",
        pipeline=name,
        hint="nothing of it was committed: mend the cause, and advance() or start() tries it again",
    )
