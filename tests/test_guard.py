"""The views of the guard: rates, limits, offenders and the block list, live and equal to offline."""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
import tempfile
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest

from console_cases import TOKEN, ask
from dns_server import SILENT, name_server
from eddyline.errors import DataError, EngineError, ScriptError, StorageError
from eddyline_apps import guard, views
from eddyline_apps.guard import decisions, service
from eddyline_apps.guard.config import Notification, load_config
from eddyline_apps.guard.notifying import sink_name
from eddyline_apps.guard.placing import SeenNetworks
from eddyline_apps.guard.reading import Line
from eddyline_apps.guard.running import follow
from eddyline_apps.guard.service import Guard
from eddyline_apps.guard.tables import LINES, allowed_row, create, parse_target, script
from mmdb_files import carriers, countries
from test_console_pages import Tags, page

EVIL = "<script>window.pwned=1</script>'&</td>"
EVIL_AGENT = "Mozilla/5.0 (<img src=x onerror=window.pwned=1>)"
PICTURES = Path(__file__).parents[1] / "build" / "guard"
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
RULES = [
    # rule, subject, metric, window_s, share, times, quantile, at_least, at_most, addresses, block_s, baseline
    ("flood", "address", "requests", 10, 0.2, None, None, 40.0, 1e15, 1, 30, False),
    ("network flood", "network", "requests", 10, 0.3, None, None, 50.0, 1e15, 10, 30, False),
    ("scraper", "visitor", "pages", 300, None, 5.0, 0.9, 20.0, 1e15, 1, 30, False),
    ("guessing", "address", "logins", 60, None, None, None, 8.0, 1e15, 1, 30, False),
]


LOGINS = [
    "/wp-login.php", "/log%69n", "//Login", "/./login?x=%", "/%6C%4fg-in/", "/a+b/login;id=1", "/%zz/login",
    "/login#x",
]  # fmt: skip


def line(address, second, path="/", method="GET", status=200, agent="Browser", took=" 0.250"):
    moment = START + timedelta(seconds=second)
    return (
        f'{address} - - [{moment:%d/%b/%Y:%H:%M:%S +0000}] "{method} {path} HTTP/1.1" {status} 12 '
        f'"-" "{agent}"{took}'
    )


def normal(count, second, seconds):
    """Each of `count` visitors gets three pages with two images each, over some seconds."""
    return [
        line(f"198.51.{visitor}.7", second + seconds * n // 9, f"/p{n}{'.png' * (n % 3 > 0)}")
        for visitor in range(count)
        for n in range(9)
    ]


CONFIG = """
rules:
  flood: {by: address, metric: requests, window: 10 s, share: 0.2, at_least: 40, block: 30 s}
  network flood: {by: network, metric: requests, window: 10 s, share: 0.3, at_least: 50, block: 30 s}
  scraper:
    {by: visitor, metric: pages, window: 5 min, times: 5, quantile: 0.9, at_least: 20, block: 30 s}
  guessing: {by: address, metric: logins, window: 1 min, at_least: 8, block: 30 s}
allow: [203.0.113.64/26]
"""


def configured(tmp_path, more=""):
    """Load CONFIG with more settings, or with other rules."""
    path = tmp_path / "guard.yml"
    path.write_text(more if more.startswith("rules:") else CONFIG + more)
    return load_config(path)


class Guarded:
    """An engine with the tables and views of the guard, and a clock that the test sets."""

    def __init__(self, engine):
        self.engine = engine
        self.tables, self.views = create(engine, views(script()))

    def read(self, lines, second):
        now = START + timedelta(seconds=second)
        size = len(lines)
        rows = [["a"] * size, list(range(size)), lines, [now] * size]
        self.tables["log_lines"].insert(pa.table(rows, schema=LINES))
        self.at(second)

    def at(self, second):
        self.tables["clock"].upsert([(1, START + timedelta(seconds=second))])
        self.engine.advance()

    def settle(self, guard, second):
        """One look of the guard at the log, without new lines."""
        now = START + timedelta(seconds=second)
        guard.tick(now)
        self.engine.advance()
        freed = guard.release(now)
        admitted = [one.target for one in guard.admit(now)]
        self.engine.advance()
        return admitted, freed

    def rows(self, query):
        return [tuple(row) for row in self.engine.sql(query).collect()]


@pytest.fixture(scope="module")
def guarded():
    from eddyline.api.engine import Engine

    with Engine(tempfile.mkdtemp()) as engine:
        yield Guarded(engine)


# --- without a JVM ---


def test_targets_are_addresses_or_nothing():
    assert str(parse_target("192.0.2.7")) == "192.0.2.7/32"
    assert str(parse_target("2001:db8:1::/48")) == "2001:db8:1::/48"
    zones = ("fe80::1%eth0", "fe80::1%x; } http { fake; #")  # which Python takes for addresses
    wrong = ("192.0.2.1; load_module x", "a.example", "", "999.1.1.1", "192.0.2.1/24")
    for hostile in (*wrong, *zones):
        assert parse_target(hostile) is None


def test_keys_of_the_allow_list():
    assert allowed_row(ip_network("192.0.2.9"))[1:] == ("0" * 20 + "ffffc0000209",) * 2
    _, first, last = allowed_row(ip_network("2001:db8:7::/48"))
    assert (first, last) == ("20010db80007" + "0" * 20, "20010db80007" + "f" * 20)


def test_ipv4_in_the_form_of_ipv6_is_decided_on_as_ipv4():
    decision = decisions.parse_decision("block", "::ffff:192.0.2.7", "1 h", "ann", "scans")
    assert str(decision.target) == "192.0.2.7/32"
    with pytest.raises(DataError, match="is too wide"):
        decisions.parse_decision("block", "::ffff:192.0.0.0/104", "1 h", "ann", "scans")


def test_configuration_gives_the_rows_of_the_rules(tmp_path):
    config = configured(tmp_path)
    assert [rule.row for rule in config.rules] == RULES
    assert [str(one) for one in config.allow] == ["203.0.113.64/26"]
    assert config.keep_s == 300 + 30 + 60
    assert (config.capacity, config.new_blocks_per_minute, config.dry_run) == (None, 30, False)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("capasity: 3", "capasity: there is no such setting"),
        ("capacity: many", "capacity: 'many' isn't allowed"),
        ("capacity: -1", "capacity: -1 isn't allowed"),
        ("dry_run: perhaps", "dry_run: 'perhaps' isn't allowed"),
        ("rules: {}", ".yml: rules: there are no rules"),
        ("rules: [a]", "rules: it isn't a mapping"),
        ("rules: {a: {by: host}}", "rules.a.by: 'host' isn't allowed"),
        ("rules: {a: {by: address, metric: pages, window: 7 s}}", "rules.a.window: there are no"),
        ("rules: {a: {by: address, metric: pages, window: soon}}", "rules.a.window: 'soon' isn't"),
        (
            "rules: {a: {by: address, metric: pages, window: 1 s, at_least: 2}}",
            "rules.a.at_least: 2 isn't allowed",
        ),
        (
            "rules: {a: {by: network, metric: pages, window: 1 s, times: 2, at_least: 9}}",
            "rules.a.times: there are no quantiles of pages by network",
        ),
        ("rules: {a: {by: address, metric: pages, at_least: 9}}", "rules.a.window: it is missing"),
        (
            "rules: {a: {by: address, metric: pages, window: 1 s, at_least: 9}}",
            "rules.a.block: it is missing",
        ),
        ("rules: {a: {metric: pages}}", "rules.a.by: it is missing"),
        (
            "rules: {a: {by: visitor, metric: pages, window: 1 s, at_least: 9, addresses: 3}}",
            "rules.a.addresses: only a rule by network counts addresses, and this one is by visitor",
        ),
        (
            "rules: {a: {by: network, metric: pages, window: 1 s, at_least: 9, addresses: 2.5}}",
            "rules.a.addresses: 2.5 isn't allowed",
        ),
        ("rules:\n  404: {}", "rules.404: YAML reads this name in line 2 as int, not as text"),
        ("rules:\n  on: {}", 'Way out: write it in quotes: "on"'),
        ("rules: {a: {}, b: {},\n a: {}}", "rules.a: it is given twice, in line 1 and in line 2"),
        ("allow: []", "allow: it is given twice, in line 8 and in line 9"),
        (
            "notify: [{to: nginx, file: f,\n file: g}]",
            "notify[0].file: it is given twice, in line 9 and in line 10",
        ),
        ("new_blocks_per_minute: 2.7", "new_blocks_per_minute: 2.7 isn't allowed"),
        ("sql: nope.sql", "guard.yml: sql: "),
        ("rules: {a: &a {by: a}, b: {<<: *a, by: host}}", "rules.a.by: 'a' isn't allowed"),
        ("zone: UTC\nallow: [192.0.2.1/24]", "allow: it is given twice"),
        ("notify: [{to: pigeon}]", "notify[0].to: 'pigeon' isn't allowed"),
        ("notify: [{to: nginx}]", "notify[0].file: it is missing"),
        ("notify: [{to: nginx, file: f, url: u}]", "notify[0].url: there is no such setting"),
        ("notify: [{to: nginx, file: f, signal: KILL}]", "notify[0].signal: 'KILL' isn't allowed"),
        ("notify: [{to: nginx, file: f, signal: HUP}]", "notify[0].signal: there is no pid"),
        (
            "capacity: 1e3",
            "capacity: YAML reads '1e3' as text Way out: give a number from 1, written like 1000",
        ),
        ("capacity: '75'", "written like 75, without quotes"),
        ("places: nope.csv", "guard.yml: places: "),
        ("places: 3", "guard.yml: places: "),
        ("notify: [{to: nftables, file: f, set: 'a; x'}]", "notify[0].set: 'a; x' isn't a set"),
        ("notify: [{to: nftables, file: f, set: 'a b'}]", "notify[0].set: 'a b' isn't a set"),
        ("notify: [{to: nftables, file: f, table: inet}]", "notify[0].table: 'inet' isn't a table"),
        ("notify: [{to: nftables, file: f, table: blah filter}]", "write its family and its name"),
        ("notify: [{to: nftables, file: f, table: inet a b}]", "'inet a b' isn't a table"),
        ("notify: [{to: webhook, url: 'nowhere'}]", "notify[0]: "),
        ("notify: [{to: webhook, url: 'https://x/', timeout: soon}]", "the option timeout"),
        ("notify: [{to: webhook, url: 'https://x/', secret: abc}]", "stored in the clear"),
        (
            "notify:\n- {to: nginx, file: f}\n- {to: haproxy, file: f}",
            "notify[1]: it goes to the same place as notify[0]",
        ),
        (
            "notify:\n- {to: nginx, file: /tmp/f}\n- {to: haproxy, file: /tmp/./x/../f}",
            "notify[1]: it goes to the same place as notify[0]",
        ),
        ("rules: {", "can't be read"),
        ("rules: " + 2000 * "[" + 2000 * "]", "it nests too deeply"),
    ],
)
def test_wrong_configuration_is_named(tmp_path, more, place):
    with pytest.raises(ScriptError, match="BAD_CONFIG") as caught:
        configured(tmp_path, more)
    assert place in str(caught.value)
    assert str(tmp_path / "guard.yml") in str(caught.value)
    assert caught.value.hint


def test_an_empty_configuration_is_named(tmp_path):
    (tmp_path / "guard.yml").write_text("# nothing yet\n")
    with pytest.raises(ScriptError, match=r"BAD_CONFIG.*guard\.yml: the file: it is empty"):
        load_config(tmp_path / "guard.yml")


def test_names_of_nftables_may_have_dashes(tmp_path):
    more = "notify: [{to: nftables, file: f, table: ip6 my-filter.v2, set: bad-ones}]"
    (found,) = configured(tmp_path, more).notify
    assert [found.options[name] for name in ("table", "set")] == ["ip6 my-filter.v2", "bad-ones"]


def test_a_missing_configuration_is_named(tmp_path):
    with pytest.raises(ScriptError, match=r"BAD_CONFIG.*nope\.yml") as caught:
        load_config(tmp_path / "nope.yml")
    assert "docs/guard.md" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it lacks the view requests, waiting, block_list, blocked"),
        (f"{script()}\nINSERT INTO clock VALUES (1, now());", "is no CREATE VIEW"),
    ],
)
def test_views_of_the_users_own_are_whole_and_nothing_else(tmp_path, text, wrong):
    (tmp_path / "own.sql").write_text(script())
    assert configured(tmp_path, "sql: own.sql").sql == script()
    (tmp_path / "own.sql").write_text(text)
    with pytest.raises(
        ScriptError, match=r"BAD_CONFIG.*guard.yml: sql: .*own.sql can't be used"
    ) as caught:
        configured(tmp_path, "sql: own.sql")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("192.0.2.0/24,EU", "places.csv, line 1: this is no place: it has 2 columns"),
        ('192.0.2.0/24,EU,"A\n198.51.100.0/24,EU,B', "can't be read: unexpected end of data"),
        ("\n192.0.2.0/25,EU,A", "line 2: this is no place: /25 isn't from /8 to /24"),
        ("\ufeff192.0.2.0/33,EU,A", "'192.0.2.0/33' does"),
        ("host,EU,A", "'host' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_wrong_place_is_named(tmp_path, text, message):
    (tmp_path / "places.csv").write_text(text)
    with pytest.raises(ScriptError, match="BAD_CONFIG") as caught:
        configured(tmp_path, "places: places.csv\n")
    assert message in str(caught.value)
    assert "guard.yml: places: " in str(caught.value)


def test_of_a_network_in_two_files_the_first_line_counts(tmp_path):
    (tmp_path / "a.csv").write_text("10.0.0.0/16,US,b\n10.0.0.0/16,EU,x\n")
    (tmp_path / "b.csv").write_text("10.0.0.0/16,AS,c\n10.1.0.0/16,AS,c\n")
    places = configured(tmp_path, "places: [a.csv, b.csv]\n").places
    assert [(str(one[0]), *one[1:]) for one in places] == [
        ("10.0.0.0/16", "US", "b"),
        ("10.1.0.0/16", "AS", "c"),
    ]


def place_files(folder):
    """A configuration with a file of places of one's own, and files in MaxMind's format."""
    (folder / "own.csv").write_text("198.18.7.0/24,own,Ours\n")
    countries(folder / "country.mmdb", {"198.18.0.0/15": "IT", "2001:db8::/32": "FR"})
    carriers(folder / "asn.mmdb", {"198.18.0.0/15": "Omega", "198.51.0.0/16": "Psi"})
    return configured(folder, "places: [own.csv, country.mmdb, asn.mmdb]\n")


def test_networks_get_a_place_when_they_are_seen(tmp_path):
    config = place_files(tmp_path)
    assert config.has_places
    networks = SeenNetworks((one for one, *_ in config.places), config.place_files)
    lines = [
        line("198.18.9.1", 1),
        line("198.18.9.77", 1),
        line("::ffff:198.18.8.1", 1),
        line("198.18.7.3", 1),
        "",
        "- -",
        "192.0.2.999 - ",
    ]
    rows = networks.observe(pa.array([*lines, "www.x:80 2001:DB8:5::1 - - ["]), START)
    assert [(row[0], row[-2], row[-1]) for row in rows] == [
        ("198.18.9.0/24", "IT", "Omega"),
        ("198.18.8.0/24", "IT", "Omega"),
        ("2001:db8:5::/48", "FR", "unknown"),
    ]
    assert networks.observe(pa.array(lines), START + timedelta(seconds=50)) == []
    assert networks.forget(START + timedelta(seconds=70), 60) == ["2001:db8:5::/48"]
    assert len(networks.observe(pa.array(["2001:db8:5::9 - "]), START)) == 1
    later = SeenNetworks((one for one, *_ in config.places), config.place_files)
    seen = ["198.18.9.0/24", "198.18.7.0/24", "10.0.0.0/8", "2001:db8:0::/48", "2001:d00::/24", "x"]
    rows = later.start(seen)
    assert sorted(row[0] for row in rows) == ["198.18.9.0/24", "2001:db8::/48"]
    assert later.forget(START, 60) == []
    assert len(later.forget(START + timedelta(seconds=61), 60)) == 2


def test_files_of_places_that_cannot_be_used_are_named(tmp_path, monkeypatch):
    (tmp_path / "garbage.mmdb").write_bytes(b"garbage" * 100)
    for name in ("garbage.mmdb", "missing.mmdb"):
        with pytest.raises(
            ScriptError, match=rf"BAD_CONFIG.*guard.yml: places: .*{name}"
        ) as caught:
            configured(tmp_path, f"places: [{name}]\n")
        assert ".mmdb" in caught.value.hint
    with pytest.raises(ScriptError, match=r"places: it isn't a line of text"):
        configured(tmp_path, "places: [[a.csv]]\n")
    countries(tmp_path / "country.mmdb", {"198.18.0.0/15": "IT"})
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(EngineError, match=r"MISSING_PACKAGE.*eddyline\[apps\]"):
        configured(tmp_path, "places: country.mmdb\n")


@pytest.mark.parametrize(
    ("target", "time", "who", "reason", "message"),
    [
        ("host", "1 h", "ann", "x", "'host' can't be decided on"),
        ("192.0.2.1/24", "1 h", "ann", "x", "has host bits set"),
        ("10.0.0.0/8", "1 h", "ann", "x", "10.0.0.0/8 is too wide"),
        ("fe80::1%x; } http { #", "1 h", "ann", "x", "an address with a zone"),
        ("::/0", "1 h", "ann", "x", "is too wide"),
        ("192.0.2.1", "soon", "ann", "x", "'soon' isn't a time"),
        ("192.0.2.1", "366 days", "ann", "x", "isn't a time"),
        ("192.0.2.1", "1h", " ", "x", "the name isn't a line"),
        ("192.0.2.1", "1h", "ann", "a\nb", "the reason isn't a line"),
        ("192.0.2.1", "1h", "ann", "x" * 501, "the reason isn't a line"),
    ],
)
def test_a_wrong_decision_is_named(target, time, who, reason, message):
    with pytest.raises(DataError, match="BAD_OPTION") as caught:
        decisions.parse_decision("block", target, time, who, reason)
    assert message in str(caught.value)


# --- live ---


@pytest.mark.spark
def test_who_is_over_a_limit_is_an_offender(guarded):
    guarded.tables["rules"].insert(RULES)
    guarded.tables["allowed"].insert([allowed_row(ip_network("203.0.113.64/26"))])
    guarded.read(normal(60, 0, 9), 10)
    assert guarded.rows("SELECT count(*) FROM offenders") == [(0,)]
    limits = dict(guarded.rows("SELECT rule, bound FROM limits"))
    # 540 answered in 10 s; nine of ten have at most three pages
    assert limits == {"flood": 110, "network flood": 170, "scraper": 20, "guessing": 8}

    attack = [
        *(line("203.0.113.5", 11, "/x.png") for _ in range(25)),
        *(line("203.0.113.5 - a [b", 11, "/x.png") for _ in range(25)),  # a login with spaces
        *(line("::ffff:203.0.113.5", 11, "/x.png") for _ in range(150)),
        *(line("www.example.org:443 ::FFFF:203.0.113.5", 11, "/x.png") for _ in range(60)),
        *(line("www.example.org ::FFFF:203.0.113.5", 11, "/x.png") for _ in range(40)),
        line("100.64.0.99 - ann 10.0.0.9", 11, "/y"),  # a login with a space is no site
        line("2001:db8::80 2001:db8:7::1", 11, "/y"),
        line("[2001:db8::80]:443 2001:db8:7::1", 11, "/y"),
        line("2001:db8:7:7::80 - ann", 11, "/y"),  # nor is an address that ends like a port
        *(line("203.0.113.8, 10.0.0.2", 11, "/x.png") for _ in range(300)),  # a list: who is it?
        *(line("::ffff:203.0.113.70", 11, "/x.png") for _ in range(300)),  # on the allow-list
        *(line(f"192.0.2.{n % 200}", 12, "/", status=403) for n in range(600)),
        *(line("198.51.3.7", 12 + n, f"/deep/{n}", agent="Scraper") for n in range(30)),
        *(line("2001:DB8::5", 12, path, "POST", 401) for path in LOGINS),
        line("2001:DB8::5", 12, "/login", "POST ", 401),  # servers take more than one space
        line("2001:DB8::5", 12, "/login", "HEAD"),
        *(line("198.51.100.9", 12, path) for path in ("/a%2ephp", "/a%2Epng", "/a.css?x")),
        *(line("192.0.2.999", 12) for _ in range(300)),  # no address
        line("192.0.2.1", 12)[:60] + line("192.0.2.2", 12),  # two that a crash has joined
        *('x" - - [', "", "no log line"),  # the last one has the position
    ]
    guarded.read(attack, 14)
    found = guarded.rows("SELECT target, rule, until FROM offenders ORDER BY target")
    assert [row[:2] for row in found] == [
        ("192.0.2.0/24", "network flood"),
        ("198.51.3.7", "scraper"),
        ("2001:db8::5", "guessing"),
        ("203.0.113.5", "flood"),
    ]
    assert found[0][2] == (START + timedelta(seconds=12 + 30)).replace(tzinfo=None)
    ((evidence,),) = guarded.rows("SELECT evidence FROM offenders WHERE target = '192.0.2.0/24'")
    assert evidence.startswith("600 requests in 10 s from 2026-03-02T12:00:10 by 200 addresses")
    sites = guarded.rows(
        "SELECT site, address, count(*) FROM requests WHERE site <> '-' GROUP BY 1, 2"
    )
    assert sorted(sites) == [
        ("2001:db8::80", "2001:db8:7::1", 1),
        ("[2001:db8::80]", "2001:db8:7::1", 1),
        ("www.example.org", "203.0.113.5", 100),
    ]
    pages = "SELECT path FROM requests WHERE address = '198.51.100.9' AND is_page"
    assert guarded.rows(pages) == [("/a%2ephp",)]
    assert guarded.rows("SELECT count(*) FROM requests WHERE address = '192.0.2.1'") == [(3,)]
    single = "SELECT address FROM requests WHERE address IN ('100.64.0.99', '2001:db8:7:7::80')"
    assert len(guarded.rows(single)) == 2
    waiting = guarded.rows("SELECT target FROM waiting")
    assert len(waiting) == 4
    assert guarded.rows("SELECT count(*) FROM block_list") == [(0,)]


@pytest.mark.spark
def test_other_views_need_another_storage(guarded):
    with pytest.raises(StorageError, match="OTHER_RUN") as caught:
        create(guarded.engine, {"top": "SELECT 1 AS rank"})
    assert "view top exists" in str(caught.value)
    assert "a new folder" in str(caught.value)


@pytest.mark.spark
def test_rates_of_a_window_add_up(guarded):
    columns = "requests, visitors, addresses, networks, pages_per_visitor, mean_request_s"
    first = f"timestamp_seconds({int(START.timestamp())})"
    where = f"window_s = 10 AND window_start = {first}"
    ((requests, visitors, addresses, networks, pages, mean),) = guarded.rows(
        f"SELECT {columns} FROM server_rates WHERE {where}"
    )
    assert (requests, visitors, addresses, networks, pages, mean) == (540, 60, 60, 60, 3.0, 0.25)
    ((logins,),) = guarded.rows(
        "SELECT DISTINCT logins FROM network_rates WHERE network = '2001:db8:0::/48'"
    )
    assert logins == 9
    top = guarded.rows(
        f"SELECT subject, name, requests FROM top WHERE {where.replace('10', '300', 1)} "
        "AND rank = 1 ORDER BY subject"
    )
    assert top == [
        ("address", "203.0.113.5", 300),
        ("agent", "Browser", 540 + 300 + 300 + 600 + 9 + 1 + 4 + 3),
        ("network", "192.0.2.0/24", 600),
        ("url", "/", 600),
        ("visitor", "203.0.113.5", 300),
    ]


@pytest.mark.spark
def test_new_blocks_are_limited_and_end_by_themselves(guarded, tmp_path):
    config = configured(tmp_path, "new_blocks_per_minute: 2")
    guard = Guard(guarded.engine, config)
    assert guarded.settle(guard, 15) == (["192.0.2.0/24", "203.0.113.5"], [])  # the gravest
    assert sorted(guard.targets) == ["192.0.2.0/24", "203.0.113.5"]
    assert guarded.settle(guard, 16) == ([], [])
    ((evidence, since, until),) = guarded.rows(
        "SELECT evidence, since, until FROM block_list WHERE target = '192.0.2.0/24'"
    )
    assert evidence.startswith("600 requests in 10 s")
    assert (since, until) == tuple(
        (START + timedelta(seconds=second)).replace(tzinfo=None) for second in (15, 42)
    )
    guard = Guard(guarded.engine, config)  # as after a crash: all that matters is stored
    assert guarded.settle(guard, 17) == ([], [])
    assert guarded.settle(guard, 41.5) == ([], ["203.0.113.5"])  # 30 s after its last request
    assert guard.targets == ["192.0.2.0/24"]
    assert guarded.settle(guard, 42) == ([], ["192.0.2.0/24"])
    assert guard.targets == []
    assert guarded.rows("SELECT * FROM admissions") == []
    assert not guard.active
    # the scraper and the guesser never had a place; their time is over as well
    assert guarded.settle(guard, 76) == ([], [])


def decide(guarded, action, target, time, second):
    """Decide as someone beside the engine, who has only the files of the storage."""
    decision = decisions.parse_decision(action, target, time, "ann", "scans <us>")
    now = START + timedelta(seconds=second)
    decisions.decide(guarded.engine.files, guarded.engine.catalog, decision, now)


@pytest.mark.spark
def test_decisions_by_hand_win_over_the_rules(guarded, tmp_path):
    guard = Guard(guarded.engine, configured(tmp_path))
    assert guard.decided() == []
    flood = [line("203.0.113.5", 80, f"/{EVIL}", agent=EVIL_AGENT) for _ in range(300)]
    guarded.read([*normal(40, 80, 9), *flood], 90)
    assert guarded.settle(guard, 90) == (["203.0.113.5"], [])
    assert guarded.settle(guard, 90.5) == ([], [])
    decide(guarded, "allow", "203.0.113.0/28", "10 s", 91)
    decide(guarded, "block", "198.18.0.0/16", "1 min", 91)
    assert guarded.settle(guard, 92) == ([], ["203.0.113.5"])
    assert guard.targets == ["198.18.0.0/16"]
    assert [one[:3] for one in guard.decided()] == [
        ("198.18.0.0/16", "block", "ann"),
        ("203.0.113.0/28", "allow", "ann"),
    ]
    assert guard.decided() == []
    assert guarded.rows("SELECT reason, evidence FROM block_list") == [
        ("by hand", "ann: scans <us>")
    ]
    decide(guarded, "block", "203.0.113.5", "4 s", 93)  # what is decided later counts
    guarded.settle(guard, 94)
    assert sorted(guard.targets) == ["198.18.0.0/16", "203.0.113.5"]
    guarded.settle(guard, 98)
    assert guard.targets == ["198.18.0.0/16"]  # the network is still allowed
    assert guarded.settle(guard, 102)[0] == ["203.0.113.5"]  # and now the rule counts again
    decide(guarded, "block", "198.19.0.0/16", "1 s", 102)  # while no guard runs
    guard = Guard(guarded.engine, configured(tmp_path))
    assert sorted(guard.targets) == ["198.18.0.0/16", "198.19.0.0/16", "203.0.113.5"]
    assert [one.target for one in guard.decided()] == ["198.19.0.0/16"]  # the others were told
    guarded.settle(guard, 103)
    assert guard.active
    assert guarded.rows("SELECT action, target FROM decisions ORDER BY at, action") == [
        ("allow", "203.0.113.0/28"),
        ("block", "198.18.0.0/16"),
        ("block", "203.0.113.5"),
        ("block", "198.19.0.0/16"),
    ]
    with pytest.raises(DataError, match=r"overlaps with 203\.0\.113\.64/26 of the allow-list"):
        decide(guarded, "block", "203.0.113.70", "1 h", 103)


@pytest.mark.spark
def test_rates_stand_beside_their_limits(guarded):
    found = guarded.rows(
        "SELECT target, value, bound, percent FROM busiest WHERE rule = 'flood' ORDER BY rank"
    )
    ((bound,),) = guarded.rows("SELECT bound FROM limits WHERE rule = 'flood'")
    assert found[0] == ("203.0.113.5", 300, bound, round(100 * 300 / bound))
    assert len(found) == 10
    assert found[1][1] == 5 or found[1][1] == 9


@contextmanager
def console(guarded, token=""):
    pytest.importorskip("uvicorn")
    from eddyline.console.server import Console
    from eddyline.options import Options
    from eddyline_apps.guard.page import PAGE

    with Console(guarded.engine.files, Options(), token=token, additions=(PAGE,)) as served:
        yield served.url


FORM = {"action": "block", "target": "192.0.2.66", "time": "1 min", "who": "bob", "reason": "<i>"}


@pytest.mark.spark
def test_the_page_shows_what_the_views_hold_and_nothing_else(guarded):
    with console(guarded) as url:
        text = page(url, "/guard")
        for shown in ("198.18.0.0/16", "ann: scans &lt;us&gt;", "300 pages in 300 s from 2026", "2026-03-02 12:01:42"):  # fmt: skip
            assert shown in text
        assert "<form" not in text
        assert "Unblock</a>" not in text
        rows = page(url, "/guard/evidence?target=203.0.113.5")
        assert html.unescape(rows).count(f"<code>/{EVIL}</code>") == 200  # the newest
        hosts = page(url, "/guard/evidence?target=203.0.0.0/16")  # any network that people block
        assert hosts.count("<td>203.0.113.70</td>") == 0  # of 900 the newest 200
        assert hosts.count("<td>203.0.113.5</td>") == 200
        assert "<small>900, of which the first 200 are shown</small>" in hosts
        for hostile in (text, rows):
            assert EVIL not in hostile
            assert "<img" not in hostile
            assert not [a for _, found in Tags(hostile).found for a in found if a.startswith("on")]
        assert ask(url, f"/guard/evidence?target={quote(EVIL)}")[0] == 400
        status, _, body = ask(url, "/guard/decisions", urlencode(FORM).encode())
        assert (status, b"READ_ONLY" in body) == (403, True)


@pytest.mark.spark
@pytest.mark.usefixtures("own_sigterm")
def test_the_page_and_the_command_tell_that_the_list_is_not_delivered(guarded, capsys):
    from eddyline.sink.outbox import Outage, OutageFile

    name = sink_name(Notification("webhook", {"url": "http://127.0.0.1:1/"}))
    for one in (name, "others"):
        guarded.views["blocked"].foreach_epoch(lambda _changes, _epoch: None, one)
    parser = argparse.ArgumentParser()
    guard.add_arguments(parser)
    words = ["list", "--storage", guarded.engine.files.root]

    def listed(*more):
        assert guard.run(parser.parse_args([*words, *more])) == 0
        return capsys.readouterr().out

    with console(guarded) as url:
        assert "delivered" not in page(url, "/guard")
    assert "delivered" not in listed()
    for sink in guarded.engine.catalog.sinks:
        outage = Outage(1_772_452_800_000_000, "SINK_FAILED", f"SINK_FAILED: <b>{sink.name[:6]}")
        OutageFile(guarded.engine.files, sink.id).write(outage)
    with console(guarded) as url:
        text = page(url, "/guard")
    alerts = re.findall(r'role="alert">(.*?)</p>', text)
    assert alerts == ["The list isn&#39;t delivered: webhook: SINK_FAILED: &lt;b&gt;guard_"]
    assert listed().endswith("\nThe list isn't delivered: webhook: SINK_FAILED: <b>guard_\n")
    assert json.loads(listed("--format", "json").splitlines()[-1]) == {
        "event": "undelivered", "sink": name, "to": "webhook",
        "error": "SINK_FAILED: <b>guard_", "since": "2026-03-02T12:00:00+00:00",
    }  # fmt: skip
    for one in (name, "others"):
        guarded.engine.drop("sink", one)


@pytest.mark.spark
def test_people_with_the_token_decide_and_pages_of_other_sites_do_not(guarded, monkeypatch):
    monkeypatch.setenv("GUARD_TOKEN", TOKEN)
    before = guarded.rows("SELECT count(*) FROM decisions")
    with console(guarded, "${env:GUARD_TOKEN}") as url:
        path, known = "/guard/decisions", {"Authorization": f"Bearer {TOKEN}"}
        body = urlencode(FORM).encode()
        assert ask(url, path, body)[0] == 401
        assert ask(url, path, body, **known, Origin="http://evil.example")[0] == 403
        assert ask(url, path, body, **known, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(url, path, **known)[0] == 405  # a link doesn't decide
        for wrong in ({"action": "x"}, {"target": EVIL}, {"target": "203.0.113.70"}, {"who": " "}):
            status, _, answer = ask(url, path, urlencode({**FORM, **wrong}).encode(), **known)
            assert (status, b"BAD_OPTION" in answer) == (400, True)
            assert EVIL.encode() not in answer
        assert ask(url, path, b"reason=" + b"x" * 70_000, **known)[0] == 413
        guarded.engine.advance()
        assert guarded.rows("SELECT count(*) FROM decisions") == before
        status, headers, _ = ask(url, path, body, **known)
        assert (status, headers["location"]) == (303, "/guard?decided=1")
        guarded.engine.advance()
        found = guarded.rows(
            "SELECT who, action, reason FROM decisions WHERE target = '192.0.2.66'"
        )
        assert found == [("bob (page)", "block", "<i>")]
        assert "bob (page): &lt;i&gt;" in ask(url, "/guard", **known)[2].decode()


@pytest.mark.spark
def test_a_browser_blocks_and_shows_hostile_lines_as_they_are(browser, guarded, monkeypatch):
    monkeypatch.setenv("GUARD_TOKEN", TOKEN)
    with console(guarded, "${env:GUARD_TOKEN}") as url:
        context = browser.window(viewport={"width": 1200, "height": 900})
        shown = context.new_page()
        shown.on("console", lambda text: browser.complain(text.type, text.text))
        shown.on("pageerror", lambda error: browser.complain("error", str(error)))
        shown.goto(f"{url}/guard")
        shown.get_by_label("Token of this console").fill(TOKEN)
        shown.keyboard.press("Enter")
        shown.locator("#connection", has_text="live").wait_for()
        PICTURES.mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=PICTURES / "page.png")
        listed = shown.get_by_role("region", name="Block list", exact=True)
        row = listed.locator("tr", has_text="203.0.113.5")
        row.get_by_role("link", name="Unblock").click()
        shown.locator("#target").wait_for()
        assert shown.locator("#target").input_value() == "203.0.113.5"
        assert shown.locator("#action").input_value() == "allow"
        shown.get_by_label("Your name").fill("<b>eve</b>")
        shown.get_by_label("Reason").fill(EVIL)
        shown.get_by_role("button", name="Decide").click()
        shown.get_by_text("The decision is stored").wait_for()
        guarded.engine.advance()
        shown.get_by_role(
            "region", name="Allowed by hand", exact=True
        ).wait_for()  # without a reload
        audit = shown.get_by_role("region", name="Decisions by hand", exact=True).locator(
            "tbody tr"
        )
        cells = [text for text in audit.all_inner_texts() if "eve" in text]
        assert len(cells) == 1
        assert "<b>eve</b> (page)" in cells[0]
        assert EVIL in cells[0]
        assert listed.locator("tr", has_text="203.0.113.5").count() == 0
        shown.goto(f"{url}/guard/evidence?target=203.0.113.5")
        requests = shown.get_by_role("region", name="Its requests", exact=True).locator("tbody tr")
        assert requests.count() == 200
        assert f"/{EVIL}" in requests.first.inner_text()
        assert EVIL_AGENT in requests.first.inner_text()
        assert shown.evaluate("window.pwned") is None
        for path in ("/guard", "/guard/evidence?target=203.0.113.5"):
            shown.goto(url + path)
            shown.set_viewport_size({"width": 360, "height": 740})
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        context.close()


@pytest.mark.spark
def test_regions_and_carriers_reach_the_site_or_go_quiet(guarded, tmp_path):
    (tmp_path / "places.csv").write_text(
        '# network,region,carrier\n198.51.0.0/16,EU,Alpha\n198.51.3.0/24,EU,"Beta, Ltd"\n'
        "203.0.113.0/24,US,Gamma\n2001:db8::/32,US,Delta\n"
    )
    Guard(guarded.engine, configured(tmp_path, "places: places.csv\n"))
    sums = dict(
        guarded.rows(
            "SELECT carrier, sum(requests) FROM place_rates WHERE window_s = 300 GROUP BY carrier"
        )
    )
    rates = guarded.rows(
        "SELECT CASE WHEN network = '198.51.3.0/24' THEN 'Beta, Ltd' WHEN network LIKE '198.51.%' THEN 'Alpha' "
        "WHEN network LIKE '203.%' THEN 'Gamma' WHEN network LIKE '%:%' THEN 'Delta' ELSE 'unknown' END, "
        "sum(requests) FROM network_rates WHERE window_s = 300 GROUP BY 1"
    )
    assert sums == dict(rates)
    assert len(sums) == 5
    assert guarded.rows("SELECT DISTINCT quiet FROM reach") == [(False,)]  # there is no before
    guarded.read([line("203.0.113.70", 610, status=500) for _ in range(300)], 611)
    found = guarded.rows(
        "SELECT carrier, requests, error_share, mean_request_s, quiet FROM reach ORDER BY carrier"
    )
    assert found == [
        ("Alpha", 0, None, None, True),
        ("Beta, Ltd", 0, None, None, True),
        ("Delta", 0, None, None, False),  # nine requests in all
        ("Gamma", 300, 1.0, 0.25, False),
        ("unknown", 0, None, None, True),
    ]
    with console(guarded) as url:
        text = page(url, "/guard")
    assert text.count(">quiet</span>") == 3
    assert "Beta, Ltd" in text


@pytest.mark.spark
def test_who_sleeps_at_this_hour_is_not_quiet(guarded):
    days = ["2026-02-26", "2026-02-27", "2026-02-28", "2026-03-01"]
    rows = [(f"{day} 12:00:00", "US", "Gamma", 300) for day in days]  # an hour of four days
    rows += [(f"{day} 09:00:00", "EU", "Alpha", 60) for day in days]  # never seen at 12 o'clock
    rows += [(f"{day} 09:00:00", "EU", "Beta, Ltd", 60) for day in days[2:]]  # too new
    rows += [
        (f"{day} 12:05:00", "unknown", "unknown", n)
        for day, n in zip(days[:3], (90, 30, 60), strict=True)
    ]
    guarded.engine.execute(
        "INSERT INTO place_history VALUES "
        + ", ".join(f"(TIMESTAMP '{at} UTC', '{r}', '{c}', {n})" for at, r, c, n in rows)
    )
    guarded.engine.advance()
    found = guarded.rows("SELECT carrier, learnt_days, usual FROM place_baselines WHERE hour = 12")
    assert sorted(found) == [
        ("Alpha", 4, 0.0),
        ("Gamma", 4, 150.0),  # on three of the days there are two slots
        ("unknown", 4, 22.5),  # 0, 15, 30, 45
    ]
    found = guarded.rows("SELECT carrier, requests, usual, quiet FROM reach ORDER BY carrier")
    assert [row for row in found if row[0] != "Delta"] == [
        ("Alpha", 0, 0.0, False),
        ("Beta, Ltd", 0, found[1][2], True),
        ("Gamma", 300, 150.0, False),
        ("unknown", 0, 22.5, True),
    ]
    assert found[1][2] >= 20  # the mean of the last minutes
    assert guarded.engine.verify("place_baselines")
    assert guarded.engine.verify("reach")


@pytest.mark.spark
def test_files_in_maxminds_format_tell_where_the_networks_are_that_are_seen(guarded, tmp_path):
    config = place_files(tmp_path)
    guard = Guard(guarded.engine, config)  # the networks of lines that are there, too
    lines = [
        *(line("198.18.7.1", 700) for _ in range(5)),
        *(line("2001:db8:0:1::7", 700) for _ in range(7)),
        *("a.example:80 " + line("198.18.8.1", 700) for _ in range(3)),
        "no log line",
    ]
    now = START + timedelta(seconds=701)
    rows = [Line("b", place, text) for place, text in enumerate(lines)]
    guard.insert(rows, {}, now)
    guarded.at(701)
    of = "SELECT region, carrier, sum(requests) FROM place_rates WHERE window_s = 300 AND {} GROUP BY 1, 2 ORDER BY 1, 2"
    newest = f"window_start = timestamp_seconds({int(START.timestamp()) + 600})"
    found = guarded.rows(of.format(newest))
    assert [row for row in found if row[0] not in ("own", "unknown")] == [
        ("FR", "unknown", 7),
        ("IT", "Omega", 3),
    ]
    assert ("own", "Ours", 5) in found  # what the file of one's own says counts
    assert (
        dict(guarded.rows("SELECT network, carrier FROM network_places"))["198.51.9.0/24"] == "Psi"
    )
    places = dict(guarded.rows("SELECT network, carrier FROM places"))
    assert places.keys() > {"198.18.7.0/24", "198.18.8.0/24", "2001:db8::/48", "203.0.113.0/24"}
    assert len(places) < 100  # not those of the files, but those that are seen

    countries(tmp_path / "country.mmdb", {"198.18.0.0/15": "CH"})
    Guard(guarded.engine, config)
    guarded.at(702)
    assert ("CH", "Omega", 3) in guarded.rows(of.format(newest))


@pytest.mark.spark
def test_search_engines_are_allowed_instead_of_blocked(guarded, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "LOOKUPS_MAX", 3)
    engines = {"198.18.20.1": "crawl-1.googlebot.com", "203.0.115.7": "a.search.msn.com"}
    lies = {"198.18.20.2": "crawl-1.googlebot.com", "198.18.20.4": SILENT}
    hosts = {name: [address] for address, name in engines.items()}
    with name_server({**engines, **lies}, hosts) as server:
        more = f"verify: {{nameserver: '{server.address}', timeout: 5 s}}\n"
        guard = Guard(guarded.engine, configured(tmp_path, more))
        guarded.settle(guard, 790)
        flood = [f"198.18.20.{n}" for n in (1, 2, 3, 4)]
        network = [*(f"203.0.115.{n % 100}" for n in range(600)), "203.0.115.7"]
        lines = [line(one, 800, "/x.png", status=403) for one in flood * 300]
        lines += [*(line(one, 801, status=403) for one in network), "no log line"]
        guarded.read(lines, 805)
        waiting = {row[0] for row in guarded.rows("SELECT target FROM waiting")}
        assert waiting == {*flood, "203.0.115.0/24"}
        rounds = []
        for n in range(3):
            rounds.append(sorted(guarded.settle(guard, 806 + n / 10)[0]))
            assert guard.unverified == guard.crowded == (n < 2)
        assert rounds == [[], flood[1:3], flood[3:]]  # three of the network; three; one
        asked = len(server.questions)
        assert guarded.settle(guard, 807) == ([], [])
        assert guarded.rows("SELECT count(*) FROM waiting") == [(0,)]
        assert len(server.questions) == asked
    assert flood[1:] == sorted(one for one in guard.targets if one.startswith("198.18.20."))
    assert {one[:4] for one in guard.decided() if one.who == "reverse DNS"} == {
        (address, "allow", "reverse DNS", f"{name}, and back") for address, name in engines.items()
    }
    notes = {
        target: evidence.split("; ")[1:]
        for target, evidence in guarded.rows(
            "SELECT target, evidence FROM block_list WHERE target LIKE '198.18.20.%'"
        )
    }
    assert notes == {
        "198.18.20.2": ["its name is crawl-1.googlebot.com, which has other addresses"],
        "198.18.20.3": [],
        "198.18.20.4": ["its name isn't known: DNS didn't answer in 5 s"],
    }
    guard = Guard(guarded.engine, configured(tmp_path))  # what was decided counts for a day
    assert guarded.settle(guard, 808) == ([], [])


@pytest.mark.spark
def test_a_clock_that_is_ahead_blocks_for_no_longer_than_the_rule_says(guarded, tmp_path):
    guard = Guard(guarded.engine, configured(tmp_path))
    ahead = [line("192.0.2.88", 1000 + one) for one in (301, 18_000, 3e9) for _ in range(300)]
    guarded.read([*ahead, *(line("192.0.2.89", 1300) for _ in range(300))], 1000)
    guarded.settle(guard, 1000)
    assert guarded.rows("SELECT target, until FROM block_list WHERE target LIKE '192.0.2.8_'") == [
        ("192.0.2.89", (START + timedelta(seconds=1030)).replace(tzinfo=None))
    ]
    assert guarded.settle(guard, 1029) == ([], [])
    assert guarded.settle(guard, 1030) == ([], ["192.0.2.89"])


@pytest.mark.spark
@pytest.mark.parametrize("view", ["offenders", pytest.param(None, marks=pytest.mark.slow)])
def test_views_equal_offline_spark(guarded, view):
    assert guarded.engine.verify(view)


@pytest.mark.spark
def test_old_lines_take_their_rows_with_them(guarded, tmp_path):
    guard = Guard(guarded.engine, place_files(tmp_path))
    guard.forget(START)
    last = START + timedelta(seconds=2500)
    position = guarded.rows("SELECT file, max(end_at) FROM log_lines GROUP BY file ORDER BY file")
    guard.forget(last)
    guarded.at(2500)
    last_lines = guarded.rows("SELECT file, end_at FROM log_lines ORDER BY file")
    assert last_lines == position  # which stay
    for view in ("requests", "visitor_rates", "url_rates", "top", "offences", "offenders"):
        assert guarded.rows(f"SELECT count(*) FROM {view}") == [(0,)], view
    assert guarded.rows("SELECT network FROM places") == [("198.18.7.0/24",)]  # of the own file


@pytest.mark.spark
def test_nobody_is_judged_by_the_clock_of_an_earlier_guard(guarded, tmp_path, capsys):
    Guard(guarded.engine, configured(tmp_path))
    guarded.read([line("192.0.2.77", 2600) for _ in range(300)], 2600)
    assert guarded.rows("SELECT target FROM waiting") == [("192.0.2.77",)]
    (tmp_path / "access.log").touch()
    now = Guard(guarded.engine, configured(tmp_path))
    ended = threading.Timer(5, guarded.engine.stop)
    ended.start()
    follow(guarded.engine, now, configured(tmp_path), [tmp_path / "access.log"])
    ended.join()
    assert "192.0.2.77" not in capsys.readouterr().out
