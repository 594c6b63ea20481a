"""Generate traffic of a few web sites, as lines of the vhost_combined log format.

The same seed gives the same lines. They contain pages of Zipf-distributed popularity with their images
and styles, visitors with visits of several requests, of whom some return on the same or on a later day,
bots at high rates, sites in several time zones (so that their days begin at different times), lines a
few seconds out of order, and a share of damaged lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

FIRST_DAY = date(2026, 3, 2)
DAY_S = 86_400
VISIT_GAP_MAX_S = 1_500
"""The longest pause within a visit; `web_statistics.sql` ends a visit after 1,800 s."""

SITES = (
    ("www.harbour.example", 443, 0, "+0000"),
    ("shop.harbour.example", 443, 0, "+0000"),
    ("www.lakeside.example", 443, -4 * 3600, "-0400"),
    ("maps.delta.example", 80, 5 * 3600 + 1800, "+0530"),
)
"""Host, port, UTC offset in seconds, and that offset in log format. The first site is the busiest."""

PAGES_PER_SITE = 400
ASSETS = ("/style.css", "/app.js", "/logo.png", "/photo/quay.jpg", "/favicon.ico", "/map.svg")
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/144.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_2 like Mac OS X) Version/19.2 Mobile Safari/604.1",
    r"Reader \"quoted\" 1.0",
)
BOT_AGENTS = ("ExampleBot/2.1 (+https://bot.example/about)", "python-requests/2.32", "-")
REFERERS = ("-", "-", "https://search.example/?q=tides", "https://www.harbour.example/")
STATUSES = (200, 304, 301, 404, 500)
VISITOR_STATUS_SHARES = (0.9, 0.06, 0.01, 0.025, 0.005)
BOT_STATUS_SHARES = (0.65, 0.0, 0.05, 0.28, 0.02)
BOTS = 6
BOT_LINE_SHARE = 0.15
RETURNING_SHARE = 0.3
ASSET_SHARE = 0.45


@dataclass(frozen=True, slots=True)
class Traffic:
    """A log of exactly `lines` lines over `days` days (UTC), of which `malformed_share` are damaged.

    Example:
        >>> log = [line for batch in Traffic(lines=1000).batches(300) for line in batch]
        >>> len(log), log == [line for batch in Traffic(lines=1000).batches(7) for line in batch]
        (1000, True)
    """

    lines: int = 50_000
    seed: int = 1
    days: int = 4
    malformed_share: float = 0.002

    def __post_init__(self) -> None:
        if self.lines < 0 or self.days < 1 or not 0 <= self.malformed_share <= 1:
            raise ValueError(f"no such traffic: {self}")

    def batches(self, size: int) -> Iterator[list[str]]:
        """Generate the lines in log order, `size` at a time; the last batch may be smaller."""
        if size < 1:
            raise ValueError(f"a batch needs at least one line, not {size}")
        pending: list[str] = []
        for chunk in self._chunks(size):
            pending += chunk
            while len(pending) >= size:
                yield pending[:size]
                pending = pending[size:]
        if pending:
            yield pending

    def _chunks(self, size: int) -> Iterator[list[str]]:
        known = 0  # number of visitors so far, numbered from 0
        for day in range(self.days):
            count = self.lines * (day + 1) // self.days - self.lines * day // self.days
            rng = np.random.default_rng([self.seed, day])
            rows, known = _day(rng, day, count, known)
            damaged = rng.random(count) < self.malformed_share
            for start in range(0, count, size):
                part = slice(start, start + size)
                lines = rows.lines(part)
                for place in np.flatnonzero(damaged[part]):
                    lines[place] = damage(lines[place], int(rng.integers(1 << 30)))
                yield lines


def damage(line: str, how: int) -> str:
    """Damage a line in one of the ways seen in real logs; `how` >= 0 selects one.

    The result never parses as a request.
    """
    kinds = (
        line[: line.index("[") + 1 + how // 7 % 20],  # cut inside the time
        line[line.index("]") + 2 :],  # the second half of a split line
        line[: line.rindex('"')],  # a quote never closed
        f"{line[: line.index('[')]}[00{line[line.index('[') + 3 :]}",  # no such day
        line.replace("] ", "] stray ", 1),
        "",
        "\x16\x03\x01\x00\u00f8\\x89 - not http",  # a TLS handshake on a plain HTTP port
    )
    return kinds[how % len(kinds)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A day's requests in log order, as columns. `second` counts from the start of FIRST_DAY, UTC."""

    second: Ints
    site: Ints
    visitor: Ints  # bots are -1, -2, ...
    path: Ints  # an index into _paths(): pages first, then assets
    status: Ints
    size: Ints
    referer: Ints

    def lines(self, part: slice) -> list[str]:
        """Format some of the rows as log lines."""
        sites = [f"{name}:{port}" for name, port, _, _ in SITES]
        paths = _paths()
        clock = _clock()
        offsets = np.array([offset for _, _, offset, _ in SITES])
        site = self.site[part]
        days, seconds = np.divmod(self.second[part] + offsets[site], DAY_S)
        dates = {day: f"{FIRST_DAY + timedelta(days=day):%d/%b/%Y}" for day in set(days.tolist())}
        return [
            f"{sites[s]} {_host(v)} - - [{dates[d]}:{clock[t]} {SITES[s][3]}] "
            f'"GET {paths[p]} HTTP/1.1" {code} {"-" if code == 304 else size} '
            f'"{REFERERS[r]}" "{_agent(v)}"'
            for s, v, d, t, p, code, size, r in zip(
                site.tolist(),
                self.visitor[part].tolist(),
                days.tolist(),
                seconds.tolist(),
                self.path[part].tolist(),
                self.status[part].tolist(),
                self.size[part].tolist(),
                self.referer[part].tolist(),
                strict=True,
            )
        ]


def _day(rng: np.random.Generator, day: int, count: int, known: int) -> tuple[_Rows, int]:
    """Generate `count` requests of a day; return them and the number of visitors after it."""
    bot_count = round(count * BOT_LINE_SHARE)
    second, site, visitor, known = _visits(rng, count - bot_count, known)
    bot = rng.integers(BOTS, size=bot_count)
    pace = np.array([20.0, 2.0, 1.0, 0.5, 0.5, 0.2])  # requests per second of each bot
    turn = np.arange(bot_count) // 300  # each bot sends bursts of about 300 / BOTS requests
    begin = rng.integers(DAY_S, size=(bot_count // 300 + 1, BOTS))
    nth = np.arange(bot_count) % 300
    bot_second = (begin[turn, bot] + nth / pace[bot]).astype(np.int64)
    bot_site = (bot + turn) % len(SITES)

    is_bot = np.repeat([False, True], [count - bot_count, bot_count])
    second = np.concatenate([second, bot_second])
    site = np.concatenate([site, bot_site])
    visitor = np.concatenate([visitor, -1 - bot])
    asset = PAGES_PER_SITE + rng.integers(len(ASSETS), size=count)
    path = np.where(~is_bot & (rng.random(count) < ASSET_SHARE), asset, _pages(rng, count))
    status = np.where(
        is_bot,
        rng.choice(STATUSES, size=count, p=BOT_STATUS_SHARES),
        rng.choice(STATUSES, size=count, p=VISITOR_STATUS_SHARES),
    )
    # A server logs a request after its response, a little later: lines are slightly out of order.
    order = np.argsort(second + rng.exponential(0.7, size=count), kind="stable")
    columns = (
        second + day * DAY_S,
        site,
        visitor,
        path,
        status,
        rng.lognormal(8.5, 1.2, size=count).astype(np.int64),
        rng.integers(len(REFERERS), size=count),
    )
    return _Rows(*(column[order] for column in columns)), known


def _visits(rng: np.random.Generator, count: int, known: int) -> tuple[Ints, Ints, Ints, int]:
    """Generate `count` requests of visitors: second of the day, site, visitor; and the visitors after."""
    wanted = np.minimum(rng.geometric(1 / 7, size=count), 80)  # number of requests per visit
    visits = min(int(np.searchsorted(np.cumsum(wanted), count)) + 1, count)
    wanted = wanted[:visits]

    # Three of four visits are a visitor's first of the day; the others repeat a visitor of today.
    first = rng.random(visits) < 0.75
    back = first & (rng.random(visits) < RETURNING_SHARE) & (known > 0)
    fresh = first & ~back
    who = np.where(back, rng.integers(max(known, 1), size=visits), known + np.cumsum(fresh) - 1)
    who = np.maximum(who, 0)
    again = np.flatnonzero(~first)
    who[again] = who[(again * rng.random(again.size)).astype(np.int64)]

    begin = (rng.normal(14.5, 4.5, size=visits) * 3600).astype(np.int64) % DAY_S
    home = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])[who * 7 % 10]
    site = np.where(rng.random(visits) < 0.1, rng.integers(len(SITES), size=visits), home)

    row_visit = np.repeat(np.arange(visits), wanted)[:count]
    gap = np.minimum(rng.exponential(45, size=count), VISIT_GAP_MAX_S).astype(np.int64)
    starts = np.flatnonzero(np.diff(row_visit, prepend=-1))
    gap[starts] = 0
    elapsed = np.cumsum(gap)
    second = begin[row_visit] + elapsed - np.repeat(elapsed[starts], np.diff(starts, append=count))
    return second, site[row_visit], who[row_visit], known + int(fresh.sum())


def _pages(rng: np.random.Generator, count: int) -> Ints:
    """Draw page numbers from a Zipf distribution, 0 the most popular."""
    weight = np.cumsum(1 / np.arange(1, PAGES_PER_SITE + 1) ** 1.1)
    pages: Ints = np.searchsorted(weight, rng.random(count) * weight[-1]).astype(np.int64)
    return pages


@cache
def _paths() -> tuple[str, ...]:
    kinds = ("/", "/news/{}.html", "/blog/{}/", "/item?id={}", "/guide/part-{}")
    pages = ["/", *(kinds[page % 4 + 1].format(page) for page in range(1, PAGES_PER_SITE))]
    return (*pages, *ASSETS)


@cache
def _clock() -> tuple[str, ...]:
    """Return HH:MM:SS for each second of a day."""
    return tuple(f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(DAY_S))


def _host(visitor: int) -> str:
    """Return a visitor's host: a name for a third of them, else an address; bots share a network."""
    if visitor < 0:
        return f"198.51.100.{-visitor}"
    if visitor % 3 == 0:
        return f"dsl-{visitor}.isp{visitor % 11}.example"
    mixed = visitor * 10_398_421 & 0xFFFFFF  # an odd factor: no two visitors share an address
    return f"{81 + (visitor >> 24)}.{mixed >> 16}.{mixed >> 8 & 255}.{mixed & 255}"


def _agent(visitor: int) -> str:
    if visitor < 0:
        return BOT_AGENTS[visitor % len(BOT_AGENTS)]
    return AGENTS[visitor // 3 % len(AGENTS)]
