"""Lines of access logs give the same requests as a plain Python parser; no line makes the SQL fail."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from random import Random
from urllib.parse import quote, unquote

import pytest

from eddyline.errors import DataError
from eddyline_apps.traffic import Traffic, damage
from eddyline_apps.webstats.log_formats import COLUMNS, detect, from_header, named
from eddyline_apps.webstats.patterns import compile_format

NGINX = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" rt=$request_time host=$host id="$cookie_sid" $upstream_status'
)
NGINX_ISO = "$time_iso8601|$remote_addr|$request_method|$request_uri|$status|$host"
NGINX_JSON = (
    '{"t":$msec,"ip":"$remote_addr","m":"$request_method","p":"$uri$is_args$args","s":$status}'
)
APACHE = r"%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D \"%{sid}C\""
IIS = (
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip "
    "cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken"
)
CLOUDFRONT = (
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
    "cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol "
    "cs-bytes time-taken"
)
FORMATS = ["combined", "caddy", "traefik", NGINX, NGINX_ISO, NGINX_JSON, APACHE, IIS, CLOUDFRONT]
IDS = [
    "combined",
    "caddy",
    "traefik",
    "nginx",
    "nginx-iso",
    "nginx-json",
    "apache",
    "iis",
    "cloudfront",
]
NAMES = [name for name, _ in COLUMNS]
EVIL = '<script>alert("x")</script>\' OR 1=1 -- \\ ${env:HOME} %{x}'


# --- requests, and how servers write them ---


def request(chance):
    moment = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(40 * 86_400))
    return {
        "moment": moment,
        "site": chance.choice(["www.example.com", "shop.example"]),
        "host": chance.choice(["192.0.2.7", "2001:db8::1", "client.example"]),
        "user": chance.choice([None, "ann"]),
        "cookie": chance.choice([None, "c0ffee"]),
        "method": chance.choice(["GET", "POST", "HEAD"]),
        "path": chance.choice(["/", "/a.html?x=1&y=2", "/caf%C3%A9", "/-", "/a/../b"]),
        "status": chance.choice([200, 304, 404, 500]),
        "bytes": chance.choice([0, 17, 123_456_789_012]),
        "referer": chance.choice([None, "https://search.example/?q=a+b"]),
        "agent": chance.choice([None, "Mozilla/5.0 (X11; Linux) Firefox/140.0", EVIL, "é\u2028ü"]),
        "seconds": chance.choice([0.0, 0.125, 61.5]),
        "country": None,
        "carrier": None,
    }


def offset(zone):
    sign = -1 if zone[0] == "-" else 1
    return timedelta(hours=sign * int(zone[1:3]), minutes=sign * int(zone[3:]))


def written(format, row, zone="+0530"):
    """A line of a format for a request, and what must be read of it."""
    local = row["moment"] + offset(zone)
    stamp = f"{local:%d/%b/%Y:%H:%M:%S} {zone}"
    iso = f"{local:%Y-%m-%dT%H:%M:%S}{zone[:3]}:{zone[3:]}"
    size = row["bytes"] or "-"

    def text(name, default="-"):
        value = row[name] or default
        return value.replace("\\", "\\\\").replace('"', '\\"')

    first = f"{row['method']} {row['path']} HTTP/1.1"
    tail = f'"{text("referer")}" "{text("agent")}"'
    read = {**row, "zone": f"{zone[:3]}:{zone[3:]}"}
    escaped = {name: row[name] and text(name) for name in ("agent", "referer")}
    if format == "combined":
        line = f'{row["site"]}:443 {row["host"]} - {text("user")} [{stamp}] "{first}" {row["status"]} {size} {tail}'
        return line, read | escaped | {"cookie": None, "seconds": None}
    if format == NGINX:
        line = (
            f'{row["host"]} - {text("user")} [{stamp}] "{first}" {row["status"]} {row["bytes"]} {tail} '
            f'rt={row["seconds"]:.3f} host={row["site"]} id="{text("cookie")}" 200, 502'
        )
        return line, read | escaped
    if format == NGINX_ISO:
        line = f"{iso}|{row['host']}|{row['method']}|{row['path']}|{row['status']}|{row['site']}"
        nothing = dict.fromkeys(("user", "cookie", "referer", "agent", "seconds"))
        return line, read | nothing | {"bytes": 0}
    if format == NGINX_JSON:
        epoch = f"{row['moment'].timestamp():.3f}"
        line = (
            f'{{"t":{epoch},"ip":"{row["host"]}","m":"{row["method"]}","p":"{row["path"]}",'
            f'"s":{row["status"]}}}'
        )
        nothing = dict.fromkeys(("user", "cookie", "referer", "agent", "seconds"))
        return line, read | nothing | {"bytes": 0, "site": "-", "zone": "+00:00"}
    if format == APACHE:
        line = (
            f'{row["site"]}:80 {row["host"]} - {text("user")} [{stamp}] "{first}" {row["status"]} '
            f'{row["bytes"]} {tail} {row["seconds"] * 1e6:.0f} "{text("cookie")}"'
        )
        return line, read | escaped
    utc = {"zone": "+00:00", "cookie": None}
    if format in (IIS, CLOUDFRONT) and row["host"] == "client.example":
        row = {**row, "host": "fe80::1%3"}  # they have no names
        read = {**read, "host": row["host"]}
    stem, _, query = row["path"].partition("?")
    if format == IIS:
        agent = (row["agent"] or "-").replace(" ", "+")
        line = (
            f"{row['moment']:%Y-%m-%d %H:%M:%S} 10.0.0.1 {row['method']} {stem} {query or '-'} 443 "
            f"{row['user'] or '-'} {row['host']} {agent} {row['referer'] or '-'} {row['status']} 0 0 "
            f"{row['seconds'] * 1000:.0f}"
        )
        return line, read | utc | {
            "site": "-",
            "bytes": 0,
            "agent": row["agent"] and row["agent"].replace("+", " "),
        }
    if format == CLOUDFRONT:
        values = [
            f"{row['moment']:%Y-%m-%d}", f"{row['moment']:%H:%M:%S}", "FRA2", str(row["bytes"]),
            row["host"], row["method"], "d1.cloudfront.net", stem, str(row["status"]),
            row["referer"] or "-", quote(row["agent"] or "-"), query or "-", "-", "Hit", "id",
            row["site"], "https", "23", f"{row['seconds']:.3f}",
        ]  # fmt: skip
        return "\t".join(values), read | utc | {"user": None}
    if format == "caddy":
        headers = {}
        if row["agent"]:
            headers["User-Agent"] = [row["agent"]]
        if row["referer"]:
            headers["Referer"] = [row["referer"]]
        document = {
            "level": "info",
            "ts": row["moment"].timestamp() + 0.25,
            "request": {
                "remote_ip": "10.9.9.9",
                "client_ip": row["host"],
                "method": row["method"],
                "host": f"{row['site']}:8443",
                "uri": row["path"],
                "headers": headers,
            },
            "user_id": row["user"] or "",
            "duration": row["seconds"],
            "size": row["bytes"],
            "status": row["status"],
        }
        return json.dumps(document), read | utc | {
            "moment": row["moment"] + timedelta(milliseconds=250)
        }
    assert format == "traefik"
    document = {
        "ClientHost": row["host"],
        "ClientUsername": row["user"] or "-",
        "DownstreamContentSize": row["bytes"],
        "DownstreamStatus": row["status"],
        "Duration": round(row["seconds"] * 1e9),
        "RequestHost": row["site"],
        "RequestMethod": row["method"],
        "RequestPath": row["path"],
        "StartLocal": iso,
        "StartUTC": f"{row['moment']:%Y-%m-%dT%H:%M:%S}.000000001Z",
    }
    if row["agent"]:
        document["request_User-Agent"] = row["agent"]
    if row["referer"]:
        document["request_Referer"] = row["referer"]
    return json.dumps(document, ensure_ascii=False), read | {"cookie": None}


# --- a plain parser of the combined formats, to compare with on random text ---

PLAIN = re.compile(
    r"(?:((?:[^\s,:]+|\[[^\s,\]]*\])(?=:\d+ )|[^\s,]+(?= \S*[.:]))(?::\d+)? )?"
    r"([^\s,]+) (?:-|[^\s,]+(?= \S+ \[)) ((?:(?! \[\d\d/\w{3}/[12][\d:]+ [+-]\d{4}\] \x22)[^\r\n])*) \[(\d\d)/(\w{3})/([12]\d{3}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)\] "
    r'"((?:[^"\\\n]|\\[^\n\r\x85\u2028\u2029])*)" (\d{3}) (-?\d+|-)'
    r'(?: "((?:[^"\\\n]|\\[^\n\r\x85\u2028\u2029])*)" "((?:[^"\\\n]|\\[^\n\r\x85\u2028\u2029])*)")?\r?',
    re.ASCII,
)
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def plain(line):
    """The request of a line, None if it is malformed."""
    match = PLAIN.fullmatch(line)
    if not match:
        return None
    site, host, user, day, month, year, hour, minute, second, sign, hours, minutes, first = (
        match.groups()[:13]
    )
    status, size, referer, agent = match.groups()[13:]
    shift = timedelta(hours=int(hours), minutes=int(minutes))
    if month not in MONTHS or int(minutes) > 59 or shift > timedelta(hours=18):
        return None
    try:
        local = datetime(
            int(year),
            MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    method, _, rest = first.partition(" ")
    path = re.sub(r" HTTP/[^ ]+\Z", "", rest.lstrip(" ")) if method and rest else ""
    return {
        "moment": local - shift if sign == "+" else local + shift,
        "zone": f"{sign}{hours}:{minutes}",
        "site": re.sub(r"^([^:]*|\[.*\]):[0-9]+\Z", r"\1", site.lower()) if site else "-",
        "host": host,
        "user": None if user in ("", "-", '""') else user,
        "cookie": None,
        "method": method if method not in ("", "-") else "-",
        "path": path,
        "status": int(status),
        "bytes": 0 if size == "-" or not 0 <= int(size) < 10**12 else int(size),
        "referer": None if referer in ("", "-") else referer,
        "agent": None if agent in ("", "-") else agent,
        "seconds": None,
        "country": None,
        "carrier": None,
    }


def mutated(line, chance):
    """A line with a few characters changed, so that some still parse."""
    letters = list(line)
    for _ in range(chance.randrange(3) if line else 0):
        place = chance.randrange(len(letters))
        kind = chance.randrange(3)
        if kind == 0:
            del letters[place]
        elif kind == 1:
            letters.insert(place, chance.choice(' "\\[]:-/09aé\r\t\u2028'))
        else:
            letters[place] = chance.choice(' "\\[]:-/09aé')
    return "".join(letters)


# --- without a JVM ---


def test_format_strings_become_patterns_that_match_their_lines():
    for text in (NGINX, NGINX_ISO, NGINX_JSON, APACHE):
        pattern, names = compile_format(text)
        line, read = written(text, request(Random(1)))
        match = re.fullmatch(pattern, line)
        assert match, text
        assert match[names.index("host") + 1] == read["host"]


def value_in(format, line, name):
    """Return the value of a name in a line of a format; None if it isn't one of its lines."""
    pattern, names = compile_format(format)
    match = re.fullmatch(pattern, line)
    return match and match[names.index(name) + 1]


@pytest.mark.parametrize(
    ("format", "values", "site"),
    [
        ("$upstream_addr $host", "10.0.0.1:80, 10.0.0.2:80 a.example", "a.example"),
        ("$upstream_status $host", "502, 502 : 200, 200 a.example", "a.example"),
        ("$upstream_status : $host", "502, 200 : a.example", "a.example"),
        ("$http_x_forwarded_for $host", "- a.example", "a.example"),
        ("$http_x_forwarded_for - $host", "192.0.2.1,192.0.2.2, x - a.example", "a.example"),
        ("$http_x_forwarded_for $host", "192.0.2.1 192.0.2.2 a.example", None),
        ("$host", "10.0.0.2:80 a.example", None),
        ("[$host]", "[10.0.0.2:80 a.example]", None),
        ("$host $http_user_agent", "a.example Mozilla/5.0 (X11)", "a.example"),
        ("$host $http_x_other", "a.example anything, that is", "a.example"),
    ],
)
def test_values_without_quotes_have_no_spaces_but_lists_do(format, values, site):
    whole = f'$remote_addr [$time_local] "$request" $status {format}'
    line = f'192.0.2.1 [01/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 {values}'
    assert value_in(whole, line, "site") == site


@pytest.mark.parametrize(
    ("format", "line"),
    [
        (r"$remote_addr\t$status\t[$time_local]", "192.0.2.1\t200\t[TIME]"),
        ("$remote_addr\t$status\t[$time_local]", "192.0.2.1\t200\t[TIME]"),
        (
            r"$remote_addr [$time_local] \"$request\" $status",
            '192.0.2.1 [TIME] "GET / HTTP/1.1" 200',
        ),
        (r"$remote_addr \'$status\' \\ [$time_local]", r"192.0.2.1 '200' \ [TIME]"),
        (r"$remote_addr \x $status [$time_local]", r"192.0.2.1 \x 200 [TIME]"),
        (r"%h\t%>s \"%r\" \\ %t", '192.0.2.1\t200 "GET / HTTP/1.1" \\ [TIME]'),
    ],
)
def test_a_backslash_is_read_as_servers_read_it(format, line):
    assert value_in(format, line.replace("TIME", "01/Mar/2026:10:00:00 +0000"), "status") == "200"


@pytest.mark.parametrize(
    "format", ["$remote_addr - $remote_user [$time_local] $status", "%h %l %u %t %s"]
)
@pytest.mark.parametrize("user", ["-", "ann lee", " ", "a [b] ", "10.0.0.1 - [x"])
def test_a_login_before_the_date_may_hold_spaces(format, user):
    assert value_in(format, f"192.0.2.1 - {user} [01/Mar/2026:10:00:00 +0000] 200", "user") == user


@pytest.mark.parametrize(
    "format",
    ["$remote_addr $host:$server_port [$time_local] $status", "%h %V:%p %t %>s", "%h %v:%p %t %>s"],
)
@pytest.mark.parametrize("site", ["a.example", "[2001:db8::5]", "[x]y", "[x", ""])
def test_a_site_before_a_port_may_be_an_address_in_brackets(format, site):
    assert (
        value_in(format, f"192.0.2.1 {site}:443 [01/Mar/2026:10:00:00 +0000] 200", "site") == site
    )


def test_lists_of_apache_are_one_value():
    line = "192.0.2.1, 192.0.2.2 192.0.2.3 [01/Mar/2026:10:00:00 +0000] 200"
    assert value_in("%{X-Forwarded-For}i %h %t %>s", line, "host") == "192.0.2.3"


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ("combinde", "no name of a format"),
        ("$remote_addr $status", "no time"),
        ("%h %t", "no status"),
        ("$http_x_forwarded_for [$time_local] $status", "real_ip_header of nginx or mod_remoteip"),
        ("$remote_addr$status [$time_local]", "nothing is between"),
        ("%h %{%d/%m}t %s", "form of time"),
        ("#Fields: date time cs-method", "c-ip, sc-status"),
        ("log_format main '$remote_addr [$time_local] $status';", "a whole directive"),
        (r'LogFormat "%h %l %u %t \"%r\" %>s %b" common', "without the name and the quotes"),
        ("$remote_addr [$time_local] $status\\n$host", "a line end"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused(format, reason):
    with pytest.raises(DataError, match="LOG_FORMAT_UNKNOWN") as caught:
        named(format)
    assert reason in str(caught.value)


def test_formats_are_detected():
    for name in ("combined", "caddy", "traefik"):
        lines = ["", "\x16\x03", "{", "[1]", written(name, request(Random(2)))[0]]
        assert detect(lines).name == name
        assert detect(["\ufeff" + lines[-1]]).name == name
    for header in (IIS, CLOUDFRONT):
        assert detect(["#Version: 1.0", header]) == from_header(header)
        assert detect(["\ufeff" + header]) == from_header(header)
    with pytest.raises(DataError, match="begins with 'a b'"):
        detect(["a b"] * 5)
    with pytest.raises(DataError, match="no line yet"):
        detect([])


# --- with Spark ---


@pytest.fixture(scope="module")
def session(spark):
    from eddyline.spark.session import ZONE, cloned

    return cloned(spark, **{ZONE: "Asia/Kathmandu"})  # nothing may depend on it


@pytest.fixture
def parsed(session, tmp_path):
    """The rows that a format reads of lines, by `seq`."""

    def run(format, lines):
        import pyarrow as pa
        import pyarrow.parquet as pq

        without_marks = [text and text.lstrip("\0\ufeff") for text in lines]
        path = tmp_path / "lines.parquet"
        table = pa.table({"line": pa.array(lines, pa.string()), "seq": range(len(lines))})
        pq.write_table(table, path)
        session.read.parquet(str(path)).createOrReplaceTempView("log_lines")
        query = session.sql(
            f"SELECT *, unix_micros(ts) AS micros FROM ({named(format).query('log_lines')})"
        )
        kinds = dict(query.dtypes)
        assert [kinds[name] for name in NAMES] == [kind.lower() for _, kind in COLUMNS]
        rows = query.collect()
        assert all(row.line == without_marks[row.seq] for row in rows)
        return {row.seq: row for row in rows}

    return run


def columns_of(read):
    """What the columns of a request must hold."""
    micros = read["moment"] - datetime(1970, 1, 1, tzinfo=UTC)
    return [micros // timedelta(microseconds=1), *(read[name] for name in NAMES[1:])]


def found(row):
    return [row.micros, *(row[name] for name in NAMES[1:])]


NOTHING = [None] * len(NAMES)


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_requests_are_read_as_they_were_written(format, parsed):
    chance = Random(format)
    pairs = [
        written(format, request(chance), chance.choice(["+0000", "-0400", "+0530"]))
        for _ in range(200)
    ]
    rows = parsed(format, [line for line, _ in pairs])
    assert len(rows) == 200
    for seq, (line, read) in enumerate(pairs):
        assert found(rows[seq]) == columns_of(read), line


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_nuls_and_a_byte_order_mark_before_a_line_are_no_part_of_it(format, parsed):
    line, read = written(format, request(Random(4)))
    before = ["\ufeff", "\0", "\0" * 4096, ""]
    rows = parsed(format, [text + line for text in before])
    assert [found(rows[seq]) for seq in range(len(before))] == [columns_of(read)] * len(before)


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_no_line_makes_a_format_fail(format, parsed):
    chance = Random(7)
    good = [written(format, request(chance))[0] for _ in range(50)]
    bad = [
        None, "", " ", "\n" * 30, "\t" * 30, " " * 30, "-", "{", "{}", "[]", "null", "1", '{"ts":',
        '{"ts":1e999,"status":200,"request":{}}', '{"request":{"headers":{"a":["b"],"a":["c"]}}}',
        '{"ts":"x","request":{"headers":5}}', "[" * 5000, '{"a":' * 5000, '{"request":' * 1500,
        "x" * 1_000_000, "x " * 300_000, '"' * 300_000, "\\" * 300_001, '\\"' * 300_000, "\t" * 300_000,
        "\x00\x16\x03\x01", "\ud7ff\uffff", EVIL, "#", "#Fields: x", "::1 - " + f" {STAMP} \"a" * 20_000,
    ]  # fmt: skip
    cut = [line[: chance.randrange(len(line))] for line in good]
    odd = [line.replace("2026", chance.choice(["0000", "9999", "20x6", ""])) for line in good]
    noise = ["".join(map(chr, chance.choices(range(1, 0x2FF), k=80))) for _ in range(200)]
    mixed = [mutated(line, chance) for line in good * 4]
    lines = [*bad, *cut, *odd, *noise, *mixed, *good]
    rows = parsed(format, lines)
    skipped = format in (IIS, CLOUDFRONT)
    assert rows.keys() == {
        seq
        for seq, line in enumerate(lines)
        if not (skipped and line and line.startswith("#") and not line.startswith("#Fields:"))
    }
    for seq, row in rows.items():
        complete = row.ts is not None
        assert complete or found(row) == NOTHING
        assert not complete or None not in (
            row.zone,
            row.site,
            row.host,
            row.method,
            row.path,
            row.status,
            row.bytes,
        )
        if seq < len(bad):
            assert not complete, lines[seq][:80]
        if seq >= len(lines) - len(good):
            assert complete, lines[seq]


STAMP = "[01/Mar/2026:10:00:00 +0000]"
SITES = {
    "a.example 192.0.2.1 - -": ("a.example", "192.0.2.1", None),
    "A.example ::1 - ann": ("a.example", "::1", "ann"),
    "default www.client.example - -": ("default", "www.client.example", None),
    "[::1] 192.0.2.1 - -": ("[::1]", "192.0.2.1", None),
    "a.example:80 client - -": ("a.example", "client", None),
    "192.0.2.1 - -": ("-", "192.0.2.1", None),
    "::1 - -": ("-", "::1", None),
    "192.0.2.1 id.example ann": ("-", "192.0.2.1", "ann"),
    "192.0.2.1 - ann 192.0.2.2": ("-", "192.0.2.1", "ann 192.0.2.2"),
    "192.0.2.1 - 192.0.2.2 -": ("-", "192.0.2.1", "192.0.2.2 -"),
    "192.0.2.1 - a [01/Mar/2026:10:00:00 +0000]": (
        "-",
        "192.0.2.1",
        "a [01/Mar/2026:10:00:00 +0000]",
    ),
    '192.0.2.1 - ""': ("-", "192.0.2.1", None),
    "2001:db8::80 - ann lee": ("-", "2001:db8::80", "ann lee"),
    "a.example 192.0.2.1 - ann lee": ("a.example", "192.0.2.1", "ann lee"),
    "2001:db8::80 2001:db8::1 - -": ("2001:db8::80", "2001:db8::1", None),
    "[2001:db8::80]:443 2001:db8::1 - -": ("[2001:db8::80]", "2001:db8::1", None),
    "a.example client - -": None,
    "192.0.2.1 id ann lee": None,
    "198.51.100.7, 10.0.0.2 - -": None,  # nobody knows who of them is the client
    "10.0.0.2 198.51.100.7, 10.0.0.3 - -": None,
    "10.0.0.2 198.51.100.7,10.0.0.3 -": None,
}
MEASURED = {
    "combined": f'192.0.2.1 - - {STAMP} "GET / HTTP/1.1" 200 SIZE',
    "caddy": '{"ts":1772000000,"request":{"remote_ip":"::1","uri":"/"},"status":200,"size":SIZE,"duration":TOOK}',
    "traefik": '{"StartUTC":"2026-03-01T10:00:00Z","ClientHost":"::1","DownstreamStatus":200,'
    '"DownstreamContentSize":SIZE,"Duration":TOOK}',
    "$remote_addr [$time_local] $status $bytes_sent $request_time": f"::1 {STAMP} 200 SIZE TOOK",
    "%h %t %>s %B %D": f"::1 {STAMP} 200 SIZE TOOK",
    "#Fields: date time c-ip sc-status sc-bytes time-taken": "2026-03-01 10:00:00 ::1 200 SIZE TOOK",
}


@pytest.mark.spark
def test_a_site_needs_no_port(parsed):
    lines = [f'{start} {STAMP} "GET / HTTP/1.1" 200 1' for start in SITES]
    for (start, read), (_, row) in zip(
        SITES.items(), sorted(parsed("combined", lines).items()), strict=True
    ):
        found = (row.site, row.host, row.user) if row.ts else None
        assert found == read, start
    assert detect(lines[:1]).name == "combined"


@pytest.mark.spark
@pytest.mark.parametrize(
    "format",
    ["combined", '$remote_addr - $remote_user [$time_local] "$request" $status $bytes_sent'],
)
def test_two_lines_that_were_joined_are_no_request(format, parsed):
    whole = f'10.0.0.1 - ann lee {STAMP} "GET / HTTP/1.1" 200 10'
    other = whole.replace("10.0.0.1", "10.0.0.2")
    torn = [whole[:end] + other for end in range(whole.index('"') + 1, len(whole))]
    rows = parsed(format, [whole, *torn])
    assert (rows[0].host, rows[0].user) == ("10.0.0.1", "ann lee")
    assert [row.ts for seq, row in rows.items() if seq] == [None] * len(torn)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("local", "zone"),
    [
        ('"2026-03-01T15:30:00+05:30"', "+05:30"),
        ('"2026-03-01T11:00:00+25:00"', "+00:00"),  # it is no time: that in UTC counts
        ('"2026-03-01T11:00:00+18:30"', "+00:00"),
        ('"x"', "+00:00"),
        ("null", "+00:00"),
    ],
)
def test_a_zone_that_cannot_be_is_not_one(local, zone, parsed, session):
    line = MEASURED["traefik"].replace("SIZE", "1").replace("TOOK", "1")
    rows = parsed("traefik", [line[:-1] + f',"StartLocal":{local}}}'])
    assert rows[0].zone == zone
    assert session.sql(f"SELECT convert_timezone('UTC', '{zone}', localtimestamp())").count() == 1


@pytest.mark.spark
@pytest.mark.parametrize("format", MEASURED)
def test_sizes_and_durations_that_cannot_be_are_missing(format, parsed):
    most = 10**12 - 1
    sizes = [0, most, most + 1, 9 * 10**18, 10**40, -1]
    times = [0, 0, -1, 10**40, 0, 0]
    if format in ("caddy", "traefik"):
        times[4:] = ['"NaN"', "1e999"]
    lines = [
        MEASURED[format].replace("SIZE", str(size)).replace("TOOK", str(took))
        for size, took in zip(sizes, times, strict=True)
    ]
    rows = [row for _, row in sorted(parsed(format, lines).items())]
    assert all(row.status == 200 for row in rows)
    assert [row.bytes for row in rows] == [0, most, 0, 0, 0, 0]
    none = format == "combined"
    assert [row.seconds for row in rows] == [None if took or none else 0 for took in times]


@pytest.mark.spark
def test_random_lines_are_read_as_by_a_plain_parser(parsed):
    chance = Random(11)
    log = [line for batch in Traffic(lines=3000, seed=5).batches(1000) for line in batch]
    lines = [
        damage(line, n) if n % 10 == 0 else mutated(line, chance) for n, line in enumerate(log)
    ]
    lines += [line.replace('"GET ', '"GET  ') for line in log[:9]]
    rows = parsed("combined", lines)
    complete = 0
    for seq, line in enumerate(lines):
        read = plain(line)
        complete += read is not None
        assert found(rows[seq]) == (columns_of(read) if read else NOTHING), line
    assert 0.3 < complete / len(lines) < 0.9


@pytest.mark.spark
def test_agents_of_cloudfront_that_are_no_urls_stay_as_they_are(parsed):
    row = request(Random(3)) | {"agent": "x"}
    line = written(CLOUDFRONT, row)[0].replace("\tx\t", "\tMozilla%2\t", 1)
    assert unquote("Mozilla%2") == parsed(CLOUDFRONT, [line])[0].agent


@pytest.mark.spark
def test_columns_under_their_header_are_read(parsed):
    lines = [
        "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent",
        "a.example\t-\t807256800\tGET\t/x\t200\t1713\t\tReader",
        "a.example\t-\tsoon\tGET\t/\t200\t1\t\t",
    ]
    assert detect(lines).name == "tabs"
    rows = parsed("tabs", lines)
    assert found(rows[1])[:9] == [
        807_256_800_000_000, "+00:00", "-", "a.example", None, None, "GET", "/x", 200
    ]  # fmt: skip
    assert found(rows[1])[9:] == [1713, None, "Reader", None, None, None]
    assert found(rows[2]) == NOTHING
    assert 0 not in rows


@pytest.mark.spark
def test_lines_after_a_change_of_fields_are_not_read_by_the_first_header(parsed):
    header = "#Fields: date time c-ip cs-method cs-uri-stem sc-status time-taken cs-host"
    line = "2026-03-01 10:00:00 192.0.2.7 GET /a 200 12 www.example.org"
    names, values = header.split()[1:], line.split()
    changed = []
    for place, other in combinations(range(len(names)), 2):
        order = list(range(len(names)))
        order[place], order[other] = other, place
        changed.append("#Fields: " + " ".join(names[one] for one in order))
        changed.append(" ".join(values[one] for one in order))
    lines = [
        "#Version: 1.0",
        header,
        line,
        "#Date: x",
        "#Fields:  DATE " + header[13:] + " \r",
        line,
        *changed,
    ]
    rows = parsed(header, lines)
    assert rows.keys() == {2, 5, *range(6, len(lines))}
    assert all(found(rows[seq])[3] == "192.0.2.7" for seq in (2, 5))
    assert all(found(rows[seq]) == NOTHING for seq in range(6, len(lines)))
