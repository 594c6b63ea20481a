"""The archive of Spark's classes: `eddyline warm-up` makes it, and sessions start with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from eddyline.cli import doctor, main
from eddyline.spark import class_archive, java
from eddyline.spark.class_archive import archive_options, archive_path

ANSWER = """
import sys
import eddyline as el

with el.Engine(sys.argv[1]) as engine:
    engine.execute("CREATE VIEW v AS SELECT 20 + 22 AS answer")
    engine.advance()
    print(engine.sql("SELECT answer FROM v").first().answer)
"""


def environment_of_its_own(folder: Path) -> str:
    """Make a Python environment with the packages of this one, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder.joinpath(*Path(sysconfig.get_path("purelib")).parts[-3:])
    (packages / "all.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    return str(folder / "bin/python")


def answered(python: str, folder: Path, **environment: str) -> set[str]:
    """Let a process answer a query, and return where its JVM found Spark's classes."""
    log = folder / "classes"
    log.unlink(missing_ok=True)
    options = f"--driver-java-options -Xlog:class+load:file={log} pyspark-shell"
    inherited = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [python, "-c", ANSWER, str(folder / "storage")],
        env={**inherited, "PYSPARK_SUBMIT_ARGS": options, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"  # where the JVM complains, too
    loaded = (line.split(" source: ") for line in log.read_text().splitlines())
    return {source for name, source in loaded if name.endswith(" org.apache.spark.SparkContext")}


@pytest.mark.spark
@pytest.mark.slow
def test_sessions_start_with_the_archive_that_the_command_makes(tmp_path: Path) -> None:
    python = environment_of_its_own(tmp_path / "environment")
    jars = answered(python, tmp_path)
    assert "shared objects file (top)" not in jars
    command = [python, "-m", "eddyline", "warm-up", "--format", "json"]
    for _ in range(2):  # the second one replaces the first
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        assert (told["event"], told["bytes"]) == ("class archive", os.path.getsize(told["path"]))
        assert [*map(str, (tmp_path / "environment/share/eddyline").iterdir())] == [told["path"]]
    assert answered(python, tmp_path) == {"shared objects file (top)"}


@pytest.mark.spark
@pytest.mark.slow
def test_a_jvm_that_the_archive_does_not_fit_starts_as_before(tmp_path: Path) -> None:
    if not archive_options():
        pytest.skip("needs `eddyline warm-up`")
    assert answered(sys.executable, tmp_path) == {"shared objects file (top)"}
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text("spark.driver.extraClassPath /none.jar\n")
    (found,) = answered(sys.executable, tmp_path, SPARK_CONF_DIR=str(configuration))
    assert found.endswith(".jar")


def java_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder that looks like a Java, and return the library of its JVM."""
    library = folder / "lib/server/libjvm.so"
    library.parent.mkdir(parents=True)
    library.write_text("17")
    library.with_name("classes.jsa").touch()
    (folder / "bin").mkdir()
    program = folder / "bin/java"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))
    return library


def test_each_java_and_each_spark_has_its_own_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = archive_path()
    library = java_of(tmp_path / "java", monkeypatch)
    first = archive_path()
    library.write_text("17.1")  # an update
    second = archive_path()
    monkeypatch.setattr(class_archive, "_find_spark_home", lambda: "/opt/spark")
    assert len({usual, first, second, archive_path()}) == 4


def test_java_of_the_extra_has_an_archive_before_it_is_provided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_of(tmp_path / "java", monkeypatch)
    wanted = archive_path()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "bundled_java", lambda: tmp_path / "java/bin/java")
    assert archive_path() == wanted
    java.provide_java()  # a program that stands before it
    assert archive_path() == wanted


def test_an_archive_is_used_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_of(tmp_path / "java", monkeypatch)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    path = archive_path()
    assert path is not None
    assert archive_options() == ""
    assert "eddyline warm-up" in finding().advice
    path.parent.mkdir(parents=True)
    path.touch()
    assert archive_options().endswith(f" -XX:SharedArchiveFile={path}")
    assert finding().state == doctor.OK


def finding() -> doctor.Finding:
    return next(one for one in doctor.examine() if one.check == "class archive")


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["warm-up"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eddyline: [NO_CLASS_ARCHIVE]")
    return error


def test_what_is_in_the_way_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = java_of(tmp_path / "java", monkeypatch)
    environment = tmp_path / "an environment"
    environment.mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert "has spaces" in refusal(capsys)
    monkeypatch.setattr(sys, "prefix", str(library))
    assert "Not a directory" in refusal(capsys)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "JAVA_GATEWAY_EXITED" in refusal(capsys)
    assert not [*(tmp_path / "share/eddyline").iterdir()]
    library.with_name("classes.jsa").unlink()
    assert "Java can't write: " in refusal(capsys)
    library.unlink()
    assert "set JAVA_HOME" in refusal(capsys)
