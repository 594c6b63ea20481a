"""Changelogs: net changes of an epoch, and their retract, update and change feed forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from eddyline.changes import APPEND, DELETE, HASH, WEIGHT
from eddyline.sink.rows import feed_of, paired
from eddyline.state.kernels import Measure, consolidate, repeat
from eddyline.state.retyping import cast_to

RETRACT, UPDATE, CDF = FORMS = "retract", "update", "cdf"
"""The forms in which changes are read."""


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
    weights, shown = rows[WEIGHT].to_numpy(), rows.select(list(columns))
    gone, come = repeat(shown, -weights), repeat(shown, weights)
    old, new = paired(gone, come, _names(columns, key))
    matches = np.full(gone.num_rows, -1)
    matches[old] = new
    others = np.setdiff1d(np.arange(come.num_rows), new)
    before = np.concatenate([np.arange(gone.num_rows), np.full(len(others), -1)])
    after = np.concatenate([matches, others])
    return pa.table(
        {
            name: _structs(side, columns, kind).take(pa.array(places, mask=places < 0))
            for name, side, places in (("before", gone, before), ("after", come, after))
        }
    )


def cdf_form(rows: pa.Table, columns: Sequence[str], key: Sequence[int] | None) -> pa.Table:
    """Return net changes as a change feed: rows with `_change_type`, see `feed_of`.

    Args:
        key: positions of the key's columns; None for a view without a key, whose rows aren't paired.
    """
    return feed_of(rows.select(list(columns)), rows[WEIGHT].to_numpy(), _names(columns, key))


def _names(columns: Sequence[str], key: Sequence[int] | None) -> list[str] | None:
    return None if key is None else [columns[place] for place in key]


def _structs(rows: pa.Table, columns: Sequence[str], kind: pa.StructType) -> pa.Array:
    if rows.num_rows == 0:
        return pa.nulls(0, kind)
    typed = cast_to(rows.select(list(columns)), pa.schema(list(kind)))
    parts = [column.combine_chunks() for column in typed.columns]
    return pa.StructArray.from_arrays(parts, fields=list(kind))
