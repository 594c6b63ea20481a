"""Rows of Python objects: what fits a column is stored as it is, and nothing else is stored."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

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
    ],
)
def test_what_arrow_would_change_is_refused(column: str, value: Any) -> None:
    with pytest.raises(DataError) as error:
        stored(column, value)
    assert error.value.condition == "WRONG_TYPE"
    assert f"column {column} " in str(error.value)


def test_unknown_fields_within_lists_are_named() -> None:
    with pytest.raises(DataError, match=r"field z of s\.x"):
        stored("s", {"x": [{"y": 1}, {"z": 1}]})
