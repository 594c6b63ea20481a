"""Runs an engine: epoch after epoch while there is input, and answers other processes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import VIEW
from eddyline.catalog.requests import Request

INTERVAL_S = 0.1
"""Between two looks for new input, where the user gives none."""

YIELD_S = 0.001
"""Between two epochs that follow each other, so that other threads get the lock."""

_LOG = logging.getLogger("eddyline.engine")


class Running:
    """Advances a workspace, once or in the background."""

    def __init__(
        self, workspace: Workspace, epochs: Epochs, definitions: Definitions, streams: Streams
    ) -> None:
        self._workspace = workspace
        self._epochs = epochs
        self._background: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._actions: dict[str, Callable[[Request], Any]] = {
            "add": lambda request: definitions.view(request.name, request.query, replace=False),
            "pause": lambda request: definitions.pause(request.name),
            "resume": lambda request: definitions.resume(request.name),
            "drop": lambda request: definitions.drop(VIEW, request.name, if_exists=False),
            "replay": lambda request: streams.remove_dead_letters(
                request.name, request.query or None, replay=True
            ),
            "discard": lambda request: streams.remove_dead_letters(
                request.name, request.query or None, replay=False
            ),
        }

    def advance(self) -> int:
        """Process all available input; see `Engine.advance`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            started = time.perf_counter()
            workspace.sources.pull()
            ingest_s = time.perf_counter() - started
            while self._step(ingest_s):
                ingest_s = 0.0
            return workspace.manifest.epoch

    def answer(self) -> None:
        """Answer the requests of other processes; see `Engine.answer`."""
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            for request in workspace.inbox.waiting():
                with workspace.inbox.answering(request):
                    self._actions[request.action](request)

    def start(self, interval: float | None) -> None:
        """Run in the background; see `Engine.start`."""
        self._workspace.check_writable()
        if self._background is not None and self._background.is_alive():
            return
        self._workspace.stopping.clear()
        self._failure = None
        self._background = threading.Thread(
            target=self._follow,
            args=(INTERVAL_S if interval is None else interval,),
            daemon=True,
        )
        self._background.start()

    def await_termination(self, timeout: float | None) -> bool:
        """Wait for the end of the background run; see `Engine.await_termination`."""
        if self._background is None:
            return True
        self._background.join(timeout)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return not self._background.is_alive()

    def stop(self) -> None:
        """Stop the background run and the sources, and release the storage."""
        workspace = self._workspace
        workspace.stopping.set()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join()
        with workspace.lock:
            if workspace.writes:
                workspace.flush()
            workspace.release()

    def _step(self, ingest_s: float) -> bool:
        """Answer requests of other processes, and run one epoch; False if there is no new input."""
        self.answer()
        return self._epochs.run_next(ingest_s)

    def _follow(self, interval_s: float) -> None:
        workspace = self._workspace
        looked = -math.inf
        try:
            while not workspace.stopping.is_set():
                with workspace.lock:
                    if time.monotonic() - looked >= interval_s:
                        workspace.sources.follow(interval_s)
                        looked = time.monotonic()
                    more = self._step(0.0)
                # between consecutive epochs, other threads can get the lock
                workspace.stopping.wait(YIELD_S if more else interval_s)
        except BaseException as error:  # noqa: BLE001  # await_termination raises it
            _LOG.error("the background run has ended: %s", type(error).__name__)
            self._failure = error
