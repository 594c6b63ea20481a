"""A sink that posts the changes of each delivery to a URL."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

from eddyline.arguments import check_choice, wrong_argument
from eddyline.changes import Epoch
from eddyline.errors import EngineError
from eddyline.sink.base import Sink, Target, check_feed_columns, sink_failed, target_moved
from eddyline.sink.json_rows import check_json, json_rows
from eddyline.sink.rows import change_feed

SIGNATURE, TIMESTAMP = "X-Eddyline-Signature", "X-Eddyline-Timestamp"
IDEMPOTENCY = "Idempotency-Key"

NOT_OF_ROWS = (401, 403, 404, 405, 407, 408, 410, 421, 425, 426, 429, 431)
"""Answers from 400 to 499 that concern the address, the sender or the moment: the same can pass later."""

BUSY = (429, 503)
"""Answers of a receiver that wants fewer requests; `Retry-After` says when the next one may come."""

WAIT_MAX_S = 10.0
"""How long a request waits because of `Retry-After`."""

_WAITS_MAX = 5  # of one request
_SHOWN = 200  # characters of an answer
_READ_MOST = 1 << 16
_DONE = " done"  # after the key of a part, in the notes
_NUMBERS = {"timeout": (30, 3600), "batch_rows": (1000, 1_000_000)}  # default and most


class WebhookFormat:
    """Posts JSON to a URL: `{"sink", "epoch", "base", "part", "parts", "snapshot", "changes"}`.

    `changes` are rows with `_change_type` that lead from epoch `base` to `epoch`; with `snapshot` they
    are all rows, and replace what was there. A large delivery comes in `parts`, one after the other,
    the first of which has number 1.

    Each change comes at least once. A receiver can't be asked what it holds: after a crash the parts of the last
    delivery come again, after an error those from the failed one on, with the same content and the same
    `Idempotency-Key` (`<sink's id>/<epoch>/<part>`), before anything else does. So a receiver that takes each key once
    holds the view. If the last delivery was a snapshot, or its epochs are no longer retained, a snapshot of a later epoch
    comes in its place. A receiver that answers 429 or 503 with `Retry-After` gets the same request again after that
    time, of which a request waits for at most 10 seconds, 5 times.

    A part that is refused (an answer such as 400 or 422) comes again in two halves, which are cut in the same way until the
    changes that are refused are found: those become dead letters. Such a piece of a part has the key `<sink's id>/<epoch>/<part>.<piece>`
    and a field `piece`: the halves of piece n are 2n and 2n + 1, the whole part is piece 1. What was refused isn't asked
    again, also after a crash, so that a receiver gets no change twice that takes a part later. If the first part of a snapshot is refused, an
    empty one comes in its place (piece 0), and its pieces have `snapshot` false: they add to it.

    With a secret, `X-Eddyline-Signature` is `sha256=` and the HMAC of `<X-Eddyline-Timestamp>.<body>`
    in hexadecimal digits.
    """

    @property
    def options(self) -> Mapping[str, str]:
        return {
            "url": "where to post, http or https; ${env:NAME} if it holds a token",
            "secret": "the key of the signature",
            "timeout": "seconds to wait for the receiver; 30 if left out",
            "batch_rows": "the most changes of a request; 1000 if left out",
            "on_refused": "what happens to a change that is answered with a status such as 400 or 422: "
            "'dead letters' or 'stop'",
        }

    @property
    def secrets(self) -> Sequence[str]:
        return ("secret",)

    @property
    def fixed(self) -> Sequence[str]:
        return ("url", "batch_rows")

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        url = options.get("url", "").strip()
        if not url.startswith("${"):
            _address(url)
        for name in _NUMBERS:
            _number(options, name)
        refused = options.get("on_refused", "dead letters")
        check_choice("the option on_refused", refused, ("dead letters", "stop"))
        check_json(target, "webhook")
        check_feed_columns(target)

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        secret = options.get("secret")
        return WebhookSink(
            target,
            _address(options["url"].strip()),
            secret=None if secret is None else secret.encode(),
            timeout_s=_number(options, "timeout"),
            batch_rows=_number(options, "batch_rows"),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answers.

    Attributes:
        text: status and the beginning of the body.
        wait_s: the seconds of `Retry-After`; None without.
    """

    status: int
    text: str
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a delivery, or a piece of one.

    Attributes:
        document: what all requests of the delivery say.
        delivery: how the keys of all its requests begin.
        number: of the part, from 1 on.
        piece: 1: the whole part; 0: none of its changes; the halves of n are 2n and 2n + 1.
    """

    document: Mapping[str, object]
    delivery: str
    number: int
    rows: pa.Table
    snapshot: bool
    piece: int = 1

    @property
    def key(self) -> str:
        return f"{self.delivery}{self.number}" + (f".{self.piece}" if self.piece != 1 else "")

    @property
    def replaces(self) -> bool:
        """Whether the receiver replaces what it has by this request."""
        return self.snapshot and self.number == 1 and self.piece == 1

    @property
    def body(self) -> bytes:
        fields = {**self.document, "part": self.number, "snapshot": self.snapshot}
        if self.piece != 1:
            fields |= {"piece": self.piece}
        start = json.dumps(fields)
        return f'{start[:-1]}, "changes": [{",".join(json_rows(self.rows))}]}}'.encode()

    def halves(self) -> list[_Part]:
        half = self.rows.num_rows // 2
        cut = [self.rows.slice(0, half), self.rows.slice(half)]
        return [
            replace(self, rows=rows, piece=2 * self.piece + place, snapshot=False)
            for place, rows in enumerate(cut)
        ]

    def empty(self) -> _Part:
        return replace(self, rows=self.rows.slice(0, 0), piece=0)


class WebhookSink:
    """Posts to a URL; see `WebhookFormat`.

    Args:
        secret: the key of the signature; None: requests aren't signed.
        clock: returns seconds since 1970.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        target: Target,
        address: SplitResult,
        *,
        secret: bytes | None,
        timeout_s: int,
        batch_rows: int,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._target = target
        self._address = address
        self._secret = secret
        self._timeout_s = timeout_s
        self._batch_rows = batch_rows
        self._clock, self._sleep = clock, sleep
        self._epoch = target.delivered
        self._connection: http.client.HTTPConnection | None = None

    def committed(self) -> Epoch | None:
        return self._epoch

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        if changes.num_rows:
            self._post_all(base, epoch, changes, snapshot=False)
        self._epoch = epoch

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        self._post_all(base, epoch, rows, snapshot=True)
        self._epoch = epoch

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post_all(
        self, base: Epoch | None, epoch: Epoch, changes: pa.Table, *, snapshot: bool
    ) -> None:
        if base != self._epoch:
            raise target_moved(self._target, base, self._epoch)
        feed = change_feed(changes, self._target.key)
        parts = max(1, -(-feed.num_rows // self._batch_rows))
        document = {"sink": self._target.name, "epoch": epoch, "base": base, "parts": parts}
        all_rows = "snapshot/" * snapshot  # which may come again for the same epoch
        delivery = f"{self._target.app}/{epoch}/{all_rows}"
        noted = self._target.notes.read()
        # the keys of requests that were refused, and of the last part that needs no request any more, in their order
        settled = {key: None for key in noted if key.startswith(delivery)}
        done = max(
            (n for n in range(1, parts + 1) if f"{delivery}{n}{_DONE}" in settled), default=0
        )
        for part in range(done + 1, parts + 1):
            rows = feed.slice((part - 1) * self._batch_rows, self._batch_rows)
            try:
                self._post_part(_Part(document, delivery, part, rows, snapshot), settled)
            except EngineError:
                if part > done + 1:
                    self._target.notes.write([*settled, f"{delivery}{part - 1}{_DONE}"])
                raise
        if settled or noted:
            self._target.notes.write([])

    def _post_part(self, part: _Part, refused: dict[str, None]) -> None:
        """Post a part, or the pieces of one that is refused, in their order.

        Args:
            refused: has the keys of requests of this delivery that were refused; those that are refused now are added.
        """
        pieces = [part]
        while pieces:
            piece = pieces.pop()
            single = piece.rows.num_rows == 1
            if piece.key not in refused:
                answer = self._post_patiently(piece.body, piece.key)
                if 200 <= answer.status < 300:
                    continue
                if not 400 <= answer.status < 500 or answer.status in NOT_OF_ROWS:
                    raise self._failed(f"it answers {answer.text}")
                if not piece.rows.num_rows:
                    raise self._failed(f"it refuses a request without changes: {answer.text}")
                if single:
                    kind = piece.rows.column(piece.rows.num_columns - 1)[0].as_py()
                    row = piece.rows.select(range(piece.rows.num_columns - 1))
                    self._target.refuse(row, [f"{kind}: {answer.text}"])
                refused[piece.key] = None
                self._target.notes.write(list(refused))
            if not single:
                pieces += reversed(piece.halves())
            if piece.replaces:
                pieces.append(piece.empty())

    def _post_patiently(self, body: bytes, idempotency_key: str) -> Answer:
        """Post a request, and again each time the receiver says when it may come again."""
        for _ in range(_WAITS_MAX):
            answer = self._post(body, idempotency_key)
            if answer.status not in BUSY or answer.wait_s is None:
                return answer
            self._sleep(min(answer.wait_s, WAIT_MAX_S))
        return self._post(body, idempotency_key)

    def _post(self, body: bytes, idempotency_key: str) -> Answer:
        timestamp = str(int(self._clock()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "eddyline",
            TIMESTAMP: timestamp,
            IDEMPOTENCY: idempotency_key,
        }
        if self._secret is not None:
            signed = hmac.new(self._secret, f"{timestamp}.".encode() + body, hashlib.sha256)
            headers[SIGNATURE] = f"sha256={signed.hexdigest()}"
        idle = self._connection is not None
        try:
            return self._request(body, headers)
        except (ConnectionError, http.client.BadStatusLine) as error:
            self.close()
            if not idle:
                raise self._failed(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._failed(error) from error
        # the receiver has closed the connection since the last request
        try:
            return self._request(body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._failed(error) from error

    def _request(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._connection is None:
            secure = self._address.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            self._connection = kind(
                self._address.hostname or "", self._address.port, timeout=self._timeout_s
            )
        path = self._address.path or "/"
        if self._address.query:
            path += f"?{self._address.query}"
        self._connection.request("POST", path, body, dict(headers))
        response = self._connection.getresponse()
        text = response.read(_READ_MOST).decode("utf-8", "replace")
        if not response.isclosed():  # there is more: the connection can't serve another request
            self.close()
        shown = f"{response.status} {response.reason}: {text[:_SHOWN]}"
        wait_s = self._wait_s(response.headers.get("Retry-After", ""))
        return Answer(response.status, " ".join(shown.split()).removesuffix(":"), wait_s)

    def _wait_s(self, header: str) -> float | None:
        """Return the seconds of `Retry-After`, a number or a date; None if it is neither."""
        if header.strip().isdecimal():
            return float(header)
        try:
            return max(parsedate_to_datetime(header).timestamp() - self._clock(), 0)
        except (ValueError, OverflowError):
            return None

    def _failed(self, error: BaseException | str) -> EngineError:
        """Return the error, naming host and port: the rest of a URL can hold a token."""
        text = error if isinstance(error, str) else str(error) or type(error).__name__
        return sink_failed(self._target, f"{self._address.hostname}: {text}")


def _address(url: str) -> SplitResult:
    """Return the parts of a URL; EngineError BAD_OPTION if it isn't one."""
    hint = "write it like https://host/path"
    try:
        address = urlsplit(url)
        valid = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        raise EngineError("the option url isn't a URL", condition="BAD_OPTION", hint=hint) from None
    if not valid or not url.isascii() or any(ord(letter) <= 32 for letter in url):
        raise EngineError(
            "the option url isn't a URL of http or https", condition="BAD_OPTION", hint=hint
        )
    if address.username is not None or address.password is not None:
        raise EngineError(
            "the option url holds a user or password",
            condition="BAD_OPTION",
            hint="let the receiver check the signature: give the option secret",
        )
    return address


def _number(options: Mapping[str, str], name: str) -> int:
    default, most = _NUMBERS[name]
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise wrong_argument(f"the option {name}", text, f"give a whole number from 1 to {most}")
    return int(text)
