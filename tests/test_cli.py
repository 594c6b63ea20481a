"""The command line as far as it goes without a JVM: arguments, refusals, and the form of what is printed."""

from __future__ import annotations

import argparse
import doctest
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from eddyline import Progress
from eddyline.cli import commands, completion, main, output, text
from eddyline.errors import EddylineError, StateGrowthWarning


def parse(*arguments: str) -> argparse.Namespace:
    return commands.build_parser(arguments).parse_args(arguments)


def test_run() -> None:
    args = parse("run", "a.sql", "--storage", "d")
    assert (args.script, args.storage, args.once, args.interval) == ("a.sql", "d", False, None)
    args = parse("run", "-", "--storage", "d", "--once", "--interval", "0.5")
    assert (args.script, args.once, args.interval) == ("-", True, 0.5)


def test_sql() -> None:
    args = parse("sql", "SELECT 1", "--storage", "d")
    assert (args.query, args.storage, args.format) == ("SELECT 1", "d", "table")
    assert {
        parse("sql", "q", "--storage", "d", "--format", form).format for form in text.FORMATTERS
    } == {
        "table",
        "csv",
        "json",
    }


def test_a_result_without_rows_is_no_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    text.show_text("")
    text.show_text('{"n":1}')
    assert capsys.readouterr().out == '{"n":1}\n'


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
        main(arguments)
    assert caught.value.code == 2
    assert "usage: eddyline" in capsys.readouterr().err


def test_a_wrong_interval_is_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
    storage = tmp_path / "storage"
    assert main(["run", str(script), "--storage", str(storage), "--interval", "-5"]) == 2
    assert "[BAD_OPTION] interval is -5.0" in capsys.readouterr().err
    assert not storage.exists()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name in ("run", "sql", "explain", "status", "verify", "task", *commands.APPS):
        assert f"\n    {name} " in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
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
    assert main([*command, "--storage", str(missing)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("eddyline: [NO_STORAGE] there is no stored engine")
    assert shown.err.count("\n") == 1
    assert not missing.exists()


def test_tasks_of_a_folder_that_is_no_storage_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["list"], ["pause", "v"]):
        assert main(["task", *command, "--storage", str(tmp_path)]) == 2
        assert "[NO_STORAGE]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["explain"], ["run", "--storage", "unused"]])
def test_a_script_that_cannot_be_read_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe9'")
    for name in ("missing.sql", "latin.sql"):
        assert main([*command, str(tmp_path / name)]) == 2
        assert "eddyline: [SCRIPT_NOT_READABLE]" in capsys.readouterr().err


def test_a_wrong_script_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text("\ufeffCREATE TABLE t (a INT);\nCREATE INDEX k ON t", "utf-8")
    assert main(["explain", str(script)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("eddyline: [SCRIPT_UNSUPPORTED] CREATE INDEX")
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


@pytest.mark.parametrize("name", list(commands.APPS))
def test_plugins_bring_their_own_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (module,) = entry_points(group=commands.ENTRY_POINTS, name=name)
    monkeypatch.setitem(sys.modules, module.value, plugin(3))
    assert main([name]) == 3
    assert main([name, "--rows", "1"]) == 1
    assert main([name, "--rows", "-1"]) == 2
    assert capsys.readouterr().err == "eddyline: [NO] no\n  in the test\n"


def test_a_refusal_is_json_where_the_output_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--storage", str(tmp_path), "--format", "json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    error = json.loads(shown.err)["error"]
    assert error["condition"] == "NO_STORAGE"
    assert str(tmp_path) in error["context"].values()
    assert error["hint"]


def test_progress_lines_are_aligned() -> None:
    lines = [
        text.progress_line(
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


def test_a_view_with_the_name_of_an_operator_counts_in_the_line() -> None:
    state = {name: {"rows": 2, "bytes": 512} for name in ("v", "v/op0")}
    line = text.progress_line(Progress(1, {}, {}, {}, state))
    assert "           4 rows    1.0 KiB  " in line


def test_sizes() -> None:
    assert [text.size(n) for n in (0, 1023, 1024, 1536, 10**9, 10**13, 10**18)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "953.7 MiB",
        "9.1 TiB",
        "909494.7 TiB",
    ]


def test_layout_without_rows() -> None:
    assert text.layout(("a", "bc"), []) == "a  bc\n-  --"


@pytest.mark.parametrize("module", [output, text])
def test_examples_in_docstrings(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_package_of_the_command_line_is_light() -> None:
    heavy = "{'pyspark', 'polars', 'pandas', 'pyarrow', 'numpy', 'psycopg'}"
    code = f"import sys, eddyline.cli; assert not {heavy} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_growing_state_is_one_short_line_for_each_view(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always", StateGrowthWarning)

        def run(args: argparse.Namespace) -> int:
            for view, side in (("v", "left"), ("v", "right"), ("w", "left")):
                warnings.warn(f"view {view}: the {side} side grows", StateGrowthWarning, 1)
            return 0

        parser = argparse.ArgumentParser()
        parser.set_defaults(run=run)
        patch.setattr(commands, "build_parser", lambda _: parser)
        assert main([]) == 0
    assert capsys.readouterr().err == (
        "warning: view v: the left side grows\nwarning: view w: the left side grows\n"
    )


def test_run_shows_warnings_of_the_log_and_verbose_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text("SELECT 1")

    @contextmanager
    def engine(_: str) -> Iterator[None]:
        logging.getLogger("eddyline.somewhere").info("all is well")
        logging.getLogger("eddyline.somewhere").warning("all but one")
        raise EddylineError("no", condition="NO")
        yield

    for flags in ([], ["-v"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("signal.signal", lambda *_: None)
            patch.setattr("eddyline.cli.run.open_engine", engine)
            assert main(["run", str(script), "--storage", str(tmp_path), *flags]) == 2
        shown = capsys.readouterr().err
        assert shown.endswith("WARNING eddyline.somewhere: all but one\neddyline: [NO] no\n")
        assert ("INFO eddyline.somewhere: all is well\n" in shown) == bool(flags)


def eddyline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eddyline", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip


def test_a_jvm_that_cannot_start_tells_why(tmp_path: Path) -> None:
    script = tmp_path / "a.sql"
    script.write_text("CREATE TABLE t (v INT);")
    storage = str(tmp_path / "storage")
    nowhere = str(tmp_path / "nowhere")
    done = eddyline("run", str(script), "--storage", storage, JAVA_HOME=nowhere)
    assert done.returncode
    assert f"{tmp_path}/nowhere/bin/java: No such file or directory" in done.stderr


@pytest.mark.spark
def test_answers_come_without_noise(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (events / "a.json").write_text('{"k": "a"}\n')
    script = tmp_path / "a.sql"
    script.write_text(f"""
        CREATE TABLE t (k STRING, n INT);
        CREATE STREAM s (k STRING) USING json OPTIONS (path '{events}');
        CREATE VIEW v AS SELECT k, count(*) AS n FROM t GROUP BY k;
        CREATE VIEW w AS SELECT t.k FROM t JOIN s ON t.k = s.k;
        INSERT INTO t VALUES ('a', 1);
    """)
    storage = str(tmp_path / "storage")
    done = eddyline("run", str(script), "--once", "--storage", storage)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stderr.startswith("warning: view w: the state of ")
    done = eddyline("sql", "SELECT sum(n) AS total FROM v", "--storage", storage)
    assert (done.returncode, done.stderr) == (0, "")


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands, and the actions of those that have some."""
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not found:
        yield parser
    for one in found:
        for added in one.choices.values():
            yield from leaves(added)


def test_each_command_prints_json_for_programs() -> None:
    for parser in leaves(commands.build_parser(with_apps=True)):
        forms = [one.choices for one in parser._actions if one.dest == "format"]
        assert forms, parser.prog
        assert {"table", "json"} <= set(forms[0] or ()), parser.prog


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sta"], {"status"}),
        (["task", ""], {"list", "add", "pause", "resume", "drop"}),
        (["sql", "--f"], {"--format"}),
        (["sql", "--format", ""], {"table", "csv", "json"}),
        (["run", "sho"], {"shop.sql"}),
        (["status", "--storage", "da"], {"data"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], found: set[str]
) -> None:
    pytest.importorskip("shtab")
    (tmp_path / "shop.sql").touch()
    (tmp_path / "data").mkdir()
    assert commands.main(["completion", "bash"]) == 0
    line = " ".join(["eddyline", *words])
    script = f"""{capsys.readouterr().out}
        COMP_LINE='{line}' COMP_WORDS=(eddyline {" ".join(word or "''" for word in words)})
        COMP_CWORD={len(words)}; _shtab_eddyline; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == found


def test_completion_of_other_shells_and_without_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("shtab")
    for shell in completion.SHELLS:
        assert commands.main(["completion", shell]) == 0
        printed = capsys.readouterr().out
        assert "deadletters" in printed
        assert commands.main(["completion", shell, "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown == {"shell": shell, "script": printed[:-1]}
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert commands.main(["completion", "zsh"]) == 2
    assert "eddyline[completion]" in capsys.readouterr().err
