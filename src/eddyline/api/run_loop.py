"""The run loop of an engine: epochs while there is input, and answers to requests of other processes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from eddyline.answers.dead_letters import MEND, parse_mended
from eddyline.answers.run_health import ENDED, RETRYING, RUNNING, STOPPED
from eddyline.answers.tasks import VERIFY
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.reading import Reading
from eddyline.api.rebucketing import rebucket
from eddyline.api.reporting import named
from eddyline.api.streams import Streams
from eddyline.api.verifying import Verifying
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_number
from eddyline.catalog.entries import VIEW
from eddyline.catalog.requests import Request
from eddyline.errors import StateError
from eddyline.intake.backoff import back_off
from eddyline.intake.lags import EVERY_S, FRESH_S
from eddyline.runtime.progress import Timer
from eddyline.source.lag import Lags, stored_lags
from eddyline.spark.jvm import check_jvm, lost_jvm

INTERVAL_S = 0.1
"""Between two looks for new input, where the user gives none."""

RETIRE_EVERY_S = 60.0
"""Between two looks for dead letters beyond their limits."""

INTERRUPT_S = 0.2
"""How long Ctrl-C may wait: a signal doesn't end a wait for a thread where polars has set its handler."""

JVM_LOOK_S = 1.0
"""How long the end of the JVM may stay unnoticed."""

YIELD_S = 0.001
"""Between two epochs that follow each other, so that other threads get the lock."""

_LOG = logging.getLogger("eddyline.engine")


def check_interval(interval: float | None) -> None:
    """Raise EngineError BAD_OPTION unless a run can look for input so often, in seconds; None for the default."""
    if interval is not None:
        check_number("interval", interval, 0, whole=False)


class RunLoop:
    """Runs the epochs of a workspace, once or in the background."""

    def __init__(
        self,
        workspace: Workspace,
        epochs: Epochs,
        definitions: Definitions,
        streams: Streams,
        reading: Reading,
    ) -> None:
        self._workspace = workspace
        self._verifying = Verifying(workspace, reading.verify)
        self._epochs = epochs
        self._background: threading.Thread | None = None
        self._measuring: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._failures = 0
        self._last_error: Exception | None = None
        self._streams = streams
        self._retire_at = -math.inf  # when to look for dead letters beyond their limits
        self._actions: dict[str, Callable[[Request], Any]] = {
            "add": lambda request: definitions.view(request.name, request.query, replace=False),
            "pause": lambda request: definitions.pause(request.name),
            "resume": lambda request: definitions.resume(request.name),
            "reset": lambda request: definitions.reset_watermark(
                request.name, request.query or None
            ),
            "rebucket": lambda request: rebucket(workspace, epochs, int(request.query)),
            "drop": lambda request: definitions.drop(VIEW, request.name, if_exists=False),
            # these don't wait for deliveries under way, as epochs would wait with them
            "pause sink": lambda request: epochs.sinks.pause(request.name, wait=False),
            "resume sink": lambda request: epochs.sinks.resume(request.name),
            "resend sink": lambda request: epochs.sinks.resend(request.name),
            "drop sink": lambda request: epochs.sinks.drop(
                request.name, if_exists=False, wait=False
            ),
            "replay": lambda request: streams.remove_chosen_letters(
                request.name, request.query, replay=True
            ),
            "discard": lambda request: streams.remove_chosen_letters(
                request.name, request.query, replay=False
            ),
            MEND: lambda request: streams.mend_dead_letter(
                request.name, *parse_mended(request.query)
            ),
        }

    def advance(self) -> int:
        """Process all available input; see `Engine.advance`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            timer = Timer()
            with timer.stage("ingest"):
                unread = workspace.sources.pull()
            failing = set(workspace.manifest.failing)
            # once: epochs may take longer than now() needs for its next step
            now = workspace.clock()
            while self._step(timer, now):
                timer = Timer()
            if failing & set(workspace.manifest.failing):
                self._epochs.retry()
            self._epochs.sinks.wake()
            epoch = workspace.manifest.epoch
            unread += self._epochs.stops.errors
        self._epochs.sinks.wait(epoch)
        self.measure_lags(EVERY_S)
        if unread:  # all other input has been processed
            first, *others = unread
            # set, not added: the next call may raise the same error
            first.__notes__ = list(map(str, others))
            raise first
        return epoch

    def answer(self) -> None:
        """Answer the requests of other processes; see `Engine.answer`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            for request in workspace.inbox.waiting():
                if request.action == VERIFY:
                    self._verifying.begin(request)  # it would hold up the epochs
                    continue
                with workspace.inbox.answering(request):
                    self._actions[request.action](request)

    def start(self, interval: float | None) -> None:
        """Run in the background; see `Engine.start`."""
        check_interval(interval)
        self._workspace.check_writable()
        if self._background is not None and self._background.is_alive():
            return
        self._workspace.stopping.clear()
        self._failure, self._last_error, self._failures = None, None, 0
        self._background = threading.Thread(
            target=self._follow,
            args=(INTERVAL_S if interval is None else interval,),
            daemon=True,
        )
        self._background.start()
        if self._measuring is None or not self._measuring.is_alive():
            self._measuring = threading.Thread(
                target=self._measure, name="eddyline-lags", daemon=True
            )
            self._measuring.start()

    def await_termination(self, timeout: float | None) -> bool:
        """Wait for the end of the background run; see `Engine.await_termination`."""
        if timeout is not None:
            check_number("timeout", timeout, 0, whole=False)
        if self._background is None:
            return True
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self._background.is_alive() and (left := end - time.monotonic()) > 0:
            self._background.join(min(left, INTERRUPT_S))
        if self._failure is not None:
            raise self._failure
        return not self._background.is_alive()

    def stop(self) -> None:
        """Stop the background run and the sources, and release the storage."""
        workspace = self._workspace
        workspace.stopping.set()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join()
        if self._measuring is not None:
            self._measuring.join()
        try:
            with ExitStack() as rest:  # runs all, the last one first, also where some fail
                for close in (
                    self._epochs.merges.stop,
                    self._epochs.sinks.stop,
                    *workspace.closing,
                ):
                    rest.callback(close)
                workspace.closing.clear()
        finally:
            self._epochs.reporting.close()
            with workspace.lock:
                try:
                    if workspace.writes:
                        workspace.flush()
                finally:
                    workspace.release()

    def measure_lags(self, max_age_s: float = FRESH_S) -> None:
        """Measure how far sources are behind, unless that was done in the last seconds."""
        workspace = self._workspace
        if workspace.writes:
            workspace.lags.measure(workspace.catalog, workspace.manifest, max_age_s)

    def lags(self) -> Lags:
        """Return how far sources are behind, measured in the last seconds."""
        self.measure_lags()
        return stored_lags(self._workspace.files)

    def _measure(self) -> None:
        """Measure lags as long as the background run goes on, also while an epoch takes long."""
        while not self._workspace.stopping.wait(EVERY_S):
            try:
                self.measure_lags(EVERY_S / 2)
            except Exception as error:  # noqa: BLE001  # the numbers stay old; the next try may succeed
                _LOG.warning("lags of sources aren't known: %s", named(error))

    def _step(self, timer: Timer, now: int | None = None) -> bool:
        """Answer requests of other processes, and run one epoch; False if there is no new input.

        Args:
            now: the time of the epoch, microseconds since 1970; None for that of the clock.
        """
        self.answer()
        if time.monotonic() >= self._retire_at:
            self._retire_at = time.monotonic() + RETIRE_EVERY_S
            self._streams.retire_dead_letters(time.time())
        return self._epochs.run_next(timer, now)

    def _follow(self, interval_s: float) -> None:
        workspace = self._workspace
        looked = -math.inf
        try:
            self._tell_health()
            with workspace.lock:
                self._epochs.sinks.wake()
            while not workspace.stopping.is_set():
                try:
                    check_jvm()
                    with workspace.lock:
                        timer = Timer()
                        if time.monotonic() - looked >= interval_s:
                            with timer.stage("ingest"):
                                unreadable = workspace.sources.follow(interval_s)
                            for unread in unreadable:
                                _LOG.error("%s", named(unread))
                                self._epochs.reporting.error(unread)
                            looked = time.monotonic()
                        more = self._step(timer)
                        if not more and self._epochs.retry_due():
                            self._epochs.retry()
                    self._failures, self._last_error = 0, None
                    self._tell_health()
                    # between consecutive epochs, other threads can get the lock
                    pause_s = YIELD_S if more else interval_s
                except Exception as error:  # noqa: BLE001  # nothing ends the run in silence
                    pause_s = self._failed(error)
                self._pause(pause_s)
        except BaseException as error:  # noqa: BLE001  # await_termination raises it
            _LOG.error("the background run has ended: %s", type(error).__name__)
            self._failure = error
            self._tell_health()

    def _pause(self, seconds: float) -> None:
        """Wait until the next look for input, the end of the run, or that of the JVM."""
        end = time.monotonic() + seconds
        while not self._workspace.stopping.wait(min(end - time.monotonic(), JVM_LOOK_S)):
            if time.monotonic() >= end or lost_jvm() is not None:
                return

    def _failed(self, error: Exception) -> float:
        """Report a failure of the background run; return the seconds until the next try.

        Raises:
            Exception: the same error, or that the JVM is lost, if no later try can succeed.
        """
        lost = lost_jvm(error)
        ended = lost is not None or isinstance(error, StateError) or not self._workspace.writes
        error = lost or error
        self._last_error = error
        self._epochs.reporting.error(error)
        if ended:
            raise error
        self._failures += 1
        self._tell_health()
        pause_s = back_off(self._failures)
        _LOG.error("%s; the next try is in %.1f s", named(error), pause_s)
        return pause_s

    def _tell_health(self) -> None:
        """Store the health for other processes, if it has changed."""
        if self._workspace.writes:
            self._workspace.stored_health.store(self.health())

    def health(self) -> dict[str, Any]:
        """Return the state of the background run; see `Engine.status`."""
        if self._failure is not None:
            return {"state": ENDED, "error": str(self._failure)}
        if self._background is None or not self._background.is_alive():
            return {"state": STOPPED}
        if self._last_error is not None:
            error = str(self._last_error)
            return {"state": RETRYING, "error": error, "failures": self._failures}
        for outage in list(self._workspace.sources.outages.values()):
            error, failures = str(outage.error), outage.failures
            return {"state": RETRYING, "error": error, "failures": failures}
        return {"state": RUNNING}
