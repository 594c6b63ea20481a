"""The command `console`: serve the pages, the JSON interface and the metrics of a storage."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from eddyline.cli.arguments import Commands, add_command, add_storage
from eddyline.cli.interrupts import await_interrupt
from eddyline.cli.opening import existing, open_engine
from eddyline.cli.output import Output, add_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from eddyline.api.engine import Engine

NICENESS = 10
"""The console leaves the cores to the engine beside it: of a busy core it gets a tenth."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "serve a stored engine's console until Ctrl-C, also beside a running engine"
    parser = add_command(commands, "console", _console, purpose)
    parser.add_argument("--port", type=int, default=8420, help="0: any that is free")
    parser.add_argument("--host", default="127.0.0.1", help="address (default: loopback only)")
    parser.add_argument(
        "--token",
        default="",
        metavar="REFERENCE",
        help="what requests have to send: ${env:NAME} or ${file:PATH}; other addresses need one",
    )
    parser.add_argument(
        "--read-only", action="store_true", help="allow no actions, even with a token"
    )
    add_storage(parser)
    add_format(parser)


class _Reader:
    """Answers queries with an engine that only reads; it is opened, with its JVM, for the first one."""

    def __init__(self, storage: str) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._engine: Engine | None = None

    def sql(self, query: str) -> DataFrame:
        """Run a query as of the last committed epoch, over the relations of the storage alone."""
        with self._lock:
            if self._engine is None:
                self._engine = self._open.enter_context(open_engine(self._storage, read_only=True))
        return self._engine.sql(query, confined=True)

    def check(self) -> None:
        """Raise EngineError (JVM_LOST) if it has been opened, and its JVM has ended."""
        if self._engine is not None:
            from eddyline.spark.jvm import check_jvm

            check_jvm()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _console(args: argparse.Namespace) -> int:
    from eddyline.console.server import Console
    from eddyline.options import Options
    from eddyline.storage.files import Files

    os.nice(NICENESS)  # before there are threads, which get it from this one
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    files, options = Files(existing(args.storage)), Options.from_environment()
    with (
        _Reader(args.storage) as reader,
        Console(
            files,
            options,
            host=args.host,
            port=args.port,
            token=args.token,
            read_only=args.read_only,
            sql=reader.sql,
        ) as console,
        suppress(KeyboardInterrupt),
    ):
        Output(args.format).say(console.url, "address", console=console.url)
        await_interrupt(reader.check)
    return 0
