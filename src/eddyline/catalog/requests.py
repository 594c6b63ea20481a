"""What other processes ask of the engine that runs, as it sees it between two epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from eddyline.catalog.store import DONE, REFUSED, CatalogStore, Request
from eddyline.errors import StorageError

RETRY_S = 5.0


class Inbox:
    """The requests in the database of the catalog.

    A request that changes the catalog is done in the very transaction that changes it: after a
    crash it either waits or is done.

    Attributes:
        number: of the request that is being answered; None between.
    """

    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._not_before = 0.0
        self.number: int | None = None

    def waiting(self) -> list[Request]:
        """What is to be done, in its order; nothing while the database can't be reached.

        Epochs need no catalog: a server that is away must not stop them.
        """
        if self.number is not None or time.monotonic() < self._not_before:
            return []
        try:
            return self._store.waiting()
        except StorageError:
            self._not_before = time.monotonic() + RETRY_S
            return []

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Do a request in this context; what it raises is the answer.

        Where the storage fails, the request waits for another try.
        """
        self.number = request.number
        state, message = DONE, ""
        try:
            try:
                yield
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001  # a bad request must not end the other views
                state, message = REFUSED, str(error)
            self._store.settle(request.number, state, message)
        except StorageError:
            if not self._store.certain:
                raise
            self._not_before = time.monotonic() + RETRY_S
        finally:
            self.number = None
