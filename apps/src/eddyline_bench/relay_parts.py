"""Parts of the relay in isolation: the acker, the embedded queue, and the wait of failed records."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

import numpy as np

from eddyline.relay.acker import Acker, Anchors
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.relay.records import failed_records, new_records, no_records
from eddyline_bench.measure import aligned, median, verdict

PENDING = 100_000
PAYLOAD = b"x" * 150
LOAD = 2  # new records per record that can be read
FAILING = 0.05


@dataclass(frozen=True, slots=True)
class RelayPartsResult:
    """The measurements.

    Attributes:
        rows: number of records and roots of each measurement.
        messages_s: messages per second in the acker, processed in batches.
        dict_messages_s: messages per second in a plain dict, processed one by one.
        bytes_a_root: maximum size of the acker's state per root in flight.
        queue: records per second of the embedded queue, by operation.
        backflow_rounds: rounds until a failed record is read again, median and maximum, where failed
            records are read first.
        tail_rounds: the same where failed records are put at the tail of the queue again.
        equal: whether each root and each record completed once.
    """

    rows: int
    messages_s: float
    dict_messages_s: float
    bytes_a_root: float
    queue: dict[str, float]
    backflow_rounds: tuple[float, float]
    tail_rounds: tuple[float, float]
    equal: bool

    def text(self) -> str:
        """Format the result as tables."""
        rows = [[name, f"{rate:,.0f}"] for name, rate in self.queue.items()]
        waits = {"backflow": self.backflow_rounds, "tail of the queue": self.tail_rounds}
        return "\n".join(
            [
                f"relay: {self.rows:,} records of {len(PAYLOAD)} bytes",
                aligned(
                    ["acker", "messages/s", "bytes/root"],
                    [
                        ["batches", f"{self.messages_s:,.0f}", f"{self.bytes_a_root:.1f}"],
                        ["dict by message", f"{self.dict_messages_s:,.0f}", ""],
                    ],
                ),
                aligned(["queue", "records/s"], rows),
                aligned(
                    [f"rounds until read again, {LOAD}x load", "median", "most"],
                    [[name, f"{a:.0f}", f"{b:.0f}"] for name, (a, b) in waits.items()],
                ),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 200_000, repeat: int = 3, cores: int = 1) -> RelayPartsResult:  # noqa: ARG001  # all benchmarks have the same options
    """Measure each part.

    Args:
        rows: number of records and roots.
        repeat: number of repetitions, of which the median is taken.
        cores: not used: all of it runs in one thread.
    """
    ackers = [acker_rate(rows, seed) for seed in range(repeat)]
    queues = [queue_rates(rows) for _ in range(repeat)]
    rounds = min(rows, 20_000) // 100
    (backflow, backflow_same), (at_tail, tail_same) = (
        replay_rounds(rounds, tail=tail) for tail in (False, True)
    )
    return RelayPartsResult(
        rows,
        median(rate for rate, _, _, _ in ackers),
        median(rate for _, rate, _, _ in ackers),
        max(size for _, _, size, _ in ackers),
        {name: median(found[name] for found, _ in queues) for name in queues[0][0]},
        backflow,
        at_tail,
        all(same for _, _, _, same in ackers)
        and all(same for _, same in queues)
        and backflow_same
        and tail_same,
    )


def acker_rate(roots: int, seed: int) -> tuple[float, float, float, bool]:
    """Measure the acker on trees of a record and two tuples, with up to `PENDING` roots in flight.

    Returns:
        messages per second in the acker and in a plain dict, the maximum of bytes per root, and
        whether each root completed once.
    """
    random = np.random.default_rng(seed)
    step = max(min(PENDING, roots) // 10, 1)
    batches, under_way = [], []
    for _ in range(0, roots, step):
        records = Anchors.of_records(step, random)
        made, first = records.emit(np.arange(2 * step), np.repeat(records.tuples, 2), random)
        under_way.append((made.roots, made.edges))
        late = [under_way.pop(0)] if len(under_way) >= 10 else []
        acks = [np.concatenate(part) for part in zip(first, *late, strict=True)]
        batches.append(((records.roots, records.edges, records.tuples), acks))
    rest = [np.concatenate(part) for part in zip(*under_way, strict=True)] if under_way else []
    acker, done, most, started = Acker(), 0, 0.0, time.perf_counter()
    for init, (ack_roots, values) in batches:
        done += len(acker.fold(init, (ack_roots, values)).roots)
        most = max(most, acker.nbytes / max(acker.counts.in_flight, 1))
    seconds = time.perf_counter() - started
    messages = sum(len(init[0]) + len(acks[0]) for init, acks in batches)
    if rest:
        done += len(acker.ack(*rest).roots)
    plain: dict[int, int] = {}
    started = time.perf_counter()
    for init, (ack_roots, values) in batches:
        for column in ((init[0], init[1]), (ack_roots, values)):
            for root, value in zip(column[0].tolist(), column[1].tolist(), strict=True):
                held = plain.get(root, 0) ^ value
                if held:
                    plain[root] = held
                else:
                    plain.pop(root, None)
    dict_seconds = time.perf_counter() - started
    expected = len(batches) * step
    return messages / seconds, messages / dict_seconds, most, done == expected


def queue_rates(rows: int) -> tuple[dict[str, float], bool]:
    """Measure puts and reads of the embedded queue, each flushed to the disk.

    Returns:
        records per second by operation, and whether each record completed once.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder:
        queue = DataQueue(LogBackend(folder))
        for size in (1, 1000):
            puts = max(1, min(rows // size, 300))
            records = new_records([PAYLOAD] * size)
            started = time.perf_counter()
            for _ in range(puts):
                queue.put(records)
            found[f"put by {size:,}"] = puts * size / (time.perf_counter() - started)
        queue.put(new_records([PAYLOAD] * rows))
        for failing in (0.0, 0.01):
            done, started = 0, time.perf_counter()
            while done < rows // 2 and (batch := queue.plan(10_000)) is not None:
                records = queue.load(batch)
                bad = np.arange(int(batch.rows * failing))
                queue.settle(batch, failed_records(records, bad, "failed") if len(bad) else None)
                queue.commit()
                done += batch.rows
            name = f"read by 10,000, {failing:.0%} fail"
            found[name] = done / (time.perf_counter() - started)
        while (batch := queue.plan(10_000)) is not None:
            queue.settle(batch)
            queue.commit()
        account = queue.account()
        queue.close()
    return found, account.received == account.done


def replay_rounds(rounds: int, *, tail: bool) -> tuple[tuple[float, float], bool]:
    """Count the rounds until failed records are read again, under overload.

    Args:
        rounds: number of rounds in which new records are put.
        tail: put failed records at the tail of the queue again, as new ones.

    Returns:
        median and maximum of the rounds, and whether each record completed once.
    """
    random = np.random.default_rng(1)
    read_rows, failed_in, waits, ended, put = 50, dict[bytes, int](), list[int](), 0, 0
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder:
        queue = DataQueue(LogBackend(folder, fsync=False))
        for turn in range(10 * rounds):
            if turn < rounds:
                queue.put([f"{put + i}" for i in range(LOAD * read_rows)])
                put += LOAD * read_rows
            found = queue.read(read_rows)
            if found is None:
                break
            batch, records = found
            payloads = records["payload"].to_pylist()
            again = np.array([payload in failed_in for payload in payloads])
            waits += [turn - failed_in[p] for p in payloads if p in failed_in]
            bad = np.flatnonzero(~again & (random.random(batch.rows) < FAILING))
            failed_in |= {payloads[place]: turn for place in bad}
            ended += batch.rows - len(bad)
            if tail:
                if len(bad):
                    queue.put([payloads[place] for place in bad])
                queue.settle(batch)
            else:
                queue.settle(batch, failed_records(records, bad, "") if len(bad) else no_records())
            queue.commit()
        queue.close()
    return (median(waits), float(max(waits, default=0))), ended == put and len(waits) == len(
        failed_in
    )
