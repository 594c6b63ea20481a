"""The parser of the command line, and its entry point."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, TextIO

from eddyline.cli import (
    completion,
    console,
    dead_letters,
    doctor,
    ingest,
    init,
    pipelines,
    queries,
    rebucket,
    run,
    sinks,
    tasks,
    warm_up,
    watermarks,
)
from eddyline.cli.interrupts import quiet_interrupts
from eddyline.cli.output import show_error
from eddyline.errors import EddylineError, EngineError, StateGrowthWarning, installed_version

MODULES = (
    run,
    queries,
    tasks,
    watermarks,
    rebucket,
    dead_letters,
    sinks,
    console,
    ingest,
    pipelines,
    init,
    doctor,
    warm_up,
)
"""The modules of the commands."""

APPS = {
    "demo": "live web statistics over an access log, checked offline",
    "webstats": "live statistics of web sites from access logs or a page script, with a dashboard",
    "etl": "log lines through a flaky service into PostgreSQL, with live views",
    "cdc": "tables of PostgreSQL, live views on them, and three targets, with all killed meanwhile",
    "guard": "a block list for web servers, from live request rates of their access logs",
    "bench": "benchmarks, each against an alternative in the same run",
}
"""Commands of the package eddyline-apps, which may be missing."""

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended before it was done."""

ENTRY_POINTS = "eddyline.commands"
"""Entry points of other packages: modules with `add_arguments(parser)` and `run(args) -> int`."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Codes of errors with which standard output fails; the storage's own errors are translated where they are raised."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None for those of the process.

    Returns:
        the exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    try:
        args = build_parser(arguments).parse_args(arguments)
        with _short_warnings(), quiet_interrupts():
            code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        cause = _cause(error)
        if _interrupted(cause):
            return INTERRUPTED
        if isinstance(cause, BrokenPipeError):
            # the reader of the pipe has closed it (`| head`): the rest of the output is not wanted
            _discard_output()
            return 0
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            cause = _output_error(cause)
        if not isinstance(cause, EddylineError):
            raise
        show_error(getattr(args, "format", ""), cause)
        return 2
    return code


def _cause(error: Exception) -> Exception:
    """Return the error that the JVM is lost if that has led to another one."""
    if "pyspark" in sys.modules:
        from eddyline.spark.jvm import lost_jvm

        return lost_jvm(error) or error
    return error


def _output_error(error: OSError) -> EngineError:
    """Return the error for an output that can't be written, and discard the rest of it."""
    _discard_output()
    return EngineError(
        f"the output can't be written: {error.strerror}",
        condition="OUTPUT_FAILED",
        hint="make room, or write it elsewhere",
    )


def _discard_output() -> None:
    """Let what is printed from now on, and what Python still holds, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C has led to an error: it also ends the jobs of Spark that a statement waits for."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def build_parser(
    arguments: Sequence[str] = (), *, with_apps: bool = False
) -> argparse.ArgumentParser:
    """Return the parser.

    Args:
        arguments: the module of an `APPS` command is imported only if these start with its name.
        with_apps: import the modules of all `APPS` commands that are installed.
    """
    parser = argparse.ArgumentParser(prog="eddyline", description="Spark SQL, kept live.")
    parser.add_argument("--version", action="version", version=f"eddyline {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in MODULES:
        module.add_to(commands)
    completion.add_to(commands, lambda: build_parser(with_apps=True))
    for name, purpose in APPS.items():
        added = commands.add_parser(name, help=purpose, description=purpose)
        wanted = with_apps and entry_points(group=ENTRY_POINTS, name=name)
        if wanted or (arguments and arguments[0] == name):
            app = _app(name)
            app.add_arguments(added)
            added.set_defaults(run=app.run)
    return parser


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Show a StateGrowthWarning as one line, without file and line number, once for each view."""
    shown: set[str] = set()
    standard = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, StateGrowthWarning):
            standard(message, category, filename, lineno, file, line)
            return
        view = str(message).partition(": ")[0]
        if view not in shown:
            shown.add(view)
            print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _app(name: str) -> Any:
    """Import the module of a command of the package eddyline-apps."""
    found = entry_points(group=ENTRY_POINTS, name=name)
    if not found:
        raise EngineError(
            f"the command {name} is not installed",
            condition="NOT_INSTALLED",
            hint="pip install 'eddyline[apps]'",
        )
    return found[name].load()


def _version() -> str:
    return installed_version("eddyline") or "(run from its source, not installed)"
