"""Threads of the driver that take over a part of another thread's work, and the CPU time of both together."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import TypeVar

from eddyline.spark.session import cores

R = TypeVar("R")

MOST = 8
"""The limit of how many parts of one work run at once."""


class _Elsewhere(threading.local):
    """CPU nanoseconds that were spent for a thread by others: of the JVM, or with a part of its work."""

    ns = 0


_elsewhere = _Elsewhere()


def cpu_time_ns() -> int:
    """Return the CPU time of this thread in nanoseconds, with what others have spent for it; see `add_cpu_time`.

    Threads that libraries start for a part of their work aren't included. Only differences mean something.
    """
    return time.thread_time_ns() + _elsewhere.ns


def add_cpu_time(ns: int) -> None:
    """Count CPU time of another thread as this one's."""
    _elsewhere.ns = _elsewhere.ns + ns


def parts_at_once() -> int:
    """Return into how many parts a large work is best split: one for each core that this process may use."""
    return min(cores(None), len(os.sched_getaffinity(0)), MOST)


def side_by_side(works: Sequence[Callable[[], R]]) -> list[R]:
    """Return what some functions return; they run at the same time, the first one in this thread.

    A function for which no other thread has been free runs in this one, too, in the end. None of them may call this
    function again.

    Raises:
        Exception: what the first of them that fails raises, once none runs any more.

    Example:
        >>> side_by_side([lambda: 1, lambda: 2])
        [1, 2]
    """
    futures = [_helpers().submit(_measured, work) for work in works[1:]]
    try:
        results = [work() for work in works[:1]]
        for future, work in zip(futures, works[1:], strict=True):
            if future.cancel():
                results.append(work())
            else:
                result, ns = future.result()
                results.append(result)
                add_cpu_time(ns)
        return results
    finally:
        wait([future for future in futures if not future.cancel()])


def _measured(work: Callable[[], R]) -> tuple[R, int]:
    """Return the result of a function, and the CPU nanoseconds that it took."""
    before = cpu_time_ns()
    result = work()
    return result, cpu_time_ns() - before


@functools.cache
def _helpers() -> Executor:
    return ThreadPoolExecutor(MOST - 1, "eddyline-helper")
