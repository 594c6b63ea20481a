"""Parquet files, read by Arrow; only the wanted columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eddyline.errors import DataError


def parquet_fault(path: str, schema: pa.Schema, *, by_spark: bool = False) -> str:
    """Return why these columns of a file can't be read; an empty text if they can.

    Args:
        by_spark: judge for Spark's reader, which doesn't convert timestamps to another kind.
    """
    try:
        with _opened(path) as file:
            found = {name: file.schema_arrow.field(name).type for name in file.schema_arrow.names}
    except (OSError, pa.ArrowException) as error:
        return str(error)
    present = _present(schema, list(found))
    for field in schema:
        if field.name in present and not _readable(found[present[field.name]], field.type):
            return f"column {field.name} is {found[present[field.name]]}, not {field.type}"
        if by_spark and field.name in present and _is_cut(found[present[field.name]], field.type):
            return f"column {field.name} is {found[present[field.name]]}: Spark refuses it"
    return ""


def read_parquet(path: str, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Read the columns of `schema`, matched by name; one that the file lacks is null.

    Raises:
        DataError: the file can't be read, or a column's type can't be converted.
    """
    try:
        with _opened(path) as file:
            present = _present(schema, file.schema_arrow.names)
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
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"a Parquet file of a stream can't be read: {error}",
            condition="BAD_FILE",
            file=path,
            hint="mend or replace the file; nothing of the epoch was committed",
        ) from error


def _opened(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")  # nanoseconds lack most years


def _is_cut(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether only Arrow converts one type to the other."""
    if not pa.types.is_temporal(found) or found == wanted:
        return False
    both = pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted)
    return not both or found.unit == "ns" or (wanted.tz is None and found.tz is not None)


def _present(schema: pa.Schema, names: list[str]) -> dict[str, str]:
    """Return the name in the file of each column that it has; the case of letters doesn't matter."""
    folded = {name.lower(): name for name in reversed(names)}
    found = {name: name if name in names else folded.get(name.lower()) for name in schema.names}
    return {name: known for name, known in found.items() if known is not None}


def _readable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of another."""
    if pa.types.is_dictionary(found):
        return _readable(found.value_type, wanted)
    if pa.types.is_null(found):
        return True
    if pa.types.is_fixed_size_binary(found):
        return bool(wanted == pa.binary())
    if pa.types.is_integer(found) and pa.types.is_integer(wanted):
        unsigned = pa.types.is_unsigned_integer(found) and pa.types.is_signed_integer(wanted)
        return bool(found.bit_width + unsigned <= wanted.bit_width)
    if pa.types.is_integer(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width < 64 and wanted.bit_width == 64)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= found.precision - found.scale
        return bool(whole and wanted.scale >= found.scale)
    if pa.types.is_nested(found) or pa.types.is_nested(wanted):
        return bool(found.id == wanted.id)
    return found == wanted or any(
        is_kind(found) and is_kind(wanted) for is_kind in (_is_text, pa.types.is_temporal)
    )


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*texts, pa.binary(), pa.large_binary(), pa.binary_view())


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    instants = pa.types.is_timestamp(kind) and kind.tz and pa.types.is_timestamp(column.type)
    if instants and column.type.tz is None:  # Parquet's INT96 is in UTC
        column = pc.assume_timezone(column.cast(pa.timestamp("us"), safe=False), "UTC")
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.cast(kind, safe=False)  # nanoseconds are cut
    return column.cast(kind)
