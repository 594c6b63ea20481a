"""The load of the benchmark `console`, in a process of its own: streams of events, and requests at a fixed rate.

Standard input ends the run; one line of JSON on standard output tells what was sent and received.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Sequence

TICK_S = 0.01
READY = "ready"


class Asker(asyncio.Protocol):
    """A connection on which one request at a time is answered."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.transport: asyncio.Transport | None = None
        self.due = 0.0
        self.data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.load.idle.append(self)

    def ask(self, request: bytes, due: float) -> None:
        """Send a request that was due at a time."""
        self.due = due
        assert self.transport is not None
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self.data += data
        head, found, body = bytes(self.data).partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self.data.clear()
        self.load.answered(head, time.perf_counter() - self.due)
        self.load.idle.append(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Count a connection that the server has closed."""
        self.load.lost += not self.load.ending


class Stream(asyncio.Protocol):
    """A connection that receives events."""

    def __init__(self, load: Load, request: bytes) -> None:
        self.load, self.request = load, request
        self.begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the events."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Count events."""
        if not self.begun:
            self.begun = True
            self.load.streams += 1
        self.load.events += data.count(b"event: ")

    def connection_lost(self, _: Exception | None) -> None:
        """Count a connection that the server has closed."""
        self.load.lost += not self.load.ending


class Load:
    """What is sent, and what has come back."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.idle: deque[Asker] = deque()
        self.times: list[float] = []
        self.failed = self.lost = self.streams = self.events = 0
        self.ending = False

    def answered(self, head: bytes, seconds: float) -> None:
        """Take in an answer."""
        self.times.append(seconds)
        self.failed += b" 200 " not in head[:16]

    async def send(self, requests: Sequence[bytes]) -> int:
        """Send requests at the rate until standard input ends; return how many were due."""
        end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        started, number = time.perf_counter(), 0
        while not end.done():
            clock = time.perf_counter()
            while self.idle and started + number / self.rate <= clock:
                self.idle.popleft().ask(
                    requests[number % len(requests)], started + number / self.rate
                )
                number += 1
            await asyncio.sleep(TICK_S)
        self.ending = True
        return int((time.perf_counter() - started) * self.rate)


def request(path: str) -> bytes:
    """Return a request as bytes."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def run(
    port: int, rate: int, streams: Sequence[str], paths: Sequence[str], askers: int
) -> None:
    """Connect, tell that it is ready, send until standard input ends, and print the counts."""
    load, loop = Load(rate), asyncio.get_running_loop()
    for path in streams:
        asked = request(path)
        await loop.create_connection(lambda asked=asked: Stream(load, asked), "127.0.0.1", port)  # type: ignore[misc]
    for _ in range(askers):
        await loop.create_connection(lambda: Asker(load), "127.0.0.1", port)
    while load.streams < len(streams):
        await asyncio.sleep(TICK_S)
    print(READY, flush=True)
    due = await load.send([request(path) for path in paths])
    found = sorted(load.times) or [float("nan")]
    counts = {
        "due": due,
        "answered": len(load.times),
        "failed": load.failed,
        "lost": load.lost,
        "events": load.events,
        "median_s": found[len(found) // 2],
        "p99_s": found[int(0.99 * len(found))],
    }
    print(json.dumps(counts), flush=True)


def main() -> None:
    """Run with the arguments of `run`, a JSON object on the command line."""
    asyncio.run(run(**json.loads(sys.argv[1])))
