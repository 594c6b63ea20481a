"""What epochs have spent their time on: the command `profile`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.cli import main

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE TABLE t (id INT, k STRING, v INT);
CREATE VIEW sums AS SELECT k, sum(v) AS s FROM t GROUP BY k;
CREATE VIEW pairs AS SELECT a.id, b.v FROM t a JOIN t b ON a.k = b.k;
CREATE VIEW plain AS SELECT id FROM t WHERE v > 1;
"""


def test_views_and_operators_by_time(tmp_path: Path, spark: SparkSession, capsys) -> None:
    storage = str(tmp_path / "storage")

    def told(*words: str) -> str:
        assert main(["profile", "--storage", storage, *words]) == 0
        return capsys.readouterr().out

    for short_lane_rows in (0, 200_000):  # as jobs, then in the driver
        options = el.Options(short_lane_rows=short_lane_rows)
        with el.Engine(storage, spark, options=options) as engine:
            if not short_lane_rows:
                engine.execute(SCRIPT)
                assert "no epoch" not in told()
            for number in range(2):
                engine.execute(f"INSERT INTO t VALUES ({number}, 'x', 1), ({number}, 'y', 2)")
                engine.advance()
            found = [
                json.loads(line) for line in told("--epochs", "2", "--format", "json").splitlines()
            ]
            views = {one["view"]: one for one in found if not one["operator"]}
            assert views.keys() == {"t", "sums", "pairs", "plain"}
            sums = views["sums"]
            assert (sums["epochs"], sums["rows_in"]) == (2, 4)
            assert bool(sums["in_driver"]) == bool(short_lane_rows)
            assert all(one["seconds"] > 0 for one in views.values())
            operators = [one for one in found if one["operator"]]
            assert {one["view"] for one in operators} >= {"sums", "pairs"}
            for one in operators:
                assert one["seconds"] > 0
                assert one["rows_in"]
                assert one["in_driver"] is None
            joins = [one for one in operators if one["view"] == "pairs"]
            assert sum(one["touched"] for one in joins) == views["pairs"]["touched"] > 0
            in_order = [one["seconds"] for one in found if not one["operator"]]
            assert in_order == sorted(in_order, reverse=True)
    stacks = dict(line.rsplit(" ", 1) for line in told("--format", "folded").splitlines())
    assert "sums" in stacks
    assert any(stack.startswith("pairs;") for stack in stacks)
    assert all(spent.isdecimal() for spent in stacks.values())
    table = told().splitlines()
    assert table[0].startswith("epochs ")
    assert "touched" in table[2]
    assert main(["profile", "--storage", storage, "--epochs", "0"]) == 2
