"""Parquet files, read by Arrow; only the wanted columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eddyline.errors import DataError
from eddyline.storage.os_errors import input_errors, is_of_system


def parquet_fault(path: str, schema: pa.Schema, *, by_spark: bool = False) -> str:
    """Return the reason why these columns of a file can't be read; empty if they can.

    Args:
        by_spark: judge for Spark's reader, which doesn't convert timestamps to another kind.

    Raises:
        OSError: it has an errno: the file can't be read now, and nothing is known of its content.
    """
    try:
        with _opened(path) as file:
            found = {name: file.schema_arrow.field(name).type for name in file.schema_arrow.names}
    except (OSError, ValueError, pa.ArrowException) as error:  # names needn't be UTF-8
        if is_of_system(error):
            raise
        return str(error)
    present = _present(schema.names, list(found))
    for field in (field for field in schema if field.name in present):
        kind = found[present[field.name]]
        pairs = list(_pairs(kind, field.type))
        if not all(_readable(*pair) for pair in pairs):
            return f"column {field.name} is {kind}, not {field.type}"
        if by_spark and any(_is_cut(*pair) for pair in pairs):
            return f"column {field.name} is {kind}: Spark refuses it"
    return ""


def read_parquet(path: str, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Read the columns of `schema`, matched by name; one that the file lacks is null.

    Raises:
        DataError: BAD_FILE, it is no whole Parquet file, or a column's type can't be converted.
        StorageError: READ_FAILED, it can't be read now.
    """
    try:
        with input_errors(path), _opened(path) as file:
            present = _present(schema.names, file.schema_arrow.names)
            wanted = list(present.values())
            for batch in file.iter_batches(rows_max, columns=wanted, use_threads=False):
                columns = [
                    _converted(batch.column(present[field.name]), field.type)
                    if field.name in present
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                if columns:
                    yield pa.table(columns, schema=schema)
                else:
                    yield pa.table({"rows": pa.nulls(batch.num_rows)}).select([])
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"a Parquet file of a stream can't be read: {error}",
            condition="BAD_FILE",
            file=path,
            hint="mend or replace the file; nothing of the epoch was committed",
        ) from error


def rows_in_parquet(path: str) -> int:
    """Return the number of rows of a file.

    Raises:
        OSError, pyarrow.ArrowException: it can't be read.
    """
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def _opened(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")  # nanoseconds lack most years


def _is_cut(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow converts one type to the other, and Spark doesn't."""
    if not pa.types.is_temporal(found) or found == wanted:
        return False
    both = pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted)
    return not both or found.unit == "ns" or (wanted.tz is None and found.tz is not None)


def _present(wanted: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return for each wanted column that the file has its name there; letter case doesn't matter."""
    folded = {name.lower(): name for name in reversed(names)}
    found = {name: name if name in names else folded.get(name.lower()) for name in wanted}
    return {name: known for name, known in found.items() if known is not None}


def _pairs(found: pa.DataType, wanted: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """Yield the type in the file and the wanted one, of nested types those of their parts."""
    if _is_list(found) and _is_list(wanted):
        yield from _pairs(found.value_type, wanted.value_type)
    elif pa.types.is_map(found) and pa.types.is_map(wanted):
        yield from _pairs(found.key_type, wanted.key_type)
        yield from _pairs(found.item_type, wanted.item_type)
    elif pa.types.is_struct(found) and pa.types.is_struct(wanted):
        for name, known in _present(wanted.names, found.names).items():
            yield from _pairs(found.field(known).type, wanted.field(name).type)
    else:
        yield found, wanted


def _readable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of one type can be read as another."""
    if pa.types.is_dictionary(found):
        return _readable(found.value_type, wanted)
    if pa.types.is_null(found):
        return True
    if pa.types.is_fixed_size_binary(found):
        return bool(wanted == pa.binary())
    if pa.types.is_integer(found) and pa.types.is_integer(wanted):
        unsigned = pa.types.is_unsigned_integer(found) and pa.types.is_signed_integer(wanted)
        return bool(found.bit_width + unsigned <= wanted.bit_width)
    if pa.types.is_integer(found) and wanted == pa.date32():  # days, as Spark takes them
        return bool(_readable(found, pa.int32()))
    if pa.types.is_integer(found) and pa.types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= (20 if found.bit_width > 32 else 10))
    if pa.types.is_integer(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width < 64 and wanted.bit_width == 64)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= found.precision - found.scale
        return bool(whole and wanted.scale >= found.scale)
    return found == wanted or any(
        is_kind(found) and is_kind(wanted) for is_kind in (_is_text, pa.types.is_temporal)
    )


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists)


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*texts, pa.binary(), pa.large_binary(), pa.binary_view())


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        return _struct(column, kind)
    if _is_list(kind) or pa.types.is_map(kind):
        return _list(column, kind)
    instants = pa.types.is_timestamp(kind) and kind.tz and pa.types.is_timestamp(column.type)
    if instants and column.type.tz is None:  # Parquet's INT96 is in UTC
        column = pc.assume_timezone(column.cast(pa.timestamp("us"), safe=False), "UTC")
    if kind == pa.date32() and pa.types.is_integer(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.cast(kind, safe=False)  # nanoseconds are cut
    return column.cast(kind)


def _struct(column: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    parts = dict(zip(column.type.names, column.flatten(), strict=True))
    present = _present(kind.names, list(parts))
    fields = [
        _converted(parts[present[field.name]], field.type)
        if field.name in present
        else pa.nulls(len(column), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())


def _list(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists or maps with converted elements."""
    is_map = pa.types.is_map(kind)
    if is_map:
        pairs = [("key", column.type.key_type), ("value", column.type.item_type)]
        column = column.cast(pa.list_(pa.struct(pairs)))
        element = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    else:
        column = column.cast(pa.list_(column.type.value_type))
        element = kind.value_type
    values = _converted(column.flatten(), element)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    if is_map:
        keys, items = values.flatten()
        return pa.MapArray.from_arrays(ends, keys, items, type=kind, mask=column.is_null())
    return pa.ListArray.from_arrays(ends, values, type=kind, mask=column.is_null())
