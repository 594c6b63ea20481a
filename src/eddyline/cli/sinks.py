"""The command `sink`: list, pause, resume, drop or resend sinks."""

from __future__ import annotations

import argparse
import sys

from eddyline.cli.arguments import Commands, add_storage, add_wait
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import JSON, add_format, show_rows
from eddyline.cli.requests import request, show_done
from eddyline.cli.text import first_line
from eddyline.storage.lock import in_use

ACTIONS = {
    "pause": "deliver nothing to a sink; its epochs are held",
    "resume": "deliver to a paused sink again",
    "drop": "remove a sink; its target stays as it is",
    "resend": "make the target's rows those of the view, whatever has happened to them",
}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    sink = commands.add_parser(
        "sink",
        help="list, pause, resume, drop or resend sinks, also while another process runs the engine",
        description="Sinks are targets that follow a view. A running engine answers a request "
        "before its next epoch; if none runs, this command does it.",
    )
    actions = sink.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all sinks, and how far each has followed its view")
    listing.set_defaults(run=_list)
    add_storage(listing)
    add_format(listing)
    for action, purpose in ACTIONS.items():
        parser = actions.add_parser(action, help=purpose, description=purpose)
        parser.add_argument("name", metavar="NAME", help="name of a sink")
        parser.set_defaults(run=_request, action=action)
        add_wait(parser)
        add_storage(parser)
        add_format(parser)


def _list(args: argparse.Namespace) -> int:
    from eddyline.answers.sinks import sinks_status
    from eddyline.answers.tasks import stored_catalog
    from eddyline.state.manifest import last_committed

    with open_catalog(args.storage) as store:
        committed = last_committed(store.files).epoch
        found = sinks_status(store.files, stored_catalog(store), committed)
        if not in_use(store.files):
            print("no engine runs on this storage", file=sys.stderr)
    names = ("sink", "view", "format", "state", "epoch", "behind", "failing_since", "error")
    if args.format != JSON:  # the first line fits into a table
        found = [{**sink, "error": first_line(sink.get("error", ""))} for sink in found]
    show_rows(args.format, names, found)
    return 0


def _request(args: argparse.Namespace) -> int:
    what = f"{args.action} {args.name}"
    with open_catalog(args.storage) as store:
        code = request(store, args, what, f"{args.action} sink")
    if code is None:
        show_done(args, what)
    return code or 0
