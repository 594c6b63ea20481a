"""Lanes of epochs by chance, where the engine would take the faster one."""

from __future__ import annotations

import random
from collections.abc import Callable


def drawn(seed: str | None = None) -> Callable[..., str]:
    """Return what chooses the lane of each epoch of each view by a die: in the driver, or as a Spark job.

    One in six is a job, as these take several times as long where there are few rows.
    """
    from eddyline.runtime.lane_choice import SHORT, WIDE

    die = random.Random(seed)
    return lambda *_: die.choice((*[SHORT] * 5, WIDE))


def draw_lanes() -> None:
    """Let this process draw all lanes; for child processes of tests."""
    from eddyline.runtime.lane_choice import Lanes

    Lanes.choose = drawn()  # type: ignore[method-assign]
