"""The command line as far as it goes without a JVM: arguments, refusals, and the form of what is printed."""

from __future__ import annotations

import argparse
import doctest
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from eddyline import Progress, cli
from eddyline.errors import EddylineError


def parse(*arguments: str) -> argparse.Namespace:
    return cli.build_parser(arguments).parse_args(arguments)


def test_run() -> None:
    args = parse("run", "a.sql", "--storage", "d")
    assert (args.script, args.storage, args.once, args.interval) == ("a.sql", "d", False, None)
    args = parse("run", "-", "--storage", "d", "--once", "--interval", "0.5")
    assert (args.script, args.once, args.interval) == ("-", True, 0.5)


def test_sql() -> None:
    args = parse("sql", "SELECT 1", "--storage", "d")
    assert (args.query, args.storage, args.format) == ("SELECT 1", "d", "table")
    assert {
        parse("sql", "q", "--storage", "d", "--format", form).format for form in cli.FORMATS
    } == {
        "table",
        "csv",
        "json",
    }


def test_explain_status_and_verify() -> None:
    assert (parse("explain", "a.sql").script, parse("explain", "a.sql").stage) == ("a.sql", "dag")
    assert parse("explain", "a.sql", "--stage", "parts").stage == "parts"
    assert parse("status", "--storage", "d").storage == "d"
    assert parse("verify", "--storage", "d").view is None
    assert parse("verify", "--storage", "d", "v").view == "v"


def test_task() -> None:
    assert parse("task", "list", "--storage", "d").storage == "d"
    args = parse("task", "add", "v", "SELECT 1", "--storage", "d", "--wait", "5")
    assert (args.action, args.name, args.query, args.wait) == ("add", "v", "SELECT 1", 5.0)
    for action in ("pause", "resume", "drop"):
        args = parse("task", action, "v", "--storage", "d")
        assert (args.action, args.name, args.query, args.wait) == (action, "v", "", 60.0)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "a.sql"],
        ["run", "a.sql", "--storage", "d", "--interval", "x"],
        ["sql", "q", "--storage", "d", "--format", "xml"],
        ["status"],
        ["verify", "v"],
        ["task", "--storage", "d"],
        ["task", "list"],
        ["task", "add", "v", "--storage", "d"],
        ["task", "stop", "v", "--storage", "d"],
    ],
)
def test_wrong_arguments_end_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: eddyline" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name in ("run", "sql", "explain", "status", "verify", "task", *cli.APPS):
        assert f"\n    {name} " in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("eddyline ")


@pytest.mark.parametrize(
    "command",
    [["sql", "SELECT 1"], ["status"], ["verify"], ["task", "list"], ["task", "drop", "v"]],
)
def test_a_storage_that_is_not_there_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "typo"
    assert cli.main([*command, "--storage", str(missing)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("eddyline: [NO_STORAGE] there is no stored engine")
    assert shown.err.count("\n") == 1
    assert not missing.exists()


def test_tasks_of_a_folder_that_is_no_storage_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["list"], ["pause", "v"]):
        assert cli.main(["task", *command, "--storage", str(tmp_path)]) == 2
        assert "[NO_STORAGE]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["explain"], ["run", "--storage", "unused"]])
def test_a_script_that_cannot_be_read_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe9'")
    for name in ("missing.sql", "latin.sql"):
        assert cli.main([*command, str(tmp_path / name)]) == 2
        assert "eddyline: [SCRIPT_NOT_READABLE]" in capsys.readouterr().err


def test_a_wrong_script_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text("\ufeffCREATE TABLE t (a INT);\nCREATE SINK k FROM t USING jsonl", "utf-8")
    assert cli.main(["explain", str(script)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("eddyline: [SCRIPT_UNSUPPORTED] CREATE SINK")
    assert "line 2" in shown
    assert "Traceback" not in shown


def plugin(result: int) -> ModuleType:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=result)

    def run(args: argparse.Namespace) -> int:
        rows: int = args.rows
        if rows < 0:
            error = EddylineError("no", condition="NO")
            error.add_note("in the test")
            raise error
        return rows

    module = ModuleType("plugin")
    module.__dict__.update(add_arguments=add_arguments, run=run)
    return module


@pytest.mark.parametrize("name", list(cli.APPS))
def test_plugins_bring_their_own_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (module,) = entry_points(group=cli.ENTRY_POINTS, name=name)
    monkeypatch.setitem(sys.modules, module.value, plugin(3))
    assert cli.main([name]) == 3
    assert cli.main([name, "--rows", "1"]) == 1
    assert cli.main([name, "--rows", "-1"]) == 2
    assert capsys.readouterr().err == "eddyline: [NO] no\n  in the test\n"


def test_progress_lines_are_aligned() -> None:
    lines = [
        cli.progress_line(
            Progress(
                epoch,
                {"t": rows - 1, "v": 1} if rows else {},
                {"v": rows // 7},
                {"plan": 0.01, "run": seconds},
                {"v": {"rows": rows * 3, "bytes": rows * 100}},
            )
        )
        for epoch, rows, seconds in [(1, 0, 0.1), (1234, 1_234_567, 123.456)]
    ]
    assert lines == [
        "epoch      1            0 in          0 out     0.11 s"
        "  state           0 rows        0 B  (plan 0.01, run 0.10)",
        "epoch   1234    1,234,567 in    176,366 out   123.47 s"
        "  state   3,703,701 rows  117.7 MiB  (plan 0.01, run 123.46)",
    ]


def test_sizes() -> None:
    assert [cli.size(n) for n in (0, 1023, 1024, 1536, 10**9, 10**13, 10**18)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "953.7 MiB",
        "9.1 TiB",
        "909494.7 TiB",
    ]


def test_layout_without_rows() -> None:
    assert cli.layout(("a", "bc"), []) == "a  bc\n-  --"


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(cli).failed == 0
