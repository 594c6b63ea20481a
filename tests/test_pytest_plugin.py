"""The fixtures that `pytest_eddyline` gives to users' tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyspark.sql.classic.dataframe  # noqa: F401  # or pytester would forget it, and later tests load another
import pytest

pytestmark = pytest.mark.spark
pytest_plugins = ["pytester"]

USERS_TESTS = """
import datetime

def test_rows_and_dicts(live):
    orders = live.table("orders", [(1, "tea", 2.5), (2, "tea", 0.1)], "id INT, item STRING, price DOUBLE", ["id"])
    live.view("counts", "SELECT item, count(*) AS n, sum(price) AS total FROM orders GROUP BY item")
    live.assert_live("counts", [{"item": "tea", "n": 2, "total": 2.6}])
    orders.delete([(2, None, None)])
    live.assert_live("counts", [("tea", 1, 2.5)])
    live.assert_live("orders", [(1, "tea", 2.5)])

def test_inferred_columns_and_a_dataframe(live, eddyline_spark):
    live.table("days", [{"day": datetime.date(2026, 1, 31), "n": 3}])
    live.view("w", "SELECT month(day) AS month, sum(n) AS n FROM days GROUP BY 1")
    live.assert_live("w", eddyline_spark.sql("SELECT 1 AS month, 3L AS n"))

def test_a_null_struct_whose_fields_have_no_nulls(live):
    live.table("t", [("a",), ("b",)], "k STRING")
    live.view("first", "SELECT k, (SELECT max(struct(1L AS one)) FROM t AS o WHERE o.k < t.k) AS o FROM t")
    live.assert_live("first", [("a", None), ("b", (1,))])

def test_wrong(live):
    live.table("t", [("a",)], "k STRING")
    live.view("n", "SELECT k, count(*) AS n FROM t GROUP BY k")
    live.assert_live("n", [("a", 2)])
"""


def test_users_write_few_lines(pytester: pytest.Pytester) -> None:
    """Also the tests that the page on testing shows."""
    page = Path(__file__).parents[1].joinpath("docs/testing.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    pytester.makepyfile(USERS_TESTS, test_page="\n".join(shown))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*view n has 1 rows, expected are 1",
            "*only in n: *'a'*1*",
            "*only expected: *'a'*2*",
        ]
    )


def test_the_plugin_imports_no_spark() -> None:
    """pytest loads it in every project."""
    code = "import sys, pytest_eddyline; assert not {'pyspark', 'eddyline'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pytest_finds_the_plugin() -> None:
    from importlib.metadata import entry_points

    assert [one.value for one in entry_points(group="pytest11", name="eddyline")] == [
        "pytest_eddyline"
    ]
