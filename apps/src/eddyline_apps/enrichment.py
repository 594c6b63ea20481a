"""A test service on loopback that locates hosts: slow, flaky, and always failing for some hosts.

    GET /hosts/<host>?record=<number>&attempt=<number>      {"region": "...", "carrier": "..."}

It stands in for a real lookup service. The same request always gets the same response: the region and
the carrier depend on the host alone, and whether a call fails on the seed, the host, the record and the
attempt.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LOOPBACK = "127.0.0.1"
REGIONS = ("coast", "delta", "highlands", "islands", "plains")
CARRIERS = ("Beacon", "Lighthouse", "Semaphore")

FLAKY_SHARE = 0.05
STALLED_OF_FLAKY = 0.1
POISONOUS_SHARE = 0.003
LATENCY_MS = (2.0, 20.0)
STALL_S = 3.0

ANSWERED, BUSY, STALLED, POISONED = "answered", "busy (503)", "stalled", "poisoned (500)"
OUTCOMES = (ANSWERED, BUSY, STALLED, POISONED)


class Service:
    """A service that runs in threads of this process while its `with` block lasts.

    Args:
        seed: seed of the failures.
        flaky: share of calls that fail, though a retry may succeed: most get the status 503, the
            others are delayed by `STALL_S`.

    Attributes:
        calls: number of calls by attempt and outcome.

    Example:
        >>> with Service() as service:
        ...     service.url.startswith("http://127.0.0.1:")
        True
        >>> region, carrier = place("192.0.2.1")
        >>> region in REGIONS, carrier in CARRIERS
        (True, True)
    """

    def __init__(self, seed: int = 1, flaky: float = FLAKY_SHARE) -> None:
        self.seed = seed
        self.flaky = flaky
        self.calls: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()
        self._server = _Server((LOOPBACK, 0), type("Handler", (_Handler,), {"service": self}))
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="eddyline-enrichment", daemon=True
        )

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def poisonous(self, host: str) -> bool:
        """Return whether every call about this host fails."""
        return _uniform(self.seed, "poison", host) < POISONOUS_SHARE

    def outcome(self, host: str, record: int, attempt: int) -> str:
        """Return the outcome of a call, one of `OUTCOMES`."""
        draw = _uniform(self.seed, "flaky", record, attempt)
        if draw < self.flaky:
            return STALLED if draw < self.flaky * STALLED_OF_FLAKY else BUSY
        return POISONED if self.poisonous(host) else ANSWERED

    def count(self, host: str, record: int, attempt: int, outcome: str) -> None:
        """Count a call."""
        with self._lock:
            self.calls[attempt, outcome] += 1


def place(host: str) -> tuple[str, str]:
    """Return the region and the carrier of a host."""
    number = zlib.crc32(host.encode())
    return REGIONS[number % len(REGIONS)], CARRIERS[number // 7 % len(CARRIERS)]


def _uniform(*values: object) -> float:
    """Hash values to a pseudo-random number in [0, 1)."""
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # don't wait for stalled calls
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    service: Service

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        parameters = parse_qs(address.query)
        host = unquote(address.path.removeprefix("/hosts/"))
        try:
            record, attempt = int(parameters["record"][0]), int(parameters["attempt"][0])
        except (KeyError, ValueError):
            self._respond(400, {"error": "a record and an attempt are needed, as numbers"})
            return
        outcome = self.service.outcome(host, record, attempt)
        self.service.count(host, record, attempt, outcome)
        low, high = LATENCY_MS
        time.sleep((low + (high - low) * _uniform(record, attempt)) / 1000)
        if outcome == STALLED:
            time.sleep(STALL_S)
        if outcome == POISONED:
            self._respond(500, {"error": "this host breaks the service"})
        elif outcome == BUSY:
            self._respond(503, {"error": "come again later"})
        else:
            region, carrier = place(host)
            self._respond(200, {"region": region, "carrier": carrier})

    def _respond(self, status: int, document: dict[str, str]) -> None:
        body = json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has gone away

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: calls are counted instead."""
