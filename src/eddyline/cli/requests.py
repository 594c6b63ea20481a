"""Report the result of a request to the running engine."""

from __future__ import annotations

import sys

from eddyline.catalog.requests import REFUSED, WAITING, Request


def report_unfinished(request: Request, what: str, wait: float, why: str = "") -> int | None:
    """Report a request that was refused or still waits, on standard error.

    Args:
        what: the request in words.
        wait: seconds that the command has waited for the answer.
        why: the reason why it still waits, if known.

    Returns:
        the exit code; None for a request that is done.
    """
    if request.state == REFUSED:
        print(f"eddyline: {request.message}", file=sys.stderr)
        return 1
    if request.state == WAITING:
        print(f"{what}: waits for the engine{why}", file=sys.stderr)
        return 1 if wait else 0
    return None
