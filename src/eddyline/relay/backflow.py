"""A background thread that commits the reported outcomes of a data queue's records."""

from __future__ import annotations

import threading

from eddyline.relay.queue import DataQueue

BACKFLOW_EVERY_S = 0.02


class Backflow:
    """Commits a queue in the background, while a reader reads: what failed, or wasn't reported in time, comes back.

    Use it as a context manager around the reading loop. An error ends the thread; `check` and the end of the
    `with` block raise it.

    Args:
        queue: the queue that is read.
        every_s: seconds between two commits.

    Example:
        >>> import tempfile
        >>> import eddyline as el
        >>> queue = el.DataQueue(el.LogBackend(tempfile.mkdtemp()), ttl_ms=50)
        >>> queue.put(["a", "b"])
        2
        >>> with el.Backflow(queue, every_s=0.01):
        ...     batch, records = queue.read(10)
        ...     queue.ack(batch.number, [0])
        ...     while (again := queue.read(10)) is None:
        ...         pass
        >>> again[1]["payload"].to_pylist()
        [b'b']
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
                self.queue.commit()
            self.queue.commit()
        except Exception as error:  # noqa: BLE001  # `check` raises it
            self.error = error
