"""Benchmarks: each measures Eddyline beside an alternative, or beside itself, in one run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from eddyline.cli.output import Output, add_format
from eddyline.errors import EngineError
from eddyline_bench import (
    against,
    backfill,
    console,
    delivery,
    grouped_count,
    growth,
    history,
    keyed_total,
    mars,
    nexmark,
    projects,
    relay,
    relay_parts,
    sinks,
    skew,
    small,
    sources,
    state,
    telemetry,
    tpcds,
    two_level,
    webstats,
    workers,
)
from eddyline_bench.figures import figures
from eddyline_bench.page import require_matplotlib, usable_cores


class Result(Protocol):
    """The result of a benchmark."""

    @property
    def equal(self) -> bool:
        """Whether the results that were compared are equal."""
        ...

    def text(self) -> str:
        """Format the result as text."""
        ...


@runtime_checkable
class Page(Protocol):
    """A result that can be written as a page of the documentation."""

    def write(self, folder: Path) -> None:
        """Write the page and its plots into a folder."""
        ...


BENCHMARKS: dict[str, Callable[..., Result]] = {
    "backfill": backfill.run,
    "console": console.run,
    "grouped-count": grouped_count.run,
    "keyed-total": keyed_total.run,
    "history": history.run,
    "growth": growth.run,
    "log-growth": growth.run_log,
    "mars": mars.run,
    "nexmark": nexmark.run,
    "projects": projects.run,
    "sinks": sinks.run,
    "skew": skew.run,
    "small": small.run,
    "sources": sources.run,
    "state": state.run,
    "telemetry": telemetry.run,
    "tpcds": tpcds.run,
    "two-level": two_level.run,
    "delivery": delivery.run,
    "relay": relay.run,
    "relay-parts": relay_parts.run,
    "webstats": webstats.run,
    "workers": workers.run,
}


PAGES = ("mars", "relay")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eddyline bench`."""
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS), help="one of them; else all")
    parser.add_argument(
        "--rows",
        type=int,
        help="records in all (grouped-count, relay-parts), of a batch (keyed-total, two-level, "
        "delivery, sinks, sources, telemetry), of the short history (history), before the first run (projects), of the largest batch (mars), of a round (relay), held as state (state), of the log (webstats), of the table (backfill); "
        "orders changed in an epoch (small), rows of an epoch (console, growth, log-growth, skew, workers), events of an epoch (nexmark)",
    )
    parser.add_argument("--scale", type=float, help="scale factor of TPC-H (small); 0.1 by default")
    parser.add_argument(
        "--repeat",
        type=int,
        help="timed repetitions; epochs (growth, log-growth, nexmark, skew, small, state, tpcds), samples (webstats), rounds (console)",
    )
    parser.add_argument(
        "--flink",
        action="store_true",
        help="also run Flink SQL, installed from PyPI (grouped-count)",
    )
    parser.add_argument("--cores", type=int, help="cores of the local Spark session; 2 by default")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write its page and plots (mars, relay)"
    )
    parser.add_argument(
        "--against",
        metavar="REV",
        help="run NAME of another git revision of the project, too, in turn, and compare the figures",
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the requested benchmark, or all, and print each result; return 1 if results differ."""
    if args.write is not None:
        if args.name not in PAGES:
            raise EngineError(
                f"only the benchmarks {' and '.join(PAGES)} make a page",
                condition="BAD_OPTION",
                hint="eddyline bench mars --write docs",
            )
        require_matplotlib()
    chosen = {key: getattr(args, key) for key in ("rows", "repeat", "cores", "scale")}
    given = {key: value for key, value in chosen.items() if value is not None}
    if args.scale is not None and args.name != "small":
        raise EngineError(
            "only the benchmark small has a scale",
            condition="BAD_OPTION",
            hint="eddyline bench small --scale 0.01",
        )
    if args.flink:
        if args.name != "grouped-count":
            raise EngineError(
                "only the benchmark grouped-count runs Flink SQL",
                condition="BAD_OPTION",
                hint="eddyline bench grouped-count --flink",
            )
        given["flink"] = True
    out, code = Output(args.format), 0
    if args.against is not None:
        if args.name is None or args.write is not None:
            raise EngineError(
                "--against compares one benchmark, and writes no page",
                condition="BAD_OPTION",
                hint="eddyline bench history --against HEAD~1",
            )
        options = [word for key, value in given.items() for word in _option(key, value)]
        return int(not against.run(args.name, args.against, options, out))
    for name in [args.name] if args.name else list(BENCHMARKS):
        result = BENCHMARKS[name](**given)
        out.say(
            result.text(), "benchmark", name=name, equal=result.equal, cores=len(usable_cores()),
            figures=figures(result),
        )  # fmt: skip
        if args.write is not None and isinstance(result, Page):
            result.write(args.write)
        code = code or int(not result.equal)
    return code


def _option(name: str, value: object) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]
