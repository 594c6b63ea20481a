"""Delivers to one sink in a background thread, so that a slow or absent target delays nothing else."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from eddyline.answers.delivery import Delivery
from eddyline.changes import Epoch
from eddyline.errors import EddylineError, EngineError, condition_of, message_text
from eddyline.intake.backoff import back_off
from eddyline.runtime.progress import SteadyClock

STOP_S = 15.0
"""How long a delivery that is under way is waited for."""

_LOG = logging.getLogger("eddyline.sinks")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery to a sink, successful or not.

    Attributes:
        sink: the sink's name.
        started, ended: in nanoseconds since 1970.
        before: the epoch that the target held before; 0 if unknown.
        epoch: the epoch that it holds now.
        rows: number of rows delivered.
        deletes: how many of these were deletes.
        error: None if it succeeded.
    """

    sink: str
    started: int
    ended: int
    before: Epoch
    epoch: Epoch
    rows: int
    deletes: int = 0
    error: BaseException | None = None


class Deliverer:
    """Runs the delivery to a sink whenever it is woken; retries a failed one with growing pauses.

    Args:
        sink: the sink's name.
        open_delivery: opens the target.
        interval_s: the minimum number of seconds between two deliveries.
        report: called with the first error of each outage.
        delivered: called after each delivery that moved the target on, and each try that failed.
        note: called with the first error of each outage, and with each that differs from the one before it; with
            None when a try has succeeded after one, and when the first one has.
        previous: one of the same sink that was stopped. This one opens the target after the end of its delivery, however
            long that takes: two deliveries at once would mix what they send.

    Attributes:
        epoch: the last epoch that the target is known to hold.
        rows, deletes: number of rows delivered since the engine was opened, and of deletes among them.
        error: of the last try; None if it succeeded.
        failures: number of tries that failed, one after the other.
    """

    def __init__(
        self,
        sink: str,
        open_delivery: Callable[[], Delivery],
        interval_s: float,
        report: Callable[[Exception], None],
        delivered: Callable[[Delivered], object] = lambda _: None,
        note: Callable[[Exception | None], object] = lambda _: None,
        previous: Deliverer | None = None,
    ) -> None:
        self.sink = sink
        self.epoch = Epoch(0)
        self.rows = self.deletes = 0
        self.error: Exception | None = None
        self.failures = 0
        self._open = open_delivery
        self._interval_s = interval_s
        self._report = report
        self._delivered = delivered
        self._note = note
        self._previous = previous
        self._noted: str | None = None  # None: it isn't known yet
        self._delivery: Delivery | None = None
        self._writing = threading.Lock()  # held while an outage is noted
        self._changed = threading.Condition()
        self._wanted = True
        self._stopping = self._abandoned = False
        self._not_before = 0.0
        self._thread = threading.Thread(target=self._run, name=f"sink {sink}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Deliver what is committed by now."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()

    def wait(self, epoch: Epoch, timeout_s: float) -> bool:
        """Wait until the target holds an epoch; return whether it does.

        Returns at once if the target fails, if deliveries are `interval_s` apart, or in the delivery itself: a function may
        run an epoch.
        """
        if not self._interval_s and self._thread is not threading.current_thread():
            with self._changed:
                self._changed.wait_for(
                    lambda: self.epoch >= epoch or self.failures or self._stopping, timeout_s
                )
        return self.epoch >= epoch

    def stop(self) -> None:
        """Begin no other delivery, and release the target after the one that is under way; don't wait for it."""
        with self._changed:
            self._stopping = True
            delivery = self._delivery  # which its thread may close meanwhile
            if delivery is not None:
                delivery.stopping = True
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the thread after `stop`; abandon it if that takes too long."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self.abandon()

    def await_end(self) -> None:
        """Wait for the end of the thread after `stop`, without a limit; log it if that takes longer than `STOP_S`."""
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            text = "sink %s waits for the end of an earlier delivery, whose target doesn't answer"
            _LOG.warning(text, self.sink)
            self._thread.join()

    def abandon(self) -> None:
        """Stop, and let the delivery that is under way store neither its cursor nor an outage.

        It goes on all the same; what its target notes, or refuses, it may still store.
        """
        with self._writing, self._changed:
            self._stopping = self._abandoned = True
            delivery, previous = self._delivery, self._previous
            self._changed.notify_all()
        if delivery is not None:
            delivery.abandon()
        if previous is not None:
            previous.abandon()

    def _run(self) -> None:
        if self._previous is not None:
            self._previous.await_end()
            self._previous = None
        while True:
            with self._changed:
                while not self._stopping and (pause_s := self._pause_s()) != 0:
                    self._changed.wait(pause_s)
                if self._stopping:
                    break
                self._wanted = False
            self._try()
        self._close()

    def _pause_s(self) -> float | None:
        """Return the seconds until the next delivery; None to wait until `wake`."""
        if not self._wanted and not self.failures:
            return None
        return max(self._not_before - time.monotonic(), 0)

    def _try(self) -> None:
        clock = SteadyClock()
        tell = partial(self._report_try, clock, clock.now(), self.rows, self.deletes)
        try:
            delivery = self._opened()
            before = delivery.rows, delivery.deletes
            try:
                epoch = delivery.run()
            finally:
                self.rows += delivery.rows - before[0]
                self.deletes += delivery.deletes - before[1]
        except BaseException as error:  # noqa: BLE001  # also panics of Rust: the sink tries again
            self._close()
            tell(self.epoch, error)
            self._failed(error)
            return
        if epoch > self.epoch:
            tell(epoch)
        self._noting(None)
        with self._changed:
            if self.failures:
                _LOG.info("sink %s delivers again", self.sink)
            self.epoch, self.failures, self.error = epoch, 0, None
            self._not_before = time.monotonic() + self._interval_s
            self._changed.notify_all()

    def _opened(self) -> Delivery:
        """Return the delivery, which is opened first if it isn't."""
        if self._delivery is None:
            opened = self._open()
            with self._changed:  # `stop` may have come in the meantime
                opened.stopping = self._stopping
                self._delivery = opened
            if self._abandoned:
                opened.abandon()
        return self._delivery

    def _report_try(
        self,
        clock: SteadyClock,
        started: int,
        rows: int,
        deletes: int,
        epoch: Epoch,
        error: BaseException | None = None,
    ) -> None:
        """Report a delivery, or a failed try, to `delivered`.

        Args:
            started: when it was, by the clock.
            rows, deletes: delivered before it.
            epoch: that the target holds now.
        """
        counts = self.rows - rows, self.deletes - deletes
        made = Delivered(self.sink, started, clock.now(), self.epoch, epoch, *counts, error)
        with suppress(Exception):  # the delivery counts, not who hears of it
            self._delivered(made)

    def _noting(self, error: Exception | None) -> None:
        """Note an error, or that there is none, unless it was the last one that was noted."""
        text = "" if error is None else f"{condition_of(error)} {message_text(error)}"
        text = _NUMBERS.sub("", text)  # a port or a time in a message makes it no other one
        # the storage may be full: the next try notes it then
        with self._writing, suppress(EddylineError, OSError):
            if text != self._noted and not self._abandoned:
                self._note(error)
                self._noted = text

    def _failed(self, raised: BaseException) -> None:
        error = raised
        if not isinstance(error, Exception):
            text = f"sink {self.sink} has failed: {type(raised).__name__}"
            error = EngineError(text, condition="SINK_FAILED", hint="it tries again by itself")
            error.__cause__ = raised
        self._noting(error)
        with self._changed:
            self.failures += 1
            self.error = error
            pause_s = back_off(self.failures)
            self._not_before = time.monotonic() + pause_s
            self._changed.notify_all()
        name = condition_of(error)
        _LOG.warning("sink %s: %s; the next try is in %.1f s", self.sink, name, pause_s)
        if self.failures == 1 and not self._abandoned:
            self._report(error)

    def _close(self) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            with suppress(Exception):  # nothing can be done about an error of the target here
                delivery.sink.close()
