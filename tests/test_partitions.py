"""Every stateful operator gets its rows in all its buckets, whatever lies in one task below it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.catalog.entries import VIEW, Entry
from eddyline.plan import aggregate
from eddyline.plan.logical import Plan
from eddyline.plan.nodes import StatefulPart
from eddyline.plan.partitions import check_partitions
from eddyline.runtime.lane_choice import SHORT, WIDE, Lanes
from eddyline.testing import Offline, PlainTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

COLUMNS = "id INT, k STRING, a BIGINT, b BIGINT"
EPOCHS = (
    ("insert", [(1, "x", 1, 5), (2, "y", 1, None), (3, None, 4, 5), (4, "x", 2, 7)]),
    ("insert", [(5, "y", 9, 1), (6, "z", 4, 7)]),
    ("delete", [(5, "y", 9, 1), (1, "x", 1, 5)]),
    ("delete", [(2, "y", 1, None), (3, None, 4, 5), (4, "x", 2, 7), (6, "z", 4, 7)]),
)

# Inputs whose rows lie in one task.
ONE_TASK = {
    "a global aggregate": "SELECT max(k) AS k, max(a) AS a FROM t",
    "a global sum": "SELECT min(k) AS k, sum(b) AS a FROM t",
    "a global recomputed aggregate": "SELECT max(k) AS k, bit_or(b) AS a FROM t",
    "a window over all rows": "SELECT k, CAST(rank() OVER (ORDER BY a) AS BIGINT) AS a FROM t",
    "a limit": "SELECT k, a FROM t LIMIT 99",
    "the first rows": "SELECT k, a FROM t ORDER BY id LIMIT 3",
    "a scalar subquery": "SELECT k, (SELECT max(b) FROM t) AS a FROM t",
    "a cross join": "SELECT l.k, r.a FROM t l CROSS JOIN (SELECT id, a FROM t) r WHERE l.id < r.id",
    "a constant": "SELECT 'x' AS k, 1L AS a",
}
# Operators over two such inputs.
STATEFUL = {
    "union": "({0}) UNION ({1})",
    "group": "SELECT a, count(*) AS n FROM (({0}) UNION ALL ({1})) GROUP BY a",
    "count of distinct values": "SELECT k, count(DISTINCT a) AS n FROM (({0}) UNION ALL ({1})) GROUP BY k",
    "sorted values": "SELECT k, max(a) AS m FROM (({0}) UNION ALL ({1})) GROUP BY k",
    "recompute": "SELECT k, bit_or(a) AS m FROM (({0}) UNION ALL ({1})) GROUP BY k",
    "window": "SELECT k, a, rank() OVER (PARTITION BY k ORDER BY a) AS r FROM (({0}) UNION ALL ({1}))",
    "first of each group": "SELECT k, a FROM (SELECT k, a, rank() OVER (PARTITION BY k ORDER BY a) AS r"
    " FROM (({0}) UNION ALL ({1}))) WHERE r <= 1",
    "limit": "SELECT k, a FROM (({0}) UNION ALL ({1})) ORDER BY a, k LIMIT 2",
    "join": "SELECT l.k, r.a FROM ({0}) l JOIN ({1}) r ON l.k = r.k",
    "outer join": "SELECT l.k, r.a FROM ({0}) l FULL JOIN ({1}) r ON l.a = r.a AND l.k < r.k",
    "except": "({0}) EXCEPT ({1})",
    "intersect": "({0}) INTERSECT ({1})",
    "union of unions": "SELECT k, a FROM (({0}) UNION ({1})) UNION SELECT k, a FROM (({1}) UNION ({0}))",
    "the result": "({0}) UNION ALL ({1})",
}
OPTIONS = ("", "scan_tasks=1", "native_rules=0", "buckets=3, scan_tasks=1")


def pairs(every: bool) -> list[tuple[str, str]]:
    """All pairs of one-task inputs, or each input once."""
    names = list(ONE_TASK)
    if every:
        return list(itertools.product(names, repeat=2))
    return list(zip(names, names[1:] + names[:1], strict=True))


def plan_jobs(engine: el.Engine, query: str) -> None:
    """Compile a query, and let Spark plan its jobs."""
    workspace = engine._workspace
    upstream = workspace.compiler.mentioned(query, workspace.catalog)
    draft = Entry("v99", VIEW, "planned", "", query=query)
    plan = workspace.compiler.view(draft, workspace.catalog, workspace.plan, upstream).plan
    assert plan.wide is not None
    assert plan.wide.jobs.plans


def refused(engine: el.Engine, operators: list[str], chosen: list[tuple[str, str]]) -> list[str]:
    """Plan the jobs of each operator over pairs of inputs; return what isn't accepted."""
    wrong = []
    for name in operators:
        for left, right in chosen:
            query = STATEFUL[name].format(ONE_TASK[left], ONE_TASK[right])
            try:
                plan_jobs(engine, query)
            except el.EddylineError as error:
                wrong.append(f"{name} over {left} and {right}: {error}")
    return wrong


def opened(folder: Path, spark: SparkSession, options: str = "") -> el.Engine:
    chosen = eval(f"el.Options({options})")  # a text of this file
    engine = el.Engine(str(folder), spark=spark, options=chosen)
    engine.table("t", COLUMNS)
    return engine


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_operators_over_one_task_inputs_get_all_buckets(
    spark: SparkSession, tmp_path: Path, options: str
) -> None:
    with opened(tmp_path, spark, options) as engine:
        assert refused(engine, ["union"], pairs(every=False)) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_every_operator_over_every_pair_gets_all_buckets(
    spark: SparkSession, tmp_path: Path, options: str
) -> None:
    with opened(tmp_path, spark, options) as engine:
        assert refused(engine, list(STATEFUL), pairs(every=not options)) == []


def differences(spark: SparkSession, folder: Path, queries: dict[str, str]) -> list[str]:
    """Run queries as views through all epochs; return where they differ from offline Spark."""
    plain = PlainTable(COLUMNS)
    offline = Offline(spark, {"t": plain})
    with opened(folder, spark) as engine:
        table = engine.table("t", COLUMNS)
        views = {}
        for name, query in queries.items():
            offline.view(name, query)
            views[name] = engine.view(name, query)
            made = engine._workspace.plan(engine._workspace.catalog.get(name)).plan
            assert made.wide is not None
            assert made.wide.jobs.plans  # planned, and checked
        wrong = []
        for number, (operation, rows) in enumerate(EPOCHS, start=1):
            for target in (plain, table):
                getattr(target, operation)(rows)
            engine.advance()
            offline.load()
            for name, view in views.items():
                found = offline.compared(name, view.snapshot())
                if not found.equal:
                    wrong.append(f"{name}, epoch {number}: {queries[name]}")
    return wrong


def over(operators: list[str], chosen: list[tuple[str, str]]) -> dict[str, str]:
    cases = itertools.product(operators, chosen)
    return {
        f"v{number}": STATEFUL[name].format(ONE_TASK[left], ONE_TASK[right])
        for number, (name, (left, right)) in enumerate(cases)
    }


def test_unions_of_one_task_inputs_equal_offline(spark: SparkSession, tmp_path: Path) -> None:
    chosen = [
        ("a global aggregate", "a global sum"),
        ("a window over all rows", "the first rows"),
    ]
    assert differences(spark, tmp_path, over(["union", "group", "recompute"], chosen)) == []


@pytest.mark.slow
def test_every_operator_over_one_task_inputs_equals_offline(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert differences(spark, tmp_path, over(list(STATEFUL), pairs(every=False))) == []


def test_a_plan_without_its_shuffle_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check reads Spark's plan, and doesn't trust what the compiler knows about tasks."""
    preaggregated = aggregate._preaggregated

    def in_one_task(build, frame, *rest):
        return preaggregated(build, frame.coalesce(1), *rest[:-1], False)

    monkeypatch.setattr(aggregate, "_preaggregated", in_one_task)
    with opened(tmp_path, spark) as engine, pytest.raises(el.EngineError) as error:
        plan_jobs(engine, "SELECT k, count(*) AS n FROM t GROUP BY k")
    assert error.value.condition == "WRONG_PARTITIONS"


def test_jobs_are_planned_when_the_first_one_runs_and_a_wrong_one_stops_only_its_view(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, planned = [SHORT], []

    def check(view: str, physicals: Sequence[Plan], parts: Sequence[StatefulPart]) -> None:
        planned.append(view)
        if view == "bad":
            parts = [replace(part, buckets=part.buckets + 1) for part in parts]
        check_partitions(view, physicals, parts)

    monkeypatch.setattr("eddyline.runtime.wide_lane.check_partitions", check)
    monkeypatch.setattr(Lanes, "choose", lambda *_: lanes[-1])
    with opened(tmp_path, spark) as engine:
        table = engine.table("t", COLUMNS)
        for name in ("good", "bad"):
            engine.view(name, "SELECT k, count(*) AS n FROM t GROUP BY k")
        table.insert([(1, "x", 1, 5)])
        engine.advance()
        assert not planned
        lanes.append(WIDE)
        for number in (2, 3):
            table.insert([(number, "x", 1, 5)])
            engine.advance()
        assert planned.count("good") == 1
        assert engine.snapshot("good").collect() == [("x", 3)]
        with pytest.raises(el.EngineError, match="operator op0 has") as error:
            engine.snapshot("bad")
        assert error.value.condition == "VIEW_FAILING"
        lanes.append(SHORT)  # few rows again
        table.insert([(4, "y", 1, 5)])
        engine.advance()
        assert sorted(engine.snapshot("bad").collect()) == [("x", 3), ("y", 1)]
