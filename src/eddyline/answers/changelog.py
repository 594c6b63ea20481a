"""Changelogs: net changes of an epoch, and their retract and update forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.changes import APPEND, DELETE, HASH, WEIGHT
from eddyline.state.kernels import Measure, comparable_frame, consolidate, repeat


def net_changes(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add up the weights of equal rows, and drop rows whose weights add up to zero."""
    hashed = rows.add_column(0, HASH, pa.array(np.zeros(rows.num_rows, np.int64)))
    done = consolidate(hashed, columns, [(WEIGHT, Measure.SUM)])
    return done.drop_columns([HASH])


def retract_form(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return net changes in retract form: rows with `op`, deletes first, repeated by weight."""
    weights = rows[WEIGHT].to_numpy()
    parts = []
    for operation, counts in ((DELETE, -weights), (APPEND, weights)):
        copies = repeat(rows, counts).select(list(columns))
        parts.append(
            copies.append_column("op", pa.array([operation] * copies.num_rows, pa.string()))
        )
    return pa.concat_tables(parts)


def update_form(
    rows: pa.Table, columns: Sequence[str], key: Sequence[int] | None, kind: pa.StructType
) -> pa.Table:
    """Return net changes in update form: a delete and an append of the same key become one row.

    Args:
        rows: columns and weights.
        key: positions of the key's columns; None for a view without a key, whose rows aren't paired.
        kind: Arrow type of a row.
    """
    weights = rows[WEIGHT].to_numpy()
    gone = repeat(rows.filter(pa.array(weights < 0)), -weights[weights < 0])
    come = repeat(rows.filter(pa.array(weights > 0)), weights[weights > 0])
    lines: list[tuple[int | None, int | None]]
    if key is None:
        lines = [(i, None) for i in range(gone.num_rows)] + [
            (None, i) for i in range(come.num_rows)
        ]
    else:
        names = [columns[place] for place in key]
        lines = _matched(gone, come, names)
    before = pa.array([line[0] for line in lines], pa.int64())
    after = pa.array([line[1] for line in lines], pa.int64())
    return pa.table(
        {
            "before": _structs(gone, columns, kind).take(before),
            "after": _structs(come, columns, kind).take(after),
        }
    )


def _matched(
    gone: pa.Table, come: pa.Table, names: list[str]
) -> list[tuple[int | None, int | None]]:
    sides = []
    for table, name in ((gone, "before"), (come, "after")):
        one = pl.Series("one", np.zeros(table.num_rows, np.int8))  # equal even without key columns
        frame = comparable_frame(table, names).with_columns(one) if names else one.to_frame()
        frame = frame.with_row_index(name)
        place = pl.int_range(pl.len()).over([*names, "one"]).alias("place")
        sides.append(frame.with_columns(place))
    joined = sides[0].join(
        sides[1],
        on=[*names, "one", "place"],
        how="full",
        nulls_equal=True,
        maintain_order="left_right",
    )
    return list(zip(joined["before"].to_list(), joined["after"].to_list(), strict=True))


def _structs(rows: pa.Table, columns: Sequence[str], kind: pa.StructType) -> pa.Array:
    if rows.num_rows == 0:
        return pa.nulls(0, kind)
    parts = [
        rows[name].combine_chunks().cast(field.type)
        for name, field in zip(columns, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind))
