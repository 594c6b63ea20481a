"""Which user agents count as programs: the list's own examples, unknown programs, and ordinary browsers."""

import re
import time

import pytest
from crawleruseragents import CRAWLER_USER_AGENTS_DATA, is_crawler

from eddyline_apps.webstats import programs
from eddyline_apps.webstats.programs import is_program, known_patterns, listed

EXAMPLES = sorted({text for one in CRAWLER_USER_AGENTS_DATA for text in one["instances"]})
UNKNOWN = (
    "Mozilla/5.0 (compatible; WhoeverBot/1.0)",
    "somebody's crawler",
    "Fetcher 1.0 (me@example.org)",
    "thing (see https://example.org/)",
    "thing (example.com)",
    "Java/17.0.1",
    "name/1.0",
    "name",
)
WEBKIT = "AppleWebKit/605.1.15 (KHTML, like Gecko)"
CHROME = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0"
PEOPLE = (
    None,
    "",
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (X11; U; Linux x86_64; en-US; rv:1.9.1.2) Gecko/20090803 Firefox/3.5.2 Slackware",
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {CHROME} Safari/537.36 Edg/131.0.0.0",
    f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {WEBKIT} Version/18.3 Safari/605.1.15",
    f"Mozilla/5.0 (Linux; Android 12; SM-T500) {CHROME} Safari/537.36",
    f"Mozilla/5.0 (Linux; Android 4.1.1; SGPT12 Build/TJDSU0177) {CHROME} Safari/537.36",
    f"Mozilla/5.0 (Linux; Android 5.1.1; Nexus 7; wv) {CHROME} Safari/537.36 [Pinterest/Android]",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS 18_4 like Mac OS X) {WEBKIT} CriOS/135.0.7049.53 Mobile/15E148 Safari/604.1",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS 18_3_2 like Mac OS X) {WEBKIT} GSA/362.0.741018905 Mobile/15E148 Safari/604.1",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS 18_4 like Mac OS X) {WEBKIT} Version/18.4 Safari/605.1.15 BingSapphire/31.2.430402003",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS 10_2 like Mac OS X) {WEBKIT} Mobile/14D27 [FBAN/FBIOS;FBCR/Mobilink;FBOP/5]",
)


@pytest.fixture(scope="module")
def called(spark):
    """User agents -> those that count as programs."""

    def ask(agents):
        frame = spark.createDataFrame([(agent,) for agent in agents], "agent STRING")
        condition = is_program("lower(coalesce(agent, ''))", "coalesce(agent, '')")
        return {row.agent for row in frame.where(condition).collect()}

    return ask


@pytest.mark.spark
def test_all_that_the_list_knows_and_unknown_programs_are_programs(called):
    assert len(EXAMPLES) > 2000
    assert all(map(is_crawler, EXAMPLES))
    assert set(EXAMPLES) - called(EXAMPLES) == set()
    assert set(UNKNOWN) - called(UNKNOWN) == set()


@pytest.mark.spark
def test_browsers_are_people(called):
    assert called(PEOPLE) == set()


@pytest.mark.spark
def test_a_hostile_agent_is_matched_in_linear_time(called):
    called(PEOPLE)  # Java has compiled it
    parts = ("a", "Ow ", "SSL Lab", "clud", "AHC ")
    agents = [f"Mozilla/5.0 ({part * (200_000 // len(part))})" for part in parts]
    began = time.monotonic()
    assert called(agents) == set()
    assert time.monotonic() - began < 60


def test_texts_are_what_a_pattern_matches():
    complete = 0
    for pattern in known_patterns():
        if "|" in pattern.replace("(sistrix|SISTRIX)", ""):
            continue
        texts, end = programs._texts(pattern)
        complete += end == len(pattern)
        for text in texts:
            assert re.match(pattern[:end], text), (pattern, text)
            assert end < len(pattern) or re.fullmatch(pattern, text)
    assert complete > 1400
    assert programs._texts(r"[ab]c\/(d|ef)")[0] == ["ac/d", "ac/ef", "bc/d", "bc/ef"]
    assert programs._texts("abc*d") == (["ab"], 2)


def test_what_may_need_more_than_linear_time_is_left_out():
    assert listed([r"Rabbit[\s\S]*Hole", "Rabbit+", "Rabb(it){2,}"]) == ""
    assert not re.search(r"[*+{](?!\w+\})", listed(known_patterns()))
