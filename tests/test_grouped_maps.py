"""applyInPandas and applyInArrow: the function's rows of touched groups are replaced, and equal offline Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import eddyline as el
from eddyline.testing import replayed

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, g STRING, v INT, d DOUBLE, ts TIMESTAMP, a ARRAY<INT>"
OF_GROUP = "g string, spread double, n bigint"
NAN = float("nan")


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "s"), spark) as made:
        made.table("t", SCHEMA, primary_key=["id"])
        yield made


def views(t: DataFrame) -> dict[str, DataFrame]:
    def spread(rows: pd.DataFrame) -> pd.DataFrame:
        width = float(rows["v"].max()) - float(rows["v"].min())
        return pd.DataFrame({"n": [len(rows)], "spread": [width], "g": rows["g"].iloc[:1].array})

    def by_place(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([[str(key), int(rows["v"].fillna(0).sum())]])

    def even_groups(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame() if len(rows) % 2 else rows[["id", "g"]]

    def in_arrow(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        if rows.num_rows == 1:
            return pa.table({})
        ids = pa.array([sorted(rows["id"].to_pylist())], pa.list_(pa.int64()))
        return pa.table({"ids": ids, "g": pa.array([key[0].as_py()], pa.string())})

    grouped = t.groupBy("g").applyInPandas(spread, OF_GROUP)
    return {
        "by_column": grouped,
        "by_nulls": t.groupBy("g", "d").applyInPandas(by_place, "k string, v bigint"),
        "by_value": t.groupBy((sf.col("v") % 2).alias("odd")).applyInPandas(
            even_groups, "id bigint, g string"
        ),
        "whole": t.groupBy().applyInPandas(
            lambda rows: rows[["ts", "id", "a"]].sort_values("id").head(3),
            "id bigint, ts timestamp, a array<int>",
        ),
        "by_window": t.groupBy(sf.window("ts", "10 minutes")).applyInPandas(
            even_groups, "id bigint, g string"
        ),
        "above": t.where("v > 0").groupBy("g").applyInPandas(spread, OF_GROUP).groupBy("n").count(),
        "over": grouped.join(t.select("g", "id"), "g"),
        "arrow": t.groupBy("g").applyInArrow(in_arrow, "g string, ids array<bigint>"),
    }


@pytest.mark.parametrize(
    "hash_bits", [64, pytest.param(2, marks=pytest.mark.slow)], ids=["", "keys collide"]
)
def test_functions_of_groups_equal_offline(
    tmp_path: Path, spark: SparkSession, hash_bits: int
) -> None:
    options = el.Options(hash_bits=hash_bits)
    with el.Engine(str(tmp_path / "s"), spark, options) as engine:
        table = engine.table("t", SCHEMA, primary_key=["id"])
        defined = views(engine.relation("t"))
        for name, frame in defined.items():
            engine.view(name, frame)
        start = pd.Timestamp("2026-01-01")
        for epoch in range(2):
            table.upsert(
                [
                    (i, ("a", "b", None)[(i + epoch) % 3], (i * epoch) % 4 or None,
                     (None, NAN, 1.5, 0.0)[i % 4], start + pd.Timedelta(minutes=i), [i, epoch])
                    for i in range(epoch, 24, 2)
                ]
            )  # fmt: skip
            table.delete([{"id": i} for i in range(0, 24, 5)])
            engine.advance()
            report = engine.verify()
            assert report.equal, [(n, d) for n, d in report.views.items() if not d.equal]
        for name in defined:
            changes = [tuple(row) for row in engine.changes(name, None, "retract").collect()]
            rows = [tuple(row) for row in engine.snapshot(name).collect()]
            assert sorted(map(repr, replayed(changes))) == sorted(map(repr, rows)), name
        engine.execute("DELETE FROM t")
        engine.advance()
        assert {name: engine.snapshot(name).count() for name in defined} == dict.fromkeys(
            defined, 0
        )


def test_only_touched_groups_are_called(engine: el.Engine, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def told(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        with calls.open("a") as file:
            file.write(f"{key[0]}\n")
        return rows[["g"]].head(1)

    engine.writing.write("t", [("append", [{"id": i, "g": "abc"[i % 3]} for i in range(9)])])
    engine.advance()
    engine.view("v", engine.relation("t").groupBy("g").applyInPandas(told, "g string"))
    assert sorted(calls.read_text().split()) == ["a", "b", "c"]
    calls.unlink()
    engine.execute("INSERT INTO t (id, g) VALUES (20, 'b')")
    engine.advance()
    assert calls.read_text().split() == ["b"]
    engine.execute("DELETE FROM t WHERE g = 'b'")
    engine.advance()
    assert calls.read_text().split() == ["b"]
    assert sorted(row.g for row in engine.snapshot("v").collect()) == ["a", "c"]


def test_what_was_returned_is_taken_back_though_the_function_has_changed(
    tmp_path: Path, spark: SparkSession
) -> None:
    def marking(number: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
        def marked(rows: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"g": rows["g"].head(1), "call": [number]})

        return marked

    for number in range(2):
        with el.Engine(str(tmp_path / "s"), spark) as engine:
            table = engine.table("t", SCHEMA, primary_key=["id"])
            frame = (
                engine.relation("t")
                .groupBy("g")
                .applyInPandas(marking(number), "g string, call int")
            )
            engine.view("v", frame)
            table.insert([{"id": number, "g": "a"}, {"id": 9, "g": "b"}][: 2 - number])
            engine.advance()
            found = sorted(tuple(row) for row in engine.snapshot("v").collect())
    assert found == [("a", 1), ("b", 0)]


@pytest.mark.parametrize(
    ("returned", "schema", "message"),
    [
        (pd.DataFrame({"x": [1]}), "n bigint", r"\['x'\], not \['n'\]"),
        (pd.DataFrame([[1, 2]]), "n bigint", r"\[0, 1\], not \['n'\]"),
        (pd.DataFrame({"n": ["no number"]}), "n bigint", "no number"),
        (None, "n bigint", "returned NoneType, not a DataFrame"),
    ],
)
def test_a_wrong_result_sets_the_view_aside(
    engine: el.Engine, returned: pd.DataFrame | None, schema: str, message: str
) -> None:
    engine.execute("INSERT INTO t (id, g) VALUES (1, 'a')")
    engine.advance()
    frame = engine.relation("t").groupBy("g").applyInPandas(lambda rows: returned, schema)
    with pytest.warns(el.ViewFailingWarning, match=message):
        engine.view("v", frame)
    assert [one["state"] for one in engine.status()["views"]] == ["failing"]


def test_functions_of_other_forms_are_refused_with_a_way_out(engine: el.Engine) -> None:
    t = engine.relation("t").select("id", "g")

    def iterated(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from parts

    both = t.groupBy("g").cogroup(t.groupBy("g"))
    for frame, message in (
        (t.groupBy("g").applyInPandas(iterated, t.schema), "takes an iterator"),
        (t.mapInPandas(lambda parts: parts, t.schema), "groupBy"),
        (t.mapInArrow(lambda parts: parts, t.schema), "groupBy"),
        (both.applyInPandas(lambda one, two: one, t.schema), "tells them apart"),
        (both.applyInArrow(lambda one, two: one, t.schema), "tells them apart"),
    ):
        with pytest.raises(el.QueryError, match=message) as caught:
            engine.view("v", frame)
        assert caught.value.condition == "NOT_LIVE"
