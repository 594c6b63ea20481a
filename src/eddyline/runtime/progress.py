"""What an epoch has done, and the seconds of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from eddyline.changes import Epoch


@dataclass(frozen=True, slots=True)
class Progress:
    """The work and duration of an epoch.

    Attributes:
        epoch: its number.
        rows_in: rows read, by name of table or view; a self-join counts its input twice.
        rows_out: changes written, by name of table or view.
        seconds: by stage: `ingest` (sources), `plan` (inputs assigned), `run` (Spark), `commit`.
        state: for each stateful operator (name of view / operator) its rows and bytes on disk.
        failing: the views that are set aside, and the error of each.
        lanes: how each view was computed: `short`, in the driver, or `wide`, as a Spark job.
    """

    epoch: Epoch
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    seconds: dict[str, float]
    state: dict[str, dict[str, int]] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    lanes: dict[str, str] = field(default_factory=dict)


class Timer:
    """Adds up the seconds of each stage."""

    def __init__(self, *stages: str) -> None:
        self.seconds = dict.fromkeys(stages, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of the context to a stage."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
