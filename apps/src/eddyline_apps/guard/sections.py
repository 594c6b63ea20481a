"""Sections of a configuration in YAML, whose values are checked as they are read."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from eddyline.errors import ScriptError, missing_package
from eddyline_apps.guard.tables import Network, network_of

DAY_S = 86_400
_UNITS = {"s": 1, "min": 60, "h": 3600, "day": DAY_S}
NO_LIMIT = 1e15


def read_file(path: Path) -> Section:
    """Read a file of YAML, whose top is a mapping.

    Raises:
        ScriptError: BAD_CONFIG: it can't be read, or has a key twice.
        EngineError: MISSING_PACKAGE.
    """
    try:
        yaml = importlib.import_module("yaml")  # without stubs
    except ImportError as error:
        raise missing_package("the configuration of the guard", "pyyaml", "pipelines") from error
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        _check_keys(path, "", node, set())
        document = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise ScriptError(
            f"{path} can't be read: it nests too deeply",
            condition="BAD_CONFIG",
            hint="see docs/guard.md on what a configuration holds",
        ) from None
    except OSError as error:
        raise ScriptError(
            f"the configuration can't be read: {error}",
            condition="BAD_CONFIG",
            hint="give the path of a file in YAML with rules, such as the example of docs/guard.md",
        ) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScriptError(
            f"{path} can't be read: {error}",
            condition="BAD_CONFIG",
            hint="write it as YAML in UTF-8: mend it at that place, see the example of docs/guard.md",
        ) from error
    if node is None:
        raise wrong(path, "the file", "it is empty", "write rules, such as those of docs/guard.md")
    return Section(path, "", document)


def _check_keys(path: Path, place: str, node: Any, checked: set[int]) -> None:
    """Refuse keys that are given twice, of which YAML keeps the last, and those that it doesn't read as text."""
    if node is None or id(node) in checked:  # a file without anything; what an alias repeats
        return
    checked.add(id(node))
    if node.id == "sequence":
        for number, one in enumerate(node.value):
            _check_keys(path, f"{place}[{number}]", one, checked)
    if node.id != "mapping":
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if key.id != "scalar":
            continue
        where = f"{place}.{key.value}" if place else key.value
        kind = key.tag.rpartition(":")[2]
        line = key.start_mark.line + 1
        if kind not in ("str", "merge"):
            raise wrong(path, where, f"YAML reads this name in line {line} as {kind}, not as text", f'write it in quotes: "{key.value}"')  # fmt: skip
        if key.value in lines:
            raise wrong(path, where, f"it is given twice, in line {lines[key.value]} and in line {line}", "give each setting, and the name of each rule, once")  # fmt: skip
        lines[key.value] = line
        _check_keys(path, where, value, checked)


def wrong(path: Path, where: str, what: str, way_out: str) -> ScriptError:
    """Return the error for a place of a configuration."""
    return ScriptError(f"{path}: {where}: {what}", condition="BAD_CONFIG", hint=way_out)


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping of the file. Its methods raise ScriptError that names the file and the place."""

    path: Path
    place: str
    values: Any

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict) or not all(isinstance(k, str) for k in self.values):
            raise self.wrong("", "it isn't a mapping of names to values", "see docs/guard.md")

    def wrong(self, name: str, what: str, way_out: str) -> ScriptError:
        where = ".".join(part for part in (self.place, name) if part) or "the file"
        return wrong(self.path, where, what, way_out)

    def missing(self, name: str, way_out: str) -> ScriptError:
        return self.wrong(name, "it is missing", way_out)

    def known(self, *names: str) -> None:
        for name in self.values:
            if name not in names:
                raise self.wrong(name, "there is no such setting", f"known are {', '.join(names)}")

    def section(self, name: str) -> Section:
        where = f"{self.place}.{name}" if self.place else name
        return Section(self.path, where, self.values.get(name, {}))

    def sections(self, name: str) -> list[Section]:
        return [
            Section(self.path, f"{name}[{place}]", one)
            for place, one in enumerate(self._list(name))
        ]

    def networks(self, name: str) -> list[Network]:
        return [self._network(name, one) for one in self._list(name)]

    def _network(self, name: str, value: object) -> Network:
        try:
            return network_of(str(value))
        except ValueError as error:
            raise self.wrong(name, str(error), "write it like 192.0.2.0/24") from None

    def _list(self, name: str) -> Sequence[object]:
        found = self.values.get(name) or []
        if not isinstance(found, list):
            raise self.wrong(name, "it isn't a list", "write one entry a line, after a dash")
        return found

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.values.get(name)
        if value is None:
            raise self.missing(name, f"give one of {', '.join(allowed)}")
        if value not in allowed:
            raise self.wrong(name, f"{value!r} isn't allowed", f"give one of {', '.join(allowed)}")
        return str(value)

    def text(self, name: str) -> str | None:
        """Return a value as text, `true` and `false` as sinks spell them; None if it isn't given."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, (list, dict)) or not str(value) or "\n" in str(value):
            raise self.wrong(name, "it isn't a line of text", "give one value")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def texts(self, name: str) -> list[str]:
        """Return a text, or the texts of a list."""
        value = self.values.get(name)
        if not isinstance(value, list):
            text = self.text(name)
            return [] if text is None else [text]
        found = [Section(self.path, self.place, {name: one}).text(name) for one in value]
        return [text for text in found if text is not None]

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{value!r} isn't allowed", "give true or false")
        return value

    def number(self, name: str, *, least: float, most: float = NO_LIMIT) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not least <= value <= most
        ):
            upper = f" to {most:g}" if most < NO_LIMIT else ""
            way_out = f"give a number from {least:g}{upper}"
            if isinstance(value, str) and (digits := _digits(value)):
                raise self.wrong(name, f"YAML reads {value!r} as text", f"{way_out}, written like {digits}, without quotes")  # fmt: skip
            raise self.wrong(name, f"{value!r} isn't allowed", way_out)
        return float(value)

    def whole(self, name: str, *, least: int) -> int | None:
        value = self.number(name, least=least)
        if value is not None and value != int(value):
            raise self.wrong(name, f"{value!r} isn't allowed", f"give a whole number from {least}")
        return None if value is None else int(value)

    def seconds(self, name: str, *, most: int = 7 * DAY_S) -> int:
        value = self.values.get(name)
        way_out = "write it like 10 s, 5 min, 2 h or 1 day"
        if value is None:
            raise self.missing(name, way_out)
        found = seconds_of(str(value), most=most)
        if found is None:
            raise self.wrong(
                name, f"{str(value)!r} isn't a time from 1 s to {_spelt(most)}", way_out
            )
        return found


def _digits(text: str) -> str:
    """Return a number as YAML reads one; nothing if a text is none, or too large or small for that.

    Example:
        >>> _digits("1e3"), _digits("2.5E-2"), _digits("many"), _digits("1e999")
        ('1000', '0.025', '', '')
    """
    try:
        size = abs(float(text))
        return f"{Decimal(text):f}" if size == 0 or 1e-6 <= size <= NO_LIMIT else ""
    except (ValueError, ArithmeticError):
        return ""


def _spelt(seconds: int) -> str:
    return f"{seconds // DAY_S} days" if seconds >= DAY_S else f"{seconds} s"


def seconds_of(text: str, *, most: int) -> int | None:
    """Return the seconds of a time such as `10 min`; None if it is none, or longer than `most` seconds.

    Example:
        >>> seconds_of("2h", most=DAY_S), seconds_of("3 days", most=DAY_S), seconds_of("soon", most=9)
        (7200, None, None)
    """
    found = re.fullmatch(r"(\d{1,6}) ?(s|min|h|day)s?", text, re.ASCII)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    return seconds if 1 <= seconds <= most else None
