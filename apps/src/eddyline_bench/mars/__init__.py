"""The experiment of the paper on Mars, a stream processor: a windowed count of 20-field records."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eddyline_bench.mars import page
from eddyline_bench.mars.faults import Faults, run_faults
from eddyline_bench.mars.runs import (
    SIZES,
    WARM_UP,
    Amdahl,
    Latency,
    Point,
    run_curve,
    run_latency,
    write_batches,
)
from eddyline_bench.measure import in_own_process
from eddyline_bench.page import Machine


@dataclass(frozen=True, slots=True)
class MarsResult:
    """The results of all parts of the experiment.

    Attributes:
        machine: the machine and the day.
        record_bytes: mean size of a record as NDJSON.
        curves: by number of cores, throughput against records per batch.
        counted: whether the counts add up to the number of records in all runs of `curves`.
        latency: latency of records at half the highest throughput.
        faults: runs on a cluster with and without faults.
    """

    machine: Machine
    record_bytes: float
    curves: Mapping[int, Sequence[Point]]
    counted: bool
    latency: Latency
    faults: Faults

    @property
    def cores(self) -> int:
        """The largest number of measured cores."""
        return max(self.curves)

    @property
    def peak(self) -> Point:
        """The point of the highest throughput on all cores."""
        return max(self.curves[self.cores], key=lambda point: point.throughput)

    @property
    def model(self) -> Amdahl:
        """The model of more cores, fitted to the curve on all cores."""
        return Amdahl.of(self.curves[self.cores], self.cores)

    @property
    def equal(self) -> bool:
        """Whether no part lost or duplicated a record."""
        return self.counted and self.latency.counted and self.faults.equal

    def text(self) -> str:
        """Format the result as tables."""
        return page.text(self)

    def write(self, folder: Path) -> None:
        """Write `mars.md` and `mars.svg` into a folder."""
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
    """Run all parts, each in processes of its own. It takes five minutes on two cores.

    Args:
        rows: number of records of the largest batch.
        repeat: number of timed rounds of each batch size.
        cores: maximum number of cores; all by default.
        epochs: number of timed batches per round.
        seconds: duration of the timed part of the latency run.
        fault_rows: number of records of the fault experiment.
        fault_batch: number of records of each of its batches.
    """
    machine = Machine.now()
    most = min(cores or machine.cores, machine.cores)
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        inputs, written, total = {}, 0, 0
        for size in [*(size for size in SIZES if size < rows), rows]:
            folder = Path(name) / f"batches-{size}"
            records = size * (WARM_UP + epochs)
            written += write_batches(folder, records, (WARM_UP + epochs) * most)
            total += records
            inputs[size] = str(folder)
        curves, counted = {}, True
        for count in core_counts(most):
            _report(f"throughput on {count} of {most} cores")
            curves[count], run_counted = in_own_process(run_curve, inputs, most, count, repeat)
            counted = counted and run_counted
    peak = max(point.throughput for point in curves[most])
    _report("latency")
    latency = in_own_process(run_latency, round(peak / 2), seconds, most)
    _report("faults")
    faults = in_own_process(run_faults, fault_rows, fault_batch)
    return MarsResult(machine, written / total, curves, counted, latency, faults)


def _report(part: str) -> None:
    print(f"mars: {part}", file=sys.stderr, flush=True)


def core_counts(most: int) -> list[int]:
    """Return the powers of two below `most`, and `most`.

    Example:
        >>> core_counts(6)
        [1, 2, 4, 6]
    """
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})
