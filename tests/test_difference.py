"""The comparison of two results as multisets of rows, over tables and in Spark's tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from eddyline.answers.difference import SHOWN_ROWS, Difference, difference, frames_difference

pytestmark = pytest.mark.spark

NAN = "double('NaN')"
FAR = "TIMESTAMP_NTZ '+12000-01-01 00:00:00', DATE '-0044-03-15'"
EQUAL = {
    "empty": ("SELECT 1 AS n WHERE false", "SELECT 1 AS n WHERE false"),
    "copies": (
        "SELECT n % 2 AS n FROM range(6) AS t(n)",
        "SELECT int(n / 3) AS n FROM range(6) AS t(n)",
    ),
    "nulls": ("VALUES (null, 1), (2, null)", "VALUES (2, null), (null, 1)"),
    "last digits": ("VALUES ('a', 0.1D + 0.2D), ('b', 1D)", "VALUES ('b', 1D), ('a', 0.3D)"),
    "floats alone": (f"VALUES (0.1D + 0.2D), ({NAN}), (1D)", f"VALUES (1D), ({NAN}), (0.3D)"),
    "entries of maps": (
        "SELECT 1, map('a', 1, 'b', 2)",
        "SELECT 1, map('b', 2, 'a', 1)",
    ),
    "null structs": (
        "VALUES (named_struct('x', 1)), (null)",
        "VALUES (null), (named_struct('x', 1))",
    ),
    "times that Python has none of": (f"VALUES ({FAR}, 0.1D + 0.2D)", f"VALUES ({FAR}, 0.3D)"),
    "arrays": ("VALUES (1, array(1.5D, null))", "VALUES (1, array(1.5D, null))"),
    "collated": ("SELECT 'a' COLLATE UTF8_LCASE AS s", "SELECT 'a' COLLATE UTF8_LCASE AS s"),
}


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("tasks", [1, 3])
def test_equal_results(spark: SparkSession, name: str, tasks: int) -> None:
    left, right = map(spark.sql, EQUAL[name])
    found = frames_difference(left, right, tasks)
    assert found.equal, found
    assert (found.left_rows, found.right_rows) == (left.count(), right.count())


def unequal(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left = spark.sql("SELECT id % 10 AS k, double(id) AS v, map('id', id) AS m FROM range(1000)")
    right = spark.sql(
        "SELECT id % 10 AS k, double(id) + if(id = 7, 1e-6, 0) AS v, map('id', id) AS m"
        " FROM range(1001) WHERE id <> 8"
    )
    return left, right


@pytest.mark.parametrize("tasks", [1, 4])
def test_rows_that_differ_are_shown(spark: SparkSession, tasks: int) -> None:
    found = frames_difference(*unequal(spark), tasks)
    assert (found.left_rows, found.right_rows) == (1000, 1000)
    assert {row["v"] for row in found.left_only} == {7.0, 8.0}
    assert {row["v"] for row in found.right_only} == {7.000001, 1000.0}
    assert {"k": 8, "v": 8.0, "m": [("id", 8)]} in found.left_only


def test_times_that_python_has_none_of_are_shown(spark: SparkSession) -> None:
    left, right = (spark.sql(f"VALUES ({FAR}, {n})") for n in (1, 2))
    found = frames_difference(left, right, 1)
    assert [row["col3"] for row in (*found.left_only, *found.right_only)] == [1, 2]
    assert "12000-01-01" in found.left_only[0]["col1"]


def test_rows_that_are_nearly_equal_are_not_shown_beside_one_that_differs() -> None:
    left = pa.table({"k": range(20), "x": [n + 0.1 for n in range(20)]})
    right = pa.table(
        {"k": range(21), "x": [(n + 0.1) * (1 + 1e-13) + (n == 9) for n in range(20)] + [7.0]}
    )
    found = difference(left, right)
    assert [row["k"] for row in found.left_only] == [9]
    assert {row["k"] for row in found.right_only} == {9, 20}


def test_tables_are_compared_as_frames_are(spark: SparkSession) -> None:
    left, right = unequal(spark)
    assert difference(left.toArrow(), right.toArrow()) == frames_difference(left, right, 1)


def test_five_rows_of_many_are_shown(spark: SparkSession) -> None:
    found = frames_difference(spark.range(100), spark.range(0), 3)
    assert found == Difference(100, 0, found.left_only, ())
    assert len(found.left_only) == SHOWN_ROWS


def test_columns_are_compared_by_position_in_the_type_of_the_left_side(spark: SparkSession) -> None:
    found = frames_difference(
        spark.sql("SELECT 1L AS a, 2 AS b"), spark.sql("SELECT 1 AS b, 2L AS a"), 2
    )
    assert found.equal


CHILD = """
import sys
from pyspark.sql import SparkSession
import eddyline as el

limited = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = limited.config("spark.driver.maxResultSize", "2m").getOrCreate()
engine = el.Engine(sys.argv[1], spark)
engine.table("t", "k BIGINT").insert(spark.range(1000).toDF("k"))
engine.view("v", "SELECT k, n, repeat(sha1(string(k * n)), 4) AS s FROM t LATERAL VIEW explode(sequence(1, 100)) AS n")
engine.advance()
try:
    engine.snapshot("v").toArrow()
except Exception as error:
    print("too large:", "maxResultSize" in str(error))
report = engine.verify()
print("equal:", report.equal, report.views["v"].left_rows, report.views["v"].right_rows)
"""


@pytest.mark.slow
def test_rows_stay_in_the_tasks(tmp_path: Path) -> None:
    """A view of 15 MB is verified where the driver takes 2 MB."""
    command = [sys.executable, "-c", CHILD, str(tmp_path / "storage")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["too large: True", "equal: True 100000 100000"], done.stderr
