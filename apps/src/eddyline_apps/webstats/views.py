"""The views of the web statistics over a log: their SQL, the keys that hide visitors, and the engine with them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.api.script import CreateView, parse_script
from eddyline.errors import DataError
from eddyline.source.compression import READABLE
from eddyline_apps.webstats.log_formats import BEACON, LogFormat
from eddyline_apps.webstats.programs import is_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUT = "log_lines"
SCHEMA = "line STRING, seq BIGINT, file STRING"
"""The lines: `seq` is the place in the log, which orders requests of one second; `file` where it is from."""

KEY_FILE = "webstats-secret"
HOST, FILE = "host", "file"
_COMPRESSED = rf"(?:\.(?:{'|'.join(end[1:] for end in READABLE)}))?"
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", "(?:0[1-9]|[12][0-9]|3[01])"
_DATE = rf"(?:[-._](?:19|20)[0-9]{{2}}(?:{_MONTH}{_DAY}|-{_MONTH}-{_DAY})(?:[-_.:Tt]?[0-9]{{2}}){{0,5}})?"
_NUMBER = r"(?:\.[0-9]{1,3})?"
_LOG = r"\.log"
_AFTER_LOG = rf"{_DATE}(?:[-.][0-9]+)*{_COMPRESSED}$"
"""Regular expressions of what rotation adds to names: `.gz`; a date, perhaps with a time; a number; all of it after
`.log`. Each may be missing. Names without `.log` have at most `_DATE`, `_NUMBER` and `_COMPRESSED`."""
_IPV4 = r"(?:[^/]*[-_])?[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
"""A name that is or ends in an address, whose last number isn't one of rotation."""
SITE = "{site}"
PROGRAM = "{is_program}"
IS_BEACON = "{is_beacon}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a log is read.

    Attributes:
        log_format: the format of its lines.
        site_from: `host`: the virtual host that a line names; `file`: the name of the file without
            `.log`, `access` and what rotation adds; else a path with `{site}` in the place of the site.
        zones: time zones of sites, such as `Europe/Berlin`; that of the key `""` is for all others.
            Without one a day is that of the log's clock.
        relation: what holds the lines, with the columns of `SCHEMA`: a name, or a SELECT in parentheses;
            empty: there are none.
        records: the same for lines whose `file` is the key or the topic of a record, which nothing rotates: with
            `file` it is the site as it is.
        beacons: the same for the beacons of the page script, whose format and site are their own.
    """

    log_format: LogFormat
    site_from: str = HOST
    zones: Mapping[str, str] = field(default_factory=dict)
    relation: str = INPUT
    records: str = ""
    beacons: str = ""


def template() -> str:
    """Return the text of `views.sql`, with three placeholders.

    `{parsed_lines}` stands for the SELECT that parses lines, `{is_program}` for the condition of `is_program`,
    `{is_beacon}` for the condition that a line is a beacon.
    """
    return resources.files(__package__).joinpath("views.sql").read_text(encoding="utf-8")


def script(settings: Settings, text: str | None = None) -> str:
    """Return the SQL script of the views over the table `INPUT`.

    Args:
        text: what to use in place of `template()`.
    """
    known = (template() if text is None else text).replace(
        PROGRAM, is_program("ua", "coalesce(agent, '')")
    )
    # a column for it, where there are none, would make the plan another one in each run
    known = known.replace(IS_BEACON, "is_beacon" if settings.beacons else "false")
    return known.replace("{parsed_lines}", _parsed(settings))


def queries(text: str) -> dict[str, str]:
    """Return the views of a script as name -> query, in order."""
    return {item.name: item.query for item in parse_script(text) if isinstance(item, CreateView)}


def _parsed(settings: Settings) -> str:
    zone = "zone"
    if settings.zones:
        own = [name for name in settings.zones if name]
        other = _literal(settings.zones[""]) if "" in settings.zones else "zone"
        cases = "".join(
            f" WHEN {_literal(name)} THEN {_literal(settings.zones[name])}" for name in own
        )
        zone = f"CASE site{cases} ELSE {other} END" if own else other
    parts = []
    for relation, log_format, site in (
        (settings.relation, settings.log_format, _site(settings.site_from, rotated=True)),
        (settings.records, settings.log_format, _site(settings.site_from, rotated=False)),
        (settings.beacons, BEACON, "site"),
    ):
        if relation:
            parsed = log_format.query(relation, keep=("seq", "file"))
            beacon = f", {log_format is BEACON} AS is_beacon" if settings.beacons else ""
            parts.append(f"SELECT * EXCEPT (site), {site} AS site{beacon} FROM (\n{parsed}\n)")
    lines = "\nUNION ALL\n".join(parts)
    return f"SELECT * EXCEPT (zone), {zone} AS zone\nFROM ({lines})"


def _site(site_from: str, *, rotated: bool) -> str:
    """Return the SQL expression of the site of a line.

    Args:
        rotated: `file` is the path of a file that may have been rotated; else it is a text as it is.
    """
    if site_from == HOST:
        return "site"
    if site_from == FILE:
        site = _site_of_name() if rotated else "lower(file)"
    else:
        before, found, after = site_from.partition(SITE)
        if not found or SITE in after:
            raise DataError(
                f"--site-from {site_from} doesn't say where the site is",
                condition="LOG_FORMAT_UNKNOWN",
                hint="give host, file, or a path with {site} in it, such as /var/log/{site}/access.log",
            )
        rest = _rotated(after) if rotated else f"{_regex(after)}$"
        pattern = f"{_regex(before)}({_IPV4}|[^/]+?){rest}"
        site = f"lower(regexp_extract(file, r'{pattern}', 1))"
    return f"coalesce(nullif({site}, ''), '-')"


def _site_of_name() -> str:
    name = r"regexp_extract(lower(file), r'([^/]*)$', 1)"
    # `access.1.log` is rotated, `10.0.0.1.log` isn't
    before_log = rf"{_DATE}(?:(?<=access){_NUMBER})?{_LOG}{_AFTER_LOG}"
    without_log = f"{_DATE}{_NUMBER}{_COMPRESSED}$"
    plain = f"regexp_extract({name}, r'^({_IPV4}|.*?)(?:{before_log}|{without_log})', 1)"
    return f"regexp_replace({plain}, r'^access[-_.]|[-_.]access$', '')"


def _rotated(after: str) -> str:
    """Return the regular expression of the end of a pattern, with what rotation adds."""
    if not after:
        return f"{_DATE}{_NUMBER}{_COMPRESSED}$"
    name = after.removesuffix(".log")
    if name == after:
        return f"{_regex(after)}{_AFTER_LOG}"
    number = _NUMBER if name else ""  # it may belong to the site
    return f"{_regex(name)}{_DATE}{number}{_LOG}{_AFTER_LOG}"


def _regex(text: str) -> str:
    """Return the regular expression of a path in which `*` stands for anything but `/`."""
    letters = {"*": "[^/]*", "/": "/"}
    return "".join(letters.get(c, c if c.isalnum() else rf"\x{{{ord(c):x}}}") for c in text)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- the secret ---


def secret_of(storage: Path) -> str:
    """Return the secret of a storage; make one if it has none.

    Whoever has it can test whether a visitor of a day is a certain address and user agent. Nobody else can.
    """
    path = storage / KEY_FILE
    try:
        found = path.read_text().strip()
    except FileNotFoundError:
        found = secrets.token_hex(16)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(found + "\n")
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise DataError(
            f"{path} doesn't hold a secret",
            condition="OTHER_RUN",
            hint="restore it from a copy; with another one all visitors would be others",
        )
    return found


def define_key(spark: SparkSession, secret: str) -> None:
    """Define the function `webstats_key(salt, value)` in a session: 16 hexadecimal digits."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION webstats_key(salt STRING, value STRING) RETURNS STRING "
        f"RETURN substr(sha2(concat_ws('\\n', '{secret}', salt, value), 256), 1, 16)"
    )
