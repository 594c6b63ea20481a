"""HTTP servers of the tests' own, on free ports of 127.0.0.1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def listening(answers: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server that keeps connections open and prints nothing; yield its address."""
    own = {"protocol_version": "HTTP/1.1", "log_message": lambda *_: None}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (answers,), own))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
