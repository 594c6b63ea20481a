"""Reading SQL text: statements cut at semicolons, and a cursor over the tokens of each.

sqlglot's tokenizer knows where Spark's strings, quoted names and comments end. Everything taken from a
text is a slice of it, so that what is handed on is what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, NoReturn

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from eddyline.errors import ScriptError


class _Tokenizer(Spark.Tokenizer):
    """Spark's tokens, one word each (no "PRIMARY KEY"), and no statement taken as opaque text."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if " " not in word
    }
    COMMANDS: ClassVar[set[TokenType]] = set()
    NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}


_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_STRINGS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_WORD = re.compile(r"\w*[^\W\d]\w*")


class Cursor:
    """A place in the tokens of one statement, or of a part of it (`whole` is the statement).

    Words compare in upper case; quoted ones never match.
    """

    def __init__(self, text: str, tokens: list[Token], whole: Cursor | None = None) -> None:
        self.text = text
        self.tokens = tokens
        self.whole = whole or self
        self.at = 0

    @property
    def line(self) -> int:
        """The line on which the statement starts."""
        return self.text.count("\n", 0, self.whole.tokens[0].start) + 1

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.tokens)

    @property
    def at_string(self) -> bool:
        """Whether a string literal follows."""
        return not self.done and self.tokens[self.at].token_type in _STRINGS

    @property
    def at_name(self) -> bool:
        """Whether a name follows that is no word of SQL."""
        return not self.done and self.tokens[self.at].token_type in _NAMES

    def slice(self, start: int, end: int) -> str:
        """The verbatim text of the tokens from `start` up to `end`."""
        if start >= min(end, len(self.tokens)):
            return ""
        return self.text[self.tokens[start].start : self.tokens[end - 1].end + 1]

    def word(self, ahead: int = 0) -> str:
        """The token `ahead` of this place, upper case; empty outside the statement."""
        at = self.at + ahead
        return self.slice(at, at + 1).upper() if 0 <= at < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Step over these words if all of them follow."""
        found = all(self.word(ahead) == word for ahead, word in enumerate(words))
        self.at += len(words) if found else 0
        return found

    def expect(self, *words: str) -> None:
        """Step over these words, which must follow."""
        if not self.accept(*words):
            self.fail(f"{' '.join(words)} is expected {self.place()}")

    def one_of(self, *words: str) -> str:
        """Step over one of these words, and return it."""
        found = self.word()
        if found not in words:
            self.fail(f"{', '.join(words[:-1])} or {words[-1]} is expected {self.place()}")
        self.at += 1
        return found

    def name(self, what: str = "a name") -> str:
        """An identifier of one part, without its backquotes."""
        raw = self.slice(self.at, self.at + 1)
        if raw.startswith("`"):
            name = raw[1:-1].replace("``", "`")
        elif _WORD.fullmatch(raw):
            name = raw
        else:
            way_out = "quote special names with backquotes: `a b`" if raw else ""
            self.fail(f"{what} is expected {self.place()}", way_out)
        self.at += 1
        if self.word() == ".":
            self.fail(f"{what} has more than one part", "give a name without dots")
        return name

    def names(self) -> tuple[str, ...]:
        """Column names in brackets: `(a, b)`."""
        self.expect("(")
        names: list[str] = []
        for item in self.items(")"):
            names.append(item.name("a column name"))
            item.end()
        return tuple(names)

    def dotted(self) -> str:
        """A word or a string, or words joined by dots: `a.b.c`."""
        if self.at_string:
            return self.string()
        start = self.at
        while _WORD.fullmatch(self.slice(self.at, self.at + 1)):
            self.at += 1
            if not self.accept("."):
                return self.slice(start, self.at)
        self.fail(f"a name is expected {self.place()}")

    def literal(self) -> str:
        """A number, a boolean or another single word, as it is written."""
        value = ("-" if self.accept("-") else "") + self.slice(self.at, self.at + 1)
        if not re.fullmatch(r"-?\w[\w.]*", value):
            self.fail(f"a value is expected {self.place()}", "write it as a string: key 'value'")
        self.at += 1
        return value

    def string(self) -> str:
        """A string literal, quotes and escapes taken off; neighbours are one string, as in Spark."""
        value, last = "", None
        while self.at_string:
            token = self.tokens[self.at]
            quote = self.text[token.start]
            doubled = token.start - 1 == last and self.text[token.start - 1] == quote
            value += (quote if doubled else "") + token.text
            last = token.end
            self.at += 1
        if last is None:
            self.fail(f"a string is expected {self.place()}")
        return value

    def items(self, stop: str) -> Iterator[Cursor]:
        """The items between commas, up to the word `stop` outside all brackets, which is passed.

        A closing bracket must be found; for any other word the end of the text can stand.
        """
        start, open_brackets = self.at, list[str]()
        while not self.done:
            word = self.word()
            if open_brackets and word == open_brackets[-1]:
                open_brackets.pop()
            elif not open_brackets and word in (",", stop):
                yield self._item(start)
                start = self.at + 1
                if word == stop:
                    self.at += 1
                    return
            elif word in _CLOSING and (word != "<" or self.word(-1) in ("ARRAY", "MAP", "STRUCT")):
                open_brackets.append(_CLOSING[word])
            self.at += 1
        if stop == ")":
            self.fail("a closing bracket is missing")
        yield self._item(start)

    def _item(self, start: int) -> Cursor:
        if start == self.at:
            self.fail(f"something is missing {self.place()}")
        return Cursor(self.text, self.tokens[start : self.at], self.whole)

    def rest(self, what: str) -> str:
        """The verbatim text from here to the end of the statement."""
        start, self.at = self.at, len(self.tokens)
        return self.slice(start, self.at) or self.fail(f"{what} is missing")

    def end(self) -> None:
        """Refuse what is left over."""
        if not self.done:
            self.fail(f"the end is expected {self.place()}")

    def place(self) -> str:
        """Where this place is, for a message."""
        return f"at {self.slice(self.at, self.at + 1) or 'the end'}"

    def fail(self, message: str, way_out: str = "", condition: str = "SCRIPT_SYNTAX") -> NoReturn:
        """Raise a ScriptError that shows the statement and its line."""
        words = self.whole.slice(0, len(self.whole.tokens)).split()
        statement = " ".join(words[:8]) + (" ..." if len(words) > 8 else "")
        raise ScriptError(
            message, condition=condition, hint=way_out, line=self.line, statement=statement
        )

    def refuse(self, what: str, way_out: str) -> NoReturn:
        """Raise a ScriptError for something readable that Eddyline doesn't do."""
        self.fail(f"{what} is not supported", way_out, "SCRIPT_UNSUPPORTED")


def split(text: str) -> Iterator[Cursor]:
    """Cursors over the statements between semicolons; empty ones are left out."""
    try:
        tokens = _Tokenizer(dialect="spark").tokenize(text)
    except TokenError as error:
        raise ScriptError(
            "a string, a quoted name or a comment is not closed",
            condition="SCRIPT_SYNTAX",
            line=_open_line(text),
        ) from error
    statement: list[Token] = []
    for token in tokens:
        if token.token_type is not TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield Cursor(text, statement)
            statement = []
    if statement:
        yield Cursor(text, statement)


def _open_line(text: str) -> int:
    """The line on which the token starts that is still open at the end of the text."""
    lines = text.split("\n")
    tokenizer = _Tokenizer(dialect="spark")
    for count in range(len(lines) - 1, 0, -1):
        try:
            tokenizer.tokenize("\n".join(lines[:count]))
        except TokenError:
            continue
        return count + 1
    return 1
