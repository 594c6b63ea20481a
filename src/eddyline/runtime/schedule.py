"""Runs jobs that depend on each other: each as soon as those that it waits for are finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import TypeVar

R = TypeVar("R")


def run_in_order(
    jobs: Mapping[str, Collection[str]],
    start: Callable[[str], Callable[[], R] | None],
    finish: Callable[[str, R], object],
    pool: Executor,
) -> None:
    """Run jobs, those that don't wait for each other side by side.

    `start` and `finish` are called in this thread, one at a time.

    Args:
        jobs: for each job the jobs that it waits for; names that aren't jobs are passed over.
        start: returns what to run in a thread; None to leave the job out, which then counts as finished.
        finish: takes what that has returned.
        pool: runs them; a job that would be the only one runs in this thread.

    Raises:
        Exception: what a job, `start` or `finish` raises. Jobs that are running are waited for, others
            aren't started.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> order = []
        >>> with ThreadPoolExecutor(2) as pool:
        ...     run_in_order(
        ...         {"b": ["a"], "a": []},
        ...         lambda name: lambda: name.upper(),
        ...         lambda name, result: order.append(result),
        ...         pool,
        ...     )
        >>> order
        ['A', 'B']
    """
    waiting = {job: {one for one in after if one in jobs} for job, after in jobs.items()}
    running: dict[Future[R], str] = {}

    def finished(job: str) -> None:
        for after in waiting.values():
            after.discard(job)

    try:
        while waiting or running:
            works = []
            for job in [job for job, after in waiting.items() if not after]:
                del waiting[job]
                work = start(job)
                if work is None:
                    finished(job)
                else:
                    works.append((job, work))
            if len(works) == 1 and not running:
                (job, work), works = works[0], []
                finish(job, work())
                finished(job)
            running |= {pool.submit(work): job for job, work in works}
            if running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    finish(job, future.result())
                    finished(job)
    finally:
        for future in running:
            future.cancel()
        wait(running)
