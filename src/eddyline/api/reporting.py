"""Reports of epochs and errors: in the log, to callbacks of the user, as traces and lineage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eddyline.answers.deliverer import Delivered
from eddyline.answers.failing import view_failing
from eddyline.answers.state_sizes import operator_sizes
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import LATE, VIEW
from eddyline.changes import ViewId
from eddyline.errors import EddylineError
from eddyline.runtime.lane_choice import SHORT, WIDE
from eddyline.runtime.progress import Progress, Timer
from eddyline.state.manifest import Clock, Failure, Manifest

if TYPE_CHECKING:
    from eddyline.telemetry.traces import Traces
    from eddyline.telemetry.tracker import Tracker

_LOG = logging.getLogger("eddyline.epochs")
_WHERE = ("view", "operator", "stream", "table", "file")


class Reporting:
    """Reports epochs and errors.

    Attributes:
        progress: the Progress of the last epoch; None before the first.
        callbacks: called with the Progress of each epoch after its commit.
        error_callbacks: called with the error of each view that is set aside, and of each failure of the
            background run.
        delivery_callbacks: called with each delivery to a sink, and each try that failed.
        traces: makes spans of epochs and deliveries; None if they aren't traced.
        tracker: makes lineage events of them; None if there are none.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.callbacks: list[Callable[[Progress], Any]] = []
        self.error_callbacks: list[Callable[[Exception], Any]] = []
        self.delivery_callbacks: list[Callable[[Delivered], Any]] = []
        self.traces: Traces | None = None
        self.tracker: Tracker | None = None
        self._failed: Timer | None = None

    def epoch(self, manifest: Manifest, catalog: Catalog, timer: Timer) -> None:
        """Log a committed epoch, and keep its Progress.

        Args:
            timer: has measured its stages.
        """
        rows_in, rows_out, state, lanes, operators = {}, {}, {}, {}, {}
        seconds = timer.seconds
        sizes = operator_sizes(manifest)
        for entry in catalog.entries:
            counts = manifest.counters.get(entry.name)
            if counts:
                rows_in[entry.name], rows_out[entry.name] = counts["in"], counts["out"]
                if entry.kind == VIEW:
                    lanes[entry.name] = SHORT if counts["short"] else WIDE
            own = {
                operator: {"rows": rows, "bytes": size}
                for operator, (rows, size) in sizes.get(entry.id, {}).items()
            }
            total = {what: sum(one[what] for one in own.values()) for what in ("rows", "bytes")}
            if total["rows"]:
                state[entry.name], operators[entry.name] = total, own
        failing = {failure.view: failure.message for failure in manifest.failing.values()}
        self.progress = Progress(
            manifest.epoch, rows_in, rows_out, seconds, state, failing, lanes, operators
        )
        if self.traces is not None:
            self.traces.epoch(self.progress, timer)
        if self.tracker is not None:
            self.tracker.epoch(self.progress)
            self.tracker.observe(catalog, manifest.epoch, frozenset(manifest.failing))
        _LOG.info(
            "epoch %d committed: %d rows in, %d changes out, %.3f s (%s)",
            manifest.epoch,
            sum(rows_in.values()),
            sum(rows_out.values()),
            sum(seconds.values()),
            ", ".join(f"{stage} {spent:.3f}" for stage, spent in seconds.items()),
        )

    def failed(self, epoch: int, timer: Timer, error: BaseException) -> None:
        """Trace a failed epoch; further calls for the same failure do nothing."""
        if self.traces is not None and timer is not self._failed:
            self.traces.failed(epoch, timer, error)
        self._failed = timer

    def delivered(self, delivery: Delivered) -> None:
        """Report a delivery to a sink to callbacks, traces and lineage."""
        _call(self.delivery_callbacks, delivery)
        if self.traces is not None:
            self.traces.delivered(delivery)
        if self.tracker is not None:
            self.tracker.delivered(delivery)

    def close(self) -> None:
        """Send the last traces, and lineage events that complete all runs."""
        traces, tracker, self.traces, self.tracker = self.traces, self.tracker, None, None
        if tracker is not None:
            tracker.close()
        if traces is not None:
            traces.close()

    def call_back(self) -> None:
        """Call the callbacks with the last Progress."""
        _call(self.callbacks, self.progress)

    def error(self, error: Exception) -> None:
        """Call the error callbacks."""
        _call(self.error_callbacks, error)

    def difference(self, before: Manifest, now: Manifest, catalog: Catalog) -> None:
        """Report views that an epoch has set aside or brought back, and rows that were too far ahead."""
        self._failing(before.failing, now.failing)
        for stream in [entry for entry in catalog.entries if entry.id in now.clocks]:
            earlier = before.clocks.get(stream.id, Clock(None))
            count = now.clocks[stream.id].ahead - earlier.ahead
            if count:
                text = "stream %s: rows dated more than max_ahead ahead: %d; they are in %s"
                _LOG.warning(text, stream.name, count, stream.name + LATE)

    def _failing(self, before: Mapping[ViewId, Failure], now: Mapping[ViewId, Failure]) -> None:
        for view, failure in now.items():
            if view not in before:
                _LOG.warning("view %s is set aside in epoch %d", failure.view, failure.since)
                self.error(view_failing(failure))
        for view, failure in before.items():
            if view not in now:
                _LOG.info("view %s, set aside in epoch %d, is live", failure.view, failure.since)


def _call(callbacks: Sequence[Callable[[Any], Any]], argument: object) -> None:
    """Call functions of the user; exceptions are logged, not raised."""
    for callback in callbacks:
        try:
            callback(argument)
        except Exception:  # noqa: BLE001  # whatever the user's function raises
            _LOG.exception("a callback has failed: %r", callback)


def named(error: BaseException) -> str:
    """Return condition and place of an error for the log; its message may contain user data."""
    if not isinstance(error, EddylineError):
        return type(error).__name__
    where = [f"{key} {error.context[key]}" for key in _WHERE if key in error.context]
    return " ".join([error.condition, *where])
