"""Changing the number of buckets: no row of a table or view changes, nor is any announced as changed."""

from __future__ import annotations

import collections
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from eddyline import Engine, Options
from eddyline.changes import HASH, BucketId
from eddyline.cli.commands import main
from eddyline.errors import EngineError, StateError
from eddyline.state import arrangement
from eddyline.state.arrangement import difference_runs
from eddyline.state.manifest import committed_epochs, last_committed, read_manifest
from eddyline.state.runs import read_run, write_run
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles

OPTIONS = Options(buckets=2)
VIEWS = {
    "by_item": "SELECT item, count(*) AS n, sum(price) AS total, max(price) AS most FROM orders GROUP BY item",
    "by_n": "SELECT n, count(*) AS items FROM by_item GROUP BY n",
    "joined": "SELECT o.id, i.colour FROM orders o LEFT JOIN items i ON o.item = i.item",
    "top": "SELECT id, price FROM orders ORDER BY price DESC, id LIMIT 5",
    "ranks": "SELECT id, rank() OVER (PARTITION BY item ORDER BY price) AS r FROM orders",
    "seen": "SELECT n % 7 AS k, count(*) AS n, sum(x) AS total FROM log GROUP BY n % 7",
    "total": "SELECT count(*) AS n FROM orders",
}


def filled(storage: Path | Files) -> Engine:
    """Return an engine with tables, a stream, and a view of each kind over them."""
    engine = Engine(storage, options=OPTIONS)
    orders = engine.table("orders", "id BIGINT, item STRING, price DOUBLE", primary_key=["id"])
    items = engine.table("items", "item STRING, colour STRING")
    engine.create_stream(
        "log", "n BIGINT, x DECIMAL(10,2)", "json", {"path": str(lines_of(engine))}
    )
    for name, query in VIEWS.items():
        engine.view(name, query)
    orders.insert([(n, f"item {n % 17}", n * 0.1) for n in range(200)])
    items.insert([(f"item {n % 20}", "blue") for n in range(25)])
    engine.advance()
    return engine


def lines_of(engine: Engine) -> Path:
    folder = Path(engine.files.root).parent / "lines"
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"n": n, "x": n / 4}) + "\n" for n in range(100))
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(lines)
    return folder


def rows_of(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    names = ["orders", "items", *VIEWS]
    return {name: sorted(map(tuple, engine.snapshot(name).collect())) for name in names}


def change(engine: Engine) -> None:
    orders = engine.table("orders", "id BIGINT, item STRING, price DOUBLE", primary_key=["id"])
    orders.insert([(n, f"item {n % 11}", n * 0.2) for n in range(150, 260)])
    orders.delete([{"id": n} for n in range(40)])
    items = engine.table("items", "item STRING, colour STRING")
    items.delete([("item 3", "blue"), ("item 4", "blue")])
    lines_of(engine)
    engine.advance()


@pytest.mark.parametrize("steps", [(5, 2), pytest.param((1, 7), marks=pytest.mark.slow)])
def test_rows_stay_and_later_epochs_are_right(tmp_path: Path, steps: tuple[int, ...]) -> None:
    with filled(tmp_path / "s") as engine:
        assert engine.status()["buckets"] == 2
        for buckets in steps:
            before, epoch = rows_of(engine), engine.advance()
            engine.rebucket(buckets)
            assert rows_of(engine) == before
            for name in VIEWS:
                assert engine.changes(name, after=epoch).count() == 0, name
            for table in ("orders", "items"):
                held = rows_by_bucket(engine, table)
                assert set(held) <= set(range(buckets))
                assert len(held) > 1 or buckets == 1
            change(engine)
            assert engine.verify(), str(engine.verify())
    with Engine(tmp_path / "s") as again:  # whose option asks for another number
        assert again.status()["buckets"] == steps[-1]
        change(again)
        assert again.verify()


def rows_by_bucket(engine: Engine, table: str) -> dict[int, int]:
    manifest = last_committed(engine.files)
    (name,) = manifest.of(engine.catalog.get(table).id)
    return {
        bucket: sum(run.rows for run in runs)
        for bucket, runs in manifest.arrangements[name].items()
        if runs
    }


def test_the_same_number_commits_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as engine:
        epoch = engine.advance()
        engine.rebucket(2)
        assert engine.advance() == epoch
        for wrong in (0, 5000):
            with pytest.raises(EngineError, match="buckets"):
                engine.rebucket(wrong)
    with Engine(tmp_path / "s", read_only=True) as reader, pytest.raises(EngineError):
        reader.rebucket(3)


def test_paused_and_failing_views_go_on_later(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as engine:
        engine.pause("joined")
        engine.table("divisors", "d INT").insert([(1,), (0,)])
        engine.view("quotients", "SELECT 1 / d AS q FROM divisors WHERE d > 0")
        engine.advance()
        engine.rebucket(3)
        change(engine)
        engine.resume("joined")
        change(engine)
        assert engine.verify()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_fault_at_any_effect_leaves_the_old_buckets_or_the_new_ones(
    tmp_path: Path, step: int
) -> None:
    files = FaultyFiles(str(tmp_path / "s"))
    with Engine(files, options=OPTIONS) as engine:
        orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
        engine.view("by_item", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        orders.insert([(n, f"item {n % 17}") for n in range(200)])
        engine.advance()
        expected = [sorted(map(tuple, engine.snapshot(n).collect())) for n in ("orders", "by_item")]
    at, hit = 0, True
    seen = collections.Counter[int]()
    while hit:
        at += step
        buckets = 3 + at // step % 2
        engine = Engine(files, options=OPTIONS)
        before = engine._workspace.buckets
        files.arm(at)
        try:
            engine.rebucket(buckets)
        except Exception:  # noqa: BLE001  # the disk's errors come in several forms
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        assert engine._workspace.buckets in (before, buckets)
        seen[engine._workspace.buckets == buckets] += 1
        engine.stop()
        with Engine(files, options=OPTIONS) as again:
            assert again._workspace.buckets in (before, buckets)
            again.advance()
            rows = [sorted(map(tuple, again.snapshot(n).collect())) for n in ("orders", "by_item")]
            assert rows == expected
    assert at > 10
    assert seen[True]
    assert seen[False]


def test_a_row_in_another_bucket_is_found(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as engine:
        manifest = engine._workspace.manifest
        (name,) = manifest.of(engine.catalog.get("orders").id)
        held = manifest.arrangements[name]
        manifest.arrangements[name] = {
            BucketId(0): held[BucketId(1)],
            BucketId(1): held[BucketId(0)],
        }
        with pytest.raises(StateError) as raised:
            engine.rebucket(4)
        assert raised.value.condition == "WRONG_BUCKET"
        assert engine._workspace.buckets == 2


def test_the_command_asks_a_running_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    storage = str(tmp_path / "s")
    with filled(tmp_path / "s") as engine, caplog.at_level(logging.INFO, "eddyline.epochs"):
        before = rows_of(engine)
        engine.start(interval=0.05)
        asked = subprocess.run(
            [sys.executable, "-m", "eddyline", "rebucket", "6", "--storage", storage, "--format", "json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(asked.stdout) == {"buckets": 6}
        assert rows_of(engine) == before
    assert "table orders: 200 rows divided" in caplog.text
    assert main(["rebucket", "2", "--storage", storage]) == 0
    assert "2 buckets" in capsys.readouterr().out
    assert main(["rebucket", "0", "--storage", storage]) == 2
    assert "buckets" in capsys.readouterr().err
    assert last_committed(Files(storage)).buckets == 2


def test_older_versions_do_not_read_it(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as engine:
        epoch = engine.advance()
        engine.rebucket(3)
        files = engine.files
        formats = {
            e: files.read_json(f"manifests/{e:012d}.json")["format"]
            for e in committed_epochs(files)
        }
        assert {form for e, form in formats.items() if e <= epoch} == {1}
        assert {form for e, form in formats.items() if e > epoch} == {2}
        assert read_manifest(files, epoch).buckets == 0


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arrangement, "SLICE_BYTES", 500)
    return


@pytest.mark.usefixtures("small_slices")
def test_results_are_compared_in_slices_of_their_hashes(tmp_path: Path) -> None:
    files, rng = Files(str(tmp_path)), np.random.default_rng(7)
    hashes = np.sort(rng.integers(-(2**63), 2**63 - 1, 100))
    rows = pa.table({HASH: hashes, "c0": np.arange(100), "w": np.ones(100, np.int64)})
    halves = [rows.take(pa.array(np.arange(start, 100, 2))) for start in (0, 1)]
    old = [write_run(files, "old.arrow", rows.slice(0, 95))]
    new = [write_run(files, f"new{i}.arrow", half) for i, half in enumerate(halves)]
    found = difference_runs(files, "difference", old, new)
    net = pa.concat_tables([read_run(files, run) for run in found])
    assert net.sort_by("c0").to_pydict() == rows.slice(95).sort_by("c0").to_pydict()
    assert difference_runs(files, "none", new, new) == ()
    assert difference_runs(files, "empty", [], [], ["c0"]) == ()
