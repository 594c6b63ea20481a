"""The configuration of the guard: a YAML file, checked as a whole before anything runs."""

from __future__ import annotations

import csv
import os
import re
import signal
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from eddyline.errors import CatalogError, DataError, EngineError
from eddyline.sink.base import SinkFormat, Target
from eddyline.sink.kafka import CHANGELOG, SERVERS, SPARK_SERVERS, KafkaFormat
from eddyline.sink.secrets import check_secrets
from eddyline.sink.webhook import WebhookFormat
from eddyline_apps import wrong_views
from eddyline_apps.guard.sections import DAY_S, NO_LIMIT, Section, read_file
from eddyline_apps.guard.tables import RATED, Network, network_of
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

_PLACES_HINT = "give CSV files with lines network,region,carrier, or files in MaxMind's format, which end in .mmdb"

NEEDED_VIEWS = ("requests", "waiting", "block_list", "blocked")
"""What a file of views can't do without: the guard itself reads them."""

MMDB = ".mmdb"
"""The end of the name of a file in MaxMind's format."""

LEARN_S = 1200
"""How long lines are kept at least if there is something to learn: `baselines.sql` learns a slot 900 s after its beginning."""

SIGNALS = {"HUP": signal.SIGHUP, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
FILES = ("nginx", "nginx_geo", "haproxy", "nftables")
"""The kinds of notification that write a file; the others are sinks of the engine."""

SINKS: Mapping[str, tuple[SinkFormat, tuple[str, ...]]] = {
    "webhook": (WebhookFormat(), ("url",)),
    "kafka": (KafkaFormat(), (SERVERS, "topic")),
}
"""The kinds that are sinks, with their format and the options that they can't do without."""

GOES_TO = {"webhook": ("url",), "kafka": (SERVERS, "topic"), **dict.fromkeys(FILES, ("file",))}
"""The options that say where a notification goes to: no two may go to one place."""

_NFT_NAME = r"[A-Za-z_][\w./-]*"
NFT_NAMES = {
    "table": (
        rf"(ip|ip6|inet|arp|bridge|netdev) {_NFT_NAME}",
        "write its family and its name, like `inet filter`",
    ),
    "set": (_NFT_NAME, "write one name, like `blocked`"),
}
"""What nft takes for them, and the way out."""

TIMEOUT_S_MAX = 10
"""The longest time that the guard waits for DNS in a round."""

HISTORY_DAYS_MAX = 365


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
        sql: the text of a file of views in the place of `guard.sql`.
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
    sql: str | None = None
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
        EngineError: MISSING_PACKAGE.
    """
    top = read_file(path)
    top.known(
        "rules", "allow", "notify", "capacity", "new_blocks_per_minute", "dry_run", "sql", "places",
        "verify", "zone", "history",
    )  # fmt: skip
    sql = _sql(top)
    tables, files = _place_files(top)
    return Config(
        rules=_rules(top.section("rules"), any_window=sql is not None),
        allow=tuple(top.networks("allow")),
        notify=_notifications(top),
        capacity=top.number("capacity", least=1),
        new_blocks_per_minute=top.whole("new_blocks_per_minute", least=1) or 30,
        dry_run=top.flag("dry_run"),
        sql=sql,
        places=_places(top, tables),
        place_files=files,
        verify=_verification(top),
        zone=_zone(top),
        history_s=top.seconds("history", most=HISTORY_DAYS_MAX * DAY_S)
        if "history" in top.values
        else 28 * DAY_S,
    )


def _sql(top: Section) -> str | None:
    """Return the text of the file of views."""
    name = top.text("sql")
    if name is None:
        return None
    path = top.path.parent / name
    way_out = "give a file of views, such as a copy of guard.sql"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise top.wrong("sql", f"{path} can't be read: {error}", way_out) from error
    if fault := wrong_views(text, NEEDED_VIEWS):
        raise top.wrong("sql", f"{path} can't be used: {fault}", way_out)
    return text


def _zone(top: Section) -> str:
    zone = top.text("zone") or "UTC"
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise top.wrong("zone", f"there is no time zone {zone!r}", "write it like Europe/Berlin") from None  # fmt: skip
    return zone


def _verification(top: Section) -> Verification | None:
    value = top.values.get("verify", False)
    if isinstance(value, bool):
        return Verification() if value else None
    if isinstance(value, list):
        value = {"domains": value}
    if not isinstance(value, dict):
        raise top.wrong("verify", f"{value!r} isn't allowed", "give true, domains, or a mapping")
    section = Section(top.path, "verify", value)
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


def _nameserver(section: Section) -> tuple[str, int] | None:
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


def _place_files(top: Section) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of places: those in CSV, and those in MaxMind's format, which are checked."""
    paths = [top.path.parent / text for text in top.texts("places")]
    files = tuple(str(path) for path in paths if path.suffix.lower() == MMDB)
    if files:
        try:
            Places(files)
        except DataError as error:
            raise top.wrong("places", error.message, error.hint) from error
    return [path for path in paths if path.suffix.lower() != MMDB], files


def _places(top: Section, paths: Sequence[Path]) -> tuple[tuple[Network, str, str], ...]:
    """Return the networks, regions and carriers of CSV files. Of a network that is there twice the first line counts."""
    found: dict[Network, tuple[str, str]] = {}
    for path in paths:
        for network, *names in _places_of(top, path):
            found.setdefault(network, (names[0], names[1]))
    return tuple((network, *names) for network, names in found.items())


def _places_of(top: Section, path: Path) -> Iterator[tuple[Network, str, str]]:
    """Read a CSV file of networks, regions and carriers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        # a quote that is left open is an error
        lines = list(csv.reader(text.splitlines(), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise top.wrong("places", f"{path} can't be read: {error}", _PLACES_HINT) from error
    for number, line in enumerate(lines, start=1):
        if not line or line[0].startswith("#"):
            continue
        try:
            if len(line) != 3:
                raise ValueError(f"it has {len(line)} columns")
            text, region, carrier = (word.strip() for word in line)
            network = network_of(text)
            shortest, longest = PLACES[network.version]
            if not shortest <= network.prefixlen <= longest:
                raise ValueError(f"/{network.prefixlen} isn't from /{shortest} to /{longest}")
        except ValueError as error:
            way_out = "write network,region,carrier with networks from /8 to /24, or of IPv6 from /16 to /48"
            text = f"{path}, line {number}: this is no place: {error}"
            raise top.wrong("places", text, way_out) from None
        yield network, region, carrier


def _rules(section: Section, *, any_window: bool) -> tuple[Rule, ...]:
    rules = tuple(
        _rule(name, section.section(name), any_window=any_window) for name in section.values
    )
    if not rules:
        raise section.wrong("", "there are no rules", "give one at least")
    return rules


def _rule(name: str, section: Section, *, any_window: bool) -> Rule:
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
        raise section.missing("at_least", "give the least that is ever blocked")
    at_most = section.number("at_most", least=at_least) or NO_LIMIT
    addresses = section.whole("addresses", least=1)
    if subject != "network":
        if addresses is not None:
            raise section.wrong("addresses", f"only a rule by network counts addresses, and this one is by {subject}", "leave it out, or write by: network")  # fmt: skip
        addresses = 1
    return Rule(
        name, subject, metric, window_s, share, times,
        None if times is None else quantile or 0.99,
        at_least, at_most, addresses or 10, section.seconds("block"), baseline,
    )  # fmt: skip


def _notifications(top: Section) -> tuple[Notification, ...]:
    found: dict[tuple[tuple[str, str], ...], int] = {}
    given = [_notification(one) for one in top.sections("notify")]
    for number, one in enumerate(given):
        place = tuple((name, one.options[name]) for name in GOES_TO[one.to])
        if one.to in FILES:
            place = (("file", os.path.realpath(one.options["file"])),)
        first = found.setdefault(place, number)
        if first != number:
            raise top.wrong(f"notify[{number}]", f"it goes to the same place as notify[{first}]", "leave one of them out")  # fmt: skip
    return tuple(given)


def _notification(section: Section) -> Notification:
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
            raise section.missing(name, f"a notification to {to} needs it")
    if to == "kafka" and options["envelope"] is None:
        options["envelope"] = CHANGELOG  # the only one for a view without a key, as `blocked` is
    if options.get("signal") is not None:
        section.choice("signal", tuple(SIGNALS))
        if options["pid"] is None:
            raise section.wrong("signal", "there is no pid of the process that gets it", "give the server's file with it as pid, or leave signal out")  # fmt: skip
    for name, (pattern, way_out) in NFT_NAMES.items():
        value = options.get(name)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise section.wrong(name, f"{value!r} isn't a {name} of nftables", way_out)
    given = {name: value for name, value in options.items() if value is not None}
    if to in SINKS:
        _check_sink(section, to, given)
    return Notification(to, given)


def _check_sink(section: Section, to: str, options: Mapping[str, str]) -> None:
    """Refuse the options of a sink that hold for no view."""
    sink, _ = SINKS[to]
    try:
        check_secrets(options, sink.secrets)
        sink.check(Target("", to, StructType(), pa.schema([])), options)
    except CatalogError:
        pass  # whether the view `blocked` has the key is known once it is planned
    except EngineError as error:
        if error.condition == "MISSING_PACKAGE":
            raise
        raise section.wrong("", error.message, error.hint) from error
