"""Requests to the running engine, and how commands report their results."""

from __future__ import annotations

import argparse
import sys

from eddyline.catalog.requests import REFUSED, WAITING, Request
from eddyline.catalog.store import CatalogStore
from eddyline.cli.opening import open_engine
from eddyline.cli.output import JSON, show_document, show_error
from eddyline.errors import error_of_text


def request(
    store: CatalogStore, args: argparse.Namespace, what: str, action: str, argument: str = ""
) -> int | None:
    """Make a request about `args.name` to the running engine; if none runs, answer it here.

    Args:
        what: the request in words.

    Returns:
        the exit code of one that failed or waits, which is reported; None for one that is done.
    """
    from eddyline.answers.tasks import answer_if_unused, await_answer, submit_request

    def answer_by_engine() -> None:
        with open_engine(args.storage) as engine:
            engine.answer()

    number = submit_request(store, action, args.name, argument)
    if answer_if_unused(store, answer_by_engine):
        print("no engine runs on this storage: this command does it itself", file=sys.stderr)
    return report_unfinished(await_answer(store, number, args.wait), what, args.format, args.wait)


def show_done(args: argparse.Namespace, what: str) -> None:
    """Print that a request is done."""
    if args.format == JSON:
        show_document({"request": what, "state": "done"})
    else:
        print(f"{what}: done")


def report_unfinished(
    request: Request, what: str, form: str, wait: float, why: str = ""
) -> int | None:
    """Report a request that was refused or still waits, on standard error.

    Args:
        what: the request in words.
        form: that of the output, as for `show_error`.
        wait: seconds that the command has waited for the answer.
        why: the reason why it still waits, if known.

    Returns:
        the exit code; None for a request that is done.
    """
    if request.state == REFUSED:
        show_error(form, error_of_text(request.message))
        return 1
    if request.state == WAITING:
        print(f"{what}: waits for the engine{why}", file=sys.stderr)
        return 1 if wait else 0
    return None
