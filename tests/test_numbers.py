"""Sums at the ends of their ranges equal those of offline Spark, and are right again once rows are deleted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.spark.session import cloned, local_session

pytestmark = pytest.mark.spark

ANSI = "spark.sql.ansi.enabled"
MOST, LEAST = 2**63 - 1, -(2**63)
INTEGERS = "k STRING, b BIGINT, i INT, s SMALLINT, y TINYINT"
SUMS = (
    "SELECT k, sum(b) AS sb, sum(DISTINCT b) AS db, sum(i) AS si, sum(s) AS ss, sum(y) AS sy,"
    " avg(y) AS ay, count(b) AS n FROM t GROUP BY k"
)
TRIED = "SELECT k, try_sum(b) AS tb, try_avg(b) AS ab, try_sum(i) AS ti FROM t GROUP BY k"


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


@pytest.fixture(params=["true", "false"], ids=["ansi", "legacy"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    return cloned(spark, **{ANSI: request.param})


@pytest.fixture
def engine(tmp_path: Path, session: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), session) as made:
        yield made


def is_ansi(session: SparkSession) -> bool:
    return session.conf.get(ANSI) == "true"


def assert_equal_offline(engine: el.Engine) -> None:
    engine.advance()
    report = engine.verify()
    assert report, str(report)


# -- integers ----------------------------------------------------------------------------------


def test_sums_of_integers_within_the_range_equal_offline_whatever_an_epoch_adds(
    engine: el.Engine,
) -> None:
    """The sum of an epoch's changes may be beyond the range, and so may a negated value."""
    table = engine.table("t", INTEGERS)
    engine.view("v", SUMS)
    engine.view("tried", TRIED)
    engine.view(
        "total", "SELECT sum(b) AS s, sum(i) FILTER (WHERE s > 1) AS i FROM t WHERE k = 'down'"
    )
    engine.view("average", "SELECT k, avg(b) AS ab FROM t WHERE k <> 'down' GROUP BY k")
    engine.view("mixed", "SELECT k, sum(b) AS s, stddev(cast(y AS DOUBLE)) AS d FROM t GROUP BY k")
    half = 2**62
    table.insert([
        ("down", half, 1, 1, 1), ("down", half - 1, 2, 2, 2), ("down", LEAST, 3, 3, 3),
        ("least", LEAST, -(2**31), -(2**15), -128), ("least", 0, 2**31 - 1, 2**15 - 1, 127),
        ("most", MOST, None, None, None), ("none", None, None, None, None),
    ])  # fmt: skip
    assert_equal_offline(engine)
    engine.execute("DELETE FROM t WHERE k = 'down' AND b > 0")  # adds less than the least BIGINT
    assert_equal_offline(engine)
    engine.execute("DELETE FROM t WHERE b = -9223372036854775808 OR k = 'most'")
    table.insert([("most", -MOST, 5, 5, 5), ("least", MOST, 5, 5, 5)])
    assert_equal_offline(engine)
    engine.execute("DELETE FROM t")
    assert_equal_offline(engine)


def test_a_sum_beyond_bigint_is_as_offline_and_right_again_without_the_rows(
    engine: el.Engine, session: SparkSession
) -> None:
    table = engine.table("t", INTEGERS)
    engine.view("v", SUMS)
    engine.view("tried", TRIED)
    table.insert([("a", MOST, 1, 1, 1), ("b", LEAST + 2, 1, 1, 1), ("c", 5, 1, 1, 1)])
    assert_equal_offline(engine)
    offending = [("a", 1, 1, 1, 1), ("b", -3, 1, 1, 1), ("c", MOST - 4, 1, 1, 1)]
    table.insert(offending)
    for key, value, *_ in offending:
        if is_ansi(session):
            engine.advance()
            with pytest.raises(el.EngineError, match="ARITHMETIC_OVERFLOW") as caught:
                engine.snapshot("v")
            assert caught.value.condition == "VIEW_FAILING"
            assert re.search(r"\(operator aggregate, group \['[abc]'\]\)", str(caught.value))
        else:
            assert_equal_offline(engine)
        engine.execute(f"DELETE FROM t WHERE k = '{key}' AND b = {value}")
    assert_equal_offline(engine)
    found = engine.sql("SELECT sb FROM v ORDER BY k").collect()
    assert [row.sb for row in found] == [MOST, LEAST + 2, 5]


# -- doubles -----------------------------------------------------------------------------------

MEASURED = (
    "SELECT k, sum(x) AS s, avg(x) AS a, try_sum(x) AS t, sum(f) AS sf, avg(f) AS af, count(x) AS n,"
    " sum(DISTINCT x) AS d, sum(x) FILTER (WHERE f > 0) AS fx FROM t GROUP BY k"
)
SPREAD = (
    "SELECT k, var_pop(x) AS vp, var_samp(x) AS vs, stddev(x) AS sd, stddev_pop(x) AS sp FROM t"
    " GROUP BY k"
)
HUGE, INFINITE, NAN = 1.5e308, math.inf, math.nan
REMAINS = [1.0, 3.0, 4.5]
LARGE = {
    "huge": [HUGE],
    "narrow": [0.6e154, 0.5e154, 0.6e154],
    "overflow": [HUGE, HUGE],
    "negative": [-HUGE, -HUGE, -1e308],
    "infinite": [INFINITE],
    "both": [INFINITE, -INFINITE],
    "nan": [NAN, HUGE],
    "ladder": [1e300, 1e280, 1e260, 1e200, 1e100, 1e50, 1e25],
    "threshold": [2.0**64, 2.0**80, 2.0**80 * (1 - 2.0**-53), 2.0**1023, 2.0**64 + 2.0**12],
    "most": [1.7976931348623157e308, 1e292],
    "tiny": [5e-324, 1e-310],
}


@pytest.mark.parametrize("session", ["true"], indirect=True)
def test_sums_of_doubles_pass_the_range_and_come_back(engine: el.Engine) -> None:
    table = engine.table("t", "k STRING, part INT, x DOUBLE, f FLOAT")
    engine.view("v", MEASURED)
    engine.view("spread", SPREAD)
    engine.view("total", "SELECT sum(x) AS s, var_pop(x) AS v FROM t WHERE k IN ('huge', 'tiny')")
    remaining = [(key, 0, value, value) for key in LARGE for value in REMAINS]
    large = [(k, n, v, REMAINS[n % 3]) for k, own in LARGE.items() for n, v in enumerate(own, 1)]
    table.insert(remaining)
    assert_equal_offline(engine)
    table.insert(large)
    assert_equal_offline(engine)
    engine.execute("DELETE FROM t WHERE part = 1")
    assert_equal_offline(engine)
    table.insert([row for row in large if row[1] == 1])
    engine.execute("DELETE FROM t WHERE part > 1")
    assert_equal_offline(engine)
    engine.execute("DELETE FROM t WHERE part > 0")
    assert_equal_offline(engine)
    sums = {tuple(row) for row in engine.sql("SELECT DISTINCT s, a, d FROM v").collect()}
    assert sums == {(8.5, 8.5 / 3, 8.5)}
    engine.execute("DELETE FROM t")
    assert_equal_offline(engine)
