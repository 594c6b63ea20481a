"""Answers requests to verify a view, in a thread beside the epochs."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from eddyline.answers.verified import keep_verified
from eddyline.answers.verify import Report, report_document
from eddyline.api.reporting import named
from eddyline.api.workspace import Workspace
from eddyline.catalog.requests import DONE, REFUSED, Request
from eddyline.intake.backoff import back_off
from eddyline.spark.failures import FAILURES

GROUP = "eddyline verify"
"""The group of Spark jobs of a verification."""
_STOPPED = "the engine has stopped meanwhile: ask again when it runs"

_LOG = logging.getLogger("eddyline.engine")


class Verifying:
    """Verifies views for other processes, one after the other. Epochs go on meanwhile.

    Args:
        verify: compares one view with offline SQL, as of the last committed epoch.
    """

    def __init__(self, workspace: Workspace, verify: Callable[[str | None], Report]) -> None:
        self._workspace = workspace
        self._verify = verify
        self._begun: set[int] = set()
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def begin(self, request: Request) -> None:
        """Begin to answer a request, unless that has begun already."""
        if request.number in self._begun or self._stopped.is_set():
            return
        self._begun.add(request.number)
        self._waiting.put(request)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="eddyline-verify", daemon=True)
            self._thread.start()
            self._workspace.closing.append(self.stop)

    def stop(self) -> None:
        """Cancel the running verification, refuse those that wait, and end the thread."""
        self._stopped.set()
        self._waiting.put(None)
        thread = self._thread
        while thread is not None and thread.is_alive():
            with suppress(*FAILURES, OSError, AttributeError):  # the session has ended already
                self._workspace.spark.sparkContext.cancelJobGroup(GROUP)
            thread.join(0.2)  # a job that begins between the two is cancelled the next time

    def _run(self) -> None:
        while (request := self._waiting.get()) is not None:
            state, message = REFUSED, _STOPPED
            if not self._stopped.is_set():
                state, message = self._answer(request)
            self._settle(request, state, message)
            self._begun.discard(request.number)

    def _settle(self, request: Request, state: str, message: str) -> None:
        """Store an answer; try again until that succeeds, or the engine stops."""
        failures = 0
        while True:
            try:
                self._workspace.store.settle(request.number, state, message)
            except Exception as error:  # noqa: BLE001  # the answer would be lost, and this thread end
                failures += 1
                if failures == 1:
                    _LOG.error("request %d stays unanswered: %s", request.number, named(error))
                if self._stopped.wait(back_off(failures)):
                    return
            else:
                return

    def _answer(self, request: Request) -> tuple[str, str]:
        """Return whether a request is done or refused, and the report or the reason."""
        try:
            self._workspace.spark.sparkContext.setJobGroup(GROUP, f"verify {request.name}")
            report = self._verify(request.name)
            keep_verified(self._workspace.files, self._workspace.catalog, report)
        except Exception as error:  # noqa: BLE001  # a request must not end the thread
            return REFUSED, _STOPPED if self._stopped.is_set() else str(error)
        return DONE, json.dumps(report_document(report), ensure_ascii=False)
