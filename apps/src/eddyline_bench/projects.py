"""Projects of Spark Declarative Pipelines after a small change: `eddyline pipelines run` against `spark-pipelines run`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from eddyline.errors import EngineError
from eddyline_bench.measure import aligned, appearing, median, same_rows, verdict

CHANGED_ROWS = 1000
PAGES = 5000
SIDES = ("eddyline", "spark-pipelines")

SPEC = """name: shop
storage: file://{folder}/pipeline-storage
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
class Project:
    """A project that both commands run.

    Attributes:
        make: writes it into a new folder.
        change: prepares a run, from number 0 on, of all sides' projects.
        views: the columns of each of its materialized views.
    """

    make: Callable[[Path], None]
    change: Callable[[int, Collection[Path]], None]
    views: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Runs:
    """What the runs of a project took: the first one, then those after a small change each.

    Attributes:
        seconds: of each whole command.
        read: rows that each run has read from sources and datasets.
    """

    seconds: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProjectsResult:
    """What runs took, by project and side.

    Attributes:
        rows: that the first run of `visits` finds.
    """

    rows: int
    runs: dict[str, dict[str, Runs]]
    equal: bool

    def text(self) -> str:
        """Format the result as a table."""
        cells = []
        for project, sides in self.runs.items():
            for side, runs in sides.items():
                first, *later = runs.seconds
                read_first, *read_later = runs.read
                figures = (f"{first:.1f}", f"{median(later):.1f}", f"{read_first:,}")
                cells.append([f"{project}, {side}", *figures, f"{median(read_later):,.0f}"])
        header = ["", "s, first run", "s, later run", "rows read, first", "rows read, later"]
        times = len(self.runs["visits"][SIDES[0]].seconds) - 1
        return "\n".join(
            [
                f"projects: visits: {self.rows:,} rows, then {CHANGED_ROWS:,} new ones before each later "
                f"run; sample: Spark's own, with one row more each time; median of {times}",
                aligned(header, cells),
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 1_000_000, repeat: int = 2, cores: int = 2) -> ProjectsResult:
    """Run the same projects with both commands.

    One is a stream of JSON files with two levels of materialized views; the other is the sample that
    `spark-pipelines init` makes.

    Args:
        rows: number of rows of the stream before the first run.
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
    runs: dict[str, dict[str, Runs]] = {}
    equal = True
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as name:
        for kind, project in {
            "visits": visits(Path(name) / "data", rows),
            "sample": SAMPLE,
        }.items():
            runs[kind], same = _measured(project, Path(name) / kind, repeat, cores)
            equal &= same
    return ProjectsResult(rows, runs, equal)


def _measured(
    project: Project, folder: Path, repeat: int, cores: int
) -> tuple[dict[str, Runs], bool]:
    """Return what each side's runs took, and whether their rows were equal after each."""
    runs = {side: Runs() for side in SIDES}
    folders = {side: folder / side for side in SIDES}
    equal = True
    folder.mkdir()
    for one in folders.values():
        project.make(one)
        (one / "events").mkdir()
    for number in range(repeat + 1):
        project.change(number, folders.values())
        for side, call in zip(SIDES, (_run_eddyline, _run_spark), strict=True):
            began = time.perf_counter()
            count = call(folders[side], cores)
            runs[side].seconds.append(time.perf_counter() - began)
            runs[side].read.append(count)
        for view, columns in project.views.items():
            ours = _live_rows(folders["eddyline"], view, columns)
            tables = folders["spark-pipelines"] / "spark-warehouse" / view
            theirs = pl.read_parquet(tables / "*.parquet").select(columns)
            equal &= len(ours) > 0 and same_rows(ours, theirs)
    return runs, equal


def visits(data: Path, rows: int) -> Project:
    """Return a project with a stream of JSON files, and two levels of materialized views.

    Args:
        data: the folder of the files; it is made.
        rows: number of rows before the first run.
    """
    data.mkdir()

    def make(folder: Path) -> None:
        (folder / "transformations").mkdir(parents=True)
        (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
        (folder / "transformations/datasets.py").write_text(DATASETS.format(data=data))

    def change(number: int, _: Collection[Path]) -> None:
        _write_visits(data, number, CHANGED_ROWS if number else rows)

    return Project(make, change, {"pages": ["page", "n", "ms"], "by_count": ["n", "pages"]})


def _write_visits(data: Path, number: int, rows: int) -> None:
    draw = np.random.default_rng(number)
    frame = pl.DataFrame({"id": np.arange(rows), "ms": draw.integers(0, 1000, rows)}).with_columns(
        page="/p" + pl.Series(draw.integers(0, PAGES, rows)).cast(pl.String)
    )
    with appearing(data / f"{number}.json") as hidden:
        frame.write_ndjson(hidden)


def _make_sample(folder: Path) -> None:
    _command([_spark_pipelines(), "init", "--name", folder.name], folder.parent)


def _change_sample(number: int, folders: Collection[Path]) -> None:
    for folder in folders:
        path = folder / "transformations/example_python_materialized_view.py"
        path.write_text(path.read_text().replace(f"range({9 + number})", f"range({10 + number})"))


SAMPLE = Project(
    _make_sample,
    _change_sample,
    {"example_python_materialized_view": ["id"], "example_sql_materialized_view": ["id"]},
)


def _spark_pipelines() -> str:
    return str(Path(sys.executable).with_name("spark-pipelines"))


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
    words = [_spark_pipelines(), "run"]
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
    printed = _command([*words, "--storage", str(project / "pipeline-storage")], project)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return pl.DataFrame(rows).select(columns)
