"""Values of which Arrow and polars write other texts than Spark: far times, numbers that aren't finite."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from eddyline.sink import texts
from eddyline.sink.files import write_csv
from eddyline.sink.json_rows import json_values
from eddyline.sink.postgres_text import csv_rows

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


def dates(*days: int | None) -> pa.Array:
    return pa.array(days, pa.int32()).view(pa.date32())


def moments(*micros: int | None, zone: str | None = None) -> pa.Array:
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))


def as_numpy(found: pl.Series) -> list[str]:
    """Return texts as numpy writes them: no sign of years after 9999, three digits at least of those before 0."""
    return found.str.strip_prefix("+").str.replace(r"^-0(\d{3}-)", "-$1").to_list()


def test_every_day_and_moment_has_a_text() -> None:
    chance = np.random.default_rng(1)
    days = chance.integers(INT32.min, INT32.max, 20_000, endpoint=True)
    days = np.append(days, [INT32.min, INT32.max, *range(-719_600, -719_000)])
    written = np.datetime_as_string(days.astype("datetime64[D]")).tolist()
    assert as_numpy(texts.date_texts(dates(*days.tolist()))) == written
    micros = chance.integers(INT64.min + 1, INT64.max, 20_000, endpoint=True)
    micros = np.append(micros, [INT64.max, 0, -1, 999_999])
    written = np.datetime_as_string(micros.astype("datetime64[us]")).tolist()
    assert as_numpy(texts.moment_texts(moments(*micros.tolist()), "T")) == written


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_far_times_are_json(zone: str | None) -> None:
    last = moments(0, None, INT64.max, 253402300800000000, zone=zone)
    offset, utc = ("", "") if zone is None else ("+01:00", "Z")
    hour = "00" if zone is None else "01"
    assert json_values(last).to_list() == [
        f'"1970-01-01T{hour}:00:00.000{offset}"',
        "null",
        f'"+294247-01-10T04:00:54.775807{utc}"',
        f'"+10000-01-01T{hour}:00:00.000{offset}"',
    ]
    assert json_values(dates(INT32.max, 0, None)).to_list() == [
        '"+5881580-07-11"',
        '"1970-01-01"',
        "null",
    ]


def test_spark_reads_what_csv_holds(tmp_path: Path, spark: SparkSession) -> None:
    schema = "d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, x DOUBLE, f FLOAT, i INT"
    numbers = [1.5, float("nan"), float("inf"), float("-inf"), None]
    micros = 0, 1, None, 2_000_000_000_000_000_000, 2_000_000_000_000_000
    rows = pa.table(
        {
            "d": dates(0, None, 72_000_000, -1_800_000, 1),
            "t": moments(*micros, zone="UTC"),
            "n": moments(*micros),
            "x": pa.array(numbers, pa.float64()),
            "f": pa.array(numbers, pa.float32()),
            "i": range(5),
        }
    )
    write_csv(rows, str(tmp_path / "rows.csv"))
    read = spark.read.schema(schema).csv(str(tmp_path), header=True).orderBy("i")
    as_text = [f"CAST({name} AS STRING)" for name in rows.column_names]
    shown = [list(row) for row in read.selectExpr(*as_text).collect()]
    assert [row[0] for row in shown] == texts.date_texts(rows["d"].chunk(0)).to_list()
    assert [row[3] for row in shown] == ["1.5", "NaN", "Infinity", "-Infinity", None]
    assert [row[4] for row in shown] == [row[3] for row in shown]
    assert [row[1] for row in shown] == [row[2] for row in shown]
    assert shown[3][2] == "+65347-06-24 03:33:20"


def test_values_as_postgres_reads_them() -> None:
    nested = pa.array([[{"a": 'x"\n\\'}, None], None, []], pa.list_(pa.struct({"a": pa.string()})))
    rows = pa.table({"n": nested, "i": pa.array([1500000, None, -1], pa.duration("us"))})
    assert csv_rows(rows).decode().split("\n") == [
        r'''"[{""a"":""x\""\u000a\\""},null]","1500000 us"''', ",", '"[]","-1 us"', "",
    ]  # fmt: skip
    assert csv_rows(rows.slice(2)).decode() == '"[]","-1 us"\n'
    days = pa.array([0, 14_000_000, None], pa.int32()).view(pa.date32())
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), days)
    moments = pa.array([0, None, 10**18], pa.int64()).view(pa.timestamp("us", "UTC"))
    far = pa.table({"day": days, "days": listed, "moment": moments, "x": [float("inf"), None, 0.5]})
    assert csv_rows(far).decode().split("\n") == [
        '"1970-01-01","[""1970-01-01""]","1970-01-01 00:00:00.000000","inf"',
        '"40300-09-13","[""+40300-09-13""]",,',
        ',"[null]","33658-09-27 01:46:40.000000","0.5"',
        "",
    ]
    assert csv_rows(pa.table({"x": pa.array([[float("-inf")]])})).decode() == '"[""-Infinity""]"\n'


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(texts).failed == 0
