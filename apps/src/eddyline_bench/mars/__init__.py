"""Mars's experiment: a windowed count of 20-field records, measured as the paper on Mars does."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eddyline_bench.mars import page
from eddyline_bench.mars.faults import Faults, on_cluster
from eddyline_bench.mars.runs import (
    SIZES,
    WARM_UP,
    Amdahl,
    Latency,
    Point,
    own_curve,
    own_latency,
    write_batches,
)
from eddyline_bench.measure import in_own_process
from eddyline_bench.page import Machine


@dataclass(frozen=True, slots=True)
class MarsResult:
    """All four parts.

    Attributes:
        curves: by number of cores, throughput against records per batch.
        record_bytes: mean size of a record as NDJSON.
        counted: whether in all runs of `curves` the counts add up to the records.
    """

    machine: Machine
    record_bytes: float
    curves: Mapping[int, Sequence[Point]]
    counted: bool
    latency: Latency
    faults: Faults

    @property
    def cores(self) -> int:
        """The largest number of cores that was measured."""
        return max(self.curves)

    @property
    def peak(self) -> Point:
        """The point of the highest throughput on all cores."""
        return max(self.curves[self.cores], key=lambda point: point.throughput)

    @property
    def model(self) -> Amdahl:
        """What the curve on all cores says of more of them."""
        return Amdahl.of(self.curves[self.cores], self.cores)

    @property
    def equal(self) -> bool:
        """Whether nothing was lost or doubled in any part."""
        return self.counted and self.latency.counted and self.faults.equal

    def text(self) -> str:
        """The result as tables."""
        return page.text(self)

    def write(self, folder: Path) -> None:
        """Write `mars.md` and `mars.svg`."""
        page.write(self, folder)


def run(
    *,
    rows: int = SIZES[-1],
    repeat: int = 3,
    cores: int | None = None,
    epochs: int = 4,
    seconds: float = 12,
    fault_rows: int = 1_000_000,
    fault_batch: int = 40_000,
) -> MarsResult:
    """Run all four parts, each in processes of its own; five minutes on a machine of two cores.

    Args:
        rows: records of the largest batch.
        repeat: rounds of each size of batch.
        cores: the most that are used; by default all.
        epochs: timed batches of a round.
        seconds: for which records arrive and are timed.
        fault_rows: records of the fault experiment.
        fault_batch: records of each of its batches.
    """
    machine = Machine.now()
    most = min(cores or machine.cores, machine.cores)
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        inputs, written, made = {}, 0, 0
        for size in [*(size for size in SIZES if size < rows), rows]:
            folder = Path(name) / f"batches-{size}"
            records = size * (WARM_UP + epochs)
            written += write_batches(folder, records, (WARM_UP + epochs) * most)
            made += records
            inputs[size] = str(folder)
        curves, counted = {}, True
        for count in counts(most):
            _say(f"throughput on {count} of {most} cores")
            curves[count], right = in_own_process(own_curve, inputs, most, count, repeat)
            counted = counted and right
    peak = max(point.throughput for point in curves[most])
    _say("latency")
    arrived = in_own_process(own_latency, round(peak / 2), seconds, most)
    _say("faults")
    faults = in_own_process(on_cluster, fault_rows, fault_batch)
    return MarsResult(machine, written / made, curves, counted, arrived, faults)


def _say(part: str) -> None:
    print(f"mars: {part}", file=sys.stderr, flush=True)


def counts(most: int) -> list[int]:
    """1, 2, 4 ... and `most`.

    Example:
        >>> counts(6)
        [1, 2, 4, 6]
    """
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})
