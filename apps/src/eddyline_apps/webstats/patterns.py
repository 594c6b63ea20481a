"""Format strings of nginx and Apache as regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from eddyline.errors import DataError

QUOTED = r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'
"""A value between quotes, in which a backslash keeps the next character. A loop over runs of characters, as one over
characters takes Java 1.4 times as long."""

NUMBER = r"-?\d++"
DECIMAL = rf"{NUMBER}(?:\.\d++)?"
"""Of any length and sign: the columns that they are for have limits of their own."""
_SHAPES = {
    "status": r"\d{3}",
    "bytes": rf"{NUMBER}|-",
    "seconds": rf"{DECIMAL}|-",
    "milliseconds": rf"{DECIMAL}|-",
    "microseconds": rf"{NUMBER}|-",
    "time": r"\d\d/\w{3}/[12]\d{3}:\d\d:\d\d:\d\d [+-]\d{4}",
    "iso_time": r"[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)",
    "epoch_s": r"\d{1,12}(?:\.\d{1,9})?",
    "epoch_ms": r"\d{1,18}",
    "epoch_us": r"\d{1,18}",
}
"""How a value looks, where that is more than what its surroundings tell."""

_NGINX = {
    "remote_addr": "host",
    "remote_user": "user",
    "time_local": "time",
    "time_iso8601": "iso_time",
    "msec": "epoch_s",
    "request": "request",
    "request_method": "method",
    "request_uri": "path",
    "uri": "path",
    "status": "status",
    "body_bytes_sent": "bytes",
    "bytes_sent": "bytes",
    "http_referer": "referer",
    "http_user_agent": "agent",
    "host": "site",
    "http_host": "site",
    "server_name": "site",
    "request_time": "seconds",
}
_APACHE = {
    "h": "host",
    "a": "host",
    "u": "user",
    "t": "time",
    "r": "request",
    "m": "method",
    "U": "path",
    "s": "status",
    "b": "bytes",
    "B": "bytes",
    "O": "bytes",
    "v": "site",
    "V": "site",
    "D": "microseconds",
    "T": "seconds",
}
_APACHE_WITH_ARGUMENT = {
    ("referer", "i"): "referer",
    ("user-agent", "i"): "agent",
    ("host", "i"): "site",
    ("c", "a"): "host",
    ("s", "T"): "seconds",
    ("ms", "T"): "milliseconds",
    ("us", "T"): "microseconds",
    ("sec", "t"): "epoch_s",
    ("msec", "t"): "epoch_ms",
    ("usec", "t"): "epoch_us",
    ("%Y-%m-%dT%H:%M:%S%z", "t"): "iso_time",
}
_WORDS = ("host", "site", "method", "cookie")
"""Values in which there are no spaces, whatever surrounds them."""
_NGINX_LISTS = ("upstream_", "http_x_forwarded_for", "proxy_add_x_forwarded_for")
_NGINX_TOKEN = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_APACHE_TOKEN = re.compile(r"%(%)|%[!\d,]*[<>]?(?:\{([^}]*)\})?[<>]?(\^t[io]|[a-zA-Z])")
_DIRECTIVE = re.compile(r"\s*(?:log_format|LogFormat|CustomLog)\s", re.IGNORECASE)
_ESCAPE = re.compile(r"\\([\\\"'tnr])")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}
"""What a backslash stands for in strings of both servers; others, and before other characters it stays."""
_PARTS_OF_PATH = ("$is_args", "$args", "$query_string", "%q")
"""Values that belong to the path before them."""
_TIMES = ("time", "iso_time", "epoch_s", "epoch_ms", "epoch_us")


@dataclass(frozen=True, slots=True)
class _Value:
    part: str  # empty for one that isn't used
    text: str  # as it is written in the format string
    is_list: bool = False  # such as `a, b`


Values: TypeAlias = Callable[[re.Match[str]], list[str | _Value]]


def compile_format(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the regular expression of a format string, and the parts that its groups are.

    Quantifiers are possessive, and a value ends where the text after it begins, so that matching takes
    linear time.

    Raises:
        DataError: LOG_FORMAT_UNKNOWN: the string is neither of nginx nor of Apache, lacks the client, the
            time or the status, or has two values with nothing between them.

    Example:
        >>> compile_format('$remote_addr [$time_local] $status')[1]
        ('host', 'time', 'status')
    """
    pieces = _pieces(text)
    found = [piece.part for piece in pieces if isinstance(piece, _Value)]
    lacking = [
        name
        for name, parts in (("client", ("host",)), ("time", _TIMES), ("status", ("status",)))
        if not set(parts) & set(found)
    ]
    if lacking:
        hint = _HINT
        if "client" in lacking:
            hint = "log $remote_addr or %a; behind a proxy, let real_ip_header of nginx or mod_remoteip of Apache take it from X-Forwarded-For"
        raise _unusable(text, f"it has no {' and no '.join(lacking)}", hint)
    pattern, names = "", []
    for place, piece in enumerate(pieces):
        if isinstance(piece, str):
            pattern += _literal(piece)
            continue
        before = pieces[place - 1] if place else ""
        after = pieces[place + 1] if place + 1 < len(pieces) else ""
        if isinstance(after, _Value):
            raise _unusable(text, f"nothing is between {piece.text} and {after.text}")
        shape = _shape(piece, str(before)[-1:], after)
        if piece.part and piece.part not in names:
            names.append(piece.part)
            pattern += f"({shape})"
        else:
            pattern += f"(?:{shape})"
    return pattern, tuple(names)


def _shape(value: _Value, before: str, after: str) -> str:
    """Return the expression of a value between a character and a text."""
    part, end = value.part, after[:1]
    if part in _SHAPES:
        return _SHAPES[part]
    if end == '"' and before == '"':
        return QUOTED
    if part == "user" and after.startswith(" ["):  # spaces are part of it, up to the date
        return r"[^\n ]*+(?: (?!\[\d\d/\w{3}/)[^\n ]*+)*+"
    if part in _WORDS:
        spaces = r" \t\n\x0B\f\r"  # Java tests each of these faster than \s
        word = rf"[^{spaces}{_literal(end)}]*+"
        # an address of IPv6 in brackets holds colons; the port is after it
        return rf"\[[^{spaces}\]]*+\]|{word}" if part == "site" and end == ":" else word
    if not end:
        return r"[^\r\n]*+"
    if end == " " and part == "request":
        return r"\S+ \S+ HTTP/[\d.]+|-"
    if end == " " and value.is_list:  # nginx writes ` : ` between groups of servers
        groups = "" if after.startswith(" :") else r"| : [^\n ]*+"
        return rf"[^\n ]*+(?:(?<=,) [^\n ]*+{groups})*+"
    return rf"[^\n{_literal(end)}]*+"


def _literal(text: str) -> str:
    """Return the expression that matches a text; safe in a string literal of SQL."""
    return "".join(
        c if c.isalnum() or c in " _<>" else rf"\x{ord(c):02x}" if ord(c) < 128 else c for c in text
    )


def _pieces(text: str) -> list[str | _Value]:
    """Split a format string into its texts and values."""
    if _DIRECTIVE.match(text):
        hint = "give the string alone, without the name and the quotes around it, and strings in several pieces as one"
        raise _unusable(text, "it is a whole directive of a configuration", hint)
    # as both servers read a string of their configuration
    plain = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)
    if "\n" in plain or "\r" in plain:
        raise _unusable(text, "it has a line end, so that a request is more than one line")
    if _NGINX_TOKEN.search(plain):
        return _split(plain, _NGINX_TOKEN, _nginx)
    if _APACHE_TOKEN.search(plain):
        return _split(plain, _APACHE_TOKEN, _apache)
    raise _unusable(text, "it is no name of a format, and has no variables of nginx or Apache")


def _split(text: str, token: re.Pattern[str], value: Values) -> list[str | _Value]:
    pieces: list[str | _Value] = []
    end = 0
    for match in token.finditer(text):
        _append(pieces, text[end : match.start()])
        for piece in value(match):
            _append(pieces, piece)
        end = match.end()
    _append(pieces, text[end:])
    return pieces


def _append(pieces: list[str | _Value], piece: str | _Value) -> None:
    if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
        pieces[-1] += piece
    elif isinstance(piece, _Value) and piece.text in _PARTS_OF_PATH and _ends_in_path(pieces):
        pass
    elif piece != "":
        pieces.append(piece)


def _ends_in_path(pieces: list[str | _Value]) -> bool:
    return bool(pieces) and isinstance(pieces[-1], _Value) and pieces[-1].part == "path"


def _nginx(match: re.Match[str]) -> list[str | _Value]:
    name = match[1] or match[2]
    part = "cookie" if name.startswith("cookie_") or name == "uid_got" else _NGINX.get(name, "")
    return [_Value(part, match[0], is_list=name.startswith(_NGINX_LISTS))]


def _apache(match: re.Match[str]) -> list[str | _Value]:
    if match[1]:
        return ["%"]
    argument, letter = match[2], match[3]
    if argument is None:
        part = _APACHE.get(letter, "")
        value = _Value(part, match[0])
        return ["[", value, "]"] if letter == "t" else [value]
    if letter == "C":
        return [_Value("cookie", match[0])]
    key = argument if letter == "t" else argument.lower()
    part = _APACHE_WITH_ARGUMENT.get((key, letter), "")
    if letter == "t" and not part:
        raise _unusable(match[0], "this form of time isn't known; %t is")
    return [_Value(part, match[0], is_list=(key, letter) == ("x-forwarded-for", "i"))]


_HINT = "give the name of a format, or the string as it is in the server's configuration"


def _unusable(text: str, reason: str, hint: str = _HINT) -> DataError:
    return DataError(
        f"the log format {text!r} can't be used: {reason}",
        condition="LOG_FORMAT_UNKNOWN",
        hint=hint,
    )
