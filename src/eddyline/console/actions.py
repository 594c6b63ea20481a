"""Actions of the console: requests to the engine, which answers them before its next epoch.

Nothing here changes the storage itself. Each request has a number, and stays in the catalog with its time and
its outcome; the console's log says from which address it came.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

from eddyline.answers.dead_letters import request_action, request_mended
from eddyline.answers.tasks import PAUSE, RESUME, VERIFY, submit_request
from eddyline.catalog.entries import VIEW
from eddyline.catalog.requests import DONE, Request
from eddyline.catalog.store import CatalogStore
from eddyline.console.observer import Observer
from eddyline.errors import EngineError

VIEW_ACTIONS = (PAUSE, RESUME, VERIFY)
SINK_ACTIONS = ("pause", "resume", "resend")
LETTER_ACTIONS = ("replay", "drop")
SHOWN = 200
"""The requests in the list."""

_LOG = logging.getLogger("eddyline.console")


class Actions:
    """Makes requests to the engine.

    Args:
        observer: reads the storage.
        store: its catalog.
        allowed: whether the console may make requests.
    """

    def __init__(self, observer: Observer, store: CatalogStore, *, allowed: bool) -> None:
        self._observer = observer
        self._store = store
        self.allowed = allowed

    def check(self) -> None:
        """Raise EngineError READ_ONLY if this console may not make requests."""
        if not self.allowed:
            raise EngineError(
                "this console only shows",
                condition="READ_ONLY",
                hint="start it with a token, without --read-only, and where it may write into the storage; or use "
                "the command line",
            )

    def on_view(self, action: str, name: str, who: str) -> Request:
        """Ask to pause, resume or verify a view.

        Args:
            who: the address that asks.

        Raises:
            CatalogError: NOT_FOUND: there is no such view.
            EngineError: READ_ONLY.
        """
        self.check()
        view = self._observer.now()[0].get(name, VIEW).name
        return self._asked(submit_request(self._store, action, view), who)

    def on_sink(self, action: str, name: str, who: str) -> Request:
        """Ask to pause, resume or resend a sink; errors as of `on_view`."""
        self.check()
        sink = self._observer.now()[0].get_sink(name).name
        return self._asked(submit_request(self._store, f"{action} sink", sink), who)

    def on_letter(
        self, action: str, source: str, position: int, who: str, payload: bytes | None = None
    ) -> Request:
        """Ask to replay or drop a dead letter.

        Args:
            payload: replaces the payload of the replayed record; None leaves it.

        Raises:
            CatalogError: NOT_FOUND: there is no such letter. NO_REPLAY: its stream reads a record only once.
            EngineError: READ_ONLY.
        """
        self.check()
        if payload is None:
            number = request_action(self._store, action, source, (position,))
        else:
            number = request_mended(self._store, source, position, payload)
        return self._asked(number, who)

    def on_letters(self, action: str, source: str, who: str) -> Request:
        """Ask to replay or drop all dead letters of a pipeline or stream; errors as of `on_letter`."""
        self.check()
        return self._asked(request_action(self._store, action, source, ()), who)

    def request(self, number: int) -> Request:
        """Return a request; CatalogError NOT_FOUND if it isn't kept any more."""
        return self._store.request(number)

    def requests(self, last: int = SHOWN) -> list[Request]:
        """Return the last requests, the newest first, also those of the command line."""
        return self._store.requests(last)

    def _asked(self, number: int, who: str) -> Request:
        request = self._store.request(number)
        _LOG.info("request %d by %s: %s %r", number, who, request.action, request.name)
        return request


def request_json(request: Request) -> dict[str, Any]:
    """Return a request as JSON; `report` is what `verify` has found, else None."""
    found = asdict(request)
    report = report_of(request)
    return {**found, "message": "" if report else request.message, "report": report}


def report_of(request: Request) -> dict[str, Any] | None:
    """Return the report of a verification; None for other requests, and before it is done."""
    if request.action != VERIFY or request.state != DONE or not request.message:
        return None
    found: dict[str, Any] = json.loads(request.message)
    return found


def outcome(request: Request, *, running: bool) -> str:
    """Return the state of a request in words.

    Args:
        running: whether an engine runs.
    """
    report = report_of(request)
    if report is not None:
        agrees = "equal to the same SQL run offline"
        found = agrees if report["equal"] else f"NOT {agrees}"
        return f"{found}, as of epoch {report['epoch']}" if report["views"] else "not compared"
    if request.state == DONE:
        return "done"
    if request.message:
        return f"refused: {request.message}"
    if request.action == VERIFY and running:
        return "waits for its turn, or is compared now"
    return "waits for the engine" if running else "waits for an engine: none runs now"
