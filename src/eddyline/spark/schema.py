"""Converts schemas between Spark, Arrow and the kernels."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from eddyline.spark.session import frame as local_frame

_TAKES_ZONE = "timezone" in signature(to_arrow_schema).parameters  # since PySpark 4.2

_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}

_COMPARED = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, DecimalType),
    *(DateType, TimestampType, TimestampNTZType),
)

_LOCAL = (*_COMPARED, FloatType, DoubleType, StringType, BinaryType)

_NULL_VARIANT = pa.scalar(b"\0"), pa.scalar(b"\1\0\0")  # value and metadata of the null of JSON


def arrow_compares(data_type: DataType) -> bool:
    """Return whether Arrow compares values of a type as Spark does.

    It doesn't so for floating-point numbers: in Spark NaN equals NaN, and is the largest; nor for collated strings.
    """
    return isinstance(data_type, _COMPARED) or data_type == StringType()


def arrow_schema(schema: StructType, zone: str) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows with Python."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone=zone, prefers_large_types=False)
    return pa.schema([one.with_type(_in_zone(one.type, zone)) for one in to_arrow_schema(schema)])


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return an Arrow type whose timestamps have the session's zone in place of UTC."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_in_zone(kind.item_type, zone))
        return pa.map_(kind.key_field.with_type(_in_zone(kind.key_type, zone)), item)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_in_zone(one.type, zone)) for one in kind])
    return kind


def plain_schema(schema: StructType) -> StructType:
    """Return the schema with its columns renamed to `c0`, `c1`, ..., as kernels expect them."""
    return StructType(
        [StructField(f"c{i}", field.dataType, True) for i, field in enumerate(schema)]
    )


def loose_schema(schema: StructType) -> StructType:
    """Return a schema whose columns and inner values may all be null."""
    fields = (StructField(f.name, loose(f.dataType), True, f.metadata) for f in schema)
    return StructType(list(fields))


def loose(kind: DataType) -> DataType:
    """Return a type whose inner values may all be null."""
    if isinstance(kind, StructType):
        return loose_schema(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(loose(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(loose(kind.keyType), loose(kind.valueType), True)
    return kind


def loosened(frame: DataFrame) -> DataFrame:
    """Make all inner values nullable, because PySpark's `toArrow` fails on a null struct with others."""
    wanted = loose_schema(frame.schema)
    same = [f.dataType for f in wanted] == [f.dataType for f in frame.schema]
    return frame if same else frame.to(wanted)


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame. PySpark's `toArrow` fails on a null struct whose fields can't be null, such as a null VARIANT."""
    frame = loosened(frame)
    places = _variants(frame.schema)
    if not places:
        return frame.toArrow()
    columns = [f"c{n}" for n in range(len(frame.columns))]
    shown = list(columns)
    for n in places:
        shown[n] = f"coalesce(c{n}, parse_json('null')) AS c{n}"
    marks = [f"c{n} IS NULL AS m{n}" for n in places]
    found = frame.toDF(*columns).selectExpr(*shown, *marks).toArrow()
    rows: pa.Table = found.select(columns)
    for n in places:
        kind = found.schema.field(n).type
        whole, mask = _array(found[f"c{n}"]), _array(found[f"m{n}"])
        values = pa.StructArray.from_arrays(whole.flatten(), fields=list(kind), mask=mask)
        rows = rows.set_column(n, found.schema.field(n), values)
    return rows.rename_columns(frame.columns)


def from_arrow(session: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return a frame of local rows. PySpark's `createDataFrame` fails on a null VARIANT."""
    places = [n for n in _variants(schema) if rows.column(n).null_count]
    if not places:
        return local_frame(session, rows, schema)
    columns = [f"c{n}" for n in range(len(schema))]
    given, marked = rows.rename_columns(columns), StructType(schema.fields)
    shown = list(columns)
    for n in places:
        field, whole = given.schema.field(n), _array(given.column(n))
        parts = [
            one.fill_null(null) for one, null in zip(whole.flatten(), _NULL_VARIANT, strict=True)
        ]
        values = pa.StructArray.from_arrays(parts, fields=list(field.type))
        given = given.set_column(n, field, values).append_column(f"m{n}", whole.is_null())
        marked = marked.add(f"m{n}", BooleanType())
        shown[n] = f"if(m{n}, NULL, c{n}) AS c{n}"
    names = StructType(
        [StructField(n, f.dataType) for n, f in zip(given.column_names, marked, strict=True)]
    )
    return local_frame(session, given, names).selectExpr(*shown).toDF(*schema.names)


def makes_local_rows(kind: DataType) -> bool:
    """Return whether PySpark's `createDataFrame` takes all values of a type, nulls included.

    It fails on a null VARIANT, and on a null struct whose fields can't be null.
    """
    if isinstance(kind, ArrayType):
        return makes_local_rows(kind.elementType)
    if isinstance(kind, MapType):
        return makes_local_rows(kind.keyType) and makes_local_rows(kind.valueType)
    if isinstance(kind, StructType):
        return all(field.nullable and makes_local_rows(field.dataType) for field in kind)
    return isinstance(kind, _LOCAL)


def _variants(schema: StructType) -> list[int]:
    """Return the places of the columns of type VARIANT."""
    return [n for n, field in enumerate(schema) if isinstance(field.dataType, VariantType)]


def _array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def widens(narrow: DataType, wide: DataType) -> bool:
    """Return whether a numeric type can be widened to another one without loss.

    Integers widen to larger integers or decimals, up to INT also to DOUBLE; FLOAT to DOUBLE; a decimal to
    one with at least as many digits on both sides of the point.
    """
    digits = _DIGITS.get(type(narrow))
    if digits is not None:
        if type(wide) in _DIGITS:
            return _DIGITS[type(wide)] > digits
        if isinstance(wide, DecimalType):
            return wide.precision - wide.scale >= digits
        return isinstance(wide, DoubleType) and not isinstance(narrow, LongType)
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return narrow != wide and whole and wide.scale >= narrow.scale
    return isinstance(narrow, FloatType) and isinstance(wide, DoubleType)
