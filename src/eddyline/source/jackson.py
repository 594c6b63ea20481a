"""Single lines of JSON, read exactly as Spark's reader reads them in the mode PERMISSIVE.

Spark reads JSON by Jackson's parser of byte streams. What is odd about it: only the first value of a
line counts; an array is as many rows as it has objects; single quotes and `NaN` are accepted; an error
in the text of a wanted column makes only this column null; any other error makes the whole row null.
A document of a queue is read by the same parser, which then refuses whatever Spark would make null.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from eddyline.source.conversions import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    OTHER,
    TEXT,
    Token,
    converter,
    is_null,
)

BOM = b"\xef\xbb\xbf"
DEPTH_MAX, NUMBER_MAX, NAME_MAX = 1000, 1000, 50_000  # Jackson's limits

_BLANKS = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_QUICK = re.compile(rb'"[^"\\\x00-\x1f\x80-\xff]*"')  # a text that needs no check
_MEMBER = re.compile(
    rb'"([^"\\\x00-\x1f\x80-\xff]*)"[ \t\r\n]*:[ \t\r\n]*'
)  # a name that needs no check
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


class _MalformedError(Exception):
    """The whole record is malformed."""


class _BadMemberError(_MalformedError):
    """What follows the name of a member is malformed."""


class _BadTextError(Exception):
    """A text is malformed; the parser goes on at `at`."""

    def __init__(self, at: int) -> None:
        self.at = at


class _MisfitError(Exception):
    """A value of a document doesn't fit its column."""


class LineParser:
    """Reads lines as rows of the columns of a schema."""

    def __init__(self, schema: pa.Schema, zone: str) -> None:
        """Read rows of a schema.

        Args:
            zone: time zone of timestamps without an offset.
        """
        self._schema = schema
        self._width = len(schema)
        self._places = {name: place for place, name in enumerate(schema.names)}
        self._texts = {place for place, field in enumerate(schema) if field.type == pa.string()}
        self._converters = [converter(field.type, zone) for field in schema]
        self._types = [field.type if pa.types.is_nested(field.type) else None for field in schema]
        self._line = b""
        self._strict = False

    def rows(self, line: bytes) -> list[list[Any]]:
        """Return the rows of a line; a value that doesn't fit its column is null."""
        self._line, self._strict = _as_utf8(line), False
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

    def document(self, line: bytes) -> list[Any]:
        """Return the row of a line.

        Raises:
            ValueError: it is not exactly one object, or names the first value that doesn't fit its column.
        """
        self._line, self._strict = _as_utf8(line), True
        at = self._skip_blanks(0)
        try:
            row, end = self._object(self._expect(at, b"{"), 1)
        except _MalformedError:
            raise _fault(self._line) from None
        except _MisfitError as error:
            raise ValueError(*error.args) from None
        if self._skip_blanks(end) < len(self._line):
            before = self._line[:end].decode(errors="replace")
            after = self._line[end:].decode(errors="replace")
            raise json.JSONDecodeError("Extra data", before + after, len(before))
        return row

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
                    if self._strict or depth > 1 or place not in self._texts:
                        raise
                    return row, len(self._line)  # Spark ends the record here
            at = self._skip_blanks(at)
        return row, at + 1

    def _name(self, at: int) -> tuple[str, int]:
        """Return the name of a member, and where its value begins."""
        plain = _MEMBER.match(self._line, at)
        if plain is not None and len(plain[1]) <= NAME_MAX:
            return plain[1].decode(), plain.end()
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
        try:
            token, end = self._token(at, depth, self._types[place])
        except _BadTextError as error:
            if self._strict:
                raise _MalformedError from None
            return error.at
        if is_null(token):
            row[place] = None
            return end
        try:
            row[place] = self._converters[place](token)
        except ValueError:  # then an earlier member of this name counts
            if self._strict:
                column = self._schema[place]
                shown = self._line[at:end].decode()
                raise _MisfitError(f"{column.name} is {shown}, no {column.type}") from None
        return end

    def _token(self, at: int, depth: int, kind: pa.DataType | None) -> tuple[Token, int]:
        """Return a value and where it ends.

        Args:
            kind: its type, if that has inner types: the values in it are read, too.

        Raises:
            _BadTextError: it is a malformed text in double quotes.
        """
        first = self._line[at : at + 1]
        if first == b'"':
            text, end = self._text(at + 1, 34)
            return Token(TEXT, text), end
        if first == b"'":
            text, end = self._checked_text(at)
            return Token(TEXT, text), end
        if first in _CLOSING:
            parts: list[tuple[str, Token]] = []
            if kind is not None and first == (b"[" if pa.types.is_list(kind) else b"{"):
                parts, end = self._parts(at, depth + 1, kind)
            else:
                end = self._skip_container(at, depth)
            return Token(OTHER, self._line[at:end].decode(errors="replace"), parts), end
        scalar, end = self._scalar(at)
        return Token(scalar, self._line[at:end].decode()), end

    def _parts(self, at: int, depth: int, kind: pa.DataType) -> tuple[list[tuple[str, Token]], int]:
        """Return the names and values in an array or object, and where it ends."""
        closing = _CLOSING[self._line[at : at + 1]]
        if depth > DEPTH_MAX:
            raise _MalformedError
        parts: list[tuple[str, Token]] = []
        at, name = self._skip_blanks(at + 1), ""
        while self._line[at : at + 1] != closing:
            if parts:
                at = self._skip_blanks(self._expect(at, b","))
            if closing == b"}":
                name, at = self._name(at)
            token, at = self._token(at, depth, _inner(kind, name))
            parts.append((name, token))
            at = self._skip_blanks(at)
        return parts, at + 1

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
        if self._line[at : at + 1] > b" ":
            return at
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


def _inner(kind: pa.DataType, name: str) -> pa.DataType | None:
    """Return the type of what a value of a type has under a name, if that type has inner types."""
    if pa.types.is_struct(kind):
        place = kind.get_field_index(name)
        inner = None if place < 0 else kind[place].type
    else:
        inner = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return inner if inner is not None and pa.types.is_nested(inner) else None


def _fault(line: bytes) -> ValueError:
    """Return why a line is no single object, in the words of Python's parser if it refuses it too."""
    try:
        value = json.loads(line.decode())
    except ValueError as error:
        return error
    except RecursionError:
        value = {}
    if not isinstance(value, dict):
        return ValueError(f"a JSON object is wanted, not {line.decode().strip()[:20]}")
    return ValueError(
        f"it is beyond a limit: {NUMBER_MAX} digits, {NAME_MAX} bytes of a name, {DEPTH_MAX} levels"
    )
