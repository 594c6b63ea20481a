"""The change feed of views (`form="cdf"`): the columns and values of Spark's and Delta's feeds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame

import eddyline as el
from eddyline.changes import Epoch
from eddyline.spark.session import local_session
from eddyline.state.manifest import (
    Manifest,
    committed_at,
    manifest_name,
    read_manifest,
    write_manifest,
)
from eddyline.storage.files import Files

VIEWS = {
    "keyed": "SELECT id, v * 2 AS twice FROM t",
    "grouped": "SELECT v % 3 AS g, count(*) AS n, max(s) AS s FROM t GROUP BY v % 3",
    "total": "SELECT count(*) AS n FROM t",
    "no_key": "SELECT v FROM t",
    "sorted": "SELECT v FROM t ORDER BY id DESC",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with el.Engine(tmp_path_factory.mktemp("feed"), local_session()) as engine:
        yield engine


def apply(held: Counter, feed: DataFrame) -> Counter:
    """Apply a change feed to rows; no row may go that isn't there, and each pair must be whole."""
    ordered = sorted(feed.collect(), key=lambda r: (r._commit_version, r._change_type in COMES))
    kinds = Counter((r._commit_version, r._change_type) for r in ordered)
    for version in {r._commit_version for r in ordered}:
        assert kinds[version, "update_preimage"] == kinds[version, "update_postimage"]
    for *values, kind, _, _ in ordered:
        held[tuple(values)] += 1 if kind in COMES else -1
        assert held[tuple(values)] >= 0, f"{values} goes, but isn't there"
    return +held


COMES = ("insert", "update_postimage")


def rows(frame: DataFrame) -> Counter:
    return Counter(tuple(row) for row in frame.collect())


@pytest.mark.spark
def test_the_feed_applied_gives_the_snapshot_of_each_epoch(engine):
    table = engine.table("t", "id INT, v INT, s STRING", primary_key=["id"])
    views = {name: engine.view(name, query) for name, query in VIEWS.items()}
    begun = datetime.now(UTC)
    steps = [
        lambda: table.insert([(1, 1, "a"), (2, 2, None), (3, 1, "c")]),
        lambda: table.upsert([(1, 5, "b"), (4, 1, "d")]),
        lambda: table.delete([(2, 2, None)]),
        lambda: table.upsert([(3, 3, None), (5, 1, "e")]),
    ]
    epochs = []
    for step in steps:
        step()
        epochs.append(engine.advance())
    for name, view in views.items():
        before = epochs[0] - 1
        held = rows(view.snapshot(before))
        for epoch in epochs:
            feed = view.changes(after=before, form="cdf")
            held = apply(held, feed.where(f"_commit_version = {epoch}"))
            assert held == rows(view.snapshot(epoch)), (name, epoch)
        assert apply(Counter(), engine.changes(name, form="cdf")) == rows(view.snapshot())
    feed = views["keyed"].changes(after=epochs[0], form="cdf")
    assert feed.columns == ["id", "twice", "_change_type", "_commit_version", "_commit_timestamp"]
    assert [kind for _, kind in feed.dtypes[2:]] == ["string", "bigint", "timestamp"]
    assert Counter(tuple(row)[:4] for row in feed.collect()) == Counter(
        [
            (1, 2, "update_preimage", epochs[1]),
            (1, 10, "update_postimage", epochs[1]),
            (4, 2, "insert", epochs[1]),
            (2, 4, "delete", epochs[2]),
            (3, 2, "update_preimage", epochs[3]),
            (3, 6, "update_postimage", epochs[3]),
            (5, 2, "insert", epochs[3]),
        ]
    )
    kinds = {row._change_type for row in views["no_key"].changes(form="cdf").collect()}
    assert kinds == {"insert", "delete"}
    times = feed.selectExpr(
        "_commit_version AS e", "unix_micros(_commit_timestamp) AS at"
    ).distinct()
    in_order = [row.at for row in times.orderBy("e").collect()]
    assert in_order == sorted(in_order)
    micros = timedelta(microseconds=1)
    first = (begun - datetime(1970, 1, 1, tzinfo=UTC)) // micros
    assert first <= in_order[0] <= in_order[-1] < first + 600_000_000
    assert in_order == [read_manifest(engine.files, Epoch(e)).committed_at for e in epochs[1:]]


@pytest.mark.spark
def test_a_view_with_a_column_of_the_feed_is_refused(engine):
    engine.table("own", "_Commit_Version INT, v INT")
    with pytest.raises(el.QueryError, match="_Commit_Version") as error:
        engine.view("taken", "SELECT * FROM own").changes(form="cdf")
    assert error.value.condition == "DUPLICATE_COLUMN"
    assert engine.view("renamed", "SELECT _commit_version AS c FROM own").changes(form="cdf")
    for name in ("OP", "epoch"):
        view = engine.view(f"has_{name}", f"SELECT v AS {name} FROM own")
        with pytest.raises(el.QueryError, match=f"DUPLICATE_COLUMN.*{name}.*retract"):
            view.changes()
        assert view.changes(form="cdf").columns[0] == name
        assert view.changes(form="update").columns == ["before", "after", "epoch"]


@pytest.mark.spark
def test_an_unknown_form_is_refused(engine):
    engine.table("any", "v INT")
    with pytest.raises(el.QueryError, match="retract, update or cdf") as error:
        engine.view("plain", "SELECT * FROM any").changes(form="deltas")
    assert error.value.condition == "UNKNOWN_FORM"


def test_an_epoch_of_an_older_version_has_the_time_of_its_manifest(tmp_path):
    files = Files(tmp_path)
    files.make_folder("manifests")
    write_manifest(files, Manifest(Epoch(1)))
    os.utime(files.path(manifest_name(Epoch(1))), ns=(0, 5_000_000_000))
    assert committed_at(files, Epoch(1)) == 5_000_000
    write_manifest(files, Manifest(Epoch(2), committed_at=7, keys={"v1": (0,)}))
    assert committed_at(files, Epoch(2)) == 7
    assert read_manifest(files, Epoch(2)).keys == {"v1": (0,)}
    with pytest.raises(el.StateError) as error:
        committed_at(files, Epoch(3))
    assert error.value.condition == "NO_SUCH_EPOCH"
