"""Pipelines of bolts: what acks and bad records cost, overload, and how long replays wait."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eddyline_bench.measure import in_own_process
from eddyline_bench.page import Machine
from eddyline_bench.relay import page
from eddyline_bench.relay.overload import RECORD_S, Overload, own_overload
from eddyline_bench.relay.replays import Replays, own_replays
from eddyline_bench.relay.steady import Steady, own_acks, own_poison


@dataclass(frozen=True, slots=True)
class RelayResult:
    """All four parts."""

    machine: Machine
    acks: Steady
    poison: Steady
    overload: Overload
    replays: Replays

    @property
    def equal(self) -> bool:
        """Whether in all parts each record has ended once."""
        return self.acks.equal and self.poison.equal and self.overload.equal and self.replays.equal

    def text(self) -> str:
        """The result as tables."""
        return page.text(self)

    def write(self, folder: Path) -> None:
        """Write `relay.md` and `relay.svg`."""
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
    """Run all four parts, each in a process of its own; twenty minutes on a machine of two cores.

    Args:
        rows: records of a round with acks and without; with bad ones three times as many.
        repeat: timed rounds.
        cores: of the Spark session in these two parts. The others have a core for each lane: their
            bolts sleep.
        seconds: of each of the three phases of overload.
        search_seconds: of each phase in the search for the best fixed windows.
        warm_up_seconds: before the phases.
        load_seconds: for which records come in, some of which fail.
    """
    machine = Machine.now()
    _say("acks")
    acks = in_own_process(own_acks, rows, repeat, cores)
    _say("records that fail for good")
    poison = in_own_process(own_poison, 3 * rows, repeat, cores)
    _say("replays under overload")
    replays = in_own_process(own_replays, load_seconds, RECORD_S)
    _say("overload")
    overload = in_own_process(own_overload, seconds, search_seconds, warm_up_seconds)
    return RelayResult(machine, acks, poison, overload, replays)


def _say(part: str) -> None:
    print(f"relay: {part}", file=sys.stderr, flush=True)
