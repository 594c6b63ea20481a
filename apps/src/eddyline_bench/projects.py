"""A project of Spark Declarative Pipelines after a small change: `eddyline pipelines run` against `spark-pipelines run`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from eddyline.errors import EngineError
from eddyline_bench.measure import aligned, appearing, median, same_rows, verdict

CHANGED_ROWS = 1000
PAGES = 5000
VIEWS = {"pages": ["page", "n", "ms"], "by_count": ["n", "pages"]}
SIDES = ("eddyline", "spark-pipelines")

SPEC = """name: shop
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
DATASETS = """from pyspark import pipelines as dp
from pyspark.sql import functions as F


@dp.table
def visits():
    return spark.readStream.schema("id BIGINT, page STRING, ms BIGINT").json("{data}")


@dp.materialized_view
def pages():
    visits = spark.read.table("visits")
    return visits.groupBy("page").agg(F.count("*").alias("n"), F.sum("ms").alias("ms"))


@dp.materialized_view
def by_count():
    return spark.read.table("pages").groupBy("n").agg(F.count("*").alias("pages"))
"""


@dataclass(frozen=True, slots=True)
class ProjectsResult:
    """What runs took, by side: the first run of `rows` rows, then those after 1,000 new rows each.

    Attributes:
        seconds: of each whole command.
        read: rows that each run has read from sources and datasets.
    """

    rows: int
    seconds: dict[str, list[float]]
    read: dict[str, list[int]]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        cells = []
        for side in SIDES:
            first, *later = self.seconds[side]
            read_first, *read_later = self.read[side]
            figures = (f"{first:.1f}", f"{median(later):.1f}", f"{read_first:,}")
            cells.append([side, *figures, f"{median([float(n) for n in read_later]):,.0f}"])
        header = ["", "s, first run", "s, later run", "rows read, first", "rows read, later"]
        return "\n".join(
            [
                f"projects: {self.rows:,} rows, then {CHANGED_ROWS:,} new ones before each later run, "
                f"median of {len(self.seconds[SIDES[0]]) - 1}",
                aligned(header, cells),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 1_000_000, repeat: int = 2, cores: int = 2) -> ProjectsResult:
    """Run the same project with both commands: a stream of JSON files, and two levels of materialized views.

    Args:
        rows: number of rows before the first run.
        repeat: number of runs after a small change.
        cores: number of cores of each session.

    Raises:
        EngineError: MISSING_PACKAGE: spark-pipelines lacks a package.
        subprocess.CalledProcessError: a command has failed.
    """
    for package in ("grpc", "yaml"):
        if importlib.util.find_spec(package) is None:
            raise EngineError(
                f"spark-pipelines needs the package {package}",
                condition="MISSING_PACKAGE",
                hint="pip install 'pyspark[pipelines]'",
            )
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    read: dict[str, list[int]] = {side: [] for side in SIDES}
    equal = True
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        data = Path(name) / "data"
        data.mkdir()
        projects = {side: _project(Path(name) / side, data) for side in SIDES}
        for number in range(repeat + 1):
            _write_visits(data, number, rows if number == 0 else CHANGED_ROWS)
            for side, call in zip(SIDES, (_run_eddyline, _run_spark), strict=True):
                began = time.perf_counter()
                count = call(projects[side], cores)
                seconds[side].append(time.perf_counter() - began)
                read[side].append(count)
            for view, columns in VIEWS.items():
                ours = _live_rows(projects["eddyline"], view, columns)
                tables = projects["spark-pipelines"] / "spark-warehouse" / view
                theirs = pl.read_parquet(tables / "*.parquet").select(columns)
                equal &= len(ours) > 0 and same_rows(ours, theirs)
    return ProjectsResult(rows, seconds, read, equal)


def _project(folder: Path, data: Path) -> Path:
    (folder / "transformations").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    (folder / "transformations/datasets.py").write_text(DATASETS.format(data=data))
    (folder / "events").mkdir()
    return folder


def _write_visits(data: Path, number: int, rows: int) -> None:
    draw = np.random.default_rng(number)
    frame = pl.DataFrame({"id": np.arange(rows), "ms": draw.integers(0, 1000, rows)}).with_columns(
        page="/p" + pl.Series(draw.integers(0, PAGES, rows)).cast(pl.String)
    )
    with appearing(data / f"{number}.json") as hidden:
        frame.write_ndjson(hidden)


def _command(words: list[str], project: Path, **more: str) -> str:
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **more}
    done = subprocess.run(
        words,
        cwd=project,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return done.stdout


def _run_eddyline(project: Path, cores: int) -> int:
    """Run the project on Eddyline; return the rows that its views have read."""
    words = [sys.executable, "-m", "eddyline", "pipelines", "run", "--format", "json"]
    submit = f"--master local[{cores}] pyspark-shell"
    printed = _command(words, project, PYSPARK_SUBMIT_ARGS=submit)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return sum(one.get("read") or 0 for one in found)


def _run_spark(project: Path, cores: int) -> int:
    """Run the project by Spark's command; return the rows that its tasks have read."""
    settings = {
        "spark.remote": f"local[{cores}]",
        "spark.sql.catalogImplementation": "hive",  # another run finds the tables of this one
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{project}/events",
    }
    words = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    _command(words, project)
    logs = list((project / "events").rglob("events_*"))
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    for log in logs:
        log.unlink()
    ends = [one["Task Metrics"] for one in events if one["Event"] == "SparkListenerTaskEnd"]
    return sum(one["Input Metrics"]["Records Read"] for one in ends)


def _live_rows(project: Path, view: str, columns: list[str]) -> pl.DataFrame:
    words = [sys.executable, "-m", "eddyline", "sql", f"SELECT * FROM {view}", "--format", "json"]
    printed = _command([*words, "--storage", str(project / "storage")], project)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return pl.DataFrame(rows).select(columns)
