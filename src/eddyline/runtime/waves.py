"""Waves: tuples of a batch go to lanes, a Spark task each, until all of them are acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from eddyline.errors import EngineError
from eddyline.operators.base import numbered
from eddyline.relay.acker import Acker
from eddyline.relay.bolts import Chain
from eddyline.relay.flow import FlowControl, Sending
from eddyline.relay.lane import REPORTS, Lane, Tuple, of_held, of_killed, report
from eddyline.relay.records import ATTEMPTS, RECORDS
from eddyline.runtime.failures import told_by
from eddyline.runtime.outcomes import Place
from eddyline.runtime.reader import numbers
from eddyline.source.log import write_rows
from eddyline.storage.files import Files

PROPERTY = "eddyline.wave"
WORKER_DIED = "WORKER_DIED"
_DEATH = "Python worker exited unexpectedly"  # how Spark says so
_WORK = "work.arrow"
_WAVE = "wave.json"


class Waves:
    """Sends the tuples of one batch after the other.

    Args:
        pipeline: its name.
        place: where it keeps what it knows.
        chain: what is done with each record.
        schema: of the outputs; None if there are none to keep.
        ordered: records of a key come one after the other.
        flow: decides what goes where; knows how the lanes do.
        spark: where the lanes are tasks.
    """

    def __init__(
        self,
        pipeline: str,
        place: Place,
        chain: Chain,
        schema: pa.Schema | None,
        flow: FlowControl,
        spark: SparkSession,
        *,
        ordered: bool,
    ) -> None:
        self.name = pipeline
        self.place = place
        self.chain = chain
        self.schema = schema
        self.flow = flow
        self.spark = spark
        self.ordered = ordered
        self.acker = Acker()
        self._folder = "" if place.outputs is None else place.outputs.folder
        self._frame: DataFrame | None = None  # one query for all waves

    def run(self, number: int, records: pa.Table, tuples: Sequence[Tuple]) -> pa.Table:
        """Send tuples to lanes, wave after wave, until all are acknowledged; what was told."""
        name = self.place.name(number, _WORK)
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
                reports = of_killed(self.chain.bolts, bundle, attempts)
            if self.ordered and reports["place"].null_count < reports.num_rows:
                troubled.add(bundle.number)
            yield reports

    def _wave(self, number: int, records: str, wave: Sequence[Sequence[Tuple]]) -> pa.Table:
        """One Spark job: each lane does what it gets to."""
        files, name = self.place.files, self.place.name(number, _WAVE)
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
                task = WaveTask(files, self.chain, self.ordered, self._folder, self.schema)
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
    return EngineError(
        f"a wave of pipeline {name} failed: {told_by(error)}",
        condition="PIPELINE_FAILED",
        pipeline=name,
        hint="nothing of it was committed; mend the cause and call advance() again",
    )
