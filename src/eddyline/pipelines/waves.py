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
from eddyline.pipelines.outcomes import Place
from eddyline.relay.acker import Acker
from eddyline.relay.bolts import Chain
from eddyline.relay.flow import FlowControl, Sending
from eddyline.relay.keys import codes
from eddyline.relay.lane import (
    REASON_KILLED,
    REPORTS,
    Lane,
    Tuple,
    of_held,
    of_killed,
    report,
)
from eddyline.relay.records import KEY, REASON, RECORDS
from eddyline.runtime.failures import told_by
from eddyline.source.redo_log import write_rows
from eddyline.spark.session import numbers
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
        keyed: the order of outputs counts.
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
        keyed: bool = False,
    ) -> None:
        self.name = pipeline
        self.place = place
        self.chain = chain
        self.schema = schema
        self.flow = flow
        self.spark = spark
        self.ordered = ordered
        self.keyed = keyed
        self.acker = Acker()
        self._folder = "" if place.outputs is None else place.outputs.folder
        self._frame: DataFrame | None = None  # one query for all waves

    def run(self, number: int, records: pa.Table, tuples: Sequence[Tuple]) -> pa.Table:
        """Send tuples to lanes, wave after wave, until all are acknowledged; what was told."""
        name = self.place.name(number, _WORK)
        self._write_work(name, records)
        apart = _suspects(records, tuples)
        by_number = {bundle.number: bundle for bundle in tuples if bundle.number not in apart}
        for bundle in by_number:
            self.flow.put(bundle)
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
            told += self._one_by_one(number, name, records, apart.values())
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
        self, number: int, name: str, records: pa.Table, tuples: Iterable[Tuple]
    ) -> Iterator[pa.Table]:
        """Each tuple alone, and halves of one at which Python dies, until a record stands alone.

        What is joined by key stays together.
        """
        waiting = list(tuples)[::-1]
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
                half = self._middle(records, bundle)
                if half:
                    rest = replace(bundle, start=bundle.start + half, rows=bundle.rows - half)
                    waiting += [rest, replace(bundle, rows=half)]
                    continue
                reports = of_killed(self.chain.bolts, bundle, records)
            if self.ordered and reports["place"].null_count < reports.num_rows:
                troubled.add(bundle.number)
            yield reports

    def _middle(self, records: pa.Table, bundle: Tuple) -> int:
        """How many of a tuple's rows are its first half; 0 if it can't be parted."""
        if not self.chain.joins:
            return bundle.rows // 2
        keys = codes(records[KEY].slice(bundle.start, bundle.rows))
        cuts = np.flatnonzero((np.diff(keys) != 0) | (keys[1:] < 0)) + 1
        return int(cuts[np.argmin(np.abs(cuts - bundle.rows // 2))]) if len(cuts) else 0

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
                task = WaveTask(
                    files, self.chain, self.ordered, self._folder, self.schema, self.keyed
                )
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
        keyed: those of each tuple are a file, so that their order is known.
    """

    files: Files
    chain: Chain
    ordered: bool
    folder: str
    schema: pa.Schema | None
    keyed: bool

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
        for bundle, (reports, outputs) in zip(tuples, lane.work(tuples), strict=False):
            told.append(reports)
            if self.schema is not None and len(outputs):
                made.append(outputs)
                if self.keyed:
                    told.append(self._kept(made, bundle, number))
                    made = []
        if made:
            told.append(self._kept(made, tuples[0], number))
        yield from pa.concat_tables([REPORTS.empty_table(), *told]).combine_chunks().to_batches()

    def _kept(self, made: Sequence[pa.Table], first: Tuple, number: int) -> pa.Table:
        """The report of a file with outputs, which is durable before anything is acknowledged."""
        assert self.schema is not None
        rows = pa.concat_tables(made).rename_columns(numbered("c", len(self.schema)))
        unique = f"{number:012d}-{np.random.default_rng().integers(1 << 62):x}"
        name = f"{self.folder}/{unique}.arrow"
        segment = write_rows(self.files, name, rows.combine_chunks())
        return report(tuple=first.number, file=name, rows=segment.rows, crc=segment.crc)


def _suspects(records: pa.Table, tuples: Sequence[Tuple]) -> dict[int, Tuple]:
    """The tuples of records at which Python has died before: others aren't to die with them."""
    killed = pc.equal(records[REASON], REASON_KILLED).fill_null(False).to_numpy()
    places = np.flatnonzero(killed)
    if not len(places):
        return {}
    starts = np.array([bundle.start for bundle in tuples])
    found = {int(at) for at in np.searchsorted(starts, places, side="right") - 1 if at >= 0}
    return {tuples[at].number: tuples[at] for at in sorted(found)}


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
        hint="nothing of it was committed: mend the cause, and advance() or start() tries it again",
    )
