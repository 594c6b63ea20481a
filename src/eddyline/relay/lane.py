"""A lane: what one task of a pipeline's wave does, tuple after tuple."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.relay.acker import Places
from eddyline.relay.bolts import Bolt, Chain
from eddyline.relay.keys import rounds
from eddyline.relay.records import ATTEMPTS, KEY
from eddyline.relay.trees import Worked
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
"""What a lane tells.

- A row for each tuple that it has done, with the acker's message: `root` and `value`, and how long
  after the lane's start it was done.
- A row for each record that isn't done: its `place` in the batch, its `fate` (`retry`, `dead`, or
  `held`: to be read again though it did nothing wrong), `bolt`, `reason`, and `delay_s`, how long
  it is to wait.
- A row for the `file` of outputs, if there are any.
"""

RETRY, DEAD, HELD = "retry", "dead", "held"
REASON_KILLED = "the Python worker died"
REASON_HELD = "one before it has failed: of its key, joined with it, or without an answer"


@dataclass(frozen=True, slots=True)
class Tuple:
    """Records of a batch that go to a lane together.

    Attributes:
        number: the tuple's.
        root, edge: ids for the acker.
        start, rows: which records of the batch.
    """

    number: int
    root: int
    edge: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The work of one lane.

    Args:
        files: where the records of the batch are.
        records: name of the file with them, of schema `RECORDS`.
        chain: what is done with them.
        ordered: records of a key come one after the other, and wait for one that is being retried.
        patience_ms: a tuple that isn't begun by then is left to another lane.
    """

    files: Files
    records: str
    chain: Chain
    ordered: bool
    patience_ms: float

    def work(self, tuples: Sequence[Tuple]) -> Iterator[tuple[pa.Table, pa.Table | list[object]]]:
        """For each tuple that the lane gets to: its rows of `REPORTS`, and the outputs."""
        started = time.perf_counter()
        batch = read_records(self.files, self.records)
        for bundle in tuples:
            elapsed_ms = (time.perf_counter() - started) * 1000
            if elapsed_ms > self.patience_ms:
                return
            records = batch.slice(bundle.start, bundle.rows)
            # a bolt by key gets all records of a key at once, in their order
            apart = self.ordered and not self.chain.joins
            parts = rounds(records[KEY]) if apart else [np.arange(records.num_rows)]
            reports, outputs = [], []
            stopped: npt.NDArray[np.bool_] | None = None
            for places in parts:
                if stopped is not None:
                    waiting = stopped[places]
                    reports.append(of_held(bundle, places[waiting]))
                    places = places[~waiting]
                chosen = records if len(parts) == 1 else records.take(pa.array(places))
                worked = self.chain.run(chosen)
                if len(worked.rows):
                    outputs.append(worked.rows)
                if not worked.done.all():
                    told = _failures(self.chain.bolts, bundle, chosen, worked, places)
                    reports.append(told)
                    if apart:
                        stopped = _stopped(records, told["place"], bundle.start, stopped)
            elapsed_ms = (time.perf_counter() - started) * 1000
            reports.append(_done(bundle, elapsed_ms))
            yield pa.concat_tables(reports), _together(outputs)


def read_records(files: Files, name: str) -> pa.Table:
    """The records of a batch; nothing is copied."""
    try:
        return pa.ipc.open_file(pa.memory_map(files.path(name))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(name, str(error)) from error


def _together(outputs: Sequence[pa.Table | list[object]]) -> pa.Table | list[object]:
    if outputs and isinstance(outputs[0], pa.Table):
        return pa.concat_tables(outputs, promote_options="permissive")
    return [row for rows in outputs for row in rows]


def _stopped(
    records: pa.Table, places: pa.ChunkedArray, start: int, before: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_]:
    """The records whose keys wait from now on."""
    own = pc.subtract(places, start)
    keys = records[KEY].take(own.combine_chunks()).drop_null().combine_chunks()
    found: npt.NDArray[np.bool_] = pc.is_in(records[KEY], keys).to_numpy()
    return found if before is None else found | before


def _done(bundle: Tuple, elapsed_ms: float) -> pa.Table:
    return report(tuple=bundle.number, root=bundle.root, value=bundle.edge, elapsed_ms=elapsed_ms)


def report(**values: object) -> pa.Table:
    """One row of `REPORTS`."""
    return pa.Table.from_pylist([values], REPORTS)


def of_held(bundle: Tuple, places: Places) -> pa.Table:
    """What is told of records that must wait."""
    return _told(bundle, places, [HELD] * len(places), [None] * len(places), REASON_HELD)


def of_killed(bolts: Sequence[Bolt], bundle: Tuple, records: pa.Table) -> pa.Table:
    """What is told of the records of a tuple at which Python has died."""
    most = max(bolt.max_attempts for bolt in bolts)  # which bolt it was isn't known
    delay_s = max(bolt.retry_delay for bolt in bolts)
    attempts = records[ATTEMPTS].slice(bundle.start, bundle.rows).to_pylist()
    fates = [DEAD if before + 1 >= most else RETRY for before in attempts]
    named, delays = ["worker"] * bundle.rows, [delay_s] * bundle.rows
    return _told(bundle, np.arange(bundle.rows), fates, named, REASON_KILLED, delays)


def _failures(
    bolts: Sequence[Bolt], bundle: Tuple, records: pa.Table, worked: Worked, places: Places
) -> pa.Table:
    """The records of a tuple that aren't done, at these places of it."""
    failed = np.flatnonzero(~worked.done)
    attempts = records[ATTEMPTS].take(pa.array(failed)).to_numpy()
    fates: list[str] = []
    names: list[str | None] = []
    reasons: list[str] = []
    delays: list[float | None] = []
    for at, before in zip(failed.tolist(), attempts.tolist(), strict=True):
        if worked.bolts[at] < 0:
            fates.append(HELD)
            names.append(None)
            reasons.append(REASON_HELD)
            delays.append(None)
            continue
        bolt = bolts[worked.bolts[at]]
        fates.append(DEAD if before + 1 >= bolt.max_attempts else RETRY)
        names.append(bolt.name)
        reasons.append(worked.reasons[at])
        delays.append(bolt.retry_delay)
    return _told(bundle, places[failed], fates, names, reasons, delays)


def _told(
    bundle: Tuple,
    places: Places,
    fates: list[str],
    bolts: Sequence[str | None],
    reasons: str | list[str],
    delays: Sequence[float | None] | None = None,
) -> pa.Table:
    count = len(places)
    columns = {
        "tuple": pa.array(np.full(count, bundle.number)),
        "place": pa.array(places + bundle.start),
        "fate": pa.array(fates, pa.string()),
        "bolt": pa.array(bolts, pa.string()),
        "reason": pa.array([reasons] * count if isinstance(reasons, str) else reasons, pa.string()),
        "delay_s": pa.array(delays or [None] * count, pa.float64()),
    }
    missing = [columns.get(f.name, pa.nulls(count, f.type)) for f in REPORTS]
    return pa.table(missing, schema=REPORTS)
