"""Runs stateful operators in Spark's workers: each task updates one bucket of the state."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from eddyline.changes import BUCKET, HASH, WEIGHT, BucketId, Epoch
from eddyline.operators.base import Operator, Timed
from eddyline.runtime.context import REPORT, EpochContext, arrangement_name, part_name
from eddyline.runtime.worker import CpuOfTask, batches_of, prepare_worker
from eddyline.state.arrangement import Arrangement, Limits, RunWriter
from eddyline.state.expiry import ExpiryColumn
from eddyline.state.grouping import block_starts
from eddyline.state.manifest import ROWS, Manifest, manifest_name, read_manifest
from eddyline.state.retyping import with_nullable_fields
from eddyline.state.run_lists import common_start, read_arrangements
from eddyline.state.runs import keep_open
from eddyline.state.slices import sliced
from eddyline.state.weights import deletes_in
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Owners:
    """The bucket of each key hash of a delta.

    Attributes:
        hashes: the distinct hashes, sorted.
        buckets: the bucket of each.
    """

    hashes: np.ndarray
    buckets: np.ndarray

    @staticmethod
    def of_rows(hashes: np.ndarray, buckets: np.ndarray) -> Owners | None:
        """Return the owners of rows; None if rows of one hash lie in two buckets."""
        places = np.argsort(hashes, kind="stable")
        hashes, buckets = hashes[places], buckets[places]
        starts = np.flatnonzero(block_starts(hashes))
        owners = Owners(hashes[starts], buckets[starts])
        return owners if (owners.of(hashes) == buckets).all() else None

    def all(self) -> list[BucketId]:
        """Return the buckets."""
        return [BucketId(int(bucket)) for bucket in np.unique(self.buckets)]

    def of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the bucket of each of some hashes; the delta must contain them."""
        found: np.ndarray = self.buckets[np.searchsorted(self.hashes, hashes)]
        return found


@dataclass(frozen=True, slots=True)
class Kernel:
    """Runs a stateful operator over one bucket and writes what it adds to its arrangements.

    It writes into the attempt's folder: runs, and a report that names them. A task that Spark runs
    twice writes runs of other names, and its report, which says the same, replaces the first one.

    Attributes:
        slice_bytes: how many bytes of rows are processed at once.
        expiry: the columns of the state to compare with the context's limits, in the same order.
    """

    files: Files
    node: str
    part: str
    operator: Operator
    schema: pa.Schema
    fan_in: int
    slice_bytes: int
    expiry: tuple[ExpiryColumn, ...] = ()

    @property
    def __name__(self) -> str:
        """The operator's name: Spark's plan shows it, and the compiler finds the operator by it."""
        return self.part

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the operator's output delta."""
        prepare_worker()
        cpu = CpuOfTask()
        context = EpochContext.current()
        bucket, given = _bucket_of(batches)
        if isinstance(self.operator, Timed):
            rows = _whole(given)
        else:
            rows = sliced(given, self.slice_bytes)
        task = TaskContext.get()
        assert task is not None
        if bucket is None and isinstance(self.operator, Timed):
            bucket = BucketId(
                task.partitionId()
            )  # no shuffle comes after the one that made the buckets
        name = f"{task.stageId()}-{task.partitionId()}"
        file = f"{self.prefix(context)}{name}{REPORT}"
        report = cpu.reporting(partial(self.files.write_json, file, durable=False))
        for table in self.run(context, f"{name}-{task.taskAttemptId()}", bucket, rows, report):
            yield from batches_of(table, self.schema)

    def in_driver(self) -> Kernel:
        """Return the kernel for a run in the driver, which flushes all files of an epoch together."""
        return replace(self, files=self.files.flushed_later())

    def prefix(self, context: EpochContext) -> str:
        """Return the beginning of the names of all files that this operator writes in an epoch."""
        return f"{context.folder}/{self.node}.{self.part}."

    def run(
        self,
        context: EpochContext,
        task: str,
        bucket: BucketId | None,
        deltas: Iterable[pa.Table],
        report: Callable[[dict[str, Any]], object],
    ) -> Iterator[pa.Table]:
        """Yield the output of one bucket, then write its runs and report them.

        Args:
            task: the task's name, a part of the names of its files.
            bucket: number of the bucket; None if the task got no rows, from which it is read.
            deltas: the input rows in slices, lowest hashes first; all in one for a `Timed` operator.
            report: receives the task's report, once the runs that it names are written.
        """
        operator, limits = self._limited(context)
        counts = {"in": 0, "out": 0, "deleted": 0, "touched": 0, "us": 0}
        slots: dict[str, dict[str, Any]] = {}
        if bucket is not None:
            started, before = time.perf_counter(), 0.0
            state = self._state(context, operator, bucket)
            written: dict[str, RunWriter] = {}
            # as stored rows are read, which the operator may put together with them
            given: Iterable[pa.Table | None] = (
                with_nullable_fields(delta) for delta in deltas if delta.num_rows
            )
            if isinstance(operator, Timed):
                given = list(given) or [None]
            for delta in given:
                counts["in"] += 0 if delta is None else delta.num_rows
                step = operator.step(delta, state)
                for table in step.output:
                    counts["out"] += table.num_rows
                    before += time.perf_counter() - started
                    yield table.drop_columns([HASH]) if HASH in table.column_names else table
                    started = (
                        time.perf_counter()
                    )  # the time in which the caller processes it isn't the operator's
                for slot, rows in step.appends.items():
                    if slot not in written:
                        written[slot] = self._writer(context, slot, task, state[slot])
                    written[slot].add(rows)
                    counts["deleted"] += deletes_in(rows[WEIGHT]) if slot == ROWS else 0
            for slot, writer in written.items():
                slots[slot] = self._extended(writer, state[slot], limits.get(slot, ()))
            counts["touched"] = sum(arrangement.touched for arrangement in state.values())
            counts["us"] = round((before + time.perf_counter() - started) * 1e6)
        report({"bucket": bucket, "counts": counts, "slots": slots})

    def run_all(
        self,
        context: EpochContext,
        delta: pa.Table,
        of: np.ndarray,
        buckets: int,
        report: Callable[[dict[str, Any]], object],
    ) -> tuple[list[pa.Table], np.ndarray]:
        """Run the operator over all buckets in this process; in one call, if no hash is in two buckets.

        Args:
            delta: the input rows of all buckets.
            of: for each of them the number of its bucket.
            buckets: how many there are.
            report: receives the report of each bucket, as from `run`.

        Returns:
            The output, and for each of its rows the number of its bucket.
        """
        owners = None
        if not isinstance(self.operator, Timed):
            owners = Owners.of_rows(delta[HASH].to_numpy(), of)
        if owners is not None:
            return self._run_together(context, delta, owners, report)
        output, numbers = [], []
        for bucket in map(BucketId, range(buckets)):
            rows = delta.filter(pa.array(of == bucket))
            for table in self.run(context, f"driver-{bucket}-0", bucket, [rows], report):
                output.append(table)
                numbers.append(np.full(table.num_rows, bucket))
        return output, np.concatenate(numbers) if numbers else np.empty(0, np.int64)

    def _run_together(
        self,
        context: EpochContext,
        delta: pa.Table,
        owners: Owners,
        report: Callable[[dict[str, Any]], object],
    ) -> tuple[list[pa.Table], np.ndarray]:
        started = time.perf_counter()
        operator, limits = self._limited(context)
        buckets = owners.all()
        states = {bucket: self._state(context, operator, bucket) for bucket in buckets}
        together = {
            slot: Arrangement(
                self.files, layout, [run for state in states.values() for run in state[slot].runs]
            )
            for slot, layout in operator.layouts.items()
        }
        step = operator.step(with_nullable_fields(delta), together)
        output = list(step.output)
        numbers = [owners.of(table[HASH].to_numpy()) for table in output]
        reports: dict[BucketId, dict[str, Any]] = {
            bucket: {"bucket": bucket, "counts": {}, "slots": {}} for bucket in buckets
        }
        for slot, rows in step.appends.items():
            of = owners.of(rows[HASH].to_numpy())
            for bucket in buckets:
                own = rows if len(buckets) == 1 else rows.filter(pa.array(of == bucket))
                held = states[bucket][slot]
                writer = self._writer(context, slot, f"driver-{bucket}-0", held)
                writer.add(own)
                reports[bucket]["slots"][slot] = self._extended(writer, held, limits.get(slot, ()))
        reports[buckets[0]]["counts"] = {
            "in": delta.num_rows,
            "out": sum(table.num_rows for table in output),
            "deleted": deletes_in(step.appends[ROWS][WEIGHT]) if ROWS in step.appends else 0,
            "touched": sum(arrangement.touched for arrangement in together.values()),
            "us": round((time.perf_counter() - started) * 1e6),
        }
        for one in reports.values():
            report(one)
        return (
            [table.drop_columns([HASH]) for table in output],
            np.concatenate(numbers) if numbers else np.empty(0, np.int64),
        )

    def _limited(self, context: EpochContext) -> tuple[Operator, Mapping[str, Limits]]:
        """Return the operator, and for each slot the limits below which its rows are dropped."""
        values = context.limits.get(part_name(self.node, self.part), ())
        operator = self.operator
        if isinstance(operator, Timed):
            operator = operator.limited(values[0] if values else None)
        return operator, limits_by_slot(operator, self.expiry, values)

    def _state(
        self, context: EpochContext, operator: Operator, bucket: BucketId
    ) -> dict[str, Arrangement]:
        """Return the bucket's arrangements as of the last committed epoch; empty if rebuilt."""
        rebuilt = self.node in context.rebuilt
        view, adopted = context.adopted
        if view == self.node:
            manifest = _adopted(self.files.root, adopted)
        else:
            manifest = _manifest(self.files.root, Epoch(0) if rebuilt else context.base)
        return {
            slot: Arrangement(
                self.files,
                layout,
                manifest.runs(arrangement_name(self.node, self.part, slot), bucket),
            )
            for slot, layout in operator.layouts.items()
        }

    def _writer(self, context: EpochContext, slot: str, task: str, held: Arrangement) -> RunWriter:
        """Return the writer of the rows that an epoch adds to an arrangement."""
        name = f"{self.prefix(context)}{slot}.{task}"
        return RunWriter(self.files, name, held.layout, self.slice_bytes)

    def _extended(self, writer: RunWriter, held: Arrangement, limits: Limits) -> dict[str, Any]:
        """Finish the run that is added to an arrangement; return its entry for the report."""
        added = writer.finish()
        runs, left = held.extend(
            f"{writer.name}.merged", added, self.fan_in, limits, self.slice_bytes
        )
        kept = common_start(held.runs, runs)
        return {
            "kept": kept,
            "runs": [run.as_list() for run in runs[kept:]],
            "delta": [run.as_list() for run in added],
            "merge": left,
        }


def _bucket_of(
    batches: Iterable[pa.RecordBatch],
) -> tuple[BucketId | None, Iterator[pa.RecordBatch]]:
    """Return the bucket of a task's rows, None if there are none, and the rows without its column."""
    left = iter(batches)
    first = next((batch for batch in left if batch.num_rows), None)
    if first is None:
        return None, left
    rows = (batch.drop_columns([BUCKET]) for batch in chain([first], left))
    return first[BUCKET][0].as_py(), rows


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held = list(batches)
    if held:
        yield pa.Table.from_batches(held)


def limits_by_slot(
    operator: Operator, expiry: Sequence[ExpiryColumn], values: Sequence[int | None]
) -> dict[str, Limits]:
    """Return for each slot of an operator the limits below which its rows are dropped; none for a `Timed` one.

    Args:
        expiry: the columns to compare.
        values: for each of them the limit of the epoch; None if no row may be dropped yet.
    """
    if isinstance(operator, Timed):
        return {}
    pairs = zip(expiry, values, strict=False)
    limits = [(column, value) for column, value in pairs if value is not None]
    slots = {column.slot for column, _ in limits}
    return {slot: [one for one in limits if one[0].slot == slot] for slot in slots}


def _manifest(root: str, epoch: Epoch) -> Manifest:
    if epoch == 0:
        return read_manifest(Files(root), epoch)
    # another storage may now have the same path
    status = os.stat(Files(root).path(manifest_name(epoch)))
    return _cached_manifest(root, epoch, (status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _adopted(root: str, name: str) -> Manifest:
    """Return the state of a new view that was computed before the epoch; cached, as each attempt has its own file."""
    return Manifest(Epoch(0), arrangements=read_arrangements(Files(root), name))


@functools.lru_cache(maxsize=8)
def _cached_manifest(root: str, epoch: Epoch, _version: tuple[int, int]) -> Manifest:
    files = Files(root)
    manifest = read_manifest(files, epoch)
    keep_open(files, manifest.all_runs())  # compaction has replaced the other runs
    return manifest
