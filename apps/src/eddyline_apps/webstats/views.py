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
COMPRESSED = rf"\.(?:{'|'.join(end[1:] for end in READABLE)})"
"""A regular expression of the ends of compressed files, such as `.gz`."""
SITE = "{site}"
PROGRAM = "{is_program}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a log is read.

    Attributes:
        log_format: the format of its lines.
        site_from: `host`: the virtual host that a line names; `file`: the name of the file without
            `.log`, `access` and what rotation appends; else a path with `{site}` in the place of the site.
        zones: time zones of sites, such as `Europe/Berlin`; that of the key `""` is for all others.
            Without one a day is that of the log's clock.
        relation: what holds the lines, with the columns of `SCHEMA`: a name, or a SELECT in parentheses;
            empty: there are none.
        beacons: the same for the beacons of the page script, whose format and site are their own.
    """

    log_format: LogFormat
    site_from: str = HOST
    zones: Mapping[str, str] = field(default_factory=dict)
    relation: str = INPUT
    beacons: str = ""


def template() -> str:
    """Return the text of `views.sql`, with two placeholders.

    `{parsed_lines}` stands for the SELECT that parses lines, `{is_program}` for the condition of `is_program`.
    """
    return resources.files(__package__).joinpath("views.sql").read_text(encoding="utf-8")


def script(settings: Settings, text: str | None = None) -> str:
    """Return the SQL script of the views over the table `INPUT`.

    Args:
        text: what to use in place of `template()`.
    """
    known = (text or template()).replace(PROGRAM, is_program("ua", "coalesce(agent, '')"))
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
        (settings.relation, settings.log_format, _site(settings.site_from)),
        (settings.beacons, BEACON, "site"),
    ):
        if relation:
            parsed = log_format.query(relation, keep=("seq", "file"))
            parts.append(f"SELECT * EXCEPT (site), {site} AS site FROM (\n{parsed}\n)")
    lines = "\nUNION ALL\n".join(parts)
    return f"SELECT * EXCEPT (zone), {zone} AS zone\nFROM ({lines})"


def _site(site_from: str) -> str:
    if site_from == HOST:
        return "site"
    if site_from == FILE:
        name = r"regexp_extract(lower(file), r'([^/]*)$', 1)"
        plain = rf"regexp_replace({name}, r'(?:\.log|[-.]\d+|{COMPRESSED})+$', '')"
        site = rf"regexp_replace({plain}, r'^access[-_.]|[-_.]access$', '')"
    else:
        before, found, after = site_from.partition(SITE)
        if not found or SITE in after:
            raise DataError(
                f"--site-from {site_from} doesn't say where the site is",
                condition="LOG_FORMAT_UNKNOWN",
                hint="give host, file, or a path with {site} in it, such as /var/log/{site}/access.log",
            )
        rotated = rf"(?:[-.]\d+)*(?:{COMPRESSED})?$"
        pattern = f"{_regex(before)}([^/]+?){_regex(after)}{rotated}"
        site = f"regexp_extract(file, r'{pattern}', 1)"
    return f"coalesce(nullif({site}, ''), '-')"


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
