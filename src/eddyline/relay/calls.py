"""Calls of users' functions with a time limit for each call.

Python can't stop a call that takes too long: its thread is abandoned, and a new one makes the
other calls. A call that fails or times out gives a reason, not an exception.

Time is counted in looks, `POLL_S` apart, instead of being read from a clock: where a process stood still, as in a
virtual machine that was paused, calls have not had the time that passed meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from eddyline.errors import message_text

T = TypeVar("T")

REASON_CHARACTERS = 500
POLL_S = 0.05  # between two looks whether a call has ended
TIMEOUTS_MAX = 3  # for one bolt and tuple; after so many time-outs the rest isn't tried

Reasons: TypeAlias = dict[int, str | None]  # by index of the argument; None: not tried


class CallTimeoutError(Exception):
    """A call took longer than its time limit."""


def call(function: Callable[[Any], T], argument: Any, ttl: float) -> T:
    """Return `function(argument)`.

    Raises:
        CallTimeoutError: the call took longer than `ttl` seconds.
        Exception: the function raised it.
    """
    calls = _Calls(function, [argument], 0)
    if not _call_thread().wait(calls, ttl):
        raise CallTimeoutError(_time_out(ttl))
    if calls.failed:
        raise _as_exception(calls.failed[0])
    result: T = calls.outputs[0][0]
    return result


def call_each(
    function: Callable[[Any], Any], arguments: Sequence[Any], ttl: float
) -> tuple[list[list[Any]], Reasons]:
    """Call a function for each argument in turn.

    After `TIMEOUTS_MAX` time-outs the rest is not tried.

    Returns:
        A list of outputs for each argument, and the reasons of failures.
    """
    outputs: list[list[Any]] = []
    failed: Reasons = {}
    timeouts = 0
    while len(outputs) < len(arguments):
        if timeouts == TIMEOUTS_MAX:  # the sender of this tuple has waited long enough
            failed.update(dict.fromkeys(range(len(outputs), len(arguments))))
            outputs += [[]] * (len(arguments) - len(outputs))
            break
        calls = _Calls(function, arguments, len(outputs))
        answered = _call_thread().wait(calls, ttl)
        outputs += calls.outputs[: answered - len(outputs)]
        errors = {index: error for index, error in calls.failed.items() if index < answered}
        failed.update((index, failure_reason(error)) for index, error in errors.items())
        if answered < len(arguments):
            failed[answered] = _time_out(ttl)
            outputs.append([])
            timeouts += 1
    return outputs, failed


def call_concurrently(
    function: Callable[[Any], Coroutine[Any, Any, Any]],
    arguments: Sequence[Any],
    ttl: float,
    concurrency: int,
) -> tuple[list[list[Any]], Reasons]:
    """Call a coroutine function for each argument, `concurrency` calls at a time.

    Once a call blocks the others for too long, those that have not begun are not tried.

    Returns:
        A list of outputs for each argument, and the reasons of failures.
    """
    outputs: list[list[Any]] = [[] for _ in arguments]
    failed: Reasons = dict.fromkeys(range(len(arguments)))
    abandoned = threading.Event()

    async def call_one(index: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            if abandoned.is_set():
                return
            failed[index] = _time_out(ttl)
            limit = asyncio.timeout(None)
            try:
                async with limit, _LimitInLooks(limit, _looks(ttl, pause_s), pause_s):
                    result = _as_list(await function(arguments[index]))
                outputs[index] = result
                del failed[index]
            except BaseException as error:  # noqa: BLE001  # as in `_Calls.run`
                if not limit.expired():
                    failed[index] = failure_reason(error)

    async def call_all() -> None:
        slots = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(call_one(index, slots) for index in range(len(arguments))))

    turns, pause_s = math.ceil(len(arguments) / concurrency), min(POLL_S, ttl)
    future = asyncio.run_coroutine_threadsafe(call_all(), _event_loop())
    for _ in range(_looks(ttl * (turns + 1), pause_s)):
        with suppress(TimeoutError):
            future.result(pause_s)
            return outputs, failed
    # a call blocks the event loop: abandon it and its open calls
    abandoned.set()
    _per_thread.loop_thread.end()
    del _per_thread.loop_thread
    return [list(result) for result in outputs], dict(failed)


def failure_reason(error: BaseException) -> str:
    """Return the text of an error for a dead letter: its type and message, cut if long."""
    name, message = type(error).__name__, message_text(error)
    if isinstance(error, TimeoutError) and not message:
        return "TimeoutError: no answer in time"
    return f"{name}: {message}"[:REASON_CHARACTERS] if message else name


class _CallThread:
    """The thread in which functions are called; replaced when a call doesn't return in time."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    def wait(self, calls: _Calls, ttl: float) -> int:
        """Return the number of finished calls once all are, or one takes longer than `ttl`."""
        if self._worker is None:
            self._worker = _Worker()
        self._worker.work.put(calls)
        pause_s = min(POLL_S, ttl)
        seen, looks_left = -1, 0  # the current call, and for how many more looks it may be that
        while not calls.finished.wait(pause_s):
            current = calls.current
            if current != seen:
                seen, looks_left = current, _looks(ttl, pause_s)
            elif current >= 0 and (looks_left := looks_left - 1) == 0:
                calls.abandoned = True
                self._worker.end()
                self._worker = None
                return current
        return len(calls.arguments)


class _Worker:
    """A thread that makes the calls in a queue, and ends with this object."""

    def __init__(self) -> None:
        self.work: SimpleQueue[_Calls | None] = SimpleQueue()
        threading.Thread(target=_run_calls, args=(self.work,), daemon=True).start()
        self.end = weakref.finalize(self, self.work.put, None)
        self.end.atexit = False


class _Calls:
    """Calls of a function in another thread, for the arguments from `start` on.

    Attributes:
        outputs: a list of outputs for each finished call.
        failed: the exceptions that were raised, by index of the argument.
        current: the index of the argument of the current call; -1 before the first one.
        abandoned: whether nobody waits for the remaining calls.
        finished: set once all calls are finished.
    """

    def __init__(
        self, function: Callable[[Any], Any], arguments: Sequence[Any], start: int
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.start = start
        self.outputs: list[list[Any]] = []
        self.failed: dict[int, BaseException] = {}
        self.current = -1
        self.abandoned = False
        self.finished = threading.Event()

    def run(self) -> None:
        for index in range(self.start, len(self.arguments)):
            self.current = index
            outputs: list[Any] = []
            try:
                outputs = _as_list(self.function(self.arguments[index]))
            # also SystemExit, and a panic of a library in Rust: nothing may end the thread that makes the other calls
            except BaseException as error:  # noqa: BLE001
                self.failed[index] = error
            if self.abandoned:
                return
            self.outputs.append(outputs)
        self.finished.set()


def _run_calls(work: SimpleQueue[_Calls | None]) -> None:
    while (calls := work.get()) is not None:
        calls.run()


class _LimitInLooks:
    """Lets a time limit of asyncio pass after so many looks, unless the block of this context has ended.

    Args:
        limit: one without an end.
    """

    def __init__(self, limit: asyncio.Timeout, looks: int, pause_s: float) -> None:
        self._limit, self._left, self._pause_s = limit, looks, pause_s

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(self._pause_s, self._look)

    async def __aexit__(self, *_: object) -> None:
        self._next.cancel()

    def _look(self) -> None:
        self._left -= 1
        if self._left:
            self._next = self._loop.call_later(self._pause_s, self._look)
        else:
            self._limit.reschedule(self._loop.time())


class _LoopThread:
    """An event loop in a thread of its own, which ends with this object."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=_run_loop, args=(self.loop,), daemon=True).start()
        self.end = weakref.finalize(self, self.loop.call_soon_threadsafe, self.loop.stop)
        self.end.atexit = False


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; then cancel what still runs in it."""
    loop.run_forever()
    loop.run_until_complete(_cancel_all())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _as_list(returned: Any) -> list[Any]:
    """Return the rows that a function returned: None, a row, or a list or an iterator of rows.

    A generator may change and yield the same dict or list again: each row is copied.

    Raises:
        TypeError: it returned what only `await` or `async for` gives rows of.
    """
    if returned is None:
        return []
    if isinstance(returned, list):
        return returned
    if isinstance(returned, Iterator):
        return [row.copy() if type(row) in (dict, list) else row for row in returned]
    if inspect.isawaitable(returned) or isinstance(returned, AsyncIterator):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError(f"the function returned a {type(returned).__name__}, which nobody awaits")
    return [returned]


def _as_exception(error: BaseException) -> Exception:
    """Return an error that doesn't end the process that raises it."""
    return error if isinstance(error, Exception) else RuntimeError(failure_reason(error))


def _looks(seconds: float, pause_s: float) -> int:
    """Return how many looks, `pause_s` apart, take at least so many seconds."""
    return math.ceil(seconds / pause_s)


def _time_out(ttl: float) -> str:
    return f"TimeoutError: no answer within {ttl:g} s"


_per_thread = threading.local()  # the threads that make calls for each thread


def _call_thread() -> _CallThread:
    """Return the call thread that belongs to the current thread."""
    if not hasattr(_per_thread, "call_thread"):
        _per_thread.call_thread = _CallThread()
    found: _CallThread = _per_thread.call_thread
    return found


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return this thread's event loop, which is kept so that clients can be reused."""
    if not hasattr(_per_thread, "loop_thread"):
        _per_thread.loop_thread = _LoopThread()
    found: _LoopThread = _per_thread.loop_thread
    return found.loop
