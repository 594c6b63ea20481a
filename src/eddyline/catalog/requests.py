"""Requests of other processes to the running engine, and how the engine answers them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from eddyline.errors import JVM_LOST, StorageError, condition_of

WAITING, DONE, REFUSED = "waiting", "done", "refused"
RETRY_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A request of another process to the running engine.

    Attributes:
        number: counts the requests of a storage from 1; the engine answers them in this order.
        action: add, pause, resume, drop, verify (a view); replay, discard, mend (dead letters); reset (a
            watermark); rebucket (the storage); pause sink, resume sink, resend sink, drop sink.
        name: of the view, sink, pipeline or stream; for `rebucket` of the storage's folder.
        query: SQL of a view to add; positions of dead letters; position and new payload of one to `mend`,
            as JSON; the new watermark, empty for none; the new number of buckets.
        asked_at: when it was sent, ISO 8601 in UTC.
        state: waiting, done or refused.
        message: the reason for a refusal; what `verify` has found, as JSON.
    """

    number: int
    action: str
    name: str
    query: str
    asked_at: str
    state: str = WAITING
    message: str = ""


class RequestStore(Protocol):
    """The methods of `CatalogStore` that an inbox calls."""

    certain: bool

    def waiting(self) -> list[Request]: ...

    def settle(self, number: int, state: str, message: str = "") -> None: ...


class Inbox:
    """Reads and answers requests; the engine calls it between two epochs.

    A request that changes the catalog is marked as done in the transaction that changes it: after a
    crash it is either waiting or done.

    Attributes:
        number: of the request that is being answered; None between requests.
    """

    def __init__(self, store: RequestStore) -> None:
        self._store = store
        self._not_before = 0.0
        self._reachable = True
        self.number: int | None = None

    def waiting(self) -> list[Request]:
        """Return the unanswered requests in their order; none while the database can't be used.

        Epochs don't need the catalog, so an unavailable server must not stop them.
        """
        if self.number is not None or time.monotonic() < self._not_before:
            return []
        try:
            requests = self._store.waiting()
        except StorageError as error:
            self._postpone(error)
            return []
        if not self._reachable:
            self._reachable = True
            log.info("the catalog can be used again")
        return requests

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Answer a request with the outcome of this context: done, or refused for its error.

        After a StorageError, or if the JVM is lost, the request stays waiting, to be tried again.
        """
        self.number = request.number
        state, message = DONE, ""
        try:
            try:
                yield
            except StorageError:
                raise
            except Exception as error:
                if condition_of(error) == JVM_LOST:
                    raise
                # a bad request must not end the other views
                state, message = REFUSED, str(error)
                log.warning(
                    "request %d refused: %s %s: %s",
                    request.number, request.action, request.name, condition_of(error),
                )  # fmt: skip
            self._store.settle(request.number, state, message)
            if state == DONE:
                log.info("request %d done: %s %s", request.number, request.action, request.name)
        except StorageError as error:
            if not self._store.certain:
                raise
            self._postpone(error)
        finally:
            self.number = None

    def _postpone(self, error: StorageError) -> None:
        """Don't query the catalog for a while; log only the first of consecutive failures."""
        self._not_before = time.monotonic() + RETRY_S
        if self._reachable:
            log.warning("requests wait, the catalog can't be used: %s", error)
        self._reachable = False
