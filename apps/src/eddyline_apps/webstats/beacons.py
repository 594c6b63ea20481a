"""The page script of the web statistics, and the endpoint that takes its beacons.

    GET  /webstats/script.js   the script: 1 kB, sends one beacon a page view
    POST /webstats/hit         a beacon; answers 204 once it is durable
    GET  /health               answers 204

A beacon is a JSON object with `path`, `referrer` and `ms`, the load time. The server adds the site, the time, the
client's address as a hash, its user agent, and where there are files of places its country and carrier. What is refused isn't stored:

| status | reason |
|---|---|
| 400 | no beacon, or the body ends too early |
| 403 | the header Origin names none of the sites |
| 408 | the body takes too long |
| 413 | more than `BODY_BYTES_MAX` bytes |
| 503 | the queue is full, too many requests wait, or the disk fails |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable
from importlib import resources
from urllib.parse import urlsplit

from eddyline.errors import EddylineError, missing_package
from eddyline.relay.queue import Producer
from eddyline_apps.addresses import parsed_address
from eddyline_apps.places import Places
from eddyline_apps.webstats.inputs import Sites

try:
    from anyio import to_thread
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from eddyline.console.guard import limited_body
    from eddyline.relay.asgi_server import LOOPBACK, AppServer
except ImportError as error:
    raise missing_package("the page script", str(error.name), "console") from error

SCRIPT_PATH = "/webstats/script.js"
HIT_PATH = "/webstats/hit"
SCRIPT_BYTES_MAX = 1024
BODY_BYTES_MAX = 8192
BODY_SECONDS_MAX = 10.0
REQUESTS_MAX = 1000
"""The beacons that are received or written at the same time; more are refused."""
PATH_LENGTH_MAX = 2000
AGENT_LENGTH_MAX = 500
LOAD_MS_MAX = 600_000
"""A longer load time isn't believed."""
RETRY_AFTER_S = 1
_WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\]:\d+|([\d.]+):\d+", re.ASCII)
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def page_script() -> bytes:
    """Return the script, `SCRIPT_BYTES_MAX` bytes at most: its file without comments, indentation and line ends."""
    text = resources.files(__package__).joinpath("static/page.js").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    return "".join(line for line in lines if not line.startswith("//")).encode()


class Beacons:
    """The application that serves the script and takes beacons.

    Args:
        producer: puts the records into the queue.
        secret: of the storage; addresses are hashed with it before they are stored.
        sites: whose pages may send beacons.
        places: tell a client's country and carrier, which are stored in place of its address; None: neither is.
        proxies: how many proxies in front of it append to `X-Forwarded-For`. 0: the header is ignored.
        requests_max: see `REQUESTS_MAX`.
        clock: returns nanoseconds since 1970.

    Attributes:
        app: an ASGI application.
    """

    def __init__(
        self,
        producer: Producer,
        secret: str,
        sites: Sites,
        *,
        places: Places | None = None,
        proxies: int = 0,
        requests_max: int = REQUESTS_MAX,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._writer = GroupWriter(producer)
        self._secret = secret
        self._sites = sites
        self._places = places
        self._proxies = proxies
        self._requests_max = requests_max
        self._clock = clock
        self._requests = 0
        self._script = page_script()
        self.app = Starlette(
            routes=[
                Route(SCRIPT_PATH, self.script, methods=["GET"]),
                Route(HIT_PATH, self.hit, methods=["POST", "OPTIONS"]),
                Route("/health", _health, methods=["GET"]),
            ]
        )

    async def script(self, _: Request) -> Response:
        """Answer with the script, which any page may load."""
        headers = {
            **HEADERS,
            "Cache-Control": "public, max-age=3600",
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        return Response(self._script, media_type="text/javascript", headers=headers)

    async def hit(self, request: Request) -> Response:
        """Answer a beacon, or the question of a browser whether it may send one."""
        origin = request.headers.get("origin", "")
        site = self._sites.of(origin)
        if site is None:
            return PlainTextResponse("the page is of no site of this endpoint", 403, HEADERS)
        answer = await self._answer(request, site)
        answer.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
        return answer

    async def _answer(self, request: Request, site: str) -> Response:
        if request.method == "OPTIONS":
            allowed = {"Access-Control-Allow-Methods": "POST", "Access-Control-Max-Age": "86400"}
            allowed["Access-Control-Allow-Headers"] = "Content-Type"
            return Response(status_code=204, headers=HEADERS | allowed)
        if request.headers.get("dnt") == "1" or request.headers.get("sec-gpc") == "1":
            return Response(status_code=204, headers=HEADERS)  # nothing is stored
        if self._requests >= self._requests_max:
            return _busy("too many requests wait")
        self._requests += 1
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await limited_body(request, BODY_BYTES_MAX)
            if body is None:
                return PlainTextResponse(f"send {BODY_BYTES_MAX} bytes at most", 413, HEADERS)
            record = self._record(request, site, body)
            if record is None:
                return PlainTextResponse("this is no beacon", 400, HEADERS)
            await self._writer.put(record)
            return Response(status_code=204, headers=HEADERS)
        except TimeoutError:
            return PlainTextResponse("the body takes too long", 408, HEADERS)
        except ClientDisconnect:
            return PlainTextResponse("the body ends too early", 400, HEADERS)
        except EddylineError as error:
            return _busy(error.condition)
        finally:
            self._requests -= 1

    def _record(self, request: Request, site: str, body: bytes) -> str | None:
        """Return a beacon as a line of the format `BEACON`; None if it is none."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            return None
        path = given.get("path") if isinstance(given, dict) else None
        if not isinstance(path, str) or not path.startswith("/"):
            return None
        ms = given.get("ms")
        timed = type(ms) in (int, float) and 0 < ms <= LOAD_MS_MAX
        address = self._address(request)
        record = {
            "time": self._clock() // 1000,
            "site": site,
            "host": hashed(self._secret, "address", address),
            "agent": _text(request.headers.get("user-agent", ""))[:AGENT_LENGTH_MAX],
            "path": _text(path)[:PATH_LENGTH_MAX],
            "referrer": _origin(given.get("referrer")),
            "ms": round(ms) if timed else None,
        }
        if self._places is not None:
            record |= self._places.of(address)._asdict()
        return json.dumps(record)

    def _address(self, request: Request) -> str:
        """Return the client's address: of the connection, or what the outermost of the proxies has seen."""
        found = request.client.host if request.client else ""
        if self._proxies:
            lists = request.headers.getlist("x-forwarded-for")
            given = [one.strip() for one in ",".join(lists).split(",")]
            # what is further left was sent by the client, which may write anything
            found = (given[-self._proxies] if len(given) >= self._proxies else "") or found
        # some proxies append a port, which is another one for each connection
        with_port = _WITH_PORT.fullmatch(found)
        plain = (with_port[1] or with_port[2]) if with_port else found
        try:
            return str(parsed_address(plain.strip("[]")))
        except ValueError:
            return found


class GroupWriter:
    """Puts records into a queue; those that arrive while the disk works share its next write.

    Args:
        producer: puts them.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, record: str) -> None:
        """Put a record; it is durable on return.

        Raises:
            QueueFullError, StorageError: as `Producer.put`.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                fault: Exception | None = None
                try:
                    await to_thread.run_sync(self._producer.put, [record for record, _ in taken])
                except Exception as error:  # noqa: BLE001  # each of those that wait raises it
                    fault = error
                for _, done in taken:
                    if done.done():  # its request was cancelled
                        continue
                    if fault is None:
                        done.set_result(None)
                    else:
                        done.set_exception(fault)
        finally:
            self._task = None


class BeaconServer(AppServer):
    """Runs the application in a thread of this process; see `AppServer`."""

    def __init__(self, beacons: Beacons, *, host: str = LOOPBACK, port: int = 0) -> None:
        super().__init__(beacons.app, "eddyline-beacons", host=host, port=port, proxy_headers=False)


def hashed(secret: str, salt: str, value: str) -> str:
    """Return what the SQL function `webstats_key` returns.

    Example:
        >>> hashed("0" * 32, "address", "::1")
        'def052d7207e0d67'
    """
    return hashlib.sha256(f"{secret}\n{salt}\n{value}".encode()).hexdigest()[:16]


def _origin(referrer: object) -> str | None:
    """Return scheme and host of a page's address; None if it has none.

    Example:
        >>> _origin("https://user@Example.org:8080/search?q=secret"), _origin("about:blank")
        ('https://example.org', None)
        >>> _origin("http://[2001:DB8::1]:80/x")
        'http://[2001:db8::1]'
    """
    try:
        parts = urlsplit(referrer if isinstance(referrer, str) else "")
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return f"{parts.scheme}://[{_text(host)}]" if ":" in host else f"{parts.scheme}://{_text(host)}"


def _text(text: str) -> str:
    """Return a text without what UTF-8 can't encode: halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


def _busy(why: str) -> Response:
    return PlainTextResponse(why, 503, HEADERS | {"Retry-After": f"{RETRY_AFTER_S}"})


async def _health(_: Request) -> Response:
    return Response(status_code=204)
