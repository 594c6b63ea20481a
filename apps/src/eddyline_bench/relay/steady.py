"""What acks cost, and what records that fail for good cost: throughput of pipelines side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from eddyline.pipelines.batches import Settings
from eddyline_bench.measure import Cost, Meter, bench_session, median
from eddyline_bench.relay.load import BenchPipeline, Passed, passed

BOLTS = 3
RECORD_BYTES = 100
WINDOW = 100
"""Of each lane at the start: to grow to what such a pipeline can have would take minutes."""

POISON_WINDOW = 40
"""So that a round has more batches than a record has attempts, and what fails is read with others."""

MILLION = 1_000_000
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Steady:
    """Pipelines that work on as many records each in each round.

    Attributes:
        rows: records of a round.
        costs: of each round, by pipeline.
        equal: whether each record came out of each once, but for those that fail for good.
    """

    rows: int
    costs: Mapping[str, Sequence[Cost]]
    equal: bool

    def rate(self, name: str) -> float:
        """Records a second, the median of the rounds."""
        return self.rows / median(cost.seconds for cost in self.costs[name])

    def cpu_us(self, name: str) -> float:
        """CPU of the whole process tree for a record, in microseconds, the median of the rounds."""
        return median(cost.cpu_seconds for cost in self.costs[name]) / self.rows * 1e6

    def ratios(self, name: str, base: str, *, cpu: bool = False) -> tuple[float, float, float]:
        """Throughput against that of `base`, of each round: median, least and most; or CPU."""
        what = "cpu_seconds" if cpu else "seconds"
        found = [
            getattr(theirs, what) / getattr(own, what)
            for own, theirs in zip(self.costs[name], self.costs[base], strict=True)
        ]
        return median(found), min(found), max(found)


ON, OFF = "acks on", "acks off"


def own_acks(rows: int, repeat: int, cores: int) -> Steady:
    """Pass-through bolts with acks and without; to be run in a process of its own."""
    variants = {name: Variant(acks=name == ON) for name in (ON, OFF)}
    return measured(variants, rows, repeat, cores)


def own_poison(rows: int, repeat: int, cores: int) -> Steady:
    """The same where no or some records in a million raise whenever they are tried."""
    variants = {"none": Variant(NEVER)}
    variants |= {f"{n} in a million": Variant(MILLION // n) for n in (1, 10, 100)}
    return measured(variants, rows, repeat, cores, POISON_WINDOW)


@dataclass(frozen=True, slots=True)
class Variant:
    """A pipeline, of which one record of `every` fails for good; 0: no bolt looks for any."""

    every: int = 0
    acks: bool = True


def measured(
    variants: Mapping[str, Variant], rows: int, repeat: int, cores: int, window: int = WINDOW
) -> Steady:
    """Let the pipelines take turns, in another order each round; the first round isn't timed."""
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    with (
        bench_session(cores) as spark,
        TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        loads = {}
        for name, variant in variants.items():
            functions = [passed] * BOLTS
            if variant.every:
                functions[1:2] = [Passed(variant.every)]
            settings = Settings(lanes=cores, acks=variant.acks)
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
        expected = expected[~Passed(every).bad(expected)]
    good, account = len(expected), load.queue.account()
    return np.array_equal(np.sort(load.numbers()), expected) and (
        account.done, account.dead, account.retry, account.in_flight
    ) == (good, total - good, 0, 0)  # fmt: skip
