"""Delta tables as targets: rows and epoch in one commit, also after kills and races."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from pyspark.sql import types as t

from eddyline.changes import CHANGE_TYPE, Epoch
from eddyline.errors import CatalogError, EddylineError, EngineError, StateError
from eddyline.sink import delta_checks, delta_sink
from eddyline.sink.base import Sink, Target
from eddyline.sink.delta import DeltaFormat
from eddyline.sink.rows import difference
from eddyline.spark.schema import arrow_schema
from sink_cases import (
    COLUMNS,
    SCHEMA,
    SMALL,
    Changelog,
    Letters,
    at_once,
    changelog,
    counted,
    follow,
    small,
)

KEYS = [name for name in COLUMNS.names if name != "map"]  # Spark has no maps as keys
CHILD = Path(__file__).parent / "sink_child.py"


def opened(target: Target, path: Path, **options: str) -> Sink:
    given = {"path": str(path), **options}
    DeltaFormat().check(target, given)
    return DeltaFormat().open(target, given)


def held(path: Path, columns: t.StructType = COLUMNS) -> pa.Table:
    schema = arrow_schema(columns, "Europe/Berlin")
    found = DeltaTable(str(path)).to_pyarrow_table(columns=schema.names)
    return found.select(schema.names).cast(schema)


def summed(path: Path) -> Counter[str]:
    """Sum up a table that holds all changes."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    rows = table.select(COLUMNS.names).cast(arrow_schema(COLUMNS, "Europe/Berlin"))
    total: Counter[str] = Counter()
    for one, kind in zip(rows.to_pylist(), table[CHANGE_TYPE].to_pylist(), strict=True):
        total[repr(list(one.values()))] += 1 if kind in ("insert", "update_postimage") else -1
    assert min(total.values(), default=0) >= 0
    return +total


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("keyed", {}),
        ("keyed", {"mode": "changelog"}),
        ("single", {}),
        ("growing", {}),
        ("bag", {"mode": "changelog"}),
        ("keyed", {"optimize_every": "5"}),
    ],
)
def test_target_equals_view_after_each_delivery(
    kind: str, options: dict[str, str], tmp_path: Path
) -> None:
    log, rnd = changelog(kind), random.Random(kind)
    sink = opened(log.target(), tmp_path / "t", **options)
    assert sink.committed() is None
    epoch = None
    while epoch != 30:
        if rnd.random() < 0.2:
            sink = opened(log.target(), tmp_path / "t", **options)
        follow(sink, log, 30, rnd)
        epoch = sink.committed()
        assert epoch is not None
        changed = options.get("mode") == "changelog"
        found = summed(tmp_path / "t") if changed else counted(held(tmp_path / "t"))
        assert found == log.expected(epoch)


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_all_types(name: str, tmp_path: Path) -> None:
    log = changelog(f"by {name}")
    sink = opened(log.target(), tmp_path / "t")
    sink.replace(None, Epoch(2), log.rows(2))
    for epoch in (3, 4, 7, 9):
        base = sink.committed()
        assert base is not None
        sink.deliver(base, Epoch(epoch), log.changes(base, epoch))
        assert counted(held(tmp_path / "t")) == log.expected(epoch)
    sink.replace(Epoch(9), Epoch(12), log.rows(12))
    epoch = 12
    assert counted(held(tmp_path / "t")) == log.expected(epoch)


def test_one_commit_per_epoch_and_a_change_data_feed(tmp_path: Path) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), tmp_path / "t")
    sink.replace(None, Epoch(3), log.rows(3))
    before = DeltaTable(str(tmp_path / "t")).version()
    for epoch in range(4, 11):
        sink.deliver(Epoch(epoch - 1), Epoch(epoch), log.changes(epoch - 1, epoch))
    table = DeltaTable(str(tmp_path / "t"))
    assert table.version() == before + 7  # two of the epochs are empty
    assert table.history(1)[0]["eddyline.epoch"] == "10"
    feed = pa.table(table.load_cdf(before + 1).read_all())
    total = log.expected(3)
    rows = feed.select(COLUMNS.names).cast(log.schema)
    for one, kind in zip(rows.to_pylist(), feed[CHANGE_TYPE].to_pylist(), strict=True):
        total[repr(list(one.values()))] += 1 if kind in ("insert", "update_postimage") else -1
    assert +total == log.expected(10)


def test_the_table_is_compacted_and_vacuumed_on_schedule(tmp_path: Path) -> None:
    path, log, every = tmp_path / "t", changelog("growing"), 10
    sink = opened(log.target(), path, optimize_every=str(every))
    sink.replace(None, Epoch(1), log.rows(1))
    orphan = path / "part-00000-left-by-a-crash.snappy.parquet"
    orphan.write_bytes(b"half")
    os.utime(orphan, (0, 0))  # older than what the vacuum spares
    for epoch in range(2, 32):
        before = DeltaTable(str(path)).version() // every
        sink.deliver(Epoch(epoch - 1), Epoch(epoch), log.changes(epoch - 1, epoch))
        table = DeltaTable(str(path))
        compacted = [done["operation"] for done in table.history(4)].count("OPTIMIZE")
        if table.version() // every > before:
            assert compacted >= 1
            assert len(table.file_uris()) == 1
        assert len(table.file_uris()) <= every
        assert counted(held(path)) == log.expected(epoch)
    done = Counter(step["operation"] for step in table.history())
    assert done["OPTIMIZE"] == table.version() // every >= 3
    assert done["VACUUM END"] >= 1  # one that finds nothing isn't noted
    assert not orphan.exists()
    assert sink.committed() == 31


def test_replace_touches_only_what_differs(tmp_path: Path) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), tmp_path / "t")
    sink.replace(None, Epoch(20), log.rows(20))
    sink.replace(Epoch(20), Epoch(21), log.rows(20))
    assert DeltaTable(str(tmp_path / "t")).history(1)[0]["operation"] == "WRITE"
    sink.replace(Epoch(21), Epoch(22), log.rows(22))
    metrics = DeltaTable(str(tmp_path / "t")).history(1)[0]["operationMetrics"]
    assert int(metrics["num_source_rows"]) <= log.changes(20, 22).num_rows
    assert counted(held(tmp_path / "t")) == log.expected(22)


def test_replace_mends_a_table_with_doubled_rows(tmp_path: Path) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), tmp_path / "t")
    sink.replace(None, Epoch(9), log.rows(9))
    write_deltalake(str(tmp_path / "t"), held(tmp_path / "t"), mode="append")
    sink.replace(Epoch(9), Epoch(10), log.rows(10))
    assert counted(held(tmp_path / "t")) == log.expected(10)


@pytest.mark.guarantee(
    "sink `delta`", "exactly once", "nothing: an older engine goes on beside the new one"
)
def test_a_zombie_is_refused(tmp_path: Path) -> None:
    log = changelog("keyed")
    first, zombie = (opened(log.target(), tmp_path / "t") for _ in range(2))
    first.replace(None, Epoch(3), log.rows(3))
    assert zombie.committed() == 3
    first.deliver(Epoch(3), Epoch(6), log.changes(3, 6))
    for epoch in (4, 6, 7):
        with pytest.raises(StateError) as raised:
            zombie.deliver(Epoch(3), Epoch(epoch), log.changes(3, epoch))
        assert raised.value.condition == "SINK_TARGET_MOVED"
    with pytest.raises(StateError, match="SINK_TARGET_MOVED"):
        zombie.replace(Epoch(3), Epoch(6), log.rows(6))
    assert zombie.committed() == 6
    assert counted(held(tmp_path / "t")) == log.expected(6)


@pytest.mark.parametrize("kind", ["keyed", "growing"])
def test_two_sinks_at_once_deliver_nothing_twice(kind: str, tmp_path: Path) -> None:
    log = changelog(kind)
    moved: list[str] = []

    def run(seed: int) -> None:
        rnd = random.Random(seed)
        sink = opened(log.target(), tmp_path / "t")
        while True:
            try:
                if follow(sink, log, 40, rnd) == 40:
                    return
            except StateError as error:
                moved.append(error.condition)

    at_once(run, 3)
    assert set(moved) <= {"SINK_TARGET_MOVED"}
    assert counted(held(tmp_path / "t")) == log.expected(40)


def test_commits_of_others_dont_stop_the_sink(tmp_path: Path) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), tmp_path / "t")
    sink.replace(None, Epoch(3), log.rows(3))
    other = CommitProperties(app_transactions=[Transaction("other", 7)])
    table = DeltaTable(str(tmp_path / "t"))
    table.optimize.compact(commit_properties=other)
    table.create_write_transaction([], "append", table.schema(), commit_properties=other)
    sink.deliver(Epoch(3), Epoch(4), log.changes(3, 4))
    assert sink.committed() == 4
    assert counted(held(tmp_path / "t")) == log.expected(4)


def test_foreign_rows_need_overwrite(tmp_path: Path) -> None:
    log = changelog("keyed")
    foreign = pa.table({"K": ["x", "x"], "other": [1, 2]})
    write_deltalake(str(tmp_path / "t"), foreign)
    with pytest.raises(StateError) as raised:
        opened(log.target(), tmp_path / "t").replace(None, Epoch(3), log.rows(3))
    assert raised.value.condition == "SINK_TARGET_NOT_EMPTY"
    assert DeltaTable(str(tmp_path / "t")).version() == 0
    sink = opened(log.target(), tmp_path / "t", overwrite="true")
    sink.replace(None, Epoch(3), log.rows(3))
    assert sink.committed() == 3
    assert counted(held(tmp_path / "t")) == log.expected(3)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_table_has_one_sink(rows: int, tmp_path: Path) -> None:
    log, path, present = changelog("keyed"), tmp_path / "t", {"app1": "first"}
    target = log.target("app2", others=lambda: present)
    first = opened(log.target("app1"), path)
    first.replace(None, Epoch(1), log.rows(0))
    with pytest.raises(StateError, match=r"SINK_TARGET_NOT_EMPTY.*one of sink first"):
        opened(target, path).replace(None, Epoch(3), log.rows(rows))
    assert first.committed() == 1
    opened(target, path, overwrite="true").replace(None, Epoch(3), log.rows(rows))
    assert first.committed() is None  # so it delivers no more
    assert opened(target, path).committed() == 3
    DeltaTable(str(path)).delete()
    opened(log.target("app3"), path).replace(None, Epoch(4), log.rows(4))  # app2 was dropped
    assert counted(held(path)) == log.expected(4)


def test_new_columns_are_added_and_old_names_kept(tmp_path: Path) -> None:
    few = t.StructType([field for field in COLUMNS if field.name in ("K", "a.b", "op")])
    old = Changelog("keyed", columns=few)
    lower = t.StructType([t.StructField(f.name.lower(), f.dataType) for f in few])
    path = tmp_path / "t"
    DeltaTable.create(str(path), arrow_schema(lower, "UTC"))
    sink = opened(old.target(), path)
    sink.replace(None, Epoch(9), old.rows(9))
    assert [f.name for f in DeltaTable(str(path)).schema().fields] == ["k", "a.b", "op"]
    new = changelog("keyed")
    sink = opened(new.target(), path)
    assert sink.committed() == 9
    sink.replace(Epoch(9), Epoch(10), new.rows(10))
    sink.deliver(Epoch(10), Epoch(12), new.changes(10, 12))
    names = ["k", *COLUMNS.names[1:]]
    table = DeltaTable(str(path)).to_pyarrow_table().select(names)
    assert counted(table.rename_columns(COLUMNS.names).cast(new.schema)) == new.expected(12)


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    log = changelog("keyed")
    write_deltalake(str(tmp_path / "t"), pa.table({"K": pa.array([], pa.string())}))
    sink = opened(log.target(), tmp_path / "t")
    with pytest.raises(EngineError, match="column K has the type string in the table and long"):
        sink.replace(None, Epoch(3), log.rows(3))


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_new_sink_with_overwrite_replaces_the_types(
    mode: str, count: int, tmp_path: Path
) -> None:
    columns = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.LongType())])
    schema = arrow_schema(columns, "UTC")
    numbers = pa.table({"id": [1, 2], "name": [10, 20]}, schema).slice(0, count)
    first = opened(Target("app1", "k", columns, schema, ("id",)), tmp_path / "t", mode=mode)
    first.replace(None, Epoch(1), difference(numbers.slice(0, 0), numbers))
    target = Target("app1", "k", SMALL, SCHEMA, ("id",))  # the view was replaced
    way_out = r"name has the type long in the table and string.*drop the sink.*overwrite = true"
    for _ in range(2):
        with pytest.raises(EngineError, match=way_out):
            opened(target, tmp_path / "t", mode=mode).replace(Epoch(1), Epoch(2), small(a=1, bb=1))
    again = replace(target, app="app2")  # dropped and created again, as the error says
    sink = opened(again, tmp_path / "t", mode=mode, overwrite="true")
    sink.replace(None, Epoch(2), small(a=1, bb=1))
    sink.deliver(Epoch(2), Epoch(3), small(a=-1, ccc=1))
    assert sink.committed() == 3
    found = net_names(tmp_path / "t") if mode == "changelog" else names_in(tmp_path / "t")
    assert found == ["bb", "ccc"]


def strict(path: Path, *fields: pa.Field, **constraints: str) -> DeltaTable:
    """Make a table with columns `id` and `name`, and constraints."""
    DeltaTable.create(str(path), pa.schema([*(fields or SCHEMA)]))
    for name, expression in constraints.items():
        DeltaTable(str(path)).alter.add_constraint({name: expression})
    return DeltaTable(str(path))


def names_in(path: Path) -> list[str]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["name"].to_pylist())


def net_names(path: Path) -> list[str]:
    """Return the names that are left of a table that holds all changes."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    total: Counter[str] = Counter()
    for name, kind in zip(table["name"].to_pylist(), table[CHANGE_TYPE].to_pylist(), strict=True):
        total[name] += 1 if kind in ("insert", "update_postimage") else -1
    assert min(total.values()) >= 0
    return sorted(total.elements())


@pytest.mark.parametrize("mode", ["upsert", "append", "changelog"])
def test_rows_that_violate_a_constraint_become_dead_letters(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    logged = [pa.field("_change_type", pa.string())] if mode == "changelog" else []
    fields = [pa.field("id", pa.int64()), pa.field("name", pa.string(), False), *logged]
    strict(path, *fields, not_bad="name != 'bad'", short="id < 8")
    letters, growing = Letters(), mode == "append"
    target = Target("app", "k", SMALL, SCHEMA, None if growing else ("id",), growing)
    sink = opened(replace(target, refuse=letters), path, mode=mode)
    held = names_in if mode != "changelog" else net_names
    sink.replace(None, Epoch(1), small(a=1, bb=1, bad=1, dddd=1, longlong=1))
    assert held(path) == ["a", "bb", "dddd"]
    assert sorted(letters.rows) == [(3, "bad"), (8, "longlong")]
    assert sorted(letters.errors) == [
        "the constraint not_bad: name != 'bad'",
        "the constraint short: id < 8",
    ]
    letters.clear()
    before = DeltaTable(str(path)).version()
    if growing:
        sink.deliver(Epoch(1), Epoch(2), small(bad=2, eeeee=2))
        assert held(path) == ["a", "bb", "dddd", "eeeee", "eeeee"]
        assert letters.rows == [(3, "bad")] * 2
    else:
        # updates from and to refused rows, and the delete of one
        sink.deliver(Epoch(1), Epoch(2), small(bad=-1, ccc=1, longlong=-1, a=-1, ffffff=1))
        assert held(path) == ["bb", "ccc", "dddd", "ffffff"]
        assert letters.rows == []
        sink.deliver(Epoch(2), Epoch(3), small(ccc=-1, bad=1, bb=-1, xx=1))
        assert held(path) == ["dddd", "ffffff", "xx"]
        assert letters.rows == [(3, "bad")]
    version = DeltaTable(str(path)).version()
    assert version == before + (1 if growing else 2)
    assert sink.committed() == (2 if growing else 3)
    letters.clear()
    base = sink.committed()
    assert base is not None
    sink.deliver(base, Epoch(9), small(longlong=1))  # nothing is left of it: the epoch is stored
    assert (sink.committed(), letters.rows) == (9, [(8, "longlong")])


def test_nulls_where_the_table_has_none_become_dead_letters(tmp_path: Path) -> None:
    path = tmp_path / "t"
    inner = pa.field("element", pa.int64(), False)
    part = pa.struct([pa.field("n", pa.int64(), False), pa.field("all", pa.list_(inner))])
    strict(path, pa.field("id", pa.int64(), False), pa.field("part", part))
    columns = t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField(
                "part",
                t.StructType(
                    [
                        t.StructField("n", t.LongType()),
                        t.StructField("all", t.ArrayType(t.LongType())),
                    ]
                ),
            ),
        ]
    )
    letters, schema = Letters(), arrow_schema(columns, "UTC")
    sink = opened(Target("app", "k", columns, schema, ("id",), refuse=letters), path)
    parts = [
        {"n": 1, "all": [1, 2]},
        {"n": None, "all": []},
        {"n": 3, "all": [1, None]},
        {"n": 4, "all": None},
        {"n": 5, "all": []},
    ]
    rows = pa.table({"id": [1, 2, 3, 4, None], "part": parts}).cast(schema)
    rows = rows.append_column("op", pa.array(["append"] * 5)).append_column("w", pa.array([1] * 5))
    sink.replace(None, Epoch(1), rows)
    assert sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist()) == [1, 4]
    assert letters.errors == [
        "the column part.n is never null",
        "the column part.all.element is never null",
        "the column id is never null",
    ]


def test_columns_that_only_the_table_has_keep_their_values_in_updates(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = strict(path, *SCHEMA, pa.field("stock", pa.int64()), stock="stock > 0", bad="id < 9")
    letters = Letters()
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters), path)
    sink.replace(None, Epoch(1), small())
    mine = DeltaTable(str(path))
    write_deltalake(mine, pa.table({"id": [2], "name": ["bb"], "stock": [7]}), mode="append")
    sink.deliver(Epoch(1), Epoch(2), small(bb=-1, xx=1, ccc=1))
    found = DeltaTable(str(path)).to_pyarrow_table().select(["id", "name", "stock"])
    assert found.to_pylist() == [{"id": 2, "name": "xx", "stock": 7}]
    assert letters.rows == [(3, "ccc")]  # its stock would be null
    assert letters.errors == ["the constraint stock: stock > 0"]
    assert table.version() == 2


def test_a_table_that_refuses_most_rows_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_sink, "REFUSED_MIN", 3)
    strict(tmp_path / "t", pa.field("id", pa.int64()), pa.field("other", pa.int64(), False))
    letters = Letters()
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters), tmp_path / "t")
    with pytest.raises(EngineError, match=r"SINK_FAILED.*most rows.* other is never null"):
        sink.replace(None, Epoch(1), small(a=1, bb=1, ccc=1))
    assert letters.errors == []


def test_refused_rows_stop_the_sink(tmp_path: Path) -> None:
    path = tmp_path / "t"
    strict(path, bad="name != 'bad'")
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",)), path, on_refused="stop")
    sink.replace(None, Epoch(1), small(a=1))
    with pytest.raises(StateError, match="SINK_REFUSED"):
        sink.deliver(Epoch(1), Epoch(2), small(bb=1, bad=1))
    assert sink.committed() == 1
    assert names_in(path) == ["a"]


def test_refused_rows_are_left_out_of_a_table_that_is_overwritten(tmp_path: Path) -> None:
    path, letters = tmp_path / "t", Letters()
    table = strict(path, *SCHEMA, pa.field("old", pa.int64(), False), bad="name != 'bad'")
    write_deltalake(table, pa.table({"id": [1], "name": ["x"], "old": [1]}), mode="append")
    target = Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters)
    sink = opened(target, path, overwrite="true")
    sink.replace(None, Epoch(1), small(a=1, bad=1))
    assert (names_in(path), letters.rows) == (["a"], [(3, "bad")])


LAST = delta_checks.LAST_DATE


def dated(kind: str, days: int) -> pa.Array:
    """Return one value of a type with a date in it."""
    date = pa.array([days], pa.int32()).cast(pa.date32())
    if kind == "struct":
        return pa.StructArray.from_arrays([date], ["at"])
    if kind == "list":
        inner = pa.StructArray.from_arrays([date], ["at"])
        return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    if kind in ("key of map", "map"):
        other, ends = pa.array(["x"]), pa.array([0, 1], pa.int32())
        pairs = (date, other) if kind == "key of map" else (other, date)
        return pa.MapArray.from_arrays(ends, *pairs)
    return date


class Reasons:
    """Collects the ids of refused rows, and why; their dates may be none of Python's."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def __call__(self, rows: pa.Table, errors: Sequence[str]) -> None:
        self.found += zip(rows["id"].to_pylist(), errors, strict=True)


FAR = {
    "date": t.DateType(),
    "struct": t.StructType([t.StructField("at", t.DateType())]),
    "list": t.ArrayType(t.StructType([t.StructField("at", t.DateType())])),
    "map": t.MapType(t.StringType(), t.DateType()),
    "key of map": t.MapType(t.DateType(), t.StringType()),
}


@pytest.mark.parametrize(
    ("kind", "mode", "key"),
    [
        *((kind, "upsert", "id") for kind in FAR),
        ("date", "upsert", "v"),
        ("list", "changelog", "id"),
        ("date", "append", ""),
    ],
)
def test_dates_that_cannot_be_written_become_dead_letters(
    kind: str, mode: str, key: str, tmp_path: Path
) -> None:
    path, reasons = tmp_path / "t", Reasons()
    columns = t.StructType([t.StructField("id", t.LongType()), t.StructField("v", FAR[kind])])
    schema = arrow_schema(columns, "UTC")

    def rows(**days: int) -> pa.Table:
        values = [dated(kind, at).cast(schema.field("v").type) for at in days.values()]
        ids = pa.array([int(name[1:]) for name in days], pa.int64())
        made = pa.concat_arrays(values) if values else pa.array([], schema.field("v").type)
        return pa.Table.from_arrays([ids, made], schema=schema)

    target = Target("app", "k", columns, schema, (key,) if key else None, not key, refuse=reasons)
    states = [
        rows(_1=0, _2=2**31 - 1),
        rows(_1=0, _2=2**31 - 1, _3=LAST, _4=LAST + 1, _5=-(2**31), _6=delta_checks.FIRST_DATE),
    ]
    if mode != "append":
        states += [rows(_1=2**31 - 1, _3=LAST + 1, _4=7), rows(_1=8, _3=9), rows(_3=LAST + 1)]
    held: list[list[int]] = []
    sink, before = opened(target, path, mode=mode), rows()
    for epoch, state in enumerate(states, 1):
        if epoch == 1:
            sink.replace(None, Epoch(1), difference(before, state))
            DeltaTable(str(path)).alter.add_constraint({"small": "id < 100"})
            sink = opened(target, path, mode=mode)
        else:
            sink.deliver(Epoch(epoch - 1), Epoch(epoch), difference(before, state))
        before = state
        query = "SELECT id FROM held"
        if mode == "changelog":
            query = (
                "SELECT id FROM held GROUP BY id HAVING "
                "sum(CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END) > 0"
            )
        asked = QueryBuilder().register("held", DeltaTable(str(path))).execute(query)
        held.append(sorted(pa.table(asked.read_all())["id"].to_pylist()))
    assert held == [[1], [1, 3, 6], [4], [1, 3], []][: len(states)]
    assert {error for _, error in reasons.found} == {
        "the column v has a date outside of the years -262143 to 262142"
    }
    wanted = [2, 4, 5] if mode == "append" else [1, 2, 3, 3, 4, 5]
    assert sorted(number for number, _ in reasons.found) == wanted
    if mode == "upsert":
        sink.replace(Epoch(5), Epoch(6), difference(rows(), states[1]))
        assert sink.committed() == 6
        assert len(reasons.found) == len(wanted) + 3


@pytest.mark.parametrize(
    ("kind", "options", "error", "condition"),
    [
        ("keyed", {"path": ""}, EngineError, "BAD_OPTION"),
        ("keyed", {"path": "p", "mode": "merge"}, EngineError, "BAD_OPTION"),
        ("keyed", {"path": "p", "overwrite": "yes"}, EngineError, "BAD_OPTION"),
        ("keyed", {"path": "p", "optimize_every": "-1"}, EngineError, "BAD_OPTION"),
        ("keyed", {"path": "p", "on_refused": "drop"}, EngineError, "BAD_OPTION"),
        ("keyed", {"path": "p", "key": "K"}, CatalogError, "SINK_KEY"),
        ("keyed", {"path": "p", "mode": "append"}, CatalogError, "SINK_KEY"),
        ("bag", {"path": "p"}, CatalogError, "SINK_KEY"),
        ("growing", {"path": "p", "mode": "upsert"}, CatalogError, "SINK_KEY"),
    ],
)
def test_checks(
    kind: str, options: dict[str, str], error: type[EddylineError], condition: str
) -> None:
    with pytest.raises(error) as raised:
        DeltaFormat().check(changelog(kind).target(), options)
    assert raised.value.condition == condition


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (t.DayTimeIntervalType(0, 3), "UNSUPPORTED_TYPE"),
        (t.ArrayType(t.NullType()), "UNSUPPORTED_TYPE"),
        (t.StructType([t.StructField("v", t.VariantType())]), "UNSUPPORTED_TYPE"),
    ],
)
def test_types_that_delta_lacks(kind: Any, condition: str) -> None:
    columns = t.StructType([t.StructField("col", kind)])
    target = Target("app", "k", columns, pa.schema([]), append_only=True)
    with pytest.raises(CatalogError, match="column col of sink k") as raised:
        DeltaFormat().check(target, {"path": "p"})
    assert raised.value.condition == condition


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = changelog("keyed")
    sink = opened(log.target(), tmp_path / "file" / "t")
    with pytest.raises(EngineError) as raised:
        sink.replace(sink.committed(), Epoch(3), log.rows(3))
    assert raised.value.condition == "SINK_FAILED"


def kill(path: Path, last: int, kills: int) -> None:
    options = json.dumps({"path": str(path), "optimize_every": "7"})
    command = [sys.executable, str(CHILD), "delta", options, str(last), str(kills), "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert int(done.stdout) >= kills * 0.7
    log = changelog("keyed")
    assert opened(log.target(), path).committed() == last
    assert counted(held(path)) == log.expected(last)


@pytest.mark.guarantee("sink `delta`", "exactly once", "the sink's process, 5 times by kill -9")
def test_kills(tmp_path: Path) -> None:
    kill(tmp_path / "t", 60, 5)


@pytest.mark.guarantee("sink `delta`", "exactly once", "the sink's process, 40 times by kill -9")
@pytest.mark.slow
def test_many_kills(tmp_path: Path) -> None:
    kill(tmp_path / "t", 500, 40)
