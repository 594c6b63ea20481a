"""Pieces of plans whose columns stay in Arrow give what Spark gives when it evaluates them whole."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import eddyline.runtime.short_lane as short_lane
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.lanes import Piece
from eddyline.plan.passing import Constant, Split, split
from eddyline.spark.driver import Driver
from eddyline.spark.session import active, epoch_session

pytestmark = pytest.mark.spark

COLUMNS = (
    "b BOOLEAN, i INT, l BIGINT, d DOUBLE, c DECIMAL(20,3), t STRING, x BINARY, a DATE, m TIMESTAMP,"
    " r ARRAY<INT>, q STRUCT<u: INT, v: STRING>, w BIGINT"
)
NAMES = [part.split()[0] for part in ["b", "i", "l", "d", "c", "t", "x", "a", "m", "r", "q", "w"]]
COMPUTED = ("i + 1", "xxhash64(l, t)", "upper(t)", "i / 2", "q.u", "coalesce(i, 0)", "get(r, 0)", "-0D", "'x'", "1.5",
            "cast(null as map<string, int>)", "array(i, i)", "cast(1 AS BIGINT)", "pmod(hash(l), 3)")  # fmt: skip
PASSED = ("0", "true", "7L", "cast(null AS STRING)", "cast(null AS struct<u: int>)", "null")
CONDITIONS = ("i IS NOT NULL", "i > 0", "t LIKE 'a%' OR b", "false", "true", "l IS NULL", "q.u = 1", "l <> 0 AND 10 / l > 1")  # fmt: skip


class Pieces:
    """Pieces over one leaf, evaluated in both ways.

    Attributes:
        rows: the rows of the leaf.
    """

    def __init__(self, spark: SparkSession) -> None:
        session = epoch_session(spark, 2, "Europe/Berlin", {})
        self.driver, self.catalyst = Driver(session), Catalyst(session)
        self.session = session
        self.catalyst.keep_operators()
        schema = StructType.fromDDL(COLUMNS)
        self.leaf = self.catalyst.placeholder(
            self.catalyst.plan(self.catalyst.relation(schema)).output()
        )
        chance = random.Random(5)
        self.rows = pa.Table.from_pylist(
            [_row(chance) for _ in range(40)], self.driver.schema(schema)
        )

    def frame(self) -> DataFrame:
        return self.catalyst.frame(self.leaf)

    def piece(self, frame: DataFrame) -> Piece:
        return Piece(0, self.leaf, self.catalyst.plan(frame), frame.schema)

    def split(self, frame: DataFrame) -> Split:
        found = split(self.catalyst, self.piece(frame))
        assert found is not None
        return found

    def both(self, frame: DataFrame, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The piece's output in the short lane, and as Spark evaluates all of it."""
        piece = self.piece(frame)
        with active(self.session):
            made = short_lane._piece(self.driver, self.catalyst, piece)
            assert isinstance(made.plan, short_lane._Passing)
            whole, _ = short_lane._driver_plan(
                self.driver, self.catalyst, piece.plan, piece.placeholder, piece.schema
            )
        with self.driver.context() as context:
            return made.over(rows, context), whole(rows, context)


def _row(chance: random.Random) -> dict[str, Any]:
    row = {
        "b": chance.random() < 0.5,
        "i": chance.randrange(-3, 4),
        "l": chance.choice([0, 1, -(2**63), 5]),
        "d": chance.choice([0.0, -0.0, float("nan"), 1.5]),
        "c": Decimal(chance.randrange(10**6)).scaleb(-3),
        "t": chance.choice(["", "ä", "abc", "a\0"]),
        "x": chance.choice([b"", b"\xff"]),
        "a": dt.date(2026, 3, chance.randrange(1, 28)),
        "m": dt.datetime(2026, 3, 29, chance.randrange(5), tzinfo=dt.UTC),
        "r": chance.choice([[], [1, None], [3]]),
        "q": {"u": chance.choice([1, None]), "v": chance.choice(["v", None])},
        "w": chance.choice([1, -1]),
    }
    return {name: None if chance.random() < 0.2 else value for name, value in row.items()}


@pytest.fixture(scope="module")
def pieces(spark: SparkSession) -> Pieces:
    return Pieces(spark)


LISTS = st.lists(st.sampled_from([*NAMES, *COMPUTED, *PASSED]), min_size=1, max_size=6)


@given(LISTS, st.lists(st.sampled_from(CONDITIONS), max_size=2), st.integers(0, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_a_piece_gives_what_spark_gives(
    pieces: Pieces, first: list[str], conditions: list[str], rows: int, data: st.DataObject
) -> None:
    frame = pieces.frame()
    for condition in conditions[:1]:
        frame = frame.where(condition)
    frame = frame.selectExpr(
        *(f"{one} AS o{at}" for at, one in enumerate(first)), "i", "l", "t", "b", "q"
    )
    for condition in conditions[1:]:
        frame = frame.where(condition)
    if data.draw(st.booleans()):  # one more projection, of columns that the first has computed
        chosen = data.draw(
            st.lists(st.sampled_from([*frame.columns, "i + 2", "8L"]), min_size=1, max_size=5)
        )
        frame = frame.selectExpr(*(f"{one} AS p{at}" for at, one in enumerate(chosen)))
    found, wanted = pieces.both(frame, pieces.rows[:rows])
    assert found.schema == wanted.schema
    assert str(found.to_pylist()) == str(wanted.to_pylist())  # NaN isn't equal to itself


def test_spark_gets_only_what_it_computes_with(pieces: Pieces) -> None:
    frame = pieces.frame().selectExpr(
        "xxhash64(i) AS h", "0 AS side", "t", "d AS e", "cast(null AS STRING) AS z", "w"
    )
    found = pieces.split(frame)
    assert found.needed == (NAMES.index("i"),)
    assert found.passed == (None, Constant(0), 5, 3, Constant(None), 11)
    assert not found.filtered
    found = pieces.split(frame.where("t IS NOT NULL").select("e"))
    assert (found.needed, found.passed, found.filtered) == ((5,), (3,), True)
    found = pieces.split(frame.select("w", "side"))
    assert (found.plan, found.needed, found.passed) == (None, (), (11, Constant(0)))


def test_what_fails_in_a_row_that_a_filter_drops_fails_nowhere(pieces: Pieces) -> None:
    frame = pieces.frame().where("i <> 0").selectExpr("10 / i AS q", "t")
    found, wanted = pieces.both(frame, pieces.rows)
    assert found.equals(wanted)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        pieces.both(pieces.frame().selectExpr("10 / i AS q", "t"), pieces.rows)


def test_other_pieces_are_evaluated_whole(pieces: Pieces) -> None:
    for frame in (
        pieces.frame().groupBy("i").count(),
        pieces.frame().selectExpr("explode(r)"),
        pieces.frame().where("i IN (SELECT 1)"),
        pieces.frame().distinct(),
    ):
        assert split(pieces.catalyst, pieces.piece(frame)) is None
