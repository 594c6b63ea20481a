"""Malformed lines, read token by token as Spark does with Jackson's parser.

Spark catches an error within the value of a column and asks the parser for its next token, at the
position where the error left it. So Spark may find the values that follow, or take those of an inner object for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eddyline.source.conversions import FLOAT, OTHER, TEXT, Convert, Token, is_null
from eddyline.source.scanner import DEPTH_MAX, NAME_MAX, BadTextError, MalformedError, Scanner

_OPENING, _CLOSING = "{[", {"}": "{", "]": "["}
_NAME, _TEXT, _SCALAR = "name", "text", "scalar"
_DIGITS = re.compile(rb"[0-9]+")
_WORDS = {word[0]: word for word in (b"true", b"false", b"null", b"NaN", b"Infinity")}
_LETTERS = re.compile(rb"[A-Za-z0-9_$\x00-\x08\x0e-\x1b\x7f]*")
_INFINITE = {b"IN": b"INF", b"In": b"Infinity"}  # behind a sign
_STARTS = re.compile(rb"[A-Za-z_$\xa2-\xff]")


@dataclass(slots=True)
class _Context:
    """An object or array that is open; or the line itself, which has no kind."""

    kind: str
    name: str | None = None
    entries: int = 0


class TokenReader(Scanner):
    """Reads the rows of a line."""

    def __init__(
        self, line: bytes, places: Mapping[str, int], converters: Sequence[Convert]
    ) -> None:
        self._line = line
        self._places, self._converters = places, converters
        self._contexts = [_Context("")]
        self._at = self._start = 0
        self._token: str | None = None
        self._ahead: str | None = None  # the value that follows the name
        self._unread = False  # whether the text of the token is still to be read
        self._text_read = ""
        self._kind = OTHER  # of a number or literal

    def rows(self) -> list[list[Any]]:
        """Return the rows of the line."""
        try:
            match self._next():
                case "{":
                    return [self._object()]
                case "[":
                    return self._objects()
        except MalformedError:
            pass
        return [[None] * len(self._converters)]

    def _objects(self) -> list[list[Any]]:
        found = []
        while self._next() not in (None, "]"):
            while self._token == _NAME:
                self._next()
            if self._token != "{":
                raise MalformedError
            found.append(self._object())
        return found

    def _object(self) -> list[Any]:
        row: list[Any] = [None] * len(self._converters)
        while self._next() not in (None, "}"):
            name = self._name_of_token()
            place = None if name is None else self._places.get(name)
            if place is None:
                self._skip_children()
                continue
            try:
                row[place] = self._value(place)
            except (MalformedError, ValueError):
                self._skip_children()
        return row

    def _name_of_token(self) -> str | None:
        opened = self._token is not None and self._token in _OPENING
        return self._contexts[-2 if opened else -1].name

    def _value(self, place: int) -> Any:
        """Return the value of a column; MalformedError or ValueError if it has none."""
        while self._token == _NAME:
            self._next()
        if self._token is None:
            return None
        if self._token == _TEXT:
            return self._converters[place](Token(TEXT, self._whole_text()))
        if self._token == _SCALAR:
            token = Token(self._kind, self._written())
            return None if is_null(token) else self._converters[place](token)
        self._converters[place](Token(OTHER, ""))  # ValueError unless it is a text
        start = self._start
        self._skip_children()
        return self._line[start : self._at].decode(errors="replace")

    def _written(self) -> str:
        return self._line[self._start : self._at].decode(errors="replace")

    def _skip_children(self) -> None:
        if self._token is None or self._token not in _OPENING:
            return
        opened = 1
        while opened:
            token = self._next()
            if token is None:
                return
            opened += (token in _OPENING) - (token in _CLOSING)

    def _next(self) -> str | None:
        """Return the next token: a bracket, or one of the kinds above; None after the last one."""
        if self._token == _NAME:
            token, self._ahead = self._ahead, None
            return self._take(token)
        if self._unread:
            self._whole_text(skipped=True)
        self._at = self._skip_blanks(self._at)
        if self._at == len(self._line):
            if len(self._contexts) > 1:
                raise MalformedError
            self._token = None
            return None
        char = self._char()
        self._start = self._at - 1
        if char in _CLOSING:
            if self._contexts[-1].kind != _CLOSING[char]:
                raise MalformedError
            self._contexts.pop()
            self._token = char
            return char
        context = self._contexts[-1]
        context.entries += 1
        if context.kind and context.entries > 1:
            if char != ",":
                raise MalformedError
            char = self._after_blanks()
        if context.kind != "{":
            return self._take(self._begin(char))
        context.name = self._read_name(char)
        self._token = _NAME
        if self._after_blanks() != ":":
            raise MalformedError
        self._ahead = self._begin(self._after_blanks())
        return _NAME

    def _take(self, token: str | None) -> str | None:
        if token is not None and token in _OPENING:
            self._contexts.append(_Context(token))
            if len(self._contexts) - 1 > DEPTH_MAX:
                raise MalformedError
        self._token = token
        return token

    def _char(self) -> str:
        char = chr(self._byte(self._at))
        self._at += 1
        return char

    def _after_blanks(self) -> str:
        self._at = self._skip_blanks(self._at)
        return self._char()

    def _read_name(self, quote: str) -> str:
        if quote not in "\"'":
            if ord(quote) > 127:
                self._skip_character(ord(quote))
            raise MalformedError
        begin = self._at
        name = self._read_text(begin, ord(quote))
        if self._at - begin - 1 > NAME_MAX:
            raise MalformedError
        return name

    def _skip_character(self, byte: int) -> None:
        try:
            self._at = self._character(byte, self._at)[1]
        except BadTextError as error:
            self._at = error.at

    def _read_text(self, at: int, quote: int, *, skipped: bool = False) -> str:
        try:
            text, self._at = self._text(at, quote, skipped=skipped)
        except BadTextError as error:
            self._at = error.at
            raise
        except MalformedError:
            self._at = len(self._line)
            raise
        return text

    def _whole_text(self, *, skipped: bool = False) -> str:
        if self._unread:
            self._unread = False
            self._text_read = self._read_text(self._at, 34, skipped=skipped)
        return self._text_read

    def _begin(self, char: str) -> str:
        """Return the kind of the value that begins with a character; texts are read later."""
        self._start = self._at - 1
        if char in _OPENING:
            return char
        if char == '"':
            self._unread = True
            return _TEXT
        if char == "'":
            self._text_read = self._read_text(self._at, 39)
            return _TEXT
        try:
            self._kind, self._at = self._scalar(self._start)
        except MalformedError:
            self._at = self._end_of_invalid_value(char)
            raise
        if self._kind in (FLOAT, OTHER) or char in "tf":
            self._check_word_end()
        return _SCALAR

    def _check_word_end(self) -> None:
        """Raise MalformedError if letters follow a literal."""
        if not self._line[self._at - 1 : self._at].isalpha():
            return
        letters = _LETTERS.match(self._line, self._at)
        if letters is not None and letters.group():
            self._at = self._end_of_letters(self._at)
            raise MalformedError

    def _end_of_letters(self, at: int) -> int:
        """Return the position after the letters, and after the one other character that follows them."""
        while at < len(self._line):
            byte, at = self._line[at], at + 1
            if byte < 128:
                letter = _LETTERS.fullmatch(self._line, at - 1, at) is not None
            else:
                try:
                    char, at = self._character(byte, at)
                except BadTextError as error:
                    return error.at
                letter = f"a{char}".isidentifier()
            if not letter:
                return at
        return at

    def _end_of_invalid_value(self, char: str) -> int:
        """Return the position at which Jackson continues after an invalid value."""
        at = self._at
        if char in "-0123456789":
            return self._end_of_number(char)
        if char == "+":
            return self._end_of_sign(at)
        word = _WORDS.get(ord(char)) if ord(char) < 128 else None
        if word is not None:
            at = self._end_of_common_start(self._start, word)
        elif not _STARTS.match(self._line, self._start):
            return at
        return self._end_of_letters(at)

    def _end_of_sign(self, at: int) -> int:
        """Return the position at which Jackson continues after a sign without a number."""
        word = _INFINITE.get(self._line[at : at + 2])
        if word is None:
            return min(at + (2 if self._line[at : at + 1] == b"I" else 1), len(self._line))
        return self._end_of_letters(self._end_of_common_start(at, word))

    def _end_of_common_start(self, at: int, word: bytes) -> int:
        """Return the position after the longest common start of the word and the line at `at`."""
        for letter in word:
            if self._line[at : at + 1] != bytes([letter]):
                break
            at += 1
        return at

    def _end_of_number(self, char: str) -> int:
        at, size = self._at, len(self._line)
        if char == "-":
            if not _DIGITS.match(self._line, at):
                return self._end_of_sign(at)
            char, at = chr(self._line[at]), at + 1
        if char == "0" and _DIGITS.match(self._line, at):
            return at
        for mark in (b".", b"eE"):
            digits = _DIGITS.match(self._line, at)
            at = digits.end() if digits else at
            if self._line[at : at + 1] and self._line[at] in mark:
                at += 1
                if mark == b"eE" and self._line[at : at + 1] in (b"+", b"-"):
                    at += 1
                if not _DIGITS.match(self._line, at):
                    return min(at + 1, size)
        digits = _DIGITS.match(self._line, at)
        return digits.end() if digits else at
