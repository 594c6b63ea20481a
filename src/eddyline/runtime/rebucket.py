"""Divides the stored rows of tables into another number of buckets, in Spark's workers.

The number of a row's bucket follows from its key hash. A task reads the hashes of some runs, and writes for
each run one run a bucket. Rows keep their order, so that the new runs are sorted as the old ones were.
Views aren't divided: a row of a view is where the operator before it has put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from eddyline.changes import HASH, BucketId
from eddyline.errors import StateError
from eddyline.state.run_lists import Buckets
from eddyline.state.runs import Run, read_run, write_run
from eddyline.storage.files import Files

_BATCH_ROWS = 1 << 16
_HASHES = "run int, h bigint"
_WRITTEN = "run int, bucket int, name string, rows bigint, bytes bigint, crc bigint"
_ARROW = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}


def divided(
    session: SparkSession,
    files: Files,
    prefix: str,
    held: Buckets,
    before: int,
    buckets: int,
    *,
    by_hash: bool,
) -> Buckets:
    """Write the rows of a table, or of a stream of operations, into other buckets.

    Args:
        session: the session in which epochs run.
        prefix: what the names of the new runs begin with.
        held: the rows.
        before, buckets: the old number of buckets and the new one.
        by_hash: whether a row's bucket is its key hash modulo their number, as it is for a table; otherwise
            it is that of Spark's shuffle by the key hash.

    Raises:
        StateError: a row isn't in its bucket (WRONG_BUCKET), or a run is damaged.
    """
    owned = [(bucket, run) for bucket, runs in held.items() for run in runs]
    if not owned:
        return {}
    runs = tuple(run for _, run in owned)
    tasks = min(len(runs), 4 * session.sparkContext.defaultParallelism)
    by_size = sorted(range(len(runs)), key=lambda number: runs[number].rows)
    shares = tuple(tuple(by_size[task::tasks]) for task in range(tasks))
    hashes = session.range(0, tasks, 1, tasks).mapInArrow(_Hashes(files, runs, shares), _HASHES)
    by = HASH if by_hash else f"hash({HASH})"
    placed = hashes.selectExpr(
        "run", f"cast(pmod({by}, {before}) as int)", f"cast(pmod({by}, {buckets}) as int)"
    )
    divider = _Divider(files, tuple(owned), prefix)
    found: dict[BucketId, list[Run]] = {}
    rows = placed.mapInArrow(divider, _WRITTEN).toArrow().to_pylist()
    for row in sorted(rows, key=itemgetter("run")):  # old to new
        new = Run(row["name"], row["rows"], row["bytes"], row["crc"])
        found.setdefault(BucketId(row["bucket"]), []).append(new)
    return {bucket: tuple(found[bucket]) for bucket in sorted(found)}


@dataclass(frozen=True, slots=True)
class _Hashes:
    """Yields the key hashes of the runs of each task."""

    files: Files
    runs: tuple[Run, ...]
    shares: tuple[tuple[int, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        for number in (number for task in tasks for number in self.shares[task]):
            hashes = read_run(self.files, self.runs[number])[HASH]
            numbers = pa.array(np.full(len(hashes), number, np.int32))
            yield from pa.table([numbers, hashes], _schema(_HASHES)).to_batches(_BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class _Divider:
    """Writes the rows of each run into one run a bucket; the input is number of the run, old and new bucket."""

    files: Files
    owned: tuple[tuple[BucketId, Run], ...]
    prefix: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current, found = -1, list[np.ndarray]()
        for batch in batches:
            numbers, old, new = (column.to_numpy() for column in batch.columns)
            owners = np.array([bucket for bucket, _ in self.owned])
            if (wrong := np.flatnonzero(owners[numbers] != old)).size:
                raise _misplaced(self.owned[numbers[wrong[0]]][1])
            starts = np.flatnonzero(np.diff(numbers, prepend=-1))
            for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
                if numbers[start] != current:
                    yield from self._write(current, found)
                    current, found = int(numbers[start]), []
                found.append(new[start:end])
        yield from self._write(current, found)

    def _write(self, number: int, found: Sequence[np.ndarray]) -> Iterator[pa.RecordBatch]:
        if not found:
            return
        buckets, table = np.concatenate(found), read_run(self.files, self.owned[number][1])
        written = []
        for bucket in np.unique(buckets).tolist():
            name = f"{self.prefix}-{number}-{bucket}.arrow"
            run = write_run(self.files, name, table.filter(pa.array(buckets == bucket)))
            written.append((number, bucket, *run.as_list()))
        columns = [pa.array(column) for column in zip(*written, strict=True)]
        yield pa.table(columns, _schema(_WRITTEN).names).cast(_schema(_WRITTEN)).to_batches()[0]


def _schema(columns: str) -> pa.Schema:
    pairs = (column.split(" ") for column in columns.split(", "))
    return pa.schema([(name, _ARROW[kind]) for name, kind in pairs])


def _misplaced(run: Run) -> StateError:
    return StateError(
        f"a row of {run.name} isn't in its bucket",
        condition="WRONG_BUCKET",
        file=run.name,
        hint="this is a bug; the storage is as it was. Report it",
    )
