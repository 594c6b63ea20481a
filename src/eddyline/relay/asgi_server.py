"""Run an ASGI application in a thread of this process; used by all HTTP endpoints.

Importing it needs the package uvicorn, which is optional.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Mapping
from typing import Any

import uvicorn

from eddyline.errors import EngineError

LOOPBACK = "127.0.0.1"


def bears(headers: Mapping[str, str], token: bytes) -> bool:
    """Return whether the headers of a request bear a token."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    is_token = hmac.compare_digest(given.encode("latin-1", "replace"), token)
    return is_token and scheme.lower() == "bearer"


class AppServer:
    """Serves an ASGI application over HTTP, for the duration of a `with` block, or until `stop()`.

    Args:
        app: the application.
        name: name of the thread.
        host: address to bind. Only addresses other than loopback can be reached from other
            machines; the connection is not encrypted.
        port: port to bind; 0 for any free one.
        proxy_headers: a proxy on this machine may name the client by `X-Forwarded-For`; if not, the client is
            the other end of the connection.

    Attributes:
        url: the address under which it can be reached from this machine.

    Raises:
        EngineError: NO_ADDRESS: the address can't be bound.
    """

    def __init__(
        self,
        app: Any,
        name: str,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        proxy_headers: bool = True,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            raise EngineError(
                f"{host} port {port} can't be used: {error}",
                condition="NO_ADDRESS",
                hint="give another port, or 0 for any that is free",
            ) from error
        # accepted sockets inherit it: else each answer on a connection that stays open waits 40 ms
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=proxy_headers,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=5,
                ws="none",
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name=name, daemon=True
        )

    def start(self) -> None:
        """Begin to answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests that are being answered, for at most 5 seconds, and end."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def close(self) -> None:
        """Release the address of a server that was never started."""
        self._socket.close()

    def __enter__(self) -> AppServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
