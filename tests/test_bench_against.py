"""`eddyline bench NAME --against REV`: two versions of the project, measured in turn."""

from __future__ import annotations

import argparse
import doctest
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import eddyline_bench as bench
from eddyline.cli import main
from eddyline.cli.output import Output
from eddyline.errors import EngineError
from eddyline_bench import against
from processes import Child
from waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
COMMAND = Path("apps/src/eddyline_bench/__init__.py")
TINY = ["bench", "relay-parts", "--rows", "2000", "--repeat", "1", "--against", "HEAD"]


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    """A repository with two commits: the first one's command has no --format."""
    root = tmp_path / "repository"
    (root / COMMAND).parent.mkdir(parents=True)
    (root / "src/eddyline").mkdir(parents=True)
    git(root, "init", "--quiet")
    for text in ("# old\n", "add_format(parser)\n"):
        (root / COMMAND).write_text(text)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", text)
    hook = root / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    return root


def worktrees(root):
    return git(root, "worktree", "list").splitlines()


# --- figures ---


def test_examples_in_docstrings():
    assert doctest.testmod(against).failed == 0


def test_figures_become_numbers_by_path():
    found = against.flat(
        {
            "machine": {"cores": 2, "load": 0.5},
            "equal": True,
            "made": None,
            "sides": {"Spark": [2.0, 9.0, None, 3.0], "none": []},
            "queries": [{"name": "q", "s": s, "left": 0} for s in (1.0, 2.0, 4.0, 8.0, 16.0)],
            "rounds": [[1, 2.0], [3, 4]],
        }
    )
    assert found == {
        "sides.Spark": 3.0, "queries.s": pytest.approx(4.0), "queries.left": 0.0,
        "rounds.0": 1.5, "rounds.1": 3.5,
    }  # fmt: skip


def test_versions_are_compared_by_figures(capsys):
    runs = [
        {"rows": 5.0, "seconds": seconds, **more}
        for seconds, more in ((1.0, {"new": 7.0}), (2.0, {}), (4.0, {}), (8000.0, {}))
    ]
    seconds, new = against.compare(runs)
    assert seconds == against.Compared("seconds", 4000.5, 3.0, 1333.5, 0.5, 2000.0)
    assert new == against.Compared("new", 7.0, None)
    against.report([seconds, new])
    assert capsys.readouterr().out.splitlines() == [
        "  figure    this  that    ratio  least     most",
        "  seconds  4,000     3  1333.50   0.50  2000.00",
        "  new          7                               ",
    ]
    against.report([new], Output("json"))
    assert json.loads(capsys.readouterr().out) == {
        "event": "figure", "figure": "new", "this": 7.0, "that": None, "ratio": None,
        "least": None, "most": None,
    }  # fmt: skip


# --- git ---


def test_a_revision_has_a_worktree_meanwhile(repository):
    before = worktrees(repository)
    with against.worktree(repository, "HEAD~1") as folder:
        assert (folder / COMMAND).read_text() == "# old\n"
        assert len(worktrees(repository)) == 2
        (folder / "made").touch()  # by a run
    assert not folder.parent.exists()
    assert worktrees(repository) == before
    assert not (repository.parent / "hooked").exists()
    with pytest.raises(KeyboardInterrupt), against.worktree(repository, "HEAD") as folder:
        raise KeyboardInterrupt
    assert not folder.parent.exists()
    assert worktrees(repository) == before


def test_what_cannot_be_compared_is_refused(repository, tmp_path, monkeypatch):
    with against.worktree(repository, "HEAD") as folder:
        against.check_format(folder, "HEAD")
    with (
        pytest.raises(
            EngineError, match="the revision HEAD~1 has no `eddyline bench --format"
        ) as old,
        against.worktree(repository, "HEAD~1") as folder,
    ):
        against.check_format(folder, "HEAD~1")
    with (
        pytest.raises(EngineError, match="no such revision") as unknown,
        against.worktree(repository, "--nope"),
    ):
        pass
    with pytest.raises(EngineError, match="is no git checkout") as installed:
        against.checkout(tmp_path / "lib/site-packages/eddyline_bench/against.py")
    assert against.checkout(repository / COMMAND) == repository
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="git can't be run") as none:
        against._git(repository, "status")
    refused = [one.value.condition for one in (old, unknown, installed, none)]
    assert refused == ["BAD_OPTION"] * 4


@pytest.mark.parametrize("words", [[], ["mars", "--write", "docs"]])
def test_one_benchmark_is_compared(words):
    pytest.importorskip("matplotlib")
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(EngineError, match="compares one benchmark"):
        bench.run(parser.parse_args([*words, "--against", "HEAD"]))


def test_options_are_those_of_the_benchmark(monkeypatch):
    asked = []
    monkeypatch.setattr(against, "run", lambda *given: asked.append(given[:3]) or False)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    words = ["grouped-count", "--rows", "5", "--flink", "--against", "v1"]
    assert bench.run(parser.parse_args(words)) == 1
    assert asked == [("grouped-count", "v1", ["--rows", "5", "--flink"])]


def test_a_run_that_fails_is_told():
    with pytest.raises(EngineError, match="invalid choice: 'nope'") as failed:
        against.bench(ROOT, ["nope"])
    assert failed.value.condition == "BENCHMARK_FAILED"


# --- from end to end ---


def below(folder):
    """The worktrees of the project in a folder; others may come and go meanwhile."""
    return [line for line in worktrees(ROOT) if line.startswith(f"{folder}/")]


@pytest.fixture
def comparable():
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are in no git checkout")
    if "add_format(" not in git(ROOT, "show", f"HEAD:{COMMAND}"):
        pytest.skip("the last commit can't print JSON")


@pytest.mark.slow
@pytest.mark.usefixtures("comparable")
def test_a_benchmark_runs_of_both_versions(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main([*TINY, "--format", "json"]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    *events, result = map(json.loads, capsys.readouterr().out.splitlines())
    runs = [one for one in events if one["event"] == "run"]
    assert [one["version"] for one in runs] == ["this", "that", "that", "this"]
    assert all(one["figures"]["rows"] == 2000 for one in runs)
    figures = {one["figure"]: one for one in events[len(runs) :]}
    speed = figures["messages_s"]
    assert speed["ratio"] == pytest.approx(speed["this"] / speed["that"])
    assert speed["least"] <= speed["most"]
    assert "rows" not in figures
    assert (result["event"], result["equal"], result["against"]) == ("result", True, "HEAD")
    assert not below(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("comparable")
def test_ctrl_c_removes_the_worktree(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "eddyline", *TINY]
    child = Child(command, tmp_path / "errors", TMPDIR=str(scratch))
    try:
        for _ in range(2):
            child.wait_for("run")
        assert len(below(scratch)) == 1
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(PATIENCE_S / 5) == 130, child.last_words()
    finally:
        child.kill()
    assert not below(scratch)
    assert not list(scratch.glob("eddyline-bench-*"))
    assert "Traceback" not in child.errors.read_text()
