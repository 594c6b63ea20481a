"""`eddyline guard` over a log at rest."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from eddyline.cli.commands import INTERRUPTED
from eddyline.cli.output import Output
from eddyline.errors import DataError, EngineError, ScriptError, StorageError
from eddyline_apps import guard
from eddyline_apps.guard.config import load_config
from eddyline_apps.guard.notifying import Undelivered
from eddyline_apps.guard.reading import Line
from eddyline_apps.guard.running import _Watch
from eddyline_apps.guard.service import Admission, Decided, Guard, Quiet
from eddyline_apps.guard.tables import script
from eddyline_apps.guard.timing import (
    NEIGHBOURS,
    count_ahead,
    misdated,
    parts_by_time,
    replayed,
    times_of,
)
from eddyline_apps.guard.unreadable import PATTERN, Unreadable
from eddyline_apps.guard.verifying import DOMAINS, Verification
from eddyline_apps.processes import members
from processes import Child
from test_guard import CONFIG, START, line, normal
from waiting import until

PAGE = (Path(__file__).parents[1] / "docs/guard.md").read_text()
pytestmark = pytest.mark.usefixtures("own_sigterm")


def arguments(*words):
    parser = argparse.ArgumentParser()
    guard.add_arguments(parser)
    return parser.parse_args(list(map(str, words)))


def test_the_example_of_the_page_is_a_configuration(tmp_path):
    (text,) = re.findall(r"^```text\n(rules:\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "guard.yml").write_text(text)
    config = load_config(tmp_path / "guard.yml")
    assert [rule.name for rule in config.rules] == [
        "flood",
        "network flood",
        "scraper",
        "login guessing",
    ]
    assert [one.to for one in config.notify] == ["nginx", "webhook"]
    assert config.verify == Verification()


def test_the_page_names_the_search_engines_and_how_to_verify_them(tmp_path):
    (text,) = re.findall(r"^```text\n(verify: true.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    forms = re.split(r"^(?=verify:)", text, flags=re.MULTILINE)[1:]
    domains = ("googlebot.com", "search.msn.com")
    for form, verification in zip(
        forms,
        (Verification(), Verification(domains), Verification(domains, ("192.0.2.53", 53))),
        strict=True,
    ):
        (tmp_path / "guard.yml").write_text(CONFIG + form)
        assert load_config(tmp_path / "guard.yml").verify == verification
    (section,) = re.findall(r"^## Search engines$(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    (named,) = re.findall(r"domains of `true`(.*?)isn't among them", section, re.DOTALL)
    assert set(re.findall(r"`([\w.-]+)`", named)) == {*DOMAINS, "googleusercontent.com"}


def test_lines_are_cut_by_their_times():
    lines = [Line("a", 0, text) for text in (line("a", 0), "?", line("a", 9), line("a", 10), "!")]
    first, second = parts_by_time(lines, 10)
    assert first == (lines[:3], START + timedelta(seconds=9))
    assert second == (lines[3:], START + timedelta(seconds=10))
    ((all_lines, now),) = parts_by_time(lines[1:2], 10)
    assert (all_lines, now.year) == (lines[1:2], 1970)


def test_what_is_dated_far_from_the_lines_around_it_is_misdated():
    def wrong(*seconds, latest=1e9):
        times = [None if s is None else START + timedelta(seconds=s) for s in seconds]
        found = misdated(times, START + timedelta(seconds=latest))
        return [place for place, one in enumerate(found) if one]

    far = 9e9
    assert wrong() == wrong(0) == wrong(0, 0, 300, 1) == []
    assert wrong(0, 1, far, 2, 3) == [2]
    assert wrong(0, 1, 18_000, None, 2, -18_000, 3) == [2, 5]
    assert wrong(far, 0, 1, far) == [0, 3]  # after the machine's clock
    assert wrong(*range(12), *[18_000] * 9, *range(12)) == [*range(12, 21)]
    # a pause of the log, however long, and however little comes after it; and an older log after a newer one
    assert wrong(*range(99), 36_000) == wrong(*range(99), 36_000, 36_001, 90_000, 90_001) == []
    assert wrong(36_000, 36_001, *range(99)) == []


@pytest.mark.parametrize("size", [1, 200, 5000])
def test_a_misdated_line_does_not_move_the_clock_wherever_reading_pauses(size):
    minute = [line("a", second) for second in range(60)]
    ahead = line("a", 18_000)
    lines = [*minute, *[ahead] * 3, *minute[::-1], *[line("a", 60)] * NEIGHBOURS, ahead, minute[-1]]
    lines = [Line("a", place, text) for place, text in enumerate(lines)]
    reads = [lines[place : place + size] for place in range(0, len(lines), size)]
    parts = list(replayed(lambda: reads.pop(0) if reads else [], 1e9, START + timedelta(days=1)))
    assert [one for part, _, _ in parts for one in part] == lines
    assert {now for _, now, _ in parts} <= {START + timedelta(seconds=s) for s in range(61)}
    assert sum(wrong for *_, wrong in parts) == 4


def test_lines_ahead_of_the_clock_are_counted():
    lines = [Line("a", 0, text) for text in (line("a", 300), line("a", 301), "?", line("a", -9e6))]
    assert count_ahead(lines, START) == 1


def test_the_time_of_a_line_is_not_that_of_a_login():
    lines = [Line("a", 0, line("192.0.2.1 - [09/Mar/2099:10:00:00 +0000]", 7))]
    assert list(times_of(lines)) == [START + timedelta(seconds=7)]


def test_lines_that_cannot_be_read_are_counted():
    assert f"r'^{PATTERN}\\r?\\z|(?s)^.*\\z'" in script()
    good = ["192.0.2.1", "a.example:80 ::ffff:192.0.2.1", "::1 - ann lee", "a.example 2001:DB8::1"]
    bad = [
        "192.0.2.1, 10.0.0.2",
        "client.example",
        "192.0.2.999",
        "192.0.2.1:80",
        "fe80::1%x",
        "a b",
    ]
    unread = Unreadable()
    unread.observe([Line("a", 0, text) for text in (*(line(one, 0) for one in good), "", " ")])
    assert unread.lines == 0
    lines = [line(one, 0) for one in bad]
    lines += [line("192.0.2.1", 0)[:60] + line("192.0.2.2", 0)]  # joined by a crash
    lines += [line("::1", 0).replace("02/Mar", "31/Feb"), "x" * 999]
    unread.observe([Line("a", 0, text) for text in lines])
    assert unread.lines == len(lines)
    assert lines[0].startswith(unread.first)
    assert unread.text.startswith(
        "9 lines can't be read and don't count, such as '192.0.2.1, 10.0.0.2"
    )


def test_a_missing_log_is_named(tmp_path):
    (tmp_path / "guard.yml").write_text(CONFIG)
    with pytest.raises(DataError, match="LOG_NOT_READABLE"):
        guard.run(arguments("--log", tmp_path / "none", "--config", tmp_path / "guard.yml"))


@pytest.mark.parametrize("log", ["access.log*", "", "nowhere/access.log"])
def test_what_will_never_be_a_log_is_refused_instead_of_followed(tmp_path, log):
    (tmp_path / "guard.yml").write_text(CONFIG)
    (tmp_path / "access.log").touch()
    words = ["--log", tmp_path / log, "--config", tmp_path / "guard.yml", "--follow"]
    with pytest.raises(DataError, match="LOG_NOT_READABLE") as refused:
        guard.run(arguments(*words, "--storage", tmp_path / "storage"))
    assert ("rotated ones" in refused.value.hint) == ("*" in log)
    assert not (tmp_path / "storage").exists()


def test_a_file_that_cannot_be_written_is_refused_before_anything_is(tmp_path):
    (tmp_path / "file").touch()
    storage = tmp_path / "storage"
    config = tmp_path / "guard.yml"
    for folder in ("nope", "file"):
        file = tmp_path / folder / "blocked.conf"
        notify = f"notify: [{{to: webhook, url: 'https://x/'}}, {{to: nginx, file: {file}}}]\n"
        config.write_text(CONFIG + notify)
        words = ["--log", tmp_path / "log", "--config", config, "--storage", storage, "--follow"]
        with pytest.raises(ScriptError, match=r"BAD_CONFIG.*notify\[1\].file: there is no folder"):
            guard.run(arguments(*words))
    assert not storage.exists()


def test_a_token_that_is_too_short_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SHORT", "12345")
    (tmp_path / "guard.yml").write_text(CONFIG)
    words = ("--log", tmp_path / "access.log", "--config", tmp_path / "guard.yml", "--follow")
    with pytest.raises(EngineError, match=r"BAD_OPTION.*length of the console's token"):
        guard.run(
            arguments(*words, "--port", 0, "--token", "${env:SHORT}", "--storage", tmp_path / "s")
        )
    assert [path.name for path in tmp_path.iterdir()] == ["guard.yml"]


def test_programs_get_what_happens_as_events(capsys):
    class Reached:
        def reached(self):
            return [Quiet("coast", "Beacon", "3", "41.5")], [Quiet("delta", "-", "70", "None")]

        def learn(self, now):
            return 0

    unread = Unreadable()
    unread.observe([Line("a", 0, "?")])
    for form in ("table", "json"):
        watch = _Watch(Output(form), dry_run=form == "json")
        watch.admitted(START, [Admission("192.0.2.9", "flood", "200 requests in 10 s")])
        decided = ("192.0.2.7", "block", "ann", "scans", "2026-01-02 03:04:05")
        watch.decided(START, [Decided(*decided)])
        watch.freed(START, ["192.0.2.9"])
        watch.left_out(START, 2, unread)
        watch.take_notes(Reached(), START)
    shown = capsys.readouterr().out.splitlines()
    time = f"{START:%FT%TZ}"
    assert shown[:7] == [
        f"{time} blocked 192.0.2.9 flood: 200 requests in 10 s",
        f"{time} by hand: block 192.0.2.7 until 2026-01-02 03:04:05, ann: scans",
        f"{time} freed 192.0.2.9",
        f"{time} 2 lines are dated more than 5 minutes ahead of this machine's clock: they don't count",
        f"{time} {unread.text}",
        f"{time} quiet: coast, Beacon: 3 requests in 5 minutes, 41.5 are usual",
        f"{time} back: delta, -: 70 requests in 5 minutes, None are usual",
    ]
    blocked, decision, freed, ahead, unreadable, quiet, back = map(json.loads, shown[7:])
    assert blocked == {
        "event": "blocked", "time": time, "target": "192.0.2.9", "rule": "flood",
        "evidence": "200 requests in 10 s", "dry_run": True,
    }  # fmt: skip
    assert (decision["event"], decision["action"], decision["verified"]) == (
        "decided",
        "block",
        False,
    )
    assert freed == {"event": "freed", "time": time, "target": "192.0.2.9"}
    assert (ahead["event"], ahead["lines"]) == ("misdated", 2)
    assert unreadable == {"event": "unreadable", "time": time, "lines": 1, "first": "?"}
    assert [quiet[name] for name in ("event", "requests", "usual")] == ["quiet", 3, 41.5]
    assert [back[name] for name in ("event", "requests", "usual")] == ["back", 70, None]


def test_it_is_told_when_a_notification_works_again(capsys):
    one = Undelivered("guard_webhook_1", "webhook", "SINK_FAILED: gone", START.isoformat())
    for form in ("table", "json"):
        watch = _Watch(Output(form), dry_run=False)
        for failing in ([], [one], [one], [], []):
            watch.delivering(START, failing)
    text, *events = capsys.readouterr().out.splitlines()
    time = f"{START:%FT%TZ}"
    assert text == f"{time} the list is delivered again: webhook"
    assert list(map(json.loads, events)) == [
        {"event": "undelivered", "time": time, **one._asdict()},
        {"event": "delivered", "time": time, "sink": "guard_webhook_1", "to": "webhook"},
    ]


def test_each_silence_is_told_once_and_ends_when_requests_come():
    class Reaching(Guard):
        def __init__(self):
            self.views, self._quiet = {"reach": None}, set()

        def _rows(self, view, *columns):
            return self.rows

    one = Reaching()

    def told(*rows):
        one.rows = [("coast", "Beacon", *row) for row in rows]
        return [[place.requests for place in places] for places in one.reached()]

    assert told(("60", "60.0", "false")) == [[], []]
    assert told(("0", "60.0", "true")) == [["0"], []]
    assert told(("0", "0.0", "false")) == [[], []]  # nobody comes at this hour
    assert told() == [[], []]
    assert told(("0", "60.0", "true")) == [[], []]  # still the same silence
    assert told(("3", "60.0", "true")) == [[], []]
    assert told(("58", "60.0", "false")) == [[], ["58"]]
    assert told(("0", "60.0", "true")) == [["0"], []]
    assert told() == [[], []]
    assert told(("4", "0.0", "false")) == [[], ["4"]]


@pytest.mark.spark
@pytest.mark.parametrize(
    "moment", ["its JVM starts", pytest.param("it replays", marks=pytest.mark.slow)]
)
def test_sigterm_ends_it_before_it_follows(tmp_path, moment):
    (tmp_path / "guard.yml").write_text(CONFIG)
    lines = [*normal(40, 0, 9), *(line("192.0.2.9", 12) for _ in range(200))]
    lines += [line("198.51.0.7", second) for second in range(60, 6000, 30)]
    (tmp_path / "access.log").write_text("".join(f"{one}\n" for one in lines))
    (tmp_path / "temporary").mkdir()
    code = "import sys; from eddyline.cli.commands import main; sys.exit(main())"
    words = ["--log", tmp_path / "access.log", "--config", tmp_path / "guard.yml"]
    words += [] if moment == "it replays" else ["--follow"]
    child = Child(
        [sys.executable, "-c", code, "guard", *map(str, words)],
        tmp_path / "errors",
        TMPDIR=str(tmp_path / "temporary"),
    )

    def jvm():
        return [one for one in members(child.process.pid) if one != child.process.pid]

    try:
        if moment == "it replays":
            assert any("would block" in text for text in child.process.stdout), child.last_words()
        else:
            until(jvm, child.last_words)
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(60) == INTERRUPTED
        assert "Traceback" not in child.last_words()
        assert not list((tmp_path / "temporary").glob("eddyline-guard-*"))
        until(lambda: members(child.process.pid) == [], child.last_words)
    finally:
        child.kill()


@pytest.mark.spark
@pytest.mark.parametrize("given", ["", "--driver-java-options -Dgiven=1 pyspark-shell"])
def test_the_jvm_has_no_optimising_compiler_unless_options_are_given(tmp_path, given, monkeypatch):
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    (tmp_path / "guard.yml").write_text(CONFIG)
    (tmp_path / "access.log").touch()
    words = ("--log", tmp_path / "access.log", "--config", tmp_path / "guard.yml")
    child = Child(
        [sys.executable, str(Path(__file__).with_name("guard_child.py")), *map(str, words)],
        tmp_path / "errors",
        **({"PYSPARK_SUBMIT_ARGS": given} if given else {}),
    )

    def options():
        words = []
        for one in members(child.process.pid):
            with suppress(OSError):  # it has just ended
                words.append(Path(f"/proc/{one}/cmdline").read_text().split("\0"))
        started = [one for one in words if one[0].endswith("java") and "-cp" in one]
        launcher = "org.apache.spark.launcher.Main"  # a JVM of its own, before the other one
        return next((one for one in started if launcher not in one), None)

    try:
        chosen = {"-Dgiven=1"} if given else set(guard.JAVA_OPTIONS.split())
        assert chosen == {"-Dgiven=1", *guard.JAVA_OPTIONS.split()} & {*until(options)}
    finally:
        child.kill()


def test_a_log_at_rest_tells_who_would_have_been_blocked(tmp_path, capsys):
    notified = tmp_path / "blocked.conf"
    more = f"notify: [{{to: nginx, file: {notified}}}]\nnew_blocks_per_minute: 1\n"
    (tmp_path / "guard.yml").write_text(CONFIG + more)
    lines = [
        *normal(40, 0, 9),
        *(line("192.0.2.9", 12, "/x.png") for _ in range(200)),
        *(line("203.0.113.70", 12, "/x.png") for _ in range(200)),  # on the allow-list
        *(line("192.0.2.200", 13, "/login", "POST") for _ in range(9)),
        *normal(40, 75, 9),
        *(line("192.0.2.77", 80, "/x.png") for _ in range(200)),
    ]
    log = tmp_path / "access.log"
    log.write_text("".join(f"{text}\n" for text in lines[:-560]))
    storage = tmp_path / "storage"
    words = ("--log", log, "--config", tmp_path / "guard.yml", "--storage", storage)
    assert guard.run(arguments(*words)) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"would block (\S+) (\S+):", shown) == [("192.0.2.9", "flood")]
    assert shown.endswith("\n1 addresses and networks would have been blocked\n")

    reason = ("--reason", "on the phone", "--storage", storage)
    assert guard.run(arguments("block", "2001:db8::/48", "--for", "2h", *reason)) == 0
    assert "no guard runs on this storage" in capsys.readouterr().out
    assert guard.run(arguments("unblock", "192.0.2.200", *reason, "--format", "json")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "event": "decision", "action": "allow", "target": "192.0.2.200", "seconds": 3600,
        "guard_runs": False,
    }  # fmt: skip

    log.write_text("".join(f"{text}\n" for text in lines))
    assert guard.run(arguments(*words)) == 0  # only what is new is read
    shown = capsys.readouterr().out
    assert re.findall(r"would block (\S+)", shown) == ["192.0.2.77"]
    assert "freed 192.0.2.9\n" in shown
    assert not notified.exists()

    assert guard.run(arguments("list", "--storage", storage)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^192\.0\.2\.77 +flood ", shown, re.MULTILINE)
    by_hand = r"^2001:db8::/48 +by hand +.* \(command line\): on the phone "
    assert re.search(by_hand, shown, re.MULTILINE)
    assert guard.run(arguments("list", "--storage", storage, "--format", "json")) == 0
    listed = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert {one["event"] for one in listed} == {"listed"}
    assert {one["target"]: one["reason"] for one in listed} == {
        "192.0.2.77": "flood", "2001:db8::/48": "by hand",
    }  # fmt: skip
    assert all(datetime.fromisoformat(one["since"]).tzinfo for one in listed)


@pytest.mark.spark
def test_a_line_of_the_future_hides_no_attack(tmp_path, capsys):
    (tmp_path / "guard.yml").write_text(CONFIG)
    century, hours = timedelta(days=30_000).total_seconds(), 18_000
    lines = [
        *normal(40, 0, 9),
        line("198.51.9.7", century),
        "no request",
        *(line("192.0.2.9", 12 + n // 20, "/x.png") for n in range(200)),
        *(line("192.0.2.66", hours, "/x.png") for _ in range(100)),
        *normal(40, 22, 120),
    ]
    (tmp_path / "access.log").write_text("".join(f"{text}\n" for text in lines))
    words = ("--log", tmp_path / "access.log", "--config", tmp_path / "guard.yml")
    assert guard.run(arguments(*words, "--format", "json")) == 0
    found = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [one["target"] for one in found if one["event"] == "blocked"] == ["192.0.2.9"]
    assert found[-3:] == [
        {"event": "misdated", "lines": 101},
        {"event": "unreadable", "lines": 1, "first": "no request"},
        {"event": "replayed", "blocked": 1},
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("block", "192.0.2.1"),
        ("block", "--reason", "x"),
        ("list", "192.0.2.1"),
        ("list",),
        ("block", "192.0.2.1", "--reason", "x"),
        ("--config", "guard.yml"),
        ("--log", "x"),
    ],
)
def test_what_a_command_needs_is_named(words):
    with pytest.raises(EngineError, match="BAD_OPTION"):
        guard.run(arguments(*words))


def test_a_storage_without_a_guard_takes_no_decisions(tmp_path):
    with pytest.raises(StorageError, match="NO_STORAGE"):
        guard.run(arguments("block", "192.0.2.1", "--reason", "x", "--storage", tmp_path / "none"))
