"""Formats of access logs, each as the SQL text that parses its lines into one table of requests.

Spark evaluates the text, live and offline. No line makes it fail, whatever it holds: one that can't be
parsed has nulls in all columns of `COLUMNS`. The expressions take linear time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eddyline.errors import DataError
from eddyline_apps.webstats.patterns import DECIMAL, NUMBER, QUOTED, compile_format

COLUMNS = (
    ("ts", "TIMESTAMP"),
    ("zone", "STRING"),
    ("site", "STRING"),
    ("host", "STRING"),
    ("user", "STRING"),
    ("cookie", "STRING"),
    ("method", "STRING"),
    ("path", "STRING"),
    ("status", "INT"),
    ("bytes", "BIGINT"),
    ("referer", "STRING"),
    ("agent", "STRING"),
    ("seconds", "DOUBLE"),
    ("country", "STRING"),
    ("carrier", "STRING"),
)
"""The columns of a request.

`zone` is the UTC offset of the log's clock, such as `-04:00`. `site` is the name of the virtual host
without its port, in lower case, `-` if the log has none. `host` is the client's name or address, `user`
its login, `cookie` an id from a cookie. `seconds` is the duration. A size or duration that is
negative, no number, or not below `LIMIT` is missing. `country` and `carrier` are the client's where
the line itself tells them, as beacons do. Missing values are null, `bytes` 0.
"""

LIMIT = 10**12
"""Sizes and durations are lower: 9 million of the largest sizes have a sum that BIGINT holds."""

STAMP = r"\d\d/\w{3}/[12]\d{3}:\d\d:\d\d:\d\d [+-]\d{4}"
COMBINED_PATTERN = (
    r"(?:((?:[^\s,:]++|\[[^\s,\]]*+\])(?=:\d++ )|[^\s,]++(?= \S*[.:]))(?::\d++)? )?"
    rf'([^\s,]++) (?:-|[^\s,]++(?= \S++ \[)) (?>([^\r\n]*?) \[({STAMP})\] ")'
    rf'({QUOTED})" (\d{{3}}) ({NUMBER}|-)(?: "({QUOTED})" "({QUOTED})")?'
)
"""common, combined and vhost_combined at once. Possessive quantifiers keep it linear. A first column without a port is a site if
an address or a name with a dot is after it. After the client come `-` and a login, which may hold spaces, or two words. The login ends at
the first date that a quote follows: two lines that a crash has joined are no request. Sites and clients hold no comma: of a list, nobody
knows who the client is. The guard's pattern (guard.sql) is alike."""
COMBINED_FIELDS = (
    "site", "host", "user", "time", "request", "status", "bytes", "referer", "agent",
)  # fmt: skip

BEFORE_LINES = "\0\ufeff"
"""What isn't part of a line that it begins with: NULs, which emptying a file leaves where its writer goes on, and the byte-order mark."""

NOTHING = "CAST(NULL AS STRING)"
SAMPLE_LINES = 1000
"""The lines that `detect` looks at."""
HEADER = "#Fields:"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format of lines.

    Attributes:
        name: what `named` takes for it.
        fields: SQL expression over `line` for what `columns` read as `f`.
        columns: for names of `COLUMNS` SQL expressions over `f`, each a STRING, but `ts` a TIMESTAMP. `-`
            and empty strings count as missing.
        skipped: SQL condition over `line`: such a line is neither a request nor malformed.
    """

    name: str
    fields: str
    columns: Mapping[str, str] = field(default_factory=dict)
    skipped: str = "false"

    def query(self, relation: str, line: str = "line", keep: tuple[str, ...] = ("seq",)) -> str:
        """Return the SELECT that parses the lines of a relation.

        Its columns are those of `keep`, `line` without `BEFORE_LINES`, and `COLUMNS`; `ts` is null in malformed lines.

        Args:
            relation: name of a table, stream or view.
            line: its column of lines.
            keep: other columns of it.
        """
        raw = {name: self.columns.get(name, NOTHING) for name, _ in COLUMNS}
        texts = ",\n    ".join(
            f"{_given(name, expression)} AS {name}" for name, expression in raw.items()
        )
        clean = ",\n  ".join(f"{_typed(name)} AS {name}" for name, _ in COLUMNS)
        kept = "".join(f"{name}, " for name in keep)
        stripped = rf"ltrim('\0\uFEFF', {line})"  # BEFORE_LINES
        return (
            f"SELECT\n  {kept}line,\n  {clean}\nFROM (\n  SELECT\n    {kept}line,\n    {texts}\n"
            f"  FROM (\n    SELECT {kept}line, {self.fields} AS f\n"
            f"    FROM (SELECT {kept}{stripped} AS line FROM {relation})\n    WHERE NOT {self.skipped}\n  )\n)"
        )


def _given(name: str, expression: str) -> str:
    """Return an expression whose missing values are null."""
    if name == "ts" or expression == NOTHING:
        return expression
    if name in ("host", "path"):  # here `-` is a value like any other
        return f"nullif({expression}, '')"
    if name == "user":  # Apache writes two quotes for an empty login
        return f"CASE WHEN {expression} NOT IN ('-', '', '\"\"') THEN {expression} END"
    return f"nullif(nullif({expression}, '-'), '')"


def _limited(name: str, kind: str) -> str:
    number = f"try_cast({name} AS {kind})"  # NaN is above all numbers
    return f"CASE WHEN {number} >= 0 AND {number} < {LIMIT} THEN {number} END"


ZONE = r"^[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00)$"
"""The offsets that Spark takes: with any other the views would fail."""
WELL_FORMED = (
    "ts IS NOT NULL AND host IS NOT NULL AND try_cast(status AS INT) IS NOT NULL "
    f"AND regexp_like(zone, r'{ZONE}')"
)
_TYPED = {
    "site": "coalesce(regexp_replace(lower(site), r'^([^:]*+|\\[.*\\]):\\d+$', '$1'), '-')",
    "status": "try_cast(status AS INT)",
    "bytes": f"coalesce({_limited('bytes', 'BIGINT')}, 0)",
    "seconds": _limited("seconds", "DOUBLE"),
    "method": "coalesce(method, '-')",
    "path": "coalesce(path, '')",
}


def _typed(name: str) -> str:
    return f"CASE WHEN {WELL_FORMED} THEN {_TYPED.get(name, name)} END"


# --- lines that a regular expression splits ---


def from_pattern(name: str, pattern: str, names: Iterable[str]) -> LogFormat:
    """Return a format whose lines match a regular expression of Java as a whole.

    Args:
        pattern: with a group for each of `names`, in this order, none of which matches a line end. The
            other line ends are in it: the expression must not match one.
        names: of `COLUMNS`, or `time`, `iso_time`, `epoch_s`, `epoch_ms`, `epoch_us`, `request`,
            `milliseconds`, `microseconds`.
    """
    names = tuple(names)
    # The second branch matches any other line as a whole, so that there are always as many fields.
    groups = r"\n".join(f"${place}" for place in range(1, len(names) + 1))
    whole = rf"^{pattern}\r?\z|(?s)^.*\z"
    fields = f"split(regexp_replace(line, r'{whole}', '{groups}'), '\\n')"
    parts = {part: f"get(f, {place})" for place, part in enumerate(names)}
    return LogFormat(name, fields, _columns(parts))


def _columns(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that SQL expressions of parts give, see `from_pattern`."""
    columns = {name: parts[name] for name, _ in COLUMNS if name in parts}
    if "request" in parts:
        request = parts["request"]
        columns.setdefault("method", f"split_part({request}, ' ', 1)")
        path = rf"regexp_extract({request}, r'(?s)^[^ ]+ +(.*?)(?: HTTP/[^ ]+)?\z', 1)"
        columns.setdefault("path", path)
    if "query" in parts and "path" in columns:
        query = f"nullif(nullif({parts['query']}, '-'), '')"
        columns["path"] = f"concat({columns['path']}, coalesce(concat('?', {query}), ''))"
    for part, divisor in (("milliseconds", 1000), ("microseconds", 1_000_000)):
        if part in parts:
            columns.setdefault(
                "seconds", f"CAST(try_cast({parts[part]} AS DOUBLE) / {divisor} AS STRING)"
            )
    if "time" in parts:
        time = parts["time"]
        columns["ts"] = f"try_to_timestamp({time}, 'dd/MMM/yyyy:HH:mm:ss Z')"
        columns["zone"] = f"concat(substr({time}, -5, 3), ':', substr({time}, -2))"
    elif "iso_time" in parts:
        columns["ts"] = iso(parts["iso_time"])
        columns["zone"] = iso_zone(parts["iso_time"])
    else:
        for part, factor in (("epoch_s", 1_000_000), ("epoch_ms", 1000), ("epoch_us", 1)):
            if part in parts:
                columns["ts"] = epoch(parts[part], factor)
                columns["zone"] = "'+00:00'"
    return columns


ISO = r"^[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)$"


def iso(text: str) -> str:
    """Return the SQL expression for the moment of a time such as `2026-01-31T10:00:00.123+01:00`."""
    normal = rf"regexp_replace(replace({text}, ',', '.'), r'([+-]\d\d):?(\d\d)$', '$1:$2')"
    return f"CASE WHEN regexp_like({text}, r'{ISO}') THEN try_cast({normal} AS TIMESTAMP) END"


def iso_zone(text: str) -> str:
    """Return the SQL expression for the UTC offset of such a time."""
    return (
        f"CASE WHEN endswith({text}, 'Z') THEN '+00:00' "
        rf"ELSE regexp_replace({text}, r'(?s)^.*([+-]\d\d):?(\d\d)$', '$1:$2') END"
    )


def epoch(text: str, factor: int) -> str:
    """Return the SQL expression for the moment of a number of seconds since 1970.

    Args:
        factor: the microseconds of one unit of the number.
    """
    number = f"try_cast({text} AS DECIMAL(24, 6))"
    limit = 4_102_444_800_000_000 // factor  # the year 2100
    return (
        f"CASE WHEN {number} >= 0 AND {number} < {limit} "
        f"THEN timestamp_micros(CAST({number} * {factor} AS BIGINT)) END"
    )


COMBINED = from_pattern("combined", COMBINED_PATTERN, COMBINED_FIELDS)
"""common, combined and vhost_combined: they are told apart line by line."""


def from_format(text: str) -> LogFormat:
    """Return the format of an nginx `log_format` or an Apache `LogFormat` string.

    Raises:
        DataError: LOG_FORMAT_UNKNOWN: it can't be used; the message says why.
    """
    pattern, names = compile_format(text)
    return from_pattern(text, pattern, names)


# --- lines of JSON ---

_HEADERS = "MAP<STRING, ARRAY<STRING>>"
_CADDY = (
    "ts STRING, user_id STRING, status STRING, size STRING, duration STRING, request STRUCT<"
    "remote_ip: STRING, client_ip: STRING, method: STRING, host: STRING, uri: STRING, "
    f"headers: {_HEADERS}>"
)
_TRAEFIK = (
    "StartUTC STRING, StartLocal STRING, ClientHost STRING, ClientUsername STRING, "
    "RequestHost STRING, RequestMethod STRING, RequestPath STRING, DownstreamStatus STRING, "
    "DownstreamContentSize STRING, Duration STRING, `request_User-Agent` STRING, request_Referer STRING"
)


def _header(name: str) -> str:
    return f"get(try_element_at(f.request.headers, '{name}'), 0)"


CADDY = LogFormat(
    "caddy",
    f"from_json(line, '{_CADDY}')",
    {
        "ts": f"coalesce({epoch('f.ts', 1_000_000)}, {iso('f.ts')})",
        "zone": f"CASE WHEN regexp_like(f.ts, r'{ISO}') THEN {iso_zone('f.ts')} ELSE '+00:00' END",
        "site": "f.request.host",
        "host": "coalesce(nullif(f.request.client_ip, ''), f.request.remote_ip)",
        "user": "f.user_id",
        "method": "f.request.method",
        "path": "f.request.uri",
        "status": "f.status",
        "bytes": "f.size",
        "referer": _header("Referer"),
        "agent": _header("User-Agent"),
        "seconds": "f.duration",
    },
)
TRAEFIK = LogFormat(
    "traefik",
    f"from_json(line, '{_TRAEFIK}')",
    {
        "ts": f"coalesce({iso('f.StartUTC')}, {iso('f.StartLocal')})",
        "zone": f"CASE WHEN {iso('f.StartLocal')} IS NULL THEN {iso_zone('f.StartUTC')} "
        f"ELSE {iso_zone('f.StartLocal')} END",
        "site": "f.RequestHost",
        "host": "f.ClientHost",
        "user": "f.ClientUsername",
        "method": "f.RequestMethod",
        "path": "f.RequestPath",
        "status": "f.DownstreamStatus",
        "bytes": "f.DownstreamContentSize",
        "referer": "f.request_Referer",
        "agent": "f.`request_User-Agent`",
        "seconds": "CAST(try_cast(f.Duration AS DOUBLE) / 1000000000 AS STRING)",
    },
)
_BEACON = (
    "time STRING, site STRING, host STRING, agent STRING, path STRING, referrer STRING, ms STRING, "
    "country STRING, carrier STRING"
)
BEACON = LogFormat(
    "beacon",
    f"from_json(line, '{_BEACON}')",
    {
        "ts": epoch("f.time", 1),
        "zone": "'+00:00'",
        "site": "f.site",
        "host": "f.host",
        "method": "'GET'",
        "path": "f.path",
        "status": "'200'",
        "referer": "f.referrer",
        "agent": "f.agent",
        "seconds": "CAST(try_cast(f.ms AS DOUBLE) / 1000 AS STRING)",
        "country": "f.country",
        "carrier": "f.carrier",
    },
)
"""What the endpoint of the page script stores: a page view as JSON, its time in microseconds since 1970."""


# --- lines of the fields that a header names ---

_W3C_PARTS = {
    "date": "date",
    "time": "clock",
    "c-ip": "host",
    "cs-username": "user",
    "cs-method": "method",
    "cs-uri-stem": "path",
    "cs-uri-query": "query",
    "sc-status": "status",
    "sc-bytes": "bytes",
    "cs(referer)": "referer",
    "cs(user-agent)": "agent",
    "time-taken": "milliseconds",
    "cs-host": "site",
    "cs(host)": "site",
    "x-host-header": "site",
}
_NEEDED = ("date", "clock", "host", "status")
_W3C_SHAPES = {
    "date": r"[12]\d{3}-\d\d-\d\d",
    "clock": r"\d\d:\d\d:\d\d",
    "host": r"\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*+:[0-9A-Fa-f:.]*+(?:%\w+)?",
    "method": r"[A-Za-z][\w-]*+|-",
    "path": r"[/*][^{separator}\r\n]*+",
    "status": r"\d{3}",
    "bytes": rf"{NUMBER}|-",
    "milliseconds": rf"{DECIMAL}|-",
    "site": r"[\w.:\[\]-]*+",
}
"""How the values of fields look. A line with others was written with other fields than the header names."""


def from_header(header: str) -> LogFormat:
    """Return the format whose fields a line `#Fields: date time ...` names: IIS, W3C, CloudFront.

    Times are in UTC. IIS writes `+` for a space; CloudFront separates by tabs, writes values as in URLs,
    and durations in seconds instead of milliseconds. Lines that begin with `#` are skipped, but for headers that name
    other fields, which are malformed. So are lines with another number of fields, and those with a value that its field can't have.

    Raises:
        DataError: LOG_FORMAT_UNKNOWN: a needed field isn't among them.
    """
    names = header.removeprefix(HEADER).lower().split()
    cloudfront = "x-edge-location" in names
    separator = "\\t" if cloudfront else " "
    parts = {}
    for place, name in enumerate(names):
        if name in _W3C_PARTS:  # x-host-header comes after cs(host), and is the site's own name
            parts[_W3C_PARTS[name]] = f"get(f, {place})"
    if missing := [
        name for name, part in _W3C_PARTS.items() if part in _NEEDED and part not in parts
    ]:
        raise DataError(
            f"the header {header!r} doesn't name {', '.join(missing)}",
            condition="LOG_FORMAT_UNKNOWN",
            hint="let the server log these fields",
        )
    if cloudfront:
        parts["seconds"] = parts.pop("milliseconds", NOTHING)
        for part in parts.keys() & {"agent", "referer"}:
            parts[part] = (
                f"coalesce(try_url_decode(replace({parts[part]}, '+', '%2B')), {parts[part]})"
            )
    else:
        for part in parts.keys() & {"agent"}:
            parts[part] = f"replace({parts[part]}, '+', ' ')"
    columns = _columns(
        {part: text for part, text in parts.items() if part not in ("date", "clock")}
    )
    moment = f"concat({parts['date']}, ' ', {parts['clock']}, ' +0000')"
    columns["ts"] = (
        rf"CASE WHEN regexp_like({parts['date']}, r'^[12]\d{{3}}-') "
        f"THEN try_to_timestamp({moment}, 'yyyy-MM-dd HH:mm:ss Z') END"
    )
    columns["zone"] = "'+00:00'"
    values = separator.join(f"(?:{_shape(_W3C_PARTS.get(name, ''), separator)})" for name in names)
    split = rf"split(regexp_replace(line, r'\r$', ''), '{separator}')"
    fields = rf"CASE WHEN regexp_like(line, r'^{values}\r?\z') THEN {split} END"
    # compared by a hash, which is safe in SQL whatever a header holds
    known = hashlib.md5(" ".join(names).encode(), usedforsecurity=False).hexdigest()
    found = rf"md5(trim(regexp_replace(lower(substr(line, {len(HEADER) + 1})), r'\s+', ' ')))"
    comment = (
        f"startswith(line, '#') AND NOT (startswith(line, '{HEADER}') AND {found} <> '{known}')"
    )
    return LogFormat(header, fields, columns, f"coalesce({comment}, false)")


def _shape(part: str, separator: str) -> str:
    """Return the regular expression of a field."""
    shape = _W3C_SHAPES.get(part, r"[^{separator}\r\n]*+")
    return shape.replace("{separator}", separator)


TABS_HEADER = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes"
_TABS_PARTS = ("host", "user", "epoch_s", "method", "path", "status", "bytes", "referer", "agent")
TABS = LogFormat(
    "tabs",
    "split(line, '\\t', 12)",
    _columns({part: f"get(f, {place})" for place, part in enumerate(_TABS_PARTS)}),
    f"coalesce(startswith(line, '{TABS_HEADER}'), false)",
)
"""Columns separated by tabs, with times in seconds since 1970, under `TABS_HEADER`."""


# --- which one it is ---

NAMED = {"common": COMBINED, "combined": COMBINED, "vhost_combined": COMBINED}
NAMED |= {"caddy": CADDY, "traefik": TRAEFIK, "tabs": TABS}


def detect(lines: Iterable[str]) -> LogFormat:
    """Return the format of the first lines of a log, `SAMPLE_LINES` at most.

    Raises:
        DataError: LOG_FORMAT_UNKNOWN: it is none of those that can be told by their lines.

    Example:
        >>> detect(['::1 - - [01/Aug/2026:06:00:00 +0000] "GET / HTTP/1.0" 200 12']).name
        'combined'
    """
    combined = re.compile(COMBINED_PATTERN + r"\r?", re.ASCII)
    seen = ""
    for _, whole in zip(range(SAMPLE_LINES), lines, strict=False):
        line = whole.lstrip(BEFORE_LINES)
        if line.startswith(HEADER):
            return from_header(line.strip())
        if line.startswith(TABS_HEADER):
            return TABS
        if combined.fullmatch(line):
            return COMBINED
        if line.startswith("{") and (found := _json_format(line)):
            return found
        seen = seen or line.strip()
    raise DataError(
        f"the format of the log isn't known; it begins with {seen[:200]!r}"
        if seen
        else "the log has no line yet, so its format can't be told",
        condition="LOG_FORMAT_UNKNOWN",
        hint="give it with --log-format: a name, or the format string of the server's configuration",
    )


def _json_format(line: str) -> LogFormat | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(found.get("request"), dict) and "uri" in found["request"]:
        return CADDY
    return TRAEFIK if "DownstreamStatus" in found else None


def named(text: str) -> LogFormat:
    """Return the format of a name, a `#Fields:` line, or a format string of nginx or Apache.

    Raises:
        DataError: LOG_FORMAT_UNKNOWN: it is none of them.
    """
    if text in NAMED:
        return NAMED[text]
    if text.startswith(HEADER):
        return from_header(text)
    return from_format(text)
