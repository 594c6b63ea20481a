"""Expiry: drops rows of an arrangement that a watermark has passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH


@dataclass(frozen=True, slots=True)
class ExpiryColumn:
    """The column of an arrangement whose values are compared with a bound to expire rows.

    Attributes:
        slot: the arrangement's slot of its operator.
        column: name of the column.
        field: the field to compare, if the column is a struct; empty for the column itself.
        sessions: whether the column is a struct of start and end. Rows whose spans touch form a
            session, and expire together.
    """

    slot: str
    column: str
    field: str = ""
    sessions: bool = False


def times(rows: pa.Table, column: str, field: str = "") -> pa.ChunkedArray:
    """Return a column as integers: timestamps as microseconds, dates as days since 1970.

    Args:
        rows: the table.
        column: name of the column.
        field: a field of a struct column; empty for the column itself.
    """
    values = rows[column]
    if field:
        values = pa.chunked_array(
            [pc.struct_field(chunk, field) for chunk in values.chunks],
            values.type.field(field).type,
        )
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    return values.cast(pa.int64())


def without_expired(
    rows: pa.Table, limits: Sequence[tuple[ExpiryColumn, int]], *, whole: bool
) -> pa.Table:
    """Drop the rows that are below any of the limits; rows with a null there stay.

    Args:
        rows: rows of a bucket.
        limits: columns with the limits of their values.
        whole: whether these are all rows of the bucket. Only then can sessions expire, since other
            rows could extend them.
    """
    for expiry, limit in limits:
        if not expiry.sessions:
            below = pc.less(times(rows, expiry.column, expiry.field), limit)
            rows = rows.filter(pc.invert(pc.fill_null(below, False)))
        elif whole:
            rows = rows.filter(pa.array(~_in_expired_session(rows, expiry.column, limit)))
    return rows


def _in_expired_session(rows: pa.Table, column: str, limit: int) -> np.ndarray:
    """Return a mask of the rows of sessions that end below the limit."""
    spans = pl.DataFrame(
        {
            "hash": rows[HASH].to_numpy(),
            "start": pl.Series(times(rows, column, "start").combine_chunks()),
            "end": pl.Series(times(rows, column, "end").combine_chunks()),
        }
    ).with_row_index("row")
    spans = spans.sort("hash", "start").with_columns(
        reach=pl.col("end").cum_max().shift(1).over("hash")
    )
    begins = (pl.col("start") > pl.col("reach")).fill_null(True)
    spans = spans.with_columns(session=begins.cum_sum().over("hash"))
    expired = pl.col("end").max().over("hash", "session") < limit
    mask: np.ndarray = (
        spans.with_columns(expired=expired.fill_null(False)).sort("row")["expired"].to_numpy()
    )
    return mask
