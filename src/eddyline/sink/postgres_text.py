"""Rows as PostgreSQL's COPY reads them: types, and values as text, a column at a time."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import types as spark

from eddyline.sink.texts import date_texts, far_places, float_texts, moment_texts

_TYPES: dict[type[spark.DataType], str] = {
    spark.StringType: "text",
    spark.BinaryType: "bytea",
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
    spark.DayTimeIntervalType: "interval",
}
if hasattr(spark, "TimeType"):  # since Spark 4.1
    _TYPES[spark.TimeType] = "time"

_READ = [
    cls for cls in _TYPES if cls.__name__ not in ("ByteType", "DayTimeIntervalType", "TimeType")
]
"""Types that hold every value of their type in PostgreSQL, but for infinite times and far years."""


def postgres_type(kind: spark.DataType) -> str | None:
    """Return the type of PostgreSQL for one of Spark; None if there is none.

    Example:
        >>> postgres_type(spark.DecimalType(10, 2)), postgres_type(spark.ArrayType(spark.LongType()))
        ('numeric(10,2)', 'jsonb')
    """
    if isinstance(kind, spark.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, spark.ArrayType):
        return postgres_type(kind.elementType) and "jsonb"
    if isinstance(kind, spark.MapType):
        return postgres_type(kind.keyType) and postgres_type(kind.valueType) and "jsonb"
    if isinstance(kind, spark.StructType):
        return "jsonb" if all(postgres_type(field.dataType) for field in kind) else None
    return next((name for cls, name in _TYPES.items() if isinstance(kind, cls)), None)


def spark_type(name: str) -> spark.DataType:
    """Return the type of Spark for one of PostgreSQL; that of text for those without an equal one.

    Example:
        >>> spark_type("numeric(10,2)"), spark_type("timestamp(3) with time zone"), spark_type("uuid")
        (DecimalType(10,2), TimestampType(), StringType())
    """
    if found := re.fullmatch(r"numeric\((\d+),(\d+)\)", name):
        precision, scale = map(int, found.groups())
        fits = precision <= 38 and scale <= precision
        return spark.DecimalType(precision, scale) if fits else spark.StringType()
    plain = re.sub(r"\(\d+\)", "", name)
    return next((cls() for cls in _READ if _TYPES[cls] == plain), spark.StringType())


def csv_rows(rows: pa.Table) -> bytes:
    """Return rows in the CSV of COPY: values in quotes, null as nothing.

    Values are to be read with the time zone UTC and the date style ISO.
    """
    columns = [_cell(_whole(column)) for column in rows.columns]
    names = [str(place) for place in range(len(columns))]
    written = io.BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(pa.table(columns, names=names), written, options)
    return written.getvalue()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _cell(array: pa.Array) -> pa.Array:
    kind, text = array.type, _text(array)
    dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return pc.utf8_ltrim(text, "+") if dated else text  # PostgreSQL reads no years with a sign


def _text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_nested(kind):
        return _json(array)
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise("\\x", _encoded(array, "hex"), "")
    if pa.types.is_timestamp(kind):  # of one with a zone, the instant in UTC
        return _dated(array.view(pa.int64()).view(pa.timestamp("us")), moment_texts)
    if pa.types.is_date(kind):
        return _dated(array, date_texts)
    if pa.types.is_duration(kind):
        return pc.binary_join_element_wise(array.view(pa.int64()).cast(pa.string()), " us", "")
    return array.cast(pa.string())


def _dated(array: pa.Array, written: Callable[[pa.Array], pl.Series]) -> pa.Array:
    """Return dates or moments as text, far ones by a function."""
    if (far := far_places(array)) is None:
        return array.cast(pa.string())
    near = pc.if_else(far, pa.scalar(None, array.type), array).cast(pa.string())
    return pc.if_else(far, written(array).to_arrow().cast(pa.string()), near)


def _json(array: pa.Array) -> pa.Array:
    """Return values as JSON, as Spark's `to_json` writes them; null stays null."""
    kind = array.type
    if pa.types.is_map(kind):
        # the offsets stay valid over the whole child arrays of a sliced map
        pairs = pc.binary_join_element_wise(_quoted(_text(array.keys)), _item(array.items), ":")
        return _joined(array, pairs, "{", "}")
    if pa.types.is_list(kind):
        return _joined(array, _item(array.values), "[", "]")
    if pa.types.is_struct(kind):
        parts = [
            pc.binary_join_element_wise(_quoted(pa.array([field.name]))[0], _item(child), ":")
            for field, child in zip(kind, array.flatten(), strict=True)
        ]
        empty = pa.array([""] * len(array), pa.string())
        inner = pc.binary_join_element_wise(*parts, ",") if parts else empty
        text = pc.binary_join_element_wise("{", inner, "}", "")
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.string()), text)
    if pa.types.is_floating(kind):
        text, number = float_texts(array), pc.is_finite(array)
        return pc.if_else(number, text, _quoted(text))
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return _text(array)
    if pa.types.is_binary(kind):
        return _quoted(_encoded(array, "base64"))
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(_text(array), " ", "T")
        return _quoted(pc.binary_join_element_wise(text, "Z" if kind.tz else "", ""))
    return _quoted(_text(array))


def _item(array: pa.Array) -> pa.Array:
    return pc.fill_null(_json(array), "null")


def _joined(array: pa.Array, items: pa.Array, left: str, right: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(array.offsets, items, mask=pc.is_null(array))
    return pc.binary_join_element_wise(left, pc.binary_join(lists, ","), right, "")


def _quoted(text: pa.Array) -> pa.Array:
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(32):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise('"', text, '"', "")


def _encoded(array: pa.Array, encoding: str) -> pa.Array:
    series = pl.Series(array, dtype=pl.Binary)
    encoded = series.bin.encode("hex" if encoding == "hex" else "base64")
    return pa.array(encoded.to_arrow()).cast(pa.string())
