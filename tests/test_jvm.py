"""The JVM of a session: settings of the user, and `kill -9` of it alone, after which the process ends and says why."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.spark.jvm import given_settings
from eddyline_apps.processes import members
from processes import Child
from waiting import PATIENCE_S, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SCRIPT = """
CREATE STREAM hits (page INT, ms INT) USING json OPTIONS (path '{folder}');
CREATE VIEW pages AS SELECT page, count(*) AS n, sum(ms) AS ms FROM hits GROUP BY page;
CREATE VIEW slow AS SELECT h.page, h.ms FROM hits h JOIN pages p ON p.page = h.page WHERE h.ms * p.n > p.ms;
CREATE VIEW counts AS SELECT n, count(*) AS pages FROM pages GROUP BY n;
"""


class Site:
    """`eddyline run` over a folder of JSON files."""

    def __init__(self, root: Path) -> None:
        self.storage, self.folder, self.errors = root / "storage", root / "in", root / "errors"
        self.script = root / "site.sql"
        self.folder.mkdir()
        self.script.write_text(SCRIPT.format(folder=self.folder))
        self.files = 0

    def add(self, rows: int = 20) -> None:
        """Write another file."""
        lines = [
            f'{{"page": {n % 7}, "ms": {n * n % 31}}}\n'
            for n in range(self.files, self.files + rows)
        ]
        part = self.folder / f".{self.files}"
        part.write_text("".join(lines))
        self.files += 1
        part.rename(self.folder / f"{self.files}.json")

    def run(self, interval_s: float = 0.1) -> Child:
        command = [sys.executable, "-m", "eddyline", "run", str(self.script)]
        interval = ["--interval", str(interval_s)]
        return Child([*command, "--storage", str(self.storage), *interval], self.errors)

    def check(self, spark: SparkSession) -> None:
        """All views are live, and equal to offline SQL over all files."""
        with el.Engine(str(self.storage), spark) as engine:
            assert {view["state"] for view in engine.status()["views"]} == {"live"}
            engine.advance()
            report = engine.verify()
            assert report, report
            (rows,) = engine.sql("SELECT sum(n) FROM pages").first() or (0,)
            assert rows == 20 * self.files


OWN_SETTINGS = """
# spark.ui.enabled true
spark.driver.memory 600m
  spark.sql.shuffle.partitions=5
"""
SHOW = """
import sys
import eddyline as el

with el.Engine(sys.argv[1]) as engine:
    heap = engine.spark._jvm.Runtime.getRuntime().maxMemory() >> 20
    names = ("spark.sql.shuffle.partitions", "spark.ui.enabled")
    print("found", heap, *map(engine.spark.conf.get, names))
"""


def test_settings_of_the_user_stay(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(OWN_SETTINGS)
    child = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path / "storage")],
        env={
            **os.environ,
            "SPARK_CONF_DIR": str(tmp_path),
            "PYSPARK_SUBMIT_ARGS": "pyspark-shell",  # another collector shows less of the heap
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = [line for line in child.stdout.splitlines() if line.startswith("found")]
    assert found == ["found 600 5 false"], child.stderr


def test_the_optimising_compiler_comes_behind_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, pathlib, sys, eddyline as el\n"
        "with el.Engine(sys.argv[1]) as engine:\n"
        "    jvm = engine.spark.sparkContext._gateway.proc.pid\n"
        "    for task in pathlib.Path(f'/proc/{jvm}/task').iterdir():\n"
        "        nice = os.getpriority(os.PRIO_PROCESS, int(task.name))\n"
        "        print(nice, (task / 'comm').read_text().strip())\n"
        "    given = pathlib.Path(f'/proc/{jvm}/cmdline').read_text().split('\\0')\n"
        "    print(sum(one.startswith('-XX:Tier4') for one in given), file=sys.stderr)\n"
    )
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")  # by which tests have no such compiler
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    own = os.getpriority(os.PRIO_PROCESS, 0)
    found = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    behind = {name for nice, name in found if int(nice) == min(own + 10, 19)}
    assert {name for nice, name in found if int(nice) == own} > {"java", "C1 CompilerThre"}
    assert any(name.startswith("C2 Comp") for name in behind)
    assert all("CompilerThre" in name for name in behind)
    assert done.stderr.split()[-1] == "4"  # thresholds, which the JVM takes


def test_settings_of_the_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(OWN_SETTINGS + "spark.master: local[1]\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert given_settings() == {
        "spark.driver.memory": "600m",
        "spark.sql.shuffle.partitions": "5",
        "spark.master": "local[1]",
    }
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "none"))
    assert given_settings() == {}


def assert_ended(child: Child) -> None:
    assert child.process.wait(PATIENCE_S) == 2  # within two seconds, on a quiet machine
    assert "eddyline: [JVM_LOST] the JVM of Spark was killed by signal 9" in child.last_words()


STARTED = "from eddyline.spark.session import local_session; local_session(); print('started', flush=True)"


@pytest.mark.parametrize("after_s", [0.2, 0.7, 1.2])
def test_ctrl_c_during_its_start_leaves_nothing_behind(tmp_path: Path, after_s: float) -> None:
    child = Child([sys.executable, "-c", STARTED], tmp_path / "errors")
    try:
        until(lambda: len(members(child.process.pid)) > 1)  # bash, and later Java
        time.sleep(after_s)
        child.process.send_signal(signal.SIGINT)
        child.process.wait(PATIENCE_S)
        until(lambda: not members(child.process.pid))
        assert "NoSuchFileException" not in child.last_words()
    finally:
        child.kill()


def test_a_process_without_work_ends_too(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path)
    site.add()
    child = site.run(interval_s=600)
    try:
        child.wait_for("epoch")
        time.sleep(1)
        child.kill_jvm()
        assert_ended(child)
    finally:
        child.kill()
    site.check(spark)


@pytest.mark.guarantee(
    "tables and streams of files, with views",
    "exactly once; no view is set aside",
    "the JVM alone, {kills} times by kill -9 at random moments",
)
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_epochs(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    site, moments = Site(tmp_path), random.Random(3)
    for _ in range(kills):
        site.add()
        child = site.run()
        try:
            child.wait_for("epoch")
            end = time.monotonic() + moments.uniform(0, 3)
            while time.monotonic() < end:
                site.add()
                time.sleep(moments.uniform(0, 0.3))
            child.kill_jvm()
            assert_ended(child)
            assert child.process.stdout is not None
            assert "failing" not in child.process.stdout.read()
        finally:
            child.kill()
    site.check(spark)
