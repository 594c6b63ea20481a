"""Runs stateful operators in Spark's workers: each task updates one bucket of the state."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from eddyline.changes import BUCKET, HASH, WEIGHT, BucketId, Epoch
from eddyline.operators.base import BucketResult, Operator, State, Timed
from eddyline.runtime.context import REPORT, EpochContext, arrangement_name, part_name
from eddyline.runtime.worker import CpuOfTask, batches_of, prepare_worker
from eddyline.spark.threads import parts_at_once, side_by_side
from eddyline.state.arrangement import Arrangement, Limits, RunWriter
from eddyline.state.expiry import ExpiryColumn
from eddyline.state.grouping import block_starts
from eddyline.state.kernels import where
from eddyline.state.manifest import ROWS, Manifest, manifest_name, read_manifest
from eddyline.state.retyping import with_nullable_fields
from eddyline.state.run_lists import common_start, read_arrangements
from eddyline.state.runs import keep_open
from eddyline.state.slices import CACHED_BYTES, sliced, spans_of_hashes
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
        """Return the owners of rows that are sorted by hash; None if rows of one hash lie in two buckets."""
        starts = block_starts(hashes)
        if (buckets[1:] != buckets[:-1])[~starts[1:]].any():
            return None
        return Owners(hashes[starts], buckets[starts])

    def all(self) -> list[BucketId]:
        """Return the buckets."""
        return [BucketId(int(bucket)) for bucket in np.flatnonzero(np.bincount(self.buckets))]

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
        """Run the operator over all buckets in this process; over several at once, if no hash is in two buckets.

        Args:
            delta: the input rows of all buckets.
            of: for each of them the number of its bucket.
            buckets: how many there are.
            report: receives the report of each bucket, as from `run`.

        Returns:
            The output, and for each of its rows the number of its bucket.
        """
        if not isinstance(self.operator, Timed):
            hashes = delta[HASH].to_numpy()
            places = np.argsort(hashes, kind="stable")
            hashes = hashes[places]
            owners = Owners.of_rows(hashes, of[places])
            if owners is not None:
                slices = _slices(places, hashes, delta.nbytes)
                return self._run_together(context, delta, slices, owners, report)
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
        slices: Sequence[np.ndarray],
        owners: Owners,
        report: Callable[[dict[str, Any]], object],
    ) -> tuple[list[pa.Table], np.ndarray]:
        """Run the operator over the buckets of all rows at once, slice by slice; several slices on all cores.

        Args:
            slices: the places of the rows of each, lowest hashes first.
        """
        started = time.perf_counter()
        operator, limits = self._limited(context)
        buckets = owners.all()
        states = {bucket: self._state(context, operator, bucket) for bucket in buckets}
        threads = min(parts_at_once(), len(slices)) if len(slices) > 1 else 1
        ends = [number * len(slices) // threads for number in range(threads + 1)]
        shares = side_by_side(
            [
                partial(self._steps, operator, states.values(), delta, slices[start:end])
                for start, end in pairwise(ends)
            ]
        )
        steps = [step for share, _ in shares for step in share]
        output = [table for step in steps for table in step.output]
        appends = _appends(steps, owners)
        writes = [
            partial(self._write, context, bucket, states[bucket], appends, limits)
            for bucket in buckets
        ]
        written = side_by_side(writes) if threads > 1 else [write() for write in writes]
        counts = {
            "in": delta.num_rows,
            "out": sum(table.num_rows for table in output),
            "deleted": sum(deletes_in(rows[WEIGHT]) for rows, _ in appends.get(ROWS, ())),
            "touched": sum(touched for _, touched in shares),
            "us": round((time.perf_counter() - started) * 1e6),
        }
        for bucket, slots in zip(buckets, written, strict=True):
            report({"bucket": bucket, "counts": counts, "slots": slots})
            counts = {}  # all are in the first one
        numbers = [owners.of(table[HASH].to_numpy()) for table in output]
        return (
            [table.drop_columns([HASH]) for table in output],
            np.concatenate(numbers) if numbers else np.empty(0, np.int64),
        )

    def _steps(
        self,
        operator: Operator,
        states: Iterable[State],
        delta: pa.Table,
        slices: Iterable[np.ndarray],
    ) -> tuple[list[BucketResult], int]:
        """Return what the operator makes of each slice, over several buckets, and how many stored rows it has read.

        Args:
            slices: the places of their rows.
        """
        together = {
            slot: Arrangement(
                self.files, layout, [run for state in states for run in state[slot].runs]
            )
            for slot, layout in operator.layouts.items()
        }
        steps = []
        for places in slices:
            step = operator.step(with_nullable_fields(delta.take(pa.array(places))), together)
            steps.append(replace(step, output=list(step.output)))
        return steps, sum(arrangement.touched for arrangement in together.values())

    def _write(
        self,
        context: EpochContext,
        bucket: BucketId,
        state: State,
        appends: Mapping[str, Sequence[tuple[pa.Table, np.ndarray]]],
        limits: Mapping[str, Limits],
    ) -> dict[str, dict[str, Any]]:
        """Write what is added to a bucket; return the entry of each arrangement for the report.

        Args:
            appends: for each arrangement the rows of all buckets, lowest hashes first, with the bucket of each.
        """
        slots = {}
        for slot, parts in appends.items():
            writer = self._writer(context, slot, f"driver-{bucket}-0", state[slot])
            for rows, of in parts:
                writer.add(where(rows, of == bucket))
            slots[slot] = self._extended(writer, state[slot], limits.get(slot, ()))
        return slots

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


def _slices(places: np.ndarray, hashes: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut the places of rows, sorted by their hashes, into slices that fit into a processor's cache.

    Args:
        hashes: the hash at each of the places.
        size: bytes of all rows.
    """
    count = -(-size // CACHED_BYTES)
    if count < 2:
        return [places]
    spans = [span for (span,) in spans_of_hashes([hashes], count)]
    return [places[start:end] for start, end in spans if start < end]


def _appends(
    steps: Iterable[BucketResult], owners: Owners
) -> dict[str, list[tuple[pa.Table, np.ndarray]]]:
    """Return for each arrangement what steps add to it, with the bucket of each row."""
    appends: dict[str, list[tuple[pa.Table, np.ndarray]]] = {}
    for step in steps:
        for slot, rows in step.appends.items():
            appends.setdefault(slot, []).append((rows, owners.of(rows[HASH].to_numpy())))
    return appends


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
