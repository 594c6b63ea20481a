"""Converts rows between types that differ in names, nullability or width, as those of Spark, files and Arrow do.

Imports only Arrow, because stored rows are also read in processes that must not load polars or pandas.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


def cast_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to the names and types of a schema: columns and the fields of structs by position.

    Arrow's own cast takes the fields of structs by name, and fills those that it doesn't find with nulls; in
    Spark a UNION goes by position. Nor does it take a null VARIANT or struct whose parts can't be null, or a
    column of type null where a nested type is wanted.
    """
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        if pa.types.is_null(column.type):
            column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        elif column.type != field.type:
            column = _retyped(column, field.type, loose=True)
            loose = _with_names(field.type, field.type, loose=True)
            if column.type != loose:
                column = column.cast(loose)
            column = _retyped(column, field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


def with_nullable_fields(table: pa.Table) -> pa.Table:
    """Make all columns and inner values of the rows' types nullable, without copying the rows.

    Spark's plans for the two lanes may differ in nullability, and Arrow treats such tables as different.
    """
    if all(field.nullable and not pa.types.is_nested(field.type) for field in table.schema):
        return table
    columns = [_retyped(column, column.type, loose=True) for column in table.columns]
    fields = [
        pa.field(name, column.type)
        for name, column in zip(table.column_names, columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


@dataclass(frozen=True, slots=True)
class _Retyped:
    """An array under a type that differs only in names and nullability of fields; nothing is copied."""

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]


def _retyped(column: pa.ChunkedArray, like: pa.DataType, *, loose: bool = False) -> pa.ChunkedArray:
    kind = _with_names(column.type, like, loose=loose)
    if kind == column.type:
        return column
    return pa.chunked_array([pa.array(_Retyped(chunk, kind)) for chunk in column.chunks], kind)


def _with_names(kind: pa.DataType, like: pa.DataType, *, loose: bool) -> pa.DataType:
    """Return a type with the field names and nullability of another one, by position.

    Args:
        loose: whether all inner values may be null instead.
    """

    def inner(of: pa.DataType, other: pa.Field) -> pa.Field:
        named = _with_names(of, other.type, loose=loose)
        return pa.field(other.name, named, loose or other.nullable)

    if pa.types.is_struct(kind) and pa.types.is_struct(like) and len(kind) == len(like):
        return pa.struct([inner(f.type, other) for f, other in zip(kind, like, strict=True)])
    if pa.types.is_list(kind) and pa.types.is_list(like):
        return pa.list_(inner(kind.value_type, like.value_field))
    if pa.types.is_map(kind) and pa.types.is_map(like):
        key = _with_names(kind.key_type, like.key_type, loose=loose)
        return pa.map_(key, inner(kind.item_type, like.item_field), kind.keys_sorted)
    return kind
