"""Python workers of Spark that lack the package are named when a storage is opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import eddyline as el
from eddyline.spark.session import local_session
from eddyline.spark.worker_daemon import without_archives

pytestmark = pytest.mark.spark

OPEN = """
import sys
import eddyline as el
try:
    with el.Engine(sys.argv[1]) as engine:
        engine.table("t", "a INT")
        print("opened")
except el.EngineError as error:
    print(error)
"""

QUERY = """
import sys, time
from eddyline.spark.failures import lost_worker
from eddyline.spark.session import local_session
spark, ended = local_session(), time.monotonic() + 300
while True:
    try:
        print(spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id LONG").count())
        break
    except Exception as error:
        assert lost_worker(error), error
        assert time.monotonic() < ended, error
"""


def opened(tmp_path: Path, python: Path) -> str:
    """Open a storage in a process whose workers run a Python; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "storage")],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout.strip()


def test_workers_without_the_package_are_refused_with_the_way_out(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[1])
    python = tmp_path / "python-without-packages"
    python.write_text(
        f"#!/bin/sh\n"
        f"PYTHONPATH=$(echo \"$PYTHONPATH\" | tr : '\\n' | grep -v '^{source}/[sa]' | tr '\\n' :)\n"
        f'export PYTHONPATH\nexec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    answer = opened(tmp_path, python)
    assert "[WORKERS_LACK_PACKAGE]" in answer
    assert "No module named" in answer
    assert f"python {python}" in answer
    assert "PYSPARK_PYTHON" in answer


def test_another_python_with_the_package_is_fine(tmp_path: Path) -> None:
    python = tmp_path / "other-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert opened(tmp_path, python) == "opened"


def test_workers_are_checked_once_in_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = local_session()
    context, jobs = spark.sparkContext, []
    parallelize = context.parallelize
    folder, name = os.path.split(sys.executable)
    monkeypatch.setattr(context, "pythonExec", f"{folder}/./{name}")
    monkeypatch.setattr(context, "parallelize", lambda *a: jobs.append(a) or parallelize(*a))
    for number in (1, 2):
        with el.Engine(tmp_path / str(number), spark) as engine:
            engine.table("t", "a INT")
    assert len(jobs) == 1


def test_workers_start_again_after_the_process_that_starts_them_was_killed(tmp_path: Path) -> None:
    """Two tasks start it, and are told to end, at the same time."""
    python, starts = tmp_path / "short-lived-python", tmp_path / "starts"
    python.write_text(
        "#!/bin/sh\n"
        f"echo start >> {starts}\n"
        f"if [ $(wc -l < {starts}) -lt 6 ]; then sleep 0.2; kill -9 $$; fi\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", QUERY],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.strip() == "4", done.stderr[-2000:]
    assert len(starts.read_text().splitlines()) >= 6


def test_workers_load_the_compiled_package() -> None:
    """Not the sources in Spark's archive, which each process would compile."""

    def loaded(batches):
        import py4j
        import pyspark

        list(batches)
        yield pa.record_batch([[pyspark.__file__, py4j.__file__]], ["file"])

    rows = local_session().range(0, 1, 1, 1).mapInArrow(loaded, "file STRING").collect()
    assert rows[0].file == pyspark.__file__
    assert ".zip" not in rows[1].file


def test_archives_stay_where_nothing_lies_beside_them(tmp_path: Path) -> None:
    sources = tmp_path / "pyspark/python/lib"
    archives = [str(sources / "pyspark.zip"), str(sources / "py4j-0.10.9.9-src.zip")]
    assert without_archives([*archives, str(tmp_path)]) == [*archives, str(tmp_path)]
    for name in ("pyspark", "py4j"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    assert without_archives([*archives, "/x"]) == [*archives, "/x"]  # it wouldn't be found
    assert without_archives(["", *archives, str(tmp_path)]) == ["", str(tmp_path)]
    other = str(tmp_path / "pyspark.zip")
    assert without_archives([other, str(tmp_path)]) == [other, str(tmp_path)]
