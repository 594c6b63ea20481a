"""Tokenize SQL text: split it into statements, and give a cursor over the tokens of each.

sqlglot's tokenizer knows where Spark's strings, quoted names and comments end. What a cursor returns
of a query or an expression is a slice of the text, exactly as the user wrote it.
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
    """Spark's tokens, one word each (not "PRIMARY KEY" as one), in every kind of statement."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if " " not in word
    }
    COMMANDS: ClassVar[set[TokenType]] = set()
    NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STRINGS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_WORD = re.compile(r"\w*[^\W\d]\w*")


class TokenCursor:
    """A position in the tokens of one statement, or of a part of it.

    Words are compared in upper case; quoted names match no word.

    Attributes:
        text: the whole script.
        tokens: of the statement or the part.
        whole: cursor over the whole statement.
        at: index of the next token.
    """

    def __init__(self, text: str, tokens: list[Token], whole: TokenCursor | None = None) -> None:
        self.text = text
        self.tokens = tokens
        self.whole = whole or self
        self.at = 0

    @property
    def line(self) -> int:
        """The line on which the statement starts, from 1."""
        return self.text.count("\n", 0, self.whole.tokens[0].start) + 1

    @property
    def done(self) -> bool:
        """Whether all tokens are consumed."""
        return self.at >= len(self.tokens)

    @property
    def at_string(self) -> bool:
        """Whether the next token is a string literal."""
        return self.string_follows(0)

    def string_follows(self, ahead: int) -> bool:
        """Return whether the token `ahead` of the next one is a string literal."""
        at = self.at + ahead
        return at < len(self.tokens) and self.tokens[at].token_type in _STRINGS

    @property
    def at_name(self) -> bool:
        """Whether the next token is a name, and not a keyword of SQL."""
        return not self.done and self.tokens[self.at].token_type in _NAMES

    def slice(self, start: int, end: int) -> str:
        """Return the verbatim text of the tokens from `start` up to `end`, without `end`."""
        if start >= min(end, len(self.tokens)):
            return ""
        return self.text[self.tokens[start].start : self.tokens[end - 1].end + 1]

    def word(self, ahead: int = 0) -> str:
        """Return the token `ahead` of the next one, in upper case; empty outside the statement."""
        at = self.at + ahead
        return self.slice(at, at + 1).upper() if 0 <= at < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Consume these words if all of them follow; return whether they did."""
        found = all(self.word(ahead) == word for ahead, word in enumerate(words))
        self.at += len(words) if found else 0
        return found

    def expect(self, *words: str) -> None:
        """Consume these words; raise ScriptError if they don't follow."""
        if not self.accept(*words):
            self.fail(f"{' '.join(words)} is expected {self.place()}")

    def one_of(self, *words: str) -> str:
        """Consume one of these words, and return it; raise ScriptError if none follows."""
        found = self.word()
        if found not in words:
            self.fail(f"{', '.join(words[:-1])} or {words[-1]} is expected {self.place()}")
        self.at += 1
        return found

    def name(self, what: str = "a name") -> str:
        """Consume an identifier of one part, and return it without its backquotes."""
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
        """Consume column names in brackets: `(a, b)`."""
        self.expect("(")
        names: list[str] = []
        for item in self.items(")"):
            names.append(item.name("a column name"))
            item.end()
        return tuple(names)

    def dotted(self) -> str:
        """Consume a string, or words joined by dots: `a.b.c`."""
        if self.at_string:
            return self.string()
        start = self.at
        while _WORD.fullmatch(self.slice(self.at, self.at + 1)):
            self.at += 1
            if not self.accept("."):
                return self.slice(start, self.at)
        self.fail(f"a name is expected {self.place()}")

    def literal(self) -> str:
        """Consume a number, a boolean or another single word, and return it as written."""
        value = ("-" if self.accept("-") else "") + self.slice(self.at, self.at + 1)
        if not re.fullmatch(r"-?\w[\w.]*", value):
            self.fail(f"a value is expected {self.place()}", "write it as a string: key 'value'")
        self.at += 1
        return value

    def after(self, start: int) -> TokenCursor:
        """Return a cursor over the tokens from `start` to the end."""
        return TokenCursor(self.text, self.tokens[start:], self.whole)

    def string(self) -> str:
        """Consume a string literal, and return its value; adjacent literals are one, as in Spark."""
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

    def items(self, stop: str) -> Iterator[TokenCursor]:
        """Yield a cursor over each item between commas; consume the word `stop` that ends them.

        A closing bracket must follow; the end of the statement can stand for any other `stop`.
        """
        start = self.at
        for word in self.outside_brackets(cases=stop in ("WHEN", "WHERE")):
            if word in (",", stop):
                yield self._item(start)
                start = self.at + 1
                if word == stop:
                    self.at += 1
                    return
        if stop == ")":
            self.fail("a closing bracket is missing")
        yield self._item(start)

    def before(self, word: str, what: str) -> str:
        """Consume what comes before a word, and the word; return the text before it, which must not be empty."""
        start = self.at
        for found in self.outside_brackets(cases=True):
            if found == word:
                break
        else:
            self.fail(f"{word} is expected {self.place()}")
        text = self.slice(start, self.at) or self.fail(f"{what} is missing {self.place()}")
        self.at += 1
        return text

    def outside_brackets(self, *, cases: bool) -> Iterator[str]:
        """Yield each word that is in no brackets, then consume it.

        Args:
            cases: the text is that of expressions: no word between CASE and END is yielded, nor the name of a column after a dot.
        """
        closing = list[str]()
        while not self.done:
            word, is_column = self.word(), cases and self.word(-1) == "."
            if closing and word == closing[-1] and not is_column:
                closing.pop()
            elif word == "<":
                typed = not cases or self.word(-2) == "::" or closing[-1:] == [">"]
                if typed and self.word(-1) in ("ARRAY", "MAP", "STRUCT"):
                    closing.append(">")
            elif word in _CLOSING:
                closing.append(_CLOSING[word])
            elif cases and word == "CASE" and not is_column and self.word(1) != "=":
                closing.append("END")
            elif not (closing or is_column):
                yield word
            self.at += 1

    def _item(self, start: int) -> TokenCursor:
        if start == self.at:
            self.fail(f"something is missing {self.place()}")
        return TokenCursor(self.text, self.tokens[start : self.at], self.whole)

    def rest(self, what: str) -> str:
        """Consume the rest of the statement, and return it verbatim."""
        start, self.at = self.at, len(self.tokens)
        return self.slice(start, self.at) or self.fail(f"{what} is missing")

    def end(self) -> None:
        """Raise ScriptError if tokens are left."""
        if not self.done:
            self.fail(f"the end is expected {self.place()}")

    def place(self) -> str:
        """Return the position for a message: `at FROM`."""
        return f"at {self.slice(self.at, self.at + 1) or 'the end'}"

    def fail(
        self, message: str, way_out: str = "", *, condition: str = "SCRIPT_SYNTAX"
    ) -> NoReturn:
        """Raise a ScriptError with the start of the statement and its line."""
        words = self.whole.slice(0, len(self.whole.tokens)).split()
        statement = " ".join(words[:8]) + (" ..." if len(words) > 8 else "")
        raise ScriptError(
            message, condition=condition, hint=way_out, line=self.line, statement=statement
        )

    def refuse(self, what: str, way_out: str) -> NoReturn:
        """Raise a ScriptError for a statement or clause that Eddyline doesn't support."""
        self.fail(f"{what} is not supported", way_out, condition="SCRIPT_UNSUPPORTED")


def split(text: str) -> Iterator[TokenCursor]:
    """Yield a cursor over each statement between semicolons; skip empty ones."""
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
            yield TokenCursor(text, statement)
            statement = []
    if statement:
        yield TokenCursor(text, statement)


def _open_line(text: str) -> int:
    """Return the line of the token that is still open at the end of the text."""
    lines = text.split("\n")
    tokenizer = _Tokenizer(dialect="spark")
    for count in range(len(lines) - 1, 0, -1):
        try:
            tokenizer.tokenize("\n".join(lines[:count]))
        except TokenError:
            continue
        return count + 1
    return 1
