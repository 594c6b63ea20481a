"""Baselines of the guard: limits that follow what is normal at each hour of the day."""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eddyline.errors import ScriptError
from eddyline_apps.guard import decisions
from eddyline_apps.guard.config import LEARN_S, load_config
from eddyline_apps.guard.running import replay
from eddyline_apps.guard.service import Guard
from eddyline_apps.guard.tables import TABLES

SUNDAY = datetime(2026, 3, 1, tzinfo=UTC)
CONFIG = """
rules:
  scraper:
    by: address
    metric: pages
    window: 5 min
    {limit}
    at_least: 40
    at_most: 400
    block: 10 min
zone: America/New_York
"""
PAGE = (Path(__file__).parents[1] / "docs/guard.md").read_text()
PLACES = "198.51.0.0/16,EU,Homes\n203.0.113.0/24,EU,Offices\n"
BASELINE = "times: 3\n    quantile: 1\n    baseline: true"
CRAWLER, ATTACKER, OFFICE = "203.0.113.8", "192.0.2.66", "203.0.113.99"
NIGHT, MORNING, NOON, EVENING = 8, 13, 17, 23
"""Hours of UTC: in New York it is 3, 8, 12 and 18 o'clock then."""


def configured(folder, limit=BASELINE, more=""):
    path = folder / "guard.yml"
    text = CONFIG.format(limit=limit)
    if more.startswith("zone:"):
        text = text.replace("zone: America/New_York\n", "")
    path.write_text(text + more)
    return load_config(path)


def lines_at(day, hour, pages=None, close=False):
    """Lines of five minutes, in which four visitors read three pages, and others as many as `pages` says.

    Args:
        day: 1 is a Monday.
        close: whether another line comes half an hour later.
    """
    begin = SUNDAY + timedelta(days=day, hours=hour, minutes=10)
    counts = {**{f"198.51.{visitor}.7": 3 for visitor in range(4)}, **(pages or {})}
    rows = [
        (n * 290 // count, address, n) for address, count in counts.items() for n in range(count)
    ]
    if close:
        rows.append((1800, "198.51.0.7", 0))
    return [
        f'{address} - - [{begin + timedelta(seconds=at):%d/%b/%Y:%H:%M:%S +0000}] "GET /p{n} HTTP/1.1" 200 12 "-" "B"'
        for at, address, n in sorted(rows)
    ]


def six_days():
    """A crawler is normal at night, an office at noon. On Thursday the crawler comes at noon, and the office in the evening.

    On Saturday neither comes.
    """
    lines = lines_at(1, NIGHT, {CRAWLER: 200}) + lines_at(1, MORNING, {ATTACKER: 450})
    lines += lines_at(1, NOON, {OFFICE: 60}) + lines_at(1, EVENING)
    for day in (2, 3):
        lines += lines_at(day, NIGHT, {CRAWLER: 200}) + lines_at(day, NOON, {OFFICE: 60})
        lines += lines_at(day, EVENING)
    lines += lines_at(4, NIGHT, {CRAWLER: 200}, close=True)
    lines += lines_at(4, NOON, {OFFICE: 60, CRAWLER: 200}, close=True)
    lines += lines_at(4, EVENING, {OFFICE: 60})
    lines += lines_at(5, NOON, {OFFICE: 60, CRAWLER: 200}, close=True)
    return lines + lines_at(6, NOON)


class Replayed:
    """An engine after a replay of six days, and what the replay has printed."""

    def __init__(self, engine, folder):
        (folder / "places.csv").write_text(PLACES)
        config = configured(folder, more="places: places.csv\n")
        (folder / "access.log").write_text("".join(f"{line}\n" for line in six_days()))
        self.engine = engine
        self.guard = Guard(engine, config)
        shown = io.StringIO()
        with redirect_stdout(shown):
            replay(engine, self.guard, config, [folder / "access.log"])
        self.shown = shown.getvalue()

    def rows(self, query):
        return [tuple(row) for row in self.engine.sql(query).collect()]


@pytest.fixture(scope="module")
def replayed():
    from eddyline.api.engine import Engine

    folder = Path(tempfile.mkdtemp())
    with Engine(str(folder / "storage")) as engine:
        yield Replayed(engine, folder)


# --- without a JVM ---


def test_a_baseline_keeps_lines_until_they_are_learnt(tmp_path):
    config = configured(tmp_path)
    assert (config.baselines, config.zone, config.history_s) == (
        True,
        "America/New_York",
        28 * 86_400,
    )
    assert config.keep_s == LEARN_S + 60
    assert config.rules[0].row[-1] is True
    config = configured(tmp_path, "times: 3", "history: 60 days\n")
    assert (config.baselines, config.history_s) == (False, 60 * 86_400)
    assert config.keep_s == 300 + 600 + 60


@pytest.mark.parametrize(
    ("limit", "more", "message"),
    [
        ("baseline: true", "", "rules.scraper.baseline: it has no times or no at_most"),
        ("baseline: soon", "", "rules.scraper.baseline: 'soon' isn't allowed"),
        ("times: 3\n    quantile: 1", "", "rules.scraper.quantile: it can't be used so"),
        (BASELINE.replace("1\n", "0.8\n"), "", "rules.scraper.quantile: it can't be used so"),
        (BASELINE, "zone: Mars/Olympus\n", "there is no time zone 'Mars/Olympus'"),
        (BASELINE, "history: 2 years\n", "history: '2 years' isn't a time"),
        (BASELINE, "history: 366 days\n", "isn't a time from 1 s to 365 days"),
    ],
)
def test_a_wrong_baseline_is_named(tmp_path, limit, more, message):
    with pytest.raises(ScriptError, match="BAD_CONFIG") as caught:
        configured(tmp_path, limit, more)
    assert message in str(caught.value)


def test_the_example_of_the_page_has_a_baseline(tmp_path):
    (text,) = re.findall(r"^```text\n(zone:\n?.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "guard.yml").write_text(text)
    config = load_config(tmp_path / "guard.yml")
    assert [rule.baseline for rule in config.rules] == [True]
    assert config.zone == "Europe/Berlin"


# --- a log of several days ---


@pytest.mark.spark
def test_what_is_normal_at_one_hour_is_not_at_another(replayed):
    found = re.findall(
        r"^2026-03-(\d+)T(\d\d):\S+ would block (\S+) .* the limit is (\d+)$",
        replayed.shown,
        re.MULTILINE,
    )
    assert found == [
        (
            "02",
            "13",
            ATTACKER,
            "400",
        ),  # without a history the limit is at_most: 200 at night are let through
        ("05", "17", CRAWLER, "180"),  # 200 pages, as in each night
        ("05", "23", OFFICE, "40"),  # 60 pages, as at each noon
        ("06", "17", CRAWLER, "180"),
    ]
    assert "freed 203.0.113.8" in replayed.shown


@pytest.mark.spark
def test_attackers_and_attacks_are_not_learnt(replayed):
    history = {
        (moment.day, moment.hour): (top, share)
        for moment, top, share in replayed.rows(
            "SELECT slot_start, top, attack_share FROM history WHERE minute(slot_start) = 10"
        )
    }
    assert history[4, NIGHT] == (200, 0)
    assert history[2, MORNING] == (3, 450 / 462)
    for day in (5, 6):  # the crawler was answered all the time
        assert history[day, NOON] == (60, 200 / 272)
    baselines = dict(
        replayed.rows("SELECT hour, struct(learnt_days, top) FROM baselines WHERE days = 'any'")
    )
    assert {hour: tuple(found) for hour, found in baselines.items()} == {
        3: (4, 200),
        12: (3, 60),  # Thursday and Friday don't count: most of them was an attack
        18: (3, 3),
    }


@pytest.mark.spark
def test_a_place_goes_quiet_beside_what_is_usual_at_its_hour(replayed):
    usual = replayed.rows("SELECT carrier, hour, usual FROM place_baselines ORDER BY carrier, hour")
    assert ("Offices", 3, 200) in usual
    assert ("Offices", 12, 60) in usual
    assert ("Offices", 18, 0) in usual  # of four evenings it was seen on one
    # its lines are gone since Friday; no other hour's requests are usual at this one
    found = replayed.rows(
        "SELECT carrier, requests, usual, last_window, quiet FROM reach ORDER BY carrier"
    )
    assert [row[0] for row in found] == ["Homes", "Offices"]
    assert found[1] == ("Offices", 0, 60, None, True)
    shown = re.findall(
        r"^2026-03-(\S+):\d\dZ (quiet|back): EU, Offices: (.*)$", replayed.shown, re.MULTILINE
    )
    assert ("05T17:40", "quiet", "0 requests in 5 minutes, 60.0 are usual") in shown
    assert [one[:2] for one in shown if one[0] > "05T18"][:2] == [
        ("05T23:14", "back"),
        ("06T17:40", "quiet"),
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    "view", ["hour_limits", "reach", pytest.param("slots", marks=pytest.mark.slow)]
)
def test_views_of_baselines_equal_offline_spark(replayed, view):
    assert replayed.engine.verify(view)


@pytest.mark.spark
def test_networks_blocked_by_hand_are_not_learnt(replayed):
    assert replayed.rows("SELECT max(targets) FROM slots") == [(4,)]
    decision = decisions.parse_decision("block", "198.51.0.0/22", "1 h", "ann", "no")
    now = SUNDAY + timedelta(days=6, hours=NOON, minutes=15)
    decisions.decide(replayed.engine.files, replayed.engine.catalog, decision, now)
    replayed.engine.advance()
    found = replayed.rows("SELECT target FROM left_out WHERE attacks ORDER BY target")
    assert [target for (target,) in found if "/24" in target] == [
        f"198.51.{n}.0/24" for n in range(4)
    ]
    assert replayed.rows("SELECT * FROM slots") == []


@pytest.mark.spark
def test_weekends_have_their_own_baselines_and_a_wild_day_moves_none(replayed):
    def at(day, value, minute=0, share=0.0):
        moment = SUNDAY + timedelta(days=day, hours=15, minutes=minute)  # 10 o'clock
        return (moment, "address", "logins", 60, 9, 1, value, value, value, share)

    rows = [at(day, 10 * day) for day in (1, 2, 3)]
    rows += [at(day, 7) for day in (-1, -8, -15)] + [at(0, 900)]  # Saturdays, and a wild Sunday
    rows += [at(4, 5), at(4, 30, minute=5), at(5, 800, share=0.2), at(5, 1, minute=5)]
    replayed.engine.table("history", *TABLES["history"]).insert(rows)
    replayed.engine.advance()
    found = replayed.rows(
        "SELECT days, hour, learnt_days, p50, p90 FROM baselines WHERE metric = 'logins' ORDER BY days"
    )
    assert found == [("any", 10, 8, 1, 15), ("weekday", 10, 4, 1, 25), ("weekend", 10, 4, 1, 7)]


@pytest.mark.spark
def test_the_history_is_bounded_and_without_it_the_limit_is_at_most(replayed):
    last = SUNDAY + timedelta(days=31, hours=NOON + 1)
    replayed.guard.learn(last)
    replayed.engine.advance()
    ((first, rows),) = replayed.rows("SELECT min(slot_start), count(*) FROM history")
    assert (first.day, rows > 5) == (4, True)  # all before are gone
    replayed.guard.learn(last + timedelta(days=60))
    replayed.engine.advance()
    assert replayed.rows("SELECT * FROM history") == []
    assert replayed.rows("SELECT DISTINCT learnt_days, normal, bound FROM hour_limits") == [(0, None, 400)]  # fmt: skip
    assert replayed.rows("SELECT bound FROM limits") == [(400,)]
