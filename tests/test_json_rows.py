"""Rows as JSON: each type as Spark's `to_json` writes it, and any nesting, slice and order."""

from __future__ import annotations

import datetime as dt
import doctest
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, VariantType

import eddyline.sink.json_rows
from eddyline.errors import EngineError
from eddyline.sink.base import Target
from eddyline.sink.json_rows import check_json, json_rows, json_values

HALF_PAST = dt.datetime(2026, 7, 1, 1, 30, tzinfo=dt.UTC)
MICROS = pa.timestamp("us", "Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int8(), -5, "-5"),
        (pa.int64(), 2**63 - 1, "9223372036854775807"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), float("nan"), '"NaN"'),
        (pa.float64(), float("-inf"), '"-Infinity"'),
        (pa.float32(), 0.1, "0.1"),
        (pa.decimal128(38, 10), Decimal("1.5"), "1.5000000000"),
        (pa.decimal128(38, 0), Decimal(10**37), str(10**37)),
        (pa.string(), 'a"\\\n\x00é😀/\x7f', '"a\\"\\\\\\n\\u0000é😀/\x7f"'),
        (pa.string(), '{"v":}}', '"{\\"v\\":}}"'),
        (pa.binary(), b"ab", '"YWI="'),
        (pa.date32(), dt.date(1, 2, 3), '"0001-02-03"'),
        (pa.timestamp("us", "UTC"), HALF_PAST, '"2026-07-01T01:30:00.000Z"'),
        (MICROS, HALF_PAST, '"2026-07-01T03:30:00.000+02:00"'),
        (MICROS, HALF_PAST.replace(microsecond=7), '"2026-07-01T03:30:00.000007+02:00"'),
        (pa.timestamp("us"), dt.datetime(1960, 1, 1, 0, 0, 0, 120000), '"1960-01-01T00:00:00.120"'),
        (pa.duration("us"), dt.timedelta(days=1, seconds=5), '"P1DT5S"'),
        (pa.time64("us"), dt.time(1, 2, 3, 5), '"01:02:03.000005"'),
        (pa.list_(pa.list_(pa.string())), [["],["], None, []], '[["],["],null,[]]'),
        (pa.struct([('a"', pa.int32()), ("b", pa.null())]), {'a"': 1}, '{"a\\"":1,"b":null}'),
        (pa.struct([]), {}, "{}"),
        (pa.map_(pa.string(), pa.int32()), [('"', 1), ("b", None)], '{"\\"":1,"b":null}'),
        (pa.map_(pa.int32(), pa.bool_()), [(1, True)], '{"1":true}'),
        (
            pa.map_(pa.date32(), pa.list_(pa.int8())),
            [(dt.date(2026, 1, 1), [])],
            '{"2026-01-01":[]}',
        ),
    ],
)
def test_each_type(kind: pa.DataType, value: Any, text: str) -> None:
    json.loads(text)
    assert json_values(pa.array([None, value, None], kind)).to_list() == ["null", text, "null"]
    assert json_values(pa.chunked_array([[value], [], [None]], kind)).to_list() == [text, "null"]
    nested = pa.array([{"x": [value]}, None, {"x": None}], pa.struct([("x", pa.list_(kind))]))
    assert json_values(nested).to_list() == [f'{{"x":[{text}]}}', "null", '{"x":null}']
    assert json_values(pa.array([], kind)).to_list() == []


def test_slices_and_orders() -> None:
    chance = random.Random(1)

    def cell() -> Any:
        return chance.choice([None, {"m": [("k", [chance.choice([None, "x", '"'])])], "n": [1, 2]}])

    kind = pa.struct(
        [("m", pa.map_(pa.string(), pa.list_(pa.string()))), ("n", pa.list_(pa.int32()))]
    )
    rows = pa.table({"c": pa.array([cell() for _ in range(50)], kind), "i": range(50)})
    whole = json_rows(rows).to_list()
    for text, i in zip(whole, range(50), strict=True):
        assert json.loads(text)["i"] == i
    assert json_rows(rows.slice(7, 20)).to_list() == whole[7:27]
    places = [chance.randrange(50) for _ in range(30)]
    assert json_rows(rows.take(places)).to_list() == [whole[i] for i in places]
    parts = pa.concat_tables([rows.slice(40), rows.slice(3, 0), rows.slice(0, 5)])
    assert json_rows(parts).to_list() == [*whole[40:], *whole[:5]]
    assert json_rows(rows.select([])).to_list() == ["{}"] * 50
    assert json_rows(rows.slice(0, 0)).to_list() == []


def test_a_type_without_a_form_is_refused() -> None:
    parts = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    columns = StructType([StructField("c", VariantType())])
    with pytest.raises(EngineError, match="column c") as error:
        check_json(Target("a", "a", columns, pa.schema([("c", parts)])), "kafka")
    assert error.value.condition == "BAD_OPTION"


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(eddyline.sink.json_rows).failed == 0
