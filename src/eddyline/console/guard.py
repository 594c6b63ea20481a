"""Access control of the console: hosts, tokens, other sites; and the security headers of its pages."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eddyline.arguments import wrong_argument
from eddyline.errors import EngineError
from eddyline.relay.asgi_server import bears

TOKEN_LENGTH_MIN = 16
COOKIE = "eddyline_session"
OPEN = ("/health", "/ready", "/login", "/static/")
"""Paths that need no token: they tell nothing of the storage, `/ready` but whether it is in order."""
STRANGER = "eddyline.stranger"
"""In the scope of a request without the token that the console has."""
BODY_BYTES_MAX = 1 << 16
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_OPEN_IT = "open the console itself"
_LOG = logging.getLogger("eddyline.console")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(host: str, token: str) -> None:
    """Raise EngineError BAD_OPTION if an address needs a token and there is none, or it is too short."""
    if not token and not is_loopback(host):
        raise EngineError(
            f"{host} can be reached from other machines, and there is no token",
            condition="BAD_OPTION",
            hint="give a token as ${env:NAME} or ${file:PATH}, or keep to 127.0.0.1",
        )
    if token and len(token) < TOKEN_LENGTH_MIN:
        raise wrong_argument(
            "the length of the console's token",
            len(token),
            f"give at least {TOKEN_LENGTH_MIN} characters, such as of secrets.token_urlsafe()",
        )


class Guard:
    """Passes allowed requests to the application, and adds `HEADERS` to each response.

    Without a token, the header Host must name this machine. So a page of another site whose name resolves to
    127.0.0.1 (DNS rebinding) gets no answer. With a token it gets none because it lacks the token's cookie.

    Args:
        host: the address that the server binds.
        token: the token that requests need; empty for none.
    """

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self._app = app
        self._hosts = {"localhost", "127.0.0.1", "::1", host}
        self._token = token.encode()
        session = hmac.new(self._token, b"eddyline console session", hashlib.sha256)
        self._session = session.hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        begun, ended = False, False

        async def guarded(message: Message) -> None:
            nonlocal begun, ended
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-cache"  # the browser asks whether it has changed
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            refused = await self._refused(scope, receive)
            await (refused or self._app)(scope, receive, guarded)
        except ClientDisconnect:
            pass
        except Exception as error:  # one bad request never stops the server
            _LOG.exception("a request has failed: %s", scope["path"])
            if not begun:
                await internal(error)(scope, receive, guarded)
            elif not ended:
                raise  # cut the connection, so that the client doesn't take a partial response for a complete one

    async def _refused(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the response to a request that may not pass; None for one that may."""
        headers, path = Headers(scope=scope), scope["path"]
        if not self._token and _name(headers.get("host", "")) not in self._hosts:
            hint = "open the console under 127.0.0.1 or localhost"
            return failure(421, "WRONG_HOST", "this is not the name of the console", hint)
        # browsers send `null` from the console's own forms, because of its referrer policy
        origin = headers.get("origin", "").partition("://")[2]
        if scope["method"] != "GET" and origin and origin != headers.get("host"):
            return failure(
                403, "OTHER_SITE", "a page of another site can't ask the console", _OPEN_IT
            )
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and (mode != "navigate" or scope["method"] != "GET"):
            return failure(
                403, "OTHER_SITE", "a page of another site can't ask the console", _OPEN_IT
            )
        if not self._token:
            return None
        if path == "/login" and scope["method"] == "POST":
            return await self._login(Request(scope, receive))
        if self._knows(headers):
            return None
        if path.startswith(OPEN):
            scope[STRANGER] = True
            return None
        if "text/html" in headers.get("accept", "") and not path.startswith("/api/"):
            asked = scope["query_string"].decode("latin-1")
            after = quote(path) + (f"?{asked}" if asked else "")
            return RedirectResponse(f"/login?next={quote(after)}", 303)
        answer = failure(401, "NO_TOKEN", "a token is needed", "send Authorization: Bearer TOKEN")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _knows(self, headers: Headers) -> bool:
        if bears(headers, self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        found = cookie.value.encode() if cookie else b""
        return hmac.compare_digest(found, self._session.encode())

    async def _login(self, request: Request) -> Response:
        body = await limited_body(request)
        given = parse_qs((body or b"").decode("utf-8", "replace"))
        after = given.get("next", ["/"])[0]
        if not after.startswith("/") or after.startswith(("//", "/\\")):
            after = "/"
        if not hmac.compare_digest(given.get("token", [""])[0].encode(), self._token):
            return RedirectResponse(f"/login?wrong=1&next={quote(after)}", 303)
        answer = RedirectResponse(after, 303)
        answer.set_cookie(COOKIE, self._session, httponly=True, samesite="strict", path="/")
        return answer


async def limited_body(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes | None:
    """Return the body of a request; None if it has more than `bytes_max`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            return None
    return bytes(body)


def failure(status: int, condition: str, message: str, hint: str) -> JSONResponse:
    """Return an error as a response."""
    found = {"condition": condition, "message": message, "hint": hint}
    return JSONResponse({"error": found}, status)


def internal(error: Exception) -> JSONResponse:
    """Return the response to a request that failed with an unexpected exception."""
    return failure(
        500, "INTERNAL", type(error).__name__, "see the log of the console, and report it"
    )


def _name(host: str) -> str:
    """Return a Host header without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host.rpartition(":")[0] if ":" in host else host).lower()
