"""The smallest parts of JSON: texts, numbers and literals, as Jackson's parser of byte streams reads them."""

from __future__ import annotations

import re

from eddyline.source.conversions import BOOLEAN, FLOAT, INTEGER, OTHER

BOM = b"\xef\xbb\xbf"
DEPTH_MAX, NUMBER_MAX, NAME_MAX = 1000, 1000, 50_000  # Jackson's limits

_BLANKS = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(
    rb"-?(0(?![0-9])|[1-9][0-9]*+)(\.[0-9]++|(?!\.))((?:[eE][+-]?[0-9]++)|(?![eE]))"
)
_LITERAL = re.compile(rb"true|false|null|NaN|[+-]?Infinity|[+-]INF")
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


class MalformedError(Exception):
    """A line is malformed."""


class BadTextError(MalformedError):
    """A text is malformed; Jackson continues at `at`."""

    def __init__(self, at: int) -> None:
        self.at = at


class Scanner:
    """Reads a line at places in it."""

    _line = b""

    def _scalar(self, at: int) -> tuple[int, int]:
        """Return the kind of a number or literal, and where it ends."""
        number = _NUMBER.match(self._line, at)
        if number is not None:
            whole, fraction, exponent = number.groups()
            signs = bool(fraction) + bool(exponent)
            if len(whole + fraction + exponent) > NUMBER_MAX + signs:
                raise MalformedError
            return FLOAT if signs else INTEGER, number.end()
        literal = _LITERAL.match(self._line, at)
        if literal is None:
            raise MalformedError
        word = literal.group()
        if word in (b"true", b"false"):
            return BOOLEAN, literal.end()
        return OTHER if word == b"null" else FLOAT, literal.end()

    def _text(self, at: int, quote: int, *, skipped: bool = False) -> tuple[str, int]:
        """Return the text that ends at the next quote, and where it ends.

        Args:
            skipped: accept an encoded half of a surrogate pair, as Jackson does if it skips a text.

        Raises:
            BadTextError: it has an unknown escape, a control character, or is no UTF-8.
            MalformedError: it doesn't end.
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
                raise BadTextError(at)
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
            raise BadTextError(self._character(byte, at + 1)[1] if byte > 127 else at + 1)
        code = 0
        for place in range(at + 1, at + 5):
            digit = b"0123456789abcdef".find(bytes([self._byte(place)]).lower())
            if digit < 0:
                raise BadTextError(place + 1)
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
            raise BadTextError(at)
        for place in range(at, at + more):
            follows = self._byte(place)
            if follows & 0xC0 != 0x80:
                raise BadTextError(place + 1)
            code = code << 6 | follows & 0x3F
        if 0xD800 <= code < 0xE000 and not skipped:
            raise BadTextError(at + more)
        if more < 3:
            return chr(code), at + more
        code -= 0x10000
        return chr((0xD800 | code >> 10) & 0xFFFF) + chr(0xDC00 | code & 0x3FF), at + more

    def _byte(self, at: int) -> int:
        if at >= len(self._line):
            raise MalformedError
        return self._line[at]

    def _skip_blanks(self, at: int) -> int:
        if self._line[at : at + 1] > b" ":
            return at
        match = _BLANKS.match(self._line, at)
        return match.end() if match else at

    def _expect(self, at: int, wanted: bytes) -> int:
        if self._line[at : at + 1] != wanted:
            raise MalformedError
        return at + 1


def as_utf8(line: bytes) -> bytes:
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
