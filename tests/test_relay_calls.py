"""Calls of users' functions: what a call that takes too long leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from eddyline.relay.calls import call_concurrently, call_each
from waiting import PATIENCE_S, until

Left = tuple[set[threading.Thread], set[str]]


def left() -> Left:
    """Threads, and open files, of this process; those of other tests among them may end at any time."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            files.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return set(threading.enumerate()), files


def no_more(before: Left) -> bool:
    """Whether there are no other threads and open files than before."""
    return all(now <= then for now, then in zip(left(), before, strict=True))


def in_thread(call: Callable[[], object]) -> None:
    """Call a function in a thread that ends."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_other_call_begins_once_a_loop_was_abandoned(concurrency: int) -> None:
    """Their records were reported as not tried, and are tried elsewhere."""
    gate, called, results = threading.Event(), [], []

    async def block(row: str) -> str:
        called.append(row)
        gate.wait(PATIENCE_S)
        return row

    before = left()

    def call() -> None:
        results.append(call_concurrently(block, list("abcd"), 1, concurrency))
        gate.set()

    in_thread(call)
    reasons = {0: "TimeoutError: no answer within 1 s", 1: None, 2: None, 3: None}
    assert results == [([[]] * 4, reasons)]
    until(lambda: no_more(before), left)
    assert called == ["a"]


def test_a_call_that_waits_in_an_abandoned_loop_is_cancelled() -> None:
    gate, loops, ended = threading.Event(), [], []

    async def wait(row: str) -> None:
        if row == "blocks":
            await asyncio.sleep(0)
            gate.wait(PATIENCE_S)
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
        assert call_each(lambda _: gate.wait(PATIENCE_S), "ab", 0.05)[1].keys() == {0, 1}
        assert call_each(str, "ab", 30)[0] == [["a"], ["b"]]
        assert call_concurrently(quick, "ab", 30, 2)[0] == [["a"], ["b"]]

    in_thread(call)
    assert len(left()[0] - before[0]) >= 2
    gate.set()
    until(lambda: no_more(before), left)


STANDS_STILL = """
import asyncio, json, sys, time
from eddyline.relay.calls import call_concurrently, call_each

def call(row):
    time.sleep(0.02)
    return row

async def block(row):
    time.sleep(0.02)
    return row

async def wait(row):
    await asyncio.sleep(0.15)
    return row

function, rows = globals()[sys.argv[1]], list(range(5))
made, given = (call_each, ()) if function is call else (call_concurrently, (5,))
print("ready", flush=True)
while True:
    print(json.dumps(list(made(function, rows, 0.3, *given)[1].values())), flush=True)
"""


@pytest.mark.parametrize("function", ["call", "block", "wait"])
def test_a_process_that_stood_still_gives_up_no_call(function: str) -> None:
    """As when a laptop sleeps, or a virtual machine is paused."""
    command = [sys.executable, "-c", STANDS_STILL, function]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            for _ in range(6):
                child.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                child.send_signal(signal.SIGCONT)
                for _ in range(2):
                    assert json.loads(child.stdout.readline()) == []
        finally:
            child.kill()
