"""Work of a source in a thread of its own, so that no other stream waits for its server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

FOLLOW_S = 0.2
"""So long `go_on` waits for the work; it goes on in the background."""


class Aside:
    """A function that is called in a thread, once at a time.

    Args:
        name: of the thread.
        work: the function. It should return soon once `stopped` is set.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.stopped = threading.Event()
        self._name, self._work = name, work
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def now(self) -> None:
        """Call the function in this thread, after a call that is under way."""
        if self._thread is not None:
            self._thread.join()
        self._failure = None  # of an earlier try
        self.stopped.clear()
        self._work()

    def go_on(self) -> None:
        """Call the function in the thread unless it runs; raise what an earlier call has raised."""
        if self._thread is None or not self._thread.is_alive():
            self._raise_failure()
            self.stopped.clear()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._thread.join(FOLLOW_S)
        if not self._thread.is_alive():
            self._raise_failure()

    def stop(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Wait until the function has returned; it sees `stopped`.

        Args:
            cancel: ends what it waits for. It may fail: what can't be cancelled ends by its time limit.
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

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
