"""A damaged or half-removed storage: refused with the name of the file, or made good."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from crashes import LENGTH, Load
from eddyline.answers.tasks import list_tasks, stored_catalog
from eddyline.catalog.store import open_store
from eddyline.errors import EddylineError, StateError, StorageError
from eddyline.source.log_files import write_rows
from eddyline.source.segments import read_arrow, verify_segment
from eddyline.state.manifest import ROWS, last_committed, manifest_name
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Load:
    """Two cycles, and rows that wait in the redo log."""
    root = tmp_path_factory.mktemp("whole")
    load = Load(root, spark, FaultyFiles(str(root / "storage")), operations=True)
    load.open()
    load.run(2 * LENGTH)
    load.check()
    load.run(2 * LENGTH + 2)
    load.close()
    return load


@pytest.fixture
def load(whole: Load, tmp_path: Path) -> Load:
    """The same storage as a copy that a test may spoil."""
    shutil.copytree(whole.files.root, tmp_path / "storage")
    files = FaultyFiles(str(tmp_path / "storage"))
    return Load(whole.root, whole.spark, files, operations=True, done=whole.done)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # a database has bytes that nobody reads
    data[data.index(b"FROM totals") if path.suffix == ".db" else len(data) // 2] ^= 1
    path.write_bytes(data)


def last_manifest(load: Load) -> str:
    return manifest_name(last_committed(load.files).epoch)


def a_run(load: Load) -> str:
    return last_committed(load.files).all_runs()[-1].name


def waiting(load: Load, suffix: str) -> str:
    folder = Path(load.files.root)
    return str(sorted(folder.glob(f"logs/t1/*{suffix}"))[-1].relative_to(folder))


FILES: dict[str, Callable[[Load], str]] = {
    "catalog": lambda _: "catalog.db",
    "manifest": last_manifest,
    "run": a_run,
    "entry": lambda load: waiting(load, ".json"),
    "rows": lambda load: waiting(load, ".arrow"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_named_and_a_copy_makes_it_good(load: Load, kind: str) -> None:
    name = FILES[kind](load)
    path = Path(load.files.path(name))
    copy = path.read_bytes()
    flip(path)
    with pytest.raises(StateError) as caught:
        load.open()
    assert caught.value.condition in ("DAMAGED_FILE", "DAMAGED_RUN")
    assert caught.value.context["file"] == name
    path.write_bytes(copy)
    load.open()
    load.resume()
    load.run()
    load.check()
    load.close()


@pytest.mark.parametrize("kind", ["catalog", "run", "rows"])
def test_a_missing_file_is_named(load: Load, kind: str) -> None:
    name = FILES[kind](load)
    os.remove(load.files.path(name))
    with pytest.raises(StateError) as caught:
        load.open()
    assert caught.value.context["file"] == name


def test_damaged_rows_of_a_stream_are_named_when_they_are_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("1\n2\n")
    with el.Engine(str(tmp_path / "storage"), spark) as engine:
        engine.create_stream("s", "a INT", "csv", {"path": str(tmp_path / "in")})
        engine.view("v", "SELECT sum(a) AS n FROM s")
        engine.advance()
        [rows] = (tmp_path / "storage").glob("logs/s*/*.arrow")
        flip(rows)
        for ask in (engine.verify, lambda: engine.view("w", "SELECT max(a) AS n FROM s")):
            with pytest.raises(StateError, match=rows.name) as caught:
                ask()
            assert caught.value.condition == "DAMAGED_FILE"
        assert engine.sql("SELECT n FROM v").collect() == [(3,)]


def test_a_list_of_views_names_the_one_whose_rows_are_damaged(load: Load) -> None:
    manifest = last_committed(load.files)
    with closing(open_store(load.files, "")) as store:
        views = [one for one in stored_catalog(store).entries if one.kind == "view"]
        damaged = views[0]
        (runs, *_) = manifest.arrangements[manifest.result(damaged.id, ROWS)].values()
        flip(Path(load.files.path(runs[0].name)))
        found = {task.name: task for task in list_tasks(store)}
    assert found[damaged.name].state.startswith("running, DAMAGED_")
    assert found[damaged.name].rows is None
    assert all(found[one.name].rows is not None for one in views[1:])


def test_without_its_manifest_the_last_epoch_is_run_anew(load: Load) -> None:
    load.open()
    load.resume()
    load.close()
    epoch = last_committed(load.files).epoch
    os.remove(load.files.path(manifest_name(epoch)))
    load.open()
    load.resume()
    load.run()
    load.check()
    load.close()


def test_without_all_manifests_it_is_refused(load: Load) -> None:
    shutil.rmtree(load.files.path("manifests"))
    with pytest.raises(StateError):
        load.open()


def test_without_its_checkpoint_a_stream_is_refused(load: Load) -> None:
    load.open()
    entry = load.engine.catalog.get("stock")
    load.close()
    shutil.rmtree(load.files.path(f"checkpoints/{entry.id}"))
    load.open()
    with pytest.raises(StateError) as caught:
        load.engine.advance()
    assert caught.value.condition == "MISSING_CHECKPOINT"
    load.close()


def test_a_view_that_was_not_finished_leaves_nothing(load: Load) -> None:
    files = load.files
    assert isinstance(files, FaultyFiles)
    load.open()
    engine = load.engine
    query = "SELECT item, count(*) AS n FROM orders GROUP BY item"
    files.arm(0)
    engine.view("first", query)
    place = [n for n, e in enumerate(files.effects(), 1) if e == "commit catalog.db"][1]
    number = engine.catalog.next_id
    files.arm(place, "crash")  # its epoch is committed, the catalog doesn't know it yet
    with pytest.raises(EddylineError):
        engine.view("second", query)
    files.arm(0)
    orphan = f"v{number}"
    manifest = last_committed(files)
    assert any(name.startswith(f"{orphan}/") for name in manifest.arrangements)

    load.open()
    assert load.engine.catalog.find("second") is None
    view = load.engine.view("second", query)
    assert load.engine.catalog.get("second").id == f"v{number + 1}"
    load.resume()
    load.run()
    assert not any(name.startswith(orphan) for name in last_committed(files).arrangements)
    rows = [tuple(row) for row in view.snapshot().collect()]
    assert sorted(rows) == sorted(tuple(row) for row in load.engine.sql(query).collect())
    load.check()
    load.engine.drop("view", "second")
    load.engine.write("orders", [("append", [(0, 0, 0)])])
    load.engine.advance()
    assert not any(f"v{number + 1}/" in name for name in last_committed(files).arrangements)
    load.close()


@pytest.mark.parametrize("rows", [10, 100_000])
def test_a_damaged_file_of_a_redo_log_is_named(tmp_path: Path, rows: int) -> None:
    files, table = Files(str(tmp_path)), pa.table({"c0": range(rows)})
    segment = write_rows(files, "log.arrow", table)
    assert read_arrow(files, replace(segment, start=4, rows=5)) == table.slice(4, 5)
    path = tmp_path / "log.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for read in (read_arrow, verify_segment):
        with pytest.raises(StateError, match="its CRC is") as caught:
            read(files, segment)
        assert caught.value.context["file"] == "log.arrow"
    path.unlink()
    with pytest.raises(StateError, match="No such file"):
        read_arrow(files, segment)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_storage_that_goes_away_is_named_by_its_readers(
    tmp_path: Path, spark: SparkSession, read_only: bool
) -> None:
    root, away = tmp_path / "storage", tmp_path / "away"
    with el.Engine(root, spark) as writer:
        writer.table("t", "id INT, a INT", ["id"]).insert([(n, n % 3) for n in range(10)])
        writer.view("v", "SELECT a, count(*) AS n FROM t GROUP BY a")
        writer.advance()
        with el.Engine(root, spark, read_only=True) as reader:
            engine = reader if read_only else writer
            reads: list[Callable[[], object]] = [
                lambda: engine.snapshot("v").collect(),
                lambda: engine.snapshot("v", epoch=1).collect(),
                lambda: engine.sql("SELECT * FROM v").collect(),
                engine.verify,
            ]
            root.rename(away)
            for read in reads:
                with pytest.raises(StorageError) as caught:
                    read()
                condition = "CATALOG_UNAVAILABLE" if read_only else "NO_STORAGE"
                assert caught.value.condition == condition
            assert not root.exists()
            away.rename(root)
            assert engine.snapshot("v").count() == 3
            manifest = root / manifest_name(engine.status()["epoch"])
            manifest.rename(tmp_path / "manifest")
            if not read_only:  # a reader takes the epoch before
                with pytest.raises(StateError, match="it is missing"):
                    engine.sql("SELECT * FROM v")
            (tmp_path / "manifest").rename(manifest)
        assert writer.verify()
