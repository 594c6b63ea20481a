"""The work of a lane: one task of a wave, which processes its tuples one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.relay.acker import Indices
from eddyline.relay.bolts import Bolt, BoltChain
from eddyline.relay.keys import rounds
from eddyline.relay.records import ATTEMPTS, KEY
from eddyline.relay.trees import ChainOutput, Rows
from eddyline.storage.files import Files, damaged

REPORTS = pa.schema(
    [
        pa.field("tuple", pa.int64()),
        pa.field("root", pa.int64()),
        pa.field("value", pa.int64()),
        pa.field("elapsed_ms", pa.float64()),
        pa.field("place", pa.int64()),
        pa.field("fate", pa.string()),
        pa.field("bolt", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("delay_s", pa.float64()),
        pa.field("file", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("crc", pa.int64()),
    ]
)
"""Schema of the rows that a lane reports.

- A row for each tuple that it processed: the acker's message `root` and `value`, and `elapsed_ms`
  since the lane started.
- A row for each record that isn't done: its index `place` in the batch, its `fate` (`retry`,
  `dead`, or `held`: replayed though it didn't fail itself), the `bolt` and the `reason` of the
  failure, and `delay_s` until its retry.
- A row for each `file` of outputs.
"""

RETRY, DEAD, HELD = "retry", "dead", "held"
REASON_KILLED = "the Python worker died"
REASON_HELD = "one before it has failed: of its key, joined with it, or without an answer"


@dataclass(frozen=True, slots=True)
class Tuple:
    """Records of a batch that are sent to a lane and acknowledged together.

    Attributes:
        number: identifies the tuple.
        root, edge: its ids for the acker.
        start: index of its first record in the batch.
        rows: number of its records.
    """

    number: int
    root: int
    edge: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class LaneWorker:
    """Processes the tuples of one lane.

    Args:
        files: the storage.
        records: name of the file with the records of the batch, of schema `RECORDS`.
        chain: the bolts to run.
        ordered: process the records of a key in order; a failed record blocks the later ones.
        patience_ms: a tuple that isn't begun within this time is left to another lane.
    """

    files: Files
    records: str
    chain: BoltChain
    ordered: bool
    patience_ms: float

    def work(self, tuples: Sequence[Tuple]) -> Iterator[tuple[pa.Table, Rows]]:
        """Process tuples until the patience is over.

        Yields:
            For each processed tuple, its rows of `REPORTS` and its outputs.
        """
        started = time.perf_counter()
        batch = read_records(self.files, self.records)
        for bundle in tuples:
            elapsed_ms = (time.perf_counter() - started) * 1000
            if elapsed_ms > self.patience_ms:
                return
            reports, outputs = self._process(bundle, batch.slice(bundle.start, bundle.rows))
            elapsed_ms = (time.perf_counter() - started) * 1000
            reports.append(_processed_report(bundle, elapsed_ms))
            yield pa.concat_tables(reports), _concat_outputs(outputs)

    def _process(self, bundle: Tuple, records: pa.Table) -> tuple[list[pa.Table], list[Rows]]:
        """Run the bolts over a tuple; return reports of records that aren't done, and outputs."""
        # a bolt by key gets all records of a key at once, in their order
        in_rounds = self.ordered and not self.chain.joins
        parts = rounds(records[KEY]) if in_rounds else [np.arange(records.num_rows)]
        reports, outputs = [], []
        blocked: npt.NDArray[np.bool_] | None = None
        for part in parts:
            indices = part
            if blocked is not None:
                reports.append(held_report(bundle, part[blocked[part]]))
                indices = part[~blocked[part]]
            chosen = records if len(parts) == 1 else records.take(pa.array(indices))
            output = self.chain.run(chosen)
            if len(output.rows):
                outputs.append(output.rows)
            if not output.done.all():
                failures = _failure_report(self.chain.bolts, bundle, chosen, output, indices)
                reports.append(failures)
                if in_rounds:
                    blocked = _blocked(records, failures["place"], bundle.start, blocked)
        return reports, outputs


def read_records(files: Files, name: str) -> pa.Table:
    """Map the records of a batch into memory.

    Raises:
        StateError: the file is missing or damaged.
    """
    try:
        return pa.ipc.open_file(pa.memory_map(files.path(name))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(name, str(error)) from error


def _concat_outputs(outputs: Sequence[Rows]) -> Rows:
    if outputs and isinstance(outputs[0], pa.Table):
        return pa.concat_tables(outputs, promote_options="permissive")
    return [row for rows in outputs for row in rows]


def _blocked(
    records: pa.Table, failed: pa.ChunkedArray, start: int, before: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_]:
    """Return a mask of the records whose keys have a failed record.

    Args:
        records: the records of a tuple.
        failed: indices of failed records in the batch.
        start: index of the tuple's first record in the batch.
        before: the mask of the rounds before.
    """
    own = pc.subtract(failed, start)
    keys = records[KEY].take(own.combine_chunks()).drop_null().combine_chunks()
    found: npt.NDArray[np.bool_] = pc.is_in(records[KEY], keys).to_numpy()
    return found if before is None else found | before


def _processed_report(bundle: Tuple, elapsed_ms: float) -> pa.Table:
    return report_row(
        tuple=bundle.number, root=bundle.root, value=bundle.edge, elapsed_ms=elapsed_ms
    )


def report_row(**values: object) -> pa.Table:
    """Return one row of `REPORTS`."""
    return pa.Table.from_pylist([values], REPORTS)


def held_report(bundle: Tuple, indices: Indices) -> pa.Table:
    """Return the report of records that are held; `indices` are those in the tuple."""
    count = len(indices)
    return _unfinished_report(bundle, indices, [HELD] * count, [None] * count, REASON_HELD)


def killed_report(bolts: Sequence[Bolt], bundle: Tuple, records: pa.Table) -> pa.Table:
    """Return the report of a tuple whose processing killed the Python worker."""
    most = max(bolt.max_attempts for bolt in bolts)  # the bolt is unknown
    delay_s = max(bolt.retry_delay for bolt in bolts)
    attempts = records[ATTEMPTS].slice(bundle.start, bundle.rows).to_pylist()
    fates = [DEAD if before + 1 >= most else RETRY for before in attempts]
    named, delays = ["worker"] * bundle.rows, [delay_s] * bundle.rows
    return _unfinished_report(bundle, np.arange(bundle.rows), fates, named, REASON_KILLED, delays)


def _failure_report(
    bolts: Sequence[Bolt], bundle: Tuple, records: pa.Table, output: ChainOutput, indices: Indices
) -> pa.Table:
    """Return the report of the records that aren't done.

    Args:
        bolts: the bolts that were run.
        bundle: the tuple.
        records: the records over which the bolts were run.
        output: what the bolts returned.
        indices: for each of `records`, its index in the tuple.
    """
    failed = np.flatnonzero(~output.done)
    attempts = records[ATTEMPTS].take(pa.array(failed)).to_numpy()
    fates: list[str] = []
    names: list[str | None] = []
    reasons: list[str] = []
    delays: list[float | None] = []
    for at, before in zip(failed.tolist(), attempts.tolist(), strict=True):
        if output.bolts[at] < 0:
            fates.append(HELD)
            names.append(None)
            reasons.append(REASON_HELD)
            delays.append(None)
            continue
        bolt = bolts[output.bolts[at]]
        fates.append(DEAD if before + 1 >= bolt.max_attempts else RETRY)
        names.append(bolt.name)
        reasons.append(output.reasons[at])
        delays.append(bolt.retry_delay)
    return _unfinished_report(bundle, indices[failed], fates, names, reasons, delays)


def _unfinished_report(
    bundle: Tuple,
    indices: Indices,
    fates: list[str],
    bolts: Sequence[str | None],
    reasons: str | list[str],
    delays: Sequence[float | None] | None = None,
) -> pa.Table:
    """Return rows of `REPORTS` for records of a tuple that aren't done."""
    count = len(indices)
    columns = {
        "tuple": pa.array(np.full(count, bundle.number)),
        "place": pa.array(indices + bundle.start),
        "fate": pa.array(fates, pa.string()),
        "bolt": pa.array(bolts, pa.string()),
        "reason": pa.array([reasons] * count if isinstance(reasons, str) else reasons, pa.string()),
        "delay_s": pa.array(delays or [None] * count, pa.float64()),
    }
    missing = [columns.get(f.name, pa.nulls(count, f.type)) for f in REPORTS]
    return pa.table(missing, schema=REPORTS)
