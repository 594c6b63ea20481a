"""Questions about PySpark's data types."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructType,
    TimestampType,
)

from eddyline.sql.names import literal, quoted


def sql_type(data_type: DataType) -> str:
    """Return a type as SQL writes it, with the names of fields quoted."""
    if isinstance(data_type, StructType):
        parts = [f"{quoted(f.name)}: {sql_type(f.dataType)}" for f in data_type]
        return f"struct<{', '.join(parts)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{sql_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    if isinstance(data_type, TimestampType):
        return "timestamp_ltz"  # what `timestamp` stands for is a setting
    return data_type.simpleString()


def by_name(value: str, given: DataType, wanted: DataType) -> str:
    """Return an expression for a value whose structs get the fields of another type, by name, in its order.

    Args:
        value: a column or field, which the result may name several times.

    Raises:
        ValueError: a struct lacks fields of the other one, or has more; the text names them.

    Example:
        >>> from pyspark.sql.types import _parse_datatype_string as parsed
        >>> by_name("s", parsed("STRUCT<y: INT, x: INT>"), parsed("STRUCT<x: INT, y: INT>"))
        "IF(s IS NULL, NULL, named_struct('x', s.`x`, 'y', s.`y`))"
    """
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        own = {field.name.lower(): field for field in given}
        names = {field.name.lower() for field in wanted}
        odd = {"missing": names - own.keys(), "unknown": own.keys() - names}
        if any(odd.values()):
            raise ValueError(
                ", ".join(f"{name} is {why}" for why in odd for name in sorted(odd[why]))
            )
        fields = [own[field.name.lower()] for field in wanted]
        plain = [f"{value}.{quoted(field.name)}" for field in fields]
        texts = [
            by_name(text, field.dataType, other.dataType)
            for text, field, other in zip(plain, fields, wanted, strict=True)
        ]
        if texts == plain and fields == list(given):
            return value
        pairs = ", ".join(
            f"{literal(field.name)}, {text}" for field, text in zip(fields, texts, strict=True)
        )
        return f"IF({value} IS NULL, NULL, named_struct({pairs}))"
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        item = by_name("x", given.elementType, wanted.elementType)
        return value if item == "x" else f"transform({value}, x -> {item})"
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        key, item = (
            by_name("k", given.keyType, wanted.keyType),
            by_name("x", given.valueType, wanted.valueType),
        )
        value = value if key == "k" else f"transform_keys({value}, (k, x) -> {key})"
        return value if item == "x" else f"transform_values({value}, (k, x) -> {item})"
    return value


def column_type(frame: DataFrame, column: str) -> str:
    """Return the type of a frame's column as SQL writes it."""
    return sql_type(frame.schema[column].dataType)


def contains_type(data_type: DataType, names: Sequence[str]) -> bool:
    """Return whether a type is or contains one of the named types.

    Args:
        names: as in the type's JSON form, without parameters: `decimal` finds `decimal(10,2)`. A
            name that ends in a space finds all types that begin with it.
    """
    starts = tuple(name if name.endswith(" ") else f"{name}(" for name in names)

    # not the JSON of the whole: it has the collations of a struct's fields in their metadata
    def search(part: DataType) -> bool:
        nested = isinstance(part, StructType | ArrayType | MapType)
        name = part.typeName() if nested else str(part.jsonValue())
        return (
            name in names or name.startswith(starts) or any(search(one) for one, _ in _parts(part))
        )

    return search(data_type)


def is_always_empty(data_type: DataType) -> bool:
    """Return whether a type is or contains an array or map of elements that have no value: VOID, and not null."""
    return any(
        (isinstance(part, NullType) and not nullable) or is_always_empty(part)
        for part, nullable in _parts(data_type)
    )


def repeats_field(data_type: DataType) -> bool:
    """Return whether a type is or contains a struct with two fields of one name."""
    names = data_type.names if isinstance(data_type, StructType) else []
    return len(set(names)) < len(names) or any(repeats_field(one) for one, _ in _parts(data_type))


def _parts(data_type: DataType) -> list[tuple[DataType, bool]]:
    """Return the types right within a type, each with whether its values may be null."""
    if isinstance(data_type, StructType):
        return [(field.dataType, field.nullable) for field in data_type]
    if isinstance(data_type, ArrayType):
        return [(data_type.elementType, data_type.containsNull)]
    if isinstance(data_type, MapType):
        return [(data_type.keyType, False), (data_type.valueType, data_type.valueContainsNull)]
    return []
