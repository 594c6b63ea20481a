"""The command `task`: list, add, pause, resume or drop views."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from eddyline.cli.arguments import Commands, add_storage, add_wait
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import JSON, add_format, show_document, show_rows
from eddyline.cli.requests import request
from eddyline.storage.lock import in_use

ACTIONS = {
    "add": "add a view, which starts from all rows of its inputs",
    "pause": "freeze the results of a view and of those that read it",
    "resume": "let a paused view catch up in one epoch, and continue",
    "drop": "remove a view",
}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    task = commands.add_parser(
        "task",
        help="list, add, pause, resume or drop views, also while another process runs the engine",
        description="Tasks are live views. A running engine answers a request before its next "
        "epoch; if none runs, this command does it.",
    )
    actions = task.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list", help="all tables, streams and views, and the requested ones"
    )
    listing.set_defaults(run=_list)
    add_storage(listing)
    add_format(listing)
    for action, purpose in ACTIONS.items():
        parser = actions.add_parser(action, help=purpose, description=purpose)
        parser.add_argument("name", metavar="NAME", help="name of a view")
        if action == "add":
            parser.add_argument("query", metavar="SELECT", help="what the view keeps live")
        parser.set_defaults(run=_request, action=action, query="")
        add_wait(parser)
        add_storage(parser)
        add_format(parser)


def _list(args: argparse.Namespace) -> int:
    from eddyline.answers.tasks import list_tasks

    with open_catalog(args.storage) as store:
        tasks = list_tasks(store)
        if not in_use(store.files):
            print("no engine runs on this storage", file=sys.stderr)
    heads = ("name", "kind", "state", "level", "since", "rows")
    show_rows(args.format, heads, [asdict(task) for task in tasks])
    return 0


def _request(args: argparse.Namespace) -> int:
    from eddyline.answers.tasks import list_tasks

    with open_catalog(args.storage) as store:
        before = {task.name: task.state for task in list_tasks(store)}
        code = request(store, args, f"{args.action} {args.name}", args.action, args.query)
        after = {task.name: task.state for task in list_tasks(store)}
    if code is not None:
        return code
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in changed or [args.name]:
        state = after.get(name, "dropped") if changed else "as it was"
        if args.format == JSON:
            show_document({"name": name, "state": state})
        else:
            print(f"{name}: {state}")
    return 0
