"""Parquet files, read by Arrow; only the wanted columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eddyline.errors import DataError


def read_parquet(path: str, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Read the columns of `schema`, matched by name; one that the file lacks is null.

    Raises:
        DataError: the file can't be read, or a column's type can't be converted.
    """
    try:
        with pq.ParquetFile(path) as file:
            present = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(rows_max, columns=present, use_threads=False):
                columns = [
                    _converted(batch.column(field.name), field.type)
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


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    instants = pa.types.is_timestamp(kind) and kind.tz and pa.types.is_timestamp(column.type)
    if instants and column.type.tz is None:  # Parquet's INT96 is in UTC
        column = pc.assume_timezone(column.cast(pa.timestamp("us"), safe=False), "UTC")
    return column.cast(kind)
