"""Group commit: threads that write at the same time share one write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from eddyline.errors import StorageError

T = TypeVar("T")


@dataclass(slots=True)
class _Waiting(Generic[T]):
    item: T
    done: bool = False
    error: Exception | None = None


class GroupCommit(Generic[T]):
    """Writes items of several threads together: whoever gets the lock first writes all that wait by then.

    Args:
        lock: held while items are written.
        write: writes items in the order in which they came, all or none.

    Example:
        >>> written = []
        >>> group = GroupCommit(threading.Lock(), written.extend)
        >>> group.write("a row")
        >>> written
        ['a row']
    """

    def __init__(
        self, lock: AbstractContextManager[object], write: Callable[[Sequence[T]], object]
    ) -> None:
        self._lock = lock
        self._write = write
        self._guard = threading.Lock()
        self._waiting: list[_Waiting[T]] = []

    def write(self, item: T) -> None:
        """Return once the item is written; raise the error of the write that it was part of."""
        own = _Waiting(item)
        with self._guard:
            self._waiting.append(own)
        with self._lock:
            if not own.done:
                self._write_all()
        if own.error is not None:
            raise own.error

    def _write_all(self) -> None:
        with self._guard:
            group, self._waiting = self._waiting, []
        # if this thread is interrupted, the others can't know
        error: Exception | None = StorageError(
            "the write of another thread, which was to write these rows too, was broken off",
            condition="WRITE_FAILED",
            hint="look which of the rows are there, and write the others again",
        )
        try:
            self._write([one.item for one in group])
            error = None
        except Exception as raised:  # noqa: BLE001  # each thread raises it
            error = raised
        finally:
            for one in group:
                one.done, one.error = True, error
