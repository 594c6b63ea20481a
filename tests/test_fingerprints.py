"""State belongs to the plan that wrote it, and to the settings that results depend on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.quick import quick_answer
from eddyline.catalog.entries import VIEW, Entry
from eddyline.operators import base
from eddyline.options import Options
from eddyline.runtime import plans
from eddyline.spark.session import cloned
from eddyline.spark.settings import FIXED
from eddyline.testing import replayed

pytestmark = pytest.mark.spark

VIEWS = {
    "sums": "SELECT a, count(*) AS n, sum(v) AS s FROM t GROUP BY a",
    "firsts": "SELECT a, v, row_number() OVER (PARTITION BY a ORDER BY v) AS r FROM t",
    "pairs": "SELECT x.a, y.v FROM t x JOIN u y ON x.a = y.k",
    "above": "SELECT n, count(*) AS groups FROM sums GROUP BY n",
    "events": "SELECT k, max(v) AS m FROM s GROUP BY k",
    "kinds": "SELECT a, count(DISTINCT v) AS n FROM t GROUP BY a",  # two operators, or one by the generic rule
}


class Storage:
    """A storage with a table, a keyed table, a stream of operations, and views; opened again and again."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path = str(folder / "storage")
        self.input = folder / "in"
        self.input.mkdir()
        self.spark = spark
        self.steps = 0

    def open(self, spark: SparkSession | None = None, **options: Any) -> el.Engine:
        return el.Engine(self.path, spark=spark or self.spark, options=Options(**options))

    def make(self, **options: Any) -> None:
        with self.open(**options) as engine:
            engine.table("t", "a INT, v INT")
            engine.table("u", "k INT, v INT", primary_key=["k"])
            columns, path = "k INT, v INT, op STRING", {"path": str(self.input)}
            engine.create_stream("s", columns, "json", path, op="op")
            for name, query in VIEWS.items():
                engine.view(name, query)
            self.change(engine)

    def change(self, engine: el.Engine) -> None:
        """Add and remove rows everywhere; check all views against offline SQL."""
        n = self.steps
        self.steps += 1
        engine.table("t", "a INT, v INT").insert([(n % 3, n), (n % 2, 7), (1, None)])
        engine.table("u", "k INT, v INT", primary_key=["k"]).upsert([(n % 3, n)])
        lines = [{"k": n % 2, "v": n, "op": "+"}, {"k": 5, "v": n, "op": "+"}]
        lines += [{"k": 5, "v": n - 1, "op": "-"}] if n else []
        part = self.input / f".{n}.json"
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        part.rename(self.input / f"{n}.json")
        if n:
            engine.table("t", "a INT, v INT").delete([((n - 1) % 3, n - 1)])
        engine.advance()
        report = engine.verify()
        assert report, report


@pytest.fixture
def storage(tmp_path: Path, spark: SparkSession) -> Storage:
    return Storage(tmp_path, spark)


def rebuilt(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "computed again" in r.getMessage()]


def test_the_same_plans_go_on_without_an_epoch(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    storage.make()
    with caplog.at_level(logging.WARNING, "eddyline"), storage.open() as engine:
        epoch = engine.status()["epoch"]
        assert engine.advance() == epoch
        storage.change(engine)
    assert rebuilt(caplog) == []


FLIPS = {
    "native_rules": (1, 0),
    "hash_bits": (64, 3),
    "buckets": (2, 3),
    "scan_tasks": (2, 5),
    "compaction_fan_in": (8, 2),
    "task_bytes": (1 << 30, 2048),
    "fill_rows": (16_000_000, 1),
    "retain_epochs": (16, 4),
    "short_lane_rows": (20_000, 0),
    "delivery": ("exactly_once", "at_least_once"),
}


def test_every_option_that_could_matter_is_flipped() -> None:
    # where the catalog is, for how long what is kept, and who is told of it: these can't touch the rows of views
    others = {"catalog", "held_epochs", "held_bytes", "lease_seconds"}
    others |= {"otlp_endpoint", "lineage_seconds"}
    others |= {"dead_letter_rows", "dead_letter_days"}
    assert set(FLIPS) == set(Options.__dataclass_fields__) - others


BEFORE = {option: first for option, (first, _) in FLIPS.items()}


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Storage:
    """A storage with the first value of each option; each test leaves it so."""
    storage = Storage(tmp_path_factory.mktemp("flipped"), spark)
    storage.make(**BEFORE)
    return storage


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(list(FLIPS), id="all"),
        *(pytest.param([option], id=option, marks=pytest.mark.slow) for option in FLIPS),
    ],
)
def test_options_may_change_between_two_openings(
    flipped: Storage, changed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    storage, options = flipped, {**BEFORE, **{option: FLIPS[option][1] for option in changed}}
    with caplog.at_level(logging.WARNING, "eddyline"), storage.open(**options) as engine:
        before = engine.status()["epoch"]
        engine.advance()
        if {"native_rules", "hash_bits"} & set(changed):
            assert len(rebuilt(caplog)) == 1
            for view in VIEWS:  # the rows are the same, so the changelog gets nothing
                assert engine.changes(view, after=before).collect() == [], view
        storage.change(engine)
        for view in VIEWS:
            rows = Counter(map(tuple, engine.snapshot(view).collect()))
            assert Counter(replayed(engine.changes(view).collect())) == rows, view
            answer = quick_answer(engine.files, engine.catalog, f"SELECT * FROM {view}")
            assert answer is not None
            assert len(answer.texts()) == rows.total(), view
    with storage.open(**BEFORE) as engine:
        storage.change(engine)


def test_a_plan_changed_on_purpose_rebuilds_its_views(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage.make()
    with storage.open() as engine:
        engine.pause("firsts")
    monkeypatch.setattr(plans, "STATE_VERSION", base.STATE_VERSION + 1)
    with storage.open() as engine, pytest.raises(el.StateError) as caught:
        engine.advance()  # the rows of a table can't be computed again
    assert caught.value.condition == "OTHER_PLAN"
    monkeypatch.undo()
    monkeypatch.setattr(plans.pyspark, "__version__", "9.9.9")
    monkeypatch.setattr("eddyline.plan.catalyst.KNOWN_VERSIONS", ("9.9",))
    with caplog.at_level(logging.WARNING, "eddyline"), storage.open() as engine:
        storage.change(engine)
        assert rebuilt(caplog)
        assert "firsts" not in rebuilt(caplog)[0]  # resuming it computes it again in any case
        engine.resume("firsts")
        storage.change(engine)


SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


def test_settings_that_change_results_are_refused_with_both_values(
    storage: Storage, spark: SparkSession
) -> None:
    storage.make()
    for name, value in SETTINGS.items():
        other = cloned(spark, **{name: value})
        with pytest.raises(el.EngineError) as caught:
            storage.open(other)
        assert caught.value.condition == "SETTINGS_DIFFER"
        assert f"{name} is {value}, was {spark.conf.get(name)}" in str(caught.value)
        with storage.open() as engine:
            assert engine.status()["epoch"]
    with storage.open() as engine:
        storage.change(engine)


def test_settings_of_the_storage_hold_whatever_the_session_says_later(
    tmp_path: Path, spark: SparkSession
) -> None:
    session = cloned(spark, **{"spark.sql.ansi.enabled": "false"})
    with el.Engine(str(tmp_path / "storage"), spark=session) as engine:
        table = engine.table("t", "a INT, b INT")
        table.insert([(1, 0), (4, 2)])
        engine.view("q", "SELECT a / b AS q FROM t")
        session.conf.set("spark.sql.ansi.enabled", "true")
        engine.view("r", "SELECT a / b AS q FROM t")
        engine.advance()
        for view in ("q", "r"):
            assert sorted(engine.snapshot(view).collect(), key=str) == [(2.0,), (None,)]
        assert engine.verify()
        assert engine.sql("SELECT 1 / 0 AS x").collect() == [(None,)]
    with pytest.raises(el.EngineError, match=r"ansi\.enabled is true, was false"):
        el.Engine(str(tmp_path / "storage"), spark=session)


def test_all_settings_are_known_to_spark(spark: SparkSession) -> None:
    assert [name for name in FIXED if not spark.conf.get(name)] == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 24])
def test_a_plan_has_the_same_fingerprint_in_every_process(every: int) -> None:
    child = Path(__file__).with_name("fingerprint_child.py")
    children = [
        subprocess.Popen(
            [sys.executable, str(child), str(every)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for seed in ("1", "2")
    ]
    outputs = [json.loads(process.communicate()[0]) for process in children]
    assert len(outputs[0]) > 150 // every
    differing = [name for name, found in outputs[0].items() if outputs[1][name] != found]
    assert differing == []


def test_common_expressions_that_spark_numbers_do_not_change_a_plan(spark, tmp_path):
    query = "SELECT nullif(concat(a, v), '-') AS x, nullif(concat(v, a), '') AS y FROM t"
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        engine.table("t", "a STRING, v STRING").insert([("a", "-"), ("", "-")])
        engine.view("trimmed", query)
        epoch = engine.advance()
    for _ in range(2):
        with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
            assert engine.advance() == epoch, "nothing has to be computed again"
            assert "_common_expr_" in engine.explain("trimmed", stage="physical")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT f[0] AS x, nullif(nullif(concat(f[2], f[1]), '-'), '') AS y"
        " FROM (SELECT split(a, ',') AS f FROM t) AS parts",
        "SELECT F[0] AS x, nullif(nullif(concat(F[2], F[1]), '-'), '') AS y"
        " FROM (SELECT split(a, ',') AS f FROM t)",
    ],
    ids=["qualified", "spelled in two ways"],
)
def test_a_query_that_names_a_column_in_two_ways_has_one_plan(spark, tmp_path, query):
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        engine.table("t", "a STRING, v STRING").insert([("b,c,d", "bc"), ("-,,", "e")])
        workspace = engine._workspace
        draft = Entry("v9", VIEW, "twice", "", query=query)
        prints = {
            workspace.compiler.view(
                draft, workspace.catalog, workspace.plan, ["t"]
            ).plan.fingerprint
            for _ in range(10)
        }
        assert len(prints) == 1
        engine.view("twice", query)
        assert engine.verify("twice")
