"""Sums at the ends of their ranges equal those of offline Spark, and are right again once rows are deleted."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.quick import quick_answer
from eddyline.changes import Epoch
from eddyline.spark.session import cloned
from eddyline.state.manifest import last_committed, write_manifest
from eddyline.state.runs import read_run, write_run
from eddyline.storage.files import Files

pytestmark = pytest.mark.spark

ANSI = "spark.sql.ansi.enabled"
MOST, LEAST = 2**63 - 1, -(2**63)
INTEGERS = "k STRING, b BIGINT, i INT, s SMALLINT, y TINYINT"
SUMS = (
    "SELECT k, sum(b) AS sb, sum(DISTINCT b) AS db, sum(i) AS si, sum(s) AS ss, sum(y) AS sy,"
    " avg(y) AS ay, count(b) AS n FROM t GROUP BY k"
)
TRIED = "SELECT k, try_sum(b) AS tb, try_avg(b) AS ab, try_sum(i) AS ti FROM t GROUP BY k"


@pytest.fixture(params=["true", "false"], ids=["ansi", "legacy"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    return cloned(spark, **{ANSI: request.param})


legacy_is_slow = pytest.mark.parametrize(
    "session",
    [pytest.param("true", id="ansi"), pytest.param("false", id="legacy", marks=pytest.mark.slow)],
    indirect=True,
)


@pytest.fixture
def engine(tmp_path: Path, session: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), session) as made:
        yield made


def is_ansi(session: SparkSession) -> bool:
    return session.conf.get(ANSI) == "true"


def assert_equal_offline(engine: el.Engine) -> None:
    engine.advance()
    report = engine.verify()
    assert report.equal, str(
        report
    )  # a view whose sums are too large is set aside, where offline SQL fails


# -- integers ----------------------------------------------------------------------------------


@legacy_is_slow
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


# -- decimals ----------------------------------------------------------------------------------


def test_sums_of_decimals_that_overflow_are_as_offline_and_right_again(
    engine: el.Engine, session: SparkSession
) -> None:
    table = engine.table("t", "k STRING, d DECIMAL(38,0), e DECIMAL(27,9)")
    engine.view("v", "SELECT k, sum(d) AS s, avg(e) AS a, sum(e) AS se FROM t GROUP BY k")
    engine.view(
        "tried", "SELECT k, try_sum(d) AS s, try_avg(d) AS a, count(d) AS n FROM t GROUP BY k"
    )
    most, least = Decimal("9" * 38), Decimal("1E-9")
    table.insert(
        [("a", most, least), ("b", most.copy_negate(), -(Decimal(10) ** 17)), ("c", None, None)]
    )
    assert_equal_offline(engine)
    table.insert([("a", Decimal(1), least), ("b", Decimal(-1), Decimal(10) ** 17)])
    if is_ansi(session):
        engine.advance()
        with pytest.raises(el.EngineError, match=r"NUMERIC_VALUE_OUT_OF_RANGE|OVERFLOW") as caught:
            engine.snapshot("v")
        assert caught.value.condition == "VIEW_FAILING"
    else:
        assert_equal_offline(engine)
    engine.execute("DELETE FROM t WHERE d IN (1, -1)")
    assert_equal_offline(engine)


@legacy_is_slow
def test_wide_decimals_of_both_signs_add_up_exactly(
    engine: el.Engine, session: SparkSession
) -> None:
    table = engine.table("t", "id INT, d DECIMAL(38,18), e DECIMAL(38,0)")
    engine.view("v", "SELECT sum(d) AS s, avg(d) AS a, sum(e) AS se, avg(e) AS ae FROM t")
    engine.view("h", "SELECT id % 2 AS k, sum(d) AS s, sum(e) AS se FROM t GROUP BY id % 2")
    assert "linear" in engine.explain("v")
    most, least = Decimal("9" * 20 + "." + "9" * 18), Decimal("1E-18")
    big = Decimal("9" * 38)
    for rows in (
        [(1, most, big), (2, most.copy_negate(), big.copy_negate())],
        [(3, least, Decimal(1)), (4, -least, Decimal(-1))],
        [(5, Decimal(100) - least, Decimal(10) ** 20), (6, least - 100, -(Decimal(10) ** 20))],
    ):
        # one row after the other, so that no part of a sum overflows offline
        table.insert(rows[1:])
        table.insert(rows[:1])
    engine.execute("DELETE FROM t WHERE id IN (1, 4)")
    assert_equal_offline(engine)
    for gone in (6, 3, 2, 5):
        engine.execute(f"DELETE FROM t WHERE id = {gone}")
        assert_equal_offline(engine)


def test_a_sum_of_wide_decimals_at_the_end_of_its_range_is_exact(engine: el.Engine) -> None:
    """Offline the order of the rows decides whether a part of this sum overflows."""
    table = engine.table("t", "sign INT, d DECIMAL(38,0)")
    engine.view("v", "SELECT sign, sum(d) AS s FROM t GROUP BY sign")
    half, most = Decimal("5E+37"), Decimal("9" * 38)
    table.insert([(1, half), (1, half), (1, Decimal(-1))])
    table.insert([(-1, half.copy_negate()), (-1, half.copy_negate()), (-1, Decimal(1))])
    engine.advance()
    found = {row.sign: row.s for row in engine.snapshot("v").collect()}
    assert found == {1: most, -1: most.copy_negate()}


# -- random changes ----------------------------------------------------------------------------

COLUMNS = (
    "id INT, k INT, b BIGINT, i INT, s SMALLINT, x DOUBLE, f FLOAT, y DOUBLE, d DECIMAL(27,3),"
    " d18 DECIMAL(38,18), d0 DECIMAL(38,0), d6 DECIMAL(32,6), d27 DECIMAL(29,27), d37 DECIMAL(38,37)"
)
EVERY_SUM = {
    "integers": "SELECT k, sum(b) AS b, sum(i) AS i, avg(i) AS ai, sum(s) AS s, avg(s) AS sa,"
    " sum(DISTINCT b) AS db, count(*) AS n, count(b) AS nb, bit_xor(b) AS xb FROM t GROUP BY k",
    "doubles": "SELECT k, sum(x) AS x, avg(x) AS ax, sum(f) AS f, avg(f) AS af, sum(DISTINCT x) AS dx,"
    " sum(x) FILTER (WHERE id % 2 = 0) AS fx FROM t GROUP BY k",
    "spread": "SELECT k, var_pop(y) AS vp, var_samp(y) AS vs, stddev_pop(y) AS sp, stddev(y) AS sd"
    " FROM t GROUP BY k",
    "decimals": "SELECT k, sum(d) AS d, avg(d) AS ad FROM t GROUP BY k",
    "wide": "SELECT k, sum(d18) AS d18, avg(d18) AS a18, sum(d0) AS d0, avg(d0) AS a0, sum(d6) AS d6,"
    " avg(d6) AS a6, sum(d27) AS d27, avg(d27) AS a27, sum(d37) AS d37 FROM t GROUP BY k",
    "totals": "SELECT sum(b) AS b, sum(i) AS i, sum(d) AS d, sum(d0 % 10) AS w, count(*) AS n FROM t",
}
POSITIVE = [
    5e-324,
    1e-300,
    0.1,
    1.0,
    3e7,
    2.0**64,
    1e25,
    1e200,
    1e300,
    1.5e308,
    INFINITE,
    NAN,
    None,
]


WIDE = [(38, 18), (38, 0), (32, 6), (29, 27), (38, 37)]


def wide_digits(precision: int) -> st.SearchStrategy[str | None]:
    """Return digits of a decimal: the largest, half of it, the smallest, a carry, any, or null."""
    whole = ["9" * precision, "5" + "0" * (precision - 1), "1", "0", "1" + "0" * 20, "9" * 20, None]
    return st.sampled_from(whole) | st.text("0123456789", min_size=1, max_size=precision)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[Any, ...]], list[int]]]:
    """Epochs of many groups: the rows to insert, the ids of the rows to delete.

    Doubles and wide decimals of one group have one sign, because offline the order decides what an
    Infinity and a -Infinity on the way give, and whether a part of a sum overflows. Large values of `y` differ: offline their variance is infinite.
    """
    held: list[int] = []
    epochs, number = [], 0
    for _ in range(draw(st.integers(2, 4))):
        rows = []
        for _ in range(draw(st.integers(1, 40))):
            number, k = number + 1, draw(st.integers(0, 12))
            double = draw(st.sampled_from(POSITIVE))
            spread = draw(st.sampled_from([0.5, 3.0, -70.25, 1e6, NAN, None, 1e160 * number, 1e10]))
            sign = -1 if k % 2 else 1
            rows.append((
                number, k, draw(st.sampled_from([MOST, LEAST, 0, -1, 2**32, None])),
                draw(st.sampled_from([2**31 - 1, -(2**31), 7, None])),
                draw(st.sampled_from([2**15 - 1, -(2**15), None])),
                None if double is None else sign * double,
                sign * draw(st.sampled_from([3.4028234663852886e38, 1e-45, 0.5, INFINITE])), spread,
                draw(st.sampled_from([None, Decimal(10) ** 24 - 1, Decimal("-0.001"), Decimal(7)])),
                *(
                    None if digits is None else Decimal((int(sign < 0), tuple(map(int, digits)), -scale))
                    for precision, scale in WIDE
                    for digits in [draw(wide_digits(precision))]
                ),
            ))  # fmt: skip
        gone = draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        held = [one for one in held if one not in gone] + [row[0] for row in rows]
        epochs.append((rows, gone))
    return [*epochs, ([], held[:-1]), ([], held[-1:])]


RANDOM = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
)


def compare(spark: SparkSession, epochs: list[tuple[list[tuple[Any, ...]], list[int]]]) -> None:
    session = cloned(spark, **{ANSI: "false"})
    with tempfile.TemporaryDirectory() as folder, el.Engine(f"{folder}/s", session) as engine:
        table = engine.table("t", COLUMNS)
        for name, query in EVERY_SUM.items():
            engine.view(name, query)
        for rows, gone in epochs:
            if rows:
                table.insert(rows)
            if gone:
                engine.execute(f"DELETE FROM t WHERE id IN ({', '.join(map(str, gone))})")
            assert_equal_offline(engine)


@settings(RANDOM, max_examples=1)
# Hypothesis begins with the simplest example, which has one row an epoch
@given(epochs=histories().filter(lambda epochs: len(epochs[0][0]) > 10))
def test_sums_of_extreme_values_equal_offline(
    spark: SparkSession, epochs: list[tuple[list[tuple[Any, ...]], list[int]]]
) -> None:
    compare(spark, epochs)


@pytest.mark.slow
@settings(RANDOM, max_examples=40)
@given(epochs=histories())
def test_sums_of_many_extreme_values_equal_offline(
    spark: SparkSession, epochs: list[tuple[list[tuple[Any, ...]], list[int]]]
) -> None:
    compare(spark, epochs)


# -- percentiles ---------------------------------------------------------------------------------

PERCENTILES = (
    "median({0})",
    "percentile({0}, 0.9)",
    "percentile({0}, array(0.2, 0.35))",
    "percentile_cont(0.25) WITHIN GROUP (ORDER BY {0} DESC)",
)


@pytest.mark.parametrize("native", [1, 0])
def test_percentiles_are_those_of_spark_to_the_last_bit(
    tmp_path: Path, spark: SparkSession, native: int
) -> None:
    """They are computed from sorted numbers: the order of the rows, by which sums of doubles differ, has no part in it."""
    random = Random(1)

    def row(key: int) -> tuple[Any, ...]:
        cents, big = random.randrange(-2000, 2000), random.choice((random.random(), 1e308, -1e308))
        extreme = random.choice((big, math.inf, -math.inf, -0.0, 0.0, math.nan))
        exact = Decimal(random.randrange(10**14)).scaleb(-6)
        return key, key % 150, cents / 100, extreme, cents, 2**53 + cents, exact

    columns = "id INT, g INT, d DOUBLE, x DOUBLE, i INT, b BIGINT, e DECIMAL(15,6)"
    queries = {}
    for number, call in enumerate(PERCENTILES):  # the last has no fast rule: in a view of its own
        aggregates = (f"{call.format(column)} AS {column}" for column in "dxibe")
        queries[f"v{number}"] = f"SELECT g, {', '.join(aggregates)} FROM t GROUP BY g"
    queries["floats"] = "SELECT g, percentile(cast(d AS FLOAT), 0.3) AS p FROM t GROUP BY g"
    rows = {key: row(key) for key in range(600)}
    with el.Engine(str(tmp_path / "storage"), spark, el.Options(native_rules=native)) as engine:
        table = engine.table("t", columns, primary_key=["id"])
        for name, query in queries.items():
            engine.view(name, query)
        for changed in (rows, {key: row(key) for key in range(0, 600, 3)}):
            rows |= changed
            table.insert(list(changed.values()))
            engine.advance()
            spark.createDataFrame(list(rows.values()), columns).createOrReplaceTempView("t")
            for name, query in queries.items():
                found = sorted(map(repr, engine.snapshot(name).collect()))
                assert found == sorted(map(repr, spark.sql(query).collect())), name


# -- negative weights --------------------------------------------------------------------------


def damage(storage: str) -> None:
    """Commit an epoch after which the result of `v` holds one of its rows less than zero times."""
    files = Files(storage)
    last = last_committed(files)
    folder = f"epochs/{last.epoch + 1:012d}-damaged"
    files.make_folder(folder)
    [name] = [name for name in last.arrangements if name.startswith("v") and name.endswith("/rows")]
    bucket, runs = next((bucket, runs) for bucket, runs in last.arrangements[name].items() if runs)
    rows = read_run(files, runs[-1]).slice(0, 1)
    place = rows.column_names.index("w")
    rows = rows.set_column(place, "w", pc.multiply(rows["w"], pa.scalar(-2)))
    run = write_run(files, f"{folder}/run.arrow", rows)
    changed = {**last.arrangements[name], bucket: (*runs, run)}
    arrangements = {**last.arrangements, name: changed}
    write_manifest(files, replace(last, epoch=Epoch(last.epoch + 1), arrangements=arrangements))


def test_no_reader_hides_a_row_that_is_held_less_than_zero_times(
    tmp_path: Path, spark: SparkSession
) -> None:
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark) as engine:
        engine.table("t", "k STRING, n INT").insert([("a", 1), ("b", 2)])
        engine.view("v", "SELECT k, n FROM t")
        engine.advance()
    damage(storage)
    with el.Engine(storage, spark) as engine:
        expected = (
            r"(?s)\[NEGATIVE_WEIGHT\] a result holds a row less than zero times \(view v, row \{"
        )
        for read in (
            lambda: engine.snapshot("v").collect(),
            lambda: engine.sql("SELECT count(*) FROM v").collect(),
            lambda: quick_answer(Files(storage), engine.catalog, "SELECT * FROM v"),
        ):
            with pytest.raises((PySparkException, el.StateError), match=expected):
                read()
