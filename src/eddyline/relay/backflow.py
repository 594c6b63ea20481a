"""A background thread that commits the reported outcomes of a data queue's records."""

from __future__ import annotations

import threading

from eddyline.relay.queue import DataQueue

BACKFLOW_EVERY_S = 0.02


class Backflow:
    """Expires and commits the batches of a queue in the background, while a reader reads.

    Use it as a context manager around the reading loop. An error ends the thread; `check` and the end of the
    `with` block raise it.

    Args:
        queue: the queue that is read.
        every_s: seconds between two commits.
    """

    def __init__(self, queue: DataQueue, every_s: float = BACKFLOW_EVERY_S) -> None:
        self.queue = queue
        self.every_s = every_s
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eddyline-backflow", daemon=True)

    def __enter__(self) -> Backflow:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the error that ended the thread, if any; call it in the reading loop."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.every_s):
                self.queue.expire()
                self.queue.commit()
            self.queue.commit()
        except Exception as error:  # noqa: BLE001  # `check` raises it
            self.error = error
