"""Runs that the state no longer needs don't stay mapped, in the driver nor in Spark's workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import eddyline as el
import eddyline.state.runs
from eddyline.state.runs import Run, keep_open, read_run, write_run
from eddyline.storage.files import Files

ROWS = pa.table({"h": np.arange(3), "w": np.ones(3, int)})


def mapped(root: str, process: str = "self") -> set[str]:
    """Return the files below a folder that a process has mapped, also deleted ones."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.partition("/")[2] for line in lines if root in line}


def runs(files: Files, count: int) -> list[Run]:
    files.make_folder("")
    written = [write_run(files, f"{number}.arrow", ROWS) for number in range(count)]
    keep_open(files, [])  # what has just been written is still in memory
    return written


def test_only_runs_that_are_needed_stay_mapped(tmp_path: Path) -> None:
    files, other = Files(str(tmp_path / "a")), Files(str(tmp_path / "ab"))
    own, others = runs(files, 20), runs(other, 3)
    for run in own:
        assert read_run(files, run).num_rows == 3
    for run in others:
        read_run(other, run)
    files.remove(own[0].name)
    assert len(mapped(f"{files.root}/")) == 20
    keep_open(files, own[18:])
    assert len(mapped(f"{files.root}/")) == 2
    assert len(mapped(f"{other.root}/")) == 3  # of another storage
    held = read_run(files, own[5])
    keep_open(files, [])
    assert held["h"].to_pylist() == [0, 1, 2]  # whoever reads one may finish
    assert len(mapped(f"{files.root}/")) == 1
    del held
    assert not mapped(f"{files.root}/")


def test_bytes_of_mapped_runs_are_limited(tmp_path: Path, monkeypatch) -> None:
    files = Files(str(tmp_path))
    own = runs(files, 10)
    monkeypatch.setattr(eddyline.state.runs, "OPEN_BYTES_MAX", 3 * own[0].bytes)
    for run in own * 2:
        read_run(files, run)
    assert len(mapped(f"{files.root}/")) == 3
    monkeypatch.setattr(eddyline.state.runs, "OPEN_BYTES_MAX", 1)
    assert read_run(files, own[0]).num_rows == 3
    assert len(mapped(f"{files.root}/")) == 1


@pytest.mark.spark
def test_a_long_life_maps_few_files(tmp_path: Path) -> None:
    from eddyline.spark.session import local_session

    with el.Engine(
        str(tmp_path / "storage"), local_session(), el.Options(retain_epochs=2)
    ) as engine:
        table = engine.table("t", "k INT, v INT", ["k"])
        engine.view("s", "SELECT k, sum(v) AS s FROM t GROUP BY k")
        for number in range(60):
            table.upsert([(1, number)])
            engine.advance()
        assert [tuple(row) for row in engine.snapshot("s").collect()] == [(1, 59)]
        live = len(engine._workspace.manifest.all_runs())
        processes = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
        counts = {}
        for process in processes:
            try:
                counts[process] = len(mapped(f"{engine.files.root}/epochs", process))
            except OSError:
                continue
        assert sum(counts.values())  # the paths are right
        assert max(counts.values()) <= 2 * live + 8, (counts, live)
