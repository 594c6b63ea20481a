"""Which rows of an arrangement a watermark has made useless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of an arrangement hold the value that is compared with a bound.

    Attributes:
        field: of a struct column; empty for the value itself.
        sessions: the column is a struct of start and end; rows whose spans touch leave together.
    """

    slot: str
    column: str
    field: str = ""
    sessions: bool = False


def times(rows: pa.Table, column: str, field: str = "") -> pa.ChunkedArray:
    """Timestamps as microseconds, dates as days, since 1970; whole numbers as they are."""
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
    rows: pa.Table, limits: Sequence[tuple[Place, int]], *, whole: bool
) -> pa.Table:
    """The rows that are not below any of the limits; rows without a value stay.

    Args:
        whole: these are all rows of the bucket; only then can a session be told to be over.
    """
    for place, limit in limits:
        if not place.sessions:
            below = pc.less(times(rows, place.column, place.field), limit)
            rows = rows.filter(pc.invert(pc.fill_null(below, False)))
        elif whole:
            rows = rows.filter(pa.array(~_over(rows, place.column, limit)))
    return rows


def _over(rows: pa.Table, column: str, limit: int) -> np.ndarray:
    """Which rows belong to a chain of touching spans, of one hash, that ends below the limit."""
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
    spans = spans.with_columns(chain=begins.cum_sum().over("hash"))
    over = pl.col("end").max().over("hash", "chain") < limit
    found: np.ndarray = (
        spans.with_columns(over=over.fill_null(False)).sort("row")["over"].to_numpy()
    )
    return found
