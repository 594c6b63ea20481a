"""An HTTP endpoint that puts records into a data queue, for programs that can't use `Producer`.

    POST /records          one record a line; answers {"records": 2} once they are durable
    POST /records?key=K    the same, and all records get the key K
    GET  /health           answers 204 while the endpoint runs, also with a full queue

A body of the type application/json is one record, with its line ends. In JSON lines blank lines are left out; in
text each is an empty record. Requests other than /health need
`Authorization: Bearer <token>`. A request is accepted completely or not at all. Errors:

| status | reason |
|---|---|
| 400 | the body ends too early, or is empty where it should be one document; several keys, or one that isn't UTF-8 |
| 401 | no token, or another one |
| 408 | the body takes too long |
| 413 | more bytes than allowed |
| 415 | the content is neither text nor JSON, or compressed, or not in UTF-8 |
| 429 | the queue is full, or too many requests wait; retry after the seconds in `Retry-After` |
| 503 | the queue's disk or brokers fail; the records may or may not have been put |
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from urllib.parse import parse_qs

import pyarrow as pa

from eddyline.errors import EddylineError, EngineError, QueueFullError, missing_package
from eddyline.relay.queue import Producer

try:
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from eddyline.relay.asgi_server import LOOPBACK, AppServer, bears
except ImportError as error:
    raise missing_package("the HTTP endpoint", str(error.name), "http") from error

BODY_BYTES_MAX = 8 << 20
REQUESTS_MAX = 32
BODY_SECONDS_MAX = 30.0
RETRY_AFTER_S = 1
TEXT = "text/plain"
TYPES = ("application/x-ndjson", "application/jsonl", TEXT)  # a record a line
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
DOCUMENT = "application/json"


class _RefusedError(Exception):
    """The request is refused with this response."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        self.response = JSONResponse(
            {"error": why}, status, {name.replace("_", "-"): text for name, text in headers.items()}
        )


class Ingest:
    """The endpoint of a queue.

    Args:
        producer: puts the records into the queue.
        token: the bearer token that clients send.
        body_bytes_max: maximum size of a request body.
        requests_max: maximum number of concurrent requests; each holds at most one body in memory.
        body_seconds_max: maximum time for a client to send its body.

    Attributes:
        app: an ASGI application with the endpoint at `/records`.
    """

    def __init__(
        self,
        producer: Producer,
        token: str,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        requests_max: int = REQUESTS_MAX,
        body_seconds_max: float = BODY_SECONDS_MAX,
    ) -> None:
        if not token:
            raise EngineError(
                "the endpoint needs a token",
                condition="BAD_OPTION",
                hint="give a long random text, for instance secrets.token_urlsafe()",
            )
        self.producer = producer
        self.body_bytes_max = body_bytes_max
        self.requests_max = requests_max
        self.body_seconds_max = body_seconds_max
        self._token = token.encode()
        self._requests = 0
        self._threads: CapacityLimiter | None = None
        self.app = Starlette(
            routes=[
                Route("/records", self.put, methods=["POST"]),
                Route("/health", _health, methods=["GET"]),
            ]
        )

    async def put(self, request: Request) -> Response:
        """Answer a POST request: put its records into the queue."""
        try:
            kind = self._admit(request)
        except _RefusedError as refused:
            return refused.response
        self._requests += 1
        try:
            async with asyncio.timeout(self.body_seconds_max):
                body = await self._body(request)
            payloads = pa.array(_records(body, kind), pa.binary())
            key = _key(request)
            keys = None if key is None else pa.repeat(key.encode(), len(payloads))
            self._threads = self._threads or CapacityLimiter(self.requests_max)
            put = partial(self.producer.put, payloads, keys)
            count = await to_thread.run_sync(put, limiter=self._threads)
            return JSONResponse({"records": count})
        except _RefusedError as refused:
            return refused.response
        except TimeoutError:
            return _RefusedError(408, "the body takes too long").response
        except ClientDisconnect:
            return _RefusedError(400, "the body ends too early").response
        except QueueFullError:
            return self._busy("the queue is full").response
        except EddylineError as error:
            return _RefusedError(503, error.condition).response
        finally:
            self._requests -= 1

    def _admit(self, request: Request) -> str:
        """Check token, type, encoding and size before the body is read; return the type.

        Raises:
            _RefusedError: one is wrong.
        """
        if not bears(request.headers, self._token):
            raise _RefusedError(401, "a bearer token is needed", WWW_Authenticate="Bearer")
        kind, _, parameters = request.headers.get("content-type", TEXT).lower().partition(";")
        kind = kind.strip()
        if kind not in (*TYPES, DOCUMENT):
            raise _RefusedError(
                415, f"send {' or '.join(TYPES)}, a record a line, or {DOCUMENT}, one record"
            )
        if (charset := _charset(parameters)) not in CHARSETS:
            raise _RefusedError(415, f"the charset {charset} is not read: send UTF-8")
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            why = f"the Content-Encoding {encoding} is not read: send the body as it is"
            raise _RefusedError(415, why, Accept_Encoding="identity")
        announced = request.headers.get("content-length", "0")
        if not announced.isdigit() or int(announced) > self.body_bytes_max:
            raise self._too_large()
        if self._requests >= self.requests_max:
            raise self._busy("too many requests wait")
        return kind

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.body_bytes_max:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> _RefusedError:
        return _RefusedError(413, f"a body has at most {self.body_bytes_max} bytes")

    def _busy(self, why: str) -> _RefusedError:
        return _RefusedError(429, why, Retry_After=f"{RETRY_AFTER_S}")


class IngestServer(AppServer):
    """Runs the endpoint in a thread of this process; see `AppServer`.

    Args:
        ingest: the application.
        host, port: address to bind.
    """

    def __init__(self, ingest: Ingest, *, host: str = LOOPBACK, port: int = 0) -> None:
        super().__init__(ingest.app, "eddyline-ingest", host=host, port=port)


class SharedServer(AppServer):
    """Endpoints of several queues at one address; each has its own token and limits.

    Made by `add_endpoint`, and stopped when its last endpoint is removed.

    Args:
        host, port: address to bind.
    """

    def __init__(self, host: str, port: int) -> None:
        self.endpoints: dict[str, Ingest] = {}
        self._app = Starlette(routes=[Route("/health", _health, methods=["GET"])])
        super().__init__(self._app, "eddyline-http", host=host, port=port)

    def update(self, path: str, ingest: Ingest | None) -> None:
        """Add or replace the endpoint at a path; remove it if `ingest` is None."""
        routes = [one for one in self._app.routes if getattr(one, "path", "") != path]
        self.endpoints.pop(path, None)
        if ingest is not None:
            self.endpoints[path] = ingest
            routes.append(Route(path, ingest.put, methods=["POST"]))
        self._app.router.routes = routes  # in one step: requests are answered meanwhile


_SERVERS: dict[tuple[str, int], SharedServer] = {}
_SERVERS_LOCK = threading.Lock()


def add_endpoint(host: str, port: int, path: str, ingest: Ingest) -> str:
    """Answer requests to a path at an address of this process; return the URL.

    Raises:
        EngineError: NO_ADDRESS: the address can't be bound, or has an endpoint at this path.
    """
    with _SERVERS_LOCK:
        server = _SERVERS.get((host, port))
        if server is None:
            server = SharedServer(host, port)
            server.start()
            _SERVERS[host, port] = server
        if server.endpoints.get(path, ingest) is not ingest:
            raise EngineError(
                f"{server.url}{path} is the endpoint of another engine in this process",
                condition="NO_ADDRESS",
                hint="give another port",
            )
        server.update(path, ingest)
        return f"{server.url}{path}"


def remove_endpoint(host: str, port: int, path: str, ingest: Ingest) -> None:
    """Stop answering requests to a path, if the endpoint is there."""
    with _SERVERS_LOCK:
        server = _SERVERS.get((host, port))
        if server is None or server.endpoints.get(path) is not ingest:
            return
        server.update(path, None)
        if not server.endpoints:
            del _SERVERS[host, port]
            server.stop()


def is_served(host: str, port: int) -> bool:
    """Return whether this process has endpoints at an address."""
    return (host, port) in _SERVERS


async def _health(_: Request) -> Response:
    return Response(status_code=204)


def _charset(parameters: str) -> str:
    """Return the charset of the parameters of a Content-Type, UTF-8 by default.

    Example:
        >>> _charset(' format=flowed; charset="latin-1"')
        'latin-1'
    """
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset":
            return value.strip().strip('"')
    return "utf-8"


def _key(request: Request) -> str | None:
    """Return the key of the records of a request.

    Raises:
        _RefusedError: there are several, or it isn't UTF-8.
    """
    query: str = request.scope["query_string"].decode("latin-1")
    try:
        keys = parse_qs(query, keep_blank_values=True, errors="strict").get("key", [])
    except UnicodeDecodeError as error:
        raise _RefusedError(400, "the key is not in UTF-8") from error
    if len(keys) > 1:
        raise _RefusedError(400, "records have one key: send one")
    return keys[0] if keys else None


def _records(body: bytes, kind: str) -> list[bytes]:
    """Return the records of a body.

    Raises:
        _RefusedError: it should be one document, and is empty.
    """
    if kind == DOCUMENT:
        if not body.strip():
            raise _RefusedError(400, "the body is empty: send one document")
        return [body]
    text = body.replace(b"\r\n", b"\n").removesuffix(b"\n")
    lines = text.split(b"\n") if text else []
    return lines if kind == TEXT else [line for line in lines if line.strip()]
