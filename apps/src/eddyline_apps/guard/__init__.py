"""`eddyline guard`: live request rates from a web server's access log, and a list of whom to block.

`guard.sql` holds the views; it is plain Spark SQL that users can read and change.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.errors import DataError, EngineError
from eddyline_apps.guard.config import load_config
from eddyline_apps.guard.evaluation import evaluate, read_labels, report

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]

SHORT_LANE_ROWS = 200_000
"""Up to this many rows a view's epoch runs in the driver: a line makes seven rows, one a window."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline guard`."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("evaluate",),
        help="evaluate: replay the logs, and compare who would have been blocked with --labels",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        type=Path,
        help="a line for each address: the address, a comma, and attack or normal",
    )
    parser.add_argument(
        "--log",
        metavar="PATH",
        type=Path,
        nargs="+",
        required=True,
        help="access logs (common, combined or vhost_combined, and a request time at the end)",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, required=True, help="the rules, as YAML"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="read on as the logs grow and are rotated, until Ctrl-C or SIGTERM; without: read "
        "what is there, by the times of the log, and notify nobody",
    )
    parser.add_argument(
        "--storage",
        metavar="DIR",
        type=Path,
        help="keep the engine here, and go on from it; without: removed at the end",
    )


def run(args: argparse.Namespace) -> int:
    """Run the guard and return the exit code."""
    config = load_config(args.config)
    if (args.action is None) != (args.labels is None) or (args.labels and args.follow):
        raise EngineError(
            "evaluate and --labels belong together, and not to --follow",
            condition="BAD_OPTION",
            hint="eddyline guard evaluate --labels FILE --log PATH --config FILE",
        )
    labels = None if args.labels is None else read_labels(args.labels)
    for path in args.log:
        if not args.follow and not path.is_file():
            raise DataError(
                f"the log can't be read: {path} is not a file",
                condition="LOG_NOT_READABLE",
                hint="give the path of an access log",
            )
    # imported late: it takes a second, and a wrong configuration should not wait for it
    from eddyline.api.engine import Engine
    from eddyline.options import Options
    from eddyline_apps.guard.running import follow, replay
    from eddyline_apps.guard.service import Guard

    with ExitStack() as stack:
        storage = args.storage
        if storage is None:
            storage = stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-guard-"))
        options = Options.from_environment()
        options = replace(options, short_lane_rows=max(options.short_lane_rows, SHORT_LANE_ROWS))
        engine = stack.enter_context(Engine(str(storage), options=options))
        guard = Guard(engine, config)
        if args.follow:
            follow(engine, guard, config, args.log)
        else:
            found = replay(engine, guard, config, args.log)
            if labels is not None:
                print(report(evaluate(labels, found.seen, found.blocked)))
    return 0
