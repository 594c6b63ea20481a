"""The command `deadletters`: list, show, replay or drop dead letters."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from eddyline.cli.arguments import Commands, add_storage, add_wait
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import JSON, TABLE, add_format, show_document, show_rows
from eddyline.cli.requests import report_unfinished, show_done
from eddyline.cli.text import as_text, shorten
from eddyline.storage.lock import in_use

ACTIONS = {
    "replay": "read dead letters again, with a new count of attempts, as if they arrived now",
    "drop": "delete dead letters",
}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    letters = commands.add_parser(
        "deadletters",
        help="list, show, replay or drop the records that have failed for good",
        description="Dead letters are records of a pipeline that failed too often, and records "
        "that a stream can't decode. A running engine answers a request before its next epoch.",
    )
    actions = letters.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the dead letters of the last committed epoch")
    of = "a pipeline or stream"
    listing.add_argument("name", metavar="NAME", nargs="?", help=f"of {of}; without: of all")
    listing.set_defaults(run=_list)
    add_storage(listing)
    add_format(listing)
    shown = actions.add_parser("show", help="all fields of one record")
    shown.add_argument("name", metavar="NAME", help=of)
    shown.add_argument("position", metavar="POSITION", type=int, help="as in `list`")
    shown.set_defaults(run=_show)
    add_storage(shown)
    add_format(shown)
    for action, purpose in ACTIONS.items():
        parser = actions.add_parser(action, help=purpose, description=purpose)
        parser.add_argument("name", metavar="NAME", help=of)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("positions", metavar="POSITION", type=int, nargs="*", default=[])
        which.add_argument("--all", action="store_true", help="all that there are")
        parser.set_defaults(run=_request, action=action)
        add_wait(parser)
        add_storage(parser)
        add_format(parser)


def _list(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import list_letters

    with open_catalog(args.storage) as store:
        letters = list_letters(store, args.name)
    rows = [asdict(letter) for letter in letters]
    if args.format == TABLE:
        rows = [{**row, "error": shorten(row["error"])} for row in rows]
    heads = {name: name for name in ("source", "position", "bolt", "attempts")}
    heads |= {"died": "died (UTC)", "error": "error", "payload": "payload"}
    show_rows(args.format, heads, rows)
    return 0


def _show(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import list_letters

    with open_catalog(args.storage) as store:
        found = list_letters(store, args.name, (args.position,))
    if not found:
        print(f"eddyline: no dead letter of {args.name} at {args.position}", file=sys.stderr)
        return 1
    if args.format == JSON:
        show_document(found[0])
        return 0
    for name, value in asdict(found[0]).items():
        shown = as_text(value) if isinstance(value, bytes) else "" if value is None else str(value)
        print(f"{name:9} {shown}")
    return 0


def _request(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import request_action
    from eddyline.answers.tasks import await_answer

    what = f"{args.action} {args.name}"
    with open_catalog(args.storage) as store:
        number = request_action(store, args.action, args.name, args.positions)
        runs = in_use(store.files)
        wait = args.wait if runs else 0.0
        request = await_answer(store, number, wait)
    code = report_unfinished(
        request, what, args.format, wait, "" if runs else ", which does not run now"
    )
    if code is None:
        show_done(args, what)
    return code or 0
