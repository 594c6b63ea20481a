"""The command `ingest`: take records over HTTP into a data queue."""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import suppress

from eddyline.cli.arguments import Commands, add_command
from eddyline.cli.interrupts import await_interrupt
from eddyline.cli.output import Output, add_format
from eddyline.errors import EngineError

TOKEN = "EDDYLINE_INGEST_TOKEN"


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "take records over HTTP into a data queue, until Ctrl-C"
    parser = add_command(commands, "ingest", _ingest, purpose)
    parser.add_argument("queue", metavar="DIR", help="folder of the queue; made if it is missing")
    parser.add_argument("--host", default="127.0.0.1", help="address (default: loopback only)")
    parser.add_argument("--port", type=int, default=8421, help="0: any that is free")
    add_format(parser)


def _ingest(args: argparse.Namespace) -> int:
    from eddyline.relay.embedded import LogBackend
    from eddyline.relay.ingest import Ingest, IngestServer
    from eddyline.relay.queue import Producer

    token = os.environ.get(TOKEN, "")
    if not token:
        raise EngineError(
            f"{TOKEN} is not set",
            condition="BAD_OPTION",
            hint="set it to a long random text, which clients send as a bearer token",
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    endpoint = Ingest(Producer(LogBackend(args.queue)), token)
    with (
        IngestServer(endpoint, host=args.host, port=args.port) as server,
        suppress(KeyboardInterrupt),
    ):
        url = f"{server.url}/records"
        Output(args.format).say(f"POST {url}, a record a line", "address", ingest=url)
        await_interrupt()
    return 0
