"""Errors that Spark reports as text."""

from __future__ import annotations

import re

from eddyline.errors import EddylineError, EngineError, StateError

_TRACEBACK = "Traceback (most recent call last):"
_STATE_ERROR = re.compile(r"eddyline\.errors\.StateError: \[(\w+)\] (.*)")


def cause_of(error: Exception) -> str:
    """Return the one line of Spark's message that names the cause.

    For a Python function this is the last line of its traceback: the exception and its message.
    """
    text = str(error)
    if _TRACEBACK in text:
        python = text.partition(_TRACEBACK)[2].partition("\n\n")[0]
        text = [line for line in python.splitlines() if line[:1].strip()][-1]
    named = [
        line.strip()
        for line in text.splitlines()
        if "eddyline.errors" in line or line.strip().startswith("[")
    ]
    return named[-1] if named else (text.splitlines() or [""])[0]


def failed_epoch(view: str, error: Exception) -> EddylineError:
    """Return the error to raise if Spark's job for a view has failed.

    A StateError raised by a kernel is restored as a StateError.
    """
    found = _STATE_ERROR.search(str(error))
    if found is not None:
        return StateError(found[2], condition=found[1], view=view)
    return EngineError(
        f"the epoch failed: {cause_of(error)}",
        condition="EPOCH_FAILED",
        view=view,
        hint="nothing was committed; mend the cause and call advance() again",
    )
