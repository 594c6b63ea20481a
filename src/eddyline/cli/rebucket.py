"""The command `rebucket`: change the number of buckets of a storage."""

from __future__ import annotations

import argparse
import os

from eddyline.cli.arguments import Commands, add_storage, add_wait
from eddyline.cli.opening import open_catalog
from eddyline.cli.output import JSON, add_format, show_document
from eddyline.cli.requests import request


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "rebucket",
        help="change the number of buckets, also while another process runs the engine",
        description="Divides the rows of all tables into other buckets (hash partitions), and computes all views "
        "again; no row changes. A running engine does it before its next epoch; if none runs, this command does it.",
    )
    parser.add_argument(
        "buckets", metavar="N", type=int,
        help="the new number, 1 to 4,096: about as many as the cluster has cores",
    )  # fmt: skip
    parser.set_defaults(run=_rebucket)
    add_wait(parser)
    add_storage(parser)
    add_format(parser)


def _rebucket(args: argparse.Namespace) -> int:
    from eddyline.answers.tasks import REBUCKET
    from eddyline.options import check_buckets

    check_buckets(args.buckets)
    args.name = os.path.basename(os.path.abspath(args.storage))
    with open_catalog(args.storage) as store:
        what = f"change the number of buckets to {args.buckets}"
        code = request(store, args, what, REBUCKET, str(args.buckets))
    if code is not None:
        return code
    if args.format == JSON:
        show_document({"buckets": args.buckets})
    else:
        print(f"{args.storage}: {args.buckets} buckets")
    return 0
