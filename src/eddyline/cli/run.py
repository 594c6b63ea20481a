"""The command `run`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from contextlib import suppress

from eddyline.cli.arguments import Commands, add_command, add_storage
from eddyline.cli.opening import open_engine, read_script
from eddyline.cli.output import Output, add_format, log_shown, show_progress
from eddyline.cli.text import frame_text, show_text


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "run a script, then keep its views live until Ctrl-C or SIGTERM"
    parser = add_command(commands, "run", _run, purpose)
    parser.add_argument("script", metavar="SCRIPT", help="a file of SQL; - reads standard input")
    parser.add_argument("--once", action="store_true", help="process what is there now, then end")
    parser.add_argument(
        "--interval", type=float, metavar="S", help="seconds between epochs; without: no pause"
    )
    parser.add_argument(
        "--console", type=int, metavar="PORT", nargs="?", const=0,
        help="serve the console on this port of 127.0.0.1; without PORT: any that is free",
    )  # fmt: skip
    for name, what in (("--thrift", "JDBC and ODBC"), ("--connect", "Spark Connect")):
        parser.add_argument(
            name, type=int, metavar="PORT", nargs="?", const=0,
            help=f"serve {what} clients on this port of 127.0.0.1; without PORT: any that is free",
        )  # fmt: skip
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="log all that the engine does on standard error, not only warnings",
    )  # fmt: skip
    add_storage(parser)
    add_format(parser)


def _run(args: argparse.Namespace) -> int:
    from eddyline.api.run_loop import check_interval

    script = read_script(args.script)
    check_interval(args.interval)  # before anything is written
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Output(args.format)
    level = logging.INFO if args.verbose else logging.WARNING
    with log_shown(level), open_engine(args.storage) as engine:
        engine.on_progress(lambda progress: show_progress(args.format, progress))
        engine.on_error(lambda error: print(error, file=sys.stderr, flush=True))
        if args.console is not None:
            _say_address(out, "console", engine.serve(args.console))
        answer = engine.execute(script)
        if args.thrift is not None:
            _say_address(out, "thrift", engine.serve_thrift(args.thrift))
        if args.connect is not None:
            _say_address(out, "connect", engine.serve_connect(args.connect))
        if answer is not None:
            show_text(frame_text(args.format, answer))
        if args.once:
            engine.advance()
        else:
            with suppress(KeyboardInterrupt):
                engine.start(args.interval)
                engine.await_termination()
    return 0


def _say_address(out: Output, what: str, url: str) -> None:
    out.say(f"{what}: {url}", "address", **{what: url})
