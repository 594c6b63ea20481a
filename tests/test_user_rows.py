"""Rows of Python objects: what fits a column is stored as it is, and nothing else is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import TimestampType

from eddyline.errors import DataError
from eddyline.source.user_rows import as_arrow

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("s", pa.struct([("x", pa.list_(pa.struct([("y", pa.int64())])))])),
    ]
)


def stored(column: str, value: Any) -> Any:
    """Return the value that is stored for a value given for one column."""
    rows = as_arrow([{column: value}], SCHEMA, relation="t", zone="UTC")
    return rows[column][0].as_py()


@pytest.mark.parametrize(
    ("column", "value", "wanted"),
    [
        ("i", 2.0, 2),
        ("i", np.int64(3), 3),
        ("i", None, None),
        ("i", pd.NA, None),
        ("t", pd.NaT, None),
        ("d", pd.NaT, None),
        ("f", 1, 1.0),
        ("f", float("inf"), float("inf")),
        ("f", 1e-60, 0.0),
        ("t", datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)),
        ("l", [1, None, 2.0], [1, None, 2]),
        ("l", np.array([1, 2]), [1, 2]),
        ("m", {"k": 1}, [("k", 1)]),
        ("s", {"x": [{"y": 1}, {}, None]}, {"x": [{"y": 1}, {"y": None}, None]}),
        ("s", Row(x=[Row(y=1), None]), {"x": [{"y": 1}, None]}),
        ("m", [("k", 1)], [("k", 1)]),
    ],
)
def test_what_fits_is_stored(column: str, value: Any, wanted: Any) -> None:
    assert stored(column, value) == wanted


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i", 1.9),
        ("i", -2.5),
        ("i", np.float32(1.5)),
        ("i", float("nan")),
        ("i", float("inf")),
        ("i", Fraction(1, 3)),
        ("i", 1 << 40),
        ("f", 1e300),
        ("f", "1"),
        ("t", 1700000000),
        ("t", 1.7e9),
        ("t", np.datetime64("2026-01-31")),
        ("l", [1.7, 2]),
        ("l", [1, pd.NA]),
        ("m", {"k": 1.5}),
        ("s", {"x": [{"y": 0.5}]}),
        ("s", Row(x=[Row(y=0.5)])),
        ("s", Row(x=[Row(y=1, z=2)])),
        ("s", [("x", [{"y": 0.5}])]),
        ("m", [("k", 1.5)]),
    ],
)
def test_what_arrow_would_change_is_refused(column: str, value: Any) -> None:
    with pytest.raises(DataError) as error:
        stored(column, value)
    assert error.value.condition == "WRONG_TYPE"
    assert f"column {column} " in str(error.value)


def test_decimals_of_tables_become_the_nearest_doubles() -> None:
    values = [Decimal(number).scaleb(-2) for number in range(-20_000, 20_000)]
    doubles = pa.schema({"d": pa.float64()})
    for given in (pa.array(values), pa.array(values).dictionary_encode()):
        found = as_arrow(pa.table({"d": given}), doubles, relation="r", zone="UTC")
        assert found["d"].to_pylist() == [float(value) for value in values]
    given = pa.table({"s": [[{"x": value}] for value in values]})
    nested = pa.schema({"s": pa.list_(pa.struct({"x": pa.float64()}))})
    found = as_arrow(given, nested, relation="r", zone="UTC")
    assert found["s"].to_pylist() == [[{"x": float(value)}] for value in values]


def test_a_value_that_is_no_text_is_named() -> None:
    with pytest.raises(DataError, match=r"doesn't fit string: \{'k': 1\} is of the type dict"):
        as_arrow(
            [{"t": None}, {"t": "x"}, {"t": {"k": 1}}],
            pa.schema({"t": pa.string()}),
            relation="r",
            zone="UTC",
        )


def test_unknown_fields_within_lists_are_named() -> None:
    with pytest.raises(DataError, match=r"field z of s\.x"):
        stored("s", {"x": [{"y": 1}, {"z": 1}]})


@pytest.mark.parametrize(
    "local",
    [
        datetime(2026, 1, 31, 12),
        datetime(2026, 7, 31, 12, 0, 0, 123_456),
        datetime(2026, 3, 8, 2, 30),  # clocks went on
        datetime(2026, 11, 1, 1, 30),  # clocks went back
        datetime(1901, 1, 1),
        datetime(9999, 12, 31, 12),
        pd.Timestamp("2026-01-31T12:00"),
    ],
)
def test_a_datetime_without_a_zone_is_in_that_of_the_machine_as_for_pyspark(
    local: Any, be_in: Callable[[str], None]
) -> None:
    be_in("America/New_York")
    moment = pa.timestamp("us", "Europe/Berlin")
    nested = pa.struct([("m", pa.map_(moment, pa.list_(moment)))])
    schema = pa.schema([("t", moment), ("n", nested), ("d", pa.timestamp("us"))])
    forms = {"m": {local: [local, None]}}, Row(m=[(local, (local, None))])
    rows = [(local, nested, local) for nested in forms] + [(None, None, None)]
    found = as_arrow(rows, schema, relation="t", zone="Europe/Berlin")
    micros = TimestampType().toInternal(local)
    assert found["t"].cast(pa.int64()).to_pylist() == [micros, micros, None]
    for struct in found["n"][:2]:
        key, (first, _) = struct["m"].as_py()[0]
        assert [round(one.timestamp() * 1e6) for one in (key, first)] == [micros] * 2
    assert found["d"].to_pylist() == [local, local, None]


def test_times_of_tables_without_a_zone_are_in_that_of_the_session() -> None:
    moment, local = pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")
    given = [datetime(2026, 1, 31, 12), datetime(2026, 10, 25, 2, 30), None]
    zone = ZoneInfo("Europe/Berlin")
    wanted = [one and one.replace(tzinfo=zone) for one in given]
    for rows in (pa.table({"t": pa.array(given, local)}), pd.DataFrame({"t": given})):
        found = as_arrow(rows, pa.schema([("t", moment)]), relation="t", zone="Europe/Berlin")
        assert found["t"].to_pylist() == wanted
    moments = pa.table({"t": pa.array(wanted, pa.timestamp("ms", "UTC"))})
    found = as_arrow(moments, pa.schema([("t", local)]), relation="t", zone="Europe/Berlin")
    assert found["t"].to_pylist() == given


@pytest.mark.parametrize("nested", ["lists", "large_lists", "structs", "maps"])
def test_times_within_values_of_tables_are_in_the_zone_of_the_session(nested: str) -> None:
    def kind_of(one: pa.DataType) -> pa.DataType:
        return {
            "lists": pa.list_(one),
            "large_lists": pa.large_list(pa.list_(one)),
            "structs": pa.struct([("a", pa.int64()), ("t", one)]),
            "maps": pa.map_(one, pa.struct([("t", pa.list_(one))])),
        }[nested]

    def values(one: datetime) -> list[Any]:
        value: Any = {
            "lists": [one, None],
            "large_lists": [[one], None, []],
            "structs": {"a": 1, "t": one},
            "maps": [(one, {"t": [None, one]})],
        }[nested]
        return [None, value, value, None]

    moment, local = pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")
    there, here = (
        datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 1, 31, 12),
    )
    for given, wanted, one, other in ((local, moment, here, there), (moment, local, there, here)):
        table = pa.table({"v": pa.array(values(one), kind_of(given))}).slice(1)
        kind = kind_of(wanted) if nested != "large_lists" else pa.list_(pa.list_(wanted))
        found = as_arrow(table, pa.schema([("v", kind)]), relation="t", zone="Europe/Berlin")
        assert found["v"].to_pylist() == values(other)[1:]


def test_coded_times_of_tables_are_in_the_zone_of_the_session() -> None:
    local, moment = pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")
    table = pa.table({"t": pa.array([datetime(2026, 1, 31, 12)], local).dictionary_encode()})
    found = as_arrow(table, pa.schema([("t", moment)]), relation="t", zone="Europe/Berlin")
    assert found["t"].to_pylist() == [datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("Europe/Berlin"))]


def test_equal_maps_are_stored_alike() -> None:
    entries = pa.map_(pa.string(), pa.int64())
    kind = pa.struct([("l", pa.list_(entries)), ("m", pa.map_(pa.int64(), entries))])
    schema = pa.schema([("v", kind)])

    def stored_map(*order: str) -> pa.Table:
        one = [(name, ord(name)) for name in order]
        value = {"l": [one, None, []], "m": [(2, one), (1, None)][:: 1 if order[0] == "a" else -1]}
        table = pa.table({"v": pa.array([None, value, None], kind)})
        found = as_arrow(table.slice(1), schema, relation="t", zone="UTC")
        rows = [{"v": {"l": [dict(one), None, {}], "m": {2: dict(one), 1: None}}}, {"v": None}]
        assert as_arrow(rows, schema, relation="t", zone="UTC") == found
        return found

    assert stored_map("b", "a", "c") == stored_map("a", "b", "c") == stored_map("c", "b", "a")
    keys = pa.map_(pa.list_(pa.int64()), pa.int64())  # lists have no order
    table = pa.table({"v": pa.array([[([2], 1), ([1], 2)]], keys)})
    assert as_arrow(table, table.schema, relation="t", zone="UTC") == table
