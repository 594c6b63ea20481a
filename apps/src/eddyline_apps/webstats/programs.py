"""Which user agents are those of programs: words, and the list crawler-user-agents, as one condition in SQL.

The list has names of known programs, the words find unknown ones, too. What the words find anyway is left out of the
list's patterns, and texts are put together by their common beginnings: Java's matcher tries one alternative after the
other at each letter, so that it takes twenty times as long for the list as it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

WORDS = (
    "bot", "crawl", "spider", "scrap", "fetch", "archive", "monitor", "check", "scan", "probe", "feed", "rss",
    "validat", "python", "perl", "java/", "php", "ruby", "node", "httpclient", "http-client", "headless", "google-",
    "yandex", "search", "seo", "audit", "curl", "wget", "http://", "https://", "www.", "@",
)  # fmt: skip
"""What programs call themselves, in any case of letters; and addresses of pages and of mail."""
SHAPES = (r"\.com\b", r"^[^ /]+/?[\w.]*$")
"""One more address; and a bare name, without the `Mozilla/5.0 (...)` of browsers."""

_END = ""  # in a trie: a text ends here
Trie: TypeAlias = "dict[str, Trie]"
_TOKEN = re.compile(
    r"\\(?P<escaped>[^A-Za-z0-9])|\[(?P<letters>[A-Za-z]+)\]|\((?P<texts>[\w ]+(?:\|[\w ]+)+)\)"
    r"|(?P<plain>[^\\^$*+?()\[\]{}|.])"
)


def is_program(lowered: str, agent: str) -> str:
    """Return the SQL condition that a user agent is one of a program.

    Args:
        lowered: an SQL expression for the user agent in lower case; empty for a missing one.
        agent: the same as it was sent.
    """
    return (
        f"(regexp_like({lowered}, r'{words()}')\n"
        f"    OR regexp_like({agent}, r'{listed(known_patterns())}'))"
    )


def words() -> str:
    """Return the words and shapes as a regular expression of Java, for user agents in lower case."""
    return "|".join([*_alternatives(_trie(WORDS)), *SHAPES])


def known_patterns() -> list[str]:
    """Return the patterns of the installed list."""
    from crawleruseragents import CRAWLER_USER_AGENTS_DATA  # reads a file

    return [str(one["pattern"]) for one in CRAWLER_USER_AGENTS_DATA]


def listed(patterns: Iterable[str]) -> str:
    r"""Return a regular expression of Java that, together with `WORDS`, matches what the patterns match.

    Texts must begin at the beginning of a word. Patterns that may need more than linear time are left out.

    Example:
        >>> listed(["Owler", "Ow\\/", "SomeBot", "^BW\\/", "Rabbit.*x", "[cC]ludo"])
        '\\b(?:Cludo|Ow(?:/|ler)|cludo)|^(?:BW/)'
    """
    begun: dict[str, list[str]] = {r"\b": [], "^": [], "": []}
    others = []
    for pattern in patterns:
        for part in re.split(r"(?<!\\)\|(?![^(]*\))", pattern):
            text = part.removeprefix("^")
            found, end = _texts(text)
            found = [one for one in found if not any(word in one.lower() for word in WORDS)]
            if end == len(text):
                for one in found:
                    begun["^" if text != part else r"\b" if one[0].isalnum() else ""].append(one)
            elif found and not re.search(r"[*+{]", part):
                others.append(part.replace("'", r"\x27"))
    tries = {begin: "|".join(_alternatives(_trie(texts))) for begin, texts in begun.items()}
    return "|".join([*(f"{begin}(?:{trie})" for begin, trie in tries.items() if trie), *others])


def _texts(pattern: str) -> tuple[list[str], int]:
    """Return the texts that the beginning of a pattern without alternatives matches, and how long it is."""
    choices: list[list[str]] = []
    end = 0
    while token := _TOKEN.match(pattern, end):
        if re.match(r"[*+?{]", pattern[token.end() :]):
            break
        end = token.end()
        escaped, letters, texts, plain = token.group("escaped", "letters", "texts", "plain")
        choices.append(list(letters) if letters else (texts or escaped or plain).split("|"))
    return ["".join(one) for one in itertools.product(*choices)], end


def _trie(texts: Iterable[str]) -> Trie:
    """Return texts as a tree of letters, without those that another one begins."""
    trie: Trie = {}
    for text in sorted(texts, key=len):
        here = trie
        for letter in text:
            if _END in here:
                break
            here = here.setdefault(letter, {})
        here[_END] = {}
    return trie


def _alternatives(trie: Trie) -> Iterator[str]:
    for letter, rest in sorted(trie.items()):
        if letter != _END:
            yield _escaped(letter) + _rest(rest)


def _rest(trie: Trie) -> str:
    if _END in trie:
        return ""
    found = list(_alternatives(trie))
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _escaped(letter: str) -> str:
    plain = letter.isascii() and (letter.isalnum() or letter in ' /-_,;:!=<>@&%~"')
    return letter if plain else rf"\x{{{ord(letter):x}}}"
