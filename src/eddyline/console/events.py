"""Live events for browsers and programs: server-sent events over the epochs of a storage."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread

from eddyline.console.observer import EpochRows, Observer
from eddyline.console.values import as_texts, change_lines
from eddyline.errors import EddylineError

POLL_S = 0.2
PING_S = 15.0
ROWS_MAX = 1000
"""The changes in one event; an epoch with more comes in several, of which only the last has the id."""
PART_BYTES = 1 << 16
"""Events of fewer bytes are sent together."""
CACHED = 64
CACHED_ROWS = 5000

Key = tuple[str, int, int, bool]


class Hub:
    """Streams of events. One thread at a time reads the storage for all waiting streams.

    Args:
        limiter: limits the threads that read.
    """

    def __init__(self, observer: Observer, limiter: CapacityLimiter) -> None:
        self._observer = observer
        self._limiter = limiter
        self._closed = threading.Event()
        self._events: OrderedDict[Key, list[bytes]] = OrderedDict()
        self._reading: dict[Key, asyncio.Lock] = {}
        self._epoch = -1
        self._looked = 0.0
        self.subscribers = 0

    def close(self) -> None:
        """End all streams; a browser connects again by itself."""
        self._closed.set()

    async def epochs(self) -> AsyncIterator[bytes]:
        """Yield an event `epoch` now, and when epochs have been committed."""
        async for epoch in self._committed(-1):
            yield ping() if epoch is None else event("epoch", {"epoch": epoch}, epoch)

    async def changes(self, name: str, after: int | None, texts: bool) -> AsyncIterator[bytes]:
        """Yield the changes of a table or view, each epoch's with its number as `id`.

        | event | data |
        |---|---|
        | `changes` | `epoch`; `changes`, each with `op` and `row`; `last`: whether these are all of the epoch |
        | `epoch` | `epoch`: up to it there are no more changes |
        | `expired` | the changes after `after` are not retained: read the rows as of `epoch`; the changes after it follow |
        | `gone` | there is no such table or view any more; the stream ends |

        Args:
            after: the epoch after which they begin; None for the last committed one.
            texts: give rows as lists of texts, for pages.
        """
        try:
            now = await to_thread.run_sync(self._observer.now, limiter=self._limiter)
        except EddylineError:
            return  # the storage can't be read now; the client connects again
        committed = now[1].epoch
        start = committed if after is None else after
        if start > committed:  # the storage was made anew, or restored
            start = committed
            yield event("expired", {"condition": "NO_SUCH_EPOCH", "epoch": start}, start)
        else:
            yield event("epoch", {"epoch": start}, start)
        async for epoch in self._committed(start):
            if epoch is None:
                yield ping()
                continue
            try:
                found = await self._events_of((name, start, epoch, texts))
            except EddylineError as error:
                if error.condition in ("NOT_FOUND", "NOT_STORED"):
                    yield event("gone", error.as_document(), None)
                    return
                if error.condition != "CHANGES_EXPIRED":
                    continue  # the storage can't be read now; the next epoch tries again
                yield event("expired", {**error.as_document(), "epoch": epoch}, epoch)
            else:
                for one in found:
                    yield one
            start = epoch

    async def _committed(self, after: int) -> AsyncIterator[int | None]:
        """Yield the last committed epoch whenever it has grown; None after a time without one."""
        clock = asyncio.get_running_loop().time
        self.subscribers += 1
        try:
            quiet = clock()
            while not self._closed.is_set():
                if clock() - self._looked >= POLL_S:
                    self._looked = clock()
                    try:
                        now = await to_thread.run_sync(self._observer.now, limiter=self._limiter)
                        self._epoch = now[1].epoch
                    except EddylineError:
                        pass  # the storage can't be read now; the next look may
                if self._epoch > after:
                    after, quiet = self._epoch, clock()
                    yield after
                elif clock() - quiet >= PING_S:
                    quiet = clock()
                    yield None
                await asyncio.sleep(POLL_S)
        finally:
            self.subscribers -= 1

    async def _events_of(self, key: Key) -> list[bytes]:
        """Return the events with the changes between two epochs, and `epoch`, in few parts.

        Many subscribers share them; each part is one call of the server.
        """
        if (known := self._events.get(key)) is not None:
            return known
        lock = self._reading.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if (known := self._events.get(key)) is not None:
                    return known
                read = partial(self._read, key)
                found, rows = await to_thread.run_sync(read, limiter=self._limiter)
                if rows <= CACHED_ROWS:
                    self._events[key] = found
                    while len(self._events) > CACHED:
                        self._events.popitem(last=False)
                return found
        finally:
            self._reading.pop(key, None)

    def _read(self, key: Key) -> tuple[list[bytes], int]:
        name, after, until, texts = key
        _, epochs = self._observer.changes(name, after)
        chosen = [one for one in epochs if one.epoch <= until]
        events = [made for one in chosen for made in events_of_epoch(one, texts=texts)]
        events.append(event("epoch", {"epoch": until}, until))
        return joined(events), sum(one.table.num_rows for one in chosen)


def joined(events: Sequence[bytes]) -> list[bytes]:
    """Concatenate consecutive events up to `PART_BYTES`.

    Example:
        >>> joined([b"a", b"b" * PART_BYTES, b"c", b"d"])[-1]
        b'cd'
    """
    parts: list[list[bytes]] = []
    size = PART_BYTES
    for one in events:
        if size + len(one) > PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += len(one)
    return [b"".join(part) for part in parts]


def events_of_epoch(rows: EpochRows, *, texts: bool) -> list[bytes]:
    """Return the events with the changes of one epoch."""
    found = []
    count, width = rows.table.num_rows, len(rows.columns)
    for start in range(0, count, ROWS_MAX):
        part, last = rows.table.slice(start, ROWS_MAX), start + ROWS_MAX >= count
        if texts:
            shown = json.dumps(as_texts(part.select(range(width + 1))), ensure_ascii=False)
        else:
            shown = f"[{','.join(change_lines(part, rows.columns))}]"
        head = json.dumps({"epoch": rows.epoch, "last": last})
        data = f'{head[:-1]}, "changes": {shown}}}'
        found.append(_event("changes", data, rows.epoch if last else None))
    return found


def event(name: str, data: dict[str, Any], number: int | None) -> bytes:
    """Return a server-sent event, with `number` as its id."""
    return _event(name, json.dumps(data, ensure_ascii=False), number)


def ping() -> bytes:
    """Return a comment, which keeps a connection open."""
    return b": ping\n\n"


def _event(name: str, data: str, number: int | None) -> bytes:
    # JSON has no line breaks: json.dumps and polars escape them
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {data}\n\n".encode()
