"""Wait for what another thread or process does, on a machine that may be slow or stand still for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 300
"""Below the time limit of a test, so that it tells what has not come."""

T = TypeVar("T")


def until(
    reached: Callable[[], T], told: Callable[[], object] = str, *, pause_s: float = 0.02
) -> T:
    """Return what `reached` returns as soon as that is true; else fail with what `told` returns."""
    end = time.monotonic() + PATIENCE_S
    while not (found := reached()):
        assert time.monotonic() < end, told()
        time.sleep(pause_s)
    return found
