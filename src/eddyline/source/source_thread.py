"""A background thread of a source, so that a slow server holds up no other stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from eddyline.source.base import CopiedSource

FOLLOW_S = 0.2
"""How long `run_in_background` waits for the work before it returns."""


class SourceThread:
    """Calls one function, in the caller's thread or in the background, never twice at a time.

    Args:
        name: of the thread.
        work: the function. It should return soon once `stopped` is set.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.stopped = threading.Event()
        self._name, self._work = name, work
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._reached = False

    @property
    def trying(self) -> bool:
        """Whether the function is running in the background, and hasn't called `reached` yet."""
        return self._thread is not None and self._thread.is_alive() and not self._reached

    def reached(self) -> None:
        """Note that the function has reached what it reads from; to be called by it."""
        self._reached = True

    def run_now(self) -> None:
        """Wait for a call that is running, then call the function in this thread."""
        if self._thread is not None:
            self._thread.join()
        self._failure = None  # of an earlier try
        self.stopped.clear()
        self._work()

    def run_in_background(self) -> None:
        """Start the function in the background unless it is running; raise the error of an earlier call."""
        if self._thread is None or not self._thread.is_alive():
            self._raise_failure()
            self.stopped.clear()
            self._reached = False
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._thread.join(FOLLOW_S)
        if not self._thread.is_alive():
            self._raise_failure()

    def stop(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Set `stopped`, and wait until the function has returned.

        Args:
            cancel: interrupts what the function waits for, once a second. Its errors are ignored.
        """
        self.stopped.set()
        while self._thread is not None and self._thread.is_alive():
            with suppress(Exception):
                cancel()
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # the next call raises it
            self._failure = error
        except BaseException as error:  # noqa: BLE001  # a panic of a library in Rust
            self._failure = RuntimeError(f"{type(error).__name__}: {error}")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class ThreadedSource(CopiedSource):
    """A source whose `follow` doesn't wait for the end of a read, which may fail much later."""

    __slots__ = ()
    _thread: SourceThread

    @property
    def trying(self) -> bool:
        """Whether a read is under way that hasn't reached the source yet."""
        return self._thread.trying
