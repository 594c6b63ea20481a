"""Sub-plans that a view holds more than once are computed and kept once, in both lanes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

import eddyline as el
import shapes
from eddyline.runtime.short_lane import OUTPUT_ROWS_MAX
from test_shapes import EPOCHS, SOME_CHANGES, Twins
from test_short_lane import state

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[list[Twins]]:
    """The views in two engines: all epochs in the short lane, and all in the wide one."""
    made = [
        Twins(
            tmp_path_factory.mktemp(f"shared{rows}"),
            spark,
            list(shapes.REPEATED),
            el.Options(short_lane_rows=rows),
        )
        for rows in (OUTPUT_ROWS_MAX, 0)
    ]
    yield made
    for twins in made:
        twins.engine.stop()


@given(changes=SOME_CHANGES)
@settings(EPOCHS, max_examples=2)
def test_both_lanes_equal_offline_and_write_the_same_state(pair: list[Twins], changes) -> None:
    for twins in pair:
        twins.change(changes)
        twins.engine.advance()
        assert twins.differences() == []
    short, wide = (state(twins.engine) for twins in pair)
    assert short == wide
    lanes = [set(twins.engine.progress().lanes.values()) for twins in pair]
    assert lanes[0] in (set(), {"short"}, {"short", "wide"})  # that of the files of a stream
    assert lanes[1] <= {"wide"}


def test_it_is_shown_and_leaves_no_files(pair: list[Twins]) -> None:
    for twins in pair:
        for name in shapes.REPEATED:
            shown = twins.engine.explain(name)
            assert ("Shared" in shown) == (name != "cte_pruned"), shown
        assert not list(Path(twins.engine.files.root).rglob("*.shared.*"))


def test_a_sub_plan_is_kept_once(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path), spark) as engine:
        engine.table("t", shapes.TABLES["t"][0])
        engine.view("once", "SELECT k, sum(b) AS s, count(*) AS n FROM t GROUP BY k")
        engine.view(
            "joined", "SELECT a.k, a.s, b.k AS k2, b.s AS s2 FROM once a JOIN once b ON a.n = b.n"
        )
        engine.view("twice", shapes.REPEATED["cte_twice"])
        parts = {name: parts_of(engine, name) for name in ("once", "joined", "twice")}
        # but for the rows of the first view
        assert parts["twice"] == parts["once"] + parts["joined"] - 1


def parts_of(engine: el.Engine, view: str) -> int:
    return len(engine._workspace.plan(engine.catalog.get(view)).plan.parts)
