"""`eddyline guard`: live request rates from a web server's access log, and a list of whom to block.

`guard.sql` holds the views; it is plain Spark SQL that users can read and change.
"""

from __future__ import annotations

import getpass
import os
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.answers.quick import quick_answer
from eddyline.answers.sinks import sinks_status
from eddyline.answers.tasks import stored_catalog
from eddyline.changes import Epoch
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import Output, add_format, log_shown
from eddyline.cli.text import layout
from eddyline.errors import DataError, EngineError
from eddyline.storage.lock import in_use
from eddyline_apps.guard.config import load_config
from eddyline_apps.guard.decisions import ALLOW, BLOCK, decide, parse_decision
from eddyline_apps.guard.evaluation import evaluate, read_labels, report
from eddyline_apps.guard.lists import check_folders
from eddyline_apps.guard.notifying import hold, undelivered

if TYPE_CHECKING:
    import argparse

    from eddyline.answers.answer import QueryAnswer

__all__ = ["add_arguments", "run"]

SHORT_LANE_ROWS = 200_000
"""Up to this many rows a view's epoch runs in the driver: a line makes seven rows, one a window."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Without its optimising compiler the JVM starts with half the CPU, and epochs of a few lines are as fast.

It would then reserve 48 MB for compiled code, instead of the usual 240.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline guard`."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("evaluate", BLOCK, "unblock", "list"),
        help="evaluate: replay the logs, and compare who would have been blocked with --labels; block, "
        "unblock: decide by hand on ADDRESS; list: who is blocked",
    )
    parser.add_argument(
        "address", nargs="?", metavar="ADDRESS", help="an address or network to block or unblock"
    )
    parser.add_argument(
        "--for",
        dest="time",
        default="1 h",
        metavar="TIME",
        help="how long a decision by hand counts, such as 30min (default: 1 h)",
    )
    parser.add_argument("--reason", metavar="TEXT", help="why, for the audit")
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
        help="access logs (common, combined or vhost_combined, and a request time at the end)",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="the rules, as YAML")
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
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="with --follow: serve the console with the guard's page on this port of 127.0.0.1, 0 for any",
    )
    parser.add_argument(
        "--token",
        default="",
        metavar="REFERENCE",
        help="what requests to --port have to send, ${env:NAME} or ${file:PATH}; with it people may block "
        "and unblock there",
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the guard and return the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Output(args.format)
    by_hand = args.action in (BLOCK, "unblock")
    if by_hand == (args.address is None) or by_hand == (args.reason is None):
        raise EngineError(
            "block and unblock need ADDRESS and --reason, and nothing else takes them",
            condition="BAD_OPTION",
            hint="eddyline guard block ADDRESS --for 1h --reason TEXT --storage DIR",
        )
    if by_hand or args.action == "list":
        return _by_hand(args, out)
    if args.log is None or args.config is None:
        raise EngineError(
            "the guard needs --log and --config",
            condition="BAD_OPTION",
            hint="eddyline guard --log PATH --config FILE",
        )
    config = load_config(args.config)
    if (args.action is None) != (args.labels is None) or (args.labels and args.follow):
        raise EngineError(
            "evaluate and --labels belong together, and not to --follow",
            condition="BAD_OPTION",
            hint="eddyline guard evaluate --labels FILE --log PATH --config FILE",
        )
    if (args.port is not None and not args.follow) or (args.token and args.port is None):
        raise EngineError(
            "--token belongs to --port, and --port to --follow",
            condition="BAD_OPTION",
            hint="eddyline guard --log PATH --config FILE --follow --port 8422",
        )
    if args.follow and not config.dry_run:
        check_folders(args.config, config)
    if args.token:
        from eddyline.console.server import token_of  # needs packages that may be missing

        token_of(args.token)  # refuses one that is too short
    labels = None if args.labels is None else read_labels(args.labels)
    for path in args.log:
        _check_log(path, may_come=args.follow)
    # imported late: it takes a second, and a wrong configuration should not wait for it
    from eddyline.api.engine import Engine
    from eddyline.options import Options
    from eddyline_apps.guard.running import follow, replay
    from eddyline_apps.guard.service import Guard

    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{JAVA_OPTIONS}' pyspark-shell"
    )
    with ExitStack() as stack:
        stack.enter_context(log_shown(name="eddyline.guard"))  # files that can't be read
        storage = args.storage
        if storage is None:
            storage = stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-guard-"))
        options = Options.from_environment()
        options = replace(options, short_lane_rows=max(options.short_lane_rows, SHORT_LANE_ROWS))
        engine = stack.enter_context(Engine(str(storage), options=options))
        hold(engine, config, follow=args.follow)
        guard = Guard(engine, config)
        if args.port is not None:
            from eddyline_apps.guard.page import serve  # needs packages that may be missing

            address = serve(engine, args.port, args.token)
            out.say(f"page: {address}", "address", page=address)
        if args.follow:
            follow(engine, guard, config, args.log, out)
        else:
            found = replay(engine, guard, config, args.log, out)
            if labels is not None:
                result = evaluate(labels, found.seen, found.blocked)
                shares = {"precision": result.precision, "recall": result.recall}
                out.say(report(result), "evaluation", **shares, **asdict(result))
    return 0


def _check_log(path: Path, *, may_come: bool) -> None:
    """Refuse what is no log, also where a log may come later: nothing would ever be read."""
    if path.is_file():
        return
    pattern = has_magic(str(path))
    if pattern or not may_come or path.exists() or not path.parent.is_dir():
        raise DataError(
            f"the log can't be read: {path} is not a file",
            condition="LOG_NOT_READABLE",
            hint="give the paths of the access logs; rotated ones are found beside them"
            if pattern
            else "give the path of an access log",
        )


def _by_hand(args: argparse.Namespace, out: Output) -> int:
    """Block, unblock or list, beside the guard that runs on the storage; without Spark."""
    if args.storage is None:
        raise EngineError(
            f"{args.action} needs --storage",
            condition="BAD_OPTION",
            hint="give the storage of the guard",
        )
    with open_catalog(str(args.storage)) as store:
        files, catalog = store.files, stored_catalog(store)
        if args.action == "list":
            catalog.get("block_list")  # NOT_FOUND
            answer = quick_answer(files, catalog, "SELECT * FROM block_list ORDER BY since")
            if answer is None or not answer.total:
                out.say("nobody is blocked")
            else:
                _list(answer, out)
            for one in undelivered(sinks_status(files, catalog, Epoch(0))):
                out.say(one.text, "undelivered", **one._asdict())
            return 0
        action = BLOCK if args.action == BLOCK else ALLOW
        decision = parse_decision(
            action, args.address, args.time, f"{getpass.getuser()} (command line)", args.reason
        )
        target = decide(files, catalog, decision, datetime.now(UTC))
        runs = in_use(files)
        text = None if runs else "no guard runs on this storage: the next one takes the decision"
        out.say(
            text, "decision",
            action=action, target=target, seconds=decision.seconds, guard_runs=runs,
        )  # fmt: skip
    return 0


def _list(answer: QueryAnswer, out: Output) -> None:
    rows = [tuple(text or "" for text in row) for row in answer.texts()]
    out.say(layout(answer.columns, rows))
    for row in answer.table().to_pylist():
        out.say(None, "listed", **row)
