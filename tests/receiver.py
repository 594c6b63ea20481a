"""A receiver of webhooks, for tests of sinks."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import listening

Row = tuple[Any, ...]


@dataclass
class Receiver:
    """An HTTP server that keeps each request once, by its idempotency key.

    Attributes:
        parsed: returns the row of a change.
        answers: what to answer next, instead of 200: a status; 0: hang up at once; -1: keep the request
            and hang up.
        refuses: whether a request is answered with 422 for a change in it.
        retry_after: the header of answers that aren't 200; none if empty.
    """

    parsed: Callable[[dict[str, Any]], Row]
    answers: list[int] = field(default_factory=list)
    refuses: Callable[[dict[str, Any]], bool] = lambda _: False
    retry_after: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: Counter[Row] = field(default_factory=Counter)
    connections: int = 0
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        wanted = self.answers.pop(0) if self.answers else 200
        if wanted in (200, -1) and any(map(self.refuses, json.loads(body)["changes"])):
            wanted = 422
        if wanted == 422 and handler.headers["Idempotency-Key"] in self.seen:
            wanted = 200  # what it has taken it doesn't refuse
        if wanted in (200, -1):
            self.requests.append((dict(handler.headers), body))
            self.keep(handler.headers["Idempotency-Key"], json.loads(body))
        if wanted <= 0:
            handler.close_connection = True
            with suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
            return
        text = b"" if wanted == 200 else b"the reason\nis " + b"long " * 100
        handler.send_response(wanted)
        handler.send_header("Content-Length", str(len(text)))
        if self.retry_after and wanted != 200:
            handler.send_header("Retry-After", self.retry_after)
        handler.end_headers()
        handler.wfile.write(text)

    def keep(self, key: str, document: dict[str, Any]) -> None:
        if key in self.seen:
            assert self.seen[key] == document
            return
        self.seen[key] = document
        if document["snapshot"] and document["part"] == 1:
            self.counts.clear()
        for change in document["changes"]:
            sign = 1 if change["_change_type"] in ("insert", "update_postimage") else -1
            self.counts[self.parsed(change)] += sign


@contextmanager
def serving(parsed: Callable[[dict[str, Any]], Row]) -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    kept = Receiver(parsed)

    class Answers(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            kept.connections += 1

        def do_POST(self) -> None:
            kept.answer(self)

    with listening(Answers) as url:
        kept.url = f"{url}/hook?token=t0ken"
        yield kept
