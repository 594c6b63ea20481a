"""Conditions that scans check: never a row less than Spark's filter keeps, and most of the others gone."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import eddyline as el
from eddyline.runtime import scan
from eddyline.runtime.lane_choice import SHORT, Lanes
from eddyline.source.conditions import ColumnTest, Combined, rows_where

pytestmark = pytest.mark.spark

COLUMNS = (
    "i INT, b BIGINT, t TINYINT, s STRING, d DECIMAL(10,2), day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ,"
    " f BOOLEAN, x DOUBLE, low STRING COLLATE UTF8_LCASE"
)
FULL = [
    *(1, 2**40, -3, "a", Decimal("1.50"), date(2024, 1, 1), datetime(2024, 1, 1, 12)),
    *(datetime(2024, 1, 1, 12), True, 1.5, "a"),
]
OTHER = [
    *(
        2,
        -1,
        5,
        "Straße",
        Decimal("-0.01"),
        date(1, 1, 1),
        datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
    *(datetime(1900, 1, 1), False, float("nan"), "A"),
]
ROWS = [
    FULL,
    OTHER,
    [None] * len(FULL),
    *([None if at == gone else value for at, value in enumerate(FULL)] for gone in range(len(FULL))),
    *([OTHER[at] if at == one else value for at, value in enumerate(FULL)] for one in range(len(FULL))),
]  # fmt: skip

DECIDED = [
    "i = 1",
    "2 <= i",
    "b > 1099511627775L AND i < 3",
    "t < CAST(0 AS TINYINT) OR i = 2",
    "s = 'a'",
    "s > 'Strass'",
    "s IN ('a', 'Straße', NULL)",
    "s NOT IN ('a', 'b')",
    "i IN (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25)",
    "d = CAST(1.50 AS DECIMAL(10,2))",
    "d IN (CAST(1.5 AS DECIMAL(10,2)), CAST(-0.01 AS DECIMAL(10,2)))",
    "day >= DATE '2024-01-01'",
    "ts < TIMESTAMP '2024-01-01 00:00:00'",
    "ntz = TIMESTAMP_NTZ '1900-01-01 00:00:00'",
    "f",
    "NOT f",
    "f < true OR i = 2",
    "i IS NULL",
    "s IS NOT NULL AND s <> 'a'",
    "NOT (i = 1 AND s = 'a')",
    "i = id OR ts IS NULL",
]
LEFT_TO_SPARK = [
    "x = 1.5",
    "x > 1e300",  # NaN is the largest number
    "low = 'a'",  # and 'A'
    "i + 1 = 2",
    "s LIKE 'a%'",
    "x <=> 1.5",
    "s < CAST(X'FF' AS STRING)",
    "b % 2 = 1 AND i > 1",
    "1 / i > 0.4 AND s = 'a'",
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory, spark):
    """An engine with a view of each condition, over rows that come, change and go."""
    with el.Engine(str(tmp_path_factory.mktemp("conditions") / "s"), spark) as engine:
        table = engine.table("c", f"id INT, {COLUMNS}")
        table.insert([(at, *row) for at, row in enumerate(ROWS)])
        engine.advance()
        for at, condition in enumerate([*DECIDED, *LEFT_TO_SPARK]):
            engine.view(f"v{at}", f"SELECT id, i, s FROM c WHERE {condition}")
        table.insert([(at + 100, *row) for at, row in enumerate(ROWS)])
        engine.advance()
        engine.execute(
            "DELETE FROM c WHERE id % 3 = 0; UPDATE c SET i = 2, s = 'a' WHERE id % 3 = 1"
        )
        engine.advance()
        yield engine


def where(engine, view):
    workspace = engine._workspace
    (leaf,) = workspace.plan(workspace.catalog.get(view)).plan.leaves
    return leaf.where


def test_views_equal_offline(engine):
    report = engine.verify()
    assert report, report
    assert len(report.views) == len(DECIDED) + len(LEFT_TO_SPARK)


@pytest.mark.parametrize("number", range(len(DECIDED)))
def test_what_arrow_decides_as_spark_does(engine, number):
    assert compares(where(engine, f"v{number}")), DECIDED[number]


@pytest.mark.parametrize("number", range(len(LEFT_TO_SPARK)))
def test_what_is_left_to_spark(engine, number):
    assert not compares(where(engine, f"v{len(DECIDED) + number}")), LEFT_TO_SPARK[number]


def compares(condition):
    """Whether more is decided than that a value isn't null, which Spark adds to most filters."""
    if isinstance(condition, Combined):
        return any(map(compares, condition.parts))
    return condition is not None and condition.function != "is_valid"


def test_the_part_before_a_term_that_spark_must_decide(engine):
    engine.view(
        "part",
        "SELECT id FROM c WHERE i > 1 AND b > 2 AND length(s) > 0 AND s LIKE 'a%' AND day > DATE '2024-01-01'",
    )
    assert repr(where(engine, "part")).count("'greater'") == 2
    assert engine.verify("part")


def test_rows_that_are_left_out_count_as_read(engine):
    engine.view("none", "SELECT id FROM c WHERE i = 12345")
    engine.table("c", f"id INT, {COLUMNS}").insert([(900, *FULL), (901, *OTHER)])
    engine.advance()
    assert engine.progress().rows_in["none"] == 2


def test_rows_are_left_out_before_spark_gets_them(engine, monkeypatch):
    left = []

    def spied(condition, rows, schema):
        kept = rows_where(condition, rows, schema)
        left.append((rows.num_rows, kept.num_rows))
        return kept

    monkeypatch.setattr(Lanes, "choose", lambda *_: SHORT)
    engine.table("few", "i INT")
    engine.view("one_of_few", "SELECT i FROM few WHERE i > 1")
    monkeypatch.setattr(scan, "rows_where", spied)
    engine.table("few", "i INT").insert([(1,), (2,), (None,)])
    engine.advance()
    assert [sum(counts) for counts in zip(*left, strict=True)] == [3, 1]
    assert engine.verify("one_of_few")


def test_an_error_in_an_earlier_term_is_not_hidden(engine):
    with pytest.warns(el.errors.ViewFailingWarning, match="DIVIDE_BY_ZERO"):
        engine.view("fails", "SELECT id FROM c WHERE 1 / (i - 1) > 0 AND s = 'nobody'")


def test_a_null_counts_as_false_and_never_drops_a_row_that_spark_keeps():
    rows = pa.table({"c0": pa.array([1, None, 3]), "c1": pa.array(["a", "b", None])})
    one, listed = ColumnTest("equal", "c0", (1,)), ColumnTest("is_in", "c1", ("b",))
    either = Combined("or_kleene", (one, listed))
    assert rows_where(either, rows, rows.schema)["c0"].to_pylist() == [1, None]
    assert rows_where(Combined("invert", (one,)), rows, rows.schema)["c0"].to_pylist() == [3]


def test_stored_columns_of_another_type_are_compared_in_the_plans_type():
    stored = pa.table({"c0": pa.array(["a", "b", None]).dictionary_encode()})
    schema = pa.schema([("c0", pa.string())])
    assert rows_where(ColumnTest("greater", "c0", ("a",)), stored, schema)["c0"].to_pylist() == [
        "b"
    ]
