"""`eddyline webstats` over real logs, and following a log that is rotated while the command is killed."""

import argparse
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import Row

from eddyline.cli.output import Output
from eddyline.errors import EddylineError
from eddyline.runtime.progress import Progress
from eddyline_apps.traffic import Traffic
from eddyline_apps.webstats import command
from eddyline_apps.webstats.views import template
from test_web_statistics import DATA, LOGS, truth

CHILD = """
import argparse, sys
from eddyline_apps.webstats import command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args(sys.argv[1:])))
"""
WAIT_S = 240


def webstats(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return command.run(parser.parse_args([str(one) for one in arguments]))
    finally:
        signal.signal(signal.SIGTERM, handler)


# --- without a JVM ---


def test_the_views_are_shown(capsys):
    assert webstats("--show-views") == 0
    shown = capsys.readouterr().out
    assert "CREATE VIEW daily_statistics AS" in shown
    assert webstats("--show-views", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"event": "views", "sql": shown}


def test_epochs_that_have_read_lines_are_reported(capsys):
    read = Progress(
        7, {"log": 9, "requests": 1200}, {"requests": 1190}, {"run": 0.5, "commit": 0.25}
    )
    for form in ("table", "json"):
        for progress in (read, Progress(8, {"clock": 1}, {}, {"run": 0.1})):
            command.report_progress(Output(form), progress)
    shown = capsys.readouterr()
    assert not shown.err
    text, event = shown.out.splitlines()
    assert text == "epoch 7: 1,200 lines in 0.75 s"
    found = json.loads(event)
    assert [found[name] for name in ("event", "epoch", "lines")] == ["epoch", 7, 1200]
    assert found["seconds"] == {"run": 0.5, "commit": 0.25}


def test_a_format_that_no_line_has_is_warned_of(capsys):
    def warned(malformed, requests, **given):
        rows = {"malformed_lines": malformed, "requests": requests}
        progress = Progress(7, {"requests": malformed + requests}, rows, {"run": 0.5})
        command.report_progress(Output("table"), progress, **given)
        return capsys.readouterr().err

    assert "none of 1,200 lines has the format of the log" in warned(1200, 0)
    assert warned(1, 0, odd=1)
    assert not warned(1, 0)
    assert not warned(1200, 1)


def test_a_long_host_is_cut_in_the_table_and_whole_for_programs(capsys):
    site = "a" * 3000

    class Rows:
        def sql(self, query):
            return self

        def collect(self):
            return [Row(**{name: site if name == "site" else 1 for name in command.DAYS})]

        def first(self):
            return (0,)

    for form in ("table", "json"):
        command._report_days(Rows(), Output(form))
    *table, _, day, _ = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) < 200
    assert json.loads(day)["site"] == site


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        ([], "LOG_NOT_READABLE"),
        (["--log", "missing.log"], "LOG_NOT_READABLE"),
        (["--log", "*.log", "--follow"], "LOG_FORMAT_UNKNOWN"),
        (["--log", "*.log"], "LOG_NOT_READABLE"),
        (["--log", "odd", "*.log", "--log-format", "combined"], "LOG_NOT_READABLE"),
        (["--log", "odd", "--log-format", "combined", "--views", "none.sql"], "BAD_OPTION"),
        (["--log", "odd"], "LOG_FORMAT_UNKNOWN"),
        (["--log", "odd", "--log-format", "combined", "--zone", "Mars/Olympus"], "BAD_OPTION"),
        (["--log", "odd", "--log-format", "combined", "--site-from", "/x"], "LOG_FORMAT_UNKNOWN"),
        (["--log", "odd", "--log-format", "combined", "--storage", "."], "STORAGE_NOT_EMPTY"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    arguments, condition, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd").write_text("<script>no log</script>\n" * 3)
    with pytest.raises(EddylineError) as caught:
        webstats(*arguments)
    assert caught.value.condition == condition
    if "*.log" in arguments and condition == "LOG_NOT_READABLE":
        assert f"no file matches {tmp_path / '*.log'}" in str(caught.value)
    if "--views" in arguments:
        assert "the file after --views can't be read" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it lacks the view requests, malformed_count, daily_statistics"),
        (
            "CREATE VIEW requests AS SELECT 1;\nINSERT INTO a SELECT 1",
            "statement 2 is no CREATE VIEW",
        ),
    ],
)
def test_a_file_of_views_holds_the_views_and_nothing_else(text, wrong, tmp_path):
    (tmp_path / "odd").touch()
    views = tmp_path / "views.sql"
    views.write_text(text)
    words = ["--log", tmp_path / "odd", "--log-format", "combined", "--storage", tmp_path / "new"]
    with pytest.raises(EddylineError, match="BAD_OPTION") as caught:
        webstats(*words, "--views", views)
    assert wrong in str(caught.value)
    assert not (tmp_path / "new").exists()
    views.write_text(template())
    assert command._text(views) == template()


def test_the_views_of_a_storage_stay_those_that_it_was_made_with(tmp_path):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    log, changed = tmp_path / "log", template() + "\n-- changed"

    def asked(storage, text):
        words = ["--log", str(log), "--log-format", "combined", "--follow"]
        return command._asked(parser.parse_args(words), tmp_path / storage, text)

    asked("own", changed)
    assert asked("own", changed) == asked("own", None)
    asked("usual", None)
    asked("usual", template())
    for storage, text in (("own", template()), ("own", changed + " again"), ("usual", changed)):
        with pytest.raises(EddylineError, match="OTHER_RUN"):
            asked(storage, text)


def test_the_site_of_a_zone_may_hold_anything():
    assert command._zone("WWW.example=Europe/Berlin") == ("www.example", "Europe/Berlin")
    assert command._zone("a=b=UTC") == ("a=b", "UTC")
    assert command._zone("UTC") == ("", "UTC")


# --- real logs ---


@pytest.mark.spark
def test_a_real_log_gives_its_known_figures_and_the_storage_is_opened_again(tmp_path, capsys):
    known = truth("nasa_aug95_head_broken_lines")["total"]
    log = DATA / LOGS["nasa_aug95_head_broken_lines"]
    storage = tmp_path / "storage"
    assert (
        webstats("--log", log, "--storage", storage, "--zone", "America/New_York", "--verify") == 0
    )
    shown = capsys.readouterr().out
    for name in ("requests", "uv_host", "visits"):
        assert f"{known[name]:,}" in shown
    assert "89 malformed lines" in shown
    assert re.search(r"daily_statistics +1 +1 +yes", shown)
    assert webstats("--storage", storage, "--format", "json") == 0  # nothing is read twice
    again = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in again] == ["day", "malformed"]
    assert [again[0][name] for name in ("pv", "visits")] == [known["requests"], known["visits"]]
    assert isinstance(again[0]["average_duration_s"], float)
    assert again[1]["malformed"] == 89
    with pytest.raises(EddylineError, match="OTHER_RUN"):
        webstats("--log", log, "--storage", storage, "--zone", "UTC")


@pytest.mark.spark
def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    lines = "".join(f"{one}\n" for one in next(iter(Traffic(lines=50, seed=9).batches(50))))
    (tmp_path / "access.log").write_text(lines)
    torn = tmp_path / "access.log.2.gz"
    torn.write_bytes(gzip.compress(lines.encode())[:-9])
    assert webstats("--log", tmp_path / "access.log*", "--log-format", "combined") == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "can't be read" in one]
    assert line.startswith(f"{torn} can't be read: ")


# --- following ---


class Follower:
    """The command in a process of its own."""

    def __init__(self, *arguments):
        here = Path(__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": f"{here / 'src'}:{here / 'apps' / 'src'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.shown = []

    def until(self, pattern):
        """Wait for a line of output; return it."""
        limit = time.monotonic() + WAIT_S
        for text in self.process.stdout:
            self.shown.append(text)
            if found := re.search(pattern, text):
                return found
            assert time.monotonic() < limit
        raise AssertionError(f"it has ended: {self.shown}")

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(WAIT_S)
        self.process.stdout.close()
        return self.process.returncode


@pytest.mark.guarantee(
    "stream `tail`, by `eddyline webstats`",
    "exactly once",
    "the engine, by kill -9, while the log is rotated",
)
@pytest.mark.slow
@pytest.mark.spark
def test_each_line_counts_once_over_rotation_and_kills(tmp_path, capsys):
    lines = [one for batch in Traffic(lines=1200, days=1, seed=9).batches(200) for one in batch]
    log = tmp_path / "access.log"
    storage = tmp_path / "storage"
    arguments = ("--log", f"{log}*", "--storage", storage, "--follow", "--port", 0)

    def write(begin, end):
        with log.open("a") as file:
            file.writelines(f"{text}\n" for text in lines[begin:end])

    write(0, 300)
    first = Follower(*arguments)
    try:
        first.until(r"epoch \d+: 300 lines")
        write(300, 500)
        first.until(r"epoch")
        log.rename(tmp_path / "access.log.1")
        write(500, 700)
    finally:
        first.end(signal.SIGKILL)
    data = (tmp_path / "access.log.1").read_bytes()
    (tmp_path / "access.log.2.gz").write_bytes(gzip.compress(data))
    (tmp_path / "access.log.1").unlink()
    write(700, 1200)
    second = Follower(*arguments)
    try:
        second.until(r"epoch \d+:")
        assert second.end(signal.SIGTERM) == 0
    finally:
        second.process.kill()
    assert webstats("--storage", storage, "--verify") == 0
    capsys.readouterr()
    from eddyline.api.engine import Engine

    with Engine(str(storage)) as engine:
        (pv,) = engine.sql("SELECT sum(pv) FROM daily_statistics").first()
        (malformed,) = engine.sql("SELECT malformed FROM malformed_count").first()
        assert pv + malformed == len(lines)
        (distinct,) = engine.sql("SELECT count(DISTINCT seq) FROM requests").first()
        assert distinct == pv
