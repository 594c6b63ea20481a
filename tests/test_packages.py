"""What users install: the wheel and the sdist, in environments that have nothing else."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HIDDEN = ("PYTHONPATH", "PYSPARK_PYTHON", "VIRTUAL_ENV")
VERSIONS = ("3.11", "3.12", "3.13")

PROGRAM = """
import sys, tempfile
import eddyline as el
from eddyline.errors import EddylineError

storage = tempfile.mkdtemp()
with el.Engine(storage) as engine:
    engine.execute('''
        CREATE TABLE t (a INT, b STRING, at TIMESTAMP, seen ARRAY<MAP<STRING, TIMESTAMP>>);
        CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b;
        CREATE VIEW times AS SELECT b, max(at) AS at, max(seen) AS seen FROM (
            SELECT b, at, transform(seen, m -> m['k']) AS seen FROM t
        ) GROUP BY b;
        INSERT INTO t SELECT a, b, timestamp'2026-01-01', array(map('k', timestamp'2026-01-02'))
            FROM VALUES (1, 'x'), (2, 'x'), (3, 'y') AS v (a, b);
    ''')
    engine.advance()
    assert engine.verify()
    def run(statement):
        return lambda: engine.execute(statement)

    sink = "CREATE SINK k FROM v USING"
    for extra, call in [
        ("delta", run(f"{sink} delta OPTIONS (path '{storage}/k')")),
        ("kafka", run(f"{sink} kafka OPTIONS (bootstrap_servers 'h:1', topic 't')")),
        ("postgres", run(f"{sink} postgres OPTIONS (url 'postgresql://u@h/d', table 't')")),
        ("http", run("CREATE STREAM posted (a INT) USING http OPTIONS (port 0, token '${env:NO_SUCH_TOKEN}')")),
        ("console", engine.serve),
    ]:
        try:
            call()
        except EddylineError as error:
            assert error.condition == "MISSING_PACKAGE", (extra, error)
            assert f"eddyline[{extra}]" in str(error), (extra, error)
        else:
            raise AssertionError(f"{extra} isn't missing")
    read = engine.spark.read.format("eddyline").option("view", "v").load(storage)
    query = engine.spark.readStream.format("eddyline").option("view", "v").load(storage)
    query.writeStream.format("memory").queryName("copy").trigger(availableNow=True).start().awaitTermination()
    assert engine.spark.table("copy").count() == 2
    print("rows", sorted(map(tuple, read.collect())), engine.spark.version)
"""


def python(version: str) -> str | None:
    """A Python of a version, from the path or from pyenv."""
    kept = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    return kept[-1] if kept else shutil.which(f"python{version}")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return sorted(folder.iterdir())


def test_packages_are_complete_and_hold_no_more(packages):
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *packages], check=True)
    sdist, wheel = sorted(packages, key=lambda path: path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert roots == {"eddyline", "pyspark_eddyline", "pytest_eddyline"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    assert "eddyline/py.typed" in names
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("tests/test_packages.py") for name in archive.getnames())


@pytest.mark.parametrize(
    ("version", "spark"),
    [*((version, "") for version in VERSIONS), ("3.11", "4.1"), ("3.11", "4.2")],
)
def test_the_wheel_works_alone(packages, tmp_path, version, spark):
    base = python(version)
    if base is None:
        pytest.skip(f"no Python {version} here")
    subprocess.run([base, "-m", "venv", tmp_path / "venv"], check=True)
    inner = tmp_path / "venv/bin"
    wheel = next(path for path in packages if path.suffix == ".whl")
    older = [f"pyspark=={spark}.*"] if spark else []
    subprocess.run([inner / "pip", "install", "-q", wheel, *older], check=True)
    settings = {name: text for name, text in os.environ.items() if name not in HIDDEN}
    told = subprocess.run(
        [inner / "python", "-c", PROGRAM],
        env={**settings, "PYSPARK_PYTHON": str(inner / "python")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"rows [('x', 2), ('y', 1)] {spark}" in told.stdout, told.stderr[-3000:]
    help_text = subprocess.run(
        [inner / "eddyline", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "doctor" in help_text
