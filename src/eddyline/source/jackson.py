"""Single lines of JSON, read exactly as Spark's reader reads them in the mode PERMISSIVE.

Spark reads JSON by Jackson's parser of byte streams. What is odd about it: only the first value of a
line counts; an array is as many rows as it has objects; single quotes and `NaN` are accepted; an error
in the text of a wanted column makes only this column null; any other error makes the whole row null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from eddyline.source.timestamps import instant, local_time

BOM = b"\xef\xbb\xbf"
DEPTH_MAX, NUMBER_MAX, NAME_MAX = 1000, 1000, 50_000  # Jackson's limits

_BLANKS = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_QUICK = re.compile(rb'"[^"\\\x00-\x1f\x80-\xff]*"')  # a text that needs no check
_NUMBER = re.compile(
    rb"-?(0(?![0-9])|[1-9][0-9]*+)(\.[0-9]++|(?!\.))((?:[eE][+-]?[0-9]++)|(?![eE]))"
)
_LITERAL = re.compile(rb"true|false|null|NaN|[+-]?Infinity|[+-]INF")
_CLOSING = {b"{": b"}", b"[": b"]"}
_ESCAPED = {
    98: "\b",
    116: "\t",
    110: "\n",
    102: "\f",
    114: "\r",
    34: '"',
    39: "'",
    47: "/",
    92: "\\",
}
_INFINITE = {"+INF", "+Infinity", "Infinity"}, {"-INF", "-Infinity"}
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

TEXT, INTEGER, FLOAT, BOOLEAN, OTHER = range(5)  # kinds of tokens
Token: TypeAlias = tuple[int, str]
Convert: TypeAlias = Callable[[Token], Any]


class _MalformedError(Exception):
    """The whole record is malformed."""


class _BadMemberError(_MalformedError):
    """What follows the name of a member is malformed."""


class _BadTextError(Exception):
    """A text is malformed; the parser goes on at `at`."""

    def __init__(self, at: int) -> None:
        self.at = at


class LineParser:
    """Reads lines as rows of the columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._width = len(schema)
        self._places = {name: place for place, name in enumerate(schema.names)}
        self._texts = {place for place, field in enumerate(schema) if field.type == pa.string()}
        self._converters = [_converter(field.type) for field in schema]
        self._line = b""

    def rows(self, line: bytes) -> list[list[Any]]:
        """Return the rows of a line; timestamps are microseconds."""
        self._line = _as_utf8(line)
        at = self._skip_blanks(0)
        if at == len(self._line):
            return []
        try:
            if self._line[at : at + 1] == b"{":
                return [self._object(at + 1, 1)[0]]
            if self._line[at : at + 1] == b"[":
                return self._array_of_rows(at + 1)
        except _MalformedError:
            pass
        return [[None] * self._width]

    def _array_of_rows(self, at: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        at = self._skip_blanks(at)
        while self._line[at : at + 1] != b"]":
            if found:
                at = self._skip_blanks(self._expect(at, b","))
            row, at = self._object(self._expect(at, b"{"), 2)
            found.append(row)
            at = self._skip_blanks(at)
        return found

    def _object(self, at: int, depth: int) -> tuple[list[Any], int]:
        """Return the row of the object that has begun before `at`, and where it ends."""
        row: list[Any] = [None] * self._width
        at, first = self._skip_blanks(at), True
        while self._line[at : at + 1] != b"}":
            name, at = self._name(at if first else self._skip_blanks(self._expect(at, b",")))
            first = False
            place = self._places.get(name)
            if place is None:
                at = self._skip_value(at, depth)
            else:
                try:
                    at = self._column(row, place, at, depth)
                except _BadMemberError:
                    if depth > 1 or place not in self._texts:
                        raise
                    return row, len(self._line)  # Spark ends the record here
            at = self._skip_blanks(at)
        return row, at + 1

    def _name(self, at: int) -> tuple[str, int]:
        """Return the name of a member, and where its value begins."""
        quote = self._line[at : at + 1]
        if quote not in (b'"', b"'"):
            raise _MalformedError
        try:
            name, end = self._text(at + 1, quote[0])
        except _BadTextError:
            raise _MalformedError from None
        if end - at - 2 > NAME_MAX:
            raise _MalformedError
        colon = self._skip_blanks(end)
        if self._line[colon : colon + 1] != b":":
            raise _BadMemberError
        return name, self._skip_blanks(colon + 1)

    def _column(self, row: list[Any], place: int, at: int, depth: int) -> int:
        """Set a column unless its value can't be converted; return where the value ends."""
        first = self._line[at : at + 1]
        token: Token
        if first == b'"':
            try:
                text, end = self._text(at + 1, 34)
            except _BadTextError as error:
                return error.at
            token = TEXT, text
        elif first == b"'":
            text, end = self._checked_text(at)
            token = TEXT, text
        elif first in _CLOSING:
            end = self._skip_container(at, depth)
            token = OTHER, self._line[at:end].decode(errors="replace")
        else:
            kind, end = self._scalar(at)
            token = kind, self._line[at:end].decode()
            if token == (OTHER, "null"):
                row[place] = None
                return end
        with suppress(ValueError):  # then an earlier member of this name counts
            row[place] = self._converters[place](token)
        return end

    def _skip_value(self, at: int, depth: int) -> int:
        """Return where a value ends."""
        first = self._line[at : at + 1]
        if first == b'"':
            quick = _QUICK.match(self._line, at)
            return quick.end() if quick else self._checked_text(at, skipped=True)[1]
        if first == b"'":
            return self._checked_text(at)[1]
        if first in _CLOSING:
            return self._skip_container(at, depth)
        return self._scalar(at)[1]

    def _skip_member(self, at: int, depth: int) -> int:
        try:
            return self._skip_value(at, depth)
        except _MalformedError:
            if self._line[at : at + 1] == b'"':  # Jackson skips it only with the next token
                raise
            raise _BadMemberError from None

    def _skip_container(self, at: int, depth: int) -> int:
        """Return where an array or an object ends."""
        opened: list[bytes] = []
        first = True
        while True:
            if first:  # of a container that begins here
                opened.append(self._line[at : at + 1])
                if depth + len(opened) > DEPTH_MAX:
                    raise _MalformedError
                at += 1
            at = self._skip_blanks(at)
            if self._line[at : at + 1] == _CLOSING[opened[-1]]:
                opened.pop()
                at += 1
                first = False
                if not opened:
                    return at
                continue
            if not first:
                at = self._skip_blanks(self._expect(at, b","))
            if opened[-1] == b"{":
                at = self._name(at)[1]
            first = self._line[at : at + 1] in _CLOSING
            if not first:
                at = (
                    self._skip_member(at, depth)
                    if opened[-1] == b"{"
                    else self._skip_value(at, depth)
                )

    def _scalar(self, at: int) -> tuple[int, int]:
        """Return the kind of a number or literal, and where it ends."""
        number = _NUMBER.match(self._line, at)
        if number is not None:
            whole, fraction, exponent = number.groups()
            signs = bool(fraction) + bool(exponent)
            if len(whole + fraction + exponent) > NUMBER_MAX + signs:
                raise _MalformedError
            return FLOAT if signs else INTEGER, number.end()
        literal = _LITERAL.match(self._line, at)
        if literal is None:
            raise _MalformedError
        word = literal.group()
        if word in (b"true", b"false"):
            return BOOLEAN, literal.end()
        return OTHER if word == b"null" else FLOAT, literal.end()

    def _checked_text(self, at: int, *, skipped: bool = False) -> tuple[str, int]:
        """Return a quoted text and where it ends; an error in it is one of the whole record."""
        try:
            return self._text(at + 1, self._line[at], skipped=skipped)
        except _BadTextError:
            raise _MalformedError from None

    def _text(self, at: int, quote: int, *, skipped: bool = False) -> tuple[str, int]:
        """Return the text that ends at the next quote, and where it ends.

        Args:
            skipped: accept an encoded half of a surrogate pair, as Jackson does if it skips a text.

        Raises:
            _BadTextError: it has an unknown escape, a control character, or is no UTF-8.
            _MalformedError: it doesn't end.
        """
        if quote == 34:
            plain = _PLAIN.match(self._line, at)
            end = plain.end() if plain else at
            if self._line[end : end + 1] == b'"':
                try:
                    return self._line[at:end].decode(), end + 1
                except UnicodeDecodeError:
                    pass
        units: list[str] = []
        while (byte := self._byte(at)) != quote:
            at += 1
            if byte == 92:
                unit, at = self._escaped(at)
            elif byte < 32:
                raise _BadTextError(at)
            elif byte < 128:
                unit = chr(byte)
            else:
                unit, at = self._character(byte, at, skipped=skipped)
            units.append(unit)
        return _joined("".join(units)), at + 1

    def _escaped(self, at: int) -> tuple[str, int]:
        """Return what a backslash before `at` escapes, and where it ends."""
        byte = self._byte(at)
        if byte in _ESCAPED:
            return _ESCAPED[byte], at + 1
        if byte != 117:
            raise _BadTextError(self._character(byte, at + 1)[1] if byte > 127 else at + 1)
        code = 0
        for place in range(at + 1, at + 5):
            digit = b"0123456789abcdef".find(bytes([self._byte(place)]).lower())
            if digit < 0:
                raise _BadTextError(place + 1)
            code = code * 16 + digit
        return chr(code), at + 5

    def _character(self, byte: int, at: int, *, skipped: bool = False) -> tuple[str, int]:
        """Return the character of several bytes that `byte` before `at` begins, and where it ends.

        Jackson also accepts characters that are encoded in more bytes than they need.
        """
        if byte & 0xE0 == 0xC0:
            code, more = byte & 0x1F, 1
        elif byte & 0xF0 == 0xE0:
            code, more = byte & 0x0F, 2
        elif byte & 0xF8 == 0xF0:
            code, more = byte & 0x07, 3
        else:
            raise _BadTextError(at)
        for place in range(at, at + more):
            follows = self._byte(place)
            if follows & 0xC0 != 0x80:
                raise _BadTextError(place + 1)
            code = code << 6 | follows & 0x3F
        if 0xD800 <= code < 0xE000 and not skipped:
            raise _BadTextError(at + more)
        if more < 3:
            return chr(code), at + more
        code -= 0x10000
        return chr((0xD800 | code >> 10) & 0xFFFF) + chr(0xDC00 | code & 0x3FF), at + more

    def _byte(self, at: int) -> int:
        if at >= len(self._line):
            raise _MalformedError
        return self._line[at]

    def _skip_blanks(self, at: int) -> int:
        match = _BLANKS.match(self._line, at)
        return match.end() if match else at

    def _expect(self, at: int, wanted: bytes) -> int:
        if self._line[at : at + 1] != wanted:
            raise _MalformedError
        return at + 1


def _as_utf8(line: bytes) -> bytes:
    """Return a line in UTF-8, without byte order mark; the other encodings are detected as by Jackson."""
    if line.startswith(BOM) and line != BOM:
        return line.removeprefix(BOM)
    head = line[:4]
    if head[:2] not in (b"\xfe\xff", b"\xff\xfe") and 0 not in head:
        return line
    for start, encoding in (
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\xfe\xff", "utf-16"),
        (b"\xff\xfe", "utf-16"),
    ):
        if head.startswith(start):
            return line.decode(encoding, "replace").encode()
    zeros = tuple(byte == 0 for byte in head)
    if len(head) == 4 and sum(zeros) == 3:
        kind = {0: "utf-32-le", 3: "utf-32-be"}.get(zeros.index(False), "")
    else:
        first = zeros.index(True)
        kind = {0: "utf-16-be", 1: "utf-16-le"}.get(first, "")
    return line.decode(kind, "replace").encode() if kind else line


def _joined(units: str) -> str:
    """Join surrogate pairs; half of a pair becomes a question mark."""
    if not any("\ud800" <= unit <= "\udfff" for unit in units):
        return units
    pairs = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return pairs.encode(errors="replace").decode()


def _converter(kind: pa.DataType) -> Convert:
    """Return the function that converts a token; it raises ValueError if it doesn't fit the type."""
    if kind in _BITS:
        return partial(_integer, _BITS[kind])
    if pa.types.is_timestamp(kind):
        return _instant if kind.tz else _local_time
    simple: Mapping[pa.DataType, Convert] = {
        pa.string(): lambda token: token[1],
        pa.bool_(): _boolean,
        pa.float32(): _single,
        pa.float64(): _double,
    }
    return simple[kind]


def _integer(bits: int, token: Token) -> int:
    kind, text = token
    if kind != INTEGER:
        raise ValueError
    value, limit = int(text), 1 << bits - 1
    if bits == 8 and limit <= value < 2 * limit:  # Jackson takes bytes without sign, too
        return value - 2 * limit
    if not -limit <= value < limit:
        raise ValueError
    return value


def _boolean(token: Token) -> bool:
    if token[0] != BOOLEAN:
        raise ValueError
    return token[1] == "true"


def _double(token: Token) -> float:
    kind, text = token
    if text == "NaN":
        return float("nan")
    for infinite, value in zip(_INFINITE, (float("inf"), float("-inf")), strict=True):
        if text in infinite:
            return value
    if kind not in (INTEGER, FLOAT):
        raise ValueError
    return 0.0 if kind == INTEGER and text == "-0" else float(text)


def _single(token: Token) -> float:
    """Return the nearest number of 32 bits; rounding by way of 64 bits can miss it."""
    kind, text = token
    value = _double(token)
    with np.errstate(over="ignore"):
        near = float(np.float32(value))
    if kind == INTEGER and len(text.lstrip("-")) > 18:
        return near
    if kind == TEXT or not np.isfinite(near) or not halfway(np.array([value])).any():
        return near
    exact, single = Fraction(text), np.float32(near)
    around = [np.nextafter(single, np.float32(side)) for side in ("-inf", "inf")]
    nearest = min(
        (single, *(one for one in around if np.isfinite(one))),
        key=lambda one: (abs(Fraction(float(one)) - exact), one.view(np.int32) & 1),
    )
    return float(nearest)


def halfway(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which numbers may lie halfway between two of 32 bits."""
    low = values.view(np.int64) & ((1 << 29) - 1)
    tiny = (np.abs(values) < np.float64(2) ** -126) & (values != 0)
    halves: np.ndarray[Any, Any] = (low == 1 << 28) | tiny
    return halves


def _instant(token: Token) -> int:
    kind, text = token
    if kind == INTEGER:
        seconds = int(text)
        if not -(1 << 63) <= seconds < 1 << 63:
            raise ValueError
        return wrapped(seconds * 1_000_000)
    if kind != TEXT:
        raise ValueError
    return instant(text)


def wrapped(value: int) -> int:
    """Return the 64 low bits as a number, as Java's multiplication does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _local_time(token: Token) -> int:
    if token[0] != TEXT:
        raise ValueError
    return local_time(token[1])
