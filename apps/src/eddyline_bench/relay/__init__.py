"""Benchmark of bolt pipelines: the cost of acks and of bad records, overload, the wait of replays."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eddyline_bench.measure import in_own_process
from eddyline_bench.page import Machine
from eddyline_bench.relay import page
from eddyline_bench.relay.overload import RECORD_S, Overload, run_overload
from eddyline_bench.relay.replays import Replays, run_replays
from eddyline_bench.relay.steady import Steady, run_acks, run_poison


@dataclass(frozen=True, slots=True)
class RelayResult:
    """The results of all parts."""

    machine: Machine
    acks: Steady
    poison: Steady
    overload: Overload
    replays: Replays

    @property
    def equal(self) -> bool:
        """Whether each record completed once in all parts."""
        return self.acks.equal and self.poison.equal and self.overload.equal and self.replays.equal

    def text(self) -> str:
        """Format the result as tables."""
        return page.text(self)

    def write(self, folder: Path) -> None:
        """Write `relay.md` and `relay.svg` into a folder."""
        page.write(self, folder)


def run(
    *,
    rows: int = 1_000_000,
    repeat: int = 5,
    cores: int = 2,
    seconds: float = 60,
    search_seconds: float = 10,
    warm_up_seconds: float = 15,
    load_seconds: float = 30,
) -> RelayResult:
    """Run all parts, each in a process of its own. It takes twenty minutes on two cores.

    Args:
        rows: number of records of a round in the comparison of acks; the comparison of bad records
            takes three times as many.
        repeat: number of timed rounds of these two parts.
        cores: cores of the Spark session in these two parts. The other parts have a core per lane,
            since their bolts sleep.
        seconds: duration of each of the three phases of overload.
        search_seconds: duration of each phase in the search for the best fixed windows.
        warm_up_seconds: duration of the warm-up before the phases.
        load_seconds: duration of the load in the measurement of replays.
    """
    machine = Machine.now()
    _report("acks")
    acks = in_own_process(run_acks, rows, repeat, cores)
    _report("records that fail for good")
    poison = in_own_process(run_poison, 3 * rows, repeat, cores)
    _report("replays under overload")
    replays = in_own_process(run_replays, load_seconds, RECORD_S)
    _report("overload")
    overload = in_own_process(run_overload, seconds, search_seconds, warm_up_seconds)
    return RelayResult(machine, acks, poison, overload, replays)


def _report(part: str) -> None:
    print(f"relay: {part}", file=sys.stderr, flush=True)
