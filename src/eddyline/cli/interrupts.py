"""Wait for Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.5
"""How late a signal may be that comes just before the wait, which it then doesn't end."""


def await_interrupt(check: Callable[[], None] | None = None) -> None:
    """Wait until a signal raises KeyboardInterrupt in the main thread, or `check` raises, which is called twice a second.

    Libraries set handlers of their own for Ctrl-C, such as polars, after which the system goes on with most calls that
    the signal interrupts, such as waiting for a lock: Python's handler would never run. It never goes on with a sleep.
    """
    while True:
        time.sleep(LOOK_S)
        if check is not None:
            check()
