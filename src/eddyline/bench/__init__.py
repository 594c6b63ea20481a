"""Benchmarks: each measures Eddyline beside an alternative, or beside itself, in one run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol

from eddyline.bench import (
    delivery,
    grouped_count,
    history,
    keyed_total,
    relay_parts,
    two_level,
)


class Result(Protocol):
    """What a benchmark gives back."""

    @property
    def equal(self) -> bool:
        """Whether both sides had the same rows."""
        ...

    def text(self) -> str:
        """The result for people."""
        ...


BENCHMARKS: dict[str, Callable[..., Result]] = {
    "grouped-count": grouped_count.run,
    "keyed-total": keyed_total.run,
    "history": history.run,
    "two-level": two_level.run,
    "delivery": delivery.run,
    "relay-parts": relay_parts.run,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `eddyline bench`."""
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS), help="one of them; else all")
    parser.add_argument(
        "--rows",
        type=int,
        help="records in all (grouped-count, relay-parts), of a batch (keyed-total, two-level, "
        "delivery), of the short history (history)",
    )
    parser.add_argument("--repeat", type=int, help="timed repetitions")
    parser.add_argument("--cores", type=int, help="cores of the local Spark session; 2 by default")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark asked for, or all, and print each result; 1 where results differ."""
    chosen = {key: getattr(args, key) for key in ("rows", "repeat", "cores")}
    given = {key: value for key, value in chosen.items() if value is not None}
    code = 0
    for name in [args.name] if args.name else list(BENCHMARKS):
        result = BENCHMARKS[name](**given)
        print(result.text(), flush=True)
        code = code or int(not result.equal)
    return code
