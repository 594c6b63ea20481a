"""Runs jobs in the order of their dependencies."""

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
    """Run jobs, each once its dependencies are finished; independent jobs run side by side.

    `start` and `finish` are called in this thread, one at a time.

    Args:
        jobs: for each job its dependencies; names that aren't jobs are ignored.
        start: returns the function to run in a thread; None to skip the job, which then counts as finished.
        finish: receives the result of that function.
        pool: runs them; a job that would be the only one runs in this thread.

    Raises:
        Exception: what a job, `start` or `finish` raises; running jobs are waited for, no other is
            started.

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
