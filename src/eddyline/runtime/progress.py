"""The work of an epoch, and the durations of its stages."""

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
        state: `rows` and `bytes` on disk by name of table or view.
        failing: the views that are set aside, and the error of each.
        lanes: how each view was computed: `short`, in the driver, or `wide`, as a Spark job.
        operators: `state` of each stateful operator, by name of table or view, then by the operator's name in `eddyline
            profile`: `progress.operators["v"]["op0"]["rows"]`.

    Example:
        >>> import tempfile
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING")
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> engine.on_progress(lambda progress: print(progress.rows_out["counts"], "changes"))
        >>> orders.insert([(1, "tea"), (2, "tea")])
        >>> epoch = engine.advance()
        1 changes
        >>> progress = engine.progress()
        >>> progress.epoch == epoch, progress.rows_in["counts"]
        (True, 2)
        >>> engine.stop()
    """

    epoch: Epoch
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    seconds: dict[str, float]
    state: dict[str, dict[str, int]] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    lanes: dict[str, str] = field(default_factory=dict)
    operators: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which a stage of an epoch, or a view in it, ran.

    Attributes:
        name: of the stage, such as `commit`; or of the table or view.
        kind: `stage`, `table` or `view`.
        started, ended: in nanoseconds since 1970. Their difference is by a monotonic clock.
        failed: whether it ended with an error.
    """

    name: str
    kind: str
    started: int
    ended: int
    failed: bool = False


class SteadyClock:
    """A clock that is never set, so that differences between its times are durations."""

    def __init__(self) -> None:
        self._since_1970 = time.time_ns() - time.perf_counter_ns()

    def now(self) -> int:
        """Return the time, in nanoseconds since 1970."""
        return self._since_1970 + time.perf_counter_ns()


class Timer(SteadyClock):
    """Adds up the seconds of each stage of one epoch, and keeps the times of the stages.

    Attributes:
        seconds: by stage.
        stages: the spans of the stages in order; a stage that continues after a short break has one span.
        views: the tables and views that have run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys(("ingest", "plan", "run"), 0.0)
        self.stages: list[Span] = []
        self.views: list[Span] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of the context to a stage, and record its span."""
        started, failed = self.now(), True
        try:
            yield
            failed = False
        finally:
            ended = self.now()
            self.add(name, (ended - started) / 1e9)
            if self.stages and self.stages[-1].name == name:
                started = self.stages.pop().started
            self.stages.append(Span(name, "stage", started, ended, failed))

    @contextmanager
    def within(self, name: str, stage: str) -> Iterator[None]:
        """Add the seconds of the context to a stage, and subtract them from the stage around it."""
        started = self.now()
        try:
            yield
        finally:
            spent = (self.now() - started) / 1e9
            self.add(name, spent)
            self.add(stage, -spent)

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def after(self, other: Timer) -> Timer:
        """Return this timer, with the measurements of an earlier timer added."""
        for stage, seconds in other.seconds.items():
            self.add(stage, seconds)
        self.stages, self.views = [*other.stages, *self.stages], [*other.views, *self.views]
        return self
