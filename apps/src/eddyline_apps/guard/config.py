"""The configuration of the guard: a YAML file, checked as a whole before anything runs."""

from __future__ import annotations

import csv
import importlib
import re
import signal
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from eddyline.errors import ScriptError, missing_package
from eddyline.sink.base import SinkFormat
from eddyline.sink.kafka import CHANGELOG, SERVERS, SPARK_SERVERS, KafkaFormat
from eddyline.sink.webhook import WebhookFormat
from eddyline_apps.guard.tables import RATED, Network
from eddyline_apps.guard.verifying import DOMAINS, Verification
from eddyline_apps.places import Places

WINDOWS_S = (1, 10, 60, 300)
"""The windows of `guard.sql`."""

SUBJECTS = ("address", "visitor", "network")
METRICS = ("requests", "pages", "logins", "errors")
QUANTILES = (0.5, 0.9, 0.99)
BASELINE_QUANTILES = (*QUANTILES, 1)
LEAST = 5
"""No limit may be below this: `guard.sql` doesn't look at windows of fewer requests."""

PLACES = {4: (8, RATED[4]), 6: (16, RATED[6])}
"""The shortest and the longest prefix of a place: rates are of networks of /24 and /48."""

MMDB = ".mmdb"
"""The end of the name of a file in MaxMind's format."""

LEARN_S = 1200
"""How long lines are kept at least if there is something to learn: `baselines.sql` learns a slot 900 s after its beginning."""

NO_LIMIT = 1e15
SIGNALS = {"HUP": signal.SIGHUP, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
FILES = ("nginx", "nginx_geo", "haproxy", "nftables")
"""The kinds of notification that write a file; the others are sinks of the engine."""

SINKS: Mapping[str, tuple[SinkFormat, tuple[str, ...]]] = {
    "webhook": (WebhookFormat(), ("url",)),
    "kafka": (KafkaFormat(), (SERVERS, "topic")),
}
"""The kinds that are sinks, with their format and the options that they can't do without."""

TIMEOUT_S_MAX = 10
"""The longest time that the guard waits for DNS in a round."""

DAY_S = 86_400
HISTORY_DAYS_MAX = 365
_UNITS = {"s": 1, "min": 60, "h": 3600, "day": DAY_S}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, as a row of the table `rules`; see `docs/guard.md`."""

    name: str
    subject: str
    metric: str
    window_s: int
    share: float | None
    times: float | None
    quantile: float | None
    at_least: float
    at_most: float
    addresses: int
    block_s: int
    baseline: bool = False

    @property
    def row(self) -> tuple[object, ...]:
        """The values in the order of the table's columns."""
        return (
            self.name, self.subject, self.metric, self.window_s, self.share, self.times,
            self.quantile, self.at_least, self.at_most, self.addresses, self.block_s, self.baseline,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Notification:
    """Where the block list goes to.

    Attributes:
        to: one of FILES, `webhook` or `kafka`.
        options: `file`, `pid`, `signal`, `table` and `set` of a file; else options of the sink. The
            `envelope` of `kafka` is `changelog` if left out.
    """

    to: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says.

    Attributes:
        capacity: requests a second that the server can answer; None: as measured.
        sql: a file of views in the place of `guard.sql`.
        places: where networks are: a network, its region and its carrier each.
        place_files: files in MaxMind's format, for networks that `places` doesn't have.
        verify: how search engines are told by reverse DNS; None: they aren't.
        zone: time zone in which hours of the day are counted.
        history_s: how long what baselines are learnt from is kept.
    """

    rules: tuple[Rule, ...]
    allow: tuple[Network, ...] = ()
    notify: tuple[Notification, ...] = ()
    capacity: float | None = None
    new_blocks_per_minute: int = 30
    dry_run: bool = False
    sql: Path | None = None
    places: tuple[tuple[Network, str, str], ...] = ()
    place_files: tuple[str, ...] = ()
    verify: Verification | None = None
    zone: str = "UTC"
    history_s: int = 28 * DAY_S

    @property
    def baselines(self) -> bool:
        """Whether a rule has a baseline."""
        return any(rule.baseline for rule in self.rules)

    @property
    def has_places(self) -> bool:
        """Whether it is told where networks are."""
        return bool(self.places or self.place_files)

    @property
    def keep_s(self) -> int:
        """How long lines are kept: as long as a block, or what is learnt, can depend on them, and a minute."""
        longest = max(rule.window_s + rule.block_s for rule in self.rules)
        return max(longest, LEARN_S if self.baselines or self.has_places else 0) + 60


def load_config(path: Path) -> Config:
    """Read a configuration.

    Raises:
        ScriptError: BAD_CONFIG, naming the file, the place and what is allowed there.
        DataError: PLACES_NOT_READABLE, naming a file of places.
        EngineError: MISSING_PACKAGE.
    """
    try:
        yaml = importlib.import_module("yaml")  # without stubs
    except ImportError as error:
        raise missing_package("the configuration of the guard", "pyyaml", "pipelines") from error
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScriptError(f"{path} can't be read: {error}", condition="BAD_CONFIG") from error
    top = _Section(path, "", document)
    top.known(
        "rules", "allow", "notify", "capacity", "new_blocks_per_minute", "dry_run", "sql", "places",
        "verify", "zone", "history",
    )  # fmt: skip
    sql = top.text("sql")
    tables, files = _place_files(top)
    return Config(
        rules=_rules(top.section("rules"), any_window=sql is not None),
        allow=tuple(top.networks("allow")),
        notify=tuple(_notification(one) for one in top.sections("notify")),
        capacity=top.number("capacity", least=1),
        new_blocks_per_minute=int(top.number("new_blocks_per_minute", least=1) or 30),
        dry_run=top.flag("dry_run"),
        sql=None if sql is None else path.parent / sql,
        places=tuple(one for table in tables for one in _places(table)),
        place_files=files,
        verify=_verification(top),
        zone=_zone(top),
        history_s=top.seconds("history", most=HISTORY_DAYS_MAX * DAY_S)
        if "history" in top.values
        else 28 * DAY_S,
    )


def _zone(top: _Section) -> str:
    zone = top.text("zone") or "UTC"
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise top.wrong("zone", f"there is no time zone {zone!r}", "write it like Europe/Berlin") from None  # fmt: skip
    return zone


def _verification(top: _Section) -> Verification | None:
    value = top.values.get("verify", False)
    if isinstance(value, bool):
        return Verification() if value else None
    if isinstance(value, list):
        value = {"domains": value}
    if not isinstance(value, dict):
        raise top.wrong("verify", f"{value!r} isn't allowed", "give true, domains, or a mapping")
    section = _Section(top.path, "verify", value)
    section.known("domains", "nameserver", "timeout")
    domains = DOMAINS
    if "domains" in value:
        domains = tuple(text.lower().strip(".") for text in section.texts("domains"))
        if not domains:
            raise section.wrong("domains", "there are none", "leave it out for those of well-known search engines")  # fmt: skip
        for domain in domains:
            if not re.fullmatch(r"([\w-]+\.)+[\w-]+", domain, re.ASCII):
                raise section.wrong("domains", f"{domain!r} isn't a domain", "write it like googlebot.com")  # fmt: skip
    timeout_s = section.seconds("timeout", most=TIMEOUT_S_MAX) if "timeout" in value else 2
    return Verification(domains, _nameserver(section), timeout_s)


def _nameserver(section: _Section) -> tuple[str, int] | None:
    text = section.text("nameserver")
    if text is None:
        return None
    found = re.fullmatch(r"\[(.+)\](?::(\d{1,5}))?|([^:]+):(\d{1,5})", text, re.ASCII)
    host, port = (
        (text, "53") if found is None else (found[1] or found[3], found[2] or found[4] or "53")
    )
    try:
        ip_address(host)
        if not 1 <= int(port) <= 65_535:
            raise ValueError(port)
    except ValueError:
        raise section.wrong("nameserver", f"{text!r} isn't an address", "write it like 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53") from None  # fmt: skip
    return host, int(port)


def _place_files(top: _Section) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of places: those in CSV, and those in MaxMind's format, which are checked."""
    paths = [top.path.parent / text for text in top.texts("places")]
    files = tuple(str(path) for path in paths if path.suffix.lower() == MMDB)
    if files:
        Places(files)
    return [path for path in paths if path.suffix.lower() != MMDB], files


def _places(path: Path) -> tuple[tuple[Network, str, str], ...]:
    """Read a CSV file of networks, regions and carriers."""
    found: dict[Network, tuple[str, str]] = {}
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScriptError(f"{path} can't be read: {error}", condition="BAD_CONFIG") from error
    for number, line in enumerate(lines, start=1):
        if not line or line[0].startswith("#"):
            continue
        try:
            text, region, carrier = (word.strip() for word in line)
            network = ip_network(text)
            shortest, longest = PLACES[network.version]
            if not shortest <= network.prefixlen <= longest:
                raise ValueError(f"/{network.prefixlen} isn't from /{shortest} to /{longest}")
        except ValueError as error:
            raise ScriptError(
                f"{path}, line {number}: this is no place: {error}",
                condition="BAD_CONFIG",
                hint="write network,region,carrier with networks from /8 to /24, or of IPv6 from /16 to /48",
            ) from None
        found[network] = (region, carrier)
    return tuple((network, *names) for network, names in found.items())


def _rules(section: _Section, *, any_window: bool) -> tuple[Rule, ...]:
    rules = tuple(
        _rule(name, section.section(name), any_window=any_window) for name in section.values
    )
    if not rules:
        raise section.wrong("rules", "there are no rules", "give one at least")
    return rules


def _rule(name: str, section: _Section, *, any_window: bool) -> Rule:
    section.known(
        "by", "metric", "window", "share", "times", "quantile", "at_least", "at_most", "addresses",
        "block", "baseline",
    )  # fmt: skip
    subject, metric = section.choice("by", SUBJECTS), section.choice("metric", METRICS)
    window_s = section.seconds("window")
    if window_s not in WINDOWS_S and not any_window:
        raise section.wrong("window", f"there are no windows of {window_s} s", "give 1 s, 10 s, 1 min or 5 min, or views of your own with `sql`")  # fmt: skip
    share = section.number("share", least=0.0001, most=1)
    times = section.number("times", least=1)
    quantile = section.number("quantile", least=0)
    if share is not None and times is not None:
        raise section.wrong("times", "it has a share as well", "give one of share and times")
    baseline = section.flag("baseline")
    if baseline and (times is None or section.values.get("at_most") is None):
        raise section.wrong("baseline", "it has no times or no at_most", "give times, and at_most, which is the limit until an hour is known")  # fmt: skip
    quantiles = BASELINE_QUANTILES if baseline else QUANTILES
    if quantile is not None and (times is None or quantile not in quantiles):
        raise section.wrong("quantile", "it can't be used so", f"give one of {quantiles} together with times")  # fmt: skip
    if times is not None and not baseline and (subject == "network" or metric not in METRICS[:2]):
        raise section.wrong("times", f"there are no quantiles of {metric} by {subject}", "use it with requests or pages by address or visitor, with a baseline, or give a share")  # fmt: skip
    at_least = section.number("at_least", least=LEAST)
    if at_least is None:
        raise section.wrong("at_least", "it is missing", "give the least that is ever blocked")
    at_most = section.number("at_most", least=at_least) or NO_LIMIT
    addresses = section.number("addresses", least=1) or (10 if subject == "network" else 1)
    return Rule(
        name, subject, metric, window_s, share, times,
        None if times is None else quantile or 0.99,
        at_least, at_most, int(addresses), section.seconds("block"), baseline,
    )  # fmt: skip


def _notification(section: _Section) -> Notification:
    to = section.choice("to", (*FILES, *SINKS))
    required: tuple[str, ...] = ("file",)
    allowed: tuple[str, ...] = ("file", "pid", "signal")
    if to == "nftables":
        allowed = ("file", "table", "set")
    if to in SINKS:
        sink, required = SINKS[to]
        allowed = tuple(name for name in sink.options if name != SPARK_SERVERS)
    section.known("to", *allowed)
    options = {name: section.text(name) for name in allowed}
    for name in required:
        if options[name] is None:
            raise section.wrong(name, "it is missing", f"a notification to {to} needs it")
    if to == "kafka" and options["envelope"] is None:
        options["envelope"] = CHANGELOG  # the only one for a view without a key, as `blocked` is
    if options.get("signal") is not None:
        section.choice("signal", tuple(SIGNALS))
    for name in ("table", "set"):
        value = options.get(name)
        if value is not None and not re.fullmatch(r"[A-Za-z_][\w ]*", value, re.ASCII):
            raise section.wrong(name, "it isn't a name of nftables", "write it like `inet filter`")
    return Notification(to, {name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True, slots=True)
class _Section:
    """A mapping of the file. Its methods raise ScriptError that names the file and the place."""

    path: Path
    place: str
    values: Any

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict) or not all(isinstance(k, str) for k in self.values):
            raise self.wrong("", "it isn't a mapping of names to values", "see docs/guard.md")

    def wrong(self, name: str, what: str, way_out: str) -> ScriptError:
        where = ".".join(part for part in (self.place, name) if part) or "the file"
        return ScriptError(f"{self.path}: {where}: {what}", condition="BAD_CONFIG", hint=way_out)

    def known(self, *names: str) -> None:
        for name in self.values:
            if name not in names:
                raise self.wrong(name, "there is no such setting", f"known are {', '.join(names)}")

    def section(self, name: str) -> _Section:
        where = f"{self.place}.{name}" if self.place else name
        return _Section(self.path, where, self.values.get(name, {}))

    def sections(self, name: str) -> list[_Section]:
        return [
            _Section(self.path, f"{name}[{place}]", one)
            for place, one in enumerate(self._list(name))
        ]

    def networks(self, name: str) -> list[Network]:
        return [self._network(name, one) for one in self._list(name)]

    def _network(self, name: str, value: object) -> Network:
        try:
            return ip_network(str(value))
        except ValueError as error:
            raise self.wrong(name, str(error), "write it like 192.0.2.0/24") from None

    def _list(self, name: str) -> Sequence[object]:
        found = self.values.get(name) or []
        if not isinstance(found, list):
            raise self.wrong(name, "it isn't a list", "write one entry a line, after a dash")
        return found

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.values.get(name)
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
        found = [_Section(self.path, self.place, {name: one}).text(name) for one in value]
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
            raise self.wrong(
                name, f"{value!r} isn't allowed", f"give a number from {least:g}{upper}"
            )
        return float(value)

    def seconds(self, name: str, *, most: int = 7 * DAY_S) -> int:
        text = str(self.values.get(name))
        found = seconds_of(text, most=most)
        if found is None:
            raise self.wrong(name, f"{text!r} isn't a time", f"write it like 10 s, 5 min, 2 h or 1 day; {_spelt(most)} at most")  # fmt: skip
        return found


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
