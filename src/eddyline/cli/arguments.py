"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

# argparse has no public name for what `add_subparsers` returns
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Run = Callable[[argparse.Namespace], int]


def add_command(commands: Commands, name: str, run: Run, help: str) -> argparse.ArgumentParser:
    """Add a command, and return its parser. `run` takes the arguments, and returns the exit code."""
    parser = commands.add_parser(name, help=help, description=help)
    parser.set_defaults(run=run)
    return parser


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--storage`."""
    parser.add_argument(
        "--storage", metavar="DIR", required=True, help="where the engine keeps its data"
    )


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--wait` of a request to the running engine."""
    parser.add_argument(
        "--wait", type=float, metavar="S", default=60.0,
        help="seconds to wait for a running engine's answer (default: 60)",
    )  # fmt: skip
