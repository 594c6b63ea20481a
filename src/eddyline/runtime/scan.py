"""The leaves of a plan: functions that read an epoch's segments in Spark's workers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, SEQUENCE, WEIGHT
from eddyline.runtime.context import REPORT, EpochContext, inputs_name
from eddyline.runtime.shared_scans import SharedScans
from eddyline.runtime.worker import CpuOfTask, batches_of, prepare_worker
from eddyline.source.conditions import Condition, rows_where
from eddyline.source.rounding import Rounding
from eddyline.source.segment_readers import Reader, read_segment
from eddyline.source.segments import (
    BUCKET_RUNS,
    ROWS_MAX,
    RUN,
    Segment,
    Wanted,
    accepted_by_time,
    event_times,
    read_arrow,
    rejected_by_time,
)
from eddyline.state.arrangement import Layout
from eddyline.state.kernels import merged_if_repetitive
from eddyline.state.retyping import with_nullable_fields
from eddyline.state.runs import Run
from eddyline.state.slices import SLICE_BYTES, in_slices
from eddyline.storage.files import Files


@functools.lru_cache(maxsize=64)
def _inputs(root: str, name: str) -> dict[str, list[list[Segment]]]:
    document = Files(root).read_json(name)
    return {
        leaf: [[Segment(**segment) for segment in task] for task in tasks]
        for leaf, tasks in document.items()
    }


@dataclass(frozen=True, slots=True)
class LeafScan:
    """Reads the segments that the epoch assigns to a task of one leaf.

    Attributes:
        node, leaf: id of the view, and name of the leaf.
        relation: name of what it reads.
        names: names of all columns of the relation that it reads.
        columns: positions of the columns to read.
        schema: Arrow schema of the output.
        time: position and type of the event-time column of a stream with a watermark; else None.
        late: return the rejected rows instead of the accepted ones.
        reasons: the relation's last column says why a row is rejected.
        readers: readers for the kinds of segments that only registered formats use.
        slice_bytes: how many bytes of a bucket's runs are merged at once.
        where: rows for which this isn't true are left out, but counted.
        rounded: times that are rounded down after that.
    """

    files: Files
    node: str
    leaf: str
    relation: str
    names: tuple[str, ...]
    columns: tuple[int, ...]
    schema: pa.Schema
    time: tuple[int, pa.DataType] | None = None
    late: bool = False
    reasons: bool = False
    readers: Mapping[str, Reader] = field(default_factory=dict)
    slice_bytes: int = SLICE_BYTES
    where: Condition | None = None
    rounded: tuple[Rounding, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the task's segments, then write a report with their number.

        Args:
            batches: hold the task's number, which selects its segments.
        """
        prepare_worker()
        cpu = CpuOfTask()
        context = EpochContext.current()
        assigned = _inputs(self.files.root, inputs_name(context.folder, self.node))
        tasks = assigned.get(self.leaf, [])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number < len(tasks) and tasks[number]:
                    name = f"{context.folder}/{self.node}.{self.leaf}.{number}{REPORT}"
                    report = partial(self.files.write_json, name, durable=False)
                    yield from self.run(tasks[number], cpu.reporting(report))

    def run(
        self,
        segments: Iterable[Segment],
        report: Callable[[dict[str, Any]], object],
        shared: SharedScans | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some segments, then report how many there were.

        Args:
            shared: reads what other scans read, too.
        """
        counts = {"read": 0, "late": 0, "ahead": 0}
        for segment in segments:
            for table in self._read(segment, counts, shared):
                counts["read"] += table.num_rows
                rows = table
                if self.where is not None:
                    rows = rows_where(self.where, rows, self.schema)
                for one in self.rounded:
                    rows = one.applied(rows, self.schema)
                if SEQUENCE not in rows.column_names:
                    rows = merged_if_repetitive(rows)
                yield from batches_of(rows, self.schema)
        report(counts)

    def _read(
        self, segment: Segment, report: dict[str, int], shared: SharedScans | None
    ) -> Iterator[pa.Table]:
        """Yield a segment's rows; for a stream with a watermark the accepted or the rejected ones."""
        if self.time is None:
            yield from self._tables(segment, self.columns, self.schema, shared)
            return
        place, kind = self.time
        columns, schema, reason = self.columns, self.schema, None
        if self.reasons and columns and columns[-1] == len(self.names) - 1:
            columns, reason = columns[:-1], f"c{len(columns) - 1}"
            schema = schema.remove(len(columns))
        added = place not in columns
        if added:
            columns = (*columns, place)
            schema = schema.insert(len(schema) - 1, pa.field(f"c{len(columns) - 1}", kind))
        time = "time" if added else f"c{columns.index(place)}"
        for stored in self._tables(segment, columns, schema, shared):
            table = stored
            if added:  # it may have the same number as the column of reasons
                table = stored.rename_columns([*schema.names[:-2], time, schema.names[-1]])
            if self.late:
                rows = rejected_by_time(table, time, segment, reason)
                report["late"] += rows.num_rows
            else:
                rows = self._accepted(table, time, segment, report)
            yield rows.select(self.schema.names)

    def _accepted(
        self, table: pa.Table, time: str, segment: Segment, report: dict[str, int]
    ) -> pa.Table:
        """Return the accepted rows; add the others, and the latest event time, to the report."""
        found = accepted_by_time(table, time, segment)
        latest = pc.max(event_times(found.rows[time])).as_py()
        if latest is not None and segment.counted:
            report["latest"] = max(latest, report.get("latest", latest))
        report["late"] += found.late
        report["ahead"] += found.ahead
        return found.rows

    def _tables(
        self,
        segment: Segment,
        columns: tuple[int, ...],
        schema: pa.Schema,
        shared: SharedScans | None = None,
    ) -> Iterator[pa.Table]:
        bucket = partial(read_bucket, most=self.slice_bytes)
        readers: dict[str, Reader] = {BUCKET_RUNS: bucket, **self.readers}

        def decode(places: tuple[int, ...], kinds: pa.Schema) -> Iterator[pa.Table]:
            return read_segment(self.files, segment, self.names, places, kinds, readers)

        if shared is None:
            return decode(columns, schema)
        return shared.read((self.relation, self.names), segment, columns, schema, decode)

    def first_rows(self, segment: Segment, most: int) -> list[dict[str, Any]]:
        """Return the first rows of a segment by the names of the relation; for errors."""
        rows: list[dict[str, Any]] = []
        for table in self._tables(segment, self.columns, self.schema):
            named = table.drop_columns([WEIGHT]).rename_columns(list(self.names))
            rows += named.slice(0, most - len(rows)).to_pylist()
            if len(rows) >= most:
                break
        return rows


def bucket_segment(runs: Sequence[Run]) -> Segment:
    """Return the segment for the rows that the runs of one bucket add up to."""
    if len(runs) == 1:
        return Segment(RUN, runs[0].name, runs[0].rows)
    return Segment(BUCKET_RUNS, json.dumps([[run.name, run.rows] for run in runs]), 0)


def read_bucket(
    files: Files, segment: Segment, wanted: Wanted, most: int = SLICE_BYTES
) -> Iterator[tuple[pa.Table, int]]:
    """Read the runs of a bucket as a `Reader`; a row that was deleted again doesn't appear.

    Expressions may fail on such a row, while they don't on what is left.
    """
    parts = [Segment(RUN, *part) for part in json.loads(segment.file)]
    tables = [with_nullable_fields(read_arrow(files, part)) for part in parts]
    for pieces in in_slices(tables, most):
        layout = Layout(tuple(n for n in pieces[0].column_names if n not in (HASH, WEIGHT)))
        table = layout.merge(pieces, [*(f"c{place}" for place in wanted.places), WEIGHT])
        for start in range(0, table.num_rows, ROWS_MAX):
            part = table.slice(start, ROWS_MAX)
            yield part, part.num_rows
