"""The command `watermark`: reset the watermark of a stream."""

from __future__ import annotations

import argparse

from eddyline.cli.arguments import Commands, add_storage, add_wait
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import JSON, add_format, show_document
from eddyline.cli.requests import request


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    watermark = commands.add_parser(
        "watermark",
        help="reset the watermark of a stream, also while another process runs the engine",
        description="A running engine answers the request before its next epoch; if none runs, this "
        "command does it. Views that read the stream are computed again.",
    )
    actions = watermark.add_subparsers(title="actions", required=True, metavar="ACTION")
    purpose = "set a watermark anew, also back, after rows with wrong times have moved it"
    reset = actions.add_parser("reset", help=purpose, description=purpose)
    reset.add_argument("name", metavar="STREAM", help="name of a stream")
    reset.add_argument(
        "--to", metavar="T", default="",
        help="the new watermark, such as '2026-01-31 10:00:00'; without it the one that those rows of "
        "the stream give which aren't dated more than max_ahead after now",
    )  # fmt: skip
    reset.set_defaults(run=_reset)
    add_wait(reset)
    add_storage(reset)
    add_format(reset)


def _reset(args: argparse.Namespace) -> int:
    from eddyline.answers.status import storage_status
    from eddyline.answers.tasks import RESET, stored_catalog
    from eddyline.state.leases import pinned

    with open_catalog(args.storage) as store:
        code = request(store, args, f"reset the watermark of {args.name}", RESET, args.to)
        if code is not None:
            return code
        with pinned(store.files) as manifest:
            status = storage_status(store.files, stored_catalog(store), manifest, {})
    (found,) = (s for s in status["sources"] if s["name"].lower() == args.name.lower())
    if args.format == JSON:
        show_document({"name": found["name"], "watermark": found["watermark"]})
    else:
        print(f"{found['name']}: watermark {found['watermark'] or 'none'}")
    return 0
