"""Storages of all formats so far, written by the versions of their time: this version goes on with them.

`compat/write.py` has made them, and says what is in them. The documents beside them hold the rows
that they must have, which follow from the inputs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import lit, struct, to_json

import eddyline as el
from compat import write
from eddyline.state import manifest
from eddyline.testing import replayed

pytestmark = pytest.mark.spark

COMPAT = Path(__file__).parent / "compat"
ARCHIVES = sorted(COMPAT.glob(f"*{write.SUFFIX}"))
VERSIONS = [archive.name.removesuffix(write.SUFFIX) for archive in ARCHIVES]
FRESH = multiprocessing.get_context("spawn")

Relations = dict[str, list[Any]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """A process whose JVM runs in the folder of the storages: their paths are relative to it."""
    folder = tmp_path_factory.mktemp("compat")
    for archive in ARCHIVES:
        write.unpack(archive, folder)
    with ProcessPoolExecutor(1, FRESH, os.chdir, (folder,)) as pool:
        yield pool


# the newest one tells a format that was changed without a new number; the oldest one needs all conversions
@pytest.mark.parametrize(
    "version",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in VERSIONS[:-1]), VERSIONS[-1]],
)
def test_a_storage_of_each_format_goes_on(version: str, process: ProcessPoolExecutor) -> None:
    expected = json.loads((COMPAT / f"{version}.json").read_text("utf-8"), parse_float=str)
    found = process.submit(gone_on, version).result()
    assert list(found) == list(expected)
    for step, relations in expected.items():
        assert list(found[step]) == list(relations)
        for name, rows in relations.items():
            assert found[step][name] == (rows if name in write.ORDERED else in_order(rows)), (
                step,
                name,
            )


# -- in the other process ----------------------------------------------------------------------


def gone_on(root: str) -> dict[str, Relations]:
    """Open a storage, change all that it reads, open it again; the rows at each step."""
    manifest.SMALL_RUNS = (
        0  # as in larger storages: what is written now is based on manifests of that format
    )
    found = {}
    with opened(root) as engine:
        found["opened"] = content(engine)
        found["dead letters"] = dead_letters(engine)
        assert_verified(engine)
        epoch = engine.status()["epoch"] - 1
        before = {
            name: engine.sql(f"SELECT * FROM {name} VERSION AS OF {epoch}")
            for name in ("users", "totals")
        }
        found["an epoch before"] = rows_of(before)

        queues = "orders" in write.names(engine, "stream")
        clicks = write.pipeline(engine, root, ready=True) if queues else None
        engine.advance()  # what was durable, but in no epoch
        found["caught up"] = rows_of(snapshots(engine, ["users", "visits", "totals"]))
        change(engine, root)
        found["changed"] = content(engine)
        found["dead letters then"] = dead_letters(engine)
        assert_verified(engine)
        assert_replayed(engine, found["changed"])
        assert_delivered(engine, root)
        if clicks is not None:
            account = clicks.account()
            assert (account.received, account.done, account.dead) == (5, 4, 1)
            clicks.source.close()
    with opened(root) as engine:
        found["opened again"] = rows_of(snapshots(engine, ["users", "slowest"]))
        engine.execute("INSERT INTO kinds (id, t) VALUES (9, 'last')")
        engine.advance()
        found["at last"] = rows_of(snapshots(engine, ["kinds"]))
        assert "base" in engine.files.read_json(manifest.manifest_name(engine.status()["epoch"]))
    return found


def opened(root: str) -> el.Engine:
    return el.Engine(f"{root}/{write.STORAGE}", write.session(), write.OPTIONS)


def change(engine: el.Engine, root: str) -> None:
    """Change all inputs, in several epochs; let paused views go on; make a new view."""
    streams = write.names(engine, "stream")
    readings = ["cold,5,+", "hot,4,+", "cold,6,?"]
    if "readings__dead" in streams:  # formats without dead letters have no place for it
        readings.append("tepid,much,+")
    engine.table("users", write.USERS, ["id"]).upsert([(2, "bob", "ch"), (7, "gil", "fr")])
    write.put_hits(root, 4, ("00:05:00", "b"), ("00:16:20", "b"), ("00:30:00", "a"))
    write.put_levels(root, 3, west=9, south=2)
    write.put_readings(root, 3, *readings)
    engine.advance()
    engine.execute(
        """
        DELETE FROM visits WHERE page = '/c' AND ms < 100;
        INSERT INTO visits VALUES (7, '/', 210, 2.5);
        DELETE FROM users WHERE id = 1;
        UPDATE kinds SET t = 'z' WHERE id = 1;
        DELETE FROM kinds WHERE id = 16;
        """
    )
    if "orders" in streams:
        write.put_orders(root, '{"item": "pot", "pieces": 1}')
        write.put_clicks(root, '{"user": 7, "page": "/"}')
    if "readings__dead" in streams:
        stored = {"path": f"{root}/in/readings", "mode": "DROPMALFORMED"}
        again = engine.create_stream("readings", "sensor STRING, value INT", "csv", stored, "op")
        assert again.discard("cast(payload AS STRING) LIKE 'warm%'") == 1
    engine.advance()
    paused = [view["name"] for view in engine.status()["views"] if view["paused"]]
    if paused:
        assert engine.resume(paused[0]) == paused
    engine.view("all_bids", "SELECT count(*) AS n, min(auction) AS least FROM bid")


def content(engine: el.Engine) -> Relations:
    """The rows of all tables and views."""
    names = [*write.names(engine, "table"), *write.names(engine, "view")]
    return rows_of(snapshots(engine, names))


def snapshots(engine: el.Engine, names: Sequence[str]) -> dict[str, DataFrame]:
    return {name: engine.snapshot(name) for name in names}


def dead_letters(engine: el.Engine) -> Relations:
    """The dead letters, as far as they don't tell times and paths."""
    streams = write.names(engine, "stream")
    names = [name.removesuffix("__dead") for name in streams if name.endswith("__dead")]
    frames = {name: engine.dead_letters(name) for name in names}
    columns = ("cast(payload AS STRING) AS payload", "bolt", "attempts")
    return rows_of({name: frame.selectExpr(*columns) for name, frame in frames.items()})


def assert_verified(engine: el.Engine) -> None:
    report = engine.verify()
    assert report, str(report)
    assert [*report.views] == write.names(engine, "view")


def assert_replayed(engine: el.Engine, relations: Relations) -> None:
    """The changes of each view, from the first one on, give its rows."""
    views = write.names(engine, "view")
    frames = {}
    for name in views:
        changes = engine.changes(name, None, "retract")
        frames[name] = changes.select(as_json(changes.columns[:-2]), "op", "epoch")
    changed: dict[str, list[Any]] = {name: [] for name in views}
    for name, *change in together(frames).collect():
        changed[name].append(change)
    for name in views:
        rows = [parsed(row) for (row,) in replayed(changed[name])]
        assert in_order(rows) == in_order(relations[name]), name


def assert_delivered(engine: el.Engine, root: str) -> None:
    """The sink, if there is one, has gone on where it was."""
    for sink in engine.status()["sinks"]:
        assert (sink["state"], sink["behind"]) == ("live", 0)
        content: Counter[str] = Counter()
        for file in Path(root, "sink").glob("*.jsonl"):
            for line in file.read_text("utf-8").splitlines():
                change = json.loads(line)
                removed = change["_change_type"] in ("delete", "update_preimage")
                content[change["country"]] += -1 if removed else 1
        rows = engine.snapshot(sink["view"]).collect()
        assert +content == Counter(row.country for row in rows)
        assert not -content


def rows_of(frames: Mapping[str, DataFrame]) -> Relations:
    """The rows of DataFrames, as JSON has them; sorted where they have no order of their own."""
    texts = {name: frame.select(as_json(frame.columns)) for name, frame in frames.items()}
    found: Relations = {name: [] for name in texts}
    for name in write.ORDERED:
        if name in texts:
            found[name] = [parsed(row) for (row,) in texts.pop(name).collect()]
    for name, row in together(texts).collect() if texts else ():
        found[name].append(parsed(row))
    return {name: rows if name in write.ORDERED else in_order(rows) for name, rows in found.items()}


def as_json(columns: Sequence[str]) -> Column:
    """A row as a JSON text."""
    moment = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    options = {"timestampFormat": moment, "timestampNTZFormat": moment, "ignoreNullFields": "false"}
    return to_json(struct(*columns), options).alias("row")


def parsed(text: str) -> Any:
    """A row; numbers with a fraction stay texts, so that all digits count."""
    return json.loads(text, parse_float=str)


def together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of all frames, each behind the name of its own: one job instead of many."""
    named = [frame.select(lit(name), "*") for name, frame in frames.items()]
    return reduce(DataFrame.unionAll, named)


def in_order(rows: Sequence[Any]) -> list[Any]:
    return sorted(rows, key=json.dumps)
