"""The cost of acks, and of records that always fail: throughput of pipelines compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from eddyline.pipelines.batches import PipelineSettings
from eddyline_bench.measure import Cost, Meter, bench_session, median
from eddyline_bench.relay.load import BenchPipeline, RaiseOnBadRecords, pass_through

BOLTS = 3
RECORD_BYTES = 100
WINDOW = 100
"""Initial window of each lane; a smaller one would take minutes to grow to its steady size."""

POISON_WINDOW = 40
"""Initial window with bad records: a round then has more batches than a record has attempts."""

MILLION = 1_000_000
NEVER = 1 << 62
"""`Variant.every` of a pipeline that checks for bad records but has none."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The costs of pipelines that process the same number of records in each round.

    Attributes:
        rows: number of records of a round.
        costs: the cost of each round, by pipeline.
        equal: whether each output has every record once, except those that always fail.
    """

    rows: int
    costs: Mapping[str, Sequence[Cost]]
    equal: bool

    def rate(self, name: str) -> float:
        """Return the records per second, the median of the rounds."""
        return self.rows / median(cost.seconds for cost in self.costs[name])

    def cpu_us(self, name: str) -> float:
        """Return CPU microseconds per record of the process tree, the median of the rounds."""
        return median(cost.cpu_seconds for cost in self.costs[name]) / self.rows * 1e6

    def ratios(self, name: str, base: str, *, cpu: bool = False) -> tuple[float, float, float]:
        """Return median, minimum and maximum over the rounds of the throughput relative to `base`.

        With `cpu`, return the inverse ratio of CPU time: that of `base` divided by that of `name`.
        """
        what = "cpu_seconds" if cpu else "seconds"
        found = [
            getattr(theirs, what) / getattr(own, what)
            for own, theirs in zip(self.costs[name], self.costs[base], strict=True)
        ]
        return median(found), min(found), max(found)


ON, OFF = "acks on", "acks off"


def run_acks(rows: int, repeat: int, cores: int) -> Steady:
    """Compare pass-through pipelines with and without acks."""
    variants = {name: Variant(acks=name == ON) for name in (ON, OFF)}
    return measure(variants, rows, repeat, cores)


def run_poison(rows: int, repeat: int, cores: int) -> Steady:
    """Compare pass-through pipelines in which 0, 1, 10 and 100 in a million records always fail."""
    variants = {"none": Variant(NEVER)}
    variants |= {f"{n} in a million": Variant(MILLION // n) for n in (1, 10, 100)}
    return measure(variants, rows, repeat, cores, POISON_WINDOW)


@dataclass(frozen=True, slots=True)
class Variant:
    """A pipeline in which one of `every` records always fails; with 0 no bolt checks for any."""

    every: int = 0
    acks: bool = True


def measure(
    variants: Mapping[str, Variant], rows: int, repeat: int, cores: int, window: int = WINDOW
) -> Steady:
    """Run all pipelines in each round, in alternating order; the first round isn't timed."""
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    with (
        bench_session(cores) as spark,
        TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        loads = {}
        for name, variant in variants.items():
            functions = [pass_through] * BOLTS
            if variant.every:
                functions[1:2] = [RaiseOnBadRecords(variant.every)]
            settings = PipelineSettings(lanes=cores, acks=variant.acks)
            path = Path(folder) / name.replace(" ", "-")
            loads[name] = BenchPipeline(spark, path, functions, settings, window=window)
        for turn in range(repeat + 1):
            order = list(loads.items())
            for name, load in order if turn % 2 else order[::-1]:
                load.put(turn * rows, rows, RECORD_BYTES)
                with Meter() as meter:
                    load.stream.pull()
                if turn:
                    costs[name].append(meter.cost)
        total = rows * (repeat + 1)
        equal = all(_equal(load, variants[name].every, total) for name, load in loads.items())
        for load in loads.values():
            load.stream.stop()
    return Steady(rows, costs, equal)


def _equal(load: BenchPipeline, every: int, total: int) -> bool:
    expected = np.arange(total)
    if every:
        expected = expected[~RaiseOnBadRecords(every).bad(expected)]
    good, account = len(expected), load.queue.account()
    return np.array_equal(np.sort(load.numbers()), expected) and (
        account.done, account.dead, account.retry, account.in_flight
    ) == (good, total - good, 0, 0)  # fmt: skip
