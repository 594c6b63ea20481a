"""Calls of users' functions: what a call that takes too long leaves behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from eddyline.relay.calls import call_concurrently, call_each
from waiting import until


def left() -> tuple[int, int]:
    """Threads, and open files, of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def no_more(before: tuple[int, int]) -> bool:
    """Whether there are no more threads and open files than before."""
    return all(now <= then for now, then in zip(left(), before, strict=True))


def in_thread(call: Callable[[], object]) -> None:
    """Call a function in a thread that ends."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_other_call_begins_once_a_loop_was_abandoned(concurrency: int) -> None:
    """Their records were reported as failed, and are tried elsewhere."""
    gate, called = threading.Event(), []

    async def block(row: str) -> str:
        called.append(row)
        gate.wait(30)
        return row

    before = left()

    def call() -> None:
        outputs, failed = call_concurrently(block, list("abcd"), 1, concurrency)
        assert outputs == [[]] * 4
        assert set(failed) == {0, 1, 2, 3}
        gate.set()

    in_thread(call)
    until(lambda: no_more(before), left)
    assert called == ["a"]


def test_a_call_that_waits_in_an_abandoned_loop_is_cancelled() -> None:
    gate, loops, ended = threading.Event(), [], []

    async def wait(row: str) -> None:
        if row == "blocks":
            await asyncio.sleep(0)
            gate.wait(30)
            return
        loops.append(asyncio.get_running_loop())
        with suppress(asyncio.CancelledError):  # of its time limit
            await asyncio.sleep(3600)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append(row)
            raise

    call_concurrently(wait, ["waits", "blocks"], 0.3, 2)
    gate.set()
    until(lambda: loops[0].is_closed())
    assert ended == ["waits"]


def test_threads_end_with_calls_that_took_too_long_and_with_the_thread_that_made_them() -> None:
    gate = threading.Event()
    before = left()

    async def quick(row: str) -> str:
        return row

    def call() -> None:
        assert call_each(lambda _: gate.wait(30), "ab", 0.05)[1].keys() == {0, 1}
        assert call_each(str, "ab", 30)[0] == [["a"], ["b"]]
        assert call_concurrently(quick, "ab", 30, 2)[0] == [["a"], ["b"]]

    in_thread(call)
    assert left()[0] >= before[0] + 2
    gate.set()
    until(lambda: no_more(before), left)
