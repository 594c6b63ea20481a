"""Single lines of JSON, read exactly as Spark's reader reads them in the mode PERMISSIVE.

Spark reads JSON by Jackson's parser of byte streams. What is odd about it: only the first value of a
line counts; an array is as many rows as it has objects; single quotes and `NaN` are accepted. A malformed
line is read again by `recovery.TokenReader`. A document of a queue is read by the same parser, which then
refuses whatever Spark would make null.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from eddyline.source.conversions import OTHER, TEXT, Token, converter, is_null
from eddyline.source.recovery import TokenReader
from eddyline.source.scanner import (
    DEPTH_MAX,
    NAME_MAX,
    NUMBER_MAX,
    MalformedError,
    Scanner,
    as_utf8,
)

_CLOSING = {b"{": b"}", b"[": b"]"}
_QUICK = re.compile(rb'"[^"\\\x00-\x1f\x80-\xff]*"')  # a text that needs no check
_MEMBER = re.compile(
    rb'"([^"\\\x00-\x1f\x80-\xff]*)"[ \t\r\n]*:[ \t\r\n]*'
)  # a name that needs no check


class _MisfitError(Exception):
    """A value of a document doesn't fit its column."""


class LineParser(Scanner):
    """Reads lines as rows of the columns of a schema."""

    def __init__(self, schema: pa.Schema, zone: str) -> None:
        """Read rows of a schema.

        Args:
            zone: time zone of timestamps without an offset.
        """
        self._schema = schema
        self._width = len(schema)
        self._places = {name: place for place, name in enumerate(schema.names)}
        self._converters = [converter(field.type, zone) for field in schema]
        self._types = [field.type if pa.types.is_nested(field.type) else None for field in schema]
        self._line = b""
        self._strict = False

    def rows(self, line: bytes) -> list[list[Any]]:
        """Return the rows of a line; a value that doesn't fit its column is null."""
        self._line, self._strict = as_utf8(line), False
        at = self._skip_blanks(0)
        if at == len(self._line):
            return []
        try:
            if self._line[at : at + 1] == b"{":
                return [self._object(at + 1, 1)[0]]
            if self._line[at : at + 1] == b"[":
                return self._array_of_rows(at + 1)
        except MalformedError:
            pass
        return TokenReader(self._line, self._places, self._converters).rows()

    def document(self, line: bytes) -> list[Any]:
        """Return the row of a line.

        Raises:
            ValueError: it is not exactly one object, or names the first value that doesn't fit its column.
        """
        self._line, self._strict = as_utf8(line), True
        at = self._skip_blanks(0)
        try:
            row, end = self._object(self._expect(at, b"{"), 1)
        except MalformedError:
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
        """Return the row of the object whose brace is just before `at`, and the position after the object."""
        row: list[Any] = [None] * self._width
        at, first = self._skip_blanks(at), True
        while self._line[at : at + 1] != b"}":
            name, at = self._name(at if first else self._skip_blanks(self._expect(at, b",")))
            first = False
            place = self._places.get(name)
            if place is None:
                at = self._skip_value(at, depth)
            else:
                at = self._column(row, place, at, depth)
            at = self._skip_blanks(at)
        return row, at + 1

    def _name(self, at: int) -> tuple[str, int]:
        """Return the name of a member, and where its value begins."""
        plain = _MEMBER.match(self._line, at)
        if plain is not None and len(plain[1]) <= NAME_MAX:
            return plain[1].decode(), plain.end()
        quote = self._line[at : at + 1]
        if quote not in (b'"', b"'"):
            raise MalformedError
        name, end = self._text(at + 1, quote[0])
        if end - at - 2 > NAME_MAX:
            raise MalformedError
        colon = self._skip_blanks(end)
        if self._line[colon : colon + 1] != b":":
            raise MalformedError
        return name, self._skip_blanks(colon + 1)

    def _column(self, row: list[Any], place: int, at: int, depth: int) -> int:
        """Set a column unless its value can't be converted; return the position after the value."""
        token, end = self._token(at, depth, self._types[place])
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
        """
        first = self._line[at : at + 1]
        if first in (b'"', b"'"):
            text, end = self._text(at + 1, first[0])
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
            raise MalformedError
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
            return quick.end() if quick else self._text(at + 1, 34, skipped=True)[1]
        if first == b"'":
            return self._text(at + 1, 39)[1]
        if first in _CLOSING:
            return self._skip_container(at, depth)
        return self._scalar(at)[1]

    def _skip_container(self, at: int, depth: int) -> int:
        """Return where an array or an object ends."""
        opened: list[bytes] = []
        first = True
        while True:
            if first:  # of a container that begins here
                opened.append(self._line[at : at + 1])
                if depth + len(opened) > DEPTH_MAX:
                    raise MalformedError
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
                at = self._skip_value(at, depth)


def _inner(kind: pa.DataType, name: str) -> pa.DataType | None:
    """Return the type of what a value of a type has under a name, if that type has inner types."""
    if pa.types.is_struct(kind):
        place = kind.get_field_index(name)
        inner = None if place < 0 else kind[place].type
    else:
        inner = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return inner if inner is not None and pa.types.is_nested(inner) else None


def _fault(line: bytes) -> ValueError:
    """Return the reason why a line isn't a single object, with the message of Python's parser if it fails too."""
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
