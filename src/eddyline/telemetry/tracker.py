"""Views, sinks and streams as jobs of OpenLineage, which run as long as they are kept up to date.

A run starts when a view is created or resumed, or the engine opens the storage. It completes when the view is
dropped, paused or replaced, or the engine stops, and it fails when the view is set aside. In between RUNNING events
come at a bounded rate, however many epochs there are. One thread makes and sends all events; an epoch only
hands it two references and a few numbers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eddyline.answers.deliverer import Delivered
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import SINK, VIEW, Entry
from eddyline.errors import EngineError, condition_of, missing_package
from eddyline.intake.backoff import back_off
from eddyline.plan.lineage import Lineage
from eddyline.runtime.progress import Progress
from eddyline.telemetry.datasets import outside

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from eddyline.telemetry.openlineage import Events

WAITING_MAX = 2000
"""How many events wait for a receiver that doesn't answer; then the oldest are dropped."""

CLOSE_S = 5.0
"""How long the end of an engine waits for the last events to be taken."""

_LOG = logging.getLogger("eddyline.telemetry")


@dataclass(frozen=True, slots=True)
class Job:
    """A view, a sink, or a stream with a source outside.

    Attributes:
        condition: of the error with which it stands still; empty if it runs.
    """

    entry: Entry
    condition: str = ""


@dataclass(slots=True)
class JobRun:
    """A run of OpenLineage that has started.

    Attributes:
        id: a UUID.
        reported_at: when its last event was made, on the monotonic clock.
        rows: the rows that its events have reported so far.
    """

    id: str
    job: Job
    reported_at: float
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Moment:
    """The definitions and the last epoch."""

    catalog: Catalog
    epoch: int
    failing: frozenset[str]


class Tracker:
    """Follows the definitions and epochs of one engine, and sends lineage events about them.

    Args:
        client: sends events.
        events: makes them.
        lineage: returns the lineage of a view; called in the thread of this object.
        interval_s: seconds between two RUNNING events of a run, at least.
    """

    def __init__(
        self,
        client: OpenLineageClient,
        events: Events,
        lineage: Callable[[Entry, Catalog], Lineage],
        interval_s: float,
    ) -> None:
        self._client = client
        self._events = events
        self._lineage = lineage
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._now: _Moment | None = None
        self._rows: Counter[str] = Counter()  # by kind and name, since the engine was opened
        self._broken: dict[str, str] = {}  # sinks that can't deliver, with the condition
        self._runs: dict[str, JobRun] = {}
        self._lineages: dict[str, Lineage | None] = {}
        self._waiting: deque[Any] = deque(maxlen=WAITING_MAX)
        self._failures = 0
        self._wake, self._stopping = threading.Event(), False
        self._ends_at = 0.0
        self._thread = threading.Thread(target=self._follow, name="lineage", daemon=True)
        self._thread.start()

    def observe(self, catalog: Catalog, epoch: int, failing: frozenset[str]) -> None:
        """Accept the current definitions, and the ids of the failing views; returns at once."""
        before, self._now = self._now, _Moment(catalog, epoch, failing)
        if before is None or before.catalog is not catalog or before.failing != failing:
            self._wake.set()

    def epoch(self, progress: Progress) -> None:
        """Add the work of an epoch."""
        with self._lock:
            for name, rows in progress.rows_out.items():
                self._rows[f"{VIEW} {name}"] += rows

    def delivered(self, delivery: Delivered) -> None:
        """Add a delivery to a sink, or note that it can't deliver."""
        with self._lock:
            self._rows[f"{SINK} {delivery.sink}"] += delivery.rows
        was = self._broken.get(delivery.sink, "")
        if delivery.error is not None:
            self._broken[delivery.sink] = condition_of(delivery.error)
        else:
            self._broken.pop(delivery.sink, None)
        if self._broken.get(delivery.sink, "") != was:
            self._wake.set()

    def close(self) -> None:
        """Complete all runs, and wait for `CLOSE_S` seconds at most until that is sent."""
        self._ends_at = time.monotonic() + CLOSE_S
        self._stopping = True
        self._wake.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            with suppress(Exception):
                self._client.close(1.0)

    def _follow(self) -> None:
        while not self._stopping:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._guarded(self._compare)
            self._guarded(self._report_progress)
            self._send()
        self._guarded(self._compare)  # the last changes of definitions
        self._guarded(self._complete_runs)
        while self._waiting and time.monotonic() < self._ends_at:
            self._send()
            if self._waiting:
                time.sleep(0.1)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # the thread goes on whatever happens
            _LOG.warning("lineage can't be reported: %s", type(error).__name__)

    def _pause_s(self) -> float:
        if self._waiting:
            return back_off(self._failures)
        due = [run.reported_at + self._interval_s for run in self._runs.values()]
        return max(min(due, default=time.monotonic() + self._interval_s) - time.monotonic(), 0.05)

    def _compare(self) -> None:
        """Start the runs that the definitions lack, and end those without a definition."""
        now = self._now
        if now is None:
            return
        jobs = {job.entry.id: job for job in self._jobs(now)}
        for name, run in list(self._runs.items()):
            job = jobs.get(name)
            if job is not None and not job.condition and not job.entry.paused:
                if job.entry != run.job.entry:  # its definition or its columns have changed
                    run.job = job
                    self._lineages.pop(name, None)
                    self._queue_event("RUNNING", run, now)
                continue
            del self._runs[name]
            if job is not None and job.condition:
                self._queue_event("FAIL", run, now, condition=job.condition)
            else:
                replaced = now.catalog.find(run.job.entry.name) is not None
                self._queue_event("COMPLETE", run, now, dropped=job is None and not replaced)
        for name, job in jobs.items():
            if name not in self._runs and not job.condition and not job.entry.paused:
                run = JobRun(self._events.new_run(), job, time.monotonic())
                self._runs[name] = run
                run.rows = self._count(job)
                self._queue_event("START", run, now)
        self._lineages = {name: one for name, one in self._lineages.items() if name in jobs}

    def _jobs(self, now: _Moment) -> Iterator[Job]:
        for entry in now.catalog.entries:
            if entry.kind == VIEW:
                yield Job(entry, "VIEW_FAILING" if entry.id in now.failing else "")
            elif entry.takes_input and outside(entry.format, entry.options):
                yield Job(entry)
        for sink in now.catalog.sinks:
            yield Job(sink, self._broken.get(sink.name, ""))

    def _report_progress(self) -> None:
        """Queue a RUNNING event for each run that has new rows, at most one in each interval."""
        now = self._now
        for run in list(self._runs.values()):
            if now is None or time.monotonic() < run.reported_at + self._interval_s:
                continue
            count = self._count(run.job)
            if count > run.rows:
                self._queue_event("RUNNING", run, now, rows=count - run.rows)
                run.rows = count
            run.reported_at = time.monotonic()

    def _complete_runs(self) -> None:
        now = self._now
        for run in self._runs.values() if now is not None else ():
            assert now is not None
            self._queue_event("COMPLETE", run, now, rows=self._count(run.job) - run.rows)
        self._runs = {}

    def _queue_event(self, state: str, run: JobRun, now: _Moment, **more: Any) -> None:
        entry = run.job.entry
        made = self._events.of(
            state,
            run.id,
            datetime.now(UTC),
            entry,
            now.catalog,
            now.epoch,
            self._columns(entry),
            **more,
        )
        self._waiting.append(made)

    def _columns(self, entry: Entry) -> Lineage | None:
        """Return the lineage of a view; None if it can't be read, as when the engine ends."""
        if entry.kind != VIEW or self._now is None:
            return None
        late = self._stopping and time.monotonic() > self._ends_at
        if entry.id not in self._lineages and not late:
            self._lineages[entry.id] = None
            with suppress(Exception):
                self._lineages[entry.id] = self._lineage(entry, self._now.catalog)
        return self._lineages.get(entry.id)

    def _count(self, job: Job) -> int:
        kind = SINK if job.entry.kind == SINK else VIEW
        with self._lock:
            return self._rows[f"{kind} {job.entry.name}"]

    def _send(self) -> None:
        """Send the waiting events in order; after a failure the rest stays queued."""
        while self._waiting and not (self._ends_at and time.monotonic() > self._ends_at):
            try:
                self._client.emit(self._waiting[0])
            except Exception as error:  # noqa: BLE001  # whatever the transport raises
                self._failures += 1
                if self._failures == 1:
                    _LOG.warning("lineage can't be sent: %s; it waits", type(error).__name__)
                return
            self._failures = 0
            self._waiting.popleft()


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether OpenLineage's standard variables or files name a receiver."""
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OPENLINEAGE_URL") or environment.get("OPENLINEAGE_CONFIG"):
        return True
    if any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environment):
        return True
    places = (Path.cwd(), Path("~/.openlineage").expanduser())
    return any((place / "openlineage.yml").is_file() for place in places)


def tracker_of(
    storage: str, lineage: Callable[[Entry, Catalog], Lineage], interval_s: float
) -> Tracker | None:
    """Return the tracker of an engine's lineage; None if nothing is configured.

    Raises:
        EngineError: MISSING_PACKAGE. BAD_OPTION: the client can't be made with its configuration.
    """
    if not is_wanted():
        return None
    try:
        from openlineage.client import OpenLineageClient

        from eddyline.telemetry.openlineage import Events
    except ModuleNotFoundError as error:
        raise missing_package("lineage", str(error.name), "lineage") from error
    try:
        client = OpenLineageClient()
    except Exception as error:  # whatever the client raises for its files and variables
        raise EngineError(
            f"OpenLineage's client can't be made of its configuration: {type(error).__name__}",
            condition="BAD_OPTION",
            hint="mend openlineage.yml or the variables that begin with OPENLINEAGE, or set "
            "OPENLINEAGE_DISABLED=true",
        ) from error
    namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
    return Tracker(client, Events(namespace, storage), lineage, interval_s)
