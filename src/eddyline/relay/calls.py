"""Calls of users' functions, none of which may take longer than its time.

A call that takes too long can't be stopped in Python: its thread is left to itself, and another one
goes on. What isn't answered is a reason, not an error.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

REASON_CHARACTERS = 500
LOOK_S = 0.05
LATE_MAX = 3  # of one bolt and tuple: so many calls may run out of time

Reasons: TypeAlias = dict[int, str | None]  # None: it was not tried


class LateError(Exception):
    """A call that has taken too long."""


def call(function: Callable[[Any], T], given: Any, ttl: float) -> T:
    """What a function gives.

    Raises:
        LateError: it took longer than `ttl` seconds.
        Exception: what it has raised.
    """
    calls = _Calls(function, [given], 0)
    if not _hands().wait(calls, ttl):
        raise LateError(_late(ttl))
    if calls.failed:
        raise calls.failed[0]
    found: T = calls.made[0][0]
    return found


def each(
    function: Callable[[Any], Any], given: Sequence[Any], ttl: float
) -> tuple[list[list[Any]], Reasons]:
    """The function of one row after the other: lists of outputs, and reasons of failures.

    Behind `LATE_MAX` late calls the rest is not tried.
    """
    made: list[list[Any]] = []
    failed: Reasons = {}
    late = 0
    while len(made) < len(given):
        if late == LATE_MAX:  # whoever waits for this tuple has waited long enough
            failed.update(dict.fromkeys(range(len(made), len(given))))
            made += [[]] * (len(given) - len(made))
            break
        calls = _Calls(function, given, len(made))
        answered = _hands().wait(calls, ttl)
        made += calls.made[: answered - len(made)]
        errors = {place: error for place, error in calls.failed.items() if place < answered}
        failed.update((place, reason(error)) for place, error in errors.items())
        if answered < len(given):
            failed[answered] = _late(ttl)
            made.append([])
            late += 1
    return made, failed


def side_by_side(
    function: Callable[[Any], Coroutine[Any, Any, Any]],
    given: Sequence[Any],
    ttl: float,
    concurrency: int,
) -> tuple[list[list[Any]], Reasons]:
    """The same for a coroutine function, of which so many calls wait at once."""
    made: list[list[Any]] = [[] for _ in given]
    failed: Reasons = dict.fromkeys(range(len(given)), _late(ttl))

    async def one(place: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            limit = asyncio.timeout(ttl)
            try:
                async with limit:
                    outputs = _as_list(await function(given[place]))
                made[place] = outputs
                del failed[place]
            except Exception as error:  # noqa: BLE001  # of the user's function
                if not limit.expired():
                    failed[place] = reason(error)

    async def everything() -> None:
        gate = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(one(place, gate) for place in range(len(given))))

    turns = math.ceil(len(given) / concurrency)
    future = _submit(everything())
    try:
        future.result(ttl * (turns + 1))
    except TimeoutError:  # something holds the loop: leave it, with what it has not answered
        _kept.loop = None
        return [list(outputs) for outputs in made], dict(failed)
    return made, failed


def reason(error: BaseException) -> str:
    """What a dead letter says of an error."""
    if isinstance(error, TimeoutError) and not str(error):
        return "TimeoutError: no answer in time"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:REASON_CHARACTERS]


class _Hands:
    """The thread in which functions are called; one that doesn't come back is left to itself."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Calls] | None = None

    def wait(self, calls: _Calls, ttl: float) -> int:
        """How many calls have been answered when all are, or the next one takes longer than `ttl`."""
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_work, args=(self._work,), daemon=True).start()
        self._work.put(calls)
        while not calls.over.wait(min(LOOK_S, ttl)):
            answered, since = calls.state
            if since and time.monotonic() - since > ttl and calls.state[0] == answered:
                self._work = None
                calls.abandoned = True
                return answered
        return len(calls.given)


class _Calls:
    """Calls of a function in another thread, from one of what is given on.

    Attributes:
        made: lists of outputs.
        failed: what was raised, by place.
        state: how many calls are over, and since when the next one runs.
        abandoned: nobody waits for the rest.
        over: all are answered.
    """

    def __init__(self, function: Callable[[Any], Any], given: Sequence[Any], start: int) -> None:
        self.function = function
        self.given = given
        self.start = start
        self.made: list[list[Any]] = []
        self.failed: dict[int, Exception] = {}
        self.state = (start, 0.0)
        self.abandoned = False
        self.over = threading.Event()

    def run(self) -> None:
        for place in range(self.start, len(self.given)):
            self.state = (place, time.monotonic())
            outputs: list[Any] = []
            try:
                outputs = _as_list(self.function(self.given[place]))
            except Exception as error:  # noqa: BLE001  # of the user's function
                self.failed[place] = error
            if self.abandoned:
                return
            self.made.append(outputs)
        self.over.set()


def _work(work: SimpleQueue[_Calls]) -> None:
    while True:
        calls = work.get()
        calls.run()
        if calls.abandoned:
            return


def _as_list(made: Any) -> list[Any]:
    """What a function gives back: nothing, a row, or a list or an iterator of rows."""
    if made is None:
        return []
    if isinstance(made, list):
        return made
    return list(made) if isinstance(made, Iterator) else [made]


def _late(ttl: float) -> str:
    return f"TimeoutError: no answer within {ttl:g} s"


_kept = threading.local()  # what a thread keeps for all its calls


def _hands() -> _Hands:
    """The hands of this thread."""
    if not hasattr(_kept, "hands"):
        _kept.hands = _Hands()
    hands: _Hands = _kept.hands
    return hands


def _submit(work: Coroutine[Any, Any, None]) -> Future[None]:
    """Run a coroutine in this thread's loop, which stays: clients may be kept between calls."""
    loop = getattr(_kept, "loop", None)
    if loop is None:
        loop = _kept.loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, loop)
